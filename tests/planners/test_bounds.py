"""Lower bounds: never above what any orders reach, tight where the papers say so, and raised by memory limits."""

from dataclasses import replace
from itertools import islice
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.list_schedule import ListScheduler
from rtk.planners.scheduling.local_search import portfolio
from rtk.planners.scheduling.lower_bound import (
    Bound,
    lower_bound,
    lower_bounds_s,
    makespan_bound,
    period_bound,
)
from rtk.planners.scheduling.problem import Problem, home_problem, problem_of
from rtk.schemas.plan import Pipeline, Plan, Worker

from ..strategies import BY_HAND, any_plans, cut_templates, hand_plan, limited_to_its_peaks, plans
from .every_order import all_orders, any_order, limited_pipelines, limited_templates
from .examples import running_example

ROUNDING = 1 + 1e-9


@settings(max_examples=30)
@given(any_plans(), st.booleans())
def test_bounds_never_exceed_what_random_plans_reach(plan: Plan, limited: bool) -> None:
    """Makespan and period of random valid plans lie on or above their bounds, also with limits that they just keep."""
    plan = limited_to_its_peaks(plan) if limited else plan
    evaluation, problem = evaluate(plan), problem_of(plan)
    assert 0 <= makespan_bound(problem).value_s <= evaluation.makespan_s * ROUNDING
    assert 0 <= period_bound(problem).value_s <= evaluation.period_s * ROUNDING
    assert lower_bound(problem) == (period_bound(problem) if problem.staggered else makespan_bound(problem))
    *smaller_s, bound_s = lower_bounds_s(problem)
    assert bound_s == lower_bound(problem).value_s
    assert all(one_s <= bound_s for one_s in smaller_s)


@settings(max_examples=30, deadline=None)
@given(limited_pipelines())
def test_bounds_never_exceed_the_best_of_all_orders(plan: Plan) -> None:
    """On tiny pipelines the least makespan and period over every order within the limits are on or above the bounds."""
    _check_against_all_orders(plan)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([(1, 2), (1, 3), (2, 2)]))
def test_bounds_hold_for_backwards_of_both_kinds(data: st.DataObject, sizes: tuple[int, int]) -> None:
    """Where each micro-batch has its own of B and I with W at each stage, no order within the limits beats a bound."""
    depth, count = sizes
    microbatches = [(0, j) for j in range(count)]
    splits = st.lists(st.booleans(), min_size=count, max_size=count)
    plan = hand_plan({f"0/{i}": any_order(microbatches, data.draw(splits)) for i in range(depth)}, count)
    _check_against_all_orders(replace(plan, templates=(data.draw(limited_templates(depth, count)),)))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([(1, 1, True), (1, 1, False), (2, 1, False), (1, 2, False)]))
def test_bounds_hold_for_rerouted_microbatches(data: st.DataObject, sizes: tuple[int, int, bool]) -> None:
    """With a failed worker, whose peer runs its micro-batches, no order within the limits beats the bounds either."""
    first, second, split = sizes
    own = [[(k, j) for j in range(count)] for k, count in enumerate((first, second))]
    orders = {"0/0": any_order(own[0], split), "0/1": any_order(own[0] + own[1], split)}
    plan = hand_plan({**orders, "1/0": any_order(own[1], split), "1/1": None}, 1)
    pipelines = (Pipeline("t0", first), Pipeline("t0", second))
    template = data.draw(limited_templates(2, first + second))
    _check_against_all_orders(replace(plan, pipelines=pipelines, templates=(template,)))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([(1, 1, True), (1, 2, False), (2, 1, False), (2, 1, True)]))
def test_bounds_hold_for_unlike_cuts(data: st.DataObject, sizes: tuple[int, int, bool]) -> None:
    """Where one pipeline cuts the layers in two and one does not, sums come in two parts; no order beats a bound."""
    first, second, split = sizes
    own = [any_order([(k, j) for j in range(count)], split) for k, count in enumerate((first, second))]
    cut, whole = data.draw(cut_templates((0, 1, 2), "t0")), data.draw(cut_templates((0, 2), "t1"))
    plan = Plan(
        BY_HAND,
        (cut, whole),
        (Pipeline("t0", first), Pipeline("t1", second)),
        "synchronous",
        (Worker(0, 0, own[0]), Worker(0, 1, own[0]), Worker(1, 0, own[1].replace("1.", ""))),
    )
    _check_against_all_orders(plan)


def _check_against_all_orders(plan: Plan) -> None:
    results = list(all_orders(plan))
    problem = problem_of(plan)
    assert makespan_bound(problem).value_s <= min(found.makespan_s for found in results) * ROUNDING
    assert period_bound(problem).value_s <= min(found.period_s for found in results) * ROUNDING


@settings(max_examples=40, deadline=None)
@given(any_plans(), st.booleans(), st.booleans())
def test_bounds_never_exceed_list_schedules(plan: Plan, limited: bool, staggered: bool) -> None:
    """No schedule of the portfolio beats the bounds, under limits that some random orders keep."""
    problem = problem_of(limited_to_its_peaks(plan) if limited else plan).with_objective(staggered)
    bound_s = lower_bound(problem).value_s
    scheduler = ListScheduler(problem)
    for rules in islice(portfolio(problem), 0, 200, 20):
        assert bound_s <= scheduler.run(rules) * ROUNDING


@settings(max_examples=30)
@given(plans(), st.floats(0.1, 1.0), st.booleans())
def test_tighter_limits_never_lower_a_bound(plan: Plan, factor: float, staggered: bool) -> None:
    """Limits raise a bound or leave it, tighter ones no less; without them it is what it would be without."""
    limited = limited_to_its_peaks(plan)
    tighter = _with_limits(limited, factor)
    loose, tight = (lower_bound(problem_of(one).with_objective(staggered)) for one in (limited, tighter))
    free = lower_bound(problem_of(_with_limits(limited, None)).with_objective(staggered))
    assert free.value_s == free.unlimited_s == loose.unlimited_s == tight.unlimited_s
    assert free.value_s <= loose.value_s * ROUNDING
    assert loose.value_s <= tight.value_s * ROUNDING
    assert not free.raised_by_memory


def _with_limits(plan: Plan, factor: float | None) -> Plan:
    """The plan with its limits scaled, or without any."""

    def scaled(limit: float | None) -> float | None:
        return None if factor is None or limit is None else limit * factor

    return replace(
        plan,
        templates=tuple(
            replace(t, stages=tuple(replace(s, memory_limit_bytes=scaled(s.memory_limit_bytes)) for s in t.stages))
            for t in plan.templates
        ),
    )


@settings(max_examples=30)
@given(plans(), st.booleans())
def test_bound_says_why(plan: Plan, staggered: bool) -> None:
    """Head, work and tail of the worker that is named add up to the bound, and the work is no more than it has."""
    problem = problem_of(plan).with_objective(staggered)
    bound = lower_bound(problem)
    assert bound.head_s + bound.work_s + bound.tail_s == pytest.approx(bound.value_s, rel=1e-9)
    row = evaluate(plan).operations[bound.worker]
    assert bound.work_s <= sum(timed.end_s - timed.start_s for timed in row) * ROUNDING
    assert (bound.window is not None) == staggered


def test_a_limit_below_one_micro_batch_has_no_orders() -> None:
    """Where not even one micro-batch fits the bound is infinite, and names the worker."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1, limit_bytes=0.5)
    for bound in (makespan_bound(problem_of(plan)), period_bound(problem_of(plan))):
        assert (bound.value_s, bound.worker, bound.raised_by_memory) == (inf, 0, True)
        assert bound.unlimited_s < inf


def test_a_limit_missed_by_rounding_is_kept() -> None:
    """The checker forgives sums of bytes that are rounded up above a limit, and so do bounds."""
    order = "F0 F1 B0 B1"
    exact, rounded = (
        makespan_bound(problem_of(hand_plan({"0/0": order, "0/1": order}, 2, limit_bytes=limit)))
        for limit in (2.0, 2.0 * (1 - 1e-12))
    )
    assert rounded == exact
    assert not exact.raised_by_memory


def test_bound_counts_all_micro_batches_that_share_executors() -> None:
    """Micro-batches of two pipelines on the same workers both count, though they look the same."""
    order = "F0 B0 F1.0 B1.0"
    plan = hand_plan({"0/0": order, "0/1": order, "1/0": None, "1/1": None}, 1)
    bound = makespan_bound(problem_of(plan))  # one stage works 6 slots, the other needs 1 before and 2 after
    assert bound == Bound(9, worker=1, window=None, head_s=1, work_s=6, tail_s=2, unlimited_s=9)


def test_bound_holds_allreduce_and_optimizer() -> None:
    """The all-reduce of the stage that ends last and the slowest optimizer stand in the bound."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1)
    first, last = plan.templates[0].stages
    stages = (replace(first, allreduce_s=0.5, optimizer_s=0.25), replace(last, allreduce_s=4.0, optimizer_s=1.0))
    plan = replace(plan, templates=(replace(plan.templates[0], stages=stages),))
    assert makespan_bound(problem_of(plan)).value_s == evaluate(plan).makespan_s == 4 + 4 + 1
    assert period_bound(problem_of(plan)).value_s == evaluate(plan).period_s == 3 + 4 + 1


def test_bound_waits_for_the_slowest_peer() -> None:
    """Peers of unlike templates are reduced together: the slower one's all-reduce and step stand in the bound."""
    plan = hand_plan({"0/0": "F0 B0", "1/0": "F0 B0"}, 1)
    (stage,) = plan.templates[0].stages
    slow = replace(
        plan.templates[0], name="t1", stages=(replace(stage, forward_s=0.5, allreduce_s=2.0, optimizer_s=1.0),)
    )
    plan = replace(plan, templates=(*plan.templates, slow), pipelines=(Pipeline("t0", 1), Pipeline("t1", 1)))
    assert makespan_bound(problem_of(plan)).value_s == evaluate(plan).makespan_s == 3 + 2 + 1
    assert period_bound(problem_of(plan)).value_s == evaluate(plan).period_s == 3 + 2 + 1


def _pipeline(
    depth: int,
    microbatches: int,
    slot_s: float = 1.0,
    cap: float | None = None,
    stash: float = 0.5,
    delay_s: float = 0.0,
) -> Problem:
    """A pipeline of equal stages with split backwards, 1 byte a micro-batch; `delay_s` of its first link."""
    order = any_order([(0, j) for j in range(microbatches)], split=True)
    plan = hand_plan({f"0/{i}": order for i in range(depth)}, microbatches, (slot_s,) * 3, limit_bytes=cap)
    (template,) = plan.templates
    stages = tuple(replace(stage, weight_stash_bytes=stash) for stage in template.stages)
    links = tuple(replace(link, delay_s=0.0 if i else delay_s) for i, link in enumerate(template.links))
    return problem_of(replace(plan, templates=(replace(template, stages=stages, links=links),)))


@pytest.mark.parametrize(("split", "expected"), [(False, 27.0), (True, 21.0)])
def test_bound_is_what_the_papers_schedules_reach(split: bool, expected: float) -> None:
    """PP 4, 6 micro-batches, F=I=W=1: no schedule with B is shorter than 27 slots, none with I and W than 21."""
    plan = hand_plan({f"0/{i}": any_order([(0, j) for j in range(6)], split) for i in range(4)}, 6)
    assert makespan_bound(problem_of(plan)).value_s == expected


@pytest.mark.parametrize(("cap", "period"), [(None, 19.0), (4.0, 21.0)])
def test_period_is_what_exact_solvers_prove(cap: float | None, period: float) -> None:
    """PP 4, 6 micro-batches: a period of 19 slots without limits, 21 in the memory of 1F1B; both are optimal."""
    assert period_bound(_pipeline(4, 6, cap=cap)).value_s == period


@pytest.mark.parametrize("delay_s", [0.0, 10.0, 60.0])
def test_a_slow_link_costs_its_delay_once(delay_s: float) -> None:
    """Adaptra's example, PP 4 with 12 micro-batches of 10 ms: 390 ms and the delay of the first link."""
    assert makespan_bound(_pipeline(4, 12, 10.0, delay_s=delay_s)).value_s == 390 + delay_s


@pytest.mark.parametrize(
    ("cap", "stash", "period"),
    [(64, 0.5, 8310.0), (80, 0.0, 8150.0), (96, 1.0, 7990.0)],
)
def test_large_pipelines_have_the_periods_that_schedules_reach(cap: float, stash: float, period: float) -> None:
    """64 stages, 256 micro-batches: limits of PP, 1.25 PP and 1.5 PP leave the makespan, and raise the period."""
    pytest.importorskip("numba")
    problem = _pipeline(64, 256, 10.0, cap, stash)
    found = period_bound(problem)
    assert (makespan_bound(problem).value_s, found.value_s, found.unlimited_s) == (8310, period, 7680)


@pytest.mark.parametrize(("split", "makespan", "period"), [(True, 29.0, 27.0), (False, 33.0, 33.0)])
def test_bounds_of_the_running_example(split: bool, makespan: float, period: float) -> None:
    """The optima with a failed worker: 29 and 27 slots with I and W, 33 and 33 with B: staggering gains nothing."""
    problem = running_example(split)
    found = makespan_bound(problem), period_bound(problem)
    assert [bound.value_s for bound in found] == [makespan, period]
    assert [(bound.worker, bound.work_s) for bound in found] == [(2, 27), (2, 27)]


@pytest.mark.parametrize(
    ("cap", "makespan", "period"),
    [(8.0, 29.0, 27.0), (4.0, 29.0, 27.0), (3.5, 29.0, 28.0), (3.0, 29.0, 29.0), (2.5, 31.0, 31.0), (1.0, 54.0, 54.0)],
)
def test_limits_of_workers_that_take_over_raise_bounds(cap: float, makespan: float, period: float) -> None:
    """In the running example limits of 3.5 micro-batches and less bind the peers, whose memory all chains share."""
    problem = running_example(True, cap)
    found = makespan_bound(problem), period_bound(problem)
    assert [bound.value_s for bound in found] == [makespan, period]
    assert [bound.raised_by_memory for bound in found] == [makespan > 29, period > 27]


def test_one_backward_in_one_piece_does_not_hide_a_limit() -> None:
    """A pipeline with B for one micro-batch is bounded by its memory no less than one with I and W for all."""
    orders = [any_order([(0, j) for j in range(6)], [n > last for n in range(6)]) for last in (-1, 0)]
    plans_ = [hand_plan({f"0/{i}": order for i in range(4)}, 6, limit_bytes=2.0) for order in orders]
    apart, mixed = (makespan_bound(problem_of(plan)) for plan in plans_)
    assert apart.raised_by_memory
    assert mixed.value_s >= apart.value_s


def test_home_problem_has_the_bound_of_its_plans() -> None:
    """A problem made without orders is bounded like that of any plan with its routing and split."""
    plan = hand_plan({"0/0": "F0 F1 I0 W0 I1 W1", "0/1": "F0 I0 F1 I1 W0 W1"}, 2, limit_bytes=1.5)
    assert makespan_bound(home_problem(plan, split=True)) == makespan_bound(problem_of(plan))
