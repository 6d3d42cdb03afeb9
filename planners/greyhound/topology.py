"""Who sits where, so that slow workers and links cost least: Greyhound's S3 (section 5.2), alone or with S2.

The paper moves a congested link out of the heavy all-reduce rings into the light pipelines, and gathers stragglers in
as few stages as possible. Both, and what is better (to put the ends of a slow link where they have nothing to send to
each other), come out of one search: the assignment of workers to places of least iteration time, by the analytic model
of `arrangement.py`, where every assignment may have its own best distribution of micro-batches (S2). Up to
`MOST_ENUMERATED` arrangements are looked at one by one, so the answer is proven; more are searched by best swaps with
seeded kicks. Of equally good arrangements one is taken in which few workers move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum
from typing import Literal

from ...schemas.conditions import Pair, PlanConditions, are_peers
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Place, Plan
from ..batch.distribute import distribute
from .arrangement import EVENLY, Kinds, Search

Proof = Literal["optimal", "none"]
Move = tuple[str, Place, Place]  # a worker, from where, to where


@dataclass(frozen=True)
class Assignment:
    """Who sits where, and what that is worth by the analytic model.

    Attributes:
        places: of each worker.
        microbatches: of each pipeline.
        before_s: an iteration as things are: everybody at the start, and the plan's micro-batches.
        after_s: an iteration after this.
        moves: who leaves his place, in the order of names.
        proof: "optimal" where no assignment that was allowed takes less, by the model; where micro-batches are
            distributed, with every pipeline as a line near those that it can be expected to have.
    """

    places: dict[str, Place]
    microbatches: tuple[int, ...]
    before_s: float
    after_s: float
    moves: tuple[Move, ...]
    proof: Proof


def best_assignment(
    plan: Plan,
    start: Mapping[str, Place],
    slow: Mapping[str, float],
    slow_links: Mapping[Pair, float],
    *,
    keep_microbatches: bool = False,
    most_moves: int | None = None,
    seed: int = 0,
) -> Assignment:
    """The assignment of workers to places with the least iteration time.

    Args:
        plan: of alike pipelines. Its orders do not matter, nor do the slow-downs that it knows.
        start: where each worker sits now; other places of the plan are dead: nobody moves there, and the stage's other
            workers share the work.
        slow: slow-down factors by worker. Who is not in `start` does not count, here and in `slow_links`.
        slow_links: delays by pairs of workers, ascending, wherever they sit, in s: what a message takes in all.
        keep_microbatches: every pipeline keeps the plan's micro-batches (S3 alone); else they are distributed (S2).
        most_moves: so many workers may leave their places; None: all. 0 is S2 alone.
        seed: of the kicks.

    Raises:
        InvalidInputError: the pipelines are unlike.
        InfeasibleError: a memory limit does not admit a single micro-batch, or there are fewer micro-batches than
            pipelines.
    """
    names = list(dict.fromkeys(pipeline.template for pipeline in plan.pipelines))
    if len(names) > 1:
        raise InvalidInputError(
            f"workers of unlike pipelines ({' and '.join(names[:2])}) cannot change places",
            where="/pipelines",
            fix="take a plan of pipelines that are alike",
        )
    counts = tuple(pipeline.microbatches for pipeline in plan.pipelines)
    keep_microbatches = keep_microbatches or len(counts) == 1
    kinds = Kinds.among(start, slow, slow_links)
    search = Search(plan, start, kinds, counts if keep_microbatches else None)
    who, proven = search.best(len(plan.workers) if most_moves is None else most_moves, seed)

    exact = Search(plan, start, kinds, counts)
    before_s, after_s = max(exact.ends_s(exact.home, counts)), max(exact.ends_s(who, counts))
    if not keep_microbatches:
        lines = search.look(who)
        uneven = _evened(partial(exact.ends_s, who), distribute(lines, sum(counts)).microbatches)
        uneven_s = max(exact.ends_s(who, uneven))
        if uneven_s < after_s * (1 - EVENLY):
            counts, after_s = uneven, uneven_s
    places = _named(start, kinds, who.tolist(), len(plan.template_of(0).stages))
    moves = tuple((name, start[name], place) for name, place in places.items() if place != start[name])
    proof: Proof = "optimal" if proven else "none"
    return Assignment(places, counts, before_s, after_s, moves, proof)


def _evened(ends_s: Callable[[Sequence[int]], list[float]], counts: Sequence[int]) -> tuple[int, ...]:
    """The best distribution, from one that is nearly so: pipelines are lines only near the micro-batches they have.

    One by one micro-batches go from the slowest pipeline to that which is done with one more first. Once that is as
    slow, no distribution is better, for some pipeline would have more than now.
    """
    found = list(counts)
    while True:
        now_s, more_s = ends_s(found), ends_s([count + 1 for count in found])
        giver, taker = now_s.index(max(now_s)), more_s.index(min(more_s))
        if found[giver] == 1 or more_s[taker] >= now_s[giver] * (1 - EVENLY):
            return tuple(found)
        found[giver] -= 1
        found[taker] += 1


def _named(start: Mapping[str, Place], kinds: Kinds, who: Sequence[int], depth: int) -> dict[str, Place]:
    """The workers at places for their kinds; who can stay does."""
    free: dict[int, list[Place]] = {}
    for number, kind in enumerate(who):
        free.setdefault(kind, []).append(divmod(number, depth))
    names = sorted(start, key=lambda name: start[name])
    stay = {name: start[name] for name in names if start[name] in free[kinds.of[name]]}
    for name, place in stay.items():
        free[kinds.of[name]].remove(place)
    moved = {name: free[kinds.of[name]].pop(0) for name in names if name not in stay}
    return {name: (stay | moved)[name] for name in sorted(start)}


# Two workers of a running job change places, with their parameters, so that what is slow costs less (S3).
#
# Greyhound, section 5.2: a congested link is given to a group with little traffic, and stragglers are consolidated. The
# paper does so by rules; we look at all swaps of a slow worker, or of an end of a slow link, with another live worker,
# and take the one after which the job is fastest by the whole schedule, the dead and uneven micro-batches included. So
# slow links carry nothing if that can be had, and stragglers come together only where that helps. Of swaps that are
# equally good, to `ALIKE`, the one counts whose slow links lie least between peers, then inside pipelines, then the one
# that copies the fewest bytes (peers hold the same state and copy nothing at all), then the first by its places.
#
# A whole topology at once is `topology.py`; of a running job, whose state is copied over the network that is slow, as
# few workers move as will do.


Swap = tuple[Place, Place]  # ascending; who sits there change places
Value = Callable[[Swap | None], float]

ALIKE = 0.005
# So many swaps are tried in full, the best ones by a quick look.
TRIED = 24
# Pipelines in which nobody is slow are alike: whoever swaps with one of them need not try the others.
UNTROUBLED = 2


def best_swap(
    plan: Plan,
    found: PlanConditions,
    state_bytes: Sequence[float],
    quick_s: Value,
    time_s: Value,
) -> Swap | None:
    """The swap after which an iteration takes least; None where there is none, or none makes it any shorter.

    Args:
        plan: of pipelines that are alike; failed workers swap with nobody.
        found: what is slow, where everybody sits now.
        state_bytes: parameters and optimizer state of each stage, or column.
        quick_s: what an iteration takes after a swap, or without one, in s, roughly; asked about all swaps.
        time_s: the same, as exactly as may be; asked about `TRIED` of them.
    """
    swaps, template = _swaps(plan, found.places), plan.template_of(0)

    def is_hop(one: int, other: int) -> bool:
        return template.link_between(one, other) is not None

    def burden(swap: Swap) -> tuple[float, float, bool, float, Swap]:
        copied_bytes = 0.0 if are_peers(swap) else sum(state_bytes[stage] for _, stage in swap)
        links_s = found.moved(exchanged(swap)).links_s
        of_peers_s = fsum(delay_s for pair, delay_s in links_s if are_peers(pair))
        of_hops_s = fsum(delay_s for ((k, i), (other, j)), delay_s in links_s if k == other and is_hop(i, j))
        return of_peers_s, of_hops_s, not are_peers(swap), copied_bytes, swap

    promising = sorted(swaps, key=lambda swap: (quick_s(swap), burden(swap)))[:TRIED]
    times_s = {swap: time_s(swap) for swap in promising}
    least_s = min(times_s.values(), default=0.0)
    if not times_s or least_s >= time_s(None):
        return None
    return min((swap for swap, one_s in times_s.items() if one_s <= least_s * (1 + ALIKE)), key=burden)


def exchanged(swap: Swap | None) -> dict[Place, Place]:
    """Where who sits at two places goes when they change places."""
    return {} if swap is None else {swap[0]: swap[1], swap[1]: swap[0]}


def _swaps(plan: Plan, troubled: Collection[Place]) -> list[Swap]:
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
    return sorted(found)
