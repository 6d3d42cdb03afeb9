"""What solves a MILP of pulp's: HiGHS in this process, or the CBC that pulp brings along as a process of its own."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

from .interrupt import run_until_interrupted

if TYPE_CHECKING:
    from pulp import LpProblem

GRACE_S = 1.0  # after the time limit, until a process is told to stop; and once more, until it is killed
LAST_DIGIT = 0.001  # of the bounds in CBC's log


@dataclass(frozen=True)
class Outcome:
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

    def solve(self, model: LpProblem, time_limit_s: float, seed: int) -> Outcome:
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

    def solve(self, model: LpProblem, time_limit_s: float, seed: int) -> Outcome:
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
        return Outcome(found, bound, interrupted)


class Cbc:
    """The CBC that pulp brings along. We run it ourselves: pulp would neither stop it nor read its bound."""

    @property
    def name(self) -> str:
        """The solver; pulp does not know its version."""
        return "CBC"

    def solve(self, model: LpProblem, time_limit_s: float, seed: int) -> Outcome:
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
            return Outcome(bool(result), _bound(result, (folder / "log").read_text()), interrupted)


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


def _bound(result: str, log: str) -> float:
    """What CBC says it proved, in its result or in its log, where it is rounded to three digits."""
    optimal = re.match(r"Optimal - objective value (\S+)", result)
    if optimal:
        return float(optimal[1])
    bounds = re.findall(r"^Lower bound: +(\S+)", log, re.MULTILINE)
    return float(bounds[-1]) - LAST_DIGIT if bounds else -inf
