"""Plans whose peers share the optimizer's state: their limits, their times, who has no room, and how files say it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.gpu_memory import fullest, memory_of
from rtk.planners.plain.slipstream import plan_atlas, plan_from_atlas, plan_slipstream
from rtk.planners.plain.verbs import plan_adaptra, plan_joint, plan_pipeline, plan_topology
from rtk.schemas.check import check_plan
from rtk.schemas.check_memory import check_memory
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InvalidInputError, NoRoomError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile

Planned = Callable[..., Plan]
PLANNERS: dict[str, Planned] = {
    "pipeline": plan_pipeline,
    "v": lambda profile, **given: plan_pipeline(profile, placement="v", schedule="zero-bubble", **given),
    "adaptra": lambda profile, **given: plan_adaptra(profile, link_delay={0: 0.5}, **given),
    "joint": lambda profile, **given: plan_joint(profile, failed=["0/0", "2/0"], slow={"1/1": 1.5}, **given),
    "slipstream": lambda profile, **given: plan_slipstream(profile, failed=["1/0"], **given),
    "topology": lambda profile, **given: plan_topology(profile, slow={"0/1": 2.0}, **given),
}
STAGGERED = ("joint", "slipstream")
NETWORK = Network(inter_node=Connection(0.25, 64.0))
SIZES = st.integers(1, 40).map(float)


@st.composite
def profiles(draw: st.DrawFn, layers: int = 4) -> Profile:
    """Layers with gradients in the parameters' numbers or in twice as many, the last tied to the first or not."""
    made = []
    for number in range(layers):
        own, gradient = draw(SIZES), draw(st.sampled_from([None, 2.0]))
        tied: dict[str, Any] = (
            {"tied_to": 0, "tied_bytes": 1.0, "tied_state_bytes": 2.0} if number == layers - 1 else {}
        )
        made.append(
            Layer(
                tuple(LayerCost(2.0 / t, 1.0 / t, 1.0 / t, 6.0 / t, t) for t in (1, 2)),
                parameter_bytes=own,
                state_bytes=own * ((gradient or 1.0) + 3),
                gradient_bytes=None if gradient is None else gradient * own,
                activation_bytes=4.0,
                weight_stash_bytes=2.0,
                **(tied if draw(st.booleans()) else {}),
            )
        )
    return Profile(tuple(made), network=NETWORK)


@pytest.mark.parametrize("planner", PLANNERS)
@given(profile=profiles(), dp=st.integers(3, 6), degree=st.sampled_from([1, 2]))
@settings(max_examples=4)
def test_every_planner_leaves_room_for_a_share_and_the_checker_agrees(
    planner: str, profile: Profile, dp: int, degree: int
) -> None:
    """A limit is what the share leaves that is there after losses: to the byte, by the checker's own account."""
    roomy = replace(profile, device=Device(memory_bytes=1e4))
    asked: dict[str, Any] = {"pp": 2, "dp": dp, "microbatches": 3, "tensor_parallel": degree}
    plan = PLANNERS[planner](roomy, shard_optimizer=True, **asked)
    assert plan.shards_optimizer and not check_plan(plan) and not check_memory(plan, roomy)
    assert plan.prediction is not None
    full = [
        replace(plan.prediction, peak_memory_bytes=tuple((plan.limit_bytes(one) or 0.0) + more for one in plan.workers))
        for more in (0.0, 1e-3)
    ]
    assert not check_memory(replace(plan, prediction=full[0]), roomy)
    assert {int(one.path.split("/")[2]) for one in check_memory(replace(plan, prediction=full[1]), roomy)} >= {
        n for n, worker in enumerate(plan.workers) if not worker.failed and (planner != "joint" or worker.stage == 0)
        if planner != "slipstream" or worker.stage == 0
    }  # fmt: skip
    usual = PLANNERS[planner](roomy, **asked)
    for mine, theirs in zip(plan.workers, usual.workers, strict=True):
        more = (plan.limit_bytes(mine) or 0.0) - (usual.limit_bytes(theirs) or 0.0)
        assert (more > 0) == (dp - (2 if planner == "joint" else 1) > 2) or planner in STAGGERED


@given(profile=profiles(), dp=st.integers(2, 8))
@settings(max_examples=10)
def test_a_step_is_a_share_of_it_and_the_gathering(profile: Profile, dp: int) -> None:
    """The step takes 2/n of the whole, and half a sum of the parameters; gradients are summed as they are."""
    one, other = (plan_pipeline(profile, pp=2, dp=dp, microbatches=2, shard_optimizer=on) for on in (True, False))
    for mine, usual in zip(one.templates[0].stages, other.templates[0].stages, strict=True):
        layers = profile.layers[slice(*mine.layers)]
        parameters = sum(layer.parameter_bytes for layer in layers)
        tied = 1.0 if profile.layers[-1].tied_to == 0 else 0.0  # of each of the two stages, all of it with everybody
        gradients = [layer.gradient_bytes or layer.parameter_bytes for layer in layers]
        whole = NETWORK.inter_node
        assert whole is not None
        assert mine.optimizer_s == pytest.approx(
            (tied + min(1.0, 2 / dp) * (parameters - tied)) / parameters * usual.optimizer_s
            + whole.ring_s(parameters - tied, dp) / 2
        )
        assert mine.allreduce_s == pytest.approx(whole.ring_s(sum(gradients), dp))
    assert [worker.order for worker in one.workers] == [worker.order for worker in other.workers]


@given(profile=profiles(), dp=st.integers(2, 8), is_staggered=st.booleans())
@settings(max_examples=10)
def test_a_gpus_account_counts_the_share_that_there_is(profile: Profile, dp: int, is_staggered: bool) -> None:
    """Its optimizer's part is that of the plan without sharing times 2/n, and of n - 1 after a death."""
    asked: dict[str, Any] = {"pp": 2, "dp": dp, "microbatches": 2}
    make: Planned = plan_slipstream if is_staggered else plan_pipeline
    plan = make(profile, shard_optimizer=True, **asked)
    usual = memory_of(profile, make(profile, **asked))
    for held, peers in ((memory_of(profile, plan), dp), (memory_of(profile, plan, after_losses=True), max(1, dp - 1))):
        for mine, theirs in zip(held, usual, strict=True):
            assert mine is not None and theirs is not None
            again = theirs.parameters_bytes + theirs.optimizer_bytes if is_staggered else 0.0
            tied = 1.0 if profile.layers[-1].tied_to == 0 else 0.0
            ratio = (profile.layers[-1].gradient_bytes or 0.0) / profile.layers[-1].parameter_bytes or 1.0
            whole = (2 - ratio) * tied + (tied + (2 - ratio) * tied if is_staggered else 0.0)
            in_blocks = theirs.optimizer_bytes + again - whole
            assert mine.optimizer_bytes == pytest.approx(whole + min(1.0, 2 / peers) * in_blocks)
            assert (mine.parameters_bytes, mine.gradients_bytes) == (theirs.parameters_bytes, theirs.gradients_bytes)
    assert fullest(memory_of(profile, plan)) is not None


LAYER = Layer((LayerCost(1.0, 1.0, 1.0),), parameter_bytes=10.0, state_bytes=30.0, activation_bytes=1.0)
SMALL = Profile((LAYER,) * 4, device=Device(memory_bytes=60.0))


def test_who_does_not_fit_is_told_by_how_much_and_what_would() -> None:
    """Without sharing the error offers it where it fits; with it, how much is missing, and with how many it fits."""
    with pytest.raises(NoRoomError, match="hold 80 B") as caught:
        plan_pipeline(SMALL, pp=2, dp=8, microbatches=2)
    assert "or share the optimizer's state among the pipelines (--shard-optimizer), where it fits" in str(caught.value)
    assert plan_pipeline(SMALL, pp=2, dp=8, microbatches=2, shard_optimizer=True).shards_optimizer
    with pytest.raises(NoRoomError) as caught:
        plan_pipeline(SMALL, pp=2, dp=4, microbatches=2, shard_optimizer=True)
    assert (
        "layers 0 to 1 hold 40 B of parameters and gradients, and 26.67 B of the optimizer's state, which 4 pipelines "
        "share, once one is lost: 6.667 B more than the device's 60 B"
    ) in str(caught.value)
    assert "take more stages, or --dp 5" in str(caught.value)
    with pytest.raises(NoRoomError) as caught:
        plan_pipeline(
            replace(SMALL, device=Device(memory_bytes=40.0)), pp=2, dp=4, microbatches=2, shard_optimizer=True
        )
    assert "--dp" not in str(caught.value)


def test_one_pipeline_has_nobody_to_share_with() -> None:
    """It is refused, by planners and in a file; and a file in which only some templates say it."""
    with pytest.raises(InvalidInputError, match="of one pipeline nobody has peers"):
        plan_pipeline(SMALL, pp=4, microbatches=2, shard_optimizer=True)
    plan = plan_pipeline(SMALL, pp=4, dp=2, microbatches=2, shard_optimizer=True)
    alone = replace(plan, pipelines=plan.pipelines[:1], workers=plan.workers[:4], prediction=None)
    with pytest.raises(InvalidInputError, match="no peers to share"):
        alone.validate()
    other = replace(plan.templates[0], name="t1", shard_optimizer=None)
    with pytest.raises(InvalidInputError, match="share the optimizer's state in other templates"):
        replace(plan, templates=(*plan.templates, other)).validate()


def test_files_of_shared_optimizers_are_refused_by_readers_that_know_none(tmp_path: Any) -> None:
    """Plans and atlases are of format version 3.0, and called less they are refused; plans without say nothing new."""
    plan = plan_pipeline(SMALL, pp=4, dp=4, microbatches=2, shard_optimizer=True)
    tree = json.loads(canonical(plan))
    assert tree["format_version"] == "3.0" and tree["planner"]["options"]["shard_optimizer"] is True
    assert parse_document(canonical(plan), Plan, "it") == plan
    tree["format_version"] = "2.0"
    with pytest.raises(InvalidInputError, match="a sharded optimizer, which format version"):
        parse_document(json.dumps(tree).encode(), Plan, "it")
    usual = canonical(plan_pipeline(SMALL, pp=4, dp=4, microbatches=2))
    assert b"shard" not in usual and b'"1.0"' in usual
    asked: dict[str, Any] = {"pp": 4, "dp": 3, "microbatches": 3, "max_failures": 1, "shard_optimizer": True}
    atlas = plan_atlas(replace(SMALL, device=Device()), str(tmp_path / "atlas"), **asked)
    assert atlas.state_bytes == pytest.approx((20 + 20 * 2 / 3,) * 4)
    assert plan_from_atlas(str(tmp_path / "atlas"), failures=1).shards_optimizer
