"""Values of a sweep's file: lists in which every item is tried, words, numbers, and errors that name their place."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from itertools import product
from typing import TypeVar

from ..schemas.cluster_file import Value
from ..schemas.errors import RtkError
from ..schemas.text import did_you_mean

Named = TypeVar("Named", bound=StrEnum)

MOST_REPLAYS = 100_000  # of a sweep, and so of its seeds: more is a slip of the pen


@contextmanager
def placed(value: Value) -> Iterator[None]:
    """Errors that name options, or no place, name the place in the file instead."""
    try:
        yield
    except RtkError as error:
        where = error.where or ""
        if where and not where.startswith("--"):
            raise
        entries = value.entries() if value.node.id == "mapping" else {}
        place = entries.get(_as_keys(where), value)
        raise type(error)(error.what, where=place.where, fix=_as_keys(error.fix or "") or None) from None


def items_of(value: Value) -> list[Value]:
    """The items of a list; what is no list is one by itself.

    Raises:
        InvalidInputError: the list is empty.
    """
    items = value.items() if value.is_list else [value]
    if not items:
        raise value.wrong("the list is empty", "give at least one")
    return items


def choices(entries: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """A mapping in which each list stands for one of its items in turn."""
    for chosen in product(*(items_of(value) for value in entries.values())):
        yield dict(zip(entries, chosen, strict=True))


def texts(chosen: Mapping[str, Value]) -> dict[str, str]:
    """The values as they stand there."""
    return {key: value.text() for key, value in chosen.items()}


def require_keys(value: Value, entries: Mapping[str, Value], *keys: str) -> None:
    """Raise InvalidInputError if a mapping lacks one of these."""
    for key in keys:
        if key not in entries:
            raise value.wrong(f"the key {key!r} is missing", "add it")


def word(value: Value, kind: type[Named]) -> Named:
    """One of some words.

    Raises:
        InvalidInputError: it is none of them.
    """
    text = value.text()
    if text not in list(kind):
        raise value.wrong(f"{text!r} is not known here", did_you_mean(text, kind, f"write one of {', '.join(kind)}"))
    return kind(text)


def number(value: Value) -> float:
    """A plain number.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        return float(value.text())
    except ValueError:
        raise value.wrong(f"{value.text()!r} is no number", "write one such as 1.5") from None


def flag(value: Value) -> bool:
    """`true` or `false`.

    Raises:
        InvalidInputError: it is neither.
    """
    text = value.text()
    if text not in ("true", "false"):
        raise value.wrong(f"{text!r} is neither true nor false", "write true or false")
    return text == "true"


def seeds_of(value: Value | None) -> tuple[int, ...]:
    """A number of seeds, which are 0, 1 and so on, or a list of them; none where nothing stands.

    Raises:
        InvalidInputError: a seed is no whole number of 0 or more, or there are more than `MOST_REPLAYS`.
    """
    if value is None:
        return ()
    if not value.is_list:
        if value.count() > MOST_REPLAYS:
            raise value.wrong(f"{value.text()} seeds are too many", f"up to {MOST_REPLAYS}")
        return tuple(range(value.count()))
    return tuple(_seed(one) for one in items_of(value))


def _seed(value: Value) -> int:
    if re.fullmatch(r"\d{1,9}", value.text(), re.ASCII) is None:
        raise value.wrong(f"{value.text()!r} is no seed", "a seed is a whole number of 0 or more")
    return int(value.text())


def _as_keys(text: str) -> str:
    """A text in which options are called as the keys of the file are."""
    return re.sub(r"--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), text)
