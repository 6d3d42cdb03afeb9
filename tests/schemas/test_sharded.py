"""What a worker holds of an optimizer that the peers of its stage share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.sharded import OptimizerShare

SIZES = st.integers(1, 1000).map(float)


@given(SIZES, SIZES, SIZES, st.integers(1, 40), st.booleans(), st.integers(1, 3))
def test_a_share_is_two_nths_and_shrinks_with_the_peers(
    parameters: float, gradients: float, moments: float, peers: int, is_kept: bool, lost: int
) -> None:
    """Of n peers each holds 2/n of what an optimizer has, all peers together two of each; after losses more."""
    share = OptimizerShare(peers, is_kept, lost)
    held = share.held_bytes(parameters, gradients, gradients + moments)
    shared = moments + (parameters + moments if is_kept else 0.0)
    assert held == pytest.approx(parameters + gradients + min(1.0, 2 / peers) * shared)
    assert peers * share.of_whole == pytest.approx(min(peers, 2.0))
    assert share.after_losses.of_whole == OptimizerShare(max(1, peers - lost)).of_whole >= share.of_whole


@given(SIZES, SIZES, SIZES, st.integers(2, 40), st.booleans(), st.integers(1, 3), st.integers(1, 4000).map(float))
def test_as_many_peers_as_are_named_have_room(
    parameters: float, gradients: float, moments: float, peers: int, is_kept: bool, lost: int, room: float
) -> None:
    """So many fit, once some are lost, too, and one fewer do not; where none is named even a million do not."""
    sizes = parameters, gradients, gradients + moments

    def needs(count: int) -> float:
        return OptimizerShare(count, is_kept, lost).after_losses.held_bytes(*sizes)

    enough = OptimizerShare(peers, is_kept, lost).fewest_peers(*sizes, room)
    if enough is None:
        assert needs(10**6) > room
        return
    assert needs(enough) <= room * (1 + 1e-9)
    assert enough - lost <= 2 or needs(enough - 1) > room * (1 - 1e-9)
