"""The simulator: executes a plan's programs on a virtual clock.

A discrete-event simulation over the lowered programs (runners/program.py). Messages are pure latency, as the semantics
says; workers may be slow (their plan's `slowdown`) and operations may jitter.

Of what is left of an iteration (schemas/resumption.py) operations on a part of a stage take their share of its layers;
messages that workers have kept leave at time 0; and what was under way before takes memory from then on.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import combinations
from operator import add
from typing import TYPE_CHECKING

from ..schemas.documents import digest
from ..schemas.errors import InvalidInputError
from ..schemas.orders import print_operation
from ..schemas.plan import Layers, Plan, Stage, Worker
from ..schemas.resumption import Begun, LastDone, RestOperation, print_rest_operation
from ..schemas.timeline import Report, Span, Timeline, memory_of_workers
from .program import (
    AllReduce,
    BeginSum,
    Compute,
    GradientBucket,
    Instruction,
    Message,
    Pair,
    Program,
    RankPair,
    Receive,
    Send,
    Sending,
    Step,
    lower,
    pairs_of,
    rank_pair,
    step_s,
)

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Simulation:
    """What one simulated iteration gave; memory stands in the plan's worker order."""

    timeline: Timeline
    makespan_s: float
    period_s: float
    iteration_time_s: float
    bubble_ratio: float
    peak_memory_bytes: tuple[float, ...]

    def repeated(self, iterations: int) -> Timeline:
        """The timeline of several iterations, each an iteration time after the last.

        With a staggered optimizer they overlap: a stage begins the next one when its own step is done.
        """
        later = [
            replace(span, start_s=span.start_s + shift_s, end_s=span.end_s + shift_s, iteration=number)
            for number, shift_s in ((n, n * self.iteration_time_s) for n in range(iterations))
            for span in self.timeline.spans
        ]
        return replace(self.timeline, spans=tuple(sorted(later, key=lambda span: span.start_s)))

    def report(self, plan: Plan, lower_bound_s: float) -> Report:
        """The simulation's worth, beside a proven lower bound of the plan's iteration time."""
        iteration_s = self.iteration_time_s
        return Report(
            source="simulated",
            iteration_time_s=iteration_s,
            makespan_s=self.makespan_s,
            period_s=self.period_s,
            lower_bound_s=lower_bound_s,
            bubble_ratio=self.bubble_ratio,
            peak_memory_bytes=self.peak_memory_bytes,
            microbatches_per_s=plan.total_microbatches() / iteration_s if iteration_s else 0.0,
            plan=self.timeline.plan,
        )


def simulate(plan: Plan, jitter: float = 0.0, seed: int = 0, transport: Sending = "auto") -> Simulation:
    """Execute one iteration of a valid plan on a virtual clock.

    Args:
        plan: the plan, with its slow workers and links in it (schemas/conditions.py lays them over a plan).
        jitter: sigma of the log-normal factor on every operation's duration; 0 for none.
        seed: of the jitter; each worker has a stream of its own, so one worker's order does not change another's.
        transport: how messages are sent. All delays are the plan's own here, so that `auto` is `delegated`.

    Raises:
        InvalidInputError: the programs block each other.
    """
    program = lower(plan)
    direct = pairs_of(program) if transport == "direct" else frozenset()
    clock = _Clock(program, _jitter_streams(plan, jitter, seed), jitter, direct=direct)
    clock.run()
    return _summary(plan, clock, {"jitter": jitter, "seed": seed})


Pauses = Mapping[int, tuple[float, float]]  # by rank: from when until when, in s, a worker stands still
Cuts = Mapping[RankPair, float]  # by pair of ranks: from when on, in s, nothing passes between them


@dataclass(frozen=True)
class Traffic:
    """What became of the messages of an execution.

    Attributes:
        handed_s: when each was handed over by its sender.
        arrived_s: when each was there.
        awaited: those that their receivers had to wait for.
        lost_s: by pair of ranks, when the first thing that they had for each other was lost.
    """

    handed_s: Mapping[Message, float]
    arrived_s: Mapping[Message, float]
    awaited: Collection[Message]
    lost_s: Mapping[RankPair, float]


@dataclass(frozen=True)
class Execution:
    """One execution of a program, rank by rank; infinite where a worker never came so far.

    Attributes:
        spans: in the order of execution; one that a worker died in has no end.
        ready_s: when each rank had computed and sent everything.
        reduced_s: when each rank's gradients were reduced.
        done_s: when each rank's optimizer step was done.
        sums_s: which parts of each rank's gradients were summed, and when; sums that never ended are left out.
        peak_bytes: the most that each rank held of activations and what W needs.
        traffic: of messages.
    """

    spans: tuple[tuple[Span, ...], ...]
    ready_s: tuple[float, ...]
    reduced_s: tuple[float, ...]
    done_s: tuple[float, ...]
    sums_s: tuple[tuple[tuple[Layers, float], ...], ...]
    peak_bytes: tuple[float, ...]
    traffic: Traffic


def execute(
    program: Program,
    pauses: Pauses | None = None,
    jitter: float = 0.0,
    seed: int = 0,
    direct: Collection[RankPair] = frozenset(),
    cuts: Cuts | None = None,
) -> Execution:
    """Execute a program on a virtual clock, with workers that stand still for a while, or for ever.

    Args:
        program: of a valid plan.
        pauses: who stands still, and when; an infinite end is a death. An operation under way goes on afterwards; one
            that would begin at the pause's first moment does not, though what the worker has to send by then it sends.
        jitter: as in `simulate`.
        seed: as in `simulate`.
        direct: who sends to each other directly; all others do it by delegates.
        cuts: between whom nothing passes, and from when on; what is under way then is lost.

    Raises:
        InvalidInputError: the programs block each other, and nobody has died, nor is any link cut.
    """
    clock = _Clock(program, _jitter_streams(program.plan, jitter, seed), jitter, pauses, direct, cuts)
    clock.run()
    return Execution(
        tuple(tuple(machine.spans) for machine in clock.machines),
        tuple(machine.ready_s for machine in clock.machines),
        tuple(machine.reduced_s for machine in clock.machines),
        tuple(machine.done_s for machine in clock.machines),
        tuple(tuple(machine.sums_s) for machine in clock.machines),
        tuple(machine.peak_bytes for machine in clock.machines),
        Traffic(clock.handed_s, clock.arrivals_s, clock.awaited, clock.lost_s),
    )


@dataclass
class _Machine:
    """One worker under way: its next instruction, its spans, its memory in micro-batches held.

    What it holds is counted for each of its stages, which are known as its operations name them. Of the forward passes
    in `gone` nothing is held once they have ended.
    """

    worker: Worker
    instructions: tuple[Instruction, ...]
    stages: Mapping[int | None, Stage]
    next: int = 0
    spans: list[Span] = field(default_factory=list)
    whole: dict[int | None, float] = field(init=False)
    stashed: dict[int | None, float] = field(init=False)
    gone: frozenset[Compute] = frozenset()
    sums_s: list[tuple[Layers, float]] = field(default_factory=list)
    peak_bytes: float = 0.0
    busy_s: float = 0.0
    ready_s: float = math.inf
    reduced_s: float = math.inf
    done_s: float = math.inf

    def __post_init__(self) -> None:
        self.whole, self.stashed = (dict.fromkeys(self.stages, 0.0) for _ in range(2))

    def take_up(self, begun: Mapping[Begun, LastDone]) -> None:
        """It begins with micro-batches under way in stages of its."""
        counts = Counter((layers, last) for (_, layers), last in begun.items())
        for name, stage in self.stages.items():
            self.whole[name], self.stashed[name] = counts[stage.layers, "F"], counts[stage.layers, "I"]

    def held_bytes(self) -> float:
        """What it holds now of activations, and of what W needs."""
        return sum(
            self.whole[name] * stage.activation_bytes + self.stashed[name] * stage.weight_stash_bytes
            for name, stage in self.stages.items()
        )


class _Clock:
    """The virtual clock: moments at which a machine goes on, in time order."""

    def __init__(
        self,
        program: Program,
        streams: "list[np.random.Generator]",
        jitter: float,
        pauses: Pauses | None = None,
        direct: Collection[RankPair] = frozenset(),
        cuts: Cuts | None = None,
    ) -> None:
        self.plan = program.plan
        self.pauses = pauses or {}
        self.direct = frozenset(direct)
        self.cuts = cuts or {}
        self.machines = [
            _Machine(worker, instructions, stages_by_name(self.plan, worker))
            for worker, instructions in zip(program.workers, program.instructions, strict=True)
        ]
        if program.rest is not None:
            for rank, machine in enumerate(self.machines):
                machine.take_up(program.rest.taken_up(rank, self.plan))
                machine.peak_bytes = machine.held_bytes()
                machine.gone = forwards_alone(machine.instructions)
        self.streams = streams
        self.jitter = jitter
        self.moments: list[tuple[float, int]] = [(0.0, rank) for rank in range(len(self.machines))]
        self.handed_s: dict[Message, float] = {}
        self.arrivals_s: dict[Message, float] = {}
        self.awaited: set[Message] = set()
        self.lost_s: dict[RankPair, float] = {}
        self.waiting: dict[Message, tuple[float, int]] = {}
        self.gathered: dict[tuple[str, int], list[tuple[float, int]]] = {}

    def run(self) -> None:
        """Let every machine run to its end."""
        while self.moments:
            now_s, rank = heappop(self.moments)
            machine = self.machines[rank]
            if machine.next < len(machine.instructions):
                instruction = machine.instructions[machine.next]
                if not self._is_put_off(rank, isinstance(instruction, Compute | Pair), now_s):
                    self._execute(rank, machine, instruction, now_s)
        blocked = [machine for machine in self.machines if machine.next < len(machine.instructions)]
        if blocked and not self.cuts and not any(math.isinf(until_s) for _, until_s in self.pauses.values()):
            raise InvalidInputError(
                f"worker {blocked[0].worker.name} waits forever", fix="rtk verify shows the deadlock"
            )

    def _is_put_off(self, rank: int, is_compute: bool, now_s: float) -> bool:
        """Whether the machine stands still now; it is then woken at the pause's end, if that has one."""
        if rank not in self.pauses:
            return False
        from_s, until_s = self.pauses[rank]
        if not from_s <= now_s < until_s or (now_s == from_s and not is_compute):
            return False
        if math.isfinite(until_s):
            heappush(self.moments, (until_s, rank))
        return True

    def _end_s(self, rank: int, start_s: float, duration_s: float) -> float:
        """When something that a machine begins now is done; a pause in the midst of it is added."""
        end_s = start_s + duration_s
        from_s, until_s = self.pauses.get(rank, (math.inf, math.inf))
        if end_s <= from_s or start_s >= until_s:
            return end_s
        return end_s + (until_s - max(from_s, start_s))

    def _execute(self, rank: int, machine: _Machine, instruction: Instruction, now_s: float) -> None:
        match instruction:
            case Compute():
                self._go_on(rank, self._compute(rank, machine, instruction, now_s))
            case Pair():
                self._go_on(rank, self._compute_pair(rank, machine, instruction, now_s))
            case Send():
                self._go_on(rank, self._send(rank, instruction, now_s))
            case Receive():
                if instruction.message in self.arrivals_s:
                    self._receive(rank, instruction.message, now_s)
                else:
                    self.waiting[instruction.message] = (now_s, rank)
            case BeginSum():
                self._go_on(rank, now_s)  # a plan does not promise that it makes anything faster
            case AllReduce():
                self._sum(rank, machine, instruction, now_s)
            case Step():
                self._step(rank, instruction, now_s)

    def _go_on(self, rank: int, at_s: float) -> None:
        if math.isfinite(at_s):
            self.machines[rank].next += 1
            heappush(self.moments, (at_s, rank))

    def _compute(self, rank: int, machine: _Machine, instruction: Compute, now_s: float) -> float:
        kind, _, _, name = instruction.operation
        stage = machine.stages[name]
        share = share_of(instruction, stage)
        duration_s = seconds_of(instruction, stage, machine.worker)
        duration_s *= self._jittered(rank)
        machine.whole[name] += {"F": share, "I": -share, "B": -share, "W": 0.0}[kind]
        if instruction.accumulates:  # else nothing is left for a W
            machine.stashed[name] += {"F": 0.0, "I": share, "B": 0.0, "W": -share}[kind]
        if kind == "F":  # nothing else takes more than it leaves
            machine.peak_bytes = max(machine.peak_bytes, machine.held_bytes())
        if instruction in machine.gone:
            machine.whole[name] -= share
        machine.busy_s += duration_s
        op = name_of_operation(instruction, machine.worker.pipeline, stage)
        end_s = self._end_s(rank, now_s, duration_s)
        machine.spans.append(Span(machine.worker.name, op, now_s, end_s))
        return end_s

    def _compute_pair(self, rank: int, machine: _Machine, pair: Pair, now_s: float) -> float:
        """A forward and a backward side by side: both passes have the times of the two together."""
        forward, backward = pair.forward.operation, pair.backward.operation
        template = self.plan.template_of(machine.worker.pipeline)
        stages = (self.plan.virtual_stage(machine.worker, one) for one in (forward, backward))
        duration_s = template.pair_s(*stages) * (machine.worker.slowdown or 1.0) * self._jittered(rank)
        machine.whole[forward.stage] += 1.0
        machine.peak_bytes = max(machine.peak_bytes, machine.held_bytes())
        machine.whole[backward.stage] -= 1.0
        machine.busy_s += duration_s
        end_s = self._end_s(rank, now_s, duration_s)
        machine.spans += [
            Span(machine.worker.name, print_operation(one, machine.worker.pipeline), now_s, end_s)
            for one in (forward, backward)
        ]
        return end_s

    def _jittered(self, rank: int) -> float:
        """The factor on what a worker does next."""
        return math.exp(self.jitter * float(self.streams[rank].standard_normal())) if self.jitter else 1.0

    def _send(self, rank: int, instruction: Send, now_s: float) -> float:
        """Hand a message over; gives when the sender goes on, which dies with it where it sends directly."""
        pair = rank_pair(rank, instruction.to)
        is_direct = pair in self.direct
        free_s = self._end_s(rank, now_s, instruction.delay_s) if is_direct else now_s
        arrival_s = free_s if is_direct else now_s + instruction.delay_s
        self.handed_s[instruction.message] = now_s
        if self._is_cut(pair, now_s, arrival_s):
            self._lose(pair, now_s)
        elif math.isfinite(arrival_s):
            self.arrivals_s[instruction.message] = arrival_s
            if instruction.message in self.waiting:
                since_s, receiver = self.waiting.pop(instruction.message)
                self._receive(receiver, instruction.message, since_s)
        return free_s

    def _receive(self, rank: int, message: Message, since_s: float) -> None:
        """A message whose arrival is known is taken by who has wanted it since then."""
        arrival_s = self.arrivals_s[message]
        if arrival_s > since_s:
            self.awaited.add(message)
        self._go_on(rank, max(since_s, arrival_s))

    def _is_cut(self, pair: RankPair, from_s: float, until_s: float) -> bool:
        """Whether what two ranks do from then until then fails, since nothing passes between them."""
        cut_s = self.cuts.get(pair, math.inf)
        return cut_s <= from_s or cut_s < until_s

    def _lose(self, pair: RankPair, now_s: float) -> None:
        lost_s = max(now_s, self.cuts[pair])
        self.lost_s[pair] = min(lost_s, self.lost_s.get(pair, math.inf))

    def _sum(self, rank: int, machine: _Machine, instruction: AllReduce, now_s: float) -> None:
        """Sum the next part of a rank's gradients; it begins when all its holders have come to it."""
        if not machine.sums_s:
            machine.ready_s = now_s
        if not instruction.parts:  # all of them had been summed before
            machine.reduced_s = now_s
            self._go_on(rank, now_s)
            return
        part = instruction.parts[len(machine.sums_s)]
        present = self._gathered(("allreduce", part.layers[0]), len(part.ranks), rank, now_s)
        start_s = max((since_s for since_s, _ in present), default=now_s)
        if not present or self._is_torn(part, start_s):
            return
        # Nobody's gradients are reduced before everybody's are.
        end_s = max(self._end_s(one, start_s, part.duration_s) for one in part.ranks)
        for _, member in present:
            self._add_sum(member, part, start_s, end_s)

    def _add_sum(self, rank: int, part: GradientBucket, start_s: float, end_s: float) -> None:
        """A rank's part is summed: what follows is the next one, or its step."""
        machine = self.machines[rank]
        reduction = machine.instructions[machine.next]
        assert isinstance(reduction, AllReduce)
        machine.sums_s.append((part.layers, end_s))
        if part.duration_s:
            machine.spans.append(Span(machine.worker.name, "allreduce", start_s, end_s))
        if len(machine.sums_s) == len(reduction.parts):
            machine.reduced_s = end_s
            self._go_on(rank, end_s)
        elif math.isfinite(end_s):
            heappush(self.moments, (end_s, rank))

    def _step(self, rank: int, instruction: Step, now_s: float) -> None:
        """Step the optimizer, each worker its own; with a synchronous one, once all are there."""
        meeting, size = (0, len(self.machines)) if instruction.everyone else (rank, 1)
        present = self._gathered(("step", meeting), size, rank, now_s)
        start_s = max((since_s for since_s, _ in present), default=now_s)
        for _, member in present:
            machine = self.machines[member]
            own = machine.instructions[machine.next]
            assert isinstance(own, Step)
            machine.done_s = self._end_s(member, start_s, own.duration_s)
            if own.duration_s:
                machine.spans.append(Span(machine.worker.name, "step", start_s, machine.done_s))
            self._go_on(member, machine.done_s)

    def _gathered(self, meeting: tuple[str, int], size: int, rank: int, now_s: float) -> list[tuple[float, int]]:
        """Who is there and since when, once the last of those who meet is; until then nobody."""
        present = self.gathered.setdefault(meeting, [])
        present.append((now_s, rank))
        return self.gathered.pop(meeting) if len(present) == size else []

    def _is_torn(self, part: GradientBucket, start_s: float) -> bool:
        """Whether some who sum gradients do not reach each other before they have the sum; it then never comes."""
        if not self.cuts:
            return False
        end_s = start_s + part.duration_s
        torn = [pair for pair in combinations(part.ranks, 2) if self._is_cut(pair, start_s, end_s)]
        for pair in torn:
            self._lose(pair, start_s)
        return bool(torn)


def stages_by_name(plan: Plan, worker: Worker) -> dict[int | None, Stage]:
    """The stages that a worker holds, as its operations name them: not at all, where there is but one."""
    seats, stages = plan.seats_of(worker), plan.stages_of(worker)
    return dict(zip(seats, stages, strict=True)) if len(seats) > 1 else {None: stages[0]}


def share_of(one: Compute, stage: Stage) -> float:
    """The part of a stage's layers that an operation runs, which is the part of the stage's time that it takes."""
    if one.layers is None:
        return 1.0
    return (one.layers[1] - one.layers[0]) / (stage.layers[1] - stage.layers[0])


def seconds_of(one: Compute, stage: Stage, worker: Worker) -> float:
    """What an operation takes a worker of a stage, in s."""
    return stage.duration_s(one.operation.kind) * share_of(one, stage) * (worker.slowdown or 1.0)


def name_of_operation(one: Compute, pipeline: int, stage: Stage) -> str:
    """Its token in the order of a worker of that pipeline."""
    if one.layers in (None, stage.layers) and one.accumulates:
        return print_operation(one.operation, pipeline)
    rest = RestOperation(one.operation, one.layers or stage.layers, one.accumulates)
    return print_rest_operation(rest, pipeline, stage.layers)


def forwards_alone(instructions: Sequence[Instruction]) -> frozenset[Compute]:
    """Forward passes that no backward pass follows: they are run for their message."""
    computes = [one for one in instructions if isinstance(one, Compute)]
    followed = {
        replace(one, operation=one.operation._replace(kind="F")) for one in computes if one.operation.kind != "F"
    }
    return frozenset(one for one in computes if one.operation.kind == "F" and one not in followed)


def is_computed(span: Span) -> bool:
    """Whether it is of the plan: an F, I, W or B, and neither an all-reduce nor a step."""
    return span.op not in ("allreduce", "step")


def _jitter_streams(plan: Plan, jitter: float, seed: int) -> "list[np.random.Generator]":
    if not jitter:
        return []
    import numpy as np

    return [np.random.default_rng((seed, rank)) for rank in range(len(plan.live_workers()))]


def _summary(plan: Plan, clock: _Clock, options: dict[str, float]) -> Simulation:
    makespan_s, period_s = _makespan_and_period(clock)
    iteration_s = period_s if plan.optimizer == "staggered" else makespan_s
    room_s = len(clock.machines) * iteration_s
    busy_s = sum(machine.busy_s for machine in clock.machines)
    peaks = {machine.worker.name: machine.peak_bytes for machine in clock.machines}
    spans = sorted((span for machine in clock.machines for span in machine.spans), key=lambda span: span.start_s)
    return Simulation(
        timeline=Timeline("simulated", tuple(spans), memory_of_workers(plan), plan=digest(plan), options=dict(options)),
        makespan_s=makespan_s,
        period_s=period_s,
        iteration_time_s=iteration_s,
        bubble_ratio=max(0.0, 1 - busy_s / room_s) if room_s else 0.0,
        peak_memory_bytes=tuple(peaks.get(worker.name, 0.0) for worker in plan.workers),
    )


def _makespan_and_period(clock: _Clock) -> tuple[float, float]:
    """What the operations of an execution give."""
    spans = [[span for span in machine.spans if is_computed(span)] for machine in clock.machines]
    return pace_of(
        clock.plan,
        [one for machine in clock.machines for one in machine.instructions if isinstance(one, AllReduce)],
        [own[0].start_s if own else math.inf for own in spans],
        [own[-1].end_s if own else 0.0 for own in spans],
    )


def pace_of(
    plan: Plan, sums: Sequence[AllReduce], first_s: Sequence[float], ended_s: Sequence[float]
) -> tuple[float, float]:
    """What an iteration takes whose sums begin when the operations are over, whatever sends hold workers up.

    Args:
        plan: whose live workers the ranks are.
        sums: the all-reduce of each.
        first_s: when the first operation of each begins; infinite where it has none.
        ended_s: when the last one ends; 0 where it has none.

    Returns:
        The makespan, and the period of a staggered optimizer, in s.
    """
    begun_s = list(ended_s)
    sums_s = [0.0] * len(begun_s)
    parts = {part for one in sums for part in one.parts}
    for part in sorted(parts, key=lambda one: one.layers, reverse=True):
        start_s = max(begun_s[rank] + sums_s[rank] for rank in part.ranks)
        for rank in part.ranks:
            begun_s[rank], sums_s[rank] = start_s, part.duration_s
    workers = plan.live_workers()
    steps_s = [step_s(plan, worker) for worker in workers]
    makespan_s = max(map(add, begun_s, sums_s), default=0.0) + max(steps_s, default=0.0)
    alike: dict[tuple[Layers, ...], list[int]] = {}
    for rank, worker in enumerate(workers):
        alike.setdefault(plan.layers_of(worker), []).append(rank)
    windows_s = (
        begun_s[ranks[0]]
        - min(first_s[rank] for rank in ranks)
        + sums_s[ranks[0]]
        + max(steps_s[rank] for rank in ranks)
        for ranks in alike.values()
    )
    return makespan_s, max(windows_s, default=0.0)
