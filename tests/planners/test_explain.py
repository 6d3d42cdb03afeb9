"""An explanation adds up, names what binds, and promises what planning anew confirms."""

import json
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.explain.explain import HEURISTIC, Explanation, explain
from rtk.planners.explain.what_if import ChangeEffect, one_of_each
from rtk.planners.explain.words import words_of_explanation
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.scheduling.assemble import with_prediction
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.lower_bound import lower_bound
from rtk.planners.scheduling.problem import problem_of
from rtk.planners.scheduling.solve import solve
from rtk.planners.shape import Shape
from rtk.schemas.conditions import LinkPlace
from rtk.schemas.documents import canonical_json, read_document
from rtk.schemas.orders import Schedule
from rtk.schemas.plan import Link, Pipeline, Plan
from rtk.schemas.profile import Profile

from ..placed_plans import placed_plans, unlike_placed_plans
from ..strategies import any_plans, hand_plan, limited_to_its_peaks, plans

ADAPTRA4 = read_document(str(Path(__file__).parent.parent / "golden" / "profile-adaptra4.json"), Profile)


def capped(
    limit: float | None = None,
    delays: dict[LinkPlace, float] | None = None,
    schedule: Schedule = "zero-bubble",
    dp: int = 1,
) -> Plan:
    """Four stages of 10 ms an operation and 12 micro-batches, with a memory limit for each and slow links."""
    return plan_pipeline(ADAPTRA4, Shape(4, dp, 12, None if limit is None else [limit], delays), schedule)


def effect(found: Explanation, kind: str, where: str) -> ChangeEffect:
    (one,) = [x for x in found.what_if.effects if (x.change.kind, x.change.where) == (kind, where)]
    return one


def said(found: Explanation) -> str:
    """The words in one line."""
    return " ".join(words_of_explanation(found).split())


def planned_anew_s(plan: Plan) -> float:
    return solve(problem_of(plan), HEURISTIC).value_s


@settings(max_examples=40)
@given(any_plans())
def test_parts_add_up_to_the_iteration_time(plan: Plan) -> None:
    """The path's stretches follow each other to its end, and every account of the iteration adds up to all of it."""
    found = explain(plan, searches=0)
    iteration_s, path = found.iteration_time_s, found.path
    assert iteration_s == evaluate(plan).iteration_time_s
    assert found.bubble_ratio == pytest.approx(evaluate(plan).bubble_ratio)
    legs_s = sum(leg.compute_s + leg.delay_s for one in path.stretches for leg in one.legs for _ in range(one.times))
    assert legs_s + path.allreduce_s + path.optimizer_s == pytest.approx(iteration_s)
    for earlier, later in pairwise(path.stretches):
        assert later.start_s == earlier.end_s
    assert not path.stretches or path.stretches[0].start_s == path.start_s
    for shares in (path.by_place, path.by_kind):
        assert sum(share.time_s for share in shares) == pytest.approx(iteration_s)
        assert sum(share.share for share in shares) == pytest.approx(1 if iteration_s else 0)
    times_s = asdict(found.busiest)
    times_s.pop("worker")
    assert all(time_s >= 0 for time_s in times_s.values())
    assert sum(times_s.values()) == pytest.approx(iteration_s)
    bound = found.bound
    assert bound.head_s + bound.work_s + bound.tail_s == pytest.approx(bound.value_s)
    assert bound.value_s == pytest.approx(lower_bound(problem_of(plan)).value_s)
    assert bound.value_s <= found.lower_bound_s * (1 + 1e-9) <= iteration_s * (1 + 2e-9)


@pytest.mark.usefixtures("short_search")
@settings(max_examples=20, deadline=None)
@given(plans(max_pp=3, max_dp=2, max_microbatches=4), st.sampled_from([0, 2]))
def test_changes_save_what_bounds_allow(plan: Plan, searches: int) -> None:
    """Effects are ranked, never promise more than their bound admits, and the explanation can be said and written."""
    found = explain(plan, searches=searches)
    what_if = found.what_if
    assert what_if.iteration_time_s <= found.iteration_time_s * (1 + 1e-9)
    assert what_if.lower_bound_s <= what_if.iteration_time_s * (1 + 1e-9)
    saved = [x.saved_s for x in what_if.effects]
    assert saved == sorted(saved, reverse=True)
    for x in what_if.effects:
        assert x.saved_s == what_if.iteration_time_s - x.iteration_time_s
        # A worker's own window may grow where its first operation comes earlier, and with it the period.
        assert x.saved_s >= -1e-9 * found.iteration_time_s or plan.optimizer == "staggered"
        assert x.lower_bound_s <= x.iteration_time_s <= x.same_orders_s * (1 + 1e-9)
    assert json.loads(canonical_json(asdict(found)))["counts"] == found.counts
    assert all(len(line) <= 100 for line in words_of_explanation(found).splitlines())


@settings(max_examples=60)
@given(plans())
def test_one_of_each_kind_of_pipelines_takes_as_long(plan: Plan) -> None:
    """The plan with one of each kind of pipelines takes as long as the whole, and each pipeline is told of once."""
    reduced = one_of_each(plan)
    assert evaluate(reduced.plan).iteration_time_s == evaluate(plan).iteration_time_s
    assert lower_bound(problem_of(reduced.plan)).value_s == pytest.approx(lower_bound(problem_of(plan)).value_s)
    assert sorted(k for members in reduced.pipelines for k in members) == list(range(len(plan.pipelines)))
    assert len(reduced.plan.pipelines) == len(reduced.pipelines)


@settings(max_examples=20)
@given(plans(max_dp=1))
def test_pipelines_that_are_alike_are_told_of_once(plan: Plan) -> None:
    """Of three equal pipelines one is kept, and its workers stand for those of all."""
    workers = tuple(replace(worker, pipeline=k) for k in range(3) for worker in plan.workers)
    reduced = one_of_each(replace(plan, pipelines=plan.pipelines * 3, workers=workers, prediction=None))
    assert evaluate(reduced.plan).operations == evaluate(plan).operations
    assert reduced.pipelines == ((0, 1, 2),)
    assert reduced.names_of(0) == ("0/0", "1/0", "2/0")


@pytest.mark.usefixtures("short_search")
def test_a_capped_plan_is_held_by_its_memory() -> None:
    """With room for two activations, stage 0's limit binds, and one more saves what planning anew confirms."""
    plan = capped(2)
    found = explain(plan)
    assert found.bound.memory_s == pytest.approx(0.18)
    (limit,) = found.bound.limits
    assert (limit.where, limit.room) == ("stage 0", 2)
    assert limit.held_s == pytest.approx(0.08)  # F, three stages down and back, I
    best = next(x for x in found.what_if.effects if x.change.stages)
    assert (best.change.kind, best.change.where, best.change.extra_bytes) == ("memory", "stage 0", 1)
    stages = plan.templates[0].stages
    larger = replace(plan.templates[0], stages=(replace(stages[0], memory_limit_bytes=3.0), *stages[1:]))
    anew_s = planned_anew_s(replace(plan, templates=(larger,), prediction=None))
    assert best.saved_s == pytest.approx(planned_anew_s(plan) - anew_s) == pytest.approx(0.1)
    assert best.same_orders_saved_s == 0
    assert "The memory limit of stage 0 binds: it has room for 2 micro-batches" in said(found)
    assert "memory for one more activation at stage 0 (1 B)" in said(found)


@pytest.mark.usefixtures("short_search")
def test_a_slow_link_is_named() -> None:
    """Where a link is slow, it stands first on the path and among what helps."""
    found = explain(capped(4, {(None, 1): 0.03}))
    assert found.path.by_place[0].what == "link 0/1-0/2"
    best = found.what_if.effects[0]
    assert (best.change.kind, best.change.links) == ("link", (1,))
    assert best.iteration_time_s == pytest.approx(planned_anew_s(capped(4, {(None, 1): 0.015})))
    assert "half the delay of link 1" in said(found)


def test_a_slow_link_of_one_pipeline_is_named_with_it() -> None:
    """A delay that only pipeline 1 has is a change of its own; the other pipeline's links have none."""
    found = explain(capped(None, {(1, 1): 0.03}, "1f1b", dp=2), searches=1)
    links = [x.change for x in found.what_if.effects if x.change.kind == "link"]
    assert [(change.where, change.links) for change in links] == [("link 1 of pipeline 1", (1,))]
    assert found.alike == ((0,), (1,))


def test_a_change_is_measured_against_orders_made_anew() -> None:
    """1F1B on a slow link: other orders help most; what is said of changes is said of those orders."""
    found = explain(capped(None, {(None, 0): 0.02}, "1f1b"))
    assert found.what_if.saved_s == pytest.approx(
        found.iteration_time_s - planned_anew_s(capped(None, {(None, 0): 0.02}, "1f1b"))
    )
    link = effect(found, "link", "link 0")
    assert link.same_orders_saved_s > link.saved_s
    assert "Other orders alone" in said(found)


def test_a_plan_that_only_less_work_would_help_is_told_so() -> None:
    """An optimal plan whose limits do not bind: its last worker is busy from its first operation to the end."""
    found = explain(capped(4))
    assert found.gap == 0
    assert [leg.workers for stretch in found.path.stretches for leg in stretch.legs][-1] == ("0/3",)
    assert found.bound.work_s == pytest.approx(found.bound.worker_s)
    assert found.bound.memory_s == 0
    assert not any(x.change.kind == "memory" for x in found.what_if.effects)
    assert "it is proven optimal" in said(found)
    assert "None of them saves 1 %: the workers compute 92.3 % of the time" in said(found)


def test_a_round_is_told_once() -> None:
    """A worker pair that alternates for many micro-batches is one stretch of several rounds."""
    found = explain(capped(None, {(None, 1): 0.03}, "1f1b"), searches=0)
    rounds = [stretch for stretch in found.path.stretches if stretch.times > 1]
    assert rounds
    assert len(found.path.stretches) < 10
    assert all("0/1-0/2" in leg.links for stretch in rounds for leg in stretch.legs)


def test_slow_workers_at_full_speed_are_tried() -> None:
    """A worker's slow-down can be ended; that of alike pipelines for all of them."""
    plan = hand_plan({"0/0": "F0 F1 B0 B1", "1/0": "F0 F1 B0 B1"}, 2)
    slow = replace(plan, workers=tuple(replace(worker, slowdown=2.0) for worker in plan.workers))
    best = explain(slow).what_if.effects[0]
    assert (best.change.kind, best.change.workers) == ("slowdown", ("0/0", "1/0"))
    assert (best.iteration_time_s, best.saved_s) == (6.0, 6.0)
    assert "no slow-down of workers 0/0, 1/0" in said(explain(slow))


def test_a_staggered_plan_is_explained_by_the_window_that_binds() -> None:
    """The path starts with the first start of the deciding stage, and only its own step follows."""
    plan = hand_plan({"0/0": "F0 F1 B0 B1", "0/1": "F0 B0 F1 B1"}, 2)
    first, second = plan.templates[0].stages
    stages = (replace(first, optimizer_s=9.0), replace(second, forward_s=5.0, optimizer_s=1.0))
    staggered = replace(plan, optimizer="staggered", templates=(replace(plan.templates[0], stages=stages),))
    found = explain(staggered)
    assert (found.counts, found.iteration_time_s) == ("period", evaluate(staggered).period_s)
    assert (found.path.stage, found.path.optimizer_s) == (0, 9.0)
    assert found.bound.window == 0
    assert any("in the window of stage 0" in line for line in words_of_explanation(found).splitlines())


def test_rerouted_work_between_pipelines_has_a_link_of_its_own() -> None:
    """A link that only messages between pipelines use is told apart from those inside."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 F1.0 B0 B1.0", "1/0": "F0 B0", "1/1": None}, 1, delay_s=2.0)
    inside = Pipeline("t0", 1, (Link(0.0),))
    found = explain(replace(plan, pipelines=(inside, inside)))
    # 1/0: F 0-1, message, 0/1: F1.0 3-4, B0 4-6, B1.0 6-8, message, 1/0: B 10-12.
    assert found.iteration_time_s == 12.0
    assert {share.what: share.time_s for share in found.path.by_place} == {
        "worker 0/1": 5.0,
        "link 1/0-0/1": 4.0,
        "worker 1/0": 3.0,
    }
    assert effect(found, "link", "link 0 between pipelines").same_orders_saved_s == 2.0


def test_a_plan_that_takes_no_time_is_explained() -> None:
    """Operations without cost: nothing takes time, nothing helps, and nothing is divided by it."""
    found = explain(hand_plan({"0/0": "F0 I0 W0", "0/1": "F0 B0"}, 1, (0.0, 0.0, 0.0)))
    assert (found.iteration_time_s, found.gap, found.what_if.effects) == (0, 0, ())
    assert "No change that was tried helps" in said(found)


def test_limits_that_just_suffice_by_rounding_do_not_stop_it() -> None:
    """A limit a rounding below one activation passes the checker, and is explained without a search."""
    plan = limited_to_its_peaks(hand_plan({"0/0": "F0 B0 F1 B1"}, 2))
    (stage,) = plan.templates[0].stages
    tight = replace(stage, memory_limit_bytes=1.0 - 1e-12)
    found = explain(with_prediction(replace(plan, templates=(replace(plan.templates[0], stages=(tight,)),))))
    assert found.iteration_time_s == 6.0


@pytest.mark.usefixtures("short_search")
def test_the_same_plan_is_explained_by_the_same_words() -> None:
    """Explaining twice gives equal explanations, with or without the plan's prediction where that says no more."""
    plan = capped(3)
    assert explain(plan, searches=2) == explain(plan, searches=2)
    assert explain(plan, searches=2) == explain(replace(plan, prediction=None), searches=2)


def test_what_was_not_searched_is_told_by_its_bound() -> None:
    """Without a search more memory cannot be seen to help, but the bound shows what it could give."""
    memory = effect(explain(capped(2), searches=0), "memory", "stage 0")
    assert (memory.saved_s, memory.searched) == (0, False)
    assert memory.bound_saved_s == pytest.approx(0.1)
    assert "no orders were searched for them, but their bound is lower by:" in said(explain(capped(2), searches=0))


def test_a_bound_from_elsewhere_is_taken_over() -> None:
    """A plan whose solver proved more than the argument of one worker keeps that bound, and the words say so."""
    plan = with_prediction(capped(2), bound_s=0.6)
    found = explain(plan, searches=0)
    assert found.lower_bound_s == 0.6
    assert found.bound.value_s == pytest.approx(0.57)
    assert "proves more than this argument: 600 ms" in said(found)


@settings(max_examples=15, deadline=None)
@given(st.one_of(placed_plans(2, 3, 2, 3), unlike_placed_plans(2, 2)))
def test_placed_plans_are_explained_whole(plan: Plan) -> None:
    """Of placed plans, too, path and accounts add up to the iteration, no bound is above it, and all can be said."""
    found = explain(plan, searches=0)
    iteration_s, path = found.iteration_time_s, found.path
    assert iteration_s == evaluate(plan).iteration_time_s
    legs_s = sum(leg.compute_s + leg.delay_s for one in path.stretches for leg in one.legs for _ in range(one.times))
    assert legs_s + path.allreduce_s + path.optimizer_s == pytest.approx(iteration_s)
    for shares in (path.by_place, path.by_kind):
        assert sum(share.time_s for share in shares) == pytest.approx(iteration_s)
    times_s = asdict(found.busiest)
    times_s.pop("worker")
    assert sum(times_s.values()) == pytest.approx(iteration_s)
    bound = found.bound
    assert bound.head_s + bound.work_s + bound.tail_s == pytest.approx(bound.value_s)
    assert bound.value_s <= found.lower_bound_s * (1 + 1e-9) <= iteration_s * (1 + 2e-9)
    for x in found.what_if.effects:
        assert x.lower_bound_s <= x.iteration_time_s <= x.same_orders_s * (1 + 1e-9)
    assert found.placements[0] in said(found)
    assert all(len(line) <= 100 for line in words_of_explanation(found).splitlines())
