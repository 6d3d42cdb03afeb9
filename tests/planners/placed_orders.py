"""Placed problems made by hand, and what their orders come to, read as docs/semantics.md has it: slow and plain."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rtk.planners.placement.problem import PlacedProblem, SeatOrders
from rtk.planners.scheduling.problem import BACKWARD, FORWARD, KINDS, WEIGHT

ROUNDING = 1e-9


def placed(
    column: Sequence[int],
    microbatches: Sequence[int],
    *,
    times_s: Sequence[Sequence[float]] = ((1.0, 1.0, 1.0),),
    full_s: Sequence[float] | None = None,
    delay_s: float = 0.0,
    limit: float = np.inf,
    activation_bytes: float | None = None,
    stash: float = 1.0,
    split: bool = True,
    staggered: bool = False,
) -> PlacedProblem:
    """A problem of pipelines that run their own micro-batches.

    Args:
        column: of each virtual stage.
        microbatches: of each pipeline.
        times_s: of F, I and W of each virtual stage, or of all alike; B lasts I and W, or `full_s` of each.
        delay_s: of each hop between columns.
        limit: of each worker, in activations of a whole column; `activation_bytes` of a virtual stage are 1 / C of one.
        stash: bytes between I and W, as a part of an activation's.
    """
    columns, stages = max(column) + 1, len(column)
    share = activation_bytes or columns / stages
    origin = np.repeat(np.arange(len(microbatches)), microbatches)
    number = np.concatenate([np.arange(count) for count in microbatches])
    order = np.lexsort((origin, number))
    origin, number = origin[order], number[order]
    worker_column = np.tile(np.arange(columns), len(microbatches))
    costs = np.broadcast_to(np.array(times_s, dtype=np.float64), (stages, 3))
    whole = costs[:, 1] + costs[:, 2] if full_s is None else np.array(full_s)
    seated = worker_column[:, None] == np.array(column)[None, :]
    duration_s = np.where(seated[:, :, None], np.column_stack([costs, whole])[None], 0.0)
    executor = origin[:, None] * columns + np.array(column)[None, :]
    hops = [delay_s if a != b else 0.0 for a, b in pairwise(column)]
    return PlacedProblem(
        origin=origin,
        microbatch=number,
        column=np.array(column),
        pipeline=np.repeat(np.arange(len(microbatches)), columns),
        worker_column=worker_column,
        live=np.ones(len(worker_column), dtype=np.bool_),
        executor=executor,
        split=np.full(executor.shape, split),
        duration_s=duration_s,
        activation_bytes=np.full(stages, share),
        stash_bytes=np.full(stages, share * stash),
        limit_bytes=np.full(len(worker_column), float(limit)),
        hop_s=np.tile(np.array(hops), (len(origin), 1)),
        allreduce_s=np.zeros(columns),
        optimizer_s=np.zeros(columns),
        staggered=staggered,
    )


@dataclass(frozen=True)
class Timing:
    """When each operation starts and ends, by worker and code, and what the iteration takes in both ways."""

    times_s: dict[tuple[int, int], tuple[float, float]]
    makespan_s: float
    period_s: float


def timing(problem: PlacedProblem, orders: SeatOrders) -> Timing | None:
    """Each operation as soon as its worker is free and its input is there; None where the orders deadlock."""
    ends_s: dict[int, float] = {}
    times_s: dict[tuple[int, int], tuple[float, float]] = {}
    free_s, done = [0.0] * problem.workers, [0] * problem.workers
    progress = True
    while progress:
        progress = False
        for worker, order in enumerate(orders):
            while done[worker] < len(order):
                code = order[done[worker]]
                ready_s = _ready_s(problem, code, ends_s)
                if ready_s is None:
                    break
                start_s = max(free_s[worker], ready_s)
                free_s[worker] = ends_s[code] = start_s + duration_s(problem, code)
                times_s[worker, code] = start_s, free_s[worker]
                done[worker] += 1
                progress = True
    if any(count < len(order) for count, order in zip(done, orders, strict=True)):
        return None
    makespan_s, period_s = 0.0, 0.0
    for column in range(len(problem.seats)):
        own = [times for (worker, _), times in times_s.items() if problem.worker_column[worker] == column]
        last_s = max((end for _, end in own), default=0.0) + float(problem.allreduce_s[column])
        makespan_s = max(makespan_s, last_s)
        first_s = min((start for start, _ in own), default=0.0)
        period_s = max(period_s, last_s - first_s + float(problem.optimizer_s[column]))
    return Timing(times_s, makespan_s + float(problem.optimizer_s.max()), period_s)


def duration_s(problem: PlacedProblem, code: int) -> float:
    """How long an operation takes where it is executed."""
    (job, stage), kind = divmod(code // KINDS, problem.stages), code % KINDS
    column = 3 if kind == BACKWARD and not problem.split[job, stage] else kind
    return float(problem.duration_s[problem.executor[job, stage], stage, column])


def _ready_s(problem: PlacedProblem, code: int, ends_s: dict[int, float]) -> float | None:
    """When its input is there; None: its sender has not run yet."""
    (job, stage), kind = divmod(code // KINDS, problem.stages), code % KINDS
    hop_s = 0.0
    if kind == WEIGHT:
        needed = code - WEIGHT + BACKWARD
    elif kind == BACKWARD and stage == problem.stages - 1:
        needed = code - BACKWARD + FORWARD
    elif kind == FORWARD and stage == 0:
        return 0.0
    else:
        step = 1 if kind == BACKWARD else -1
        needed, hop_s = code + step * KINDS, float(problem.hop_s[job, min(stage, stage + step)])
    return ends_s[needed] + hop_s if needed in ends_s else None


def peaks_bytes(problem: PlacedProblem, orders: SeatOrders) -> list[float]:
    """The most that each worker holds: counts by virtual stage times their bytes."""
    found = []
    for order in orders:
        whole, stashed = np.zeros(problem.stages), np.zeros(problem.stages)
        most = 0.0
        for code in order:
            (job, stage), kind = divmod(code // KINDS, problem.stages), code % KINDS
            whole[stage] += {FORWARD: 1, BACKWARD: -1, WEIGHT: 0}[kind]
            stashed[stage] += {FORWARD: 0, BACKWARD: int(problem.split[job, stage]), WEIGHT: -1}[kind]
            most = max(most, float(whole @ problem.activation_bytes + stashed @ problem.stash_bytes))
        found.append(most)
    return found


def keeps_limits(problem: PlacedProblem, orders: SeatOrders) -> bool:
    """Whether no worker ever holds more than its limit, up to rounding."""
    limits = problem.limit_bytes.tolist()
    return all(peak <= limit * (1 + ROUNDING) for peak, limit in zip(peaks_bytes(problem, orders), limits, strict=True))


def least_value_s(problem: PlacedProblem, most_states: int = 60_000) -> float | None:
    """The least makespan, or period, of all orders within the limits; None where there are too many to try all.

    Operations are started one after the other in the order of their starts, in all ways; states that are alike from
    now on are looked at once, those that cannot beat the best known ones not at all.
    """
    return _AllOrders(problem, most_states).least_s()


@dataclass(frozen=True)
class _State:
    """Operations done, with what is known of them: by worker when it is free, and what it holds; ends that matter."""

    done: frozenset[int]
    free_s: tuple[float, ...]
    held: tuple[float, ...]
    first_s: tuple[float, ...]  # of columns
    ends_s: tuple[tuple[int, float], ...]  # of operations whose follower has not started
    last_s: float


class _AllOrders:
    def __init__(self, problem: PlacedProblem, most_states: int) -> None:
        self.problem, self.left = problem, most_states
        kinds = [(FORWARD, BACKWARD, WEIGHT) if split else (FORWARD, BACKWARD) for split in problem.split.ravel()]
        self.codes = [cell * KINDS + kind for cell, own in enumerate(kinds) for kind in own]
        self.worker = {code: int(problem.executor.ravel()[code // KINDS]) for code in self.codes}
        self.seconds = {code: duration_s(problem, code) for code in self.codes}
        self.work_s = [0.0] * problem.workers
        for code in self.codes:
            self.work_s[self.worker[code]] += self.seconds[code]
        self.after_s = problem.allreduce_s + (problem.optimizer_s if problem.staggered else problem.optimizer_s.max())
        self.best_s = np.inf

    def least_s(self) -> float | None:
        workers, columns = self.problem.workers, len(self.problem.seats)
        start = _State(frozenset(), (0.0,) * workers, (0.0,) * workers, (-1.0,) * columns, (), 0.0)
        stack, seen = [start], {start}
        while stack:
            state = stack.pop()
            if len(state.done) == len(self.codes):
                self.best_s = min(self.best_s, self._least_s(state))
                continue
            for following in self._following(state):
                if following not in seen and self._least_s(following) < self.best_s - ROUNDING:
                    seen.add(following)
                    stack.append(following)
            self.left -= 1
            if self.left < 0:
                return None
        return float(self.best_s)

    def _following(self, state: _State) -> list[_State]:
        problem, ends_s = self.problem, dict(state.ends_s)
        found = []
        for code in self.codes:
            if code in state.done:
                continue
            ready_s = _ready_s(problem, code, ends_s)
            if ready_s is None:
                continue
            worker = self.worker[code]
            start_s = max(ready_s, state.free_s[worker])
            cell, kind = divmod(code, KINDS)
            stage, split = cell % problem.stages, bool(problem.split.ravel()[cell])
            activation, stash = float(problem.activation_bytes[stage]), float(problem.stash_bytes[stage])
            gained = (activation, (stash if split else 0.0) - activation, -stash)[kind]
            held = state.held[worker] + gained
            if start_s < state.last_s or held > problem.limit_bytes[worker] * (1 + ROUNDING) + ROUNDING:
                continue
            free_s, holds, first_s = list(state.free_s), list(state.held), list(state.first_s)
            free_s[worker], holds[worker] = start_s + self.seconds[code], held
            column = int(problem.worker_column[worker])
            first_s[column] = start_s if first_s[column] < 0 else first_s[column]
            later = ends_s | {code: free_s[worker]}
            # Who has had its follower is not waited for any more; the last F waits for I, each I for W and I.
            done = state.done | {code}
            kept = tuple((one, end) for one, end in later.items() if not self._followed(one, done))
            found.append(_State(done, tuple(free_s), tuple(holds), tuple(first_s), kept, start_s))
        return sorted(found, key=lambda one: -one.last_s)

    def _followed(self, code: int, done: frozenset[int]) -> bool:
        cell, kind = divmod(code, KINDS)
        stage = cell % self.problem.stages
        followers = []
        if kind == FORWARD:
            last = stage == self.problem.stages - 1
            followers = [code + BACKWARD] if last else [code + KINDS]
        elif kind == BACKWARD:
            followers = [code - KINDS] if stage else []
            followers += [code + 1] if self.problem.split.ravel()[cell] else []
        return done.issuperset(followers)

    def _least_s(self, state: _State) -> float:
        """No completion of a state is better."""
        found_s = 0.0
        done_s = [0.0] * self.problem.workers
        for code in state.done:
            done_s[self.worker[code]] += self.seconds[code]
        for worker, free_s in enumerate(state.free_s):
            column = int(self.problem.worker_column[worker])
            left_s = self.work_s[worker] - done_s[worker]
            end_s = max(free_s, state.last_s) + left_s if left_s > 0 else free_s
            begin_s = state.first_s[column] if self.problem.staggered else 0.0
            if begin_s < 0:
                begin_s = end_s - left_s
            found_s = max(found_s, end_s - begin_s + float(self.after_s[column]))
        return found_s
