"""The ledger of a job, out of what has happened to it.

Each microsecond of the span is put into one class of one attempt by `book.py`; here lost, slow and starting iterations
are told apart from useful ones, which needs the healthy time, and so the end of the log.

Goodput is useful over all time, as in google's ml-goodput-measurement (goodput and badput types of its README): its
tpu-initialization, training-preparation and program-startup are `restart` and `load` here, unproductive checkpoint
saves and restores `checkpoint` and `load`, wasted progress from disruption `redone`, infrastructure recovery
`detection`, `restart` and `idle`, step time deviation `slow`, other `unknown`. ETTR is that of Meta (Kokolis et al.,
Revisiting Reliability in Large-Scale Machine Learning Research Clusters, arXiv 2410.21680): productive time over
wall-clock time, the queue included; slow iterations are productive there. NVRx and Megatron report detection, restart
and load times of single cycles, which are the classes of those names.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from ...schemas.errors import InvalidInputError
from ...schemas.ledger import (
    CLASSES,
    DEFINITIONS,
    GoodputLedger,
    GpuTime,
    JobAttempt,
    JobFailure,
    LedgerClass,
    LineCount,
    Saves,
    SlowPhase,
)
from ...schemas.text import counted
from .book import NO_WORD, AttemptEntry, Book
from .cautions import words_on_attempts, words_on_clocks, words_on_gaps, words_on_gpus, words_on_jobs
from .clock import US, believable
from .happenings import Happening
from .history import WITHIN, DoneRow, healthy_us
from .log_count import LogCount

SLOW_ROWS = 3  # in a row are a phase, as for rtk detect
STARTED_WITHIN = 1.02  # of the healthy time: first iterations that took longer have compiled, or warmed up


def ledger_of(
    happenings: Iterable[Happening], *, gpus: int | None = None, count: LogCount | None = None
) -> GoodputLedger:
    """Where the time of a job went.

    Args:
        happenings: what its logs say, in order; read one by one.
        gpus: that it ran on, where the logs do not say, or say wrong.
        count: of the lines that were read, filled by the time the last happening was taken; None: nothing is known.

    Raises:
        InvalidInputError: there is no iteration in it, nothing that says how long any took, or there are two jobs.
    """
    book = Book()
    for happening in believable(happenings):
        book.take(happening)
    book.finish()
    count = count or LogCount()
    _require_iterations(book, count)
    return _Settlement(book, gpus).ledger(count)


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
    if book.clock.elapsed_us == 0:
        raise InvalidInputError(
            "the iterations have neither a clock nor a duration", where=where, fix="give a log with time stamps"
        )


class _Settlement:
    """A book that is finished: what its rows of iterations were worth, and whose time is whose."""

    def __init__(self, book: Book, gpus: int | None) -> None:
        self._book = book
        self._said = [gpus or one.gpus for one in book.attempts]
        self._gpus = _filled(self._said)
        self._healthy_us = self._healthy()
        self._us = [Counter(entry.us) for entry in book.attempts]
        self._steps: Counter[int] = Counter()
        self._took_us: Counter[int] = Counter()
        self._evaluated_gpu_us = 0
        self._redone_us: Counter[int] = Counter()  # by the attempt that went back
        self._redone_gpu_us: Counter[int] = Counter()
        self._settle()

    def ledger(self, count: LogCount) -> GoodputLedger:
        """The document."""
        book, clock = self._book, self._book.clock
        attempts = tuple(self._attempt(number, entry) for number, entry in enumerate(book.attempts))
        rows = book.history.rows
        return GoodputLedger(
            begin_s=clock.begin_s,
            span_s=clock.elapsed_us / US,
            has_gpus=any(self._said),
            time=self._time_of(
                sum((Counter({name: us * gpus for name, us in own.items()}) for own, gpus in self._weighed), Counter())
            ),
            iterations=sum(one.steps for one in rows),
            iterations_lost=sum(one.loss.iterations for one in book.attempts if one.loss is not None),
            iterations_skipped=sum(one.skipped for one in rows),
            attempts=attempts,
            failures=tuple(self._failures()),
            slow_phases=tuple(self._slow_phases()),
            evaluations=book.evaluations,
            evaluation_gpu_s=self._evaluated_gpu_us / US,
            saves=Saves(len(book.saves_us), _mean_s(book.saves_us), _mean_s(book.between_saves_us)),
            lines=LineCount(count.lines, count.telling, count.garbled, dict(count.formats)),
            warnings=(
                *words_on_clocks(book),
                *words_on_gpus(self._said),
                *words_on_jobs(book),
                *words_on_gaps(book, sum(own["unknown"] for own in self._us)),
                *words_on_attempts(book, self._healthy_us),
                *count.words(),
            ),
            definitions={**DEFINITIONS, **{str(name): words for name, words in CLASSES.items()}},
        )

    @property
    def _weighed(self) -> Iterable[tuple[Counter[LedgerClass], int]]:
        return zip(self._us, self._gpus, strict=True)

    def _healthy(self) -> list[float | None]:
        """For each attempt, the healthy time of an iteration on as many GPUs."""
        times: defaultdict[int, list[float]] = defaultdict(list)
        for number, sample in self._book.history.samples.items():
            times[self._gpus[number]] += sample.values
        healthy = {gpus: healthy_us(values) for gpus, values in times.items()}
        return [healthy.get(gpus) for gpus in self._gpus]

    def _settle(self) -> None:
        """Give the time of all iterations its class."""
        for row in self._book.history.rows:
            self._give(row, is_kept=True)
        for number, entry in enumerate(self._book.attempts):
            if entry.loss is None:
                continue
            for attempt, took_us in entry.loss.took_us.items():
                self._us[attempt]["redone"] += took_us
                self._note_redone(number, attempt, took_us)
            for row in entry.loss.mixed:
                self._note_redone(number, row.attempt, self._give(row, is_kept=False))

    def _note_redone(self, number: int, attempt: int, took_us: int) -> None:
        """Attempt `number` went back behind what another one had done in so much time."""
        self._redone_us[number] += took_us
        self._redone_gpu_us[number] += took_us * self._gpus[attempt]

    def _give(self, row: DoneRow, *, is_kept: bool) -> int:
        """Give the time of some iterations its classes; what they and evaluations took, without what was starting."""
        own, usual_us = self._us[row.attempt], self._healthy_us[row.attempt]
        expected_us = row.took_us if usual_us is None else round(usual_us * row.steps)
        within = STARTED_WITHIN if row.is_first else WITHIN
        beyond_us = row.took_us - expected_us if row.took_us > within * expected_us else 0
        took_us = row.took_us - beyond_us
        evaluated_us = row.evaluated_us
        if row.is_mixed:
            evaluated_us, beyond_us = evaluated_us + beyond_us, 0
        elif row.is_first:
            own["load"], beyond_us = own["load"] + beyond_us, 0
        self._steps[row.attempt] += row.steps
        self._took_us[row.attempt] += took_us + beyond_us
        self._evaluated_gpu_us += evaluated_us * self._gpus[row.attempt] if is_kept else 0
        own["useful" if is_kept else "redone"] += took_us + evaluated_us
        own["slow"] += beyond_us
        return took_us + evaluated_us

    def _slow_phases(self) -> Iterable[SlowPhase]:
        """Rows in a row that are slow; the first of an attempt is starting, and says nothing."""
        phase: list[DoneRow] = []
        for row in (*self._book.history.rows, None):
            usual_us = None if row is None else self._healthy_us[row.attempt]
            is_whole = row is not None and not (row.is_first or row.is_mixed)
            if row is not None and usual_us and is_whole and row.took_us > WITHIN * usual_us * row.steps:
                phase.append(row)
                continue
            if len(phase) >= SLOW_ROWS:
                steps, took_us = sum(one.steps for one in phase), sum(one.took_us for one in phase)
                factor = took_us / sum((self._healthy_us[one.attempt] or 0.0) * one.steps for one in phase)
                begin_us = max(phase[0].end_us - phase[0].took_us, 0)
                yield SlowPhase(begin_us / US, phase[-1].end_us / US, steps, factor)
            phase = []

    def _time_of(self, us: Counter[LedgerClass]) -> GpuTime:
        return GpuTime(**{f"{name}_gpu_s": us[name] / US for name in CLASSES})

    def _attempt(self, number: int, entry: AttemptEntry) -> JobAttempt:
        healthy, steps = self._healthy_us[number], self._steps[number]
        slowdown = self._took_us[number] / steps / healthy if healthy and steps else None
        return JobAttempt(
            where=str(entry.begins.where),
            begin_s=entry.begin_us / US,
            training_s=None if entry.training_us is None else entry.training_us / US,
            progress_s=entry.progress_us / US,
            noticed_s=None if entry.noticed_us is None else entry.noticed_us / US,
            end_s=entry.end_us / US,
            until_s=entry.until_us / US,
            gpus=self._said[number],
            first_iteration=None if entry.first is None else max(entry.first, 0),
            last_iteration=entry.last,
            ended=entry.ended,
            healthy_s=None if healthy is None else healthy / US,
            slowdown=slowdown or None,
            time=self._time_of(Counter({name: us * self._gpus[number] for name, us in self._us[number].items()})),
        )

    def _failures(self) -> Iterable[JobFailure]:
        attempts = self._book.attempts
        for number, entry in enumerate(attempts):
            if entry.ended not in ("failed", "silent"):
                continue
            after = number + 1 if number + 1 < len(attempts) else None
            lost = self._loss_after(number)
            own, gpus = self._us[number], self._gpus[number]
            leaving_us = own["restart"] - entry.starting_us
            starting_us = 0 if after is None else attempts[after].starting_us + self._us[after]["load"]
            cost_gpu_us = gpus * (own["detection"] + own["idle"] + leaving_us)
            cost_gpu_us += starting_us * self._gpus[number if after is None else after]
            cost_gpu_us += 0 if lost is None else self._redone_gpu_us[lost]
            failure, loss = entry.failure, attempts[lost].loss if lost is not None else None
            yield JobFailure(
                attempt=number,
                time_s=(entry.end_us if entry.noticed_us is None else entry.noticed_us) / US,
                cause=(failure.cause if failure is not None else None) or (failure.kind if failure else NO_WORD),
                where=str(failure.where if failure is not None else attempts[after or number].begins.where),
                ranks=failure.ranks if failure is not None else (),
                detection_s=own["detection"] / US,
                restart_s=(leaving_us + starting_us) / US,
                idle_s=own["idle"] / US,
                redone_s=(0 if lost is None else self._redone_us[lost]) / US,
                iterations_lost=loss.iterations if loss is not None else 0,
                cost_gpu_s=cost_gpu_us / US,
            )

    def _loss_after(self, number: int) -> int | None:
        """The attempt that went back because of a failure: the next one with iterations."""
        attempts = self._book.attempts
        if attempts[number].last is None:
            return None
        return next((n for n in range(number + 1, len(attempts)) if attempts[n].last is not None), None)


def _filled(said: Sequence[int | None]) -> list[int]:
    """GPUs of each attempt: as it says, else as the one before, else as the next that does, else one."""
    found: list[int] = []
    known = next((one for one in said if one), 1)
    for one in said:
        known = one or known
        found.append(known)
    return found


def _mean_s(us: Sequence[int]) -> float | None:
    return sum(us) / len(us) / US if us else None
