"""A job that is to survive: what it trains, in which shape, on which nodes, and what changes cost it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import ClassVar, cast

from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.orders import Schedule
from ...schemas.plan import Place, Stage, Template
from ...schemas.profile import Connection, HoldsBytes, Profile, held_by, held_bytes
from ...schemas.replay import (
    Checkpointing,
    Costs,
    Moment,
    Pause,
    PauseKind,
    StateChange,
    TrainingState,
    Transition,
)
from ..shape import PlacementName, Shape
from ..slipstream.normalization import Grid


@dataclass(frozen=True)
class TrainingJob:
    """What all policies are told.

    Node n of the job's first nodes holds the workers from n * `workers_per_node` on, in (pipeline, stage) order, as
    torchrun would start them; nodes beyond those of the grid are spares. A worker has `shape.tensor_parallel` GPUs.

    Attributes:
        profile: of the model.
        shape: stages, pipelines, micro-batches of each pipeline, limits; the global batch is dp * microbatches.
        gpus_per_node: of every node.
        costs: what changes cost.
        schedule: of pipelines whose policy has none of its own.
        seed: of whatever draws.
        others: placements, with their chunks, that a policy may go over to beside the shape's own and one stage a
            worker; None: there are none.

    Raises:
        InvalidInputError: a node would hold neither whole pipelines nor a whole part of one.
    """

    profile: Profile
    shape: Shape
    gpus_per_node: int = 1
    costs: Costs = field(default_factory=Costs)
    schedule: Schedule = "1f1b"
    seed: int = 0
    others: tuple[tuple[PlacementName, int], ...] | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"others"})

    def __post_init__(self) -> None:
        if self.gpus_per_node % self.shape.degree:
            raise InvalidInputError(
                f"{self.gpus_per_node} GPUs of a node are no whole number of workers of {self.shape.degree} GPUs",
                where="--tensor-parallel",
                fix="take a degree that divides the GPUs of a node",
            )
        per_node, pp, dp = self.workers_per_node, self.shape.pp, self.shape.dp
        if pp % per_node and (per_node % pp or dp % (per_node // pp)):
            raise InvalidInputError(
                f"{per_node} workers of a node are neither a whole part of {pp} stages nor whole pipelines of {dp}",
                where="--pp",
                fix="take stages that the workers of a node divide, or that divide them",
            )

    @property
    def workers_per_node(self) -> int:
        """Workers that share a node, and its fate."""
        return self.gpus_per_node // self.shape.degree

    @property
    def microbatches(self) -> int:
        """The global batch, in micro-batches."""
        return self.shape.dp * self.shape.microbatches

    @cached_property
    def grid(self) -> Grid:
        """The workers of all pipelines, in units of a node each."""
        per_node, pp = self.workers_per_node, self.shape.pp
        return Grid(self.shape.dp, pp, max(1, per_node // pp), min(pp, per_node), self.shape.noun)

    @property
    def nodes(self) -> int:
        """Nodes that the grid takes; more of them are spares."""
        return self.grid.units * self.grid.columns

    @property
    def plain(self) -> TrainingJob:
        """The job with one stage a worker."""
        if self.shape.columns is None:
            return self
        return replace(self, shape=replace(self.shape, placement="plain", chunks=1))

    @property
    def placed(self) -> list[TrainingJob]:
        """The job in its own placement, then in all others that a policy may take, each once."""
        plain: tuple[PlacementName, int] = ("plain", 1)
        others = dict.fromkeys((plain, *(self.others or ())))
        others.pop((self.shape.placement, self.shape.chunks), None)
        shapes = (replace(self.shape, placement=name, chunks=chunks) for name, chunks in others)
        return [self, *(replace(self, shape=shape) for shape in shapes)]


# What GPUs hold: parameters, gradients, optimizer state, and activations beside them.


def gpu_bytes(layers: Sequence[HoldsBytes], stage: Stage) -> float:
    """Parameters, gradients and optimizer state that a GPU of a stage holds."""
    return sum(held_bytes(layers, *stage.layers)) / stage.tensor_parallel


def state_bytes(job: TrainingJob, template: Template) -> tuple[float, ...]:
    """Parameters, gradients and optimizer state that a GPU of each column holds, tied weights there once."""
    held = ((template.stages[stage].layers for stage in column) for column in template.columns)
    return tuple(sum(held_by(job.profile.layers, ranges)) / job.shape.degree for ranges in held)


def peak_bytes(static_bytes: Sequence[float], activation_bytes: Sequence[float]) -> float:
    """The most that any GPU holds, of GPUs that hold so much all the time and so much of activations at most."""
    return max(static + most for static, most in zip(static_bytes, activation_bytes, strict=True))


def activation_limit_bytes(job: TrainingJob, policy: str) -> float | None:
    """The most activations that a GPU may hold, whatever its stage: for a policy that cuts stages of its own.

    Raises:
        InfeasibleError: the job says it stage by stage.
    """
    limits = job.shape.memory_limit_bytes
    if limits is None:
        return None
    if len(limits) > 1:
        raise InfeasibleError(
            f"{policy} cuts stages of its own, and the job has a limit of activations for each of its {len(limits)}",
            where="--memory-limit",
            fix="give one number for all stages",
        )
    return limits[0]


def finding_s(costs: Costs, standing: TrainingState) -> float:
    """How long it takes to find what is slow, or well again, from iterations as they are in a standing, in s."""
    return costs.slow_detection_iterations * (standing.iteration_time_s or 0.0)


# What a policy expects of the future, from what it has seen: until when a change must have paid.


def until_next_failure_s(costs: Costs, moment: Moment) -> float:
    """The mean time between failures so far, in s; what the costs say counts as the first one seen.

    Failures are taken to have no memory, so that this is how long it takes from any moment to the next one.
    """
    return (costs.mean_time_between_failures_s + moment.time_s) / (1 + moment.failures)


@dataclass(frozen=True)
class Horizon:
    """Until when a change must have paid.

    Attributes:
        iterations: in a running job, within so many of them, as they would be without the change; None: until the next
            failure is to be expected, as a replay has it.
    """

    iterations: int | None = None

    def left_s(self, costs: Costs, moment: Moment, iteration_s: float) -> float:
        """How long that is from a moment on, where an iteration takes so long without the change, in s."""
        return until_next_failure_s(costs, moment) if self.iterations is None else self.iterations * iteration_s


# What a coordinator cannot know beforehand, for it is what workers measure while it happens: copies alone count.
RUNNING = Costs(detection_s=0.0, slow_detection_iterations=0, planning_s=0.0, regrouping_s=0.0)


def pays(left_s: float, pause_s: float, before_per_s: float, after_per_s: float) -> bool:
    """Whether a change commits more in the time that is left than none, for all that it pauses training.

    Args:
        left_s: until the next failure, in s.
        pause_s: what the change takes, in s.
        before_per_s, after_per_s: micro-batches a second without and with it.
    """
    return max(0.0, left_s - pause_s) * after_per_s > left_s * before_per_s


# The pauses of a change, by a job's costs; those that last no time are left out.
#
# State that comes from a checkpoint counts as copied, as that from peers does.


def failing_over(costs: Costs, *, planning_s: float = 0.0, copying_s: float = 0.0) -> tuple[Pause, ...]:
    """After a failure, of processes that live on: they notice, plan, copy state, and form new groups."""
    return (*_lasting(("detecting", costs.detection_s)), *regrouping(costs, planning_s=planning_s, copying_s=copying_s))


def regrouping(costs: Costs, *, planning_s: float = 0.0, copying_s: float = 0.0) -> tuple[Pause, ...]:
    """Of processes that live on and know why: they plan, copy state, and form new groups."""
    return _lasting(("planning", planning_s), ("copying", copying_s), ("restarting", costs.regrouping_s))


def planning(costs: Costs) -> tuple[Pause, ...]:
    """Everybody keeps his place and his state, and gets another plan."""
    return _lasting(("planning", costs.planning_s))


def restarting(costs: Costs, loading_s: float, *, detected: bool = False) -> tuple[Pause, ...]:
    """New processes everywhere, which read a checkpoint.

    Args:
        costs: of the job.
        loading_s: how long they read it.
        detected: whether a failure has to be noticed first.
    """
    noticing_s = costs.detection_s if detected else 0.0
    return _lasting(("detecting", noticing_s), ("restarting", costs.restart_s), ("copying", loading_s))


def saved_and_restarting(costs: Costs, saving_s: float, loading_s: float) -> tuple[Pause, ...]:
    """New processes everywhere, by choice: a checkpoint first, so that nothing is lost."""
    return (*_lasting(("checkpointing", saving_s)), *restarting(costs, loading_s))


def total_s(pauses: tuple[Pause, ...]) -> float:
    """How long they last together."""
    return sum(pause.lasts_s for pause in pauses)


def urgent_of(steps: Transition) -> Transition:
    """What cannot wait: where nodes are lost, or the pace has changed."""
    return tuple(step for step in steps if step.interrupts or (step.after_s == 0 and not step.pauses))


def begins_s(step: StateChange) -> float:
    """When the first iteration after a step begins, in s from its moment on."""
    return step.after_s + total_s(step.pauses)


def _lasting(*parts: tuple[PauseKind, float]) -> tuple[Pause, ...]:
    return tuple(Pause(kind, lasts_s) for kind, lasts_s in parts if lasts_s > 0)


# What it costs a job to save its state and to read it, by its `Costs`.


@dataclass(frozen=True)
class CheckpointCosts:
    """What a GPU of each stage saves, how often that is done, and how long it takes nodes to read it, in s."""

    gpu_bytes: tuple[float, ...]
    checkpointing: Checkpointing
    loading_s: float


def checkpointing(costs: Costs, gpu_bytes: Sequence[float]) -> Checkpointing:
    """How often a job saves its state, and how long that holds it up; by Young's formula where nobody says.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 1974. A policy that rolls back
    at few failures only would do well to save less often; one interval for all of them keeps them comparable.

    Args:
        costs: of the job.
        gpu_bytes: what each GPU saves, of those that may be the largest; they save side by side.
    """
    pause_s = costs.checkpoint_pause_s
    if pause_s is None:
        pause_s = max(gpu_bytes) / costs.snapshot_bytes_per_s
    every_s = costs.checkpoint_every_s
    if every_s is None:
        every_s = sqrt(2 * pause_s * costs.mean_time_between_failures_s)
    return Checkpointing(every_s, pause_s)


def loading_s(costs: Costs, node_bytes: Iterable[float]) -> float:
    """How long it takes nodes to read their state from a checkpoint, side by side, in s.

    Args:
        costs: of the job.
        node_bytes: of each node; what two of its workers share it reads once.
    """
    return max(node_bytes) / costs.storage_bytes_per_s


def node_bytes(job: TrainingJob, gpu_bytes: Sequence[float]) -> list[float]:
    """What a node of each column of the job's grid reads, where a GPU of each stage has so many bytes."""
    width = job.grid.unit_stages
    return [sum(gpu_bytes[first : first + width]) * job.shape.degree for first in range(0, len(gpu_bytes), width)]


def saved(job: TrainingJob, template: Template) -> CheckpointCosts:
    """What a job on its grid saves, whatever the number of its pipelines."""
    gpu_bytes = state_bytes(job, template)
    return CheckpointCosts(
        gpu_bytes, checkpointing(job.costs, gpu_bytes), loading_s(job.costs, node_bytes(job, gpu_bytes))
    )


# Who sits where in a grid of units, each of which takes a node: plain tuples, row after row, None at an empty seat.


Seating = tuple[str | None, ...]


def seating_of(standing: TrainingState) -> Seating:
    """The formation of a policy whose formations are seatings."""
    return cast("Seating", standing.formation)


def seated(nodes: Iterable[str], units: int) -> Seating:
    """The first nodes on the first seats; seats without one stay empty."""
    return filled((None,) * units, nodes)


def without(seating: Seating, lost: Collection[str]) -> Seating:
    """The seats of these nodes emptied."""
    return tuple(None if node in lost else node for node in seating)


def filled(seating: Seating, nodes: Iterable[str]) -> Seating:
    """The first nodes on the first empty seats."""
    coming = iter(nodes)
    return tuple(next(coming, None) if node is None else node for node in seating)


def seatless(seating: Seating, nodes: Iterable[str]) -> tuple[str, ...]:
    """The nodes without a seat, in their order."""
    taken = set(seating)
    return tuple(node for node in nodes if node not in taken)


def empty_seats(seating: Seating, columns: int) -> tuple[int, ...]:
    """How many seats of each column are empty."""
    return tuple(seating[column::columns].count(None) for column in range(columns))


def packed(seating: Seating, columns: int) -> Seating:
    """The empty seats of each column at its end, the last nodes on those that were empty before others.

    Units of a column hold the same layers: which of them is called the first costs nothing.
    """
    found = list(seating)
    for column in range(columns):
        rows = found[column::columns]
        last = len(rows) - 1
        for row, node in enumerate(rows):
            while last > row and rows[last] is None:
                last -= 1
            if node is None and last > row:
                rows[row], rows[last] = rows[last], None
        found[column::columns] = rows
    return tuple(found)


def whole_rows(nodes: Sequence[str], columns: int, most: int) -> Seating:
    """The first nodes on as many whole rows as they fill, at most so many."""
    return tuple(nodes[: columns * min(most, len(nodes) // columns)])


def rows_of(seating: Seating, columns: int) -> Iterator[Seating]:
    """The rows of a seating, each of so many nodes."""
    return (seating[first : first + columns] for first in range(0, len(seating), columns))


def pipelines_of(seating: Seating, grid: Grid) -> int:
    """The pipelines of a seating of whole rows."""
    return len(seating) // grid.columns * grid.unit_pipelines


def seats(seating: Seating, grid: Grid) -> Mapping[Place, str]:
    """Which node holds which live worker.

    Args:
        seating: of any number of rows.
        grid: the workers of a unit, and how many units a row has.
    """
    units = (divmod(number, grid.columns) for number in range(len(seating)))
    return {place: node for unit, node in zip(units, seating, strict=True) if node for place in grid.places(unit)}


# Restarts from a checkpoint: for every policy that knows no better, and for nodes that come.


def restart(costs: Costs, following: TrainingState, loading_s: float, *, lost: bool) -> Transition:
    """Training begins anew with another standing, or waits for nodes.

    Args:
        costs: of the job.
        following: what nodes there are make possible; without a plan where they are too few.
        loading_s: how long they read the checkpoint.
        lost: whether training was under way and has just lost its state; else it has been waiting.
    """
    if following.iteration_time_s is None:
        return (StateChange(following, "wait", interrupts=True, rolls_back=True),) if lost else ()
    pauses = restarting(costs, loading_s, detected=lost)
    return (StateChange(following, "restart", pauses, interrupts=True, rolls_back=lost),)


def restart_or_grow(
    costs: Costs, standing: TrainingState, following: TrainingState, loading_s: float, moment: Moment, *, lost: bool
) -> Transition:
    """A restart where training cannot go on; by choice, from a checkpoint saved first, where that pays; else nothing.

    Args:
        costs: of the job.
        standing: in force.
        following, loading_s: as for `restart`.
        moment: the change.
        lost: whether a node at work was lost.
    """
    if lost or standing.iteration_time_s is None:
        return restart(costs, following, loading_s, lost=lost)
    saving_s = 0.0 if standing.checkpointing is None else standing.checkpointing.pause_s
    pauses = saved_and_restarting(costs, saving_s, loading_s)
    rates = standing.microbatches_per_s, following.microbatches_per_s
    grows = pays(until_next_failure_s(costs, moment), total_s(pauses), *rates)
    return (StateChange(following, "grow", pauses),) if grows else ()


Copied = tuple[Place, Place, float]  # who sends, who receives, and the bytes that each GPU of a worker then receives


def from_peers(
    grid: Grid, live_units: Collection[Place], taken_units: Iterable[Place], gpu_bytes: Sequence[float]
) -> list[Copied]:
    """What the workers of units that have just been taken copy: from live peers of the same stage, in turns.

    Args:
        grid: the workers.
        live_units: that have their state, at least one of each column that a unit is taken in.
        taken_units: whose nodes have come without state.
        gpu_bytes: of a GPU of each stage.
    """
    rows: dict[int, list[int]] = {}
    for row, column in sorted(live_units):
        rows.setdefault(column, []).append(row)
    copies, turns = [], dict.fromkeys(rows, 0)
    for unit in taken_units:
        column = unit[1]
        source = rows[column][turns[column] % len(rows[column])]
        turns[column] += 1
        pairs = zip(grid.places((source, column)), grid.places(unit), strict=True)  # worker by worker
        copies += [(sender, receiver, gpu_bytes[receiver[1]]) for sender, receiver in pairs]
    return copies


def copying_s(job: TrainingJob, copies: Iterable[Copied]) -> float:
    """How long copies between workers take, in s: each sends one at a time and receives one at a time.

    The GPUs of a worker copy side by side.

    Raises:
        InvalidInputError: nobody says how fast state is copied.
    """
    found = copying_connection(job).copying_s(copies)
    if found is None:
        raise unknown_rate()
    return found


def copying_connection(job: TrainingJob) -> Connection:
    """What a GPU's state is copied over: at the rate of the costs, or as the profile's network between nodes has it."""
    network = job.profile.network.between_workers or Connection()
    if job.costs.copy_bytes_per_s is None:
        return network
    return Connection(network.latency_s, job.costs.copy_bytes_per_s)


def require_rate(job: TrainingJob) -> None:
    """Raise InvalidInputError if nobody says how fast state is copied."""
    if copying_connection(job).bandwidth_bytes_per_s is None:
        raise unknown_rate()


def unknown_rate() -> InvalidInputError:
    """What to say where state is to be copied and nobody knows how fast."""
    return InvalidInputError(
        "nobody knows how long copying state takes: the profile names no network",
        where="--profile",
        fix="give --cost copy_bytes_per_s=…, at which a GPU sends and receives, or a --cluster with its network",
    )
