"""From rows to a micro-batch: what is asked of a dataset, and what may be wrong with it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch.utils.data import IterableDataset, default_collate

from ....schemas.errors import InvalidInputError, RtkError
from .fingerprints import digest_of_tensors

Collate = Callable[[list[Any]], Any]  # rows -> (inputs, targets), or (inputs, targets, kwargs)
Microbatch = tuple[Any, ...]  # (inputs, targets) or (inputs, targets, kwargs)
IGNORED = -100  # a target that does not count, as in torch's cross_entropy


@runtime_checkable
class MapStyle(Protocol):
    """A dataset whose rows have numbers. It may have `__getitems__(rows)`, as torch's may, and `fingerprint()`."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Any: ...


@runtime_checkable
class TellsWhere(Protocol):
    """A dataset that knows where a row's token is."""

    def where(self, row: int, place: int) -> str:
        """The file, and the place in it."""
        ...


@runtime_checkable
class HasFingerprint(Protocol):
    """A dataset that tells its contents from others without reading all of them."""

    def fingerprint(self) -> dict[str, Any]:
        """In JSON."""
        ...


@dataclass(frozen=True, eq=False)
class RowReader:
    """Reads rows and makes micro-batches of them.

    Attributes:
        dataset: map-style.
        collate: makes a micro-batch of rows; None: torch's `default_collate`, of rows that are (inputs, targets).
        vocabulary: tokens of inputs and targets are below it; None: they are no tokens.
    """

    dataset: MapStyle
    collate: Collate | None = None
    vocabulary: int | None = None

    def __call__(self, rows: Sequence[int]) -> Microbatch:
        """The micro-batch of some rows.

        Raises:
            InvalidInputError: a row cannot be read, rows do not fit together, or a token is not of the vocabulary.
        """
        given = self._collated(rows, self._read(rows))
        if self.vocabulary is not None:
            for tensor, least in ((given[0], 0), (given[1], IGNORED)):
                self._check_tokens(rows, tensor, least, self.vocabulary)
        return given

    def _read(self, rows: Sequence[int]) -> list[Any]:
        together = getattr(self.dataset, "__getitems__", None)
        if together is not None:
            try:
                return list(together(list(rows)))
            except Exception:  # one by one, they say which it was
                if len(rows) == 1:
                    return [self._row(rows[0], lambda row: together([row])[0])]
        return [self._row(row, self.dataset.__getitem__) for row in rows]

    def _row(self, row: int, read: Callable[[int], Any]) -> Any:
        try:
            return read(row)
        except RtkError:
            raise
        except Exception as error:  # whatever a user's code raises
            raise InvalidInputError(
                f"row {row} of the data cannot be read: {type(error).__name__}: {error}",
                where=f"{name_of(self.dataset)}[{row}]",
                fix="mend that row, or leave it out",
            ) from error

    def _collated(self, rows: Sequence[int], samples: list[Any]) -> Microbatch:
        try:
            given = default_collate(samples) if self.collate is None else self.collate(samples)
        except Exception as error:  # of the user's collate, or of torch's about rows that differ
            shapes = {row: _shapes(sample) for row, sample in zip(rows, samples, strict=True)}
            unlike = [row for row in rows if shapes[row] != shapes[rows[0]]]
            if unlike and self.collate is None:
                raise InvalidInputError(
                    f"rows {rows[0]} and {unlike[0]} do not fit together: {shapes[rows[0]]} and {shapes[unlike[0]]}",
                    where=name_of(self.dataset),
                    fix="give collate=, which pads rows to one length, or cut them to one length",
                ) from error
            raise InvalidInputError(
                f"rows {', '.join(map(str, rows))} do not make a micro-batch: {type(error).__name__}: {error}",
                where=name_of(self.dataset if self.collate is None else self.collate),
                fix="give collate=, which makes (inputs, targets) of a list of rows",
            ) from error
        if not _is_microbatch(given):
            raise InvalidInputError(
                f"a micro-batch of the data is {_shapes(given)}, not (inputs, targets)",
                where=name_of(self.dataset if self.collate is None else self.collate),
                fix="let rows, or what collate= makes of them, be (inputs, targets) or (inputs, targets, kwargs)",
            )
        return tuple(given)

    def _check_tokens(self, rows: Sequence[int], tokens: object, least: int, vocabulary: int) -> None:
        """Raise InvalidInputError where whole numbers, of one line a row, are not of the vocabulary."""
        if (
            not isinstance(tokens, torch.Tensor)
            or tokens.is_floating_point()
            or tokens.is_complex()
            or not tokens.numel()
        ):
            return
        lowest, highest = torch.aminmax(tokens)
        if lowest >= least and highest < vocabulary:
            return
        first = int(((tokens < least) | (tokens >= vocabulary)).flatten().nonzero()[0])
        line, place = divmod(first, tokens.numel() // len(tokens)) if tokens.ndim > 1 else (first, 0)
        row = rows[line] if len(tokens) == len(rows) else None
        where = f"row {row}, token {place}" if row is not None else f"rows {', '.join(map(str, rows))}"
        if row is not None and isinstance(self.dataset, TellsWhere):
            where = self.dataset.where(row, place + (least == IGNORED))
        raise InvalidInputError(
            f"token {int(tokens.flatten()[first])} is not of the model's vocabulary of {vocabulary}",
            where=where,
            fix="use the tokenizer of this model, or see whether the dtype is right",
        )


def check_dataset(dataset: object) -> TypeGuard[MapStyle]:
    """Raise InvalidInputError unless it is map-style and gives the same rows when asked again; reads two of them."""
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, MapStyle):
        raise InvalidInputError(
            "the data can only be read in turn, and rows must have numbers: a micro-batch may be computed twice",
            where=name_of(dataset),
            fix="write them down once, datasets.Dataset.from_generator(…).save_to_disk(FOLDER), and give the folder; "
            "or give a dataset with __len__ and __getitem__",
        )
    return True


def check_repeatable(reader: RowReader, rows: Sequence[int]) -> dict[int, str]:
    """The digests of rows, each read twice.

    Raises:
        InvalidInputError: a row is another one when it is read again.
    """
    found = {row: digest_of_tensors(reader([row])) for row in rows}
    for row, seen in found.items():
        if digest_of_tensors(reader([row])) != seen:
            raise InvalidInputError(
                f"row {row} of the data is another one when it is read again",
                where=name_of(reader.dataset),
                fix="draw what is random with a generator whose seed is the row's number",
            )
    return found


def name_of(what: object) -> str:
    """What a dataset, or a function, is called in an error."""
    name = getattr(what, "__name__", None) or getattr(what, "name", None)
    return name if isinstance(name, str) else type(what).__name__


def _is_microbatch(given: object) -> bool:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) not in (2, 3):
        return False
    return len(given) == 2 or isinstance(given[2], Mapping)


def _shapes(value: object) -> str:
    """Shapes in nested tuples and mappings, in words."""
    match value:
        case Mapping():
            return f"{{{', '.join(f'{key}: {_shapes(one)}' for key, one in value.items())}}}"
        case tuple() | list() if len(value) <= 8 and not all(isinstance(one, int | float) for one in value):
            return f"({', '.join(map(_shapes, value))})"
        case tuple() | list():
            return f"{len(value)} numbers" if value and isinstance(value[0], int | float) else f"{len(value)} values"
    shape = getattr(value, "shape", None)
    return str(list(shape)) if shape is not None else type(value).__name__
