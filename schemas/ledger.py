"""Ledger of a job: where its GPU-hours went over all restarts, each second of each GPU in one class."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from .errors import InvalidInputError
from .fields import STRICT, Count, Factor, Index, Name, Seconds

LedgerClass = Literal["useful", "slow", "redone", "checkpoint", "detection", "restart", "load", "idle", "unknown"]

# What each class is; the page, the documentation and every document say it in these words.
CLASSES: dict[LedgerClass, str] = {
    "useful": "iterations that counted in the end, at the job's own healthy speed, and evaluations of the model",
    "slow": "what iterations that counted took beyond that: those that were over 10 % above the healthy time",
    "redone": "iterations and evaluations lost when the job went back to a checkpoint: their first doing is what is "
    "lost, the doing that the job kept is useful",
    "checkpoint": "training stood still while a checkpoint was saved",
    "detection": "from the last sign of progress to the first line that says that something is wrong; where a "
    "time-out or a watchdog speaks later than the first error, up to that",
    "restart": "tearing down, starting processes, forming their groups (rendezvous), up to where the model is built; "
    "starts that fail",
    "load": "building the model, loading the checkpoint, and what an attempt's first iterations take beyond the "
    "healthy time (compilation, first use of communicators)",
    "idle": "between attempts: in the queue, or nobody has restarted the job",
    "unknown": "the log does not say: a pause between iterations without a word",
}
DEFINITIONS: dict[str, str] = {
    "goodput": "useful GPU-seconds over all GPU-seconds of the span. What google's ml-goodput-measurement calls "
    "productive time over total time, with slow steps counted as badput (its step time deviation)",
    "ettr": "effective training time ratio: useful and slow time over all time. Meta (arXiv 2410.21680) divides a "
    "run's productive time by its wall-clock time, the queue included; work done again and starting are unproductive",
    "healthy time": "of an iteration: the median of those that lie within 10 % of the lower quartile, of all attempts "
    "on as many GPUs",
    "span": "from the first line with a clock to the last, times the GPUs; between attempts those of the one before",
}
AttemptEnd = Literal["clean", "failed", "silent", "open"]


@dataclass(frozen=True, slots=True)
class GpuTime:
    """GPU-seconds by class; `CLASSES` says what each is."""

    useful_gpu_s: Seconds = 0.0
    slow_gpu_s: Seconds = 0.0
    redone_gpu_s: Seconds = 0.0
    checkpoint_gpu_s: Seconds = 0.0
    detection_gpu_s: Seconds = 0.0
    restart_gpu_s: Seconds = 0.0
    load_gpu_s: Seconds = 0.0
    idle_gpu_s: Seconds = 0.0
    unknown_gpu_s: Seconds = 0.0

    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def total_gpu_s(self) -> float:
        """Of all classes."""
        return math.fsum(gpu_s for _, gpu_s in self)

    def of(self, name: LedgerClass) -> float:
        """GPU-seconds of one class."""
        found: float = getattr(self, f"{name}_gpu_s")
        return found

    def __iter__(self) -> Iterator[tuple[LedgerClass, float]]:
        """The classes in their order, each with its GPU-seconds."""
        return ((name, self.of(name)) for name in CLASSES)


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """One attempt of the job, with the time until the next one begins.

    Attributes:
        where: the line with which it begins.
        begin_s: from the beginning of the span, as all times here.
        training_s: when its first iteration began; None: it never came so far.
        progress_s: when the log last says of progress.
        noticed_s: when somebody noticed that it failed; None: nobody, or it did not.
        end_s: its last line.
        until_s: when the next attempt begins, or the span ends.
        gpus: that it ran on; None: nobody has said.
        first_iteration, last_iteration: that it has done; None: none.
        ended: `clean`; `failed`; `silent`: the log of it stops, and another attempt begins; `open`: the log ends.
        healthy_s: the healthy time of an iteration on so many GPUs; None: not known.
        slowdown: what its iterations took on average over that.
        time: by class.
    """

    where: Name
    begin_s: Seconds
    training_s: Seconds | None
    progress_s: Seconds
    noticed_s: Seconds | None
    end_s: Seconds
    until_s: Seconds
    gpus: Count | None
    first_iteration: Index | None
    last_iteration: Index | None
    ended: AttemptEnd
    healthy_s: Seconds | None
    slowdown: Factor | None
    time: GpuTime

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A failure that ended an attempt, and what it cost.

    Attributes:
        attempt: that it ended, counted from 0.
        time_s: when it was noticed, from the beginning of the span.
        cause: the first error's words; of an attempt that ended without a word, that.
        where: the line.
        ranks: who failed, as the log has it.
        detection_s: from the last progress until it was noticed.
        restart_s: until training went on, without what the job was idle: tearing down, restart, load.
        idle_s: in the queue, or nobody restarted the job.
        redone_s: of the iterations that were lost.
        iterations_lost: how many.
        cost_gpu_s: of all of that.
    """

    attempt: Index
    time_s: Seconds
    cause: Name
    where: Name
    ranks: tuple[str, ...]
    detection_s: Seconds
    restart_s: Seconds
    idle_s: Seconds
    redone_s: Seconds
    iterations_lost: Index
    cost_gpu_s: Seconds

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class SlowPhase:
    """A stretch in which three or more lines in a row told of slow iterations.

    Attributes:
        begin_s, end_s: from the beginning of the span.
        iterations: in it.
        factor: what they took on average over the healthy time.
    """

    begin_s: Seconds
    end_s: Seconds
    iterations: Count
    factor: Factor

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Saves:
    """The checkpoints of a job.

    Attributes:
        count: how many were saved.
        pause_s: how long one held training up, on average; None: there is none.
        every_s: between two of an attempt, on average; None: no attempt has two.
    """

    count: Index = 0
    pause_s: Seconds | None = None
    every_s: Seconds | None = None

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class LineCount:
    """Lines of the logs.

    Attributes:
        read: all of them.
        telling: what the ledger is made of.
        not_understood: that begin to tell of something, and cannot be read: cut off, or written over by another rank.
        formats: of each file, as recognised; None where it tells of no iteration.
    """

    read: Index = 0
    telling: Index = 0
    not_understood: Index = 0
    formats: dict[str, str | None] = field(default_factory=dict)

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class GoodputLedger:
    """Where the GPU-hours of a job went, over all its restarts.

    Attributes:
        begin_s: Unix time of the beginning; None: the logs have no clock.
        span_s: how long it went on.
        has_gpus: whether anybody has said how many GPUs there are; else all is counted for one.
        time: all GPU-seconds, by class.
        iterations: that the job has in the end.
        iterations_lost: that were done, and lost.
        iterations_skipped: of those that it has, without an update (overflow of fp16).
        attempts, failures: in their order.
        slow_phases: of iterations that were kept.
        saves: of checkpoints.
        lines: what was read.
        warnings: what a reader should know before believing any of it.
        definitions: what the words mean.
        evaluations: how often the model was evaluated.
        evaluation_gpu_s: of the useful time, what that took.
    """

    begin_s: Seconds | None
    span_s: Seconds
    has_gpus: bool
    time: GpuTime
    iterations: Index
    iterations_lost: Index
    iterations_skipped: Index
    attempts: tuple[JobAttempt, ...]
    failures: tuple[JobFailure, ...]
    slow_phases: tuple[SlowPhase, ...]
    saves: Saves
    lines: LineCount
    warnings: tuple[str, ...]
    definitions: dict[str, str]
    evaluations: Index = 0
    evaluation_gpu_s: Seconds = 0.0

    FORMAT: ClassVar[str] = "rtk.ledger"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def goodput(self) -> float:
        """Useful time as a share of all."""
        return self._share(self.time.useful_gpu_s)

    @property
    def ettr(self) -> float:
        """Effective training time ratio: useful and slow time as a share of all."""
        return self._share(self.time.useful_gpu_s + self.time.slow_gpu_s)

    @property
    def unit(self) -> str:
        """What its hours are hours of."""
        return "GPU-hours" if self.has_gpus else "hours"

    def _share(self, gpu_s: float) -> float:
        total_gpu_s = self.time.total_gpu_s
        return gpu_s / total_gpu_s if total_gpu_s else 0.0

    def validate(self) -> None:
        """The classes of the attempts add up to those of the job, and failures end attempts that are there."""
        for one_class in fields(GpuTime):
            parts = math.fsum(getattr(one.time, one_class.name) for one in self.attempts)
            whole = getattr(self.time, one_class.name)
            if not math.isclose(parts, whole, rel_tol=1e-9, abs_tol=1e-3):
                raise InvalidInputError(
                    f"the attempts have {parts:g} GPU-seconds of this class, the job {whole:g}",
                    where=f"/time/{one_class.name}",
                )
        for index, failure in enumerate(self.failures):
            if failure.attempt >= len(self.attempts):
                raise InvalidInputError(
                    f"there are {len(self.attempts)} attempts, counted from 0", where=f"/failures/{index}/attempt"
                )
