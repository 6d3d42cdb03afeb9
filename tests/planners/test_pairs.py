"""`--overlap`: plans in which forwards and full backwards run side by side where that pays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.explain.explain import explain
from rtk.planners.plain.verbs import plan_pipeline
from rtk.planners.scheduling.assemble import with_prediction
from rtk.runners.torch_csv import from_torch_csv, to_torch_csv
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.viz.diff import order_changes


def _profile(layers: int, overlap: float | None = 0.8, cost: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> Profile:
    layer = Layer((LayerCost(*cost),), activation_bytes=1.0, weight_stash_bytes=1.0)
    return Profile((layer,) * layers, overlap=overlap)


def _time_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_time_s


CASES = st.tuples(
    st.sampled_from(["plain", "v", "loop"]), st.integers(1, 2), st.integers(1, 4), st.sampled_from([0.55, 0.8, 1.0]),
    st.sampled_from(["1f1b", "zero-bubble"]), st.sampled_from([(1.0, 1.0, 1.0), (1.0, 2.0, 0.5), (3.0, 1.0, 1.0)]),
)  # fmt: skip


@settings(max_examples=3)
@given(CASES)
def test_never_longer_than_without(case: tuple[str, int, int, float, str, tuple[float, float, float]]) -> None:
    """Whatever the costs, a plan that may pair takes no longer than one that may not, and lies above its bound."""
    placement, pp, microbatches, overlap, schedule, cost = case
    profile = _profile(2 * pp, overlap, cost)
    asked = {"pp": pp, "microbatches": microbatches, "schedule": schedule, "placement": placement}
    alone, beside = plan_pipeline(profile, **asked), plan_pipeline(profile, **asked, overlap=True)  # type: ignore[arg-type]
    assert _time_s(beside) <= _time_s(alone) * (1 + 1e-9)
    if overlap == 1:
        assert not beside.has_pairs


@pytest.mark.usefixtures("short_search")
def test_a_v_gains_by_its_pairs() -> None:
    """Where a pair takes 0.8 of both, a V of four workers is shorter than the proven least without pairs."""
    profile = _profile(8)
    alone = plan_pipeline(profile, pp=4, microbatches=8, placement="v", schedule="zero-bubble")
    beside = plan_pipeline(profile, pp=4, microbatches=8, placement="v", schedule="zero-bubble", overlap=True)
    assert _time_s(alone) == 51
    assert _time_s(beside) <= 47.8 + 1e-9
    assert beside.prediction is not None and 41 < beside.prediction.lower_bound_s < _time_s(beside)


def test_plain_pipelines_pair_as_well() -> None:
    """1F1B of four stages with pairs is proven optimal: 28.8 for 33."""
    beside = plan_pipeline(_profile(4), pp=4, microbatches=8, overlap=True)
    assert beside.prediction is not None and beside.prediction.proof == "optimal"
    assert _time_s(beside) == pytest.approx(28.8)


def test_nothing_is_assumed() -> None:
    """Without a number in the profile pairs are refused, as is GPipe, which has none."""
    with pytest.raises(InvalidInputError, match="does not say what a forward and a backward side by side take"):
        plan_pipeline(_profile(4, None), pp=2, microbatches=2, overlap=True)
    with pytest.raises(InvalidInputError, match="all forwards before the first backward"):
        plan_pipeline(_profile(4), pp=2, microbatches=2, schedule="gpipe", overlap=True)


def test_readers_of_plans_know_pairs() -> None:
    """Explained, compared, written as torch's CSV and read back, or flattened for who re-plans."""
    plan = plan_pipeline(_profile(4), pp=2, microbatches=6, placement="v", overlap=True)
    assert plan.has_pairs
    told = explain(plan, searches=0)
    assert plan.prediction is not None
    assert told.iteration_time_s == pytest.approx(plan.prediction.iteration_time_s)
    assert told.bubble_ratio == pytest.approx(plan.prediction.bubble_ratio)
    found = from_torch_csv(to_torch_csv(plan), "x.csv")
    assert found.orders == tuple(worker.operations() for worker in plan.workers)
    assert found.pairs == tuple(worker.pairs() for worker in plan.workers) and found.may_be_kept
    flat = with_prediction(plan.without_pairs())
    assert not flat.may_pair and _time_s(flat) >= _time_s(plan)
    words = [change.words for change in order_changes(flat, plan)]
    assert words and all(" of passes side by side, not 0 pairs" in one for one in words)
