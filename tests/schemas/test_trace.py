"""Traces: JSON lines and CSV, and what is no event."""

import gzip
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.errors import InvalidInputError
from rtk.schemas.trace import EventKind, Trace, TraceEvent, print_trace, read_trace

KINDS: list[EventKind] = ["fail", "stop", "join", "slow_compute", "slow_link", "recover"]


@st.composite
def _traces(draw: st.DrawFn) -> Trace:
    by_time = draw(st.booleans())
    moments = sorted(draw(st.lists(st.integers(0, 99), max_size=6)))
    events = []
    for moment in moments:
        kind = draw(st.sampled_from(KINDS))
        event = TraceEvent(
            kind,
            time_s=moment + 0.5 if by_time else None,
            iteration=None if by_time else moment,
            factor=draw(st.floats(0.001, 1e6)) if kind == "slow_compute" else None,
            delay_s=draw(st.floats(0, 1e6)) if kind == "slow_link" else None,
        )
        place = draw(st.sampled_from(["node", "worker", "link"]))
        name = {"node": draw(st.text(min_size=1)), "worker": "1/2", "link": "0/1-10/2"}[place]
        has_peer = place == "node" and kind in ("slow_link", "recover")
        peer = draw(st.none() | st.text(min_size=1)) if has_peer else None
        events.append(replace(event, peer=peer, **{place: name}))  # type: ignore[arg-type]
    return Trace(tuple(events))


def _read(data: bytes) -> Trace:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return read_trace("-")


@given(_traces())
def test_traces_round_trip(trace: Trace) -> None:
    """A printed trace reads back equal and prints as the same bytes."""
    trace.validate()
    data = print_trace(trace)
    assert _read(data) == trace
    assert print_trace(_read(data)) == data
    assert data.count(b"\n") == len(trace.events)


def test_json_lines_and_csv_say_the_same(tmp_path: Path) -> None:
    """The same events as JSON lines, as CSV and as compressed CSV are the same trace; empty lines do not count."""
    lines = tmp_path / "a.jsonl"
    lines.write_text(
        '{"iteration": 5, "kind": "fail", "worker": "1/2"}\n\n'
        '{"iteration": 7, "kind": "slow_link", "link": "0/1-0/2", "delay_s": 0.25}\r\n'
    )
    text = "iteration,kind,worker,link,delay_s\n5,fail,1/2,,\n7,slow_link,,0/1-0/2,0.25\n"
    plain, packed = tmp_path / "a.csv", tmp_path / "a.csv.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_trace(str(lines)) == read_trace(str(plain)) == read_trace(str(packed))
    assert read_trace(str(plain)).events[0] == TraceEvent("fail", iteration=5, worker="1/2")


def test_the_end_is_left_out() -> None:
    """Who reads a whole trace is not told how long it goes on."""
    assert _read(b'{"time_s": 1, "kind": "fail", "node": "a"}\n{"time_s": 9, "kind": "end"}\n').events == (
        TraceEvent("fail", time_s=1.0, node="a"),
    )


def test_line_separators_inside_text_do_not_end_a_line() -> None:
    """A node's name may hold U+2028, which only some think ends a line."""
    trace = _read('{"iteration": 1, "kind": "fail", "node": "a\u2028b"}'.encode())
    assert trace.events[0].node == "a\u2028b"


@pytest.mark.parametrize(
    ("line", "what", "where"),
    [
        ('{"iteration": 1, "kind": "explode", "node": "a"}', "'fail'", "/events/1/kind"),
        ('{"iteration": 1, "kind": "fail", "node": "a", "a/b": 1}', "unexpected keyword", "/events/1/a~1b"),
        ('{"iteration": -1, "kind": "fail", "node": "a"}', "greater than or equal", "/events/1/iteration"),
        ('{"iteration": 1.5, "kind": "fail", "node": "a"}', "valid integer", "/events/1/iteration"),
        ('{"iteration": true, "kind": "fail", "node": "a"}', "valid integer", "/events/1/iteration"),
        ('{"time_s": NaN, "kind": "fail", "node": "a"}', "less than 1000000000000000", "/events/1/time_s"),
        ('{"iteration": 1, "kind": "slow_compute", "node": "a", "factor": 0}', "greater than 0", "/events/1/factor"),
        ('{"kind": "fail", "node": "a"}', "either time_s or iteration", "/events/1"),
        ('{"time_s": 1, "iteration": 1, "kind": "fail", "node": "a"}', "either time_s or iteration", "/events/1"),
        ('{"iteration": 1, "kind": "fail"}', "exactly one of node, worker and link", "/events/1"),
        ('{"iteration": 1, "kind": "fail", "node": "a", "worker": "0/0"}', "exactly one of node", "/events/1"),
        ('{"iteration": 1, "kind": "fail", "worker": "0-0"}', "'0-0' is no worker", "/events/1/worker"),
        ('{"iteration": 1, "kind": "fail", "link": "0/0"}', "'0/0' is no link", "/events/1/link"),
        ('{"iteration": 1, "kind": "slow_compute", "node": "a"}', "needs a factor", "/events/1"),
        ('{"iteration": 1, "kind": "slow_link", "link": "0/0-0/1"}', "needs a delay_s or a factor", "/events/1"),
        ('{"time_s": 1, "kind": "fail", "node": "a"}', "time_s and iteration are mixed", "/events/1"),
        ('{"iteration": 0, "kind": "fail", "node": "a"}', "before the one ahead of it", "/events/1"),
        ('{"iteration": 1, "kind": "end", "node": "a"}', "the end happens to nobody", "/events/1"),
        ('{"iteration": 1, "kind": "fail", "node": "a", "peer": "b"}', "fail happens to no link", "/events/1/peer"),
        ('{"iteration": 1, "kind": "recover", "worker": "0/0", "peer": "b"}', "without a node", "/events/1/peer"),
        ("[1]", "should be an object", "/events/1"),
        ("{", "not valid JSON", "line 2"),
        ('{"node": "a", "node": "b"}', "the key 'node' stands twice", "line 2"),
        ("[" * 5000 + "]" * 5000, "not valid JSON", "line 2"),
    ],
)
def test_bad_event_is_refused_at_its_place(line: str, what: str, where: str) -> None:
    """Each mistake in a JSON line is one error with the event's JSON pointer, or the line."""
    good = '{"iteration": 1, "kind": "fail", "node": "a"}'
    with pytest.raises(InvalidInputError) as caught:
        _read(f"{good}\n{line}\n".encode())
    assert what in caught.value.what
    assert caught.value.where == f"standard input, {where}"


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("iteration,kind,node\n1,fail,a\nfive,fail,a\n", "invalid literal", "line 3"),
        ("time_s,kind,node\nsoon,fail,a\n", "could not convert", "line 2"),
        ("time_s,kind,node\ninf,fail,a\n", "less than 1000000000000000", "/events/0/time_s"),
        ("iteration,kind,node\n1,fail,a,b\n", "more cells", "line 2"),
        ("iteration,kind,nod\n1,fail,a\n", "unexpected keyword", "/events/0/nod"),
        ("iteration,kind,node\n1,fail," + "a" * 200_000 + "\n", "field larger", "line 2"),
    ],
)
def test_bad_csv_is_refused_at_its_place(tmp_path: Path, text: str, what: str, where: str) -> None:
    """Each mistake in a CSV is one error with the line, or the event's JSON pointer."""
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        read_trace(str(path))
    assert what in caught.value.what
    assert caught.value.where == f"{path}, {where}"


def test_trace_that_is_not_text_is_refused() -> None:
    """Bytes that are no UTF-8 are one error."""
    with pytest.raises(InvalidInputError, match="not UTF-8"):
        _read(b"\xff")
