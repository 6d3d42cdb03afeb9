"""Making the entries of an atlas, in one process or in several."""

import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

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
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    context = get_context("spawn")
    # Closed by us or by our death, this pipe ends the processes at once: an executor waits for what they are at.
    lifeline, ours = context.Pipe(duplex=False)
    with ours, lifeline, ProcessPoolExecutor(jobs, context, _make_process_ready, (common, most, lifeline)) as pool:
        try:
            yield (made.result() for made in as_completed([pool.submit(_entry, number) for number in numbers]))
        except BaseException:
            ours.close()
            raise


def _make_process_ready(common: "Atlas", most: int, lifeline: "Connection") -> None:
    """Ready a process of its own, which ends with the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other one decides what an interruption means
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    _make_ready(common, most)


def _end_with(lifeline: "Connection") -> None:
    with suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


def _make_ready(common: "Atlas", most: int) -> None:
    from ..planners.slipstream.replanner import Replanner

    global _REPLANNER
    _REPLANNER = Replanner(common, most)


def _entry(number: int) -> tuple["AtlasEntry", "Plan | None"]:
    assert _REPLANNER is not None
    return _REPLANNER.entry(number)
