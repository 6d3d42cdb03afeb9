"""Who plays in a story: the processes that a trace starts, slows down and kills."""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from ...schemas.conditions import Pair, pair_of
from ...schemas.plan import Plan, delay_at_home_s
from ...schemas.profile import ring_steps
from ...schemas.protocols import Examined, Measured
from ...schemas.resumption import Rest
from ...schemas.trace import DEADLY, Trace, TraceEvent, link_ends
from ..passes import passes_of
from ..program import (
    AllReduce,
    Instruction,
    Message,
    Program,
    RankPair,
    Send,
    Sending,
    computed_by,
    delegated_pairs,
    lower,
    lower_rest,
    pairs_of,
    rank_pair,
    sampled,
    sends_of,
)
from ..resilience.conditions import Detour
from ..resilience.protocol import FromCoordinator
from ..resilience.worker_rules import WorkerRules, plan_of
from ..simulator import Execution, share_of, stages_by_name
from .partial_work import PartialWork


@dataclass(eq=False)
class Process:
    """One process of a worker, from its hello to its death.

    Attributes:
        name: the worker's.
        connection: the number by which the coordinator knows it.
        not_before: the first iteration that it wants to take part in.
        arrives_s: when it says hello, in s; infinite where it comes back with an iteration.
        returns: (the stopped process that it is, the iteration with whose beginning it comes back).
        events: those of the trace that happen to it, in order.
        died_s: when it stops for good, or infinite.
        dies_by: the event that says so.
        naps_s: from when until when it stands still without being missed.
        heard: what the coordinator has told it, and it has not taken yet.
        rules: what it is to do; its own.
        work: what it had of the iteration under way when its epoch began, or when it left the one before.
    """

    name: str
    connection: int
    not_before: int = 0
    arrives_s: float = 0.0
    returns: "tuple[Process, int] | None" = None
    events: list[TraceEvent] = field(default_factory=list)
    died_s: float = math.inf
    dies_by: TraceEvent | None = None
    naps_s: list[tuple[float, float]] = field(default_factory=list)
    heard: deque[FromCoordinator] = field(default_factory=deque)
    rules: WorkerRules = field(init=False)
    work: PartialWork = field(default_factory=PartialWork)

    def __post_init__(self) -> None:
        self.rules = WorkerRules(self.name)

    def slowdown(self, iteration: int, now_s: float) -> float:
        """The factor on its operation times in an iteration that begins now."""
        factor = 1.0
        for event in self.events:
            if event.kind in ("slow_compute", "recover") and has_come(event, iteration, now_s):
                factor = (event.factor or 1.0) if event.kind == "slow_compute" else 1.0
        return factor

    def strike_in(self, iteration: int) -> TraceEvent | None:
        """The event that kills or stops it in the midst of an iteration."""
        return next((one for one in self.events if one.kind in DEADLY and one.iteration == iteration), None)

    def stands_still_s(self, since_s: float) -> tuple[float, float] | None:
        """The first time after `since_s` at which it stands still, and until when; infinite for a death."""
        naps_s = [(start_s, stop_s) for start_s, stop_s in self.naps_s if stop_s > since_s]
        death_s = [(self.died_s, math.inf)] if math.isfinite(self.died_s) else []
        return min(naps_s + death_s, default=None)

    def die(self, at_s: float, by: TraceEvent) -> None:
        """It stops for good."""
        self.died_s, self.dies_by = at_s, by

    def lives_on(self) -> None:
        """It does not come to the death that was expected."""
        self.died_s, self.dies_by = math.inf, None


def has_come(event: TraceEvent, iteration: int, now_s: float) -> bool:
    """Whether an event lies not after an iteration that begins now."""
    if event.iteration is not None:
        return event.iteration <= iteration
    return event.time_s is not None and event.time_s <= now_s


def cast_of(plan: Plan, trace: Trace, heartbeat_limit_s: float) -> list[Process]:
    """The processes of a story, those of the plan's live workers first.

    Args:
        plan: that the job starts with.
        trace: checked against it.
        heartbeat_limit_s: a process that was stopped and goes on again within it is not missed.
    """
    processes = [Process(worker.name, number) for number, worker in enumerate(plan.live_workers(), start=1)]
    present = {process.name: process for process in processes}
    for event in trace.events:
        if event.worker is None:
            continue
        known = present.get(event.worker)
        if event.kind == "join":
            starts = Process(event.worker, len(processes) + 1, event.iteration or 0, event.time_s or 0.0)
        elif event.kind == "recover" and known is not None and any(one.kind == "stop" for one in known.events):
            if _wakes_in_time(known, event, heartbeat_limit_s):
                continue
            starts = Process(
                known.name, len(processes) + 1, arrives_s=math.inf if event.time_s is None else event.time_s
            )
            starts.returns = None if event.iteration is None else (known, event.iteration)
        else:
            if known is not None:
                known.events.append(event)
                if event.kind in DEADLY and event.time_s is not None:
                    known.die(event.time_s, event)
            continue
        processes.append(starts)
        present[event.worker] = starts
    return processes


def _wakes_in_time(process: Process, event: TraceEvent, heartbeat_limit_s: float) -> bool:
    """Whether a stopped process goes on before it is missed; it then only took a nap."""
    if event.time_s is None or event.time_s - process.died_s >= heartbeat_limit_s:
        return False
    process.naps_s.append((process.died_s, event.time_s))
    process.events.remove(next(one for one in process.events if one.kind == "stop"))
    process.lives_on()
    return True


# The machines of an imitated job: how fast its workers are and how far apart, whatever plan they run.
#
# What a message takes between two workers belongs to them, by the names with which they were started, and not to the
# places in the plan that runs now: by the plan that the job began with it is the delay of the link between their homes,
# and a trace may slow that down, or break it. In the same way a worker is as slow as it is at home, times what a trace
# says. What the running plan says of delays and slow workers is only what its planner believes.


Sample = tuple[int, int, int, Message]  # from whom, to whom, its number among those
Faults = tuple[tuple[Pair, float, float], ...]  # two workers, factor on their delay, and seconds that it has more


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
class EpochConditions:
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
class TimedProgram:
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


class VirtualMachines:
    """What plans are in truth on the machines of a job.

    Args:
        plan: that the job began with.
        transport: by which way messages are sent.
    """

    def __init__(self, plan: Plan, transport: Sending) -> None:
        self._plan, self._transport = plan, transport
        self._slow_at_home = {worker.name: worker.slowdown or 1.0 for worker in plan.workers}
        self._known = lru_cache(maxsize=64)(self._staging)

    def staged(self, plan: str, standing: EpochConditions, rest: Rest | None = None) -> TimedProgram:
        """A plan, as canonical JSON, or what is left of an iteration, as it is executed by who sits there.

        It is the same object for the same question.
        """
        return self._known(plan, standing, rest)

    def _staging(self, plan: str, standing: EpochConditions, rest: Rest | None) -> TimedProgram:
        slow = self._truly_slow(plan_of(plan), standing)
        planned = lower(slow) if rest is None else lower_rest(slow, rest)
        distances = _Distances(self._plan, standing)
        program = _stretched(planned, distances)
        detoured = {(one, other) for one, other, _ in standing.detours}
        by_delegates = delegated_pairs(self._transport, sends_of(planned), standing.delegated, detoured)
        exchanging = pairs_of(program)
        silent = by_delegates & {*standing.delegated} - exchanging - distances.broken()
        return TimedProgram(
            program=program,
            direct=exchanging - by_delegates,
            broken=distances.broken(),
            detours={(a, b): (rank_pair(a, via), rank_pair(via, b)) for a, b, via in standing.detours},
            probed={pair: distances.between_s(*pair) for pair in silent},
            between_s=distances.between_s,
        )

    def _truly_slow(self, plan: Plan, standing: EpochConditions) -> Plan:
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

    def __init__(self, first: Plan, standing: EpochConditions) -> None:
        self._first, self._names = first, standing.names
        self._at_home = {worker.name: worker for worker in first.workers}
        self._rank = {name: number for number, name in enumerate(standing.names)}
        self._slow = {ends: (factor, delay_s) for ends, factor, delay_s in standing.links}
        self._via = {(one, other): via for one, other, via in standing.detours}
        self._broken = standing.broken

    def between_s(self, one: int, other: int, origin: int | None = None, boundary: int | None = None) -> float:
        """Seconds that a message of a pipeline takes between two ranks; over the third one where that is the way.

        Args:
            one: who sends.
            other: who receives.
            origin: the pipeline of the message's micro-batch.
            boundary: of a message that may go between any two workers, the layer that follows.
        """
        via = self._via.get(rank_pair(one, other))
        if via is None:
            return self._hop_s(one, other, origin, boundary)
        return self._hop_s(one, via, origin, boundary) + self._hop_s(via, other, origin, boundary)

    def around_s(self, ranks: Collection[int]) -> float:
        """Seconds that a sum over ranks takes longer than planned.

        All steps of a ring go at the pace of its slowest link (`ring_steps`). Delays that are there without faults have
        no part in it: what an all-reduce takes is the plan's to say.
        """
        faulty = {*self._seated(self._slow), *self._via}
        more_s = (self._more_s(*pair) for pair in faulty if {*pair} <= {*ranks})
        return ring_steps(len(ranks)) * max(more_s, default=0.0)

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

    def _hop_s(self, one: int, other: int, origin: int | None, boundary: int | None) -> float:
        names = self._names[one], self._names[other]
        factor, delay_s = self._slow.get(pair_of(*names), (1.0, 0.0))
        if boundary is None:
            at_home_s = delay_at_home_s(self._first, *names, origin)
        else:
            homes = [self._at_home[name] for name in names]
            known = origin if origin is not None and origin < len(self._first.pipelines) else homes[0].pipeline
            at_home_s = self._first.boundary_delay_s(known, boundary, *homes)
        return at_home_s * factor + delay_s


def _stretched(program: Program, distances: _Distances) -> Program:
    """A program with true delays."""
    sums = [program.reduction(rank) for rank in range(len(program.workers))]
    around_s = {ranks: distances.around_s(ranks) for ranks in {part.ranks for one in sums for part in one.parts}}

    def true(rank: int, one: Instruction) -> Instruction:
        """An instruction of a rank with the delay, or the sums' times, that it has in truth."""
        if isinstance(one, Send):
            boundary = None if program.rest is None else one.message.link
            delay_s = distances.between_s(rank, one.to, one.message.pipeline, boundary)
            return one if delay_s == one.delay_s else replace(one, delay_s=delay_s)
        if isinstance(one, AllReduce) and any(around_s[part.ranks] for part in one.parts):
            parts = (replace(part, duration_s=part.duration_s + around_s[part.ranks]) for part in one.parts)
            return AllReduce(tuple(parts))
        return one

    own = (tuple(true(rank, one) for one in instructions) for rank, instructions in enumerate(program.instructions))
    return replace(program, instructions=tuple(own))


# What workers on the virtual clock measure, as real ones do (runners/torch): their pace, and messages under way.


def measured(
    staging: TimedProgram,
    execution: Execution,
    rank: int,
    names: Sequence[str],
    iteration: int,
    start_s: float,
) -> Measured:
    """What a worker can say once its gradients are reduced.

    A direct message is known to have arrived only if its receiver stood and waited for it; delegates always know, and
    where they have nothing to send, they send a probe at the beginning of the iteration.

    Args:
        staging: what was executed.
        execution: its execution.
        rank: the worker's.
        names: of the workers, by rank.
        iteration: its number.
        start_s: when it began.
    """
    reduced_s = execution.reduced_s[rank]
    ways = sorted((pair[pair[0] == rank], way_s) for pair, way_s in staging.probed.items() if rank in pair)
    probes = [(peer, -1 - iteration, way_s) for peer, way_s in ways]
    sent, arrived, traffic = [], [], execution.traffic
    for source, to, number, message in staging.sampled:
        if source == rank:
            sent.append((to, number, traffic.handed_s[message]))
        elif to == rank and (message in traffic.awaited or rank_pair(source, to) not in staging.direct):
            arrived.append((source, number, traffic.arrived_s[message]))
    sent += [(peer, number, 0.0) for peer, number, _ in probes]
    arrived += [one for one in probes if one[2] <= reduced_s]
    peers = staging.program.peers(rank)
    return Measured(
        worker=names[rank],
        iteration=iteration,
        pace=_pace(staging, execution, rank),
        sent=tuple((names[to], number, start_s + at_s) for to, number, at_s in sent),
        arrived=tuple((names[source], number, start_s + at_s) for source, number, at_s in arrived),
        reduction_s=(start_s + execution.ready_s[rank], start_s + reduced_s) if peers else None,
        peers=tuple(names[peer] for peer in peers),
        iteration_s=reduced_s,
    )


def _pace(staging: TimedProgram, execution: Execution, rank: int) -> float | None:
    """How many times as long as their stages' the worker's operations have taken; None where those take no time."""
    program = staging.program
    worker = program.workers[rank]
    stages, template = stages_by_name(program.plan, worker), program.plan.template_of(worker.pipeline)
    planned_s, count = 0.0, 0
    for one in program.instructions[rank]:
        passes = computed_by(one)
        count += len(passes)
        if len(passes) == 2:  # side by side: the spans of both are those of the pair
            planned_s += 2 * template.pair_s(*(program.plan.virtual_stage(worker, own.operation) for own in passes))
            continue
        for own in passes:
            stage = stages[own.operation.stage]
            planned_s += stage.duration_s(own.operation.kind) * share_of(own, stage)
    took_s = sum(span.end_s - span.start_s for span in execution.spans[rank][:count])
    return took_s / planned_s if planned_s else None


# Suspicious groups examined in a pause between two iterations: what that consists of, and on the virtual clock.
#
# Greyhound, section 4.3. Each worker of a group multiplies matrices, then exchanges messages with others of it, in
# passes
# in which nobody has two (passes.py). Who has more groups examines one after the other, in the order of the epoch's
# message, so nobody waits in a circle. In an exchange the second says that it is there, the first sends and is answered
# `ROUNDS` times, and the shortest counts: neither is who comes late to it measured, nor what a scheduler takes. Workers
# that are not examined wait for the others when they first need something of them.


COMPUTE_S = 0.02  # what the matrix products take in a paced run, of a worker that is not slow
ROUNDS = 3

Ranks = tuple[int, ...]


def exchanges_of(group: Ranks) -> Iterator[tuple[int, int]]:
    """The pairs of ranks of a group that exchange messages, (first, second), in the order in which they do."""
    for one in passes_of(len(group)):
        yield from ((group[first], group[second]) for first, second in one)


@dataclass(frozen=True)
class VirtualPause:
    """A pause on the virtual clock.

    Attributes:
        found: what each rank has measured.
        lasts_s: until the last one is done.
    """

    found: Mapping[int, Examined]
    lasts_s: float


def pause(staging: TimedProgram, groups: Sequence[Ranks], names: Sequence[str]) -> VirtualPause:
    """What the workers of groups measure with true delays and paces, and how long it takes them.

    Args:
        staging: the epoch's program.
        groups: in ranks.
        names: of the workers, by rank.
    """
    workers = staging.program.workers
    ends_s = {rank: COMPUTE_S * (workers[rank].slowdown or 1.0) for group in groups for rank in group}
    compute_s = dict(ends_s)
    exchanges: dict[int, list[tuple[str, float]]] = {rank: [] for rank in ends_s}
    for first, second in (pair for group in groups for pair in exchanges_of(group)):
        if rank_pair(first, second) in staging.cuts(dict.fromkeys(staging.broken, 0.0)):
            continue  # the sums in the iteration that follows do not come through either, and have a detour made
        delay_s = staging.between_s(first, second)
        both_s = max(ends_s[first], ends_s[second]) + (1 + 2 * ROUNDS) * delay_s
        ends_s[first] = ends_s[second] = both_s
        exchanges[first].append((names[second], 2 * delay_s))
    found = {rank: Examined(compute_s[rank], tuple(exchanges[rank])) for rank in ends_s}
    return VirtualPause(found, max(ends_s.values(), default=0.0))
