"""What the boundary of a stage costs: measured, written down, and counted wherever layers become stages."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.oobleck.mapping import stages_of
from rtk.planners.recovery.rtk import least_gpu_s
from rtk.planners.shape import cut_chunks, cut_stages
from rtk.profilers.boundary import measure_boundary, with_boundary
from rtk.profilers.measuring import Measuring, load, measure_here
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.placement import loop_placement, v_placement
from rtk.schemas.plan import Stage
from rtk.schemas.profile import BoundaryCost, Layer, LayerCost, Profile

from ..strategies import SECONDS, profiles

KINDS = ("F", "I", "W", "B")


@st.composite
def bounded_profiles(draw: st.DrawFn, max_layers: int) -> Profile:
    """A profile whose layers' times contain a boundary, or none."""
    boundary = draw(st.none() | st.builds(BoundaryCost, SECONDS, SECONDS, SECONDS, SECONDS))
    profile = draw(profiles(min_layers=2, max_layers=max_layers))
    return profile if boundary is None else with_boundary(profile, boundary)


def boundary_s(profile: Profile, kind: str) -> float:
    """What a boundary takes of an operation."""
    inner = profile.inner
    times = {"F": inner.forward_s, "I": inner.backward_input_s, "W": inner.backward_weight_s}
    return {**times, "B": inner.backward_s}[kind]


def alone_s(profile: Profile, kind: str, layer: int) -> float:
    """What a layer takes as a stage of its own."""
    cost = profile.layers[layer].costs[0]
    times = {"F": cost.forward_s, "I": cost.backward_input_s, "W": cost.backward_weight_s, "B": cost.full_s}
    return times[kind]


@settings(max_examples=60)
@given(bounded_profiles(8), st.data())
def test_a_stage_has_one_boundary(profile: Profile, data: st.DataObject) -> None:
    """Plain stages, chunks of loops and of V's, and Oobleck's take what their layers do, less a boundary for each pair
    of neighbours: all planners say the same, and the more chunks there are, the more boundaries."""
    count = len(profile.layers)
    columns = data.draw(st.integers(2, count))
    chunks = data.draw(st.integers(1, count // columns))
    made = data.draw(st.sampled_from([loop_placement, v_placement]))(columns, chunks)
    plain, placed = cut_stages(profile, columns, 1), cut_chunks(profile, made, 1)
    table = stages_of(profile, 1)
    for template in (plain, placed):
        for stage in template.stages:
            assert table.stage(0, *stage.layers).work_s == stage.work_s
            for kind in KINDS:
                told_s = sum(alone_s(profile, kind, layer) for layer in range(*stage.layers))
                less_s = (stage.layers[1] - stage.layers[0] - 1) * boundary_s(profile, kind)
                assert stage.duration_s(kind) == pytest.approx(told_s - less_s, rel=1e-9, abs=1e-9 * told_s)
    longer_s = (len(placed.stages) - len(plain.stages)) * profile.inner.forward_s
    least_s, found_s = (sum(stage.forward_s for stage in template.stages) for template in (plain, placed))
    assert found_s == pytest.approx(least_s + longer_s, rel=1e-9, abs=1e-9 * sum(map(_forward_s, profile.layers)))


def _forward_s(layer: Layer) -> float:
    return layer.costs[0].forward_s


@settings(max_examples=40)
@given(bounded_profiles(7), st.data())
def test_the_slowest_stage_is_as_fast_as_can_be(profile: Profile, data: st.DataObject) -> None:
    """Boundaries included: no other cut has a shorter slowest stage; and no stages do less than any GPUs must."""
    stages = data.draw(st.integers(1, len(profile.layers)))
    found = cut_stages(profile, stages, 1)
    table = stages_of(profile, 1)

    def slowest_s(ends: Sequence[int]) -> float:
        cut = itertools.pairwise([0, *ends, len(profile.layers)])
        return max(_halves_s(table.stage(0, *one)) for one in cut)

    every = itertools.combinations(range(1, len(profile.layers)), stages - 1)
    assert max(map(_halves_s, found.stages)) <= min(map(slowest_s, every)) * (1 + 1e-9)
    assert sum(stage.work_s for stage in found.stages) >= least_gpu_s(profile) * (1 - 1e-9)


def _halves_s(stage: Stage) -> float:
    """F, I and W together, by which stages are cut."""
    return stage.forward_s + stage.backward_input_s + stage.backward_weight_s


def test_two_stages_less_one_is_measured() -> None:
    """By the clock: what two stages take more than one with the same layers, the median of some rounds."""
    readings = itertools.count()
    apart = [0.0, *[3.0] * 2, *[5.0] * 2, *[2.0] * 2, *[9.0] * 2, *[0.0] * 2, *[6.0] * 2]
    joined = [0.0, 4.0, 6.0, 4.5, 9.0, 0.0, 7.0]
    moments = list(itertools.accumulate([*apart, *joined] * 30))
    found = measure_boundary(TorchStage, rounds=5, clock=lambda: moments[next(readings)])
    assert found == BoundaryCost(2.0, 4.0, 0.0, 5.0)  # W took no longer


@given(profiles(), st.builds(BoundaryCost, *[st.floats(0, 1e3)] * 4))
def test_no_layer_takes_less_than_the_boundary_in_it(profile: Profile, boundary: BoundaryCost) -> None:
    """What is measured is cut down to what all layers can contain, and so goes with any profile."""
    with_boundary(profile, boundary).validate()


def test_a_boundary_that_is_more_than_a_layer_is_refused() -> None:
    """With its place, and the layer that contradicts it."""
    profile = Profile((Layer((LayerCost(2.0, 2.0, 2.0),)), Layer((LayerCost(1.0, 2.0, 2.0),))))
    with pytest.raises(InvalidInputError, match=r"1\.5 s, is more than the 1 s of layer 1") as raised:
        Profile(profile.layers, boundary=BoundaryCost(forward_s=1.5)).validate()
    assert raised.value.where == "/boundary/forward_s"


def test_a_profile_of_this_machine_says_its_boundary() -> None:
    """`rtk profile` on a CPU finds one that goes with the layers that it measured."""
    asked = Measuring("gpt-tiny", microbatch_size=1, sequence_length=8, repeats=2)
    profile = measure_here(asked, load(asked), TorchStage, None, lambda done, of: None)
    profile.validate()
    assert profile.boundary is not None
