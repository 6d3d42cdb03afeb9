"""One communication call of one rank: what every reader of call logs gives and what a shim notes of a live job."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Token: TypeAlias = tuple[str, str, int, str]
LINK = "->"  # between the sender's and the receiver's rank, as the group of a point-to-point call


@dataclass(frozen=True, slots=True)
class Call:
    """A communication call.

    Attributes:
        t_s: when it was made, in s; by any clock, but always the same one.
        rank: whose call it is; -1: the log does not say.
        op: what it does, in plain small letters: `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `send`, ….
        group: among whom, by a name that means the same on all ranks; `0->1` for a message from rank 0 to rank 1.
        bytes: what one rank puts in.
        dtype: of what it puts in; may be empty.
        duration_s: how long it took on the rank, waiting for others included; None: not measured.
        number: its place among the calls of its group, the same on all ranks of the group; -1: the log does not say.
    """

    t_s: float
    rank: int
    op: str
    group: str
    bytes: int
    dtype: str = ""
    duration_s: float | None = None
    number: int = -1

    @property
    def token(self) -> Token:
        """What makes it the same call again in the next iteration."""
        return (self.op, self.group, self.bytes, self.dtype)


@dataclass(frozen=True, slots=True)
class CallLog:
    """The calls of one rank, out of one file, in the order of time.

    Attributes:
        file: its name as it was given.
        kind: what it was read as.
        rank: whose calls they are; -1: the file does not say.
        calls: as they were made.
        members: the ranks of a group, by its name, as far as the file tells.
        iterations: begin and time of each, in s, where the file says that itself; else empty.
    """

    file: str
    kind: str
    rank: int
    calls: tuple[Call, ...]
    members: Mapping[str, tuple[int, ...]]
    iterations: tuple[tuple[float, float], ...] = ()


def link_of(group: str) -> tuple[int, int] | None:
    """The sender and the receiver, if it is the group of a point-to-point call."""
    sender, arrow, receiver = group.partition(LINK)
    return (int(sender), int(receiver)) if arrow and sender.isdigit() and receiver.isdigit() else None
