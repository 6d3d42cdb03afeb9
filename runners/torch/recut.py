"""State by slices: what a rank needs of layers that other ranks hold, whatever the degrees of both."""

from collections.abc import Mapping, Sequence

import torch

from ...schemas.errors import InvalidInputError
from ...schemas.slices import TensorCut, pieces_for

State = Mapping[str, torch.Tensor]


def recut(
    sources: Sequence[State], names: Sequence[str], cuts: Mapping[str, TensorCut], degree: int, rank: int
) -> State:
    """The state of a rank, made of what the ranks of a worker of the same or another degree have.

    What the optimizer keeps of a parameter (`3.qkv.weight/exp_avg`) is cut as that is, where it has its shape.

    Args:
        sources: of all ranks of that worker, in their order; of one GPU one. They may have more than is asked for.
        names: of the rank's state.
        cuts: how parameters are cut, by name; others are whole on every rank.
        degree: ranks of the worker that takes; `rank` is one of them.
        rank: that one.

    Raises:
        InvalidInputError: a source lacks a name, or at another degree the optimizer keeps of a cut parameter what has
            another shape.
    """
    found = {}
    for name in names:
        for number, source in enumerate(sources):
            if name not in source:
                raise InvalidInputError(
                    f"the state of rank {number} lacks {name}",
                    where="the state to load",
                    fix="give the states of all ranks of workers that hold these layers, after their last step",
                )
        own = sources[rank % len(sources)]
        cut = None if degree == len(sources) else cut_of(name, own, cuts)
        if cut is None:
            found[name] = own[name]
            continue
        parts = [(sources[piece.source][name], piece.taken) for piece in pieces_for(cut, degree, rank, len(sources))]
        taken = [whole.narrow(cut.dimension, start, stop - start) for whole, (start, stop) in parts]
        found[name] = torch.cat(taken, cut.dimension)
    return found


def cut_of(name: str, state: State, cuts: Mapping[str, TensorCut]) -> TensorCut | None:
    """How an entry of a rank's state is cut; None: every rank has it whole.

    Args:
        name: of the entry.
        state: that has it, and the parameter that it belongs to.
        cuts: how parameters are cut, by name.

    Raises:
        InvalidInputError: the optimizer keeps of a cut parameter what has another shape.
    """
    parameter, _, kept = name.partition("/")
    if parameter not in cuts or (kept and not state[name].dim()):
        return None
    if state[name].shape != state[parameter].shape:
        raise InvalidInputError(
            f"what the optimizer keeps as {name} is of shape {list(state[name].shape)}, unlike the parameter: how it "
            "is cut is not known",
            where="the state to load",
            fix="keep the degree, or take an optimizer whose state has the parameters' shapes, such as AdamW",
        )
    return cuts[parameter]
