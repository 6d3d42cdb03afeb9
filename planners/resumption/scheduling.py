"""Orders for what is left: the list scheduler under several priorities, of which the best schedule counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..scheduling.forms import Form
from ..scheduling.problem import ROUNDING
from .dispatch import FIELDS, DispatchSpace, DispatchWork, dispatch, follow, measure
from .operations import NONE, F

ALIKE = 1e-7  # tails that differ by less, of the longest
MANY = 40_000  # of so many operations the first schedule is taken

if TYPE_CHECKING:
    from .costs import CrewCosts, Floats
    from .operations import OperationTable
    from .remaining import Ints


@dataclass(frozen=True, eq=False)
class RestSchedule:
    """The numbers of the operations that each worker runs, in order; when each begins, and what all take, in s."""

    orders: tuple[Ints, ...]
    begin_s: Floats
    makespan_s: float


def schedule(costs: CrewCosts, operations: OperationTable, goal_s: float, form: Form) -> RestSchedule:
    """The best schedule found; of infinite length where memory limits let none end.

    Args:
        costs: of the crew.
        operations: what is to be ordered.
        goal_s: a schedule this short is good enough.
        form: how kernels run.
    """
    work = _work(costs, operations, form)
    space = _space(costs.workers, len(operations.unit), len(costs.origin), form)
    run: Any = form.kernel(dispatch)
    best = None
    for priority, by_claims in _rules(costs, operations, work, form):
        run(tuple(work), tuple(space), form.floats(priority), by_claims)
        made = _made(costs, operations, work, space)
        if by_claims and np.isfinite(made.makespan_s):  # who waited for others' memory need not in a known order
            form.kernel(follow)(tuple(work), tuple(space))
            made = _made(costs, operations, work, space)
        if best is None or made.makespan_s < best.makespan_s:
            best = made
        if best.makespan_s <= goal_s or (len(operations.unit) > MANY and np.isfinite(best.makespan_s)):
            break
    assert best is not None
    return best


def timed(costs: CrewCosts, operations: OperationTable, found: RestSchedule, form: Form) -> RestSchedule:
    """The same orders, which have all operations, where these and messages take other times."""
    work = _work(costs, operations, form)
    space = _space(costs.workers, len(operations.unit), len(costs.origin), form)
    space = space._replace(order=form.ints(np.concatenate(found.orders)))
    form.kernel(follow)(tuple(work), tuple(space))
    return _made(costs, operations, work, space)


def _claims(operations: OperationTable, limit_bytes: Floats, microbatches: int) -> tuple[Ints, Ints, Floats]:
    """What the F of each micro-batch take where there are limits: `claim_start`, `claim_worker` and `claim_bytes`."""
    takes = np.flatnonzero((operations.takes_bytes > 0) & np.isfinite(limit_bytes[operations.worker]))
    microbatch = operations.units.microbatch[operations.unit[takes]]
    workers = int(operations.worker.max(initial=0)) + 1
    claims, at = np.unique(microbatch * workers + operations.worker[takes], return_inverse=True)
    sizes = np.zeros(len(claims))
    np.add.at(sizes, at, operations.takes_bytes[takes])
    start = np.searchsorted(claims, np.arange(microbatches + 1) * workers)
    return start, claims % workers, sizes


def _rules(
    costs: CrewCosts, operations: OperationTable, work: DispatchWork, form: Form
) -> Iterator[tuple[Floats, int]]:
    """Priorities, and whether micro-batches are let in as a whole: where memory is limited, when all else is tried."""
    priorities = list(_priorities(costs, operations, work, form))
    is_limited = int(np.isfinite(costs.limit_bytes).any())
    return ((priority, by_claims) for by_claims in range(1 + is_limited) for priority in priorities)


def _priorities(costs: CrewCosts, operations: OperationTable, work: DispatchWork, form: Form) -> Iterator[Floats]:
    """I and B before F, which brings the first I back sooner, what has the longest tail ahead; and the tail alone.

    Of alike ones those go first that are first in their pipelines, so that all stages take them in one order. Where
    memory is short: I and B first, and F ahead whose I needs nothing from others, for what waits takes room meanwhile.
    """
    tail_s = form.float_space(len(operations.unit))
    form.kernel(measure)(tuple(work), form.floats(costs.following_s), tail_s)
    longest_s = max(tail_s, default=0.0)
    rank = costs.rank[operations.units.microbatch[operations.unit]]
    by_tail = -np.array(tail_s) + rank * (longest_s * ALIKE / max(1, len(costs.rank)))
    later_s = np.where(operations.kind == F, 2 * longest_s + 1.0, 0.0)
    yield by_tail + later_s
    yield by_tail
    if np.isfinite(costs.limit_bytes).any():
        backward = operations.units.backward[operations.unit]
        waits = (operations.kind == F) & (backward != NONE) & (operations.maker[backward] != NONE)
        yield by_tail + later_s * (1 + waits)


def _made(costs: CrewCosts, operations: OperationTable, work: DispatchWork, space: DispatchSpace) -> RestSchedule:
    counts = np.asarray(space.counts).reshape(-1, FIELDS)[:, -1].tolist()
    order, start = np.array(space.order, dtype=np.int64), list(work.start)
    orders = tuple(order[at : at + count] for at, count in zip(start, counts, strict=False))
    makespan_s = float("inf")
    # Who comes to a place of a lower limit may have more under way than it allows.
    fits = bool((np.asarray(work.held_bytes) <= np.asarray(work.limit_bytes)).all())
    if fits and sum(counts) == len(operations.unit):
        makespan_s = costs.makespan_s(np.array(space.free_s))
    return RestSchedule(orders, np.array(space.begin_s), makespan_s)


def _work(costs: CrewCosts, operations: OperationTable, form: Form) -> DispatchWork:
    count = len(operations.unit)
    numbers = np.arange(count)
    next_own, next_other = np.full(count, NONE), np.full(count, NONE)
    after, takes = operations.ahead != NONE, operations.maker != NONE
    next_own[operations.ahead[after]] = numbers[after]
    next_other[operations.maker[takes]] = numbers[takes]
    units = operations.units
    held_bytes = np.zeros(costs.workers)
    stashed = (units.forward == NONE) & units.counts
    size = np.where(units.backward == NONE, costs.bytes[units.seat, 1], costs.bytes[units.seat, 0])
    np.add.at(held_bytes, costs.owner[units.seat[stashed]], size[stashed])
    claim_start, claim_worker, claim_bytes = _claims(operations, costs.limit_bytes, len(costs.origin))
    return DispatchWork(
        worker=form.ints(operations.worker),
        kind=form.ints(operations.kind),
        next_own=form.ints(next_own),
        next_other=form.ints(next_other),
        delay_s=form.floats(np.concatenate((operations.delay_s, [0.0]))[next_other]),
        awaits=form.ints(after.astype(np.int64) + takes),
        ready_s=form.floats(operations.ready_s),
        duration_s=form.floats(operations.duration_s),
        takes_bytes=form.floats(operations.takes_bytes),
        leaves_bytes=form.floats(operations.leaves_bytes),
        start=form.ints(np.cumsum([0, *np.bincount(operations.worker, minlength=len(held_bytes)).tolist()])),
        held_bytes=form.floats(held_bytes),
        limit_bytes=form.floats(costs.limit_bytes * (1 + ROUNDING)),  # shares of layers add up with rounding
        microbatch=form.ints(units.microbatch[operations.unit]),
        claim_start=form.ints(claim_start),
        claim_worker=form.ints(claim_worker),
        claim_bytes=form.floats(claim_bytes),
    )


def _space(workers: int, operations: int, microbatches: int, form: Form) -> DispatchSpace:
    return DispatchSpace(
        form.int_space(operations), form.float_space(operations), form.float_space(operations),
        form.int_space(operations), form.int_space(3 * operations), form.int_space(operations),
        form.int_space(FIELDS * workers), form.float_space(workers), form.float_space(workers),
        form.float_space(workers), form.int_space(workers), form.int_space(workers),
        form.int_space(microbatches), form.int_space(2),
    )  # fmt: skip
