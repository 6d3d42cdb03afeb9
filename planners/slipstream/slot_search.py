"""From numbers of dead workers to a slot schedule: bound, portfolio, and local search where a gap is left."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise, zip_longest
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.local_search import anneal
from ..scheduling.portfolio import portfolio
from ..scheduling.problem import KINDS
from ..scheduling.proof import Proven
from .rotation_search import RotationSearch
from .routing_bound import RoutingBound
from .slot_scheduler import SlotScheduler, SlotTimes
from .slots import Slots

if TYPE_CHECKING:
    from ..scheduling.problem import Ints, Problem
    from ..scheduling.rules import Rules

# How many rules are tried before a second way of cutting slots, and by how many annealing tries to close a gap.
FIRST_LOOK = 6
ANNEALING_RUNS, QUICK_ANNEALING_RUNS = 2000, 100
# Operations that one search may schedule in all: about a second of machine code.
BUDGET_OPERATIONS = 50_000_000


@dataclass(frozen=True)
class SlotSchedule(Proven):
    """The best slots and rules found, what they come to, and the bound on any routing and orders, in s."""

    slots: Slots
    rules: Rules
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
        self.bound = RoutingBound(pipeline, self.jobs)
        self._last: tuple[Slots, Rules] | None = None
        self._candidates: dict[int, tuple[Problem, list[Rules]]] = {}

    @cached_property
    def rotation(self) -> RotationSearch | None:
        """Workers on their own instead of in slots, which pays within memory limits; None without any."""
        if not np.isfinite(self.of_pipeline.workers.limit_bytes).any():
            return None
        return RotationSearch(self.of_pipeline, self.pipelines, self.searches)

    def bound_s(self, dead: Sequence[int]) -> float:
        """What no routing and no orders undercut with so many dead workers of each stage, in s."""
        return self.bound.value_s(self.pipelines - np.array(dead), self.staggered)

    def look(self, dead: Sequence[int]) -> SlotSchedule:
        """The best of a few slot schedules, which mostly reaches the bound where stages are alike.

        Args:
            dead: how many workers of each stage have failed, fewer than there are pipelines.
        """
        return self._best(dead, None, slice(FIRST_LOOK))

    def search(self, dead: Sequence[int], best: SlotSchedule, seed: int, *, quick: bool = False) -> SlotSchedule:
        """Try more for what `look` left open: the rest of the portfolio, and annealing; if `quick`, a little of that.

        Within memory limits a hundred runs of annealing bring most of what two thousand and the portfolio do.
        """
        if quick:
            return self._annealed(best, seed, QUICK_ANNEALING_RUNS)
        best = self._best(dead, best, slice(FIRST_LOOK, None))
        return best if best.optimal else self._annealed(best, seed, ANNEALING_RUNS)

    def widest(self, dead: Sequence[int]) -> Slots:
        """Slots as wide as each stage's live workers."""
        return Slots(self.jobs, tuple(self.pipelines - number for number in dead))

    def run(self, slots: Slots, rules: Rules) -> SlotTimes:
        """Schedule slots by rules, one entry a stage."""
        needed = int(slots.counts.max())
        if needed > self._scheduler.most_slots:
            self._scheduler = SlotScheduler(self.of_pipeline, needed, runs=self.searches)
        self._last = slots, rules
        return self._scheduler.run(slots, rules)

    def orders(self, slots: Slots, rules: Rules) -> Sequence[Ints]:
        """The orders that rules make: of each stage, `3 * slot + kind` of its operations."""
        self._be_at(slots, rules)
        return self._scheduler.orders()

    def peaks_bytes(self, slots: Slots, rules: Rules) -> list[float]:
        """What a worker of each stage holds at most by these orders."""
        self._be_at(slots, rules)
        return self._scheduler.peaks_bytes()

    def _be_at(self, slots: Slots, rules: Rules) -> None:
        """Run again unless that was the last run."""
        if self._last != (slots, rules):
            self.run(slots, rules)

    def candidates(self, slots: Slots) -> list[Rules]:
        """The portfolio's rules for so many slots, one entry a stage."""
        return self._known(slots)[1]

    def _known(self, slots: Slots) -> tuple[Problem, list[Rules]]:
        """A single pipeline of as many micro-batches as there are slots, and its portfolio."""
        most = int(slots.counts.max())
        if most not in self._candidates:
            repeated = _repeated(self.of_pipeline, most)
            self._candidates[most] = repeated, list(portfolio(repeated))
        return self._candidates[most]

    def _best(self, dead: Sequence[int], best: SlotSchedule | None, part: slice) -> SlotSchedule:
        bound_s = self.bound_s(dead)
        for slots, rules in self._attempts(dead, part):
            best = self._better(best, slots, rules, bound_s)
            if best.optimal:
                break
        assert best is not None
        return best

    def _attempts(self, dead: Sequence[int], part: slice) -> Iterator[tuple[Slots, Rules]]:
        """A part of the portfolio for each way to cut the ranks in turns, as far as the budget goes."""
        cuts = _cuts(self.widest(dead))
        most = max(FIRST_LOOK, BUDGET_OPERATIONS // (KINDS * int(cuts[0].counts.sum())))
        rows = [self.candidates(slots)[part][:most] for slots in cuts]
        for tried in zip_longest(*rows):
            yield from ((slots, rules) for slots, rules in zip(cuts, tried, strict=True) if rules is not None)

    def _better(self, best: SlotSchedule | None, slots: Slots, rules: Rules, bound_s: float) -> SlotSchedule:
        times = self.run(slots, rules)
        value_s = times.period_s if self.staggered else times.makespan_s
        if best is None or value_s < best.value_s:
            return SlotSchedule(slots, rules, times, value_s, bound_s)
        return best

    def _annealed(self, best: SlotSchedule, seed: int, most_runs: int) -> SlotSchedule:
        """Annealing from the best rules."""
        runs = min(most_runs, BUDGET_OPERATIONS // (KINDS * int(best.slots.counts.sum())))

        known: dict[Hashable, float] = {}

        def value_s(rules: Rules) -> float:
            key = (*rules.columns.ravel().tolist(), *rules.weight_wait)
            if key not in known:
                times = self.run(best.slots, rules)
                known[key] = times.period_s if self.staggered else times.makespan_s
            return known[key]

        repeated, _ = self._known(best.slots)
        rules, _ = anneal(repeated, best.rules, value_s, bound_s=best.goal_s, runs=runs, chance=random.Random(seed))
        return self._better(best, best.slots, rules, best.bound_s)


def _cuts(widest: Slots) -> list[Slots]:
    """Ways to cut the ranks: as wide as each stage can, never wider than a stage before, and all alike.

    Where first slots get wider, they wait for a second one of the stage before; if that happens again and again, the
    widest cut comes last.
    """
    live = widest.group_sizes
    widths = (live, tuple(accumulate(live, min)), (min(live),) * len(live))
    rises = sum(a < b for a, b in pairwise(widest.first_sizes))
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
