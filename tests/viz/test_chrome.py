"""Chrome/Perfetto traces."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.simulator import simulate
from rtk.schemas.plan import Plan
from rtk.schemas.timeline import Timeline
from rtk.viz.chrome import trace_pieces
from rtk.viz.facts import Labelled

MakePlan = Callable[..., Plan]


def chrome_trace(timelines: Sequence[Labelled]) -> dict[str, Any]:
    """What is written, as values."""
    tree: dict[str, Any] = json.loads("".join(trace_pieces(timelines)))
    return tree


def records(timeline: Timeline, phase: str) -> list[dict[str, Any]]:
    return [record for record in chrome_trace([("simulated", timeline)])["traceEvents"] if record["ph"] == phase]


@given(pipelines=st.integers(1, 3), stages=st.integers(1, 4), microbatches=st.integers(1, 4), split=st.booleans())
def test_slices_are_the_spans(make_plan: MakePlan, pipelines: int, stages: int, microbatches: int, split: bool) -> None:
    """Every span is one complete event of its worker's process, at its time in microseconds, and nothing else is."""
    timeline = simulate(make_plan(pipelines, stages, microbatches, split)).timeline
    trace = chrome_trace([("simulated", timeline)])["traceEvents"]
    names = {r["pid"]: r["args"]["name"].removeprefix("worker ") for r in trace if r["name"] == "process_name"}
    slices = [(names[r["pid"]], r["name"], r["ts"], r["dur"]) for r in trace if r["ph"] == "X"]
    spans = [(s.worker, s.op, s.start_s * 1e6, (s.end_s - s.start_s) * 1e6) for s in timeline.spans]
    assert slices == spans


@given(pipelines=st.integers(1, 2), stages=st.integers(1, 4), microbatches=st.integers(1, 4), split=st.booleans())
def test_arrows_join_neighbouring_stages(
    make_plan: MakePlan, pipelines: int, stages: int, microbatches: int, split: bool
) -> None:
    """Each micro-batch crosses each link once each way, and an arrow begins before it ends."""
    timeline = simulate(make_plan(pipelines, stages, microbatches, split)).timeline
    starts = {record["id"]: record for record in records(timeline, "s")}
    ends = {record["id"]: record for record in records(timeline, "f")}
    assert starts.keys() == ends.keys()
    assert len(starts) == 2 * pipelines * (stages - 1) * microbatches
    assert all(starts[key]["ts"] <= ends[key]["ts"] for key in starts)
    assert all(abs(starts[key]["pid"] - ends[key]["pid"]) == 1 for key in starts)


def test_arrows_follow_rerouted_micro_batches(rerouted: Timeline) -> None:
    """The activation of micro-batch 1.2 goes from worker 1/0 to 2/1, which computes it in place of 1/1."""
    pid = {r["args"]["name"]: r["pid"] for r in records(rerouted, "M") if r["name"] == "process_name"}
    slices = {(r["pid"], r["name"]): r for r in records(rerouted, "X")}
    receiver = slices[pid["worker 2/1"], "F1.2"]
    assert receiver["args"] == {"iteration": 0, "microbatch": "1.2", "rerouted": True}
    arrow = next(r for r in records(rerouted, "f") if (r["pid"], r["ts"]) == (receiver["pid"], receiver["ts"]))
    sender = next(r for r in records(rerouted, "s") if r["id"] == arrow["id"])
    origin = slices[pid["worker 1/0"], "F2"]
    assert sender["pid"] == origin["pid"]
    assert origin["ts"] < sender["ts"] < origin["ts"] + origin["dur"]


def test_memory_counts_and_events(small: Timeline) -> None:
    """Memory is a counter of the worker's process, an event an instant of it."""
    assert [(r["ts"], r["args"]["bytes"]) for r in records(small, "C")][-1] == (7e6, 0)
    (event,) = records(small, "i")
    assert (event["name"], event["ts"], event["s"], event["pid"]) == ("slow_compute", 2.5e6, "p", 1)


def test_all_reduce_has_a_stream_of_its_own(small: Timeline) -> None:
    """Communication is on another thread than computation, which it may overlap."""
    assert {r["tid"] for r in records(small, "X") if r["name"] == "allreduce"} == {1}
    assert {r["tid"] for r in records(small, "X") if r["name"] != "allreduce"} == {0}


def test_a_single_timeline_keeps_its_clock(small: Timeline) -> None:
    """One timeline is not shifted; of several each begins at 0, in processes named by its label."""
    late = replace(small, spans=tuple(replace(s, start_s=s.start_s + 5, end_s=s.end_s + 5) for s in small.spans))
    assert records(late, "X")[0]["ts"] == 5e6
    both = chrome_trace([("simulated", small), ("measured", late)])["traceEvents"]
    firsts = [r for r in both if r["ph"] == "X" and r["name"] == "F0"]
    assert [(r["pid"], r["ts"]) for r in firsts] == [(1, 0), (2, 0)]
    names = [r["args"]["name"] for r in both if r["name"] == "process_name"]
    assert names == ["simulated: worker 0/0", "measured: worker 0/0"]
    ids = [r["id"] for r in both if r["ph"] == "s"]
    assert len(ids) == len(set(ids))


def test_arrow_ids_differ_between_timelines(rerouted: Timeline) -> None:
    """Arrows of two timelines in one trace do not share ids."""
    both = chrome_trace([("a", rerouted), ("b", rerouted)])["traceEvents"]
    ids = [r["id"] for r in both if r["ph"] == "s"]
    assert len(ids) == len(set(ids)) > 0


def test_it_is_json(rerouted: Timeline) -> None:
    """The trace is plain JSON, with the object form that viewers read."""
    tree = json.loads(json.dumps(chrome_trace([("simulated", rerouted)]), allow_nan=False))
    assert tree["displayTimeUnit"] == "ms"
    assert tree["otherData"]["timelines"][0]["source"] == "simulated"


def test_empty() -> None:
    """A timeline without spans, but with an event, is a trace with that event."""
    timeline = Timeline("measured", ())
    assert chrome_trace([("measured", timeline)])["traceEvents"] == []


@pytest.mark.parametrize("worker", [None, "node7"])
def test_events_of_no_worker_are_global(small: Timeline, worker: str | None) -> None:
    """An event that names no worker is one of the whole trace."""
    (event,) = records(replace(small, events=(replace(small.events[0], worker=worker),)), "i")
    assert event["s"] == "g"
