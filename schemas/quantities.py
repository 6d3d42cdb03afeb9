"""Times, sizes and speeds as people write them, always with their unit: `5us`, `80GiB`, `50GB/s`, `400Gbit/s`.

And numbers for people: times and sizes in units that read well, and round places for an axis.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from .errors import InvalidInputError


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


# Seconds that an exact solver gets where one is asked for without a time limit.
USUAL_TIME_LIMIT_S = 60.0

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

TIMES = {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6)} | {
    "ns": Fraction(1, 10**9)
}
TIMES |= {"min": Fraction(60), "h": Fraction(3600), "d": Fraction(86_400)}
# KB is what most people write for kB, beside MB and GB.
SIZES = {f"{prefix}B": Fraction(factor) for prefix, factor in (_DECIMAL | {"K": 10**3} | _BINARY).items()}
SPEEDS = {f"{unit}/s": factor for unit, factor in SIZES.items()} | {
    f"{prefix}bit/s": Fraction(factor, 8) for prefix, factor in _DECIMAL.items()
}

_QUANTITY = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*(\D*)")


def parse_time_s(text: str, where: str) -> float:
    """`5us`, `1.5ms`, `12h`, `30d`: seconds, 0 or more."""
    return _parsed(text, TIMES, where, "5us, 1.5ms, 2s or 12h")


def parse_bytes(text: str, where: str) -> float:
    """`80GiB` (of 1024) or `80GB` (of 1000): bytes, above 0."""
    return _above_zero(_parsed(text, SIZES, where, "80GiB or 80GB"), text, where)


def parse_speed(text: str, where: str) -> float:
    """`50GB/s`, `400Gbit/s`: bytes a second, above 0."""
    return _above_zero(_parsed(text, SPEEDS, where, "50GB/s or 400Gbit/s"), text, where)


def _parsed(text: str, units: Mapping[str, Fraction], where: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(f"{text!r} is no number with a unit", where=where, fix=f"write {example}")
    number, unit = match.groups()
    if not unit:
        raise InvalidInputError(f"{text!r} has no unit", where=where, fix=f"write {example}")
    if unit not in units:
        # Not read as meant: in another case `b` is a bit and `m` a thousandth.
        near = next((f"did you mean {one}? " for one in units if one.lower() == unit.lower()), "")
        known = ", ".join(units)
        raise InvalidInputError(
            f"{unit!r} in {text!r} is no unit here", where=where, fix=f"{near}write {example}; units are {known}"
        )
    return float(Fraction(number) * units[unit])  # exact until here, so 3us is 3e-06


def _above_zero(value: float, text: str, where: str) -> float:
    if value <= 0:
        raise InvalidInputError(f"{text!r} is nothing", where=where, fix="give more than 0")
    return value


def parse_number(option: str, text: str, fix: str) -> float:
    """A plain number.

    Args:
        option: whose value it is, for errors.
        text: without a unit.
        fix: what to do where it is none.

    Raises:
        InvalidInputError: it is none, or not finite.
    """
    try:
        number = float(text)
    except ValueError:
        raise InvalidInputError(f"{text!r} cannot be read", where=option, fix=fix) from None
    if not math.isfinite(number):
        raise InvalidInputError(f"{text!r} cannot be read", where=option, fix="give a finite number")
    return number


def parse_memory_limit(value: str | None) -> list[float] | None:
    """`8e9` for all stages, `8e9,8e9,4e9` one a stage; bytes, 0 or more.

    Raises:
        InvalidInputError: a limit is not such a number.
    """
    if value is None:
        return None
    fix = "limits are in bytes, without a unit"
    limits = [parse_number("--memory-limit", part, fix) for part in value.split(",")]
    if min(limits) < 0:
        raise InvalidInputError(f"{value!r} cannot be read", where="--memory-limit", fix="a limit is 0 or more bytes")
    return limits
