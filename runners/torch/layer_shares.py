"""What one rank of a worker has of a model's layers, whichever of them the worker holds at present."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from torch import nn

from ...schemas.errors import InvalidInputError
from ...schemas.plan import Layers
from ...schemas.protocols import LayerCuts
from ...schemas.slices import TensorCut
from .optimizers import require_elementwise
from .rank_group import RankGroup
from .runner import cut_ties
from .task import Task
from .ties import Tie


def smaller_degrees(task: Task, layers: Sequence[nn.Module]) -> tuple[int, ...]:
    """The numbers of ranks below the plan's that could go on with a worker's layers, ascending.

    None where peers share the optimizer's state, for blocks are of what a rank has; or where the optimizer looks at
    whole parameters: of slices of another width it would make other ones than the peers do.

    Args:
        task: what is trained.
        layers: all of the model, whole.
    """
    most = task.plan.gpus_of(task.worker())
    if most == 1 or task.cuts is None or task.shard_optimizer:
        return ()
    try:
        require_elementwise(task.optimizer, layers)
    except InvalidInputError:
        return ()
    return tuple(degree for degree in range(1, most) if _can_share(layers, task.cuts, degree))


def _can_share(layers: Sequence[nn.Module], cuts: LayerCuts, degree: int) -> bool:
    try:
        for number, layer in enumerate(layers):
            cuts.check(layer, degree, f"layer {number}")
    except InvalidInputError:
        return False
    return True


class LayerShares:
    """Cuts whole layers among the ranks of a worker; of a worker of one rank they stay whole.

    Args:
        layers: all layers of the model, whole; their values do not matter.
        cuts: how they are cut; needed where there are several ranks.
        group: the ranks, and which of them this is.
        ties: of the whole layers.

    Attributes:
        tensors: how what is cut is cut, by names in the state, of all layers of the model.
        ties: by the names that parameters have in layers that are cut.

    Raises:
        InvalidInputError: a parameter is cut in one of its places and whole in another.
    """

    def __init__(
        self, layers: Sequence[nn.Module], cuts: LayerCuts | None, group: RankGroup, ties: Sequence[Tie]
    ) -> None:
        self._cuts, self._group = cuts if group.degree > 1 else None, group
        self.tensors: dict[str, TensorCut] = {}
        self.ties: Sequence[Tie] = ties
        if cuts is not None:  # others of this job may be of another degree
            for number, layer in enumerate(layers):
                self.tensors |= {f"{number}.{name}": cut for name, cut in cuts.tensors(layer).items()}
        if self._cuts is not None:
            self.ties = cut_ties(ties, layers, self._cuts)

    def of(self, layers: Sequence[nn.Module], held: Sequence[Layers]) -> list[nn.Module]:
        """The layers, of those in some ranges [first, stop) what this rank has of them."""
        found = list(layers)
        if self._cuts is not None:
            for number in chain.from_iterable(range(*own) for own in held):
                found[number] = self._cuts.cut(found[number], self._group)
        return found

    def loss(self, loss: Any, last: nn.Module) -> Any:
        """The loss of what this rank has of the last layer's output; `last` is the whole layer."""
        return loss if self._cuts is None else self._cuts.loss(loss, last, self._group)
