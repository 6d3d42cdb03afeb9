"""What is wrong for one rank of a job without a coordinator ends all of them, with its words, connected or not."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ...schemas.errors import InvalidInputError, RtkError, RuntimeFailedError
from ...schemas.quantities import print_time
from .groups import SILENCE, Store

REFUSED = "rtk/refused"  # under this the store has why a rank refuses, and who has read that
TOLD_WITHIN_S = 5.0
POLL_S = 0.01


class Refusals:
    """Says and hears, by way of the store, why ranks refuse to go on.

    Args:
        store: where the ranks meet.
        rank: this one.
        size: how many there are.
        name: this worker's, for errors that are not rtk's own.
    """

    def __init__(self, store: Store, rank: int, size: int, name: str) -> None:
        self._store, self._rank, self._size, self._name = store, rank, size, name
        self.interrupt: Callable[[], None] = lambda: None  # wakes who waits for this rank, once they are connected

    @contextmanager
    def telling(self) -> Iterator[None]:
        """What goes wrong inside is told to all others, and stays this rank's error; of what others told it is theirs.

        Raises:
            InvalidInputError: another rank's, where the connection to it broke for that.
        """
        try:
            yield
        except RuntimeFailedError:
            heard = self._heard()
            if heard is not None:
                raise heard from None
            raise
        except _HeardError as error:
            raise error.heard from None
        except Exception as error:
            self._tell(error)
            raise

    def meet(self) -> None:
        """Wait until all ranks are here, or one refuses."""
        self._store.set(f"rtk/here/{self._rank}", "")
        for rank in range(self._size):
            self.get(f"rtk/here/{rank}")

    def get(self, key: str) -> bytes:
        """What another rank has put into the store under a key, or will, unless it refuses.

        Raises:
            RuntimeFailedError: nothing has come for `SILENCE`.
        """
        deadline_s = time.monotonic() + SILENCE.total_seconds()
        while not self._store.check([key]):
            heard = self._heard()
            if heard is not None:
                raise _HeardError(heard)
            if time.monotonic() > deadline_s:
                raise RuntimeFailedError(
                    f"nothing has come from another rank for {print_time(SILENCE.total_seconds())} ({key})",
                    fix="look at that worker's own error; start the run again",
                )
            time.sleep(POLL_S)
        value: bytes = self._store.get(key)
        return value

    def _tell(self, error: Exception) -> None:
        """Wake whoever waits for this rank, and stay until all know."""
        words = f"worker {self._name} cannot go on: {type(error).__name__}: {error}"
        told = [error.what, error.where, error.fix] if isinstance(error, RtkError) else [words, None, None]
        self._store.set(REFUSED, json.dumps(told))
        self._store.set(f"{REFUSED}/{self._rank}", "")
        self.interrupt()
        deadline_s = time.monotonic() + TOLD_WITHIN_S
        others = [f"{REFUSED}/{rank}" for rank in range(self._size) if rank != self._rank]
        with suppress(RuntimeError):  # the store's host has gone
            while others and not self._store.check(others) and time.monotonic() < deadline_s:
                time.sleep(POLL_S)

    def _heard(self) -> InvalidInputError | None:
        """The error of another rank, if there is one."""
        with suppress(RuntimeError):  # the store's host has gone
            if self._store.check([REFUSED]):
                what, where, fix = json.loads(self._store.get(REFUSED))
                self.interrupt()
                self._store.set(f"{REFUSED}/{self._rank}", "")
                return InvalidInputError(what, where=where, fix=fix)
        return None


class _HeardError(Exception):
    """Another rank has refused, and need not be told of it."""

    def __init__(self, heard: InvalidInputError) -> None:
        super().__init__(heard.what)
        self.heard = heard
