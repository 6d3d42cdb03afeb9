"""The ledger of a job, out of what has happened to it.

Each microsecond of the span is put into one class of one attempt by `book.py`; then lost, slow and starting iterations
are told apart from useful ones by `settlement.py`, which needs the healthy time, and so the end of the log.

Goodput is useful over all time, as in google's ml-goodput-measurement (goodput and badput types of its README): its
tpu-initialization, training-preparation and program-startup are `restart` and `load` here, unproductive checkpoint
saves and restores `checkpoint` and `load`, wasted progress from disruption `redone`, infrastructure recovery
`detection`, `restart` and `idle`, step time deviation `slow`, other `unknown`. ETTR is that of Meta (Kokolis et al.,
Revisiting Reliability in Large-Scale Machine Learning Research Clusters, arXiv 2410.21680): productive time over
wall-clock time, the queue included; slow iterations are productive there. NVRx and Megatron report detection, restart
and load times of single cycles, which are the classes of those names.
"""

from collections.abc import Iterable, Sequence

from ...schemas.errors import InvalidInputError
from ...schemas.ledger import CLASSES, DEFINITIONS, GoodputLedger, LineCount, Saves
from ...schemas.text import counted
from .book import Book
from .cautions import words_on_attempts, words_on_clocks, words_on_gaps, words_on_gpus, words_on_jobs
from .clock import US, believable
from .happenings import Happening
from .log_count import LogCount
from .settlement import Settlement

MOST_CHANGES = 10  # of clocks, and hardly any of them is one, where it is so at most lines


def ledger_of(
    happenings: Iterable[Happening], *, gpus: int | None = None, count: LogCount | None = None
) -> GoodputLedger:
    """Where the time of a job went.

    Args:
        happenings: what its logs say, in order; read one by one.
        gpus: that it ran on, where the logs do not say, or say wrong.
        count: of the lines that were read, filled by the time the last happening was taken; None: nothing is known.

    Raises:
        InvalidInputError: there is no iteration in it, nothing that says how long any took, or there are two jobs;
            clocks and timers contradict each other.
    """
    book = Book()
    for happening in believable(happenings):
        book.take(happening)
    book.finish()
    count = count or LogCount()
    _require_iterations(book, count)
    settled, rows = Settlement(book, gpus), book.history.rows
    return GoodputLedger(
        begin_s=book.clock.begin_s,
        span_s=book.clock.elapsed_us / US,
        has_gpus=any(settled.said),
        time=settled.time(),
        iterations=sum(one.steps for one in rows),
        iterations_lost=sum(one.loss.iterations for one in book.attempts if one.loss is not None),
        iterations_skipped=sum(one.skipped for one in rows),
        attempts=tuple(settled.attempt(number, entry) for number, entry in enumerate(book.attempts)),
        failures=tuple(settled.failures()),
        slow_phases=tuple(settled.slow_phases()),
        saves=Saves(len(book.saves_us), _mean_s(book.saves_us), _mean_s(book.between_saves_us)),
        lines=LineCount(count.lines, count.telling, count.garbled, dict(count.formats)),
        warnings=(
            *words_on_clocks(book),
            *words_on_gpus(settled.said),
            *words_on_jobs(book),
            *words_on_gaps(book, sum(own["unknown"] for own in settled.us)),
            *words_on_attempts(book, settled.healthy_us),
            *count.words(),
        ),
        definitions={**DEFINITIONS, **{str(name): words for name, words in CLASSES.items()}},
        evaluations=book.evaluations,
        evaluation_gpu_s=settled.evaluated_gpu_us / US,
    )


def _require_iterations(book: Book, count: LogCount) -> None:
    """Raise InvalidInputError where no iteration, or no time, was found: a goodput of 0 would be a lie."""
    where = ", ".join(count.formats) or "the log"
    if not any(one.last is not None for one in book.attempts):
        broke = next((one.failure for one in book.attempts if one.failure is not None), None)
        said = f"; it says of a failure: {broke.cause} ({broke.where})" if broke is not None else ""
        raise InvalidInputError(
            f"no iteration in {counted(count.lines, 'line')}; {count.telling} of them tell of anything{said}",
            where=where,
            fix="give the log in which iterations are printed, or its format (--format)",
        )
    changes = book.clock.changes
    if len(changes) > MOST_CHANGES and 2 * len(changes) > book.lines:
        raise InvalidInputError(
            f"how long iterations took, as the log says, and its clock contradict each other at {len(changes)} of "
            f"{counted(book.lines, 'line')}, first at {changes[0]}",
            where=where,
            fix="see whether numbers are read right (1,000 or 1.000 as a thousand), or describe lines with --pattern",
        )
    if book.clock.elapsed_us == 0:
        raise InvalidInputError(
            "the iterations have neither a clock nor a duration", where=where, fix="give a log with time stamps"
        )


def _mean_s(us: Sequence[int]) -> float | None:
    return sum(us) / len(us) / US if us else None
