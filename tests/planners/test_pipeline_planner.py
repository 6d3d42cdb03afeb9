"""`plan_pipeline`: GPipe, 1F1B and zero-bubble as in their papers, and for any shape, costs, delays and limits."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.shape import Shape
from rtk.schemas.check import check_plan
from rtk.schemas.documents import canonical, digest, parse_document, read_document
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.orders import LeanSchedule, Schedule
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

from ..strategies import profiles, shapes

GOLDEN = Path(__file__).parents[1] / "golden"
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
any_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(scope="module")
def slots4() -> Profile:
    """Four stages of one slot each: F=I=W=1."""
    return read_document(str(GOLDEN / "profile-slots4.json"), Profile)


@pytest.fixture(scope="module")
def adaptra4() -> Profile:
    """Four stages of 10 ms each."""
    return read_document(str(GOLDEN / "profile-adaptra4.json"), Profile)


@any_schedule
@given(data=st.data())
def test_any_profile_and_shape_give_a_valid_plan(schedule: Schedule, data: st.DataObject) -> None:
    """Zero costs, fewer micro-batches than stages, slow links: the plan is valid and keeps its bytes when read back."""
    shape = data.draw(shapes())
    profile = data.draw(profiles(min_layers=shape.pp))
    plan = plan_pipeline(profile, shape, schedule)
    plan.validate()
    assert check_plan(plan) == []
    assert plan.prediction is not None
    assert plan.prediction.lower_bound_s <= plan.prediction.iteration_time_s
    assert plan.inputs == {"profile": digest(profile)}
    assert [worker.name for worker in plan.workers] == [f"{k}/{i}" for k in range(shape.dp) for i in range(shape.pp)]
    assert parse_document(canonical(plan), Plan, "printed") == plan


@any_schedule
@settings(max_examples=40)
@given(data=st.data())
def test_memory_limits_are_kept_or_the_plan_is_infeasible(schedule: Schedule, data: st.DataObject) -> None:
    """No worker ever holds more than its limit; infeasible is just where one micro-batch (GPipe: all) exceed it."""
    pp, microbatches = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    layer = st.tuples(
        st.sampled_from([0.0, 1.0, 2.5]), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0, 1.7])
    )
    layers = [data.draw(layer) for _ in range(pp)]
    profile = Profile(
        tuple(
            Layer((LayerCost(time_s, 1.0, time_s),), activation_bytes=held, weight_stash_bytes=held * share)
            for held, share, time_s in layers
        )
    )
    limits = [data.draw(st.sampled_from([0.0, 0.9, 1.0, 2.5, 3.0, 7.5])) for _ in range(pp)]
    most = 1 if schedule in get_args(LeanSchedule) else microbatches
    try:
        plan = plan_pipeline(
            profile, Shape(pp, 2, microbatches, limits, {(None, 0): 0.5} if pp > 1 else None), schedule
        )
    except InfeasibleError as error:
        assert error.where == "--memory-limit"
        assert any(most * held > limit for (held, _, _), limit in zip(layers, limits, strict=True))
        return
    assert all(most * held <= limit for (held, _, _), limit in zip(layers, limits, strict=True))
    assert all(peak <= limit for peak, limit in zip(evaluate(plan).peak_memory_bytes, limits * 2, strict=True))


@any_schedule
def test_same_inputs_give_the_same_bytes(schedule: Schedule, slots4: Profile) -> None:
    """A plan is a function of its profile and shape, down to its bytes."""
    shape = Shape(4, 2, 5, link_delay_s={(None, 1): 0.3})
    assert canonical(plan_pipeline(slots4, shape, schedule)) == canonical(plan_pipeline(slots4, shape, schedule))


def test_hash_seed_does_not_reach_the_bytes() -> None:
    """Two Python processes with unlike hash seeds make the same plan, bit for bit."""
    script = f"""
import sys
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.schemas.documents import canonical, read_document
from rtk.schemas.profile import Profile
profile = read_document({str(GOLDEN / "profile-adaptra4.json")!r}, Profile)
shape = Shape(4, 3, 6, link_delay_s={{(None, 0): 0.02, (1, 2): 0.01}})
sys.stdout.buffer.write(canonical(plan_pipeline(profile, shape, "zero-bubble")))
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert found.pop().startswith(b"{")


# The figure of 1F1B (PP 4, 6 micro-batches, B two slots): one column a slot, dots are idle.
FIGURE_1F1B = """
F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 F4 B1 B1 F5 B2 B2 .  B3 B3 .  B4 B4 .  B5 B5
.  F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 .  B4 B4 .  B5 B5 .  .
.  .  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 B4 .  B5 B5 .  .  .  .
.  .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 B5 B5 .  .  .  .  .  .
"""


def _grid(plan: Plan) -> list[list[str]]:
    evaluation = evaluate(plan)
    rows = []
    for row in evaluation.operations:
        slots = ["."] * int(evaluation.makespan_s)
        for timed in row:
            for slot in range(int(timed.start_s), int(timed.end_s)):
                slots[slot] = f"{timed.operation.kind}{timed.operation.microbatch}"
        rows.append(slots)
    return rows


def test_1f1b_is_the_papers_figure(slots4: Profile) -> None:
    """PP 4, DP 3, 6 micro-batches, F=I=W=1: 27 slots, 9 idle a worker, each bubble where the papers have it."""
    plan = plan_pipeline(slots4, Shape(4, 3, 6), "1f1b")
    assert evaluate(plan).makespan_s == 27
    figure = [line.split() for line in FIGURE_1F1B.strip().splitlines()]
    grid = _grid(plan)
    assert grid == figure * 3
    assert [row.count(".") for row in grid] == [9] * 12
    assert plan.prediction is not None
    assert plan.prediction.proof == "optimal"
    assert plan.prediction.bubble_ratio == pytest.approx(9 / 27)
    assert plan.prediction.peak_memory_bytes == (4, 3, 2, 1) * 3


def test_1f1b_holds_at_most_as_many_micro_batches_as_stages_follow(slots4: Profile) -> None:
    """Stage i of S holds at most S - i micro-batches, however many there are."""
    assert evaluate(plan_pipeline(slots4, Shape(4, 1, 40), "1f1b")).peak_memory_bytes == (4, 3, 2, 1)


def test_zero_bubble_is_optimal_on_equal_stages(slots4: Profile) -> None:
    """PP 4, 6 micro-batches, F=I=W=1: 21 slots, 3 idle a worker, and a period of 19."""
    plan = plan_pipeline(slots4, Shape(4, 3, 6), "zero-bubble")
    assert plan.prediction is not None
    assert (plan.prediction.makespan_s, plan.prediction.period_s) == (21, 19)
    assert plan.prediction.proof == "optimal"
    assert [row.count(".") for row in _grid(plan)] == [3] * 12


@pytest.mark.parametrize(("delay_ms", "makespan_ms"), [(0, 390), (10, 400), (20, 410), (60, 450)])
def test_zero_bubble_adapts_to_a_slow_link(adaptra4: Profile, delay_ms: int, makespan_ms: int) -> None:
    """S=4, N=12, 10 ms operations: a slow link 0 costs its delay once, 390 + c ms, which is the lower bound."""
    plan = plan_pipeline(adaptra4, Shape(4, 1, 12, link_delay_s={(None, 0): delay_ms / 1000}), "zero-bubble")
    assert plan.prediction is not None
    assert plan.prediction.makespan_s == pytest.approx(makespan_ms / 1000, rel=1e-9)
    assert plan.prediction.proof == "optimal"


def test_gpipe_holds_every_micro_batch(slots4: Profile) -> None:
    """GPipe runs all forwards first, so every worker holds all micro-batches."""
    plan = plan_pipeline(slots4, Shape(4, 1, 6), "gpipe")
    assert plan.workers[0].order == "F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5"
    assert evaluate(plan).peak_memory_bytes == (6, 6, 6, 6)
    assert evaluate(plan).makespan_s == (6 + 4 - 1) * 3


def test_gpipe_beyond_memory_is_infeasible(slots4: Profile) -> None:
    """GPipe cannot hold fewer micro-batches than there are, and says what can."""
    with pytest.raises(InfeasibleError, match="stage 2 admits 5") as caught:
        plan_pipeline(slots4, Shape(4, 1, 6, [6, 6, 5, 6]), "gpipe")
    assert "1f1b" in str(caught.value.fix)


def test_1f1b_cuts_its_warm_up_to_the_memory_limit(slots4: Profile) -> None:
    """A stage of less room warms up less, and so do the stages after it."""
    plan = plan_pipeline(slots4, Shape(4, 1, 6, [4, 1, 4, 4]), "1f1b")
    assert evaluate(plan).peak_memory_bytes == (4, 1, 1, 1)


def test_links_of_one_pipeline_shape_that_pipeline_only(adaptra4: Profile) -> None:
    """`1/0=0.02` slows link 0 of pipeline 1: its orders adapt, those of pipeline 0 do not change."""
    plain = plan_pipeline(adaptra4, Shape(4, 2, 12), "zero-bubble")
    plan = plan_pipeline(adaptra4, Shape(4, 2, 12, link_delay_s={(1, 0): 0.02}), "zero-bubble")
    assert plan.pipelines[0].links is None
    assert plan.pipelines[1].links is not None
    assert [link.delay_s for link in plan.pipelines[1].links] == [0.02, 0.0, 0.0]
    assert plan.workers[:4] == plain.workers[:4]
    assert plan.workers[4:] != plain.workers[4:]
    assert evaluate(plan).makespan_s == pytest.approx(0.41, rel=1e-9)


@pytest.mark.parametrize("place", [(None, 3), (2, 0), (None, -1), (-1, 0)])
def test_unknown_links_are_refused(slots4: Profile, place: tuple[int | None, int]) -> None:
    """A delay for a link or pipeline that the shape does not have is an error."""
    with pytest.raises(InvalidInputError, match="there is no link"):
        plan_pipeline(slots4, Shape(4, 2, 6, link_delay_s={place: 0.1}), "1f1b")


def test_long_single_stage_is_without_bubbles() -> None:
    """Rounding over thousands of operations does not turn into a wrong prediction."""
    profile = Profile((Layer((LayerCost(0.1, 0.3, 0.7),)),))
    plan = plan_pipeline(profile, Shape(1, 1, 3000), "1f1b")
    assert plan.prediction is not None
    assert plan.prediction.proof == "optimal"
    assert plan.prediction.bubble_ratio == pytest.approx(0, abs=1e-9)


def test_staggered_mode_bounds_the_period(slots4: Profile) -> None:
    """The same orders under a staggered optimizer have the period as their iteration time."""
    plan = replace(plan_pipeline(slots4, Shape(4, 1, 6), "zero-bubble"), optimizer="staggered")
    assert evaluate(plan).iteration_time_s == 19
