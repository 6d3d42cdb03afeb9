"""Orders that are timed again and again, under whatever is slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from ...schemas.conditions import AS_PLANNED, PlacePair, PlanConditions
from ...schemas.plan import Layers, Place, Plan
from .assemble import peaks_bytes
from .problem import Problem, ordered_problem_of
from .retime import Retimer

if TYPE_CHECKING:
    from .problem import Floats, Orders


class Retimed:
    """Orders made ready to be timed.

    Args:
        problem: in which nothing is slow.
        orders: the operation codes of each worker.
    """

    def __init__(self, problem: Problem, orders: Orders) -> None:
        self._problem = problem
        self._orders = cast("Orders", [np.array(order, dtype=np.int64) for order in orders])
        places = zip(problem.workers.pipeline.tolist(), problem.workers.stage.tolist(), strict=True)
        self._number = {place: number for number, place in enumerate(places)}

    @classmethod
    def of(cls, plan: Plan) -> Retimed:
        """A plan's orders, with what it says to be slow."""
        return cls(*ordered_problem_of(plan))

    def iteration_time_s(self, conditions: PlanConditions = AS_PLANNED) -> float:
        """What `rtk simulate` says of `conditions.under(plan)`; infinite where the orders deadlock."""
        return Retimer(self._under(conditions)).value_s(self._orders)

    def ends_s(self, conditions: PlanConditions = AS_PLANNED) -> Floats:
        """When each worker has executed its last operation, in the order of the plan's workers."""
        retimer = Retimer(self._under(conditions))
        retimer.value_s(self._orders)
        return retimer.spans_s[1]

    def crosses(self, pairs: Sequence[PlacePair]) -> bool:
        """Whether there are messages between any of these places, which are of neighbouring stages."""
        executor = self._problem.executor
        upwards = (sorted(pair, key=lambda place: place[1]) for pair in pairs)
        return any(
            bool(((executor[:, i] == self._number[k, i]) & (executor[:, j] == self._number[other, j])).any())
            for (k, i), (other, j) in upwards
        )

    def peaks_bytes(self) -> Floats:
        """The most activation bytes that each worker holds; what is slow does not change them."""
        return peaks_bytes(self._problem, self._orders)

    @cached_property
    def _held(self) -> dict[Place, tuple[Layers, ...]]:
        """The layers of each live worker."""
        workers = self._problem.workers
        held = zip(self._number, workers.group.tolist(), workers.live.tolist(), strict=True)
        return {place: (workers.parts.held[group],) for place, group, is_live in held if is_live}

    def _under(self, conditions: PlanConditions) -> Problem:
        if not conditions:
            return self._problem
        problem, workers = self._problem, self._problem.workers
        inside_s, factor = problem.inside_s.copy(), np.ones(len(workers.stage))
        for (k, i), delay_s in conditions.hops_s.items():
            inside_s[k, i] = max(delay_s, inside_s[k, i])
        for place, times in conditions.factors:
            factor[self._number[place]] = times
        sums_s = conditions.sums_s(self._held)
        more_s = np.array([sums_s.get(layers, 0.0) for layers in workers.parts.held])
        slowed = replace(
            workers,
            forward_s=workers.forward_s * factor,
            input_s=workers.input_s * factor,
            weight_s=workers.weight_s * factor,
            full_s=workers.full_s * factor,
            allreduce_s=workers.allreduce_s + np.where(workers.live, more_s[workers.group], 0.0),
        )
        return replace(problem, workers=slowed, inside_s=inside_s)
