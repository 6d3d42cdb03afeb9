"""Differences of two plans in words."""

# ruff: noqa: RUF001

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.plan import Link, Pipeline, Plan, Planner, Prediction, Template
from rtk.viz.diff import as_markdown, as_tree, as_words, becomes, diff_plans, print_ranges

MakePlan = Callable[..., Plan]
Shape = tuple[int, int, int, bool]


def prediction(iteration_time_s: float, peaks: tuple[float, ...], **others: Any) -> Prediction:
    times = (iteration_time_s, iteration_time_s, iteration_time_s * 0.8, 0.1)
    return replace(Prediction(*times, 0.2, "bound", 0.25, peaks), **others)


def sentences(a: Plan, b: Plan) -> list[str]:
    return [change.words for change in diff_plans(a, b).changes]


def with_stage(plan: Plan, index: int, **fields: Any) -> Plan:
    template = plan.templates[0]
    stages = tuple(replace(stage, **fields) if i == index else stage for i, stage in enumerate(template.stages))
    return replace(plan, templates=(replace(template, stages=stages),))


shapes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.booleans())


@given(shape=shapes)
def test_a_plan_does_not_differ_from_itself(make_plan: MakePlan, shape: Shape) -> None:
    """Equal plans have no difference, in every form."""
    diff = diff_plans(make_plan(*shape), make_plan(*shape))
    assert not diff
    assert as_words(diff) == as_markdown(diff) == "no difference"
    assert as_tree(diff) == {"equal": True, "changes": []}


@given(one=shapes, other=shapes)
def test_differing_goes_both_ways(make_plan: MakePlan, one: Shape, other: Shape) -> None:
    """Two plans differ in one direction exactly if they differ in the other, and exactly if they are not equal."""
    a, b = make_plan(*one), make_plan(*other)
    assert bool(diff_plans(a, b)) == bool(diff_plans(b, a)) == (a != b)


@pytest.mark.parametrize("field", ["planner", "pipelines", "optimizer", "workers", "inputs", "prediction", "templates"])
def test_no_field_of_a_plan_is_forgotten(make_plan: MakePlan, field: str) -> None:
    """A change in any part of a plan is found."""
    a = make_plan()
    changed: dict[str, Any] = {
        "planner": Planner("by hand", "2", {}),
        "pipelines": (a.pipelines[0], Pipeline("t0", 4, (Link(1.0), Link(0.001)))),
        "optimizer": "staggered",
        "workers": (replace(a.workers[0], slowdown=2.0), *a.workers[1:]),
        "inputs": {"profile": "ab" * 32},
        "prediction": prediction(1.0, (1.0,) * 6),
        "templates": (Template("t0", a.templates[0].stages, (Link(0.002), Link(0.001))),),
    }
    assert len(diff_plans(a, replace(a, **{field: changed[field]})).changes) == 1


def test_equal_in_meaning_is_no_difference(make_plan: MakePlan) -> None:
    """A slowdown of 1 and links that repeat the template's say nothing new."""
    a = make_plan()
    workers = (replace(a.workers[0], slowdown=1.0), *a.workers[1:])
    pipelines = (replace(a.pipelines[0], links=a.templates[0].links), *a.pipelines[1:])
    assert not diff_plans(a, replace(a, workers=workers, pipelines=pipelines))


def test_a_failure_is_told_by_what_moved(make_plan: MakePlan, rerouted_plan: Plan) -> None:
    """A failed worker, the micro-batches that moved from it and where to, and the orders that took them."""
    assert sentences(make_plan(pipelines=3, stages=2), rerouted_plan) == [
        "worker 1/1 failed",
        "micro-batches 1.0–1.3 of stage 1 moved from worker 1/1 to 0/1 (1.0–1.1) and 2/1 (1.2–1.3)",
        "worker 0/1 differs from operation 2 on (F1.0 instead of F1): 5 came",
        "worker 2/1 differs from operation 2 on (F1.2 instead of F1): 4 came",
    ]


def test_a_recovery_is_told_the_other_way(make_plan: MakePlan, rerouted_plan: Plan) -> None:
    """A worker that is back gets its micro-batches from each that held them."""
    told = sentences(rerouted_plan, make_plan(pipelines=3, stages=2))
    assert told[:3] == [
        "worker 1/1 is back",
        "micro-batches 1.0–1.1 of stage 1 moved from worker 0/1 to 1/1",
        "micro-batches 1.2–1.3 of stage 1 moved from worker 2/1 to 1/1",
    ]
    assert "5 left" in told[3]


def test_moved_operations_are_counted(make_plan: MakePlan) -> None:
    """An operation taken from one place and put in another is one that moved."""
    a = make_plan(1, 2, 3)
    b = make_plan(1, 2, 3, orders={"0/0": "F0 F1 F2 B0 B1 B2"})
    assert sentences(a, b) == ["worker 0/0 differs from operation 2 on (F2 instead of B0): 1 moved"]


def test_split_and_fused_backward_passes(make_plan: MakePlan) -> None:
    """B in place of I and W, and the other way, is a split or a fusion, and not a move."""
    whole, split = make_plan(1, 1, 2), make_plan(1, 1, 2, split=True)
    assert sentences(whole, split) == [
        "worker 0/0 differs from operation 1 on (I0 instead of B0): 2 B split into I and W"
    ]
    assert sentences(split, whole) == [
        "worker 0/0 differs from operation 1 on (B0 instead of I0): 2 I and W fused into B"
    ]


def test_an_order_that_ends_early(make_plan: MakePlan) -> None:
    """Where one order is the beginning of the other, they differ at its end."""
    a, b = make_plan(1, 1, 2), make_plan(1, 1, 2, orders={"0/0": "F0 B0"})
    assert sentences(a, b) == ["worker 0/0 differs from operation 2 on (its end instead of F1): 2 left"]


def test_stages_costs_and_limits(make_plan: MakePlan) -> None:
    """Layers that moved and costs and limits that changed are said with their units and differences."""
    a = make_plan()
    b = with_stage(a, 2, layers=(2, 5), forward_s=0.012, memory_limit_bytes=None)
    assert sentences(a, b) == [
        "stage 2 of template t0 holds layers 2–4 instead of layer 2",
        "forward time of stage 2 of template t0: 10 ms → 12 ms (+2 ms, +20 %)",
        "memory limit of stage 2 of template t0: 1.953 KiB → none",
    ]


def test_pipelines_come_and_go(make_plan: MakePlan) -> None:
    """Pipelines and micro-batches that were added or removed are told, without their workers one by one."""
    assert sentences(make_plan(2, 2, 2), make_plan(3, 2, 2)) == ["pipeline 2 is new: template t0, 2 micro-batches"]
    assert sentences(make_plan(3, 2, 2), make_plan(2, 2, 2)) == ["pipeline 2 is gone: template t0, 2 micro-batches"]
    assert "micro-batches of pipeline 0: 2 → 3 (+1)" in sentences(make_plan(1, 1, 2), make_plan(1, 1, 3))


def test_templates_come_and_go(make_plan: MakePlan) -> None:
    """Templates are compared by name."""
    a = make_plan()
    b = replace(a, templates=(replace(a.templates[0], name="t1"),), pipelines=(Pipeline("t1", 4),) * 2)
    assert sentences(a, b)[:3] == [
        "template t0 (3 stages) is gone",
        "template t1 (3 stages) is new",
        "template of pipeline 0: t0 → t1",
    ]


def test_templates_without_pipelines_are_summed_up(make_plan: MakePlan) -> None:
    """However many templates no pipeline uses, what became of them is one line."""
    a = make_plan()
    spare = [replace(a.templates[0], name=f"n{n}") for n in range(100)]
    slower = replace(spare[3], links=(Link(1.0), Link(1.0)))
    b = replace(a, templates=(*a.templates, *spare))
    assert sentences(a, b) == ["templates that no pipeline uses: 100 (n0 to n99) new"]
    c = replace(a, templates=(*a.templates, *spare[2:3], slower, spare[4]))
    assert sentences(replace(b, templates=b.templates[:6]), c) == [
        "templates that no pipeline uses: n0, n1 gone, n3 changed"
    ]
    assert not diff_plans(b, replace(b, templates=b.templates[::-1]))


def test_unlike_places_are_told_by_their_layers(make_plan: MakePlan) -> None:
    """Where a pipeline gets another template, its workers' layers are told; orders of unlike layers do not compare."""
    a, two = make_plan(1, 3, 2), make_plan(1, 2, 2)
    first, second = two.templates[0].stages
    shorter = replace(two.templates[0], name="t1", stages=(first, replace(second, layers=(1, 3))))
    templates = (a.templates[0], shorter)
    b = replace(two, templates=templates, pipelines=(Pipeline("t1", 2),))
    assert sentences(replace(a, templates=templates), b) == [
        "template of pipeline 0: t0 → t1 (2 stages instead of 3)",
        "worker 0/1 holds layers 1–2 instead of layer 1",
    ]


def test_long_options_are_counted(make_plan: MakePlan) -> None:
    """Options that only one plan has stand in one line, lists with their length; those that say nothing do not."""
    a = make_plan()
    options = {"few": ["x", 2], "none": [], "many": [*range(20)], "nested": [["0/0"]]}
    assert sentences(a, replace(a, planner=Planner("by hand", "1", options))) == [
        "new options: few x, 2; many 20 entries; nested 1 entry",
    ]
    one, other = (replace(a, planner=Planner("by hand", "1", {"many": [n] * 20})) for n in (1, 2))
    assert sentences(one, other) == ["option many: 20 entries, but others"]


def test_prediction_comes_first_with_percentages(make_plan: MakePlan) -> None:
    """What the plans promise stands first: times, ratios in points, the proof, and the memory of each worker."""
    a = make_plan(1, 2, 2, prediction=prediction(0.1, (1024.0, 1024.0)))
    b = make_plan(
        1, 2, 2, prediction=prediction(0.11, (1024.0, 2048.0), bubble_ratio=0.3, proof="optimal"), forward_s=0.02
    )
    assert sentences(a, b)[:7] == [
        "iteration time: 100 ms → 110 ms (+10 ms, +10 %)",
        "makespan: 100 ms → 110 ms (+10 ms, +10 %)",
        "period: 80 ms → 88 ms (+8 ms, +10 %)",
        "bubbles: 25 % → 30 % (+5 points)",
        "proof: bound → optimal",
        "largest peak memory of a worker: 1 KiB → 2 KiB (+1 KiB, +100 %)",
        "peak memory of worker 0/1: 1 KiB → 2 KiB (+1 KiB, +100 %)",
    ]


def test_tiny_differences_show_their_digits() -> None:
    """Numbers that print alike are printed in full."""
    assert becomes(0.1, 0.1000000001, "s") == "0.1 → 0.1000000001"


def test_planner_and_inputs(make_plan: MakePlan) -> None:
    """Another planner, option, seed or profile is told."""
    a = replace(make_plan(), planner=Planner("slipstream", "1", {"solver": "milp"}), inputs={"profile": "a" * 64})
    b = replace(a, planner=Planner("slipstream", "1", {"solver": "cp-sat", "jobs": 2}, 7), inputs={"profile": "b" * 64})
    assert sentences(a, b) == [
        "planner's seed: 0 → 7",
        "option solver: milp → cp-sat",
        "new options: jobs 2",
        f"made from another profile: {'a' * 12}… → {'b' * 12}…",
    ]


def test_ranges_are_compact() -> None:
    """Runs of micro-batches are joined."""
    assert print_ranges([(1, 5), (1, 0), (1, 1), (1, 3), (1, 2)]) == "1.0–1.3, 1.5"


def test_paths_point_into_the_second_plan(rerouted_plan: Plan, make_plan: MakePlan) -> None:
    """Each change carries a JSON pointer, both values and the words."""
    tree = as_tree(diff_plans(make_plan(pipelines=3, stages=2), rerouted_plan))
    assert not tree["equal"]
    assert tree["changes"][1] == {
        "path": "/workers/3",
        "kind": "re-routing",
        "before": "1/1",
        "after": {"0/1": ["1.0", "1.1"], "2/1": ["1.2", "1.3"]},
        "words": "micro-batches 1.0–1.3 of stage 1 moved from worker 1/1 to 0/1 (1.0–1.1) and 2/1 (1.2–1.3)",
    }


def test_words_are_grouped_and_markdown_is_a_table(rerouted_plan: Plan, make_plan: MakePlan) -> None:
    """In words the changes stand under the part of the plan; in Markdown each is a row, with pipes escaped."""
    diff = diff_plans(make_plan(pipelines=3, stages=2), rerouted_plan)
    assert as_words(diff).splitlines()[:3] == ["worker", "  worker 1/1 failed", "re-routing"]
    rows = as_markdown(diff).splitlines()
    assert rows[:3] == [
        "| part | change |",
        "| --- | --- |",
        "| worker | worker 1/1 failed |",
    ]
    named = replace(make_plan(), planner=Planner("a|b", "1", {}))
    assert "a\\|b" in as_markdown(diff_plans(make_plan(), named))


def test_speeds_are_no_times_and_there_is_one_minus(make_plan: MakePlan) -> None:
    """B4: `bandwidth_bytes_per_s` prints as a speed, and what shrinks has the same sign everywhere."""
    a, b = (
        replace(make_plan(), planner=Planner("by hand", "1", {"bandwidth_bytes_per_s": speed})) for speed in (2e9, 1e9)
    )
    assert sentences(a, b) == [
        "option bandwidth_bytes_per_s: 2 GB/s → 1 GB/s (-1 GB/s, -50 %)",
    ]
    assert becomes(0.3, 0.25, "ratio") == "30 % → 25 % (-5 points)"
    assert becomes(2, 1, "s") == "2 s → 1 s (-1 s, -50 %)"
