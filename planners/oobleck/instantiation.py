"""Instantiation: how many pipelines of each template use all nodes and end an iteration first, without enumerating.

Oobleck (section 4.2) lists every multiset of templates that fills the nodes with f + 1 pipelines or more, distributes
the batch over each, and takes the fastest: half a million for 128 nodes with n_0 = 8 and f = 3. We ask the other way
round. Within a deadline a template has room for so many micro-batches, by its pace (`pace.py`); a deadline can be met
if some multiset fills the nodes and has room for all micro-batches. That is an unbounded knapsack, filled exactly,
O(nodes * templates * (f + 1)). Only ends of micro-batches matter as deadlines, so the least is found by bisection, and
it is the least time of the slowest pipeline over all multisets: the same optimum as by enumeration.

Of several multisets that meet it we take the one with the most room (it bears a slow-down best), then the fewest
pipelines, then the smallest of them first. What depends on the number of pipelines, the all-reduce, is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.errors import InfeasibleError
from ...schemas.templates import Templates
from ..batch.distribute import distribute
from ..batch.nearest import Range, nearest
from ..batch.pace import Pace
from .pace import paces_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..batch.distribute import Objective, Solver

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

NEVER = -(1 << 61)  # room of what cannot be; the sum of two does not overflow
LISTED = 4096  # so many deadlines are listed and bisected
HALVINGS = 40  # of the time in which any multiset is done
FIRST_STEP = 1e-4  # relative, from a deadline that is almost met


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
    """Choose the pipelines whose slowest ends first, and distribute the micro-batches over them.

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
    paces = paces_of(templates.templates)
    sizes = fastest_sizes(templates, paces, nodes, microbatches, multiple_of)
    shared = None if objective == "min-max" else _counts(sizes)
    if shared is not None:
        _require_equal_shares(shared, microbatches, multiple_of, microbatch_size)
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


def _require_equal_shares(counts: Sequence[int], microbatches: int, multiple_of: int, microbatch_size: int) -> None:
    """Raise InfeasibleError unless pipelines of one template can get equal numbers of micro-batches."""
    possible = nearest([Range(count, 1, None) for count in counts], multiple_of, microbatches)
    if microbatches not in possible:
        batches = " or ".join(str(number * microbatch_size) for number in possible)
        raise InfeasibleError(
            f"a global batch of {microbatches * microbatch_size} cannot be split with equal shares for "
            f"{' and '.join(map(str, counts))} pipelines of one template",
            where="--global-batch",
            fix=f"take {batches}, or --objective min-max, which needs no equal shares",
        )


def require_covered(templates: Templates, nodes: int) -> None:
    """Raise InfeasibleError unless f + 1 pipelines or more can use exactly these nodes.

    Sizes n_0 to n_p are consecutive, so k pipelines use any number of nodes from k * n_0 to k * n_p.
    """
    least = (templates.fault_tolerance + 1) * templates.smallest
    if nodes < least:
        raise InfeasibleError(
            f"{nodes} nodes are too few for {templates.fault_tolerance + 1} pipelines of {templates.smallest}",
            where="--nodes",
            fix=f"take at least {least} nodes, or templates of a smaller --fault-tolerance",
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


def fastest_sizes(
    templates: Templates, paces: Sequence[Pace], nodes: int, microbatches: int, multiple_of: int = 1
) -> tuple[int, ...]:
    """The nodes of each pipeline, descending, of the multiset whose slowest pipeline can end first.

    Args:
        templates: of consecutive sizes.
        paces: of each template.
        nodes: N', which they cover.
        microbatches: of all pipelines together, a multiple of `multiple_of` and enough for the fewest pipelines.
        multiple_of: every pipeline gets a multiple of this, one at least.
    """
    least_pipelines = templates.fault_tolerance + 1
    # A larger one would leave too few nodes for the others.
    largest = min(templates.largest, nodes - templates.fault_tolerance * templates.smallest)
    sizes = range(templates.smallest, largest + 1)
    rooms = _Rooms(paces[: len(sizes)], microbatches // multiple_of, multiple_of)
    knapsack = _Knapsack(sizes, nodes, least_pipelines, rooms.units)
    deadline_s = _least_deadline_s(rooms, knapsack)
    return knapsack.sizes(rooms.at(deadline_s))


class _Rooms:
    """How many units (of `multiple_of` micro-batches) each template has time for, at most all of them."""

    def __init__(self, paces: Sequence[Pace], units: int, multiple_of: int) -> None:
        self.units = units
        self._multiple_of = multiple_of
        self._fixed_s = np.array([pace.fixed_s for pace in paces])
        self._each_s = np.array([pace.per_microbatch_s for pace in paces])

    def at(self, deadline_s: float) -> Ints:
        """The room of each template, 0 where it has not even time for one unit."""
        left_s = np.maximum(deadline_s - self._fixed_s, 0.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            whole = np.where(self._each_s > 0, left_s / (self._each_s * self._multiple_of), self.units)
        room = np.where(self._fixed_s <= deadline_s, np.minimum(whole, self.units), 0).astype(np.int64)
        # Division rounds: what counts is the time of a pace.
        room += (room < self.units) & (self._time_s(room + 1) <= deadline_s)
        room -= (room > 0) & (self._time_s(room) > deadline_s)
        return room

    def longest_s(self) -> float:
        """The time in which every template has room for all."""
        return float(self._time_s(np.full(len(self._fixed_s), self.units)).max())

    def ends_s(self, above_s: float, up_to_s: float) -> Floats:
        """The times, ascending, at which some template's room grows."""
        before, after = self.at(above_s), self.at(up_to_s)
        before = np.where(self._each_s > 0, before, np.maximum(before, after - 1))  # all of it at once
        counts = after - before
        owner = np.repeat(np.arange(len(counts)), counts)
        unit = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts - before - 1, counts)
        return np.unique(self._fixed_s[owner] + unit * self._multiple_of * self._each_s[owner])

    def _time_s(self, units: Ints) -> Floats:
        times: Floats = self._fixed_s + units * self._multiple_of * self._each_s
        return times


class _Knapsack:
    """Multisets of sizes that fill the nodes exactly, with at least f + 1 pipelines and at most as many as units.

    `best[k, n]` is the most room that pipelines of n nodes together have, less their number: of k pipelines or more
    (the last row counts f + 1), or, where there may be more pipelines than units, of exactly k.
    """

    def __init__(self, sizes: range, nodes: int, least_pipelines: int, units: int) -> None:
        self._sizes, self._nodes, self._least, self._units = np.array(sizes), nodes, least_pipelines, units
        self._counted = nodes // sizes[0] > units
        self._rows = units if self._counted else least_pipelines
        self._weight = nodes + 1  # of a unit of room: more than there are pipelines

    def may_hold(self, room: Ints) -> bool:
        """Whether the room may suffice for all units, even if templates could be cut: cheap, and never wrong if not."""
        return bool((room * self._nodes >= self._units * self._sizes).any())

    def holds(self, room: Ints) -> bool:
        """Whether some multiset has room for all units."""
        if not self.may_hold(room):
            return False
        best = self._table(room)
        most = best[self._best_row(best), -1]
        return bool(-(-most // self._weight) >= self._units)

    def sizes(self, room: Ints) -> tuple[int, ...]:
        """The sizes of the best multiset, descending."""
        best, value = self._table(room), self._values(room)
        row, left, found = self._best_row(best), self._nodes, []
        while left:
            before = max(row - 1, 0)
            same = best[before, self._window(left)] + value == best[row, self._sizes[-1] + left]
            size = int(self._sizes[-1] - np.flatnonzero(same)[-1])
            found.append(size)
            row, left = before, left - size
        return tuple(sorted(found, reverse=True))

    def _best_row(self, best: Ints) -> int:
        return self._least + int(best[self._least :, -1].argmax())

    def _values(self, room: Ints) -> Ints:
        """What a pipeline of each size is worth, from the largest."""
        return np.ascontiguousarray(np.where(room > 0, room * self._weight - 1, NEVER)[::-1])

    def _window(self, nodes: int) -> slice:
        """Where the table says what is left of so many nodes by a pipeline of each size, from the largest."""
        return slice(nodes, nodes + len(self._sizes))

    def _table(self, room: Ints) -> Ints:
        """`best`, with as many columns before node 0 as the largest size."""
        value, largest = self._values(room), int(self._sizes[-1])
        best = np.full((self._rows + 1, largest + self._nodes + 1), NEVER)
        best[0, largest] = 0
        for nodes in range(int(self._sizes[0]), self._nodes + 1):
            most = (best[:-1, self._window(nodes)] + value).max(axis=1)
            best[1:, largest + nodes] = np.maximum(most, NEVER)
            if not self._counted:
                best[0, largest + nodes] = best[1, largest + nodes]
        return best


def _least_deadline_s(rooms: _Rooms, knapsack: _Knapsack) -> float:
    """The least end of a micro-batch by which some multiset has done all of them."""
    missed_s, met_s = _bracket_s(rooms, knapsack)
    while (rooms.at(met_s) - rooms.at(missed_s)).sum() > LISTED:
        middle_s = (missed_s + met_s) / 2
        if not missed_s < middle_s < met_s:
            break
        if knapsack.holds(rooms.at(middle_s)):
            met_s = middle_s
        else:
            missed_s = middle_s
    ends_s = rooms.ends_s(missed_s, met_s)
    low, high = 0, len(ends_s) - 1
    while low < high:
        middle = (low + high) // 2
        if knapsack.holds(rooms.at(float(ends_s[middle]))):
            high = middle
        else:
            low = middle + 1
    return float(ends_s[low])


def _bracket_s(rooms: _Rooms, knapsack: _Knapsack) -> tuple[float, float]:
    """A deadline that is missed and one that is met: from where templates that could be cut meet it, in growing steps.

    Few knapsacks are needed so: whole templates are almost as good as cut ones.
    """
    missed_s, met_s = -1.0, rooms.longest_s()
    longest_s = met_s
    for _ in range(HALVINGS):
        middle_s = (missed_s + met_s) / 2
        if knapsack.may_hold(rooms.at(middle_s)):
            met_s = middle_s
        else:
            missed_s = middle_s
    step_s = FIRST_STEP * max(met_s, longest_s * 2.0**-HALVINGS)
    while not knapsack.holds(rooms.at(met_s)):
        missed_s, met_s = met_s, min(met_s + step_s, longest_s)
        step_s *= 2
    return missed_s, met_s
