"""What a pipeline's iterations lost, measured, beside what its schedule must lose: the report of `rtk bubble`."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from .display import Displayed
from .fields import STRICT, Index, Name, Ratio, Seconds


@dataclass(frozen=True, slots=True)
class StageBubble:
    """What the workers of one stage, or column of several virtual stages, do in an iteration: means over them, in s.

    The five parts after `workers` add up to the iteration time.

    Attributes:
        stage: of the workers `k/stage`.
        workers: how many there are.
        compute_s: F, I, W and B.
        step_s: the optimizer's, where the source tells of it.
        before_s, between_s, after_s: neither of these: before the first operation, between operations, and after the
            last one. Messages, sums, waits and what no source tells of.
        exposed_communication_s: how long a stream of communication is busy and none of computing, which lies in the
            three; None: the source does not tell of communication.
    """

    stage: Index
    workers: Index
    compute_s: Seconds
    step_s: Seconds
    before_s: Seconds
    between_s: Seconds
    after_s: Seconds
    exposed_communication_s: Seconds | None = None

    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def idle_s(self) -> float:
        """What is neither computed nor a step."""
        return self.before_s + self.between_s + self.after_s


@dataclass(frozen=True, slots=True)
class BubbleChange:
    """A change, and what an iteration would take with it.

    Attributes:
        kind: what it changes.
        what: the change in words, to be done.
        iteration_time_s: with it, as planned or retimed with the times that were measured.
        saved_s: what that is less than `modelled_s`.
        assumes: what was assumed that nobody measured; empty: nothing.
    """

    kind: Literal["schedule", "micro-batches", "cut", "link", "slow", "sum", "step"]
    what: Name
    iteration_time_s: Seconds
    saved_s: Ratio
    assumes: str = ""

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class BubbleBound:
    """What the schedule that ran must take, by the times that were measured.

    Attributes:
        schedule: its name, or that it is none of the known ones.
        modelled_s: an iteration of its orders with the times of operations, messages, sums and steps, each the median
            of what was measured.
        dependency_s: the same with messages that take no time: what the orders themselves make of it.
        dependency_bubble_ratio: the share of that in which the average worker computes nothing.
        lower_bound_s: no order of these operations on these workers takes less, also with messages that take no time.
        even_ratio: (p - 1) / (v m): idle time over computing time of 1F1B or GPipe on even stages, as Megatron counts
            bubbles, for p workers of v virtual stages in a row and m micro-batches.
        changes: those that help most, the most helpful first.
        tried: how many were looked at.
    """

    schedule: Name
    modelled_s: Seconds
    dependency_s: Seconds
    dependency_bubble_ratio: Ratio
    lower_bound_s: Seconds
    even_ratio: Ratio
    changes: tuple[BubbleChange, ...] = ()
    tried: Index = 0

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True)
class BubbleReport(Displayed):
    """What iterations of a pipeline lost.

    Attributes:
        source: whether they were measured or simulated.
        read: what the report was made from, for people.
        clock: what the times of operations are taken from: a timeline's spans, or a trace's kernels, GPU annotations or
            CPU operations; or a log's timers.
        iterations: how many counted: all but the first, which warms up, where there are others.
        iteration_time_s: their mean: each from the end of the one before it to its own.
        bubble_ratio: the share of the iteration time in which the average worker computes nothing, as in a plan's
            prediction and a simulation's report: sums, steps and messages are in it.
        idle_over_compute: idle time over computing time of all workers: what compares with (p - 1) / m.
        imbalance: the computing time of the busiest stage over the mean, less 1.
        microbatches: of a pipeline, in an iteration.
        virtual_stages: of each worker.
        pipelines: how many.
        stages: by stage.
        bound: what the schedule must take; None where nobody knows the order of operations.
        planned_s: what the plan of the run promised for an iteration; None: no plan was given.
        remarks: what is to be known to read it.
    """

    source: Literal["simulated", "measured"]
    read: Name
    clock: Name
    iterations: Index
    iteration_time_s: Seconds
    bubble_ratio: Ratio
    idle_over_compute: Ratio
    imbalance: Ratio
    microbatches: Index
    virtual_stages: Index
    pipelines: Index
    stages: tuple[StageBubble, ...]
    bound: BubbleBound | None = None
    planned_s: Seconds | None = None
    remarks: tuple[str, ...] = field(default=())

    FORMAT: ClassVar[str] = "rtk.bubble"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[Any] = STRICT

    def validate(self) -> None:
        """Nothing here can contradict itself."""
