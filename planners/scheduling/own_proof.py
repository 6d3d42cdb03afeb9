"""What an exact solver that was asked for by name proves itself.

Orders that reach the planner's bound are proven optimal before any solver is asked, and a solver that is asked begins
with that bound. Who names a solver wants its own word: it gets the finished plan's routing and orders, no bound, and
the time that is left. Nothing of the plan changes, but that it tells of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from .exact.choose import exact_solver
from .problem import codes_of, problem_of
from .proof import ROUNDING

if TYPE_CHECKING:
    from ...schemas.plan import Plan
    from .solve import Effort

OPTION = "solver_proof"  # of the planner


def with_own_proof(make: Callable[[], Plan], effort: Effort) -> Plan:
    """A plan; where a solver is named its options tell what that proves, over all orders of the plan's routing.

    Options get `solver_proof`: `solver`, its name and version; `operations`; `is_asked`, False where these are too many
    for it or no time is left; and `lower_bound_s` and `proof`, as in a prediction, for what it proves itself.

    Args:
        make: plans, with the same effort.
        effort: whose time limit is for both together.

    Raises:
        InvalidInputError: the solver is not installed.
    """
    deadline = monotonic() + effort.time_limit_s
    plan = make()
    if effort.solver not in ("milp", "cp-sat"):
        return plan
    told = {OPTION: _proof(plan, replace(effort, time_limit_s=deadline - monotonic()))}
    return replace(plan, planner=replace(plan.planner, options=plan.planner.options | told))


def _proof(plan: Plan, effort: Effort) -> dict[str, Any]:
    assert plan.prediction is not None
    problem = problem_of(plan)
    solver = None if effort.solver == "rules" else exact_solver(effort.solver, effort.time_limit_s)
    told = {"solver": effort.solver, "operations": problem.operations, "is_asked": False, "lower_bound_s": 0.0}
    if solver is None or problem.operations > solver.most_operations:
        return told | {"proof": "none"}
    start = codes_of(plan, problem)
    attempt = solver.improve(problem, start, 0.0, time_limit_s=effort.time_limit_s, seed=effort.seed)
    taken_s = plan.prediction.iteration_time_s
    is_optimal = taken_s <= attempt.bound_s * (1 + ROUNDING)
    return told | {
        "solver": attempt.solver,
        "is_asked": True,
        "lower_bound_s": taken_s if is_optimal else attempt.bound_s,
        "proof": "optimal" if is_optimal else "bound" if attempt.bound_s > 0 else "none",
    }
