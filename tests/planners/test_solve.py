"""The scheduling core as a whole: portfolio, local search and proofs, on problems of every kind."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.assemble import with_prediction
from rtk.planners.scheduling.list_schedule import ListScheduler, rooms
from rtk.planners.scheduling.local_search import anneal, improve_orders, portfolio
from rtk.planners.scheduling.lower_bound import lower_bound
from rtk.planners.scheduling.problem import codes_of, home_problem, problem_of, with_orders
from rtk.planners.scheduling.retime import value_s
from rtk.planners.scheduling.solve import Effort, solve
from rtk.schemas.check import check_plan
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Link, Pipeline, Plan, Stage, Template, Worker

from ..strategies import BY_HAND, limited_to_its_peaks, plans, unlike_plans
from .examples import running_example

HEURISTIC = Effort("heuristic")


def _pipeline(
    times: list[tuple[float, float, float]],
    microbatches: int,
    *,
    delays: tuple[float, ...] = (),
    limits: list[float] | None = None,
    stash: float = 0.5,
    dp: int = 1,
) -> Plan:
    """A plan without orders: stages of 1 byte a micro-batch, of which `stash` stays for W."""
    depth = len(times)
    stages = tuple(
        Stage(
            (i, i + 1),
            *row,
            activation_bytes=1.0,
            weight_stash_bytes=stash,
            memory_limit_bytes=limits[i] if limits else None,
        )
        for i, row in enumerate(times)
    )
    links = tuple(Link(delay) for delay in delays or (0.0,) * (depth - 1))
    pipelines = tuple(Pipeline("t0", microbatches) for _ in range(dp))
    workers = tuple(Worker(k, i, "") for k in range(dp) for i in range(depth))
    return Plan(BY_HAND, (Template("t0", stages, links),), pipelines, "synchronous", workers)


@pytest.mark.usefixtures("short_search")
@settings(max_examples=25, deadline=None)
@given(st.one_of(plans(max_pp=4, max_microbatches=4), unlike_plans(max_microbatches=4)), st.booleans())
def test_any_problem_gets_valid_orders_no_worse_than_random_ones(plan: Plan, tight: bool) -> None:
    """Whatever routing, costs and limits: valid orders, between their bound and what random orders reach."""
    plan = limited_to_its_peaks(plan) if tight else plan
    problem = problem_of(plan)
    solution = solve(problem, HEURISTIC)
    planned = with_prediction(with_orders(plan, problem, solution.orders), solution.bound_s)
    assert check_plan(planned) == []
    assert planned.prediction is not None
    assert planned.prediction.iteration_time_s == solution.value_s
    assert solution.bound_s <= solution.value_s * (1 + 1e-9)
    if not tight:
        assert solution.value_s <= value_s(problem, codes_of(plan, problem)) * 1.05


@pytest.mark.parametrize("delay_ms", [0, 10, 20, 30, 60])
@pytest.mark.parametrize(("depth", "microbatches", "least_ms"), [(4, 12, 390), (8, 32, 1030)])
def test_a_slow_link_costs_its_delay_once(depth: int, microbatches: int, least_ms: int, delay_ms: int) -> None:
    """Adapted to a delay c on the first link, the schedule takes c longer, which is proven to be the least."""
    delays = (delay_ms / 1000, *[0.0] * (depth - 2))
    plan = _pipeline([(0.01,) * 3] * depth, microbatches, delays=delays)
    solution = solve(home_problem(plan, split=True), HEURISTIC)
    assert solution.value_s == pytest.approx((least_ms + delay_ms) / 1000)
    assert solution.optimal


@pytest.mark.parametrize(
    ("case", "least"),
    [
        ((4, 24, (0.0, 17.0, 0.0), [5.0, 4.0, 3.0, 2.0], 0.5), 798.0),
        ((3, 8, (0.0, 20.0), [3.0, 2.0, 1.0], 0.5), 410.0),
        ((4, 15, (19.0, 35.0, 0.0), [4.0] * 4, 0.0), 802.0),
        ((7, 32, (0.0, 0.0, 58.0, 0.0, 0.0, 0.0), [7.0] * 7, 0.0), 1350.0),
    ],
)
def test_capped_pipelines_reach_the_optimum(
    case: tuple[int, int, tuple[float, ...], list[float], float], least: float
) -> None:
    """Memory-limited pipelines of 10 ms operations get what CP-SAT proved to be the least, and know that it is."""
    depth, microbatches, delays, limits, stash = case
    plan = _pipeline([(10.0,) * 3] * depth, microbatches, delays=delays, limits=limits, stash=stash)
    solution = solve(home_problem(plan, split=True), HEURISTIC)
    assert solution.value_s == least
    assert solution.optimal


@pytest.mark.parametrize(
    ("split", "staggered", "least"), [(True, False, 29.0), (True, True, 27.0), (False, False, 33.0)]
)
def test_rerouting_reaches_the_known_optima(split: bool, staggered: bool, least: float) -> None:
    """SlipStream's example, one of twelve workers dead: 29 decoupled, 27 staggered, and 33 coupled (the paper: 36)."""
    problem = running_example(split).with_objective(staggered)
    solution = solve(problem, HEURISTIC)
    assert solution.value_s == least
    assert solution.optimal


@pytest.mark.usefixtures("short_search")
def test_same_seed_same_orders() -> None:
    """What is searched depends on the problem and the seed only."""
    plan = _pipeline([(10.0, 14.0, 7.0), (18.0, 9.0, 5.0), (11.0, 12.0, 13.0)], 9, delays=(21.0, 0.0), limits=[3.0] * 3)
    problem = home_problem(plan, split=True)
    assert solve(problem, Effort("heuristic", seed=3)) == solve(problem, Effort("heuristic", seed=3))


def test_searches_never_lose_what_they_start_from() -> None:
    """Annealing of rules and search of orders return something no worse than their start, within memory limits."""
    times = [(12.0, 9.0, 12.0), (10.0, 9.0, 7.0), (11.0, 14.0, 5.0), (18.0, 9.0, 5.0), (13.0, 9.0, 7.0)]
    plan = _pipeline(times, 15, delays=(0.0, 0.0, 0.0, 38.0), limits=[5.0] * 5)
    problem = home_problem(plan, split=True)
    scheduler, start = ListScheduler(problem, runs=300), next(portfolio(problem))
    before_s = scheduler.run(start)
    rules, after_s = anneal(problem, start, scheduler.run, bound_s=0.0, runs=100, chance=Random(1))
    assert scheduler.run(rules) == after_s <= before_s
    orders, least_s = improve_orders(problem, scheduler.orders(), bound_s=0.0, runs=300, chance=Random(1))
    assert value_s(problem, orders) == least_s <= after_s
    assert check_plan(with_prediction(with_orders(plan, problem, orders))) == []
    assert least_s >= lower_bound(problem).value_s


def test_a_limit_below_one_activation_is_infeasible() -> None:
    """No orders exist where a stage cannot hold a single micro-batch, and the error names the stage."""
    plan = _pipeline([(1.0, 1.0, 1.0)] * 3, 4, limits=[2.0, 0.5, 2.0])
    with pytest.raises(InfeasibleError, match="stage 1"):
        solve(home_problem(plan, split=True), HEURISTIC)


def test_large_problems_are_searched_within_a_budget() -> None:
    """64 stages by 256 micro-batches under a tight limit end in seconds, near their bound."""
    plan = _pipeline([(10.0,) * 3] * 64, 256, limits=[64.0] * 64)
    solution = solve(home_problem(plan, split=True), HEURISTIC)
    assert solution.value_s == 8310
    assert solution.optimal


def test_unequal_pipelines_are_scheduled_together() -> None:
    """Two pipelines with links and micro-batches of their own share nothing but the bound on the slower one."""
    plan = _pipeline([(10.0,) * 3] * 4, 12, dp=2)
    own = replace(plan.pipelines[1], microbatches=6, links=(Link(20.0), Link(0.0), Link(0.0)))
    plan = replace(plan, pipelines=(plan.pipelines[0], own))
    solution = solve(home_problem(plan, split=True), HEURISTIC)
    assert solution.value_s == 390
    assert solution.optimal


@settings(max_examples=25, deadline=None)
@given(plans(max_pp=4, max_microbatches=4))
def test_the_portfolio_has_each_set_of_rules_once_and_within_memory(plan: Plan) -> None:
    """No rules come twice, and no warm-up is deeper than the memory limit of its worker admits."""
    problem = problem_of(limited_to_its_peaks(plan))
    found = [
        (*rules.warmup, *rules.in_flight, *rules.weight_wait, *rules.backlog, *rules.priority)
        for rules in portfolio(problem)
    ]
    assert len(set(found)) == len(found) > 0
    for rules in portfolio(problem):
        assert all(x <= room for x, room in zip(rules.warmup, rooms(problem), strict=True))
