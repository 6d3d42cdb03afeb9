"""A placed problem made ready for many schedules: the kernels of `dispatch.py` with their tables and work space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...schemas.errors import NoRoomError
from ...schemas.quantities import print_bytes
from ..scheduling.forms import Form, pays
from ..scheduling.problem import FORWARD, KINDS, ROUNDING
from .dispatch import NONE, SeatCosts, SeatKeys, SeatState, dispatch
from .problem import held_bytes, needed_bytes, unpaired
from .times import SeatTimes, follow, objective_s

if TYPE_CHECKING:
    from .problem import Floats, Ints, PlacedProblem, SeatOrders

# Up to so many operations, over all runs, plain Python is done before the machine code would be loaded.
INTERPRETED_OPERATIONS = 20_000


@dataclass(frozen=True, eq=False)
class DueTimes:
    """What goes first: what is ready and has the least key, which is when its job is due and its own offset.

    Attributes:
        due_s: of each job; array of jobs.
        offset_s: of F, I (or B) and W at each virtual stage: stages x kinds, or jobs x stages x kinds.
        enters_s: when each job may enter, in s, array of jobs; or one time for all.
        wait: nothing is started if what has a lesser key is known to arrive within this fraction of its duration.
        beside: F and B are run side by side, and wait for each other within this fraction of their duration; negative:
            one after the other.
    """

    due_s: Floats
    offset_s: Floats
    enters_s: Floats | float = 0.0
    wait: float = 0.0
    beside: float = -1.0


class SeatScheduler:
    """A problem made ready for many runs under different rules, and to time many orders.

    Args:
        problem: what to order.
        runs: about how many runs will follow: decides whether machine code is worth its while.

    Raises:
        NoRoomError: a limit does not admit what one micro-batch needs.
    """

    def __init__(self, problem: PlacedProblem, runs: int = 1) -> None:
        self.problem = problem
        self._form = form = Form(pays(dispatch, problem.operations * runs, INTERPRETED_OPERATIONS))
        self._costs = costs_of(problem, form)
        cells, seats, workers = problem.executor.size, len(self._costs.stage_of), problem.workers
        operations, columns = problem.operations, len(problem.allreduce_s)
        ints, floats = form.int_space, form.float_space
        self._state = SeatState(
            there_s=floats(KINDS * cells), coming=ints(operations), coming_from=ints(workers), coming_to=ints(workers),
            queue=ints(operations), queue_from=ints(KINDS * seats), queue_to=ints(KINDS * seats), progress=ints(cells),
            whole=ints(seats), stashed=ints(seats), later_whole=ints(seats), later_stashed=ints(seats),
            oldest=ints(workers), order=ints(operations), ran=ints(workers), free_s=floats(workers),
            event_s=floats(workers), heap=ints(workers), at=ints(workers),
        )  # fmt: skip
        self._times = times_of(problem, form)
        self._dispatch, self._follow = form.kernel(dispatch), form.kernel(follow)
        self._objective = form.kernel(objective_s)
        self._windows = (
            form.ints(problem.worker_column), self._costs.start, form.floats(problem.allreduce_s),
            form.floats(problem.optimizer_s), self._times.first_s, self._times.free_s, floats(columns), floats(columns),
        )  # fmt: skip

    def run(self, rules: DueTimes) -> float:
        """Schedule by these rules; returns the makespan, or period, of the orders in s; infinite where it locks up."""
        floats, problem = self._form.floats, self.problem
        release_s = np.broadcast_to(rules.enters_s, problem.jobs)
        key_s = rules.due_s[:, None, None] + rules.offset_s
        keys = SeatKeys(floats(key_s.ravel()), floats(release_s), float(rules.wait), float(rules.beside))
        self._dispatch(tuple(self._costs), tuple(self._state), tuple(keys))
        if int(np.sum(self._state.ran)) < problem.operations:
            return float("inf")
        return self._timed_s(self._state.order)

    def value_s(self, orders: SeatOrders) -> float:
        """The makespan, or period, of given orders in s; infinite where they deadlock."""
        return self._timed_s(self._form.ints([code for order in orders for code in order]))

    def ends_s(self, orders: SeatOrders) -> Floats:
        """When each worker has run its last operation by given orders, in s; 0 without operations."""
        self.value_s(orders)
        return np.array(self._times.free_s)

    @property
    def operations_s(self) -> tuple[Floats, Floats]:
        """When each operation of the orders that were timed last starts and ends, worker after worker, in s."""
        return np.array(self._times.start_s), np.array(self._times.end_s)

    def times_s(self, orders: SeatOrders) -> tuple[float, float]:
        """Makespan and period of given orders that do not deadlock, in s."""
        self.value_s(orders)
        return float(self._objective(False, *self._windows)), float(self._objective(True, *self._windows))

    def rules_of(self, orders: SeatOrders) -> DueTimes:
        """Rules by which about these orders come about: operations go by their starts, jobs enter at theirs."""
        self.value_s(orders)
        problem = self.problem
        starts_s = np.zeros(problem.executor.size * KINDS)
        starts_s[np.concatenate([unpaired(order)[0] for order in orders])] = self._times.start_s
        starts_s = starts_s.reshape(*problem.executor.shape, KINDS)
        beside = 1.0 if any(code < 0 for order in orders for code in order) else -1.0
        return DueTimes(np.zeros(problem.jobs), starts_s, starts_s[:, 0, FORWARD], beside=beside)

    def orders(self) -> SeatOrders:
        """The orders of the last run, as operation codes of each worker."""
        order = np.asarray(self._state.order)
        return [part.tolist() for part in np.split(order, np.asarray(self._costs.start)[1:-1])]

    def _timed_s(self, order: Any) -> float:
        if not self._follow(tuple(self._costs), tuple(self._times), order):
            return float("inf")
        return float(self._objective(self.problem.staggered, *self._windows))


def fits(problem: PlacedProblem, orders: SeatOrders) -> bool:
    """Whether orders keep all workers within their limits."""
    if not np.isfinite(problem.limit_bytes).any():
        return True
    return bool((held_bytes(problem, orders) <= problem.limit_bytes * (1 + ROUNDING)).all())


def reserves_bytes(problem: PlacedProblem) -> Floats:
    """What each worker must have room for: the most that one of the jobs routed to it needs there; array of workers.

    Raises:
        NoRoomError: its limit is less.
    """
    most = needed_bytes(problem)
    for worker in np.flatnonzero(most > problem.limit_bytes * (1 + ROUNDING)).tolist():
        column, limit_bytes = int(problem.worker_column[worker]), problem.limit_bytes[worker]
        raise NoRoomError(
            f"a micro-batch needs {print_bytes(most[worker])} at column {column}, over all its virtual stages there, "
            f"and the memory limit is {print_bytes(limit_bytes)}",
            where="--memory-limit",
            fix="raise the limit, take a smaller micro-batch, or more stages",
        )
    return most


def times_of(problem: PlacedProblem, form: Form) -> SeatTimes:
    """Work space for the times of a problem's orders."""
    operations, cells, workers = problem.operations, problem.executor.size, problem.workers
    ints, floats = form.int_space, form.float_space
    return SeatTimes(
        start_s=floats(operations), end_s=floats(operations), sent_s=floats(2 * cells), first_s=floats(workers),
        free_s=floats(workers), ran=ints(workers), pile=ints(workers), is_in=ints(workers),
    )  # fmt: skip


def costs_of(problem: PlacedProblem, form: Form) -> SeatCosts:
    """A problem as the kernels take it.

    Raises:
        NoRoomError: a limit does not admit what one micro-batch needs.
    """
    workers, stages, executor = problem.workers, problem.stages, problem.executor
    routed = np.zeros((workers, stages), dtype=np.int64)  # jobs at each seat
    np.add.at(routed, (executor, np.arange(stages)[None, :]), 1)
    halves = np.zeros((workers, stages), dtype=np.int64)  # those with a W of their own
    np.add.at(halves, (executor, np.arange(stages)[None, :]), problem.split)
    seat_worker, stage_of = np.nonzero(routed)
    seat_of = np.full((workers, stages), NONE)
    seat_of[seat_worker, stage_of] = np.arange(len(stage_of))
    queued = np.stack([routed[seat_worker, stage_of]] * 2 + [halves[seat_worker, stage_of]], axis=1)
    pairs = np.unique(executor * problem.jobs + np.arange(problem.jobs)[:, None])  # workers and jobs, in rank order
    hop_s = np.zeros(executor.shape)
    hop_s[:, :-1] = problem.hop_s
    return SeatCosts(
        stages=stages,
        executor=form.ints(executor.ravel()),
        split=form.ints(problem.split.ravel()),
        hop_s=form.floats(hop_s.ravel()),
        duration_s=form.floats(problem.duration_s.ravel()),
        first_seat=form.ints(_starts(np.bincount(seat_worker, minlength=workers))),
        seat_of=form.ints(seat_of.ravel()),
        stage_of=form.ints(stage_of),
        activation_bytes=form.floats(problem.activation_bytes[stage_of]),
        stash_bytes=form.floats(problem.stash_bytes[stage_of]),
        limit_bytes=form.floats(problem.limit_bytes * (1 + ROUNDING)),
        reserve_bytes=form.floats(reserves_bytes(problem)),
        first_job=form.ints(_starts(np.bincount(pairs // problem.jobs, minlength=workers))),
        jobs=form.ints(pairs % problem.jobs),
        first_queued=form.ints(_starts(queued.ravel())),
        start=form.ints(_starts((2 * routed + halves).sum(axis=1))),
        overlap=float(problem.overlap),
    )


def _starts(counts: Ints) -> Ints:
    """Where each run begins that stands behind the others, and where the last one ends."""
    starts: Ints = np.concatenate([[0], np.cumsum(counts)])
    return starts
