"""A finished book settled: which iterations were useful, slow or redone, and whose time is whose."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from ...schemas.ledger import CLASSES, GpuTime, JobAttempt, JobFailure, LedgerClass, SlowPhase
from .book import NO_WORD, Book
from .clock import US
from .entries import AttemptEntry
from .history import WITHIN, DoneRow, Loss, healthy_us

SLOW_ROWS = 3  # in a row are a phase, as for rtk detect
STARTED_WITHIN = 1.02  # of the healthy time: first iterations that took longer have compiled, or warmed up


class Settlement:
    """What the rows of iterations of a book were worth.

    Args:
        book: that is finished.
        gpus: that the job ran on, where its logs do not say, or say wrong.

    Attributes:
        said: GPUs of each attempt, as far as told.
        gpus: of each attempt: as it says, else as the one before, else as the next that does, else one.
        healthy_us: of each attempt, the healthy time of an iteration on as many GPUs; None: not known.
        us: time of each attempt by class.
        evaluated_gpu_us: of the useful time, what evaluations took.
    """

    def __init__(self, book: Book, gpus: int | None) -> None:
        self._book = book
        self.said = [gpus or one.gpus for one in book.attempts]
        known, self.gpus = next((one for one in self.said if one), None) or 1, list[int]()
        for one in self.said:
            known = one or known
            self.gpus.append(known)
        self.healthy_us = self._healthy()
        self.us = [Counter(entry.us) for entry in book.attempts]
        self.evaluated_gpu_us = 0
        self._steps: Counter[int] = Counter()
        self._took_us: Counter[int] = Counter()
        self._redone_us: Counter[int] = Counter()  # by the attempt that went back
        self._redone_gpu_us: Counter[int] = Counter()
        for row in book.history.rows:
            self._give(row, is_kept=True)
        for number, entry in enumerate(book.attempts):
            if entry.loss is not None:
                self._lose(number, entry.loss)

    def time(self) -> GpuTime:
        """Of the job, by class."""
        whole: Counter[LedgerClass] = Counter()
        for own, gpus in zip(self.us, self.gpus, strict=True):
            whole.update({name: us * gpus for name, us in own.items()})
        return _time_of(whole)

    def _healthy(self) -> list[float | None]:
        times: defaultdict[int, list[float]] = defaultdict(list)
        for number, sample in self._book.history.samples.items():
            times[self.gpus[number]] += sample.values
        healthy = {gpus: healthy_us(values) for gpus, values in times.items()}
        return [healthy.get(gpus) for gpus in self.gpus]

    def _lose(self, number: int, loss: Loss) -> None:
        """Attempt `number` went back behind what others had done."""
        took_us = Counter(loss.took_us)
        for attempt, us in took_us.items():
            self.us[attempt]["redone"] += us
        for row in loss.mixed:
            took_us[row.attempt] += self._give(row, is_kept=False)
        self._redone_us[number] += sum(took_us.values())
        self._redone_gpu_us[number] += sum(us * self.gpus[attempt] for attempt, us in took_us.items())

    def _give(self, row: DoneRow, *, is_kept: bool) -> int:
        """Give the time of some iterations its classes; what they and evaluations took, without what was starting."""
        own, usual_us = self.us[row.attempt], self.healthy_us[row.attempt]
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
        self.evaluated_gpu_us += evaluated_us * self.gpus[row.attempt] if is_kept else 0
        own["useful" if is_kept else "redone"] += took_us + evaluated_us
        own["slow"] += beyond_us
        return took_us + evaluated_us

    def slow_phases(self) -> Iterator[SlowPhase]:
        """Rows in a row that are slow; the first of an attempt is starting, and says nothing."""
        phase: list[DoneRow] = []
        for row in (*self._book.history.rows, None):
            usual_us = None if row is None else self.healthy_us[row.attempt]
            is_whole = row is not None and not (row.is_first or row.is_mixed)
            if row is not None and usual_us and is_whole and row.took_us > WITHIN * usual_us * row.steps:
                phase.append(row)
                continue
            if len(phase) >= SLOW_ROWS:
                steps, took_us = sum(one.steps for one in phase), sum(one.took_us for one in phase)
                factor = took_us / sum((self.healthy_us[one.attempt] or 0.0) * one.steps for one in phase)
                begin_us = max(phase[0].end_us - phase[0].took_us, 0)
                yield SlowPhase(begin_us / US, phase[-1].end_us / US, steps, factor)
            phase = []

    def attempt(self, number: int, entry: AttemptEntry) -> JobAttempt:
        """An attempt, counted from 0, as the document has it."""
        healthy, steps = self.healthy_us[number], self._steps[number]
        slowdown = self._took_us[number] / steps / healthy if healthy and steps else None
        return JobAttempt(
            where=str(entry.begins.where),
            begin_s=entry.begin_us / US,
            training_s=None if entry.training_us is None else entry.training_us / US,
            progress_s=entry.progress_us / US,
            noticed_s=None if entry.noticed_us is None else entry.noticed_us / US,
            end_s=entry.end_us / US,
            until_s=entry.until_us / US,
            gpus=self.said[number],
            first_iteration=None if entry.first is None else max(entry.first, 0),
            last_iteration=entry.last,
            ended=entry.ended,
            healthy_s=None if healthy is None else healthy / US,
            slowdown=slowdown or None,
            time=_time_of(Counter({name: us * self.gpus[number] for name, us in self.us[number].items()})),
        )

    def failures(self) -> Iterator[JobFailure]:
        """In their order, with what they cost."""
        attempts = self._book.attempts
        for number, entry in enumerate(attempts):
            if entry.ended not in ("failed", "silent"):
                continue
            after = number + 1 if number + 1 < len(attempts) else None
            with_iterations = (later for later in range(number + 1, len(attempts)) if attempts[later].last is not None)
            lost = next(with_iterations, None) if entry.last is not None else None  # the one that went back for it
            own, gpus = self.us[number], self.gpus[number]
            leaving_us = own["restart"] - entry.starting_us
            starting_us = 0 if after is None else attempts[after].starting_us + self.us[after]["load"]
            cost_gpu_us = gpus * (own["detection"] + own["idle"] + leaving_us)
            cost_gpu_us += starting_us * self.gpus[number if after is None else after]
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


def _time_of(us: Counter[LedgerClass]) -> GpuTime:
    return GpuTime(**{f"{name}_gpu_s": us[name] / US for name in CLASSES})
