"""The ranks of one worker in one epoch: the sums that their layers compute with, and where they stop together.

They have a process group of their own, which the death of another worker leaves alone. So an operation that all of them
have begun comes to its end on all of them, whoever else is lost meanwhile: what it adds to gradients is never there by
half. Before each operation with sums in it they tell each other in one small sum whether they go on. Thus they stop at
the same instruction, and what they have of an interrupted iteration is the same, each its slices of it.

Only where one of them dies or leaves the epoch does a sum break in the midst of an operation. What is then in the
gradients is of no use, but the worker is lost in any case, and the others are orphans.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import torch

from ...schemas.errors import RuntimeFailedError
from ..program import AllReduce, Compute, Instruction, Pair
from .transport import Transport

# Where this rank is: at an instruction without sums, inside an operation that all have begun, in the sums over
# gradients, or where one of them has stopped.
_Place = Literal["between", "inside", "summing", "stopped"]


class TeamLostError(RuntimeFailedError):
    """A sum between the ranks of one worker broke, or one of them does not go on."""


class Team:
    """The ranks of this process's worker, itself included.

    Args:
        transport: sums over all of them, by their numbers in the worker; taken over.
        degree: how many they are.
    """

    def __init__(self, transport: Transport, degree: int) -> None:
        self._transport = transport
        self._everyone = tuple(range(degree))
        self._place: _Place = "between"

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum in place.

        Raises:
            TeamLostError: one of them is gone, or has left the epoch.
        """
        try:
            self._transport.all_reduce(self._everyone, tensor)
        except RuntimeFailedError as error:
            raise TeamLostError(f"the sum with another rank of this worker broke: {error.what}") from error

    def begin(self, instruction: Instruction, *, goes_on: bool) -> None:
        """Before an instruction: where all take part in it, it begins only if all of them go on.

        Args:
            instruction: what comes next, in the same order for all of them.
            goes_on: whether this rank does.

        Raises:
            TeamLostError: one of them does not.
        """
        self._place = "between"
        if not takes_all(instruction):
            return
        self._place = "stopped"
        if not self._all_go_on(goes_on):
            raise TeamLostError("the ranks of this worker have stopped here")
        self._place = "summing" if isinstance(instruction, AllReduce) else "inside"

    def stop(self, go_on_alone: Callable[[], None] = lambda: None) -> bool:
        """What this rank was at has failed: let the others stop where it would have begun something with them.

        It waits until they have come there, or have left the epoch.

        Args:
            go_on_alone: does what comes before that, and needs nobody.

        Returns:
            Whether what they have of the iteration is worth something; not where an operation broke in its midst.
        """
        place, self._place = self._place, "stopped"
        if place == "between":
            go_on_alone()
            with suppress(TeamLostError):  # they have left, or are gone: nobody waits for this one
                self._all_go_on(False)
        return place != "inside"

    def interrupt(self) -> None:
        """Wake who waits in a sum, here and in the others."""
        self._transport.interrupt()

    def close(self) -> None:
        """Interrupt, and let go of everything."""
        self._transport.close()

    def _all_go_on(self, goes_on: bool) -> bool:
        stopped = torch.tensor([float(not goes_on)])
        self.sum(stopped)
        return not stopped.item()


def takes_all(instruction: Instruction) -> bool:
    """Whether all ranks of a worker have to be there for an instruction; W needs nobody, nor do messages."""
    match instruction:
        case Compute(operation):
            return operation.kind != "W"
        case Pair() | AllReduce():
            return True
    return False
