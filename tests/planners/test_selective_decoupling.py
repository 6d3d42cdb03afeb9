"""Backwards are split only where that helps: early W and joined backwards cost neither time nor memory."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling import retime
from rtk.planners.scheduling.evaluate import OrderEvaluation, evaluate
from rtk.planners.scheduling.list_schedule import ListScheduler
from rtk.planners.scheduling.problem import BACKWARD, KINDS, WEIGHT, Orders, Problem, codes_of, problem_of, with_orders
from rtk.planners.slipstream import selective_decoupling
from rtk.planners.slipstream.rerouting import block, round_robin
from rtk.planners.slipstream.selective_decoupling import decoupled_where_it_helps
from rtk.schemas.check import check_plan
from rtk.schemas.plan import Plan, Worker

from ..strategies import hand_plan, plans
from .equal_pipelines import clusters, rules

ROUNDING = 1e-9


@st.composite
def _rerouted(draw: st.DrawFn) -> tuple[Plan, Problem, Orders]:
    """Equal pipelines with dead workers, often with memory limits, scheduled by any rules."""
    cluster = draw(clusters(max_pp=4, max_dp=4, max_microbatches=5, whole=draw(st.booleans())))
    cluster = replace(cluster, split=(True,) * cluster.stages)
    problem = draw(st.sampled_from([round_robin, block]))(cluster.home)
    scheduler = ListScheduler(problem)
    scheduler.run(draw(rules(len(problem.workers.stage))))
    return cluster.plan, problem, scheduler.orders()


@st.composite
def _random(draw: st.DrawFn) -> tuple[Plan, Problem, Orders]:
    """A random plan: unlike pipelines, slow workers, mixed backwards, any routing; each W as its I ends, or later."""
    plan = replace(draw(plans(max_pp=4, max_microbatches=6)), prediction=None)
    if draw(st.booleans()):
        plan = replace(plan, workers=tuple(_with_early_weights(worker) for worker in plan.workers))
    problem = problem_of(plan)
    return plan, problem, codes_of(plan, problem)


def _with_early_weights(worker: Worker) -> Worker:
    """Every W directly after its I, where that can be joined."""
    tokens = [token for token in (worker.order or "").split() if token[0] != "W"]
    early = [x for token in tokens for x in ([token, f"W{token[1:]}"] if token[0] == "I" else [token])]
    return worker if worker.failed else replace(worker, order=" ".join(early))


ANY = st.one_of(_rerouted(), _random())


def _before_and_after(case: tuple[Plan, Problem, Orders]) -> tuple[OrderEvaluation, OrderEvaluation]:
    plan, problem, orders = case
    joined = with_orders(plan, *decoupled_where_it_helps(problem, orders))
    assert check_plan(joined) == []
    return evaluate(with_orders(plan, problem, orders)), evaluate(joined)


@settings(max_examples=40)
@given(ANY)
def test_neither_makespan_nor_period_gets_longer(case: tuple[Plan, Problem, Orders]) -> None:
    """With the joined backwards the plan is valid and takes no longer: not the makespan, not the period, whichever of
    them counts; and no stage starts later."""
    before, after = _before_and_after(case)
    assert after.makespan_s <= before.makespan_s * (1 + ROUNDING)
    assert after.period_s <= before.period_s * (1 + ROUNDING)
    for name, window in after.windows.items():
        assert window.start_s == before.windows[name].start_s


@settings(max_examples=40)
@given(_rerouted().filter(lambda case: _is_whole(case[1])))
def test_whole_seconds_stay_exact(case: tuple[Plan, Problem, Orders]) -> None:
    """In whole numbers there is no rounding to forgive."""
    before, after = _before_and_after(case)
    assert after.makespan_s <= before.makespan_s
    assert after.period_s <= before.period_s


def _is_whole(problem: Problem) -> bool:
    workers = problem.workers
    return all((column % 1 == 0).all() for column in (workers.forward_s, workers.input_s, workers.weight_s))


@settings(max_examples=40)
@given(ANY)
def test_nobody_holds_more(case: tuple[Plan, Problem, Orders]) -> None:
    """No worker's peak memory grows."""
    before, after = _before_and_after(case)
    for old, new in zip(before.peak_memory_bytes, after.peak_memory_bytes, strict=True):
        assert new <= old * (1 + ROUNDING)


@settings(max_examples=40)
@given(ANY)
def test_f_and_i_keep_their_order_and_no_w_comes_later(case: tuple[Plan, Problem, Orders]) -> None:
    """Only W change places, each to one after no more F and I than before; nothing is split anew or re-routed."""
    _, problem, orders = case
    joined, found = decoupled_where_it_helps(problem, orders)
    assert (joined.executor == problem.executor).all()
    assert not (joined.split & ~problem.split).any()
    for worker, (old, new) in enumerate(zip(orders, found, strict=True)):
        stage = problem.workers.stage[worker]
        apart = [
            code
            for one in new
            for code in (
                [one, one + 1] if one % KINDS == BACKWARD and _is_joined(problem, joined, one, stage) else [one]
            )
        ]
        assert sorted(apart) == sorted(old)
        assert [code for code in apart if code % KINDS != WEIGHT] == [code for code in old if code % KINDS != WEIGHT]
        were, are = _ahead_of_weights(old), _ahead_of_weights(apart)
        assert all(are[code] <= were[code] for code in are)


def _is_joined(before: Problem, after: Problem, code: int, stage: int) -> bool:
    return bool(before.split[code // KINDS, stage] and not after.split[code // KINDS, stage])


def _ahead_of_weights(order: Sequence[int]) -> dict[int, int]:
    """How many F and I are ahead of each W."""
    ahead, found = 0, {}
    for code in order:
        if code % KINDS == WEIGHT:
            found[code] = ahead
        else:
            ahead += 1
    return found


@settings(max_examples=30)
@given(_random())
def test_where_nothing_is_split_nothing_changes(case: tuple[Plan, Problem, Orders]) -> None:
    """Plans without split backwards come back as they are."""
    _, problem, orders = case
    kept = [[code for code in order if code % KINDS != KINDS - 1] for order in orders]
    whole = replace(problem, split=np.zeros_like(problem.split))
    assert decoupled_where_it_helps(whole, kept) == (whole, kept)


@settings(max_examples=40)
@given(ANY)
def test_machine_code_equals_plain_python(case: tuple[Plan, Problem, Orders]) -> None:
    """Interpreted and compiled, the same backwards are joined."""
    _, problem, orders = case
    found = []
    for machine_code in (False, True):
        with (
            patch.object(retime, "pays", lambda *_, answer=machine_code: answer),
            patch.object(selective_decoupling, "pays", lambda *_, answer=machine_code: answer),
        ):
            joined, codes = decoupled_where_it_helps(problem, orders)
        found.append((joined.split.tolist(), [list(map(int, order)) for order in codes]))
    assert found[0] == found[1]


@given(st.integers(1, 8), st.tuples(*[st.sampled_from([0.0, 0.3, 1.0, 2.5])] * 3), st.randoms(use_true_random=False))
def test_one_stage_needs_no_split(microbatches: int, times_s: tuple[float, float, float], chance: Random) -> None:
    """A stage that nobody waits for keeps no split backward, wherever its W are, whatever the times."""
    numbers = chance.sample(range(microbatches), microbatches)
    forwards = " ".join(f"F{j}" for j in numbers)
    weights = chance.sample(range(microbatches), microbatches)
    order = f"{forwards} " + " ".join(f"I{j}" for j in numbers) + " " + " ".join(f"W{j}" for j in weights)
    plan = hand_plan({"0/0": order}, microbatches, times_s)
    problem = problem_of(plan)
    joined, found = decoupled_where_it_helps(problem, codes_of(plan, problem))
    assert not joined.split.any()
    assert with_orders(plan, joined, found).workers[0].order == f"{forwards} " + " ".join(f"B{j}" for j in numbers)


def test_a_split_stays_where_someone_waits_for_its_i() -> None:
    """Of two micro-batches on two stages only the last I at the second stage is waited for: that W stays apart."""
    plan = hand_plan({"0/0": "F0 F1 I0 W0 I1 W1", "0/1": "F0 I0 W0 F1 I1 W1"}, 2)
    problem = problem_of(plan)
    joined = with_orders(plan, *decoupled_where_it_helps(problem, codes_of(plan, problem)))
    assert evaluate(joined).makespan_s == evaluate(plan).makespan_s
    assert [worker.order for worker in joined.workers] == ["F0 F1 B0 B1", "F0 B0 F1 I1 W1"]
