"""Seats: taken in order, emptied, packed, and whose workers they are."""

from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.recovery.job import (
    Seating,
    empty_seats,
    filled,
    packed,
    pipelines_of,
    seated,
    seatless,
    seats,
    whole_rows,
    without,
)
from rtk.planners.slipstream.normalization import Grid

from .stories import names


@st.composite
def _seatings(draw: st.DrawFn) -> tuple[Seating, int]:
    """Rows of some columns, seats empty here and there."""
    columns, rows = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    taken = draw(st.lists(st.booleans(), min_size=columns * rows, max_size=columns * rows))
    return tuple(f"n{number}" if one else None for number, one in enumerate(taken)), columns


@given(_seatings(), st.data())
def test_who_is_lost_has_no_seat_and_who_comes_takes_one(case: tuple[Seating, int], data: st.DataObject) -> None:
    """Nobody else moves, and nobody is left standing while there is an empty seat."""
    seating, _ = case
    there = [node for node in seating if node is not None]
    lost = data.draw(st.sets(st.sampled_from(there))) if there else set()
    coming = names(data.draw(st.integers(0, 30)))[len(seating) :]
    left = without(seating, lost)
    after = filled(left, seatless(left, coming))
    assert all(node in (None, old) for node, old in zip(left, seating, strict=True))
    assert all(node in (old, *coming) for node, old in zip(after, left, strict=True))
    assert after.count(None) == max(0, left.count(None) - len(coming))


@given(_seatings())
def test_packed_columns_have_their_empty_seats_last(case: tuple[Seating, int]) -> None:
    """A column keeps its nodes, and those that need not move stay."""
    seating, columns = case
    after = packed(seating, columns)
    assert empty_seats(after, columns) == empty_seats(seating, columns)
    for column in range(columns):
        before, now = seating[column::columns], after[column::columns]
        live = len(now) - now.count(None)
        assert set(before) == set(now) and None not in now[:live]
        assert all(old in (None, new) for old, new in zip(before[:live], now[:live], strict=True))


def test_the_first_nodes_take_the_first_seats() -> None:
    """Row after row, and seats beyond the nodes are empty."""
    assert seated(("a", "b", "c"), 4) == ("a", "b", "c", None)
    assert seated(("a", "b", "c"), 2) == ("a", "b")


def test_only_whole_rows_are_pipelines() -> None:
    """Nodes that fill no row have no seat, nor have those beyond the most rows."""
    assert whole_rows(names(7), columns=3, most=4) == names(6)
    assert whole_rows(names(7), columns=3, most=1) == names(3)
    assert whole_rows(names(2), columns=3, most=4) == ()
    assert pipelines_of(names(6), Grid(8, 6, unit_pipelines=1, unit_stages=2)) == 2
    assert pipelines_of(names(3), Grid(8, 1, unit_pipelines=2)) == 6


def test_a_node_holds_all_workers_of_its_unit() -> None:
    """A server of two stages holds both, of its own pipeline."""
    grid = Grid(2, 4, unit_stages=2)
    assert seats(("a", "b", None, "c"), grid) == {
        (0, 0): "a", (0, 1): "a", (0, 2): "b", (0, 3): "b", (1, 2): "c", (1, 3): "c",
    }  # fmt: skip
