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

from rtk.planners.scheduling.bounds.lower_bound import lower_bound
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.exact.best import keeps_limits
from rtk.planners.scheduling.exact.choose import exact_solver
from rtk.planners.scheduling.exact.cp_sat import CpSatSolver
from rtk.planners.scheduling.exact.milp import MilpSolver
from rtk.planners.scheduling.exact.solver import Attempt, ExactSolver
from rtk.planners.scheduling.list_schedule import list_schedule
from rtk.planners.scheduling.problem import Problem, codes_of, problem_of, with_orders
from rtk.planners.scheduling.retime import value_s
from rtk.planners.scheduling.rules import Priority, Rules
from rtk.schemas.check import check_plan
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan

from ..strategies import hand_plan, limited_to_its_peaks, plans
from .every_order import all_orders, limited_pipelines
from .examples import running_example

ROUNDING = 1e-9
SOLVERS: tuple[ExactSolver, ...] = (MilpSolver(), CpSatSolver())


def _one_by_one(problem: Problem) -> Rules:
    """Rules that keep a single micro-batch in flight: poor orders, within any memory limit that admits one."""
    count = len(problem.job_counts)
    none = [problem.jobs] * count
    return Rules([1] * count, [1] * count, [0.0] * count, none, [Priority.INPUT_FIRST] * count)


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


def test_cp_sat_proves_the_period_of_slipstreams_example() -> None:
    """With a staggered optimizer the period is 27 slots: the work of the busiest peers."""
    problem = running_example(True).with_objective(True)
    attempt = _attempt(CpSatSolver(), problem)
    assert attempt.orders is not None
    assert (value_s(problem, attempt.orders), attempt.status) == (27.0, "optimal")


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
        assert "rtk[cp-sat]" in (caught.value.fix or "")
    with patch("rtk.planners.scheduling.exact.choose.find_spec", return_value=None):
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
    """A search that cannot end in time ends with the limit, building the model aside, and with a true bound."""
    problem = _hard()
    start_s = time.monotonic()
    attempt = _attempt(solver, problem, seconds=1.0)
    assert time.monotonic() - start_s < 10
    assert attempt.status == "limit"
    assert attempt.bound_s <= value_s(problem, list_schedule(problem, _one_by_one(problem)))


INTERRUPTED = """
import sys
from rtk.tests.planners.test_exact import SOLVERS, _attempt, _hard
print("begin", flush=True)
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
        assert process.stdout.readline() == "begin\n"
        time.sleep(4)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[0].split() == ["interrupted", "True"]


def test_orders_over_a_limit_are_seen() -> None:
    """The solvers' own memory check counts as the checker does."""
    plan = hand_plan({"0/0": "F0 F1 I0 W0 I1 W1"}, 2, limit_bytes=1.5)
    problem = problem_of(plan)
    assert not keeps_limits(problem, codes_of(plan, problem))
    assert keeps_limits(problem, list_schedule(problem, _one_by_one(problem)))
    assert evaluate(plan).peak_memory_bytes == (2.0,)
