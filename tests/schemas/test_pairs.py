"""Plans whose workers run a forward and a full backward side by side: text, file, and what all readers say."""

import json
from dataclasses import replace

import pytest
from hypothesis import given

from rtk.planners.placement.bounds import lower_bound, with_any_split
from rtk.planners.placement.problem import held_bytes, ordered_placed_problem, with_placed_orders
from rtk.planners.placement.scheduler import SeatScheduler
from rtk.planners.scheduling.evaluate import evaluate
from rtk.runners.program import Pair, computed_by, lower
from rtk.runners.simulator import simulate
from rtk.schemas.check import check_plan, check_timeline, deadlock_free_times
from rtk.schemas.columns import columns_of
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.orders import check_order_text, flattened, parse_columns, parse_order, print_order
from rtk.schemas.plan import Link, Pipeline, Plan, Planner, Stage, Template, Worker
from rtk.schemas.quantities import print_percent
from rtk.viz.facts import facts_of

from ..paired_plans import paired_plans


@given(paired_plans())
def test_all_readings_agree(plan: Plan) -> None:
    """Checker, evaluator and simulator say the same times and memory, and the timeline keeps the plan."""
    assert check_plan(plan) == []
    found, simulated = evaluate(plan), simulate(plan)
    start_s, end_s = deadlock_free_times(plan)
    timed = [one for row in found.operations for one in row]
    assert [one.start_s for one in timed] == start_s.tolist()
    assert [one.end_s for one in timed] == end_s.tolist()
    assert simulated.makespan_s == pytest.approx(found.makespan_s, rel=1e-12)
    assert simulated.period_s == pytest.approx(found.period_s, rel=1e-12)
    assert simulated.bubble_ratio == pytest.approx(found.bubble_ratio, abs=1e-12)
    assert simulated.peak_memory_bytes == pytest.approx(found.peak_memory_bytes)
    assert check_timeline(plan, simulated.timeline) == []


@given(paired_plans())
def test_both_of_a_pair_begin_and_end_together(plan: Plan) -> None:
    """They take the longer of the two, or the template's share of both one after the other, times the slow-down."""
    for worker, row in zip(plan.workers, evaluate(plan).operations, strict=True):
        assert {place for place, one in enumerate(row) if one.is_beside} == {place + 1 for place in worker.pairs()}
        for place in worker.pairs():
            one, other = row[place : place + 2]
            alone_s = [
                plan.stage_at(worker, timed.operation).duration_s(timed.operation.kind) for timed in (one, other)
            ]
            lasts_s = max(*alone_s, (plan.template_of(worker.pipeline).overlap or 1.0) * sum(alone_s))
            assert (one.start_s, one.end_s) == (other.start_s, other.end_s)
            assert one.end_s - one.start_s == pytest.approx(lasts_s * (worker.slowdown or 1.0))


@given(paired_plans())
def test_the_file_is_of_version_3(plan: Plan) -> None:
    """It comes back as it was; an older version is refused by its number, and columns say what orders say."""
    data = canonical(plan)
    assert json.loads(data)["format_version"] == "3.0"
    assert parse_document(data, Plan, "x.json") == plan
    with pytest.raises(InvalidInputError, match=r"pairs of passes, which format version 2\.0 does not know"):
        parse_document(data.replace(b'"3.0"', b'"2.0"'), Plan, "x.json")
    texts, homes = [worker.order or "" for worker in plan.workers], [worker.pipeline for worker in plan.workers]
    columns = parse_columns(texts, homes, list(map(plan.seats_of, plan.workers)))
    pairs = [place in worker.pairs() for worker in plan.workers for place in range(len(worker.operations()))]
    assert pairs == ([False] * len(pairs) if columns.is_paired is None else columns.is_paired.tolist())
    for worker in plan.workers:
        assert print_order(worker.operations(), worker.pipeline, worker.pairs()) == (worker.order or "")


@given(paired_plans())
def test_one_after_the_other_it_is_a_plan_of_before(plan: Plan) -> None:
    """Without its pairs a plan has the same operations in the same order, and needs no version 3."""
    flat = plan.without_pairs()
    assert [worker.operations() for worker in flat.workers] == [worker.operations() for worker in plan.workers]
    assert not flat.has_pairs
    assert json.loads(canonical(flat))["format_version"] == ("2.0" if plan.is_placed else "1.0")
    assert check_plan(flat) == []


@given(paired_plans())
def test_programs_run_pairs_as_one(plan: Plan) -> None:
    """Each pair is one instruction; all others are those of the plan without pairs."""
    program, flat = lower(plan), lower(plan.without_pairs())
    workers = plan.live_workers()
    for worker, own, alone in zip(workers, program.instructions, flat.instructions, strict=True):
        assert sum(isinstance(one, Pair) for one in own) == len(worker.pairs())
        computed = [one for step in own for one in computed_by(step)]
        assert computed == [one for step in alone for one in computed_by(step)]
        beside = {one for step in own if isinstance(step, Pair) for one in (step.forward, step.backward)}
        assert {one for one in own if not isinstance(one, Pair)} == {one for one in alone if one not in beside}


@given(paired_plans())
def test_kernels_and_bounds_of_placements_know_pairs(plan: Plan) -> None:
    """The search's kernels time and size given orders as the evaluator does, and its bound lies below all of them."""
    if len({pipeline.template for pipeline in plan.pipelines}) > 1:
        return
    used = {pipeline.template for pipeline in plan.pipelines}
    plan = replace(plan, templates=tuple(one for one in plan.templates if one.name in used))
    problem, orders = ordered_placed_problem(plan)
    found = evaluate(plan)
    assert SeatScheduler(problem).times_s(orders) == pytest.approx((found.makespan_s, found.period_s))
    assert held_bytes(problem, orders).tolist() == pytest.approx(found.peak_memory_bytes)
    assert [one.order for one in with_placed_orders(plan, problem, orders).workers] == [w.order for w in plan.workers]
    for staggered, value_s in ((False, found.makespan_s), (True, found.period_s)):
        asked = problem.with_objective(staggered)
        assert lower_bound(asked).value_s <= value_s * (1 + 1e-9)
        assert lower_bound(with_any_split(asked)).value_s <= value_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("F0 (F1;B0", r"'\(F1;B0' is not an operation \(operation 1"),
        ("(B0;F1)", "is no pair of a forward and a full backward"),
        ("(F1;W0)", "is no pair of a forward and a full backward"),
        ("(F1;I0)", "is no pair of a forward and a full backward"),
        ("(F1; B0)", r"'\(F1;' is not an operation"),
        ("(F1;B0;B1)", "is not an operation"),
        ("F1)", "is not an operation"),
        ("F0 (F1;1B0)", r"'1B0' names a virtual stage, but the worker holds one only \(operation 2"),
        ("((F1;B0))", "is not an operation"),
        ("();", "is not an operation"),
    ],
)
def test_what_is_no_pair_is_refused(text: str, what: str) -> None:
    """The message names the token and its place, counted in operations."""
    with pytest.raises(InvalidInputError, match=what):
        check_order_text(text)


def _plan(overlap: float | None, *orders: str) -> Plan:
    stages = tuple(Stage((i, i + 1), 1.0, 1.0, 1.0) for i in range(2))
    template = Template("t0", stages, (Link(),), overlap=overlap)
    workers = tuple(Worker(0, i, order) for i, order in enumerate(orders))
    return Plan(Planner("hand", "1", {}), (template,), (Pipeline("t0", 3),), "synchronous", workers)


def test_pairs_need_a_number() -> None:
    """Where the template does not say what a pair takes nothing is assumed."""
    with pytest.raises(InvalidInputError, match="the template does not say what a pair takes"):
        _plan(None, "F0 (F1;B0) F2 B1 B2", "F0 B0 F1 B1 F2 B2").validate()


def test_a_deadlock_of_pairs_is_named() -> None:
    """Two pairs that wait for each other are a ring, with the waiting pass of each."""
    (problem,) = check_plan(_plan(0.8, "F0 (F1;B0) F2 B1 B2", "F0 (F1;B0) (F2;B1) B2"))
    assert problem.message.startswith("deadlock: B of micro-batch 0.0 on worker 0/0 (operation 2) waits for")


def test_a_pair_of_a_micro_batch_with_itself_is_refused() -> None:
    """A backward waits for its own forward, so the two cannot run side by side."""
    (problem,) = check_plan(_plan(0.8, "F0 F1 F2 B0 B1 B2", "(F0;B0) F1 B1 F2 B2"))
    assert problem.message.startswith(
        "B of micro-batch 0.0 on worker 0/1 (operation 1) runs beside F of micro-batch 0.0"
    )


def test_bars_of_a_pair_share_a_row() -> None:
    """The forward is drawn in the upper half, the backward in the lower one, all others over the whole height."""
    plan = _plan(0.8, "F0 F1 (F2;B0) B1 B2", "F0 (F1;B0) (F2;B1) B2")
    simulated = simulate(plan)
    columns = columns_of(simulated.timeline)
    assert f"bubbles {print_percent(simulated.bubble_ratio)}" in facts_of("", columns)
    drawn = {
        (columns.names[columns.worker[row]], columns.op(row)): half for row, half in enumerate(columns.half.tolist())
    }
    assert drawn == {
        **{("0/0", op): 0 for op in ("F0", "F1", "B1", "B2")},
        **{("0/1", op): 0 for op in ("F0", "B2")},
        ("0/0", "F2"): 1,
        ("0/0", "B0"): 2,
        ("0/1", "F1"): 1,
        ("0/1", "B0"): 2,
        ("0/1", "F2"): 1,
        ("0/1", "B1"): 2,
    }


def test_flattening_keeps_each_operation() -> None:
    """An order without its pairs reads the same."""
    text = "0F0 (0F1;3B0) 3F1"
    assert parse_order(flattened(text), 0, (0, 3)) == parse_order(text, 0, (0, 3))
