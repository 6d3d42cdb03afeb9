"""A stage's state from a live worker to one that has none."""

from collections.abc import Sequence

import torch

from ..resilience.messages import Copy
from .held_stage import HeldStage
from .transport import Transport

# Above the tags of all messages of a program (iteration.py, Tags), below the one that wakes blocked groups.
FIRST_TAG = 0x70000000


def copy_states(
    copies: Sequence[Copy], rank: int, transport: Transport, given: HeldStage | None, taken: HeldStage | None
) -> None:
    """Take part in the copies of an epoch: send what this worker held until now, then receive what it is to hold.

    Every tensor is a message of its own: a state needs no second copy of itself in memory on the way.

    Args:
        copies: all copies of the epoch.
        rank: this worker.
        transport: the epoch's.
        given: what this worker held until now; None where it sends nothing.
        taken: what it holds from now on, with its optimizer primed; None where it receives nothing.

    Raises:
        RuntimeFailedError: a connection broke.
    """
    for copy in copies:
        if copy.source == rank:
            assert given is not None
            for number, tensor in enumerate(given.state().values()):
                transport.send(FIRST_TAG + number, copy.target, tensor, 0.0)
    source = next((copy.source for copy in copies if copy.target == rank), None)
    if source is not None:
        assert taken is not None
        taken.load(_received(source, taken.state(), transport))
    transport.flush()


def _received(source: int, likes: dict[str, torch.Tensor], transport: Transport) -> dict[str, torch.Tensor]:
    for number, like in enumerate(likes.values()):
        transport.post_receive(FIRST_TAG + number, source, like)
    return {name: transport.receive(FIRST_TAG + number, source) for number, name in enumerate(likes)}
