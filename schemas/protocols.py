"""The small Protocols by which the wings meet without importing each other; `cli/` wires them."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .plan import Layers, Place, Plan

    Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class StageExecutor(Protocol):
    """A stage's layers on a device, executed micro-batch by micro-batch, with the backward pass split in two.

    What a profiler times is what a runner executes: both hold one of these. `key` names the micro-batch between its
    forward and its backward; several may be under way at once.
    """

    def forward(self, key: Hashable, inputs: "torch.Tensor", target: "torch.Tensor | None" = None) -> "torch.Tensor":
        """F: the stage's output; the loss (a scalar) at a last stage, which alone takes a `target`."""
        ...

    def backward_input(self, key: Hashable, gradient: "torch.Tensor | None" = None) -> "torch.Tensor | None":
        """I: the gradient of the stage's input (None where the input takes none); weight gradients are put off.

        `gradient` is that of the stage's output; None at a last stage, whose output is the loss.
        """
        ...

    def backward_weight(self, key: Hashable) -> None:
        """W: the weight gradients that `backward_input` put off."""
        ...

    def backward(self, key: Hashable, gradient: "torch.Tensor | None" = None) -> "torch.Tensor | None":
        """B: `backward_input` and `backward_weight` in one."""
        ...

    def stash_bytes(self, key: Hashable) -> int:
        """Bytes that a micro-batch keeps between its I and its W."""
        ...


class StageFactory(Protocol):
    """Makes a StageExecutor of consecutive layers; `loss` is given for a last stage."""

    def __call__(self, layers: "Sequence[nn.Module]", loss: "Loss | None" = None) -> StageExecutor:
        """Make the executor."""
        ...


@dataclass(frozen=True, slots=True)
class Hand:
    """A worker that will be there when a new plan begins.

    Attributes:
        worker: its name, by which it was started.
        place: its place in the running plan; None: it has none, but would take one.
        layers: [first, stop) whose state it has, as of the last commit; None: no state.
    """

    worker: str
    place: "Place | None"
    layers: "Layers | None"


@dataclass(frozen=True)
class Replanned:
    """A plan for the workers that are left.

    Attributes:
        plan: its live places are those of `seats`.
        seats: who takes which place; who is not named waits until there is one.
    """

    plan: "Plan"
    seats: "tuple[tuple[str, Place], ...]"


class Replan(Protocol):
    """Plans anew for one job when workers have died or come; the same question has the same answer."""

    def __call__(self, plan: "Plan", crew: tuple[Hand, ...]) -> Replanned:
        """The next plan, and who takes which place.

        Args:
            plan: the one that is running.
            crew: who will be there, those with a place in the order of their places.

        Raises:
            InfeasibleError: training cannot go on with these workers.
        """
        ...
