"""From numbers of dead workers to a slot schedule: bound, portfolio, and local search where a gap is left.

Under memory limits the rules hardly matter but the cut does: a few aligned cuts bring what thousands of rules and moves
do not, which are tried on small problems only.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise, zip_longest
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.list_schedule import DispatchRules, Priority, rooms
from ..scheduling.local_search import anneal, portfolio
from ..scheduling.problem import INTERPRETED_OPERATIONS, KINDS, Proven, with_any_split
from .bounds import RoutingBound
from .rotation import AlignedCut, RotationSearch, aligned
from .slots import Slots, SlotScheduler, SlotTimes

if TYPE_CHECKING:
    from ..scheduling.problem import Ints, Problem

# How many rules are tried before a second way of cutting slots, and by how many annealing tries to close a gap.
FIRST_LOOK = 6
ANNEALING_RUNS, QUICK_ANNEALING_RUNS = 2000, 100
# Operations that one search may schedule in all: about a second of machine code.
BUDGET_OPERATIONS = 50_000_000
# Under limits, up to so many operations of slots more is tried than the first rule and aligned cuts.
SEARCHED_OPERATIONS = 1_000
# Aligned cuts and what their workers prefer, chosen on half of the cases of benchmarks/slipstream_capped.py.
ALIGNED = (
    (AlignedCut(False, 12, 0.5), Priority.INPUT_FIRST),
    (AlignedCut(False, 12, 0.0), Priority.ALTERNATE),
    (AlignedCut(True, 6, 0.25), Priority.INPUT_FIRST),
    (AlignedCut(False, 6, 0.0), Priority.INPUT_FIRST),
    (AlignedCut(False, -2, 0.0), Priority.INPUT_FIRST),
    (AlignedCut(True, 0, 0.5), Priority.INPUT_FIRST),
    (AlignedCut(False, -2, 0.0), Priority.ALTERNATE),
    (AlignedCut(True, 12, 1.0), Priority.ALTERNATE),
)


@dataclass(frozen=True)
class SlotSchedule(Proven):
    """The best slots and rules found, what they come to, and the bound on any routing and orders, in s."""

    slots: Slots
    rules: DispatchRules
    times: SlotTimes
    value_s: float
    bound_s: float


class SlotSearch:
    """Equal pipelines made ready to schedule any numbers of dead workers.

    Args:
        pipeline: one pipeline alone, all its workers alive; says what counts and whether backwards are split.
        pipelines: how many there are.
        searches: about how many will follow: decides whether machine code is worth its while.
    """

    def __init__(self, pipeline: Problem, pipelines: int, searches: int = 1) -> None:
        self.pipelines, self.jobs = pipelines, pipeline.jobs * pipelines
        self.staggered = pipeline.staggered
        self.of_pipeline = pipeline
        self.searches = searches
        self._scheduler = SlotScheduler(pipeline, pipeline.jobs, runs=searches)
        self.bound = RoutingBound(self.unjoined, self.jobs)
        self._last: tuple[Slots, DispatchRules] | None = None
        self._candidates: dict[int, tuple[Problem, list[DispatchRules]]] = {}
        self._peaks: dict[Hashable, list[float]] = {}
        self._operations = 0  # scheduled so far

    @cached_property
    def unjoined(self) -> Problem:
        """The pipeline as bounds have it: they hold for orders in which I and W have become one B, too."""
        return replace(self.of_pipeline, workers=with_any_split(self.of_pipeline.workers))

    @cached_property
    def rotation(self) -> RotationSearch | None:
        """Workers on their own instead of in slots, which pays within memory limits; None without any."""
        if not self.bound.limited:
            return None
        return RotationSearch(self.of_pipeline, self.pipelines, self.searches)

    def bound_s(self, dead: Sequence[int]) -> float:
        """What no routing and no orders undercut with so many dead workers of each stage, in s."""
        return self.bound.value_s(self.pipelines - np.array(dead), self.staggered)

    def look(self, dead: Sequence[int], *, bound_s: float | None = None) -> SlotSchedule:
        """The best of a few slot schedules, which mostly reaches the bound where stages are alike.

        Args:
            dead: how many workers of each stage have failed, fewer than there are pipelines.
            bound_s: a bound for these that is known already.
        """
        widest = self.widest(dead)
        if not self.bound.limited:
            return self._best(dead, None, self._attempts(widest, slice(FIRST_LOOK)))
        if _operations(widest) <= SEARCHED_OPERATIONS:
            first = self._attempts(widest, slice(FIRST_LOOK))
        else:
            first = ((slots, self.zero_bubble(slots, Priority.INPUT_FIRST)) for slots in _cuts(widest))
        best = self._best(dead, None, first, bound_s)
        return best if best.optimal else self._best(dead, best, self._aligned(dead, best.bound_s), best.bound_s)

    def search(self, dead: Sequence[int], best: SlotSchedule, seed: int, *, quick: bool = False) -> SlotSchedule:
        """Try more for what `look` left open: the rest of the portfolio, and annealing; if `quick`, a little of that.

        Only small problems gain by it, larger ones are left as they are. Within memory limits a hundred runs of
        annealing bring most of what two thousand and the portfolio do.
        """
        widest = self.widest(dead)
        if _operations(widest) > SEARCHED_OPERATIONS:
            return best
        if quick:
            return self._annealed(best, seed, QUICK_ANNEALING_RUNS)
        best = self._best(dead, best, self._attempts(widest, slice(FIRST_LOOK, None)))
        return best if best.optimal else self._annealed(best, seed, ANNEALING_RUNS)

    def widest(self, dead: Sequence[int]) -> Slots:
        """Slots as wide as each stage's live workers."""
        return Slots(self.jobs, tuple(self.pipelines - number for number in dead))

    def run(self, slots: Slots, rules: DispatchRules) -> SlotTimes:
        """Schedule slots by rules, one entry a stage."""
        needed = max(int(slots.counts.max()), self._scheduler.most_slots)
        self._operations += _operations(slots)
        # However many searches were said to come, what is done so often is done by machine code.
        slow = not self._scheduler.compiled and self._operations > INTERPRETED_OPERATIONS
        if slow or needed > self._scheduler.most_slots:
            self._scheduler = SlotScheduler(self.of_pipeline, needed, runs=self._operations if slow else self.searches)
        self._last = slots, rules
        return self._scheduler.run(slots, rules)

    def orders(self, slots: Slots, rules: DispatchRules) -> Sequence[Ints]:
        """The orders that rules make: of each stage, `3 * slot + kind` of its operations."""
        self._be_at(slots, rules)
        return self._scheduler.orders()

    def peaks_bytes(self, slots: Slots, rules: DispatchRules) -> list[float]:
        """What a worker of each stage holds at most by these orders."""
        key = (slots, rules.columns.tobytes(), tuple(rules.weight_wait))
        if key not in self._peaks:
            self._be_at(slots, rules)
            self._peaks[key] = self._scheduler.peaks_bytes()
        return self._peaks[key]

    def _be_at(self, slots: Slots, rules: DispatchRules) -> None:
        """Run again unless that was the last run."""
        if self._last != (slots, rules):
            self.run(slots, rules)

    def candidates(self, slots: Slots) -> list[DispatchRules]:
        """The portfolio's rules for so many slots, one entry a stage."""
        return self._known(slots)[1]

    def _known(self, slots: Slots) -> tuple[Problem, list[DispatchRules]]:
        """A single pipeline of as many micro-batches as there are slots, and its portfolio."""
        most = int(slots.counts.max())
        if most not in self._candidates:
            repeated = _repeated(self.of_pipeline, most)
            self._candidates[most] = repeated, list(portfolio(repeated))
        return self._candidates[most]

    def zero_bubble(self, slots: Slots, priority: Priority) -> DispatchRules:
        """Rules that are the same at all stages but for the warm-up, which is that of zero bubble.

        Args:
            slots: what is scheduled.
            priority: what workers prefer.
        """
        stages, most = len(slots.group_sizes), int(slots.counts.max())
        room = self._room
        first = [min(2 * (stages - i) - 1, room[i], most) for i in range(stages)]
        return DispatchRules(first, [most] * stages, [0.0] * stages, [most] * stages, [priority] * stages)

    def cut(self, dead: Sequence[int], bound_s: float, cut: AlignedCut) -> Slots:
        """The aligned cut for so many dead workers of each stage whose iteration takes `bound_s` at least."""
        within_s = bound_s - cut.margin * float(self.of_pipeline.workers.forward_s.mean())
        most = self.bound.rounds_within(within_s, self.staggered)
        return aligned(self.jobs, self.widest(dead).group_sizes, most.tolist(), cut)

    @cached_property
    def _room(self) -> list[int]:
        return rooms(_repeated(self.of_pipeline, self.jobs))

    def _best(
        self,
        dead: Sequence[int],
        best: SlotSchedule | None,
        attempts: Iterable[tuple[Slots, DispatchRules]],
        bound_s: float | None = None,
    ) -> SlotSchedule:
        live = self.pipelines - np.array(dead)
        least_s = self.bound.value_s(live, self.staggered, counting=False) if bound_s is None else bound_s
        for slots, rules in attempts:
            best = self._better(best, slots, rules, least_s)
            if best.optimal:
                return best
        assert best is not None
        return replace(best, bound_s=self.bound.value_s(live, self.staggered) if bound_s is None else bound_s)

    def _attempts(self, widest: Slots, part: slice) -> Iterator[tuple[Slots, DispatchRules]]:
        """A part of the portfolio for each way to cut the ranks in turns, as far as the budget goes."""
        cuts = _cuts(widest)
        most = max(FIRST_LOOK, BUDGET_OPERATIONS // _operations(widest))
        rows = [self.candidates(slots)[part][:most] for slots in cuts]
        for tried in zip_longest(*rows):
            yield from ((slots, rules) for slots, rules in zip(cuts, tried, strict=True) if rules is not None)

    def _aligned(self, dead: Sequence[int], bound_s: float) -> Iterator[tuple[Slots, DispatchRules]]:
        """The aligned cuts, each once."""
        tried = set()
        for cut, priority in ALIGNED:
            slots = self.cut(dead, bound_s, cut)
            if (slots, priority) not in tried:
                tried.add((slots, priority))
                yield slots, self.zero_bubble(slots, priority)

    def _better(self, best: SlotSchedule | None, slots: Slots, rules: DispatchRules, bound_s: float) -> SlotSchedule:
        times = self.run(slots, rules)
        value_s = times.period_s if self.staggered else times.makespan_s
        if best is None or value_s < best.value_s:
            return SlotSchedule(slots, rules, times, value_s, bound_s)
        return best

    def _annealed(self, best: SlotSchedule, seed: int, most_runs: int) -> SlotSchedule:
        """Annealing from the best rules."""
        runs = min(most_runs, BUDGET_OPERATIONS // _operations(best.slots))

        known: dict[Hashable, float] = {}

        def value_s(rules: DispatchRules) -> float:
            key = (*rules.columns.ravel().tolist(), *rules.weight_wait)
            if key not in known:
                times = self.run(best.slots, rules)
                known[key] = times.period_s if self.staggered else times.makespan_s
            return known[key]

        repeated, _ = self._known(best.slots)
        rules, _ = anneal(repeated, best.rules, value_s, bound_s=best.goal_s, runs=runs, chance=random.Random(seed))
        return self._better(best, best.slots, rules, best.bound_s)


def _operations(slots: Slots) -> int:
    """How many operations slots have at most."""
    return KINDS * int(slots.counts.sum())


def _cuts(widest: Slots) -> list[Slots]:
    """Ways to cut the ranks: as wide as each stage can, never wider than a stage before, and all alike.

    Where first slots get wider, they wait for a second one of the stage before; if that happens again and again, the
    widest cut comes last.
    """
    live = widest.group_sizes
    widths = (live, tuple(accumulate(live, min)), (min(live),) * len(live))
    rises = sum(a < b for a, b in pairwise(widest.ends[0].tolist()))
    return [Slots(widest.jobs, width) for width in dict.fromkeys(widths if rises <= 1 else widths[::-1])]


def _repeated(pipeline: Problem, microbatches: int) -> Problem:
    """A single pipeline with another number of micro-batches."""
    return replace(
        pipeline,
        origin=np.zeros(microbatches, dtype=np.int64),
        microbatch=np.arange(microbatches),
        executor=np.tile(pipeline.executor[0], (microbatches, 1)),
        split=np.tile(pipeline.split[0], (microbatches, 1)),
    )
