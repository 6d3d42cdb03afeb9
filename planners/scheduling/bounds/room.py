"""How many micro-batches fit under a memory limit, as the checker counts."""

from __future__ import annotations

from functools import lru_cache

from ....schemas.check import ROUNDING

NO_ROOM = -1


def fits(whole: int, stashed: int, *, activation_bytes: float, stash_bytes: float, limit_bytes: float) -> bool:
    """Whether a limit admits so many micro-batches between F and I, and so many between I and W."""
    return not whole * activation_bytes + stashed * stash_bytes > limit_bytes * (1 + ROUNDING)


@lru_cache(maxsize=256)
def stash_room(count: int, activation_bytes: float, stash_bytes: float, limit_bytes: float) -> tuple[int, ...]:
    """How many micro-batches may be stashed beside each number of whole ones, from 0 to `count`, or more than may.

    It falls by one or more with each whole micro-batch, as that holds no less than its stash. Where rounded sums say
    otherwise, the larger number is taken. NO_ROOM stands where the whole ones do not fit; 2 `count` is no limit.
    """
    room = []
    stashed = 2 * count
    for whole in range(count + 1):
        while stashed > NO_ROOM and not fits(
            whole, stashed, activation_bytes=activation_bytes, stash_bytes=stash_bytes, limit_bytes=limit_bytes
        ):
            stashed -= 1
        room.append(stashed)
    for whole in reversed(range(count)):
        if room[whole + 1] > NO_ROOM:
            room[whole] = max(room[whole], room[whole + 1] + 1)
    return tuple(room)
