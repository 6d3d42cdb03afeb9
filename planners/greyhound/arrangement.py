"""Workers at places, as the kernels see them: kinds of workers, what arrangements cost, and the search for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import factorial, prod
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...schemas.conditions import Pair
from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel, pays
from ...schemas.plan import Place, Plan
from ...schemas.profile import ring_steps
from ..batch.exact import Pace
from ..oobleck.pace import warm_ups_of
from ..scheduling.forms import Form

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


# What an arrangement of workers costs, and the search for a better one: kernels (schemas/kernels.py).
#
# Greyhound, section 5.2 (S3), as a bottleneck assignment: places (pipeline d, stage p), on each a worker of some kind,
# and m_d micro-batches a pipeline. With the slow-down s of who sits there, stage p's forward and backward take f_p s
# and b_p s, c_p s in all, and the hop above it takes L_p in pipeline d. A 1F1B pipeline with w_p warm-up forwards then
# takes
#
#     max over p of (sum of all c s + 2 L) + (m_d - w_p) r_p + (w_p - 1) max(f_p, b_p) s,
#     r_p = max over q >= p of (c_p s + … + c_q s + 2 (L_p + … + L_(q-1))) / (w_p - w_q + 1):
#
# first a micro-batch goes all the way and comes back to stage p, which has w_p - 1 others to go on with at its own
# speed; for the rest stages p to q and the hops between them are a cycle in which w_p - w_q + 1 micro-batches are under
# way. The stage that counts at about the m_d to be expected gives the pipeline its line fill_d + m_d pace_d. Stage p is
# done before the pipeline, by the backwards of the stages below it; then its peers sum their gradients, which the
# slowest link between any two of them delays 2 (n - 1) times:
#
#     T = max over d, p of (fill_d + m_d pace_d - sum over q < p of (b_q s + L_q) + tail_p + 2 (n - 1) max L).
#
# The paper gives no formula; (m_d - 1) max c_p s in place of the middle terms, as its Figure 12 has it, is what the
# last stage gives, and too much where the slow one is not the last.


NOBODY, HEALTHY = -1, 0  # kinds
EVENLY = 1e-9  # times that differ by less, relatively, are equal
HALVINGS = 48
LEAST_S = 1e-12  # a micro-batch
UNKNOWN_S = 1e100


class ArrangementCosts(NamedTuple):
    """What arrangements are judged by.

    Attributes:
        once_s, each_s, back_s: a stage's F and B of one micro-batch; that times the share of the work that falls to
            each of its live workers; and B alone.
        tail_s: a stage's all-reduce and optimizer step.
        steps: the delays of a slow link between peers that a stage's sum of gradients takes.
        warm_up: forwards before each stage's first backward.
        hop_s: the usual delay behind each place; at a last stage 0.
        factor: the slow-down of each kind of worker.
        is_linked: 1 for kinds with a slow link; there is one worker of each such kind.
        delay_s: the delay of slow links, at `kind * kinds + other`, both ways; 0 for none.
        ends: of slow links, two kinds each.
        counts: micro-batches of each pipeline; all of them are 0 where they are to be distributed.
        total: micro-batches of all pipelines.
        usual_s: seconds of a micro-batch in a healthy pipeline.
    """

    once_s: Floats
    each_s: Floats
    back_s: Floats
    tail_s: Floats
    steps: Floats
    warm_up: Ints
    hop_s: Floats
    factor: Floats
    is_linked: Ints
    delay_s: Floats
    ends: Ints
    counts: MutableFloats
    total: float
    usual_s: float


class State(NamedTuple):
    """An arrangement, and what follows from it.

    Attributes:
        who: the kind of worker at each place, `pipeline * stages + stage`.
        home: that of the arrangement that there was at first.
        at: the place of each kind that has one worker only.
        pace_s, fill_s, end_s: of each pipeline; its last stage to end does so at end_s + micro-batches * pace_s.
        below_s: how long before its pipeline each place is done.
        sum_s: what slow links add to each stage's sum of gradients; and, at last, all that each of them would add.
        cycle_s: work space of stages.
        best_s: of the best swap so far, T and burden.
        open: whether a pipeline's workers are to be tried in swaps, 1 or 0.
        found: the two places of the best swap so far.
    """

    who: MutableInts
    home: Ints
    at: MutableInts
    pace_s: MutableFloats
    fill_s: MutableFloats
    end_s: MutableFloats
    below_s: MutableFloats
    sum_s: MutableFloats
    cycle_s: MutableFloats
    best_s: MutableFloats
    open: MutableInts
    found: MutableInts


@kernel
def hop_delay_s(costs: ArrangementCosts, state: State, place: int) -> float:
    """The delay between a place and the next of its pipeline."""
    one, other = state.who[place], state.who[place + 1]
    if one <= HEALTHY or other <= HEALTHY:
        return costs.hop_s[place]
    return max(costs.hop_s[place], costs.delay_s[one * len(costs.factor) + other])


@kernel
def factor_at(costs: ArrangementCosts, state: State, place: int) -> float:
    """The slow-down of who sits at a place."""
    return costs.factor[max(HEALTHY, state.who[place])]


@kernel
def cycle_s(costs: ArrangementCosts, state: State, pipeline: int, p: int) -> float:
    """r_p: seconds of a micro-batch in the slowest cycle that begins at stage p."""
    stages = len(costs.once_s)
    first = pipeline * stages
    sum_s = costs.each_s[p] * factor_at(costs, state, first + p)
    slowest_s = sum_s
    for q in range(p + 1, stages):
        hop_s = hop_delay_s(costs, state, first + q - 1)
        if hop_s == 0.0 and costs.warm_up[q - 1] == costs.warm_up[q] + 1:
            break  # two cycles side by side, one of which is as slow
        sum_s += costs.each_s[q] * factor_at(costs, state, first + q) + 2 * hop_s
        slowest_s = max(slowest_s, sum_s / (costs.warm_up[p] - costs.warm_up[q] + 1))
    return slowest_s


@kernel
def follow(costs: ArrangementCosts, state: State, pipeline: int) -> None:
    """Pace and filling of a pipeline from who sits in it."""
    stages = len(costs.once_s)
    first = pipeline * stages
    filling_s = 0.0
    below_s = 0.0
    slowest_s = LEAST_S
    for p in range(stages):
        factor = factor_at(costs, state, first + p)
        delay_s = hop_delay_s(costs, state, first + p) if p < stages - 1 else 0.0
        filling_s += costs.once_s[p] * factor + 2 * delay_s
        state.below_s[first + p] = below_s
        below_s += costs.back_s[p] * factor + delay_s
        state.cycle_s[p] = cycle_s(costs, state, pipeline, p)
        slowest_s = max(slowest_s, state.cycle_s[p])
    expected = costs.counts[pipeline]
    if expected == 0:
        expected = max(1.0, costs.total / len(state.pace_s) * min(1.0, costs.usual_s / slowest_s))
    longest_s = -1.0
    for p in range(stages):
        warm_up = min(costs.warm_up[p], expected)
        other_s = max(costs.back_s[p], costs.once_s[p] - costs.back_s[p]) * factor_at(costs, state, first + p)
        fill_s = filling_s - warm_up * state.cycle_s[p] + (warm_up - 1) * other_s
        if fill_s + expected * state.cycle_s[p] > longest_s:
            longest_s = fill_s + expected * state.cycle_s[p]
            state.pace_s[pipeline] = max(LEAST_S, state.cycle_s[p])
            state.fill_s[pipeline] = fill_s


@kernel
def add_sums(costs: ArrangementCosts, state: State) -> None:
    """What slow links between peers add to the sums of gradients."""
    stages = len(costs.once_s)
    for p in range(stages + 1):
        state.sum_s[p] = 0.0
    for n in range(0, len(costs.ends), 2):
        one, other = costs.ends[n], costs.ends[n + 1]
        p = state.at[one] % stages
        if p == state.at[other] % stages:
            more_s = costs.steps[p] * costs.delay_s[one * len(costs.factor) + other]
            state.sum_s[p] = max(state.sum_s[p], more_s)
            state.sum_s[stages] += more_s


@kernel
def finish(costs: ArrangementCosts, state: State, pipeline: int) -> None:
    """When the last stage of a pipeline ends, but for its micro-batches."""
    stages = len(costs.once_s)
    last_s = costs.tail_s[0] + state.sum_s[0]
    for p in range(1, stages):
        last_s = max(last_s, costs.tail_s[p] + state.sum_s[p] - state.below_s[pipeline * stages + p])
    state.end_s[pipeline] = state.fill_s[pipeline] + last_s


@kernel
def look(costs: ArrangementCosts, state: State) -> None:
    """All that follows from who sits where."""
    for place in range(len(state.who)):
        state.at[max(HEALTHY, state.who[place])] = place
    add_sums(costs, state)
    for pipeline in range(len(state.pace_s)):
        follow(costs, state, pipeline)
        finish(costs, state, pipeline)


@kernel
def swap(costs: ArrangementCosts, state: State, place: int, other: int) -> None:
    """Let the workers of two places change, and see what follows."""
    stages = len(costs.once_s)
    one, two = state.who[place], state.who[other]
    state.who[place], state.who[other] = two, one
    state.at[one], state.at[two] = other, place
    linked = costs.is_linked[one] + costs.is_linked[two]
    if linked:
        add_sums(costs, state)
    for pipeline in range(len(state.pace_s)):
        concerned = pipeline == place // stages or pipeline == other // stages
        if concerned:
            follow(costs, state, pipeline)
        if concerned or linked:
            finish(costs, state, pipeline)


@kernel
def fits(costs: ArrangementCosts, state: State, level_s: float) -> bool:
    """Whether all micro-batches are done within a time."""
    if costs.counts[0] > 0:
        for pipeline in range(len(state.pace_s)):
            if state.end_s[pipeline] + costs.counts[pipeline] * state.pace_s[pipeline] > level_s:
                return False
        return True
    room = 0.0
    for pipeline in range(len(state.pace_s)):
        share = ((level_s - state.end_s[pipeline]) / state.pace_s[pipeline] + EVENLY) // 1.0
        if share < 1:
            return False
        room += share
    return room >= costs.total


@kernel
def iteration_s(costs: ArrangementCosts, state: State) -> float:
    """T: with the given micro-batches, or with the best distribution of them."""
    level_s = 0.0
    if costs.counts[0] > 0:
        for pipeline in range(len(state.pace_s)):
            level_s = max(level_s, state.end_s[pipeline] + costs.counts[pipeline] * state.pace_s[pipeline])
        return level_s
    speed = 0.0
    room = costs.total
    slowest_s = 0.0
    for pipeline in range(len(state.pace_s)):
        level_s = max(level_s, state.end_s[pipeline] + state.pace_s[pipeline])
        slowest_s = max(slowest_s, state.pace_s[pipeline])
        speed += 1 / state.pace_s[pipeline]
        room += state.end_s[pipeline] / state.pace_s[pipeline]
    low_s = max(level_s, room / speed)  # as if micro-batches could be split
    high_s = low_s + slowest_s
    middle_s = low_s
    for _ in range(HALVINGS):
        if fits(costs, state, middle_s):
            high_s = middle_s
        else:
            low_s = middle_s
        middle_s = (low_s + high_s) / 2
    return high_s


@kernel
def burden_s(costs: ArrangementCosts, state: State) -> float:
    """What tells arrangements of equal T apart: the sum of all pipelines' times, and of what every slow link adds.

    By it a search gets over arrangements among which several slow links, or pipelines, are equally in the way.
    """
    mean = costs.total / len(state.pace_s)
    sum_s = state.sum_s[len(costs.once_s)]
    for pipeline in range(len(state.pace_s)):
        sum_s += state.end_s[pipeline] + mean * state.pace_s[pipeline]
    return sum_s


@kernel
def strangers(state: State, place: int, other: int) -> int:
    """How many of two places, if their workers changed, had another kind of worker than at home; less those now."""
    one, two = state.who[place], state.who[other]
    now = (one != state.home[place]) + (two != state.home[other])
    return (two != state.home[place]) + (one != state.home[other]) - now


@kernel
def moved(state: State) -> int:
    """At how many places there is another kind of worker than at home."""
    count = 0
    for place in range(len(state.who)):
        count += state.who[place] != state.home[place]
    return count


@kernel
def untroubled(costs: ArrangementCosts, state: State, pipeline: int) -> bool:
    """Whether only healthy workers sit in a pipeline, and did at first."""
    stages = len(costs.once_s)
    for place in range(pipeline * stages, (pipeline + 1) * stages):
        if state.who[place] != HEALTHY or state.home[place] != HEALTHY:
            return False
    return True


@kernel
def mark(costs: ArrangementCosts, state: State, alike: bool) -> None:
    """Mark the pipelines with whose workers to swap: of alike ones that are untroubled the first will do."""
    seen = False
    for pipeline in range(len(state.pace_s)):
        twin = alike and untroubled(costs, state, pipeline)
        state.open[pipeline] = 0 if twin and seen else 1
        seen = seen or twin


@kernel
def admits(costs: ArrangementCosts, state: State, place: int, other: int) -> bool:
    """Whether a swap is worth a look: it makes a difference, and is no other one's mirror image."""
    one, two = state.who[place], state.who[other]
    if two == NOBODY or one == two or (two > HEALTHY and other < place):
        return False
    return state.open[other // len(costs.once_s)] == 1


@kernel
def better(costs: ArrangementCosts, state: State) -> bool:
    """Whether an arrangement is better than the best so far, which it then becomes: first T counts, then the burden."""
    best_s, burden = state.best_s, burden_s(costs, state)
    for turn in range(2):
        if fits(costs, state, best_s[0] * (1 + (EVENLY if turn else -EVENLY))):
            if turn == 0:
                best_s[0] = iteration_s(costs, state)
            elif burden >= best_s[1] * (1 - EVENLY):
                return False
            best_s[1] = burden
            return True
    return False


@kernel
def try_swaps(costs: ArrangementCosts, state: State, place: int, most_away: int) -> None:
    """Look at all swaps of the worker at a place, and note in `state.found` the best that is better than known."""
    for other in range(len(state.who)):
        if not admits(costs, state, place, other) or strangers(state, place, other) > most_away:
            continue
        for turn in range(2):  # there, and back
            swap(costs, state, place, other)
            if turn == 0 and better(costs, state):
                state.found[0], state.found[1] = place, other


@kernel
def descend(costs: ArrangementCosts, state: State, most_moved: int, alike: bool) -> float:
    """Swap until no swap helps; first T counts, then the burden. Returns T.

    Where all may move, each place in turn has its best swap; else the best of all swaps is made each time.

    Args:
        most_moved: at so many places at most may sit another kind of worker than at home.
        alike: whether all pipelines have the same hops and micro-batches.
    """
    places = len(state.who)
    state.best_s[0], state.found[0] = UNKNOWN_S, NOBODY
    better(costs, state)
    away = moved(state)
    place, idle = 0, 0  # idle: so many places in a row had no swap that helps
    while idle < places:
        if state.who[place] > HEALTHY:
            mark(costs, state, alike)
            try_swaps(costs, state, place, most_moved - away)
        place = (place + 1) % places
        idle += 1
        if state.found[0] != NOBODY and (most_moved >= places or place == 0):
            away += strangers(state, state.found[0], state.found[1])
            swap(costs, state, state.found[0], state.found[1])
            state.found[0], idle = NOBODY, 0
    return state.best_s[0]


@kernel
def settle(costs: ArrangementCosts, state: State, level_s: float) -> None:
    """Let workers change back where that brings one home and T stays within a level."""
    places = len(state.who)
    again = True
    while again:
        again = False
        for place in range(places):
            for other in range(place + 1, places):
                if state.who[place] == state.home[place] or state.who[other] == state.home[other]:
                    continue
                if strangers(state, place, other) < 0:
                    swap(costs, state, place, other)
                    if fits(costs, state, level_s):
                        again = True
                    else:
                        swap(costs, state, place, other)


@kernel
def following(who: MutableInts, places: Ints) -> bool:
    """The next arrangement of the same workers in dictionary order; False after the last one."""
    last = len(places) - 2
    while last >= 0 and who[places[last]] >= who[places[last + 1]]:
        last -= 1
    if last < 0:
        return False
    other = len(places) - 1
    while who[places[other]] <= who[places[last]]:
        other -= 1
    who[places[last]], who[places[other]] = who[places[other]], who[places[last]]
    low, high = last + 1, len(places) - 1
    while low < high:
        who[places[low]], who[places[high]] = who[places[high]], who[places[low]]
        low += 1
        high -= 1
    return True


@kernel
def enumerate_all(costs: ArrangementCosts, state: State, places: Ints, most_moved: int, best: MutableInts) -> float:
    """Look at every arrangement: the least T, and of those with it one in which the fewest workers move.

    Args:
        places: that are taken, ascending; `state.who` has the first arrangement in dictionary order.
        most_moved: as for `descend`.
        best: receives the kinds at each place.

    Returns:
        The least T.
    """
    best_s = UNKNOWN_S
    best_away = len(places) + 1
    more = True
    while more:
        away = moved(state)
        if away <= most_moved:
            look(costs, state)
            better = fits(costs, state, best_s * (1 - EVENLY))
            if better or (away < best_away and fits(costs, state, best_s * (1 + EVENLY))):
                best_s, best_away = iteration_s(costs, state), away
                for place in range(len(best)):
                    best[place] = state.who[place]
        more = following(state.who, places)
    return best_s


# So many arrangements are looked at one by one: all of 8 different workers (8! = 40,320).
MOST_ENUMERATED = 50_000
# A search ends after about so many swaps, tried once each after every kick of so many swaps by chance.
KICK_SWAPS_TRIED, FEWEST_KICKS, MOST_KICKS = 50_000, 4, 64
KICK_SWAPS = 3
# Plain Python does so many steps while the machine code is loaded.
INTERPRETED_STEPS = 400_000
SCANS = 60  # of all swaps, in a search; about


@dataclass(frozen=True)
class Kinds:
    """Workers by what distinguishes them: kind 0 is healthy, and there is one worker of each kind with a slow link.

    Attributes:
        of: the kind of each worker, by name.
        factor: the slow-down of each kind.
        delay_s: of slow links, by two kinds.
    """

    of: Mapping[str, int]
    factor: Sequence[float]
    delay_s: Mapping[tuple[int, int], float]

    @classmethod
    def among(cls, workers: Iterable[str], slow: Mapping[str, float], links: Mapping[Pair, float]) -> Kinds:
        """The kinds of some workers; who is slow but not among them does not count."""
        names = sorted(workers)
        known = set(names)
        placed = {pair: delay_s for pair, delay_s in sorted(links.items()) if delay_s and known.issuperset(pair)}
        linked = {name for pair in placed for name in pair}
        keys = {name: (slow.get(name, 1.0), name if name in linked else "") for name in names}
        numbers = {(1.0, ""): HEALTHY}
        for key in sorted(set(keys.values())):
            numbers.setdefault(key, len(numbers))
        of = {name: numbers[key] for name, key in keys.items()}
        delays = {(of[one], of[other]): delay_s for (one, other), delay_s in placed.items()}
        return cls(of, [factor for factor, _ in numbers], delays)


class Search:
    """Looks for the arrangement in which an iteration takes the least time.

    Args:
        plan: of alike pipelines; its orders, and what it says of slow workers, do not matter.
        start: who sits where; at other places there is nobody.
        kinds: of these workers.
        counts: micro-batches of each pipeline; None: they are distributed as is best.

    Attributes:
        home: the kinds at all places as they are at first; shape (pipelines * stages,).
    """

    def __init__(self, plan: Plan, start: Mapping[str, Place], kinds: Kinds, counts: Sequence[int] | None) -> None:
        self._depth = len(plan.template_of(0).stages)
        self.home = np.full(len(plan.pipelines) * self._depth, NOBODY, dtype=np.int64)
        for name, (k, i) in start.items():
            self.home[k * self._depth + i] = kinds.of[name]
        self._taken = np.flatnonzero(self.home >= HEALTHY)
        kinds_taken = Counter(self.home[self._taken].tolist())
        self._count = factorial(len(self._taken)) // prod(map(factorial, kinds_taken.values()))  # arrangements
        places = len(self.home)
        if self.is_small:
            steps = self._count * 3 * places
        else:
            steps = SCANS * int((self.home > HEALTHY).sum()) * places * (4 * self._depth + len(plan.pipelines))
        self._form = Form(pays(look, steps, INTERPRETED_STEPS))
        self._costs = _costs(
            self._form, plan, np.bincount(self._taken % self._depth, minlength=self._depth).tolist(), kinds, counts
        )
        self._state = self._state_at(self.home, len(plan.pipelines), len(kinds.factor))
        self._rows_alike = len({plan.links_of(k) for k in range(len(plan.pipelines))}) == 1 and (
            not counts or len(set(counts)) == 1
        )

    def best(self, most_moved: int, seed: int) -> tuple[IntArray, bool]:
        """The best arrangement that is found, and whether none is better; shape (pipelines * stages,).

        Args:
            most_moved: so many workers may leave their places.
            seed: of the kicks.
        """
        if most_moved < 2 or not (self.home > HEALTHY).any():
            return self.home, True
        if self.is_small:
            return self.exact(most_moved), True
        return self.local(most_moved, seed), most_moved == 2

    def look(self, who: IntArray) -> list[Pace]:
        """How long each pipeline of an arrangement takes, the sums of gradients included."""
        self._set(who)
        fixed_s, paces_s = np.asarray(self._state.end_s).tolist(), np.asarray(self._state.pace_s).tolist()
        return [Pace(*line) for line in zip(fixed_s, paces_s, strict=True)]

    def ends_s(self, who: IntArray, counts: Sequence[int]) -> list[float]:
        """When each pipeline of an arrangement ends, its sums included, with so many micro-batches each, in s."""
        self._costs.counts[:] = self._form.floats(counts)
        return [line.time_s(count) for line, count in zip(self.look(who), counts, strict=True)]

    def time_s(self, who: IntArray) -> float:
        """T of an arrangement, by these lines, in s."""
        self._set(who)
        return float(self._kernel(iteration_s)(self._costs, self._state))

    @property
    def is_small(self) -> bool:
        """Whether all arrangements can be looked at."""
        return self._count <= MOST_ENUMERATED

    def exact(self, most_moved: int) -> IntArray:
        """The best arrangement of all, and of those one in which the fewest workers move."""
        first = self.home.copy()
        first[self._taken] = np.sort(first[self._taken])
        self._set(first)
        best = self._form.ints(self.home.copy())
        self._kernel(enumerate_all)(self._costs, self._state, self._form.ints(self._taken), most_moved, best)
        return np.array(best)

    def local(self, most_moved: int, seed: int, kicks: int | None = None) -> IntArray:
        """The best arrangement of a local search: best swaps, from home and after some kicks."""
        random = Random(seed)
        best_s = self._descent(self.home, most_moved)
        best, origin = self._now(), self._now()
        for _ in range(self._kicks(most_moved) if kicks is None else kicks):
            found_s = self._descent(self._kicked(origin, random, most_moved), most_moved)
            if found_s <= best_s * (1 + EVENLY):
                origin = self._now()
            if found_s < best_s * (1 - EVENLY):
                best, best_s = origin, found_s
        self._set(_rows_at_home(best, self.home, self._depth) if self._rows_alike else best)
        self._kernel(settle)(self._costs, self._state, best_s * (1 + EVENLY))
        return self._now()

    def _kicks(self, most_moved: int) -> int:
        """The fewer the more a descent takes; none where a single swap is allowed, for all of these are looked at."""
        if most_moved <= 2:
            return 0
        swaps = int((self.home > HEALTHY).sum()) * len(self.home)
        return min(max(KICK_SWAPS_TRIED // swaps, FEWEST_KICKS), MOST_KICKS)

    def _descent(self, who: IntArray, most_moved: int) -> float:
        self._set(who)
        return float(self._kernel(descend)(self._costs, self._state, most_moved, self._rows_alike))

    def _kicked(self, who: IntArray, random: Random, most_moved: int) -> IntArray:
        """An arrangement after some swaps of workers who are not healthy."""
        kicked = who.copy()
        for _ in range(KICK_SWAPS):
            place = random.choice(np.flatnonzero(kicked > HEALTHY).tolist())
            other = random.choice(self._taken.tolist())
            kicked[[place, other]] = kicked[[other, place]]
        return kicked if int((kicked != self.home).sum()) <= most_moved else who

    def _set(self, who: IntArray) -> None:
        self._state.who[:] = self._form.ints(who)
        self._kernel(look)(self._costs, self._state)

    def _now(self) -> IntArray:
        return np.array(self._state.who)

    def _kernel(self, function: Any) -> Any:
        return self._form.kernel(function)

    def _state_at(self, who: IntArray, pipelines: int, kinds: int) -> State:
        form = self._form
        sizes = (pipelines, pipelines, pipelines, len(who), self._depth + 1, self._depth, 2)
        spaces = [form.float_space(size) for size in sizes]
        marks = [form.int_space(size) for size in (pipelines, 2)]
        return State(form.ints(who.copy()), form.ints(who.copy()), form.int_space(kinds), *spaces, *marks)


def _costs(form: Form, plan: Plan, live: Sequence[int], kinds: Kinds, counts: Sequence[int] | None) -> ArrangementCosts:
    pipelines, stages = len(plan.pipelines), plan.template_of(0).stages
    once_s = [stage.work_s for stage in stages]
    hops = [[*(link.delay_s for link in plan.links_of(k)), 0.0] for k in range(pipelines)]
    size = len(kinds.factor)
    delay_s = np.zeros((size, size))
    for (one, other), seconds in kinds.delay_s.items():
        delay_s[one, other] = delay_s[other, one] = seconds
    return ArrangementCosts(
        once_s=form.floats(once_s),
        each_s=form.floats([c * pipelines / max(1, n) for c, n in zip(once_s, live, strict=True)]),
        back_s=form.floats([stage.duration_s("B") for stage in stages]),
        tail_s=form.floats([stage.allreduce_s + stage.optimizer_s for stage in stages]),
        steps=form.floats([ring_steps(n) for n in live]),
        warm_up=form.ints(warm_ups_of(stages)),
        hop_s=form.floats(np.ravel(hops)),
        factor=form.floats(kinds.factor),
        is_linked=form.ints([int(kind in {end for pair in kinds.delay_s for end in pair}) for kind in range(size)]),
        delay_s=form.floats(delay_s.ravel()),
        ends=form.ints([end for pair in kinds.delay_s for end in pair]),
        counts=form.floats(counts or [0] * pipelines),
        total=float(plan.total_microbatches()),
        usual_s=max(once_s),
    )


def _rows_at_home(who: IntArray, home: IntArray, depth: int) -> IntArray:
    """The same pipelines in another order, so that fewer workers move."""
    rows, homes = who.reshape(-1, depth), home.reshape(-1, depth)
    if ((rows < HEALTHY) != (homes < HEALTHY)).any() or (homes < HEALTHY).any():
        return who
    same = (rows[:, None, :] == homes[None, :, :]).sum(axis=2)
    order = list(range(len(rows)))
    pairs = [(k, n) for k in order for n in range(k)]
    while gains := [
        (same[order[k], n] + same[order[n], k] - same[order[k], k] - same[order[n], n], k, n) for k, n in pairs
    ]:
        gain, k, n = max(gains)
        if gain <= 0:
            break
        order[k], order[n] = order[n], order[k]
    found: IntArray = rows[order].ravel()
    return found
