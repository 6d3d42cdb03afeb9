"""Numbers for people: times and sizes in units that read well, and round places for an axis."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit of time, and how many of it make a second."""

    name: str
    per_second: float

    def of(self, seconds: float) -> float:
        """Seconds in this unit."""
        return seconds * self.per_second


SECOND, MILLISECOND, MICROSECOND = TimeUnit("s", 1.0), TimeUnit("ms", 1e3), TimeUnit("µs", 1e6)


def time_unit(seconds: float) -> TimeUnit:
    """The largest unit in which a time (a whole axis, say) is at least 1; seconds for zero."""
    size = abs(seconds)
    if size >= 1 or size == 0:
        return SECOND
    return MILLISECOND if size >= 1e-3 else MICROSECOND


def print_time(seconds: float, unit: TimeUnit | None = None) -> str:
    """A time with four significant digits, such as `12.34 ms`; in `unit` where one is given."""
    chosen = unit or time_unit(seconds)
    return f"{print_number(chosen.of(seconds))} {chosen.name}"


def print_bytes(size: float) -> str:
    """A size with four significant digits, such as `1.5 GiB`."""
    for name in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{print_number(size)} {name}"
        size /= 1024
    return f"{print_number(size)} TiB"


def print_number(value: float) -> str:
    """Four significant digits; whole numbers of more digits in full."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def print_percent(share: float) -> str:
    """A share of one as per cent, such as `12.5 %`."""
    return f"{print_number(round(share * 100, 1))} %"


def ticks(end: float, count: int) -> list[float]:
    """About `count` round places from 0 to `end`: multiples of 1, 2 or 5 times a power of ten."""
    if end <= 0:
        return [0.0]
    rough = end / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [index * step for index in range(math.floor(end / step * (1 + 1e-9)) + 1)]
