"""Reading files: how each format is recognised, what is no trace, and the published ones."""

import gzip
import io
import json
from pathlib import Path

import pytest

from rtk.runners.traces.formats import SLOW_FAULTS, TraceFormat, named, recognised
from rtk.runners.traces.read import Summary, TraceOptions, read_events, read_moments, summary_of, write_events
from rtk.schemas.errors import InvalidInputError

from .told_in import at, source

TRACES = Path(__file__).parents[4] / "shared" / "data" / "traces"
published = pytest.mark.skipif(not TRACES.is_dir(), reason="the published traces are not part of the package")
PUBLISHED = [
    *(f"bamboo/{name}" for name in ("p3-trace.csv", "g4dn-trace.csv", "a100x1-east1b.txt", "v100x1-east1c.txt")),
    "bamboo/aws-spot-instances-p2-xlarge-2020-11-20-to-2020-11-23.csv",
    "bamboo/aws-spot-instances-g4dn-xlarge-us-east-1c-2020-11-20-1930-to-2020-11-21-2200.csv",
    *(f"oobleck_artifact/{name}.csv" for name in ("5m", "6h", "scale_p3-trace", "scale_gcp-trace")),
    *("parcae/p3.csv", "parcae/liveput_p3trace.csv", "parcae/gpt-1.5b_trace_ll_10_11.txt"),
    "stepfun/fault_trace.json",
]


def _summary(name: str, **reading: object) -> Summary:
    return summary_of(read_events(str(TRACES / name), TraceOptions(nodes=400, **reading)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("0,add,node1\r\n", TraceFormat.SPOT),
        ("  480000,remove,node1", TraceFormat.SPOT),
        ('[0, "add", {"nodes": []}]', TraceFormat.PARCAE),
        ("\n\n2021-12-11, 11:11:30, 55", TraceFormat.SAMPLES),
        ("[\n", TraceFormat.FAULTS),
        ('[{"node_id": 1}]', TraceFormat.FAULTS),
        ("[]", TraceFormat.FAULTS),
        ('{"time_s": 0}', TraceFormat.RTK),
        ('\ufeff{"time_s": 0}', TraceFormat.RTK),
        ("time_s,kind,node", TraceFormat.RTK),
    ],
)
def test_a_format_is_recognised_by_the_first_line(head: str, kind: TraceFormat) -> None:
    """The first line that is not empty says what a file is."""
    assert recognised(source(head)) is kind


@pytest.mark.parametrize(
    ("head", "what", "fix"),
    [
        ("", "the trace is empty", "at least one event"),
        ("\n \n", "the trace is empty", "at least one event"),
        ("hello", "does not begin with 'hello'", "spot"),
        ("idx,worker,gpu", "does not begin with", "spot"),
        ("0,1", "the unit of time is not said", "counts-ms"),
    ],
)
def test_what_is_no_trace_is_refused(head: str, what: str, fix: str) -> None:
    """Empty files, other files, and counts in nobody knows which unit: each is an error that says how to go on."""
    with pytest.raises(InvalidInputError, match=what) as caught:
        recognised(source(head))
    assert fix in (caught.value.fix or "")


def test_a_format_that_nobody_knows_is_refused() -> None:
    """With a suggestion where one is near."""
    assert named("counts-h") is TraceFormat.COUNTS_H
    with pytest.raises(InvalidInputError, match="no format 'count-h'") as caught:
        named("count-h")
    assert caught.value.fix == "did you mean counts-h?"


def test_a_format_can_be_said(tmp_path: Path) -> None:
    """Counts are read in the unit that is said."""
    path = tmp_path / "counts.csv"
    path.write_text("0,2\n2,1\n")
    times = {kind: list(read_moments(str(path), TraceOptions(kind)))[1].time_s for kind in ("counts-s", "counts-h")}
    assert times == {"counts-s": 2.0, "counts-h": 7200.0}


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """No file, a folder, text that is none, gzip that is cut short, a line without an end: one error each."""
    packed = gzip.compress(b"0,add,node1\n" * 1000)
    wrong = {"a.gz": packed[:-30], "b": b"0,add,\xff\n", "c": b"0,add," + b"n" * (1 << 21), "d.gz": b"0,add,node1\n"}
    for name, data in wrong.items():
        tmp_path.joinpath(name).write_bytes(data)
    for name in (*wrong, "missing", "."):
        with pytest.raises(InvalidInputError) as caught:
            list(read_moments(str(tmp_path / name)))
        assert str(tmp_path / name).rstrip("/.") in (caught.value.where or "")


def test_faults_on_standard_input_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their nodes' names are needed before the first fault, so the list is read twice."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"[]")))
    with pytest.raises(InvalidInputError, match="read twice"):
        list(read_moments("-", TraceOptions(nodes=4)))


def test_a_summary_counts(tmp_path: Path) -> None:
    """Times, nodes over time, losses: by hand."""
    path = tmp_path / "t.jsonl"
    joins = [at(0, "join", name) for name in "abcd"]
    slow = at(1, "slow_compute", "c", factor=2.0)
    write_events(str(path), [*joins, slow, at(2, "fail", "a"), at(2, "fail", "b"), at(6, "join", "a"), at(10, "end")])
    assert summary_of(read_events(str(path))) == Summary(
        lasts_s=10.0,
        nodes_at_start=4,
        nodes_min=2,
        nodes_max=4,
        nodes_mean=2.8,
        events={"end": 1, "fail": 2, "join": 5, "slow_compute": 1},
        failures=1,
        nodes_lost=2,
        distinct_nodes_lost=2,
        most_lost_at_once=2,
        most_slow_at_once=1,
        mean_time_between_failures_s=10.0,
        longest_without_loss_s=8.0,
    )


@published
@pytest.mark.parametrize(
    ("name", "joins", "lost", "least", "most", "mean", "hours", "failures"),
    [
        ("bamboo/p3-trace.csv", 177, 167, 10, 32, 24.0, 11.37, 79),
        ("bamboo/g4dn-trace.csv", 79, 74, 1, 24, 12.8, 10.63, 48),
        ("bamboo/a100x1-east1b.txt", 218, 154, 17, 64, 57.3, 27.02, 36),
        ("bamboo/v100x1-east1c.txt", 598, 518, 30, 80, 76.3, 24.17, 55),
        ("oobleck_artifact/10m.csv", 30, 15, 15, 30, 23.0, 2.5, 15),
        # One of its nodes comes and goes in the same instant: added and removed at 39,960,000 ms.
        ("oobleck_artifact/scale_p3-trace.csv", 157, 141, 15, 30, 24.1, 11.37, 84),
        ("oobleck_artifact/scale_gcp-trace.csv", 89, 72, 15, 30, 22.2, 10.63, 63),
        ("parcae/p3.csv", 177, 167, 10, 32, 24.0, 11.37, 79),
        ("parcae/gpt-1.5b_trace_ll_10_11.txt", 18, 4, 14, 18, 14.6, 1.0, 3),
    ],
)
def test_published_traces_say_what_is_known_of_them(
    name: str, joins: int, lost: int, least: int, most: int, mean: float, hours: float, failures: int
) -> None:
    """Events, nodes and times are those of the list beside the files (means of samples are here over time)."""
    found = _summary(name)
    assert (found.events["join"], found.nodes_lost, found.failures) == (joins, lost, failures)
    assert (found.nodes_min, found.nodes_max, round(found.nodes_mean, 1)) == (least, most, mean)
    # What passes before the first nodes come is not counted: 480,000 ms.
    late_h = 480 / 3600 if "g4dn" in name or "gcp" in name else 0.0
    assert round(found.lasts_s / 3600 + late_h, 2) == pytest.approx(hours + late_h, abs=0.011)


@published
def test_the_fault_list_says_what_is_known_of_it() -> None:
    """A year of 400 nodes: 231 had faults, at most 35 were down at once; two faults lie within others."""
    entries = json.loads((TRACES / "stepfun/fault_trace.json").read_bytes())
    found = _summary("stepfun/fault_trace.json")
    assert len(entries) == 1168
    assert (found.nodes_at_start, found.nodes_min, found.distinct_nodes_lost) == (400, 400 - 35, 231)
    assert found.events == {"fail": 582, "join": 400 + 582}
    assert found.most_slow_at_once == 0
    slower = _summary("stepfun/fault_trace.json", slow_faults=SLOW_FAULTS)
    assert (slower.events["fail"], slower.most_slow_at_once) == (584 - 41, 7)  # 41 faults only slow a node down


@published
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_trace_written_as_ours_is_the_same(name: str, tmp_path: Path) -> None:
    """Converted and read again, a trace has the same moments."""
    ours = tmp_path / "t.jsonl"
    reading = TraceOptions(nodes=400, seed=3)
    write_events(str(ours), (one.event for one in read_events(str(TRACES / name), reading)))
    assert list(read_moments(str(ours))) == list(read_moments(str(TRACES / name), reading))


@published
def test_bamboos_and_parcaes_logs_of_p3_agree() -> None:
    """The same events with other line ends, and as counts, which name nobody."""
    one, other = (list(read_moments(str(TRACES / name))) for name in (PUBLISHED[0], "parcae/liveput_p3trace.csv"))
    assert one == other
    counts = list(read_moments(str(TRACES / "parcae/p3.csv")))
    assert [(moment.time_s, len(moment.fleet.nodes)) for moment in counts] == [
        (moment.time_s, len(moment.fleet.nodes)) for moment in one
    ]
