"""A lower bound over all routings: whichever live workers of a column run which virtual stages of which micro-batches.

Different virtual stages of one micro-batch may be run by different peers. So it is single rounds (F, I and W of one
micro-batch at one virtual stage) that a column's live workers share, and one of them has at least what an even share
comes to in whole rounds: of M micro-batches at C like virtual stages, ceil(M C / L) rounds on L workers, and not
C ceil(M / L). This worker runs them one at a time, not before the first can have come there; and where its limit does
not hold them all at once it has ramps (bounds.py), with heads and tails of the quickest way through live workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from math import floor, inf
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.exact_solver import common_unit
from ..scheduling.problem import BACKWARD, FORWARD, KINDS, WEIGHT
from .bounds import FINEST, ROUNDING, HeldJobs, SeatBound, frames_of, most_work_s, with_any_split
from .seat_chains import Frame, FramedTimes, SeatChain, seat_times

if TYPE_CHECKING:
    from ...schemas.plan import Plan
    from .problem import Floats, PlacedProblem


def routing_bound(plan: Plan, home: PlacedProblem) -> SeatBound:
    """A proven lower bound on the objective over all orders of all routings by virtual stage, also with B for I and W.

    The worker that it names is one of its column for which the argument says least: another one's share is no better.

    Args:
        plan: the pipelines, for the delays of their links and those between them.
        home: the problem in which each pipeline runs its own micro-batches, its dead workers among them.
    """
    full = _without_room(home)
    if full is not None:
        return SeatBound(inf, full, None, inf, 0.0, 0.0, inf, "no room")
    if home.split.any():
        home = with_any_split(home)
    quickest = _quickest(plan, home)
    frames = frames_of(home)
    times = seat_times(quickest, 1, frames)
    best: SeatBound | None = None
    for number, frame in enumerate(frames):
        for column, seats in enumerate(home.seats):
            if seats[0] >= frame.first:
                found = _column_bound(home, quickest, times, (number, frame), (column, seats))
                best = found if best is None or found.value_s > best.value_s else best
    assert best is not None
    step_s = 0.0 if home.staggered else float(home.optimizer_s.max())
    return replace(
        best, value_s=best.value_s + step_s, tail_s=best.tail_s + step_s, unlimited_s=best.unlimited_s + step_s
    )


def _without_room(home: PlacedProblem) -> int | None:
    """The first worker of a column that has no live worker to hold some of its virtual stages."""
    for stage, column in enumerate(home.column.tolist()):
        own = home.worker_column == column
        largest_bytes = float(home.limit_bytes[own & home.live].max(initial=-inf))
        if home.activation_bytes[stage] > largest_bytes * (1 + ROUNDING):
            return int(np.flatnonzero(own)[0])
    return None


def _quickest(plan: Plan, home: PlacedProblem) -> SeatChain:
    """The least that each operation takes on a live worker, and each hop between any two pipelines."""
    split = bool(home.split.all())
    seconds = []
    for stage, column in enumerate(home.column.tolist()):
        live = np.flatnonzero(home.live & (home.worker_column == column))
        f, i, w, b = home.duration_s[live, stage].min(axis=0, initial=inf).tolist()
        seconds.append((f, i, w) if split else (f, b, 0.0))
    links = [template.links for template in plan.templates] + [plan.links_of(k) for k in range(len(plan.pipelines))]
    delay_s = np.array([[link.delay_s for link in own] for own in links]).min(axis=0)
    stages = range(home.stages)
    return SeatChain(
        tuple(seconds), (split,) * home.stages, tuple(delay_s.tolist()), tuple(stages), (1.0,) * home.stages
    )


def _column_bound(
    home: PlacedProblem,
    quickest: SeatChain,
    times: FramedTimes,
    framed: tuple[int, Frame],
    own: tuple[int, Sequence[int]],
) -> SeatBound:
    """What a column's live workers say in a frame."""
    (number, frame), (column, seats) = framed, own
    workers = np.flatnonzero(home.live & (home.worker_column == column)).tolist()
    seconds = home.duration_s[:, seats][workers]
    rounds_s = seconds[..., :KINDS].sum(axis=2) if home.split.all() else seconds[..., [FORWARD, KINDS]].sum(axis=2)
    share_s = _least_share_s(rounds_s, home.jobs)
    parts = {v: times.part(number, v, 1) for v in seats}
    is_own = frame.window in (None, column)
    unlimited = max(_alone(parts, quickest, seats), _shared(parts, share_s), key=sum) if is_own else (0.0, 0.0, 0.0)
    unlimited_s = sum(unlimited)
    least: SeatBound | None = None
    for worker in workers:
        found = SeatBound(unlimited_s, worker, frame.window, *unlimited, unlimited_s, "one machine")
        for head_s, work_s, tail_s in _ramps(home, worker, seats, parts, share_s, is_own=is_own):
            value_s = head_s + work_s + tail_s
            if value_s > found.value_s * (1 + ROUNDING):
                found = SeatBound(value_s, worker, frame.window, head_s, work_s, tail_s, unlimited_s, "ramps")
        least = found if least is None or found.value_s < least.value_s else least
    assert least is not None
    return least


Part = tuple["Floats", "Floats"]  # heads and tails of a virtual stage, kinds x 1


def _shared(parts: dict[int, Part], share_s: float) -> tuple[float, float, float]:
    """Head, work and tail of the largest share, one operation after the other."""
    begun_s = min(float(heads_s[FORWARD, 0]) for heads_s, _ in parts.values())
    ended_s = min(float(tails_s[:, 0].min()) for _, tails_s in parts.values())
    return begun_s, share_s, ended_s


def _alone(parts: dict[int, Part], quickest: SeatChain, seats: Sequence[int]) -> tuple[float, float, float]:
    """Head, work and tail of the operation that these make last longest."""
    found = [
        (float(parts[v][0][kind, 0]), quickest.seconds[v][kind], float(parts[v][1][kind, 0]))
        for v in seats
        for kind in (FORWARD, BACKWARD, WEIGHT)
    ]
    return max(found, key=sum)


def _ramps(
    home: PlacedProblem, worker: int, seats: Sequence[int], parts: dict[int, Part], share_s: float, *, is_own: bool
) -> Iterator[tuple[float, float, float]]:
    """Head, work between and tail of a worker with this share, where its limit does not hold it all at once.

    Another column's window has to contain what lies before the last ramp, W among it, but no W after it.
    """
    limit_bytes, split = float(home.limit_bytes[worker]), bool(home.split.all())
    if limit_bytes == inf:
        return
    costs = home.duration_s[worker, list(seats)].tolist()
    held_s = [(f, i + w if split else b) for f, i, w, b in costs]
    sized = list(zip(held_s, home.activation_bytes[list(seats)].tolist(), strict=True))
    if share_s <= most_work_s([HeldJobs(f + b, size, home.jobs) for (f, b), size in sized], limit_bytes):
        return
    leaving = [HeldJobs(b, size, home.jobs) for (_, b), size in sized]
    if split:
        stashes = home.stash_bytes[list(seats)].tolist()
        leaving += [HeldJobs(w, size, home.jobs) for (_, _, w, _), size in zip(costs, stashes, strict=True)]
    first_s = most_work_s([HeldJobs(f, size, home.jobs) for (f, _), size in sized], limit_bytes)
    last_s = most_work_s(leaving, limit_bytes)
    begun_s = min(float(heads_s[FORWARD, 0]) for heads_s, _ in parts.values())
    turned_s = min(float(heads_s[BACKWARD, 0]) for heads_s, _ in parts.values())
    entered_s = min(float(tails_s[FORWARD, 0]) for _, tails_s in parts.values())
    yield turned_s, max(0.0, share_s - first_s - last_s), entered_s
    yield begun_s, max(0.0, share_s - last_s), entered_s
    if is_own:
        yield turned_s, max(0.0, share_s - first_s), _shared(parts, share_s)[2]


def _least_share_s(rounds_s: Floats, jobs: int) -> float:
    """What the worker with the most has at least, of `jobs` rounds at each virtual stage.

    Args:
        rounds_s: how long a round takes, workers x virtual stages.
        jobs: how many there are at each virtual stage.
    """
    quickest_s = rounds_s.min(axis=0)
    slower = np.where(quickest_s > 0, rounds_s / np.where(quickest_s > 0, quickest_s, 1.0), inf).min(axis=1)
    slower = np.where(np.isfinite(slower), slower, 1.0)
    least_s = float(jobs * quickest_s.sum() / (1 / slower).sum())
    unit_s = common_unit(quickest_s.tolist(), FINEST * float(quickest_s.max()))
    if unit_s is not None:
        least_s = max(least_s, _whole(unit_s * slower, round(jobs * float(quickest_s.sum()) / unit_s)))
    # Of the longest rounds alone: they are whole, whatever the others are.
    for count, round_s in enumerate(sorted(quickest_s.tolist(), reverse=True), 1):
        if round_s > 0:
            least_s = max(least_s, _whole(round_s * slower, count * jobs))
    return least_s


def _whole(each_s: Floats, count: int) -> float:
    """The least time in which workers, each in its own time for one, come to so many."""
    least_s = count / float((1 / each_s).sum())
    done = [floor(least_s / one_s * (1 - ROUNDING)) for one_s in each_s.tolist()]
    ahead = [((own + 1) * one_s, one_s) for own, one_s in zip(done, each_s.tolist(), strict=True)]
    heapify(ahead)
    ended_s = least_s
    for _ in range(count - sum(done)):
        ended_s, one_s = ahead[0]
        heapreplace(ahead, (ended_s + one_s, one_s))
    return ended_s
