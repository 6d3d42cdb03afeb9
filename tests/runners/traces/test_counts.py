"""Counts over time."""

from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.traces.files import Source, Told
from rtk.runners.traces.formats import Leaving, populated, samples, steps
from rtk.schemas.errors import InvalidInputError

from .told_in import Reader, events, moments_in, source


def _steps(found: Source) -> Iterator[Told]:
    return populated(steps(found, 1.0), "random", 0)


def _samples(found: Source) -> Iterator[Told]:
    return populated(samples(found), "random", 0)


def _text(rows: list[tuple[str, int]]) -> str:
    return "".join(f"2021-12-10, {time}, {count}\n" for time, count in rows)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8)), min_size=1), st.sampled_from(["random", "newest"]))
def test_fleets_are_as_large_as_the_counts_say(rows: list[tuple[int, int]], leaving: Leaving) -> None:
    """After each time as many nodes are there as its last line says; names are never used again; equal seeds agree."""
    times = list(accumulate(step for step, _ in rows))
    text = "".join(f"{time},{count}\n" for time, (_, count) in zip(times, rows, strict=True))
    found = list(populated(steps(source(text), 1.0), leaving, 3))
    last = dict(zip(times, (count for _, count in rows), strict=True))
    here: list[str | None] = []
    joined = []
    for time in dict.fromkeys(times):
        for one in (event.event for event in found if event.event.time_s == time):
            if one.kind == "join":
                here.append(one.node)
                joined.append(one.node)
            elif one.kind == "fail":
                assert leaving == "random" or one.node == here[-1]
                here.remove(one.node)
        assert len(here) == last[time]
    assert joined == [f"node{number}" for number in range(1, len(joined) + 1)]
    assert found == list(populated(steps(source(text), 1.0), leaving, 3))


def test_two_rows_a_step_are_one_change() -> None:
    """A step function has a row before and a row after each step; its end is the last row."""
    found = moments_in(_steps, "0,0\n0.5,0\n0.5,4\n2,4\n2,3\n7,3\n")
    assert [(moment.time_s, len(moment.fleet.nodes)) for moment in found] == [(0.0, 4), (1.5, 3), (6.5, 3)]


def test_a_later_line_overrules_those_that_speak_of_later_times() -> None:
    """Where samplings overlap, the later one in the file counts from its first time on."""
    rows = [("13:00:00", 9), ("13:01:00", 9), ("13:02:00", 9), ("13:01:30", 7), ("13:02:30", 7)]
    changes = [(one.time_s, one.kind) for one in events(_samples, _text(rows)) if one.time_s]
    assert changes == [(90.0, "fail"), (90.0, "fail"), (150.0, "end")]


def test_seeds_choose_who_leaves() -> None:
    """Another seed, other nodes."""
    text = "0,50\n1,10\n"
    left = {tuple(one.event.node for one in populated(steps(source(text), 1.0), "random", seed)) for seed in range(5)}
    assert len(left) == 5


@pytest.mark.parametrize(
    ("reader", "text", "what"),
    [
        (_steps, "0,1\n1,-1\n", "the count -1 is below zero"),
        (_steps, "0,1\n1,1.5\n", "'1.5' is no count"),
        (_steps, "0,1\n1,2,3\n", "no count"),
        (_steps, "0,1\n-1,2\n", "no time"),
        (_samples, _text([("13:00:00", 5), ("13:01:00", -5)]), "below zero"),
        (_samples, _text([("13:00:00", 5), ("25:01:00", 5)]), "no sample"),
        (_samples, _text([("13:00:00", 5)]) + "2021-12-10, 5\n", "no sample"),
    ],
)
def test_a_line_that_is_no_count_is_refused(reader: Reader, text: str, what: str) -> None:
    """Each mistake is an error with the line, and what to write."""
    with pytest.raises(InvalidInputError) as caught:
        events(reader, text)
    assert what in caught.value.what
    assert caught.value.where == "a.csv, line 2"


def test_a_sample_from_long_ago_is_refused() -> None:
    """Lines that lie further back than samplings overlap are out of order."""
    for ahead in ([("13:05:00", 5), ("13:20:00", 5)], [("15:00:00", 5)]):
        rows = [("13:00:00", 5), *ahead, ("13:01:00", 5)]
        with pytest.raises(InvalidInputError, match="more than 10 minutes before") as caught:
            events(_samples, _text(rows))
        assert caught.value.where == f"a.csv, line {len(rows)}"
