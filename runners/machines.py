"""The machines of an imitated job: how fast its workers are and how far apart, whatever plan they run.

What a message takes between two workers belongs to them, by the names with which they were started, and not to the
places in the plan that runs now: by the plan that the job began with it is the delay of the link between their homes,
and a trace may slow that down, or break it. In the same way a worker is as slow as it is at home, times what a trace
says. What the running plan says of delays and slow workers is only what its planner believes.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ..schemas.conditions import Pair, pair_of
from ..schemas.documents import parse_document
from ..schemas.plan import Plan, place_of
from ..schemas.trace import TraceEvent
from .cast import link_ends
from .program import AllReduce, Instruction, Message, Program, Send, lower
from .resilience.routes import Detour
from .sending import RankPair, Sending, delegated_pairs, pairs_of, rank_pair, sampled, sends_of

Sample = tuple[int, int, int, Message]  # from whom, to whom, its number among those
Faults = tuple[tuple[Pair, float, float], ...]  # two workers, factor on their delay, and seconds that it has more


def delay_at_home_s(plan: Plan, one: str, other: str, origin: int | None = None) -> float:
    """Seconds that a message takes between two workers while nothing is wrong.

    Args:
        plan: that the job began with; the workers' names are their places in it.
        one: a worker.
        other: another worker.
        origin: the pipeline of the message's micro-batch, which matters where templates say unlike delays.

    Returns:
        The delay of the link between them; 0 where there is none.
    """
    (k, i), (m, j) = sorted((place_of(one), place_of(other)), key=lambda place: place[1])
    if j != i + 1:
        return 0.0
    if k == m:
        return plan.links_of(k)[i].delay_s
    known = [pipeline for pipeline in (origin, k, m) if pipeline is not None and pipeline < len(plan.pipelines)]
    links = next(links for links in (plan.template_of(pipeline).links for pipeline in known) if i < len(links))
    return links[i].delay_s


def broken_links(events: Iterable[TraceEvent]) -> frozenset[Pair]:
    """The links that events, all of which have come, have left broken."""
    broken: set[Pair] = set()
    for event in events:
        if event.link is not None and event.kind in ("fail", "recover"):
            change = broken.add if event.kind == "fail" else broken.discard
            change(pair_of(*link_ends(event.link)))
    return frozenset(broken)


def slow_links(events: Iterable[TraceEvent]) -> Faults:
    """What events, all of which have come, have left slow."""
    slow: dict[Pair, tuple[float, float]] = {}
    for event in events:
        if event.link is not None and event.kind in ("slow_link", "recover"):
            ends = pair_of(*link_ends(event.link))
            slow.pop(ends, None)
            if event.kind == "slow_link":
                slow[ends] = (event.factor or 1.0, event.delay_s or 0.0)
    return tuple((ends, factor, delay_s) for ends, (factor, delay_s) in slow.items())


@dataclass(frozen=True)
class Standing:
    """Who sits where in an epoch, how its members send to each other, and what is wrong with them.

    Attributes:
        names: of the workers, by rank.
        slow: factor on each rank's operation times.
        links: that are slow.
        broken: pairs between which nothing passes.
        delegated: pairs of ranks that the coordinator has told to send by delegates.
        detours: pairs of ranks whose messages a third one passes on.
    """

    names: tuple[str, ...]
    slow: tuple[float, ...]
    links: Faults
    broken: frozenset[Pair]
    delegated: tuple[RankPair, ...]
    detours: tuple[Detour, ...]


@dataclass(frozen=True, eq=False)
class Staging:
    """An epoch's program with true delays and paces.

    Attributes:
        program: of the epoch's plan.
        direct: pairs of ranks that send directly.
        broken: links between ranks over which nothing passes.
        detours: by pair of ranks, the two links that a third one joins for them.
        probed: for pairs with delegates and nothing to send, what a message takes, in s.
        between_s: what a message takes between two ranks, in s.
    """

    program: Program
    direct: frozenset[RankPair]
    broken: frozenset[RankPair]
    detours: Mapping[RankPair, tuple[RankPair, RankPair]]
    probed: Mapping[RankPair, float]
    between_s: Callable[[int, int], float]

    def cuts(self, broken_s: Mapping[RankPair, float]) -> dict[RankPair, float]:
        """From when on nothing passes between pairs of ranks, by links and when they break."""
        found = {link: at_s for link, at_s in broken_s.items() if link not in self.detours}
        for pair in self.detours:
            hop = self.broken_hop(pair, broken_s)
            found.update({pair: broken_s[hop]} if hop is not None else {})
        return found

    def broken_hop(self, pair: RankPair, broken_s: Mapping[RankPair, float]) -> RankPair | None:
        """The link on the way of a pair's messages that breaks first."""
        hops = [hop for hop in self.detours.get(pair, (pair,)) if hop in broken_s]
        return min(hops, key=lambda hop: broken_s[hop], default=None)

    @cached_property
    def sampled(self) -> tuple[Sample, ...]:
        """The messages to measure."""
        return tuple(
            (source, to, number, message)
            for (source, to), messages in sampled(self.program).items()
            for number, message in enumerate(messages)
        )


class Machines:
    """What plans are in truth on the machines of a job.

    Args:
        plan: that the job began with.
        transport: by which way messages are sent.
    """

    def __init__(self, plan: Plan, transport: Sending) -> None:
        self._plan, self._transport = plan, transport
        self._slow_at_home = {worker.name: worker.slowdown or 1.0 for worker in plan.workers}
        self._known = lru_cache(maxsize=64)(self._staging)

    def staged(self, plan: str, standing: Standing) -> Staging:
        """A plan, as canonical JSON, as it is executed by who sits there; the same object for the same question."""
        return self._known(plan, standing)

    def _staging(self, plan: str, standing: Standing) -> Staging:
        planned = lower(self._truly_slow(parse_document(plan.encode(), Plan, "epoch"), standing))
        distances = _Distances(self._plan, standing)
        program = _stretched(planned, distances)
        detoured = {(one, other) for one, other, _ in standing.detours}
        by_delegates = delegated_pairs(self._transport, sends_of(planned), standing.delegated, detoured)
        exchanging = pairs_of(program)
        silent = by_delegates & {*standing.delegated} - exchanging - distances.broken()
        return Staging(
            program=program,
            direct=exchanging - by_delegates,
            broken=distances.broken(),
            detours={(a, b): (rank_pair(a, via), rank_pair(via, b)) for a, b, via in standing.detours},
            probed={pair: distances.between_s(*pair) for pair in silent},
            between_s=distances.between_s,
        )

    def _truly_slow(self, plan: Plan, standing: Standing) -> Plan:
        """The plan with workers as slow as they are."""
        seated = zip(plan.live_workers(), standing.names, standing.slow, strict=True)
        factors = {worker.name: self._slow_at_home[name] * slow for worker, name, slow in seated}
        workers = tuple(
            replace(worker, slowdown=factors[worker.name])
            if factors.get(worker.name, 1.0) != (worker.slowdown or 1.0)
            else worker
            for worker in plan.workers
        )
        return replace(plan, workers=workers)


class _Distances:
    """What messages take between the workers of an epoch, by ranks."""

    def __init__(self, first: Plan, standing: Standing) -> None:
        self._first, self._names = first, standing.names
        self._rank = {name: number for number, name in enumerate(standing.names)}
        self._slow = {ends: (factor, delay_s) for ends, factor, delay_s in standing.links}
        self._via = {(one, other): via for one, other, via in standing.detours}
        self._broken = standing.broken

    def between_s(self, one: int, other: int, origin: int | None = None) -> float:
        """Seconds that a message of a pipeline takes between two ranks; over the third one where that is the way."""
        via = self._via.get(rank_pair(one, other))
        if via is None:
            return self._hop_s(one, other, origin)
        return self._hop_s(one, via, origin) + self._hop_s(via, other, origin)

    def around_s(self, ranks: Collection[int]) -> float:
        """Seconds that a sum over ranks takes longer than planned.

        The 2 (n - 1) steps around a ring of n go at the pace of its slowest link. Delays that are there without faults
        have no part in it: what an all-reduce takes is the plan's to say.
        """
        faulty = {*self._seated(self._slow), *self._via}
        more_s = (self._more_s(*pair) for pair in faulty if {*pair} <= {*ranks})
        return 2 * (len(ranks) - 1) * max(more_s, default=0.0)

    def broken(self) -> frozenset[RankPair]:
        """The links over which nothing passes."""
        return frozenset(self._seated(self._broken))

    def _seated(self, pairs: Iterable[Pair]) -> Iterator[RankPair]:
        for one, other in pairs:
            if one in self._rank and other in self._rank:
                yield rank_pair(self._rank[one], self._rank[other])

    def _more_s(self, one: int, other: int) -> float:
        at_home_s = delay_at_home_s(self._first, self._names[one], self._names[other])
        return max(0.0, self.between_s(one, other) - at_home_s)

    def _hop_s(self, one: int, other: int, origin: int | None) -> float:
        names = self._names[one], self._names[other]
        factor, delay_s = self._slow.get(pair_of(*names), (1.0, 0.0))
        return delay_at_home_s(self._first, *names, origin) * factor + delay_s


def _stretched(program: Program, distances: _Distances) -> Program:
    """A program with true delays."""
    sums = [program.reduction(rank) for rank in range(len(program.workers))]
    around_s = {ranks: distances.around_s(ranks) for ranks in {part.ranks for one in sums for part in one.parts}}

    def true(rank: int, one: Instruction) -> Instruction:
        if isinstance(one, Send):
            delay_s = distances.between_s(rank, one.to, one.message.pipeline)
            return one if delay_s == one.delay_s else replace(one, delay_s=delay_s)
        if isinstance(one, AllReduce) and any(around_s[part.ranks] for part in one.parts):
            parts = (replace(part, duration_s=part.duration_s + around_s[part.ranks]) for part in one.parts)
            return AllReduce(tuple(parts))
        return one

    own = (tuple(true(rank, one) for one in instructions) for rank, instructions in enumerate(program.instructions))
    return replace(program, instructions=tuple(own))
