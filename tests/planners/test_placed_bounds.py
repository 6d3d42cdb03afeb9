"""Lower bounds of placed problems: no orders beat them, and on the note's cases they are as strong as it says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rtk.planners.placement.bounds import lower_bound, with_any_split
from rtk.planners.placement.problem import PlacedProblem, ordered_placed_problem
from rtk.planners.placement.published import column_of_loop, column_of_v
from rtk.schemas.plan import Plan

from ..placed_plans import placed_plans
from .placed_orders import least_value_s, peaks_bytes, placed, timing

ROUNDING = 1e-9
TIMES = st.sampled_from([0.0, 1.0, 1.0, 2.0, 2.5, 4.0])
TINY = [
    *(((0, 1, 1, 0), (2,)), ((0, 1, 0, 1), (2,)), ((0, 1), (3,)), ((0, 1, 0), (2,)), ((0, 0, 1), (2,))),
    *(((1, 0, 0), (2,)), ((0, 0), (2,)), ((0, 1), (1, 1)), ((0, 1, 0), (1, 1)), ((0, 1, 1), (1, 2)), ((0,), (1, 2))),
]


@st.composite
def tiny_problems(draw: st.DrawFn) -> PlacedProblem:
    """One or two pipelines of two or three micro-batches with random costs, splits, limits, delays and routing."""
    column, microbatches = draw(st.sampled_from(TINY))
    stages, columns = len(column), max(column) + 1
    problem = placed(
        column,
        microbatches,
        times_s=[[draw(TIMES) for _ in range(3)] for _ in column],
        full_s=draw(st.one_of(st.none(), st.just([draw(TIMES) for _ in column]))),
        delay_s=draw(TIMES),
        staggered=draw(st.booleans()),
        split=draw(st.booleans()),
    )
    bytes_ = st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0])
    activation = np.array([draw(bytes_) for _ in column])
    stash = np.array([draw(bytes_) for _ in column])
    most = [float(activation[np.array(column) == c].sum()) for c in problem.worker_column.tolist()]
    limits = [draw(st.sampled_from([np.inf, one, one + 1, one + 2.5])) for one in most]
    executor = problem.executor.copy()
    if len(microbatches) > 1:
        for cell in np.ndindex(executor.shape):
            executor[cell] = draw(st.integers(0, 1)) * columns + column[cell[1]]
    split = problem.split
    if draw(st.booleans()):
        split = np.array([[draw(st.booleans()) for _ in range(stages)] for _ in range(problem.jobs)])
    return replace(
        problem,
        executor=executor,
        split=split,
        activation_bytes=activation,
        stash_bytes=stash,
        limit_bytes=np.array(limits),
        allreduce_s=np.array([draw(TIMES) for _ in range(columns)]),
        optimizer_s=np.array([draw(TIMES) for _ in range(columns)]),
    )


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(tiny_problems())
def test_no_orders_of_a_tiny_problem_beat_the_bound(problem: PlacedProblem) -> None:
    """Of all orders of two or three micro-batches none is better, with any costs, limits, delays, splits, routing."""
    least_s = least_value_s(problem, most_states=1500)
    assume(least_s is not None)
    assert least_s is not None
    bound = lower_bound(problem)
    assert bound.value_s <= least_s * (1 + ROUNDING)
    assert bound.value_s == np.inf or bound.head_s + bound.work_s + bound.tail_s == pytest.approx(bound.value_s)
    assert bound.unlimited_s <= bound.value_s
    assert lower_bound(with_any_split(problem)).value_s <= least_s * (1 + ROUNDING)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    st.lists(st.tuples(*[st.sampled_from([1.0, 2.0])] * 3), min_size=2, max_size=2),
    st.sampled_from([((0, 0), 3), ((0, 0), 4), ((0, 1, 0), 3)]),
    st.integers(2, 4),
    st.booleans(),
)
def test_no_orders_with_few_chunks_at_once_beat_the_bound(
    times_s: list[tuple[float, float, float]], case: tuple[tuple[int, ...], int], chunks: int, staggered: bool
) -> None:
    """Of all orders of a worker with two chunks of three or four micro-batches none is better, whatever they cost."""
    column, microbatches = case
    times_s = [*times_s, times_s[0]][: len(column)]
    problem = placed(column, (microbatches,), times_s=times_s, limit=chunks, activation_bytes=1.0, staggered=staggered)
    least_s = least_value_s(problem, most_states=20_000)
    assume(least_s is not None)
    assert least_s is not None and lower_bound(problem).value_s <= least_s * (1 + ROUNDING)


@settings(max_examples=25, deadline=None)
@given(placed_plans(max_columns=3, max_dp=2, max_microbatches=4), st.booleans())
def test_no_random_plan_beats_the_bound(plan: Plan, staggered: bool) -> None:
    """Random plans, re-routed and of any placement, with limits that they just keep, are no better than the bound."""
    assume(len(plan.templates) == 1)
    problem, orders = ordered_placed_problem(plan)
    limited = replace(problem, limit_bytes=np.array(peaks_bytes(problem, orders))).with_objective(staggered)
    run = timing(limited, orders)
    assert run is not None
    value_s = run.period_s if staggered else run.makespan_s
    assert lower_bound(limited).value_s <= value_s * (1 + ROUNDING)


UNLIKE = [(1.0, 1.2, 0.8)]


def _heavy_head(columns: int) -> list[tuple[float, float, float]]:
    return [(1.0, 1.0, 1.0)] * (2 * columns - 1) + [(1.5, 1.5, 1.5)]


@pytest.mark.parametrize(
    ("column", "microbatches", "limit", "times_s", "makespan", "period"),
    [
        (column_of_v(4, 2), 8, 4, None, 51, 48),
        (column_of_v(8, 2), 16, 8, None, 103, 96),
        (column_of_v(8, 2), 16, 6, None, 107, 107),
        (column_of_v(8, 2), 16, 5, None, 113, 113),
        (column_of_v(8, 2), 16, 3, None, 133, 133),
        (column_of_v(8, 2), 32, 3, None, 235, 235),
        (column_of_v(16, 2), 32, 5, None, 283, 283),
        (column_of_v(16, 2), 32, 9, None, 233, 233),
        (column_of_v(8, 2), 64, 4, None, 407, 407),
        (column_of_v(6, 2), 12, 3, None, 89, 89),
        (column_of_v(4, 2), 8, 1.5, None, 80, 80),
        (column_of_v(16, 2), 32, 6, None, 251, 251),
        (column_of_loop(8, 2), 16, 6, None, 107, 107),
        (column_of_loop(8, 3), 16, 8, None, 151, 151),
        (column_of_loop(4, 4), 8, 2.5, None, 105, 105),
        (column_of_v(4, 2), 8, 4, UNLIKE, 51.6, 49),
        (column_of_v(4, 2), 8, 2.5, UNLIKE, 58, 58),
        (column_of_v(8, 2), 16, 8, _heavy_head(8), 120, 120),
        (column_of_v(8, 2), 16, 5, _heavy_head(8), 126, 126),
        (column_of_v(4, 3), 8, 4, None, 75, 75),
        (column_of_v(4, 4), 8, 3, None, 103, 100),
        ((0, 1, 2, 1, 2, 0), 6, 3, None, 38, 37),
    ],
)
def test_the_notes_cases(
    column: tuple[int, ...],
    microbatches: int,
    limit: float,
    times_s: list[tuple[float, float, float]] | None,
    makespan: float,
    period: float,
) -> None:
    """On the cases of the design note (section 11) the bounds are at least those that it tells, periods are closed."""
    problem = placed(column, (microbatches,), limit=limit, times_s=times_s or [(1.0, 1.0, 1.0)])
    assert lower_bound(problem).value_s >= makespan * (1 - ROUNDING)
    assert lower_bound(problem.with_objective(True)).value_s >= period * (1 - ROUNDING)


def test_a_limit_without_room_has_no_orders() -> None:
    """Where a worker cannot hold one micro-batch on all its seats the bound is infinite, and names the worker."""
    bound = lower_bound(placed((0, 1, 0), (2,), limit=1.0))
    assert (bound.value_s, bound.worker, bound.argument) == (np.inf, 0, "no room")
    assert bound.unlimited_s == 12
