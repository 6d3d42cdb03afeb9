"""Swaps: the fewest copies that put failures where they are wanted, how long they take, and when they pay."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.slipstream.normalization import Grid, Relocation, WorkerMove, relocate
from rtk.schemas.plan import Place
from rtk.schemas.profile import Connection

from .test_failures import failures

Case = tuple[Grid, frozenset[Place], tuple[int, ...], list[float]]


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    """Failed units, as many of them wanted in each column in any other way, and the state of each stage."""
    grid, units = draw(failures())
    left, wanted = len(units), []
    for column in range(grid.columns):
        room = (grid.units - 1) * (grid.columns - 1 - column)
        wanted.append(draw(st.integers(max(0, left - room), min(grid.units - 1, left))))
        left -= wanted[-1]
    sizes = [float(draw(st.integers(0, 9))) for _ in range(grid.stages)]
    return grid, units, tuple(wanted), sizes


@given(_cases())
def test_afterwards_each_column_has_the_failures_that_are_wanted(case: Case) -> None:
    """As many units are dead as before, and as many of each column as asked for."""
    grid, units, wanted, sizes = case
    moved = relocate(grid, units, wanted, sizes)
    assert grid.column_failures(moved.failed_units) == wanted


@given(_cases())
def test_no_more_units_move_than_must(case: Case) -> None:
    """Every column that has too many failures gets as many live units as it has too many, and no other any."""
    grid, units, wanted, sizes = case
    moved = relocate(grid, units, wanted, sizes)
    have = grid.column_failures(units)
    surplus = {c: have[c] - wanted[c] for c in range(grid.columns) if have[c] > wanted[c]}
    places = {grid.unit_of(copy.place) for copy in moved.copies}
    movers = {grid.unit_of(copy.mover) for copy in moved.copies}
    assert Counter(column for _, column in places) == surplus
    assert len(movers) == len(places)
    assert len(moved.copies) == len(places) * grid.unit_pipelines * grid.unit_stages
    assert not movers & units
    assert places <= units
    assert moved.failed_units == units - places | movers


@given(_cases())
def test_units_move_as_a_whole(case: Case) -> None:
    """Every worker of a moving unit takes the same place in the dead one."""
    grid, units, wanted, sizes = case
    of_unit: dict[Place, list[WorkerMove]] = {}
    for copy in relocate(grid, units, wanted, sizes).copies:
        of_unit.setdefault(grid.unit_of(copy.mover), []).append(copy)
    for mover, copies in of_unit.items():
        (target,) = {grid.unit_of(copy.place) for copy in copies}
        assert [copy.mover for copy in copies] == list(grid.places(mover))
        assert [copy.place for copy in copies] == list(grid.places(target))


@given(_cases())
def test_state_is_copied_from_live_peers_that_stay(case: Case) -> None:
    """Each copy comes from a worker of the place's stage that lives and does not move itself, in turns; its size is
    that stage's."""
    grid, units, wanted, sizes = case
    moved = relocate(grid, units, wanted, sizes)
    movers = {grid.unit_of(copy.mover) for copy in moved.copies}
    lent = Counter(copy.source for copy in moved.copies)
    for copy in moved.copies:
        assert copy.source[1] == copy.place[1]
        assert grid.unit_of(copy.source) not in units | movers
        assert copy.size_bytes == sizes[copy.place[1]]
        peers = [(k, copy.place[1]) for k in range(grid.pipelines) if grid.unit_of((k, copy.place[1])) not in units]
        assert lent[copy.source] - min(lent[peer] for peer in peers) <= 1
    assert moved.size_bytes == sum(copy.size_bytes for copy in moved.copies)


@given(_cases())
def test_failures_that_stand_right_move_nothing(case: Case) -> None:
    """Where each column has what it should have, nothing is copied, which takes no time."""
    grid, units, _, sizes = case
    moved = relocate(grid, units, grid.column_failures(units), sizes)
    assert moved == Relocation(units, ())
    assert moved.lasts_s(Connection()) == 0.0


def test_copies_from_one_source_follow_each_other() -> None:
    """Two of three workers of a stage are dead and both move: one peer lends to both, 2 x (1 s + 30 / 10 s)."""
    moved = relocate(Grid(3, 3), frozenset({(0, 0), (1, 0)}), (0, 1, 1), [30.0, 7.0, 7.0])
    assert moved.copies == (WorkerMove((2, 1), (0, 0), (2, 0), 30.0), WorkerMove((2, 2), (1, 0), (2, 0), 30.0))
    assert moved.failed_units == {(2, 1), (2, 2)}
    assert moved.lasts_s(Connection(1.0, 10.0)) == 8.0


def test_copies_from_different_sources_take_place_at_once() -> None:
    """With a second live peer the same two copies take half as long."""
    moved = relocate(Grid(4, 3), frozenset({(0, 0), (1, 0)}), (0, 1, 1), [30.0, 7.0, 7.0])
    assert [copy.source for copy in moved.copies] == [(2, 0), (3, 0)]
    assert moved.lasts_s(Connection(1.0, 10.0)) == 4.0


def test_nobody_knows_how_long_copies_take_without_a_bandwidth() -> None:
    """There is no duration."""
    moved = relocate(Grid(2, 2), frozenset({(0, 0)}), (0, 1), [1.0, 1.0])
    assert moved.lasts_s(Connection(1.0, None)) is None
