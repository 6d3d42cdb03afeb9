"""The best that a solver has so far: orders that are checked and timed exactly, and what is proven."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ....schemas.check import ROUNDING
from ..problem import BACKWARD, FORWARD, KINDS, WEIGHT, Orders, Problem
from ..retime import value_s
from .solver import Attempt


class Best:
    """The best orders and the bound, both in s and both only ever better.

    Args:
        problem: what is ordered.
        start: valid orders to begin with.
    """

    def __init__(self, problem: Problem, start: Orders) -> None:
        self.problem = problem
        self.orders: Orders | None = None
        self.value_s = value_s(problem, start)
        self.bound_s = 0.0

    @property
    def proven(self) -> bool:
        """Whether nothing is better."""
        return self.value_s <= self.bound_s * (1 + ROUNDING)

    def offer(self, *candidates: Orders) -> None:
        """Take complete orders, if they are valid and better."""
        for orders in candidates:
            found_s = value_s(self.problem, orders)
            if found_s < self.value_s and keeps_limits(self.problem, orders):
                self.orders, self.value_s = orders, found_s

    def prove(self, bound_s: float) -> None:
        """Take a proven bound, if it is better."""
        self.bound_s = max(self.bound_s, bound_s)

    def attempt(self, ended: Literal["limit", "interrupted"], solver: str) -> Attempt:
        """What it all came to; `ended` says why the search did, where there is no proof."""
        return Attempt(self.orders, min(self.bound_s, self.value_s), "optimal" if self.proven else ended, solver)


def keeps_limits(problem: Problem, orders: Orders) -> bool:
    """Whether every worker stays within its memory limit, up to rounding, if it executes these operation codes."""
    workers = problem.workers
    for worker, order in enumerate(orders):
        codes = np.array(order, dtype=np.int64)
        split = problem.split[codes // KINDS, int(workers.stage[worker])]
        kinds = codes % KINDS
        whole = np.cumsum((kinds == FORWARD).astype(np.int64) - (kinds == BACKWARD))
        stashed = np.cumsum((split & (kinds == BACKWARD)).astype(np.int64) - (kinds == WEIGHT))
        held = whole * workers.activation_bytes[worker] + stashed * workers.stash_bytes[worker]
        if held.max(initial=0.0) > workers.limit_bytes[worker] * (1 + ROUNDING):
            return False
    return True
