"""Where the iteration of a computed model goes: what its passes are made of, beside waiting, sums and the step."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.accounting import account
from rtk.planners.explain.account import IterationAccount
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.scheduling.assemble import with_prediction
from rtk.planners.shape import Shape
from rtk.profilers.analytic.costs import WORKS
from rtk.profilers.analytic.estimate import Correction, Corrections, Learned, profile_analytic
from rtk.profilers.analytic.parts import parts_of
from rtk.profilers.analytic.software import Software
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Profile

SOFTWARES = (
    Software(),
    Software("unfused", dropout=True, sequence_parallel=False, gradients="fp16", kernel_gap_s=47e-6),
)


def computed(software: Software = SOFTWARES[0], **options: Any) -> Profile:
    """gpt-tiny on an A100 at degrees 1, 2 and 4; what it gains side by side is made up."""
    profile = profile_analytic("gpt-tiny", gpu="a100-sxm", dtype="fp16", software=software, tp=(1, 2, 4), **options)
    return replace(profile, overlap=0.8)


def seconds(found: IterationAccount) -> dict[str, float]:
    return {one.what: one.time_s for one in found.shares}


def iteration_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_time_s


# Placement, schedule and degree of each plan: every one of them with each program, computed again or not.
CASES: tuple[tuple[dict[str, Any], Any, Any], ...] = (
    ({}, "gpipe", 1),
    ({}, "1f1b", 4),
    ({}, "zero-bubble", 2),
    ({}, "1f1b", (4, 2)),
    ({"placement": "loop", "chunks": 2}, "1f1b", 2),
    ({"placement": "v", "chunks": 2}, "zero-bubble", 4),
    ({"overlap": True}, "1f1b", 2),
)


@pytest.mark.usefixtures("short_search")
@pytest.mark.parametrize(("more", "schedule", "degree"), CASES)
def test_the_account_of_a_computed_plan_adds_up(more: dict[str, Any], schedule: Any, degree: Any) -> None:
    """For every schedule, placement, degree and program, computed again or not, parts are all of the iteration."""
    for software, again, slow in ((SOFTWARES[0], False, 1.5), (SOFTWARES[1], True, None)):
        profile = computed(software, checkpointing=again)
        plan = plan_pipeline(profile, Shape(2, 2, 2 if more else 4, tensor_parallel=degree, **more), schedule)
        if slow is not None:
            workers = (replace(plan.workers[0], slowdown=slow), *plan.workers[1:])
            plan = with_prediction(replace(plan, workers=workers, prediction=None))
        found = account(plan, profile)
        assert found.remark is None
        assert sum(seconds(found).values()) == pytest.approx(iteration_s(plan))
        assert not {"F", "I", "B"} & set(seconds(found))
        assert ("tensor-parallel sums" in seconds(found)) == (found.tensor_parallel > 1)
        assert ("slowdown" in seconds(found)) == (slow is not None)
        assert (found.again_s > 0) == again


@given(st.sampled_from(SOFTWARES), st.booleans(), st.sampled_from([1, 2, 4]), st.sampled_from(["1f1b", "zero-bubble"]))
def test_a_single_worker_does_what_the_profile_is_made_of(
    software: Software, again: bool, degree: int, schedule: Any
) -> None:
    """A worker that has the whole model does the parts of `rtk explain PROFILE`, once for each micro-batch."""
    profile = computed(software, checkpointing=again)
    plan = plan_pipeline(profile, Shape(1, 1, 3, tensor_parallel=degree), schedule)
    whole = next(one for one in parts_of(profile) if (one.kind, one.tensor_parallel) == ("all", degree))
    step_s = sum(cost.optimizer_s for one in profile.layers for cost in one.costs if cost.tensor_parallel == degree)
    expected = {what: 3 * part_s for what, part_s in whole.parts.by_name().items() if part_s}
    found = account(plan, profile)
    assert seconds(found) == pytest.approx({**expected, "optimizer step": step_s})
    blocks_s = sum(layer.costs[0].forward_s for layer in profile.layers[1:-1]) if degree == 1 else None
    if again and blocks_s is not None:
        assert found.again_s == pytest.approx(3 * blocks_s)


def test_a_calibration_corrects_all_but_the_sums() -> None:
    """Where a calibration says that computing takes twice as long, all parts do but sums over the group."""
    usual = computed(checkpointing=True)
    twice = Correction(2.0, 2.0)
    corrections = {kind: Corrections(twice, twice, twice) for kind in WORKS}
    learned = Learned(corrections, "fp16", None, None, "a log", ())
    slower = computed(checkpointing=True, calibrate=learned)
    before, after = (
        seconds(account(plan_pipeline(one, Shape(1, 1, 2, tensor_parallel=4), "1f1b"), one)) for one in (usual, slower)
    )
    alike = ("tensor-parallel sums", "optimizer step")
    assert after == pytest.approx({what: part_s if what in alike else 2 * part_s for what, part_s in before.items()})


def test_what_is_not_known_is_said() -> None:
    """Of a measured profile passes are told; of another profile than the plan's too, and why, in both cases."""
    profile = computed()
    plan = plan_pipeline(profile, Shape(2, 1, 4), "zero-bubble")
    measured = account(plan, replace(profile, origin="measured"))
    assert {"F", "I", "W", "waiting"} <= set(seconds(measured))
    assert measured.remark is not None and "was not computed" in measured.remark
    other = account(plan, profile_analytic("gpt-tiny", gpu="h100-sxm", dtype="fp16"))
    assert other.remark is not None and "made from another" in other.remark
    assert other.shares == measured.shares
    unknown = account(plan, replace(profile, model={**profile.model, "gpu": "abacus"}))
    assert unknown.remark is not None and "no GPU 'abacus'" in unknown.remark
