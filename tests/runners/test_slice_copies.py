"""Copies between workers of unlike degrees, over a transport that is a dictionary."""

import copy
from functools import partial
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.resilience.protocol import Copy
from rtk.runners.torch.layout import RankLayout
from rtk.runners.torch.rank_group import RankGroup
from rtk.runners.torch.recut import recut
from rtk.runners.torch.slice_copies import SliceCopies, whole_checksums
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.slices import TensorCut

LAYERS = (3, 4)
DEGREES = st.integers(1, 4)
CUTS = {
    "3.qkv": TensorCut(0, 24, parts=3),
    "3.words": TensorCut(0, 13),
    "3.out": TensorCut(1, 12),
    "3.key": TensorCut(0, 6, most=2),
}
_random = partial(torch.randn, generator=torch.Generator().manual_seed(1))
WHOLE = {
    "3.norm": torch.arange(5.0),
    "3.qkv": _random(24, 2),
    "3.words": _random(13, 3),
    "3.out": _random(2, 12),
    "3.key": _random(6, 2, dtype=torch.float64),
    "3.qkv/exp_avg": _random(24, 2),
    "3.key/exp_avg": _random(6, 2, dtype=torch.float64),
    "3.norm/step": torch.tensor(7.0),
}


def ranks_of(degree: int) -> list[dict[str, torch.Tensor]]:
    """What each rank of a worker has of the whole state."""
    return [dict(recut([WHOLE], list(WHOLE), CUTS, degree, rank)) for rank in range(degree)]


class Letters:
    """A transport whose messages wait in a dictionary."""

    def __init__(self, letters: dict[tuple[int, int, int], torch.Tensor], rank: int) -> None:
        self._letters, self._rank = letters, rank

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Put it there, once."""
        assert (self._rank, to, tag) not in self._letters
        self._letters[self._rank, to, tag] = tensor

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """It is there, and like what is expected."""
        sent = self._letters[source, self._rank, tag]
        assert (sent.shape, sent.dtype) == (like.shape, like.dtype)

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """Take it."""
        return self._letters.pop((source, self._rank, tag))


@given(DEGREES, DEGREES, st.data())
def test_ranks_of_any_degree_have_their_slices(before: int, after: int, data: st.DataObject) -> None:
    """From a worker of any degree each rank that lacks it has its slices, the optimizer's too, and no message is left;
    all of it together is not more than the state of these ranks. In which order a rank has its entries does not matter.
    """
    order = data.draw(st.permutations(list(WHOLE)))
    lacking = data.draw(st.none() | st.sets(st.integers(0, after - 1)).map(lambda ranks: tuple(sorted(ranks))))
    layout = RankLayout((before, after))
    letters: dict[tuple[int, int, int], torch.Tensor] = {}
    copied = Copy(0, 1, LAYERS, lacking)

    def of(rank: int) -> SliceCopies:
        transport = cast(Any, Letters(letters, rank))
        return SliceCopies(layout, rank, transport, CUTS, lambda layers, number: number)

    for rank, state in enumerate(ranks_of(before)):
        of(rank).send(copied, state)
    for rank, state in enumerate(ranks_of(after)):
        if lacking is None or rank in lacking:
            empty = {name: torch.zeros_like(state[name]) for name in order}
            found = of(before + rank).receive(copied, empty, lambda: None)
            assert found.keys() == state.keys()
            assert all(torch.equal(found[name], value) for name, value in state.items())
    assert not letters
    assert of(0).concerns(copied) == (before != after)


def checksum(states: list[dict[str, torch.Tensor]]) -> str:
    """Of the layer, as the ranks of a worker find it together."""
    degree, total = len(states), torch.zeros(1, dtype=torch.float64)

    def add(own: torch.Tensor) -> None:
        total.add_(own)

    def take(own: torch.Tensor) -> None:
        own.copy_(total)

    for rank, state in enumerate(states):
        whole_checksums({3: state}, CUTS, RankGroup(degree, rank, add))
    ((_, found),) = whole_checksums({3: states[0]}, CUTS, RankGroup(degree, 0, take)).items()
    return found


@given(DEGREES, DEGREES, st.sampled_from(list(WHOLE)), st.data())
def test_whole_checksums_are_those_of_any_degree(one: int, other: int, name: str, data: st.DataObject) -> None:
    """A layer has one checksum whatever ranks share it, and another once a single number of it changes."""
    states = ranks_of(other)
    assert checksum(ranks_of(one)) == checksum(states)
    changed = copy.deepcopy(states)
    flat = changed[0][name].view(-1)
    if len(flat):
        flat[data.draw(st.integers(0, len(flat) - 1))] += 0.5
        assert checksum(changed) != checksum(states)


def test_state_of_another_shape_is_not_copied() -> None:
    """What an optimizer keeps of a cut parameter otherwise than by its shape is refused by name."""
    state = {"3.qkv": torch.zeros(24, 2), "3.qkv/row": torch.zeros(24)}
    slices = SliceCopies(RankLayout((1, 2)), 0, cast(Any, None), CUTS, lambda layers, number: number)
    with pytest.raises(InvalidInputError, match=r"what the optimizer keeps as 3\.qkv/row is of shape"):
        slices.send(Copy(0, 1, LAYERS), state)
