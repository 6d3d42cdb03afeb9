"""How a worker's main thread, which waits in gloo most of the time, learns that its epoch is over."""

import threading
from concurrent.futures import Future, wait

from ..resilience.messages import End, Epoch, FromCoordinator, Halt
from .connecting import in_thread
from .transport import Transport


class Interruption:
    """Between the thread that hears the coordinator and the one that trains.

    Only groups of an older epoch are woken: a fresh transport must not be interrupted by the very message that it was
    made for.

    Attributes:
        end: how the job, or this worker's part in it, has ended; None while it has not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch = 0
        self._newest: float = 0
        self.end: End | None = None
        self._superseded: Future[None] = Future()
        self._transport: Transport | None = None
        self._waking: Future[None] | None = None

    def begin(self, epoch: int) -> "Future[None]":
        """Training enters an epoch; the future is done as soon as a newer one, or the end, has been announced."""
        with self._lock:
            self._epoch, self._superseded, self._transport = epoch, Future(), None
            if self._newest > epoch:
                self._superseded.set_result(None)
            return self._superseded

    def guard(self, transport: Transport) -> None:
        """Interrupt this transport when its epoch is over, at once if it is already."""
        with self._lock:
            self._transport = transport
            is_over = self._superseded.done()
        if is_over:
            transport.interrupt()

    @property
    def is_over(self) -> bool:
        """Whether the epoch that training is in has been superseded."""
        return self._superseded.done()

    def announce(self, message: FromCoordinator) -> None:
        """In the hearing thread, before the message is handed on: wake whoever waits in an older epoch."""
        number = message.epoch if isinstance(message, Epoch) else float("inf")
        assert isinstance(message, Epoch | Halt | End)
        with self._lock:
            self.end = message if isinstance(message, End) else self.end
            self._newest = max(self._newest, number)
            if number <= self._epoch or self._superseded.done():
                return
            self._superseded.set_result(None)
            transport = self._transport
        if transport is not None:
            # It takes some 10 ms for each connection; who is woken early need not wait for that to go on.
            self._waking = in_thread(transport.interrupt, "interrupting")

    def wait(self, limit_s: float) -> None:
        """Wait until nobody is being woken any more: a thread inside torch must not outlive the interpreter."""
        if self._waking is not None:
            wait([self._waking], limit_s)
