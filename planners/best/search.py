"""Which shape is the fastest: a branch-and-bound search over all shapes of a job on a cluster, best first.

A shape is a tensor-parallel degree, stages, pipelines, a micro-batch size and whether blocks are computed again; within
it the fastest schedule and placement count. Every shape waits in a queue by what is proven that it takes at least:
first as it is, then in each of its ways (schedule, placement, order of GPUs in a node), then cut (`bounds.py`), then by
what is proven of all orders of its operations (`scheduling/lower_bound.py`, `placement/bounds.py`), and at last as
planned, by which time it is no bound any more but what the plan takes. What comes out of the queue planned is faster
than all that is left in it, so shapes come in their true order, and most are never planned.

That is A* (Hart, Nilsson and Raphael, 1968). Full enumeration of the same plans finds nothing faster; a test compares.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from ... import __version__
from ...schemas.errors import InfeasibleError, NoRoomError
from ...schemas.network import PipelineSeats, seated_in
from ...schemas.orders import LeanSchedule
from ...schemas.placement import links_crossed
from ...schemas.plan import Pipeline, Plan, Planner, Stage, Template, Worker
from ...schemas.profile import Connection, Network, Profile, SideBySide
from ...schemas.quantities import print_bytes, print_change
from ...schemas.sharded import OptimizerShare
from ...schemas.text import counted
from ..gpu_memory import GpuMemory, most_between
from ..pipeline import plan_pipeline, scheduled
from ..placement.bounds import lower_bound as placed_lower_bound
from ..placement.bounds import with_any_split
from ..placement.pipelines import with_placed_pipelines
from ..placement.problem import placed_problem
from ..scheduling.evaluate import evaluate
from ..scheduling.forms import many_problems
from ..scheduling.lower_bound import lower_bound
from ..scheduling.problem import home_problem
from ..scheduling.solve import Effort
from ..shape import PlacementName, Shape, template_of, with_limits_and_delays, with_overlap
from .bounds import SLACK, FormTotals, least_of_cut
from .forms import CostedForm

# Of plans with several stages a worker, or with pairs: published orders, and rules for a fifth of a second.
EFFORT = Effort("rules")


class SearchStep(IntEnum):
    """How far something in the queue is; of equal bounds the furthest comes first."""

    PLANNED, PROVEN, CUT, WAY, WHOLE = range(5)


class ShapeWay(NamedTuple):
    """In what order a shape's operations run, how many stages its workers hold, and whose GPUs sit in a node.

    With `overlap` workers may run a forward and a full backward side by side.
    """

    schedule: LeanSchedule = "1f1b"
    placement: PlacementName = "plain"
    chunks: int = 1
    side_by_side: SideBySide = "stages"
    overlap: bool = False

    @property
    def is_in_order(self) -> bool:
        """Whether its order is that of 1F1B, which is known before anything is planned."""
        return self.schedule == "1f1b" and self.placement == "plain" and not self.overlap

    def __str__(self) -> str:
        held = "" if self.placement == "plain" else f", {self.placement} of {self.chunks}"
        return f"{self.schedule}{held}{', pairs' if self.overlap else ''}"


@dataclass(frozen=True)
class BestQuestion:
    """What is searched.

    Attributes:
        forms: micro-batch sizes and recomputation, on these machines.
        nodes: of the cluster.
        gpus_per_node: of each.
        batch: samples of an iteration.
        ways: schedules and placements.
        degrees: tensor-parallel degrees that are allowed; None: all that profiles have and nodes can hold.
        shards: whether the optimizer's state may be sharded over the pipelines.
        holders: of each part of it: 1, as in ZeRO, or 2, as in `rtk run`, so that one may be lost.
    """

    forms: Sequence[CostedForm]
    nodes: int
    gpus_per_node: int
    batch: int
    ways: Sequence[ShapeWay] = (ShapeWay(), ShapeWay("zero-bubble"))
    degrees: Sequence[int] | None = None
    shards: bool = True
    holders: int = 1

    @property
    def gpus(self) -> int:
        """How many there are."""
        return self.nodes * self.gpus_per_node

    @property
    def has_orders(self) -> bool:
        """Whether several orders of the GPUs in a node are tried."""
        return len({way.side_by_side for way in self.ways}) > 1


@dataclass(frozen=True)
class JobShape:
    """A shape of the job.

    Attributes:
        form: micro-batch size and recomputation.
        tensor_parallel: GPUs of a worker.
        pp: workers of a pipeline.
        dp: pipelines.
        microbatches: of each.
        shards: pipelines that share the optimizer's state; 1: none does.
        holders: of each part of the state.
    """

    form: CostedForm
    tensor_parallel: int
    pp: int
    dp: int
    microbatches: int
    shards: int
    holders: int = 1

    @property
    def share(self) -> OptimizerShare | None:
        """What a worker has of the optimizer's state where each part has two holders; None: one, or all have all."""
        return OptimizerShare(self.shards) if self.shards > 1 and self.holders > 1 else None

    @property
    def profile_shards(self) -> int:
        """By what the profile divides a step: where there is a share, stages are cut with it instead."""
        return self.shards if self.share is None else 1

    @property
    def stepped_shards(self) -> float:
        """By what a worker's step is shorter than of the whole state."""
        return self.shards if self.share is None else 1 / self.share.of_whole

    @property
    def held_shards(self) -> float:
        """By what it holds less than the whole state, also once as many peers are lost as may be."""
        return self.shards if self.share is None else 1 / self.share.after_losses.of_whole

    @property
    def gpus(self) -> int:
        """How many it uses."""
        return self.tensor_parallel * self.pp * self.dp

    def asked(self, way: ShapeWay, limits_bytes: Sequence[float] | None = None) -> Shape:
        """The same as planners are asked for it, with what workers have for activations."""
        degree = self.tensor_parallel
        return Shape(
            self.pp,
            self.dp,
            self.microbatches,
            limits_bytes,
            None,
            degree,
            way.placement,
            way.chunks,
            way.overlap or None,
            self.share,
        )

    def seats(self, network: Network, side_by_side: SideBySide) -> tuple[Connection, tuple[bool, ...]]:
        """What a ring of its peers goes over, and which hops leave a node, with its GPUs seated in this order."""
        seated, where = seated_in(network, side_by_side), PipelineSeats(self.pp, self.dp, self.tensor_parallel)
        hops = (where.crosses(seated, i, (i + 1) % self.pp) for i in range(self.pp))
        return where.rings(seated, 0).path(self.dp), tuple(hops)

    def __str__(self) -> str:
        again = ", blocks computed again" if self.form.recomputes else ""
        size = f"micro-batches of {self.form.microbatch_size}"
        return f"TP {self.tensor_parallel} x PP {self.pp} x DP {self.dp}, {size}{again}"


class ShapeTime(NamedTuple):
    """Where an iteration's time goes, in s: as the worker that is busiest to the end has it.

    Attributes:
        work: what workers compute on average.
        uneven: what this one has to compute beyond that.
        pipeline: bubbles and messages.
        sums: of its gradients.
        step: of its optimizer.
    """

    work: float
    uneven: float
    pipeline: float
    sums: float
    step: float


WORDS = {"work": "work", "uneven": "unequal stages", "pipeline": "bubbles", "sums": "gradients' sums", "step": "step"}


@dataclass(frozen=True)
class PricedShape:
    """A shape, planned.

    Attributes:
        shape: which.
        way: its schedule and placement.
        iteration_time_s: of its plan.
        parts: where that goes.
        memory: of the fullest GPU.
    """

    shape: JobShape
    way: ShapeWay
    iteration_time_s: float
    parts: ShapeTime
    memory: GpuMemory

    def samples_per_s(self, batch: int) -> float:
        """How many samples are trained in a second."""
        return batch / self.iteration_time_s if self.iteration_time_s else float("inf")

    def plan(self) -> Plan:
        """The whole plan, of all pipelines, checked."""
        shape, profile = self.shape, self.shape.form.trained(self.shape.profile_shards, self.way.side_by_side)
        limits_bytes = shape.form.limits_bytes(template_of(profile, shape.asked(self.way)), shape.held_shards)
        return plan_pipeline(profile, shape.asked(self.way, limits_bytes), self.way.schedule, EFFORT)

    def loses_by(self, best: "PricedShape") -> str:
        """What makes it slower than the best one, in words; what it is better at stands there as well."""
        more_s = {name: own - other for name, own, other in zip(WORDS, self.parts, best.parts, strict=True)}
        whole_s = best.iteration_time_s or 1.0
        dearest = sorted(more_s, key=lambda name: -more_s[name])
        shown = [name for name in dearest if abs(more_s[name]) >= 0.005 * whole_s]
        return ", ".join(f"{WORDS[name]} {print_change(more_s[name] / whole_s)}" for name in shown)


# In the queue: a bound in s, how far it is, the number of the shape, which way, and the plan if there is one.
Waiting = tuple[float, SearchStep, int, int, Any]


class ShapeSearch:
    """One search; `ranked` gives shapes from the fastest on, as far as somebody asks.

    Attributes:
        question: what is searched.
        shapes: all of them.
        planned: the plans that were made, in the order in which they were.
        too_large: how many shapes fit no GPU, by proof.
        least_needed: the least that any of these needs of a GPU, in bytes, and which; None: there are none.
    """

    def __init__(self, question: BestQuestion) -> None:
        self.question = question
        self.shapes = list(_shapes_of(question))
        self.planned: list[PricedShape] = []
        self.too_large = 0
        self.least_needed: tuple[float, JobShape] | None = None
        self._open = [0] * len(self.shapes)  # ways that may still fit
        self._totals: dict[tuple[int, int], FormTotals] = {}
        self._profiles: dict[tuple[int, int, SideBySide], Profile] = {}
        self._templates: dict[tuple[object, ...], Template | None] = {}
        self._done: set[int] = set()

    def ranked(self) -> Iterator[PricedShape]:
        """Shapes with their best plan, from the fastest on."""
        queue: list[Waiting] = []
        for number, shape in enumerate(self.shapes):
            bound_s = self._bound_s(number, shape)
            if bound_s is not None:
                queue.append((bound_s, SearchStep.WHOLE, number, 0, None))
        heapify(queue)
        with many_problems():
            yield from self._out_of(queue)

    def _out_of(self, queue: list[Waiting]) -> Iterator[PricedShape]:
        while queue:
            bound_s, step, number, which, found = heappop(queue)
            if number in self._done:
                continue
            if step == SearchStep.PLANNED:
                self._done.add(number)
                yield found
            elif step == SearchStep.WHOLE:
                shape = self.shapes[number]
                ways = self._ways(shape)
                self._open[number] = len(ways)
                for own in ways:
                    heappush(queue, (self._way_s(shape, self.question.ways[own]), SearchStep.WAY, number, own, None))
            else:
                further = self._further(step, number, which)
                if further is None:  # one of the shape's ways does not fit
                    self._open[number] -= 1
                    self.too_large += self._open[number] == 0
                else:
                    value_s, step, found = further
                    heappush(queue, (max(bound_s, value_s), step, number, which, found))

    def _further(
        self, step: SearchStep, number: int, which: int
    ) -> tuple[float, SearchStep, PricedShape | None] | None:
        """One way of a shape, a step on: what is proven of it, or what it takes; None where it does not fit."""
        shape, way = self.shapes[number], self.question.ways[which]
        try:
            template = self._template(number, way)
            if template is None:
                return None
            if step == SearchStep.WAY:
                least_s = least_of_cut(template, shape.microbatches, in_order=way.is_in_order)
                return least_s, SearchStep.PROVEN if way.is_in_order else SearchStep.CUT, None
            if step == SearchStep.CUT:
                return _proven_s(template, shape.microbatches, way), SearchStep.PROVEN, None
        except InfeasibleError:
            return None
        priced = self._priced(number, way)
        if priced is None:
            return None
        self.planned.append(priced)
        return priced.iteration_time_s, SearchStep.PLANNED, priced

    @property
    def ruled_out(self) -> dict[str, int]:
        """How many shapes were ruled out, by reason; and how many were planned."""
        planned = len({id(one.shape) for one in self.planned})
        slower = len(self.shapes) - planned - self.too_large
        return {"shapes": len(self.shapes), "memory": self.too_large, "bound": slower, "planned": planned}

    def _bound_s(self, number: int, shape: JobShape) -> float | None:
        """A bound on its time, in s; None where it cannot fit."""
        key = id(shape.form), shape.tensor_parallel
        totals = self._totals.get(key) or self._totals.setdefault(key, FormTotals(shape.form, shape.tensor_parallel))
        memory_bytes = shape.form.profile.device.memory_bytes
        least_bytes = totals.least_bytes(shape.pp, shape.held_shards)
        if memory_bytes is not None and least_bytes > memory_bytes:
            self._need(shape, least_bytes)
            self.too_large += 1
            return None
        kinds = {(way.side_by_side, way.overlap): way for way in self.question.ways}
        return min(self._way_s(shape, way) for way in kinds.values())

    def _way_s(self, shape: JobShape, way: ShapeWay) -> float:
        """A bound on its time in one way, in s, without a cut."""
        totals = self._totals[id(shape.form), shape.tensor_parallel]
        network = seated_in(shape.form.profile.network, way.side_by_side)
        ring = PipelineSeats(shape.pp, shape.dp, shape.tensor_parallel).rings(network, 0)
        sum_s = ring.ring_s(totals.summed_bytes / shape.tensor_parallel, shape.dp)
        overlap = (shape.form.profile.overlap or 1.0) if way.overlap else 1.0
        return totals.least_s(shape.pp, shape.microbatches, sum_s, (shape.stepped_shards, shape.held_shards), overlap)

    def _template(self, number: int, way: ShapeWay) -> Template | None:
        """The shape, cut, with what each worker has for activations; None where a worker does not fit."""
        key = number, *way[1:]
        if key not in self._templates:
            try:
                self._templates[key] = self._cut(self.shapes[number], way)
            except InfeasibleError:
                self._templates[key] = None
        return self._templates[key]

    def _cut(self, shape: JobShape, way: ShapeWay) -> Template:
        """The same; raises InfeasibleError where a worker does not fit."""
        key = id(shape.form), shape.profile_shards, way.side_by_side
        profile = self._profiles.get(key) or self._profiles.setdefault(
            key, shape.form.trained(shape.profile_shards, way.side_by_side)
        )
        template = template_of(profile, shape.asked(way))
        try:
            limits_bytes = shape.form.limits_bytes(template, shape.held_shards)
        except NoRoomError:
            # What its fullest GPU would hold, with one micro-batch under way.
            columns = (shape.form.with_one(template, column, shape.held_shards) for column in template.columns)
            self._need(shape, max(one.total_bytes for one in columns))
            raise
        delays_s = {link: one.delay_s for link, one in zip(links_crossed(template), template.links, strict=True)}
        return with_overlap(with_limits_and_delays(template, limits_bytes, delays_s), profile, shape.asked(way))

    def _ways(self, shape: JobShape) -> list[int]:
        """Which ways there are for it, of those that differ only in seats that lie alike the first.

        A pipeline of one stage has one order, and there must be layers for chunks, and a number for pairs.
        """
        profile, found = shape.form.profile, dict[tuple[object, ...], int]()
        orders = {way.side_by_side: shape.seats(profile.network, way.side_by_side) for way in self.question.ways}
        for which, way in enumerate(self.question.ways):
            if shape.pp * way.chunks > len(profile.layers) or (way.overlap and profile.overlap is None):
                continue
            if shape.pp > 1:
                found.setdefault((*way[:3], way.overlap, orders[way.side_by_side]), which)
            elif way.chunks == 1:
                found.setdefault((way.overlap,), which)
        return list(found.values())

    def _priced(self, number: int, way: ShapeWay) -> PricedShape | None:
        """The shape planned in one way, its pipelines all alike, so one of them; None where it does not fit."""
        shape, template = self.shapes[number], self._template(number, way)
        if template is None:
            return None
        try:
            plan, time_s, peaks_bytes = _planned(template, shape.microbatches, way)
        except InfeasibleError:
            return None
        held = zip(plan.workers, template.columns, peaks_bytes, strict=True)
        memory = max(
            (
                shape.form.of_column(template, column, shape.held_shards, peak_bytes, most_between(worker, column))
                for worker, column, peak_bytes in held
            ),
            key=lambda one: one.total_bytes,
        )
        return PricedShape(shape, way, time_s, _parts(plan, way, time_s), memory)

    def _need(self, shape: JobShape, needed_bytes: float) -> None:
        if self.least_needed is None or needed_bytes < self.least_needed[0]:
            self.least_needed = needed_bytes, shape


def nothing_fits(search: ShapeSearch) -> InfeasibleError:
    """Why no shape fits, by how much, and how many nodes would do."""
    question = search.question
    assert search.least_needed is not None
    needed_bytes, shape = search.least_needed
    memory_bytes = shape.form.profile.device.memory_bytes or 0.0
    room = _nodes_that_fit(question)
    ways_out = [f"GPUs of {print_bytes(needed_bytes)}"]
    if room is not None:
        ways_out.insert(0, f"{room} nodes, which would do")
    if not any(form.recomputes for form in question.forms):
        ways_out.append("one made with --checkpointing, which keeps less")
    return InfeasibleError(
        f"none of {counted(len(search.shapes), 'shape')} fits the memory: {shape} needs the least, at least "
        f"{print_bytes(needed_bytes)} of each GPU, which has {print_bytes(memory_bytes)}",
        where="--cluster",
        fix=f"take {', or '.join(ways_out)}",
    )


MOST_TIMES = 64  # as many nodes as there are, that are tried for what would fit


def _nodes_that_fit(question: BestQuestion) -> int | None:
    """With how many times the nodes, by doubling, a shape fits; None: with no number that was tried."""
    times = 2
    while times <= MOST_TIMES:
        larger = replace(question, nodes=times * question.nodes)
        if next(ShapeSearch(larger).ranked(), None) is not None:
            return larger.nodes
        times *= 2
    return None


def _shapes_of(question: BestQuestion) -> Iterator[JobShape]:
    """All shapes: a tensor-parallel group within a node, pipelines with equally many whole micro-batches."""
    for form in question.forms:
        if question.batch % form.microbatch_size:
            continue
        total = question.batch // form.microbatch_size
        divisors = [number for number in range(1, min(total, question.gpus) + 1) if total % number == 0]
        for degree in form.profile.degrees:
            if question.gpus_per_node % degree or (question.degrees is not None and degree not in question.degrees):
                continue
            for pp in range(1, min(len(form.profile.layers), question.gpus // degree) + 1):
                for dp in divisors:
                    if degree * pp * dp <= question.gpus:
                        shards = dp if question.shards else 1
                        yield JobShape(form, degree, pp, dp, total // dp, shards, question.holders)


def _unordered(template: Template, microbatches: int) -> Plan:
    """One of many pipelines alike, without orders."""
    return Plan(
        planner=Planner("pipeline", __version__, {}),
        inputs={},
        templates=(template,),
        pipelines=(Pipeline(template.name, microbatches),),
        optimizer="synchronous",
        workers=tuple(Worker(0, column, "") for column in range(len(template.columns))),
    )


def _proven_s(template: Template, microbatches: int, way: ShapeWay) -> float:
    """What no orders of a pipeline take less than, in s; raises InfeasibleError where memory admits none."""
    one, is_split = _unordered(template, microbatches), way.schedule == "zero-bubble"
    if way.placement == "plain" and not way.overlap:
        return SLACK * lower_bound(home_problem(one, split=is_split)).value_s
    problem = placed_problem(one, split=is_split)
    return SLACK * placed_lower_bound(with_any_split(problem) if way.overlap and is_split else problem).value_s


def _planned(template: Template, microbatches: int, way: ShapeWay) -> tuple[Plan, float, Sequence[float]]:
    """One of many pipelines alike: its plan, iteration time in s, and the most activation bytes of each worker."""
    one = _unordered(template, microbatches)
    if way.placement == "plain" and not way.overlap:
        plan = scheduled(one, way.schedule)
        found = evaluate(plan)
        return plan, found.makespan_s, found.peak_memory_bytes
    plan = with_placed_pipelines(one, split=way.schedule == "zero-bubble", effort=EFFORT)
    return plan, plan.predicted.iteration_time_s, plan.predicted.peak_memory_bytes


def _parts(plan: Plan, way: ShapeWay, time_s: float) -> ShapeTime:
    """Where the time of a pipeline's plan goes."""
    (template,) = plan.templates
    stages = template.stages
    if way.overlap:
        works_s = [_busy_s(template, worker) for worker in plan.workers]
    else:
        works_s = [
            sum(_work_s(stages[v], way) for v in held) * plan.pipelines[0].microbatches for held in template.columns
        ]
    sums_s = [sum(stages[v].allreduce_s for v in held) for held in template.columns]
    steps_s = [sum(stages[v].optimizer_s for v in held) for held in template.columns]
    whole_s = [sum(times) for times in zip(works_s, sums_s, steps_s, strict=True)]
    last = max(range(len(whole_s)), key=whole_s.__getitem__)
    mean_s = sum(works_s) / len(works_s)
    return ShapeTime(mean_s, works_s[last] - mean_s, time_s - whole_s[last], sums_s[last], steps_s[last])


def _work_s(stage: Stage, way: ShapeWay) -> float:
    """What a stage takes for a micro-batch, none of it side by side."""
    if way.schedule == "zero-bubble":
        return stage.forward_s + stage.backward_input_s + stage.backward_weight_s
    return stage.forward_s + stage.duration_s("B")


def _busy_s(template: Template, worker: Worker) -> float:
    """What a worker's operations take it by its order, those side by side together."""
    operations = worker.operations()
    places = [worker.stage if one.stage is None else one.stage for one in operations]
    alone_s = [template.stages[v].duration_s(one.kind) for v, one in zip(places, operations, strict=True)]
    spared_s = (alone_s[at] + alone_s[at + 1] - template.pair_s(places[at], places[at + 1]) for at in worker.pairs())
    return sum(alone_s) - sum(spared_s)
