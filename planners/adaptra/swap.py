"""Two workers change places so that a slow link between peers becomes one of a pipeline, or of nobody.

Adaptra, section 5: a slow link delays each of the 2(n-1) steps of a ring of n peers, and nothing hides that; between
stages of a pipeline the schedule has slack for it. The paper swaps nodes so that the link lies between stages. We look
at all swaps of one end of the link with a worker of another stage, and prefer those after which the pair sends nothing
to each other at all; of these the one that copies the fewest bytes of state, then the first by its places.
"""

from collections.abc import Iterator, Mapping, Sequence

from ...schemas.plan import Place, Plan

PlacePair = tuple[Place, Place]  # ascending
Swap = tuple[Place, Place]  # an end of a slow link, and the place that it changes with
Harm = tuple[float, float]


def best_swap(plan: Plan, slow: Mapping[PlacePair, float], state_bytes: Sequence[float]) -> Swap | None:
    """The best swap for slow links between peers; None where there is none, or no swap makes things better.

    Args:
        plan: of pipelines that are alike; failed workers swap with nobody.
        slow: delays of slow links, by the places of their ends, in s.
        state_bytes: parameters and optimizer state of each stage.
    """
    ends = sorted({place for pair in slow if are_peers(pair) for place in pair})
    swaps = [(end, other) for end in ends for other in _elsewhere(plan, end)]
    if not swaps:
        return None

    def cost(swap: Swap) -> tuple[Harm, float, Swap]:
        return _harm(swapped(slow, swap)), sum(state_bytes[stage] for _, stage in swap), swap

    best = min(swaps, key=cost)
    return best if _harm(swapped(slow, best)) < _harm(slow) else None


def swapped(slow: Mapping[PlacePair, float], swap: Swap) -> dict[PlacePair, float]:
    """The slow links by the places of their ends after a swap."""
    one, other = swap
    moves = {one: other, other: one}
    ends = ((moves.get(a, a), moves.get(b, b), delay_s) for (a, b), delay_s in slow.items())
    return {(min(a, b), max(a, b)): delay_s for a, b, delay_s in ends}


def _elsewhere(plan: Plan, place: Place) -> Iterator[Place]:
    """The live workers of other stages."""
    return ((one.pipeline, one.stage) for one in plan.live_workers() if one.stage != place[1])


def _harm(slow: Mapping[PlacePair, float]) -> Harm:
    """The delays of links between peers, then of those inside a pipeline, in s."""
    return (
        sum(delay_s for pair, delay_s in slow.items() if are_peers(pair)),
        sum(delay_s for pair, delay_s in slow.items() if are_neighbours(pair)),
    )


def are_peers(pair: PlacePair) -> bool:
    """Whether two places are of one stage."""
    return pair[0][1] == pair[1][1]


def are_neighbours(pair: PlacePair) -> bool:
    """Whether two places follow each other in one pipeline."""
    (k, i), (other, j) = pair
    return k == other and abs(i - j) == 1
