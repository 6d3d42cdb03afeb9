"""What pipelines take and hold under a policy, and their plans: alike or unlike, zero-bubble, retimed, re-routed, slow.

Pipelines do not wait for each other before they sum gradients, so an iteration takes as long as the slowest of them
takes alone. That is remembered by what their orders depend on; the plan of all is made when it is asked for, and takes
as long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

import numpy as np

from ... import __version__
from ...schemas.conditions import LinkPlace, under_conditions
from ...schemas.documents import digest
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Layers, Link, Pipeline, Place, Plan, Planner, Stage, Template, Worker, name_of
from ...schemas.profile import Connection, HoldsBytes, held_bytes
from ...schemas.replay import Checkpointing, Fleet, TrainingState
from ..batch.groups import Pace
from ..greyhound.topology import PlacePair, are_neighbours, are_peers
from ..oobleck.pace import stage_ends_s, warm_ups_of
from ..pipeline import Schedule, scheduled, zero_bubble
from ..scheduling.assemble import peaks_bytes, with_prediction
from ..scheduling.evaluate import evaluate
from ..scheduling.lower_bound import lower_bound
from ..scheduling.problem import ROUNDING, Problem, Workers, codes_of, components, home_problem, problem_of, with_orders
from ..scheduling.retime import Retimer
from ..scheduling.solve import Effort
from ..scheduling.sums import Parts, parts_of
from ..shape import shape_options, template_of
from ..slipstream.cluster import AtlasRequest, opening
from ..slipstream.normalization import Vector
from ..slipstream.replanner import Replanner
from .job import TrainingJob, peak_memory_bytes

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Orders


# Pipelines of unlike shapes: what an iteration takes and what a GPU holds, without making the plan.
#
# 1F1B in every pipeline, then each layer is summed over all of them, the last ones first, and all step. The times at
# which the stages of one shape have done so many micro-batches are remembered, and added up here as docs/semantics.md
# has it (makespan). The plan of 400 nodes takes 0.3 s to make; this takes microseconds once the numbers are known.


class TemplateLike(Protocol):
    """A template, of a plan or of a Templates document; what its stages say of all-reduce is not asked for."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In order."""
        ...

    @property
    def links(self) -> tuple[Link, ...]:
        """Between neighbouring stages."""
        ...


Name = TypeVar("Name")  # of a shape
Ends = tuple[float, ...]  # when each stage of a pipeline is done, in s


class UnlikePipelines(Generic[Name]):
    """Shapes, made ready to say what pipelines of them take and hold.

    Args:
        layers: of the model.
        connection: that gradients are summed over.
        shape_of: a shape by its name, which is hashable.
    """

    def __init__(
        self, layers: Sequence[HoldsBytes], connection: Connection, shape_of: Callable[[Name], TemplateLike]
    ) -> None:
        self._layers, self._connection, self._shape_of = layers, connection, shape_of
        self.iteration_time_s = cache(self._iteration_time_s)
        self.activation_bytes = cache(self._activation_bytes)
        self._ends_s = cache(self._stage_ends_s)
        self._summing = cache(self._parts_summed)

    def _iteration_time_s(self, kinds: frozenset[tuple[Name, int]], pipelines: int) -> float:
        """How long an iteration takes, as `rtk simulate` of the plan has it.

        Args:
            kinds: of the pipelines: shape and micro-batches.
            pipelines: how many there are.

        Raises:
            InfeasibleError: a memory limit does not admit a single micro-batch.
        """
        return self.summed_s([(kind[0], self._ends_s(*kind)) for kind in kinds], pipelines)

    def summed_s(
        self, ends: Sequence[tuple[Name, Ends]], pipelines: int, more_s: Callable[[Layers], float] | None = None
    ) -> float:
        """What an iteration takes whose stages are done at some times: gradients are summed, then all step.

        Args:
            ends: of pipelines, each kind once: the shape, and when its stages are done.
            pipelines: how many there are.
            more_s: how much longer the all-reduce of a stage takes, by its layers; None: none does.
        """
        names = frozenset(name for name, _ in ends)
        parts, most_bytes, step_s = self._summing(names)
        ends_s = [0.0] * len(parts.held)
        for name, own in ends:
            for stage, end_s in zip(self._shape_of(name).stages, own, strict=True):
                number = parts.number[stage.layers]
                ends_s[number] = max(ends_s[number], end_s)
        rings_s = [self._connection.ring_s(one, pipelines) for one in most_bytes]
        if more_s:
            rings_s = [ring_s + more_s(layers) for ring_s, layers in zip(rings_s, parts.held, strict=True)]
        lasts_s = parts.lasts_s(rings_s)
        summed_s = (begun_s + last_s for begun_s, last_s in zip(parts.begun_s(lasts_s, ends_s), lasts_s, strict=True))
        return max(summed_s) + step_s

    def _activation_bytes(self, name: Name, microbatches: int) -> tuple[float, ...]:
        """The most that a GPU of each stage holds of activations."""
        stages = self._shape_of(name).stages
        held = zip(warm_ups_of(stages), stages, strict=True)
        return tuple(min(most, microbatches) * stage.activation_bytes for most, stage in held)

    def _stage_ends_s(self, name: Name, microbatches: int) -> Ends:
        shape = self._shape_of(name)
        return stage_ends_s(shape.stages, shape.links, microbatches)

    def _parts_summed(self, names: frozenset[Name]) -> tuple[Parts, list[float], float]:
        """The parts of these shapes, the most bytes that one GPU of each stage sums, and the longest step."""
        stages = [stage for name in names for stage in self._shape_of(name).stages]
        parts = parts_of(stage.layers for stage in stages)
        most_bytes = [0.0] * len(parts.held)
        for stage in stages:
            number = parts.number[stage.layers]
            most_bytes[number] = max(most_bytes[number], summed_bytes(self._layers, stage))
        return parts, most_bytes, max(stage.optimizer_s for stage in stages)


def summed_bytes(layers: Sequence[HoldsBytes], stage: Stage) -> float:
    """What a GPU of a stage sums with others: gradients, as many bytes as parameters."""
    return held_bytes(layers, *stage.layers)[0] / stage.tensor_parallel


# What slow nodes and slow links do to a plan: of a fleet, of nodes with seats, and of the plan's workers and links.


@dataclass(frozen=True, slots=True)
class PlanSlowness:
    """What is slow, by places of a plan, in their order.

    Attributes:
        factors: of slow workers.
        links_s: what a message between two workers takes in all, in s, where that is slow, whether or not they have
            anything to send to each other.
    """

    factors: tuple[tuple[Place, float], ...] = ()
    links_s: tuple[tuple[PlacePair, float], ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is slow."""
        return bool(self.factors or self.links_s)

    @property
    def hops_s(self) -> dict[Place, float]:
        """The delays between neighbouring stages of a pipeline, by the place of the first."""
        return {pair[0]: delay_s for pair, delay_s in self.links_s if are_neighbours(pair)}

    @property
    def across_s(self) -> dict[PlacePair, float]:
        """The delays between workers of different pipelines, who may sum gradients together."""
        return {pair: delay_s for pair, delay_s in self.links_s if pair[0][0] != pair[1][0]}

    def felt(self) -> PlanSlowness:
        """Without links between workers who have nothing to send to each other, as long as all stay where they are."""
        links_s = (one for one in self.links_s if are_neighbours(one[0]) or one[0][0][0] != one[0][1][0])
        return PlanSlowness(self.factors, tuple(links_s))

    def by_pipeline(self) -> dict[int, PlanSlowness]:
        """What is felt inside each pipeline in which something is slow, as if it were the only one."""
        factors, links_s = defaultdict(list), defaultdict(list)
        for (k, i), factor in self.factors:
            factors[k].append(((0, i), factor))
        for (k, i), delay_s in self.hops_s.items():
            links_s[k].append((((0, i), (0, i + 1)), delay_s))
        return {k: PlanSlowness(tuple(factors[k]), tuple(links_s[k])) for k in factors.keys() | links_s.keys()}

    def moved(self, places: Mapping[Place, Place]) -> PlanSlowness:
        """The same once workers have gone to other places, each with what is slow of it."""
        factors = ((places.get(place, place), factor) for place, factor in self.factors)
        ends = ((places.get(one, one), places.get(other, other), delay_s) for (one, other), delay_s in self.links_s)
        links_s = (((min(one, other), max(one, other)), delay_s) for one, other, delay_s in ends)
        return PlanSlowness(tuple(sorted(factors)), tuple(sorted(links_s)))


HEALTHY = PlanSlowness()


def troubles_of(fleet: Fleet, seats: Mapping[Place, str]) -> PlanSlowness:
    """What of a fleet's slow nodes and links there is in a plan whose workers the nodes hold: of all their workers."""
    places: defaultdict[str, list[Place]] = defaultdict(list)
    for place, node in sorted(seats.items()):
        places[node].append(place)
    factors = ((place, factor) for node, factor in fleet.slow.items() for place in places.get(node, ()))
    links_s = {
        (min(ends), max(ends)): delay_s
        for (one, other), delay_s in fleet.slow_links.items()
        for ends in product(places.get(one, ()), places.get(other, ()))
        if ends[0] != ends[1]
    }
    return PlanSlowness(tuple(sorted(factors)), tuple(sorted(links_s.items())))


def under_troubles(plan: Plan, troubles: PlanSlowness) -> Plan:
    """The plan as it is with these troubles, its orders as they are.

    A slow link between two workers who sum gradients delays each of the 2 (n - 1) steps of the ring, as in
    `greyhound/mitigate.py`: so much longer takes the all-reduce of both stages, of which each part has its share. One
    between stages of different pipelines, which only re-routed micro-batches take, no plan can express: it does no harm
    here.

    Args:
        plan: nothing in it is slow.
        troubles: of its live workers.
    """
    if not troubles:
        return plan
    hops_s: dict[LinkPlace, float] = {
        (k, i): max(delay_s, plan.links_of(k)[i].delay_s) for (k, i), delay_s in troubles.hops_s.items()
    }
    factors = {name_of(place): factor for place, factor in troubles.factors}
    summed = replace(_with_sums(plan, _sums_s(plan, troubles)), prediction=None)
    return under_conditions(summed, factors, hops_s)


def share_layers(one: Layers, other: Layers) -> bool:
    """Whether some layers are in both stages."""
    return one[0] < other[1] and other[0] < one[1]


def _sums_s(plan: Plan, troubles: PlanSlowness) -> dict[Layers, float]:
    """How much longer the all-reduces of stages take, by their layers."""
    layers = {worker.place: plan.stage_of(worker).layers for worker in plan.live_workers()}
    component_of = components(layers.values())
    pipelines: defaultdict[Layers, set[int]] = defaultdict(set)
    for (k, _), found in layers.items():
        pipelines[component_of[found]].add(k)
    slowest_s: dict[Layers, float] = {}
    for (one, other), delay_s in troubles.across_s.items():
        held = layers[one], layers[other]
        if share_layers(*held):
            steps = 2 * (len(pipelines[component_of[held[0]]]) - 1)
            slowest_s |= {stage: max(steps * delay_s, slowest_s.get(stage, 0.0)) for stage in held}
    return slowest_s


def _with_sums(plan: Plan, more_s: Mapping[Layers, float]) -> Plan:
    """The plan with all-reduces that take longer, by the layers of stages."""

    def longer(stage: Stage) -> Stage:
        added_s = more_s.get(stage.layers, 0.0)
        return replace(stage, allreduce_s=stage.allreduce_s + added_s) if added_s else stage

    templates = (replace(one, stages=tuple(map(longer, one.stages))) for one in plan.templates)
    return replace(plan, templates=tuple(templates))


# A plan whose orders stay as they are, timed under whatever is slow: read once, then timed in milliseconds.


class Retimed:
    """Orders made ready to be timed.

    Args:
        problem: in which nothing is slow.
        orders: the operation codes of each worker.
    """

    def __init__(self, problem: Problem, orders: Orders) -> None:
        self._problem = problem
        self._orders = cast("Orders", [np.array(order, dtype=np.int64) for order in orders])
        places = zip(problem.workers.pipeline.tolist(), problem.workers.stage.tolist(), strict=True)
        self._number = {place: number for number, place in enumerate(places)}

    @classmethod
    def of(cls, plan: Plan) -> Retimed:
        """A plan's orders; nothing in it is slow."""
        problem = problem_of(plan)
        return cls(problem, codes_of(plan, problem))

    def iteration_time_s(self, troubles: PlanSlowness) -> float:
        """What `rtk simulate` says of `under_troubles(plan, troubles)`."""
        return Retimer(self._under(troubles)).value_s(self._orders)

    def ends_s(self, troubles: PlanSlowness) -> Floats:
        """When each worker has executed its last operation, in the order of the plan's workers."""
        retimer = Retimer(self._under(troubles))
        retimer.value_s(self._orders)
        return retimer.spans_s[1]

    def peaks_bytes(self) -> Floats:
        """The most activation bytes that each worker holds; what is slow does not change them."""
        return peaks_bytes(self._problem, self._orders)

    def _under(self, troubles: PlanSlowness) -> Problem:
        inside_s = self._problem.inside_s.copy()
        for (k, i), delay_s in troubles.hops_s.items():
            inside_s[k, i] = max(delay_s, inside_s[k, i])
        return replace(self._problem, workers=_slowed(self._problem.workers, troubles, self._number), inside_s=inside_s)


def _slowed(workers: Workers, troubles: PlanSlowness, number: Mapping[Place, int]) -> Workers:
    """Workers whose operations, and sums of gradients, take as long as the troubles have it."""
    factor, slowest_s = np.ones(len(workers.stage)), np.zeros(len(workers.stage))
    held, component_of = workers.parts.held, components(workers.parts.held)
    for place, times in troubles.factors:
        factor[number[place]] = times
    for (one, other), delay_s in troubles.across_s.items():
        groups = workers.group[[number[one], number[other]]].tolist()
        if share_layers(*(held[group] for group in groups)):
            summing = [component_of[layers] == component_of[held[groups[0]]] for layers in held]
            members = workers.live & np.array(summing)[workers.group]
            steps = 2 * (len(set(workers.pipeline[members].tolist())) - 1)
            slower = workers.live & np.isin(workers.group, groups)
            slowest_s[slower] = np.maximum(slowest_s[slower], steps * delay_s)
    return replace(
        workers,
        forward_s=workers.forward_s * factor,
        input_s=workers.input_s * factor,
        weight_s=workers.weight_s * factor,
        full_s=workers.full_s * factor,
        allreduce_s=workers.allreduce_s + slowest_s,
    )


# Pipelines of one shape, any number of them: what an iteration takes, what a GPU holds, and the plan.
#
# Alike pipelines do not wait for each other before they sum gradients, so an iteration takes as long as the slowest of
# them takes alone. That is remembered by numbers of pipelines and micro-batches; the plan of all is made when it is
# asked for, and takes as long.


NOBODY = Planner("pipeline", __version__, {})


@dataclass(frozen=True)
class TimeAndMemory:
    """What pipelines take and hold.

    Attributes:
        iteration_time_s: as `rtk simulate` of their plan has it.
        peak_memory_bytes: the most that any GPU holds: parameters, state and activations.
    """

    iteration_time_s: float
    peak_memory_bytes: float

    def standing(
        self, formation: Hashable, microbatches: int, nodes: int, checkpointing: Checkpointing | None = None
    ) -> TrainingState:
        """Training goes on with this outcome; the rest as for `TrainingState`."""
        return TrainingState(
            formation, self.iteration_time_s, microbatches, nodes, self.peak_memory_bytes, checkpointing
        )


@dataclass(frozen=True)
class _PipelineRun:
    """When each stage of a pipeline has done its micro-batches, and the most activations that a GPU of it held."""

    ends_s: tuple[float, ...]
    activation_bytes: tuple[float, ...]


class JobPipelines:
    """A job's pipelines; their number need not be the job's.

    Args:
        job: its shape says stages, limits and delays; pipelines and micro-batches are asked for.
        schedule: of every pipeline; None: the job's.

    Raises:
        InvalidInputError: the shape has delays of single pipelines.
    """

    def __init__(self, job: TrainingJob, schedule: Schedule | None = None) -> None:
        require_alike(job)
        self._job, self._schedule = job, schedule or job.schedule
        self._templates: dict[int, Template] = {}
        self._runs: dict[int, _PipelineRun] = {}  # by micro-batches
        self._outcomes: dict[tuple[int, int], TimeAndMemory] = {}  # of one: how many sum with it, and its micro-batches

    def template(self, pipelines: int) -> Template:
        """The stages of so many pipelines, whose number only sums of gradients depend on.

        Raises:
            InfeasibleError: the profile cannot be cut into that many stages, or a device cannot hold one.
            InvalidInputError: a link or limit that the shape does not have.
        """
        if pipelines not in self._templates:
            self._templates[pipelines] = template_of(self._job.profile, replace(self._job.shape, dp=pipelines))
        return self._templates[pipelines]

    def outcome(self, pipelines: int, microbatches: int) -> TimeAndMemory:
        """What so many pipelines take and hold with so many micro-batches in all, spread evenly.

        Raises:
            InfeasibleError: as `template`; or a memory limit admits no schedule of this kind.
        """
        each = [self._alone(pipelines, count) for count in set(spread(microbatches, pipelines))]
        return TimeAndMemory(max(one.iteration_time_s for one in each), max(one.peak_memory_bytes for one in each))

    def plan(self, pipelines: int, microbatches: int) -> Plan:
        """Their plan, checked and with its prediction; the rest as for `outcome`."""
        return with_prediction(self._scheduled(pipelines, microbatches))

    def ordered(self, pipelines: int, microbatches: int) -> Retimed:
        """The orders of their plan."""
        return Retimed.of(self._scheduled(pipelines, microbatches))

    def _scheduled(self, pipelines: int, microbatches: int) -> Plan:
        job, counts = self._job, spread(microbatches, pipelines)
        options = shape_options(job.profile, replace(job.shape, dp=pipelines)) | {
            "schedule": self._schedule,
            "microbatches": counts[0] if len(set(counts)) == 1 else list(counts),
        }
        planner = Planner("pipeline", __version__, options, job.seed)
        return scheduled(self.bare(pipelines, counts, planner), self._schedule)

    def bare(self, pipelines: int, counts: Sequence[int], planner: Planner = NOBODY) -> Plan:
        """A plan without orders of some pipelines.

        Args:
            pipelines: that sum their gradients.
            counts: micro-batches of those in the plan.
            planner: who makes it.
        """
        template = self.template(pipelines)
        return Plan(
            planner=planner,
            inputs=self._inputs,
            templates=(template,),
            pipelines=tuple(Pipeline(template.name, count) for count in counts),
            optimizer="synchronous",
            workers=tuple(Worker(k, i, "") for k in range(len(counts)) for i in range(len(template.stages))),
        )

    @cached_property
    def _inputs(self) -> dict[str, str]:
        return {"profile": digest(self._job.profile)}

    def _alone(self, pipelines: int, microbatches: int) -> TimeAndMemory:
        """One of so many pipelines, with its own micro-batches."""
        key = pipelines, microbatches
        if key not in self._outcomes:
            stages, run = self.template(pipelines).stages, self._run(microbatches)
            held = peak_memory_bytes(self._job, self.template(pipelines), run.activation_bytes)
            self._outcomes[key] = TimeAndMemory(iteration_s(stages, run.ends_s), held)
        return self._outcomes[key]

    def _run(self, microbatches: int) -> _PipelineRun:
        """A pipeline of so many micro-batches, whatever sums of gradients take."""
        if microbatches not in self._runs:
            self._runs[microbatches] = self._timed(microbatches)
        return self._runs[microbatches]

    def _timed(self, microbatches: int) -> _PipelineRun:
        """By the kernel where there is one, else by the evaluator."""
        template = self.template(self._job.shape.dp)
        if self._schedule == "1f1b":
            held = zip(warm_ups_of(template.stages), template.stages, strict=True)
            held_bytes = tuple(min(most, microbatches) * stage.activation_bytes for most, stage in held)
            return _PipelineRun(stage_ends_s(template.stages, template.links, microbatches), held_bytes)
        found = evaluate(scheduled(self.bare(self._job.shape.dp, (microbatches,)), self._schedule))
        return _PipelineRun(tuple(row[-1].end_s for row in found.operations), found.peak_memory_bytes)


def require_alike(job: TrainingJob) -> None:
    """Raise InvalidInputError if a link of a single pipeline is slow from the beginning: nodes have no places yet."""
    for pipeline, link in job.shape.link_delay_s or {}:
        if pipeline is not None:
            raise InvalidInputError(
                f"link {link} of pipeline {pipeline} alone is slow, and which nodes will hold it nobody knows",
                where="--link-delay",
                fix=f"give it to link {link} of all pipelines, or let the trace make a link between nodes slow",
            )


def iteration_s(stages: Sequence[Stage], ends_s: Sequence[float], more_s: Sequence[float] | None = None) -> float:
    """What alike pipelines take once the last worker of each stage is done: gradients are summed, then all step.

    Args:
        stages: with what sums and steps take.
        ends_s: when the last worker of each is done.
        more_s: how much longer the sum of each takes; None: none does.
    """
    times_s = zip(ends_s, stages, more_s or [0.0] * len(stages), strict=True)
    reduced_s = max(end_s + stage.allreduce_s + slower_s for end_s, stage, slower_s in times_s)
    return reduced_s + max(stage.optimizer_s for stage in stages)


def spread(microbatches: int, pipelines: int) -> tuple[int, ...]:
    """Micro-batches of each pipeline, as even as can be, the first ones with one more; at least one each."""
    least, more = divmod(microbatches, pipelines)
    return (least + 1,) * more + (least,) * (pipelines - more)


# Alike pipelines that only sum gradients together: each with its own micro-batches, orders, slow workers and links.
#
# None waits for another one before it sums, so each is timed alone: an iteration takes until the last worker of a stage
# is done and its peers have summed. What a pipeline takes is remembered by all that it depends on.


Delays = tuple[float, ...]  # of a pipeline's links, in s


@dataclass(frozen=True, slots=True)
class PipelineKey:
    """What a pipeline's orders depend on: its micro-batches, and the delays that they are made for, where any are."""

    microbatches: int
    delays_s: Delays | None = None


class SeparatePipelines:
    """A job's pipelines.

    Args:
        job: what it trains.
        ordered: the orders of each stage of a pipeline of some kind, as in a plan of it alone; None: by the job's
            schedule, whatever delays there are.
    """

    def __init__(self, job: TrainingJob, ordered: Callable[[PipelineKey], tuple[str, ...]] | None = None) -> None:
        self._job, self._ordered, self._pipelines = job, ordered or self._by_schedule, JobPipelines(job)
        self._orders: dict[PipelineKey, tuple[str, ...]] = {}
        self._retimed: dict[PipelineKey, Retimed] = {}
        self._ends: dict[tuple[PipelineKey, PlanSlowness], tuple[float, ...]] = {}

    def template(self, pipelines: int) -> Template:
        """The stages of so many pipelines; the rest as for `JobPipelines`."""
        return self._pipelines.template(pipelines)

    def bare(self, kinds: Sequence[PipelineKey], planner: Planner = NOBODY) -> Plan:
        """The plan of such pipelines without orders."""
        return self._pipelines.bare(len(kinds), [kind.microbatches for kind in kinds], planner)

    def plan(self, kinds: Sequence[PipelineKey], planner: Planner) -> Plan:
        """Their plan with nothing slow, checked and with its prediction."""
        return with_prediction(self._with_orders(kinds, planner))

    def outcome(self, kinds: Sequence[PipelineKey], troubles: PlanSlowness = HEALTHY) -> TimeAndMemory:
        """What they hold, and what they take, as `rtk simulate` of their plan under these troubles has it."""
        stages = self.template(len(kinds)).stages
        more_s = sums_of_alike_s(troubles, len(kinds), len(stages))
        time_s = iteration_s(stages, self._all_ends_s(kinds, troubles), more_s)
        held = tuple(map(max, zip(*(self._ready(kind).peaks_bytes().tolist() for kind in set(kinds)), strict=True)))
        return TimeAndMemory(time_s, peak_memory_bytes(self._job, self.template(len(kinds)), held))

    def alone_s(self, kind: PipelineKey, troubles: PlanSlowness) -> float:
        """When a pipeline by itself has executed its last operation."""
        return max(self._ends_s(kind, troubles))

    def _all_ends_s(self, kinds: Sequence[PipelineKey], troubles: PlanSlowness) -> tuple[float, ...]:
        """When the last worker of each stage is done."""
        own = troubles.by_pipeline()
        found = {(kind, own.get(k, HEALTHY)) for k, kind in enumerate(kinds)}
        return tuple(map(max, zip(*(self._ends_s(*each) for each in found), strict=True)))

    def _ends_s(self, kind: PipelineKey, troubles: PlanSlowness) -> tuple[float, ...]:
        if (kind, troubles) not in self._ends:
            self._ends[kind, troubles] = tuple(self._ready(kind).ends_s(troubles).tolist())
        return self._ends[kind, troubles]

    def _ready(self, kind: PipelineKey) -> Retimed:
        if kind not in self._retimed:
            self._retimed[kind] = Retimed.of(self._with_orders([kind], NOBODY))
        return self._retimed[kind]

    def _with_orders(self, kinds: Sequence[PipelineKey], planner: Planner) -> Plan:
        bare = self.bare(kinds, planner)
        orders = [order for kind in kinds for order in self._orders_of(kind)]
        workers = (replace(worker, order=order) for worker, order in zip(bare.workers, orders, strict=True))
        return replace(bare, workers=tuple(workers))

    def _orders_of(self, kind: PipelineKey) -> tuple[str, ...]:
        if kind not in self._orders:
            self._orders[kind] = self._ordered(kind)
        return self._orders[kind]

    def _by_schedule(self, kind: PipelineKey) -> tuple[str, ...]:
        plan = scheduled(self.bare([kind]), self._job.schedule)
        return tuple(worker.order or "" for worker in plan.workers)


def sums_of_alike_s(troubles: PlanSlowness, pipelines: int, stages: int) -> list[float]:
    """How much longer the sums of each stage of so many alike pipelines take, nobody of whom is dead."""
    found = [0.0] * stages
    for pair, delay_s in troubles.across_s.items():
        if are_peers(pair):
            stage = pair[0][1]
            found[stage] = max(found[stage], 2 * (pipelines - 1) * delay_s)
    return found


# Unlike pipelines with zero-bubble orders: backwards split, weight gradients in the drain; slow parts heeded.
#
# Each pipeline gets the orders of `planners/pipeline.py` by itself, for what is slow in it as far as that is known;
# sums of gradients are not counted there, so that orders depend on stages, micro-batches and troubles only. Orders are
# made once, and timed under any troubles.


FULL, LONG = 3, 6  # micro-batches a stage at which a pipeline is timed


@dataclass(frozen=True, slots=True)
class ZeroBubbleKey:
    """What a pipeline's orders depend on.

    Attributes:
        nodes: of its shape.
        microbatches: that it has.
        planned: what is slow in it as far as its orders are made for that, as if it were number 0.
    """

    nodes: int
    microbatches: int
    planned: PlanSlowness = HEALTHY


@dataclass(frozen=True)
class _PipelineTimer:
    """A pipeline by itself, ready to be timed; whether no orders would end sooner under what they are made for."""

    orders: tuple[str, ...]
    retimed: Retimed
    activation_bytes: tuple[float, ...]
    optimal: bool


class ZeroBubblePipelines:
    """Shapes, made ready to say what pipelines of them take and hold.

    Args:
        layers: of the model.
        connection: that gradients are summed over.
        shape_of: a shape by its nodes.
    """

    def __init__(
        self, layers: Sequence[HoldsBytes], connection: Connection, shape_of: Callable[[int], TemplateLike]
    ) -> None:
        self._shape_of, self._unlike = shape_of, UnlikePipelines(layers, connection, shape_of)
        self._run, self._ends_s = cache(self._made), cache(self._timed)

    def orders(self, kind: ZeroBubbleKey) -> tuple[str, ...]:
        """Of each stage of a pipeline that is number 0.

        Raises:
            InfeasibleError: a memory limit does not admit a single micro-batch.
        """
        return self._run(kind).orders

    def activation_bytes(self, kind: ZeroBubbleKey) -> tuple[float, ...]:
        """The most that a GPU of each stage holds of activations; the rest as for `orders`."""
        return self._run(kind).activation_bytes

    def iteration_time_s(self, kinds: Sequence[ZeroBubbleKey], troubles: PlanSlowness = HEALTHY) -> float:
        """How long an iteration of these pipelines takes, as `rtk simulate` of their plan under troubles has it."""
        own = troubles.by_pipeline()
        found = {(kind, own.get(k, HEALTHY)) for k, kind in enumerate(kinds)}
        ends = [(kind.nodes, self._ends_s(kind, planned)) for kind, planned in found]
        return self._unlike.summed_s(ends, len(kinds), partial(self._slower_sum_s, kinds, troubles))

    def pace(self, nodes: int, troubles: PlanSlowness = HEALTHY) -> Pace:
        """The time of a pipeline as a line: exact at `FULL`, and for more wherever its orders are optimal there.

        Args:
            nodes: of its shape.
            troubles: in it, as if it were number 0; its orders are made for them.
        """
        stages = self._shape_of(nodes).stages
        full = ZeroBubbleKey(nodes, FULL * len(stages), troubles)
        full_s = max(self._ends_s(full, troubles))
        factors = {place[1]: factor for place, factor in troubles.factors}
        each_s = max(stage.work_s * factors.get(i, 1.0) for i, stage in enumerate(stages))
        if not self._run(full).optimal:
            long = replace(full, microbatches=LONG * len(stages))
            each_s = (max(self._ends_s(long, troubles)) - full_s) / (long.microbatches - full.microbatches)
        return Pace(max(0.0, full_s - full.microbatches * each_s), each_s)

    def _slower_sum_s(self, kinds: Sequence[ZeroBubbleKey], troubles: PlanSlowness, layers: Layers) -> float:
        """How much longer the all-reduce of the stages of these layers takes."""
        ends = (
            ([self._stage(kinds, place).layers for place in pair], delay_s)
            for pair, delay_s in troubles.across_s.items()
        )
        delays_s = (delay_s for pair, delay_s in ends if layers in pair and share_layers(*pair))
        return 2 * (len(kinds) - 1) * max(delays_s, default=0.0)

    def _stage(self, kinds: Sequence[ZeroBubbleKey], place: tuple[int, int]) -> Stage:
        return self._shape_of(kinds[place[0]].nodes).stages[place[1]]

    def _timed(self, kind: ZeroBubbleKey, own: PlanSlowness) -> tuple[float, ...]:
        return tuple(self._run(kind).retimed.ends_s(own).tolist())

    def _made(self, kind: ZeroBubbleKey) -> _PipelineTimer:
        bare = self._alone(kind)
        slowed = under_troubles(bare, kind.planned)
        problem = home_problem(slowed, split=True)
        bound_s = lower_bound(problem).value_s
        plan = with_orders(bare, problem, zero_bubble(problem, bound_s))
        retimed = Retimed.of(plan)
        orders = tuple(worker.order or "" for worker in plan.workers)
        optimal = retimed.iteration_time_s(kind.planned) <= bound_s * (1 + ROUNDING)
        return _PipelineTimer(orders, retimed, tuple(retimed.peaks_bytes().tolist()), optimal)

    def _alone(self, kind: ZeroBubbleKey) -> Plan:
        """A pipeline without orders, and without what follows its last operation."""
        shape = self._shape_of(kind.nodes)
        stages = tuple(replace(stage, allreduce_s=0.0, optimizer_s=0.0) for stage in shape.stages)
        return Plan(
            planner=Planner("oobleck", __version__, {}),
            templates=(Template("alone", stages, shape.links),),
            pipelines=(Pipeline("alone", kind.microbatches),),
            optimizer="synchronous",
            workers=tuple(Worker(0, i, "") for i in range(len(stages))),
        )


# A job with empty seats, re-routed by SlipStream: what an iteration takes, what a GPU holds, and the plan.
#
# Workers of a stage are alike, so only the numbers of empty seats in each column count; the plan is that of the last
# seats of each column being empty.


class ReroutedPipelines:
    """A job's pipelines with failures, their number by column; every answer is remembered.

    Schedules are made by rules, without a search: workers wait for them, and a replay asks for hundreds.

    Args:
        job: the shape is kept, whatever fails.

    Raises:
        InvalidInputError: the shape has delays of single pipelines.
    """

    def __init__(self, job: TrainingJob) -> None:
        require_alike(job)
        self._job = job
        self._outcomes: dict[Vector, TimeAndMemory] = {}
        self._best: dict[int, Vector] = {}

    @property
    def template(self) -> Template:
        """The stages of every pipeline.

        Raises:
            InfeasibleError: the profile cannot be cut into that many stages, or a device cannot hold one.
        """
        return self._replanner.common.template

    def outcome(self, empty: Vector) -> TimeAndMemory:
        """What the pipelines take, and hold at most, with so many empty seats in each column.

        Memory is that of all backwards split, as in an atlas; the plan, which splits fewer, may hold less.

        Raises:
            InfeasibleError: as `template`; or a memory limit admits nothing.
        """
        if empty not in self._outcomes:
            self._outcomes[empty] = self._outcome(*self._replanner.outcome(empty))
        return self._outcomes[empty]

    def bound_s(self, empty: Vector) -> float:
        """What an iteration takes at least, in s, whatever the plan."""
        return self._replanner.search.bound_s(self._job.grid.stage_failures(empty))

    def plan(self, empty: Vector) -> Plan:
        """Their plan; the rest as for `outcome`."""
        return self._replanner.in_place(self._job.grid.last_units(empty), compared=False)

    def ordered(self, empty: Vector) -> Retimed:
        """The orders of their plan; the rest as for `outcome`."""
        return Retimed(*self._replanner.orders(empty))

    def best(self, empty_seats: int) -> Vector:
        """In which columns so many empty seats cost least; for these there is a plan made ahead."""
        if empty_seats not in self._best:
            entry, _ = self._replanner.entry(empty_seats)
            grid = self._job.grid
            found = tuple(dead // grid.unit_pipelines for dead in entry.failures[:: grid.unit_stages])
            self._best[empty_seats] = found
            self._outcomes[found] = self._outcome(entry.prediction.iteration_time_s, entry.prediction.peak_memory_bytes)
        return self._best[empty_seats]

    def _outcome(self, iteration_s: float, activation_bytes: tuple[float, ...]) -> TimeAndMemory:
        return TimeAndMemory(iteration_s, peak_memory_bytes(self._job, self.template, activation_bytes))

    @cached_property
    def _replanner(self) -> Replanner:
        grid = self._job.grid
        unit = grid.unit_pipelines, grid.unit_stages
        effort = Effort("rules", seed=self._job.seed)
        request = AtlasRequest(self._job.shape, "staggered", unit, effort)
        return Replanner(opening(self._job.profile, request), grid.columns * (grid.units - 1))
