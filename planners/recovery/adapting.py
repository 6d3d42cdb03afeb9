"""What the coordinator answers when links or workers of a running job are slow: another plan, or the one that runs.

Whoever is dead is re-routed as ever (`rerouting.py`). On top of that, the cheapest thing that helps ("Greyhound",
section 5); how far that may go is the `level` of the conditions (`escalation.py`):

1. At once (S2), the dead, the slow workers and the slow links are planned for jointly (planners/joint/): micro-batches
   are shared out unevenly, and warm-ups bent around links. Yet the running plan goes on, or else the one for the
   failures alone is taken, if it takes at most `WORTH_IT` longer. Its orders are timed under the delays, so what its
   slack has room for (Equation 1 of "Adaptra") is seen exactly.
2. From level 1 on (S3), some workers change places first, if the joint plan is then faster by `GAIN` for each swap, and
   what that gains pays for its copies within `--normalize-within` iterations (planners/greyhound/topology.py).
3. From level 2 on (S4), the job starts again on other workers, if it is still slower by `GAIN` than it could be.

Once nothing is slow, the plan is again that for the failures alone, and who has changed places goes back.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

from ...schemas.conditions import Conditions, LinkPlace, Pair, SlowLink, SlowWorker, pair_of, under_conditions
from ...schemas.errors import InfeasibleError
from ...schemas.plan import Place, Plan, Stage, name_of, place_of
from ...schemas.protocols import Hand, Replanned
from ..break_even import pays_within
from ..greyhound.topology import PlacePair, Swap, are_neighbours, are_peers, best_swap
from ..scheduling.problem import codes_of, problem_of
from ..scheduling.retime import value_s
from ..slipstream.cluster import alike, connection_of
from .rerouting import ReroutingPlanner, empty_places

WORTH_IT = 0.02
# Copies, and even more so a restart, are made only for what makes iterations so much shorter ("Greyhound", section 5.1,
# leaves out remedies without effect).
GAIN = 0.05
SWAPS = 3
# Where nobody knows how much is copied, or how fast, the copies are taken to last as long as so many iterations.
UNKNOWN_COPYING = 10

MOVE, RESTART = 1, 2  # levels of conditions

Seats = Mapping[str, Place]


class Adapting:
    """Plans for one job's failures, slow workers and slow links (a `Replan`).

    A broken link counts as one that takes a detour, twice as long as it would. Links between workers who have nothing
    to send to each other do not count, nor do workers without a place.

    Args:
        base: plans for the failures.
        normalize_within: iterations within which a swap's copies must have paid; 0: nobody moves.
        host_memory_bytes: what a worker may hold beyond its stage's memory limit under an adapted plan.
    """

    def __init__(self, base: ReroutingPlanner, normalize_within: int, host_memory_bytes: float = 0.0) -> None:
        self._base, self._host_memory_bytes = base, host_memory_bytes
        self._normalize_within = normalize_within if alike(base.common) else 0

    def __call__(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
        """The plan for who is there, as things are.

        Raises:
            InfeasibleError: a stage has no live worker left; or nobody is gone, and no order for what is slow keeps the
                memory limits: then the running plan is the best that there is.
        """
        usual = self._base(plan, crew, conditions)
        seats = self._moved(usual, crew, conditions)
        may_stay = plan != usual.plan and empty_places(plan) == empty_places(usual.plan)
        serving = [plan, usual.plan] if may_stay else [usual.plan]
        task = _Task.of(usual.plan, seats, conditions)
        try:
            best = usual.plan if task is None else self._best(task, serving)
        except InfeasibleError as error:
            assert task is not None
            best = min(serving, key=task.time_s)
            if best == plan and seats == {hand.worker: hand.place for hand in crew}:
                raise InfeasibleError(f"none for what is slow now: {error.what}", fix=error.fix) from None
        restart = _reason_to_restart(usual.plan, best, seats, conditions) if conditions.level >= RESTART else ""
        return Replanned(best, _by_place(seats), restart)

    def moving_s(self, usual_s: float) -> float:
        """What it costs to have two workers change places, there and back, in s; estimated without knowing which two.

        Args:
            usual_s: what an iteration takes, in s.
        """
        most = max(self._base.common.state_bytes, default=0.0)
        return 2 * self._copying_s([most, most], usual_s)

    def warm_up(self) -> None:
        """Plan for a failure, and for a slow worker and slow links, so that all is loaded when the first is found."""
        from ..joint.plan import warm_up

        self._base.warm_up()
        with suppress(InfeasibleError):
            warm_up(self._base.plan)
        plan = self._base.plan
        workers = plan.live_workers()
        crew = tuple(Hand(one.name, (one.pipeline, one.stage), plan.stage_of(one).layers) for one in workers)
        ends = sorted(pair_of(one.name, name_of((one.pipeline, one.stage + 1))) for one in workers)
        long_s = sum(plan.stage_of(one).duration_s("F") for one in workers)
        links = tuple(SlowLink(pair, long_s) for pair in ends)
        with suppress(InfeasibleError):
            self(plan, crew, Conditions(links, (SlowWorker(workers[-1].name, 2.0),)))

    def _best(self, task: "_Task", serving: list[Plan]) -> Plan:
        """The first of some plans that is hardly slower than the joint one, or else that."""
        joint = self._joint(task)
        assert joint.prediction is not None
        enough_s = joint.prediction.iteration_time_s * (1 + WORTH_IT)
        return next((one for one in serving if task.time_s(one) <= enough_s), joint)

    def _joint(self, task: "_Task") -> Plan:
        from ..joint.plan import replan_joint  # late: most jobs never ask

        return replan_joint(_with_stages(task.plan, self._lifted), task.avoid)

    def _lifted(self, number: int, stage: Stage) -> Stage:
        """A stage with the host's memory on top of its worker's."""
        if stage.memory_limit_bytes is None or not self._host_memory_bytes:
            return stage
        return replace(stage, memory_limit_bytes=stage.memory_limit_bytes + self._host_memory_bytes)

    def _moved(self, usual: Replanned, crew: tuple[Hand, ...], conditions: Conditions) -> Seats:
        """Who takes which place; nobody another one than usual while somebody waits for his state."""
        seats: Seats = dict(usual.seats)
        if any(hand.place is None or hand.layers is None for hand in crew):
            return seats
        if not conditions.is_slow:
            return seats if conditions.broken_links else _back_home(seats)
        if conditions.level < MOVE or not self._normalize_within:
            return seats
        for _ in range(SWAPS):
            swap = self._swap(usual.plan, seats, conditions)
            if swap is None:
                break
            seats = _after(seats, swap)
        return seats

    def _swap(self, plan: Plan, seats: Seats, conditions: Conditions) -> Swap | None:
        """The best swap, if it is worth its copies."""

        def quick_s(swap: Swap | None) -> float:
            return _lasts_s(plan, plan, _after(seats, swap), conditions)

        @cache
        def time_s(swap: Swap | None) -> float:
            there = _after(seats, swap)
            task = _Task.of(plan, there, conditions)
            best = plan
            if task is not None:
                with suppress(InfeasibleError):
                    best = self._best(task, [plan])
            return _lasts_s(plan, best, there, conditions)

        common = self._base.common
        slow = [seats[one.worker] for one in conditions.slow_workers if one.worker in seats]
        delays_s = _delays_s(plan, seats, conditions)
        swap = best_swap(plan, slow, delays_s, common.state_bytes, quick_s, time_s)
        if swap is None or time_s(swap) > time_s(None) * (1 - GAIN):
            return None
        sizes = [] if are_peers(swap) else [common.state_bytes[stage] for _, stage in swap]
        copying_s = self._copying_s(sizes, _iteration_s(plan))
        return swap if pays_within(self._normalize_within, copying_s, time_s(None), time_s(swap)) else None

    def _copying_s(self, sizes: list[float], usual_s: float) -> float:
        """How long it takes to copy so many bytes each from another worker, in s."""
        if not sizes:
            return 0.0
        lasts_s = connection_of(self._base.common).copying_s((n, n, size_bytes) for n, size_bytes in enumerate(sizes))
        return UNKNOWN_COPYING * usual_s if lasts_s is None or not any(sizes) else lasts_s


@dataclass(frozen=True)
class _Task:
    """What is to be planned.

    Attributes:
        plan: as it is under its failures, slow workers and slow links; its orders do not matter.
        avoid: pairs of places of neighbouring stages of unlike pipelines that had better send nothing to each other.
    """

    plan: Plan
    avoid: tuple[PlacePair, ...]

    @classmethod
    def of(cls, plan: Plan, seats: Seats, conditions: Conditions) -> "_Task | None":
        """What conditions make of a plan; None where they make no difference to it."""
        delays_s = _delays_s(plan, seats, conditions)
        links = _links(delays_s)
        links = {place: delay_s for place, delay_s in links.items() if delay_s != _delay_s(plan, place)}
        slow = dict(_slowdowns(plan, seats, conditions))
        task = cls(under_conditions(plan, slow, links), _avoided(delays_s))
        return task if slow or links or task._is_crossed(plan) else None

    def time_s(self, plan: Plan) -> float:
        """What an iteration takes by a plan's orders, in s; infinite where these send over what is to be avoided."""
        orders = {worker.name: worker.order for worker in plan.workers}
        workers = tuple(replace(worker, order=orders[worker.name]) for worker in self.plan.workers)
        return float("inf") if self._is_crossed(plan) else _iteration_s(replace(self.plan, workers=workers))

    def _is_crossed(self, plan: Plan) -> bool:
        """Whether a plan has messages between places that are to be avoided."""
        if not self.avoid:
            return False
        number = {(worker.pipeline, worker.stage): n for n, worker in enumerate(plan.workers)}
        executor = problem_of(plan).executor
        return any(
            bool(((executor[:, i] == number[k, i]) & (executor[:, i + 1] == number[other, i + 1])).any())
            for (k, i), (other, _) in (sorted(pair, key=lambda place: place[1]) for pair in self.avoid)
        )


def _lasts_s(usual: Plan, best: Plan, seats: Seats, conditions: Conditions) -> float:
    """What an iteration takes by a plan's orders under all that is slow, links between peers included, in s.

    Args:
        usual: the plan for the failures alone, which has the stages as they usually are.
        best: a plan for the same places.
        seats: who takes which place.
        conditions: what is slow.
    """
    slow, delays_s = dict(_slowdowns(usual, seats, conditions)), _delays_s(usual, seats, conditions)
    under = _with_slow_links(under_conditions(usual, slow, {}), delays_s)
    return _Task(under, _avoided(delays_s)).time_s(best)


def _reason_to_restart(usual: Plan, best: Plan, seats: Seats, conditions: Conditions) -> str:
    """Why the job should start again on other workers; empty where that would gain next to nothing."""
    if _lasts_s(usual, best, seats, conditions) * (1 - GAIN) < _iteration_s(usual):
        return ""
    workers = [f"worker {one.worker} ({one.factor:g} times as long)" for one in conditions.slow_workers]
    links = [f"link {'-'.join(one.ends)} ({1000 * one.delay_s:.3g} ms)" for one in conditions.slow_links]
    return f"slow for so long that a restart on other workers pays: {', '.join([*workers, *links])}"


def _after(seats: Seats, swap: Swap | None) -> Seats:
    """Who takes which place once two have changed theirs."""
    moves = {swap[0]: swap[1], swap[1]: swap[0]} if swap is not None else {}
    return {name: moves.get(place, place) for name, place in seats.items()}


def _back_home(seats: Seats) -> Seats:
    """Everybody at the place he is named after, as far as those who sit there go home, too, and so on in a circle."""
    holder = {place: name for name, place in seats.items()}

    def may_go(name: str) -> bool:
        """Whether who sits at his place can go home, and who sits there, and so on, until one goes to where he was."""
        after = holder.get(place_of(name))
        while after is not None and after != name:
            after = holder.get(place_of(after))
        return after is not None

    return {name: place_of(name) if may_go(name) else place for name, place in seats.items()}


def _delays_s(plan: Plan, seats: Seats, conditions: Conditions) -> dict[PlacePair, float]:
    """The delays of slow and broken links by their places, in s."""
    delays_s = dict(_placed({link.ends: link.delay_s for link in conditions.slow_links}, seats))
    for pair, _ in _placed(dict.fromkeys(conditions.broken_links, 0.0), seats):
        usual_s = _delay_s(plan, pair[0]) if are_neighbours(pair) else 0.0
        delays_s[pair] = max(2 * usual_s, delays_s.get(pair, 0.0))  # what is measured is measured on the detour
    return delays_s


def _slowdowns(plan: Plan, seats: Seats, conditions: Conditions) -> Iterator[tuple[str, float]]:
    """The factors of slow workers, on top of what the plan knows of them, by their places."""
    for one in conditions.slow_workers:
        if one.worker in seats:
            name = name_of(seats[one.worker])
            known = next(worker.slowdown for worker in plan.workers if worker.name == name)
            yield name, one.factor * (known or 1.0)


def _placed(delays_s: Mapping[Pair, float], seats: Seats) -> Iterator[tuple[PlacePair, float]]:
    """Links by the places of their ends, as far as both have one."""
    for (one, other), delay_s in delays_s.items():
        if one in seats and other in seats:
            here, there = sorted((seats[one], seats[other]))
            yield (here, there), delay_s


def _with_slow_links(plan: Plan, slow: Mapping[PlacePair, float]) -> Plan:
    """A plan under slow links, those between peers included: a ring of n takes 2(n-1) delays longer for its sum."""
    peers_s: dict[int, float] = {}
    for ((_, i), _), delay_s in ((pair, delay_s) for pair, delay_s in slow.items() if are_peers(pair)):
        peers_s[i] = max(delay_s, peers_s.get(i, 0.0))
    steps = {i: 2 * (sum(worker.stage == i for worker in plan.live_workers()) - 1) for i in peers_s}

    def delayed(number: int, stage: Stage) -> Stage:
        if number not in peers_s:
            return stage
        return replace(stage, allreduce_s=stage.allreduce_s + steps[number] * peers_s[number])

    return under_conditions(_with_stages(plan, delayed), {}, _links(slow))


def _links(delays_s: Mapping[PlacePair, float]) -> dict[LinkPlace, float]:
    """The delays inside pipelines."""
    return {pair[0]: delay_s for pair, delay_s in delays_s.items() if are_neighbours(pair)}


def _delay_s(plan: Plan, link: LinkPlace) -> float:
    pipeline, number = link
    assert pipeline is not None
    return plan.links_of(pipeline)[number].delay_s


def _with_stages(plan: Plan, change: Callable[[int, Stage], Stage]) -> Plan:
    """A plan whose stages are changed, by their numbers."""
    templates = tuple(
        replace(template, stages=tuple(change(i, stage) for i, stage in enumerate(template.stages)))
        for template in plan.templates
    )
    return replace(plan, templates=templates)


def _iteration_s(plan: Plan) -> float:
    problem = problem_of(plan)
    return value_s(problem, codes_of(plan, problem))


def _avoided(delays_s: Mapping[PlacePair, float]) -> tuple[PlacePair, ...]:
    """Slow links between neighbouring stages of unlike pipelines, whose delay a plan cannot say."""
    return tuple(sorted(pair for pair in delays_s if not are_neighbours(pair) and _are_next(pair)))


def _are_next(pair: PlacePair) -> bool:
    return abs(pair[0][1] - pair[1][1]) == 1


def _by_place(seats: Seats) -> tuple[tuple[str, Place], ...]:
    return tuple(sorted(seats.items(), key=lambda seat: seat[1]))
