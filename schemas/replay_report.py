"""ReplayReport: what each policy made of a trace."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Lt, MinLen

from .display import Displayed
from .fields import STRICT, Bytes, Index, Name, Ratio, Seconds

Microbatches = Annotated[int, Ge(0), Lt(10**15)]  # of a year; every float up to there is a whole number


@dataclass(frozen=True, slots=True)
class WhereTimeWent:
    """The trace's duration, divided by what the job did, in s; a job as a whole, not its nodes.

    Attributes:
        working_s: on iterations that counted in the end.
        lost_s: on work that was lost: interrupted iterations, and what was committed after the last checkpoint.
        detecting_s, planning_s, copying_s, restarting_s, checkpointing_s: pauses.
        waiting_s: without a plan, for nodes.
    """

    working_s: Seconds = 0.0
    lost_s: Seconds = 0.0
    detecting_s: Seconds = 0.0
    planning_s: Seconds = 0.0
    copying_s: Seconds = 0.0
    restarting_s: Seconds = 0.0
    checkpointing_s: Seconds = 0.0
    waiting_s: Seconds = 0.0

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class GpuHours:
    """What the cluster's GPUs did, in GPU-hours.

    Attributes:
        present: of GPUs that were there.
        useful: that the fault-free job would have taken for what was committed.
        idle: of GPUs that were there and had no place in the plan in force.
        lost: present - useful.
    """

    present: Ratio
    useful: Ratio
    idle: Ratio
    lost: Ratio

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Stretch:
    """From `time_s` to the next one's: nodes that were there and at work, and micro-batches that counted each second.

    Lost work and pauses are in it: `microbatches_per_s` is what was committed and stayed, over the time it took.
    """

    time_s: Seconds
    nodes: Index
    working_nodes: Index
    microbatches_per_s: Ratio

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """What one policy made of the trace.

    Attributes:
        policy: its name.
        refusal: why it cannot train this job at all, such as memory; None where it can. All else is 0 then.
        goodput: micro-batches committed, over those of the fault-free cluster in the same time.
        microbatches: committed.
        healthy_iteration_time_s: with all nodes there and well; 0: it never trains.
        time: where it went.
        gpu_hours: of the cluster.
        cost: of the GPU-hours present, by `Costs.gpu_hour_price`.
        peak_memory_bytes: the most that a GPU held under any plan that was in force.
        answers: how often what was done, by the steps' words.
        stretches: throughput over time.
    """

    policy: Name
    goodput: Ratio
    microbatches: Microbatches
    healthy_iteration_time_s: Seconds
    time: WhereTimeWent
    gpu_hours: GpuHours
    cost: Ratio
    peak_memory_bytes: Bytes
    answers: dict[str, Index] = field(default_factory=dict)
    stretches: tuple[Stretch, ...] = ()
    refusal: str | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"refusal"})
    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class ReplayReport(Displayed):
    """A trace under several policies.

    Attributes:
        trace: what was replayed: name, seconds, moments, nodes at the beginning, most, fewest, on average.
        job: model, pp, dp, microbatches, tensor_parallel, gpus_per_node, nodes.
        costs: what changes cost: the fields of `Costs`.
        fault_free: nodes, iteration_time_s and microbatches of the cluster that never fails, and what it has committed;
            goodput_bound: what no policy's goodput can exceed, for all GPUs that are there compute all the time.
        policies: in the order asked for.
        mapping: in a sentence, which node holds which workers.
        inputs: sha256 of what it was made from.
    """

    trace: dict[str, Any]
    job: dict[str, Any]
    costs: dict[str, Any]
    fault_free: dict[str, Any]
    policies: Annotated[tuple[PolicyReport, ...], MinLen(1)]
    mapping: str
    inputs: dict[str, str] = field(default_factory=dict)

    FORMAT: ClassVar[str] = "rtk.replay"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[Any] = STRICT

    def validate(self) -> None:
        """Nothing here can contradict itself that a reader would trip over."""
