"""One B instead of I and W wherever nothing gets longer by it, neither the makespan nor the period.

Orders are made with I and W apart. As `slipstream/selective_decoupling.py` does where a worker holds one stage: from
the end, each operation gets its latest start, by the messages that wait for it or what its worker does after it, and by
the work that its worker has left until it must have ended. Then, from the start, an I becomes a B where all that comes
after is still in time. Its W stood later in the order, so no worker holds more than before at any F.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.forms import Form, pays
from ..scheduling.problem import KINDS
from .dispatch import W
from .scheduler import INTERPRETED_OPERATIONS, costs_of, times_of
from .times import LatestTimes, follow, fuse, latest

if TYPE_CHECKING:
    from .problem import Floats, PlacedProblem, SeatOrders


# A value is no longer than another if it is so but for the rounding of sums.
ROUNDING = 1e-12


def with_fused_backwards(problem: PlacedProblem, orders: SeatOrders) -> tuple[PlacedProblem, SeatOrders]:
    """Join I and W to B wherever neither makespan nor period suffers.

    Args:
        problem: what was ordered.
        orders: operation codes of each worker; without a deadlock.

    Returns:
        The problem with fewer split backwards, and its orders.
    """
    if not problem.split.any():
        return problem, orders
    form = Form(pays(fuse, problem.operations, INTERPRETED_OPERATIONS))
    costs, times = costs_of(problem, form), times_of(problem, form)
    workers, cells = problem.workers, problem.executor.size
    late = LatestTimes(
        message_s=form.float_space(problem.operations), end_s=form.float_space(problem.operations),
        start_s=form.float_space(2 * cells), left=form.int_space(workers), pile=form.int_space(workers),
        is_in=form.int_space(workers),
    )  # fmt: skip
    order = form.ints(np.concatenate([np.asarray(one, dtype=np.int64) for one in orders]))
    form.kernel(follow)(tuple(costs), tuple(times), order)
    before_s = _objectives_s(problem, orders, np.array(times.first_s), np.array(times.free_s))
    deadline_s = form.floats(_deadlines_s(problem, orders, before_s, np.array(times.first_s)))
    fused = form.int_space(cells)
    form.kernel(latest)(tuple(costs), tuple(late), order, deadline_s)
    slack_s, spared_s = before_s[0] * ROUNDING, form.float_space(workers)
    form.kernel(fuse)(tuple(costs), tuple(times), tuple(late), order, deadline_s, slack_s, fused, spared_s)
    after_s = _objectives_s(problem, orders, np.array(times.first_s), np.array(times.free_s))
    # Where a B is shorter than I and W a window may begin earlier: then the period could be longer.
    if any(after > before * (1 + ROUNDING) for after, before in zip(after_s, before_s, strict=True)):
        return problem, orders
    is_fused = np.asarray(fused) == 1
    found = replace(problem, split=problem.split & ~is_fused.reshape(problem.split.shape))
    return found, [[c for c in one if c % KINDS != W or not is_fused[c // KINDS]] for one in orders]


def _objectives_s(problem: PlacedProblem, orders: SeatOrders, first_s: Floats, free_s: Floats) -> tuple[float, float]:
    """Makespan and period, in s, by first starts and last ends."""
    begin_s, end_s = _columns_s(problem, orders, first_s, free_s)
    end_s = end_s + problem.allreduce_s
    return float(end_s.max() + problem.optimizer_s.max()), float((end_s - begin_s + problem.optimizer_s).max())


def _deadlines_s(
    problem: PlacedProblem, orders: SeatOrders, objectives_s: tuple[float, float], first_s: Floats
) -> Floats:
    """When each worker must have ended for neither the makespan nor the period to be longer, in s."""
    makespan_s, period_s = objectives_s
    begin_s, _ = _columns_s(problem, orders, first_s, first_s)
    last_s = np.minimum(makespan_s - problem.optimizer_s.max(), begin_s + period_s - problem.optimizer_s)
    found: Floats = (last_s - problem.allreduce_s)[problem.worker_column]
    return found


def _columns_s(problem: PlacedProblem, orders: SeatOrders, first_s: Floats, free_s: Floats) -> tuple[Floats, Floats]:
    """First start and last end of each column, in s."""
    busy = np.array([len(order) > 0 for order in orders])
    column = problem.worker_column[busy]
    begin_s, end_s = np.full(len(problem.allreduce_s), np.inf), np.zeros(len(problem.allreduce_s))
    np.minimum.at(begin_s, column, first_s[busy])
    np.maximum.at(end_s, column, free_s[busy])
    return begin_s, end_s
