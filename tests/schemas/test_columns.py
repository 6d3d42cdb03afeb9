"""Timelines as columns, and parts of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.columns import ALL, Selection, columns_of, select, timeline_from
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.timeline import Event, Span, Timeline, WorkerMemory

spans = st.builds(
    Span,
    st.sampled_from(["0/0", "0/1", "1/0", "12/3"]),
    st.sampled_from(["F0", "F1", "I0", "W7", "B3", "F7.2", "B13.5", "allreduce", "step", "save state"]),
    st.floats(0, 10),
    st.floats(10, 20),
    st.integers(0, 3),
)
timelines = st.builds(lambda some: Timeline("measured", tuple(some)), st.lists(spans, max_size=12))


@given(timelines)
def test_columns_and_back(timeline: Timeline) -> None:
    """Columns hold all that spans say; whoever names no worker is refused."""
    assert timeline_from(columns_of(timeline)) == timeline
    with pytest.raises(InvalidInputError, match="no worker"):
        columns_of(replace(timeline, spans=(Span("gpu0", "F0", 0, 1),)))


def run(iterations: int = 4) -> Timeline:
    """Two workers, each iteration 10 s: F0 on 0/0 and then 1/0, 4 s each; an event at each iteration's begin."""
    rows = [
        Span(worker, "F0", 5 + 10 * n + start, 5 + 10 * n + start + 4, n)
        for n in range(iterations)
        for worker, start in (("0/0", 0.0), ("1/0", 4.0))
    ]
    events = tuple(Event(5 + 10.0 * n, "commit", "1/0") for n in range(iterations))
    return Timeline("measured", tuple(rows), (WorkerMemory("0/0"), WorkerMemory("1/0")), events)


def times(timeline: Timeline, part: Selection) -> list[tuple[str, float, float, int]]:
    kept = timeline_from(select(timeline, part)).spans
    return [(span.worker, span.start_s, span.end_s, span.iteration) for span in kept]


def test_iterations_begin_at_0() -> None:
    """An iteration is cut out with its events and begins at 0; a timeline of one is that whatever its number."""
    assert times(run(), Selection(iterations=(2, 2))) == [("0/0", 0, 4, 2), ("1/0", 4, 8, 2)]
    assert [event.time_s for event in select(run(), Selection(iterations=(1, 2))).events] == [0, 10]
    single = run(1)
    assert times(single, Selection(iterations=(7, 7))) == times(single, ALL)


def test_who_has_no_place_in_chosen_iterations_is_not_there() -> None:
    """A worker that is lost in iteration 1 and never comes back counts in that one, and not in later ones."""
    whole = run()
    left = [span for span in whole.spans if span.worker == "0/0" or span.iteration < 1]
    lost = replace(whole, spans=tuple(left), events=(Event(17.0, "failure", "1/0"),))
    counted = [
        {memory.worker for memory in select(lost, Selection(iterations=(number, number))).workers} for number in (1, 2)
    ]
    assert counted == [{"0/0", "1/0"}, {"0/0"}]


def test_times_count_from_the_first_operation() -> None:
    """Operations are cut at the times' edges, and 0 is where the part begins."""
    assert times(run(), Selection(from_s=2.0, until_s=6.0)) == [("0/0", 0, 2, 0), ("1/0", 2, 4, 0)]
    late = times(run(), Selection(iterations=(3, 3), from_s=5.0))
    assert late == [("1/0", 0, 3, 3)]


def test_workers_keep_the_clock() -> None:
    """Of some workers only, with their memory and events, 0 stays the first operation of all."""
    for part in (Selection(pipelines=frozenset({1})), Selection(workers=frozenset({"1/0"}))):
        kept = select(run(), part)
        assert float(kept.aligned().start_s[0]) == 4
        assert [memory.worker for memory in kept.workers] == ["1/0"] and len(kept.events) == 4
    assert not select(run(), Selection(workers=frozenset({"0/0"}))).events


@pytest.mark.parametrize(
    ("part", "option"),
    [
        (Selection(iterations=(9, 9)), "--iterations"),
        (Selection(workers=frozenset({"3/0"})), "--workers"),
        (Selection(from_s=100.0), "--from"),
    ],
)
def test_an_empty_part_is_refused(part: Selection, option: str) -> None:
    """Where nothing happens the error names the option and says what there is."""
    with pytest.raises(InvalidInputError) as caught:
        select(run(), part)
    assert caught.value.where == option
    assert caught.value.fix and "iterations 0 to 3 in 38 s" in caught.value.fix
