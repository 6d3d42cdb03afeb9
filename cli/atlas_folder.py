"""Making the entries of an atlas, in one process or in several."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .executors import process_pool

if TYPE_CHECKING:
    from ..planners.slipstream.replanner import Replanner
    from ..schemas.atlas import Atlas, AtlasEntry
    from ..schemas.plan import Plan


_REPLANNER: "Replanner | None" = None  # of a process that makes entries


@contextmanager
def atlas_entries(
    common: "Atlas", most: int, numbers: Sequence[int], jobs: int
) -> Iterator[Iterable[tuple["AtlasEntry", "Plan | None"]]]:
    """The entries for numbers of failures, as they are finished, in this process or in several.

    Args:
        common: the opening of the atlas.
        most: failures in the atlas.
        numbers: of failures.
        jobs: processes.
    """
    if jobs == 1 or len(numbers) < 2:
        _make_ready(common, most)
        yield map(_entry, numbers)
        return
    from concurrent.futures import as_completed

    with process_pool(jobs, _make_ready, (common, most)) as pool:
        yield (made.result() for made in as_completed([pool.submit(_entry, number) for number in numbers]))


def _make_ready(common: "Atlas", most: int) -> None:
    from ..planners.slipstream.replanner import Replanner

    global _REPLANNER
    _REPLANNER = Replanner(common, most)


def _entry(number: int) -> tuple["AtlasEntry", "Plan | None"]:
    assert _REPLANNER is not None
    return _REPLANNER.entry(number)
