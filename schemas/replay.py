"""What a recovery policy is asked when a cluster changes, and what it answers; all of it inert values.

The same for a trace that is replayed and for a job that runs. Time is seconds since the trace began; in a running job,
whose clock no policy sees, it is 0. The smallest thing that comes, goes or is slow is a node: some GPUs that share a
fate, in a running job often a single worker. What a policy answers is a sequence of steps, each of which puts another
standing into force.

The report of a replay (`ReplayReport`) says what each policy made of a trace.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Lt, MinLen

from .conditions import PlanConditions, slow_at
from .display import Displayed
from .errors import InvalidInputError
from .fields import STRICT, Bytes, Index, Name, Ratio, Seconds
from .orders import LeanSchedule
from .plan import Place
from .quantities import parse_number, parse_speed, parse_time_s
from .text import did_you_mean

Microbatches = Annotated[int, Ge(0), Lt(10**15)]  # of a year; every float up to there is a whole number


@dataclass(frozen=True, slots=True)
class WhereTimeWent:
    """The trace's duration, divided by what the job did, in s; a job as a whole, not its nodes.

    Attributes:
        working_s: on iterations that counted in the end.
        lost_s: on work that was lost: that part of interrupted iterations that was done again, and what was committed
            after the last checkpoint.
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
        placement: in which it trains with all nodes there, in words, such as `V, 2 chunks a worker`; None: it knows
            none, or the job was not asked for with one: workers hold one stage each.
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
    placement: str | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"refusal", "placement"})
    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class ReplayReport(Displayed):
    """A trace under several policies.

    Attributes:
        trace: what was replayed: name, seconds, moments, nodes at the beginning, most, fewest, on average.
        job: model, pp, dp, microbatches, tensor_parallel, gpus_per_node, nodes; where a placement was asked for,
            placement, and placements: what `best` has found of each.
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

    @property
    def spares(self) -> int:
        """The most nodes of the trace for which the job has no place; they are there, and paid for, all the same."""
        there, used = self.trace.get("nodes_max"), self.job.get("nodes")
        return max(there - used, 0) if isinstance(there, int) and isinstance(used, int) else 0

    @property
    def remarks(self) -> list[str]:
        """What a reader could be puzzled by: most nodes idle, and goodputs above 100 %."""
        found = []
        if self.spares:
            found.append(
                f"the trace has {self.trace['nodes_max']} nodes, the job uses {self.job['nodes']}: the others are "
                "counted as paid spares; to use them take more pipelines (--dp), or replay a trace of fewer nodes"
            )
        if any(one.goodput > 1 for one in self.policies if one.refusal is None):
            found.append(f"goodput is above 100 % {ABOVE}")
        return found + self._placements

    @property
    def _placements(self) -> list[str]:
        """Who trains in which placement, and who knows none, where one was asked for."""
        if "placement" not in self.job:
            return []
        able = [one for one in self.policies if one.refusal is None]
        found = []
        for words in dict.fromkeys(one.placement for one in able):
            names = ", ".join(one.policy for one in able if one.placement == words)
            found.append(f"{words or 'one stage a worker, for they know no placements'}: {names}")
        return found


# Why a goodput can be above 1; spares only take the places of others, and train nothing more.
ABOVE = (
    "where a policy trains more on as many nodes than the fastest plan for the job's shape: with other pipelines, "
    "stages or orders"
)
Gpu = tuple[str, int]  # one of a node, counted from 0
NodePair = tuple[str, str]  # two nodes in ascending order; one named twice stands for the paths inside it

# What training pauses for. `lost` and `working` are not among them: the clock finds those.
PauseKind = Literal["detecting", "planning", "copying", "restarting", "checkpointing"]


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes that are there, in the order in which they came, and what is slow.

    Attributes:
        nodes: their names.
        slow: factors of slow nodes, above 1: their operations take so many times as long.
        slow_links: by pairs of nodes, what a message between them takes in all, in s.
        broken_links: pairs of nodes whose messages take a detour.
        dead_gpus: by nodes that are there without all of their GPUs, those that they lack; for who knows whole nodes
            only, such nodes are not there (`of_nodes`).
    """

    nodes: tuple[str, ...]
    slow: Mapping[str, float] = field(default_factory=dict)
    slow_links: Mapping[NodePair, float] = field(default_factory=dict)
    broken_links: tuple[NodePair, ...] = ()
    dead_gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def is_slow(self) -> bool:
        """Whether anything is slow."""
        return bool(self.slow or self.slow_links)

    @property
    def dead_gpu_count(self) -> int:
        """How many GPUs the nodes that are there lack."""
        return sum(map(len, self.dead_gpus.values()))

    @property
    def of_nodes(self) -> "Fleet":
        """The nodes that have all their GPUs."""
        return replace(self.without(self.dead_gpus), dead_gpus={}) if self.dead_gpus else self

    def without(self, nodes: Collection[str]) -> "Fleet":
        """The fleet without some nodes."""
        if not nodes:
            return self
        return Fleet(
            tuple(node for node in self.nodes if node not in nodes),
            {node: factor for node, factor in self.slow.items() if node not in nodes},
            {ends: delay_s for ends, delay_s in self.slow_links.items() if not {*ends}.intersection(nodes)},
            tuple(ends for ends in self.broken_links if not {*ends}.intersection(nodes)),
            {node: gpus for node, gpus in self.dead_gpus.items() if node not in nodes},
        )

    def at(self, seats: Mapping[Place, str]) -> PlanConditions:
        """What of that there is in a plan whose workers the nodes hold."""
        return slow_at(seats, self.slow, self.slow_links)


@dataclass(frozen=True, slots=True)
class Moment:
    """A change of the fleet, which a policy is to answer.

    Attributes:
        time_s: when.
        fleet: as it is from now on.
        lost: nodes that have gone just now.
        came: nodes that have come just now.
        failures: moments so far at which nodes were lost, or GPUs, this one included; what a policy may know of the
            future is what these say.
        known: the fleet as far as it is known what is slow; None: all of that is known.
        level: which costly remedies what is slow has been worth by now (as in `Conditions`).
        settled: whether all nodes at work have the state of their places; until then nobody changes his.
        done: of the iteration under way, the part that has passed, in a replay; a running job asks its workers.
        lost_gpus: of nodes that stay, GPUs that have died just now.
        came_gpus: of nodes that stay, GPUs that have been repaired just now; one that has died in the same instant is
            in both.
    """

    time_s: float
    fleet: Fleet
    lost: tuple[str, ...] = ()
    came: tuple[str, ...] = ()
    failures: int = 0
    known: Fleet | None = None
    level: int = 0
    settled: bool = True
    done: float = 0.0
    lost_gpus: tuple[Gpu, ...] = ()
    came_gpus: tuple[Gpu, ...] = ()

    @property
    def of_nodes(self) -> "Moment":
        """The same for who loses a whole node with one of its GPUs, and has it back when it has them all again."""
        if not (self.fleet.dead_gpus or self.lost_gpus or self.came_gpus):
            return self
        lacked = self.lacked_before
        broken = {node for node, _ in self.lost_gpus if not lacked[node]}
        mended = {node for node, _ in self.came_gpus if lacked[node] or node in broken} - self.fleet.dead_gpus.keys()
        return replace(
            self,
            fleet=self.fleet.of_nodes,
            lost=(*self.lost, *sorted(broken)),
            came=tuple(node for node in (*self.came, *sorted(mended)) if node not in self.fleet.dead_gpus),
            known=None if self.known is None else self.known.of_nodes,
            lost_gpus=(),
            came_gpus=(),
        )

    @property
    def lacked_before(self) -> Mapping[str, Collection[int]]:
        """The GPUs that nodes lacked before it, of the nodes that stay."""
        found = defaultdict(set, {node: {*gpus} for node, gpus in self.fleet.dead_gpus.items()})
        for node, gpu in self.came_gpus:
            found[node].add(gpu)
        for node, gpu in self.lost_gpus:
            found[node].discard(gpu)
        return found

    @property
    def believed(self) -> Fleet:
        """The fleet as it is believed to be."""
        return self.fleet if self.known is None else self.known


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """While all is well: after `every_s` of training, at an iteration's end, training pauses for `pause_s`."""

    every_s: float
    pause_s: float


@dataclass(frozen=True, slots=True)
class TrainingState:
    """How training goes while nothing changes.

    Attributes:
        formation: who sits where; the policy's own, and all that its answers depend on beside the moment.
        iteration_time_s: of the plan in force, as `rtk simulate` has it; None: there is no plan, training waits.
        microbatches: that one iteration commits.
        nodes: at work; where some of a node's GPUs have nothing to do, a part of one.
        peak_memory_bytes: the most that a GPU holds: parameters, state and activations.
        checkpointing: what checkpoints cost; None: there are none.
    """

    formation: Hashable
    iteration_time_s: float | None
    microbatches: int
    nodes: float
    peak_memory_bytes: float = 0.0
    checkpointing: Checkpointing | None = None

    @property
    def microbatches_per_s(self) -> float:
        """The throughput, checkpoints not counted."""
        return self.microbatches / self.iteration_time_s if self.iteration_time_s else 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """So long nothing is computed, and for what."""

    kind: PauseKind
    lasts_s: float


@dataclass(frozen=True, slots=True)
class StateChange:
    """One standing takes over from another.

    Attributes:
        standing: the next one.
        answer: what was done, in a word or two, for the report: `re-route`, `restart`, `S2`; empty where nothing was
            done, and only the pace has changed.
        pauses: before its first iteration, one after the other.
        after_s: seconds from the moment to when it is due; until then the standing before it goes on. A new moment
            cancels steps that are not yet due.
        interrupts: it takes over in the midst of an iteration; else at the iteration's end.
        left: of an iteration that is interrupted, the part of one of the next standing's that is still to be done
            after the pauses; 1: all of it, so that its work is lost.
        rolls_back: what was committed since the last checkpoint is lost too.
        restart: why a running job should rather be saved and start again on other workers (Greyhound's S4).
    """

    standing: TrainingState
    answer: str
    pauses: tuple[Pause, ...] = ()
    after_s: float = 0.0
    interrupts: bool = False
    left: float = 1.0
    rolls_back: bool = False
    restart: str = ""


Transition = tuple[StateChange, ...]  # what is done about an event, in the order in which it is due; nothing: ()


@dataclass(frozen=True)
class AskedJob:
    """A shape as it is asked for; without pipelines there are as many as the cluster holds.

    A placement, and its chunks, are as `rtk plan` has them: `v`, `best:4`.
    """

    pp: int
    microbatches: int
    dp: int | None = None
    tensor_parallel: int = 1
    schedule: LeanSchedule = "1f1b"
    memory_limit_bytes: Sequence[float] | None = None
    placement: str = "plain"
    chunks: int | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """What changes cost, in s, bytes per s and money; each default says where it is from.

    Attributes:
        detection_s: from a node's death to everybody's knowing. 5: rtk's coordinator notices a closed connection at
            once and silence after its heartbeat limit of 2 s; SlipStream (section 5.1) and Oobleck (section 6) watch
            TCP connections. Torch without any of them waits for NCCL's time-out, 600 s and more.
        slow_detection_iterations: from the first slow iteration to a confirmed fail-slow. 14: RCUSUM with nmin 15
            (docs/greyhound.md).
        planning_s: making a plan that is not there yet. 0.2: `rtk plan slipstream` at 2,048 workers decides and
            expands within it (docs/benchmarks.md).
        regrouping_s: new communication groups of processes that live on. 5: MegaScale (NSDI'24, section 3.5) brings
            the groups of 2,048 GPUs up in under 5 s.
        restart_s: new processes everywhere, up to reading the checkpoint. 300: Llama 3 (section 3.3.4) had 419
            unexpected interruptions in 54 days and over 90 % effective time, so each took at most 18 minutes, the lost
            work and the checkpoint's reading included; Greyhound (section 5) reckons 20 minutes for it all.
        copy_bytes_per_s: at which one GPU sends or receives state; None: as the profile's network says.
        checkpoint_every_s: between checkpoints; None: by Young's formula, sqrt(2 * pause * mean time between failures).
        checkpoint_pause_s: how long a checkpoint holds training up; None: the largest state of a GPU at
            `snapshot_bytes_per_s`, for what follows happens beside training (CheckFreq, FAST'21).
        snapshot_bytes_per_s: from a GPU to its host. 10e9: a PCIe 4.0 x16 link moves about 20e9, of which two GPUs
            have a half each.
        storage_bytes_per_s: at which a node reads a checkpoint. 2e9: an assumption, a shared parallel file system.
        mean_time_between_failures_s: of the whole cluster, for Young's formula. 10800: Llama 3's 54 days / 419.
        gpu_hour_price: in the currency of your choice. 2.
        redo_all: of an iteration in which nodes are lost, under the policies that `rtk run` has: 0: what finished work
            was not lost is kept, as `rtk run` does; 1: all is done again, as in the papers of SlipStream and Oobleck,
            and as under `rtk run --log-memory 0`. 0.
    """

    detection_s: float = 5.0
    slow_detection_iterations: int = 14
    planning_s: float = 0.2
    regrouping_s: float = 5.0
    restart_s: float = 300.0
    copy_bytes_per_s: float | None = None
    checkpoint_every_s: float | None = None
    checkpoint_pause_s: float | None = None
    snapshot_bytes_per_s: float = 10e9
    storage_bytes_per_s: float = 2e9
    mean_time_between_failures_s: float = 10_800.0
    gpu_hour_price: float = 2.0
    redo_all: int = 0


MOST = 1e15  # of a cost: `Seconds` of schemas/fields.py, and far above what anything costs


def parse_cost(name: str, text: str, where: str) -> float:
    """What one thing costs: `restart_s` takes a duration, `copy_bytes_per_s` a rate, others a plain number.

    Raises:
        InvalidInputError: there is no such cost, or it is no number of 0 or more.
    """
    kinds = {one.name: one.type for one in fields(Costs)}
    if name not in kinds:
        fix = did_you_mean(name, kinds, f"costs are {', '.join(kinds)}")
        raise InvalidInputError(f"there is no cost {name!r}", where=where, fix=fix)
    if name.endswith("_bytes_per_s"):
        return parse_speed(text, where)
    number = parse_time_s(text, where) if name.endswith("_s") else _plain_cost(text, where, kinds[name] is int)
    if number >= MOST:
        raise InvalidInputError(f"{text!r} is too much", where=where, fix=f"give less than {MOST:g}")
    return number


def _plain_cost(text: str, where: str, is_whole: bool) -> float:
    kind, fix = "whole number" if is_whole else "number", "write a plain number, such as 10"
    try:
        number = int(text) if is_whole else parse_number(where, text, fix)
    except ValueError:
        number = -1
    if number < 0:
        raise InvalidInputError(f"{text!r} is no {kind} of 0 or more", where=where, fix=fix)
    return number
