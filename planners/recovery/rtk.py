"""rtk's own policy: at each change whatever is cheapest, of all that the others could do.

There are several ways to hold the job: Oobleck's unlike pipelines with zero-bubble orders, and SlipStream's
re-routing in grids of fewer or more stages. At every change the way in force answers, and is weighed against
each other way: what would be committed until the next failure is to be expected (`job.py`) with the time that the
answer takes. To go over from one way to another nobody has to stop: while training goes on in the old one, state is
copied to the hosts of those that need it in the new one, and at an iteration's end all form new groups, while GPUs load
what their hosts have. Where a failure has stopped all anyway, it can be copied there and then. That copying is the
price, and is reckoned high: each GPU gets all that it will hold anew.

What is slow is weighed in the same way, once it has been found (`job.py`): go on with it, give fewer micro-batches to
who is slow, do without slow nodes as if they had failed, though without their haste, or hold the job in another way.

Checkpoints are there for a failure that takes all nodes which hold some layer, and for nothing else: all others leave
the state with peers. So Young's formula is taken with the rate of those, as far as it is sure to be low. Where three
nodes or more hold each layer, failures that have been seen count, divided by the number of other nodes: as if each took
along a second node, any with like odds, and that one were the only other one with its layers. Where two do, nothing is
taken off what all policies reckon with. Where one does, all failures count that have been seen; and a formation is
judged by what the next of them will cost. While groups form, GPUs save their state to their hosts, so that fewer
checkpoints stop them for that alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import takewhile
from math import ceil, inf, sqrt
from typing import cast

from ... import __version__
from ...schemas.conditions import AS_PLANNED, PlanConditions
from ...schemas.documents import digest
from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.plan import Layers, Pipeline, Place, Plan, Planner, Stage, Worker
from ...schemas.profile import Profile, held_bytes
from ...schemas.protocols import RecoveryPolicy, RunningPolicy
from ...schemas.replay import Checkpointing, Costs, Fleet, Moment, Pause, StateChange, TrainingState, Transition
from ...schemas.templates import Templates
from ..batch.distribute import distribute
from ..batch.exact import Pace
from ..oobleck.assignment import CrewNode, LayerSizes, PipelineAssignment, assign
from ..oobleck.pace import rings_of
from ..oobleck.plan import OPTION, rest_of, template_among, template_name
from ..scheduling.assemble import with_prediction
from ..scheduling.problem import ROUNDING
from ..shape import template_of
from .adapting import Adapting
from .detecting import paced
from .interruption import Interruptions
from .job import (
    RUNNING,
    Horizon,
    TrainingJob,
    checkpointing,
    copying_s,
    failing_over,
    loading_s,
    planning,
    regrouping,
    restart,
    total_s,
    urgent_of,
)
from .layout import Layout, PipelineKey, Pipelines
from .oobleck import FAULT_TOLERANCE, Names, Oobleck, OobleckLayout, TemplateJob
from .slipstream import GridJob, SlipStream

# Oobleck's pipelines with zero-bubble orders, whose micro-batches heed what is slow: a way of rtk's own policy.
#
# The paper's pipelines run 1F1B. Here their backwards are split, so that weight gradients fill the drain, and
# micro-batches are shared by the pace that this gives: longer pipelines, which divide layers and micro-batches more
# evenly, cost less then. All else is as in `oobleck.py`: templates, which nodes go where, what is copied.
#
# Once it is known what is slow, `adapted` gives fewer micro-batches to the pipelines that are, and orders made for it.


# Templates are made up to so many times the smallest one's nodes, for longer pipelines are hardly ever best; and up to
# where the slowest stage leaves the others idle for more of the time.
MOST_TIMES, MOST_IDLE = 8, 0.15
# Pipelines that are so much slower by their paces may be faster with all sums; and so much slower is hardly slower.
NEARLY, HARDLY = 0.02, 0.005


@dataclass(frozen=True)
class Heeding:
    """How Oobleck's pipelines go on.

    Attributes:
        base: who sits where, as Oobleck has it while nothing is slow.
        kinds: of the pipelines.
        troubles: what is slow.
    """

    base: TrainingState
    kinds: Layout
    troubles: PlanConditions


class UnlikeZeroBubble:
    """A `RecoveryPolicy`; to what is slow it has no answer, unless `adapted` is asked for one.

    Args:
        job: what it trains; the rest as for `Oobleck`.
        fault_tolerance: there are always one more pipelines.
    """

    def __init__(self, job: TrainingJob, fault_tolerance: int = FAULT_TOLERANCE) -> None:
        self._job, self._oobleck = job, _Oobleck(TemplateJob.replayed(job, fault_tolerance))
        self._shared: dict[tuple[tuple[int, ...], PlanConditions], Layout] = {}

    def begin(self, fleet: Fleet) -> TrainingState:
        """As Oobleck; what is slow already is answered from the next moment on."""
        return self._under(self._oobleck.begin(fleet), fleet)

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """As Oobleck; where only the pace changes, the same standing goes on at that pace."""
        held = _held(standing)
        steps = self._oobleck.react(held.base, moment)
        if steps:
            return self._all_under(steps, moment.fleet)
        same = self._under(held.base, moment.fleet, held.kinds)
        return () if same == standing else (paced(same),)

    def mended(self, standing: TrainingState, moment: Moment) -> Transition:
        """What the paper does where nodes are lost: most pipelines stay as they are, though others may be faster."""
        return self._all_under(self._oobleck.answer(_held(standing).base, moment, pays_within=0), moment.fleet)

    def adapted(self, standing: TrainingState, believed: Fleet, fleet: Fleet) -> TrainingState:
        """The same nodes in the same places, with micro-batches and orders for what is believed to be slow there.

        Args:
            standing: of this policy.
            believed: what is planned for.
            fleet: as it is.
        """
        held = _held(standing)
        if held.base.iteration_time_s is None:
            return standing
        troubles = self._troubles(held.base, believed)
        plain = _plain(_oobleck_layout(held.base))
        if not troubles:
            return self._under(held.base, fleet)
        ways = (plain, self._heeding(_oobleck_layout(held.base), troubles))
        kinds = min(ways, key=lambda kinds: self._oobleck.pipelines.seconds(kinds, troubles))
        return self._under(held.base, fleet, kinds)

    def plan(self, standing: TrainingState) -> Plan | None:
        """The pipelines, each with its own orders, and what is slow."""
        held = _held(standing)
        if standing.iteration_time_s is None:
            return None
        return held.troubles.under(with_prediction(self._oobleck.plan_of(held.kinds)))

    def unpromised(self, standing: TrainingState) -> Plan:
        """The same plan of a standing that trains, without a prediction."""
        held = _held(standing)
        return held.troubles.under(self._oobleck.plan_of(held.kinds))

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """As Oobleck."""
        return self._oobleck.seats(_held(standing).base)

    def layers(self, standing: TrainingState) -> dict[str, Layers]:
        """What each node holds, in the order of their seats."""
        pipelines = _oobleck_layout(_held(standing).base).pipelines
        rows = ((names, self._oobleck.layers[len(names)]) for names in pipelines)
        return {name: layers for names, held in rows for name, layers in zip(names, held, strict=True)}

    def _all_under(self, steps: Transition, fleet: Fleet) -> Transition:
        return tuple(replace(step, standing=self._under(step.standing, fleet)) for step in steps)

    def _under(self, base: TrainingState, fleet: Fleet, kinds: Layout | None = None) -> TrainingState:
        """A standing of Oobleck's as it is in this fleet, with its own micro-batches unless others are given."""
        kinds = kinds or _plain(_oobleck_layout(base))
        troubles = self._troubles(base, fleet)
        if base.iteration_time_s is None or (not troubles and kinds == _plain(_oobleck_layout(base))):
            return replace(base, formation=Heeding(base, kinds, troubles))
        return replace(
            base,
            formation=Heeding(base, kinds, troubles),
            iteration_time_s=self._oobleck.pipelines.seconds(kinds, troubles),
            peak_memory_bytes=self._oobleck.held_at_most(kinds),
        )

    def _heeding(self, formation: OobleckLayout, troubles: PlanConditions) -> Layout:
        """Micro-batches shared by the paces that are left, and orders for them."""
        key = formation.sizes, troubles
        if key not in self._shared:
            own = troubles.by_pipeline()
            planned = [own.get(k, AS_PLANNED) for k in range(len(formation.sizes))]
            paces = [self._oobleck.pace(*each) for each in zip(formation.sizes, planned, strict=True)]
            counts = distribute(paces, self._job.microbatches).microbatches
            self._shared[key] = tuple(map(PipelineKey, counts, formation.sizes, planned))
        return self._shared[key]

    def _troubles(self, base: TrainingState, fleet: Fleet) -> PlanConditions:
        return fleet.at(self._oobleck.seats(base)).felt() if fleet.is_slow else AS_PLANNED


class _Oobleck(Oobleck):
    """Oobleck whose templates have zero-bubble orders."""

    @cached_property
    def templates(self) -> Templates:
        """As Oobleck's, but for those of too many nodes; enough are left to use up any number of them."""
        found = self._job.templates
        least = 2 * found.smallest - 1
        kept = (one.nodes for one in found.templates[: MOST_TIMES * found.smallest] if _idle(one.stages) <= MOST_IDLE)
        largest = max(kept, default=least)
        return replace(found, templates=tuple(one for one in found.templates if one.nodes <= max(least, largest)))

    @cached_property
    def pipelines(self) -> Pipelines:
        """By a pipeline's number of nodes."""
        templates = self.templates
        return Pipelines(
            templates.layers,
            rings_of(templates),
            lambda nodes: templates.templates[nodes - templates.smallest],
            "zero-bubble",
        )

    def _anew(self, nodes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The fastest pipelines, sums over unlike stages included, which paces do not know; rather more of them.

        The more there are, the less a failure touches.
        """
        near = [
            (self.pipelines.seconds(tuple(map(PipelineKey, microbatches, sizes))), sizes, microbatches)
            for sizes, microbatches in self._weighing.near_fastest(nodes, NEARLY)
        ]
        enough_s = min(near)[0] * (1 + HARDLY)
        return max((one for one in near if one[0] <= enough_s), key=lambda one: len(one[1]))[1:]

    @cached_property
    def _paces(self) -> Sequence[Pace]:
        return [self.pace(one.nodes) for one in self.templates.templates]

    def pace(self, nodes: int, troubles: PlanConditions = AS_PLANNED) -> Pace:
        """Of a pipeline with what is slow in it."""
        return self.pipelines.pace(nodes, troubles)

    def held_at_most(self, kinds: Layout) -> float:
        """What a GPU of such pipelines holds at most: parameters, state and activations."""
        return max(
            static + most
            for kind in set(kinds)
            for static, most in zip(self._gpu_bytes[kind.shape], self.pipelines.activation_bytes(kind), strict=True)
        )

    def plan_of(self, kinds: Layout) -> Plan:
        """Such pipelines, without a prediction."""
        templates = self.templates
        options = {"nodes": sum(kind.shape for kind in kinds), "schedule": "zero-bubble", OPTION: rest_of(templates)}
        orders = [self.pipelines.orders(kind) for kind in kinds]
        return Plan(
            planner=Planner("oobleck", __version__, options),
            inputs={"templates": digest(templates)},
            templates=tuple(template_among(templates, one, len(kinds)) for one in templates.templates),
            pipelines=tuple(Pipeline(template_name(kind.shape), kind.microbatches) for kind in kinds),
            optimizer="synchronous",
            workers=tuple(Worker(k, i, order) for k, row in enumerate(orders) for i, order in enumerate(row)),
        )

    def _standing(self, pipelines: tuple[Names, ...], microbatches: tuple[int, ...]) -> TrainingState:
        formation = OobleckLayout(pipelines, microbatches)
        kinds = _plain(formation)
        return TrainingState(
            formation=formation,
            iteration_time_s=self.pipelines.seconds(kinds),
            microbatches=self._job.batch.microbatches,
            nodes=sum(formation.sizes),
            peak_memory_bytes=self.held_at_most(kinds),
            checkpointing=checkpointing(
                self._job.costs, [size for one in kinds for size in self._gpu_bytes[one.shape]]
            ),
        )


def _idle(stages: Sequence[Stage]) -> float:
    """Of the mean GPU, because stages are unlike."""
    gpus = sum(stage.tensor_parallel for stage in stages)
    return 1 - sum(stage.work_s * stage.tensor_parallel for stage in stages) / (
        gpus * max(stage.work_s for stage in stages)
    )


def _plain(formation: OobleckLayout) -> Layout:
    return tuple(map(PipelineKey, formation.microbatches, formation.sizes))


def _held(standing: TrainingState) -> Heeding:
    return cast("Heeding", standing.formation)


def _oobleck_layout(standing: TrainingState) -> OobleckLayout:
    return cast("OobleckLayout", standing.formation)


# The ways in which `rtk`'s own policy can hold a job, each with what it may give at best.


MOST_STAGES = 4  # times the job's own
LEAST_SHARE = 0.95  # of the fastest way's throughput with all nodes: slower ones are not tried
BISECTIONS = 30


@dataclass(frozen=True, eq=False)
class Way:
    """A way to hold a job.

    Attributes:
        policy: whose answers and standings are this way's.
        grid: the job in a grid of its shape; None where pipelines are unlike.
        nodes: that it uses at most.
        is_last: whether it is for nodes with which no other way can go on.
    """

    policy: RecoveryPolicy
    grid: TrainingJob | None
    nodes: int
    is_last: bool = False

    def begin(self, fleet: Fleet, believed: Fleet) -> TrainingState:
        """On these nodes; those that are believed to be slow stand together."""
        if not believed.is_slow:
            return self.policy.begin(fleet)
        there = sorted(fleet.nodes[: self.nodes], key=lambda node: node in believed.slow)
        return self.adapted(self.policy.begin(replace(fleet, nodes=tuple(there))), believed, fleet)

    def adapted(self, standing: TrainingState, believed: Fleet, fleet: Fleet) -> TrainingState:
        """The same nodes in the same places, with a plan for what is believed to be slow, where the way has one."""
        if isinstance(self.policy, UnlikeZeroBubble):
            return self.policy.adapted(standing, believed, fleet)
        return standing

    def unpromised(self, standing: TrainingState) -> Plan:
        """The plan of a standing that trains, with what is slow; it need have no prediction."""
        if isinstance(self.policy, UnlikeZeroBubble):
            return self.policy.unpromised(standing)
        return cast("Plan", self.policy.plan(standing))

    @property
    def is_placed(self) -> bool:
        """Whether workers hold several virtual stages."""
        return self.grid is not None and self.grid.shape.columns is not None

    def layers(self, standing: TrainingState) -> dict[str, Layers]:
        """What each node holds, in the order of their seats; of a way whose workers hold one stage."""
        if isinstance(self.policy, UnlikeZeroBubble):
            return self.policy.layers(standing)
        found: dict[str, Layers] = {}
        for (_, stage), node in sorted(self.policy.seats(standing).items()):
            layers = self._stages[stage].layers
            first, stop = found.get(node, layers)
            found[node] = min(first, layers[0]), max(stop, layers[1])
        return found

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        """Of the grid."""
        assert self.grid is not None
        return template_of(self.grid.profile, self.grid.shape).stages

    def holders(self, standing: TrainingState) -> int:
        """How many nodes hold a layer, of the layer that fewest hold."""
        seats = self.policy.seats(standing)
        if self.grid is None or not seats:
            return len({pipeline for pipeline, _ in seats})
        return min(Counter(stage for _, stage in {(node, stage) for (_, stage), node in seats.items()}).values())

    @cached_property
    def most_per_s(self) -> Callable[[int], float]:
        """Micro-batches a second on so many nodes, none of which is slow."""
        return cache(lambda nodes: self.policy.begin(Fleet(tuple(map(str, range(nodes))))).microbatches_per_s)

    @cached_property
    def bound_per_s(self) -> Callable[[int], float]:
        """The same at most, by the work of stages alone, which takes no planning; infinite where that is not known."""
        return cache(lambda nodes: float("inf") if self.grid is None else _bound_per_s(self.grid, nodes))

    def may_give(self, nodes: int, least_per_s: float) -> bool:
        """Whether so many nodes can give more micro-batches a second than so many.

        By the work of stages first. Then more nodes are asked, for they should give no less: so many that a power of
        two is missing, which makes questions few, and answers the same whatever was asked before.
        """
        if self.bound_per_s(nodes) <= least_per_s:
            return False
        missing = max(0, self.nodes - nodes)
        more = self.nodes - (1 << missing.bit_length() >> 1)
        return self.most_per_s(more) > least_per_s and self.most_per_s(nodes) > least_per_s


def ways_of(job: TrainingJob) -> tuple[Way, ...]:
    """Those that fit the GPUs: grids as far as they are, with all nodes there, not far slower than the fastest way.

    Unlike pipelines and the job's own grid are there anyway, the ones for they go on where too few nodes for a grid are
    left. A job with placements has the grids in each, and those of one stage a worker. Oobleck's 1F1B is none of them:
    with backwards split the same pipelines are no slower. Where not even two pipelines fit the nodes that are left, one
    goes on, though it loses its state with the next failure.

    Raises:
        InfeasibleError: none fits.
    """
    found, refusals = [], []
    for made in _conceivable(job):
        try:
            way = made()
            found.append((way.most_per_s(job.nodes), way))
        except (InfeasibleError, InvalidInputError) as error:
            refusals.append(error)
    if not found:
        raise refusals[0]
    least_per_s = LEAST_SHARE * max(each for each, _ in found)
    return tuple(way for each, way in found if each >= least_per_s or way.grid is None or way.grid is job)


def _conceivable(job: TrainingJob) -> Iterator[Callable[[], Way]]:
    yield lambda: Way(UnlikeZeroBubble(job.plain), None, job.nodes)
    yield lambda: Way(UnlikeZeroBubble(job.plain, fault_tolerance=0), None, job.nodes, is_last=True)
    for placed in job.placed:
        for one in (placed, *_other_grids(placed)):
            yield partial(_in_grid, one)


def _in_grid(job: TrainingJob) -> Way:
    return Way(Adapting(SlipStream(GridJob.replayed(job)), Horizon()), job, job.nodes)


def _other_grids(job: TrainingJob) -> Iterator[TrainingJob]:
    """The job in fewer or more stages, on as many nodes, with the same global batch."""
    workers, limits = job.shape.pp * job.shape.dp, job.shape.memory_limit_bytes or ()
    if len(limits) > 1:
        return  # what is said stage by stage has no meaning for other stages
    for pp in range(1, min(len(job.profile.layers), job.shape.pp * MOST_STAGES) + 1):
        if pp == job.shape.pp or (job.shape.pp % pp and pp % job.shape.pp):
            continue
        dp = workers // pp
        if dp * pp != workers or job.microbatches % dp:
            continue
        try:
            yield replace(job, shape=replace(job.shape, pp=pp, dp=dp, microbatches=job.microbatches // dp))
        except InvalidInputError:
            continue  # its pipelines do not fill nodes


def _bound_per_s(job: TrainingJob, nodes: int) -> float:
    """What a grid with empty seats gives at most: the workers of a column work, sum and step, one after the other."""
    grid, microbatches = job.grid, job.microbatches
    template = template_of(job.profile, job.shape)
    workers = [[template.stages[stage] for stage in held] for held in template.columns]
    columns = [workers[first : first + grid.unit_stages] for first in range(0, len(workers), grid.unit_stages)]

    def nodes_for(stages: Sequence[Stage], limit_s: float) -> float:
        """Of a column with a worker of these stages, to be done in time; each stage's operations may go elsewhere."""
        left_s = limit_s - sum(stage.allreduce_s + stage.optimizer_s for stage in stages)
        work_s = sum(stage.work_s for stage in stages)
        each = left_s / work_s if work_s else microbatches
        each = each if len(stages) > 1 else int(each)
        return ceil(microbatches * (1 - ROUNDING) / (each * grid.unit_pipelines)) if each > 0 else inf

    def is_enough(limit_s: float) -> bool:
        return sum(max(nodes_for(held, limit_s) for held in column) for column in columns) <= min(nodes, job.nodes)

    low_s = 0.0
    high_s = sum(stage.work_s * microbatches + stage.allreduce_s + stage.optimizer_s for stage in template.stages)
    for _ in range(BISECTIONS):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if is_enough(middle_s) else (middle_s, high_s)
    return microbatches / low_s if low_s else float("inf")


# Of throughput, for which a grid with empty seats is asked at all: to plan for it takes long, and is rarely worth more.
LEAST_GAIN = 0.02
ALIKE = 1e-3  # ways whose throughputs differ by less: the first one is taken
FEW_HOLDERS = 2  # nodes that hold a layer: so many can fail at once
MOST_SPARED = 3  # sets of slow nodes that it is weighed to do without


@dataclass(frozen=True)
class RtkLayout:
    """How the job is held.

    Attributes:
        way: which.
        held: the standing as that way sees it.
        spared: slow nodes that it does without.
    """

    way: int
    held: TrainingState
    spared: frozenset[str] = frozenset()


class Rtk:
    """A `RecoveryPolicy`; also a `RunningPolicy`, where there is a single way, of a plan that runs.

    Args:
        ways: to hold the job.
        costs: what changes cost.
        horizon: until when they must have paid.
        job: as it is replayed, for changes from one way to another; None: it runs, and has the way of its plan alone.
    """

    def __init__(self, ways: Sequence[Way], costs: Costs, horizon: Horizon, job: TrainingJob | None = None) -> None:
        self._ways, self._costs, self._horizon, self._job = ways, costs, horizon, job
        self._interruptions = Interruptions(
            costs, lambda standing: self._way(standing).unpromised(_layout(standing).held), self.seats
        )

    @classmethod
    def replayed(cls, job: TrainingJob) -> Rtk:
        """Of a job that is replayed; its shape is one of the ways.

        Raises:
            InfeasibleError: no way fits the GPUs.
        """
        return cls(ways_of(job), job.costs, Horizon(), job)

    @classmethod
    def running(cls, policy: RunningPolicy, horizon: Horizon) -> Rtk:
        """Of a job that runs as some policy has it; its plan says nothing of other ways."""
        return cls((Way(policy, None, 0),), RUNNING, horizon)

    def begin(self, fleet: Fleet) -> TrainingState:
        """In the fastest way; nothing is known to be slow."""
        healthy, left_s = Fleet(fleet.nodes), self._costs.mean_time_between_failures_s
        begun = [
            self._marked(way.begin(fleet, healthy), number, frozenset(), left_s)
            for number, way in enumerate(self._ways)
        ]
        least_per_s = max(one.microbatches_per_s for one in begun) * (1 - ALIKE)
        return next(standing for standing in begun if standing.microbatches_per_s >= least_per_s)

    def resume(self, plan: Plan, seats: Mapping[Place, str]) -> TrainingState:
        """As the way of the plan."""
        held = self._running.resume(plan, seats)
        return replace(held, formation=RtkLayout(0, held))

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """Of all answers, that which commits most until the horizon; the first one of several.

        A running job has the one way of its plan, whose answer it is.
        """
        left_s = self._horizon.left_s(self._costs, moment, standing.iteration_time_s or 0.0)
        stays = self._stays(standing, moment, left_s)
        if self._job is None:
            return stays
        found = [stays, urgent_of(stays), *self._adapts(standing, stays, moment, left_s)]
        found += self._spares(standing, moment, left_s)
        found += self._changes(self._job, standing, stays, moment, left_s)
        mended = self._mended(standing, moment, left_s)
        if mended and mended != stays:
            found += [mended, *self._changes(self._job, standing, mended, moment, left_s)]
        return tuple(map(_saving, self._best(standing, found, moment, left_s)))

    def plan(self, standing: TrainingState) -> Plan | None:
        """Of the way in force."""
        return self._way(standing).policy.plan(_layout(standing).held)

    def program(self, standing: TrainingState) -> Plan:
        """Of the way of the running plan."""
        return self._running.program(_layout(standing).held)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Of the way in force."""
        return self._way(standing).policy.seats(_layout(standing).held)

    def moving_s(self, usual_s: float) -> float:
        """In the way of the running plan."""
        return self._running.moving_s(usual_s)

    def warm_up(self) -> None:
        """For the way of the running plan."""
        self._running.warm_up()

    @property
    def _running(self) -> RunningPolicy:
        return cast("RunningPolicy", self._ways[0].policy)

    def _best(
        self, standing: TrainingState, answers: Sequence[Transition], moment: Moment, left_s: float
    ) -> Transition:
        """The answer that commits most, the first one of several; what is left of an iteration is planned by need.

        Those come first that would be best if nothing were lost: once none of the others could be better, that is it.
        """
        interruptions, best = self._interruptions, (-inf, 0)
        at_best = (interruptions.at_best(standing, steps, moment) for steps in answers)
        most = [self._expected(standing, steps, moment, left_s) for steps in at_best]
        for number in sorted(range(len(answers)), key=lambda number: -most[number]):
            if most[number] < best[0]:
                break
            resumed = interruptions.resumed(standing, answers[number], moment)
            found = self._expected(standing, resumed, moment, left_s), -number
            if found > best:
                best, chosen = found, resumed
        return chosen

    def _expected(self, standing: TrainingState, steps: Transition, moment: Moment, left_s: float) -> float:
        """Micro-batches committed by the horizon, less what the next failure costs if it takes the state along."""
        last, found = steps[-1].standing if steps else standing, _committed(standing, steps, moment.done, left_s)
        if last.iteration_time_s is None or self._way(last).holders(_layout(last).held) > 1:
            return found
        saved = last.checkpointing
        lost_s = self._costs.restart_s + (min(left_s, saved.every_s) / 2 if saved else left_s)
        return found - lost_s * last.microbatches_per_s

    def _stays(self, standing: TrainingState, moment: Moment, left_s: float) -> Transition:
        """What the way in force does; slow nodes that it does without stay out as long as they are slow."""
        formation = _layout(standing)
        spared = formation.spared.intersection(moment.believed.slow)
        back = tuple(node for node in moment.fleet.nodes if node in formation.spared - spared)
        lost = tuple(node for node in moment.lost if node not in formation.spared)
        return self._asked(formation, replace(moment, lost=lost, came=(*moment.came, *back)), spared, left_s)

    def _mended(self, standing: TrainingState, moment: Moment, left_s: float) -> Transition:
        """What the way in force does at least where nodes are lost, if it has a choice: so that less is done again."""
        formation = _layout(standing)
        policy = self._ways[formation.way].policy
        if not isinstance(policy, UnlikeZeroBubble) or formation.spared or moment.believed.is_slow:
            return ()
        steps = policy.mended(formation.held, moment)
        return tuple(
            replace(step, standing=self._marked(step.standing, formation.way, frozenset(), left_s)) for step in steps
        )

    def _adapts(
        self, standing: TrainingState, stays: Transition, moment: Moment, left_s: float
    ) -> Iterator[Transition]:
        """All stay where they are, with a plan for what is slow."""
        urgent = urgent_of(stays)
        now = urgent[-1].standing if urgent else standing
        if now.iteration_time_s is None:
            return
        formation = _layout(now)
        adapted = self._adapted(formation.way, formation.held, formation.spared, moment)
        if adapted != formation.held:
            after_s = sum(total_s(step.pauses) for step in urgent)
            adapted = self._marked(adapted, formation.way, formation.spared, left_s)
            yield (*urgent, StateChange(adapted, "adapt", planning(self._costs), after_s))

    def _spares(self, standing: TrainingState, moment: Moment, left_s: float) -> Iterator[Transition]:
        """The way in force without other slow nodes than those that it does without.

        Not of a grid: that gives slow workers less to do, and keeps them, for nobody sees that an idle one is well.
        """
        formation = _layout(standing)
        if moment.lost or standing.iteration_time_s is None or self._way(standing).grid is not None:
            return
        for spared in _sets(moment.believed):
            as_lost = tuple(node for node in moment.fleet.nodes if node in spared - formation.spared)
            back = tuple(node for node in moment.fleet.nodes if node in formation.spared - spared)
            if as_lost or back:
                asked = replace(moment, lost=as_lost, came=(*moment.came, *back))
                steps = self._asked(formation, asked, spared, left_s)
                if steps and not any(step.rolls_back for step in steps):
                    yield tuple(map(_unhurried, steps))

    def _changes(
        self, job: TrainingJob, standing: TrainingState, stays: Transition, moment: Moment, left_s: float
    ) -> Iterator[Transition]:
        """Over to each other formation, with all nodes or without slow ones."""
        urgent = urgent_of(stays)
        now = urgent[-1].standing if urgent else standing
        rolls_back = any(step.rolls_back for step in urgent)
        for target in self._targets(now, moment, left_s):
            if standing.iteration_time_s is None or rolls_back:
                reading_s = loading_s(job.costs, [target.peak_memory_bytes * job.gpus_per_node])
                yield restart(job.costs, target, reading_s, lost=standing.iteration_time_s is not None)
            else:
                yield from self._goes_over(job, urgent, target)

    def _targets(self, now: TrainingState, moment: Moment, left_s: float) -> Iterator[TrainingState]:
        """Other formations that are faster; most are left out by what they can give at most."""
        believed, fleet, least_per_s = moment.believed, moment.fleet, now.microbatches_per_s
        waits = now.iteration_time_s is None
        for spared in _sets(believed):
            there, known = fleet.without(spared), believed.without(spared)
            for number, way in enumerate(self._ways):
                stays = number == _layout(now).way and not known.slow and way.grid is not None
                if not waits and (way.is_last or stays):
                    continue
                nodes, asked_per_s = len(there.nodes), least_per_s * (1 + LEAST_GAIN * (way.grid is not None))
                if not way.may_give(nodes, asked_per_s):
                    continue
                begun = way.begin(there, known)
                if begun.microbatches_per_s > asked_per_s:
                    seated = begun if waits or known.is_slow else self._seated(now, way, begun, there)
                    yield self._marked(seated, number, spared, left_s)

    def _seated(self, now: TrainingState, way: Way, begun: TrainingState, fleet: Fleet) -> TrainingState:
        """The same in another way, its nodes seated so that they keep most of the layers that they have now.

        Not where nodes hold several ranges of layers before or after: copies are reckoned as whole ones all the same.
        """
        if way.is_placed or self._way(now).is_placed:
            return begun
        had, seats = self._way(now).layers(_layout(now).held), way.layers(begun)
        nodes = sorted(fleet.nodes, key=lambda node: node not in had)
        crew = [CrewNode(node, None, had.get(node)) for node in nodes[: len(seats)]]
        slots, weigh = PipelineAssignment((len(seats),), (None,), ()), LayerSizes(self._layer_bytes)
        (row,) = assign(crew, slots, {len(seats): tuple(seats.values())}, weigh)
        return way.begin(replace(fleet, nodes=(*(node.name for node in row), *nodes[len(seats) :])), fleet)

    @cached_property
    def _layer_bytes(self) -> tuple[float, ...]:
        assert self._job is not None
        layers = self._job.profile.layers
        return tuple(sum(held_bytes(layers, number, number + 1)) for number in range(len(layers)))

    def _goes_over(self, job: TrainingJob, urgent: Transition, target: TrainingState) -> Iterator[Transition]:
        """To another formation with the state that there is: in the pause of a failure, or beside training."""
        costs = self._costs
        lasts_s = copying_s(job, [((0, 0), (0, 1), target.peak_memory_bytes)])
        if any(step.interrupts for step in urgent):
            pauses = failing_over(costs, planning_s=costs.planning_s, copying_s=lasts_s)
            yield (StateChange(target, "re-shape", pauses, interrupts=True),)
        if urgent and urgent[-1].standing.iteration_time_s is None:
            return
        ready_s = sum(total_s(step.pauses) for step in urgent) + lasts_s
        rest_s = max(0.0, target.peak_memory_bytes / costs.snapshot_bytes_per_s - costs.regrouping_s)
        pauses = regrouping(costs, planning_s=costs.planning_s, copying_s=rest_s)
        yield (*urgent, StateChange(target, "re-shape", pauses, ready_s))

    def _asked(self, formation: RtkLayout, moment: Moment, spared: frozenset[str], left_s: float) -> Transition:
        """A way's answer, as this policy's; pipelines that are made anew heed what is slow from the first on."""
        asked = replace(moment, fleet=moment.fleet.without(spared), known=moment.believed.without(spared))
        found = []
        for step in self._ways[formation.way].policy.react(formation.held, asked):
            held, pauses = step.standing, step.pauses
            if pauses:
                held = self._adapted(formation.way, held, spared, moment)
                if held != step.standing:
                    pauses = (*pauses, *planning(self._costs))
            marked = self._marked(held, formation.way, spared, left_s)
            found.append(replace(step, standing=marked, pauses=pauses))
        return tuple(found)

    def _adapted(self, number: int, held: TrainingState, spared: frozenset[str], moment: Moment) -> TrainingState:
        believed, fleet = moment.believed.without(spared), moment.fleet.without(spared)
        return self._ways[number].adapted(held, believed, fleet)

    def _marked(self, held: TrainingState, number: int, spared: frozenset[str], left_s: float) -> TrainingState:
        """A way's standing, as this policy's."""
        formation = RtkLayout(number, held, spared)
        return replace(held, formation=formation, checkpointing=self._checkpointing(held, number, left_s))

    def _checkpointing(self, held: TrainingState, number: int, between_failures_s: float) -> Checkpointing | None:
        """Young's formula by failures that take all nodes that hold some layer."""
        usual = held.checkpointing
        if usual is None or self._costs.checkpoint_every_s is not None:
            return usual
        holders = self._ways[number].holders(held)
        if holders == FEW_HOLDERS:
            return usual
        others = held.nodes - 1 if holders > FEW_HOLDERS else 1
        return replace(usual, every_s=sqrt(2 * usual.pause_s * between_failures_s * others))

    def _way(self, standing: TrainingState) -> Way:
        return self._ways[_layout(standing).way]


def _unhurried(step: StateChange) -> StateChange:
    """Of the answer to a failure that is none: nobody has to notice it, and no iteration is lost."""
    pauses = tuple(pause for pause in step.pauses if pause.kind != "detecting")
    return replace(step, answer="leave out", pauses=pauses, interrupts=False)


def _saving(step: StateChange) -> StateChange:
    """While groups form, GPUs have nothing to do but to send their state to their hosts."""
    every, pauses = step.standing.checkpointing, list(step.pauses)
    if every is None or step.rolls_back or not every.pause_s:
        return step
    for number, pause in enumerate(pauses):
        if pause.kind == "restarting" and pause.lasts_s >= every.pause_s:
            pauses[number : number + 1] = [
                Pause("restarting", pause.lasts_s - every.pause_s),
                Pause("checkpointing", every.pause_s),
            ]
            return replace(step, pauses=tuple(pauses))
    return step


def _sets(believed: Fleet) -> list[frozenset[str]]:
    """Slow nodes to do without: none, and those that are at least so slow, the slowest first."""
    limits = sorted(set(believed.slow.values()), reverse=True)[:MOST_SPARED]
    slow = believed.slow.items()
    return [frozenset(), *(frozenset(node for node, factor in slow if factor >= limit) for limit in limits)]


def _committed(standing: TrainingState, steps: Iterable[StateChange], done: float, left_s: float) -> float:
    """Micro-batches that are expected until the next failure, which is so many seconds away.

    Of the iteration under way a part is done; who interrupts it may have to do more of it again, or less.
    """
    now_s, found = 0.0, 0.0
    for step in steps:
        due_s = min(max(now_s, step.after_s), left_s)
        found += (due_s - now_s) * standing.microbatches_per_s
        if step.interrupts:
            found -= standing.microbatches * (done - (1 - step.left))
        now_s, standing = min(left_s, due_s + total_s(step.pauses)), step.standing
    return found + (left_s - now_s) * standing.microbatches_per_s


def _layout(standing: TrainingState) -> RtkLayout:
    return cast("RtkLayout", standing.formation)


# What no policy can beat: the work of the micro-batches, by all the GPUs that there are.


def least_gpu_s(profile: Profile) -> float:
    """GPU-seconds that a micro-batch takes at least: each layer's operations, at the degree that wastes least of them.

    Nobody waits, nothing is summed, no optimizer steps, and nothing is computed twice.
    """
    return sum(
        min(profile.least_work_s(cost) * cost.tensor_parallel for cost in layer.costs) for layer in profile.layers
    )


class WorkBound:
    """What GPUs can compute, slow ones at their pace, added up while moments pass.

    Args:
        job: of nodes beyond those that it asks for, which are spares, the fastest count.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._nodes_s = self._at_s = self._pace = 0.0

    def note(self, moment: Moment) -> None:
        """The next moment; the first one has the nodes that are there at the beginning."""
        self._nodes_s += self._pace * (moment.time_s - self._at_s)
        self._at_s, self._pace = moment.time_s, self._pace_of(moment.fleet)

    def _pace_of(self, fleet: Fleet) -> float:
        """In nodes that are well; of those whose GPUs are not all alive the others count, as far as there are seats."""
        gpus, free = self._job.gpus_per_node, float(self._job.nodes)
        parts = (1 - len(fleet.dead_gpus.get(node, ())) / gpus for node in fleet.nodes)
        paces = (1 / fleet.slow.get(node, 1.0) for node in fleet.nodes)
        pace = 0.0
        for each, part in sorted(zip(paces, parts, strict=True), reverse=True):
            taken = min(part, free)
            pace, free = pace + each * taken, free - taken
        return pace

    def most_microbatches(self, until_s: float) -> float:
        """Micro-batches by a time that is not before the last moment."""
        nodes_s = self._nodes_s + self._pace * (until_s - self._at_s)
        return nodes_s * self._job.gpus_per_node / least_gpu_s(self._job.profile)


def most_microbatches(job: TrainingJob, moments: Iterable[Moment], until_s: float) -> float:
    """Micro-batches that GPUs can compute between the first moment and a time.

    Args:
        job: as for `WorkBound`.
        moments: in time order; those from `until_s` on do not count.
        until_s: when it ends.
    """
    bound = WorkBound(job)
    for moment in takewhile(lambda one: one.time_s < until_s, moments):
        bound.note(moment)
    return bound.most_microbatches(until_s)
