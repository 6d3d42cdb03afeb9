"""Orders for what is left: the list scheduler under several priorities, of which the best schedule counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..scheduling.forms import Form
from .dispatch import FIELDS, DispatchSpace, DispatchWork, dispatch
from .operations import NONE, F, W

if TYPE_CHECKING:
    from .costs import CrewCosts, Floats
    from .operations import OperationTable
    from .remaining import Ints


@dataclass(frozen=True, eq=False)
class Schedule:
    """The numbers of the operations that each worker runs, in order; when each begins, and what all take, in s."""

    orders: tuple[Ints, ...]
    begin_s: Floats
    makespan_s: float


def schedule(costs: CrewCosts, operations: OperationTable, form: Form) -> Schedule:
    """The best schedule found; of infinite length where memory limits let none end."""
    work = _work(costs, operations, form)
    space = _space(len(costs.held), len(operations.unit), len(costs.origin), form)
    run: Any = form.kernel(dispatch)
    tails_s = tails(costs, operations)
    best = None
    for priority, wait, by_claims in _rules(costs, operations, tails_s):
        run(tuple(work), tuple(space), form.floats(priority), wait, by_claims)
        made = _made(costs, operations, work, space)
        if best is None or made.makespan_s < best.makespan_s:
            best = made
    assert best is not None
    return best


def _rules(costs: CrewCosts, operations: OperationTable, tails_s: Floats) -> list[tuple[Floats, float, int]]:
    """Priorities, how long W waits, and whether micro-batches are let in as a whole: where memory is limited."""
    longest_s = 2 * float(tails_s.max(initial=0.0)) + 1
    by_tail = -tails_s
    backward_first = by_tail + np.where(operations.kind == F, longest_s, 0.0)
    is_limited = int(np.isfinite(costs.bytes[:, 2]).any())
    return [
        (priority, wait, by_claims)
        for by_claims in range(1 + is_limited)
        for priority in (by_tail, backward_first)
        for wait in (0.0, 0.5)
    ]


def _claims(operations: OperationTable, microbatches: int) -> tuple[Ints, Ints, Floats]:
    """What the F of each micro-batch take, and where: `claim_start`, `claim_worker` and `claim_bytes`."""
    takes = np.flatnonzero(operations.takes_bytes > 0)
    microbatch = operations.units.microbatch[operations.unit[takes]]
    workers = int(operations.worker.max(initial=0)) + 1
    claims, at = np.unique(microbatch * workers + operations.worker[takes], return_inverse=True)
    sizes = np.zeros(len(claims))
    np.add.at(sizes, at, operations.takes_bytes[takes])
    start = np.searchsorted(claims, np.arange(microbatches + 1) * workers)
    return start, claims % workers, sizes


def _made(costs: CrewCosts, operations: OperationTable, work: DispatchWork, space: DispatchSpace) -> Schedule:
    counts = np.asarray(space.counts).reshape(-1, FIELDS)[:, -1].tolist()
    order, start = np.array(space.order), list(work.start)
    orders = tuple(order[at : at + count] for at, count in zip(start, counts, strict=False))
    makespan_s = float("inf")
    if sum(counts) == len(operations.unit):
        makespan_s = costs.makespan_s(np.array(space.free_s))
    return Schedule(orders, np.array(space.begin_s), makespan_s)


def _work(costs: CrewCosts, operations: OperationTable, form: Form) -> DispatchWork:
    count = len(operations.unit)
    numbers = np.arange(count)
    next_own, next_other = np.full(count, NONE), np.full(count, NONE)
    after, takes = operations.ahead != NONE, operations.maker != NONE
    next_own[operations.ahead[after]] = numbers[after]
    next_other[operations.maker[takes]] = numbers[takes]
    units = operations.units
    held_bytes = np.zeros(len(costs.held))
    stashed = (units.forward == NONE) & units.counts
    size = np.where(units.backward == NONE, costs.bytes[units.worker, 1], costs.bytes[units.worker, 0])
    np.add.at(held_bytes, units.worker[stashed], size[stashed])
    claim_start, claim_worker, claim_bytes = _claims(operations, len(costs.origin))
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
        limit_bytes=form.floats(costs.bytes[:, 2]),
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


def tails(costs: CrewCosts, operations: OperationTable) -> Floats:
    """The longest chain from the start of each operation to the end of the iteration, in s."""
    count = len(operations.unit)
    next_own, next_other = np.full(count, NONE), np.full(count, NONE)
    after, takes = operations.ahead != NONE, operations.maker != NONE
    next_own[operations.ahead[after]] = np.flatnonzero(after)
    next_other[operations.maker[takes]] = np.flatnonzero(takes)
    found = costs.following_s[operations.worker] + operations.duration_s
    order = _backwards(operations)
    for number in order.tolist():
        tail_s = found[number]
        for other, delay_s in ((next_own[number], 0.0), (next_other[number], 1.0)):
            if other != NONE:
                delay = operations.delay_s[other] if delay_s else 0.0
                tail_s = max(tail_s, found[other] + delay + operations.duration_s[number])
        found[number] = tail_s
    return found


def _backwards(operations: OperationTable) -> Ints:
    """An order in which each operation comes after those that wait for it: W, then I upwards, then F downwards."""
    first = operations.units.first[operations.unit]
    rank = np.where(operations.kind == W, 0, np.where(operations.kind == F, 2, 1))
    return np.lexsort((np.where(operations.kind == F, -first, first), rank))
