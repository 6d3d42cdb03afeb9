"""Which sums a few numbers can have, if each is taken several times: sets of integers as the bits of one integer."""

from collections.abc import Sequence


def spread(sums: int, number: int, most: int, largest: int) -> int:
    """The sums, up to `largest`, that come of adding a number 0 to `most` times to others.

    Args:
        sums: a bit for each of the others, up to `largest`.
        number: above 0.
        most: 0 or more.
        largest: the largest sum of interest.
    """
    most = min(most, largest // number)
    mask = (1 << (largest + 1)) - 1
    done = 1  # bits for up to `done - 1` times are in
    while done <= most:
        more = min(done, most + 1 - done)
        sums |= (sums << (number * more)) & mask
        done += more
    return sums


def tails(counts: Sequence[int], most: Sequence[int], total: int) -> list[int]:
    """For each group, the sums of `count * n` over it and all later ones, with n from 1 to its `most`; as bits.

    One entry more than groups: without any the sum is 0. Sums above `total` are left out.
    """
    found = [1]
    for count, top in zip(reversed(counts), reversed(most), strict=True):
        first = (found[-1] << count) & ((1 << (total + 1)) - 1)
        found.append(spread(first, count, top - 1, total) if top >= 1 else 0)
    return found[::-1]


def has(sums: int, value: int) -> bool:
    """Whether a value is among the sums."""
    return value >= 0 and bool(sums >> value & 1)
