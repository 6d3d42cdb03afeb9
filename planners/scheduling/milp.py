"""SlipStream's MILP: which operation of a worker comes before which, as binary variables.

The formulation of SlipStream (S. Gandhi et al.; the preprint of ReCycle, SOSP '24), section 4.2.2, equations 1 to 6,
with one binary for each pair of operations of a worker: 1 if the first of them comes first (the paper's O has one for
each direction, and the two sum to 1). It is tightened, without losing any optimum:

* pairs that precedences, FIFO of identical micro-batches or the value to begin with decide have no binary, and big-M is
  as small as heads and tails allow (`exact_solver.py`);
* staircase: what comes before an operation also comes before all that follow it;
* load: an operation starts after the work before it on its worker, and the objective covers the work after it;
* the proven lower bound, and the schedule to begin with.

The objective is the makespan (equation 1), or the period, whose windows may hold a stage's first operation back; as
orders are executed as soon as possible they may come out with a longer period, but the bound holds all the same.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, permutations
from math import ceil, inf
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Literal, Protocol

from .exact_solver import Attempt, Best, Precedences, earliest, instance_of, run_until_interrupted
from .problem import Orders, Problem

if TYPE_CHECKING:
    from pulp import LpAffineExpression, LpConstraint, LpProblem, LpVariable


MOST_OPERATIONS = 5_000
MOST_PAIRS = 20_000
# Up to this many units the model counts in them and the objective is whole; else in thousandths of the horizon.
MOST_UNITS = 10_000
HORIZON = 1000.0
# Solvers work with floats and tolerances: their bounds are taken with this relative margin.
MARGIN = 1e-6


class MilpSolver:
    """The ExactSolver by the MILP: HiGHS solves it, or CBC where HiGHS cannot be loaded."""

    most_operations = MOST_OPERATIONS

    def improve(self, problem: Problem, start: Orders, bound_s: float, *, time_limit_s: float, seed: int) -> Attempt:
        """Look for better orders than `start`; as ExactSolver says."""
        deadline = monotonic() + time_limit_s
        chosen = engine()
        best = Best(problem, start)
        best.prove(bound_s)
        if problem.operations > MOST_OPERATIONS or best.proven:
            return best.attempt("limit", chosen.name)
        try:
            ended = _search(best, start, chosen, deadline, seed)
        except KeyboardInterrupt:
            ended = "interrupted"
        return best.attempt(ended, chosen.name)


def _search(best: Best, start: Orders, chosen: Engine, deadline: float, seed: int) -> Literal["limit", "interrupted"]:
    """Build the model and solve it; the best receives what is found and proven."""
    instance = instance_of(best.problem, best.value_s)
    starts = instance.starts(start)
    precedences = Precedences(instance, instance.most(starts, best.value_s))
    if len(precedences.undecided) > MOST_PAIRS:
        return "limit"
    model = _MilpModel(precedences, starts, best.bound_s)
    outcome = chosen.solve(model.problem, deadline - monotonic(), seed)
    best.prove(instance.bound_s(model.units(outcome.bound)))
    if outcome.found:
        best.offer(*model.orders())
    if outcome.found and best.problem.staggered and not (best.proven or outcome.interrupted):
        # What holds stages back may be no part of the orders: look for as good ones that hold them back less.
        model.begin_early()
        outcome = chosen.solve(model.problem, deadline - monotonic(), seed)
        if outcome.found:
            best.offer(*model.orders())
    return "interrupted" if outcome.interrupted else "limit"


class _MilpModel:
    """The MILP of an instance, in pulp.

    Args:
        precedences: what is decided and what is not, for schedules that are no worse than `starts`.
        starts: a valid schedule, in units: the solver begins with it.
        bound_s: a proven lower bound, in s.
    """

    def __init__(self, precedences: Precedences, starts: list[int], bound_s: float) -> None:
        from pulp import LpInteger, LpMinimize, LpProblem

        self._precedences, self._instance, self._starts = precedences, precedences.instance, starts
        self._whole = self._instance.exact and precedences.most <= MOST_UNITS
        self._scale = 1.0 if self._whole else HORIZON / precedences.most
        self._start = [self._start_variable(operation) for operation in range(len(starts))]
        self._first = {pair: self._order_variable(*pair) for pair in precedences.undecided}
        self._begin = [self._begin_variable(number) for number in range(len(self._instance.windows))]
        most, overheads = precedences.most, [window.overhead for window in self._instance.windows]
        self._value = self._variable("value", min(max(self._instance.least(bound_s), *overheads), most), most, most)
        if self._whole:
            self._value.cat = LpInteger
        self.problem = LpProblem("schedule", LpMinimize)
        self.problem += self._value
        parts = (self._dependencies, self._no_overlap, self._memory, self._windows, self._staircase, self._loads)
        for row in (row for part in parts for row in part()):
            self.problem += row

    def units(self, value: float) -> float:
        """What a bound on the model's objective proves, in units."""
        if self._whole and value > 0:
            return ceil(value - MARGIN * max(1.0, value))
        return value * (1 - MARGIN) / self._scale

    def orders(self) -> Iterator[Orders]:
        """The orders of the solution, read from its binaries and, for what they leave open, from its starts."""
        chosen = [(a, b, 0) if first.varValue > 0.5 else (b, a, 0) for (a, b), first in self._first.items()]
        with suppress(ValueError):  # operations without duration may come in a ring
            yield self._instance.orders(earliest(self._instance.durations, (*self._instance.arcs, *chosen)))
        yield self._instance.orders([round(start.varValue / self._scale, 3) for start in self._start])

    def begin_early(self) -> None:
        """Minimize when windows begin from now on, and let the objective be no more than in the solution."""
        from pulp import lpSum

        self._value.upBound = self._value.varValue * (1 + MARGIN)
        self.problem.setObjective(lpSum(self._begin))

    # Variables, each with the value it has in the schedule to begin with.

    def _start_variable(self, operation: int) -> LpVariable:
        duration, most = self._instance.durations[operation], self._precedences.most
        if self._instance.staggered:
            # A stage's first F ends within the window of stage 0, and so its last operation within a second one.
            least, most = 0, 2 * most - duration
        else:
            least, most = self._head(operation), most - self._tail(operation) - duration
        return self._variable(f"start_{operation}", least, most, self._starts[operation])

    def _order_variable(self, earlier: int, later: int) -> LpVariable:
        from pulp import LpBinary, LpVariable

        places = [(self._starts[o], self._starts[o] + self._instance.durations[o], o) for o in (earlier, later)]
        variable = LpVariable(f"first_{earlier}_{later}", cat=LpBinary)
        variable.setInitialValue(int(places[0] < places[1]))
        return variable

    def _begin_variable(self, number: int) -> LpVariable:
        """When a window begins."""
        window = self._instance.windows[number]
        if window.from_zero:
            return self._variable(f"begin_{number}", 0, 0, 0)
        begin = min(self._starts[first] for first in window.firsts)
        return self._variable(f"begin_{number}", 0, self._precedences.most, begin)

    def _variable(self, name: str, least: int, most: int, start: int) -> LpVariable:
        from pulp import LpVariable

        variable = LpVariable(name, least * self._scale, most * self._scale)
        variable.setInitialValue(start * self._scale)
        return variable

    # Rows.

    def _dependencies(self) -> Iterator[LpConstraint]:
        """Equations 2 to 4, FIFO, and pairs that are decided."""
        for earlier, later, lag in self._precedences.arcs:
            apart = self._instance.durations[earlier] + lag
            yield self._start[later] - self._start[earlier] >= apart * self._scale

    def _no_overlap(self) -> Iterator[LpConstraint]:
        """Equation 5, once for each order of a pair."""
        for (a, b), first in self._first.items():
            slack_ab, slack_ba = self._precedences.slack(a, b), self._precedences.slack(b, a)
            duration_a, duration_b = self._instance.durations[a], self._instance.durations[b]
            apart = self._start[b] - self._start[a]
            yield apart - slack_ab * self._scale * first >= (duration_a - slack_ab) * self._scale
            yield -apart + slack_ba * self._scale * first >= duration_b * self._scale

    def _memory(self) -> Iterator[LpConstraint]:
        """Equation 6: what is held when an F starts."""
        for memory in self._instance.memory.values():
            # By how much each operation changes what is held on its worker.
            changes = {}
            for forward, backward, weight, activation, stash in memory.held:
                changes[forward], changes[backward] = activation, -activation
                if weight is not None:
                    changes[backward], changes[weight] = stash - activation, -stash
            for forward, _, _, activation, _ in memory.held:
                held = self._sum((change, o, forward) for o, change in changes.items() if o != forward)
                if len(held):
                    yield held <= memory.limit - activation

    def _windows(self) -> Iterator[LpConstraint]:
        """Equation 1, or the period; an operation comes after its window's begin by its head."""
        for window, begin in zip(self._instance.windows, self._begin, strict=True):
            for last in window.lasts:
                behind = self._instance.durations[last] + window.overhead
                yield self._value - self._start[last] + begin >= behind * self._scale
            if not window.from_zero:
                for operation in window.operations:
                    yield self._start[operation] - begin >= self._head(operation) * self._scale

    def _staircase(self) -> Iterator[LpConstraint]:
        """What comes before an operation also comes before those that follow it on its worker."""
        for members in self._instance.operations_of.values():
            following = self._precedences.following(members)
            for earlier, later in permutations(members, 2):
                if self._is_open(earlier, later):
                    for beyond in following[later]:
                        if self._is_open(earlier, beyond):
                            yield self._sum([(1, earlier, beyond), (-1, earlier, later)]) >= 0

    def _loads(self) -> Iterator[LpConstraint]:
        """An operation comes after the work before it on its worker, and the objective after the work behind it."""
        begin_of = {
            o: b for window, b in zip(self._instance.windows, self._begin, strict=True) for o in window.operations
        }
        before, durations = self._precedences.before, self._instance.durations
        for members in self._instance.operations_of.values():
            for one in {operation for pair in combinations(members, 2) if pair in self._first for operation in pair}:
                others = [o for o in members if o != one]
                head = min(self._head(o) for o in members if not before[one, o])
                tail = min(self._tail(o) for o in members if not before[o, one])
                done = self._sum((durations[o] * self._scale, o, one) for o in others)
                left = self._sum((durations[o] * self._scale, one, o) for o in others)
                begun = self._start[one] - begin_of[one]
                yield begun - done >= head * self._scale
                yield self._value - begun - left >= (durations[one] + tail) * self._scale

    def _head(self, operation: int) -> int:
        return int(self._precedences.heads[self._precedences.frame[operation], operation])

    def _tail(self, operation: int) -> int:
        return int(self._precedences.tails[self._precedences.frame[operation], operation])

    def _is_open(self, a: int, b: int) -> bool:
        return (a, b) in self._first or (b, a) in self._first

    def _sum(self, weights: Iterable[tuple[float, int, int]]) -> LpAffineExpression:
        """The sum of (weight, earlier, later) over those where the one comes before the other."""
        from pulp import LpAffineExpression

        terms: list[tuple[LpVariable, float]] = []
        constant = 0.0
        for weight, earlier, later in weights:
            if (earlier, later) in self._first:
                terms.append((self._first[earlier, later], weight))
            elif (later, earlier) in self._first:
                terms.append((self._first[later, earlier], -weight))
                constant += weight
            elif self._precedences.before[earlier, later]:
                constant += weight
        return LpAffineExpression(terms, constant)


# What solves a MILP of pulp's: HiGHS in this process, or the CBC that pulp brings along as a process of its own.


GRACE_S = 1.0  # after the time limit, until a process is told to stop; and once more, until it is killed
LAST_DIGIT = 0.001  # of the bounds in CBC's log


@dataclass(frozen=True)
class SolverOutcome:
    """What became of a model.

    Attributes:
        found: whether its variables hold a solution.
        bound: what the solver proved of the objective; -inf where nothing.
        interrupted: whether Ctrl-C ended it.
    """

    found: bool
    bound: float
    interrupted: bool


class Engine(Protocol):
    """Minimizes models whose variables hold a solution to begin with."""

    @property
    def name(self) -> str:
        """The solver and its version."""
        ...

    def solve(self, model: LpProblem, time_limit_s: float, seed: int) -> SolverOutcome:
        """Solve a model as far as the time limit allows."""
        ...


def engine() -> Engine:
    """HiGHS, or CBC where HiGHS cannot be loaded."""
    try:
        import highspy  # noqa: F401
    except ImportError:
        return Cbc()
    return Highs()


class Highs:
    """HiGHS, through pulp and highspy."""

    @property
    def name(self) -> str:
        """The solver and its version."""
        import highspy

        return f"HiGHS {highspy.Highs().version()}"

    def solve(self, model: LpProblem, time_limit_s: float, seed: int) -> SolverOutcome:
        """Solve a model as far as the time limit allows."""
        import highspy
        import pulp

        solver = pulp.HiGHS(
            msg=False, timeLimit=max(0.0, time_limit_s), threads=1, gapRel=0.0, random_seed=seed % 2**31
        )
        solver.createAndConfigureSolver(model)
        solver.buildSolverModel(model)
        highs = model.solverModel
        begun = highspy.HighsSolution()
        begun.col_value = [variable.varValue for variable in model.variables()]
        highs.setSolution(begun)
        highs.HandleUserInterrupt = True
        interrupted = run_until_interrupted(lambda: solver.callSolver(model), highs.cancelSolve)
        info = highs.getInfo()
        found = info.primal_solution_status == highspy.kSolutionStatusFeasible
        if found:
            solver.findSolutionValues(model)
        optimal = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        bound = info.objective_function_value if optimal else info.mip_dual_bound
        return SolverOutcome(found, bound, interrupted)


class Cbc:
    """The CBC that pulp brings along. We run it ourselves: pulp would neither stop it nor read its bound."""

    @property
    def name(self) -> str:
        """The solver; pulp does not know its version."""
        return "CBC"

    def solve(self, model: LpProblem, time_limit_s: float, seed: int) -> SolverOutcome:
        """Solve a model as far as the time limit allows."""
        import pulp

        solver = pulp.PULP_CBC_CMD(msg=False)
        options = (
            f"-sec {time_limit_s} -timeMode elapsed -ratio 0 -randomSeed {seed % 2**31} -randomCbcSeed {seed % 2**31}"
        )
        arguments = f"model.mps -mips start.sol {options} -solve -printingOptions all -solution end.sol"
        with TemporaryDirectory(prefix="rtk-cbc-") as name:
            folder = Path(name)
            names = model.writeMPS(str(folder / "model.mps"), rename=1)[:3]
            solver.writesol(str(folder / "start.sol"), model, *names)
            interrupted = _run([solver.path, *arguments.split()], folder, time_limit_s)
            result = (folder / "end.sol").read_text() if (folder / "end.sol").exists() else ""
            if result:
                model.assignVarsVals(solver.readsol_MPS(str(folder / "end.sol"), model, *names)[1])
            # What CBC says it proved, in its result or in its log, where it is rounded to three digits.
            optimal = re.match(r"Optimal - objective value (\S+)", result)
            if optimal:
                bound = float(optimal[1])
            else:
                bounds = re.findall(r"^Lower bound: +(\S+)", (folder / "log").read_text(), re.MULTILINE)
                bound = float(bounds[-1]) - LAST_DIGIT if bounds else -inf
            return SolverOutcome(bool(result), bound, interrupted)


def _run(command: list[str], folder: Path, time_limit_s: float) -> bool:
    """Run CBC in a folder, with its output in `log`; whether Ctrl-C ended it.

    It is told to stop when it should have stopped by itself, and on Ctrl-C, and killed where it does not.
    """
    interrupted = False
    with (folder / "log").open("w") as log:
        process = Popen(command, cwd=folder, stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(max(0.0, time_limit_s) + GRACE_S)
        except (TimeoutExpired, KeyboardInterrupt) as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            process.send_signal(signal.SIGINT)
            with suppress(TimeoutExpired):
                process.wait(GRACE_S)
        finally:
            process.kill()
            process.wait()
    return interrupted
