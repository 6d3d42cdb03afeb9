"""What a reader should know before believing a ledger, in words."""

from collections.abc import Iterable, Iterator, Sequence

from ...schemas.quantities import print_time
from ...schemas.text import counted
from .book import Book
from .clock import US

TOLD_AGAIN = 20  # lines of iterations, of which one was told before, are odd
UNTOLD = 100  # an unknown part of so many is worth a word
UNLIKE = 1.25  # an attempt all of whose iterations are so much slower: another configuration, perhaps


def words_on_gpus(said: Iterable[int | None]) -> Iterator[str]:
    """Where no attempt says how many there are."""
    if not any(said):
        yield "nobody says how many GPUs there are: hours are the job's, as of one GPU; --gpus says it"


def words_on_clocks(book: Book) -> Iterator[str]:
    """Clocks that are missing, or were put back or forward."""
    if book.clock.begin_s is None:
        yield "no line has a clock: what iterations say that they took is counted, and no time between attempts"
    elif not book.dated:
        yield "no iteration has a clock: how long they took is counted, and pauses between them are not seen"
    if book.clock.changes:
        first = book.clock.changes[0]
        yield (
            f"the clock was put back or forward {counted(len(book.clock.changes), 'time')}, first at {first}: "
            "time was counted on as if it had not been"
        )


def words_on_jobs(book: Book) -> Iterator[str]:
    """Signs of more than one job."""
    for place in book.others:
        yield (
            f"{place.where}: another job seems to begin, at iteration {place.iteration} after a clean end; nothing "
            "of the one before counts as lost. Give the logs of one job at a time"
        )
    for first in book.anew[:1]:
        yield (
            f"{first.where}: an attempt begins at iteration 1 and loads no checkpoint: all that was done before "
            "counts as lost. If that is another job, give the logs of one job at a time"
        )
    if book.again * TOLD_AGAIN > book.lines:
        yield (
            f"{counted(book.again, 'line')} tell of iterations that were told before, and name no rank: ranks that "
            "are late, or another job in the same log"
        )


def words_on_gaps(book: Book, unknown_us: int) -> Iterator[str]:
    """What the log does not tell.

    Args:
        book: of the job.
        unknown_us: how much time has no class.
    """
    if book.longest is not None and unknown_us * UNTOLD > book.clock.elapsed_us:
        longest_us, after = book.longest
        yield (
            f"{counted(book.pauses, 'pause')} between iterations without a word; the longest, "
            f"{print_time(longest_us / US)}, before {after.where}"
        )
    if book.unmeasured:
        yield (
            f"{counted(book.unmeasured, 'evaluation')} did not say how long they took: what iterations' timers "
            "leave out there, or else what these iterations took beyond the healthy time, counts as theirs"
        )
    if book.missing:
        yield f"{counted(book.missing, 'iteration')} that the job has done are not in these logs"


def words_on_attempts(book: Book, healthy_us: Sequence[float | None]) -> Iterator[str]:
    """Errors that ended none, ends without a word, and attempts that are slow as a whole.

    Args:
        book: of the job.
        healthy_us: of each attempt, what an iteration takes when nothing is slow; None: not known.
    """
    if book.alarms:
        yield (
            f"{counted(len(book.alarms), 'error')} did not stop training, and no failure is made of them; the "
            f"first at {book.alarms[0].where}"
        )
    silent = sum(one.ended == "silent" for one in book.attempts)
    if silent:
        yield (
            f"{counted(silent, 'attempt')} ended without a word: the time from the last line to the next start "
            "counts as idle"
        )
    for number, entry in enumerate(book.attempts):
        sample, healthy = book.history.samples.get(number), healthy_us[number]
        if sample and healthy and len(sample.values) > 9 and min(sample.values) > UNLIKE * healthy:
            yield (
                f"attempt {number + 1} ({entry.begins.where}) is slow from its first iteration to its last: if its "
                "batch or model is another one, that is not slowness"
            )
