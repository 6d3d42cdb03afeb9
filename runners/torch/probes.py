"""Tiny messages over slow links that the plan sends nothing over: a recovery must be seen there as well."""

import threading
import time
from collections.abc import Callable, Collection, Sequence

import torch

from ...schemas.errors import RuntimeFailedError
from .tags import PROBE_TAG
from .transfers import Sample
from .transport import Transport

LEAVING_S = 5.0  # how long `close` waits for threads that have been woken and only need to leave


class Probes:
    """Sends each peer one number an iteration, and notes when such numbers leave and arrive.

    Nobody waits for a probe. The next one leaves when the last has been taken; an iteration that comes earlier has
    none. The number of iteration n's probe is -1 - n, below those of all messages. A link on which they fail is not
    probed any more: training does not depend on it.

    Args:
        carrier: takes them; interrupt it before `close`.
        peers: the ranks; this one has to be among theirs.
        names: of the workers, by rank.
        now_s: as `Transfers`.
    """

    def __init__(
        self, carrier: Transport, peers: Collection[int], names: Sequence[str], now_s: Callable[[], float]
    ) -> None:
        self._carrier, self._names, self._now_s = carrier, names, now_s
        self._changed = threading.Condition()
        self._due = dict.fromkeys(peers, -1)  # the newest iteration, by peer
        self._over = False
        self._sent: list[Sample] = []
        self._arrived: list[Sample] = []
        self._threads = [
            threading.Thread(target=work, args=(peer,), name=f"probing {peer}", daemon=True)
            for peer in sorted(peers)
            for work in (self._send, self._receive)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, iteration: int) -> None:
        """An iteration begins: a probe is due on each link."""
        with self._changed:
            self._due = dict.fromkeys(self._due, iteration)
            self._changed.notify_all()

    def taken(self) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        """What has been sent and what has arrived since this was asked last."""
        with self._changed:
            found = tuple(self._sent), tuple(self._arrived)
            self._sent, self._arrived = [], []
        return found

    def close(self) -> None:
        """Wait for the threads to leave, which the carrier's interruption has woken."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        deadline_s = time.monotonic() + LEAVING_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _send(self, peer: int) -> None:
        last = -1
        while True:
            with self._changed:
                while self._due[peer] == last and not self._over:
                    self._changed.wait()
                if self._over:
                    return
                last = self._due[peer]
                self._sent.append((self._names[peer], -1 - last, self._now_s()))
            try:
                self._carrier.deliver(PROBE_TAG, peer, torch.tensor([last]))
            except RuntimeFailedError:
                return

    def _receive(self, peer: int) -> None:
        while not self._over:
            try:
                self._carrier.post_receive(PROBE_TAG, peer, torch.tensor([0]))
                number = self._carrier.receive(PROBE_TAG, peer)
            except RuntimeFailedError:
                return
            with self._changed:
                self._arrived.append((self._names[peer], -1 - int(number), self._now_s()))
