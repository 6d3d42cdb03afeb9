"""The most room that so many pipelines have which fill the nodes: a knapsack filled exactly, with so many items.

Every template has room for so many micro-batches. Two things keep the search small:

* If pipelines could be cut, the best would be a mixture of two sizes, neighbours on the upper hull of the rooms over
  the sizes. Its room bounds all others', and a template that lies further below the line through the two than the
  bound lies above what is needed cannot be used.
* Any pipelines can be ordered so that the nodes of the first j differ by less than the widest sizes do from j times the
  mean, for whenever they are above it, one below the mean is left to come next. So a block of j of them has that many
  nodes, give or take the difference of the largest and the smallest, and blocks are put together from halves.

O(log pipelines) max-plus convolutions of vectors as long as that difference, at most as the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

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
            half, with_half = pipelines // 2, self._with_half(pipelines, nodes)
            self._sizes[pipelines, nodes] = self.sizes(half, with_half) + self.sizes(
                pipelines - half, nodes - with_half
            )
        return self._sizes[pipelines, nodes]

    def _with_half(self, pipelines: int, nodes: int) -> int:
        """How many of the nodes the first half of the pipelines has."""
        half, most = pipelines // 2, self.room(pipelines, nodes)
        first, halves = self._table(half)
        return next(
            first + at
            for at, part in enumerate(halves.tolist())
            if part >= 0 and part + self.room(pipelines - half, nodes - first - at) == most
        )

    def _table(self, pipelines: int) -> tuple[int, Ints]:
        if pipelines not in self._tables:
            self._tables[pipelines] = self._joined(pipelines)
        return self._tables[pipelines]

    def _joined(self, pipelines: int) -> tuple[int, Ints]:
        """Two halves together."""
        first, last = self._window(pipelines)
        (start, one), (other_start, other) = self._table(pipelines // 2), self._table(pipelines - pipelines // 2)
        padded = np.full(last - start - other_start + len(one), NEVER)
        padded[len(one) - 1 :][: len(other)] = other[: last - start - other_start + 1]
        pairs = sliding_window_view(padded, len(one))[max(0, first - start - other_start) :, ::-1]
        return max(first, start + other_start), np.maximum((pairs + one).max(axis=1), NEVER)

    def _window(self, pipelines: int) -> tuple[int, int]:
        """The fewest and the most nodes that a block of so many pipelines may have."""
        rest, reach = self._pipelines - pipelines, self._largest - self._smallest
        mean_nodes = pipelines * self._nodes // self._pipelines
        return (
            max(pipelines * self._smallest, self._nodes - rest * self._largest, mean_nodes - reach),
            min(pipelines * self._largest, self._nodes - rest * self._smallest, mean_nodes + 1 + reach),
        )
