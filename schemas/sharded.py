"""What a worker holds and steps of its stage's optimizer where the peers of the stage share it.

The state is cut into blocks, each with two holders among the peers: an owner, and another one in case that dies. Both
step it, and then all take the new parameters from the owners. ZeRO's first stage (Rajbhandari et al., SC 2020) with
every part twice: parameters and gradients stay whole, the state and the step become 2/n of what they are. Weights that
layers share (ties) are in no block: all peers step them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .blocks import HOLDERS
from .profile import Layer, gradient_share, gradients_held, held_by


@dataclass(frozen=True, slots=True)
class TrainedBytes:
    """What training some layers takes beside activations, in bytes.

    Attributes:
        parameter_bytes: of the layers.
        gradient_bytes: sums of them.
        optimizer_bytes: moments, and copies of parameters in more digits.
        tied_parameter_bytes: of weights that other layers use, too.
        tied_optimizer_bytes: of these.
    """

    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    tied_parameter_bytes: float = 0.0
    tied_optimizer_bytes: float = 0.0

    @classmethod
    def of(
        cls,
        layers: Sequence[Layer],
        ranges: Sequence[tuple[int, int]],
        degree: int = 1,
        beside: Sequence[tuple[int, int]] = (),
    ) -> "TrainedBytes":
        """That of a worker's layers, for each of its GPUs.

        Args:
            layers: of the model.
            ranges: [first, stop) of those that count.
            degree: GPUs that share each layer.
            beside: layers that the worker holds anyway; a matrix that it has already does not count again.
        """
        parameter_bytes, state_bytes = held_by(layers, ranges, beside)
        gradient_bytes = min(gradients_held(layers, ranges, beside), state_bytes)
        counted, held = ({n for first, stop in spans for n in range(first, stop)} for spans in (ranges, beside))
        tied: dict[int, tuple[float, float]] = {}  # by the layer that other layers' matrices are those of
        for number, layer in enumerate(layers):
            users = {number, layer.tied_to}
            if layer.tied_to is not None and users & counted and not users & held:
                own_bytes, own_state_bytes = layer.tied_bytes or 0.0, layer.tied_state_bytes or 0.0
                sums_bytes = own_bytes * gradient_share(layer)
                tied[layer.tied_to] = own_bytes, max(0.0, own_state_bytes - sums_bytes)
        tied_bytes = [sum(sizes) for sizes in zip(*tied.values(), strict=True)] or [0.0, 0.0]
        sizes = parameter_bytes, gradient_bytes, state_bytes - gradient_bytes, *tied_bytes
        return cls(*(size / degree for size in sizes))

    @property
    def whole_bytes(self) -> float:
        """Parameters and gradients, which every peer has."""
        return self.parameter_bytes + self.gradient_bytes


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
        """The share of the blocks that it holds, and steps."""
        return min(1.0, HOLDERS / self.peers)

    @property
    def after_losses(self) -> "OptimizerShare":
        """The same once as many peers are lost as may be; the last one has all."""
        return replace(self, peers=max(1, self.peers - self.lost))

    def stepped(self, sizes: TrainedBytes) -> float:
        """The share of a stage's parameters that it steps, by their bytes."""
        tied = sizes.tied_parameter_bytes / sizes.parameter_bytes if sizes.parameter_bytes else 0.0
        return tied + self.of_whole * (1 - tied)

    def optimizer_bytes(self, sizes: TrainedBytes) -> float:
        """What it holds of a stage's optimizer, in bytes, its copy of parameters included."""
        tied_bytes, all_bytes = sizes.tied_optimizer_bytes, sizes.optimizer_bytes
        if self.is_kept:
            tied_bytes += sizes.tied_parameter_bytes + sizes.tied_optimizer_bytes
            all_bytes += sizes.parameter_bytes + sizes.optimizer_bytes
        return tied_bytes + self.of_whole * (all_bytes - tied_bytes)

    def held_bytes(self, sizes: TrainedBytes) -> float:
        """Parameters, gradients and its share of the optimizer's state, in bytes."""
        return sizes.whole_bytes + self.optimizer_bytes(sizes)

    def fewest_peers(self, sizes: TrainedBytes, room_bytes: float) -> int | None:
        """With how many peers a worker has room for its share, also once some are lost; None: with no number.

        Args:
            sizes: of its stage.
            room_bytes: for all that it holds beside activations.
        """
        alone_bytes = replace(self, peers=1).optimizer_bytes(sizes)
        # Of what is in blocks half is held by each of four peers, and what is in none by each of any number.
        in_blocks_bytes = 2 * (alone_bytes - replace(self, peers=2 * HOLDERS).optimizer_bytes(sizes))
        left_bytes = room_bytes - sizes.whole_bytes - (alone_bytes - in_blocks_bytes)
        return None if left_bytes <= 0 else math.ceil(HOLDERS * in_blocks_bytes / left_bytes) + self.lost
