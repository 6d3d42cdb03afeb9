"""A dataset's rows as the micro-batches of iterations, in another random order in each pass over them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ....schemas.errors import InvalidInputError, remark
from ....schemas.plan import Plan
from ....schemas.text import counted
from .ahead import ReadAhead
from .permutation import Permutation
from .provider import Provider
from .rows import Collate, HasFingerprint, MapStyle, Microbatch, RowReader, check_dataset, check_repeatable, name_of


class RowFeed(Provider):
    """Micro-batches of a dataset's rows.

    Row k of micro-batch m of iteration i is number p = i B + m b + k of an endless order, where b is the size of a
    micro-batch and B = b M of a batch of M micro-batches. That order passes over all rows, in pass p // n in the order
    of a permutation keyed with (seed, pass). So rows are a function of numbers alone: whoever computes a micro-batch
    again, or in another's place, has the same rows, and every row comes once in each pass.

    Args:
        dataset: map-style: `__len__` and `__getitem__`; a row must be the same whenever it is read.
        microbatch_size: rows a micro-batch, b.
        microbatches: of an iteration, M.
        seed: of the order.
        shuffle: False: rows come in the order of their numbers, as for evaluation.
        collate: makes (inputs, targets), or (inputs, targets, kwargs), of a list of rows; None: rows are such pairs,
            and torch's default_collate stacks them.
        vocabulary: tokens must be below it; None: rows are no tokens.
        loader_workers: processes that read ahead, from `start` on; 0: a thread of this process does.

    Raises:
        InvalidInputError: the dataset is iterable, shorter than one batch, gives other rows when it is asked again, or
            rows that make no micro-batch.
    """

    def __init__(
        self,
        dataset: MapStyle,
        microbatch_size: int,
        microbatches: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        collate: Collate | None = None,
        vocabulary: int | None = None,
        loader_workers: int = 0,
    ) -> None:
        check_dataset(dataset)
        self.rows = len(dataset)
        self.microbatch_size, self.microbatches = microbatch_size, microbatches
        self.seed, self.shuffle = seed, shuffle
        self._origin = (0, 0)
        self._check_length(name_of(dataset))
        self._reader = RowReader(dataset, collate, vocabulary)
        self._digests = check_repeatable(self._reader, sorted({0, self.rows - 1}))
        self._tokens_a_row = _tokens_of(self._reader([0])[0])
        self._ahead = ReadAhead(self._reader, lambda key: self.rows_of(*key), loader_workers)

    def batch(self, iteration: int) -> "RowBatch":
        """The micro-batches of one iteration."""
        return RowBatch(self, iteration)

    def tokens_of(self, plan: Plan) -> int:
        """Tokens of one iteration of a plan; rows, where these are not whole numbers in one dimension."""
        return plan.total_microbatches() * self.microbatch_size * self._tokens_a_row

    def fingerprint(self) -> dict[str, Any]:
        """The number of rows, digests of the first and the last, and what the dataset says of itself."""
        dataset = self._reader.dataset
        told = dataset.fingerprint() if isinstance(dataset, HasFingerprint) else {}
        rows = {f"row {row}": digest for row, digest in self._digests.items()}
        return {"rows": self.rows, "vocabulary": self._reader.vocabulary, **rows, **told}

    def row_of(self, iteration: int) -> int:
        """The first row of an iteration, counted through all passes over the data."""
        begin, row = self._origin
        return row + (iteration - begin) * self.microbatches * self.microbatch_size

    def go_on(self, iteration: int, row: int, rows: int | None = None) -> None:
        """Go on where a job was saved, as `Provider.go_on` says; with more rows than there were, in another order."""
        if rows is not None and self.rows < rows:
            raise InvalidInputError(
                f"the data have {counted(self.rows, 'row')}, and had {rows} when the checkpoint was saved",
                where=name_of(self._reader.dataset),
                fix="give the data that the job was trained on",
            )
        if rows is not None and self.rows > rows:
            remark(
                f"the data have {self.rows} rows, and had {rows} when the checkpoint was saved: their order is another"
            )
        self._origin = iteration, row
        self._ahead.want(())  # what was read is of other rows

    def rows_of(self, iteration: int, microbatch: int) -> list[int]:
        """The numbers of a micro-batch's rows."""
        first = self.row_of(iteration) + microbatch * self.microbatch_size
        stop = first + self.microbatch_size
        found: list[int] = []
        while first < stop:  # more than once where it lies across the end of a pass
            epoch, place = divmod(first, self.rows)
            count = min(stop - first, self.rows - place)
            found += self._rows_at(epoch, place, count)
            first += count
        return found

    def prefetch(self, iteration: int, microbatches: Sequence[int]) -> None:
        """Read micro-batches ahead of need, in this order, and drop what was read of iterations before the last."""
        self._ahead.want([(iteration, number) for number in microbatches])

    def read(self, iteration: int, microbatch: int) -> Microbatch:
        """A micro-batch: read ahead, or now."""
        return self._ahead.take((iteration, microbatch))

    def close(self) -> None:
        """Read nothing ahead any more."""
        self._ahead.close()

    def start(self) -> None:
        """Have the processes that read ahead; call this before there are sockets, groups, or a GPU in use."""
        self._ahead.start()

    def _rows_at(self, epoch: int, place: int, count: int) -> list[int]:
        """So many rows of a pass from a place on."""
        if not self.shuffle:
            return [*range(place, place + count)]
        rows: list[int] = _order(self.rows, self.seed, epoch)(np.arange(place, place + count, dtype=np.uint64)).tolist()
        return rows

    def _check_length(self, name: str) -> None:
        batch = self.microbatches * self.microbatch_size
        if not self.rows:
            raise InvalidInputError("the data are empty", where=name, fix="give data with a row at least")
        if self.rows < batch:
            raise InvalidInputError(
                f"the data have {counted(self.rows, 'row')}, fewer than one batch: "
                f"{counted(self.microbatches, 'micro-batch', 'es')} of {self.microbatch_size}",
                where=name,
                fix="give more data, shorter rows, or a plan of fewer or smaller micro-batches",
            )


class RowBatch:
    """One iteration's micro-batches by global number."""

    def __init__(self, feed: RowFeed, iteration: int) -> None:
        self._feed, self._iteration = feed, iteration
        self._last: tuple[int, Microbatch] | None = None

    def __getitem__(self, microbatch: int) -> Any:
        """(inputs, targets) or (inputs, targets, kwargs); the last one is kept, for inputs and targets are asked for
        one after the other."""
        if self._last is None or self._last[0] != microbatch:
            self._last = microbatch, self._feed.read(self._iteration, microbatch)
        return self._last[1]


@lru_cache(maxsize=16)
def _order(rows: int, seed: int, epoch: int) -> Permutation:
    return Permutation(rows, seed, epoch)


def _tokens_of(inputs: object) -> int:
    """Tokens of a row, by a micro-batch of one."""
    is_tokens = isinstance(inputs, torch.Tensor) and inputs.ndim == 2 and not inputs.is_floating_point()
    return inputs.shape[1] if is_tokens and isinstance(inputs, torch.Tensor) else 1
