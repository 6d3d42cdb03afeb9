"""Who sits where in a grid of units, each of which takes a node: plain tuples, row after row, None at an empty seat."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import cast

from ...schemas.plan import Place
from ...schemas.replay import TrainingState
from ..slipstream.normalization import Grid

Seating = tuple[str | None, ...]


def seating_of(standing: TrainingState) -> Seating:
    """The formation of a policy whose formations are seatings."""
    return cast("Seating", standing.formation)


def seated(nodes: Iterable[str], units: int) -> Seating:
    """The first nodes on the first seats; seats without one stay empty."""
    return filled((None,) * units, nodes)


def without(seating: Seating, lost: Collection[str]) -> Seating:
    """The seats of these nodes emptied."""
    return tuple(None if node in lost else node for node in seating)


def filled(seating: Seating, nodes: Iterable[str]) -> Seating:
    """The first nodes on the first empty seats."""
    coming = iter(nodes)
    return tuple(next(coming, None) if node is None else node for node in seating)


def seatless(seating: Seating, nodes: Iterable[str]) -> tuple[str, ...]:
    """The nodes without a seat, in their order."""
    taken = set(seating)
    return tuple(node for node in nodes if node not in taken)


def empty_seats(seating: Seating, columns: int) -> tuple[int, ...]:
    """How many seats of each column are empty."""
    return tuple(seating[column::columns].count(None) for column in range(columns))


def packed(seating: Seating, columns: int) -> Seating:
    """The empty seats of each column at its end, the last nodes on those that were empty before others.

    Units of a column hold the same layers: which of them is called the first costs nothing.
    """
    found = list(seating)
    for column in range(columns):
        rows = found[column::columns]
        last = len(rows) - 1
        for row, node in enumerate(rows):
            while last > row and rows[last] is None:
                last -= 1
            if node is None and last > row:
                rows[row], rows[last] = rows[last], None
        found[column::columns] = rows
    return tuple(found)


def whole_rows(nodes: Sequence[str], columns: int, most: int) -> Seating:
    """The first nodes on as many whole rows as they fill, at most so many."""
    return tuple(nodes[: columns * min(most, len(nodes) // columns)])


def pipelines_of(seating: Seating, grid: Grid) -> int:
    """The pipelines of a seating of whole rows."""
    return len(seating) // grid.columns * grid.unit_pipelines


def seats(seating: Seating, grid: Grid) -> Mapping[Place, str]:
    """Which node holds which live worker.

    Args:
        seating: of any number of rows.
        grid: the workers of a unit, and how many units a row has.
    """
    return {place: node for unit, node in _units(seating, grid.columns) if node for place in grid.places(unit)}


def _units(seating: Seating, columns: int) -> Iterator[tuple[Place, str | None]]:
    return (((number // columns, number % columns), node) for number, node in enumerate(seating))
