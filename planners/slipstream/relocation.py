"""Swaps: which live units take the places of dead ones, and whose state they copy.

SlipStream, section 4.2.1: "normalization only requires a point-to-point copy of model parameters to swap the location
of two workers in the pipeline for each failure". A live unit of a column that may lose one takes the place of a dead
one in a column that lost too many; its own place is the dead one from then on. It copies parameters and optimizer state
from live peers of its new place, each worker from another, which take turns where there are too few.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...schemas.plan import Place
from ...schemas.profile import Connection
from .failures import Grid


@dataclass(frozen=True)
class Copy:
    """A worker moves from `mover`'s place to `place` and copies the state of its new stage from a live peer there."""

    mover: Place
    place: Place
    source: Place
    size_bytes: float


@dataclass(frozen=True)
class Relocation:
    """Where the dead units stand after the swaps, and what is copied."""

    failed_units: frozenset[Place]
    copies: tuple[Copy, ...]

    @property
    def size_bytes(self) -> float:
        """All that is copied."""
        return sum(copy.size_bytes for copy in self.copies)

    def lasts_s(self, connection: Connection) -> float | None:
        """How long the copies take, in s; None where there is something to copy and the bandwidth is not known."""
        return connection.copying_s((copy.source, copy.mover, copy.size_bytes) for copy in self.copies)


def relocate(
    grid: Grid, failed_units: frozenset[Place], wanted: Sequence[int], state_bytes: Sequence[float]
) -> Relocation:
    """The fewest swaps that leave as many failed units in each column as wanted.

    Args:
        grid: the workers.
        failed_units: where the failures are.
        wanted: failed units of each column; as many in all.
        state_bytes: parameters, gradients and optimizer state of each stage.
    """
    have = grid.column_failures(failed_units)
    surplus = [c for c in range(grid.columns) for _ in range(max(0, have[c] - wanted[c]))]
    missing = [c for c in range(grid.columns) for _ in range(max(0, wanted[c] - have[c]))]
    dead = set(failed_units)
    pairs = []
    for to, origin in zip(surplus, missing, strict=True):
        place = min(unit for unit in dead if unit[1] == to)
        mover = max((row, origin) for row in range(grid.units) if (row, origin) not in dead)
        dead = dead - {place} | {mover}
        pairs.append((mover, place))
    return Relocation(frozenset(dead), tuple(_copies(grid, failed_units, pairs, state_bytes)))


def _copies(
    grid: Grid, failed_units: frozenset[Place], pairs: Sequence[tuple[Place, Place]], state_bytes: Sequence[float]
) -> list[Copy]:
    """What the workers of the moving units copy; no unit moves out of a column that one moves into."""
    lent: Counter[Place] = Counter()
    copies = []
    for mover, place in pairs:
        for old, new in zip(grid.places(mover), grid.places(place), strict=True):
            peers = [(k, new[1]) for k in range(grid.pipelines)]
            lasting = [peer for peer in peers if grid.unit_of(peer) not in failed_units]
            source = min(lasting, key=lambda peer: (lent[peer], peer))
            lent[source] += 1
            copies.append(Copy(old, new, source, state_bytes[new[1]]))
    return copies
