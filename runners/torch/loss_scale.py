"""The loss scale of fp16: gradients are those of a multiple of the loss, lest small ones vanish in 16 bits.

Dynamic, as Micikevicius et al. ("Mixed Precision Training", 2018) and torch's GradScaler have it, whose numbers these
are: where a gradient of an iteration is not finite, nobody steps, and the scale is halved; after 2000 steps without
that it is doubled. So it depends only on which iterations were skipped, and all workers that count steps alike have the
same scale without a message of their own.
"""

from collections.abc import Iterable

import torch

FIRST_SCALE = 65536.0
LEAST_SCALE = 1.0  # what is not finite here has another cause, and a scale of 0 would hide it
GROWS_AFTER = 2000  # steps
ENTRY = "/loss_scale"  # in a layer's state; no parameter has such a name


class LossScale:
    """The scale as a part of each layer's state: it is copied, saved, kept and brought back with the layers.

    Of each layer three numbers are kept: the scale, how many steps were taken when it last changed, and how many
    iterations were skipped until then. They are brought up to date when an iteration begins (`begin`), so peers agree
    within one; between two iterations some may know already that the last one was skipped, and others not yet.

    Args:
        layers: the numbers in the model of those held.
    """

    def __init__(self, layers: Iterable[int]) -> None:
        self._numbers = {layer: torch.tensor([FIRST_SCALE, 0.0, 0.0], dtype=torch.float64) for layer in layers}

    @property
    def now(self) -> float:
        """By which the loss is multiplied; a power of 2, so that dividing by it is exact."""
        return float(next(iter(self._numbers.values()))[0])

    def begin(self, iteration: int, taken: int) -> None:
        """Have the scale of an iteration; again it changes nothing.

        Args:
            iteration: its number.
            taken: steps taken before it; the other iterations before it were skipped.
        """
        for numbers in self._numbers.values():
            numbers.copy_(torch.tensor(scale_at(numbers.tolist(), iteration - taken, taken), dtype=torch.float64))

    def state(self) -> dict[str, torch.Tensor]:
        """The numbers of each layer by their name in the state; references."""
        return {f"{layer}.{ENTRY}": numbers for layer, numbers in self._numbers.items()}


def scale_at(before: Iterable[float], skipped: int, taken: int) -> list[float]:
    """The numbers of a loss scale after so many iterations.

    Args:
        before: the numbers as of an earlier moment: scale, steps taken when it changed, iterations skipped until then.
        skipped: iterations, since the beginning of the job.
        taken: steps, likewise.
    """
    scale, since, known = before
    for _ in range(skipped - int(known)):
        scale, since = max(scale / 2, LEAST_SCALE), taken
    while taken - since >= GROWS_AFTER:
        scale, since = scale * 2, since + GROWS_AFTER
    return [scale, since, skipped]
