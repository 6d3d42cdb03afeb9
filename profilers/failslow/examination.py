"""What a group's examination shows: which of its links, and which of its workers, are slow.

Greyhound, section 4.3: between two iterations the workers of a suspicious group multiply matrices of the same size and
exchange messages of the same size. As in `rtk probe`, usual is the lower third and not the median (slow_parts.py says
why). Otherwise slow is what it is everywhere in a running job: a worker by a fifth, and a link by `Expected.least_s` a
message, for the paper's 10 % of a fast link's time are less than what a scheduler takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...schemas.conditions import Pair, pair_of
from ...schemas.protocols import Examined
from .expected import FEWEST, SLOW_PACE, Expected
from .slow_parts import lower_third, slow_among


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        tried: the pairs that have exchanged messages.
        links: of those that are slow what a message takes one way, in s.
        workers: of those that are slow how many times as long as the others they take.
    """

    tried: frozenset[Pair]
    links: Mapping[Pair, float]
    workers: Mapping[str, float]


def judged(examined: Mapping[str, Examined], expected: Expected) -> Finding:
    """What a whole group's examination shows; the link of two workers has none to be compared with.

    Args:
        examined: what each of the group has measured, by names.
        expected: what is usual.
    """
    delays_s = _delays_s(examined)
    return Finding(frozenset(delays_s), _slow_links(delays_s, expected), _slow_workers(examined, expected))


def _delays_s(examined: Mapping[str, Examined]) -> dict[Pair, float]:
    """What a message of each pair takes one way: half of an exchange; the shortest where there were several."""
    found: dict[Pair, float] = {}
    for name, one in examined.items():
        for other, both_ways_s in one.exchanges:
            if other in examined and other != name:
                pair = pair_of(name, other)
                found[pair] = min(both_ways_s / 2, found.get(pair, both_ways_s / 2))
    return found


def _slow_links(delays_s: Mapping[Pair, float], expected: Expected) -> dict[Pair, float]:
    if len(delays_s) < FEWEST:
        return {}
    usual_s = lower_third(delay_s - expected.delay_s(*pair) for pair, delay_s in delays_s.items())
    without_s = {pair: delay_s - usual_s for pair, delay_s in delays_s.items()}
    return {pair: one for pair, one in without_s.items() if one >= expected.delay_s(*pair) + expected.least_s}


def _slow_workers(examined: Mapping[str, Examined], expected: Expected) -> dict[str, float]:
    took_s = {name: [one.compute_s / expected.slowdown.get(name, 1.0)] for name, one in examined.items()}
    return slow_among(took_s, limit=1 + SLOW_PACE)
