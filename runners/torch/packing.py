"""Tensors by name, from one rank to another: small ones together in a message, a large one in one of its own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from ...schemas.errors import RuntimeFailedError
from .ties import fingerprint
from .transport import Transport

# Each message costs as much time as sending so many bytes, or more.
PACKED_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class PackedEntries:
    """Tensors by name, packed into messages; both ends pack alike, by names, shapes and types in the same order.

    Attributes:
        entries: what is sent; where it is received, tensors of the same shapes and types.
        tag_of: of each message, by its number.
        limit_bytes: of what goes together; what is larger goes alone.
        in_copies: what goes alone, too, may be changed as soon as it is sent; else not before it was taken
            (`Transport.flush`), and needs no second copy of itself in memory.
        is_checked: whether a fingerprint of each message comes with them.
    """

    entries: Mapping[str, torch.Tensor]
    tag_of: Callable[[int], int]
    limit_bytes: int = PACKED_BYTES
    in_copies: bool = False
    is_checked: bool = False

    @cached_property
    def messages(self) -> list[list[str]]:
        """The names in each message: all of one type, and on one device."""
        found: list[list[str]] = []
        open_ones: dict[object, tuple[list[str], int]] = {}
        for name, value in self.entries.items():
            kind, size = (value.dtype, value.device), value.numel() * value.itemsize
            names, so_far = open_ones.get(kind, ([], 0))
            if not names or so_far + size > self.limit_bytes:
                names, so_far = [], 0
                found.append(names)
            names.append(name)
            if size <= self.limit_bytes:  # else it goes alone, and those before it wait for more
                open_ones[kind] = names, so_far + size
        return found

    def send(self, transport: Transport, *to: int) -> None:
        """Send all to some ranks."""
        packed = [self._together(names) for names in self.messages]
        if self.is_checked:
            packed.append(torch.tensor([fingerprint([one]) for one in packed], dtype=torch.int64))
        for number, one in enumerate(packed):
            for target in to:
                transport.send(self.tag_of(number), target, one)

    def announce(self, transport: Transport, source: int) -> None:
        """Announce what a rank sends of such entries."""
        for number, names in enumerate(self.messages):
            ones = [self.entries[name] for name in names]
            if len(ones) > 1:
                like = ones[0].new_empty(sum(one.numel() for one in ones))
            else:
                like = ones[0].detach().reshape(-1) if self.in_copies else ones[0]
            transport.post_receive(self.tag_of(number), source, like)
        if self.is_checked:
            sums = torch.zeros(len(self.messages), dtype=torch.int64)
            transport.post_receive(self.tag_of(len(self.messages)), source, sums)

    def received(
        self, transport: Transport, source: int, waits: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """What was announced, by name, as it comes.

        Args:
            transport: that it was announced to.
            source: who sends it.
            waits: called before each message that is waited for.

        Raises:
            RuntimeFailedError: a connection broke, or was interrupted, or something else has come than was sent.
        """
        sums: list[int] = []
        if self.is_checked:
            waits()
            sums = transport.receive(self.tag_of(len(self.messages)), source).tolist()
        for number, names in enumerate(self.messages):
            waits()
            packed = transport.receive(self.tag_of(number), source).reshape(-1)
            if self.is_checked and fingerprint([packed]) != sums[number]:
                raise RuntimeFailedError("what another worker has sent of its state is not what has come")
            likes = [self.entries[name] for name in names]
            parts = torch.split(packed, [one.numel() for one in likes])
            yield from ((name, part.view_as(like)) for name, part, like in zip(names, parts, likes, strict=True))

    def _together(self, names: list[str]) -> torch.Tensor:
        ones = [self.entries[name] for name in names]
        if len(ones) == 1 and not self.in_copies:
            return ones[0]
        return torch.cat([one.detach().reshape(-1) for one in ones])
