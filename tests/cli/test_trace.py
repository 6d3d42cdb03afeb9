"""`rtk trace`, as a user runs it."""

import json
from pathlib import Path

import pytest

from rtk.runners.traces.read import TraceOptions, read_moments
from rtk.schemas.trace import read_trace

from .shell import rtk

MADE = ("generate", "--nodes", "2", "--days", "1", "--mtbf", "1d", "--repair", "1h")
SPOT = "480000,add,a\r\n480000,add,b\r\n540000,remove,a\r\n600000,add,c\r\n"
FAULTS = [
    {"node_id": "a", "event_time": 1, "event_type": kind, "fault_type": {"Desc": "NIC Link Speed low"}}
    for kind in ("fault_start", "fault_end")
]


@pytest.mark.wheel("trace convert")
def test_convert_writes_our_own_format(tmp_path: Path) -> None:
    """A log of spot instances becomes JSON lines from 0 on, which rtk reads; with `-` on standard output."""
    (tmp_path / "log.csv").write_text(SPOT)
    done = rtk("trace", "convert", "log.csv", "-o", "ours.jsonl", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "wrote ours.jsonl: 4 events\n")
    events = read_trace(str(tmp_path / "ours.jsonl")).events
    assert [(event.time_s, event.kind, event.node) for event in events] == [
        (0.0, "join", "a"),
        (0.0, "join", "b"),
        (60.0, "fail", "a"),
        (120.0, "join", "c"),
    ]
    assert rtk("trace", "convert", "-", stdin=SPOT).stdout == (tmp_path / "ours.jsonl").read_text()


def test_convert_takes_what_a_trace_does_not_say(tmp_path: Path) -> None:
    """Units, the cluster's size, who leaves, faults that are slow, times of iterations and of messages."""
    (tmp_path / "counts.csv").write_text("0,3\n2,1\n")
    done = rtk("trace", "convert", "counts.csv", "--format", "counts-h", "--leaving", "newest", cwd=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["time_s"], row.get("node")) for row in rows[3:]] == [(7200, "node3"), (7200, "node2"), (7200, None)]
    (tmp_path / "faults.json").write_text(json.dumps(FAULTS))
    done = rtk("trace", "convert", "faults.json", "--nodes", "3", "--slow-faults", cwd=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["node"] for row in rows} == {"a", "node1", "node2"}
    assert [(row["kind"], row.get("factor")) for row in rows[3:]] == [("slow_compute", 2.0), ("recover", None)]
    own = '{"iteration": 3, "kind": "slow_link", "node": "node1", "peer": "node2", "factor": 4}'
    given = ("--nodes", "2", "--iteration-time", "2s", "--link-time", "1ms")
    assert '"time_s": 6.0' in rtk("trace", "convert", "-", *given, stdin=own).stdout
    shown = json.loads(rtk("trace", "show", "-", *given, "--json", stdin=own).stdout)
    assert (shown["lasts_s"], shown["nodes_at_start"]) == (6.0, 2)


@pytest.mark.wheel("trace generate")
def test_generate_says_by_its_seed_what_happens(tmp_path: Path) -> None:
    """The same options and seed give the same bytes; another seed others; the trace is as long as asked for."""
    options = ("trace", "generate", "--nodes", "8", "--days", "30", "--mtbf", "10d", "--repair", "4h")
    more = ("--distribution", "weibull", "--shape", "0.7", "--repair-distribution", "lognormal", "--rack-size", "4")
    slow = ("--rack-mtbf", "20d", "--slow-every", "5d", "--slow-link-every", "9d", "--slow-link-delay", "30ms")
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        done = rtk(*options, *more, *slow, "--seed", seed, "-o", name, cwd=tmp_path)
        assert (done.returncode, done.stderr[:8]) == (0, f"wrote {name}:")
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c
    moments = list(read_moments(str(tmp_path / "a"), TraceOptions()))
    assert (len(moments[0].fleet.nodes), moments[-1].time_s) == (8, 30 * 86_400)
    assert {takes_s for moment in moments for takes_s in moment.fleet.slow_links.values()} == {0.03}
    assert {factor for moment in moments for factor in moment.fleet.slow.values()} == {1.5}


@pytest.mark.wheel("trace show")
def test_show_tells_a_trace_in_numbers() -> None:
    """A table for people, one JSON document for programs."""
    table = rtk("trace", "show", "-", stdin=SPOT).stdout
    assert [line.split()[-1] for line in table.splitlines() if line.startswith(("lasts", "nodes at"))] == ["min", "2"]
    assert "1 fail, 3 join" in table
    found = json.loads(rtk("trace", "show", "-", "--json", stdin=SPOT).stdout)
    assert (found["lasts_s"], found["nodes_mean"], found["failures"]) == (120.0, 1.5, 1)


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (("show", "-"), "0,add,a\n5,remove,b\n", "b is removed, but never came\nat: standard input, line 2\ndo:"),
        (("show", "-"), "5,add,a\n4,add,b\n", "before the one ahead of it\nat: standard input, line 2\ndo: sort"),
        (("show", "-"), "", "the trace is empty\nat: standard input\ndo:"),
        (("show", "-", "--trace-format", "counts-s"), "0,4\n1,-1\n", "the count -1 is below zero\nat: standard input"),
        (("convert", "-"), "0,4\n", "do: say --trace-format counts-ms, counts-s or counts-h"),
        (("show", "-", "--iteration-time", "2GB"), "", "'GB' in '2GB' is no unit here\nat: --iteration-time"),
        (
            ("generate", "--nodes", "2", "--days", "1", "--mtbf", "1d"),
            "",
            "--mtbf without a time of repair\nat: --repair",
        ),
        (("generate", "--nodes", "2", "--days", "1", "--rack-size", "2"), "", "do: add --rack-mtbf"),
        (("generate", "--nodes", "2", "--days", "0"), "", "a trace cannot last 0 s\nat: --days"),
        ((*MADE, "--mtbf", "0s"), "", "the mean 0 s of a distribution is not a millisecond or more\nat: --mtbf"),
        ((*MADE, "--repair", "1ns"), "", "the mean 0.001 µs of a distribution is not a millisecond or more\nat: --rep"),
        ((*MADE, "--shape", "0.7"), "", "means nothing here\nat: --shape\ndo: add --distribution weibull"),
        ((*MADE, "--repair-sigma", "2"), "", "at: --repair-sigma\ndo: add --repair-distribution lognormal"),
        ((*MADE, "--rack-repair", "2h"), "", "at: --rack-repair\ndo: add --rack-mtbf"),
        ((*MADE, "--slow-factor", "3"), "", "at: --slow-factor\ndo: add --slow-every"),
        ((*MADE, "--slow-link-delay", "3s"), "", "at: --slow-link-delay\ndo: add --slow-link-every"),
        ((*MADE, "--distribution", "weibull", "--shape", "0.001"), "", "cannot have the shape 0.001\nat: --shape"),
        ((*MADE, "--repair-distribution", "lognormal", "--repair-sigma", "9"), "", "shape 9\nat: --repair-sigma"),
        ((*MADE, "--slow-every", "1h", "--slow-factor", "inf"), "", "a slow node's factor cannot be inf"),
        (("generate", "--nodes", "2", "--days", "1", "--repair", "4h"), "", "nothing fails that could be repaired"),
        (("show", "-", "--trace-format", "counts-s"), "0,4\n1,99999999999\n", "99999999999 nodes are too many"),
        (("show", "-"), "time_s,time_s,kind,node\n0,1,join,a\n", "a name stands twice in the first line"),
        (("show", "-"), 'time_s,kind,node\n0,join,"a\n', "not valid CSV: unexpected end of data"),
        (
            ("show", "-"),
            '{"time_s": 0, "kind": "join", "node": ""}',
            "at least 1 character\nat: standard input, /events/0",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], stdin: str, says: str) -> None:
    """Each is exit code 2 and an error that says what, where and what to do."""
    done = rtk("trace", *arguments, stdin=stdin)
    assert done.returncode == 2
    assert says in done.stderr


def test_show_has_narrow_columns(tmp_path: Path) -> None:
    """However long the path is, the numbers stand beside what they are."""
    path = tmp_path / f"{'long' * 20}.csv"
    path.write_text(SPOT)
    assert max(len(line.rstrip()) for line in rtk("trace", "show", str(path)).stdout.splitlines()[1:]) < 60


def test_convert_leaves_nothing_of_a_trace_that_is_wrong(tmp_path: Path) -> None:
    """An error in the last line leaves no file."""
    done = rtk("trace", "convert", "-", "-o", "t", stdin=f"{SPOT}0,add,z\n", cwd=tmp_path)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []
