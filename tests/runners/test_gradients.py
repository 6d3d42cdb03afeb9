"""Gradients stand in flat buffers of which every run of layers is a view, the same wherever the stage is cut."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rtk.runners.torch.gradients import FlatGradients
from rtk.runners.torch.held_layers import HeldLayers

KINDS = ("linear", "double", "mixed", "frozen", "empty")


def make_layer(kind: str) -> nn.Module:
    match kind:
        case "linear":
            return nn.Linear(2, 3)
        case "double":
            return nn.Linear(3, 2, dtype=torch.float64)
        case "mixed":
            return nn.Sequential(nn.Linear(1, 2, dtype=torch.bfloat16), nn.Linear(2, 2))
        case "frozen":
            return nn.Linear(2, 2).requires_grad_(False)
        case _:
            return nn.ReLU()


def held(kinds: list[str], first: int, stop: int) -> tuple[list[nn.Module], FlatGradients]:
    layers = [make_layer(kind) for kind in kinds[first:stop]]
    those = HeldLayers(((first, stop),))
    return layers, FlatGradients(layers, those, torch.device("cpu"), with_loss=stop == len(kinds))


def own_gradients(layers: list[nn.Module]) -> list[torch.Tensor]:
    return [parameter.grad for layer in layers for parameter in layer.parameters() if parameter.grad is not None]


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6), st.data())
def test_layers_have_one_view_wherever_the_stage_is_cut(kinds: list[str], data: st.DataObject) -> None:
    """Of layers that two stages hold both have views of equal types and lengths, and these are the gradients."""
    first, stop = sorted(data.draw(st.lists(st.integers(0, len(kinds)), min_size=2, max_size=2, unique=True)))
    wider = data.draw(st.integers(0, first)), data.draw(st.sampled_from([stop, len(kinds)]))
    wider = wider if (wider[1] == len(kinds)) == (stop == len(kinds)) else (wider[0], stop)
    (small, mine), (large, theirs) = held(kinds, first, stop), held(kinds, *wider)
    views, others = mine.of_layers((first, stop)), theirs.of_layers((first, stop))
    assert [(view.dtype, view.shape) for view in views] == [(view.dtype, view.shape) for view in others]
    for number, (view, other) in enumerate(zip(views, others, strict=True), 1):
        view.fill_(number)
        other.fill_(number)
    for ours, its in zip(own_gradients(small), own_gradients(large[first - wider[0] :][: len(small)]), strict=True):
        assert torch.equal(ours, its) and ours.all()
    if stop == len(kinds):
        assert mine.loss() == theirs.loss() > (0, 0)


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6), st.data())
def test_parts_of_a_stage_are_the_whole(kinds: list[str], data: st.DataObject) -> None:
    """The views of a stage's parts hold every number of its buffers once, the loss too; that of all is the buffers."""
    _, gradients = held(kinds, 0, len(kinds))
    whole = gradients.of_layers((0, len(kinds)))
    assert [(v.data_ptr(), len(v)) for v in whole] == [(b.data_ptr(), len(b)) for b in gradients.buffers]
    cuts = sorted({0, len(kinds), *data.draw(st.sets(st.integers(0, len(kinds))))})
    for part in pairwise(cuts):
        for view in gradients.of_layers(part):
            view += 1
    gradients.add_loss(torch.tensor([2.0, 7.0]))
    assert gradients.loss() == (3, 8)
    gradients.add_loss(torch.tensor([-2.0, -7.0]))
    assert all(bool((buffer == 1).all()) for buffer in gradients.buffers)


def test_a_shared_parameter_belongs_to_the_first_of_its_layers() -> None:
    """Tied weights stand once, with the first layer; a last layer that has no other ones keeps the loss apart."""
    first, last = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    last.weight = first.weight
    gradients = FlatGradients([first, last], HeldLayers(((4, 6),)), torch.device("cpu"), with_loss=True)
    assert [len(view) for view in gradients.of_layers((4, 5))] == [4]
    assert [len(view) for view in gradients.of_layers((5, 6))] == [2]


def test_losses_keep_their_digits_beside_bfloat16() -> None:
    """A sum of losses is as exact as float32, whatever type the last layer's gradients have."""
    layer = nn.Linear(2, 2, dtype=torch.bfloat16)
    gradients = FlatGradients([layer], HeldLayers(((0, 1),)), torch.device("cpu"), with_loss=True)
    for _ in range(100):
        gradients.add_loss(torch.tensor([0.0511, 150_001]))
    total, count = gradients.loss()
    assert abs(total - 5.11) < 1e-5 and count == 15_000_100


def test_what_layers_share_stands_by_itself_and_counts_once() -> None:
    """Tied gradients are in no part, are scaled and cleared, and the norm has them with the first of their layers."""
    first, last = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
    last.weight = first.weight
    ties: dict[tuple[int, ...], list[nn.Parameter]] = {(4, 9): list(first.parameters())}
    front = FlatGradients([first], HeldLayers(((4, 5),)), torch.device("cpu"), with_loss=False, ties=ties)
    # It takes the gradients over.
    back = FlatGradients(
        [last], HeldLayers(((9, 10),)), torch.device("cpu"), with_loss=True, ties=ties
    )  # takes the gradients over
    assert (front.of_layers((4, 5)), [len(view) for view in back.of_layers((9, 10))]) == ([], [4])
    for gradients in (front, back):
        (tied,) = gradients.of_tie((4, 9))
        tied.fill_(2.0)
        gradients.scale(1.5)
        assert tied.tolist() == [3.0] * 4
    assert torch.equal(first.weight.grad.reshape(-1), back.of_tie((4, 9))[0])  # type: ignore[union-attr]
    assert front.squared_norms([4]) == {4: 36.0}
    assert back.squared_norms([9]) == {9: 0.0}
    back.clear()
    assert not first.weight.grad.any()  # type: ignore[union-attr]
