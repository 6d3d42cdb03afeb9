"""How slow the workers of a running job are at smaller degrees, and at which their GPUs have room."""

from dataclasses import replace
from typing import Any

import pytest

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.recovery.answers import PolicyName
from rtk.planners.recovery.lowering import degree_factors
from rtk.planners.shape import Shape
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile

FULL_S, HALF_S = 1.0, 1.5  # of each kind of pass, at degrees 4 and 2


def profile(memory_bytes: float | None = None, degrees: tuple[int, ...] = (2, 4)) -> Profile:
    """Equal layers with costs at these degrees."""
    times = {4: FULL_S, 2: HALF_S, 1: 3.0}
    costs = tuple(LayerCost(*(3 * (times[degree],)), tensor_parallel=degree) for degree in degrees)
    layer = Layer(costs, activation_bytes=8.0, weight_stash_bytes=0.0, parameter_bytes=40.0, state_bytes=80.0)
    return Profile((layer,) * 4, device=Device("toy", memory_bytes))


def planned(degree: int = 4) -> Plan:
    """Two stages by two pipelines."""
    return plan_pipeline(profile(degrees=(1, 2, 4)), Shape(2, 2, 4, tensor_parallel=degree), "1f1b")


def test_factors_are_those_of_the_profile_and_of_the_numbers_of_gpus() -> None:
    """At a degree that the profile has, its times say how slow a worker is; at others, and without one, its GPUs do."""
    plan = planned()
    found = degree_factors(plan, None, profile())
    assert found.factors == {worker.name: {1: 4.0, 2: HALF_S / FULL_S, 3: 4 / 3} for worker in plan.workers}
    assert found.profiled == {2, 4}
    assert degree_factors(plan, None).factors["1/1"] == {1: 4.0, 2: 2.0, 3: 4 / 3}


def test_degrees_at_which_a_stage_has_no_room_are_none() -> None:
    """Two layers are 240 bytes of parameters and state and at most 32 of activations, over the GPUs that share them."""
    roomy = {
        room: [*degree_factors(planned(), None, profile(memory_bytes=float(room))).factors["0/0"]]
        for room in (71, 91, 137, 273)
    }
    assert roomy == {71: [], 91: [3], 137: [2, 3], 273: [1, 2, 3]}


def test_what_copies_cost_is_told_where_the_profile_has_a_network() -> None:
    """A stage's 240 bytes go to one GPU, or to each of two in halves, and back to each of four in quarters."""
    network = Network(intra_node=Connection(bandwidth_bytes_per_s=10.0))
    found = degree_factors(planned(), None, replace(profile(), network=network), within=7)
    assert found.costs_s["1/0"] == pytest.approx({1: 24.0 + 6.0, 2: 12.0 + 6.0, 3: 8.0 + 6.0})
    assert found.within == 7
    assert degree_factors(planned(), None, profile()).costs_s == {}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"plan": planned(1)}, "every worker of the plan is on one GPU"),
        ({"policy": PolicyName.SLIPSTREAM}, "only the policy joint takes account of what is slow"),
        ({"profile": replace(profile(), layers=profile().layers[:3])}, "the profile has 3 layers, and the plan 4"),
        ({"profile": profile(degrees=(1, 2))}, "the profile has no costs at 4 GPUs a worker"),
    ],
)
def test_what_cannot_be_lowered_is_refused(changes: dict[str, Any], what: str) -> None:
    """No smaller degree, a policy that plans for nothing slow, and another profile than the plan's."""
    with pytest.raises(InvalidInputError, match=what):
        degree_factors(**{"plan": planned(), "policy": None, **changes})
