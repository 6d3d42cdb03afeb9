"""What the schedule of a run must take by its measured times, and which changes would help it most.

Everything is planned or retimed with these times: another schedule, more micro-batches, an even cut, and what
`what_if` tries (links, slow workers, sums, steps), the latter with the orders that ran, so that no change is praised
for better orders. Of each kind of change the best one counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ...schemas.bubble import BubbleBound, BubbleChange
from ...schemas.conditions import LinkPlace
from ...schemas.errors import RtkError
from ...schemas.orders import Operation, Schedule
from ...schemas.placement import loop_placement, v_placement
from ...schemas.plan import Placement, Plan
from ...schemas.profile import PASSES, TIMES, Layer, LayerCost, Profile
from ..pipeline import plan_from_orders, plan_pipeline
from ..placement.bounds import bound_of
from ..scheduling.assemble import with_prediction
from ..scheduling.solve import Effort
from ..shape import PlacementName, Shape
from .explain import explain
from .recognised import schedule_of
from .what_if import Change

TOLD = 3
LEAST = 1e-3  # of an iteration, that a change must save
MOST_OPERATIONS = 20_000  # of one pipeline for which orders are searched: seconds
HEURISTIC = Effort("heuristic")
# What `what_if` tries, and what it is here: memory is not known of a run, and stages that compute faster are the cut's.
ChangeKind = Literal["schedule", "micro-batches", "cut", "link", "slow", "sum", "step"]
KINDS: dict[str, ChangeKind] = {"link": "link", "slowdown": "slow", "allreduce": "sum", "optimizer": "step"}
HALVES = "I and W take half of a backward pass each: the run did not have them apart"
TWO_STAGES: tuple[PlacementName, ...] = ("loop", "v")
EVENLY = "layers can be moved so that all stages take equally long"


@dataclass(frozen=True)
class MeasuredPipeline:
    """What is known of a pipeline that ran.

    Attributes:
        name: of the run, for messages.
        profile: a layer for each virtual stage, with the times that were measured.
        orders: of each column.
        placement: the virtual stages of each column.
        microbatches: of a pipeline.
        pipelines: how many.
        sums_s: of gradients, of each virtual stage.
        delays_s: of messages, by link.
        slow: workers (pipeline, column) that took longer than others of their stage, and how many times as long.
        is_fused: its backward passes were whole ones.
    """

    name: str
    profile: Profile
    orders: Sequence[Sequence[Operation]]
    placement: Placement
    microbatches: int
    pipelines: int
    sums_s: Sequence[float]
    delays_s: Mapping[int, float]
    slow: Mapping[tuple[int, int], float]
    is_fused: bool

    @property
    def chunks(self) -> int:
        """Virtual stages of a worker."""
        return len(self.placement[0])

    @property
    def laid_out(self) -> PlacementName | None:
        """What the placement is called; None: it has no name."""
        made: dict[PlacementName, Callable[[int, int], Placement]] = {"loop": loop_placement, "v": v_placement}
        known = (name for name, make in made.items() if make(len(self.placement), self.chunks) == tuple(self.placement))
        return "plain" if self.chunks == 1 else next(known, None)

    def shape(self, with_delays: bool = True) -> Shape:
        """Columns, pipelines, micro-batches, placement and delays."""
        delays_s: dict[LinkPlace, float] = {
            (None, link): time_s for link, time_s in self.delays_s.items() if time_s > 0 and with_delays
        }
        pipelines = self.pipelines if self.slow else 1
        shape = Shape(len(self.placement), pipelines, self.microbatches, link_delay_s=delays_s)
        return replace(shape, placement=self.laid_out, chunks=self.chunks) if self.laid_out else shape

    def planned(self, with_delays: bool = True, profile: Profile | None = None) -> Plan:
        """The orders as they ran, with these times."""
        placement = None if self.laid_out else self.placement
        shape = self.shape(with_delays)
        return self.priced(
            plan_from_orders(profile or self.profile, self.orders, shape, "bubble", self.name, placement)
        )

    def priced(self, plan: Plan) -> Plan:
        """A plan of these stages with the sums and the slow workers that were measured."""
        slow = [replace(worker, slowdown=self.slow.get(worker.place, worker.slowdown)) for worker in plan.workers]
        if not any(self.sums_s) and not self.slow:
            return plan
        templates = tuple(
            replace(one, stages=tuple(replace(s, allreduce_s=self._sum_s(s.layers)) for s in one.stages))
            for one in plan.templates
        )
        changed = replace(plan, templates=templates, workers=tuple(slow), prediction=None)
        return with_prediction(changed, bound_of(changed) if changed.is_placed else 0.0)

    def _sum_s(self, layers: tuple[int, int]) -> float:
        """The sum of a stage of any plan: as much of all as it has of the layers."""
        share = sum(self.sums_s) / len(self.profile.layers)
        same = len(self.sums_s) == len(self.profile.layers)
        return sum(self.sums_s[slice(*layers)]) if same else share * (layers[1] - layers[0])


def bound_of_run(run: MeasuredPipeline) -> BubbleBound:
    """What the orders of a run must take, and what would help.

    Raises:
        InvalidInputError: the orders are not whole, or deadlock.
    """
    own, bare = run.planned(), run.planned(with_delays=False)
    modelled_s = own.predicted.iteration_time_s
    tried = [
        BubbleChange(kind, what, time_s, modelled_s - time_s, assumes)
        for kind, what, time_s, assumes in _tried(run, own)
    ]
    best: dict[str, BubbleChange] = {}
    for change in sorted(tried, key=lambda one: -one.saved_s):
        if change.saved_s > LEAST * modelled_s:
            best.setdefault(change.kind, change)
    return BubbleBound(
        schedule=schedule_of(run.orders, run.placement, run.microbatches),
        modelled_s=modelled_s,
        dependency_s=bare.predicted.iteration_time_s,
        dependency_bubble_ratio=bare.predicted.bubble_ratio,
        lower_bound_s=bare.predicted.lower_bound_s,
        even_ratio=(len(run.placement) - 1) / (run.chunks * run.microbatches),
        changes=tuple(list(best.values())[:TOLD]),
        tried=len(tried),
    )


Tried = tuple[ChangeKind, str, float, str]  # kind, words, iteration time and assumption


def _tried(run: MeasuredPipeline, own: Plan) -> Iterator[Tried]:
    """All changes that apply, each with what an iteration would take."""
    found = explain(own, HEURISTIC)
    if found.what_if.saved_s > 0:
        yield "schedule", "run the same operations in a better order", found.what_if.iteration_time_s, ""
    for effect in (one for one in found.what_if.effects if one.change.kind in KINDS):
        yield KINDS[effect.change.kind], _words(effect.change), effect.same_orders_s, ""
    yield from _schedules(run)
    yield from _more_microbatches(run)
    stages = run.profile.layers
    if len({layer.costs for layer in stages}) > 1:
        even = replace(run.profile, layers=tuple(Layer((_mean(stages),)) for _ in stages))
        time_s = run.planned(profile=even).predicted.iteration_time_s
        yield "cut", "cut the model so that all stages take equally long", time_s, EVENLY
    if any(run.sums_s):
        hidden = replace(run, sums_s=[0.0] * len(run.sums_s))
        time_s = hidden.planned().predicted.iteration_time_s
        yield "sum", "hide the sums of gradients behind computing", time_s, "they take nothing from computing"


def _words(change: Change) -> str:
    """A change as something to be done."""
    match change.kind:
        case "link":
            return f"make messages of {change.where} twice as fast"
        case "slowdown":
            return f"bring {change.where} to the pace of the others"
        case "allreduce":
            return "make the sums of gradients twice as fast"
        case _:
            return "make the optimizer's step twice as fast"


def _schedules(run: MeasuredPipeline) -> Iterator[Tried]:
    """Other schedules of the same stages; with virtual stages, of each stage in two halves."""
    assumes = HALVES if run.is_fused else ""
    if run.chunks > 1:
        if run.laid_out:
            words = "take the best order that is found for these virtual stages, with"
            yield from _scheduled(run, run.profile, run.shape(), "1f1b", f"{words} whole backward passes", "")
            yield from _scheduled(run, run.profile, run.shape(), "zero-bubble", f"{words} I and W apart", assumes)
        return
    named: tuple[Schedule, ...] = get_args(Schedule)
    for schedule in named:
        yield from _scheduled(
            run, run.profile, run.shape(), schedule, f"schedule by {schedule}", assumes if "zero" in schedule else ""
        )
    halved = [_scaled(layer, 0.5, 0.5) for layer in run.profile.layers]
    halves = replace(run.profile, layers=tuple(half for layer in halved for half in (layer, layer)))
    even, words = "each stage's layers halve evenly", "two virtual stages a worker"
    loop, v = (replace(run.shape(), placement=placement, chunks=2) for placement in TWO_STAGES)
    yield from _scheduled(run, halves, loop, "1f1b", f"schedule by interleaved 1F1B, {words}", even)
    told = f"{even}; {assumes}" if assumes else even
    yield from _scheduled(run, halves, v, "zero-bubble", f"schedule by a V of zero-bubble, {words}", told)


def _scheduled(
    run: MeasuredPipeline, profile: Profile, shape: Shape, schedule: Schedule, words: str, assumes: str
) -> Iterator[Tried]:
    if 3 * len(profile.layers) * shape.microbatches * shape.dp > MOST_OPERATIONS:
        return
    try:
        plan = run.priced(plan_pipeline(profile, shape, schedule, HEURISTIC))
    except RtkError:  # such as a placement that is none of so few workers
        return
    yield "schedule", words, plan.predicted.iteration_time_s, assumes


def _more_microbatches(run: MeasuredPipeline) -> Iterator[Tried]:
    """Twice as many of half the size, by the schedule that this one is nearest to."""
    schedule: Schedule = "1f1b" if run.is_fused else "zero-bubble"
    half = replace(run.profile, layers=tuple(_scaled(layer, 0.5) for layer in run.profile.layers))
    shape = replace(run.shape(), microbatches=2 * run.microbatches)
    words = f"take {2 * run.microbatches} micro-batches of half the size"
    for _, _, time_s, _ in _scheduled(run, half, shape, schedule, "", "") if run.laid_out else ():
        assumes = "half a micro-batch takes half the time: smaller ones use a GPU less well"
        yield "micro-batches", words, time_s, assumes


def _scaled(layer: Layer, factor: float, of_step: float = 1.0) -> Layer:
    """A layer whose passes, and whose step, take so many times as long."""
    (cost,) = layer.costs
    forward_s, input_s, weight_s = (getattr(cost, name) * factor for name in PASSES.values())
    return replace(layer, costs=(LayerCost(forward_s, input_s, weight_s, cost.optimizer_s * of_step),))


def _mean(layers: Sequence[Layer]) -> LayerCost:
    costs = [layer.costs[0] for layer in layers]
    forward_s, input_s, weight_s, step_s = (
        sum(getattr(cost, name) for cost in costs) / len(costs) for name in TIMES.values()
    )
    return LayerCost(forward_s, input_s, weight_s, step_s)
