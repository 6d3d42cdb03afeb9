"""What a worker asks for data: the micro-batches of an iteration, by number."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ....schemas.plan import Plan
from .rows import Microbatch


class Batch(Protocol):
    """The micro-batches of one iteration by global number; only those that this rank needs are asked for."""

    def __getitem__(self, microbatch: int, /) -> Microbatch:
        """(inputs, targets) of one micro-batch, or (inputs, targets, what layers take by name)."""
        ...


@runtime_checkable
class Provider(Protocol):
    """Gives the micro-batches of any iteration by their global numbers: the same to whoever asks, however often."""

    def __call__(self, iteration: int) -> Batch:
        """The micro-batches of one iteration."""
        return self.batch(iteration)

    def batch(self, iteration: int) -> Batch:
        """The micro-batches of one iteration."""
        ...

    def tokens_of(self, plan: Plan) -> int:
        """Tokens of one iteration of a plan; samples, where these are no rows of tokens."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """What is the same for all workers if they have the same data, in JSON; it takes milliseconds."""
        ...

    def row_of(self, iteration: int) -> int | None:
        """The first row of an iteration, counted through all passes over the data; None where there are no rows."""
        return None

    def go_on(self, iteration: int, row: int, rows: int | None = None) -> None:
        """Go on where a job was saved, whose batches may have had another size.

        Args:
            iteration: the next.
            row: that it begins with, as counted by `row_of`.
            rows: how many there were; None: not known.

        Raises:
            InvalidInputError: there are fewer now.
        """
        return

    def start(self) -> None:
        """Be ready to read ahead; call this before there are sockets, groups, or a GPU in use."""
        return

    def prefetch(self, iteration: int, microbatches: Sequence[int]) -> None:
        """Read micro-batches ahead of need, in this order, and drop what was read of other iterations but the last.

        Args:
            iteration: that they are of.
            microbatches: their global numbers.
        """
        return

    def close(self) -> None:
        """Read nothing ahead any more."""
        return


@runtime_checkable
class HasBatches(Protocol):
    """What a user may write instead of a dataset: it chooses the rows itself, by number and never by who asks."""

    def batch(self, iteration: int) -> Batch:
        """The micro-batches of one iteration, by global number."""
        ...


class OwnBatches(Provider):
    """The micro-batches of a user's own object, which are read when they are needed.

    Args:
        source: gives them.
        tokens: of a micro-batch; 0: not known.
    """

    def __init__(self, source: HasBatches, tokens: int) -> None:
        self._source, self._tokens = source, tokens

    def batch(self, iteration: int) -> Batch:
        """The micro-batches of one iteration."""
        return self._source.batch(iteration)

    def tokens_of(self, plan: Plan) -> int:
        """Tokens of one iteration of a plan."""
        return plan.total_microbatches() * self._tokens

    def fingerprint(self) -> dict[str, Any]:
        """Nothing: only the user knows what the data are."""
        return {}
