"""Lower bounds on the makespan and the period of any orders for a placed problem.

Four arguments, each about one worker with all its seats, and its operations' heads and tails (seat_chains.py). The
makespan counts both from the iteration's start and to its end; the period from a column's first start and to the end of
its own last operation, all-reduce and step included, and leaves out the virtual stages before the column's first.

* **One machine**: it runs one operation at a time (`scheduling/one_machine.py`).
* **Ramps**: where its limit holds less than all its F at once, it runs nothing but F before its first I, no sooner than
  the least head h of an I, and no more of them than fit: up to h work A at most, of each seat no more than there is
  time for from its least head on. After its last F, which the least tail q of an F follows, it runs nothing but I and W
  of what is held then: work B at most. What is left lies between the two, so the value is at least
  h + (work - A - B) + q; and likewise with one ramp only, from its least head, or to its least tail. A and B are
  knapsacks, of fractions, the limit rounded down to what sizes can add up to.
* **Turns**: from F at its seat i to the end of I at its last one a micro-batch gives nothing back, and at some time of
  that holds its activations of all seats, A in sum, while all others hold those of the seats up to i at least, a. So no
  more than 1 + (limit - A) / a are on this way at once, and of M as many as are not come one after the other. What they
  give back first is a stash, after some W: where stashes are as large, that W lies between two of them, too.
* **Turns of two seats** x and y, where 2n chunks fit (also called turns): when the F at y of micro-batch j + n starts,
  those up to it have begun 2 (j + n + 1) chunks there, and those before j have given back 2j at most. So two chunks of
  j or later ones have been given back, by W that follow the I of j at y. From the start of that I on the worker has
  thus run I at y, two W with their other I, and one more F: at x of j + n, or else that was before, and then with it
  and without a W there was no room for F at y of j + n - 1, which so is among them. So from the F of j to that of j + n
  it takes as long as the way to the I and all these.
* **Area**: each micro-batch holds its activation from the start of F to the end of I, for a way down the later virtual
  stages and back at least, then its stash for W. In the time from the first start to the last end no more fits than the
  limit times it.

Where F and a full backward may run **side by side**, a pair that takes p of the f + b that its passes take one after
the other has room for the share p / (f + b) of each, one behind the other: F from its start, the backward up to its
end. So all of the above holds with operations that much shorter where they take up their worker
(`PlacedProblem.shares`), and as long as ever on the way of a micro-batch, for in a pair no pass is shorter than alone.
W is looked at from when its I may start, and follows it at that share, as in the backward of a pair. Turns of two seats
count operations one by one, so they say nothing there.

`any_routing.py` is about all routings at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import floor, inf
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ..scheduling.exact_solver import common_unit
from ..scheduling.lower_bound import Bound
from ..scheduling.one_machine import Machine, Queue, Solved, Spot, most_binding
from ..scheduling.problem import BACKWARD, FORWARD, KINDS, WEIGHT, least_halves_s
from .problem import needed_bytes, ordered_placed_problem
from .seat_chains import Frame, SeatChain, seat_routes_of, seat_times

if TYPE_CHECKING:
    from ...schemas.plan import Plan
    from .problem import Floats, PlacedProblem

ROUNDING = 1e-9  # as the checker takes limits
FINEST = 1e-4  # of the largest size: units of memory below this are not looked for
MOST_STEPS = 150_000  # of Jackson's schedules, some hundredths of a second

Argument = Literal["one machine", "ramps", "turns", "area", "no room"]


@dataclass(frozen=True)
class SeatBound(Bound):
    """A proven lower bound on the makespan or the period, and the worker that proves it.

    The value is the sum of `head_s`, `work_s` and `tail_s`. By one machine these are of the worker's critical
    operations; by ramps, `work_s` is what lies between them, with `head_s` before the first I, `tail_s` after the last
    F; by turns, what those take that come one after the other; by area, the least time in which its limit has room for
    all. Where a limit does not admit a single micro-batch there are no orders: the value is infinite, as is the head.

    Attributes:
        window: the column whose window is bounded.
        argument: which of the four; "no room" where there are no orders.
    """

    argument: Argument


def lower_bound(problem: PlacedProblem) -> SeatBound:
    """A proven lower bound on the problem's objective, over all orders of its routing and split backwards."""
    views = list(_views(problem, frames_of(problem)))
    step_s = 0.0 if problem.staggered else float(problem.optimizer_s.max())
    solved = _most_binding(views)
    (window, worker), (head_s, work_s, tail_s) = solved.spot, solved.critical
    unlimited_s = solved.value_s + step_s
    # Workers whose limits do not admit a single micro-batch with all that they run of it.
    short = np.flatnonzero(needed_bytes(problem) > problem.limit_bytes * (1 + ROUNDING))
    if len(short):
        full = int(short[0])
        return SeatBound(inf, full, None, inf, 0.0, 0.0, unlimited_s, "no room")
    best = SeatBound(unlimited_s, worker, window, head_s, work_s, tail_s + step_s, unlimited_s, "one machine")
    for view in views:
        for argument, (head_s, work_s, tail_s) in view.under_its_limit():
            value_s = head_s + work_s + tail_s + step_s
            if value_s > best.value_s * (1 + ROUNDING):
                window, worker = view.spot
                best = SeatBound(value_s, worker, window, head_s, work_s, tail_s + step_s, unlimited_s, argument)
    return best


def bound_of(plan: Plan) -> float:
    """What no orders of a valid plan undercut, by its routing, in s; 0 for pipelines of unlike templates."""
    used = tuple(one for one in plan.templates if any(pipeline.template == one.name for pipeline in plan.pipelines))
    if len(used) > 1:
        return 0.0
    problem, _ = ordered_placed_problem(replace(plan, templates=used))
    return lower_bound(problem).value_s


def _most_binding(views: Sequence[_View]) -> Solved:
    """What one machine says at most. Where that takes long, only the views that promise most are solved exactly."""
    machines = [Machine(view.spot, view.queues()) for view in views]
    found: list[Machine] = []
    steps = 0
    for machine in sorted(machines, key=_promise_s, reverse=True):
        steps += len(machine.queues) * sum(len(queue.heads_s) for queue in machine.queues)
        if found and steps > MOST_STEPS:
            break
        found.append(machine)
    return most_binding(found)


def _promise_s(machine: Machine) -> float:
    """Head, work and tail at most, of its operations from the first of some queue on, and down to the last of one."""
    firsts_s = np.unique([queue.heads_s[0] for queue in machine.queues])
    lasts_s = np.unique([queue.tails_s[-1] for queue in machine.queues])
    skipped = np.array([np.searchsorted(queue.heads_s, firsts_s) for queue in machine.queues])
    urgent = np.array([len(queue.tails_s) - np.searchsorted(queue.tails_s[::-1], lasts_s) for queue in machine.queues])
    durations_s = np.array([queue.duration_s for queue in machine.queues])
    work_s = np.tensordot(durations_s, np.maximum(0, urgent[:, :, None] - skipped[:, None, :]), axes=1)
    return float((firsts_s + work_s + lasts_s[:, None]).max())


def with_any_split(problem: PlacedProblem) -> PlacedProblem:
    """A split problem that no orders of this routing beat, wherever their backwards are split and wherever not.

    Orders with a B are orders with I and W in its place, if these take no longer than either: its message comes no
    later, and no more is held, if the stash is no larger than the activation.
    """
    duration_s = problem.duration_s.copy()
    halves_s = least_halves_s(*np.moveaxis(duration_s[..., BACKWARD:], -1, 0))
    duration_s[..., BACKWARD], duration_s[..., WEIGHT] = halves_s
    stash_bytes = np.minimum(problem.stash_bytes, problem.activation_bytes)
    return replace(problem.with_split(True), duration_s=duration_s, stash_bytes=stash_bytes)


# What is looked at: the whole iteration, or a column's window.


def frames_of(problem: PlacedProblem) -> list[Frame]:
    """The iteration, from its start to the end of the last all-reduce; or the window of each column."""
    if not problem.staggered:
        return [Frame(None, 0, tuple(problem.allreduce_s[problem.column].tolist()))]
    after_s = problem.allreduce_s + problem.optimizer_s
    return [
        Frame(window, seats[0], tuple(np.where(problem.column == window, after_s[window], -inf).tolist()))
        for window, seats in enumerate(problem.seats)
    ]


def _views(problem: PlacedProblem, frames: Sequence[Frame]) -> Iterator[_View]:
    """The workers in these frames; of equal ones only the first.

    A window has F and I at all virtual stages after its first one. So what one says of other columns' workers, one
    before it says too, unless what follows its own last operation takes longer.
    """
    routes = seat_routes_of(problem)
    count: dict[SeatChain, int] = {}
    for route in routes:
        count[route.chain] = max(count.get(route.chain, 0), route.count)
    times = {chain: seat_times(chain, most, frames) for chain, most in count.items()}
    seen: set[tuple[object, ...]] = set()
    longest_s = -inf
    for number in sorted(range(len(frames)), key=lambda number: frames[number].first):
        frame = frames[number]
        parts: dict[int, list[_SeatJobs]] = {}
        numbers: dict[int, list[int]] = {}
        for n, route in enumerate(routes):
            for stage in range(frame.first, problem.stages):
                parts.setdefault(route.workers[stage], []).append(_SeatJobs(route.chain, stage, route.count))
                numbers.setdefault(route.workers[stage], []).append(n)
        for worker, own in parts.items():
            is_own = frame.window is None or problem.worker_column[worker] == frame.window
            key = (number, is_own, float(problem.limit_bytes[worker]), *own)
            if key not in seen and (is_own or max(frame.ends_s) > longest_s):
                seen.add(key)
                seats = [
                    _Seat(part, n, *times[part.chain].part(number, part.stage, part.jobs))
                    for part, n in zip(own, numbers[worker], strict=True)
                ]
                yield _View(problem, (frame.window, worker), seats, is_own)
        longest_s = max(longest_s, *frame.ends_s)


class _SeatJobs(NamedTuple):
    """Identical micro-batches at one seat: their chain, the virtual stage, and how many there are."""

    chain: SeatChain
    stage: int
    jobs: int


class _Seat(NamedTuple):
    """Identical micro-batches at one seat, the number of their route, and heads and tails, kinds x micro-batches."""

    part: _SeatJobs
    route: int
    heads_s: Floats
    tails_s: Floats

    @property
    def share(self) -> float:
        """How much of an operation's time its worker is taken up at least."""
        return self.part.chain.shares[self.part.stage]

    def head_s(self, kind: int) -> Floats:
        """Before when operations of a kind cannot take the worker up, in s."""
        earliest_s: Floats = self.heads_s[BACKWARD if kind == WEIGHT and self.share < 1 else kind]
        return earliest_s

    @property
    def is_split(self) -> bool:
        """Whether there is a W."""
        return self.part.chain.is_split[self.part.stage]

    @property
    def must_end(self) -> tuple[bool, bool, bool]:
        """Whether F, I and W have to be over at the end."""
        forward, backward, weight = (self.tails_s[:, -1] > -inf).tolist()
        return forward, backward, weight and self.is_split

    @property
    def all_seconds(self) -> tuple[float, float, float]:
        """How long F, I and W take the worker up."""
        f_s, b_s, w_s = self.part.chain.seconds[self.part.stage]
        return f_s * self.share, b_s * self.share, w_s * self.share

    @property
    def seconds(self) -> tuple[float, float, float]:
        """What F, I and W take of what has to be over."""
        f, b, w = (s * must for s, must in zip(self.all_seconds, self.must_end, strict=True))
        return f, b, w


class HeldJobs(NamedTuple):
    """Micro-batches that may be held at once: work that each brings, its bytes, and how many there are or have time."""

    work_s: float
    size_bytes: float
    jobs: float


class _View:
    """A worker's operations in a frame, with heads and tails: those of all its seats that are looked at.

    Args:
        problem: whose worker it is.
        spot: window and worker.
        seats: its own.
        is_whole: whether nothing of what it runs in the frame is left out.
    """

    def __init__(self, problem: PlacedProblem, spot: Spot, seats: Sequence[_Seat], is_whole: bool) -> None:
        self.spot = spot
        self._seats, self._is_whole = seats, is_whole
        self._limit_bytes = float(problem.limit_bytes[spot[1]])
        self._activation_bytes = [float(problem.activation_bytes[seat.part.stage]) for seat in seats]
        self._stash_bytes = [float(problem.stash_bytes[seat.part.stage]) for seat in seats]

    def queues(self) -> list[Queue]:
        """Its operations as a one-machine problem, without those that need not end."""
        return [
            Queue(seat.head_s(kind), seat.seconds[kind], seat.tails_s[kind])
            for seat in self._seats
            for kind in range(KINDS)
            if seat.must_end[kind]
        ]

    def under_its_limit(self) -> Iterator[tuple[Argument, tuple[float, float, float]]]:
        """What ramps, turns and area say, as head, work and tail."""
        if self._limit_bytes < inf:
            for found in self._ramps():
                yield "ramps", found
            for found in self._turns():
                yield "turns", found
            if self._is_whole:
                yield "area", self._area()

    def _ramps(self) -> Iterator[tuple[float, float, float]]:
        """With both ramps, with the first, and with the last, where the limit does not hold all F at once."""
        counts = [seat.part.jobs for seat in self._seats]
        if float(np.dot(self._activation_bytes, counts)) <= self._limit_bytes * (1 + ROUNDING):
            return
        costs = [seat.seconds for seat in self._seats]
        yield from self._ramps_of(costs, counts)
        if not self._is_whole:
            # W need not end within another column's window. But those of what is not held any more have, whatever F
            # comes last: they lie before the last ramp.
            turned, _, begun = self._ramps_of([seat.all_seconds for seat in self._seats], counts)
            yield from (turned, begun)

    def _ramps_of(
        self, costs: Sequence[tuple[float, float, float]], counts: Sequence[int]
    ) -> Iterator[tuple[float, float, float]]:
        """Ramps in which F, I and W count so much."""
        work_s = sum(count * sum(cost) for count, cost in zip(counts, costs, strict=True))
        sized = list(zip(costs, self._activation_bytes, counts, strict=True))
        begun_s, turned_s = (min(float(seat.heads_s[kind, 0]) for seat in self._seats) for kind in (FORWARD, BACKWARD))
        ready_s = [max(0.0, turned_s - float(seat.heads_s[FORWARD, 0])) for seat in self._seats]
        entering = [
            HeldJobs(f, size, min(count, time_s / f if f else inf))
            for ((f, _, _), size, count), time_s in zip(sized, ready_s, strict=True)
        ]
        leaving = [HeldJobs(b + w, size, count) for (_, b, w), size, count in sized]
        # A micro-batch is either whole or stashed: to let it be both only makes the ramp longer.
        leaving += [HeldJobs(w, size, n) for (_, _, w), size, n in zip(costs, self._stash_bytes, counts, strict=True)]
        first_s, last_s = most_work_s(entering, self._limit_bytes), most_work_s(leaving, self._limit_bytes)
        entered_s = min(float(seat.tails_s[FORWARD, -1]) for seat in self._seats)
        ended_s = min(float(queue.tails_s[-1]) for queue in self.queues())
        yield turned_s, max(0.0, work_s - first_s - last_s), entered_s
        yield turned_s, max(0.0, work_s - first_s), ended_s
        yield begun_s, max(0.0, work_s - last_s), entered_s

    def _turns(self) -> Iterator[tuple[float, float, float]]:
        """From F at each of its seats, of micro-batches that have the same ones, to the end of I at the last of these.

        Without W, and with the first W, before whose end nothing is given back if stashes are as large as activations.
        """
        of_route: dict[int, list[_Seat]] = {}
        for seat in self._seats:
            of_route.setdefault(seat.route, []).append(seat)
        alike: dict[tuple[int, ...], list[list[_Seat]]] = {}
        for seats in of_route.values():
            alike.setdefault(tuple(seat.part.stage for seat in seats), []).append(seats)
        sizes = zip(self._seats, self._activation_bytes, self._stash_bytes, strict=True)
        bytes_of = {seat.part.stage: (activation_bytes, stash_bytes) for seat, activation_bytes, stash_bytes in sizes}
        for stages, group in alike.items():
            first_w_s = min(seat.all_seconds[WEIGHT] for seats in group for seat in seats)
            is_split = all(seat.is_split for seats in group for seat in seats)
            for first in range(len(stages)):
                yield self._turns_from(group, first, [bytes_of[stage][0] for stage in stages], 0.0)
                if is_split:
                    yield self._turns_from(group, first, [min(bytes_of[stage]) for stage in stages], first_w_s)
            if is_split and all(seat.share == 1 for seats in group for seat in seats):  # not where passes overlap
                for seats in group:
                    for x, y in combinations(seats, 2):
                        yield from self._turns_of_two(x, y, min(*bytes_of[x.part.stage], *bytes_of[y.part.stage]))

    def _turns_from(
        self, group: Sequence[Sequence[_Seat]], first: int, kept_bytes: Sequence[float], more_s: float
    ) -> tuple[float, float, float]:
        """How long all take from the F at seat `first` on, if each lasts `more_s` longer than to the end of its I."""
        held_bytes, all_bytes = sum(kept_bytes[: first + 1]), sum(kept_bytes)
        jobs = sum(seats[0].part.jobs for seats in group)
        turns = 1
        if held_bytes > 0:
            room_bytes = max(0.0, self._limit_bytes * (1 + ROUNDING) - all_bytes)
            turns = -(-jobs // (1 + floor(room_bytes / held_bytes * (1 + ROUNDING))))
        way_s = min(seats[0].part.chain.way_s(seats[first].part.stage, seats[-1].part.stage) for seats in group)
        begun_s = min(float(seats[first].heads_s[FORWARD, 0]) for seats in group)
        ended_s = min(float(seats[-1].tails_s[BACKWARD, -1]) for seats in group)
        return begun_s, turns * way_s + (turns - 1) * more_s, ended_s

    def _turns_of_two(self, x: _Seat, y: _Seat, kept_bytes: float) -> Iterator[tuple[float, float, float]]:
        """From F to F at y, the later of two seats, n micro-batches on at a time; each chunk holds so much until W."""
        if not kept_bytes or min(x.share, y.share) < 1:
            return  # what is counted here one after the other may run side by side
        chunks = floor(self._limit_bytes / kept_bytes * (1 + ROUNDING))
        apart, jobs = max(1, (chunks + 1) // 2), x.part.jobs
        (x_f, x_i, x_w), (y_f, y_i, y_w) = x.all_seconds, y.all_seconds
        given_back_s = min(x_i + x_w + y_w, y_i + 2 * y_w, y_i + 2 * (x_i + x_w))
        turn_s = y.part.chain.way_s(y.part.stage, y.part.stage) + given_back_s + min(x_f, y_f)
        for first in range(min(apart, jobs - apart)):
            turns = (jobs - 1 - first) // apart
            last = first + turns * apart
            yield float(y.heads_s[FORWARD, first]), turns * turn_s + y_f, float(y.tails_s[FORWARD, last])

    def _area(self) -> tuple[float, float, float]:
        """The least time in which the limit has room for all."""
        held = 0.0
        for seat, activation_bytes, stash_bytes in zip(
            self._seats, self._activation_bytes, self._stash_bytes, strict=True
        ):
            stashed = stash_bytes * seat.all_seconds[WEIGHT] if seat.is_split else 0.0
            held += seat.part.jobs * (
                activation_bytes * seat.part.chain.way_s(seat.part.stage, seat.part.stage) + stashed
            )
        begun_s = min(float(seat.heads_s[FORWARD, 0]) for seat in self._seats)
        ended_s = min(float(queue.tails_s[-1]) for queue in self.queues())
        usable_bytes = _usable_bytes([*self._activation_bytes, *self._stash_bytes], self._limit_bytes)
        return begun_s, held / usable_bytes if held else 0.0, ended_s


def most_work_s(items: Iterable[HeldJobs], limit_bytes: float) -> float:
    """The most work of items that fit together under a limit, fractions of the last one among them."""
    items = [item for item in items if item.work_s > 0]
    left = _usable_bytes([item.size_bytes for item in items], limit_bytes)
    found_s = sum(item.jobs * item.work_s for item in items if item.size_bytes == 0)
    sized = [item for item in items if item.size_bytes > 0]
    for item in sorted(sized, key=lambda item: item.work_s / item.size_bytes, reverse=True):
        taken = min(item.jobs, left / item.size_bytes)
        found_s += taken * item.work_s
        left = max(0.0, left - taken * item.size_bytes)
    return found_s


def _usable_bytes(sizes: Iterable[float], limit_bytes: float) -> float:
    """The largest sum of sizes within a limit: a multiple of what all are multiples of, where there is such a unit."""
    sizes = list(sizes)
    unit = common_unit(sizes, FINEST * max(sizes, default=0.0))
    most = limit_bytes * (1 + ROUNDING)
    return most if unit is None else floor(most / unit) * unit
