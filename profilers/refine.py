"""A Profile corrected by measured Timelines: what stages took says how long their layers take.

A stage's time is the sum of its layers'. So each layer's cost is scaled by what its stage took, over what the profile
says it takes. Several timelines with different cuts give finer factors: a layer's is the product of one for each
stage that it was measured in, such that all the stages' sums agree with the measurements; of all profiles whose sums
do, this is the one closest to the profile before (by the Kullback-Leibler divergence). It is found by multiplicative
updates, all stages at once (SMART: Byrne, IEEE Trans. Image Processing 2 (1993) 96). One timeline takes one update.
Where timelines contradict each other the sums lie between them.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..schemas.documents import digest, read_document
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM, source_of
from ..schemas.orders import check_order_text
from ..schemas.plan import Layers, Plan, Stage, Worker
from ..schemas.profile import (
    ALL_PASSES,
    FEWEST_FOR_A_SPREAD,
    PASSES,
    TIMES,
    BoundaryCost,
    Device,
    Layer,
    LayerCost,
    Profile,
    Spread,
    half_width,
    told_overlap,
)
from ..schemas.timeline import Span, Timeline
from .annotations import read_annotations
from .failslow.calls.formats import beginning_of

# What a measured Timeline says of each stage: how long its operations take, and which workers are slow.


Operation: TypeAlias = Literal["F", "I", "W", "B", "step"]

SLOW = 1.1  # times what the others of a stage take
DIGITS = "0123456789"


@dataclass(frozen=True, slots=True)
class WorkerHolding:
    """What a worker of a timeline held.

    Attributes:
        layers: [first, stop).
        tensor_parallel: the degree at which it held them.
        slowdown: how many times as long as the profile says its plan took it to need.
        step_share: of a step of its worker, which is one for all that it holds.
    """

    layers: Layers
    tensor_parallel: int = 1
    slowdown: float = 1.0
    step_share: float = 1.0


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A measured timeline, what it is called in messages, and what its workers held.

    Attributes:
        seats: by worker `k/i`; where that holds several virtual stages, each of them, by `k/i:stage`.
        has_pairs: whether its workers ran forwards and backwards side by side.
    """

    name: str
    timeline: Timeline
    seats: Mapping[str, WorkerHolding]
    has_pairs: bool = False

    def spans(self) -> Iterator[tuple[int, str, Span]]:
        """The timeline's spans, each with its place and its seat, as of a worker that holds only that.

        A step is one of each seat of its worker. Passes that ran side by side say nothing of each, and are left out.
        """
        beside = {place for pair in self.pairs() for place in pair}
        held: dict[str, list[str]] = defaultdict(list)
        for seat in self.seats:
            held[seat.partition(":")[0]].append(seat)
        for place, span in enumerate(self.timeline.spans):
            op = span.op.lstrip(DIGITS)
            if place in beside:
                continue
            if op != span.op:
                yield place, seat_of(span), replace(span, op=op)
            else:
                yield from ((place, seat, span) for seat in held.get(span.worker, [span.worker]))

    def pairs(self) -> Iterator[tuple[int, int]]:
        """The places of the spans of an F and a B that a worker ran side by side: both began at the same moment."""
        begun: dict[tuple[str, int, float], int] = {}
        for place, span in enumerate(self.timeline.spans if self.has_pairs else ()):
            if span.op.lstrip(DIGITS)[:1] in ("F", "B") and span.end_s > span.start_s:
                other = begun.setdefault((span.worker, span.iteration, span.start_s), place)
                if other != place:
                    yield other, place


def seat_of(span: Span) -> str:
    """By which a run knows whose operation a span is: its worker, and the virtual stage where it names one."""
    stage = span.op.removesuffix(span.op.lstrip(DIGITS))
    return f"{span.worker}:{stage}" if stage else span.worker


@dataclass(frozen=True, slots=True)
class OperationReading:
    """What an operation of some layers took in a run.

    Attributes:
        run: the run's place among the runs.
        layers: [first, stop).
        tensor_parallel: the degree.
        operation: F, I, W, B or step.
        measured_s: the median over workers of the median over micro-batches and iterations.
        spread: half the width of the middle half of a worker's readings, over their median; the median over workers;
            NaN where all have too few readings to say.
        before_s: what the profile says.
        after_s: what the refined profile says.
    """

    run: int
    layers: Layers
    tensor_parallel: int
    operation: Operation
    measured_s: float
    spread: float
    before_s: float = 0.0
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker, or seat of one, that took `ratio` times as long as the others of its stage; it is not counted."""

    run: int
    worker: str
    ratio: float


def readings_of(run: MeasuredRun, number: int, layers_in_all: int) -> tuple[list[OperationReading], list[Straggler]]:
    """What a run says of each stage, and who was slow in it.

    Each worker's first iteration warms up and does not count, where there are others. A worker that takes more than
    SLOW times as long as the median of the other holders of its layers does not count either. A B is not looked at
    where there are I and W.

    Args:
        run: the run.
        number: its place among the runs.
        layers_in_all: of the model.

    Raises:
        InvalidInputError: the timeline is simulated, paced or without operations, or the seats are not its workers' or
            not the model's.
    """
    _check(run, layers_in_all)
    return readings_from(_times_of_workers(run), run.seats, number)


def readings_from(
    times_of_workers: Mapping[str, Mapping[Operation, Sequence[float]]], seats: Mapping[str, WorkerHolding], number: int
) -> tuple[list[OperationReading], list[Straggler]]:
    """The same, of what operations of workers took, in s; all are counted.

    Args:
        times_of_workers: by worker or seat, and operation.
        seats: what each of them held.
        number: the run's place among the runs.
    """
    stages: dict[tuple[Layers, int], dict[str, Mapping[Operation, Sequence[float]]]] = defaultdict(dict)
    for worker, times in times_of_workers.items():
        seat = seats[worker]
        stages[seat.layers, seat.tensor_parallel][worker] = times
    readings, slow = [], []
    for (layers, degree), workers in sorted(stages.items()):
        # How many times as long as the others of its stage each worker takes, for what all of them compute.
        common = set.intersection(*(set(times) for times in workers.values())) - {"step"}
        spent_s = {worker: sum(median(times[kind]) for kind in common) for worker, times in workers.items()}
        if len(workers) == 1 or not min(spent_s.values()):
            ratios = {}
        else:
            usual_s = {worker: median(s for other, s in spent_s.items() if other != worker) for worker in spent_s}
            ratios = {worker: time_s / usual_s[worker] for worker, time_s in spent_s.items()}
        slow += [Straggler(number, worker, ratio) for worker, ratio in ratios.items() if ratio > SLOW]
        counted = [times for worker, times in workers.items() if ratios.get(worker, 1.0) <= SLOW]
        for operation in _operations(counted):
            own = [times[operation] for times in counted if operation in times]
            measured_s = median(median(times_s) for times_s in own)
            enough = [times_s for times_s in own if len(times_s) >= FEWEST_FOR_A_SPREAD]
            spreads = [half_width(times_s) / median(times_s) if median(times_s) else 0.0 for times_s in enough]
            readings.append(
                OperationReading(
                    number, layers, degree, operation, measured_s, median(spreads) if spreads else math.nan
                )
            )
    return readings, slow


def _check(run: MeasuredRun, layers_in_all: int) -> None:
    """Raise InvalidInputError unless the timeline measures something, each worker has one seat for all of the run, and
    seats hold the model's layers."""
    timeline = run.timeline
    if timeline.source != "measured":
        raise InvalidInputError(
            "a simulated timeline repeats what the plan says, and measures nothing",
            where=f"{run.name}, /source",
            fix="give the timeline of a real run: rtk run PLAN --timeline T",
        )
    if timeline.paced:
        raise InvalidInputError(
            "the run was paced: its operations were stretched to what the plan says, and measure nothing",
            where=f"{run.name}, /paced",
            fix="run the plan without --paced",
        )
    settled = {memory.worker for memory in run.timeline.workers}  # those with one stage in all plans of the run
    for index, seat, span in run.spans():
        if seat not in run.seats:
            raise InvalidInputError(
                f"there is no worker {seat} in the plan",
                where=f"{run.name}, /spans/{index}/worker",
                fix="give the plan that was run: --plan",
            )
        if settled and span.worker not in settled:
            raise InvalidInputError(
                f"the layers of worker {span.worker} changed during the run",
                where=f"{run.name}, /spans/{index}/worker",
                fix="give the timeline of a run with one plan",
            )
    stop = max(seat.layers[1] for seat in run.seats.values())
    if stop != layers_in_all:
        raise InvalidInputError(
            f"the plan's stages hold {stop} layers, the profile has {layers_in_all}",
            where=f"the plan of {run.name}",
            fix="give the profile of the model that was run",
        )


def _times_of_workers(run: MeasuredRun) -> dict[str, dict[Operation, list[float]]]:
    """The readings in s of each seat and operation, the first iteration left out where there are others."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for span in run.timeline.spans:
        first[span.worker] = min(span.iteration, first.get(span.worker, span.iteration))
        last[span.worker] = max(span.iteration, last.get(span.worker, span.iteration))
    times: dict[str, dict[Operation, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _, seat, span in run.spans():
        operation = _operation_of(span.op)
        warms_up = span.iteration == first[span.worker] < last[span.worker]
        if operation is not None and not warms_up:
            held = run.seats[seat]
            factor = held.step_share if operation == "step" else 1 / held.slowdown
            times[seat][operation].append((span.end_s - span.start_s) * factor)
    if not any(set(own) - {"step"} for own in times.values()):
        raise InvalidInputError(
            "the timeline has no F, I, W or B", where=f"{run.name}, /spans", fix="give the timeline of a run"
        )
    return times


def _operation_of(op: str) -> Operation | None:
    if op == "step":
        return "step"
    try:
        check_order_text(op)
    except InvalidInputError:
        return None  # an all-reduce
    return op[0]  # type: ignore[return-value]  # an order's token begins with F, I, W or B


def _operations(workers: Iterable[Mapping[Operation, Sequence[float]]]) -> list[Operation]:
    """What counts of what was measured at a stage."""
    kinds = {kind for times in workers for kind in times}
    is_split = {"I", "W"} <= kinds or "B" not in kinds
    counted: tuple[Operation, ...] = ("F", "I", "W", "step") if is_split else ("F", "B", "step")
    return [kind for kind in counted if kind in kinds]


Floats: TypeAlias = NDArray[np.float64]

ROUNDS = 20_000
SETTLED = 1e-13  # the largest change of a factor's logarithm
_PARTS: dict[str, tuple[str, ...]] = {"B": ("I", "W")} | {kind: (kind,) for kind in TIMES}


@dataclass(frozen=True, slots=True)
class Refinement:
    """A refined profile, what it rests on, and who was left out."""

    profile: Profile
    readings: tuple[OperationReading, ...]
    slow: tuple[Straggler, ...]


def refine(profile: Profile, runs: Sequence[MeasuredRun]) -> Refinement:
    """Correct a profile's times by what was measured; its bytes, sizes and network stay as they are.

    * What counts as a stage's time is told in `readings_of`.
    * A B corrects the sum of I and W, which keep their shares.
    * A layer's factor holds for all its tensor-parallel degrees.
    * A boundary (see Profile) is scaled as all stages together.
    * The spread becomes the readings', relative to the stage's time; where there are too few to say (measure.py) it
      stays as it was, relative to the time.
    * Of an operation that takes no time in the profile nothing can be scaled: it stays so.
    * `overlap` becomes what pairs took over what their passes take alone, the median of all, where both were measured.
    * `origin` becomes "measured" once every time in the profile has been corrected; `model["refined"]` says by which
      timelines, and which profile and origin there were before: bytes are still of that origin.

    Args:
        profile: what to correct.
        runs: measured timelines; at least one.

    Raises:
        InvalidInputError: a timeline is simulated, paced or without operations, a worker that nobody knows, or layers
            or degrees that the profile does not have.
    """
    found = [readings_of(run, number, len(profile.layers)) for number, run in enumerate(runs)]
    readings = [replace(reading, before_s=_stage_s(profile, reading)) for own, _ in found for reading in own]
    boundary = _scaled_boundary(profile.inner, readings)
    # What the layers take by themselves: as long as the stage, and the boundaries that it has not.
    apart = [replace(one, measured_s=one.measured_s + _inner_s(boundary, one)) for one in readings if one.before_s > 0]
    factors, is_corrected = _factors(profile, apart)
    # The relative spread of what each operation and layer was measured in, the largest; NaN where nobody says one.
    spreads = np.full((len(TIMES), len(profile.layers)), np.nan)
    for reading in readings:
        for number, kind in enumerate(TIMES):
            if kind in _PARTS[reading.operation]:
                own = spreads[number, slice(*reading.layers)]
                spreads[number, slice(*reading.layers)] = np.fmax(own, reading.spread)
    layers = tuple(
        replace(layer, costs=tuple(_scaled(cost, factors[:, index], spreads[:, index]) for cost in layer.costs))
        for index, layer in enumerate(profile.layers)
    )
    is_all = all(
        is_corrected[number, index] or not any(getattr(cost, name) for cost in layer.costs)
        for number, name in enumerate(TIMES.values())
        for index, layer in enumerate(profile.layers)
    )
    refined = replace(
        profile,
        layers=layers,
        boundary=profile.boundary and boundary.within([cost for layer in layers for cost in layer.costs]),
        overlap=_overlap_of(runs, readings) or profile.overlap,
        origin="measured" if is_all else profile.origin,
        model={
            **profile.model,
            "refined": {
                "profile": digest(profile),
                "origin": profile.origin,
                "timelines": [digest(run.timeline) for run in runs],
            },
        },
    )
    after = tuple(replace(reading, after_s=_stage_s(refined, reading)) for reading in readings)
    return Refinement(refined, after, tuple(slow for _, own in found for slow in own))


def _overlap_of(runs: Sequence[MeasuredRun], readings: Sequence[OperationReading]) -> float | None:
    """What pairs took over their passes one after the other; None where nothing of it was measured."""
    alone_s: dict[tuple[int, Layers, int, str], float] = {
        (one.run, one.layers, one.tensor_parallel, one.operation): one.measured_s for one in readings
    }
    ratios = []
    for number, run in enumerate(runs):
        for pair in run.pairs():
            spans = [run.timeline.spans[place] for place in pair]
            held = [run.seats[seat_of(span)] for span in spans]
            passes_s = [
                alone_s.get((number, one.layers, one.tensor_parallel, span.op.lstrip(DIGITS)[0]), 0.0)
                for one, span in zip(held, spans, strict=True)
            ]
            if all(passes_s):
                ratios.append((spans[0].end_s - spans[0].start_s) / held[0].slowdown / sum(passes_s))
    return told_overlap(median(ratios)) if ratios else None


def contradictions(refinement: Refinement) -> Counter[int]:
    """How many readings of each run the refined profile is more than 1 % away from: runs that contradict each other."""
    return Counter(
        reading.run
        for reading in refinement.readings
        if reading.before_s > 0 and abs(reading.after_s - reading.measured_s) > 0.01 * reading.measured_s
    )


def _stage_s(profile: Profile, reading: OperationReading) -> float:
    """What a stage takes by a profile: its layers' times, less the boundaries between them."""
    first, stop = reading.layers
    costs = (_cost(profile.layers[index], index, reading.tensor_parallel) for index in range(first, stop))
    parts = (_told_s(cost, part, reading.operation) for cost in costs for part in _PARTS[reading.operation])
    return math.fsum(parts) - _inner_s(profile.inner, reading)


def _inner_s(boundary: BoundaryCost, reading: OperationReading) -> float:
    """What the boundaries between a stage's layers take, which its layers' times contain and its own does not."""
    first, stop = reading.layers
    name = ALL_PASSES.get(reading.operation)
    return 0.0 if name is None else (stop - first - 1) * getattr(boundary, name)


def _scaled_boundary(boundary: BoundaryCost, readings: Sequence[OperationReading]) -> BoundaryCost:
    """A boundary whose passes take as many times as long as those of all stages; B keeps its share of I and W."""
    scaled = {}
    for kind, name in PASSES.items():
        own = [one for one in readings if kind in _PARTS[one.operation] and one.before_s > 0]
        told_s = math.fsum(one.before_s for one in own)
        factor = math.fsum(one.measured_s for one in own) / told_s if told_s else 1.0
        scaled[name] = getattr(boundary, name) * factor
    halves_s = boundary.backward_input_s + boundary.backward_weight_s
    factor = (scaled["backward_input_s"] + scaled["backward_weight_s"]) / halves_s if halves_s else 1.0
    return BoundaryCost(**scaled, backward_s=boundary.backward_s * factor)


def _told_s(cost: LayerCost, part: str, operation: Operation) -> float:
    """What a part of an operation takes by a profile: I and W of a full backward pass their shares of that."""
    time_s: float = getattr(cost, TIMES[part])
    halves_s = cost.backward_input_s + cost.backward_weight_s
    has_share = operation == "B" and cost.backward_s is not None and halves_s > 0
    return time_s * (cost.full_s / halves_s) if has_share else time_s


def _cost(layer: Layer, index: int, degree: int) -> LayerCost:
    for cost in layer.costs:
        if cost.tensor_parallel == degree:
            return cost
    raise InvalidInputError(
        f"there is no cost at tensor_parallel {degree}",
        where=f"the profile, /layers/{index}/costs",
        fix="profile that degree",
    )


def _factors(profile: Profile, readings: Sequence[OperationReading]) -> tuple[Floats, NDArray[np.bool_]]:
    """What to multiply each time by, and which were measured; arrays of 4 operations (as in TIMES) by layers."""
    shape = len(TIMES), len(profile.layers)
    if not readings:
        return np.ones(shape), np.zeros(shape, dtype=np.bool_)
    told_s = np.zeros((len(readings), *shape))  # what the profile says of each operation and layer that is summed up
    for place, reading in enumerate(readings):
        for number, kind in enumerate(TIMES):
            if kind in _PARTS[reading.operation]:
                for index in range(*reading.layers):
                    cost = _cost(profile.layers[index], index, reading.tensor_parallel)
                    told_s[place, number, index] = _told_s(cost, kind, reading.operation)
    costs = told_s.reshape(len(readings), -1)
    measured_s = np.array([max(reading.measured_s, 1e-12) for reading in readings])
    holds = costs > 0
    share = 1 / max(int(holds.sum(axis=0).max()), 1)  # so that the updates of one layer do not add up to too much
    logs = np.zeros(costs.shape[1])
    for _ in range(ROUNDS):
        update = share * (np.log(measured_s / (costs @ np.exp(logs))) @ holds)
        logs += update
        if share == 1 or np.abs(update).max() < SETTLED:
            break
    return np.exp(logs).reshape(shape), holds.any(axis=0).reshape(shape)


def _scaled(cost: LayerCost, factors: Floats, spreads: Floats) -> LayerCost:
    """A cost times factors; arrays of 4 operations, as in TIMES."""
    times = {name: getattr(cost, name) * float(factor) for name, factor in zip(TIMES.values(), factors, strict=True)}
    widths = {}
    for name, factor, relative in zip(TIMES.values(), factors, spreads, strict=True):
        if not math.isnan(relative):
            widths[name] = times[name] * float(relative)
        elif cost.spread is not None:
            widths[name] = getattr(cost.spread, name) * float(factor)
    spread = Spread(**widths) if set(TIMES.values()) - {"optimizer_s"} <= set(widths) else None
    halves_s = cost.backward_input_s + cost.backward_weight_s
    full_s = cost.backward_s
    if full_s is not None and halves_s:  # a full pass keeps its share of the two halves
        full_s *= (times["backward_input_s"] + times["backward_weight_s"]) / halves_s
    return replace(cost, **times, spread=spread, backward_s=full_s)


# What workers of given timelines held: by the plans that were run, or by how planners cut stages.


# The layers [first, stop) of each of so many stages, as planners cut a profile.
StageCut = Callable[[Profile, int], Sequence[Layers]]
SNIFFED_BYTES = 256 << 10
TRACES = (".json", ".json.gz")


@dataclass(frozen=True)
class GivenTimeline:
    """A timeline as it was given: its name for messages, what it says, and the traces that it was read from, if any."""

    name: str
    timeline: Timeline
    traces: tuple[Path, ...] = ()


def given_timelines(paths: Sequence[str]) -> Iterator[GivenTimeline]:
    """The timelines: documents, folders of traces, and all single traces as one job, last."""
    traces = []
    for path in paths:
        if path != STANDARD_STREAM and Path(path).is_dir():
            inside = sorted(one for one in Path(path).rglob("*") if one.name.endswith(TRACES))
            if not inside:
                raise InvalidInputError("the folder holds no traces", where=path, fix="give .json or .json.gz files")
            yield GivenTimeline(path, read_annotations(inside), tuple(inside))
            continue
        # Traces begin otherwise than documents.
        head = b"" if path == STANDARD_STREAM else beginning_of(Path(path), SNIFFED_BYTES).lstrip()
        if head.startswith(b"[") or b'"traceEvents"' in head or b'"distributedInfo"' in head:
            traces.append(Path(path))
        else:
            yield GivenTimeline(source_of(path), read_document(path, Timeline))
    if traces:
        yield GivenTimeline(", ".join(map(str, traces)), read_annotations(traces), tuple(traces))


def run_of(given: GivenTimeline, profile: Profile, plans: Sequence[Plan], cut: StageCut) -> MeasuredRun:
    """A timeline with what its workers held: by the plan that it is of, or by how its stages would be cut.

    Raises:
        InvalidInputError: it is of none of the plans, or of no such job.
    """
    plan = _plan_of(given, plans)
    if plan is not None and given.timeline.plan is not None:
        held = {name: own for worker in plan.workers for name, own in _seats_of(plan, worker, profile)}
        return MeasuredRun(given.name, given.timeline, held, plan.has_pairs)
    if given.timeline.is_placed:
        raise InvalidInputError(
            "its workers hold several virtual stages, and only their plan says which layers those are",
            where=f"{given.name}, /spans",
            fix="give the plan that was run: --plan",
        )
    stages = _stages_by_plan(plan, given) if plan else _stages_by_cut(profile, given, cut)
    workers = {span.worker: int(span.worker.partition("/")[2]) for span in given.timeline.spans}
    beyond = max(workers.values(), default=0)
    if beyond >= len(stages):
        raise InvalidInputError(
            f"the timeline has a stage {beyond}, the plan {len(stages)} stages",
            where=given.name,
            fix="give the plan that was run",
        )
    everywhere = {f"0/{index}": held for index, held in enumerate(stages)}
    held = everywhere | {name: stages[stage] for name, stage in workers.items()}
    return MeasuredRun(given.name, given.timeline, held)


def _seats_of(plan: Plan, worker: Worker, profile: Profile) -> Iterator[tuple[str, WorkerHolding]]:
    """What a worker of a plan holds, by the names of a run's seats; its step is shared as the profile says."""
    held, slowdown = dict(zip(plan.seats_of(worker), plan.stages_of(worker), strict=True)), worker.slowdown or 1.0
    steps_s = {number: _step_s(profile, stage) for number, stage in held.items()}
    whole_s = math.fsum(steps_s.values())
    for number, stage in held.items():
        name = f"{worker.name}:{number}" if len(held) > 1 else worker.name
        share = steps_s[number] / whole_s if whole_s else 1 / len(held)
        yield name, WorkerHolding(stage.layers, stage.tensor_parallel, slowdown, share)


def _step_s(profile: Profile, stage: Stage) -> float:
    """What the optimizer's step of a stage's layers takes by a profile, as far as that has these layers."""
    costs = (cost for layer in profile.layers[slice(*stage.layers)] for cost in layer.costs)
    return math.fsum(cost.optimizer_s for cost in costs if cost.tensor_parallel == stage.tensor_parallel)


def _plan_of(given: GivenTimeline, plans: Sequence[Plan]) -> Plan | None:
    """The plan that a timeline is of, by its digest; without one the only plan with as many stages."""
    named = given.timeline.plan
    if not plans:
        return None
    if named is not None:
        found = [plan for plan in plans if digest(plan) == named]
        if not found:
            raise InvalidInputError(
                f"the timeline is of another plan (sha256 {named[:12]}…)",
                where=f"{given.name}, /plan",
                fix="give the plan that was run: --plan",
            )
        return found[0]
    count = _stage_count(given)
    fitting = [plan for plan in plans if len(plan.template_of(0).stages) == count] if len(plans) > 1 else plans
    if len(fitting) != 1:
        raise InvalidInputError(
            f"{len(fitting)} of the plans have the timeline's {count} stages, and it does not say whose it is",
            where=given.name,
            fix="refine by one timeline and its plan after the other",
        )
    return fitting[0]


def _stages_by_plan(plan: Plan, given: GivenTimeline) -> list[WorkerHolding]:
    """The stages of a plan whose pipelines are all alike: a trace does not say which pipeline a rank belongs to."""
    cuts = {
        tuple((stage.layers, stage.tensor_parallel) for stage in plan.template_of(k).stages)
        for k in range(len(plan.pipelines))
    }
    if len(cuts) > 1:
        raise InvalidInputError(
            "the plan's pipelines have unlike stages, and the timeline does not say whose they are",
            where=given.name,
            fix="give a timeline of rtk run",
        )
    return [WorkerHolding(layers, degree) for layers, degree in cuts.pop()]


def _stages_by_cut(profile: Profile, given: GivenTimeline, cut: StageCut) -> list[WorkerHolding]:
    """The stages that `rtk plan` would cut."""
    count = _stage_count(given)
    if count > len(profile.layers):
        raise InvalidInputError(
            f"the timeline has {count} stages, the profile {len(profile.layers)} layers",
            where=given.name,
            fix="give the profile of the model that was run",
        )
    return [WorkerHolding(layers) for layers in cut(replace(profile, device=Device()), count)]


def _stage_count(given: GivenTimeline) -> int:
    """How many stages a timeline has; each must have computed."""
    stages = {int(span.worker.partition("/")[2]) for span in given.timeline.spans}
    missing = set(range(max(stages, default=0) + 1)) - stages
    if missing:
        raise InvalidInputError(
            f"stage {min(missing)} computes nothing",
            where=given.name,
            fix="give traces of all ranks, or the plan that was run (--plan)",
        )
    return len(stages)
