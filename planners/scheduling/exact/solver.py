"""The Protocol of exact solvers, and what an attempt of one comes to."""

from dataclasses import dataclass
from typing import Literal, Protocol

from ..problem import Orders, Problem


@dataclass(frozen=True)
class Attempt:
    """What a solver came to.

    Attributes:
        orders: better orders than those it started from, as operation codes; None where it found none.
        bound_s: a value that it proved no orders to beat, in s; 0 where it proved nothing.
        status: "optimal" where the better of start and `orders` is proven optimal, "limit" where time ran out,
            "interrupted" where Ctrl-C ended it, with the best until then.
        solver: the solver and its version, such as "CP-SAT 9.15".
    """

    orders: Orders | None
    bound_s: float
    status: Literal["optimal", "limit", "interrupted"]
    solver: str


class ExactSolver(Protocol):
    """Searches all orders of a problem, from given ones, until a proof or a time limit.

    Attributes:
        most_operations: of larger problems it proves nothing.
    """

    most_operations: int

    def improve(self, problem: Problem, start: Orders, bound_s: float, *, time_limit_s: float, seed: int) -> Attempt:
        """Look for better orders than `start`.

        Args:
            problem: what to order, and whether its makespan or its period counts.
            start: valid orders.
            bound_s: a proven lower bound on the objective, in s.
            time_limit_s: seconds after which the best so far is returned.
            seed: of the solver's random choices.

        Raises:
            InvalidInputError: the solver is not installed.
        """
        ...
