"""The evaluator: when every operation of a plan starts and ends, by a longest path over the workers' orders.

One of three readings of a plan that share no code (docs/how-it-works.md); the semantics are those of docs/semantics.md.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

from ...schemas.errors import InvalidInputError
from ...schemas.orders import Operation
from ...schemas.plan import Plan, Stage, Worker
from .problem import Parts, Ranges, parts_of

# Sums of the same times in another order differ by less than this, relatively.
ROUNDING = 1e-12

Key = tuple[str, int, int, int]  # ("F" or "I", pipeline, micro-batch, stage): the message that an operation sends
# What an operation adds to the micro-batches that are held whole, and to those of which the stash for W is held.
WHOLE, STASHED = {"F": 1, "I": -1, "B": -1, "W": 0}, {"F": 0, "I": 1, "B": 0, "W": -1}
Seats = dict[int | None, tuple[int, Stage]]  # a worker's stages by what its operations say: number, and costs


@dataclass(frozen=True, slots=True)
class TimedOperation:
    """One operation with its times; `waited_for_message`: its input came after its worker was free.

    `stage` is the one that it is of, of its worker's. Where it `is_beside`, it is the backward of a pair, and has the
    times of the forward ahead of it.
    """

    worker: int
    operation: Operation
    stage: int
    start_s: float
    end_s: float
    waited_for_message: bool
    is_beside: bool = False


@dataclass(frozen=True, slots=True)
class LayerWindow:
    """From the first start of the workers of some layers to their optimizer step, that of the slowest of them.

    Attributes:
        start_s: their first start.
        last: the layer up to which those hold whose end is waited for last: theirs where all pipelines cut alike.
        end_s: when these have ended; sums of gradients follow each other from then on.
        begun_s, sum_s: when the last of their sums begins, that of the first layers, and how long it takes.
        optimizer_s: their optimizer step.
    """

    start_s: float
    last: int
    end_s: float
    begun_s: float
    sum_s: float
    optimizer_s: float

    @property
    def allreduce_s(self) -> float:
        """All sums from the end that is waited for last to that of their own gradients."""
        return self.begun_s - self.end_s + self.sum_s

    @property
    def reduced_s(self) -> float:
        """When their gradients are summed."""
        return self.begun_s + self.sum_s

    @property
    def length_s(self) -> float:
        """From the first start to the end of their own optimizer step."""
        return self.begun_s - self.start_s + self.sum_s + self.optimizer_s


@dataclass(frozen=True)
class OrderEvaluation:
    """Times and memory of a plan; `operations[w]` are those of worker w, in order."""

    plan: Plan
    operations: tuple[tuple[TimedOperation, ...], ...]

    @cached_property
    def makespan_s(self) -> float:
        """End of the iteration when every worker starts at 0, all-reduce and optimizer included."""
        windows = self.windows.values()
        reduced = max((window.reduced_s for window in windows), default=0.0)
        return reduced + max((window.optimizer_s for window in windows), default=0.0)

    @cached_property
    def period_s(self) -> float:
        """Smallest T at which the schedule repeats when each worker steps its optimizer on its own."""
        return max((window.length_s for window in self.windows.values()), default=0.0)

    @property
    def iteration_time_s(self) -> float:
        """The makespan, or the period of a staggered plan."""
        return self.period_s if self.plan.optimizer == "staggered" else self.makespan_s

    @cached_property
    def bubble_ratio(self) -> float:
        """The share of the iteration in which the average live worker computes nothing."""
        busy = sum(timed.end_s - timed.start_s for row in self.operations for timed in row if not timed.is_beside)
        room = len(self.plan.live_workers()) * self.iteration_time_s
        return max(0.0, 1 - busy / room) if room else 0.0

    @cached_property
    def peak_memory_bytes(self) -> tuple[float, ...]:
        """Peak activation bytes of each worker, in the plan's worker order (0 for a failed one)."""
        curves = (self.memory_over_time(number) for number in range(len(self.operations)))
        return tuple(max((held for _, held in curve), default=0.0) for curve in curves)

    def memory_over_time(self, worker: int) -> list[tuple[float, float]]:
        """(time in s, activation bytes held from then on) at every change, for one worker (an index)."""
        own = self.plan.workers[worker]
        seats = dict(zip(self.plan.seats_of(own), self.plan.stages_of(own), strict=True))
        whole, stashed = dict.fromkeys(seats, 0), dict.fromkeys(seats, 0)  # counted, for sums of bytes would drift
        held = dict.fromkeys(seats, 0.0)
        curve = []
        for timed in self.operations[worker]:
            kind, number = timed.operation.kind, timed.stage
            whole[number] += WHOLE[kind]
            stashed[number] += STASHED[kind]
            stage = seats[number]
            held[number] = whole[number] * stage.activation_bytes + stashed[number] * stage.weight_stash_bytes
            curve.append((timed.start_s if kind == "F" else timed.end_s, sum(held.values())))
        return curve

    def window_of(self, worker: Worker) -> LayerWindow:
        """The window of a live worker."""
        return self.windows[self.plan.layers_of(worker)]

    def own_sums_s(self, worker: Worker) -> float:
        """How long the sums of a live worker's own gradients take, without waiting for each other, in s."""
        return self._parts.own_s(self._sums_s)[self._parts.group[self.plan.layers_of(worker)]]

    @cached_property
    def _parts(self) -> Parts:
        stages = map(self.plan.stages_of, self.plan.live_workers())
        return parts_of(tuple(stage.layers for stage in held) for held in stages)

    @cached_property
    def _sums_s(self) -> list[float]:
        """How long the sum of each part takes."""
        reduce_s = [0.0] * len(self._parts.held)
        for stage in chain.from_iterable(map(self.plan.stages_of, self.plan.live_workers())):
            number = self._parts.number[stage.layers]
            reduce_s[number] = max(reduce_s[number], stage.allreduce_s)
        return self._parts.lasts_s(reduce_s)

    @cached_property
    def windows(self) -> dict[Ranges, LayerWindow]:
        """The window of all live workers of the same layers, by these."""
        parts, sums_s = self._parts, self._sums_s
        groups = len(parts.groups)
        starts_s, ends_s, steps_s = [math.inf] * groups, [0.0] * groups, [0.0] * groups
        for worker, row in zip(self.plan.workers, self.operations, strict=True):
            if not worker.failed:
                number = parts.group[self.plan.layers_of(worker)]
                start_s, end_s = (row[0].start_s, row[-1].end_s) if row else (math.inf, 0.0)
                starts_s[number] = min(starts_s[number], start_s)
                ends_s[number] = max(ends_s[number], end_s)
                step_s = sum(stage.optimizer_s for stage in self.plan.stages_of(worker))
                steps_s[number] = max(steps_s[number], step_s)
        begun_s = parts.begun_s(sums_s, ends_s)
        last_ends = self._last_ends(ends_s, begun_s)
        return {
            layers: LayerWindow(starts_s[number], *last_ends[part], begun_s[part], sums_s[part], steps_s[number])
            for number, (layers, part) in enumerate(zip(parts.groups, parts.foremost, strict=True))
        }

    def _last_ends(self, ends_s: Sequence[float], begun_s: Sequence[float]) -> list[tuple[int, float]]:
        """For each part, up to which layer those hold whose end is waited for last, and when that is."""
        joining: dict[int, tuple[int, float]] = {}
        for layers, part, end_s in zip(self._parts.groups, self._parts.hindmost, ends_s, strict=True):
            stop = layers[-1][1]
            joining[part] = max(joining.get(part, (stop, 0.0)), (stop, end_s))
        found: dict[int, tuple[int, float]] = {}
        for part in reversed(range(len(begun_s))):
            behind = self._parts.behind[part]
            waits = part not in joining or joining[part][1] < begun_s[part]
            if waits and behind:
                found[part] = found[max(behind, key=lambda before: begun_s[before] + self._sums_s[before])]
            else:
                found[part] = joining[part]
        return [found[part] for part in range(len(begun_s))]

    @cached_property
    def deciding(self) -> tuple[LayerWindow, ...]:
        """The windows that decide the iteration time: their all-reduce ends last, or they are the longest."""
        staggered = self.plan.optimizer == "staggered"
        lasts_s = [window.length_s if staggered else window.reduced_s for window in self.windows.values()]
        longest_s = max(lasts_s) * (1 - ROUNDING)
        pairs = zip(self.windows.values(), lasts_s, strict=True)
        return tuple(window for window, last_s in pairs if last_s >= longest_s)

    def critical_path(self) -> list[TimedOperation]:
        """Operations that follow each other without slack up to the last end that a deciding window waits for.

        Where worker and message are ready at the same time, the path stays on the worker; of several paths it is one
        that changes workers least often. Empty where nothing is executed that is waited for.
        """
        ends = [
            row[-1] for row in self.operations if row and any(self._waits_for(one, row[-1]) for one in self.deciding)
        ]
        paths = []
        for end in ends:
            path = [end]
            while path[-1] in self.before:
                path.append(self.before[path[-1]])
            paths.append(path[::-1])
        return min(paths, key=lambda path: sum(a.worker != b.worker for a, b in pairwise(path)), default=[])

    def decided_by(self, path: Sequence[TimedOperation]) -> LayerWindow:
        """The deciding window that a critical path leads to."""
        found = (window for window in self.deciding if not path or self._waits_for(window, path[-1]))
        return next(found)

    def _waits_for(self, window: LayerWindow, end: TimedOperation) -> bool:
        """Whether it is the end of this operation that a window waits for last."""
        layers = self.plan.layers_of(self.plan.workers[end.worker])
        return layers[-1][1] == window.last and end.end_s >= window.end_s * (1 - ROUNDING)

    @cached_property
    def before(self) -> dict[TimedOperation, TimedOperation]:
        """For each operation the one that lets it start, the one ahead on its worker or the sender of its message.

        Those that are ready at 0 have none. A message that comes later by rounding only is not waited for.
        """
        sender = {_sent_key(timed): timed for row in self.operations for timed in row}
        last = _last_stages(self.plan)
        found: dict[TimedOperation, TimedOperation] = {}
        for row in self.operations:
            for ahead, pair in pairwise((None, *_side_by_side(row))):
                assert pair is not None
                start_s = pair[0].start_s
                if ahead is not None and ahead[-1].end_s >= start_s * (1 - ROUNDING):
                    found |= dict.fromkeys(pair, ahead[0])
                elif start_s > 0:
                    late = next((timed for timed in pair if timed.waited_for_message), pair[0])
                    needed = _needed(late.operation, late.stage, last)
                    assert needed is not None
                    found |= dict.fromkeys(pair, sender[needed])
        return found


def _side_by_side(row: Sequence[TimedOperation]) -> Iterator[tuple[TimedOperation, ...]]:
    """A worker's operations, those that run side by side together."""
    place = 0
    while place < len(row):
        stop = place + 1
        stop += stop < len(row) and row[stop].is_beside
        yield tuple(row[place:stop])
        place = stop


def evaluate(plan: Plan) -> OrderEvaluation:
    """Start and end of every operation: each starts as soon as its worker is free and its message is there.

    Args:
        plan: a complete plan; `schemas.check` says what is wrong with others.

    Raises:
        InvalidInputError: the orders deadlock.
    """
    sweep = _Sweep(plan)
    waiting: dict[Key, int] = {}
    ready = deque(range(len(plan.workers)))
    while ready:
        number = ready.popleft()
        sent, blocked_on = sweep.advance(number)
        if blocked_on is not None:
            waiting[blocked_on] = number
        for key in sent:
            woken = waiting.pop(key, None)
            if woken is not None:
                ready.append(woken)
    if waiting:
        raise InvalidInputError("the orders deadlock", fix="rtk verify shows the place")
    return OrderEvaluation(plan, tuple(map(tuple, sweep.rows)))


class _Sweep:
    """The orders of a plan, and how far each worker has come."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._orders = [worker.operations() for worker in plan.workers]
        self._pairs = [worker.pairs() for worker in plan.workers]
        self._seats = [_seats(plan, worker) for worker in plan.workers]
        self._last = _last_stages(plan)
        self._executor = {
            (op.pipeline, op.microbatch, own[op.stage][0]): worker
            for worker, own, order in zip(plan.workers, self._seats, self._orders, strict=True)
            for op in order
            if op.kind == "F"
        }
        self._sent_s: dict[Key, float] = {}
        self.rows: list[list[TimedOperation]] = [[] for _ in self._orders]

    def advance(self, number: int) -> tuple[list[Key], Key | None]:
        """Run a worker as far as it gets; what it sent, and what it is blocked on, None at the end of its order."""
        plan, worker, seats, sent_s = self._plan, self._plan.workers[number], self._seats[number], self._sent_s
        order, row, last, pairs = self._orders[number], self.rows[number], self._last, self._pairs[number]
        slowdown = worker.slowdown or 1.0
        free_s = row[-1].end_s if row else 0.0
        sent: list[Key] = []
        ahead: tuple[Operation, int, float] | None = (
            None  # the forward of a pair, its stage, and when its input is there
        )
        for at in range(len(row), len(order)):
            operation = order[at]
            place, stage = seats[operation.stage]
            needed = _needed(operation, place, last)
            arrival_s = 0.0
            if needed is not None:
                if needed not in sent_s:
                    return sent, needed
                hop = min(place, needed[3])
                sender = self._executor[needed[1:]]
                arrival_s = sent_s[needed] + plan.hop_delay_s(operation.pipeline, hop, sender, worker)
            if at in pairs:
                ahead = operation, place, arrival_s
                continue
            if ahead is None:
                start_s, waited = max(free_s, arrival_s), arrival_s > free_s
                free_s = start_s + stage.duration_s(operation.kind) * slowdown
                row.append(TimedOperation(number, operation, place, start_s, free_s, waited))
            else:
                pair_s = plan.template_of(worker.pipeline).pair_s(ahead[1], place) * slowdown
                row += _timed_pair(number, (ahead, (operation, place, arrival_s)), free_s, pair_s)
                free_s, ahead = row[-1].end_s, None
                key = _sent_key(row[-2])
                sent.append(key)
                sent_s[key] = free_s
            key = _sent_key(row[-1])
            sent.append(key)
            sent_s[key] = free_s
        return sent, None


def _timed_pair(
    number: int, pair: Sequence[tuple[Operation, int, float]], free_s: float, lasts_s: float
) -> Iterator[TimedOperation]:
    """The two of a pair, which begin when the later message is there; each with its stage, and when its input is."""
    last_s = max(arrival_s for _, _, arrival_s in pair)
    start_s = max(free_s, last_s)
    for beside, (operation, place, arrival_s) in enumerate(pair):
        waited = free_s < arrival_s == last_s
        yield TimedOperation(number, operation, place, start_s, start_s + lasts_s, waited, beside > 0)


def _seats(plan: Plan, worker: Worker) -> Seats:
    held = list(zip(plan.seats_of(worker), plan.stages_of(worker), strict=True))
    return {None: held[0]} if len(held) == 1 else dict(zip(plan.seats_of(worker), held, strict=True))


def _last_stages(plan: Plan) -> list[int]:
    """The number of each pipeline's last stage."""
    return [len(plan.template_of(k).stages) - 1 for k in range(len(plan.pipelines))]


def _needed(operation: Operation, stage: int, last: Sequence[int]) -> Key | None:
    """The message from another stage that an operation of a stage waits for; `last`: that of each pipeline."""
    kind, pipeline, microbatch, _ = operation
    if kind == "F" and stage > 0:
        return ("F", pipeline, microbatch, stage - 1)
    if kind in "IB" and stage < last[pipeline]:
        return ("I", pipeline, microbatch, stage + 1)
    return None


def _sent_key(timed: TimedOperation) -> Key:
    kind, pipeline, microbatch, _ = timed.operation
    return ("I" if kind == "B" else kind, pipeline, microbatch, timed.stage)
