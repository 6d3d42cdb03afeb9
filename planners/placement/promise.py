"""What the orders of a plan with a placement promise: as `scheduling/assemble.py` has it, timed as in a search.

So a plan of a hundred thousand operations is timed in a hundredth of a second, where the evaluator takes a second.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...schemas.plan import without_pairs
from ..scheduling.assemble import bubble_ratio, checked, promise, with_prediction
from .problem import held_bytes, ordered_placed_problem, spared_s, work_s
from .scheduler import SeatScheduler

if TYPE_CHECKING:
    from ...schemas.plan import Plan, ProofScope


def with_placed_prediction(plan: Plan, bound_s: float, scope: ProofScope | None = None) -> Plan:
    """The plan with what its orders promise: times, memory, and how far from optimal they can be.

    Args:
        plan: of one template with a placement, with orders.
        bound_s: a proven lower bound on its iteration time, in s.
        scope: what that is over, where there are several routings.

    Raises:
        BrokenPlanError: the checker finds the plan broken, which is a bug of the planner that made the orders.
        InfeasibleError: a limit does not admit what one micro-batch needs.
        InvalidInputError: times or sizes were given that add up to more than a plan can say.
    """
    problem, orders = ordered_placed_problem(plan)
    times_s = SeatScheduler(problem).times_s(orders)
    busy_s = float(work_s(problem).sum()) - spared_s(problem, orders)
    bubbles = bubble_ratio(busy_s, int(problem.live.sum()), times_s[problem.staggered])
    peaks = held_bytes(problem, orders).tolist()
    prediction = promise(times_s, problem.staggered, bound_s, bubbles, peaks)
    return checked(replace(plan, prediction=replace(prediction, proof_scope=scope)))


def one_by_one(plan: Plan) -> Plan:
    """A plan in which nothing runs side by side, with what it promises then; itself where nothing may.

    Whoever re-plans a running job goes on from it: re-routing, and what is left of an iteration, know no pairs.
    """
    if not plan.may_pair:
        return plan
    flat = without_pairs(plan)
    return with_placed_prediction(flat, 0.0) if plan.is_placed else with_prediction(flat)
