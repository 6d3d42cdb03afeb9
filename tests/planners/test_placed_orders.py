"""Orders of workers with several virtual stages: the list scheduler, the search, and what both promise."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.placement import search
from rtk.planners.placement.bounds import lower_bound
from rtk.planners.placement.fusing import with_fused_backwards
from rtk.planners.placement.problem import (
    PlacedProblem,
    SeatOrders,
    ordered_placed_problem,
    with_placed_orders,
)
from rtk.planners.placement.promise import with_placed_prediction
from rtk.planners.placement.published import column_of_loop, column_of_v, published_orders
from rtk.planners.placement.retimed import PlacedRetimed
from rtk.planners.placement.rules import portfolio
from rtk.planners.placement.scheduler import INTERPRETED_OPERATIONS, DueTimes, SeatScheduler, fits
from rtk.planners.placement.search import solve
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.problem import FORWARD, KINDS
from rtk.planners.scheduling.solve import Effort
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Plan

from ..placed_plans import placed_plans
from .placed_orders import keeps_limits, placed, timing

TIMES_S = st.sampled_from([0.0, 0.5, 1.0, 1.2, 3.0])


@st.composite
def problems(draw: st.DrawFn, most_microbatches: int = 4) -> PlacedProblem:
    """Any placement, unlike costs, several pipelines, micro-batches re-routed to any peers, limits from A on."""
    columns = draw(st.integers(1, 3))
    rest = draw(st.lists(st.integers(0, columns - 1), max_size=4))
    column = draw(st.permutations([*range(columns), *rest]))
    microbatches = draw(st.lists(st.integers(1, most_microbatches), min_size=1, max_size=2))
    problem = placed(
        column,
        microbatches,
        times_s=[[draw(TIMES_S) for _ in range(3)] for _ in column],
        delay_s=draw(st.sampled_from([0.0, 0.5, 4.0])),
        activation_bytes=1.0,
        stash=draw(st.sampled_from([0.0, 0.5, 1.0])),
        staggered=draw(st.booleans()),
    )
    shape = problem.executor.shape
    pipelines = draw(st.lists(st.integers(0, len(microbatches) - 1), min_size=shape[0] * shape[1], max_size=99))
    executor = np.array(pipelines[: shape[0] * shape[1]]).reshape(shape) * columns + np.array(column)
    needs = np.array([[np.sum(route == worker) for worker in range(problem.workers)] for route in executor])
    split = np.array(draw(st.lists(st.booleans(), min_size=executor.size, max_size=executor.size))).reshape(shape)
    more = [draw(st.sampled_from([0.0, 1.0, 2.0, np.inf])) for _ in range(problem.workers)]
    limit_bytes = needs.max(axis=0) + np.array(more)
    return replace(problem, executor=executor, split=split, limit_bytes=limit_bytes)


@st.composite
def rules(draw: st.DrawFn, problem: PlacedProblem) -> DueTimes:
    """Any priorities."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (*problem.executor.shape, KINDS)
    offset_s = chance.normal(size=shape if draw(st.booleans()) else shape[1:]) * draw(st.sampled_from([0.0, 1.0, 9.0]))
    due_s = np.arange(problem.jobs, dtype=np.float64) * draw(st.sampled_from([0.0, 1.0, 5.0, -3.0]))
    enters_s = chance.normal(size=problem.jobs) + np.arange(problem.jobs) * draw(st.sampled_from([0.0, 1.0, 9.0]))
    return DueTimes(due_s, offset_s, enters_s if draw(st.booleans()) else 0.0, draw(st.sampled_from([0.0, 0.7])))


def complete(problem: PlacedProblem, orders: SeatOrders) -> bool:
    """Whether every operation stands once in the order of the worker that it is routed to."""
    cells = problem.executor.ravel().tolist()
    kinds = [(0, 1, 2) if split else (0, 1) for split in problem.split.ravel().tolist()]
    asked = sorted((worker, KINDS * cell + kind) for cell, worker in enumerate(cells) for kind in kinds[cell])
    return asked == sorted((worker, code) for worker, order in enumerate(orders) for code in order)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_priorities_lock_up_under_any_limits_that_admit_each_micro_batch(data: st.DataObject) -> None:
    """The reserve rule: whatever goes first, all operations run, within the limits, at the times of a plain reading."""
    problem = data.draw(problems())
    scheduler = SeatScheduler(problem)
    found_s = scheduler.run(data.draw(rules(problem)))
    orders = scheduler.orders()
    assert complete(problem, orders)
    assert keeps_limits(problem, orders) and fits(problem, orders)
    read = timing(problem, orders)
    assert read is not None
    assert found_s == pytest.approx(read.period_s if problem.staggered else read.makespan_s, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_nothing_gets_longer_when_backwards_are_joined(data: st.DataObject) -> None:
    """B takes the place of I and W only where makespan and period stay, and no worker goes over its limit."""
    problem = data.draw(problems())
    scheduler = SeatScheduler(problem)
    scheduler.run(data.draw(rules(problem)))
    before, (fused, orders) = timing(problem, scheduler.orders()), with_fused_backwards(problem, scheduler.orders())
    after = timing(fused, orders)
    assert before is not None and after is not None
    assert complete(fused, orders) and keeps_limits(fused, orders)
    assert not (fused.split & ~problem.split).any()
    assert after.makespan_s <= before.makespan_s * (1 + 1e-9)
    assert after.period_s <= before.period_s * (1 + 1e-9)


def test_backwards_are_joined_where_there_is_time() -> None:
    """One worker alone has nobody to hurry for: all its backwards become B."""
    problem = placed([0, 0], [3])
    scheduler = SeatScheduler(problem)
    scheduler.run(DueTimes(np.zeros(3), np.zeros((2, KINDS))))
    assert not with_fused_backwards(problem, scheduler.orders())[0].split.any()


@settings(max_examples=50, deadline=None)
@given(placed_plans().filter(lambda plan: len(plan.templates) == 1))
def test_plans_are_timed_and_written_as_they_are_read(plan: Plan) -> None:
    """What the search's kernels promise of orders is what the evaluator says, and codes are written as they were."""
    promised, timed = with_placed_prediction(plan, 0.0).prediction, evaluate(plan)
    assert promised is not None
    assert promised.makespan_s == pytest.approx(timed.makespan_s, rel=1e-12)
    assert promised.period_s == pytest.approx(timed.period_s, rel=1e-12)
    assert promised.bubble_ratio == pytest.approx(timed.bubble_ratio, abs=1e-12)
    assert promised.peak_memory_bytes == pytest.approx(timed.peak_memory_bytes, rel=1e-12)
    assert with_placed_orders(plan, *ordered_placed_problem(plan)).workers == plan.workers


@settings(max_examples=30, deadline=None)
@given(placed_plans().filter(lambda plan: len(plan.templates) == 1))
def test_messages_between_two_workers_are_found_on_every_leg(plan: Plan) -> None:
    """Of any two workers it is told whether micro-batches go from one to the other, up or down, as orders are read."""
    ran = {
        (operation.pipeline, operation.microbatch, plan.virtual_stage(worker, operation)): worker.place
        for worker in plan.live_workers()
        for operation in worker.operations()
        if operation.kind == "F"
    }
    hops = {frozenset((place, ran[k, j, v + 1])) for (k, j, v), place in ran.items() if (k, j, v + 1) in ran}
    timed = PlacedRetimed(plan)
    for pair in combinations([worker.place for worker in plan.live_workers()], 2):
        assert timed.crosses([pair]) == (frozenset(pair) in hops)


def test_whoever_waits_gets_the_best_of_many_rules() -> None:
    """At half of 1F1B's memory: of a problem so small all rules are tried, not the first ones only."""
    problem = placed(column_of_v(4, 2), [9], limit=2, staggered=True)
    scheduler = SeatScheduler(problem, runs=1_000)
    found = solve(problem, Effort("rules"), 0.0)
    assert found.value_s <= min(map(scheduler.run, portfolio(problem)))
    assert found.value_s < min(map(scheduler.run, islice(portfolio(problem), 8)))


def test_what_is_known_of_another_problem_is_gone_on_from() -> None:
    """Rules that are known are tried first, so what is found is no worse than by them."""
    problem = placed(column_of_v(4, 2), [9], limit=2, staggered=True)
    known = SeatScheduler(problem).rules_of(solve(problem, Effort("rules")).orders)
    less = replace(problem, limit_bytes=problem.limit_bytes * 1.25)
    assert solve(less, Effort("rules"), known=[known]).value_s <= SeatScheduler(less).run(known)


@settings(max_examples=30, deadline=None)
@given(problems(2), st.integers(0, 3))
def test_what_is_found_is_no_worse_than_what_is_known(problem: PlacedProblem, seed: int) -> None:
    """Orders that a search starts from, and published ones that fit, are never better than what it finds."""
    effort = Effort("rules", seed=seed)
    known = [orders for _, orders in published_orders(problem) if fits(problem, orders)]
    scheduler = SeatScheduler(problem)
    scheduler.run(DueTimes(np.zeros(problem.jobs), np.zeros((problem.stages, KINDS))))
    start = scheduler.orders()
    found = solve(problem, effort, lower_bound(problem).value_s, start=start)
    assert complete(problem, found.orders) and keeps_limits(problem, found.orders)
    assert found.value_s <= min(map(scheduler.value_s, [start, *known]))
    assert found.value_s >= found.bound_s * (1 - 1e-9)
    assert found == solve(problem, effort, lower_bound(problem).value_s, start=start)


def test_machine_code_gives_the_same_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted or compiled, the kernels make the same decisions."""
    problem = placed(column_of_v(4, 3), [6, 5], limit=2.0, delay_s=0.5)
    chance = np.random.default_rng(0)
    due_s = np.arange(11, dtype=np.float64) * 4.0
    tried = DueTimes(due_s, chance.normal(size=(12, KINDS)), due_s - 3.0, 0.5)
    found = []
    for operations in (1, INTERPRETED_OPERATIONS):
        scheduler = SeatScheduler(problem, runs=operations)
        found.append((scheduler.run(tried), scheduler.orders(), with_fused_backwards(problem, scheduler.orders())[1]))
    assert found[0] == found[1]


CASES = [
    (column_of_v(4, 2), 8, 4.0, True, 51.0, 48.0),  # ZB-V
    (column_of_v(8, 2), 16, 5.0, True, 113.0, 113.0),  # V-Half
    (column_of_v(8, 2), 16, 8.0, True, 103.0, 96.0),
    (column_of_v(8, 2), 32, 4.0, True, 219.0, 219.0),  # V-Min; the search comes to 215
    (column_of_loop(8, 2), 16, 8.0, True, 103.0, 104.0),  # interleaved zero bubble
    (column_of_loop(8, 2), 16, 11.5, False, 117.0, 117.0),  # interleaved 1F1B
    (column_of_v(4, 3), 8, 4.0, True, 75.0, 75.0),
]


@pytest.mark.parametrize(("column", "microbatches", "limit", "split", "makespan", "period"), CASES)
def test_published_schedules_are_reached_at_their_memory(
    column: Sequence[int], microbatches: int, limit: float, split: bool, makespan: float, period: float
) -> None:
    """Few rules, or the published order itself, come to the makespan and period of the literature, in chunks of 1 s."""
    problem = placed(column, [microbatches], limit=limit, split=split)
    for staggered, goal in ((False, makespan), (True, period)):
        one = problem.with_objective(staggered)
        found = solve(one, Effort(), goal)
        assert found.value_s <= goal
        assert keeps_limits(one, found.orders)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_only_the_oldest_enters_before_its_time(data: st.DataObject) -> None:
    """Where entries are further apart than all work, a worker's jobs enter after all F of those before them there."""
    problem = data.draw(problems())
    tried = replace(data.draw(rules(problem)), enters_s=np.arange(problem.jobs, dtype=np.float64) * 1e6)
    scheduler = SeatScheduler(problem)
    scheduler.run(tried)
    for worker, order in enumerate(scheduler.orders()):
        forwards = [divmod(code // KINDS, problem.stages) for code in order if code % KINDS == FORWARD]
        for place, (job, stage) in enumerate(forwards):
            if stage == 0:
                assert all(later >= job for later, _ in forwards[place:]), worker


def test_entries_are_found_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a limit below what keeps the pace the search reaches what CP-SAT proves to be the least, 79 (bound: 77).

    A quarter of the annealing is enough for that.
    """
    monkeypatch.setattr(search, "ANNEALED_OPERATIONS", search.ANNEALED_OPERATIONS // 4)
    problem = placed(column_of_v(8, 2), [8], limit=3.0)
    assert solve(problem, Effort("heuristic"), lower_bound(problem).value_s).value_s <= 79.0


def test_a_v_reroutes_without_loss() -> None:
    """Worker 1/2 of four columns by three pipelines is dead: at 1F1B's memory a V takes 28 stage forwards, or 27."""
    home = placed(column_of_v(4, 2), [6, 6, 6], times_s=[[0.5] * 3], limit=4.0)
    lost = np.argwhere((home.executor == 1 * 4 + 2).any(axis=1)).ravel()
    executor = home.executor.copy()
    for turn, job in enumerate(lost):
        executor[job, home.column == 2] = (0 if turn % 2 else 2) * 4 + 2
    routed = replace(home, executor=executor)
    assert solve(routed, Effort(), 28.0).value_s <= 28.0
    assert solve(routed.with_objective(True), Effort(), 27.0).value_s <= 27.0


def test_a_limit_below_one_micro_batch_is_refused() -> None:
    """The column and both sizes are named."""
    with pytest.raises(InfeasibleError, match="column 0"):
        solve(placed(column_of_v(2, 2), [2], limit=0.5), Effort())
