"""Which operation of a timeline sends to which: activations to the next stage, gradients to the one before."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .columns import TimelineColumns, joint_key
from .orders import KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

PART = 1 << 17  # spans whose messages are looked for at once, about


def messages_of(shown: TimelineColumns) -> "tuple[Ints, Ints]":
    """The spans that wait for a message, and for each the one that sends it; of what was done twice the last one.

    By when the receiving operation, or what was done again later, stands in the timeline for the first time.
    """
    found = [*_parts(shown)]
    firsts, receivers, senders = map(np.concatenate, zip(*found, strict=True))
    order = np.argsort(firsts)
    return receivers[order], senders[order]


def message_parts(shown: TimelineColumns) -> "Iterator[tuple[Ints, Ints]]":
    """All of `messages_of`, in parts of any order: of large timelines they take less memory."""
    for _, receivers, senders in _parts(shown):
        yield receivers, senders


def _parts(shown: TimelineColumns) -> "Iterator[tuple[Ints, Ints, Ints]]":
    """Of some micro-batches at a time, for each message: where its receiver stands first, the receiver, the sender."""
    waits = shown.is_computed & (shown.kind != KINDS.index("W"))
    several = min(len(shown) // PART + 1, 256)
    part_of = np.empty(len(shown), dtype=np.uint8)
    np.remainder(shown.microbatch, several, out=part_of, casting="unsafe")
    for part in range(several):
        rows = np.flatnonzero(waits & (part_of == part))
        is_forward = shown.kind[rows] == KINDS.index("F")
        # No stage is 0 here, so what comes before the first one and behind the last one is never found.
        told = shown.iteration[rows], shown.pipeline[rows], shown.microbatch[rows], shown.stages_of(rows) + 1
        key = joint_key(is_forward, *told)
        order = np.argsort(key, kind="stable")
        change = np.flatnonzero(np.diff(key[order])) + 1
        first = order[np.concatenate(([0], change))] if len(order) else order
        last = order[np.concatenate((change, [len(order)])) - 1] if len(order) else order
        keys = key[first]
        from_key = keys - np.where(is_forward[first], 1, -1)
        at = np.searchsorted(keys, from_key).clip(max=max(len(keys) - 1, 0))
        found = keys[at] == from_key
        receivers, senders = rows[last[found]], rows[last[at[found]]]
        passed = shown.worker[receivers] != shown.worker[senders]  # what a worker hands to itself is no message
        yield rows[first[found]][passed], receivers[passed], senders[passed]
