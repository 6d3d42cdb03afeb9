"""Two workers of a running job change places, with their parameters, so that what is slow costs less (S3).

Greyhound, section 5.2: a congested link is given to a group with little traffic, and stragglers are consolidated. The
paper does so by rules; we look at all swaps of a slow worker, or of an end of a slow link, with another live worker,
and take the one after which the job is fastest by the whole schedule, the dead and uneven micro-batches included. So
slow links carry nothing if that can be had, and stragglers come together only where that helps. Of swaps that are
equally good, to `ALIKE`, the one counts whose slow links lie least between peers, then inside pipelines, then the one
that copies the fewest bytes (peers hold the same state and copy nothing at all), then the first by its places.

A whole topology at once is `topology.py`; of a running job, whose state is copied over the network that is slow, as few
workers move as will do.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from ...schemas.plan import Place, Plan

PlacePair = tuple[Place, Place]  # ascending
Swap = tuple[Place, Place]  # ascending; who sits there change places
Value = Callable[[Swap | None], float]

ALIKE = 0.005
# So many swaps are tried in full, the best ones by a quick look.
TRIED = 24
# Pipelines in which nobody is slow are alike: whoever swaps with one of them need not try the others.
UNTROUBLED = 2


def best_swap(
    plan: Plan,
    slow_workers: Collection[Place],
    slow_links: Mapping[PlacePair, float],
    state_bytes: Sequence[float],
    quick_s: Value,
    time_s: Value,
) -> Swap | None:
    """The swap after which an iteration takes least; None where there is none, or none makes it any shorter.

    Args:
        plan: of pipelines that are alike; failed workers swap with nobody.
        slow_workers: their places.
        slow_links: delays by the places of their ends, in s.
        state_bytes: parameters and optimizer state of each stage.
        quick_s: what an iteration takes after a swap, or without one, in s, roughly; asked about all swaps.
        time_s: the same, as exactly as may be; asked about `TRIED` of them.
    """
    swaps = list(_swaps(plan, {*slow_workers, *(place for pair in slow_links for place in pair)}))

    def burden(swap: Swap) -> tuple[float, float, bool, float, Swap]:
        copied_bytes = 0.0 if are_peers(swap) else sum(state_bytes[stage] for _, stage in swap)
        return *_harm(swapped(slow_links, swap)), not are_peers(swap), copied_bytes, swap

    promising = sorted(swaps, key=lambda swap: (quick_s(swap), burden(swap)))[:TRIED]
    times_s = {swap: time_s(swap) for swap in promising}
    least_s = min(times_s.values(), default=0.0)
    if not times_s or least_s >= time_s(None):
        return None
    return min((swap for swap, one_s in times_s.items() if one_s <= least_s * (1 + ALIKE)), key=burden)


def swapped(slow_links: Mapping[PlacePair, float], swap: Swap) -> dict[PlacePair, float]:
    """The slow links by the places of their ends after a swap."""
    one, other = swap
    moves = {one: other, other: one}
    ends = ((moves.get(a, a), moves.get(b, b), delay_s) for (a, b), delay_s in slow_links.items())
    return {(min(a, b), max(a, b)): delay_s for a, b, delay_s in ends}


def are_peers(pair: PlacePair) -> bool:
    """Whether two places are of one stage."""
    return pair[0][1] == pair[1][1]


def are_neighbours(pair: PlacePair) -> bool:
    """Whether two places follow each other in one pipeline."""
    (k, i), (other, j) = pair
    return k == other and abs(i - j) == 1


def _swaps(plan: Plan, troubled: Collection[Place]) -> Iterator[Swap]:
    """Every troubled place with every other live one, but of pipelines without trouble only the first few."""
    alive = [worker.place for worker in plan.live_workers()]
    concerned = {k for k, _ in troubled}
    others = [k for k in range(len(plan.pipelines)) if k not in concerned][:UNTROUBLED]
    concerned.update(others)
    found = {
        (min(one, other), max(one, other))
        for one in troubled
        for other in alive
        if one in alive and other != one and other[0] in concerned
    }
    return iter(sorted(found))


def _harm(slow_links: Mapping[PlacePair, float]) -> tuple[float, float]:
    """The delays of links between peers, then of those inside a pipeline, in s."""
    return (
        sum(delay_s for pair, delay_s in slow_links.items() if are_peers(pair)),
        sum(delay_s for pair, delay_s in slow_links.items() if are_neighbours(pair)),
    )
