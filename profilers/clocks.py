"""Stopwatches: by a clock where operations end when their call returns, by events where a device runs behind."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import torch

Clock = Callable[[], float]

# Two rounds in a row that differ by less than this part find a device warm.
STEADY = 0.05


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How long a device works before its times count: until it is steady, but for so long at least and about at most.

    A GPU's clocks rise in its first second; a CPU's first round pays for memory that nobody has touched.
    """

    least_s: float
    enough_s: float

    def is_over(self, rounds_s: Sequence[float]) -> bool:
        """Whether rounds that took these times, in s, are enough."""
        if sum(rounds_s) >= self.enough_s:
            return True
        if len(rounds_s) < 2 or sum(rounds_s) < self.least_s:
            return False
        before_s, last_s = rounds_s[-2:]
        return abs(last_s - before_s) <= STEADY * before_s


CPU_WARM_UP, GPU_WARM_UP = WarmUp(0.0, 1.5), WarmUp(1.0, 10.0)


class Stopwatch(Protocol):
    """Tells how long lie between the moments that are marked."""

    def mark(self) -> None:
        """Here one lap ends and the next one begins."""
        ...

    def laps_s(self) -> list[float]:
        """The times between the marks since the last call, in s, which are forgotten."""
        ...


class ClockStopwatch:
    """By a clock, for a CPU: an operation has ended when its call returns."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._moments_s: list[float] = []

    def mark(self) -> None:
        """Read the clock."""
        self._moments_s.append(self._clock())

    def laps_s(self) -> list[float]:
        """The differences of the readings."""
        moments_s, self._moments_s = self._moments_s, []
        return [end_s - start_s for start_s, end_s in pairwise(moments_s)]


class EventStopwatch:
    """By events in a GPU's stream, which nobody waits for until the laps are asked for.

    So the host runs ahead as in training, and an operation's time is what the device took for it.

    Args:
        new_event: makes an event that knows its time, with `record()`, `synchronize()` and `elapsed_time(later)` in ms.
    """

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event
        self._events: list[Any] = []

    def mark(self) -> None:
        """Put an event behind everything that was asked of the device so far."""
        event = self._new_event()
        event.record()
        self._events.append(event)

    def laps_s(self) -> list[float]:
        """Wait for the last event; the times between them."""
        events, self._events = self._events, []
        if events:
            events[-1].synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairwise(events)]


def stopwatch_of(device: torch.device, clock: Clock = time.perf_counter) -> Stopwatch:
    """The stopwatch for a device; the clock counts on a CPU only."""
    if device.type == "cuda":
        return EventStopwatch(partial(torch.cuda.Event, enable_timing=True))
    return ClockStopwatch(clock)


def warm_up_of(device: torch.device) -> WarmUp:
    """How long a device is warmed up."""
    return GPU_WARM_UP if device.type == "cuda" else CPU_WARM_UP
