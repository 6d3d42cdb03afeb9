"""Jackson's pre-emptive schedule: its value is the optimum, and its critical operations say why."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.one_machine import (
    Machine,
    PreemptiveValue,
    Queue,
    critical,
    jackson_preemptive,
    most_binding,
)

INFINITY = float("inf")
JOBS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=4)
SECONDS = st.one_of(st.integers(0, 9).map(float), st.floats(0, 9))


@st.composite
def queues(draw: st.DrawFn) -> list[Queue]:
    """A few queues of a few operations, some of which need not end."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 6))
        heads, tails = (sorted(draw(st.lists(SECONDS, min_size=count, max_size=count))) for _ in range(2))
        unending = draw(st.integers(0, count - 1))
        ends = [*reversed(tails[unending:]), *[-INFINITY] * unending]
        found.append(Queue(np.array(heads), draw(SECONDS), np.array(ends)))
    return found


def _queue(head: float, work: float, tail: float) -> Queue:
    return Queue(np.array([float(head)]), float(work), np.array([float(tail)]))


@settings(max_examples=40)
@given(JOBS)
def test_jacksons_rule_finds_the_preemptive_optimum(jobs: list[tuple[int, int, int]]) -> None:
    """Jackson's rule equals the best of all pre-emptive one-machine schedules, tried slot by slot."""
    assert jackson_preemptive([_queue(*job) for job in jobs]).value_s == _best_preemptive(tuple(jobs))


def _best_preemptive(jobs: tuple[tuple[int, int, int], ...]) -> int:
    """The least largest end plus tail; whole-numbered data need pre-emption at whole numbers only."""

    @cache
    def best(now: int, remaining: tuple[int, ...]) -> int:
        if not any(remaining):
            return 0
        released = [n for n, rest in enumerate(remaining) if rest and jobs[n][0] <= now]
        if not released:
            return best(now + 1, remaining)
        results = []
        for n in released:
            after = (*remaining[:n], remaining[n] - 1, *remaining[n + 1 :])
            ended = now + 1 + jobs[n][2] if after[n] == 0 else 0
            results.append(max(ended, best(now + 1, after)))
        return min(results)

    without_work = max((head + tail for head, work, tail in jobs if work == 0), default=0)
    return max(without_work, best(0, tuple(work for _, work, _ in jobs)))


@settings(max_examples=40)
@given(queues())
def test_queues_are_no_more_than_their_operations(machine: list[Queue]) -> None:
    """Operations in queues have the same value as each on its own, without those that need not end."""
    alone = [
        _queue(head, queue.duration_s, tail)
        for queue in machine
        for head, tail in zip(queue.heads_s, queue.tails_s, strict=True)
        if tail > -INFINITY
    ]
    assert jackson_preemptive(machine).value_s == pytest.approx(jackson_preemptive(alone).value_s, rel=1e-12)


@settings(max_examples=40)
@given(queues())
def test_critical_operations_reach_the_value(machine: list[Queue]) -> None:
    """Least head, work and least tail of the critical operations add up to the value, and they are such operations."""
    value = jackson_preemptive(machine)
    head_s, work_s, tail_s = critical(machine, value)
    assert head_s + work_s + tail_s == pytest.approx(value.value_s, rel=1e-9)
    chosen = [(queue.heads_s >= head_s) & (queue.tails_s >= tail_s) for queue in machine]
    assert work_s == pytest.approx(sum(q.duration_s * c.sum() for q, c in zip(machine, chosen, strict=True)), rel=1e-9)


@settings(max_examples=30)
@given(st.lists(queues(), min_size=1, max_size=4))
def test_machine_code_agrees_bit_for_bit(machines: list[list[Queue]]) -> None:
    """Compiled and interpreted, Jackson's rule gives the same floats."""
    pytest.importorskip("numba")
    for machine in machines:
        assert jackson_preemptive(machine, in_machine_code=True) == jackson_preemptive(machine)


def test_no_operation_has_to_end() -> None:
    """An idle machine, or one whose operations need not end, bounds nothing."""
    assert jackson_preemptive([]) == PreemptiveValue(-INFINITY, -INFINITY)
    assert jackson_preemptive([_queue(1, 2, -INFINITY)]).value_s == -INFINITY


def test_of_equal_values_the_one_with_most_work_is_named() -> None:
    """Of two machines with one value the one whose own work takes longer says why."""
    waiting, working = Machine((None, 0), [_queue(0, 1, 9)]), Machine((None, 1), [_queue(1, 8, 1)])
    found = most_binding([waiting, working])
    assert (found.spot, found.value_s, found.critical) == ((None, 1), 10.0, (1.0, 8.0, 1.0))
