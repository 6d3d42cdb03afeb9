"""Timeline: what happened when, simulated or measured; and Report: what that was worth."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any, ClassVar, Literal

from .display import Displayed
from .errors import InvalidInputError
from .fields import STRICT, Bytes, Index, Name, Ratio, Seconds
from .plan import Place, Plan


@dataclass(frozen=True, slots=True)
class Report:
    """Times, bound and memory of an executed plan; memory stands in the plan's worker order."""

    source: Literal["simulated", "measured"]
    iteration_time_s: Seconds
    makespan_s: Seconds
    period_s: Seconds
    lower_bound_s: Seconds
    bubble_ratio: Ratio
    peak_memory_bytes: tuple[Bytes, ...]
    microbatches_per_s: Ratio
    plan: str | None = None

    FORMAT: ClassVar[str] = "rtk.report"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[Any] = STRICT

    def validate(self) -> None:
        """Nothing here can contradict itself."""


@dataclass(frozen=True, slots=True)
class Span:
    """One operation on one worker `k/i`: a token of its order, or `allreduce` or `step`."""

    worker: str
    op: Name
    start_s: Seconds
    end_s: Seconds
    iteration: Index = 0

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at one moment, such as a failure."""

    time_s: Seconds
    kind: str
    worker: str | None = None
    message: str = ""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"worker"})
    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The sizes that turn a worker's spans into its memory over time (schemas/plan.py, Stage).

    Of a plan with a placement there is one for each of a worker's virtual stages, which `stage` names; the limit is the
    worker's.
    """

    worker: str
    activation_bytes: Bytes = 0.0
    weight_stash_bytes: Bytes = 0.0
    memory_limit_bytes: Bytes | None = None
    stage: Index | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"stage"})
    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True)
class Timeline(Displayed):
    """Spans and events in time order, and where they came from.

    `plan` is the sha256 of the executed plan. `paced`: operations were stretched to the durations that the plan states.
    """

    source: Literal["simulated", "measured"]
    spans: tuple[Span, ...]
    workers: tuple[WorkerMemory, ...] = ()
    events: tuple[Event, ...] = ()
    plan: str | None = None
    paced: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    FORMAT: ClassVar[str] = "rtk.timeline"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[Any] = STRICT

    @cached_property
    def is_placed(self) -> bool:
        """Whether operations say of which virtual stage they are; then it is a document of format version 2.0."""
        sized = any(memory.stage is not None for memory in self.workers)
        return sized or any(span.op[:1].isdigit() for span in self.spans)

    def validate(self) -> None:
        """Raise InvalidInputError for a span that ends before it starts."""
        for index, span in enumerate(self.spans):
            if span.end_s < span.start_s:
                raise InvalidInputError(
                    f"{span.op} of worker {span.worker} ends before it starts", where=f"/spans/{index}/end_s"
                )


@dataclass(frozen=True, slots=True)
class IterationTime:
    """What one iteration took: from the end of the one before it to its own, which is its last optimizer step.

    The first iteration of a run, or after a change of its workers or its plan, begins with its first operation instead.

    Attributes:
        iteration: its number.
        seconds: that it took.
        is_first: of a run, or after a change.
    """

    iteration: int
    seconds: float
    is_first: bool = False


def iteration_time_s(times: Iterable[IterationTime]) -> float | None:
    """The iteration time of a run, in s: the one definition, also of what is compared with a plan's prediction.

    It is the median of its iterations but for the first ones, which connect and warm up; of these where there are no
    others. None where there is no iteration.
    """
    known = list(times)
    counted = [one.seconds for one in known if not one.is_first] or [one.seconds for one in known]
    return median(counted) if counted else None


def iteration_times(timeline: Timeline) -> tuple[IterationTime, ...]:
    """What the iterations of a timeline took, in their order."""
    starts_s: dict[int, float] = {}
    ends_s: dict[int, float] = {}
    for span in timeline.spans:
        starts_s[span.iteration] = min(span.start_s, starts_s.get(span.iteration, span.start_s))
        ends_s[span.iteration] = max(span.end_s, ends_s.get(span.iteration, span.end_s))
    changes_s = [event.time_s for event in timeline.events if event.kind == "epoch"]
    return times_between([(number, starts_s[number], ends_s[number]) for number in sorted(ends_s)], changes_s)


def times_between(
    iterations: Sequence[tuple[int, float, float]], changes_s: Sequence[float]
) -> tuple[IterationTime, ...]:
    """What iterations took.

    Args:
        iterations: the number of each, its first start and its last end, in order.
        changes_s: when workers or plan changed; what had begun before was then begun anew.
    """
    found: list[IterationTime] = []
    last_end_s = -math.inf
    for number, start_s, end_s in iterations:
        change_s = max((at_s for at_s in changes_s if at_s < end_s), default=-math.inf)
        is_first = not found or change_s > last_end_s
        begun_s = max(start_s, change_s) if is_first else last_end_s
        found.append(IterationTime(number, end_s - begun_s, is_first))
        last_end_s = end_s
    return tuple(found)


def memory_of_workers(*plans: Plan) -> tuple[WorkerMemory, ...]:
    """The memory sizes of the live workers of the plans that were executed, as a Timeline carries them.

    A Timeline has one size a virtual stage of a place, so a place whose stages are not the same in all plans has none.
    """
    found: dict[Place, set[tuple[WorkerMemory, ...]]] = {}
    for plan in plans:
        for worker in plan.live_workers():
            placed, limit = plan.template_of(worker.pipeline).placement is not None, plan.limit_bytes(worker)
            sizes = tuple(
                WorkerMemory(
                    worker.name, stage.activation_bytes, stage.weight_stash_bytes, limit, seat if placed else None
                )
                for seat, stage in zip(plan.seats_of(worker), plan.stages_of(worker), strict=True)
            )
            found.setdefault(worker.place, set()).add(sizes)
    return tuple(memory for _, own in sorted(found.items()) if len(own) == 1 for sizes in own for memory in sizes)
