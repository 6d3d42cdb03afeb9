"""From a problem to orders: bound, portfolio, local search, and exact solvers on what is left open.

Each part stops at the proven lower bound, so most problems never see the next one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from .edge_finding import Refuter
from .list_schedule import DispatchRules, ListScheduler
from .local_search import anneal, hold_back, improve_orders, portfolio
from .lower_bound import lower_bound
from .problem import ROUNDING, Orders, Problem, Proven, codes_of, problem_of
from .retime import value_s

if TYPE_CHECKING:
    from ...schemas.plan import Plan

from importlib.util import find_spec

from .exact_solver import Attempt, ExactSolver


def exact_solver(name: Literal["auto", "heuristic", "milp", "cp-sat"], time_limit_s: float) -> ExactSolver | None:
    """The solver of a name; "auto" takes CP-SAT where it is installed, else the MILP, if it has time at all.

    Raises:
        InvalidInputError: the solver is not installed.
    """
    if name == "heuristic" or time_limit_s <= 0:
        return None
    if name == "cp-sat" or (name == "auto" and find_spec("ortools") is not None):
        from .cp_sat import CpSatSolver

        return CpSatSolver()
    from .milp import MilpSolver

    return MilpSolver()


SolverName = Literal["auto", "rules", "heuristic", "milp", "cp-sat"]

# How many rules are tried before machine code may be worth loading.
FIRST_LOOK = 12
# How many schedules with stages held back are tried, at most.
HELD_RUNS = 60
# How many moves of operations are tried, and how many rules by each of several annealings.
MOVES = 20_000
ANNEALING_RUNS = 6000
STARTS = 3
FEWEST_RUNS = 50
# Operations that each part may schedule in all: a second or two of machine code.
BUDGET_OPERATIONS = 50_000_000


@dataclass(frozen=True)
class Effort:
    """How hard to try.

    Attributes:
        solver: "rules" tries a dozen priority rules, in milliseconds, for whoever waits; "heuristic" stops after the
            local search; "milp" and "cp-sat" polish with that solver; "auto" takes CP-SAT where it is installed, else
            the MILP, when `time_limit_s` leaves time for it.
        time_limit_s: of the exact solver, in s; 0 means no exact solver under "auto".
        seed: of every random choice.
    """

    solver: SolverName = "auto"
    time_limit_s: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Solution(Proven):
    """Orders as operation codes, their objective, and the proven bound on it (s); `found_by` names the part."""

    orders: Orders
    value_s: float
    bound_s: float
    found_by: str


def solve(
    problem: Problem, effort: Effort = Effort(), *, first: Sequence[DispatchRules] = (), start: Orders | None = None
) -> Solution:
    """Order a problem's operations for the least makespan, or period.

    Args:
        problem: what to order.
        effort: how hard to try.
        first: rules to try before those of the portfolio, such as a method's own.
        start: orders that are known already; what is found is no worse.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
        InvalidInputError: the solver is not installed.
    """
    candidates = [*first, *portfolio(problem)]
    refuter = Refuter(problem)
    solution = Solution([], float("inf"), lower_bound(problem).value_s, "nothing")
    if start is not None:
        solution = _better(solution, value_s(problem, start), start, "start")
    parts: tuple[Callable[[Solution], Solution], ...] = (
        lambda best: _try_rules(problem, candidates[:FIRST_LOOK], best),
        lambda best: _try_rules(problem, candidates[FIRST_LOOK:], best),
        lambda best: _hold_back(problem, candidates[0], best),
        lambda best: _move_operations(problem, best, effort.seed),
        lambda best: _anneal(problem, candidates, best, effort.seed),
        lambda best: _move_operations(problem, best, effort.seed + 1),
        lambda best: _polish(problem, best, effort),
    )
    for part in parts[:1] if effort.solver == "rules" else parts:
        solution = part(solution)
        if not solution.optimal:
            solution = replace(solution, bound_s=refuter.bound_s(solution.bound_s, solution.value_s))
        if solution.optimal:
            break
    return solution


def _try_rules(problem: Problem, candidates: Sequence[DispatchRules], best: Solution) -> Solution:
    """The best by these rules, as far as the budget goes."""
    tried = candidates[: max(FIRST_LOOK, BUDGET_OPERATIONS // problem.operations)]
    scheduler = ListScheduler(problem, runs=len(tried))
    for rules in tried:
        if scheduler.run(rules) < best.value_s:
            best = _better(best, value_s(problem, scheduler.orders()), scheduler.orders(), "portfolio")
            if best.optimal:
                break
    return best


def _hold_back(problem: Problem, rules: DispatchRules, best: Solution) -> Solution:
    """Rules with stages held back, which pays for the period only."""
    if not problem.staggered:
        return best
    runs = min(HELD_RUNS, BUDGET_OPERATIONS // problem.operations)
    scheduler = ListScheduler(problem, runs)
    found, found_s = hold_back(problem, scheduler, rules, goal_s=best.goal_s, runs=runs)
    scheduler.run(found)
    return _better(best, found_s, scheduler.orders(), "holding back")


def _move_operations(problem: Problem, best: Solution, seed: int) -> Solution:
    runs = min(MOVES, BUDGET_OPERATIONS // problem.operations)
    orders, found_s = improve_orders(problem, best.orders, bound_s=best.goal_s, runs=runs, chance=random.Random(seed))
    return _better(best, found_s, orders, "moves")


def _anneal(problem: Problem, candidates: Sequence[DispatchRules], best: Solution, seed: int) -> Solution:
    """Annealing from the best rules, as far as the budget goes."""
    runs = min(ANNEALING_RUNS, BUDGET_OPERATIONS // problem.operations // STARTS)
    if runs < FEWEST_RUNS:
        return best
    scheduler = ListScheduler(problem, runs=len(candidates) + STARTS * runs)
    ranked = sorted(candidates, key=scheduler.run)
    chance = random.Random(seed)
    for start in ranked[:STARTS]:
        rules, found_s = anneal(problem, start, scheduler.run, bound_s=best.goal_s, runs=runs, chance=chance)
        if found_s < best.value_s:
            scheduler.run(rules)
            best = _better(best, value_s(problem, scheduler.orders()), scheduler.orders(), "annealing")
        if best.optimal:
            break
    return best


def _polish(problem: Problem, best: Solution, effort: Effort) -> Solution:
    """What an exact solver makes of it, if one is asked for."""
    solver = None if effort.solver == "rules" else exact_solver(effort.solver, effort.time_limit_s)
    if solver is None:
        return best
    attempt = solver.improve(problem, best.orders, best.bound_s, time_limit_s=effort.time_limit_s, seed=effort.seed)
    best = replace(best, bound_s=max(best.bound_s, attempt.bound_s))
    if attempt.orders is None:
        return best
    return _better(best, value_s(problem, attempt.orders), attempt.orders, attempt.solver)


def _better(best: Solution, found_s: float, orders: Orders, found_by: str) -> Solution:
    return replace(best, orders=orders, value_s=found_s, found_by=found_by) if found_s < best.value_s else best


# What an exact solver that was asked for by name proves itself.
#
# Orders that reach the planner's bound are proven optimal before any solver is asked, and a solver that is asked begins
# with that bound. Who names a solver wants its own word: it gets the finished plan's routing and orders, no bound, and
# the time that is left. Nothing of the plan changes, but that it tells of it.


OPTION = "solver_proof"  # of the planner


def ask_solver(plan: Plan, effort: Effort) -> tuple[int, Attempt | None]:
    """How many operations a plan has, and what the solver makes of them; None where it is not asked."""
    problem = problem_of(plan)
    solver = None if effort.solver == "rules" else exact_solver(effort.solver, effort.time_limit_s)
    if solver is None or problem.operations > solver.most_operations:
        return problem.operations, None
    start = codes_of(plan, problem)
    attempt = solver.improve(problem, start, 0.0, time_limit_s=effort.time_limit_s, seed=effort.seed)
    return problem.operations, attempt


def with_own_proof(
    make: Callable[[], Plan],
    effort: Effort,
    ask: Callable[[Plan, Effort], tuple[int, Attempt | None]] = ask_solver,
) -> Plan:
    """A plan; where a solver is named its options tell what that proves, over all orders of the plan's routing.

    Options get `solver_proof`: `solver`, its name and version; `operations`; `is_asked`, False where these are too many
    for it or no time is left; and `lower_bound_s` and `proof`, as in a prediction, for what it proves itself.

    Args:
        make: plans, with the same effort.
        effort: whose time limit is for both together.
        ask: asks the solver; `ask_solver` asks those for one stage a worker.

    Raises:
        InvalidInputError: the solver is not installed.
    """
    deadline = monotonic() + effort.time_limit_s
    plan = make()
    if effort.solver not in ("milp", "cp-sat"):
        return plan
    operations, attempt = ask(plan, replace(effort, time_limit_s=deadline - monotonic()))
    told = {OPTION: {"operations": operations, **_proof(plan, effort.solver, attempt)}}
    return replace(plan, planner=replace(plan.planner, options=plan.planner.options | told))


def _proof(plan: Plan, solver: SolverName, attempt: Attempt | None) -> dict[str, Any]:
    if attempt is None:
        return {"solver": solver, "is_asked": False, "lower_bound_s": 0.0, "proof": "none"}
    taken_s = plan.predicted.iteration_time_s
    is_optimal = taken_s <= attempt.bound_s * (1 + ROUNDING)
    return {
        "solver": attempt.solver,
        "is_asked": True,
        "lower_bound_s": taken_s if is_optimal else attempt.bound_s,
        "proof": "optimal" if is_optimal else "bound" if attempt.bound_s > 0 else "none",
    }
