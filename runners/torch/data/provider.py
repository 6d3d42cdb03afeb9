"""What a worker asks for data: the micro-batches of an iteration, by number."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ....schemas.plan import Plan
from ..iteration import Batch


class Provider(ABC):
    """Gives the micro-batches of any iteration by their global numbers: the same to whoever asks, however often."""

    def __call__(self, iteration: int) -> Batch:
        """The micro-batches of one iteration."""
        return self.batch(iteration)

    @abstractmethod
    def batch(self, iteration: int) -> Batch:
        """The micro-batches of one iteration."""

    @abstractmethod
    def tokens_of(self, plan: Plan) -> int:
        """Tokens of one iteration of a plan; samples, where these are no rows of tokens."""

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What is the same for all workers if they have the same data, in JSON; it takes milliseconds."""

    def row_of(self, iteration: int) -> int | None:
        """The first row of an iteration, counted through all passes over the data; None where there are no rows."""
        return None

    def go_on(self, iteration: int, row: int) -> None:
        """Let an iteration begin with a row, as counted by `row_of`; those before it are of another batch size."""

    def start(self) -> None:
        """Be ready to read ahead; call this before there are sockets, groups, or a GPU in use."""

    def prefetch(self, iteration: int, microbatches: Sequence[int]) -> None:
        """Read micro-batches ahead of need, in this order, and drop what was read of other iterations but the last.

        Args:
            iteration: that they are of.
            microbatches: their global numbers.
        """

    def close(self) -> None:
        """Read nothing ahead any more."""
