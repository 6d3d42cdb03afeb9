"""From dead workers to orders: slots where workers are alike and the bound is reached, else the scheduling core."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np

from ...schemas.atlas import Atlas, AtlasEntry, Recipe, SlotRules
from ...schemas.check import check_promise
from ...schemas.documents import pointer, typed
from ...schemas.errors import InvalidInputError
from ...schemas.fields import Count, Factor, Seconds
from ...schemas.placement import links_crossed
from ...schemas.plan import Prediction
from ...schemas.profile import Connection
from ...schemas.quantities import print_apart, print_time
from ..scheduling.list_schedule import DispatchRules, ListScheduler, Priority
from ..scheduling.local_search import hold_back
from ..scheduling.lower_bound import lower_bound
from ..scheduling.problem import ROUNDING, Proven, with_any_split
from ..scheduling.retime import timed
from ..scheduling.solve import Effort, solve
from ..shape import Shape
from .bounds import arrival_bound_s
from .cluster import Technique
from .normalization import Cost
from .rotation import RotationSchedule, as_recorded, recorded
from .slot_search import FIRST_LOOK, SlotSchedule, SlotSearch
from .slots import Slots, expanded, route

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Ints, Orders, Problem, Windows


T = TypeVar("T")

# Up to so many operations, what slots leave open is searched by moves and annealing; and if a solver is asked for.
SEARCHED_OPERATIONS, SOLVED_OPERATIONS = 10_000, 20_000
# Up to so many, with other routings as well.
ROUTED_OPERATIONS = 500
# How many rules all workers go by on their own: so many operations' worth, but at least so many.
WORKER_OPERATIONS, FEWEST_RUNS = 5_000_000, 2
# Beyond so many, slots this close to their bound are left at that: it would take seconds to gain some tenths.
LEFT_OPERATIONS, LEFT_GAP = 50_000, 0.01
# How many schedules holding back may take: so many operations' worth, but at least and at most so many.
HELD_OPERATIONS, FEWEST_HELD, MOST_HELD = 20_000_000, 12, 60


@dataclass(frozen=True)
class ReroutedOrders(Proven):
    """Orders for the live workers, their makespan or period, and the bound on it, in s.

    `recipe` says how they were made; None where a search has found them. `windows` are those of the orders; None where
    these have not been timed one by one.
    """

    problem: Problem
    orders: Orders
    value_s: float
    bound_s: float
    recipe: Recipe | None
    windows: Windows | None = None


def reroute_alike(home: Problem, search: SlotSearch, dead: Sequence[int], effort: Effort) -> ReroutedOrders:
    """Orders for equal workers in each stage; the bound is for every routing.

    Args:
        home: equal pipelines in which every worker runs its own micro-batches, failed workers among them.
        search: for one of these pipelines.
        dead: failed workers of each stage.
        effort: how hard to try where slots leave a gap.
    """
    rotation, rotated = search.rotation, None
    if rotation is not None and rotation.leads:
        rotated = in_rotation(search, dead, effort if rotation.suffices else None)
        if rotated is not None and (rotated.optimal or rotation.suffices):
            return _rotated(home, search, rotated)
    found = search.look(dead)
    if found.optimal:
        return _in_slots(home, search, found)
    if rotation is not None and not rotation.suffices:  # else it has been searched already, in vain
        rotated = in_rotation(search, dead, effort)
    bound_s = proven_s(search, dead) if rotated is None else rotated.bound_s
    slots = replace(search.widest(dead), remainder_first=True)
    runs = min(FIRST_LOOK, max(FEWEST_RUNS, WORKER_OPERATIONS // home.operations))
    best = ReroutedOrders(home, [], inf, bound_s, None)
    if home.operations <= LEFT_OPERATIONS or not found.value_s <= found.bound_s * (1 + LEFT_GAP):
        best = _by_workers(home, slots, search.candidates(slots)[:runs], best, search.searches)
    if not best.optimal and rotated is not None:
        best = _better(best, _rotated(home, search, rotated))
    if not best.optimal:
        best = _better(best, _in_slots(home, search, found))
    if not best.optimal and np.isfinite(home.workers.limit_bytes).any():
        tried = search.search(dead, found, effort.seed, quick=effort.solver == "rules")
        best = best if tried is found else _better(best, _in_slots(home, search, tried))
    searched = SOLVED_OPERATIONS if effort.time_limit_s else SEARCHED_OPERATIONS
    if not best.optimal and effort.solver != "rules" and home.operations <= searched:
        others = [round_robin(home), block(home)] if any(dead) and home.operations <= ROUTED_OPERATIONS else []
        best = _searched(best, [best.problem, *others], effort)
    return best


def proven_s(search: SlotSearch, dead: Sequence[int]) -> float:
    """What no routing and no orders undercut, by all that is known, in s."""
    bound_s = search.bound_s(dead)
    if search.staggered:
        return bound_s
    return max(bound_s, arrival_bound_s(search.unjoined, search.jobs, search.pipelines - np.array(dead)))


def in_rotation(search: SlotSearch, dead: Sequence[int], effort: Effort | None) -> RotationSchedule | None:
    """Workers in rotation, by the first designs only without an effort; None where that is not tried, or never ends."""
    if search.rotation is None:
        return None
    bound_s, live = proven_s(search, dead), search.pipelines - np.array(dead)
    if bound_s == 0:
        return None
    if effort is None:
        return search.rotation.look(live, bound_s)
    return search.rotation.search(live, bound_s, effort.seed, quick=effort.solver == "rules")


def reroute_unlike(home: Problem, effort: Effort) -> ReroutedOrders:
    """Orders for workers that differ within a stage; the bound is for the routing that is taken.

    Args:
        home: as for `reroute_alike`.
        effort: how hard to try.
    """
    start = ReroutedOrders(home, [], inf, 0.0, None)
    routings = [by_load(home), round_robin(home), block(home)]
    share = replace(effort, time_limit_s=effort.time_limit_s / len(routings))
    found = [_searched(start, [routing], share) for routing in routings]
    best = min(found, key=lambda one: one.value_s)
    unjoined = replace(best.problem, workers=with_any_split(best.problem.workers))  # as orders may have B in the end
    return replace(best, bound_s=lower_bound(unjoined).value_s)


def slot_recipe(found: SlotSchedule) -> Recipe:
    """What makes a slot schedule again."""
    return Recipe(found.slots.group_sizes, _recorded(found.rules), "slots", narrow=found.slots.narrow)


def rotation_recipe(found: RotationSchedule) -> Recipe:
    """What makes a schedule in rotation again."""
    return Recipe(tuple(found.live.tolist()), scheduled="rotation", targets=recorded(found.targets))


def follow(home: Problem, search: SlotSearch, recipe: Recipe) -> tuple[Problem, Orders]:
    """The routing and orders that a recipe of slots and rules, or of targets, makes, bit for bit."""
    assert recipe.group_sizes is not None
    if recipe.targets is not None:
        assert search.rotation is not None
        rotation = search.rotation.scheduler
        rotation.run(np.array(recipe.group_sizes), as_recorded(recipe.targets))
        return rotation.orders(home)
    assert recipe.rules is not None
    by_workers = recipe.scheduled == "workers"
    slots = Slots(home.jobs, recipe.group_sizes, by_workers and recipe.narrow is None, recipe.narrow)
    rules = _rules(recipe.rules, len(recipe.group_sizes))
    if not by_workers:
        return expanded(home, slots, search.orders(slots, rules))
    problem = _routed(home, slots)
    scheduler = ListScheduler(problem)
    scheduler.run(_of_workers(problem, rules))
    return problem, scheduler.orders()


def _in_slots(home: Problem, search: SlotSearch, found: SlotSchedule) -> ReroutedOrders:
    """A slot schedule's orders; where it leaves a gap they may take less time than the slots."""
    recipe = slot_recipe(found)
    problem, orders = follow(home, search, recipe)
    if found.optimal:
        return ReroutedOrders(problem, orders, found.value_s, found.bound_s, recipe)
    taken_s, windows = timed(problem, orders, runs=search.searches)
    return ReroutedOrders(problem, orders, taken_s, found.bound_s, recipe, windows)


def _rotated(home: Problem, search: SlotSearch, found: RotationSchedule) -> ReroutedOrders:
    """The orders of workers in rotation, which take the very time that was found."""
    recipe = rotation_recipe(found)
    problem, orders = follow(home, search, recipe)
    return ReroutedOrders(problem, orders, found.value_s, found.bound_s, recipe)


def _by_workers(
    home: Problem, slots: Slots, candidates: Sequence[DispatchRules], best: ReroutedOrders, searches: int
) -> ReroutedOrders:
    """The same kind of routing, but every worker goes by the rules on its own instead of in step with its peers.

    For the period, stages are held back as well (scheduling/local_search.py). `searches` says about how many are to
    come.
    """
    problem = _routed(home, slots)
    held_runs = min(MOST_HELD, max(FEWEST_HELD, HELD_OPERATIONS // problem.operations)) if problem.staggered else 0
    scheduler = ListScheduler(problem, runs=(len(candidates) + min(held_runs, FEWEST_HELD)) * searches)
    found_s, rules = inf, candidates[0]
    for other in candidates:
        other_s = scheduler.run(_of_workers(problem, other))
        if other_s < found_s:
            found_s, rules = other_s, other
        if found_s <= best.goal_s:
            break
    if problem.staggered:
        start = _of_workers(problem, rules)
        held, found_s = hold_back(problem, scheduler, start, goal_s=best.goal_s, runs=held_runs)
        rules = replace(rules, held_back=held.held_back[: len(slots.group_sizes)])
    if found_s >= best.value_s:
        return best
    recipe = Recipe(slots.group_sizes, _recorded(rules), "workers")
    scheduler.run(_of_workers(problem, rules))
    return ReroutedOrders(problem, scheduler.orders(), found_s, best.bound_s, recipe)


def _searched(best: ReroutedOrders, routings: Sequence[Problem], effort: Effort) -> ReroutedOrders:
    """What the scheduling core finds for these routings."""
    share = replace(effort, time_limit_s=effort.time_limit_s / len(routings))
    for problem in routings:
        solution = solve(problem, share)
        if solution.value_s < best.value_s:
            best = ReroutedOrders(problem, solution.orders, solution.value_s, best.bound_s, recipe=None)
            if best.optimal:
                break
    return best


def _better(best: ReroutedOrders, other: ReroutedOrders) -> ReroutedOrders:
    """The quicker of two, with the larger bound."""
    quicker = other if other.value_s < best.value_s else best
    return replace(quicker, bound_s=max(best.bound_s, other.bound_s))


def _routed(home: Problem, slots: Slots) -> Problem:
    live = home.workers.live.reshape(len(home.depth), -1)
    return replace(home, executor=route(live, slots))


def _recorded(rules: DispatchRules) -> SlotRules:
    """Rules of stages; what is alike in all stages once."""

    def entries(column: Sequence[T]) -> tuple[T, ...]:
        return tuple(column[:1] if len(set(column)) == 1 else column)

    return SlotRules(
        entries([int(n) for n in rules.warmup]),
        entries([int(n) for n in rules.in_flight]),
        entries([float(share) for share in rules.weight_wait]),
        entries([int(n) for n in rules.backlog]),
        entries([int(priority) for priority in rules.priority]),
        entries([int(n) for n in rules.held_back or [0]]),
    )


def _rules(recorded: SlotRules, stages: int) -> DispatchRules:
    """Rules of stages, one entry each."""

    def of_stages(column: Sequence[T]) -> Sequence[T]:
        return column if len(column) == stages else [*column] * stages

    return DispatchRules(
        of_stages(recorded.warmup),
        of_stages(recorded.in_flight),
        of_stages(recorded.weight_wait),
        of_stages(recorded.backlog),
        of_stages([Priority(number) for number in recorded.priority]),
        of_stages(recorded.held_back),
    )


def _of_workers(problem: Problem, rules: DispatchRules) -> DispatchRules:
    """Rules of stages as rules of workers."""
    stage = problem.workers.stage.tolist()
    columns = (rules.warmup, rules.in_flight, rules.weight_wait, rules.backlog, rules.priority, rules.held_back)
    return DispatchRules(*([column[i] for i in stage] if column else () for column in columns))


# Who executes a dead worker's micro-batches: the ways to route that are tried.
#
# F, I and W of a micro-batch stay together in all of them, and live workers keep their own micro-batches but for
# `by_load`.
#
# * **slots** (slots.py): as even as can be, and the workers of a stage in step with each other.
# * **round robin**: a stage's lost micro-batches go to its live workers in turns; the split that "SlipStream", section
#   4.2.2, takes as given ("evenly across peer workers").
# * **block**: each live worker takes a run of them; the split of the paper's Figure 3.
# * **by load**: every micro-batch of a stage, its own ones first, goes to the live worker that ends first if it takes
# one
#   more; so slow peers take fewer, and give some of their own away.


def round_robin(home: Problem) -> Problem:
    """Lost micro-batches in turns, in rank order.

    Args:
        home: equal pipelines in which every worker runs its own micro-batches, failed workers among them.
    """
    return _rerouted(home, lambda lost, live: np.array(live)[np.arange(lost) % len(live)])


def block(home: Problem) -> Problem:
    """Lost micro-batches in runs of equal length, as far as that goes; `home` as for `round_robin`."""

    def in_runs(lost: int, live: Sequence[int]) -> Ints:
        return np.repeat(live, lost // len(live) + (np.arange(len(live)) < lost % len(live)))

    return _rerouted(home, in_runs)


def by_load(home: Problem) -> Problem:
    """Each micro-batch where the load is least afterwards, at home if it has room; `home` as for `round_robin`."""
    executor = home.executor.copy()
    work_s = home.workers.forward_s + home.workers.full_s
    for stage, lost, live in _stages(home):
        shares = _least_loads(work_s[list(live)], len(executor))
        room = dict(zip(live, shares, strict=True))
        away = list(lost)
        for job in range(len(executor)):
            own = int(executor[job, stage])
            if own in room and room[own] > 0:
                room[own] -= 1
            elif own in room:
                away.append(job)
        takers = [worker for worker in live for _ in range(room[worker])]
        count = {worker: takers.count(worker) for worker in dict.fromkeys(takers)}
        places = [((n + 0.5) / most, worker) for worker, most in count.items() for n in range(most)]
        for job, worker in zip(sorted(away), [worker for _, worker in sorted(places)], strict=True):
            executor[job, stage] = worker
    return replace(home, executor=executor)


def _stages(home: Problem) -> Iterator[tuple[int, Ints, list[int]]]:
    """Of each stage with micro-batches: those of dead workers, and the live workers."""
    for stage in range(home.executor.shape[1]):
        executors = home.executor[:, stage]
        lost = np.flatnonzero(~home.workers.live[executors])
        yield stage, lost, [int(w) for w in np.unique(executors) if home.workers.live[w]]


def _rerouted(home: Problem, choose: Callable[[int, list[int]], Ints]) -> Problem:
    executor = home.executor.copy()
    for stage, lost, live in _stages(home):
        if lost.size:
            executor[lost, stage] = choose(len(lost), live)
    return replace(home, executor=executor)


def _least_loads(work_s: Floats, jobs: int) -> list[int]:
    """How many micro-batches each worker takes, so that the one that ends last ends as early as can be."""
    taken = [0] * len(work_s)
    heap = [(float(each_s), worker) for worker, each_s in enumerate(work_s)]
    heapify(heap)
    for _ in range(jobs):
        _, worker = heappop(heap)
        taken[worker] += 1
        heappush(heap, ((taken[worker] + 1) * float(work_s[worker]), worker))
    return taken


# Whether an atlas that was read is what a planner has written, or its parts contradict each other.


OPTIONS = "/planner/options"

_PLACE = re.compile(r"(?:(\d{1,9})/)?(\d{1,9})")


@dataclass(frozen=True, slots=True)
class _AtlasOptions:
    """Of `planner.options`, those that plans are made by; the others are for people, and for whoever runs the plan."""

    pp: Count
    dp: Count
    microbatches: Count
    technique: Technique
    solver: Literal["auto", "heuristic", "milp", "cp-sat"]
    time_limit_s: Seconds
    cost: Cost
    slow: dict[str, Factor]
    link_delay_s: dict[str, Seconds]
    network: Connection | None

    __pydantic_config__: ClassVar[Any] = {"extra": "ignore", "strict": True, "allow_inf_nan": False}


def require_consistent(atlas: Atlas) -> None:
    """Raise InvalidInputError, with a JSON pointer, where an atlas says of itself what cannot be.

    That an entry keeps its promise is seen once its plan is made: `require_kept`.
    """
    options: _AtlasOptions = typed(atlas.planner.options, _AtlasOptions, OPTIONS)
    stages = len(atlas.template.columns)
    for name, is_so in (
        ("pp", options.pp == stages),
        ("dp", options.dp == atlas.dp),
        ("microbatches", options.microbatches == atlas.microbatches),
        ("technique", (options.technique == "staggered") == (atlas.optimizer == "staggered")),
        ("technique", (options.technique != "adaptive") == atlas.split),
    ):
        if not is_so:
            raise contradiction(f"{name} {getattr(options, name)} is not what it says elsewhere", f"{OPTIONS}/{name}")
    Shape(stages, atlas.dp, atlas.microbatches)  # which has its bounds
    links = 1 + max(links_crossed(atlas.template), default=-1)
    for name, parts, what in (("slow", stages, "worker"), ("link_delay_s", links, "link")):
        for key in getattr(options, name):
            at = _PLACE.fullmatch(key)
            if at is None or int(at[1] or 0) >= atlas.dp or int(at[2]) >= parts or (what == "worker" and not at[1]):
                raise contradiction(f"there is no {what} {key}", OPTIONS + pointer((name, key)))
    for number, entry in enumerate(atlas.plans):
        for problem in check_promise(entry.prediction, atlas.optimizer):
            raise contradiction(problem.message, f"/plans/{number}{problem.path}")


def require_kept(entry: AtlasEntry, found: Prediction) -> None:
    """Raise InvalidInputError where what an entry's recipe makes is not what the entry promises.

    Slots and rotations promise what they take themselves: workers that skip slots, or whose backwards are joined again,
    may be sooner.
    """
    promised_s = entry.prediction.iteration_time_s
    late_s = found.iteration_time_s - promised_s
    if late_s > ROUNDING * promised_s or (late_s < -ROUNDING * promised_s and entry.recipe.scheduled == "workers"):
        promised, takes = print_apart(promised_s, found.iteration_time_s, print_time)
        what = f"an iteration of {promised} is promised, the recipe's takes {takes}"
        raise contradiction(what, f"/plans/{entry.failed_units}/prediction/iteration_time_s")


def contradiction(what: str, where: str) -> InvalidInputError:
    """The error for an atlas that was changed."""
    fix = "bring back the atlas as rtk plan slipstream wrote it, or make it again"
    return InvalidInputError(f"the atlas contradicts itself: {what}", where=where, fix=fix)
