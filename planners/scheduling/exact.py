"""Which exact solver polishes."""

from importlib.util import find_spec
from typing import Literal

from .exact_solver import ExactSolver


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
