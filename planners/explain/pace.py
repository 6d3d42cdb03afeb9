"""Why a run takes longer than its plan says: its timeline, measured or simulated, held against the plan.

Every worker's operations, every link's messages, the sums of gradients, the optimizer's steps and the pauses between
iterations are compared with the plan. What each of them costs is what the plan's own iteration would take with that
alone as it was measured; what all of them together do not explain is waiting.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from ...schemas.columns import parse_span
from ...schemas.conditions import LinkPlace, under_conditions
from ...schemas.errors import InvalidInputError
from ...schemas.orders import Operation
from ...schemas.pace import PaceCause, PaceReport
from ...schemas.plan import Link, Plan, Worker
from ...schemas.quantities import print_time
from ...schemas.text import listed
from ...schemas.timeline import IterationTime, Span, Timeline, iteration_time_s, iteration_times
from ..scheduling.evaluate import evaluate

TOLD = 0.01  # of the iteration: what costs less is not told
ALIKE = 0.1  # workers of a stage whose slow-downs differ by less are told as one
UNLIKE = 1.03  # what takes this much longer than planned is slower


@dataclass(frozen=True)
class _Run:
    """What was measured of a plan, as far as it is the plan's.

    Attributes:
        iterations: their spans, by worker; without those that connect and warm up, where there are others.
    """

    plan: Plan
    iterations: tuple[Mapping[Worker, tuple[Span, ...]], ...]


def pace_of(plan: Plan, timeline: Timeline) -> PaceReport:
    """How a run of a plan keeps up with it, and why not.

    Args:
        plan: valid; spans of workers that it does not have, or that execute nothing of it, are left out.
        timeline: of the run.

    Raises:
        InvalidInputError: the timeline has no iteration of the plan.
    """
    times = iteration_times(timeline)
    measured_s = iteration_time_s(times)
    run = _run_of(plan, timeline, times)
    if measured_s is None or not run.iterations:
        raise InvalidInputError(
            "the timeline has no operation of the plan", fix="give the timeline of a run of this plan"
        )
    planned_s = evaluate(plan).iteration_time_s
    if measured_s <= planned_s * (1 + TOLD):
        return PaceReport(planned_s, measured_s)
    return PaceReport(planned_s, measured_s, tuple(_causes(run, planned_s, measured_s)))


def _run_of(plan: Plan, timeline: Timeline, times: tuple[IterationTime, ...]) -> _Run:
    counted = {one.iteration for one in times if not one.is_first} or {one.iteration for one in times}
    workers = {worker.name: worker for worker in plan.live_workers()}
    spans: dict[int, dict[Worker, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for span in timeline.spans:
        if span.worker in workers and span.iteration in counted:
            spans[span.iteration][workers[span.worker]].append(span)
    iterations = tuple(
        {worker: tuple(sorted(own, key=lambda one: one.start_s)) for worker, own in by_worker.items()}
        for _, by_worker in sorted(spans.items())
    )
    return _Run(plan, iterations)


def _causes(run: _Run, planned_s: float, measured_s: float) -> Iterator[PaceCause]:
    """What costs more than a little, the costliest first."""
    slow, delays_s = _slowdowns(run), _link_delays(run)
    sums_s, steps_s, pause_s = _sums_s(run), _steps_s(run), _pause_s(run)
    plan = _with_links(run.plan)

    def costs_s(slow: Mapping[str, float], delays_s: Mapping[LinkPlace, float]) -> float:
        return evaluate(under_conditions(plan, slow, delays_s)).iteration_time_s - planned_s

    found = [PaceCause(words, costs_s(own, {})) for words, own in _slow_in_words(run.plan, slow)]
    found += [PaceCause(words, costs_s({}, own)) for words, own in _late_in_words(run.plan, delays_s)]
    found += [
        PaceCause(f"summing gradients takes {print_time(sums_s)} longer", sums_s),
        PaceCause(f"the optimizer takes {print_time(steps_s)} longer", steps_s),
        PaceCause(f"votes and the next data take {print_time(pause_s)} between iterations", pause_s),
    ]
    together_s = costs_s(_own_slowdowns(run.plan, slow), delays_s) + sums_s + steps_s + pause_s
    found.append(PaceCause("workers wait for each other (times vary)", measured_s - planned_s - together_s))
    yield from sorted((one for one in found if one.costs_s > TOLD * planned_s), key=lambda one: -one.costs_s)


# Operations


def _slowdowns(run: _Run) -> dict[Worker, float]:
    """By how much longer each worker's operations take than planned: 1 is as planned."""
    lasts_s: dict[Worker, dict[tuple[str, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for iteration in run.iterations:
        for worker, spans in iteration.items():
            for span, operation in _operations(spans, worker):
                stage = run.plan.virtual_stage(worker, operation)
                lasts_s[worker][operation.kind, stage].append(span.end_s - span.start_s)
    found = {}
    for worker, own in lasts_s.items():
        stages, slowdown = run.plan.template_of(worker.pipeline).stages, worker.slowdown or 1.0
        planned_s = sum(stages[stage].duration_s(kind) * slowdown for kind, stage in own)
        if planned_s:
            found[worker] = sum(map(median, own.values())) / planned_s
    return found


def _operations(spans: tuple[Span, ...], worker: Worker) -> Iterator[tuple[Span, Operation]]:
    for span in spans:
        if span.op not in ("allreduce", "step"):
            yield span, parse_span(span.op, worker.pipeline)[0]


def _own_slowdowns(plan: Plan, slow: Mapping[Worker, float]) -> dict[str, float]:
    """With what the plan itself says of slow workers; nobody is quicker than that."""
    return {worker.name: (worker.slowdown or 1.0) * max(1.0, factor) for worker, factor in slow.items()}


def _slow_in_words(plan: Plan, slow: Mapping[Worker, float]) -> Iterator[tuple[str, dict[str, float]]]:
    """Who is slower than planned: whole stages, or columns, where their workers are alike, else workers alone."""
    stages: dict[int, list[Worker]] = defaultdict(list)
    for worker in slow:
        stages[worker.stage].append(worker)
    if len(stages) > 1 and _are_alike(list(slow.values())):
        stages = {-1: list(slow)}
    for stage, workers in sorted(stages.items()):
        factors = [slow[worker] for worker in workers]
        if len(workers) > 1 and _are_alike(factors):
            place = "column" if plan.is_placed else "stage"
            groups = [("all workers compute" if stage < 0 else f"{place} {stage} computes", workers)]
        else:
            groups = [(f"worker {worker.name} computes", [worker]) for worker in workers]
        for words, group in groups:
            factor = sum(slow[worker] for worker in group) / len(group)
            if factor >= UNLIKE:
                yield f"{words} {factor:.2g} x slower", _own_slowdowns(plan, {one: slow[one] for one in group})


def _are_alike(factors: list[float]) -> bool:
    return max(factors) - min(factors) <= ALIKE * min(factors)


# Messages


def _link_delays(run: _Run) -> dict[LinkPlace, float]:
    """What messages of each pipeline's links take, where somebody waited for them; what is as planned is left out.

    Where stages are placed, links are those of columns side by side (`under_conditions`).
    """
    late_s: dict[LinkPlace, list[float]] = defaultdict(list)
    for iteration in run.iterations:
        done_s: dict[tuple[str, int, int, int], float] = {
            (*operation[:3], run.plan.virtual_stage(worker, operation)): span.end_s
            for worker, spans in iteration.items()
            for span, operation in _operations(spans, worker)
        }
        for worker, spans in iteration.items():
            free_s = -math.inf
            for span, operation in _operations(spans, worker):
                stage = run.plan.virtual_stage(worker, operation)
                sender = stage + (-1 if operation.kind == "F" else 1)
                kinds = {"F": ("F",), "W": ()}.get(operation.kind, ("I", "B"))
                sent_s = [done_s.get((kind, *operation[1:3], sender), math.inf) for kind in kinds]
                if sent_s and free_s <= min(sent_s) < math.inf:
                    column = run.plan.template_of(operation.pipeline).column_of[sender]
                    if abs(column - worker.stage) == 1:
                        late_s[operation.pipeline, min(column, worker.stage)].append(span.start_s - min(sent_s))
                free_s = span.end_s
    lags_s = {place: median(lags_s) for place, lags_s in late_s.items()}
    return {place: lag_s for place, lag_s in lags_s.items() if lag_s > _planned_delay_s(run.plan, place)}


def _with_links(plan: Plan) -> Plan:
    """The plan with a link between any two stages, without delay where it knows of none."""
    templates = tuple(
        one if one.links else replace(one, links=(Link(0.0),) * (len(one.stages) - 1)) for one in plan.templates
    )
    return replace(plan, templates=templates, prediction=None)


def _late_in_words(plan: Plan, delays_s: Mapping[LinkPlace, float]) -> Iterator[tuple[str, dict[LinkPlace, float]]]:
    links: dict[int, dict[LinkPlace, float]] = defaultdict(dict)
    for (pipeline, link), delay_s in delays_s.items():
        links[link][pipeline, link] = delay_s
    for link, own in sorted(links.items()):
        more_s = {place: delay_s - _planned_delay_s(plan, place) for place, delay_s in own.items()}
        most_s = max(more_s.values())
        late = {place: own[place] for place, one in more_s.items() if one >= most_s / 2}
        names = [str(pipeline) for pipeline, _ in sorted(late, key=str)]
        where = "" if len(late) == len(plan.pipelines) else f" of pipeline {listed(names)}"
        mean_s = sum(more_s[place] for place in late) / len(late)
        yield f"link {link}{where} adds {print_time(mean_s)} a message", late


def _planned_delay_s(plan: Plan, place: LinkPlace) -> float:
    pipeline, column = place
    if pipeline is None or not (links := plan.links_of(pipeline)):
        return 0.0
    link = plan.template_of(pipeline).link_between(column, column + 1)
    return 0.0 if link is None else links[link].delay_s


# The end of an iteration


def _sums_s(run: _Run) -> float:
    """How much longer than planned the slowest peers sum, counted from when the last of them begins."""
    most_s = []
    for iteration in run.iterations:
        lasts_s: dict[object, float] = {}
        for worker, spans in iteration.items():
            layers = run.plan.layers_of(worker)
            took_s = sum(span.end_s - span.start_s for span in spans if span.op == "allreduce")
            more_s = took_s - sum(stage.allreduce_s for stage in run.plan.stages_of(worker))
            lasts_s[layers] = min(more_s, lasts_s.get(layers, more_s))
        most_s.append(max(lasts_s.values(), default=0.0))
    return max(0.0, median(most_s))


def _steps_s(run: _Run) -> float:
    """How much longer than planned the longest step takes."""
    most_s = []
    for iteration in run.iterations:
        took_s = [
            (span.end_s - span.start_s, sum(stage.optimizer_s for stage in run.plan.stages_of(worker)))
            for worker, spans in iteration.items()
            for span in spans
            if span.op == "step"
        ]
        if took_s:
            most_s.append(max(one for one, _ in took_s) - max(planned_s for _, planned_s in took_s))
    return max(0.0, median(most_s)) if most_s else 0.0


def _pause_s(run: _Run) -> float:
    """Between the last step of an iteration and the next one's first operation; overlapping ones have none."""
    bounds = [
        (min(spans[0].start_s for spans in one.values()), max(span.end_s for spans in one.values() for span in spans))
        for one in run.iterations
    ]
    pauses_s = [start_s - end_s for (_, end_s), (start_s, _) in pairwise(bounds)]
    return max(0.0, median(pauses_s)) if pauses_s else 0.0
