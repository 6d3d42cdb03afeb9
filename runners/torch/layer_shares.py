"""What one rank of a worker has of a model's layers, whichever of them the worker holds at present."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import nn

from ...schemas.errors import InvalidInputError
from ...schemas.plan import Layers, Plan, Worker
from ...schemas.protocols import LayerCuts
from ...schemas.slices import TensorCut
from ..training import SharedBuffers
from .held_stage import HeldStage, OptimizerFactory
from .optimizers import require_elementwise
from .precision import Precision
from .rank_group import RankGroup
from .schedules import Schedule
from .stage import Loss
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


def check_cuts(plan: Plan, layers: Sequence[nn.Module], cuts: LayerCuts | None) -> None:
    """Raise InvalidInputError unless the layers can be shared by as many ranks as the plan's stages have GPUs."""
    for t, template in enumerate(plan.templates):
        for i, stage in enumerate(template.stages):
            if stage.tensor_parallel > 1 and cuts is None:
                raise InvalidInputError(
                    f"a stage of template {template.name} is on {stage.tensor_parallel} GPUs, and nothing says how its "
                    "layers are cut",
                    where=f"/templates/{t}/stages/{i}/tensor_parallel",
                    fix="give PlanRunner cuts=ModelCuts({...}), or plan with --tensor-parallel 1",
                )
            if cuts is not None:
                for number in range(*stage.layers):
                    cuts.check(layers[number], stage.tensor_parallel, f"layer {number}")


def cut_ties(ties: Sequence[Tie], layers: Sequence[nn.Module], cuts: LayerCuts) -> tuple[Tie, ...]:
    """Ties of whole layers by the names that their parameters have in layers that are cut.

    Raises:
        InvalidInputError: a parameter is cut in one of its places and whole in another.
    """
    found = []
    for one in ties:
        places = tuple((layer, cuts.name_in_cut(layers[layer], name)) for layer, name in one.places)
        are_cut = {new != old for new, old in zip(places, one.places, strict=True)}
        if len(are_cut) > 1:
            raise InvalidInputError(
                f"layers {one.layers} share {one.places[0][1]} (tied weights), cut in one of them and whole in another",
                where="the tensor-parallel plan",
                fix="cut an embedding and its tied head by vocabulary, both or neither",
            )
        found.append(replace(one, places=places))
    return tuple(found)


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

    def stage(
        self,
        layers: Sequence[nn.Module],
        plan: Plan,
        worker: Worker,
        loss: Loss,
        optimizer: OptimizerFactory,
        device: torch.device | str,
        *,
        clip_norm: float | None,
        precision: Precision,
        schedule: Schedule | None,
        buffers: SharedBuffers,
        is_sharded: bool,
        is_split: bool = False,
    ) -> HeldStage:
        """What this rank holds of a worker's layers.

        Args:
            layers: all of the model, whole; those of the worker with their values.
            plan: whose worker it is.
            worker: one of as many ranks as share the layers.
            loss: of whole logits; used where the worker holds the last layer.
            optimizer, device, clip_norm, precision, schedule, buffers, is_sharded, is_split: as of `HeldStage`.

        Raises:
            InvalidInputError: as `HeldStage`.
        """
        first, *further = plan.layers_of(worker)
        is_last = plan.holds_last(worker)
        if is_last and self._cuts is not None:
            loss = self._cuts.loss(loss, layers[-1], self._group)
        return HeldStage(
            self.of(layers, (first, *further)),
            first,
            loss,
            optimizer,
            device,
            is_last=is_last,
            is_split=is_split,
            clip_norm=clip_norm,
            ties=self.ties,
            precision=precision,
            schedule=schedule,
            buffers=buffers,
            further=further,
            share=self._group.rank,
            degree=self._group.degree,
            cuts=self.tensors,
            is_sharded=is_sharded,
        )
