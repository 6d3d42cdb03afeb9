"""Timeline and Report: their files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.simulator import simulate
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.timeline import Event, Report, Span, Timeline, WorkerMemory, memory_of_workers

from ..strategies import hand_plan, plans


@given(plans(max_pp=3, max_microbatches=3), st.booleans())
def test_timelines_and_reports_round_trip(plan: Plan, paced: bool) -> None:
    """What a simulation writes reads back equal and prints as the same bytes."""
    simulation = simulate(plan, jitter=0.1, seed=3)
    timeline = simulation.timeline
    timeline = Timeline(
        "measured", timeline.spans, timeline.workers, (Event(1.5, "fail", "0/0"),), timeline.plan, paced
    )
    assert parse_document(canonical(timeline), Timeline, "t") == timeline
    report = simulation.report(plan, 0.0)
    assert parse_document(canonical(report), Report, "r") == report
    report.validate()


@pytest.mark.parametrize(
    ("span", "what", "where"),
    [
        (
            {"worker": "0/0", "op": "F0", "start_s": 2, "end_s": 1},
            "F0 of worker 0/0 ends before it starts",
            "/spans/0/end_s",
        ),
        ({"worker": "0/0", "op": "F0", "start_s": -1, "end_s": 1}, "greater than or equal to 0", "/spans/0/start_s"),
        ({"worker": "0/0", "op": "F0", "start_s": 0}, "the key 'end_s' is missing", "/spans/0/end_s"),
        (
            {"worker": "0/0", "op": "F0", "start_s": 0, "end_s": 1, "iteration": -1},
            "greater than or equal to 0",
            "/spans/0/iteration",
        ),
        ({"worker": "0/0", "op": "", "start_s": 0, "end_s": 1}, "at least 1 character", "/spans/0/op"),
    ],
)
def test_bad_span_is_refused_at_its_place(span: dict[str, object], what: str, where: str) -> None:
    """A span that runs backwards, is incomplete or is of no operation is one error with its JSON pointer."""
    tree = {"format": "rtk.timeline", "format_version": "1.0", "source": "measured", "spans": [span]}
    with pytest.raises(InvalidInputError) as caught:
        parse_document(json.dumps(tree).encode(), Timeline, "t.json")
    assert what in caught.value.what
    assert caught.value.where == f"t.json, {where}"


def test_short_timeline_has_defaults() -> None:
    """Only the source and the spans must stand."""
    tree = {"format": "rtk.timeline", "format_version": "1.0", "source": "measured", "spans": []}
    assert parse_document(json.dumps(tree).encode(), Timeline, "t.json") == Timeline("measured", ())
    assert Span("0/0", "F0", 0.0, 1.0).iteration == 0


def test_memory_sizes_are_those_of_the_live_workers() -> None:
    """A timeline carries what turns spans into memory, for live workers only."""
    plan = hand_plan({"0/0": "F0 B0 F1.0 B1.0", "1/0": None}, 1, limit_bytes=3.0)
    assert memory_of_workers(plan) == (WorkerMemory("0/0", 1.0, 0.5, 3.0),)
