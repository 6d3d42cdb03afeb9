"""Re-routing where workers hold several virtual stages: a dead worker's micro-batches go to peers, whole or by chunk.

Peers are the live workers of a column. All that `slots.py` says of a stage holds for a column: slots cut the ranks by
its live workers, all chunks of a micro-batch in a column go to the same peer, and so no worker holds more than the one
pipeline's worker does. Then a column with L live workers has one that runs ceil(M / L) micro-batches with all their
chunks. Where L does not divide M that is more than need be: chunk by chunk, its busiest worker has
ceil(M C / L) chunks only (`in_turns`). Both ways are routings of one problem, which the search of `planners/placement/`
orders; the best is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.plan import Plan, ProofScope
from ..placement.any_routing import routing_bound
from ..placement.bounds import lower_bound, with_any_split
from ..placement.fusing import with_fused_backwards
from ..placement.problem import PlacedProblem, SeatOrders, placed_problem, with_placed_orders
from ..placement.promise import with_placed_prediction
from ..placement.search import solve
from ..scheduling.problem import ROUNDING, Proven
from ..scheduling.solve import Effort
from .slots import Slots, route

if TYPE_CHECKING:
    from ..placement.problem import Ints


@dataclass(frozen=True, eq=False)
class PlacedRerouting(Proven):
    """Orders for the live workers, their makespan or period, and the bound on it, in s; `scope` says over what."""

    value_s: float
    bound_s: float
    problem: PlacedProblem
    orders: SeatOrders
    scope: ProofScope


def reroute_placed(plan: Plan, split: bool, effort: Effort) -> PlacedRerouting:
    """The best routing that is tried, in the best orders found.

    Args:
        plan: alike pipelines of one template, each column with a live worker; its orders do not matter.
        split: whether backwards may be split.
        effort: how hard to try; what is tried of routings shares the time.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    home = placed_problem(plan, split=split)
    alike = _are_alike(home, plan)
    bound_s = routing_bound(plan, home).value_s if alike else 0.0
    problems = [home.routed(plan, executor) for executor in routings(home, alike)]
    bounds_s = [max(bound_s, lower_bound(problem).value_s) for problem in problems]
    share = replace(effort, time_limit_s=effort.time_limit_s / len(problems))
    best: PlacedRerouting | None = None
    for number in np.argsort(bounds_s, kind="stable").tolist():
        if best is not None and (best.optimal or bounds_s[number] >= best.value_s * (1 - ROUNDING)):
            break
        found = solve(problems[number], share, bounds_s[number])
        if best is None or found.value_s < best.value_s:
            scope: ProofScope = "all-routings" if alike else "routing"
            proven_s = bound_s if alike else _with_any_split_s(problems[number], found.bound_s)
            best = PlacedRerouting(found.value_s, proven_s, problems[number], found.orders, scope)
    assert best is not None
    return best


def _with_any_split_s(problem: PlacedProblem, bound_s: float) -> float:
    """What a bound is worth once orders may have B in the end: another one where a B takes less than its I and W."""
    unjoined = with_any_split(problem) if problem.split.any() else problem
    shorter = bool((unjoined.duration_s < problem.duration_s).any())
    return lower_bound(unjoined).value_s if shorter else bound_s


def rerouted_plan(plan: Plan, split: bool, effort: Effort) -> Plan:
    """The plan with orders that `reroute_placed` finds, I and W joined where nothing gets longer, and a prediction.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    found = reroute_placed(plan, split, effort)
    fused = with_fused_backwards(found.problem, found.orders) if split else (found.problem, found.orders)
    return with_placed_prediction(with_placed_orders(plan, *fused), found.bound_s, found.scope)


def routings(home: PlacedProblem, alike: bool) -> Iterator[Ints]:
    """Who runs each micro-batch at each virtual stage, jobs x stages, in the ways that are worth trying.

    Args:
        home: in which every worker runs its own micro-batches, failed workers among them.
        alike: whether the workers of each column are equal; else micro-batches go by load.
    """
    if not alike:
        yield by_load(home, apart=False)
        yield by_load(home, apart=True)
        return
    if home.live.all():
        yield home.executor
        return
    live = home.live.reshape(-1, len(home.seats))
    sizes = live.sum(axis=0)
    for remainder_first in (False, True):
        yield route(live, Slots(home.jobs, tuple(sizes.tolist()), remainder_first))[:, home.column]
    if (home.jobs % sizes).any():
        yield in_turns(home)


def in_turns(home: PlacedProblem) -> Ints:
    """Columns that their live workers cannot share evenly in turns, each chunk one worker on from the one before.

    So over the chunks of a column the odd ones are shared, too. Live workers do not keep their own micro-batches there.

    Args:
        home: as for `routings`.
    """
    live = home.live.reshape(-1, len(home.seats))
    executor = route(live, Slots(home.jobs, tuple(live.sum(axis=0).tolist())))[:, home.column]
    for column, held in enumerate(home.seats):
        peers = np.flatnonzero((home.worker_column == column) & home.live)
        if home.jobs % len(peers):
            for chunk, stage in enumerate(held):
                executor[:, stage] = peers[(np.arange(home.jobs) + chunk) % len(peers)]
    return executor


def by_load(home: PlacedProblem, apart: bool) -> Ints:
    """Lost micro-batches in rank order, each to the peer that has least to do then.

    Args:
        home: as for `routings`.
        apart: whether chunk by chunk; else all chunks of a micro-batch in a column go to the same peer.
    """
    executor = home.executor.copy()
    work_s = home.duration_s[:, :, 0] + home.duration_s[:, :, 3]
    for column, held in enumerate(home.seats):
        peers = np.flatnonzero((home.worker_column == column) & home.live)
        own = (home.executor[:, held[0], None] == peers).sum(axis=0)
        load_s = own * work_s[peers][:, held].sum(axis=1)
        lost = np.flatnonzero(~home.live[home.executor[:, held[0]]])
        for job in lost.tolist():
            for chunks in [[v] for v in held] if apart else [list(held)]:
                each_s = work_s[peers][:, chunks].sum(axis=1)
                taker = int((load_s + each_s).argmin())
                executor[job, chunks] = peers[taker]
                load_s[taker] += each_s[taker]
    return executor


def _are_alike(home: PlacedProblem, plan: Plan) -> bool:
    """Whether the workers of each column and the links of all pipelines are equal."""
    durations_s = home.duration_s.reshape(len(plan.pipelines), len(home.seats), -1)
    return bool((durations_s == durations_s[0]).all()) and all(one.links is None for one in plan.pipelines)
