"""Orders: the operations of one worker, and their text form `F0 F1 I0 F1.3 W0 …`.

Torch's letters: F forward, I backward-input, W backward-weight, B full backward (I and W fused). The papers write B
for what is I here. `F3` is the micro-batch 3 of the worker's own pipeline, `F1.3` that of pipeline 1.
"""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple, cast

from .errors import InvalidInputError

Kind = Literal["F", "I", "W", "B"]
Token = tuple[Kind, int]  # kind and micro-batch, in an order that knows only its own pipeline

_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_TOKEN = re.compile(rf"([FIWB])(?:({_NUMBER})\.)?({_NUMBER})")
_ORDER = re.compile(rf"(?:[FIWB](?:{_NUMBER}\.)?{_NUMBER}(?: [FIWB](?:{_NUMBER}\.)?{_NUMBER})*)?")


class Operation(NamedTuple):
    """One operation: its kind, and the micro-batch `pipeline.microbatch` it works on."""

    kind: Kind
    pipeline: int
    microbatch: int


def parse_operation(token: str, pipeline: int) -> Operation:
    """Read one token of an order of a worker in `pipeline`; raises InvalidInputError for anything else."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise InvalidInputError(
            f"{token!r} is not an operation", fix="write F, I, W or B and a micro-batch: F3, or F1.3 of pipeline 1"
        )
    kind, other, microbatch = match.groups()
    return Operation(cast(Kind, kind), pipeline if other is None else int(other), int(microbatch))


def parse_order(text: str, pipeline: int) -> tuple[Operation, ...]:
    """Read an order of a worker in `pipeline`.

    Args:
        text: operations separated by single spaces.
        pipeline: the worker's own pipeline, that of tokens without a prefix.

    Raises:
        InvalidInputError: a token is no operation; `where` gives its place, counted from 0.
    """
    check_order_text(text)
    return tuple(parse_operation(token, pipeline) for token in text.split())


def check_order_text(text: str) -> None:
    """Raise InvalidInputError, with the token's place, unless `text` is an order."""
    if _ORDER.fullmatch(text):
        return
    for place, token in enumerate(text.split(" ")):
        if not _TOKEN.fullmatch(token):
            what = f"{token!r} is not an operation" if token else "a space too many stands in the order"
            raise InvalidInputError(
                f"{what} (operation {place}, counted from 0)",
                fix="write F, I, W or B and a micro-batch, separated by one space: F3, or F1.3 of pipeline 1",
            )


def print_operation(operation: Operation, pipeline: int) -> str:
    """The token of an operation in an order of a worker in `pipeline`."""
    prefix = "" if operation.pipeline == pipeline else f"{operation.pipeline}."
    return f"{operation.kind}{prefix}{operation.microbatch}"


def print_order(operations: Iterable[Operation], pipeline: int) -> str:
    """The text form of an order of a worker in `pipeline`; `parse_order` reads it back."""
    return " ".join(print_operation(operation, pipeline) for operation in operations)
