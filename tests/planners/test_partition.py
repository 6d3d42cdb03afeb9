"""Cutting layers into stages: exactly the least bottleneck, and what a stage gets from its layers."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.oobleck.mapping import stages_of
from rtk.planners.oobleck.pace import reduced_bytes
from rtk.planners.oobleck.templates import plan_templates
from rtk.planners.shape import cut_stages, least_bottleneck_cut, with_limits_and_delays
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile, held_bytes

from ..strategies import profiles

TIMES = st.lists(st.integers(0, 12), min_size=1, max_size=8)


@settings(max_examples=30)
@given(TIMES, st.data())
def test_cut_equals_brute_force(times: list[int], data: st.DataObject) -> None:
    """The cut has the least bottleneck, under it the least sum of squares, and of several it is the first."""
    parts = data.draw(st.integers(1, len(times)))
    found = least_bottleneck_cut([float(time) for time in times], parts)
    assert found == min(_cuts(len(times), parts), key=lambda ends: (_worth(times, ends), ends))


def test_bottleneck_counts_before_squares() -> None:
    """[2 3] [5] [0 1] has the least bottleneck, 5, though [2] [3] [5 0 1] has a smaller sum of squares."""
    assert least_bottleneck_cut([2.0, 3.0, 5.0, 0.0, 1.0], 3) == [2, 3, 5]


def _cuts(count: int, parts: int) -> list[list[int]]:
    return [[*inner, count] for inner in combinations(range(1, count), parts - 1)]


def _worth(times: Sequence[int], ends: list[int]) -> tuple[int, int]:
    sums = [sum(times[first:stop]) for first, stop in zip([0, *ends], ends, strict=False)]
    return max(sums), sum(total * total for total in sums)


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=8), st.data())
def test_cut_of_fractions_has_the_least_bottleneck(times: list[float], data: st.DataObject) -> None:
    """Rounding of sums does not cost more than rounding."""
    parts = data.draw(st.integers(1, len(times)))
    found = least_bottleneck_cut(times, parts)

    def bottleneck(ends: list[int]) -> float:
        return max(sum(times[first:stop]) for first, stop in zip([0, *ends], ends, strict=False))

    best = min(bottleneck(ends) for ends in _cuts(len(times), parts))
    assert bottleneck(found) <= best + 1e-9 * sum(times)


@given(profiles(), st.data())
def test_stages_are_the_sums_of_their_layers(profile: Profile, data: st.DataObject) -> None:
    """Stages are consecutive, hold every layer once, and add up their layers' times and bytes."""
    depth = data.draw(st.integers(1, len(profile.layers)))
    template = cut_stages(profile, depth, peers=1)
    assert [stage.layers[0] for stage in template.stages] == [0, *(stage.layers[1] for stage in template.stages[:-1])]
    assert template.stages[-1].layers[1] == len(profile.layers)
    assert len(template.links) == depth - 1
    for stage in template.stages:
        layers = profile.layers[slice(*stage.layers)]
        assert stage.forward_s == sum(layer.costs[0].forward_s for layer in layers)
        assert stage.backward_weight_s == sum(layer.costs[0].backward_weight_s for layer in layers)
        assert stage.duration_s("B") == pytest.approx(sum(layer.costs[0].full_s for layer in layers))
        assert (stage.backward_s is None) == all(layer.costs[0].backward_s is None for layer in layers)
        assert stage.activation_bytes == sum(layer.activation_bytes for layer in layers)
        assert stage.allreduce_s == 0
        assert stage.memory_limit_bytes is None


def _profile(count: int = 3) -> Profile:
    layer = Layer((LayerCost(1.0, 1.0, 1.0),), parameter_bytes=600.0, state_bytes=1800.0, output_bytes=100.0)
    return Profile((layer,) * count)


def test_profile_of_as_many_layers_gives_a_layer_a_stage() -> None:
    """A profile of exactly S layers is cut at every layer."""
    assert [stage.layers for stage in cut_stages(_profile(3), 3, 1).stages] == [(0, 1), (1, 2), (2, 3)]


def test_network_gives_link_delays_and_a_ring_allreduce() -> None:
    """A link takes latency plus output over bandwidth; an all-reduce 2(n-1) messages of 1/n of the parameters."""
    network = Network(intra_node=Connection(9.0, 9.0), inter_node=Connection(0.5, 200.0))
    template = cut_stages(replace(_profile(2), network=network), 2, peers=3)
    assert [link.delay_s for link in template.links] == [0.5 + 100 / 200]
    assert template.stages[0].allreduce_s == 4 * (0.5 + 200 / 200)


def test_device_memory_leaves_the_rest_to_activations() -> None:
    """The limit of a stage is the device's memory less its parameters and state."""
    profile = replace(_profile(2), device=Device(memory_bytes=5000.0))
    assert [stage.memory_limit_bytes for stage in cut_stages(profile, 1, 1).stages] == [200.0]
    assert [stage.memory_limit_bytes for stage in cut_stages(profile, 2, 1).stages] == [2600.0, 2600.0]


def _tied(own: Sequence[int], matrices: Sequence[int]) -> tuple[Layer, ...]:
    """Layers of so many bytes of their own and a matrix each, 0 for none; an equal one is tied to the last before."""
    layers: list[Layer] = []
    for index, (size, matrix) in enumerate(zip(own, matrices, strict=True)):
        before = max((n for n in range(index) if matrices[n] == matrix != 0), default=None)
        shared = {} if before is None else {"tied_bytes": 100.0 * matrix, "tied_state_bytes": 300.0 * matrix}
        whole = size + 100.0 * matrix
        layers.append(
            Layer((LayerCost(1.0, 1.0, 1.0),), None, whole, 3 * whole, tied_to=before, output_bytes=8.0, **shared)
        )
    return tuple(layers)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=6), st.data())
def test_a_stage_holds_a_tied_matrix_once(found: list[tuple[int, int]], data: st.DataObject) -> None:
    """Parameters, state, the all-reduce and the room for activations count each matrix once a stage."""
    own, matrices = [size for size, _ in found], [matrix for _, matrix in found]
    path, memory_bytes = Connection(0.5, 200.0), 1e5
    profile = Profile(_tied(own, matrices), network=Network(inter_node=path), device=Device(memory_bytes=memory_bytes))
    profile.validate()
    template = cut_stages(profile, data.draw(st.integers(1, len(own))), peers=2)
    table, states = stages_of(profile, 1), plan_templates(profile, 1, 1, 0).layers
    for stage in template.stages:
        first, stop = stage.layers
        parameter_bytes = sum(own[first:stop]) + 100 * sum(set(matrices[first:stop]))
        assert held_bytes(profile.layers, first, stop) == (parameter_bytes, 3 * parameter_bytes)
        assert stage.allreduce_s == path.ring_s(parameter_bytes, 2)
        assert stage.memory_limit_bytes == memory_bytes - 4 * parameter_bytes
        assert table.static_bytes[first, stop] == 4 * parameter_bytes
        assert reduced_bytes(states, stage) == parameter_bytes


def test_stage_that_does_not_fit_is_infeasible() -> None:
    """Parameters and state beyond the device's memory are refused with what to do."""
    with pytest.raises(InfeasibleError, match=r"layers 0 to 1 hold 4\.688 KiB") as caught:
        cut_stages(replace(_profile(2), device=Device(memory_bytes=4000.0)), 1, 1)
    assert caught.value.fix == "take more stages"
    assert caught.value.exit_code == 3


def test_more_stages_than_layers_are_infeasible() -> None:
    """Layers are not split."""
    with pytest.raises(InfeasibleError, match="4 stages cannot be cut from 3 layers"):
        cut_stages(_profile(3), 4, 1)


def test_profile_without_single_device_costs_is_refused() -> None:
    """A layer profiled at tensor-parallel degree 2 only cannot be planned on single devices."""
    layer = Layer((LayerCost(1.0, 1.0, 1.0, tensor_parallel=2),))
    with pytest.raises(InvalidInputError, match="no cost at tensor_parallel 1") as caught:
        cut_stages(Profile((_profile().layers[0], layer)), 1, 1)
    assert caught.value.where == "the profile, /layers/1/costs"


def test_limits_are_one_for_all_or_one_a_stage() -> None:
    """One limit stands for all stages, several must be as many as stages; delays replace those of their links."""
    template = cut_stages(_profile(3), 3, 1)
    one = with_limits_and_delays(template, [7.0], {1: 0.5})
    assert [stage.memory_limit_bytes for stage in one.stages] == [7.0, 7.0, 7.0]
    assert [link.delay_s for link in one.links] == [0.0, 0.5]
    each = with_limits_and_delays(template, [1.0, 2.0, 3.0], {})
    assert [stage.memory_limit_bytes for stage in each.stages] == [1.0, 2.0, 3.0]
    with pytest.raises(InvalidInputError, match="2 memory limits for 3 stages"):
        with_limits_and_delays(template, [1.0, 2.0], {})
