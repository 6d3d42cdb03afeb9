"""The field's own orders come out as published: makespans, periods and memory, and complete for any sizes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules

from rtk.planners.placement.published import (
    PUBLISHED,
    PublishedForm,
    block_activations,
    column_of_loop,
    column_of_v,
    published_orders,
    v_half_block,
    v_min_block,
)

from .placed_orders import keeps_limits, peaks_bytes, placed, timing

FORMS = {form.name: form for form in PUBLISHED}


def _column(form: PublishedForm, columns: int, chunks: int) -> tuple[int, ...]:
    return (column_of_loop if form.placement == "loop" else column_of_v)(columns, chunks)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PUBLISHED), st.integers(1, 7), st.integers(2, 4), st.integers(1, 20), st.integers(1, 12))
def test_all_operations_are_there_and_none_waits_for_ever(
    form: PublishedForm, columns: int, chunks: int, first: int, second: int
) -> None:
    """Of any sizes each operation stands once, the orders run to their end, within the memory that is told of them."""
    chunks = 2 if form.placement == "v" else chunks
    problem = placed(_column(form, columns, chunks), (first, second), split=form.split)
    orders = dict(published_orders(problem))[form.name]
    assert sum(map(len, orders)) == problem.operations
    run = timing(problem, orders)
    assert run is not None
    assert len(run.times_s) == problem.operations
    most = [form.activations(columns, chunks, max(count, form.fewest(columns))) for count in (first, second)]
    held = np.array(peaks_bytes(problem, orders)).reshape(2, columns).max(axis=1)
    assert (held <= np.array(most, dtype=np.float64) + 1e-9).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 7), st.integers(2, 4), st.integers(1, 4), st.integers(0, 6))
def test_torch_makes_the_same_orders(columns: int, chunks: int, rounds: int, more: int) -> None:
    """Torch's own schedules are ours, wherever it has one that is complete."""
    counts = columns * rounds + more * rounds
    interleaved: dict[str, type[Any]] = {
        "interleaved 1F1B": schedules.ScheduleInterleaved1F1B,
        "interleaved zero bubble": schedules.ScheduleInterleavedZeroBubble,
    }
    for name, schedule in interleaved.items():
        groups = max(1, counts // columns)
        if counts % groups == 0:
            like = SimpleNamespace(n_local_stages=chunks, microbatches_per_round=counts // groups)
            assert _by_torch(schedule, like, columns, counts) == _tokens(FORMS[name], columns, chunks, counts)
    if counts >= 2 * columns:
        like = SimpleNamespace(num_stages=2 * columns)
        zb_v = _by_torch(schedules.ScheduleZBVZeroBubble, like, columns, counts)
        assert zb_v == _tokens(FORMS["ZB-V"], columns, 2, counts)
        dual = _by_torch(schedules.ScheduleDualPipeV, like, columns, counts)
        assert dual == _tokens(FORMS["DualPipeV"], columns, 2, counts)


def _by_torch(schedule: type[Any], like: SimpleNamespace, columns: int, microbatches: int) -> list[list[str]]:
    """The operations of each rank in order, B and pairs taken apart."""
    rows = []
    for rank in range(columns):
        like.rank, like.pp_group_size, like._n_microbatches = rank, columns, microbatches
        actions = schedule._calculate_single_rank_operations(like, rank)
        flat = [one for action in actions if action for one in (action.sub_actions or (action,))]
        halves = {} if schedule is schedules.ScheduleInterleaved1F1B else {"B": "IW"}
        rows.append(
            [
                f"{action.stage_index}{letter}{action.microbatch_index}"
                for action in flat
                for letter in halves.get(action.computation_type.value, action.computation_type.value)
            ]
        )
    return rows


def _tokens(form: PublishedForm, columns: int, chunks: int, microbatches: int) -> list[list[str]]:
    letters = "FIW" if form.split else "FB"
    return [
        [f"{stage}{letters[kind]}{j}" for kind, stage, j in row if kind < len(letters)]
        for row in form.orders(columns, chunks, microbatches)
    ]


@pytest.mark.parametrize(
    ("name", "columns", "chunks", "microbatches", "makespan", "period", "activations"),
    [
        ("ZB-V", 4, 2, 8, 51, 48, 4),
        ("ZB-V", 8, 2, 16, 103, 96, 8),
        ("ZB-V", 4, 2, 4, 30, 30, 4),
        ("V-Half", 8, 2, 16, 113, 113, 5),
        ("V-Half", 8, 2, 32, 209, 209, 5),
        ("V-Half", 16, 2, 32, 233, 233, 9),
        ("V-Min", 8, 2, 16, 123, 123, 4),
        ("V-Min", 8, 2, 32, 219, 219, 4),
        ("V-Min", 8, 2, 64, 411, 411, 4),
        ("V-Min", 4, 2, 8, 59, 59, 2),
        ("V-Min", 6, 2, 12, 89, 89, 3),
        ("V-Min", 16, 2, 32, 251, 251, 6),
        ("DualPipeV", 8, 2, 32, 199, 199, 8.5),
        ("interleaved zero bubble", 8, 2, 16, 103, 103, 8),
        ("interleaved zero bubble", 8, 3, 16, 151, 151, 8),
        ("interleaved zero bubble", 4, 4, 8, 99, 99, 4),
        ("interleaved 1F1B", 8, 2, 16, 117, 117, 11.5),
        ("interleaved 1F1B", 8, 3, 16, 165, 165, 31 / 3),
    ],
)
def test_figures_are_the_published_ones(
    name: str, columns: int, chunks: int, microbatches: int, makespan: int, period: int, activations: float
) -> None:
    """Makespan, period and memory of each form at sizes that its paper, or the design note, gives them for."""
    form = FORMS[name]
    problem = placed(_column(form, columns, chunks), (microbatches,), limit=activations, split=form.split)
    orders = dict(published_orders(problem))[name]
    run = timing(problem, orders)
    assert run is not None
    assert (run.makespan_s, run.period_s) == (makespan, period)
    assert float(form.activations(columns, chunks, microbatches)) == pytest.approx(activations)
    assert keeps_limits(problem, orders)


@pytest.mark.parametrize("columns", range(2, 17))
def test_controllable_memory_is_half_and_a_third(columns: int) -> None:
    """V-Half holds about S / 2 + 1, V-Min about S / 3 + 1 activations."""
    assert columns / 2 < block_activations(columns, v_half_block) <= columns / 2 + 1
    assert columns / 3 < block_activations(columns, v_min_block) <= columns / 3 + 4 / 3


def test_another_placement_or_routing_has_none() -> None:
    """Published orders are for loops and Vs that run their own micro-batches."""
    assert not list(published_orders(placed((0, 1, 2, 1, 2, 0), (6,))))
    assert not list(published_orders(placed((0, 1, 2), (6,))))
    rerouted = placed((0, 1, 1, 0), (2, 2))
    rerouted.executor[0] = rerouted.executor[1]
    assert not list(published_orders(rerouted))
