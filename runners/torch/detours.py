"""Messages between ranks that do not reach each other, over a third one that both reach; and sums with them.

A message that goes a detour is cut into frames, each with a header that says where it is from, where it belongs and
what it is part of. The rank in between passes frames on as they come, in threads of its own, whatever it computes
meanwhile; it need not know the program. At the end of their way a thread puts messages together, before anybody asks
for them. So a relay never waits for a computation, and as frames that are to be passed on and frames that have arrived
go by different tags, relays never wait for each other.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import count
from zlib import crc32

import torch

from ...schemas.errors import RuntimeFailedError
from ..program import RankPair
from .gloo import holds_apart
from .groups import LEAVING_S
from .transport import Transport

Detour = tuple[int, int, int]  # two ranks, ascending, and the one between them

FRAME_BYTES = 1024 * 1024  # of a message, in a frame
WINDOW = 16  # frames announced on a channel: so many can set out before the first has arrived
HEADER = 6  # numbers of 8 bytes

# Above the tags of programs and of state copies, below the one that wakes blocked groups.
TO_RELAY, FROM_RELAY, SUM = 0x7E000000, 0x7E100000, 0x7E200000
TAGS = 0x10000  # numbers of frames, or of groups, above each of these


@dataclass(frozen=True)
class Parcel:
    """What a frame's header says of it.

    Attributes:
        origin: the rank that sends.
        to: the rank that receives.
        tag: the message's.
        number: of the message, among those of its origin.
        size: of the message, in bytes.
        offset: where in the message the frame's bytes belong.
    """

    origin: int
    to: int
    tag: int
    number: int
    size: int
    offset: int

    def frame(self, data: torch.Tensor) -> torch.Tensor:
        """Header and bytes, as bytes."""
        header = torch.tensor([self.origin, self.to, self.tag, self.number, self.size, self.offset])
        return torch.cat([header.view(torch.uint8), data])

    @classmethod
    def read(cls, frame: torch.Tensor) -> "Parcel":
        """The header of a frame."""
        return cls(*frame[: 8 * HEADER].view(torch.int64).tolist())

    @property
    def frame_bytes(self) -> int:
        """The bytes that the frame has, its header included."""
        return 8 * HEADER + min(self.size - self.offset, FRAME_BYTES)


class Detours:
    """Another transport, but messages between some pairs of ranks go over a third one, with the same tags.

    A sum over a group with such a pair goes through one of its ranks, the first that reaches all others directly, or
    else the first of all: it adds what it is sent, in the order of ranks, and sends the sum to everybody, so all have
    the same bits. It takes more time than a ring, and need not have the same bits as one.

    Stands right above the transport that really sends (and above what imitates slow links of that), below delegates.
    What a relay meets with, the next operation of the rank that it is in raises.

    Args:
        inner: reaches all ranks but those.
        detours: (rank, other rank, rank between), for all that do not reach each other; the same at all ranks.
        rank: this process.
        sidesteps: pairs whose messages the inner transport sends, though it does not sum over them; the same at all.
    """

    def __init__(
        self, inner: Transport, detours: Collection[Detour], rank: int, sidesteps: Collection[RankPair] = ()
    ) -> None:
        self._inner = inner
        self._rank = rank
        self._apart: frozenset[RankPair] = frozenset((a, b) for a, b, _ in detours) | {*sidesteps}
        self._via = {b if a == rank else a: via for a, b, via in detours if rank in (a, b)}
        self._changed = threading.Condition()
        self._arrived: defaultdict[tuple[int, int], deque[torch.Tensor]] = defaultdict(deque)
        self._posted: dict[tuple[int, int], torch.Tensor] = {}
        self._failure: RuntimeFailedError | None = None
        self._put_off: deque[tuple[tuple[int, ...], torch.Tensor]] = deque()  # sums to be made by `end_sums`
        self._parts: deque[int] = deque()  # of every message sent and not flushed: how many the inner transport sends
        self._messages = count()
        self._frames_to: defaultdict[tuple[int, int], Iterator[int]] = defaultdict(count)
        self._incoming = Incoming()
        sources = {end for *ends, via in detours if via == rank for end in ends}
        self._threads = [
            *(self._listen(TO_RELAY, source, self._pass_on) for source in sorted(sources)),
            *(self._listen(FROM_RELAY, via, self._put_together) for via in sorted(set(self._via.values()))),
        ]

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """As the inner transport; what goes a detour comes without being announced."""
        self._check()
        if source in self._via:
            self._posted[source, tag] = like
        else:
            self._inner.post_receive(tag, source, like)

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """As the inner transport.

        Raises:
            LostTouchError: the connection to the rank between, or a relay's here, broke.
        """
        if source not in self._via:
            return self._inner.receive(tag, source)
        like = self._posted.pop((source, tag))
        with self._changed:
            self._changed.wait_for(lambda: self._arrived[source, tag] or self._failure)
            self._check()
            data = self._arrived[source, tag].popleft()
            if not self._arrived[source, tag]:
                del self._arrived[source, tag]
        return data.view(like.dtype).reshape(like.shape).to(like.device)

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """As the inner transport."""
        self._parts.append(self._send(tag, to, tensor))

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """As the inner transport; what goes a detour is delivered to the rank between."""
        self._check()
        for frame in self._frames(tag, to, tensor):
            self._inner.deliver(*frame)

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """As the inner transport where all of the group reach each other, else through one of them."""
        self._check()
        if not holds_apart(group, self._apart):
            self._inner.all_reduce(group, tensor)
            return
        troubled = {rank for pair in self._apart if set(group).issuperset(pair) for rank in pair}
        hub = next((rank for rank in group if rank not in troubled), group[0])
        tag, data = SUM + crc32(repr(group).encode()) % TAGS, tensor.detach().to("cpu")
        if self._rank == hub:
            total = self._sum(group, tag, data)
        else:
            self.post_receive(tag, hub, data)
            self._send_part(tag, hub, data)
            total = self.receive(tag, hub)
        tensor.copy_(total)

    def begin_sum(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """As the inner transport; what goes through one of the ranks is put off until `end_sums`, by all of them."""
        if holds_apart(group, self._apart):
            self._put_off.append((group, tensor))
        else:
            self._inner.begin_sum(group, tensor)

    def end_sums(self) -> None:
        """Make the sums that were put off, and wait for the others."""
        while self._put_off:
            self.all_reduce(*self._put_off.popleft())
        self._inner.end_sums()

    def flush(self, but: int = 0) -> None:
        """As the inner transport; what goes a detour has been taken once the rank between has it."""
        while len(self._parts) > but:
            self._parts.popleft()
        self._inner.flush(sum(self._parts))

    def interrupt(self) -> None:
        """As the inner transport; relays end."""
        self._fail(RuntimeFailedError("the connections to the other workers have been interrupted"))
        self._inner.interrupt()

    def close(self) -> None:
        """As the inner transport, and wait for the relays."""
        self.interrupt()
        for thread in self._threads:
            thread.join(LEAVING_S)
        self._inner.close()
        self._arrived.clear()
        self._posted.clear()
        self._put_off.clear()

    # Sums

    def _sum(self, group: tuple[int, ...], tag: int, data: torch.Tensor) -> torch.Tensor:
        others = [rank for rank in group if rank != self._rank]
        for other in others:
            self.post_receive(tag, other, data)
        total = torch.zeros_like(data)
        for rank in group:
            total += data if rank == self._rank else self.receive(tag, rank)
        for other in others:
            self._send_part(tag, other, total)
        return total

    def _send_part(self, tag: int, to: int, data: torch.Tensor) -> None:
        """Send something that `flush` counts with the message before it, since nobody else knows of it."""
        parts = self._send(tag, to, data)
        if self._parts:
            self._parts[-1] += parts

    # Frames

    def _send(self, tag: int, to: int, tensor: torch.Tensor) -> int:
        """Send, and say in how many parts."""
        self._check()
        frames = list(self._frames(tag, to, tensor))
        for frame in frames:
            self._inner.send(*frame)
        return len(frames)

    def _frames(self, tag: int, to: int, tensor: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
        """(tag, rank, tensor) of what has to be sent for a message."""
        if to not in self._via:
            yield tag, to, tensor
            return
        data = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        number, size, via = next(self._messages), data.numel(), self._via[to]
        for offset in range(0, max(size, 1), FRAME_BYTES):
            parcel = Parcel(self._rank, to, tag, number, size, offset)
            yield self._tag(TO_RELAY, via), via, parcel.frame(data[offset : offset + FRAME_BYTES])

    def _tag(self, channel: int, to: int) -> int:
        """The tag of the next frame to a rank."""
        with self._changed:
            return channel + next(self._frames_to[channel, to]) % TAGS

    # Relays

    def _listen(self, channel: int, source: int, take: Callable[[torch.Tensor], None]) -> threading.Thread:
        thread = threading.Thread(target=self._hear, args=(channel, source, take), name="relay", daemon=True)
        thread.start()
        return thread

    def _hear(self, channel: int, source: int, take: Callable[[torch.Tensor], None]) -> None:
        """Take every frame of a channel, in the order in which they were sent."""
        room = torch.empty(8 * HEADER + FRAME_BYTES, dtype=torch.uint8)  # memory is taken as it is written to
        try:
            for number in range(WINDOW):
                self._inner.post_receive(channel + number, source, room)
            number = 0
            while True:
                frame = self._inner.receive(channel + number % TAGS, source)
                self._inner.post_receive(channel + (number + WINDOW) % TAGS, source, room)
                take(frame[: Parcel.read(frame).frame_bytes])
                number += 1
        except RuntimeFailedError as error:
            error.__cause__ = error.__context__ = None  # their tracebacks know the connections
            self._fail(error.with_traceback(None))

    def _pass_on(self, frame: torch.Tensor) -> None:
        to = Parcel.read(frame).to
        self._inner.deliver(self._tag(FROM_RELAY, to), to, frame)

    def _put_together(self, frame: torch.Tensor) -> None:
        parcel = Parcel.read(frame)
        whole = self._incoming.add(parcel, frame[8 * HEADER :])
        if whole is not None:
            with self._changed:
                self._arrived[parcel.origin, parcel.tag].append(whole)
                self._changed.notify_all()

    # Errors

    def _fail(self, error: RuntimeFailedError) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


class Incoming:
    """Messages of which some frames have arrived."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partly: dict[tuple[int, int], tuple[torch.Tensor, int]] = {}

    def add(self, parcel: Parcel, data: torch.Tensor) -> torch.Tensor | None:
        """Put a frame's bytes in their place; gives the message if it is whole by now."""
        if parcel.size == data.numel():
            return data.clone()  # on its own, so that it has any type's alignment
        key = parcel.origin, parcel.number
        with self._lock:
            message, missing = self._partly.pop(key, (torch.empty(parcel.size, dtype=torch.uint8), parcel.size))
            message[parcel.offset : parcel.offset + data.numel()] = data
            if missing > data.numel():
                self._partly[key] = message, missing - data.numel()
                return None
        return message
