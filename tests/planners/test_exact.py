"""Exact solvers: what they find is valid and better, what they prove is true, and Ctrl-C keeps what they have."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.cp_sat import CpSatSolver
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.exact_solver import Attempt, Best, ExactSolver, common_unit, instance_of, keeps_limits
from rtk.planners.scheduling.list_schedule import DispatchRules, Priority, list_schedule
from rtk.planners.scheduling.lower_bound import lower_bound
from rtk.planners.scheduling.milp import MilpSolver
from rtk.planners.scheduling.problem import Problem, codes_of, problem_of, with_orders
from rtk.planners.scheduling.retime import value_s
from rtk.planners.scheduling.solve import exact_solver
from rtk.schemas.check import check_plan
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Link, Plan, Template

from ..strategies import hand_plan, limited_to_its_peaks, plans
from .every_order import all_orders, any_order, limited_pipelines
from .examples import running_example

ROUNDING = 1e-9
SOLVERS: tuple[ExactSolver, ...] = (MilpSolver(), CpSatSolver())


def _one_by_one(problem: Problem) -> DispatchRules:
    """Rules that keep a single micro-batch in flight: poor orders, within any memory limit that admits one."""
    count = len(problem.job_counts)
    none = [problem.jobs] * count
    return DispatchRules([1] * count, [1] * count, [0.0] * count, none, [Priority.INPUT_FIRST] * count)


def _attempt(solver: ExactSolver, problem: Problem, seconds: float = 20.0) -> Attempt:
    """From orders that keep one micro-batch in flight."""
    start = list_schedule(problem, _one_by_one(problem))
    return solver.improve(problem, start, lower_bound(problem).value_s, time_limit_s=seconds, seed=0)


@pytest.mark.parametrize("solver", SOLVERS, ids=["milp", "cp-sat"])
@settings(max_examples=15, deadline=None)
@given(plan=limited_pipelines())
def test_solvers_find_the_best_of_all_orders(solver: ExactSolver, plan: Plan) -> None:
    """On tiny pipelines with memory limits the optimum is that of all orders tried one by one, and is proven."""
    problem = problem_of(plan)
    assume(bool((problem.workers.activation_bytes <= problem.workers.limit_bytes).all()))
    least_s = min(found.makespan_s for found in all_orders(plan))
    attempt = _attempt(solver, problem)
    reached_s = value_s(problem, attempt.orders or list_schedule(problem, _one_by_one(problem)))
    assert attempt.status == "optimal"
    assert reached_s == pytest.approx(least_s, rel=1e-6)
    assert attempt.bound_s <= least_s * (1 + 1e-6)


@pytest.mark.parametrize("solver", SOLVERS, ids=["milp", "cp-sat"])
@settings(max_examples=15, deadline=None)
@given(plan=plans(max_pp=3, max_dp=2, max_microbatches=3), tight=st.booleans())
def test_solvers_improve_any_plan_and_prove_no_more_than_is_true(solver: ExactSolver, plan: Plan, tight: bool) -> None:
    """Whatever routing, overheads, limits and objective: orders are valid and better, bounds below what is found."""
    plan = limited_to_its_peaks(plan) if tight else plan
    problem = problem_of(plan)
    start = codes_of(plan, problem)
    before_s = value_s(problem, start)
    attempt = solver.improve(problem, start, lower_bound(problem).value_s, time_limit_s=2, seed=0)
    assert attempt.bound_s <= before_s * (1 + ROUNDING)
    if attempt.orders is not None:
        assert value_s(problem, attempt.orders) < before_s
        assert attempt.bound_s <= value_s(problem, attempt.orders) * (1 + ROUNDING)
        assert keeps_limits(problem, attempt.orders)
        assert check_plan(with_orders(plan, problem, attempt.orders)) == []


@pytest.mark.parametrize("solver", SOLVERS, ids=["milp", "cp-sat"])
@pytest.mark.parametrize(("split", "least"), [(True, 29.0), (False, 33.0)])
def test_solvers_prove_the_optima_of_slipstreams_example(solver: ExactSolver, split: bool, least: float) -> None:
    """Decoupled 29 and coupled 33 slots are found from poor orders, and proven."""
    problem = running_example(split)
    attempt = _attempt(solver, problem)
    assert attempt.orders is not None
    assert (value_s(problem, attempt.orders), attempt.status) == (least, "optimal")


@pytest.mark.parametrize(
    ("solver", "split", "least"),
    [(CpSatSolver(), True, 27.0), (CpSatSolver(), False, 33.0), (MilpSolver(), False, 33.0)],
    ids=["decoupled-cp-sat", "coupled-cp-sat", "coupled-milp"],
)
def test_solvers_prove_the_periods_of_slipstreams_example(solver: ExactSolver, split: bool, least: float) -> None:
    """A staggered optimizer saves two of the decoupled example's 29 slots, and none of the coupled one's 33."""
    problem = running_example(split).with_objective(True)
    attempt = _attempt(solver, problem)
    assert attempt.orders is not None
    assert (value_s(problem, attempt.orders), attempt.status) == (least, "optimal")


@pytest.mark.parametrize("solver", SOLVERS, ids=["milp", "cp-sat"])
@pytest.mark.parametrize("split", [True, False], ids=["split", "whole"])
def test_solvers_find_the_best_of_all_orders_of_peers(solver: ExactSolver, split: bool) -> None:
    """A worker may begin with micro-batches that are there long before those of its dead peer's pipeline."""
    both, own = any_order([(1, 0), (0, 0)], split), any_order([(0, 0)], split)
    plan = hand_plan({"0/0": own, "0/1": both, "1/0": any_order([(1, 0)], split), "1/1": None}, 1, delay_s=10.0)
    near = (replace(plan.pipelines[0], links=(Link(0.0),)), plan.pipelines[1])
    workers = tuple(replace(worker, slowdown=4.0 if worker.name == "0/1" else None) for worker in plan.workers)
    plan = replace(plan, pipelines=near, workers=workers)
    problem = problem_of(plan)
    attempt = solver.improve(problem, codes_of(plan, problem), 0.0, time_limit_s=9, seed=0)
    least_s = min(found.makespan_s for found in all_orders(plan))
    assert attempt.orders is not None
    assert (value_s(problem, attempt.orders), attempt.bound_s) == pytest.approx((least_s, least_s))


def test_solvers_agree_on_whole_backwards_under_a_limit() -> None:
    """B frees all that its micro-batch holds, stash included: both solvers find the same optimum under a limit."""
    problem = running_example(False, microbatches=4)  # 24 slots without a limit
    tight = replace(problem, workers=replace(problem.workers, limit_bytes=2 * problem.workers.activation_bytes))
    attempts = [_attempt(solver, tight) for solver in SOLVERS]
    assert [attempt.status for attempt in attempts] == ["optimal", "optimal"]
    assert attempts[0].bound_s == attempts[1].bound_s == 30


def test_cp_sat_proves_what_bounds_do_not_know() -> None:
    """With memory for one micro-batch a worker, 61 slots are the optimum: CP-SAT proves it, the bounds say less."""
    problem = running_example(True)
    tight = replace(problem, workers=replace(problem.workers, limit_bytes=problem.workers.activation_bytes))
    attempt = _attempt(CpSatSolver(), tight)
    assert (attempt.status, attempt.bound_s) == ("optimal", 61.0)
    assert lower_bound(tight).value_s < 61


@settings(max_examples=12, deadline=None)
@given(plan=plans(max_pp=3, max_dp=2, max_microbatches=2), tight=st.booleans())
def test_solvers_agree_on_unlike_times(plan: Plan, tight: bool) -> None:
    """Constraints over rounded times and a MILP over floats come to the same makespan, whatever the times."""
    plan = replace(plan, templates=tuple(map(_without_zeros, plan.templates)), prediction=None)
    problem = problem_of(limited_to_its_peaks(plan) if tight else plan).with_objective(False)
    start = codes_of(plan, problem)
    cp_sat, milp = (
        solver.improve(problem, start, 0.0, time_limit_s=9, seed=0) for solver in (CpSatSolver(), MilpSolver())
    )
    assert cp_sat.status == "optimal"
    assert cp_sat.bound_s == pytest.approx(value_s(problem, cp_sat.orders or start), rel=ROUNDING)
    assert value_s(problem, milp.orders or start) == pytest.approx(cp_sat.bound_s, rel=1e-6)
    assert milp.bound_s == pytest.approx(cp_sat.bound_s, rel=1e-5)


def _without_zeros(template: Template) -> Template:
    """Operations that all take time: those that take none leave their order open."""
    stages = (
        replace(
            stage,
            forward_s=stage.forward_s or 0.7,
            backward_input_s=stage.backward_input_s or 0.7,
            backward_weight_s=stage.backward_weight_s or 0.7,
        )
        for stage in template.stages
    )
    return replace(template, stages=tuple(stages))


@pytest.mark.parametrize("solver", SOLVERS, ids=["milp", "cp-sat"])
def test_a_period_that_only_idling_could_shorten_stays_open(solver: ExactSolver) -> None:
    """A stage that held its first F back would have a shorter window; orders cannot say so, so no proof is claimed."""
    plan = hand_plan({"0/0": "F0 F1 I0 W0 I1 W1", "0/1": "F0 I0 W0 F1 I1 W1"}, 2)
    first, last = plan.templates[0].stages
    stages = (replace(first, forward_s=10.0), replace(last, allreduce_s=100.0))
    problem = problem_of(replace(plan, templates=(replace(plan.templates[0], stages=stages),))).with_objective(True)
    attempt = solver.improve(problem, codes_of(plan, problem), 0.0, time_limit_s=5, seed=0)
    assert value_s(problem, codes_of(plan, problem)) == 113  # F0 at 10, the last W ends at 23
    assert (attempt.orders, attempt.status, attempt.bound_s) == (None, "limit", 106.0)


@pytest.mark.parametrize(
    ("solver", "limit"), [(MilpSolver(), "milp.MOST_PAIRS"), (CpSatSolver(), "cp_sat.MOST_OPERATIONS")]
)
def test_what_is_too_large_is_left_alone(solver: ExactSolver, limit: str) -> None:
    """Models that no solver could do anything with are not even built."""
    problem = running_example(True)
    with patch(f"rtk.planners.scheduling.{limit}", 10):
        attempt = _attempt(solver, problem, seconds=60.0)
    assert (attempt.orders, attempt.status) == (None, "limit")


@given(plan=plans(max_pp=3, max_microbatches=4), staggered=st.booleans())
def test_whole_numbers_never_take_longer(plan: Plan, staggered: bool) -> None:
    """In whole units orders take as long as in floats, where a unit divides all times, and else hardly less."""
    problem = problem_of(plan).with_objective(staggered)
    start = codes_of(plan, problem)
    exact_s = value_s(problem, start)
    instance = instance_of(problem, exact_s)
    starts = instance.starts(start)
    assert all(starts[b] >= starts[a] + instance.durations[a] + lag for a, b, lag in instance.arcs)
    assert instance.bound_s(instance.value(starts)) == pytest.approx(exact_s, rel=ROUNDING)
    assert instance.value(starts) <= instance.most(starts, exact_s)
    if not staggered:  # the period of orders in FIFO may be another, as they may begin a window earlier
        assert value_s(problem, instance.orders(starts)) <= exact_s * (1 + ROUNDING)


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ((0.0, 0.0), 1.0),
        ((3.0, 0.0, 2.0), 1.0),
        ((0.1, 0.2, 0.3), 0.1),
        ((0.1 * 3, 1.1 * 3.7), 0.01),
        ((2e-3 / 3, 1e-3), 1e-3 / 3),
        ((1.0, 2**0.5), None),
        ((1.0, 1e-9), None),
    ],
)
def test_units_that_divide_all_times_are_found(values: tuple[float, ...], unit: float | None) -> None:
    """Times that are multiples of a unit up to the rounding of floats are counted in it; others have none."""
    assert common_unit(values, least=1e-6) == (unit if unit is None else pytest.approx(unit))


def test_same_seed_same_orders() -> None:
    """CP-SAT's orders depend on the problem and the seed only, unless time runs out."""
    problem = running_example(True)
    assert _attempt(CpSatSolver(), problem) == _attempt(CpSatSolver(), problem)


def test_cbc_stands_in_for_highs() -> None:
    """Without highspy the MILP is solved by the CBC that pulp brings, with the same optimum."""
    plan = hand_plan({f"0/{i}": "F0 I0 W0 F1 I1 W1 F2 I2 W2" for i in range(2)}, 3, limit_bytes=2.0)
    problem = problem_of(plan)
    with patch.dict(sys.modules, {"highspy": None}):
        attempt = _attempt(MilpSolver(), problem)
    assert attempt.solver.startswith("CBC")
    assert (attempt.status, attempt.bound_s) == ("optimal", _attempt(MilpSolver(), problem).bound_s)


def test_a_missing_cp_sat_is_named_with_the_way_to_get_it() -> None:
    """Without OR-tools, asking for CP-SAT says what to install; auto takes the MILP."""
    problem = running_example(True)
    with patch.dict(sys.modules, {"ortools": None, "ortools.sat": None, "ortools.sat.python": None}):
        with pytest.raises(InvalidInputError) as caught:
            _attempt(CpSatSolver(), problem)
        assert "rtk-train[cp-sat]" in (caught.value.fix or "")
    with patch("rtk.planners.scheduling.solve.find_spec", return_value=None):
        assert isinstance(exact_solver("auto", 1.0), MilpSolver)


@pytest.mark.parametrize(("name", "time_limit_s"), [("heuristic", 9.0), ("auto", 0.0), ("milp", 0.0), ("cp-sat", 0.0)])
def test_no_time_no_solver(name: str, time_limit_s: float) -> None:
    """The heuristics need no exact solver, and an exact solver needs time."""
    assert exact_solver(name, time_limit_s) is None  # type: ignore[arg-type]


def _hard() -> Problem:
    """A pipeline that no solver finishes in seconds: eight unlike stages under a tight memory limit."""
    order = " ".join(f"F{j} I{j} W{j}" for j in range(30))
    plan = hand_plan({f"0/{i}": order for i in range(8)}, 30, limit_bytes=5.0, delay_s=2.0)
    template = plan.templates[0]
    stages = tuple(replace(s, forward_s=5.0 + i, backward_weight_s=12.0 - i) for i, s in enumerate(template.stages))
    return problem_of(replace(plan, templates=(replace(template, stages=stages),)))


@pytest.mark.parametrize("solver", SOLVERS, ids=["milp", "cp-sat"])
def test_time_limits_are_kept(solver: ExactSolver) -> None:
    """A search that cannot end in time, nor within that of a test, ends with the limit and with a true bound."""
    problem = _hard()
    attempt = _attempt(solver, problem, seconds=1.0)
    assert attempt.status == "limit"
    assert attempt.bound_s <= value_s(problem, list_schedule(problem, _one_by_one(problem)))


INTERRUPTED = """
import sys
from rtk.planners.scheduling import exact_solver as interrupt
from rtk.tests.planners.test_exact import SOLVERS, _attempt, _hard

def record(run, ended, record=interrupt._record):
    print("solving", flush=True)
    record(run, ended)

interrupt._record = record
attempt = _attempt(SOLVERS[int(sys.argv[1])], _hard(), seconds=100)
print(attempt.status, attempt.bound_s > 0)
"""


@pytest.mark.checkout
@pytest.mark.parametrize("number", [0, 1], ids=["milp", "cp-sat"])
def test_ctrl_c_keeps_the_best_so_far(number: int) -> None:
    """A real SIGINT to a process that is solving ends the search, not the process: what it has is returned."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", INTERRUPTED, str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "solving\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=90)[0].split() == ["interrupted", "True"]


def test_orders_over_a_limit_are_seen() -> None:
    """The solvers' own memory check counts as the checker does."""
    plan = hand_plan({"0/0": "F0 F1 I0 W0 I1 W1"}, 2, limit_bytes=1.5)
    problem = problem_of(plan)
    assert not keeps_limits(problem, codes_of(plan, problem))
    assert keeps_limits(problem, list_schedule(problem, _one_by_one(problem)))
    assert evaluate(plan).peak_memory_bytes == (2.0,)


def test_only_valid_orders_are_taken() -> None:
    """Shorter orders are no better if they break a limit or deadlock."""
    limited = hand_plan({"0/0": "F0 F1 I0 W0 I1 W1", "0/1": "F0 F1 I0 I1 W0 W1"}, 2, limit_bytes=1.0)
    problem = problem_of(limited)
    best = Best(problem, list_schedule(problem, _one_by_one(problem)))
    before_s = best.value_s
    best.offer(codes_of(limited, problem))
    deadlocked = hand_plan({"0/0": "F0 I0 W0 F1 I1 W1", "0/1": "F1 I1 W1 F0 I0 W0"}, 2)
    best.offer(codes_of(deadlocked, problem))
    assert value_s(problem, codes_of(limited, problem)) < before_s
    assert (best.orders, best.value_s) == (None, before_s)
