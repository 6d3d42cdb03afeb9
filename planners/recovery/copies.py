"""Who copies which state from whom, and how long that takes by a job's `Costs`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ...schemas.errors import InvalidInputError
from ...schemas.plan import Place
from ...schemas.profile import Connection
from ..slipstream.normalization import Grid
from .job import TrainingJob

Copied = tuple[Place, Place, float]  # who sends, who receives, and the bytes that each GPU of a worker then receives


def from_peers(
    grid: Grid, live_units: Collection[Place], taken_units: Iterable[Place], gpu_bytes: Sequence[float]
) -> list[Copied]:
    """What the workers of units that have just been taken copy: from live peers of the same stage, in turns.

    Args:
        grid: the workers.
        live_units: that have their state, at least one of each column that a unit is taken in.
        taken_units: whose nodes have come without state.
        gpu_bytes: of a GPU of each stage.
    """
    rows: dict[int, list[int]] = {}
    for row, column in sorted(live_units):
        rows.setdefault(column, []).append(row)
    copies, turns = [], dict.fromkeys(rows, 0)
    for unit in taken_units:
        column = unit[1]
        source = rows[column][turns[column] % len(rows[column])]
        turns[column] += 1
        copies += _between(grid, (source, column), unit, gpu_bytes)
    return copies


def copying_s(job: TrainingJob, copies: Iterable[Copied]) -> float:
    """How long copies between workers take, in s: each sends one at a time and receives one at a time.

    The GPUs of a worker copy side by side.

    Raises:
        InvalidInputError: nobody says how fast state is copied.
    """
    found = copying_connection(job).copying_s(copies)
    if found is None:
        raise unknown_rate()
    return found


def copying_connection(job: TrainingJob) -> Connection:
    """What a GPU's state is copied over: at the rate of the costs, or as the profile's network between nodes has it."""
    network = job.profile.network.between_workers or Connection()
    if job.costs.copy_bytes_per_s is None:
        return network
    return Connection(network.latency_s, job.costs.copy_bytes_per_s)


def require_rate(job: TrainingJob) -> None:
    """Raise InvalidInputError if nobody says how fast state is copied."""
    if copying_connection(job).bandwidth_bytes_per_s is None:
        raise unknown_rate()


def _between(grid: Grid, source: Place, taken: Place, gpu_bytes: Sequence[float]) -> list[Copied]:
    """Worker by worker: what one unit copies from another of its column."""
    pairs = zip(grid.places(source), grid.places(taken), strict=True)
    return [(sender, receiver, gpu_bytes[receiver[1]]) for sender, receiver in pairs]


def unknown_rate() -> InvalidInputError:
    """What to say where state is to be copied and nobody knows how fast."""
    return InvalidInputError(
        "nobody knows how long copying state takes: the profile names no network",
        where="--profile",
        fix="give --cost copy_bytes_per_s=…, at which a GPU sends and receives, or a --cluster with its network",
    )
