"""The replay of a trace under a policy: changes in, steps out, on a clock that jumps from one to the next.

`runners/virtual/job.py` tells a trace operation by operation, with the coordinator's own rules; it is right to the
millisecond and takes minutes for a day. A replay knows iterations only as a number of seconds, the policy's, which is
that of `rtk simulate`, and takes a second for a year. What it does not know: how the iteration in which something
happens would have gone on, and traffic that training and copies share.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from ...schemas.errors import InvalidInputError
from ...schemas.protocols import RecoveryPolicy
from ...schemas.quantities import print_apart, print_time
from ...schemas.replay import (
    Checkpointing,
    GpuHours,
    Moment,
    Pause,
    PolicyReport,
    StateChange,
    Stretch,
    TrainingState,
    Transition,
    WhereTimeWent,
)

# What a replay was worth: a Record, measured against the cluster that never fails.


MOST_STRETCHES = 2000  # of a report; more are merged, the shortest first
HOUR_S = 3600.0
NOTHING = GpuHours(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Yardstick:
    """The fault-free cluster over the same time.

    Attributes:
        microbatches: that it commits.
        gpu_s: that it takes for one of them.
        gpus_per_node: of every node.
        gpu_hour_price: in any currency.
    """

    microbatches: int
    gpu_s: float
    gpus_per_node: int
    gpu_hour_price: float


def yardstick_of(fault_free: Record, gpus_per_node: int, gpu_hour_price: float) -> Yardstick:
    """What others are measured against, of the fault-free cluster's record over the same trace."""
    began = fault_free.began
    assert began.iteration_time_s is not None
    gpu_s = began.iteration_time_s * began.nodes * gpus_per_node / began.microbatches
    return Yardstick(fault_free.microbatches, gpu_s, gpus_per_node, gpu_hour_price)


def report_of(policy: str, record: Record, yardstick: Yardstick, healthy_s: float | None) -> PolicyReport:
    """What a policy made of a trace.

    Args:
        policy: its name.
        record: of its replay.
        yardstick: of the same trace.
        healthy_s: its iteration time with all nodes there; None: it does not train then.
    """
    hours = yardstick.gpus_per_node / HOUR_S
    present_h, working_h = hours * record.present_s, hours * record.worked_s
    useful_h = record.microbatches * yardstick.gpu_s / HOUR_S
    # Purposes have the names of the fields, less their unit; roll-backs may leave a rounding below 0.
    names = [one.name for one in fields(WhereTimeWent)]
    return PolicyReport(
        policy=policy,
        goodput=record.microbatches / yardstick.microbatches if yardstick.microbatches else 0.0,
        microbatches=record.microbatches,
        healthy_iteration_time_s=healthy_s or 0.0,
        time=WhereTimeWent(**{name: max(0.0, record.spent_s.get(name.removesuffix("_s"), 0.0)) for name in names}),
        gpu_hours=GpuHours(present_h, useful_h, present_h - working_h, present_h - useful_h),
        cost=present_h * yardstick.gpu_hour_price,
        peak_memory_bytes=record.peak_memory_bytes,
        answers=dict(sorted(record.answers.items())),
        stretches=tuple(stretches_of(record.spans)),
    )


def refused(policy: str, why: str) -> PolicyReport:
    """Of a policy that cannot train the job."""
    return PolicyReport(policy, 0.0, 0, 0.0, WhereTimeWent(), NOTHING, 0.0, 0.0, refusal=why)


def stretches_of(spans: Sequence[StateInterval], most: int = MOST_STRETCHES) -> list[Stretch]:
    """Throughput over time, in at most so many stretches: neighbours are merged until none is shorter than a share."""
    least_s = (spans[-1].end_s - spans[0].start_s) / most if len(spans) > most else 0.0
    return [_stretch(merged(group)) for group in neighbours(spans, least_s)]


def _stretch(span: StateInterval) -> Stretch:
    lasts_s = span.end_s - span.start_s
    rate = span.microbatches / lasts_s if lasts_s > 0 else 0.0
    return Stretch(span.start_s, round(span.nodes), round(span.working_nodes), rate)


# Throughput over time: spans as they come, in memory that does not grow with the trace.
#
# Of a long trace nobody looks at every span: a report shows stretches, neighbours that were merged until none is
# shorter than a share of the whole. What the whole will be is known at the end only; until then, whenever there are too
# many spans, neighbours are merged by the same rule with a smaller share.


# 25 times a report's stretches: of those merging moves the beginning by a twelfth of one at most.
MOST_SPANS = 50_000


@dataclass(slots=True)
class StateInterval:
    """A standing's time in force, until the fleet or the standing changes; micro-batches are those that stayed.

    Of merged spans, nodes are averages over their time.
    """

    start_s: float
    nodes: float
    working_nodes: float
    end_s: float = 0.0
    microbatches: int = 0


def merged(group: Sequence[StateInterval]) -> StateInterval:
    """Neighbours as one."""
    first, last = group[0], group[-1]
    lasts_s, microbatches = last.end_s - first.start_s, sum(span.microbatches for span in group)
    if len(group) == 1 or lasts_s <= 0:
        return StateInterval(first.start_s, last.nodes, last.working_nodes, last.end_s, microbatches)
    nodes = sum((span.end_s - span.start_s) * span.nodes for span in group) / lasts_s
    working = sum((span.end_s - span.start_s) * span.working_nodes for span in group) / lasts_s
    return StateInterval(first.start_s, nodes, working, last.end_s, microbatches)


def neighbours(spans: Iterable[StateInterval], least_s: float) -> Iterator[list[StateInterval]]:
    """Spans in groups, of which each lasts so long, but for the last one."""
    group: list[StateInterval] = []
    for span in spans:
        if group and group[-1].end_s - group[0].start_s >= least_s:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


@dataclass(frozen=True)
class Record:
    """What came of a trace.

    Attributes:
        began: the standing that it began with.
        spans: throughput over time; of very long traces neighbours are merged.
        present_s: nodes that were there times seconds; of nodes at work where they are more.
        worked_s: nodes at work times seconds.
        spent_s: the trace's duration by purpose: `working`, `lost`, `waiting`, and the kinds of pauses.
        microbatches: committed, and not lost later.
        answers: how often what was done.
        peak_memory_bytes: the most of any standing in force.
        lasts_s: the trace's duration.
    """

    began: TrainingState
    spans: tuple[StateInterval, ...]
    present_s: float
    worked_s: float
    spent_s: Mapping[str, float]
    microbatches: int
    answers: Mapping[str, int]
    peak_memory_bytes: float
    lasts_s: float


def replay(policy: RecoveryPolicy, moments: Iterable[Moment], until_s: float | None = None) -> Record:
    """Replay a trace under a policy.

    Args:
        policy: what answers changes.
        moments: in time order, read as they come; the first one, at 0, has the nodes that are there at the beginning.
        until_s: when the trace ends; None: with its last moment.

    Raises:
        InfeasibleError: the policy cannot train this job on such GPUs.
        InvalidInputError: there are no moments, or they are not in order.
    """
    stream = iter(moments)
    first = next(stream, None)
    if first is None:
        raise InvalidInputError(
            "the trace has no events", where="--trace", fix="give one that says which nodes there are"
        )
    return _Replay(policy, first).run(stream, until_s)


class _Replay:
    """One replay under way."""

    def __init__(self, policy: RecoveryPolicy, first: Moment) -> None:
        self._policy, self._fleet = policy, first.fleet
        self._began = policy.begin(first.fleet)
        self._clock = Clock(self._began, len(first.fleet.nodes), first.time_s)
        self._began_s = first.time_s
        self._answers: Counter[str] = Counter()
        self._peak_bytes = self._began.peak_memory_bytes

    def run(self, moments: Iterator[Moment], until_s: float | None) -> Record:
        """Ask the policy at every moment, and carry out what it said up to the next one; as `replay` says."""
        steps: Transition = ()
        asked_s = closes_s = self._clock.now_s
        fleet = self._fleet
        for moment in moments:
            if moment.time_s < asked_s:
                early, late = print_apart(moment.time_s, asked_s, print_time)
                raise InvalidInputError(f"a moment at {early} comes after one at {late}", where="--trace")
            if until_s is not None and moment.time_s >= until_s:
                break
            if not (moment.lost or moment.came or moment.lost_gpus) and moment.fleet == fleet:
                closes_s = moment.time_s  # nothing changes: the trace says how long it lasts
                continue
            self._carry_out(steps, asked_s, moment.time_s)
            steps = self._policy.react(self._clock.standing, replace(moment, done=self._clock.done))
            asked_s, fleet = moment.time_s, moment.fleet
            self._clock.count(len(fleet.nodes))
        end_s = max(asked_s, closes_s) if until_s is None else until_s
        self._carry_out(steps, asked_s, end_s)
        self._clock.close()
        clock = self._clock
        return Record(
            self._began, tuple(clock.spans), clock.present_s, clock.worked_s, clock.spent_s, clock.microbatches,
            self._answers, self._peak_bytes, end_s - self._began_s,
        )  # fmt: skip

    def _carry_out(self, steps: Transition, asked_s: float, until_s: float) -> None:
        """Take the steps that come to it, one after the other, and go on to a time."""
        clock = self._clock
        for step in steps:
            due_s = max(clock.now_s, asked_s + step.after_s)
            if due_s > until_s or due_s == until_s > asked_s:
                break
            clock.go_to(due_s)
            if not step.interrupts and not self._reaches_boundary(until_s):
                break
            clock.take_over(step)
            if step.answer:
                self._answers[step.answer] += 1
            self._peak_bytes = max(self._peak_bytes, step.standing.peak_memory_bytes)
        clock.go_to(until_s)

    def _reaches_boundary(self, until_s: float) -> bool:
        """Go on to where another standing can take over without loss, if that is not too late.

        A checkpoint that begins with the end of the iteration under way is waited for, too.
        """
        clock = self._clock
        while clock.now_s < (boundary_s := clock.boundary_s) <= until_s:
            clock.go_to(boundary_s)
        return boundary_s <= until_s


# One job's time: what it spends on which standing, what it commits, and what it loses.
#
# The clock knows no policy and no trace. It is told to go on to a time, or to let another standing take over, and keeps
# the books: every second goes to one purpose, every micro-batch is committed at the end of its iteration and may be
# taken back until the next checkpoint. Iterations are counted by arithmetic, not one by one, so that a year takes as
# long as an hour.


# Sums of iteration times and the times of events differ in their last bits: so much of an iteration is none.
ROUNDING = 1e-9
LEAST_LEFT = 1e-6  # of an iteration that is resumed, so that it ends as any other does


@dataclass(slots=True)
class _Uncertain:
    """What a roll-back would take: committed in a span after the last checkpoint."""

    span: StateInterval
    microbatches: int
    work_s: float


@dataclass
class Clock:
    """A job under way.

    Attributes:
        standing: in force, or being taken over to.
        nodes: that are there.
        now_s: the time.
        spent_s: by purpose: `working`, `lost`, `waiting` and the kinds of pauses.
        microbatches: committed and not lost.
        spans: the past, of which neighbours are merged where there would be too many, and the present as the last one.
        present_s: nodes that were there times seconds; of nodes at work where they are more.
        worked_s: nodes at work times seconds.
    """

    standing: TrainingState
    nodes: int
    now_s: float = 0.0
    spent_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    microbatches: int = 0
    spans: list[StateInterval] = field(default_factory=list)
    present_s: float = 0.0
    worked_s: float = 0.0
    _pauses: list[Pause] = field(default_factory=list)
    _part_s: float = 0.0  # of the iteration that is under way
    _ahead_s: float = 0.0  # of that, what it did not take: pauses in which others worked, and workers that were lost
    _since_checkpoint_s: float = 0.0  # of work that was committed
    _uncertain: list[_Uncertain] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._open_span()

    def go_to(self, time_s: float) -> None:
        """Let pauses pass, then iterations, until a time that is not before now."""
        while self._pauses and self.now_s < time_s:
            self._rest(time_s)
        if self.now_s < time_s:
            if self.standing.iteration_time_s is None:
                self._spend("waiting", time_s - self.now_s)
            else:
                self._train(time_s, self.standing.iteration_time_s)
        self.now_s = time_s

    @property
    def boundary_s(self) -> float:
        """When a standing could take over without loss: at the end of the pauses, and of the iteration under way."""
        iteration_s, ready_s = self.standing.iteration_time_s, self.now_s + sum(one.lasts_s for one in self._pauses)
        if not iteration_s or self._part_s <= ROUNDING * iteration_s:
            return ready_s
        return ready_s + iteration_s - self._part_s

    @property
    def done(self) -> float:
        """Of the iteration under way, the part that has passed."""
        return self._part_s / self.standing.iteration_time_s if self.standing.iteration_time_s else 0.0

    def take_over(self, step: StateChange) -> None:
        """Now, let a step's standing take over.

        A step that interrupts loses of the iteration under way what is to be done again, and with `rolls_back` all
        since the last checkpoint; of pauses that it interrupts, what they had left beyond its own is still to be waited
        for, and nobody is further than before. Another one comes at a `boundary_s`.
        """
        if step.interrupts:
            least = 1 - self.done if self._pauses else LEAST_LEFT
            kept_s = (1 - max(step.left, least)) * (step.standing.iteration_time_s or 0.0)
            self._keep(0.0 if step.rolls_back else kept_s)
            left = _beyond(self._pauses, sum(pause.lasts_s for pause in step.pauses))
            self._pauses = [*step.pauses, *left]
        else:
            self._part_s = 0.0
            self._pauses = list(step.pauses)
        if step.rolls_back:
            for one in self._uncertain:
                self.microbatches -= one.microbatches
                one.span.microbatches -= one.microbatches
                self.spent_s["working"] -= one.work_s
                self._spend("lost", one.work_s)
            self._saved()
        self.standing = step.standing
        self._open_span()

    def count(self, nodes: int) -> None:
        """From now on so many nodes are there."""
        if nodes != self.nodes:
            self.nodes = nodes
            self._open_span()

    def close(self) -> None:
        """The trace has ended: the last iteration, unfinished, was work, though it commits nothing."""
        self._spend("working", self._part_s - self._ahead_s)
        self._part_s = self._ahead_s = 0.0
        self._close_span()

    def _rest(self, time_s: float) -> None:
        pause = self._pauses.pop(0)
        rest_s = min(pause.lasts_s, time_s - self.now_s)
        self._spend(pause.kind, rest_s)
        self.now_s += rest_s
        if rest_s < pause.lasts_s:
            self._pauses.insert(0, Pause(pause.kind, pause.lasts_s - rest_s))
        elif pause.kind == "checkpointing":
            self._saved()

    def _train(self, time_s: float, iteration_s: float) -> None:
        """Iterations, and checkpoints where there are some, until a time."""
        every = self.standing.checkpointing
        while self.now_s < time_s:
            most = math.inf if every is None else _iterations_until_due(every, self._since_checkpoint_s, iteration_s)
            room_s = time_s - self.now_s + self._part_s
            done = int(min(most, math.floor(room_s / iteration_s + ROUNDING)))
            self._commit(done, iteration_s)
            if every is None or done < most:
                self._part_s = max(0.0, room_s - done * iteration_s)
                self.now_s = time_s
                return
            self.now_s = min(time_s, self.now_s + done * iteration_s - self._part_s)
            self._part_s = 0.0
            self._save(every, iteration_s, time_s)

    def _save(self, every: Checkpointing, iteration_s: float, time_s: float) -> None:
        """A checkpoint, begun now; whole rounds of iterations and checkpoints that follow are taken at once."""
        self._pauses = [Pause("checkpointing", every.pause_s)]
        if self.now_s >= time_s:
            return
        self._rest(time_s)
        if self._pauses:
            return
        each = int(_iterations_until_due(every, 0.0, iteration_s))
        round_s = each * iteration_s + every.pause_s
        rounds = math.floor((time_s - self.now_s) / round_s)
        if rounds > 0:
            self._commit(rounds * each, iteration_s)
            self._spend("checkpointing", rounds * every.pause_s)
            self._saved()
            self.now_s = min(time_s, self.now_s + rounds * round_s)

    def _commit(self, iterations: int, iteration_s: float) -> None:
        if iterations:
            work_s, microbatches = iterations * iteration_s - self._ahead_s, iterations * self.standing.microbatches
            self._ahead_s = 0.0
            self._spend("working", work_s)
            self.microbatches += microbatches
            self.spans[-1].microbatches += microbatches
            self._since_checkpoint_s += iterations * iteration_s
            self._uncertain.append(_Uncertain(self.spans[-1], microbatches, work_s))
            if len(self._uncertain) > 2 * MOST_SPANS:
                found: dict[int, _Uncertain] = {}
                for one in self._uncertain:
                    whole = found.setdefault(id(one.span), _Uncertain(one.span, 0, 0.0))
                    whole.microbatches += one.microbatches
                    whole.work_s += one.work_s
                self._uncertain = list(found.values())

    def _saved(self) -> None:
        self._since_checkpoint_s = 0.0
        self._uncertain.clear()

    def _keep(self, kept_s: float) -> None:
        """So much of the next standing's iteration is done; what took longer was lost."""
        took_s = self._part_s - self._ahead_s
        self._spend("lost", took_s - kept_s)
        self._part_s, self._ahead_s = kept_s, max(0.0, kept_s - took_s)

    def _spend(self, purpose: str, lasts_s: float) -> None:
        if lasts_s > 0:
            self.spent_s[purpose] += lasts_s

    def _open_span(self) -> None:
        """Begin a span now, in the place of one that has lasted no time."""
        working = 0 if self.standing.iteration_time_s is None else self.standing.nodes
        if self.spans:
            self._close_span()
            if self.spans[-1].start_s == self.now_s and not self.spans[-1].microbatches:
                self.spans.pop()
        if len(self.spans) > MOST_SPANS:
            self._merge_spans()
        self.spans.append(StateInterval(self.now_s, self.nodes, working))

    def _close_span(self) -> None:
        """The present is past."""
        span = self.spans[-1]
        span.end_s = self.now_s
        # Only the cluster that never fails works with more nodes than the trace has.
        self.present_s += (span.end_s - span.start_s) * max(span.nodes, span.working_nodes)
        self.worked_s += (span.end_s - span.start_s) * span.working_nodes

    def _merge_spans(self) -> None:
        """Merge neighbours until half as many are left; what may be taken back is, from then on, theirs."""
        least_s = 2 * (self.now_s - self.spans[0].start_s) / MOST_SPANS
        heirs: dict[int, StateInterval] = {}
        spans = []
        for group in neighbours(self.spans, least_s):
            spans.append(merged(group))
            heirs.update((id(span), spans[-1]) for span in group)
        for one in self._uncertain:
            one.span = heirs.get(id(one.span), one.span)  # one that lasted no time has no heir
        self.spans = spans


def _iterations_until_due(every: Checkpointing, since_s: float, iteration_s: float) -> float:
    """Iterations, at least one, until so much was trained that a checkpoint is due at an iteration's end."""
    return max(1.0, math.ceil((every.every_s - since_s) / iteration_s - ROUNDING))


def _beyond(pauses: Sequence[Pause], covered_s: float) -> list[Pause]:
    """What is left of pauses once so many seconds of them are over; a checkpoint that was cut short is void."""
    left = []
    for pause in pauses:
        if pause.kind != "checkpointing" and pause.lasts_s > covered_s:
            left.append(Pause(pause.kind, pause.lasts_s - covered_s))
        covered_s = max(0.0, covered_s - pause.lasts_s)
    return left
