"""A grid of alike pipelines that heeds what is slow: SlipStream for failures, and the cheapest remedy for the rest.

Whoever is dead is re-routed as ever (`slipstream.py`). On top of that, the cheapest thing that helps ("Greyhound",
section 5); how far that may go is the `level` of the moment (`escalation.py`):

1. At once (S2), the dead, the slow workers and the slow links are planned for jointly (planners/joint/): micro-batches
   are shared out unevenly, and warm-ups bent around links. Yet the running orders stay, or else those for the failures
   alone are taken, if they take at most `WORTH_IT` longer. They are timed under the delays, so what slack has room
   for (Equation 1 of "Adaptra") is seen exactly. Nobody asks for a joint plan where not even one at its bound
   (`planners/joint/bound.py`) would be worth it.
2. From level 1 on (S3), some workers change places first, if the joint plan is then faster by `GAIN` for each swap, and
   what that gains pays for its copies before the horizon (planners/greyhound/topology.py).
3. From level 2 on (S4), the job starts again on other workers, if it is still slower by `GAIN` than it could be.

Once nothing is slow, the orders are again those for the failures alone, and who has changed places goes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, cast

from ...schemas.conditions import AS_PLANNED, PlacePair, PlanConditions, are_of_one_pipeline, are_peers, slow_at
from ...schemas.documents import digest
from ...schemas.errors import InfeasibleError
from ...schemas.plan import Place, Plan, Stage, Template, name_of, place_of
from ...schemas.quantities import print_time
from ...schemas.replay import Fleet, Moment, StateChange, TrainingState, Transition
from ..greyhound.topology import Swap, best_swap
from ..placement.retimed import AnyRetimed, retimed_of
from .detecting import paced
from .job import Horizon, Seating, pays, planning, regrouping, seating_of
from .rerouting import Empty

if TYPE_CHECKING:
    from ..joint.plan import AnySituation
    from .slipstream import SlipStream

WORTH_IT = 0.02
# Copies, and even more so a restart, are made only for what makes iterations so much shorter ("Greyhound", section 5.1,
# leaves out remedies without effect).
GAIN = 0.05
SWAPS = 3
# Where nobody knows how much is copied, or how fast, the copies are taken to last as long as so many iterations.
UNKNOWN_COPYING = 10

MOVE, RESTART = 1, 2  # levels of what is slow

# What orders are made for: nothing slow (those of SlipStream), or what is slow (joint ones); or the digest of a plan
# that ran when the job was resumed.
Orders = PlanConditions | str


@dataclass(frozen=True)
class AdaptedLayout:
    """Who sits where, in which orders.

    Attributes:
        base: SlipStream's standing, in which nothing is slow.
        orders: what they are made for.
        slowness: what is slow there.
    """

    base: TrainingState
    orders: Orders = AS_PLANNED
    slowness: PlanConditions = AS_PLANNED


class Adapting:
    """SlipStream's seats, and orders for what is slow (a `RunningPolicy`).

    A broken link counts as one that takes a detour, twice as long as it would. Links between workers who have nothing
    to send to each other do not count, nor do nodes without a seat. Only nodes of a single worker change places.

    Args:
        slipstream: for failures, and for nodes that come.
        horizon: until when a swap's copies must have paid.
        host_memory_bytes: what a worker may hold beyond its stage's memory limit in joint orders.
    """

    def __init__(self, slipstream: SlipStream, horizon: Horizon, host_memory_bytes: float = 0.0) -> None:
        self._slipstream, self._host_bytes = slipstream, host_memory_bytes
        self._job, self._pipelines = slipstream.job, slipstream.job.pipelines
        self._horizon = horizon if self._pipelines.are_alike else Horizon(0)
        self._resumed: dict[str, Plan] = {}
        self._is_saved = slipstream.job.saved is not None
        self._ready = cache(self._orders_timed)
        self._time_s = cache(self._timed_s)
        self._pace_s = cache(lambda empty, orders, slowness: self._ready(empty, orders).iteration_time_s(slowness))
        self._joint = cache(self._joint_plan)
        self._bound_s = cache(lambda empty, slowness: self._situation(empty, slowness).bound.value_s)
        self._situation = lru_cache(maxsize=1)(self._situation_of)  # who asks for its bound asks for its plan next

    def begin(self, fleet: Fleet) -> TrainingState:
        """As SlipStream, slow parts included; what is slow already is answered from the next moment on."""
        return self._standing(AdaptedLayout(self._slipstream.begin(fleet)), fleet)

    def resume(self, plan: Plan, seats: Mapping[Place, str]) -> TrainingState:
        """As SlipStream; its orders, or others that were made for what was slow."""
        base = self._slipstream.resume(plan, seats)
        if plan == self._pipelines.plan(self._empty(base)):
            return self._standing(AdaptedLayout(base), Fleet(()))
        base = self._slipstream.seated(seating_of(base))  # what it takes with nothing slow is not what this plan says
        name = digest(plan)
        self._resumed[name] = plan
        return self._standing(AdaptedLayout(base, name), Fleet(()))

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """As SlipStream, in the best orders that there are; where that has nothing to do, a remedy, if one is worth it.

        Raises:
            InfeasibleError: a stage has no live worker left, and nothing was saved; or, where nothing was saved and
                nobody is gone, no orders for what is slow keep the memory limits: then those in force are the best.
        """
        layout, steps = _layout(standing), []
        for step in self._slipstream.react(layout.base, moment):
            layout, _ = self._heeding(layout, step.standing, moment)
            now = self._standing(layout, moment.fleet)
            steps.append(replace(step, standing=now, restart=self._reason_to_restart(layout, moment)))
        if steps or standing.iteration_time_s is None:
            return tuple(steps)
        following, refusal = self._heeding(layout, layout.base, moment)
        if refusal is not None and following == replace(layout, slowness=following.slowness) and not self._is_saved:
            raise InfeasibleError(f"none for what is slow now: {refusal.what}", fix=refusal.fix)
        return tuple(self._remedied(standing, following, moment))

    def plan(self, standing: TrainingState) -> Plan | None:
        """The orders, with what is slow."""
        layout = _layout(standing)
        if standing.iteration_time_s is None:
            return None
        return layout.slowness.under(self._unslowed(self._empty(layout.base), layout.orders))

    def program(self, standing: TrainingState) -> Plan:
        """The orders, with what is slow as far as they are made for it."""
        layout = _layout(standing)
        return self._ordered(self._empty(layout.base), layout.orders)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """As SlipStream."""
        return self._slipstream.seats(_layout(standing).base)

    def moving_s(self, usual_s: float) -> float:
        """What it costs to have two workers change places, there and back, in s; estimated without knowing which."""
        most = max(self._pipelines.gpu_bytes, default=0.0)
        return 2 * self._copying_s([most, most], usual_s)

    def warm_up(self) -> None:
        """Plan for a failure, and for a slow worker and slow links, so that all is loaded when the first is found."""
        from ..joint.plan import warm_up

        self._slipstream.warm_up()
        plan = self._pipelines.plan(self._pipelines.own_empty)
        with suppress(InfeasibleError):
            warm_up(plan)
        workers = plan.live_workers()
        seats = {one.place: one.name for one in workers}
        long_s = sum(stage.duration_s("F") for one in workers for stage in plan.stages_of(one))
        links = {tuple(sorted((one.name, name_of((one.pipeline, one.stage + 1))))): long_s for one in workers}
        fleet = Fleet(tuple(seats.values()), {workers[-1].name: 2.0}, cast("dict[tuple[str, str], float]", links))
        with suppress(InfeasibleError):
            self.react(self.resume(plan, seats), Moment(0.0, fleet))

    # What to do about what is slow

    def _remedied(self, standing: TrainingState, following: AdaptedLayout, moment: Moment) -> Iterator[StateChange]:
        """Over to other seats or orders, or on at another pace."""
        layout, costs = _layout(standing), self._job.costs
        now, restart = self._standing(following, moment.fleet), self._reason_to_restart(following, moment)
        same = self._standing(layout, moment.fleet)
        if following.base != layout.base:
            usual_s = layout.base.iteration_time_s or 0.0
            copying_s = self._copying_s(self._moved_bytes(layout.base, following.base), usual_s)
            pauses = regrouping(costs, planning_s=costs.planning_s, copying_s=copying_s)
            change = StateChange(now, "S3" if moment.believed.is_slow else "relief", pauses, restart=restart)
        elif following.orders != layout.orders:
            answer = "relief" if following.orders == AS_PLANNED else "S2"
            change = StateChange(now, answer, planning(costs), restart=restart)
        else:
            if same != standing or restart:
                yield StateChange(same, "S4" if restart else "", restart=restart)
            return
        if same != standing:
            yield paced(same)
        yield change

    def _heeding(
        self, layout: AdaptedLayout, base: TrainingState, moment: Moment
    ) -> tuple[AdaptedLayout, InfeasibleError | None]:
        """The seats and the orders for what is believed to be slow; why there are no joint ones, if there are none.

        Args:
            layout: until now.
            base: how SlipStream goes on.
            moment: the change.
        """
        if base.iteration_time_s is None:
            return AdaptedLayout(base), None
        empty = self._empty(base)
        serving: list[Orders] = [layout.orders, AS_PLANNED] if empty == self._empty(layout.base) else [AS_PLANNED]
        base = self._moved(base, moment)
        orders, refusal = self._best(empty, self._slowness(base, moment.believed), serving)
        return AdaptedLayout(base, orders, layout.slowness), refusal

    def _best(
        self, empty: Empty, slowness: PlanConditions, serving: list[Orders]
    ) -> tuple[Orders, InfeasibleError | None]:
        """The first orders that are hardly slower than the joint ones, or else these."""
        avoided = _avoided(slowness)
        is_felt = slowness.inside() or (avoided and self._ready(empty, AS_PLANNED).crosses(avoided))
        if not is_felt:
            return AS_PLANNED, None
        enough_s = self._bound_s(empty, slowness) * (1 + WORTH_IT)
        for orders in serving:
            if self._time_s(empty, orders, slowness) <= enough_s:
                return orders, None
        try:
            enough_s = self._time_s(empty, slowness, slowness) * (1 + WORTH_IT)
        except InfeasibleError as error:
            return min(serving, key=lambda one: self._time_s(empty, one, slowness)), error
        return next((one for one in serving if self._time_s(empty, one, slowness) <= enough_s), slowness), None

    def _reason_to_restart(self, layout: AdaptedLayout, moment: Moment) -> str:
        """Why the job should start again on other workers; empty where that would gain next to nothing."""
        if moment.level < RESTART or layout.base.iteration_time_s is None:
            return ""
        slowness, fleet = self._slowness(layout.base, moment.fleet), moment.fleet
        lasts_s = self._time_s(self._empty(layout.base), layout.orders, slowness)
        if lasts_s * (1 - GAIN) < layout.base.iteration_time_s:
            return ""
        workers = [f"worker {name} ({factor:g} times as long)" for name, factor in fleet.slow.items()]
        links = [f"link {'-'.join(ends)} ({print_time(delay_s)})" for ends, delay_s in fleet.slow_links.items()]
        return f"slow for so long that a restart on other workers pays: {', '.join([*workers, *links])}"

    # Who changes places

    def _moved(self, base: TrainingState, moment: Moment) -> TrainingState:
        """Who takes which seat; nobody another one than usual while somebody waits for his state."""
        seating, fleet = seating_of(base), moment.believed
        if self._job.grid.unit_pipelines * self._job.grid.unit_stages > 1 or not moment.settled:
            return base
        if moment.came or set(fleet.nodes).difference(seating):
            return base
        if not fleet.is_slow:
            return base if fleet.broken_links else self._slipstream.seated(_back_home(seating, self._job.grid.columns))
        if moment.level < MOVE or self._horizon == Horizon(0):
            return base
        for _ in range(SWAPS):
            swap = self._swap(base, moment)
            if swap is None:
                break
            base = self._swapped(base, swap)
        return base

    def _swap(self, base: TrainingState, moment: Moment) -> Swap | None:
        """The best swap, if it is worth its copies."""
        empty, plan = self._empty(base), self._pipelines.plan(self._empty(base))
        usual_s = base.iteration_time_s or 0.0

        def slowness(swap: Swap | None) -> PlanConditions:
            return self._slowness(base if swap is None else self._swapped(base, swap), moment.believed)

        @cache
        def time_s(swap: Swap | None) -> float:
            found = slowness(swap)
            return self._time_s(empty, self._best(empty, found, [AS_PLANNED])[0], found)

        gpu_bytes = self._pipelines.gpu_bytes
        swap = best_swap(
            plan,
            self._all_slowness(base, moment.believed),
            gpu_bytes,
            lambda one: self._time_s(empty, AS_PLANNED, slowness(one)),
            time_s,
        )
        if swap is None or time_s(swap) > time_s(None) * (1 - GAIN):
            return None
        sizes = [] if are_peers(swap) else [gpu_bytes[stage] for _, stage in swap]
        left_s = self._horizon.left_s(self._job.costs, moment, time_s(None))
        is_worth_it = pays(left_s, self._copying_s(sizes, usual_s), 1 / time_s(None), 1 / time_s(swap))
        return swap if is_worth_it else None

    def _swapped(self, base: TrainingState, swap: Swap) -> TrainingState:
        """Once the nodes of two seats have changed theirs."""
        found, (one, other) = list(seating_of(base)), (k * self._job.grid.columns + i for k, i in swap)
        found[one], found[other] = found[other], found[one]
        return replace(base, formation=tuple(found))

    def _moved_bytes(self, before: TrainingState, after: TrainingState) -> list[float]:
        """What each node copies that is at another stage from now on."""
        columns, old, new = self._job.grid.columns, seating_of(before), seating_of(after)
        column_of = {node: n % columns for n, node in enumerate(old)}
        return [
            self._pipelines.gpu_bytes[n % columns]
            for n, node in enumerate(new)
            if node is not None and column_of[node] != n % columns
        ]

    def _copying_s(self, sizes: list[float], usual_s: float) -> float:
        """How long it takes to copy so many bytes each from another worker, in s."""
        if not sizes:
            return 0.0
        lasts_s = self._job.connection.copying_s((n, n, size_bytes) for n, size_bytes in enumerate(sizes))
        return UNKNOWN_COPYING * usual_s if lasts_s is None or not any(sizes) else lasts_s

    # What is slow, and what iterations take then

    def _standing(self, layout: AdaptedLayout, fleet: Fleet) -> TrainingState:
        """Training goes on so in a fleet."""
        base, empty = layout.base, self._empty(layout.base)
        if base.iteration_time_s is None:
            return replace(base, formation=AdaptedLayout(base))
        slowness = self._slowness(base, fleet)
        layout = replace(layout, slowness=slowness)
        if layout.orders == AS_PLANNED and not slowness:
            return replace(base, formation=layout)
        held_bytes = base.peak_memory_bytes
        if layout.orders != AS_PLANNED:
            held_bytes = self._pipelines.promised(self._ordered(empty, layout.orders)).peak_memory_bytes
        time_s = self._pace_s(empty, layout.orders, slowness)
        return replace(base, formation=layout, iteration_time_s=time_s, peak_memory_bytes=held_bytes)

    def _slowness(self, base: TrainingState, fleet: Fleet) -> PlanConditions:
        """What of a fleet's slow and broken parts does harm, or might if it were not avoided."""
        found = self._all_slowness(base, fleet)
        if not found:
            return AS_PLANNED
        links_s = (one for one in found.links_s if are_peers(one[0]) or self._is_felt(*one))
        return PlanConditions(found.factors, tuple(links_s))

    def _is_felt(self, pair: PlacePair, delay_s: float) -> bool:
        """Whether places send each other messages, over a link that is slower than it is planned to be."""
        usual_s = self._pipelines.link_delay_s(pair)
        return usual_s is not None and (delay_s > usual_s or not are_of_one_pipeline(pair))

    def _all_slowness(self, base: TrainingState, fleet: Fleet) -> PlanConditions:
        """Broken links among what is slow; what is measured of these is measured on the detour."""
        if not fleet.is_slow and not fleet.broken_links:
            return AS_PLANNED
        seats = self._slipstream.seats(base)
        found = fleet.at(seats)
        if not fleet.broken_links:
            return found
        links_s = dict(found.links_s)
        broken = slow_at(seats, {}, dict.fromkeys(fleet.broken_links, 0.0))
        for pair, _ in broken.links_s:
            usual_s = self._pipelines.link_delay_s(pair) if are_of_one_pipeline(pair) else None
            links_s[pair] = max(2 * (usual_s or 0.0), links_s.get(pair, 0.0))
        return PlanConditions(found.factors, tuple(sorted(links_s.items())))

    def _timed_s(self, empty: Empty, orders: Orders, slowness: PlanConditions) -> float:
        """What an iteration takes, in s; infinite where messages go between places that are to be avoided."""
        is_crossed = self._ready(empty, orders).crosses(_avoided(slowness))
        return float("inf") if is_crossed else self._pace_s(empty, orders, slowness)

    def _orders_timed(self, empty: Empty, orders: Orders) -> AnyRetimed:
        if orders == AS_PLANNED and self._is_saved:
            return self._pipelines.ordered(empty)  # of a replay, which has asked for no plan
        return retimed_of(self._unslowed(empty, orders))

    def _unslowed(self, empty: Empty, orders: Orders) -> Plan:
        """The orders in a plan in which nothing is slow."""
        usual = self._pipelines.plan(empty)
        if orders == AS_PLANNED:
            return usual
        made = self._ordered(empty, orders)
        workers = (replace(one, order=other.order) for one, other in zip(usual.workers, made.workers, strict=True))
        return replace(usual, planner=made.planner, workers=tuple(workers), prediction=None)

    def _ordered(self, empty: Empty, orders: Orders) -> Plan:
        """The plan with these orders, and with what is slow as far as they are made for it."""
        if isinstance(orders, str):
            return self._resumed[orders]
        return self._joint(empty, orders) if orders else self._pipelines.plan(empty)

    def _joint_plan(self, empty: Empty, slowness: PlanConditions) -> Plan:
        from ..joint.plan import replan_joint  # late: most jobs never ask

        situation = self._situation(empty, slowness)
        return replan_joint(situation.plan, _avoided(slowness), situation)

    def _situation_of(self, empty: Empty, slowness: PlanConditions) -> AnySituation:
        from ..joint.plan import situation_of

        return situation_of(self._troubled(empty, slowness), split=self._pipelines.common.split)

    def _troubled(self, empty: Empty, slowness: PlanConditions) -> Plan:
        """The plan for the failures under what is slow, with the host's memory on top of its workers'."""
        plan = slowness.inside().under(self._pipelines.plan(empty))

        def lifted(stage: Stage) -> Stage:
            limit_bytes = stage.memory_limit_bytes
            return stage if limit_bytes is None else replace(stage, memory_limit_bytes=limit_bytes + self._host_bytes)

        def roomier(template: Template) -> Template:
            columns = template.memory_limits_bytes
            limits = None if columns is None else tuple(size_bytes + self._host_bytes for size_bytes in columns)
            return replace(template, stages=tuple(map(lifted, template.stages)), memory_limits_bytes=limits)

        return replace(plan, templates=tuple(map(roomier, plan.templates))) if self._host_bytes else plan

    def _empty(self, base: TrainingState) -> Empty:
        return self._slipstream.empty(seating_of(base))


def _layout(standing: TrainingState) -> AdaptedLayout:
    return cast("AdaptedLayout", standing.formation)


def _back_home(seating: Seating, columns: int) -> Seating:
    """Everybody at the place he is named after, as far as those who sit there go home, too, and so on in a circle."""
    seats = {node: divmod(number, columns) for number, node in enumerate(seating) if node is not None}
    holder = {place: node for node, place in seats.items()}

    def home(node: str) -> Place | None:
        try:
            return place_of(node)
        except ValueError:
            return None

    def may_go(node: str) -> bool:
        """Whether who sits at his place can go home, and who sits there, and so on, until one goes to where he was."""
        after = holder.get(home(node) or seats[node])
        while after is not None and after != node:
            place = home(after)
            after = None if place is None else holder.get(place)
        return after is not None

    found = list(seating)
    for node in seats:
        k, i = (home(node) or seats[node]) if may_go(node) else seats[node]
        found[k * columns + i] = node
    return tuple(found)


def _avoided(slowness: PlanConditions) -> tuple[PlacePair, ...]:
    """Slow links between neighbouring stages of unlike pipelines, whose delay a plan cannot say."""
    return tuple(pair for pair, _ in slowness.links_s if not (are_of_one_pipeline(pair) or are_peers(pair)))
