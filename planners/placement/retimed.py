"""Orders that are timed again and again, under whatever is slow, where workers hold several virtual stages or one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...schemas.conditions import AS_PLANNED, PlacePair, PlanConditions
from ...schemas.plan import Plan
from ..scheduling.retimed import Retimed
from .problem import held_bytes, ordered_placed_problem
from .scheduler import SeatScheduler

if TYPE_CHECKING:
    from .problem import Floats


class PlacedRetimed:
    """The orders of a plan with a placement, made ready to be timed; as `Retimed`.

    Args:
        plan: of one template.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._problem, self._orders = ordered_placed_problem(plan)
        self._number = {worker.place: number for number, worker in enumerate(plan.workers)}

    def iteration_time_s(self, conditions: PlanConditions = AS_PLANNED) -> float:
        """What `rtk simulate` says of `conditions.under(plan)`; infinite where the orders deadlock."""
        return self._under(conditions).value_s(self._orders)

    def ends_s(self, conditions: PlanConditions = AS_PLANNED) -> Floats:
        """When each worker has executed its last operation, in the order of the plan's workers."""
        return self._under(conditions).ends_s(self._orders)

    def peaks_bytes(self) -> Floats:
        """The most activation bytes that each worker holds; what is slow does not change them."""
        return held_bytes(self._problem, self._orders)

    def crosses(self, pairs: Sequence[PlacePair]) -> bool:
        """Whether there are messages between any of these places, whichever is further along a micro-batch's way."""
        before, after = self._problem.executor[:, :-1], self._problem.executor[:, 1:]
        numbers = [(self._number[one], self._number[other]) for one, other in pairs]
        return any(
            bool(((before == i) & (after == j)).any())
            for one, other in numbers
            for i, j in ((one, other), (other, one))
        )

    def _under(self, conditions: PlanConditions) -> SeatScheduler:
        if not conditions:
            return SeatScheduler(self._problem)
        return SeatScheduler(self._problem.costing(conditions.under(self._plan)))


AnyRetimed = Retimed | PlacedRetimed


def retimed_of(plan: Plan) -> AnyRetimed:
    """A plan's orders, with what it says to be slow.

    Args:
        plan: with a placement or pairs, then of one template, or without.
    """
    return PlacedRetimed(plan) if plan.is_placed or plan.may_pair else Retimed.of(plan)
