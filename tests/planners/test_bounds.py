"""Lower bounds: never above what any orders reach, tight where the papers say so."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.bounds import (
    jackson_preemptive_s,
    lower_bound_s,
    makespan_bound_s,
    period_bound_s,
)
from rtk.planners.scheduling.evaluate import evaluate
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan

from ..strategies import hand_plan, plans, templates

ROUNDING = 1 + 1e-9


@settings(max_examples=80)
@given(plans())
def test_bounds_never_exceed_what_random_plans_reach(plan: Plan) -> None:
    """Makespan and period of random valid plans lie on or above their bounds, whatever routing, costs and delays."""
    evaluation = evaluate(plan)
    assert 0 <= makespan_bound_s(plan) <= evaluation.makespan_s * ROUNDING
    assert 0 <= period_bound_s(plan) <= evaluation.period_s * ROUNDING
    expected = period_bound_s(plan) if plan.optimizer == "staggered" else makespan_bound_s(plan)
    assert lower_bound_s(plan) == expected


@settings(max_examples=60)
@given(st.data())
def test_bounds_never_exceed_the_best_of_all_orders(data: st.DataObject) -> None:
    """On tiny pipelines the least makespan and period over every possible order are on or above the bounds."""
    depth, microbatches, split = data.draw(
        st.sampled_from(
            [(1, 1, True), (1, 3, False), (2, 1, True), (2, 2, False), (2, 2, True), (2, 3, False), (3, 2, False)]
        )
    )
    slow = st.sampled_from([None, 1.5, 3.0])
    plan = hand_plan(
        {f"0/{i}": _any_order([(0, j) for j in range(microbatches)], split) for i in range(depth)}, microbatches
    )
    plan = replace(plan, templates=(data.draw(templates(depth)),))
    plan = replace(plan, workers=tuple(replace(worker, slowdown=data.draw(slow)) for worker in plan.workers))
    _check_against_all_orders(plan)


@settings(max_examples=25)
@given(st.data())
def test_bounds_hold_for_rerouted_microbatches(data: st.DataObject) -> None:
    """With a failed worker, whose peer runs its micro-batch, no order beats the bounds either."""
    split = data.draw(st.booleans())
    own, both = _any_order([(0, 0)], split), _any_order([(0, 0), (1, 0)], split)
    plan = hand_plan({"0/0": own, "0/1": both, "1/0": own, "1/1": None}, 1)
    _check_against_all_orders(replace(plan, templates=(data.draw(templates(2)),)))


def _check_against_all_orders(plan: Plan) -> None:
    results = [evaluate(other) for other in _all_orders(plan)]
    assert makespan_bound_s(plan) <= min(found.makespan_s for found in results) * ROUNDING
    assert period_bound_s(plan) <= min(found.period_s for found in results) * ROUNDING


def _any_order(microbatches: list[tuple[int, int]], split: bool) -> str:
    kinds = "FIW" if split else "FB"
    return " ".join(f"{kind}{k}.{j}" if k else f"{kind}{j}" for k, j in microbatches for kind in kinds)


def _all_orders(plan: Plan) -> Iterator[Plan]:
    """Every plan with the same operations on the same workers that does not deadlock."""
    choices: list[list[str | None]] = []
    for number, worker in enumerate(plan.workers):
        tokens = (worker.order or "").split()
        forwards = [token for token in tokens if token[0] == "F"]
        chains = tuple(tuple(token for token in tokens if token[1:] == forward[1:]) for forward in forwards)
        orders = list(_interleavings(chains))
        if number == 0:  # micro-batches are alike: the first worker may take them in number order
            orders = [order for order in orders if [token for token in order if token[0] == "F"] == forwards]
        choices.append([None if worker.failed else " ".join(order) for order in orders])
    some = False
    for chosen in product(*choices):
        other = replace(plan, workers=tuple(replace(w, order=o) for w, o in zip(plan.workers, chosen, strict=True)))
        try:
            evaluate(other)
        except InvalidInputError:
            continue
        some = True
        yield other
    assert some


@cache
def _interleavings(chains: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    if not any(chains):
        return ((),)
    found: list[tuple[str, ...]] = []
    for place, chain in enumerate(chains):
        if chain:
            rest = (*chains[:place], chain[1:], *chains[place + 1 :])
            found += ((chain[0], *order) for order in _interleavings(rest))
    return tuple(found)


JOBS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=4)


@settings(max_examples=100)
@given(JOBS)
def test_jacksons_rule_finds_the_preemptive_optimum(jobs: list[tuple[int, int, int]]) -> None:
    """Jackson's rule equals the best of all pre-emptive one-machine schedules, tried slot by slot."""
    found = jackson_preemptive_s([(float(head), float(work), float(tail)) for head, work, tail in jobs])
    assert found == _best_preemptive(tuple(jobs))


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


def test_no_jobs_bound_nothing() -> None:
    """An idle machine bounds the time by 0."""
    assert jackson_preemptive_s([]) == 0


def test_bound_counts_all_micro_batches_that_share_executors() -> None:
    """Micro-batches of two pipelines on the same workers both count, though they look the same."""
    order = "F0 B0 F1.0 B1.0"
    plan = hand_plan({"0/0": order, "0/1": order, "1/0": None, "1/1": None}, 1)
    assert makespan_bound_s(plan) == 9  # one stage works 6 slots, the other needs 1 before and 2 after


@pytest.mark.parametrize(("split", "expected"), [(False, 27.0), (True, 21.0)])
def test_bound_is_what_the_papers_schedules_reach(split: bool, expected: float) -> None:
    """PP 4, 6 micro-batches, F=I=W=1: no schedule with B is shorter than 27 slots, none with I and W than 21."""
    plan = hand_plan({f"0/{i}": _any_order([(0, j) for j in range(6)], split) for i in range(4)}, 6)
    assert makespan_bound_s(plan) == expected


def test_bound_holds_allreduce_and_optimizer() -> None:
    """The all-reduce of the stage that ends last and the slowest optimizer stand in the bound."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1)
    first, last = plan.templates[0].stages
    stages = (replace(first, allreduce_s=0.5, optimizer_s=0.25), replace(last, allreduce_s=4.0, optimizer_s=1.0))
    plan = replace(plan, templates=(replace(plan.templates[0], stages=stages),))
    assert makespan_bound_s(plan) == evaluate(plan).makespan_s == 4 + 4 + 1
    assert period_bound_s(plan) == evaluate(plan).period_s == 3 + 4 + 1
