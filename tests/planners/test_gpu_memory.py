"""What a GPU holds, by part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.gpu_memory import FRAGMENTS, FRAMEWORK_BYTES, fullest, gpu_memory, memory_of
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape, cut_stages
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, NodeNetwork, Profile

COST = LayerCost(1.0, 1.0, 1.0)
SIZES = st.integers(1, 1000).map(float)


@st.composite
def _layers(draw: st.DrawFn) -> Layer:
    """A layer of 16-bit parameters and 12 bytes of optimizer each, its gradients in 16 bits or in 32."""
    parameters, gradient = draw(SIZES), draw(st.sampled_from([None, 1.0, 2.0]))
    state_bytes = parameters * (6 + (gradient or 1.0))
    return Layer(
        (COST, LayerCost(0.5, 0.5, 0.5, tensor_parallel=2)),
        parameter_bytes=parameters,
        state_bytes=state_bytes,
        activation_bytes=draw(SIZES),
        output_bytes=draw(SIZES),
        gradient_bytes=None if gradient is None else gradient * parameters,
    )


@given(st.lists(_layers(), min_size=3, max_size=6), st.sampled_from([1, 2]), st.integers(1, 8))
def test_parts_add_up_to_what_the_profile_says(layers: list[Layer], degree: int, shards: int) -> None:
    """Parameters, sums of gradients and the optimizer's state are what layers hold; shards divide the latter only."""
    profile, held = Profile(tuple(layers)), [(0, 2)]
    whole = gpu_memory(profile, held, 5.0, [3], degree=degree)
    shared = gpu_memory(profile, held, 5.0, [3], degree=degree, shards=shards)
    has_sums = any((one.gradient_bytes or 0.0) > one.parameter_bytes for one in layers[:2])
    made = whole.parameters_bytes if has_sums else 0.0  # beside sums in more digits
    static = sum(one.parameter_bytes + one.state_bytes for one in layers[:2]) / degree
    assert whole.parameters_bytes + whole.gradients_bytes + whole.optimizer_bytes == pytest.approx(static + made)
    assert shared.optimizer_bytes == pytest.approx(whole.optimizer_bytes / shards)
    assert (shared.parameters_bytes, shared.gradients_bytes) == (whole.parameters_bytes, whole.gradients_bytes)
    assert whole.buffers_bytes == 3 * layers[1].output_bytes / degree
    handed_out = whole.total_bytes - whole.framework_bytes
    assert whole.framework_bytes == pytest.approx(FRAMEWORK_BYTES + FRAGMENTS * handed_out)


@given(st.integers(1, 5), st.integers(1, 6))
def test_a_plans_workers_hold_what_is_in_flight(pp: int, microbatches: int) -> None:
    """In 1F1B a stage keeps what it sent of as many micro-batches as are behind it, and the first one holds most."""
    layer = Layer((COST,), parameter_bytes=8.0, state_bytes=56.0, activation_bytes=10.0, output_bytes=4.0)
    profile = Profile((layer,) * pp)
    plan = plan_pipeline(profile, Shape(pp, 1, microbatches), "1f1b")
    found = [one for one in memory_of(profile, plan) if one is not None]
    in_flight = [min(pp - i, microbatches) for i in range(pp)]
    assert [one.activations_bytes for one in found] == [10.0 * count for count in in_flight]
    assert [one.buffers_bytes for one in found] == [4.0 * count for count in in_flight]
    assert fullest(found) == found[0]


def test_fp32_sums_send_more_and_whole_activations_are_not_divided() -> None:
    """Gradients of 4 bytes beside parameters of 2 take 3 / 2 of the time; what each rank has whole is not divided."""
    network = Network(None, Connection(0.0, 1.0), NodeNetwork(8, 8.0, "peers"))
    costs = (COST, LayerCost(0.5, 0.5, 0.5, tensor_parallel=2))
    usual = Layer(costs, parameter_bytes=8.0, state_bytes=64.0, activation_bytes=10.0)
    unlike = Layer(
        costs, parameter_bytes=8.0, state_bytes=64.0, activation_bytes=10.0, gradient_bytes=16.0, replicated_bytes=4.0
    )
    one, other = (cut_stages(Profile((layer,) * 4, network=network), 2, 16, 2).stages[0] for layer in (usual, unlike))
    assert other.allreduce_s == pytest.approx(1.5 * one.allreduce_s)
    assert (one.activation_bytes, other.activation_bytes) == (10.0, 14.0)
