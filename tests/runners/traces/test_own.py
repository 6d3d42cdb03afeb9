"""Our own traces: written and read, by iteration and of workers too."""

from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.traces.files import told
from rtk.runners.traces.formats import of_nodes, own_csv, own_json
from rtk.runners.traces.read import COLUMNS, TraceOptions, moments, read_events, read_moments, write_events
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.trace import TraceEvent, print_event

from .told_in import at, events

NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=4)


@st.composite
def _events(draw: st.DrawFn) -> list[TraceEvent]:
    """Events of nodes by time, in whatever order."""
    one = st.one_of(
        st.builds(at, st.floats(0, 1e9), st.sampled_from(["fail", "stop", "join", "recover"]), NAMES),
        st.builds(at, st.floats(0, 1e9), st.just("slow_compute"), NAMES, factor=st.floats(1.001, 1e6)),
        st.builds(at, st.floats(0, 1e9), st.just("slow_link"), NAMES, peer=NAMES, delay_s=st.floats(0, 1e6)),
        st.builds(at, st.floats(0, 1e9), st.just("end")),
    )
    return draw(st.lists(one, min_size=1, max_size=9))


@given(_events())
def test_json_lines_round_trip(found: list[TraceEvent]) -> None:
    """What was printed is read back equal."""
    assert events(own_json, "".join(print_event(event).decode() for event in found)) == found


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.jsonl.gz", "t.csv.gz"])
def test_files_round_trip(tmp_path: Path, name: str) -> None:
    """What was written is read back, in both forms, packed or not; twice the same is the same bytes."""
    found = [
        at(0, "join", "a,b"),
        at(0, "join", "c"),
        at(1.5, "slow_compute", "c", factor=1.5),
        at(2, "slow_link", "c", peer="a,b", delay_s=0.02),
        at(3, "stop", "c"),
        at(9, "end"),
    ]
    path, again = tmp_path / name, tmp_path / f"again-{name}"
    assert write_events(str(path), found) == len(found)
    write_events(str(again), found)
    assert [one.event for one in read_events(str(path))] == found
    assert list(read_moments(str(path))) == list(moments(told(found)))
    assert path.read_bytes() == again.read_bytes()


def test_half_a_trace_is_never_seen(tmp_path: Path) -> None:
    """Where events end in an error, the file that was there stays, and nothing else is left."""
    path = tmp_path / "t.jsonl"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError):
        write_events(str(path), (at(1 / (2 - number), "join", "a") for number in range(3)))
    assert [one.read_text() for one in tmp_path.iterdir()] == ["before"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """One error, with the path."""
    with pytest.raises(InvalidInputError, match="cannot write the file"):
        write_events(str(tmp_path / "no" / "t.jsonl"), [at(0, "join", "a")])


def test_a_node_is_down_while_any_of_its_workers_is() -> None:
    """Of two workers of a node that die the first takes it down, and the last to return brings it back, well."""
    nodes = {"0/0": "a", "0/1": "a"}
    kinds = [("fail", "0/0"), ("stop", "0/1"), ("recover", "0/0"), ("join", "0/1"), ("fail", "0/1")]
    found = [TraceEvent(kind, time_s=time, worker=worker) for time, (kind, worker) in enumerate(kinds)]  # type: ignore[arg-type]
    expected = [at(0, "fail", "a"), at(3, "join", "a"), at(4, "fail", "a")]
    assert [one.event for one in of_nodes(told(found), None, nodes)] == expected
    slow = TraceEvent("slow_compute", time_s=5, worker="0/0", factor=2.0)
    well = [
        TraceEvent("recover", time_s=6, worker="0/0"),
        at(7, "join", "a"),
        TraceEvent("fail", time_s=8, worker="0/0"),
    ]
    again = [at(4, "fail", "a"), at(7, "join", "a"), at(8, "fail", "a")]
    assert [one.event for one in of_nodes(told([*found, slow, *well]), None, nodes)][2:] == again


def test_iterations_become_times_and_workers_nodes() -> None:
    """Event n lies at n iterations' time; a node is as slow as its slowest worker; a link joins its workers' nodes."""
    nodes = {"0/0": "a", "0/1": "a", "1/0": "b"}
    found = [
        TraceEvent("slow_compute", iteration=1, worker="0/0", factor=3.0),
        TraceEvent("slow_compute", iteration=2, worker="0/1", factor=2.0),
        TraceEvent("recover", iteration=3, worker="0/0"),
        TraceEvent("recover", iteration=4, worker="0/1"),
        TraceEvent("slow_link", iteration=5, link="1/0-0/0", delay_s=1.0),
        TraceEvent("fail", iteration=6, worker="1/0"),
    ]
    assert [one.event for one in of_nodes(told(found), 0.5, nodes)] == [
        at(0.5, "slow_compute", "a", factor=3.0),
        at(1.0, "slow_compute", "a", factor=3.0),
        at(1.5, "slow_compute", "a", factor=2.0),
        at(2.0, "recover", "a"),
        at(2.5, "slow_link", "b", peer="a", delay_s=1.0),
        at(3.0, "fail", "b"),
    ]


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (TraceEvent("fail", iteration=1, node="a"), "nobody says how long those take"),
        (TraceEvent("fail", time_s=1.0, worker="0/7"), "no node that is there at the start has a worker 0/7"),
        (TraceEvent("recover", time_s=1.0, link="0/0-0/7"), "no node that is there at the start has a worker 0/7"),
    ],
)
def test_what_nobody_says_is_asked_for(event: TraceEvent, what: str) -> None:
    """Iterations without a time and workers without a node are errors with the event's place."""
    with pytest.raises(InvalidInputError, match=what) as caught:
        list(of_nodes(told([event]), None, {"0/0": "a"}))
    assert caught.value.where == "/events/0"


def test_nodes_at_the_start_count_where_the_trace_does_not_say() -> None:
    """A trace that begins with a join at 0 says who is there; another one needs to be told, names or a number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", _Stdin(print_event(at(5, "fail", "node2"))))
        assert [len(one.fleet.nodes) for one in read_moments("-", TraceOptions(nodes=3))] == [3, 2]
        patch.setattr("sys.stdin", _Stdin(print_event(at(5, "fail", "x"))))
        assert [one.fleet.nodes for one in read_moments("-", TraceOptions(nodes=("x", "y")))] == [("x", "y"), ("y",)]
        patch.setattr("sys.stdin", _Stdin(print_event(at(0, "join", "x"))))
        assert [one.fleet.nodes for one in read_moments("-", TraceOptions(nodes=3))] == [("x",)]
        patch.setattr("sys.stdin", _Stdin(print_event(at(5, "fail", "x"))))
        with pytest.raises(InvalidInputError, match="x is removed, but never came"):
            list(read_moments("-"))


def test_csv_has_a_line_for_the_names_of_its_columns() -> None:
    """Empty cells are keys that are not there."""
    text = f"{','.join(COLUMNS)}\n1.5,slow_compute,a,,2.0,\n9.0,end,,,,\n"
    assert events(own_csv, text) == [at(1.5, "slow_compute", "a", factor=2.0), at(9, "end")]


class _Stdin:
    """Standard input that has these bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = BytesIO(data)
