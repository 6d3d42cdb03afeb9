"""The nearest number of micro-batches that can be split, where the one asked for cannot.

Oobleck (section 4.2.2) "recommends an adjusted global batch size close to the original one but distributable".
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .sums import spread


@dataclass(frozen=True)
class Range:
    """What a group can take: so many pipelines of `least` to `most` units each (None: as many as you like)."""

    count: int
    least: int
    most: int | None


def nearest(ranges: Iterable[Range], multiple_of: int, microbatches: int) -> list[int]:
    """The numbers of micro-batches nearest to one that can be split: that one itself, one, or two equally near.

    Args:
        ranges: of the groups, none of them empty.
        multiple_of: micro-batches of a unit.
        microbatches: what is asked for.
    """
    base, coins = _coins(ranges)
    units, remainder = divmod(microbatches, multiple_of)
    below = _largest_at_most(base, coins, units)
    above = _smallest_at_least(base, coins, units + (remainder > 0))
    found = sorted({total * multiple_of for total in (below, above) if total is not None})
    distance = min(abs(total - microbatches) for total in found)
    return [total for total in found if abs(total - microbatches) == distance]


def _coins(ranges: Iterable[Range]) -> tuple[int, dict[int, int | None]]:
    """The units of all groups at their least, and how often each count can be added to them."""
    base, coins = 0, defaultdict[int, int | None](int)
    for part in ranges:
        base += part.count * part.least
        times = coins[part.count]
        coins[part.count] = None if part.most is None or times is None else times + part.most - part.least
    return base, dict(coins)


def _largest_at_most(base: int, coins: dict[int, int | None], units: int) -> int | None:
    return base + _sums(coins, units - base).bit_length() - 1 if units >= base else None


def _smallest_at_least(base: int, coins: dict[int, int | None], units: int) -> int | None:
    if units <= base:
        return base
    # A count that can be added without end has a sum among any `count` units in a row.
    endless = [count for count, times in coins.items() if times is None]
    reach = units - base + min(endless) if endless else sum(count * (times or 0) for count, times in coins.items())
    above = _sums(coins, reach) >> (units - base)
    return units + (above & -above).bit_length() - 1 if above else None


def _sums(coins: dict[int, int | None], largest: int) -> int:
    """The sums of coins, up to a largest, as bits."""
    sums = 1
    for count, times in coins.items():
        sums = spread(sums, count, largest if times is None else times, largest)
    return sums
