"""Logs of spot instances."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.traces.formats import parcae, spot
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.replay import Fleet, Moment

from .told_in import Reader, at, events, moments_in, source


@given(st.lists(st.tuples(st.integers(0, 10**9), st.booleans(), st.integers(1, 99))), st.sampled_from(["\n", "\r\n"]))
def test_a_line_is_an_event(rows: list[tuple[int, bool, int]], end: str) -> None:
    """Milliseconds become seconds, add a join and remove a fail, whatever ends the lines; empty ones do not count."""
    text = "".join(f"{ms},{'add' if comes else 'remove'},node{name}{end}{end}" for ms, comes, name in rows)
    expected = [at(ms / 1000, "join" if comes else "fail", f"node{name}") for ms, comes, name in rows]
    assert (events(spot, text) if rows else []) == expected


def test_parcaes_lines_say_several_nodes_and_how_long() -> None:
    """A line has a list of nodes; one without any says how long the trace goes on."""
    text = (
        '[0, "add", {"nodes": ["a", "b"], "duration": 60000}]\n[60000, "remove", {"nodes": ["a"], "duration": 60000}]\n'
        '[120000, "no-op", {"nodes": [], "duration": 60000, "x_strategy": [2, 7]}]\n'
    )
    left = Fleet(("b",))
    assert moments_in(parcae, text) == [
        Moment(0.0, Fleet(("a", "b"))),
        Moment(60.0, left, ("a",), (), 1),
        Moment(180.0, left, failures=1),
    ]


@pytest.mark.parametrize(
    ("reader", "line", "what"),
    [
        (spot, "1,add", "no event"),
        (spot, "1,add,", "no event"),
        (spot, "1,add,a,b", "no event"),
        (spot, "1,kill,a", "'kill' is nothing that happens"),
        (spot, "soon,add,a", "'soon' is no time"),
        (spot, "-1,add,a", "no time"),
        (spot, "nan,add,a", "no time"),
        (spot, "1e300,add,a", "no time"),
        (parcae, "[1]", "no event"),
        (parcae, "[1,", "not valid JSON"),
        (parcae, '["1", "add", {"nodes": ["a"]}]', "no event"),
        (parcae, '[true, "add", {"nodes": ["a"]}]', "True is no time"),
        (parcae, '[1, "add", {}]', "no list of names"),
        (parcae, '[1, "add", {"nodes": [""]}]', "no list of names"),
        (parcae, '[1, "kill", {"nodes": ["a"]}]', "'kill' is nothing that happens"),
        (parcae, '[1, "no-op", {"nodes": ["a"]}]', "a no-op has nodes"),
        (parcae, '[1, "add", {"nodes": ["a"], "duration": "long"}]', "'long' is no time"),
    ],
)
def test_a_line_that_is_no_event_is_refused(reader: Reader, line: str, what: str) -> None:
    """Each mistake is an error with the line, and what to write."""
    good = "1,add,z" if reader is spot else '[1, "add", {"nodes": ["z"]}]'
    with pytest.raises(InvalidInputError) as caught:
        list(reader(source(f"{good}\n\n{line}\n")))
    assert what in caught.value.what
    assert caught.value.where == "a.csv, line 3"
