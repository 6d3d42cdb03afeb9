"""How far the readings behind a time lie apart, reckoned alike wherever a profile says a `spread`."""

from collections.abc import Sequence
from statistics import quantiles

# With fewer readings, a spread says nothing.
FEWEST_FOR_A_SPREAD = 4


def half_width(values: Sequence[float]) -> float:
    """Half the width of the middle half of two or more values; in their unit.

    Quartiles are those of what the values are a sample of (`exclusive`): within the values, the middle half of a few is
    narrower than that of many, and comparing.py would take noise for a difference.
    """
    lower, _, upper = quantiles(values, n=4)
    return (upper - lower) / 2
