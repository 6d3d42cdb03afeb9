"""The error of a worker that does not reach one of the others any more."""

from collections.abc import Iterator
from contextlib import contextmanager

from ...schemas.errors import RuntimeFailedError


class LostTouchError(RuntimeFailedError):
    """Communication with one rank broke, or stands still; whether that rank is alive is for a coordinator to find out.

    Attributes:
        peer: the rank.
    """

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(
            f"lost touch with rank {peer}: {why}", fix="look at that worker's own error; start the run again"
        )
        self.peer = peer


class StalledError(LostTouchError):
    """Nothing has come from one rank for long, though nothing broke: it may wait for others itself."""


@contextmanager
def reaching(peer: int) -> Iterator[None]:
    """What fails inside failed with this rank, unless the error names one itself."""
    try:
        yield
    except LostTouchError:
        raise
    except RuntimeFailedError as error:
        raise LostTouchError(peer, error.what) from error
