"""A trace a rank, as HolisticTraceAnalysis and our own readers take them."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rtk
from rtk.profilers.annotations import read_annotations
from rtk.runners.simulator import simulate
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.timeline import Timeline

MakePlan = Callable[..., Plan]


@settings(max_examples=20)
@given(pipelines=st.integers(1, 2), stages=st.integers(1, 3), microbatches=st.integers(1, 3), split=st.booleans())
def test_our_reader_finds_the_timeline_again(
    make_plan: MakePlan,
    pipelines: int,
    stages: int,
    microbatches: int,
    split: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """All passes and steps of all workers, at their times, by kernels; sums are communication."""
    timeline = simulate(make_plan(pipelines, stages, microbatches, split)).timeline
    folder = tmp_path_factory.mktemp("ranks")
    rtk.draw(timeline, f"{folder}/")
    found = read_annotations(sorted(folder.iterdir()))
    assert found.options["clock"] == "kernels" and found.options["world_size"] == pipelines * stages
    spans = {(s.worker, s.op): (s.start_s, s.end_s) for s in timeline.spans if s.op != "allreduce"}
    assert {(s.worker, s.op): pytest.approx((s.start_s, s.end_s), abs=1e-9) for s in found.spans} == spans


def test_holistic_trace_analysis_finds_ranks_and_kernels(rerouted: Timeline, tmp_path: Path) -> None:
    """It looks for `"rank": N` with a blank, line by line, and takes kernels with a stream, NCCL's by their names."""
    folder = tmp_path / "ranks"
    rtk.draw(rerouted, f"{folder}/")
    workers = sorted({span.worker for span in rerouted.spans})
    ranks = {}
    for path in folder.iterdir():
        text = gzip.decompress(path.read_bytes()).decode()
        line = next(line for line in text.splitlines() if re.search(r'"rank":\s+(\d+)', line))
        (rank,) = re.findall(r'"rank":\s+(\d+)', line)
        ranks[int(rank)] = json.loads(text)
    assert sorted(ranks) == list(range(len(workers)))
    for rank, tree in ranks.items():
        kernels = [event for event in tree["traceEvents"] if event["cat"] == "kernel"]
        own = [span for span in rerouted.spans if span.worker == workers[rank]]
        assert [(one["ts"], one["dur"]) for one in kernels] == [
            (span.start_s * 1e6, (span.end_s - span.start_s) * 1e6) for span in own
        ]
        streams = {("nccl" in one["name"], one["args"]["stream"], one["tid"]) for one in kernels}
        assert streams == {(False, 7, 7), (True, 20, 20)}
        launched = {one["args"]["correlation"] for one in tree["traceEvents"] if one["cat"] == "cuda_runtime"}
        assert launched == {one["args"]["correlation"] for one in kernels}


def test_holistic_trace_analysis_itself(make_plan: MakePlan, tmp_path: Path) -> None:
    """Its breakdown of each rank adds up to the timeline's computing time and exposed sums."""
    analysis: Any = pytest.importorskip("hta.trace_analysis")
    timeline = simulate(make_plan(2, 3, 4)).timeline
    rtk.draw(timeline, f"{tmp_path}/ranks/")
    analyser = analysis.TraceAnalysis(trace_dir=f"{tmp_path}/ranks", include_last_profiler_step=True)
    table = analyser.get_temporal_breakdown(visualize=False).set_index("rank")
    for rank, worker in enumerate(sorted({span.worker for span in timeline.spans})):
        own = [span for span in timeline.spans if span.worker == worker]
        computed = sum(span.end_s - span.start_s for span in own if span.op != "allreduce")
        assert table.loc[rank, "compute_time(us)"] == pytest.approx(computed * 1e6, abs=len(own))


def test_a_bubble_is_the_same_by_its_traces(make_plan: MakePlan, tmp_path: Path) -> None:
    """`rtk bubble` of the folder says what it says of the timeline."""
    timeline = simulate(make_plan(2, 3, 5)).timeline
    rtk.draw(timeline, f"{tmp_path}/ranks/")
    rtk.write(tmp_path / "t.json", timeline)
    of_traces, known = rtk.bubble(f"{tmp_path}/ranks"), rtk.bubble(str(tmp_path / "t.json"))
    assert of_traces.bubble_ratio == pytest.approx(known.bubble_ratio, abs=1e-6)
    assert of_traces.bound is not None and known.bound is not None
    assert of_traces.bound.schedule == known.bound.schedule == "1F1B"


def test_folders_that_hold_other_traces_are_refused(small: Timeline, tmp_path: Path) -> None:
    """Ranks of another job would be read with these; several timelines, and a file in its place, are refused too."""
    rtk.draw(small, f"{tmp_path}/ranks/")
    rtk.draw(small, f"{tmp_path}/ranks/")  # the same once more is no other
    (tmp_path / "ranks" / "rank-7.json").write_text("{}")
    with pytest.raises(InvalidInputError, match=r"other traces, such as rank-7\.json"):
        rtk.draw(small, f"{tmp_path}/ranks/")
    with pytest.raises(InvalidInputError, match="one plan's or timeline's"):
        rtk.draw([small, small], f"{tmp_path}/two/")
    assert not (tmp_path / "two").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="cannot write the folder"):
        rtk.draw(small, f"{tmp_path}/file/")
