"""Instantiation: how many pipelines of each template use all nodes and end an iteration first, without enumerating.

Oobleck (section 4.2) lists every multiset of templates that fills the nodes with f + 1 pipelines or more, distributes
the batch over each, and takes the fastest: half a million for 128 nodes with n_0 = 8 and f = 3. We ask the other way
round. Within a deadline a template has room for so many micro-batches, by its pace (`pace.py`); so many pipelines can
meet it if some multiset of them fills the nodes and has room for all micro-batches (`instantiation.py`). Only ends of
micro-batches matter as deadlines, so the least is found by bisection.

What is made least is the whole iteration, the slowest pipeline and the ending behind it (`pace.py`). The ending
depends on the number of pipelines and on the templates in use: for every number of pipelines we find the least
deadline, and then without the templates whose stages made the ending as long as it was, as long as that can pay. Most
numbers end at the first question, whether they meet the deadline that the best set so far leaves them. The result is
the optimum over all multisets, as by enumeration. (For a thousand nodes it takes a tenth of a second; seconds where a
thousand templates have endings that have nothing to do with their sizes: `benchmarks/instantiation.py`.)

Of several multisets as fast we take the one with the most room (it bears a slow-down best), then the fewest pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...schemas.errors import InfeasibleError
from ...schemas.templates import PipelineTemplate, Templates
from ..batch.distribute import distribute
from ..batch.exact import Pace, Range, Times, nearest
from .pace import Ending, ending_of, paces_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..batch.distribute import Objective, Solver

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


# The most room that so many pipelines have which fill the nodes: a knapsack filled exactly, with so many items.
#
# Every template has room for so many micro-batches. Two things keep the search small:
#
# * If pipelines could be cut, the best would be a mixture of two sizes, neighbours on the upper hull of the rooms over
#   the sizes. Its room bounds all others', and a template that lies further below the line through the two than the
#   bound lies above what is needed cannot be used.
# * Any pipelines can be ordered so that the nodes of the first j differ by less than the widest sizes do from j times
# the
#   mean, for whenever they are above it, one below the mean is left to come next. So a block of j of them has that many
#   nodes, give or take the difference of the largest and the smallest, and blocks are put together from halves.
#
# O(log pipelines) max-plus convolutions of vectors as long as that difference, at most as the nodes.


NEVER = -(1 << 61)  # room of what cannot be; the sum of two does not overflow


@dataclass(frozen=True)
class Filling:
    """The pipelines' nodes, descending, and the room that they have together."""

    sizes: tuple[int, ...]
    room: int


class Knapsack:
    """Pipelines that fill the nodes.

    Args:
        sizes: of templates, ascending.
        nodes: all of which are used.
        pipelines: how many there are to be.
        units: that they need room for.
    """

    def __init__(self, sizes: Ints, nodes: int, pipelines: int, units: int) -> None:
        self._sizes, self._nodes, self._pipelines, self._units = sizes, nodes, pipelines, units

    def may_hold(self, room: Ints) -> bool:
        """Whether the room of the templates may suffice, if pipelines could be cut: cheap, and never wrong if not."""
        return bool(self._usable(room).any())

    def holds(self, room: Ints) -> bool:
        """Whether the room of some pipelines suffices. A template without room cannot be used."""
        usable = self._usable(room)
        return bool(usable.any()) and self._blocks(room, usable).room(self._pipelines, self._nodes) >= self._units

    def best(self, room: Ints) -> Filling:
        """The pipelines of most room, where some `holds`."""
        blocks = self._blocks(room, self._usable(room))
        sizes = blocks.sizes(self._pipelines, self._nodes)
        return Filling(tuple(sorted(sizes, reverse=True)), blocks.room(self._pipelines, self._nodes))

    def _blocks(self, room: Ints, usable: Bools) -> _Blocks:
        return _Blocks(self._sizes[usable], room[usable], self._nodes, self._pipelines)

    def _usable(self, room: Ints) -> Bools:
        """The templates that pipelines with enough room may be of; none where there are no such pipelines."""
        none = np.zeros(len(room), bool)
        low = (room > 0) & (self._sizes * self._pipelines <= self._nodes)
        high = (room > 0) & ~low
        if not low.any():
            return none
        left = int(np.flatnonzero(low)[-1])
        if not high.any():
            none[left] = (
                self._sizes[left] * self._pipelines == self._nodes and room[left] * self._pipelines >= self._units
            )
            return none
        width, rise, above = self._hull(room, low, high, left, int(np.flatnonzero(high)[0]))
        on_line = int(above[low].max())
        spare = self._pipelines * on_line - (width * self._units - rise * self._nodes)
        usable: Bools = (room > 0) & (on_line - above <= spare)
        return usable

    def _hull(self, room: Ints, low: Bools, high: Bools, left: int, right: int) -> tuple[int, int, Ints]:
        """The edge of the upper hull over the mean size: its width, its rise, and `width * room - rise * size`."""
        either = low | high
        while True:
            width, rise = int(self._sizes[right] - self._sizes[left]), int(room[right] - room[left])
            above = np.where(either, width * room - rise * self._sizes, NEVER)
            top = int(above.argmax())
            if above[top] == above[left]:
                return width, rise, above
            left, right = (top, right) if low[top] else (left, top)


class _Blocks:
    """The most room of j pipelines of n nodes, for the j that the whole is halved into and n near j times the mean."""

    def __init__(self, sizes: Ints, room: Ints, nodes: int, pipelines: int) -> None:
        self._smallest, self._largest = int(sizes[0]), int(sizes[-1])
        self._nodes, self._pipelines = nodes, pipelines
        one = np.full(self._largest - self._smallest + 1, NEVER)
        one[sizes - self._smallest] = room
        self._tables = {1: (self._smallest, one)}  # from how many nodes on, and the room
        self._sizes: dict[tuple[int, int], list[int]] = {}  # by pipelines and nodes: halves are often alike

    def room(self, pipelines: int, nodes: int) -> int:
        """The most room of so many pipelines of so many nodes; below zero where there are none."""
        first, most = self._table(pipelines)
        return int(most[nodes - first]) if 0 <= nodes - first < len(most) else NEVER

    def sizes(self, pipelines: int, nodes: int) -> list[int]:
        """The nodes of each of so many pipelines with the most room."""
        if pipelines == 1:
            return [nodes]
        if (pipelines, nodes) not in self._sizes:
            half, most = pipelines // 2, self.room(pipelines, nodes)
            first, halves = self._table(half)
            in_half = next(
                first + at
                for at, part in enumerate(halves.tolist())
                if part >= 0 and part + self.room(pipelines - half, nodes - first - at) == most
            )
            self._sizes[pipelines, nodes] = self.sizes(half, in_half) + self.sizes(pipelines - half, nodes - in_half)
        return self._sizes[pipelines, nodes]

    def _table(self, pipelines: int) -> tuple[int, Ints]:
        if pipelines not in self._tables:
            # Two halves together, in a block of so many pipelines with the fewest nodes it may have, up to the most.
            rest, reach = self._pipelines - pipelines, self._largest - self._smallest
            mean_nodes = pipelines * self._nodes // self._pipelines
            first, last = (
                max(pipelines * self._smallest, self._nodes - rest * self._largest, mean_nodes - reach),
                min(pipelines * self._largest, self._nodes - rest * self._smallest, mean_nodes + 1 + reach),
            )
            (start, one), (other_start, other) = self._table(pipelines // 2), self._table(pipelines - pipelines // 2)
            padded = np.full(last - start - other_start + len(one), NEVER)
            padded[len(one) - 1 :][: len(other)] = other[: last - start - other_start + 1]
            pairs = sliding_window_view(padded, len(one))[max(0, first - start - other_start) :, ::-1]
            self._tables[pipelines] = max(first, start + other_start), np.maximum((pairs + one).max(axis=1), NEVER)
        return self._tables[pipelines]


TRIED = 32  # batches below one that cannot be split, and above
LISTED = 4096  # so many deadlines are listed and bisected
HALVINGS = 20  # of the time in which pipelines are done that could be cut
LATE = 1 / 64  # of the latest deadline: mostly the least one is no earlier
FIRST_STEP = 1e-4  # relative, from a deadline that is almost met
NEAR = 2  # pipelines more or fewer than are likely


@dataclass(frozen=True)
class Instantiation:
    """Pipelines: the nodes of each, descending, its micro-batches, and the time of the slowest by its pace, in s."""

    sizes: tuple[int, ...]
    microbatches: tuple[int, ...]
    slowest_s: float


def instantiate(
    templates: Templates,
    nodes: int,
    microbatches: int,
    multiple_of: int = 1,
    objective: Objective = "min-max",
    solver: Solver = "exact",
    microbatch_size: int = 1,
) -> Instantiation:
    """Choose the pipelines whose iteration ends first, and distribute the micro-batches over them.

    Args:
        templates: of consecutive sizes.
        nodes: N', all of which are used.
        microbatches: of all pipelines together.
        multiple_of: every pipeline gets a multiple of this, one at least.
        objective: of the distribution over the pipelines that were chosen; `variance` is the paper's equation 6, in
            which pipelines of one template get equal numbers.
        solver: of the distribution.
        microbatch_size: samples of a micro-batch, for errors, which name global batches.

    Raises:
        InfeasibleError: too few nodes for f + 1 pipelines, more than the templates can use, or micro-batches that
            cannot be split.
    """
    microbatches_of(templates, nodes, microbatches * microbatch_size, microbatch_size, multiple_of)
    paces, ending = paces_of(_usable(templates, nodes), microbatches, nodes), ending_of(templates)

    def sizes_for(number: int) -> tuple[int, ...]:
        return fastest_sizes(templates, paces, ending, nodes, number, multiple_of)

    sizes = sizes_for(microbatches)
    if objective == "variance" and not _has_equal_shares(sizes, microbatches, multiple_of):
        least = fewest_pipelines(templates, nodes) * multiple_of
        raise _unequal_shares(sizes_for, microbatches, least, multiple_of, microbatch_size)
    shared = _counts(sizes) if objective == "variance" else None
    chosen = [paces[size - templates.smallest] for size in sizes]
    found = distribute(chosen, microbatches, multiple_of, objective, solver, shared=shared)
    return Instantiation(sizes, found.microbatches, found.slowest_s)


def microbatches_of(
    templates: Templates, nodes: int, global_batch: int, microbatch_size: int, multiple_of: int = 1
) -> int:
    """How many micro-batches a global batch has, once it is sure that pipelines can use the nodes and share it.

    Args:
        templates: of consecutive sizes.
        nodes: N'.
        global_batch: B, samples of an iteration.
        microbatch_size: b, samples of a micro-batch.
        multiple_of: every pipeline gets a multiple of so many micro-batches, one at least.

    Raises:
        InfeasibleError: the nodes, or the batch, will not do; names the nearest that will.
    """
    require_covered(templates, nodes)
    pipelines, unit = fewest_pipelines(templates, nodes), microbatch_size * multiple_of
    if global_batch % unit or global_batch < pipelines * unit:
        around = {max(count, pipelines) * unit for count in (global_batch // unit, -(-global_batch // unit))}
        raise InfeasibleError(
            f"a global batch of {global_batch} cannot be split: {pipelines} pipelines or more get multiples of {unit}",
            where="--global-batch",
            fix=f"take {' or '.join(map(str, sorted(around)))}",
        )
    return global_batch // microbatch_size


def _counts(sizes: Sequence[int]) -> list[int]:
    """How many pipelines there are of each size, in their order."""
    return [sizes.count(size) for size in dict.fromkeys(sizes)]


def _has_equal_shares(sizes: Sequence[int], microbatches: int, multiple_of: int) -> bool:
    """Whether pipelines of one template can get equal numbers of micro-batches."""
    ranges = [Range(count, 1, None) for count in _counts(sizes)]
    return microbatches in nearest(ranges, multiple_of, microbatches)


def _unequal_shares(
    sizes_for: Callable[[int], Sequence[int]], microbatches: int, least: int, multiple_of: int, microbatch_size: int
) -> InfeasibleError:
    """The error for micro-batches that cannot be split so; names the nearest, of a few, for which pipelines can."""
    below = range(microbatches - multiple_of, least - 1, -multiple_of)[:TRIED]
    above = range(microbatches + multiple_of, microbatches + (TRIED + 1) * multiple_of, multiple_of)
    found = (
        next((number for number in part if _has_equal_shares(sizes_for(number), number, multiple_of)), None)
        for part in (below, above)
    )
    batches = [f"take {number * microbatch_size}" for number in found if number is not None]
    return InfeasibleError(
        f"a global batch of {microbatches * microbatch_size} cannot be split with equal shares for "
        f"{' and '.join(map(str, _counts(sizes_for(microbatches))))} pipelines of one template",
        where="--global-batch",
        fix=", ".join([*batches, "or take --objective min-max, which needs no equal shares"]),
    )


def require_covered(templates: Templates, nodes: int) -> None:
    """Raise InfeasibleError unless f + 1 pipelines or more can use exactly these nodes.

    Sizes n_0 to n_p are consecutive, so k pipelines use any number of nodes from k * n_0 to k * n_p.
    """
    least = (templates.fault_tolerance + 1) * templates.smallest
    if nodes < least:
        fewer = nodes // templates.smallest - 1
        raise InfeasibleError(
            f"{nodes} nodes are too few for {templates.fault_tolerance + 1} pipelines of {templates.smallest} or more",
            where="--nodes",
            fix=f"take at least {least} nodes" + f", or templates of --fault-tolerance {fewer}" * (fewer >= 0),
        )
    most_pipelines = nodes // templates.smallest
    if most_pipelines * templates.largest < nodes:
        raise InfeasibleError(
            f"templates of {templates.smallest} to {templates.largest} nodes cannot use {nodes} nodes",
            where="--nodes",
            fix=f"take {most_pipelines * templates.largest} or {(most_pipelines + 1) * templates.smallest} nodes, "
            "or plan larger templates",
        )


def fewest_pipelines(templates: Templates, nodes: int) -> int:
    """How few pipelines can use the nodes, f + 1 at least."""
    return max(templates.fault_tolerance + 1, -(-nodes // templates.largest))


def _usable(templates: Templates, nodes: int) -> Sequence[PipelineTemplate]:
    """Those that leave enough nodes for f others."""
    largest = min(templates.largest, nodes - templates.fault_tolerance * templates.smallest)
    return templates.templates[: largest - templates.smallest + 1]


def fastest_sizes(
    templates: Templates,
    paces: Sequence[Pace],
    ending: Ending,
    nodes: int,
    microbatches: int,
    multiple_of: int = 1,
    likely: int | None = None,
) -> tuple[int, ...]:
    """The nodes of each pipeline, descending, of the multiset whose iteration can end first.

    Args:
        templates: of consecutive sizes.
        paces: of each template.
        ending: of each template.
        nodes: N', which they cover.
        microbatches: of all pipelines together, a multiple of `multiple_of` and enough for the fewest pipelines.
        multiple_of: every pipeline gets a multiple of this, one at least.
        likely: about so many pipelines, where that is known: it changes no answer, but how soon it is found.
    """
    sizes, rooms, numbers = _choices(templates, paces, nodes, microbatches, multiple_of)
    return _MultisetSearch(sizes, rooms, ending, nodes).best(numbers, likely)


def fastest_of_each_number(
    templates: Templates, paces: Sequence[Pace], ending: Ending, nodes: int, microbatches: int, multiple_of: int = 1
) -> Iterator[tuple[int, ...]]:
    """The sizes that `fastest_sizes` would find with each number of pipelines that can fill the nodes."""
    sizes, rooms, numbers = _choices(templates, paces, nodes, microbatches, multiple_of)
    for number in numbers:
        yield _MultisetSearch(sizes, rooms, ending, nodes).best(range(number, number + 1))


def _choices(
    templates: Templates, paces: Sequence[Pace], nodes: int, microbatches: int, multiple_of: int
) -> tuple[Ints, _Rooms, range]:
    """The sizes that pipelines may have, their rooms, and how many of them can fill the nodes."""
    sizes = np.arange(len(_usable(templates, nodes))) + templates.smallest
    rooms = _Rooms(paces[: len(sizes)], microbatches // multiple_of, multiple_of)
    most_pipelines = min(nodes // templates.smallest, rooms.units)
    return sizes, rooms, range(fewest_pipelines(templates, nodes), most_pipelines + 1)


@dataclass(frozen=True)
class _FillingWithEnding:
    """A multiset, the least deadline by which it has done all, and the ending behind it, in s."""

    filling: Filling
    deadline_s: float
    ending_s: float

    @property
    def rank(self) -> tuple[float, int, int]:
        """Less is better."""
        return self.deadline_s + self.ending_s, -self.filling.room, len(self.filling.sizes)


class _MultisetSearch:
    """The best multiset so far, and what may still be better."""

    def __init__(self, sizes: Ints, rooms: _Rooms, ending: Ending, nodes: int) -> None:
        self._sizes, self._rooms, self._ending, self._nodes = sizes, rooms, ending, nodes
        self._burdens = Burdens(ending, sizes)
        self._best: _FillingWithEnding | None = None

    def best(self, numbers: range, likely: int | None = None) -> tuple[int, ...]:
        """The best sizes, with one of these numbers of pipelines; about `likely` ones are tried first."""
        early = range(0) if likely is None else range(likely - NEAR, likely + NEAR + 1)
        # About how long an iteration of pipelines of equal sizes takes, of each number of them.
        pipelines = np.array(numbers)
        sizes = self._nodes / pipelines
        fixed_s, each_s = (np.interp(sizes, self._sizes, values) for values in self._rooms.lines)
        slowest_s = fixed_s + each_s * self._rooms.microbatches / pipelines
        likely_s = [
            work_s + self._ending.lasts_s([size] * n)
            for work_s, size, n in zip(slowest_s, sizes.astype(int).tolist(), numbers, strict=True)
        ]
        rising = sorted(zip(likely_s, numbers, strict=True), key=lambda one: (one[1] not in early, one))
        for _, number in rising:
            self._look(number)
        assert self._best is not None
        return self._best.filling.sizes

    def _look(self, pipelines: int) -> None:
        """Offer the multisets of so many pipelines that can be better than the best so far."""
        waiting = [(0.0, self._burdens.all(self._nodes, pipelines))]
        while waiting:
            least_s, box = waiting.pop()
            if self._best is None:
                latest_s = self._rooms.longest_s()
            else:
                best_s = self._best.rank[0]
                # A little later, for sums are rounded.
                latest_s = best_s - self._burdens.least_s(box, pipelines) + 4 * float(np.spacing(best_s))
            found = (
                self._least_deadline(pipelines, self._burdens.allowed(box), latest_s) if least_s <= latest_s else None
            )
            if found is None:
                continue
            if self._best is None or found.rank < self._best.rank:
                self._best = found
            waiting += ((found.deadline_s, part) for part in self._burdens.lighter(box, found.filling.sizes, pipelines))

    def _least_deadline(self, pipelines: int, allowed: Bools, latest_s: float) -> _FillingWithEnding | None:
        """The multiset of these templates with the least deadline; None where that is too late."""
        knapsack = Knapsack(self._sizes, self._nodes, pipelines, self._rooms.units)
        deadlines = _Deadlines(self._rooms, knapsack, allowed)
        deadline_s = deadlines.least_s(latest_s)
        if deadline_s is None:
            return None
        filling = deadlines.filling(deadline_s)
        return _FillingWithEnding(filling, deadline_s, self._ending.lasts_s(filling.sizes))


class _Rooms:
    """How many units (of `multiple_of` micro-batches) each template has time for, at most all of them."""

    def __init__(self, paces: Sequence[Pace], units: int, multiple_of: int) -> None:
        self.units, self.microbatches = units, units * multiple_of
        self._multiple_of = multiple_of
        self._times = Times.of(paces)
        self._fixed_s, self._each_s = self._times.fixed_s, self._times.each_s
        self._timed = np.minimum(self._times.known // multiple_of, units)  # so many units are on no line
        self._firsts = self._timed.cumsum() - self._timed
        owner = np.repeat(np.arange(len(paces)), self._timed)
        unit = np.arange(len(owner)) - self._firsts[owner] + 1
        # Complex numbers are ordered by the real part, then by the other: one search serves all templates.
        self._ends = owner + 1j * self._times.at(unit * multiple_of, owner)

    @property
    def lines(self) -> tuple[Floats, Floats]:
        """The lines of the paces: the fixed times, and those of a micro-batch, in s."""
        return self._fixed_s, self._each_s

    def at(self, deadline_s: float) -> Ints:
        """The room of each template, 0 where it has not even time for one unit."""
        # The room of each template if all its times were on its line.
        left_s = np.maximum(deadline_s - self._fixed_s, 0.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            whole = np.where(self._each_s > 0, left_s / (self._each_s * self._multiple_of), self.units)
        room = np.where(self._fixed_s <= deadline_s, np.minimum(whole, self.units), 0).astype(np.int64)
        # Division rounds: what counts is the time of a pace.
        room += (room < self.units) & (self._line_s(room + 1) <= deadline_s)
        room -= (room > 0) & (self._line_s(room) > deadline_s)
        if len(self._ends):
            few = room <= self._timed
            timed = self._ends.searchsorted(np.arange(len(room)) + 1j * deadline_s, side="right") - self._firsts
            room[few] = timed[few]
        return room

    def longest_s(self) -> float:
        """The time in which every template has room for all."""
        return float(self._times.at(np.full(len(self._fixed_s), self.microbatches)).max())

    def ends_s(self, above_s: float, up_to_s: float) -> Floats:
        """The times, ascending, at which some template's room grows."""
        before, after = self.at(above_s), self.at(up_to_s)
        before = np.where(self._each_s > 0, before, np.maximum(before, after - 1))  # all of it at once
        counts = after - before
        owner = np.repeat(np.arange(len(counts)), counts)
        unit = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts - before - 1, counts)
        return np.unique(self._times.at(unit * self._multiple_of, owner))

    def _line_s(self, units: Ints) -> Floats:
        times: Floats = self._fixed_s + units * self._multiple_of * self._each_s
        return times


class _Deadlines:
    """Which deadlines some multiset of allowed templates meets."""

    def __init__(self, rooms: _Rooms, knapsack: Knapsack, allowed: Bools) -> None:
        self._rooms, self._knapsack, self._allowed = rooms, knapsack, allowed

    def least_s(self, latest_s: float) -> float | None:
        """The least end of a micro-batch by which some multiset has done all of them; None if that is too late."""
        if not self._is_met(latest_s):
            return None
        missed_s, met_s = self._bracket_s(latest_s)
        while (self._rooms.at(met_s) - self._rooms.at(missed_s)).sum() > LISTED:
            middle_s = (missed_s + met_s) / 2
            if not missed_s < middle_s < met_s:
                break
            if self._is_met(middle_s):
                met_s = middle_s
            else:
                missed_s = middle_s
        ends_s = self._rooms.ends_s(missed_s, met_s)
        low, high = 0, len(ends_s) - 1
        while low < high:
            middle = (low + high) // 2
            if self._is_met(float(ends_s[middle])):
                high = middle
            else:
                low = middle + 1
        return float(ends_s[low])

    def filling(self, deadline_s: float) -> Filling:
        """The multiset of most room by a deadline that is met."""
        return self._knapsack.best(self._room(deadline_s))

    def _is_met(self, deadline_s: float) -> bool:
        return self._knapsack.holds(self._room(deadline_s))

    def _room(self, deadline_s: float) -> Ints:
        return self._rooms.at(deadline_s) * self._allowed

    def _bracket_s(self, latest_s: float) -> tuple[float, float]:
        """A deadline that is missed and one that is met.

        We go up, in growing steps, from where pipelines that could be cut meet it: whole ones are almost as good, so
        few knapsacks are needed, and small ones.
        """
        missed_s, met_s, middle_s = -1.0, latest_s, latest_s * (1 - LATE)
        for _ in range(HALVINGS):
            if self._knapsack.may_hold(self._room(middle_s)):
                met_s = middle_s
            else:
                missed_s = middle_s
            if met_s - missed_s <= FIRST_STEP * met_s:
                break
            middle_s = (missed_s + met_s) / 2
        step_s = FIRST_STEP * max(met_s, latest_s * 2.0**-HALVINGS)
        while met_s < latest_s and not self._is_met(met_s):
            missed_s, met_s = met_s, min(met_s + step_s, latest_s)
            step_s *= 2
        return missed_s, met_s


# Which endings pipelines can have: boxes of the most bytes that any of them reduces, and of the longest step.
#
# A multiset's ending (`pace.py`) is as long as its heaviest templates say, in two ways: by what a stage reduces, and by
# its optimizer step. A box holds the multisets whose heaviest lie between two limits, each way. Its ending is no
# shorter than the lower limits say; and the lower the upper limits, the fewer templates there are, and the later the
# deadline.


class IndexRange(NamedTuple):
    """From a place in a list of ascending burdens to another; both are in it."""

    low: int
    high: int


class Box(NamedTuple):
    """Multisets by their heaviest templates."""

    reduced: IndexRange
    steps: IndexRange


class Burdens:
    """The endings of templates.

    Args:
        ending: of each template.
        sizes: of those that there may be.
    """

    def __init__(self, ending: Ending, sizes: Ints) -> None:
        self._sizes, self._rings = sizes, ending.rings
        self._reduced_bytes, self._reduced = np.unique(ending.reduced_bytes[: len(sizes)], return_inverse=True)
        self._steps_s, self._steps = np.unique(ending.optimizer_s[: len(sizes)], return_inverse=True)

    def all(self, nodes: int, pipelines: int) -> Box:
        """What so many pipelines with so many nodes together can have; one at least is no larger than the mean."""
        small = self._sizes * pipelines <= nodes
        return Box(
            IndexRange(int(self._reduced[small].min()), len(self._reduced_bytes) - 1),
            IndexRange(int(self._steps[small].min()), len(self._steps_s) - 1),
        )

    def least_s(self, box: Box, pipelines: int) -> float:
        """The shortest ending in a box, between so many pipelines."""
        return self._reduce_s(box.reduced.low, pipelines) + float(self._steps_s[box.steps.low])

    def allowed(self, box: Box) -> Bools:
        """The templates that multisets of a box can be of."""
        found: Bools = (self._reduced <= box.reduced.high) & (self._steps <= box.steps.high)
        return found

    def lighter(self, box: Box, sizes: Sequence[int], pipelines: int) -> Iterator[Box]:
        """The rest of a box, without what ends no sooner than these sizes; the heavier half of each part first."""
        used = np.isin(self._sizes, sizes)
        reduced, steps = int(self._reduced[used].max()), int(self._steps[used].max())
        parts = (
            Box(IndexRange(max(reduced, box.reduced.low), box.reduced.high), IndexRange(box.steps.low, steps - 1)),
            Box(IndexRange(box.reduced.low, reduced - 1), box.steps),
        )
        halves = [self._halves(part, pipelines) for part in parts if all(span.low <= span.high for span in part)]
        for heavier in (True, False):
            yield from (pair[heavier] for pair in halves if len(pair) > heavier)

    def _halves(self, box: Box, pipelines: int) -> list[Box]:
        """The lighter half and the heavier, by the burden that makes the ending differ most."""
        (low, high), (first, last) = box
        if low == high and first == last:
            return [box]
        reduce_s = self._reduce_s(high, pipelines) - self._reduce_s(low, pipelines)
        if low < high and (first == last or reduce_s >= self._steps_s[last] - self._steps_s[first]):
            middle = (low + high) // 2
            return [Box(IndexRange(low, middle), box.steps), Box(IndexRange(middle + 1, high), box.steps)]
        middle = (first + last) // 2
        return [Box(box.reduced, IndexRange(first, middle)), Box(box.reduced, IndexRange(middle + 1, last))]

    def _reduce_s(self, place: int, pipelines: int) -> float:
        return self._rings.ring_s(float(self._reduced_bytes[place]), pipelines)
