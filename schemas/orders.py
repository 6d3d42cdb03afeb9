"""Orders: the operations of one worker, and their text form `F0 F1 I0 F1.3 W0 …`.

Torch's letters: F forward, I backward-input, W backward-weight, B full backward (I and W fused). The papers write B
for what is I here. `F3` is the micro-batch 3 of the worker's own pipeline, `F1.3` that of pipeline 1. Where a worker
holds several virtual stages, and only there, the stage stands in front: `5F1.3`, as in torch's own schedules. A forward
and a full backward of two micro-batches that run side by side are a pair, `(5F7;2B3)`: two operations that follow each
other in all that does not ask for times.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from .errors import InvalidInputError
from .kernels import Ints as Sized
from .kernels import MutableInts, compiled, kernel, pays

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

Kind = Literal["F", "I", "W", "B"]
Token = tuple[Kind, int]  # kind and micro-batch, in an order that knows only its own pipeline
KINDS: tuple[Kind, ...] = ("F", "I", "W", "B")
Schedule = Literal["gpipe", "1f1b", "zero-bubble"]  # the classic ones, by their names on a command line
LeanSchedule = Literal["1f1b", "zero-bubble"]  # those that hold no more activations than a pipeline is deep

# Up to so many characters numpy has read while the machine code would be loaded.
NUMPY_CHARACTERS = 4_000_000
# What a token takes at least, the space behind it included.
FEWEST_CHARACTERS = 3
MOST_DIGITS = 9
NONE = -1
F, I, W, B, SPACE, DOT, ZERO, NINE = b"FIWB .09"  # noqa: E741 - the field's letters

NUMBER = r"(?:0|[1-9][0-9]{0,8})"
TOKEN = rf"([FIWB])(?:({NUMBER})\.)?({NUMBER})"
# What stands behind it in what is left of an iteration (resumption.py): its layers, and `~` if only its message counts.
SUFFIX = rf"(?::({NUMBER})-({NUMBER}))?(~)?"
_TOKEN = re.compile(rf"({NUMBER})?{TOKEN}")
# Possessive (`+` behind a quantifier): what follows decides what every character is, so to go back would be in vain.
_DIGITS = r"(?:0|[1-9][0-9]{0,8}+)"
_OPERATION = rf"[FIWB]{_DIGITS}(?:\.{_DIGITS})?+"
_ORDER = re.compile(rf"(?:{_OPERATION}(?: {_OPERATION})*+)?+")
_PLACED_ORDER = re.compile(rf"(?:{_DIGITS}{_OPERATION}(?: {_DIGITS}{_OPERATION})*+)?+")
_STAGES = re.compile(r"(?:^|[ (;])([0-9]+)")
_PAIR = re.compile(r"\(([^ ();]*);([^ ();]*)\)")
_FLAT = str.maketrans(";", " ", "()")


class Operation(NamedTuple):
    """One operation: its kind, and the micro-batch `pipeline.microbatch` it works on.

    `stage` is its virtual stage where its worker holds several; None where there is but one that it can be.
    """

    kind: Kind
    pipeline: int
    microbatch: int
    stage: int | None = None


def parse_operation(token: str, pipeline: int) -> Operation:
    """Read one token of an order of a worker in `pipeline`; raises InvalidInputError for anything else."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise InvalidInputError(
            f"{token!r} is not an operation", fix="write F, I, W or B and a micro-batch: F3, or F1.3 of pipeline 1"
        )
    stage, kind, other, microbatch = match.groups()
    origin = pipeline if other is None else int(other)
    return Operation(cast(Kind, kind), origin, int(microbatch), None if stage is None else int(stage))


def parse_order(text: str, pipeline: int, seats: Sequence[int] | None = ()) -> tuple[Operation, ...]:
    """Read an order of a worker in `pipeline`.

    Args:
        text: operations separated by single spaces.
        pipeline: the worker's own pipeline, that of tokens without a prefix.
        seats: the virtual stages that the worker holds, where they are several; None: the order was checked before.

    Raises:
        InvalidInputError: a token is no operation; the message gives its place, counted from 0.
    """
    if seats is not None:
        check_order_text(text, seats)
    return tuple(
        [
            Operation(
                cast(Kind, kind), int(other) if other else pipeline, int(microbatch), int(stage) if stage else None
            )
            for stage, kind, other, microbatch in _TOKEN.findall(text)
        ]
    )


def flattened(text: str) -> str:
    """An order without its pairs: the operations of each one after the other."""
    return text.translate(_FLAT) if "(" in text else text


def pairs_in(text: str) -> frozenset[int]:
    """The places of the forwards that an order runs side by side with the backward behind them, counted from 0."""
    if "(" not in text:
        return frozenset()
    tokens = text.replace(";", " ").split(" ")
    return frozenset(place for place, token in enumerate(tokens) if token.startswith("("))


def check_order_text(text: str, seats: Sequence[int] = ()) -> None:
    """Raise InvalidInputError, with the token's place, unless `text` is an order.

    Args:
        text: that of a worker.
        seats: the virtual stages that the worker holds; which of them it is must stand in each token if, and only if,
            they are several.
    """
    if "(" in text or ")" in text or ";" in text:
        text = _without_pairs(text)
    several = len(seats) > 1
    known = not several or {int(stage) for stage in _STAGES.findall(text)} <= set(seats)
    if known and (_PLACED_ORDER if several else _ORDER).fullmatch(text):
        return
    for place, token in enumerate(text.split(" ")):
        problem = _problem_of(token, seats)
        if problem is not None:
            what, fix = problem
            raise InvalidInputError(f"{what} (operation {place}, counted from 0)", fix=fix)


def _without_pairs(text: str) -> str:
    """An order whose pairs are written as they must be, flattened; raises InvalidInputError, with the place, else."""
    place = 0
    for token in text.split(" "):
        pair = _PAIR.fullmatch(token)
        if pair is not None and not ("F" in pair[1] and "B" in pair[2]):
            what = f"{token!r} is no pair of a forward and a full backward (operation {place}, counted from 0)"
            raise InvalidInputError(what, fix="write the forward first: (5F7;2B3), or (F7;B3)")
        if pair is None and {*token} & {*"(;)"}:
            what = f"{token!r} is not an operation (operation {place}, counted from 0)"
            raise InvalidInputError(what, fix="write a pair as (5F7;2B3), or (F7;B3), without spaces")
        place += 1 if pair is None else 2
    return flattened(text)


def _problem_of(token: str, seats: Sequence[int]) -> tuple[str, str] | None:
    """What is wrong with a token, and what to do."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        what = f"{token!r} is not an operation" if token else "a space too many stands in the order"
        return what, "write F, I, W or B and a micro-batch, separated by one space: F3, or F1.3 of pipeline 1"
    if len(seats) < 2:
        if match[1] is None:
            return None
        plain = token[len(match[1]) :]
        return f"{token!r} names a virtual stage, but the worker holds one only", f"write {plain}"
    held = ", ".join(map(str, seats))
    if match[1] is None:
        what = f"{token!r} does not say of which virtual stage it is; the worker holds {held}"
        return what, f"write it in front, such as {seats[0]}{token}"
    if int(match[1]) not in seats:
        return f"{token!r} is of a virtual stage that the worker does not hold: it has {held}", "correct the order"
    return None


class Columns(NamedTuple):
    """The operations of many orders, as columns of equal length.

    Attributes:
        counts: operations of each order, which stand together; array of orders.
        kind: each operation's place in `KINDS`; array of operations, as are the next.
        pipeline, microbatch: the micro-batch that each works on.
        stage: the virtual stage that each is of.
        is_paired: whether each is a forward that runs side by side with the operation behind it; None: none does.
    """

    counts: Ints
    kind: Ints
    pipeline: Ints
    microbatch: Ints
    stage: Ints
    is_paired: Flags | None = None


def parse_columns(texts: Sequence[str], pipelines: Sequence[int], seats: Sequence[Sequence[int]]) -> Columns:
    """Read the orders of many workers at once: what `parse_order` says of each, for millions of operations.

    Args:
        texts: an order for each worker.
        pipelines: each worker's own pipeline, that of tokens without a prefix.
        seats: the virtual stages that each worker holds.

    Raises:
        InvalidInputError: a token is no operation; the message gives its place, counted from 0.
    """
    import numpy as np  # late: most readers of a plan need none of it

    stages, several = np.array([held[0] for held in seats], dtype=np.int64), any(len(held) > 1 for held in seats)
    if any("(" in text for text in texts):
        return _with_pairs(texts, pipelines, seats)
    if not several and pays(read_orders, sum(map(len, texts)), NUMPY_CHARACTERS):
        return _read(texts, pipelines, stages)
    for text, held in zip(texts, seats, strict=True):
        check_order_text(text, held)
    counts = np.array([text.count(" ") + 1 if text else 0 for text in texts], dtype=np.int64)
    # One buffer holds all tokens, each with the space before it.
    buffer = np.frombuffer("".join([f" {text}" for text in texts if text]).encode("ascii"), dtype=np.uint8)
    spaces, dots = np.flatnonzero(buffer == ord(" ")), np.flatnonzero(buffer == ord("."))
    dotted = np.searchsorted(spaces, dots) - 1
    letters = np.flatnonzero(buffer >= ord("A")) if several else spaces + 1
    first, stop = letters + 1, np.append(spaces[1:], len(buffer))
    pipeline = np.repeat(np.array(pipelines, dtype=np.int64), counts)
    pipeline[dotted] = _numbers(buffer, first[dotted], dots)
    first[dotted] = dots + 1
    number_of = np.zeros(256, dtype=np.int64)
    number_of[[ord(kind) for kind in KINDS]] = range(len(KINDS))
    kind, microbatch = number_of[buffer[letters]], _numbers(buffer, first, stop)
    stage, named = np.repeat(stages, counts), np.flatnonzero(letters > spaces + 1)
    stage[named] = _numbers(buffer, spaces[named] + 1, letters[named])
    return Columns(counts, kind, pipeline, microbatch, stage)


def _with_pairs(texts: Sequence[str], pipelines: Sequence[int], seats: Sequence[Sequence[int]]) -> Columns:
    """The same of orders of which some have pairs."""
    import numpy as np

    for text, held in zip(texts, seats, strict=True):
        check_order_text(text, held)
    columns = parse_columns(list(map(flattened, texts)), pipelines, seats)
    first = np.cumsum(columns.counts) - columns.counts
    is_paired = np.zeros(len(columns.kind), dtype=bool)
    for row, text in zip(first.tolist(), texts, strict=True):
        is_paired[[row + place for place in pairs_in(text)]] = True
    return columns._replace(is_paired=is_paired)


def _read(texts: Sequence[str], pipelines: Sequence[int], stages: Ints) -> Columns:
    """The same by machine code, in one pass over the characters."""
    import numpy as np

    # A space behind each text; what no order can hold becomes a character that none can hold either.
    buffer = np.frombuffer("".join([f"{text} " for text in texts]).encode("ascii", "replace"), dtype=np.uint8)
    stops = np.cumsum([len(text) + 1 for text in texts], dtype=np.int64)
    counts = np.zeros(len(texts), dtype=np.int64)
    kind, pipeline, microbatch = (np.empty(len(buffer) // FEWEST_CHARACTERS, dtype=np.int64) for _ in range(3))
    own = np.array(pipelines, dtype=np.int64)
    read: Any = compiled(read_orders)
    broken = read(buffer, stops, own, counts, kind, pipeline, microbatch)
    if broken != NONE:
        check_order_text(texts[broken])
    rows = int(counts.sum())
    return Columns(counts, kind[:rows], pipeline[:rows], microbatch[:rows], np.repeat(stages, counts))


@kernel
def number_stop(text: Sized, first: int) -> int:
    """Where the number ends that begins at a place of a text, with a space behind it; NONE if none begins there."""
    stop = first
    while ZERO <= text[stop] <= NINE:
        stop += 1
    if stop == first or stop - first > MOST_DIGITS or (text[first] == ZERO and stop - first > 1):
        return NONE
    return stop


@kernel
def number_at(text: Sized, first: int, stop: int) -> int:
    """The number that stands from `first` to before `stop`."""
    number = 0
    for at in range(first, stop):
        number = 10 * number + text[at] - ZERO
    return number


@kernel
def read_orders(
    text: Sized,
    stops: Sized,
    pipelines: Sized,
    counts: MutableInts,
    kind: MutableInts,
    pipeline: MutableInts,
    microbatch: MutableInts,
) -> int:
    """Read orders that stand behind each other.

    Args:
        text: their characters, with a space behind each order.
        stops: where each order ends, that space included.
        pipelines: each worker's own pipeline.
        counts: receives the number of operations of each order.
        kind, pipeline, microbatch: receive the operations, as `Columns` has them.

    Returns:
        The first of them that is no order, or NONE.
    """
    row = 0
    at = 0
    for number in range(len(stops)):
        before = row
        if at == stops[number] - 1:  # no operations
            at += 1
        while at < stops[number]:
            letter = text[at]
            kind[row] = 0 if letter == F else 1 if letter == I else 2 if letter == W else 3
            if letter != F and letter != I and letter != W and letter != B:
                return number
            first = at + 1
            stop = number_stop(text, first)
            if stop == NONE:
                return number
            pipeline[row] = pipelines[number]
            if text[stop] == DOT:
                pipeline[row] = number_at(text, first, stop)
                first = stop + 1
                stop = number_stop(text, first)
                if stop == NONE:
                    return number
            if text[stop] != SPACE:
                return number
            microbatch[row] = number_at(text, first, stop)
            row += 1
            at = stop + 1
            if at == stops[number] - 1:  # a space ends the order
                return number
        counts[number] = row - before
    return NONE


def _numbers(buffer: NDArray[np.uint8], first: Ints, stop: Ints) -> Ints:
    """The decimal numbers that stand in `buffer` from `first` to before `stop`, without other characters."""
    import numpy as np

    width = stop - first
    number = np.zeros(len(width), dtype=np.int64)
    for place in range(int(width.max(initial=0))):  # from the last digit on
        digit = buffer.take(stop - 1 - place) - ord("0")
        number += np.where(place < width, digit, 0).astype(np.int64) * 10**place
    return number


def print_operation(operation: Operation, pipeline: int) -> str:
    """The token of an operation in an order of a worker in `pipeline`."""
    kind, origin, microbatch, stage = operation
    token = f"{kind}{microbatch}" if origin == pipeline else f"{kind}{origin}.{microbatch}"
    return token if stage is None else f"{stage}{token}"


def print_order(operations: Iterable[Operation], pipeline: int, pairs: Collection[int] = ()) -> str:
    """The text form of an order of a worker in `pipeline`; `parse_order` and `pairs_in` read it back.

    Args:
        operations: of the worker.
        pipeline: the worker's own.
        pairs: the places of the forwards that run side by side with the operation behind them.
    """
    return joined_tokens([print_operation(operation, pipeline) for operation in operations], pairs)


def joined_tokens(tokens: Sequence[str], pairs: Collection[int] = ()) -> str:
    """An order of tokens; `pairs` as of `print_order`."""
    if not pairs:
        return " ".join(tokens)
    beside = {place: f"({tokens[place]};{tokens[place + 1]})" for place in pairs}
    return " ".join([beside.get(n, token) for n, token in enumerate(tokens) if n - 1 not in beside])
