"""Dead workers: what dies as one, how failures are counted, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.slipstream.normalization import Grid
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Place


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """Units of up to 3 pipelines by 3 stages, up to 4 beside each other either way."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    tall, wide = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return Grid(rows * tall, columns * wide, tall, wide)


@st.composite
def failures(draw: st.DrawFn) -> tuple[Grid, frozenset[Place]]:
    """A grid and failed units that leave each column a live one."""
    grid = draw(grids())
    rows = st.integers(0, grid.units - 1)
    counts = [draw(st.integers(0, grid.units - 1)) for _ in range(grid.columns)]
    units = {
        (row, c)
        for c, count in enumerate(counts)
        for row in draw(st.lists(rows, min_size=count, max_size=count, unique=True))
    }
    return grid, frozenset(units)


@given(grids())
def test_units_cut_the_workers_completely(grid: Grid) -> None:
    """Every worker is in one unit, and each unit's workers are a block of that size."""
    places = [(k, i) for k in range(grid.pipelines) for i in range(grid.stages)]
    units = {(row, c) for row in range(grid.units) for c in range(grid.columns)}
    assert {grid.unit_of(place) for place in places} == units
    assert sorted(place for unit in units for place in grid.places(unit)) == places
    for unit in units:
        block = list(grid.places(unit))
        assert {grid.unit_of(place) for place in block} == {unit}
        assert len({k for k, _ in block}) == grid.unit_pipelines
        assert len({i for _, i in block}) == grid.unit_stages


@given(failures(), st.randoms(use_true_random=False))
def test_any_worker_of_a_unit_names_it(case: tuple[Grid, frozenset[Place]], chance: object) -> None:
    """One worker each names the failed units, and their counts by column and by stage are those of the dead workers."""
    grid, units = case
    named = [chance.choice(list(grid.places(unit))) for unit in units]  # type: ignore[attr-defined]
    assert grid.failed_units(named) == units
    dead = [place for unit in units for place in grid.places(unit)]
    by_column = grid.column_failures(units)
    assert sum(by_column) == len(units)
    assert grid.stage_failures(by_column) == tuple(sum(i == stage for _, i in dead) for stage in range(grid.stages))


@given(failures())
def test_failures_without_places_take_the_last_rows(case: tuple[Grid, frozenset[Place]]) -> None:
    """As many units of each column, from the bottom up, so the first pipeline is whole."""
    grid, units = case
    counts = grid.column_failures(units)
    last = grid.last_units(counts)
    assert grid.column_failures(last) == counts
    assert all(row > 0 and grid.units - row <= counts[column] for row, column in last)


@given(grids())
def test_feasible_is_what_leaves_each_column_a_unit(grid: Grid) -> None:
    """Up to (units - 1) x columns failures can be borne, if they stand right; not one more."""
    most = (grid.units - 1) * grid.columns
    grid.require_feasible(most, "--failures")
    grid.column_failures((row, c) for row in range(1, grid.units) for c in range(grid.columns))
    with pytest.raises(InfeasibleError) as caught:
        grid.require_feasible(most + 1, "--max-failures")
    assert caught.value.where == "--max-failures"
    assert caught.value.fix == f"at most {most} failures leave every stage a live worker"


@pytest.mark.parametrize("stage", [0, 2])
def test_a_stage_without_peers_is_infeasible_and_named(stage: int) -> None:
    """All three workers of a stage dead: the error names the stage and sends the user to a checkpoint."""
    grid = Grid(3, 4)
    with pytest.raises(InfeasibleError, match=f"stage {stage} has lost all its workers") as caught:
        grid.column_failures([(k, stage) for k in range(3)])
    assert caught.value.where == "--failed"
    assert caught.value.fix is not None
    assert "restore a checkpoint" in caught.value.fix


def test_a_lost_column_is_named_by_its_first_stage() -> None:
    """Units of two stages: the second column without a live unit is stages 2 and 3."""
    grid = Grid(4, 4, 2, 2)
    with pytest.raises(InfeasibleError, match="stage 2 has lost"):
        grid.column_failures(grid.failed_units([(0, 3), (3, 2)]))


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([(1, 2), (0, 0), (1, 2)], "worker 1/2 is named twice"),
        ([(1, 2), (0, 3)], "worker 0/3 is named beside 1/2 of its unit"),
        ([(4, 0)], "there is no worker 4/0"),
        ([(0, 4)], "there is no worker 0/4"),
        ([(-1, 0)], "there is no worker -1/0"),
    ],
)
def test_bad_names_are_refused(places: list[Place], message: str) -> None:
    """A worker named twice, two of one unit, or one that the cluster does not have: the error says which."""
    with pytest.raises(InvalidInputError, match=message) as caught:
        Grid(4, 4, 2, 2).failed_units(places)
    assert caught.value.where == "--failed"
    assert caught.value.fix


def test_the_option_at_fault_is_named() -> None:
    """Slow workers are looked up in the same grid, and their option is named."""
    with pytest.raises(InvalidInputError, match="there is no worker 3/0") as caught:
        Grid(3, 4).require_places([(2, 3), (3, 0)], "--slow")
    assert caught.value.where == "--slow"
    assert caught.value.fix == "workers are 0/0 to 2/3: pipeline/stage"


@pytest.mark.parametrize("unit", [(2, 1), (1, 3), (3, 3), (6, 1)])
def test_units_must_divide_the_cluster(unit: tuple[int, int]) -> None:
    """Three pipelines of four stages are no whole number of such units."""
    with pytest.raises(InvalidInputError, match="do not divide 3 pipelines x 4 stages") as caught:
        Grid(3, 4, *unit)
    assert caught.value.where == "--failure-unit"
