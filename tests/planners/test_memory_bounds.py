"""Heads and tails under memory limits: no orders that keep them start an operation earlier, or end sooner after it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling import lower_bound
from rtk.planners.scheduling.evaluate import OrderEvaluation, evaluate
from rtk.planners.scheduling.lower_bound import NO_ROOM, Limited, fits, raise_by_memory, stash_room
from rtk.planners.scheduling.one_machine import HeadsAndTails, heads_and_tails, routes_of
from rtk.planners.scheduling.problem import Problem, problem_of
from rtk.schemas.plan import Plan

from ..strategies import BYTES, limited_to_its_peaks, plans
from .every_order import all_orders, limited_pipelines

ROUNDING = 1e-9


@settings(max_examples=40, deadline=None)
@given(limited_pipelines())
def test_no_order_within_the_limits_beats_a_head_or_tail(plan: Plan) -> None:
    """On tiny pipelines every operation starts at its head or later, its tail or more before the end, in all orders."""
    known = _raised(problem_of(plan))
    for evaluation in all_orders(plan):
        _check_heads_and_tails(evaluation, known)


@settings(max_examples=30)
@given(plans(max_pp=4, max_dp=1))
def test_no_random_plan_beats_a_head_or_tail(plan: Plan) -> None:
    """In random plans with limits that they just keep, nothing starts before its head or is followed by too little."""
    limited = limited_to_its_peaks(plan)
    problem = problem_of(limited)
    if len(routes_of(problem)) == 1:
        _check_heads_and_tails(evaluate(limited), _raised(problem))


def _raised(problem: Problem) -> HeadsAndTails:
    """Heads and tails of a problem with one chain, tails to the makespan without the optimizer's step."""
    (route,) = routes_of(problem)
    ends_s = problem.workers.allreduce_s[list(route.workers)].tolist()
    known = heads_and_tails(route.chain, route.count, ends_s)
    (found,) = raise_by_memory([Limited(known, route.chain, [0.0] * route.chain.depth)])
    assert (found.heads_s >= known.heads_s).all()
    assert (found.tails_s >= known.tails_s).all()
    return found


def _check_heads_and_tails(evaluation: OrderEvaluation, known: HeadsAndTails) -> None:
    end_s = evaluation.makespan_s - max(stage.optimizer_s for stage in evaluation.plan.templates[0].stages)
    slack_s = ROUNDING * evaluation.makespan_s
    for stage, row in enumerate(evaluation.operations):
        for kind, letters in enumerate(("F", "IB", "W")):
            timed = [operation for operation in row if operation.operation.kind in letters]
            if timed:
                starts_s = np.array([operation.start_s for operation in timed])
                left_s = end_s - np.array([operation.end_s for operation in timed])
                assert (starts_s >= known.heads_s[kind, stage] - slack_s).all()
                assert (left_s >= known.tails_s[kind, stage] - slack_s).all()


@settings(max_examples=80)
@given(st.integers(1, 7), BYTES, st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]), st.integers(0, 8), st.integers(0, 8))
def test_room_admits_all_that_the_checker_admits(
    count: int, activation_bytes: float, share: float, whole: int, stashed: int
) -> None:
    """At limits met exactly, the room never rules out what the checker admits, and is what it admits in whole bytes."""
    for size in (activation_bytes, float(round(activation_bytes))):
        stash_bytes = size * share if size == activation_bytes else float(round(size * share))
        limit_bytes = whole * size + stashed * stash_bytes
        room = stash_room(count, size, stash_bytes, limit_bytes)
        assert all(more > fewer for more, fewer in pairwise(room) if fewer > NO_ROOM)
        for x, most in enumerate(room):
            admitted = [
                y
                for y in range(2 * count + 1)
                if fits(x, y, activation_bytes=size, stash_bytes=stash_bytes, limit_bytes=limit_bytes)
            ]
            assert most >= max(admitted, default=NO_ROOM)
            if size != activation_bytes and most < 2 * count:
                assert most == max(admitted, default=NO_ROOM)


@settings(max_examples=40, deadline=None)
@given(limited_pipelines(most=5), st.booleans())
def test_machine_code_agrees_bit_for_bit(plan: Plan, period: bool) -> None:
    """Compiled and interpreted, the kernels give the same floats."""
    pytest.importorskip("numba")
    (route,) = routes_of(problem_of(plan))
    depth = route.chain.depth
    ends_s = [1.5, *[-np.inf] * (depth - 1)] if period else [0.5] * depth
    known = heads_and_tails(route.chain, route.count, ends_s)
    task = Limited(known, route.chain, [0.25] * depth)
    interpreted, compiled = (lower_bound.raised(task, in_machine_code=choice) for choice in (False, True))
    assert (interpreted.heads_s == compiled.heads_s).all()
    assert (interpreted.tails_s == compiled.tails_s).all()
