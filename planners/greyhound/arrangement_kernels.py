"""What an arrangement of workers costs, and the search for a better one: kernels (schemas/kernels.py).

Greyhound, section 5.2 (S3), as a bottleneck assignment: places (pipeline d, stage p), on each a worker of some kind,
and m_d micro-batches a pipeline. With the slow-down s of who sits there, stage p's forward and backward take f_p s and
b_p s, c_p s in all, and the hop above it takes L_p in pipeline d. A 1F1B pipeline with w_p warm-up forwards then takes

    max over p of (sum of all c s + 2 L) + (m_d - w_p) r_p + (w_p - 1) max(f_p, b_p) s,
    r_p = max over q >= p of (c_p s + … + c_q s + 2 (L_p + … + L_(q-1))) / (w_p - w_q + 1):

first a micro-batch goes all the way and comes back to stage p, which has w_p - 1 others to go on with at its own speed;
for the rest stages p to q and the hops between them are a cycle in which w_p - w_q + 1 micro-batches are under way. The
stage that counts at about the m_d to be expected gives the pipeline its line fill_d + m_d pace_d. Stage p is done
before the pipeline, by the backwards of the stages below it; then its peers sum their gradients, which the slowest link
between any two of them delays 2 (n - 1) times:

    T = max over d, p of (fill_d + m_d pace_d - sum over q < p of (b_q s + L_q) + tail_p + 2 (n - 1) max L).

The paper gives no formula; (m_d - 1) max c_p s in place of the middle terms, as its Figure 12 has it, is what the last
stage gives, and too much where the slow one is not the last.
"""

from __future__ import annotations

from typing import NamedTuple

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel

NOBODY, HEALTHY = -1, 0  # kinds
EVENLY = 1e-9  # times that differ by less, relatively, are equal
HALVINGS = 48
LEAST_S = 1e-12  # a micro-batch
UNKNOWN_S = 1e100


class Costs(NamedTuple):
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
def hop_delay_s(costs: Costs, state: State, place: int) -> float:
    """The delay between a place and the next of its pipeline."""
    one, other = state.who[place], state.who[place + 1]
    if one <= HEALTHY or other <= HEALTHY:
        return costs.hop_s[place]
    return max(costs.hop_s[place], costs.delay_s[one * len(costs.factor) + other])


@kernel
def factor_at(costs: Costs, state: State, place: int) -> float:
    """The slow-down of who sits at a place."""
    return costs.factor[max(HEALTHY, state.who[place])]


@kernel
def cycle_s(costs: Costs, state: State, pipeline: int, p: int) -> float:
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
def follow(costs: Costs, state: State, pipeline: int) -> None:
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
def add_sums(costs: Costs, state: State) -> None:
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
def finish(costs: Costs, state: State, pipeline: int) -> None:
    """When the last stage of a pipeline ends, but for its micro-batches."""
    stages = len(costs.once_s)
    last_s = costs.tail_s[0] + state.sum_s[0]
    for p in range(1, stages):
        last_s = max(last_s, costs.tail_s[p] + state.sum_s[p] - state.below_s[pipeline * stages + p])
    state.end_s[pipeline] = state.fill_s[pipeline] + last_s


@kernel
def look(costs: Costs, state: State) -> None:
    """All that follows from who sits where."""
    for place in range(len(state.who)):
        state.at[max(HEALTHY, state.who[place])] = place
    add_sums(costs, state)
    for pipeline in range(len(state.pace_s)):
        follow(costs, state, pipeline)
        finish(costs, state, pipeline)


@kernel
def swap(costs: Costs, state: State, place: int, other: int) -> None:
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
def fits(costs: Costs, state: State, level_s: float) -> bool:
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
def iteration_s(costs: Costs, state: State) -> float:
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
def burden_s(costs: Costs, state: State) -> float:
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
def untroubled(costs: Costs, state: State, pipeline: int) -> bool:
    """Whether only healthy workers sit in a pipeline, and did at first."""
    stages = len(costs.once_s)
    for place in range(pipeline * stages, (pipeline + 1) * stages):
        if state.who[place] != HEALTHY or state.home[place] != HEALTHY:
            return False
    return True


@kernel
def mark(costs: Costs, state: State, alike: bool) -> None:
    """Mark the pipelines with whose workers to swap: of alike ones that are untroubled the first will do."""
    seen = False
    for pipeline in range(len(state.pace_s)):
        twin = alike and untroubled(costs, state, pipeline)
        state.open[pipeline] = 0 if twin and seen else 1
        seen = seen or twin


@kernel
def admits(costs: Costs, state: State, place: int, other: int) -> bool:
    """Whether a swap is worth a look: it makes a difference, and is no other one's mirror image."""
    one, two = state.who[place], state.who[other]
    if two == NOBODY or one == two or (two > HEALTHY and other < place):
        return False
    return state.open[other // len(costs.once_s)] == 1


@kernel
def better(costs: Costs, state: State) -> bool:
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
def try_swaps(costs: Costs, state: State, place: int, most_away: int) -> None:
    """Look at all swaps of the worker at a place, and note in `state.found` the best that is better than known."""
    for other in range(len(state.who)):
        if not admits(costs, state, place, other) or strangers(state, place, other) > most_away:
            continue
        for turn in range(2):  # there, and back
            swap(costs, state, place, other)
            if turn == 0 and better(costs, state):
                state.found[0], state.found[1] = place, other


@kernel
def descend(costs: Costs, state: State, most_moved: int, alike: bool) -> float:
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
def settle(costs: Costs, state: State, level_s: float) -> None:
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
def enumerate_all(costs: Costs, state: State, places: Ints, most_moved: int, best: MutableInts) -> float:
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
