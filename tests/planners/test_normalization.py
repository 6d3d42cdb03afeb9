"""Normalization: the dynamic program, its greedy forms and its tables, against all vectors one by one."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise, product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.slipstream.normalization import (
    bubble_costs,
    columns,
    dynamic_program,
    is_convex,
    least_worst,
    marginal_greedy,
    most_failures,
)
from rtk.schemas.errors import InfeasibleError

Row = list[float]
Solver = Callable[..., list[tuple[int, ...]]]
Tables = tuple[list[Row], list[Row]]
MOST_UNITS = 4

either_end = pytest.mark.parametrize("later_first", [True, False])
either_solver = pytest.mark.parametrize("solve", [dynamic_program, marginal_greedy])


@st.composite
def any_tables(draw: st.DrawFn) -> Tables:
    """Costs and measures of one to four columns, neither convex nor monotone, with many ties."""
    lengths = draw(st.lists(st.integers(1, MOST_UNITS), min_size=1, max_size=4))
    value = st.integers(0, 3).map(float)
    costs, worst = ([draw(st.lists(value, min_size=n, max_size=n)) for n in lengths] for _ in range(2))
    return [[*row, *draw(st.sampled_from([[], [inf], [inf, 1.0]]))] for row in costs], worst


@st.composite
def convex_tables(draw: st.DrawFn, strict: bool) -> Tables:
    """Convex costs and monotone measures; if `strict`, every failure raises them."""
    costs, worst = [], []
    for _ in range(draw(st.integers(1, 4))):
        rises = sorted(draw(st.lists(st.integers(-1, 2), max_size=MOST_UNITS)))
        steps = [draw(st.integers(int(strict), 2)) for _ in rises]
        costs.append([float(value) for value in accumulate(rises, initial=draw(st.integers(0, 2)))])
        worst.append([float(value) for value in accumulate(steps, initial=draw(st.integers(0, 4)))])
    return costs, worst


def vectors(lengths: Sequence[int], failures: int) -> Iterator[tuple[int, ...]]:
    """All ways to give failures to columns of so many entries."""
    return (vector for vector in product(*map(range, lengths)) if sum(vector) == failures)


def total(costs: Sequence[Row], vector: Sequence[int]) -> float:
    return sum(row[x] for row, x in zip(costs, vector, strict=True))


def measures(worst: Sequence[Row], vector: Sequence[int]) -> Row:
    """What the columns bear, from the worst down."""
    return sorted((row[x] for row, x in zip(worst, vector, strict=True)), reverse=True)


def loads_s(work_s: float, peers: int, microbatches: int) -> Row:
    """The mean load of a stage's live workers, in s."""
    return [work_s * microbatches * peers / (peers - dead) for dead in range(peers)]


def alike(stages: int, peers: int, microbatches: int) -> Tables:
    """The tables of the paper's examples: F, I and W take one slot each."""
    costs = bubble_costs(3.0, 3.0 * (stages - 1), peers, microbatches)
    return [costs] * stages, [loads_s(3.0, peers, microbatches)] * stages


@either_end
@given(tables=any_tables())
def test_the_program_finds_the_best_of_all_vectors(tables: Tables, later_first: bool) -> None:
    """Least sum, then least measures from the worst down, then the places: for every f, whatever the tables."""
    costs, worst = tables
    lengths = [row.index(inf) if inf in row else len(row) for row in costs]

    def key(vector: tuple[int, ...]) -> tuple[float, Row, list[int]]:
        places = vector[::-1] if later_first else vector
        return total(costs, vector), measures(worst, vector), [-x for x in places]

    most = most_failures(costs)
    expected = [min(vectors(lengths, f), key=key) for f in range(most + 1)]
    assert dynamic_program(costs, worst, most, later_first=later_first) == expected


@either_end
@given(tables=convex_tables(strict=True))
def test_greedy_equals_program_where_every_failure_raises_the_measure(tables: Tables, later_first: bool) -> None:
    """Where costs are convex and measures increase strictly, the greedy gives the very vectors of the program."""
    costs, worst = tables
    most = most_failures(costs)
    greedy = marginal_greedy(costs, worst, most, later_first=later_first)
    assert is_convex(costs)
    assert greedy == dynamic_program(costs, worst, most, later_first=later_first)


@either_end
@given(tables=convex_tables(strict=False))
def test_greedy_has_the_programs_sum_and_worst_where_measures_stay_even(tables: Tables, later_first: bool) -> None:
    """With convex costs and measures that are only monotone the greedy still has the least sum and the least worst."""
    costs, worst = tables
    most = most_failures(costs)
    greedy = marginal_greedy(costs, worst, most, later_first=later_first)
    program = dynamic_program(costs, worst, most, later_first=later_first)
    for one, other in zip(greedy, program, strict=True):
        assert total(costs, one) == total(costs, other)
        assert measures(worst, one)[0] == measures(worst, other)[0]


def test_greedy_is_wrong_where_costs_are_not_convex() -> None:
    """A second failure that costs nothing after a dear first one is out of the greedy's sight, and `is_convex` says so.

    Both failures belong in the first column, at 5; the greedy takes the cheaper first step twice, at 6.
    """
    costs = [[0.0, 5.0, 5.0], [0.0, 3.0, 6.0]]
    assert not is_convex(costs)
    assert dynamic_program(costs, costs, 2)[2] == (2, 0)
    assert marginal_greedy(costs, costs, 2)[2] == (0, 2)


def test_no_sequence_of_single_failures_is_best_where_measures_stay_even() -> None:
    """The example of the greedy's docstring: the best for two failures does not hold the best for one."""
    worst = [[0.0, 5.0, 6.0], [0.0, 5.0, 5.0]]
    free = [[0.0] * 3] * 2
    assert dynamic_program(free, worst, 2, later_first=False) == [(0, 0), (1, 0), (0, 2)]


@given(tables=any_tables())
def test_convex_means_that_no_failure_costs_less_than_the_one_before(tables: Tables) -> None:
    """`is_convex` looks at the finite costs of each column and at nothing else."""
    finite = [row[: row.index(inf)] if inf in row else row for row in tables[0]]
    rises = ([after - before for before, after in pairwise(row)] for row in finite)
    assert is_convex(tables[0]) == all(row == sorted(row) for row in rises)


@either_end
@given(tables=convex_tables(strict=False))
def test_least_worst_is_the_least_of_all_vectors(tables: Tables, later_first: bool) -> None:
    """No vector of as many failures has a lesser worst, and each vector is the last one and one failure more."""
    worst = tables[1]
    most = most_failures(worst)
    found = least_worst(worst, most, later_first=later_first)
    for f, vector in enumerate(found):
        assert measures(worst, vector)[0] == min(measures(worst, v)[0] for v in vectors([*map(len, worst)], f))
    for before, after in pairwise(found):
        assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0] * (len(worst) - 1) + [1]


@given(tables=convex_tables(strict=True), unit=st.sampled_from([0.1, 1 / 3, 1e-6, 7e5]))
def test_rounding_decides_nothing(tables: Tables, unit: float) -> None:
    """Whole numbers and the same numbers in tenths, whose sums are rounded, have the same answers."""
    most = most_failures(tables[0])
    costs, worst = ([[value * unit for value in row] for row in table] for table in tables)
    for solve in (dynamic_program, marginal_greedy):
        assert solve(costs, worst, most) == solve(*tables, most)


@either_solver
def test_two_failures_go_to_two_stages(solve: Solver) -> None:
    """Three pipelines, four stages, six micro-batches: the paper's cost with min put both failures into one stage."""
    costs, worst = alike(4, 3, 6)
    assert costs[0] == [0.0, 0.0, 27.0, inf]
    assert solve(costs, worst, 2)[2] == (0, 0, 1, 1)
    assert solve(costs, worst, 2, later_first=False)[2] == (1, 1, 0, 0)
    assert solve(costs, worst, 5)[5] == (1, 1, 1, 2)


@either_solver
def test_a_linear_cost_does_not_pile_failures_up(solve: Solver) -> None:
    """16 pipelines, 8 stages, 32 micro-batches, 32 failures: 4 a stage, where Algorithm 1 may leave 11 in one.

    The sum is the same 1056 slots, as the cost is linear past its kink.
    """
    costs, worst = alike(8, 16, 32)
    assert total(costs, (11, *[3] * 7)) == total(costs, (4,) * 8) == 1056
    assert solve(costs, worst, 32)[32] == (4,) * 8


def test_a_slow_stage_does_not_hide_how_the_others_share() -> None:
    """The worst alone would be the slow stage's, whatever the others bear; the second worst spreads the failures."""
    worst = [[100.0, 200.0, 300.0], *[[3.0, 4.0, 6.0]] * 3]
    assert dynamic_program([[0.0] * 3] * 4, worst, 4)[3:] == [(0, 1, 1, 1), (0, 1, 1, 2)]
    assert least_worst(worst, 4)[3:] == [(0, 1, 1, 1), (0, 1, 1, 2)]


def test_bubbles_take_work_in_before_it_costs() -> None:
    """Lost work of 6 s a dead worker, bubbles of 4 s a live one; and without peers there is no answer."""
    assert bubble_costs(work_s=2.0, idle_s=4.0, peers=4, microbatches=3) == [0.0, 0.0, 4.0, 14.0, inf]


@given(st.floats(0, 9), st.floats(0, 99), st.integers(1, 9), st.integers(1, 9))
def test_bubble_costs_are_convex(work_s: float, idle_s: float, peers: int, microbatches: int) -> None:
    """The heuristic is a hinge, so that the greedy is exact for it, and leaves every stage one worker."""
    costs = [bubble_costs(work_s, idle_s, peers, microbatches)]
    assert is_convex(costs)
    assert most_failures(costs) == peers - 1


def test_columns_sum_the_costs_and_take_the_worst_of_their_stages() -> None:
    """Units of two stages and two pipelines: every second entry of pairs of rows; the odd stage is a column."""
    costs = [[0.0, 1.0, 2.0, 3.0, 4.0, inf], [0.0, 10.0, 20.0, inf], [0.0, 5.0, 6.0, 7.0, inf]]
    worst = [[5.0, 6.0, 7.0, 8.0, 9.0], [1.0, 2.0, 30.0], [1.0, 2.0, 3.0, 4.0]]
    assert columns(costs, worst, width=2, per_unit=2) == ([[0.0, 22.0], [0.0, 6.0]], [[5.0, 30.0], [1.0, 3.0]])


@given(tables=any_tables())
def test_a_unit_of_one_worker_changes_nothing(tables: Tables) -> None:
    """One stage and one pipeline a unit: the columns are the stages, as far as their costs are finite."""
    costs, worst = columns(*tables, width=1, per_unit=1)
    assert costs == [row[: row.index(inf)] if inf in row else row for row in tables[0]]
    assert worst == tables[1]


@either_solver
def test_more_failures_than_peers_admit_are_refused(solve: Solver) -> None:
    """Four stages of three workers bear eight failures, with two in each stage; the error says so for a ninth."""
    costs, worst = alike(4, 3, 6)
    assert most_failures(costs) == 8
    assert solve(costs, worst, 8)[8] == (2, 2, 2, 2)
    with pytest.raises(InfeasibleError) as caught:
        solve(costs, worst, 9)
    assert caught.value.where == "--failures"
    assert caught.value.fix == "at most 8 failures leave every stage a live worker"


def test_least_worst_refuses_likewise() -> None:
    """Its measures end where a column has no peer left."""
    with pytest.raises(InfeasibleError, match="2 failures"):
        least_worst([[1.0, 2.0, inf], [1.0, inf, 3.0]], 2)
