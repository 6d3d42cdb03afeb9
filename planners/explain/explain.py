"""Why a plan takes as long as it does, and what would help most.

The explanation is inert data; the words are `cli/explain.py`'s. Of pipelines that are alike it tells of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import fsum
from typing import Literal

from ...schemas.orders import print_operation
from ...schemas.placement import placements_of
from ...schemas.plan import Plan, place_of
from ..scheduling.evaluate import ROUNDING as PATH_ROUNDING
from ..scheduling.evaluate import OrderEvaluation, TimedOperation, evaluate
from ..scheduling.lower_bound import lower_bound
from ..scheduling.problem import ROUNDING, codes_of, problem_of
from ..scheduling.solve import Effort
from .binding import BindingBound, binding_bound
from .placed import weigh_placed
from .troubles import Degradations, troubles_of
from .what_if import MOST_SEARCHES, WhatIfReport, changes_of, one_of_each, what_if

# A plan's critical path in parts that a person can follow: who computes what, and which links are waited for.
#
# The path (`OrderEvaluation.critical_path`) has hundreds of operations. Here those that follow each other on one worker
# are one leg, and so are the single ones by which a micro-batch is passed on from stage to stage; rounds of equal legs
# are told once. In a staggered plan it begins with the window of the stage that decides the period.


KINDS = "FIWB"
# Rounds of more legs than this are not looked for.
LONGEST_ROUND = 24


@dataclass(frozen=True, slots=True)
class Leg:
    """Operations of one worker that follow each other, or the passing on of a micro-batch from worker to worker.

    Attributes:
        workers: their names, in the order of the path; one, or all that pass the micro-batch on.
        first, last: the first and the last operation, as their workers' orders name them.
        operations: how many of each kind.
        stages: virtual stage and kind of each, sorted, where their worker holds several; those take unlike times.
        links: those with a delay on the way, `k/i-k/j`; the first may lie before the first operation.
        start_s, end_s: from the end of the leg before it.
        compute_s, delay_s: what of it is computed, and what is delay of links; both together are all of it.
    """

    workers: tuple[str, ...]
    first: str
    last: str
    operations: dict[str, int]
    stages: tuple[str, ...]
    links: tuple[str, ...]
    start_s: float
    end_s: float
    compute_s: float
    delay_s: float

    def same_as(self, other: Leg) -> bool:
        """Whether the same workers do the same, with other micro-batches."""
        mine, theirs = ((leg.workers, leg.operations, leg.stages, leg.links) for leg in (self, other))
        return mine == theirs


@dataclass(frozen=True, slots=True)
class PathSegment:
    """Legs that the path goes through `times` times; `legs` are those of the first round."""

    legs: tuple[Leg, ...]
    times: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the iteration: what it is, how long it lasts in s, and which share of the iteration that is."""

    what: str
    time_s: float
    share: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The path that makes the iteration as long as it is.

    Attributes:
        start_s: where it starts: 0, or the start of the deciding stage's window in a staggered plan.
        stretches: its parts, without a gap between them.
        stage: the deciding stage, or column, whose all-reduce and optimizer step follow.
        allreduce_s: all sums of gradients from the path's end on.
        optimizer_s: of that stage; a synchronous plan's step is that of the slowest stage.
        by_place: the iteration by worker, by link, and what follows; the shares add up to 1.
        by_kind: the same by kind of operation, `delay` for all links.
    """

    start_s: float
    stretches: tuple[PathSegment, ...]
    stage: int
    allreduce_s: float
    optimizer_s: float
    by_place: tuple[Share, ...]
    by_kind: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """An operation on the path with the delay before it, in s, both without what lies before the path's start."""

    timed: TimedOperation
    link: str
    delay_s: float
    compute_s: float


def critical_path(evaluation: OrderEvaluation, names: Sequence[str]) -> CriticalPath:
    """What an evaluated plan's iteration time is made of.

    Args:
        evaluation: the plan's times.
        names: what to call the plan's workers, `k/i`.
    """
    plan, path = evaluation.plan, evaluation.critical_path()
    window = evaluation.decided_by(path)
    deciding = (worker for worker in plan.live_workers() if evaluation.window_of(worker) is window)
    ends = plan.workers[path[-1].worker] if path else next(deciding)
    staggered = plan.optimizer == "staggered"
    start_s = window.start_s if staggered else 0.0
    steps_s = [window.optimizer_s] if staggered else [other.optimizer_s for other in evaluation.windows.values()]
    steps = list(_steps(path, start_s, names))
    after = {"all-reduce": window.allreduce_s, "optimizer step": max(steps_s)}
    by_place = {
        **_sums((f"worker {names[step.timed.worker]}", step.compute_s) for step in steps),
        **_sums((f"link {step.link}", step.delay_s) for step in steps if step.link),
    }
    by_kind = {
        **_sums((step.timed.operation.kind, step.compute_s) for step in steps),
        "delay": fsum(step.delay_s for step in steps),
    }
    return CriticalPath(
        start_s,
        tuple(_stretches(list(_legs(plan, steps, start_s, names)))),
        ends.stage,
        after["all-reduce"],
        after["optimizer step"],
        _shares({**by_place, **after}, evaluation.iteration_time_s),
        _shares({**by_kind, **after}, evaluation.iteration_time_s),
    )


def _steps(path: Sequence[TimedOperation], from_s: float, names: Sequence[str]) -> Iterator[_Step]:
    """The operations of a path from a time on; a link's name has the worker of the earlier stage first."""
    for earlier, timed in pairwise([*path[:1], *path]):
        if timed.start_s >= from_s or timed.end_s > from_s:
            moved = earlier.worker != timed.worker
            delay_s = max(timed.start_s - max(earlier.end_s, from_s), 0.0) if moved else 0.0
            ends = sorted((names[earlier.worker], names[timed.worker]), key=lambda name: place_of(name)[1])
            link = "-".join(ends) if delay_s > PATH_ROUNDING * timed.start_s else ""
            yield _Step(timed, link, delay_s if link else 0.0, timed.end_s - max(timed.start_s, from_s))


def _legs(plan: Plan, steps: Sequence[_Step], start_s: float, names: Sequence[str]) -> Iterator[Leg]:
    end_s = start_s
    # The steps of each leg.
    parts: list[list[_Step]] = []
    for _, group in groupby(steps, lambda step: step.timed.worker):
        run = list(group)
        if parts and _passes_on(parts[-1], run):
            parts[-1] += run
        else:
            parts.append(run)
    for part in parts:
        first, last = part[0].timed, part[-1].timed
        operations = [step.timed.operation for step in part]
        kinds = Counter(operation.kind for operation in operations)
        yield Leg(
            workers=tuple(names[worker] for worker, _ in groupby(part, lambda step: step.timed.worker)),
            first=print_operation(first.operation, plan.workers[first.worker].pipeline),
            last=print_operation(last.operation, plan.workers[last.worker].pipeline),
            operations=dict(sorted(kinds.items(), key=lambda one: KINDS.index(one[0]))),
            stages=tuple(sorted(f"{op.stage}{op.kind}" for op in operations if op.stage is not None)),
            links=tuple(step.link for step in part if step.link),
            start_s=end_s,
            end_s=last.end_s,
            compute_s=fsum(step.compute_s for step in part),
            delay_s=fsum(step.delay_s for step in part),
        )
        end_s = last.end_s


def _passes_on(part: Sequence[_Step], run: Sequence[_Step]) -> bool:
    """Whether a worker's only operation hands on what those before it handed to it, in the same direction."""
    kinds = [step.timed.operation.kind == "F" for step in (*part, *run)]
    workers = [step.timed.worker for step in (*part, *run)]
    return len(set(workers)) == len(workers) and len(set(kinds)) == 1


def _stretches(legs: Sequence[Leg]) -> Iterator[PathSegment]:
    at = 0
    while at < len(legs):
        length, times = max(
            ((length, _times(legs, at, length)) for length in range(1, LONGEST_ROUND + 1)),
            key=lambda found: (found[0] * found[1] if found[1] > 1 else 0, -found[0]),
        )
        stop = at + length * times
        yield PathSegment(tuple(legs[at : at + length]), times, legs[at].start_s, legs[stop - 1].end_s)
        at = stop


def _times(legs: Sequence[Leg], at: int, length: int) -> int:
    """How often a round of some legs follows itself, from a place on; at least once."""
    stop = at + length
    while stop + length <= len(legs) and all(
        a.same_as(b) for a, b in zip(legs[at : at + length], legs[stop : stop + length], strict=True)
    ):
        stop += length
    return (stop - at) // length


def _sums(times_s: Iterable[tuple[str, float]]) -> dict[str, float]:
    parts: dict[str, list[float]] = {}
    for what, time_s in times_s:
        parts.setdefault(what, []).append(time_s)
    return {what: fsum(found) for what, found in parts.items()}


def _shares(times_s: dict[str, float], iteration_s: float) -> tuple[Share, ...]:
    """Those that take time, the longest first."""
    shares = [Share(what, time_s, time_s / iteration_s) for what, time_s in times_s.items() if time_s]
    return tuple(sorted(shares, key=lambda share: -share.time_s))


HEURISTIC = Effort(solver="heuristic")


@dataclass(frozen=True, slots=True)
class Busiest:
    """Where the busiest worker's iteration goes; the times after `worker` add up to the iteration time.

    Attributes:
        worker: its name, `k/i`; of several equally busy ones that of the bound, or the first.
        compute_s: its operations.
        before_s: until its first operation, from the start of the iteration or of its stage's window.
        waiting_s: between operations, while what it waits for is being computed.
        travelling_s: between operations, while what it waits for is on its way over a link.
        after_s: after its last operation, without the next two.
        allreduce_s, optimizer_s: of its stage.
    """

    worker: str
    compute_s: float
    before_s: float
    waiting_s: float
    travelling_s: float
    after_s: float
    allreduce_s: float
    optimizer_s: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a plan takes as long as it does, and what would help.

    Attributes:
        counts: whether the makespan or the period is the iteration time.
        iteration_time_s, makespan_s, period_s: what the evaluator finds.
        lower_bound_s: the best one known: the plan's, that of `bound`, or that of the search for other orders.
        gap: iteration time / lower bound - 1.
        bubble_ratio: the share of the iteration in which the average live worker computes nothing.
        microbatches, workers: of all pipelines; workers that have not failed.
        tensor_parallel: on how many GPUs workers are, ascending where they are on unlike numbers.
        alike: the pipelines, those that are alike together; of these the first is told of.
        path: the critical path.
        placements: what workers hold, in words; empty where each holds one stage.
        bound: the argument behind the lower bound, where it is not the plan's or the search's own.
        busiest: where the busiest worker's time goes.
        what_if: what other orders and other conditions are worth.
        troubles: what a joint plan does about dead and slow workers and slow links; None without any, or for others.
    """

    counts: Literal["makespan", "period"]
    iteration_time_s: float
    makespan_s: float
    period_s: float
    lower_bound_s: float
    gap: float
    bubble_ratio: float
    microbatches: int
    workers: int
    tensor_parallel: tuple[int, ...]
    alike: tuple[tuple[int, ...], ...]
    placements: tuple[str, ...]
    path: CriticalPath
    bound: BindingBound
    busiest: Busiest
    what_if: WhatIfReport
    troubles: Degradations | None


def explain(plan: Plan, effort: Effort = HEURISTIC, searches: int = MOST_SEARCHES) -> Explanation:
    """Explain a plan's iteration time.

    Args:
        plan: a valid plan, with or without a prediction.
        effort: how hard to search for other orders, with and without changes.
        searches: how often at most; with 0 only known orders are timed. Large plans get fewer, or none.

    Raises:
        InvalidInputError: the orders deadlock; `schemas.check` says what else can be wrong with a plan.
    """
    alike = one_of_each(plan)
    evaluation = evaluate(alike.plan)
    names = [alike.names_of(number)[0] for number in range(len(alike.plan.workers))]
    if plan.is_placed or plan.may_pair:
        bound, found = weigh_placed(alike, evaluation, names, effort, searches)
    else:
        problem = problem_of(alike.plan)
        bound = binding_bound(alike, problem, lower_bound(problem), names)
        found = what_if(problem, codes_of(alike.plan, problem), changes_of(alike, problem), effort, searches)
    iteration_s = evaluation.iteration_time_s
    stated_s = plan.prediction.lower_bound_s if plan.prediction else 0.0
    bound_s = max(bound.value_s, found.lower_bound_s, stated_s)
    best_s = iteration_s if bound_s >= iteration_s * (1 - ROUNDING) else bound_s
    # The share of the iteration in which the average live worker computes nothing.
    busy_s = room_s = 0.0
    for worker, row in zip(alike.plan.workers, evaluation.operations, strict=True):
        if not worker.failed:
            many = len(alike.pipelines[worker.pipeline])
            busy_s += many * sum(timed.end_s - timed.start_s for timed in row if not timed.is_beside)
            room_s += many * evaluation.iteration_time_s
    return Explanation(
        counts="period" if plan.optimizer == "staggered" else "makespan",
        iteration_time_s=iteration_s,
        makespan_s=evaluation.makespan_s,
        period_s=evaluation.period_s,
        lower_bound_s=best_s,
        gap=iteration_s / best_s - 1 if best_s else 0.0,
        bubble_ratio=max(0.0, 1 - busy_s / room_s) if room_s else 0.0,
        microbatches=plan.total_microbatches(),
        workers=len(plan.live_workers()),
        tensor_parallel=tuple(sorted(set(map(plan.gpus_of, plan.workers)))),
        alike=alike.pipelines,
        placements=placements_of(plan),
        path=critical_path(evaluation, names),
        bound=bound,
        busiest=_busiest(evaluation, names.index(bound.worker), names),
        what_if=found,
        troubles=None if plan.is_placed or plan.may_pair else troubles_of(plan),
    )


def _busiest(evaluation: OrderEvaluation, preferred: int, names: list[str]) -> Busiest:
    plan = evaluation.plan
    work_s = [
        fsum(timed.end_s - timed.start_s for timed in row if not timed.is_beside) for row in evaluation.operations
    ]
    most_s = max(work_s) * (1 - ROUNDING)
    number = preferred if work_s[preferred] >= most_s else next(n for n, s in enumerate(work_s) if s >= most_s)
    row, worker = evaluation.operations[number], plan.workers[number]
    window, sums_s = evaluation.window_of(worker), evaluation.own_sums_s(worker)
    start_s = window.start_s if plan.optimizer == "staggered" else 0.0
    # Of each pause between operations, what the sender still computed, and what the message travelled.
    gaps: list[tuple[float, float]] = []
    for ahead, timed in pairwise(row):
        if timed.waited_for_message and not timed.is_beside:
            sent_s = max(evaluation.before[timed].end_s, ahead.end_s)
            gaps.append((sent_s - ahead.end_s, timed.start_s - sent_s))
    before_s = row[0].start_s - start_s
    used_s = row[-1].end_s - start_s + sums_s + window.optimizer_s
    return Busiest(
        worker=names[number],
        compute_s=work_s[number],
        before_s=before_s,
        waiting_s=fsum(waiting for waiting, _ in gaps),
        travelling_s=fsum(travelling for _, travelling in gaps),
        after_s=max(evaluation.iteration_time_s - used_s, 0.0),
        allreduce_s=sums_s,
        optimizer_s=window.optimizer_s,
    )
