"""The parts that a list schedule is composed of: warm-up, in-flight limits, W look-ahead, backlog and priorities."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Priority(IntEnum):
    """What a worker prefers after its warm-up, when both an F and an I (or B) are ready; W comes last.

    `UNBLOCK` is `INPUT_FIRST` that also runs a W before an I where that makes the room an F waits for.
    """

    INPUT_FIRST = 0
    FORWARD_FIRST = 1
    ALTERNATE = 2
    UNBLOCK = 3


@dataclass(frozen=True)
class Rules:
    """What a worker runs next; one entry a worker in each.

    Attributes:
        warmup: forwards that it prefers to backwards at first.
        in_flight: most micro-batches between F and I; `problem.jobs` or more is no limit.
        weight_wait: a W is not started if an F or I arrives within this fraction of its duration.
        backlog: so many pending W go before a further F, unless an I is ready.
        priority: what it prefers after the warm-up.
        held_back: so many F arrive before the first one starts, and go after it; empty is none.
    """

    warmup: Sequence[int]
    in_flight: Sequence[int]
    weight_wait: Sequence[float]
    backlog: Sequence[int]
    priority: Sequence[Priority]
    held_back: Sequence[int] = ()

    @property
    def columns(self) -> "NDArray[np.int64]":
        """Warm-ups, in-flight limits, backlogs, priorities and hold-backs as whole numbers, workers x 5."""
        held_back = self.held_back or [0] * len(self.warmup)
        columns = (self.warmup, self.in_flight, self.backlog, self.priority, held_back)
        return np.array(columns, dtype=np.int64).T
