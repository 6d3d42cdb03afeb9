"""`rtk plan joint`: dead workers, slow workers and slow links in one schedule, and the same for a running plan.

No published system does this: SlipStream re-routes what dead workers leave, Adaptra bends warm-ups around slow links,
Greyhound takes micro-batches from slow pipelines. Here, one routing answers all three (search.py has the steps).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from ... import __version__
from ...schemas.errors import InvalidInputError
from ...schemas.kernels import compiled
from ...schemas.plan import Place, Plan, Planner, Worker, name_of, place_of
from ...schemas.profile import Profile
from ..adaptra.plan import warmup_of
from ..placement.dispatch import dispatch
from ..placement.fusing import with_fused_backwards
from ..placement.problem import with_placed_orders
from ..placement.promise import with_placed_prediction
from ..placement.times import follow, fuse, objective_s
from ..placement.times import latest as latest_of_seats
from ..scheduling.assemble import with_orders_and_prediction
from ..scheduling.list_schedule import sweep
from ..scheduling.retime import objective, retime
from ..scheduling.solve import Effort
from ..shape import Shape, plan_without_orders, shape_options
from ..slipstream.cluster import Technique, opening_of, optimizer_of
from ..slipstream.normalization import Grid
from ..slipstream.selective_decoupling import latest, pull
from ..slipstream.slots import fill
from .placed import PlacedSituation, bypassed_links, loads_of, placed_joint_schedule
from .routings import crossing, named_pairs
from .search import Found, Situation, in_slots, joint_schedule, single_techniques

NAME = "joint"
RULES, HEURISTIC = Effort("rules"), Effort("heuristic")
# Of a running plan, orders that are so close to the bound are good enough: workers, and replays, wait for them.
ENOUGH = 0.003


def plan_joint(
    profile: Profile,
    shape: Shape,
    failed: Collection[Place] = (),
    slow: Mapping[Place, float] | None = None,
    effort: Effort = HEURISTIC,
    technique: Technique = "staggered",
) -> Plan:
    """Plan for all that is wrong at once.

    Args:
        profile: the model's costs.
        shape: stages, pipelines, micro-batches, limits, and the delays that links have now.
        failed: the dead workers.
        slow: factors of slow workers, by their places; a dead worker's does not matter.
        effort: how hard to try.
        technique: as SlipStream's (`slipstream/cluster.py`: `Request`): with backwards whole, with backwards split, or
            with each stage's optimizer on its own, so that the period counts.

    Returns:
        A checked plan whose bound holds for every routing. `planner.options` say what was decided: `made_by` (what has
        made the schedule: "joint", "joint, …" with another routing, or a single technique that was better), `loads`
        (micro-batches of each worker), `warmup_forwards` of each pipeline's stages, and `bypassed_links` ("k/i": slow
        ones that carry nothing). Where workers hold several virtual stages `loads` are a list, of each of these, and
        there are no warm-ups.

    Raises:
        InvalidInputError: a worker, link or limit that the shape does not have, or a worker named dead twice.
        InfeasibleError: a stage has no live worker, a memory limit does not admit a single micro-batch, or there are
            fewer layers than stages.
    """
    grid, slow = Grid(shape.dp, shape.pp, noun=shape.noun), slow or {}
    grid.require_places(slow, "--slow")
    grid.require_live_stages(grid.failed_units(failed))
    options = {
        "technique": technique,
        "solver": effort.solver,
        "time_limit_s": effort.time_limit_s,
        **shape_options(profile, shape),
    }
    planner = Planner(NAME, __version__, options, effort.seed)
    plan = replace(plan_without_orders(profile, shape, planner), optimizer=optimizer_of(technique))
    places = [worker.place for worker in plan.workers]
    workers = (
        Worker(*place, failed=True) if place in failed else Worker(*place, "", slow.get(place)) for place in places
    )
    plan = replace(plan, workers=tuple(workers))
    return _planned(plan, situation_of(plan, split=technique != "adaptive"), (), effort)


AnySituation = Situation | PlacedSituation


def situation_of(plan: Plan, *, split: bool) -> AnySituation:
    """What is wrong in a plan of alike pipelines, whose workers hold one stage or several virtual ones.

    Args:
        plan: the pipelines; its orders do not matter.
        split: whether backwards are split in I and W.
    """
    return PlacedSituation(plan, split) if plan.is_placed else Situation(plan, split)


def replan_joint(
    plan: Plan, avoid: Collection[tuple[Place, Place]] = (), situation: AnySituation | None = None
) -> Plan:
    """The plan anew, for its failed workers, slow-downs and links, by rules only.

    It takes milliseconds; where workers hold several virtual stages, up to some seconds. What the joint routings
    leave open to the bound by no more than `ENOUGH` is left.

    Args:
        plan: of alike pipelines; its orders do not matter, but that backwards are split only if they are in any, or by
            a technique that splits them. Its optimizer is kept: what runs cannot change it.
        avoid: pairs of places at neighbouring stages of different pipelines whose hop should carry nothing, for a plan
            cannot say that it is slow.
        situation: of the plan, where somebody has asked about it already.

    Returns:
        A checked plan, as `plan_joint` gives it. `avoided_jobs` in its options says how many micro-batches cross pairs
        to be avoided all the same.

    Raises:
        InvalidInputError: the pipelines have different templates or numbers of micro-batches, or there is no such pair.
        InfeasibleError: a stage has no live worker, or a memory limit does not admit a single micro-batch.
    """
    opening = opening_of(plan)
    grid = Grid(opening.dp, len(opening.template.columns), noun=opening.template.noun)
    grid.require_live_stages(worker.place for worker in plan.workers if worker.failed)
    planner = Planner(NAME, __version__, opening.planner.options, plan.planner.seed)
    # The pairs, each with the earlier stage first.
    grid.require_places((place for pair in avoid for place in pair), "the pairs to avoid")
    found = [(one, other) if one[1] <= other[1] else (other, one) for one, other in avoid]
    for here, above in found:
        if opening.template.link_between(here[1], above[1]) is None:
            raise InvalidInputError(
                f"{name_of(here)} and {name_of(above)} exchange no messages",
                where="the pairs to avoid",
                fix="name workers of neighbouring stages",
            )
    situation = situation or situation_of(plan, split=opening.split)
    return _planned(replace(plan, planner=planner), situation, found, RULES, ENOUGH)


def warm_up(plan: Plan) -> None:
    """Load now, in about a second, the machine code that `replan_joint` runs; without it small plans take longer.

    Args:
        plan: one that it will be asked about.
    """
    if plan.is_placed:
        for seat_kernel in (dispatch, follow, objective_s, latest_of_seats, fuse):
            compiled(seat_kernel)
        replan_joint(plan)
        return
    for kernel in (sweep, retime, objective, fill, latest, pull):
        compiled(kernel)
    situation = Situation(replan_joint(plan), split=True)
    in_slots(situation)
    for single in single_techniques(situation):
        single.made()


def _planned(
    plan: Plan, situation: AnySituation, avoid: Collection[tuple[Place, Place]], effort: Effort, gap: float = 0.0
) -> Plan:
    """The plan with orders, and what was decided in its options."""
    if isinstance(situation, PlacedSituation):
        return _planned_by_seat(plan, situation, avoid, effort, gap)
    found = joint_schedule(situation, named_pairs(situation.home, avoid), effort, gap)
    workers, counts = situation.plan.workers, found.problem.job_counts.tolist()
    warmup, depth = [warmup_of(order) for order in found.orders], len(situation.stages)
    unused = situation.slow & (crossing(found.problem, situation.slow) == 0)
    decided = {
        "loads": {worker.name: count for worker, count in zip(workers, counts, strict=True)},
        "warmup_forwards": [warmup[at : at + depth] for at in range(0, len(warmup), depth)],
        "bypassed_links": sorted((f"{k}/{i}" for i, k, _ in np.argwhere(unused).tolist()), key=place_of),
    }
    plan = _saying(plan, found, decided)
    return with_orders_and_prediction(plan, found.problem, found.orders, found.bound_s, "all-routings")


def _planned_by_seat(
    plan: Plan, situation: PlacedSituation, avoid: Collection[tuple[Place, Place]], effort: Effort, gap: float
) -> Plan:
    """The same of workers with several virtual stages: `loads` are a list, of each stage, and there are no warm-ups."""
    found = placed_joint_schedule(situation, avoid, effort, gap)
    decided = {
        "loads": loads_of(plan, found.problem),
        "bypassed_links": bypassed_links(situation, found.problem),
    }
    made = with_fused_backwards(found.problem, found.orders)
    return with_placed_prediction(
        with_placed_orders(_saying(plan, found, decided), *made), found.bound_s, "all-routings"
    )


def _saying(plan: Plan, found: Found, decided: Mapping[str, object]) -> Plan:
    """The plan, whose options say what was decided, and for what."""
    options = {
        **plan.planner.options,
        "failed": [worker.name for worker in plan.workers if worker.failed],
        "slow": {worker.name: worker.slowdown for worker in plan.workers if worker.slowdown is not None},
        "made_by": found.made_by,
        **decided,
        "avoided_jobs": found.avoided_jobs,
    }
    return replace(plan, planner=replace(plan.planner, options=options))
