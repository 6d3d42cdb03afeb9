"""The door to batch distribution: how many micro-batches each of some unlike pipelines gets.

Side constraints that the exact algorithms do not take make it a mathematical program in Pyomo: minimize the slowest
time (HiGHS, a mixed-integer linear program) or the sum of squares around the mean (SCIP, a convex mixed-integer
quadratic one, where the mean is a free variable: at the optimum it is the mean). Solvers keep constraints within a
millionth of a step of the slowest pipeline, so of answers that differ by less any may come.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from typing import Any, Literal

from ...schemas.errors import InfeasibleError, InvalidInputError, LimitReachedError, require_package
from ...schemas.quantities import print_time
from .exact import Groups, Pace, Range, least_variance, min_max, nearest, shared_min_max, shared_variance

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
        raise InvalidInputError(
            f"{print_time(time_limit_s)} is no limit", where="--time-limit", fix="give a finite number"
        )
    if objective == "variance":
        require_package("pyscipopt", "--objective variance")
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
            f"{SOLVERS[objective].partition('_')[0]} has not proven an optimum in {print_time(time_limit_s)}",
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


Objective = Literal["min-max", "variance"]
Solver = Literal["exact", "pyomo"]

MOST_MICROBATCHES = 10**8


@dataclass(frozen=True)
class Distribution:
    """Micro-batches of each pipeline, the time of the slowest with them, in s, and what was minimized."""

    microbatches: tuple[int, ...]
    slowest_s: float
    objective: Objective


def distribute(
    paces: Sequence[Pace],
    microbatches: int,
    multiple_of: int = 1,
    objective: Objective = "min-max",
    solver: Solver = "exact",
    at_least: Sequence[int] | None = None,
    at_most: Sequence[int] | None = None,
    shared: Sequence[int] | None = None,
    time_limit_s: float = 60.0,
) -> Distribution:
    """Distribute micro-batches over pipelines of unlike paces; each gets at least one.

    Args:
        paces: of the pipelines.
        microbatches: of all pipelines.
        multiple_of: every pipeline gets a multiple of it, for 1F1B its stages (Greyhound, footnote 4).
        objective: the least time of the slowest pipeline, or the least sum of squares around the mean of all times
            (Greyhound, equation 1; with `shared` Oobleck's equation 6).
        solver: the exact algorithms, or the same problem stated in Pyomo.
        at_least, at_most: bounds on the micro-batches of each pipeline; only with Pyomo.
        shared: how many pipelines in a row get equal numbers, adding up to all of them: the instances of one template,
            which have equal paces. None: each pipeline has a number of its own.
        time_limit_s: of Pyomo's solvers; the exact algorithms have none.

    Raises:
        InvalidInputError: a value is out of its range, or the solver does not take it or is not installed.
        InfeasibleError: the micro-batches cannot be split; names the nearest number that can.
        LimitReachedError: Pyomo's solver ended without a proof.
    """
    groups = _groups(paces, multiple_of, shared)
    units = _require_number("--microbatches", microbatches) // multiple_of
    if solver == "exact":
        for option, bounds in (("--at-least", at_least), ("--at-most", at_most)):
            if bounds is not None:
                raise InvalidInputError("the exact algorithms take no bounds", where=option, fix="use --solver pyomo")
    ranges = _ranges(groups, at_least, at_most)
    _require_split(ranges, multiple_of, microbatches)
    if solver == "exact":
        alone = all(count == 1 for count in groups.counts)
        if objective == "min-max":
            found = min_max(groups, units) if alone else shared_min_max(groups, units)
        else:
            found = least_variance(groups, units) if alone else shared_variance(groups, units)
    else:
        least, most = [part.least for part in ranges], [units if part.most is None else part.most for part in ranges]
        found = solve_in_pyomo(groups, units, objective, least, most, time_limit_s)
    each = tuple(n * multiple_of for n, count in zip(found, groups.counts, strict=True) for _ in range(count))
    slowest_s = float(max(pace.time_s(n) for pace, n in zip(paces, each, strict=True)))
    return Distribution(each, slowest_s, objective)


def _groups(paces: Sequence[Pace], multiple_of: int, shared: Sequence[int] | None) -> Groups:
    """The groups of pipelines, checked."""
    if not paces:
        raise InvalidInputError("there are no pipelines", where="--times", fix="give one time for each pipeline")
    for index, pace in enumerate(paces):
        if not (isfinite(pace.fixed_s) and isfinite(pace.per_microbatch_s) and pace.per_microbatch_s > 0):
            each, fixed = print_time(pace.per_microbatch_s), print_time(pace.fixed_s)
            what = f"pipeline {index} takes {each} a micro-batch and {fixed} beside them"
            raise InvalidInputError(what, where="--times", fix="times are finite, those of micro-batches above 0")
    _require_number("--multiple-of", multiple_of)
    counts = [1] * len(paces) if shared is None else list(shared)
    if min(counts) < 1 or sum(counts) != len(paces):
        what = f"groups of {counts} pipelines are not {len(paces)} pipelines"
        raise InvalidInputError(what, where="shared", fix=f"give numbers above 0 of sum {len(paces)}")
    firsts = list(accumulate(counts[:-1], initial=0))
    for first, count in zip(firsts, counts, strict=True):
        if len(set(paces[first : first + count])) > 1:
            what = f"pipelines {first} to {first + count - 1} share a number and are not equally fast"
            raise InvalidInputError(what, where="shared", fix="group pipelines of one template")
    return Groups([paces[first] for first in firsts], counts, multiple_of)


def _require_number(option: str, number: int) -> int:
    if not 1 <= number <= MOST_MICROBATCHES:
        raise InvalidInputError(f"{number} is out of range", where=option, fix=f"give 1 to {MOST_MICROBATCHES}")
    return number


def _ranges(groups: Groups, at_least: Sequence[int] | None, at_most: Sequence[int] | None) -> list[Range]:
    """What each group can take, in units."""
    found: list[Range] = []
    firsts = accumulate(groups.counts[:-1], initial=0)
    for first, count in zip(firsts, groups.counts, strict=True):
        low = max(_bounds_of("--at-least", at_least, groups, first, count), default=1)
        high = min(_bounds_of("--at-most", at_most, groups, first, count), default=None)
        least = -(-low // groups.multiple_of)
        most = None if high is None else high // groups.multiple_of
        if most is not None and most < least:
            number = f"multiple of {groups.multiple_of}" if groups.multiple_of > 1 else "number"
            raise InfeasibleError(
                f"pipeline {first} can have no {number} from {low} to {high}",
                where="--at-most",
                fix=f"raise it to {least * groups.multiple_of}",
            )
        found.append(Range(count, least, most))
    return found


def _bounds_of(option: str, bounds: Sequence[int] | None, groups: Groups, first: int, count: int) -> Sequence[int]:
    """The bounds of one group's pipelines; none, or as many."""
    if bounds is None:
        return ()
    pipelines = sum(groups.counts)
    if len(bounds) != pipelines:
        what = f"{len(bounds)} bounds for {pipelines} pipelines"
        raise InvalidInputError(what, where=option, fix="give one number, or one per pipeline")
    return [_require_number(option, bound) for bound in bounds[first : first + count]]


def _require_split(ranges: Sequence[Range], multiple_of: int, microbatches: int) -> None:
    """Raise InfeasibleError unless so many micro-batches can be split; Oobleck's "recommends an adjusted batch"."""
    possible = nearest(ranges, multiple_of, microbatches)
    if microbatches in possible:
        return
    pipelines = sum(part.count for part in ranges)
    conditions = [f"in multiples of {multiple_of}"] if multiple_of > 1 else []
    if pipelines > len(ranges):
        conditions.append("with equal numbers in " + ", ".join(str(part.count) for part in ranges) + " of them")
    if any(part.least > 1 or part.most is not None for part in ranges):
        conditions.append("within their bounds")
    noun = "1 micro-batch" if microbatches == 1 else f"{microbatches} micro-batches"
    raise InfeasibleError(
        " ".join([f"{noun} cannot be split over {pipelines} pipelines", *conditions]),
        where="--microbatches",
        fix="take " + " or ".join(str(total) for total in possible),
    )
