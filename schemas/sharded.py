"""What a worker holds and steps of its stage's optimizer where the peers of the stage share it.

The state is cut into blocks, each with two holders among the peers: an owner, and another one in case that dies. Both
step it, and then all take the new parameters from the owners. ZeRO's first stage (Rajbhandari et al., SC 2020) with
every part twice: parameters and gradients stay whole, the state and the step become 2/n of what they are.
"""

import math
from dataclasses import dataclass, replace

HOLDERS = 2  # of a block: its owner, and the one that has it if that dies


@dataclass(frozen=True, slots=True)
class OptimizerShare:
    """How much of its stage's optimizer a worker has.

    Attributes:
        peers: workers that hold the stage, itself included.
        is_kept: whether it keeps a copy of what a step changes until that is known to count, as a staggered optimizer
            does: its share of the parameters and of the state.
        lost: how many of the peers may be lost, once which the others must still have room for all.
    """

    peers: int
    is_kept: bool = False
    lost: int = 1

    @property
    def of_whole(self) -> float:
        """The share of the state that it holds, and of the step that it does."""
        return min(1.0, HOLDERS / self.peers)

    @property
    def after_losses(self) -> "OptimizerShare":
        """The same once as many peers are lost as may be; the last one has all."""
        return replace(self, peers=max(1, self.peers - self.lost))

    def optimizer_bytes(self, parameter_bytes: float, state_bytes: float) -> float:
        """What it holds of the optimizer, in bytes, its copy of parameters included.

        Args:
            parameter_bytes: of the stage.
            state_bytes: of the stage's optimizer: moments, and copies of parameters in more digits.
        """
        copied_bytes = parameter_bytes + state_bytes if self.is_kept else 0.0
        return self.of_whole * (state_bytes + copied_bytes)

    def held_bytes(self, parameter_bytes: float, gradient_bytes: float, state_bytes: float) -> float:
        """Parameters, gradients and its share of the optimizer's state, in bytes.

        Args:
            parameter_bytes: of the stage.
            gradient_bytes: of the stage.
            state_bytes: gradients and the optimizer's state, as profiles have it.
        """
        whole_bytes = parameter_bytes + min(gradient_bytes, state_bytes)
        return whole_bytes + self.optimizer_bytes(parameter_bytes, max(0.0, state_bytes - gradient_bytes))

    def fewest_peers(
        self, parameter_bytes: float, gradient_bytes: float, state_bytes: float, room_bytes: float
    ) -> int | None:
        """With how many peers a worker has room for its share, also once some are lost; None: with no number.

        Args:
            parameter_bytes, gradient_bytes, state_bytes: as for `held_bytes`.
            room_bytes: for all of it.
        """
        whole_bytes = parameter_bytes + min(gradient_bytes, state_bytes)
        shared_bytes = self.held_bytes(parameter_bytes, gradient_bytes, state_bytes) - whole_bytes
        if whole_bytes >= room_bytes:
            return None
        return math.ceil(HOLDERS * shared_bytes / self.of_whole / (room_bytes - whole_bytes)) + self.lost
