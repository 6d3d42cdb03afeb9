"""Ranks of one process that take turns: one runs at a time, in a random order that a seed repeats.

They are broken off where a test wants it, also amidst sums, and then behave as over gloo: waits fail, messages are
gone, and a sum under way leaves neither what was there nor the sum.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from random import Random

import torch

from rtk.schemas.errors import RuntimeFailedError


class Turns:
    """Runs ranks by turns.

    Args:
        rng: whose turn is next.

    Attributes:
        is_broken: whether nothing passes between ranks any more.
    """

    def __init__(self, rng: Random) -> None:
        self.is_broken = False
        self._rng = rng
        self._ready: dict[int, Callable[[], bool]] = {}
        self._go: dict[int, threading.Semaphore] = {}
        self._back = threading.Semaphore(0)
        self._mail: dict[tuple[int, int, int], torch.Tensor] = {}
        self._sums: dict[tuple[tuple[int, ...], int], dict[int, torch.Tensor]] = {}

    def run(
        self,
        bodies: Sequence[Callable[[], None]],
        turns: int | None = None,
        victims: Collection[int] = (),
        more: int = 0,
    ) -> bool:
        """Run all ranks to their ends, or until they are broken off.

        Args:
            bodies: of the ranks.
            turns: after so many some ranks die; None: nobody does.
            victims: those, who take no turn any more.
            more: turns that the others take until they notice.

        Returns:
            Whether all came to their ends.
        """
        failures: list[BaseException] = []
        threads = [self._start(rank, body, failures) for rank, body in enumerate(bodies)]
        taken = 0
        while self._ready and not failures:
            dead = victims if turns is not None and taken >= turns else ()
            able = [rank for rank, is_ready in self._ready.items() if rank not in dead and is_ready()]
            if (turns is not None and taken >= turns + more) or not able:
                assert turns is not None, "all wait for each other"
                self.is_broken = True
                break
            self._turn(self._rng.choice(able))
            taken += 1
        self.is_broken |= bool(failures)
        for rank in list(self._ready):
            self._turn(rank)
        for thread in threads:
            thread.join(10)
        if failures:
            raise failures[0]
        return not self.is_broken

    def _start(self, rank: int, body: Callable[[], None], failures: list[BaseException]) -> threading.Thread:
        def work() -> None:
            self._go[rank].acquire()
            try:
                if not self.is_broken:
                    body()
            except BaseException as error:
                if not (self.is_broken and isinstance(error, RuntimeFailedError)):
                    failures.append(error)
            self._ready.pop(rank, None)
            self._back.release()

        self._go[rank], self._ready[rank] = threading.Semaphore(0), lambda: True
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def pause(self, rank: int, is_ready: Callable[[], bool] = lambda: True) -> None:
        """A rank gives its turn away, and goes on when it has one again and is ready."""
        if self.is_broken:
            raise RuntimeFailedError("broken off")
        self._ready[rank] = is_ready
        self._back.release()
        self._go[rank].acquire()
        if self.is_broken:
            raise RuntimeFailedError("broken off")

    def _turn(self, rank: int) -> None:
        self._go[rank].release()
        self._back.acquire()


class TurnTransport:
    """The transport of a rank that takes turns."""

    def __init__(self, turns: Turns, rank: int) -> None:
        self._turns, self._rank = turns, rank
        self._counts = Counter[tuple[int, ...]]()
        self._begun: list[tuple[tuple[int, ...], dict[int, torch.Tensor], torch.Tensor]] = []

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """Nothing is made ready."""

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """Wait for a message."""
        key = source, self._rank, tag
        self._turns.pause(self._rank, lambda: key in self._turns._mail)
        return self._turns._mail.pop(key)

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Send a copy."""
        self._turns.pause(self._rank)
        assert (self._rank, to, tag) not in self._turns._mail
        self._turns._mail[self._rank, to, tag] = tensor.detach().clone()

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """As `send`."""
        self.send(tag, to, tensor)

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum in place, in the order of the ranks."""
        self.begin_sum(group, tensor)
        self.end_sums()

    def begin_sum(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Have it taken into account."""
        self._counts[group] += 1
        parts = self._turns._sums.setdefault((group, self._counts[group]), {})
        parts[self._rank] = tensor.clone()
        self._begun.append((group, parts, tensor))

    def end_sums(self) -> None:
        """Sum one after the other, each in the order of the ranks."""
        while self._begun:
            self._end_sum(*self._begun.pop(0))

    def _end_sum(self, group: tuple[int, ...], parts: dict[int, torch.Tensor], tensor: torch.Tensor) -> None:
        try:
            self._turns.pause(self._rank, lambda: len(parts) == len(group))
        except RuntimeFailedError:
            tensor.fill_(torch.nan)
            raise
        tensor.copy_(sum((parts[rank] for rank in group[1:]), parts[group[0]]))

    def flush(self, but: int = 0) -> None:
        """All is taken in time."""

    def interrupt(self) -> None:
        """There is nobody to wake."""

    def close(self) -> None:
        """There is nothing to let go of."""
