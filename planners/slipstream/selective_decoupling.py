"""Decoupled back-propagation only where it helps: I and W that follow each other become one B where nothing ends later.

"SlipStream", section 3.2: "SlipStream applies Decoupled BackProp selectively only when it can mitigate the overheads".
The paper leaves open how. Here, schedules are made with all backwards split; then the operations are visited from the
last to the first, each put as late as the makespan and every stage's window allow (the F and I that wait for it are
placed already). Where the W of a micro-batch directly follows its I, the two become B if B, which sends its message
only at its end, still starts no earlier than I can start. What is not visited yet keeps its earliest times, as those do
not depend on what comes after, so every latest start stays at or behind the earliest, and the schedule stays feasible:
neither the makespan nor the period gets longer, though a stage's own window may, up to the period. Memory peaks as
before: no F lies between such an I and its W.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.compiling import Form, kernel, pays
from ..scheduling.problem import KINDS
from ..scheduling.retime import Retimer
from ..scheduling.tables import INTERPRETED_OPERATIONS
from ..scheduling.windows import stage_windows

if TYPE_CHECKING:
    from ..scheduling.problem import Orders, Problem

Ints = Sequence[int]
MutableInts = MutableSequence[int]
MutableFloats = MutableSequence[float]

F, I, W, B = 0, 1, 2, 3  # noqa: E741 - the field's letters
UNKNOWN = -1e300
INFINITY = float("inf")
# A start is no earlier than another if it is so but for the rounding of sums.
ROUNDING = 1e-12


def coupled_where_free(problem: Problem, orders: Orders) -> tuple[Problem, Orders]:
    """Join I and W to B wherever neither makespan nor period suffers.

    Args:
        problem: what was ordered.
        orders: operation codes of each worker; without a deadlock.

    Returns:
        The problem with fewer split backwards, and its orders.
    """
    if not problem.split.any():
        return problem, orders
    retimer = Retimer(problem)
    value_s = retimer.value_s(orders)
    joined = _joined(problem, orders, retimer, value_s * ROUNDING)
    split = problem.split.copy()
    found = []
    for worker, order in enumerate(orders):
        codes = np.asarray(order, dtype=np.int64)
        gone = joined[retimer.reach(worker)]
        split[codes[gone] // KINDS, problem.workers.stage[worker]] = False
        found.append(codes[~gone])
    return replace(problem, split=split), found


def _joined(problem: Problem, orders: Orders, retimer: Retimer, slack_s: float) -> np.ndarray:
    """Whether the operation at each place of the retimer is a W that is joined to the I before it."""
    stages = problem.executor.shape[1]
    form = Form(pays(join, problem.operations, INTERPRETED_OPERATIONS))
    workers = problem.workers
    count = np.array([len(order) for order in orders])
    by_stage = np.lexsort((np.arange(len(count)), workers.stage))
    hop_s = np.zeros(problem.executor.shape)
    hop_s[:, :-1] = problem.hop_s
    durations = np.stack((workers.forward_s, workers.input_s, workers.weight_s, workers.full_s), axis=1)
    start = np.array([retimer.reach(worker).start for worker in range(len(count))])
    order = np.zeros(len(retimer.start_s), dtype=np.int64)
    for at, codes in zip(start.tolist(), orders, strict=True):
        order[at : at + len(codes)] = codes
    deadlines_s = stage_windows(problem, *retimer.spans_s).deadlines_s
    joined = form.int_space(len(order))
    cells = problem.jobs * stages
    form.kernel(join)(
        stages, form.ints(by_stage[count[by_stage] > 0]), form.ints(workers.stage),
        form.ints(problem.depth[problem.origin] - 1), form.ints(problem.split.ravel(), np.int8),
        form.floats(hop_s.ravel()), form.floats(durations.ravel()), form.ints(start), form.ints(order),
        form.floats(retimer.start_s), slack_s, form.ints(count), form.floats(deadlines_s[workers.group]),
        form.floats(np.full(cells, UNKNOWN)), form.floats(np.full(cells, UNKNOWN)), joined,
    )  # fmt: skip
    return np.asarray(joined, dtype=np.bool_)


@kernel
def message_by_s(
    job: int,
    stage: int,
    kind: int,
    stages: int,
    last_stage: Ints,
    hop_s: Sequence[float],
    forward_s: Sequence[float],
    backward_s: Sequence[float],
) -> float:
    """When an operation must have ended for the one that waits for it elsewhere; UNKNOWN if that is not placed."""
    cell = job * stages + stage
    if kind == F and stage < last_stage[job]:
        return forward_s[cell + 1] - hop_s[cell] if forward_s[cell + 1] != UNKNOWN else UNKNOWN
    if kind == I and stage > 0:
        return backward_s[cell - 1] - hop_s[cell - 1] if backward_s[cell - 1] != UNKNOWN else UNKNOWN
    return INFINITY


@kernel
def join(
    stages: int,
    members: Ints,
    stage: Ints,
    last_stage: Ints,
    split: Ints,
    hop_s: Sequence[float],
    duration_s: Sequence[float],
    start: Ints,
    order: Ints,
    start_s: Sequence[float],
    slack_s: float,
    left: MutableInts,
    by_s: MutableFloats,
    forward_s: MutableFloats,
    backward_s: MutableFloats,
    joined: MutableInts,
) -> None:
    """Place all operations as late as can be, and mark each W that may become one B with the I before it.

    Args:
        members, stage: the workers that have operations, by stage, and the stage of each worker.
        last_stage: of each job.
        split, hop_s: at `job * stages + stage`.
        duration_s: of F, I, W and B, at `4 * worker`.
        start, order, start_s: worker w's operations and their earliest starts begin at `start[w]`.
        slack_s: a start this much too early is rounding.
        left: how many operations of each worker are not placed yet; 0 for all at the end.
        by_s: when each worker must have ended; then when its next operation starts.
        forward_s, backward_s: receive the latest starts of F and of I or B.
        joined: receives 1 at the place of each W that may be joined.
    """
    moved = True
    downwards = False
    while moved:
        moved = False
        for step in range(len(members)):
            worker = members[len(members) - 1 - step if downwards else step]
            while left[worker] > 0:
                at = start[worker] + left[worker] - 1
                job, kind = order[at] // 3, order[at] % 3
                cell = job * stages + stage[worker]
                message_s = message_by_s(job, stage[worker], kind, stages, last_stage, hop_s, forward_s, backward_s)
                if message_s == UNKNOWN:
                    break
                whole = kind == I and split[cell] == 0
                place_s = min(by_s[worker], message_s) - duration_s[4 * worker + (B if whole else kind)]
                if kind == I and not whole and order[at + 1] == order[at] + 1:
                    after_s = by_s[worker] + duration_s[4 * worker + W]
                    full_s = min(after_s, message_s) - duration_s[4 * worker + B]
                    if full_s >= start_s[at] - slack_s:
                        joined[at + 1] = 1
                        place_s = full_s
                by_s[worker] = place_s
                if kind == F:
                    forward_s[cell] = place_s
                elif kind == I:
                    backward_s[cell] = place_s
                left[worker] -= 1
                moved = True
        downwards = not downwards
