"""What the coordinator answers when links or workers of a running job are slow: another plan, or the one that runs.

Whoever is dead is re-routed as ever (`replanning.py`). On top of that:

1. A slow link between peers delays every sum of their gradients. One of its ends changes places with a worker of
   another stage, where the copies pay within `--normalize-within` iterations (planners/adaptra/swap.py).
2. The dead, the slow workers and the slow links that there are then are planned for jointly (planners/joint/).
3. Yet the running plan goes on, or else the one for the failures alone is taken, if it takes at most `WORTH_IT` longer.
   Its orders are timed under the delays, so what its slack has room for (Equation 1 of "Adaptra") is seen exactly.

Once nothing is slow, the plan is again that for the failures alone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from ..planners.adaptra.swap import PlacePair, Swap, are_neighbours, are_peers, best_swap, swapped
from ..planners.scheduling.problem import codes_of, problem_of
from ..planners.scheduling.retime import value_s
from ..planners.slipstream.cluster import alike, connection_of
from ..planners.slipstream.relocation import Copy, Relocation, break_even_iterations
from ..schemas.conditions import Conditions, LinkPlace, Pair, SlowLink, SlowWorker, pair_of, under_conditions
from ..schemas.errors import InfeasibleError
from ..schemas.plan import Place, Plan, Stage, name_of
from ..schemas.protocols import Hand, Replanned
from .replanning import Rerouting, empty_places

WORTH_IT = 0.02
# Where nobody knows how much is copied, or how fast, the copies are taken to last as long as so many iterations.
UNKNOWN_COPYING = 10

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

    def __init__(self, base: Rerouting, normalize_within: int, host_memory_bytes: float = 0.0) -> None:
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
        task = _Task.of(usual.plan, seats, conditions)
        if task is None:
            return Replanned(usual.plan, _by_place(seats))
        may_stay = plan != usual.plan and empty_places(plan) == empty_places(usual.plan)
        serving = [plan, usual.plan] if may_stay else [usual.plan]
        try:
            joint = self._joint(task)
        except InfeasibleError as error:
            best = min(serving, key=task.time_s)
            if best == plan and seats == {hand.worker: hand.place for hand in crew}:
                raise InfeasibleError(f"none for what is slow now: {error.what}", fix=error.fix) from None
        else:
            assert joint.prediction is not None
            enough_s = joint.prediction.iteration_time_s * (1 + WORTH_IT)
            best = next((one for one in serving if task.time_s(one) <= enough_s), joint)
        return Replanned(best, _by_place(seats))

    def warm_up(self) -> None:
        """Plan for a failure, and for a slow worker and slow links, so that all is loaded when the first is found."""
        from ..planners.joint.plan import warm_up

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

    def _joint(self, task: "_Task") -> Plan:
        from ..planners.joint.plan import replan_joint  # late: most jobs never ask

        return replan_joint(_with_stages(task.plan, self._lifted), task.avoid)

    def _lifted(self, number: int, stage: Stage) -> Stage:
        """A stage with the host's memory on top of its worker's."""
        if stage.memory_limit_bytes is None or not self._host_memory_bytes:
            return stage
        return replace(stage, memory_limit_bytes=stage.memory_limit_bytes + self._host_memory_bytes)

    def _moved(self, usual: Replanned, crew: tuple[Hand, ...], conditions: Conditions) -> Seats:
        """Who takes which place, once the swaps are made that pay; none while somebody waits for his state."""
        seats, plan = dict(usual.seats), usual.plan
        slow = dict(_placed({link.ends: link.delay_s for link in conditions.slow_links}, seats))
        if not self._normalize_within or any(hand.place is None or hand.layers is None for hand in crew):
            return seats
        while (swap := best_swap(plan, slow, self._base.common.state_bytes)) is not None:
            after = swapped(slow, swap)
            if not self._pays(swap, _with_slow_links(plan, slow), _with_slow_links(plan, after)):
                break
            moves = {swap[0]: swap[1], swap[1]: swap[0]}
            slow, seats = after, {name: moves.get(place, place) for name, place in seats.items()}
        return seats

    def _pays(self, swap: Swap, before: Plan, after: Plan) -> bool:
        """Whether a swap's copies have paid soon enough, by the running orders' times; slow workers are left out."""
        common = self._base.common
        before_s, after_s = _iteration_s(before), _iteration_s(after)
        lasts_s = None
        if any(common.state_bytes):
            copies = [Copy(one, to, to, common.state_bytes[to[1]]) for one, to in (swap, swap[::-1])]
            lasts_s = Relocation(frozenset(), tuple(copies)).lasts_s(connection_of(common))
        iterations = break_even_iterations(
            UNKNOWN_COPYING * before_s if lasts_s is None else lasts_s, before_s, after_s
        )
        return iterations is not None and iterations <= self._normalize_within


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
        avoid = tuple(sorted(pair for pair in delays_s if not are_neighbours(pair) and _are_next(pair)))
        slow = dict(_slowdowns(plan, seats, conditions))
        task = cls(under_conditions(plan, slow, links), avoid)
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


def _are_next(pair: PlacePair) -> bool:
    return abs(pair[0][1] - pair[1][1]) == 1


def _by_place(seats: Seats) -> tuple[tuple[str, Place], ...]:
    return tuple(sorted(seats.items(), key=lambda seat: seat[1]))
