"""Who sits where, so that slow workers and links cost least: Greyhound's S3 (section 5.2), alone or with S2.

The paper moves a congested link out of the heavy all-reduce rings into the light pipelines, and gathers stragglers in
as few stages as possible. Both, and what is better (to put the ends of a slow link where they have nothing to send to
each other), come out of one search: the assignment of workers to places of least iteration time, by the analytic model
of `arrangement_kernels.py`, where every assignment may have its own best distribution of micro-batches (S2). Up to
`MOST_ENUMERATED` arrangements are looked at one by one, so the answer is proven; more are searched by best swaps with
seeded kicks. Of equally good arrangements one is taken in which few workers move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ...schemas.conditions import Pair
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Place, Plan
from ..batch.distribute import distribute
from .arrangement import Kinds, Search
from .arrangement_kernels import EVENLY

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
    _require_alike(plan)
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
    proof: Proof = "optimal" if proven else "none"
    return Assignment(places, counts, before_s, after_s, tuple(_moves(start, places)), proof)


def _require_alike(plan: Plan) -> None:
    names = list(dict.fromkeys(pipeline.template for pipeline in plan.pipelines))
    if len(names) > 1:
        raise InvalidInputError(
            f"workers of unlike pipelines ({' and '.join(names[:2])}) cannot change places",
            where="/pipelines",
            fix="take a plan of pipelines that are alike",
        )


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


def _moves(start: Mapping[str, Place], places: Mapping[str, Place]) -> Iterator[Move]:
    return ((name, start[name], place) for name, place in places.items() if place != start[name])
