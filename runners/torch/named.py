"""Optimizers and schedules of learning rates by the names that options give them; optimizers are torch's own.

Weight decay, where it is asked for, is of matrices only, as usual for language models (Megatron-LM, nanoGPT); without a
word torch's defaults hold, of all parameters. Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural
networks", 2024) is for matrices inside the network; the authors have AdamW for all others. Updates are scaled to
AdamW's size ("Muon is Scalable for LLM Training", arXiv:2502.16982, section 2.2): one learning rate is for both.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ..training import TrainingConfig, parse_betas
from .optimizers import OptimizerFactory, decay_groups
from .schedules import RateCurve, constant, cosine, linear, wsd


def optimizer_of(training: TrainingConfig, layers: Sequence[nn.Module]) -> OptimizerFactory:
    """What makes the optimizer of a stage's parameters.

    Args:
        training: names it.
        layers: all of the model's, of which only shapes are looked at.
    """
    return partial(_made, training, _outer_shapes(layers) if training.optimizer == "muon" else frozenset())


def _made(
    training: TrainingConfig, outer: frozenset[torch.Size], parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    own = list(parameters)
    rate: dict[str, Any] = {"lr": training.learning_rate}
    adam = rate if training.betas is None else {**rate, "betas": parse_betas(training.betas)}
    if training.optimizer == "sgd":
        return torch.optim.SGD(_groups(training, own), **rate)
    if training.optimizer == "adamw":
        return torch.optim.AdamW(_groups(training, own), **adam)
    inner = [one for one in own if one.dim() == 2 and one.shape not in outer]
    others = [one for one in own if one.dim() != 2 or one.shape in outer]
    parts: list[torch.optim.Optimizer] = []
    if inner:
        parts.append(torch.optim.Muon(_groups(training, inner), **rate, adjust_lr_fn="match_rms_adamw"))
    if others:
        parts.append(torch.optim.AdamW(_groups(training, others), **adam))
    return parts[0] if len(parts) == 1 else Together(parts)


def _groups(training: TrainingConfig, parameters: list[nn.Parameter]) -> Any:
    """Parameters as they are, or in groups with and without weight decay."""
    if training.weight_decay is None:
        return parameters
    if training.decay_all:
        return [{"params": parameters, "weight_decay": training.weight_decay}]
    return decay_groups(parameters, training.weight_decay)


def schedule_of(training: TrainingConfig) -> RateCurve | None:
    """How the learning rate goes; None where it is always the same.

    Args:
        training: checked.
    """
    if not training.is_scheduled:
        return None
    if training.lr_schedule == "constant":
        return constant(warmup=training.warmup)
    assert training.lr_steps is not None
    ends: dict[str, Any] = {"warmup": training.warmup, "steps": training.lr_steps, "final": training.min_lr_ratio}
    if training.lr_schedule == "wsd":
        return wsd(**ends, decay=training.lr_fall)
    return linear(**ends) if training.lr_schedule == "linear" else cosine(**ends)


def _outer_shapes(layers: Sequence[nn.Module]) -> frozenset[torch.Size]:
    """Shapes of the matrices of embeddings, and of those of the last layer, which lead out of the network.

    A stage's optimizer is given parameters without their names; a matrix inside that has one of these shapes, such as
    one of a model that is as wide as its vocabulary, is taken for one of them.
    """
    embeddings = [one for layer in layers for one in layer.modules() if isinstance(one, nn.Embedding)]
    outer = [one for module in (*embeddings, *layers[-1:]) for one in module.parameters()]
    return frozenset(one.shape for one in outer)


class Together(torch.optim.Optimizer):
    """Several optimizers, each of parameters of its own, as one: the same groups and the same state.

    Args:
        parts: one or more.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self._parts = list(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take another state over, in all parts."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for part in self._parts:
            part.state = self.state
            part.param_groups = [next(groups) for _ in part.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step all of them.

        Raises:
            TypeError: there is a closure, which each part would call once.
        """
        if closure is not None:
            raise TypeError("several optimizers cannot share a closure")
        for part in self._parts:
            part.step()
