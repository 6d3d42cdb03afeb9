"""When copies have paid: they cost time once, and make each iteration shorter."""

from math import ceil


def break_even_iterations(copying_s: float | None, before_s: float, after_s: float) -> int | None:
    """After how many iterations copies have paid: None where they never do, or take nobody knows how long.

    Args:
        copying_s: what the copies take, in s; None where that is not known.
        before_s, after_s: what an iteration takes without them and with them, in s.
    """
    if copying_s is None or after_s >= before_s:
        return None
    return ceil(copying_s / (before_s - after_s))


def pays_within(iterations: int, copying_s: float | None, before_s: float, after_s: float) -> bool:
    """Whether copies have paid after so many iterations; the rest as for `break_even_iterations`."""
    needed = break_even_iterations(copying_s, before_s, after_s)
    return needed is not None and needed <= iterations
