"""The papers' running example, as a problem."""

from rtk.planners.scheduling.problem import Problem, problem_of

from ..strategies import hand_plan
from .every_order import any_order


def running_example(split: bool, limit_bytes: float | None = None, microbatches: int = 6) -> Problem:
    """SlipStream's: PP 4, DP 3, 6 micro-batches, all times 1; worker 1/2 is dead, its peers share its micro-batches."""
    own = {k: [(k, j) for j in range(microbatches)] for k in range(3)}
    orders: dict[str, str | None] = {f"{k}/{i}": any_order(own[k], split) for k in range(3) for i in range(4)}
    shared = {f"{k}/2": any_order(own[k] + own[1][k // 2 :: 2], split) for k in (0, 2)}
    return problem_of(hand_plan({**orders, **shared, "1/2": None}, microbatches, limit_bytes=limit_bytes))
