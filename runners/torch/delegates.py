"""Delegated communication: threads send and fetch messages, so that whoever computes never waits for a link.

"Adaptra" section 5: a send on a slow link, posted inline, holds up all that its worker has to do next. Delegates with
queues of their own take messages over instead, as many as keep pace with production, and fetch what is to come ahead of
need. Theirs are processes with shared memory and RDMA; ours are threads, since gloo's waits release the interpreter.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from ...schemas.errors import RuntimeFailedError
from ...schemas.quantities import print_time
from .staging import HostStaging, Pending
from .transport import LostTouchError, StalledError, Transport

# As many messages to one rank may be on their way at once; a 17th waits in the queue for the first to be taken.
MOST_DELEGATES = 16
# What is fetched ahead from one rank and not taken yet: so many messages, and beyond the first few no more bytes.
AHEAD_MESSAGES = 32
AHEAD_BYTES = 256 << 20
AHEAD_AT_LEAST = 4
# How long a message that is needed may take to come before its sender is held for lost.
STALL_S = 30.0
LEAVING_S = 5.0  # how long `close` waits for delegates that have been woken and only need to leave

Arrived = Callable[[int, int], None]  # (source, tag)


@dataclass(eq=False)
class _Outbox:
    """Messages to one rank, and those who take them there."""

    peer: int
    work: threading.Condition
    queue: deque[tuple[int, int, Pending]] = field(default_factory=deque)  # (number, tag, what to send)
    delegates: int = 0
    busy: int = 0


@dataclass(eq=False)
class _Inbox:
    """Messages from one rank: announced; asked for; then waited for by a delegate; then there."""

    peer: int
    work: threading.Condition
    announced: deque[tuple[int, torch.Tensor]] = field(default_factory=deque)
    asked: deque[int] = field(default_factory=deque)
    there: dict[int, Pending] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)  # bytes of what was asked for and is not taken
    staying: set[int] = field(default_factory=set)  # of what was asked for, that which is to be on the host
    delegates: int = 0
    busy: int = 0

    def has_room(self) -> bool:
        """Whether the next message may be asked for."""
        if len(self.sizes) < AHEAD_AT_LEAST:
            return True
        return len(self.sizes) < AHEAD_MESSAGES and sum(self.sizes.values()) < AHEAD_BYTES


class Delegates:
    """A transport that reaches some ranks by delegates and the others, and all groups, directly.

    A send to a delegated rank puts the message into that rank's queue and returns. Each queue has delegates that take
    one message at a time and wait until the receiver has it. A message that finds all of them busy brings another one,
    up to MOST_DELEGATES. Messages may overtake each other; their tags tell them apart.

    Messages from a delegated rank are to be announced in the order in which it sends them (program.py,
    `posting_order`). They are fetched as soon as there is room (AHEAD_...), and kept until taken. `receive` waits for
    the very message that it names.

    Nothing deadlocks though buffers are bounded. A send never waits: a program sends no more than one iteration's
    messages (two, with a staggered optimizer) before it flushes, and that is what a queue can hold. A message that is
    needed is asked for at once, with all that is sent before it, beyond the bounds if it must be; so its sender's
    delegates, who take messages in order and wait until they are asked for, get to it. And it never waits for a
    delegate here: if all wait for other messages it brings one more. So who computes waits for nothing but the
    sender's program.

    A delegate that fails is told to whoever computes, at once: all operations under way and to come raise.

    Args:
        direct: reaches all ranks and groups.
        carrier: carries the delegates' messages, through host memory; may be the same.
        peers: the ranks to reach by delegates. They have to do the same with this one.
        staging: between host memory and where tensors are to be.
        arrived: told by a delegate when a message is there.
        stall_s: how long a needed message may take to come.
    """

    def __init__(
        self,
        direct: Transport,
        carrier: Transport,
        peers: Collection[int],
        *,
        staging: HostStaging | None = None,
        arrived: Arrived = lambda source, tag: None,
        stall_s: float = STALL_S,
    ) -> None:
        self._direct, self._carrier = direct, carrier
        self._staging = staging or HostStaging()
        self._arrived = arrived
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for who computes: something is there, or has left, or failed
        self._over = False
        self._failure: tuple[int, str] | None = None
        self._sent = 0  # messages so far, all together
        self._directly: deque[int] = deque()  # the numbers of those sent directly since a flush
        self._under_way: set[int] = set()  # the numbers of those that delegates have not delivered yet
        self._threads: list[threading.Thread] = []
        self._outboxes = {peer: _Outbox(peer, threading.Condition(self._lock)) for peer in sorted(peers)}
        self._inboxes = {peer: _Inbox(peer, threading.Condition(self._lock)) for peer in sorted(peers)}
        with self._lock:
            for outbox in self._outboxes.values():
                self._add_sender(outbox)
            for inbox in self._inboxes.values():
                self._add_receiver(inbox)

    def delegates_to(self, peer: int) -> int:
        """How many delegates send to a rank."""
        return self._outboxes[peer].delegates

    # For who computes

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """Announce a message; from a delegated rank as many as are to come."""
        inbox = self._inboxes.get(source)
        if inbox is None:
            with self._reaching(source):
                self._direct.post_receive(tag, source, like)
            return
        inbox.announced.append((tag, like))
        self._ask_ahead(inbox)

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """Wait for an announced message.

        Raises:
            LostTouchError: a connection broke, or a message of a delegated rank has not come for too long.
        """
        inbox = self._inboxes.get(source)
        if inbox is None:
            with self._reaching(source):
                return self._direct.receive(tag, source)
        self._hurry(inbox, tag)
        with self._lock:
            if not self._changed.wait_for(lambda: tag in inbox.there or self._is_broken(), self._stall_s):
                raise StalledError(source, f"a message has not come for {print_time(self._stall_s)}")
            if tag not in inbox.there:
                raise self._error()
            pending = inbox.there.pop(tag)
            del inbox.sizes[tag]
        self._ask_ahead(inbox)
        return pending()

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Put a message to a delegated rank into its queue; send to the others."""
        outbox = self._outboxes.get(to)
        if outbox is None:
            with self._reaching(to):
                self._direct.send(tag, to, tensor)
            self._directly.append(self._sent)
            self._sent += 1
            return
        pending = self._staging.to_host(tensor)
        with self._lock:
            if self._is_broken():
                raise self._error()
            outbox.queue.append((self._sent, tag, pending))
            self._under_way.add(self._sent)
            self._sent += 1
            if len(outbox.queue) > outbox.delegates - outbox.busy and outbox.delegates < MOST_DELEGATES:
                self._add_sender(outbox)
            outbox.work.notify()

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """By the carrier, to any rank."""
        self._carrier.deliver(tag, to, tensor)

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum directly."""
        with self._reaching(None):
            self._direct.all_reduce(group, tensor)

    def begin_sum(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Begin to sum directly."""
        with self._reaching(None):
            self._direct.begin_sum(group, tensor)

    def end_sums(self) -> None:
        """Wait for the sums that were begun."""
        with self._reaching(None):
            self._direct.end_sums()

    def flush(self, but: int = 0) -> None:
        """Wait until messages sent so far have been taken, whichever way they go."""
        last = self._sent - but
        with self._lock:
            self._changed.wait_for(lambda: self._is_broken() or all(number >= last for number in self._under_way))
            if self._is_broken():
                raise self._error()
        while self._directly and self._directly[0] < last:
            self._directly.popleft()
        with self._reaching(None):
            self._direct.flush(len(self._directly))

    # The end

    def interrupt(self) -> None:
        """Wake everybody, delegates included, and end the connections."""
        self._end_work()
        self._wake_inner()

    def close(self) -> None:
        """Interrupt, wait for the delegates to leave, and let go of everything."""
        self.interrupt()
        self.dismiss()
        for inbox in self._inboxes.values():
            inbox.announced.clear()
            inbox.there.clear()
        for outbox in self._outboxes.values():
            outbox.queue.clear()
        self._direct.close()
        if self._carrier is not self._direct:
            self._carrier.close()

    def dismiss(self) -> None:
        """End the delegates, who have nothing under way or have been interrupted, and leave connections alone."""
        self._end_work()
        deadline_s = time.monotonic() + LEAVING_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _end_work(self) -> None:
        with self._lock:
            self._over = True
            self._notify_all()

    def _wake_inner(self) -> None:
        self._carrier.interrupt()
        if self._carrier is not self._direct:
            self._direct.interrupt()

    def _notify_all(self) -> None:
        self._changed.notify_all()
        for outbox in self._outboxes.values():
            outbox.work.notify_all()
        for inbox in self._inboxes.values():
            inbox.work.notify_all()

    # Failure

    def _is_broken(self) -> bool:
        return self._over or self._failure is not None

    def _error(self) -> RuntimeFailedError:
        """What to raise; anew each time, for a traceback keeps what its frames know."""
        if self._failure is not None:
            return LostTouchError(*self._failure)
        return RuntimeFailedError("the connections to the other workers have been interrupted")

    @contextmanager
    def _reaching(self, peer: int | None) -> Iterator[None]:
        """An operation of the direct transport: fails with the peer, or with what a delegate failed with before."""
        try:
            yield
        except RuntimeFailedError as error:
            if self._failure is not None:
                raise self._error() from None
            if peer is None or self._over or isinstance(error, LostTouchError):
                raise
            raise LostTouchError(peer, error.what) from error

    def _fail(self, peer: int, error: BaseException) -> None:
        """In a delegate that has failed: have everybody know, and wake who waits for other ranks."""
        with self._lock:
            if self._is_broken():
                return
            what = error.what if isinstance(error, RuntimeFailedError) else f"{type(error).__name__}: {error}"
            self._failure = (peer, what)
            self._notify_all()
        self._wake_inner()

    # Sending

    def _add_sender(self, outbox: _Outbox) -> None:
        outbox.delegates += 1
        self._start(lambda: self._send_one(outbox), f"sending to {outbox.peer}")

    def _send_one(self, outbox: _Outbox) -> bool:
        with self._lock:
            outbox.work.wait_for(lambda: outbox.queue or self._is_broken())
            if self._is_broken():
                return False
            outbox.busy += 1
            number, tag, pending = outbox.queue.popleft()
        try:
            self._carrier.deliver(tag, outbox.peer, pending())
        except BaseException as error:
            self._fail(outbox.peer, error)
            return False
        with self._lock:
            outbox.busy -= 1
            self._under_way.discard(number)
            self._changed.notify_all()
        return True

    # Receiving

    def _ask_ahead(self, inbox: _Inbox) -> None:
        """Ask for what was announced, while there is room."""
        while inbox.announced and inbox.has_room():
            self._ask(inbox, *inbox.announced.popleft())

    def _ask(self, inbox: _Inbox, tag: int, like: torch.Tensor) -> None:
        host = self._staging.host_like(like)
        with self._reaching(inbox.peer):
            self._carrier.post_receive(tag, inbox.peer, host)
        with self._lock:
            if host is like:
                inbox.staying.add(tag)
            inbox.sizes[tag] = like.numel() * like.itemsize
            inbox.asked.append(tag)
            inbox.work.notify()

    def _hurry(self, inbox: _Inbox, tag: int) -> None:
        """See to it that a needed message is waited for by a delegate, if it is not there.

        All that was announced before it, and so is sent before it, is asked for: its sender's delegates may stand in
        line with that.
        """
        while any(one == tag for one, _ in inbox.announced):
            self._ask(inbox, *inbox.announced.popleft())
        with self._lock:
            if tag not in inbox.asked:
                return
            inbox.asked.remove(tag)
            inbox.asked.appendleft(tag)
            if inbox.busy == inbox.delegates:
                self._add_receiver(inbox)

    def _add_receiver(self, inbox: _Inbox) -> None:
        inbox.delegates += 1
        self._start(lambda: self._fetch_one(inbox), f"receiving from {inbox.peer}")

    def _fetch_one(self, inbox: _Inbox) -> bool:
        with self._lock:
            inbox.work.wait_for(lambda: inbox.asked or self._is_broken())
            if self._is_broken():
                return False
            inbox.busy += 1
            tag = inbox.asked.popleft()
            stays = tag in inbox.staying
            inbox.staying.discard(tag)
        try:
            host = self._carrier.receive(tag, inbox.peer)
            self._arrived(inbox.peer, tag)
            pending = (lambda: host) if stays else self._staging.to_device(host)
        except BaseException as error:
            self._fail(inbox.peer, error)
            return False
        with self._lock:
            inbox.busy -= 1
            inbox.there[tag] = pending
            self._changed.notify_all()
        return True

    def _start(self, turn: Callable[[], bool], name: str) -> None:
        thread = threading.Thread(target=_repeat, args=(turn,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def _repeat(turn: Callable[[], bool]) -> None:
    while turn():
        pass
