"""A plan whose orders stay as they are, timed under whatever is slow: read once, then timed in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ...schemas.plan import Place, Plan
from ..scheduling.assemble import peaks_bytes
from ..scheduling.problem import Problem, Workers, codes_of, components, problem_of
from ..scheduling.retime import Retimer
from .slowness import PlanSlowness, share_layers

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Orders


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
        """A plan's orders; nothing in it is slow."""
        problem = problem_of(plan)
        return cls(problem, codes_of(plan, problem))

    def iteration_time_s(self, troubles: PlanSlowness) -> float:
        """What `rtk simulate` says of `under_troubles(plan, troubles)`."""
        return Retimer(self._under(troubles)).value_s(self._orders)

    def ends_s(self, troubles: PlanSlowness) -> Floats:
        """When each worker has executed its last operation, in the order of the plan's workers."""
        retimer = Retimer(self._under(troubles))
        retimer.value_s(self._orders)
        return retimer.spans_s[1]

    def peaks_bytes(self) -> Floats:
        """The most activation bytes that each worker holds; what is slow does not change them."""
        return peaks_bytes(self._problem, self._orders)

    def _under(self, troubles: PlanSlowness) -> Problem:
        inside_s = self._problem.inside_s.copy()
        for (k, i), delay_s in troubles.hops_s.items():
            inside_s[k, i] = max(delay_s, inside_s[k, i])
        return replace(self._problem, workers=_slowed(self._problem.workers, troubles, self._number), inside_s=inside_s)


def _slowed(workers: Workers, troubles: PlanSlowness, number: Mapping[Place, int]) -> Workers:
    """Workers whose operations, and sums of gradients, take as long as the troubles have it."""
    factor, slowest_s = np.ones(len(workers.stage)), np.zeros(len(workers.stage))
    held, component_of = workers.parts.held, components(workers.parts.held)
    for place, times in troubles.factors:
        factor[number[place]] = times
    for (one, other), delay_s in troubles.across_s.items():
        groups = workers.group[[number[one], number[other]]].tolist()
        if share_layers(*(held[group] for group in groups)):
            summing = [component_of[layers] == component_of[held[groups[0]]] for layers in held]
            members = workers.live & np.array(summing)[workers.group]
            steps = 2 * (len(set(workers.pipeline[members].tolist())) - 1)
            slower = workers.live & np.isin(workers.group, groups)
            slowest_s[slower] = np.maximum(slowest_s[slower], steps * delay_s)
    return replace(
        workers,
        forward_s=workers.forward_s * factor,
        input_s=workers.input_s * factor,
        weight_s=workers.weight_s * factor,
        full_s=workers.full_s * factor,
        allreduce_s=workers.allreduce_s + slowest_s,
    )
