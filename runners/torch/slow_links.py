"""Links with a delay, imitated."""

import heapq
import itertools
import threading
import time

import torch

from ...schemas.errors import RuntimeFailedError
from .transport import Transport


class SlowLinks:
    """Another transport behind links with a delay: a message leaves when its delay is over, and nobody waits for it.

    For paced runs, in which all ranks share a machine and no link has the plan's delay.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._due: list[tuple[float, int, int, int, torch.Tensor]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._deliverer = threading.Thread(target=self._deliver, name="slow links", daemon=True)
        self._deliverer.start()

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """As the inner transport."""
        self._inner.post_receive(tag, source, like)

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """As the inner transport."""
        return self._inner.receive(tag, source)

    def send(self, tag: int, to: int, tensor: torch.Tensor, delay_s: float) -> None:
        """Hand a message to the delivering thread, or on at once where there is no delay."""
        if not delay_s:
            with self._changed:
                self._inner.send(tag, to, tensor, delay_s)
            return
        with self._changed:
            if self._failure:
                raise self._failure
            entry = (time.perf_counter() + delay_s, next(self._number), tag, to, tensor)
            heapq.heappush(self._due, entry)
            self._changed.notify_all()

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """As the inner transport."""
        self._inner.all_reduce(group, tensor)

    def flush(self, but: int = 0) -> None:
        """Wait until the delayed messages have left and been taken."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._due) <= but or self._failure)
            if self._failure:
                raise self._failure
            waiting = len(self._due)
        self._inner.flush(but - waiting)

    def interrupt(self) -> None:
        """As the inner transport; delayed messages do not leave any more."""
        self._inner.interrupt()
        with self._changed:
            self._failure = RuntimeFailedError("the connections to the other workers have been interrupted")
            self._due.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """As the inner transport, and end the delivering thread."""
        self.interrupt()
        self._deliverer.join()
        self._inner.close()

    def _deliver(self) -> None:
        with self._changed:
            while self._failure is None:
                wait_s = self._due[0][0] - time.perf_counter() if self._due else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                _, _, tag, to, tensor = heapq.heappop(self._due)
                try:
                    self._inner.send(tag, to, tensor, 0.0)
                except BaseException as error:
                    self._failure = error
                self._changed.notify_all()
