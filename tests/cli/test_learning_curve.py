"""The learning curve of a run: all its losses in a few lines of text."""

from hypothesis import given
from hypothesis import strategies as st

from rtk.cli.learning_curve import EVALUATED, FAILED, MOST_POINTS, RULE, LearningCurve

losses = st.floats(allow_nan=False, allow_infinity=False)


def curve_of(values: list[float], first: int = 0) -> LearningCurve:
    curve = LearningCurve()
    for number, loss in enumerate(values, first):
        curve.add(number, loss)
    return curve


def heights(lines: tuple[str, ...]) -> list[int]:
    """The highest dot of each column of characters, counted from above."""
    columns = zip(*lines, strict=True)
    return [next(y for y, character in enumerate(column) if character != " ") for column in columns]


@given(st.lists(losses, min_size=2, max_size=300), st.integers(2, 90), st.integers(1, 9), st.data())
def test_any_losses_are_drawn_in_their_place(values: list[float], width: int, height: int, data: st.DataObject) -> None:
    """Whatever they are, the drawing has its size, no column is empty, and its labels are iterations and losses."""
    first = data.draw(st.integers(0, 10**6))
    curve = curve_of(values, first)
    for at in data.draw(st.lists(st.integers(first, first + len(values)), max_size=3)):
        curve.mark(at)
        curve.add_evaluation(at, data.draw(losses))
    drawing = curve.drawn(width, height)
    assert {len(line) for line in (*drawing.lines, drawing.axis)} == {width}
    assert len(drawing.lines) == height
    assert all(any(line[x] != " " for line in drawing.lines) for x in range(width))
    assert set(drawing.axis) <= {RULE, FAILED}
    assert sum(line.count(EVALUATED) for line in drawing.lines) == len(drawing.evaluations) <= 3
    assert (drawing.first, drawing.last) == (first, first + len(values) - 1)
    assert drawing.least <= drawing.most


@given(st.lists(st.floats(0, 100), min_size=2, max_size=200), st.integers(2, 60))
def test_what_falls_is_drawn_falling(values: list[float], width: int) -> None:
    """A loss that never rises is a curve that never rises, from the first line to the last."""
    falling = sorted(values, reverse=True)
    drawing = curve_of(falling).drawn(width, 4)
    found = heights(drawing.lines)
    assert found == sorted(found)
    assert min(falling) - 1e-9 <= drawing.least <= drawing.most <= max(falling) + 1e-9


def test_a_long_run_takes_no_more_memory() -> None:
    """Iterations without end are as many points as a few thousand, and the whole curve is still there."""
    curve = curve_of([10.0 - number / 4e4 for number in range(200_000)])
    assert len(curve) <= MOST_POINTS
    drawing = curve.drawn(40, 4)
    assert (drawing.first // 1000, drawing.last // 1000) == (0, 199)
    assert (round(drawing.most, 1), round(drawing.least, 1)) == (10.0, 5.0)


def test_failures_are_crosses_where_they_were() -> None:
    """On the axis, at their iteration; what failed before the first loss has no place."""
    curve = curve_of([5.0, 4.0, 3.0, 2.0, 1.0], first=10)
    for iteration in (3, 12):
        curve.mark(iteration)
    assert curve.drawn(9, 2).axis == f"{RULE * 4}{FAILED}{RULE * 4}"
