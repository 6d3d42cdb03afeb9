"""The state of layers from the workers that have it to those that lack it."""

from collections.abc import Callable, Mapping, Sequence

import torch

from ...schemas.errors import RuntimeFailedError
from ...schemas.plan import Layers
from ..resilience.messages import Copy
from .held_stage import HeldStage
from .transport import Transport

# Above the tags of all messages of a program (iteration.py, Tags), below the one that wakes blocked groups.
FIRST_TAG = 0x70000000
# Smaller tensors go together: each message costs as much time as sending so many bytes, or more.
PACKED_BYTES = 1 << 20


def take_over(
    copies: Sequence[Copy],
    rank: int,
    transport: Transport,
    given: HeldStage | None,
    taken: HeldStage,
    waits: Callable[[], None] = lambda: None,
) -> set[int]:
    """Take part in the copies of an epoch: send what this worker held until now, then complete what it is to hold.

    Large tensors are sent as they are: a state needs no second copy of itself in memory on the way.

    Args:
        copies: all copies of the epoch.
        rank: this worker.
        transport: the epoch's.
        given: what this worker held until now; None where it has no state.
        taken: what it holds from now on: the same stage, or another one that takes over what both have.
        waits: called before each message that is waited for.

    Returns:
        The layers that were sent or received.

    Raises:
        RuntimeFailedError: a connection broke, or nobody gives this worker a layer that it lacks; it may hold another
            stage by now than the coordinator knew when it planned the copies.
    """
    sent = [copy for copy in copies if copy.source == rank]
    received = [copy for copy in copies if copy.target == rank]
    _check(sent, received, given, taken)
    if given is not None:
        given.prime_optimizer()
        for copy in sent:
            state = given.state_of(copy.layers)
            for number, names in enumerate(_messages(state)):
                transport.send(_tag(copy, number), copy.target, _packed([state[name] for name in names]))
    if taken is not given:
        taken.prime_optimizer()
        if given is not None:
            both = _common(given, taken)
            taken.load_layers(both, given.state_of(both))
    for copy in received:
        taken.load_layers(copy.layers, _received(copy, taken.state_of(copy.layers), transport, waits))
    waits()
    transport.flush()
    return {layer for copy in (*sent, *received) for layer in range(*copy.layers)}


def _check(sent: Sequence[Copy], received: Sequence[Copy], given: HeldStage | None, taken: HeldStage) -> None:
    held = set(range(*given.layers_range)) if given is not None else set()
    to_send = {layer for copy in sent for layer in range(*copy.layers)}
    to_have = {layer for copy in received for layer in range(*copy.layers)} | held
    if not to_send <= held or not set(range(*taken.layers_range)) <= to_have:
        raise RuntimeFailedError("this worker holds other layers than the coordinator knew")


def _common(one: HeldStage, other: HeldStage) -> Layers:
    """The layers that both hold; an empty range where they have none in common."""
    first = max(one.layers_range[0], other.layers_range[0])
    return first, max(first, min(one.layers_range[1], other.layers_range[1]))


def _received(
    copy: Copy, likes: dict[str, torch.Tensor], transport: Transport, waits: Callable[[], None]
) -> dict[str, torch.Tensor]:
    messages = _messages(likes)
    for number, names in enumerate(messages):
        transport.post_receive(_tag(copy, number), copy.source, _packed([likes[name] for name in names]))
    found: dict[str, torch.Tensor] = {}
    for number, names in enumerate(messages):
        waits()
        packed = transport.receive(_tag(copy, number), copy.source).reshape(-1)
        parts = torch.split(packed, [likes[name].numel() for name in names])
        found |= {name: part.view_as(likes[name]) for name, part in zip(names, parts, strict=True)}
    return found


def _messages(state: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Which tensors make a message, the same for all who hold the layers: small ones of one type together."""
    found: dict[object, list[str]] = {}
    for name, tensor in state.items():
        is_large = tensor.numel() * tensor.itemsize >= PACKED_BYTES
        found.setdefault(name if is_large else (tensor.dtype, tensor.device), []).append(name)
    return list(found.values())


def _packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat([tensor.reshape(-1) for tensor in tensors])


def _tag(copy: Copy, number: int) -> int:
    """The tag of a copy's tensors; between two workers copies are of unlike layers."""
    return FIRST_TAG + copy.layers[0] * 65536 + number
