"""Why a run is slower than its plan (rtk/planners/explain/pace.py), where that was done on purpose."""

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.explain.pace import pace_of
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.shape import Shape
from rtk.runners.simulator import simulate
from rtk.schemas.conditions import under_conditions
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Placement, Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.timeline import Timeline

from ..placed_plans import any_placed_plans, folded, looped
from ..runners.placed import placed_plan
from ..strategies import plans

Optimizer = Literal["synchronous", "staggered"]


def plan_of(stages: int = 3, dp: int = 2) -> Plan:
    cost = LayerCost(0.01, 0.01, 0.01)
    profile = Profile(tuple(Layer((cost,), activation_bytes=2, weight_stash_bytes=1) for _ in range(stages)))
    return plan_pipeline(profile, Shape(stages, dp, 6), "zero-bubble")


def run_of(plan: Plan, jitter: float = 0.0, iterations: int = 4) -> Timeline:
    return simulate(plan, jitter=jitter, seed=3, transport="delegated").repeated(iterations)


@settings(max_examples=40, deadline=None)
@given(st.one_of(plans(max_microbatches=4), any_placed_plans()))
def test_a_run_as_planned_has_no_causes(plan: Plan) -> None:
    """Whatever the plan: what is simulated without faults takes what the plan says."""
    found = pace_of(plan, run_of(plan))
    assert found.measured_s == pytest.approx(evaluate(plan).iteration_time_s, rel=1e-6)
    assert (found.causes, found.sentence) == ((), "as planned")


@settings(max_examples=30, deadline=None)
@given(stage=st.integers(0, 2), factor=st.floats(1.2, 4.0), optimizer=st.sampled_from(["synchronous", "staggered"]))
def test_a_slow_stage_is_named_with_its_factor(stage: int, factor: float, optimizer: Optimizer) -> None:
    """And it gives all of the difference."""
    plan = replace(plan_of(), optimizer=optimizer, prediction=None)
    slow = under_conditions(plan, {f"{k}/{stage}": factor for k in range(2)}, {})
    found = pace_of(plan, run_of(slow))
    assert found.causes[0].words == f"stage {stage} computes {factor:.2g} x slower"
    assert found.causes[0].costs_s == pytest.approx(found.measured_s - found.planned_s)
    assert len(found.causes) == 1


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_a_slow_worker_is_named_by_itself(factor: float) -> None:
    """Its peers are as planned; a worker that the plan knows to be slow is measured against that."""
    known = under_conditions(plan_of(), {"0/2": 1.5}, {})
    slow = under_conditions(known, {"0/2": 1.5, "1/1": factor}, {})
    (cause,) = pace_of(known, run_of(slow)).causes
    assert cause.words == f"worker 1/1 computes {factor:.2g} x slower"


def test_workers_that_are_all_slow_are_told_as_one() -> None:
    """A profile that is wrong for everything, or cores that are busy, accuse no stage."""
    plan = plan_of()
    slow = under_conditions(plan, {worker.name: 2.0 for worker in plan.workers}, {})
    found = pace_of(plan, run_of(slow))
    assert found.sentence == "100 % slower than planned: all workers compute 2 x slower (+100 %)"


@settings(max_examples=20, deadline=None)
@given(link=st.integers(0, 1), delay_ms=st.integers(4, 30), everywhere=st.booleans())
def test_a_slow_link_is_named_with_its_delay(link: int, delay_ms: int, everywhere: bool) -> None:
    """That of one pipeline with the pipeline's number."""
    plan = plan_of()
    slow = under_conditions(plan, {}, {(None if everywhere else 1, link): delay_ms / 1000})
    found = pace_of(plan, run_of(slow))
    where = "" if everywhere else " of pipeline 1"
    assert found.causes[0].words == f"link {link}{where} adds {delay_ms} ms a message"
    assert found.causes[0].costs_s == pytest.approx(found.measured_s - found.planned_s)


@pytest.mark.parametrize("placement", [folded(3, 2), looped(3, 2)], ids=["v", "loop"])
def test_slow_columns_and_their_links_are_named_where_stages_are_placed(placement: Placement) -> None:
    """Whichever of its stages a column computes, and on whichever leg messages come."""
    plan = placed_plan(placement, 6, (6, 6), seconds=0.01)
    slow = pace_of(plan, run_of(under_conditions(plan, {"0/1": 2.0, "1/1": 2.0}, {})))
    assert slow.causes[0].words == "column 1 computes 2 x slower"
    late = pace_of(plan, run_of(under_conditions(plan, {}, {(None, 1): 0.05})))
    assert late.causes[0].words == "link 1 adds 50 ms a message"
    assert late.causes[0].costs_s == pytest.approx(late.measured_s - late.planned_s)


def test_sums_steps_and_pauses_are_told_apart() -> None:
    """Gradients are summed, and optimizers step, for longer than planned, and iterations begin later."""
    plan = plan_of()
    stages = tuple(replace(one, allreduce_s=0.05, optimizer_s=0.02) for one in plan.templates[0].stages)
    slow = replace(plan, templates=(replace(plan.templates[0], stages=stages),), prediction=None)
    timeline = run_of(slow)
    late = tuple(
        replace(span, start_s=span.start_s + 0.01 * span.iteration, end_s=span.end_s + 0.01 * span.iteration)
        for span in timeline.spans
    )
    found = pace_of(plan, replace(timeline, spans=late))
    assert {one.words: round(one.costs_s, 6) for one in found.causes} == {
        "summing gradients takes 50 ms longer": 0.05,
        "the optimizer takes 20 ms longer": 0.02,
        "votes and the next data take 10 ms between iterations": 0.01,
    }


def test_times_that_vary_are_waiting() -> None:
    """Where operations take as long as planned in the median, the rest is that others are waited for."""
    plan = plan_of()
    found = pace_of(plan, run_of(plan, jitter=0.3, iterations=12))
    assert "workers wait for each other (times vary)" in [one.words for one in found.causes]


def test_a_timeline_of_something_else_is_refused() -> None:
    """It has nothing of the plan."""
    with pytest.raises(InvalidInputError, match="no operation of the plan"):
        pace_of(plan_of(), Timeline("measured", ()))
