"""Which workers and which links are slow, from what tests that are the same for all took on each: pure judgement.

Greyhound, section 4.3: what takes over 10 % more than the median of its like is slow. Here it is compared with the
lower third instead (of 6, the second fastest): where one of three or four workers has a slow network card, half of all
links and more are slow.

So that busy machines accuse nobody, its fastest reading must be too long as well, compared with the fastest ones of
others, and that in most tests (data types, sizes of messages), for they are of the same part. Messages depend on two
processes that may have to wait for a processor; they must be longer by more than readings of one link differ, too.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from ...schemas.conditions import Pair

SLOW = 1.1
FEWEST = 2  # one alone has nothing to be compared with

T = TypeVar("T", bound=Hashable)
Readings = Mapping[T, Sequence[float]]  # some readings of the same test, in s, by whom they are of


@dataclass(frozen=True, slots=True)
class SlowParts:
    """What is slow.

    Attributes:
        workers: of those that are slow how many times as long as others they compute, in the test that shows it most.
        links: of those that are slow how many times as long as on others messages take, likewise.
        cards: workers all of whose links of a kind are slow, where these are two or more: the fault is at their end.
        alone: kinds of links of which there is one only, so that nobody knows whether it is slow.
    """

    workers: Mapping[str, float]
    links: Mapping[Pair, float]
    cards: tuple[str, ...]
    alone: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.workers or self.links)


def slow_parts(
    compute_s: Mapping[str, Readings[str]],
    exchange_s: Mapping[str, Readings[Pair]],
    node_of: Mapping[str, str] | None = None,
) -> SlowParts:
    """Judge workers and links.

    Args:
        compute_s: by test (a data type, say), then by worker: what the same computation took, in s.
        exchange_s: by test (a message size), then by link, whose ends have any order: what the same message took, in s.
        node_of: the machine of each worker; links within and between machines are compared apart. None: all on one.
    """
    kinds = {pair: _kind(pair, node_of) for test in exchange_s.values() for pair in test}
    links: dict[Pair, float] = {}
    for kind in sorted(set(kinds.values())):
        of_kind = [{pair: one for pair, one in test.items() if kinds[pair] == kind} for test in exchange_s.values()]
        links |= _in_most(of_kind, are_messages=True)
    alone = tuple(kind for kind in sorted(set(kinds.values())) if list(kinds.values()).count(kind) < FEWEST)
    workers = _in_most(list(compute_s.values()), are_messages=False)
    return SlowParts(workers, links, _cards(kinds, links), alone)


def slow_among(readings: Readings[T], are_messages: bool = False, limit: float = SLOW) -> dict[T, float]:
    """Those of some that are slow, and by which factor.

    Args:
        readings: some of the same test, in s, by whom they are of; one or more of each.
        are_messages: whether they are of messages, else of computation.
        limit: how many times as long as usual is slow.
    """
    if len(readings) < FEWEST:
        return {}
    middle_s = {one: median(times_s) for one, times_s in readings.items()}
    usual_s = lower_third(middle_s.values())
    fastest_s = limit * lower_third(min(times_s) for times_s in readings.values())
    if are_messages:
        fastest_s = max(fastest_s, usual_s * (1 + _unrest(readings)))
    slow = (one for one in readings if middle_s[one] > limit * usual_s and min(readings[one]) > fastest_s)
    return {one: middle_s[one] / usual_s for one in slow if usual_s > 0}


def lower_third(times_s: Iterable[float]) -> float:
    """What is usual among one or more times, in s: a third of them at most are shorter."""
    ordered = sorted(times_s)
    return ordered[(len(ordered) - 1) // 3]


def _unrest(readings: Readings[T]) -> float:
    """How far apart readings of the same part are, as a part of the middle one: the median of all parts."""
    return median((max(times_s) - min(times_s)) / (median(times_s) or 1.0) for times_s in readings.values())


def _in_most(tests: Sequence[Readings[T]], are_messages: bool) -> dict[T, float]:
    """Those that are slow in most tests, each with its largest factor."""
    factors: dict[T, list[float]] = {}
    for test in tests:
        for one, factor in slow_among(test, are_messages).items():
            factors.setdefault(one, []).append(factor)
    return {one: max(factors[one]) for one in sorted(factors, key=str) if 2 * len(factors[one]) > len(tests)}


def _kind(pair: Pair, node_of: Mapping[str, str] | None) -> str:
    is_within = node_of is None or node_of[pair[0]] == node_of[pair[1]]
    return "within a machine" if is_within else "between machines"


def _cards(kinds: Mapping[Pair, str], slow: Mapping[Pair, float]) -> tuple[str, ...]:
    links_of: dict[tuple[str, str], list[Pair]] = {}
    for pair, kind in kinds.items():
        for end in pair:
            links_of.setdefault((end, kind), []).append(pair)
    found = {end for (end, _), links in links_of.items() if len(links) >= FEWEST and all(p in slow for p in links)}
    return tuple(sorted(found))
