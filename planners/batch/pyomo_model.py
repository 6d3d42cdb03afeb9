"""The distribution as a mathematical program in Pyomo, for side constraints that the exact algorithms do not take.

Minimize the slowest time (HiGHS, a mixed-integer linear program) or the sum of squares around the mean (SCIP, a convex
mixed-integer quadratic one, where the mean is a free variable: at the optimum it is the mean). Solvers keep constraints
within a millionth of a step of the slowest pipeline, so of answers that differ by less any may come.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from ...schemas.errors import InvalidInputError, LimitReachedError
from .groups import Groups

SOLVERS = {"min-max": "highs", "variance": "scip_direct"}
# Pyomo reads a solver's log from a pipe in a thread, which SCIP does not let run: 64 KiB of log stop both for ever.
SILENCE = {"highs": {"output_flag": False}, "scip_direct": {"display/verblevel": 0}}


def solve_in_pyomo(
    groups: Groups, units: int, objective: str, least: Sequence[int], most: Sequence[int], time_limit_s: float
) -> list[int]:
    """The units of each group, with the least slowest time or the least variance.

    Args:
        groups: in any order.
        units: can be split.
        objective: `min-max` or `variance`.
        least, most: bounds on the units of each group.
        time_limit_s: for the solver.

    Raises:
        InvalidInputError: the variance is asked for, and SCIP is not installed; or the time limit is not finite.
        LimitReachedError: the time ran out before the proof.
    """
    if not isfinite(time_limit_s):
        raise InvalidInputError(f"{time_limit_s:g} s is no limit", where="--time-limit", fix="give a finite number")
    if objective == "variance":
        try:
            import pyscipopt  # noqa: F401
        except ImportError as error:
            fix = "pip install 'rtk[scip]'"
            raise InvalidInputError("SCIP, for the variance, is not installed", where="--solver", fix=fix) from error
    model = _model(groups, units, objective, least, most)
    # Solve the model to a proven optimum and load it.
    from pyomo.contrib.solver.common.factory import SolverFactory
    from pyomo.contrib.solver.common.results import SolutionStatus

    result = SolverFactory(SOLVERS[objective]).solve(
        model,
        time_limit=time_limit_s,
        threads=1,
        rel_gap=0.0,
        abs_gap=0.0,
        solver_options=SILENCE[SOLVERS[objective]],
        load_solutions=False,
        raise_exception_on_nonoptimal_result=False,
    )
    if result.solution_status != SolutionStatus.optimal:
        raise LimitReachedError(
            f"{SOLVERS[objective].partition('_')[0]} has not proven an optimum in {time_limit_s:g} s",
            where="--time-limit",
            fix="give more time, or drop the bounds and take --solver exact",
        )
    result.solution_loader.load_vars()
    return [round(model.units[group].value) for group in range(len(groups))]


def _model(groups: Groups, units: int, objective: str, least: Sequence[int], most: Sequence[int]) -> Any:
    """The model: times are counted from the one that all would share, in steps of the slowest pipeline."""
    import pyomo.environ as pyo

    step_s, balanced_s = max(groups.per_microbatch_s()) * groups.multiple_of, groups.balanced_s(units)
    fixed = (groups.fixed_s() - balanced_s) / step_s
    per_unit = groups.per_microbatch_s() * groups.multiple_of / step_s
    numbers, counts = range(len(groups)), groups.counts

    def time(group: int) -> Any:
        return float(fixed[group]) + float(per_unit[group]) * model.units[group]

    model = pyo.ConcreteModel()
    model.units = pyo.Var(numbers, domain=pyo.Integers, bounds=lambda _, group: (least[group], most[group]))
    model.split = pyo.Constraint(expr=sum(counts[group] * model.units[group] for group in numbers) == units)
    model.time = pyo.Var()  # of the slowest, or the mean
    if objective == "min-max":
        model.slowest = pyo.Constraint(numbers, rule=lambda model, group: model.time >= time(group))
        model.least = pyo.Objective(expr=model.time)
    else:
        squares = (counts[group] * (time(group) - model.time) ** 2 for group in numbers)
        model.least = pyo.Objective(expr=sum(squares))
    return model
