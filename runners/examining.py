"""Suspicious groups examined in a pause between two iterations: what that consists of, and on the virtual clock.

Greyhound, section 4.3. Each worker of a group multiplies matrices, then exchanges messages with others of it, in passes
in which nobody has two (passes.py). Who has more groups examines one after the other, in the order of the epoch's
message, so nobody waits in a circle. In an exchange the second says that it is there, the first sends and is answered
`ROUNDS` times, and the shortest counts: neither is who comes late to it measured, nor what a scheduler takes. Workers
that are not examined wait for the others when they first need something of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..schemas.protocols import Examined
from .machines import Staging
from .passes import passes_of
from .sending import rank_pair

COMPUTE_S = 0.02  # what the matrix products take in a paced run, of a worker that is not slow
ROUNDS = 3

Ranks = tuple[int, ...]


def exchanges_of(group: Ranks) -> Iterator[tuple[int, int]]:
    """The pairs of ranks of a group that exchange messages, (first, second), in the order in which they do."""
    for one in passes_of(len(group)):
        yield from ((group[first], group[second]) for first, second in one)


@dataclass(frozen=True)
class Pause:
    """A pause on the virtual clock.

    Attributes:
        found: what each rank has measured.
        lasts_s: until the last one is done.
    """

    found: Mapping[int, Examined]
    lasts_s: float


def pause(staging: Staging, groups: Sequence[Ranks], names: Sequence[str]) -> Pause:
    """What the workers of groups measure with true delays and paces, and how long it takes them.

    Args:
        staging: the epoch's program.
        groups: in ranks.
        names: of the workers, by rank.
    """
    workers = staging.program.workers
    ends_s = {rank: COMPUTE_S * (workers[rank].slowdown or 1.0) for group in groups for rank in group}
    compute_s = dict(ends_s)
    exchanges: dict[int, list[tuple[str, float]]] = {rank: [] for rank in ends_s}
    for first, second in (pair for group in groups for pair in exchanges_of(group)):
        if rank_pair(first, second) in staging.cuts(dict.fromkeys(staging.broken, 0.0)):
            continue  # the sums in the iteration that follows do not come through either, and have a detour made
        delay_s = staging.between_s(first, second)
        both_s = max(ends_s[first], ends_s[second]) + (1 + 2 * ROUNDS) * delay_s
        ends_s[first] = ends_s[second] = both_s
        exchanges[first].append((names[second], 2 * delay_s))
    found = {rank: Examined(compute_s[rank], tuple(exchanges[rank])) for rank in ends_s}
    return Pause(found, max(ends_s.values(), default=0.0))
