"""Timeline: what happened when, simulated or measured; and Report: what that was worth."""

from dataclasses import dataclass, field
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
    """The sizes that turn a worker's spans into its memory over time (schemas/plan.py, Stage)."""

    worker: str
    activation_bytes: Bytes = 0.0
    weight_stash_bytes: Bytes = 0.0
    memory_limit_bytes: Bytes | None = None

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
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

    def validate(self) -> None:
        """Raise InvalidInputError for a span that ends before it starts."""
        for index, span in enumerate(self.spans):
            if span.end_s < span.start_s:
                raise InvalidInputError(
                    f"{span.op} of worker {span.worker} ends before it starts", where=f"/spans/{index}/end_s"
                )


def memory_of_workers(*plans: Plan) -> tuple[WorkerMemory, ...]:
    """The memory sizes of the live workers of the plans that were executed, as a Timeline carries them.

    A Timeline has one size a place, so one whose stage is not the same in all plans has none.
    """
    found: dict[Place, set[WorkerMemory]] = {}
    for plan in plans:
        for worker in plan.live_workers():
            stage = plan.stage_of(worker)
            sizes = stage.activation_bytes, stage.weight_stash_bytes, stage.memory_limit_bytes
            found.setdefault(worker.place, set()).add(WorkerMemory(worker.name, *sizes))
    return tuple(memory for _, own in sorted(found.items()) for memory in own if len(own) == 1)
