"""CP-SAT: constraint programming with intervals, by OR-tools.

Operations are intervals that do not overlap on a worker, arcs are precedences, and a worker's memory is a cumulative
resource: a micro-batch takes its activation between F's start and the end of I (or B), its stash until W's end. The
makespan follows all ends; for the period each stage has a window, and a timing may hold a stage's first operation back
to shorten it. Orders are executed as soon as possible, so they may come out with a longer period than the solver's;
the bound holds all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from time import monotonic
from typing import Any, Literal

from ...schemas.errors import InvalidInputError, installing
from .exact_solver import Attempt, Best, BestOrders, Instance, instance_of, run_until_interrupted
from .problem import Orders, Problem

MOST_OPERATIONS = 50_000
# The period is minimized in steps of its 8192nd part, then in sixteenths of them. Its constraints run in a circle, on
# which propagation advances by what is lacking: at full resolution that would take for ever.
FIRST_STEPS = 2**13
REFINEMENT = 2**4


class CpSatSolver:
    """The ExactSolver by CP-SAT; with one thread, so equal seeds give equal orders unless time runs out."""

    most_operations = MOST_OPERATIONS

    def improve(self, problem: Problem, start: Orders, bound_s: float, *, time_limit_s: float, seed: int) -> Attempt:
        """Look for better orders than `start`; as ExactSolver says."""
        deadline = monotonic() + time_limit_s
        name = solver_name()
        if problem.operations > MOST_OPERATIONS:
            return Attempt(None, 0.0, "limit", name)
        best = Best(problem, start)
        best.prove(bound_s)
        try:
            ended = search(instance_of(problem, best.value_s), best, start, deadline, seed)
        except KeyboardInterrupt:
            ended = "interrupted"
        return best.attempt(ended, name)


def solver_name() -> str:
    """CP-SAT and the first two numbers of OR-tools' version.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        from ortools.sat.python import cp_model  # noqa: F401
    except ImportError as error:
        raise InvalidInputError("CP-SAT is not installed", where="--solver", fix=installing("cp-sat")) from error
    return f"CP-SAT {'.'.join(version('ortools').split('.')[:2])}"


def search(
    instance: Instance, best: BestOrders, start: Orders, deadline: float, seed: int
) -> Literal["limit", "interrupted"]:
    """Minimize in steps that get finer and finer, until a proof, the deadline or Ctrl-C."""
    starts = instance.starts(start)
    for step in _steps(instance, instance.most(starts, best.value_s)):
        if best.proven:
            break
        model = _CpSatModel(instance, starts, best, step)
        ended = model.solve(deadline - monotonic(), seed)
        if ended != "optimal":
            return ended
        starts = model.starts
    return "limit"


def _steps(instance: Instance, most: int) -> Iterator[int]:
    """The steps in which the objective is counted, from coarse to 1."""
    step = most // FIRST_STEPS if instance.staggered else 1
    while step > 1:
        yield step
        step //= REFINEMENT
    yield 1


class _CpSatModel:
    """The model of an instance; its objective counts steps of so many units.

    Args:
        instance: what is ordered.
        starts: a valid schedule of it, from which the search begins.
        best: the best value and bound so far; receives better ones.
        step: units of time that one step has.
    """

    def __init__(self, instance: Instance, starts: list[int], best: BestOrders, step: int) -> None:
        from ortools.sat.python import cp_model

        self._instance, self.starts, self._best, self._step = instance, starts, best, step
        self._model = cp_model.CpModel()
        self._most = instance.most(starts, best.value_s)
        # A stage's first F ends within the window of stage 0, and so its last operation within a second one.
        self._horizon = self._most * (1 + instance.staggered)
        self._start = [self._number(self._horizon - d, at) for d, at in zip(instance.durations, starts, strict=True)]
        self._end = [start + d for start, d in zip(self._start, instance.durations, strict=True)]
        for earlier, later, lag in self._instance.arcs:
            self._model.add(self._start[later] >= self._end[earlier] + lag)
        fixed = self._model.new_fixed_size_interval_var
        for operations in self._instance.operations_of.values():
            busy = [fixed(self._start[o], self._instance.durations[o], "") for o in operations]
            self._model.add_no_overlap(busy)
        # Whole and stashed micro-batches under the limit of their worker.
        for memory in self._instance.memory.values():
            held, sizes = [], []
            for forward, backward, weight, activation, stash in memory.held:
                held.append(self._between(self._start[forward], backward, self.starts[forward]))
                sizes.append(activation)
                if weight is not None and stash:
                    ended = self.starts[backward] + self._instance.durations[backward]
                    held.append(self._between(self._end[backward], weight, ended))
                    sizes.append(stash)
            self._model.add_cumulative(held, sizes, memory.limit)
        self._objective = self._add_objective()

    def solve(self, time_limit_s: float, seed: int) -> Literal["optimal", "limit", "interrupted"]:
        """Search; `starts` and the best receive what is found, the best what is proven."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.0, time_limit_s)
        solver.parameters.random_seed = seed % 2**31
        solver.parameters.num_workers = 1
        solver.parameters.catch_sigint_signal = False
        # To branch on which operation comes first finds proofs that branching on start times does not.
        solver.parameters.use_dynamic_precedence_in_disjunctive = True
        solver.parameters.use_strong_propagation_in_disjunctive = True
        # The linear relaxation and probing cost more here than they give.
        solver.parameters.linearization_level = 0
        solver.parameters.cp_model_probing_level = 0
        statuses: list[Any] = []
        listener = self._listener() if self._instance.staggered else None
        interrupted = run_until_interrupted(
            lambda: statuses.append(solver.solve(self._model, listener)), solver.stop_search
        )
        if statuses[0] in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.starts = [solver.value(start) for start in self._start]
            self._best.offer(self._instance.orders(self.starts))
        if statuses[0] in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
            # One step fewer does not suffice: at least one unit more is needed.
            units = self._step * (round(solver.best_objective_bound) - 1) + 1
            self._best.prove(self._instance.bound_s(units))
        if interrupted:
            return "interrupted"
        return "optimal" if statuses[0] == cp_model.OPTIMAL else "limit"

    def _listener(self) -> Any:
        """Offers every schedule on the way: its orders may have the least period though its own is not the least."""
        from ortools.sat.python import cp_model

        model = self

        class Listener(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self) -> None:
                starts = [self.value(start) for start in model._start]
                model._best.offer(model._instance.orders(starts))

        return Listener()

    def _number(self, most: int, hint: int, least: int = 0) -> Any:
        """A variable with the value it has in the schedule to begin with."""
        variable = self._model.new_int_var(least, most, "")
        self._model.add_hint(variable, hint)
        return variable

    def _between(self, begin: Any, last: int, begin_hint: int) -> Any:
        """The interval from a moment to the end of an operation."""
        size_hint = self.starts[last] + self._instance.durations[last] - begin_hint
        return self._model.new_interval_var(begin, self._number(self._horizon, size_hint), self._end[last], "")

    def _add_objective(self) -> Any:
        """As few steps as cover every window."""
        most, least = self._most, max(0, min(self._most, self._instance.least(self._best.bound_s)))
        steps = self._number(_steps_in(most, self._step), _steps_in(most, self._step), _steps_in(least, self._step))
        for window in self._instance.windows:
            begin: Any = 0
            if not window.from_zero:
                begin = self._number(self._horizon, min(self.starts[o] for o in window.firsts))
                for first in window.firsts:
                    self._model.add(begin <= self._start[first])
            self._model.add(steps * self._step >= window.overhead)
            for last in window.lasts:
                self._model.add(steps * self._step >= self._end[last] - begin + window.overhead)
        self._model.minimize(steps)
        return steps


def _steps_in(units: int, step: int) -> int:
    """How many steps cover so many units."""
    return -(-units // step)
