"""Durations, sizes, rates and shares: one rule for reading them, and one for writing them.

Read, on the command line and in cluster, overlay and sweep files: a number with a unit (`5us`, `80GiB`, `50GB/s`,
`400Gb/s`, `25%`), or a number of the base unit: seconds, bytes, bytes a second, the whole. Case matters: B is a byte,
b a bit.

Written, for people, in tables, remarks and errors: `print_time`, `print_bytes`, `print_rate`, `print_percent` and
`print_number`, which give four significant digits and a unit that reads well (`939.4 ms`, `64.27 MiB`, `50 GB/s`,
`6.8 %`), and `print_change` for what became more or less (`+12.5 %`, `-4 %`, with a minus that a keyboard has). In the
columns of a table, figures stand under each other: `print_share`. Two values of which a sentence says that they differ
are shown as far as they do: `print_apart`. JSON has the base unit, exactly.
"""

import math
import re
from collections.abc import Callable, Mapping
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
    """The largest unit in which a time (a whole axis, say) is at least 1; seconds for zero, and for what is no time."""
    size = abs(seconds)
    if size >= 1 or size == 0 or not math.isfinite(size):
        return SECOND
    return MILLISECOND if size >= 1e-3 else MICROSECOND


# Longer than any axis: in a sentence or a table who reads hours counts them in hours.
_LONG = (TimeUnit("d", 1 / 86_400), 172_800.0), (TimeUnit("h", 1 / 3600), 7200.0), (TimeUnit("min", 1 / 60), 120.0)


def print_time(seconds: float, unit: TimeUnit | None = None, digits: int = 4) -> str:
    """A time with four significant digits, such as `12.34 ms` or `3.5 h`; in `unit` where one is given."""
    long = next((longer for longer, from_s in _LONG if math.inf > abs(seconds) >= from_s), None)
    chosen = unit or long or time_unit(seconds)
    return f"{print_number(chosen.of(seconds), digits)} {chosen.name}"


def print_bytes(size: float, digits: int = 4) -> str:
    """A size with four significant digits, such as `1.5 GiB`."""
    for name in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{print_number(size, digits)} {name}"
        size /= 1024
    return f"{print_number(size, digits)} TiB"


def print_rate(bytes_per_s: float) -> str:
    """A rate with four significant digits, such as `50 GB/s`; of 1000, as networks count."""
    for name in ("B/s", "kB/s", "MB/s", "GB/s"):
        if abs(bytes_per_s) < 1000:
            return f"{print_number(bytes_per_s)} {name}"
        bytes_per_s /= 1000
    return f"{print_number(bytes_per_s)} TB/s"


def print_number(value: float, digits: int = 4) -> str:
    """Four significant digits, or as many as asked for; whole numbers of more digits in full."""
    if 1000 <= abs(value) < 1e15:
        return f"{value:.{max(0, digits - len(str(int(abs(value)))))}f}"
    return f"{value:.{digits}g}"


def print_apart(one: float, other: float, shown: Callable[..., str]) -> tuple[str, str]:
    """Two values that differ, with as many digits as it takes to see it, such as `2.00001 s` and `2.00002 s`.

    Args:
        one: the first.
        other: the second.
        shown: `print_time`, `print_bytes` or `print_number`.
    """
    pairs = [(shown(one, digits=digits), shown(other, digits=digits)) for digits in range(4, 18)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])


def print_percent(share: float) -> str:
    """A share of one as per cent, such as `12.5 %`; below 0.1 % with more digits."""
    percent = share * 100
    return f"{print_number(round(percent, 1 if abs(percent) >= 0.1 else 3) + 0.0)} %"


def print_share(share: float) -> str:
    """A share of one as per cent with one decimal, such as `98.0 %`: figures of a column stand under each other."""
    return f"{100 * share:.1f} %"


def print_change(share: float) -> str:
    """What became more or less, as a share of what it was: `+12.5 %`, `-4 %`."""
    change = print_percent(abs(share))
    return f"{'-' if share < 0 and change != '0 %' else '+'}{change}"


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
    f"{prefix}{bit}/s": Fraction(factor, 8) for bit in ("b", "bit") for prefix, factor in _DECIMAL.items()
}
SHARES = {"%": Fraction(1, 100)}

_NUMBER = r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?)"
_QUANTITY = re.compile(rf"{_NUMBER}\s*([^\d\s.+-][^\d\s]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A kind of quantity: what help pages call it, its units, and what a number without a unit counts.

    Attributes:
        name: in help pages, such as DURATION.
        units: how many of `base` each makes.
        base: in words.
        example: of such quantities.
    """

    name: str
    units: Mapping[str, Fraction]
    base: str
    example: str

    @property
    def fix(self) -> str:
        """What to write, for errors."""
        return f"write {self.example}, or a plain number of {self.base}"

    def parse(self, text: str, where: str, *, least: float = 0.0) -> float:
        """The quantity in its base unit, exact until it is rounded to a float: `3us` is 3e-06.

        Args:
            text: a number, and a unit or none.
            where: whose value it is, for errors.
            least: what it may be at the least.

        Raises:
            InvalidInputError: it cannot be read, or is less.
        """
        match = _QUANTITY.fullmatch(text.strip())
        if match is None:
            raise InvalidInputError(f"{text!r} cannot be read", where=where, fix=self.fix)
        number, unit = match.groups()
        if unit is not None and unit not in self.units:
            raise InvalidInputError(f"{unit!r} in {text!r} is no unit here", where=where, fix=self._meant(unit))
        try:
            value = float(Fraction(number) * self.units[unit]) if unit else float(number)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise InvalidInputError(f"{text!r} is too much", where=where, fix=self.fix)
        if value < least:
            raise InvalidInputError(f"{text!r} is too little", where=where, fix=f"give {self.least_words(least)}")
        return value

    def least_words(self, least: float) -> str:
        """`0 or more`, in words for errors and help pages."""
        unit = {"DURATION": " s", "SIZE": " B", "RATE": " B/s"}.get(self.name, "") if least else ""
        return f"{least:g}{unit} or more"

    def parse_above_zero(self, text: str, where: str) -> float:
        """The same, where none of it makes no sense."""
        value = self.parse(text, where)
        if value <= 0:
            raise InvalidInputError(f"{text!r} is nothing", where=where, fix="give more than 0")
        return value

    def _meant(self, unit: str) -> str:
        """What to write instead of a unit that is none: in another case `b` is a bit and `m` a thousandth."""
        meant = (unit.lower(), f"{unit.lower()}b", unit.lower().replace("ps", "/s"))
        near = next((f"did you mean {one}? " for one in self.units if one.lower() in meant), "")
        bits = "; b is a bit, B a byte" if self.units is SPEEDS or "b" in unit.lower() else ""
        return f"{near}{self.fix}; units are {', '.join(self.units)}{bits}"


DURATION = Quantity("DURATION", TIMES, "seconds", "10ms, 2s, 5min or 12h")
DAYS = Quantity("DAYS", {unit: factor / TIMES["d"] for unit, factor in TIMES.items()}, "days", "30d or 12h")
SIZE = Quantity("SIZE", SIZES, "bytes", "80GB (of 1000) or 64MiB (of 1024)")
RATE = Quantity("RATE", SPEEDS, "bytes a second", "50GB/s or 400Gb/s")
SHARE = Quantity("SHARE", SHARES, "what is whole (0.25)", "25%")


def parse_time_s(text: str, where: str) -> float:
    """`5us`, `1.5ms`, `12h`, `30d`, or a number of seconds: seconds, 0 or more."""
    return DURATION.parse(text, where)


def parse_bytes(text: str, where: str) -> float:
    """`80GiB` (of 1024), `80GB` (of 1000), or a number of bytes: bytes, above 0."""
    return SIZE.parse_above_zero(text, where)


def parse_speed(text: str, where: str) -> float:
    """`50GB/s`, `400Gbit/s`, or a number of bytes a second: bytes a second, above 0."""
    return RATE.parse_above_zero(text, where)


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


def parse_memory_limit(value: str | None, where: str = "--memory-limit") -> list[float] | None:
    """`80GB` for all stages, `8e9,8e9,4e9` one a stage; bytes, 0 or more.

    Raises:
        InvalidInputError: a limit is not such a size.
    """
    return None if value is None else [SIZE.parse(part, where) for part in value.split(",")]
