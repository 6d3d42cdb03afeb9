"""What an exact solver that is asked for by name proves itself, of plans with a placement and of others."""

from ...schemas.errors import InvalidInputError
from ...schemas.plan import Plan
from ..scheduling.exact_solver import Attempt
from ..scheduling.solve import Effort, ask_solver
from .exact_seats import SeatCpSat
from .problem import ordered_placed_problem


def ask_any_solver(plan: Plan, effort: Effort) -> tuple[int, Attempt | None]:
    """How many operations a plan has, and what the solver makes of them; None where it is not asked.

    Raises:
        InvalidInputError: the solver is not installed, or it takes no placement, or no pairs of passes.
    """
    if plan.may_pair:
        what = "exact solvers know no passes side by side"
        raise InvalidInputError(what, where="--solver", fix="take heuristic, or a plan without --overlap")
    if not plan.is_placed:
        return ask_solver(plan, effort)
    if effort.solver == "milp":
        raise InvalidInputError("milp is for one stage a worker", where="--solver", fix="take cp-sat")
    problem, start = ordered_placed_problem(plan)
    solver = SeatCpSat()
    if effort.time_limit_s <= 0 or problem.operations > solver.most_operations:
        return problem.operations, None
    attempt = solver.improve(problem, start, 0.0, time_limit_s=effort.time_limit_s, seed=effort.seed)
    return problem.operations, attempt
