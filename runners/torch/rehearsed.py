"""The optimizer's step of a stage that is profiled, as a run takes it."""

from collections.abc import Sequence

import torch
from torch import nn

from .gradients import FlatGradients
from .held_layers import HeldLayers
from .optimizers import OptimizerFactory, StageOptimizer
from .precision import Precision

_DIVISOR = 2.0  # stands for what a loss has counted


class RehearsedStep:
    """Gradients in one buffer, summed in float32 at least, and an optimizer, with masters where the precision has some.

    Implements the StageStepper Protocol. Gradients are where they are summed from now on.

    Args:
        layers: a stage's, on their device, in the precision's type.
        optimizer: makes the optimizer.
        precision: as of `HeldStage`.
    """

    def __init__(self, layers: Sequence[nn.Module], optimizer: OptimizerFactory, precision: Precision) -> None:
        self._trained = [one for layer in layers for one in layer.parameters() if one.requires_grad]
        held = HeldLayers.of([(0, len(layers))])
        self._gradients = FlatGradients(layers, held, self._trained[0].device, with_loss=False)
        self._optimizer = StageOptimizer(optimizer, self._trained, precision)

    def step(self) -> None:
        """Divide the gradients, step, round masters to parameters, and set the gradients to zero."""
        self._gradients.attach()
        self._gradients.scale(1 / _DIVISOR)
        self._optimizer.step()
        self._gradients.clear()

    def gradient_bytes(self) -> int:
        """Of the sums of the gradients."""
        return sum(one.grad.nbytes for one in self._trained if one.grad is not None)

    def state_bytes(self) -> int:
        """Of the gradients, and of what the optimizer keeps of each number, once it has stepped."""
        kept = [entries[key] for one in self._trained for _, key, entries in self._optimizer.entries(one)]
        return self.gradient_bytes() + sum(one.nbytes for one in kept if isinstance(one, torch.Tensor) and one.ndim)
