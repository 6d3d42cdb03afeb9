"""Pipelines of held stages in one process, for tests: what runs between ranks is a sum here."""

import copy
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from rtk.runners.resilience.protocol import StepTerms
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.stage import Loss

Batch = Sequence[tuple[torch.Tensor, torch.Tensor]]


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.3)


def cut(layers: Sequence[nn.Module], cuts: Sequence[int], loss: Loss, **settings: Any) -> list[HeldStage]:
    """A copy of the layers, cut into stages before the layers `cuts`."""
    own = list(copy.deepcopy(nn.ModuleList(layers)))
    settings = {"optimizer": adamw} | settings
    parts = itertools.pairwise([0, *cuts, len(layers)])
    return [HeldStage(own, part, loss, is_last=part[1] == len(layers), **settings) for part in parts]


def compute(stages: Sequence[HeldStage], batch: Batch, is_split: bool = False, key: int = 0) -> tuple[float, float]:
    """F of all micro-batches, then all of backward, through all stages; the losses' (sum, count)."""
    sums, counts = [], []
    for stage in stages:
        stage.adapt(is_split)
        stage.begin()
    for number, (value, target) in enumerate(batch, key):
        for stage in stages:
            value = stage.stage.forward(number, value, target if stage.is_last else None)
            if stage.stage.added is not None:
                sums.append(stage.stage.added.item())
        stages[-1].gradients.add_loss(value)
        sums.append(value[0].item())
        counts.append(value[1].item())
    for number in range(key, key + len(batch)):
        gradient = None
        for stage in reversed(stages):
            gradient = (stage.stage.backward_input if is_split else stage.stage.backward)(number, gradient)
    if is_split:
        for stage in stages:
            for number in range(key, key + len(batch)):
                stage.stage.backward_weight(number)
    return math.fsum(sums), math.fsum(counts)


def sum_over(pipes: Sequence[Sequence[HeldStage]]) -> None:
    """All pipelines, cut alike, have the sums of all."""
    for peers in zip(*pipes, strict=True):
        for place, peer in enumerate(peers):
            peer.share_buffers(peer.layers_range, len(peers), place == 0)
        for same in zip(*(peer.gradients.buffers for peer in peers), strict=True):
            total = torch.stack(list(same)).sum(0)
            for buffer in same:
                buffer.copy_(total)


def norm_of(stages: Sequence[HeldStage], count: float) -> float:
    """Of the divided gradients of all stages."""
    return math.sqrt(sum(sum(one.squared_norms(range(*one.layers_range)).values()) for one in stages)) / count


def train(stages: Sequence[HeldStage], batch: Batch, taken: int, is_split: bool = False) -> float:
    """One iteration; its mean loss."""
    total, count = compute(stages, batch, is_split)
    norm = norm_of(stages, count)
    for stage in stages:
        stage.step(StepTerms(count, norm, taken))
    return total / count
