"""What a worker holds of an optimizer that the peers of its stage share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.profile import Layer, LayerCost
from rtk.schemas.sharded import OptimizerShare, TrainedBytes

SIZES = st.integers(1, 1000).map(float)


@st.composite
def stages(draw: st.DrawFn) -> TrainedBytes:
    """Sizes of a stage; some of its parameters and of their moments are tied."""
    parameters, moments = draw(SIZES), draw(SIZES)
    tied = draw(st.sampled_from((0.0, 0.25, 1.0)))
    return TrainedBytes(parameters, draw(SIZES), moments, tied * parameters, tied * moments)


@given(stages(), st.integers(1, 40), st.booleans(), st.integers(1, 3))
def test_a_share_is_two_nths_of_what_is_in_blocks(sizes: TrainedBytes, peers: int, is_kept: bool, lost: int) -> None:
    """Of n peers each holds 2/n of what an optimizer has in blocks, all together two of each; after losses more."""
    share = OptimizerShare(peers, is_kept, lost)
    whole = sizes.optimizer_bytes + (sizes.parameter_bytes + sizes.optimizer_bytes if is_kept else 0.0)
    tied = sizes.tied_parameter_bytes / sizes.parameter_bytes
    held = share.held_bytes(sizes) - sizes.parameter_bytes - sizes.gradient_bytes
    assert held == pytest.approx(share.stepped(sizes) * whole)
    assert share.stepped(sizes) == pytest.approx(tied + (1 - tied) * min(1.0, 2 / peers))
    assert peers * share.of_whole == pytest.approx(min(peers, 2.0))
    assert share.after_losses.of_whole == OptimizerShare(max(1, peers - lost)).of_whole >= share.of_whole


@given(stages(), st.integers(2, 40), st.booleans(), st.integers(1, 3), st.integers(1, 4000).map(float))
def test_as_many_peers_as_are_named_have_room(
    sizes: TrainedBytes, peers: int, is_kept: bool, lost: int, room: float
) -> None:
    """So many fit, once some are lost, too, and one fewer do not; where none is named even a million do not."""

    def needs(count: int) -> float:
        return OptimizerShare(count, is_kept, lost).after_losses.held_bytes(sizes)

    enough = OptimizerShare(peers, is_kept, lost).fewest_peers(sizes, room)
    if enough is None:
        assert needs(10**6) >= room * (1 - 1e-9)
        return
    assert needs(enough) <= room * (1 + 1e-9)
    assert enough - lost <= 2 or needs(enough - 1) > room * (1 - 1e-9)


def test_weights_of_several_layers_are_whole_wherever_one_of_them_is() -> None:
    """A tied matrix is in no block of either layer's stage, and counts once where a worker has both."""
    own = Layer((LayerCost(1.0, 1.0, 1.0),), parameter_bytes=10.0, state_bytes=30.0)
    last = Layer((LayerCost(1.0, 1.0, 1.0),), "head", 8.0, 24.0, tied_to=0, tied_bytes=6.0, tied_state_bytes=18.0)
    layers = (own, own, last)
    assert TrainedBytes.of(layers, [(1, 2)]) == TrainedBytes(10.0, 10.0, 20.0)
    assert TrainedBytes.of(layers, [(0, 2)]) == TrainedBytes(20.0, 20.0, 40.0, 6.0, 12.0)
    assert TrainedBytes.of(layers, [(2, 3)]) == TrainedBytes(8.0, 8.0, 16.0, 6.0, 12.0)
    assert TrainedBytes.of(layers, [(0, 3)], 2) == TrainedBytes(11.0, 11.0, 22.0, 3.0, 6.0)
    assert TrainedBytes.of(layers, [(2, 3)], beside=[(0, 1)]) == TrainedBytes(2.0, 2.0, 4.0)
