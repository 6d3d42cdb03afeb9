"""Many protobuf messages of the same fields at once, by numpy: for traces of millions of packets.

The `protobuf` package makes one message a call: for a timeline of 3 million operations that alone takes twice as long
as the whole command does here (benchmarks/perfetto_traces.py measures both). Here each field of n messages is a column;
a message is a row of bytes of which some are left out, so that every number is as short as protobuf's own writers make
it.

Source of the encoding: https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]

VARINT, FIXED64, BYTES = 0, 1, 2  # wire types
_BITS = 7  # of a number in each byte of a varint


@dataclass(frozen=True)
class MessageRows:
    """A part of n messages, or of one that all share.

    Attributes:
        data: bytes; array of n x width.
        kept: which of them belong to the message, of the same shape.
    """

    data: "NDArray[np.uint8]"
    kept: "NDArray[np.bool_]"

    def __len__(self) -> int:
        return len(self.data)

    def encoded(self) -> bytes:
        """All messages, one after the other."""
        return self.data[self.kept].tobytes()


def joined(*parts: MessageRows) -> MessageRows:
    """Parts of the same messages, one behind the other; what all share is repeated."""
    count = next((len(part) for part in parts if len(part) != 1), 1)
    shapes = [(count, part.data.shape[1]) for part in parts]
    data = [np.broadcast_to(part.data, shape) for part, shape in zip(parts, shapes, strict=True)]
    kept = [np.broadcast_to(part.kept, shape) for part, shape in zip(parts, shapes, strict=True)]
    return MessageRows(np.concatenate(data, axis=1), np.concatenate(kept, axis=1))


def number(field: int, values: "Values | int", where: "Values | None" = None) -> MessageRows:
    """A field of an integer type, an enumeration or a truth value.

    Args:
        field: its number.
        values: one for each message, or one for all; not negative.
        where: which messages have the field; None: all.
    """
    return _field(field, VARINT, [_varints(np.atleast_1d(np.asarray(values)))], where)


def fixed64(field: int, values: "Values", where: "Values | None" = None) -> MessageRows:
    """A field of the type `fixed64`, of integers, or `double`; `where` as of `number`."""
    data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).view(np.uint8)
    rows = data.reshape(len(values), 8)
    return _field(field, FIXED64, [MessageRows(rows, np.ones(rows.shape, dtype=bool))], where)


def text(field: int, values: Sequence[str]) -> MessageRows:
    """A field of text, one for each message."""
    return _packed(field, [value.encode() for value in values])


def data(field: int, value: bytes) -> MessageRows:
    """A field of bytes, of one message."""
    return _packed(field, [value])


def message(field: int, *parts: MessageRows, where: "Values | None" = None) -> MessageRows:
    """A field that is a message of such parts; `where` as of `number`."""
    body = joined(*parts)
    return _field(field, BYTES, [_varints(body.kept.sum(axis=1)), body], where)


def _packed(field: int, values: Sequence[bytes]) -> MessageRows:
    lengths = np.array([len(value) for value in values], dtype=np.int64)
    width = max(int(lengths.max(initial=0)), 1)
    rows = np.array(values, dtype=f"S{width}").view(np.uint8).reshape(len(values), width)
    return _field(field, BYTES, [_varints(lengths), MessageRows(rows, np.arange(width) < lengths[:, None])], None)


def _field(field: int, wire_type: int, parts: Sequence[MessageRows], where: "Values | None") -> MessageRows:
    whole = joined(_varints(np.array([field << 3 | wire_type])), *parts)
    if where is None:
        return whole
    return MessageRows(np.broadcast_to(whole.data, (len(where), whole.data.shape[1])), whole.kept & where[:, None])


def _varints(values: "Values") -> MessageRows:
    """Numbers in base 128, the lowest digit first; all but the last one with the highest bit set."""
    unsigned = values.astype(np.uint64)
    width = max(-(-int(unsigned.max(initial=0)).bit_length() // _BITS), 1)
    left = unsigned[:, None] >> (_BITS * np.arange(width, dtype=np.uint64))
    kept = left > 0
    kept[:, 0] = True
    digits = (left & np.uint64((1 << _BITS) - 1)).astype(np.uint8)
    digits[:, :-1] |= kept[:, 1:].astype(np.uint8) << _BITS
    return MessageRows(digits, kept)
