"""From orders to a plan that promises something: timed, bounded, and judged by the independent checker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...schemas.check import check_plan
from ...schemas.errors import InvalidInputError
from ...schemas.fields import LARGEST_BYTES, LONGEST_S
from ...schemas.kernels import Floats as Reals
from ...schemas.kernels import Ints, MutableFloats, compiled, kernel
from ...schemas.plan import Plan, Prediction, ProofScope
from ...schemas.quantities import print_bytes, print_time
from .evaluate import evaluate
from .forms import pays
from .lower_bound import lower_bound
from .problem import BACKWARD, FORWARD, INTERPRETED_OPERATIONS, KINDS, ROUNDING, problem_of, with_orders
from .retime import windows_of

if TYPE_CHECKING:
    from .problem import Floats, Orders, Problem, Windows


class BrokenPlanError(AssertionError):
    """The independent checker refutes a plan: a bug of the planner that made it, unless its inputs were doctored."""


def with_prediction(plan: Plan, bound_s: float = 0.0, scope: ProofScope | None = None) -> Plan:
    """The plan with what its orders promise: times, memory, and how far from optimal they can be.

    Args:
        plan: with orders.
        bound_s: a lower bound on its iteration time that is proven already, such as a solver's, in s. Of a plan with a
            placement, or with pairs of passes, it is the only one: these bounds are in `planners/placement/`, which the
            core does not know.
        scope: what that is over, where there are several routings.

    Raises:
        BrokenPlanError: the checker finds the plan broken, which is a bug of the planner that made the orders.
    """
    found = evaluate(plan)
    if not (plan.is_placed or plan.may_pair):
        bound_s = max(bound_s, lower_bound(problem_of(plan)).value_s)
    times_s = found.makespan_s, found.period_s
    staggered = plan.optimizer == "staggered"
    prediction = promise(times_s, staggered, bound_s, found.bubble_ratio, found.peak_memory_bytes)
    return checked(replace(plan, prediction=replace(prediction, proof_scope=scope)))


def with_orders_and_prediction(
    plan: Plan,
    problem: Problem,
    orders: Orders,
    bound_s: float,
    scope: ProofScope | None = None,
    windows: Windows | None = None,
) -> Plan:
    """The plan with orders given as operation codes, and what they promise: `with_prediction` for a million operations.

    Args:
        plan: templates, pipelines and workers.
        problem: what was ordered: the plan's, with its routing.
        orders: operation codes of each worker.
        bound_s: a proven lower bound on the iteration time, in s.
        scope: what that is over, where there are several routings.
        windows: by these orders, where they have been timed.

    Raises:
        BrokenPlanError: as `with_prediction`.
    """
    prediction = replace(prediction_of(problem, orders, bound_s, windows), proof_scope=scope)
    return checked(replace(with_orders(plan, problem, orders), prediction=prediction))


def prediction_of(problem: Problem, orders: Orders, bound_s: float, windows: Windows | None = None) -> Prediction:
    """What orders promise, given as operation codes.

    Args:
        problem: what was ordered.
        orders: operation codes of each worker.
        bound_s: a proven lower bound on the iteration time, in s.
        windows: by these orders, where they have been timed.
    """
    windows = windows or windows_of(problem, orders)
    times_s = windows.makespan_s, windows.period_s
    bubbles = bubble_ratio(work_s(problem), int(problem.workers.live.sum()), times_s[problem.staggered])
    return promise(times_s, problem.staggered, bound_s, bubbles, peaks_bytes(problem, orders).tolist())


def peaks_bytes(problem: Problem, orders: Orders) -> Floats:
    """The most activation bytes that each worker holds at once, by its order."""
    workers, counts = problem.workers, np.array([len(order) for order in orders])
    codes = np.concatenate([np.asarray(order, dtype=np.int64) for order in orders])
    if pays(most_held, len(codes), INTERPRETED_OPERATIONS):
        peaks = np.zeros(len(counts))
        add_up: Any = compiled(most_held)
        add_up(
            problem.executor.shape[1], workers.stage, problem.split.ravel().view(np.int8), counts, codes,
            workers.activation_bytes, workers.stash_bytes, peaks,
        )  # fmt: skip
        return peaks
    owner = np.repeat(np.arange(len(counts)), counts)
    kind, split = codes % KINDS, problem.split[codes // KINDS, workers.stage[owner]]
    # A worker ends with what it began with, nothing, so sums need not begin anew with each.
    whole = np.cumsum(np.where(kind == FORWARD, 1, np.where(kind == BACKWARD, -1, 0)))
    stashed = np.cumsum(np.where(kind == FORWARD, 0, np.where(kind == BACKWARD, split.astype(np.int64), -1)))
    held = whole * workers.activation_bytes[owner] + stashed * workers.stash_bytes[owner]
    peaks = np.zeros(len(counts))
    busy = counts > 0
    peaks[busy] = np.maximum.reduceat(held, np.cumsum(counts)[busy] - counts[busy])
    return peaks


@kernel
def most_held(
    stages: int,
    stage: Ints,
    split: Ints,
    counts: Ints,
    codes: Ints,
    activation_bytes: Reals,
    stash_bytes: Reals,
    peaks: MutableFloats,
) -> None:
    """The most bytes that each worker holds, into `peaks`, which are 0 at first.

    Args:
        stages: of the deepest pipeline.
        stage, activation_bytes, stash_bytes: of each worker.
        split: of each job at each stage.
        counts, codes: how many operations each worker has, and all of them behind each other.
    """
    row = 0
    for worker in range(len(counts)):
        whole, stashed = 0, 0
        for _ in range(counts[worker]):
            job, kind = codes[row] // KINDS, codes[row] % KINDS
            if kind == FORWARD:
                whole += 1
            elif kind == BACKWARD:
                whole -= 1
                stashed += split[job * stages + stage[worker]]
            else:
                stashed -= 1
            peaks[worker] = max(peaks[worker], whole * activation_bytes[worker] + stashed * stash_bytes[worker])
            row += 1


def work_s(problem: Problem) -> float:
    """What all operations of a problem take together, in s."""
    durations = problem.workers
    executed = problem.executor[problem.executor >= 0]
    split = problem.split[problem.executor >= 0]
    backward_s = np.where(split, durations.input_s[executed] + durations.weight_s[executed], durations.full_s[executed])
    return float((durations.forward_s[executed] + backward_s).sum())


def bubble_ratio(work_s: float, workers: int, iteration_s: float) -> float:
    """The share of an iteration in which the average live worker computes nothing.

    Args:
        work_s: what all operations take together, in s.
        workers: how many are alive.
        iteration_s: the makespan or period, in s; 0 where operations cost nothing.
    """
    room_s = workers * iteration_s
    return max(0.0, 1 - work_s / room_s) if room_s else 0.0


def promise(
    times_s: tuple[float, float], staggered: bool, bound_s: float, bubbles: float, peaks: Sequence[float]
) -> Prediction:
    """A prediction.

    Args:
        times_s: makespan and period.
        staggered: which of them is the iteration time.
        bound_s: a proven lower bound on it, in s; where they differ by rounding only, the plan is optimal.
        bubbles: as `bubble_ratio` has them.
        peaks: peak memory, in bytes.

    Raises:
        InvalidInputError: times or sizes were given that add up to more than a plan can say.
    """
    makespan_s, period_s = times_s
    iteration_s = times_s[staggered]
    if not (max(times_s) < LONGEST_S and max(peaks, default=0.0) < LARGEST_BYTES):
        raise InvalidInputError(
            f"an iteration would take {print_time(iteration_s)} and {print_bytes(max(peaks, default=0.0))} of a worker",
            where="the profile",
            fix="give times and sizes of layers that there can be",
        )
    if abs(iteration_s - bound_s) <= ROUNDING * iteration_s:
        bound_s = iteration_s
    return Prediction(
        iteration_time_s=iteration_s,
        makespan_s=makespan_s,
        period_s=period_s,
        lower_bound_s=bound_s,
        gap=iteration_s / bound_s - 1 if bound_s else 0.0,
        proof="optimal" if iteration_s == bound_s else "bound" if bound_s else "none",
        bubble_ratio=bubbles,
        peak_memory_bytes=tuple(peaks),
    )


def checked(plan: Plan) -> Plan:
    """The plan, if the independent checker finds nothing.

    Raises:
        BrokenPlanError: it does.
    """
    problems = check_plan(plan)
    if problems:
        raise BrokenPlanError(f"the planner made a broken plan: {problems[0].path}: {problems[0].message}")
    return plan
