"""When to do what about a slow-down whose end nobody knows: ski rental with several skis (Greyhound, section 5.1).

Every second that an iteration loses is rent; a strategy is bought once, for the seconds that it takes. Algorithm 1 buys
the strategy of cost b_i as soon as the loss so far, its impact, has reached b_i. The paper proves nothing; we do.

Let b_1 <= … <= b_k, let r_i be what is left of the slow-down under strategy i (r_0 = 1), r_0 >= r_1 >= …, and let a
slow-down end that lasts D with impact x, b_i <= x < b_(i+1). Algorithm 1 has lost x + b_1 + … + b_i. Who knew D had
lost b_j + r_j D with some j, or r_0 D with none. For j <= i the impact was b_j when j was bought, and grew by at most
r_j a second from then on, so x <= b_j + r_j D; without j, x <= D. For j > i, x < b_j. So nobody loses less than x, and

    loss <= (1 + max_i (b_1 + … + b_i) / b_i) * the least loss.

It is tight: where the cheaper strategies do not help (r_j = 1 for j < i, which nobody knows beforehand), and all is
well right after the switch that attains the maximum. A strategy that leaves more of the slow-down than a cheaper one
breaks the proof, and is left out beforehand.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite

from ...schemas.errors import InvalidInputError

STRATEGIES = ("S2", "S3", "S4")  # by how much they help (Table 2)
REVERTED = "S3"  # the strategy that is taken back on relief
LEAST_GAIN = 0.05  # of the slow-down; a dearer strategy that takes away less than this of it is not worth it


@dataclass(frozen=True)
class Switch:
    """Take a strategy once so much has been lost: iterations' times beyond the usual, added up, in s."""

    strategy: str
    after_s: float


@dataclass(frozen=True)
class Dropped:
    """A strategy that is never taken, and why."""

    strategy: str
    why: str


@dataclass(frozen=True)
class Switching:
    """When to switch; the loss is at most `ratio` times that of who knows the end beforehand."""

    switches: tuple[Switch, ...]
    ratio: float
    dropped: tuple[Dropped, ...]


def plan_switches(
    costs_s: Mapping[str, float], left: Mapping[str, float] | None = None, revert_s: float = 0.0
) -> Switching:
    """The switching plan.

    Args:
        costs_s: of strategies, some of `STRATEGIES`, in s.
        left: what share of the slow-down is left under each, as far as that is known; else a later strategy of
            `STRATEGIES` leaves no more than an earlier one.
        revert_s: what it takes to undo S3 on relief; it belongs to its cost.

    Raises:
        InvalidInputError: no costs, one that is not above 0, or a share below 0.
    """
    left = left or {}
    _check(costs_s, left, revert_s)
    costs_s = {name: cost_s + (revert_s if name == REVERTED else 0.0) for name, cost_s in costs_s.items()}
    dropped = dict(_dominated(costs_s, left))
    kept = sorted((cost_s, STRATEGIES.index(name)) for name, cost_s in costs_s.items() if name not in dropped)
    return Switching(
        tuple(Switch(STRATEGIES[number], cost_s) for cost_s, number in kept),
        ratio_of([cost_s for cost_s, _ in kept]),
        tuple(Dropped(name, dropped[name]) for name in sorted(dropped)),
    )


def ratio_of(costs_s: Sequence[float]) -> float:
    """The most that Algorithm 1 can lose, as a multiple of the least loss; 1 without strategies.

    Args:
        costs_s: ascending, above 0, in s.
    """
    return 1 + max((total_s / cost_s for total_s, cost_s in zip(accumulate(costs_s), costs_s, strict=True)), default=0)


def _dominated(costs_s: Mapping[str, float], left: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """The strategies that a cheaper one makes needless, and why."""
    least, by = 1.0, "nothing"
    for name in sorted(costs_s, key=lambda one: (costs_s[one], left.get(one, 0.0), STRATEGIES.index(one))):
        better = _cheaper_and_later(name, costs_s, left)
        share = left.get(name, 0.0)  # where nobody knows, it may help with all of it
        if better:
            yield name, f"{better} costs less and helps as much"
        elif least - share < LEAST_GAIN:
            yield name, f"it leaves {share:.3g} of the slow-down, and {by} leaves {least:.3g}"
        elif name in left:
            least, by = share, name


def _cheaper_and_later(name: str, costs_s: Mapping[str, float], left: Mapping[str, float]) -> str | None:
    """A strategy that costs less, and helps as much by its rank, where what the two leave is not known."""
    later = (one for one in STRATEGIES[STRATEGIES.index(name) + 1 :] if one in costs_s)
    return next((one for one in later if costs_s[one] < costs_s[name] and not {one, name} <= left.keys()), None)


def _check(costs_s: Mapping[str, float], left: Mapping[str, float], revert_s: float) -> None:
    if not costs_s:
        raise InvalidInputError("there are no costs", where="--costs", fix="give seconds: 5,60,1200, or S3=60,S4=1200")
    for name in (*costs_s, *left):
        if name not in STRATEGIES:
            raise InvalidInputError(f"there is no strategy {name}", where="--costs", fix="take S2, S3 and S4")
    for name, cost_s in costs_s.items():
        if not 0 < cost_s < float("inf"):
            what = f"{name} costs {cost_s:g} s"
            raise InvalidInputError(what, where="--costs", fix="costs are finite and above 0, in seconds")
    for name, share in left.items():
        if name not in costs_s:
            raise InvalidInputError(f"{name} has no cost", where="--left", fix="give it one with --costs")
        if not (isfinite(share) and share >= 0):
            what = f"{share:g} of the slow-down cannot be left under {name}"
            raise InvalidInputError(what, where="--left", fix="0 is none of it, 1 all of it")
    if not (isfinite(revert_s) and revert_s >= 0):
        raise InvalidInputError(f"{revert_s:g} s to revert", where="--revert-cost", fix="give 0 or more seconds")
