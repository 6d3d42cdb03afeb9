"""Which operation of a timeline sends to which: activations to the next stage, gradients to the one before."""

from typing import TYPE_CHECKING

import numpy as np

from .columns import TimelineColumns
from .orders import KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def messages_of(shown: TimelineColumns) -> "tuple[Ints, Ints]":
    """The spans that wait for a message, and for each the one that sends it; of what was done twice the last one."""
    rows = np.flatnonzero(shown.is_computed & (shown.kind != KINDS.index("W")))
    is_forward = shown.kind[rows] == KINDS.index("F")
    stage = shown.virtual_stage[rows]
    # One number for direction, iteration, micro-batch and stage, with a free place beside the outermost stages.
    key = is_forward.astype(np.int64)
    for column in (shown.iteration, shown.pipeline, shown.microbatch):
        values, place = np.unique(column[rows], return_inverse=True)
        key = key * max(len(values), 1) + place
    depth = int(stage.max(initial=0)) + 3
    key = key * depth + stage + 1
    keys, first = np.unique(key, return_index=True)
    _, from_behind = np.unique(key[::-1], return_index=True)
    last = len(key) - 1 - from_behind
    order = np.argsort(first)
    from_key = keys[order] + np.where(is_forward[first[order]], -1, 1)
    at = np.searchsorted(keys, from_key).clip(max=max(len(keys) - 1, 0))
    found = keys[at] == from_key if len(keys) else np.zeros(0, dtype=bool)
    receiver, sender = rows[last[order][found]], rows[last[at[found]]]
    passed = shown.worker[receiver] != shown.worker[sender]  # what a worker hands to itself is no message
    return receiver[passed], sender[passed]
