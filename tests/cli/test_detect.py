"""`rtk detect` from files to findings."""

import json
import random
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest

from rtk.profilers.failslow.readers.formats import READERS
from rtk.schemas.detection import PLACES, Detection
from rtk.schemas.documents import parse_document
from rtk.schemas.log_formats import SeriesFormat

from .shell import RTK, rtk


def times_s(count: int = 300, slow: Iterable[int] = range(150, 210), factor: float = 1.5) -> list[float]:
    """A series with one fail-slow in it."""
    noise, slow = random.Random(0), set(slow)
    return [0.5 * noise.gauss(1, 0.01) * (factor if i in slow else 1) for i in range(count)]


def megatron(times: Iterable[float]) -> str:
    """A log as Megatron-LM writes it."""
    return "".join(
        f" iteration {10 * i:8d}/    5000 | elapsed time per iteration (ms): {1000 * time_s:.1f} | lm loss: 1.0 |\n"
        for i, time_s in enumerate(times, start=1)
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(megatron(times_s()))
    return path


def document(out: str) -> dict[str, Any]:
    """The one JSON document on standard output, as it says itself, once it has been validated."""
    parse_document(out.encode(), Detection, "out")
    tree: dict[str, Any] = json.loads(out)
    return tree


@pytest.mark.wheel("detect")
def test_a_fail_slow_in_a_log_is_a_document_and_a_table(log: Path) -> None:
    """Onset, confirmation within 15 iterations, relief and severity, as JSON and as a table; exit code 0."""
    done = rtk("detect", str(log), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = document(done.stdout)["files"]
    (event,) = found["events"]
    assert (found["file"], found["kind"], found["samples"]) == (str(log), "megatron", 300)
    assert (event["onset"], event["relief"], event["cause"], event["scope"]["kind"]) == (150, 210, "unknown", "job")
    assert event["provisional"] == 152 and event["confirmed"] <= 165
    assert event["severity"] == pytest.approx(1.5, rel=0.02)
    assert event["evidence"][1] == "from iteration 1510 to 2100"
    table = rtk("detect", str(log)).stdout
    assert "megatron, 300 samples, usually" in table and "1.50 x" in table and "60 of 60 samples" in table


def test_a_table_is_in_the_logs_own_iterations_and_80_columns(log: Path) -> None:
    """Places are iterations where the log numbers them, else samples; the evidence stands below, in whole lines."""
    (event,) = document(rtk("detect", str(log), "--json").stdout)["files"][0]["events"]
    assert event["iterations"] == {name: 10 * event[name] + 10 for name in PLACES}
    _, head, row, evidence = rtk("detect", str(log)).stdout.splitlines()
    assert head.split() == ["since", "iteration", "suspected", "confirmed", "until", "slow-down", "cause", "where"]
    assert row.split() == ["1510", "1530", str(event["iterations"]["confirmed"]), "2110", "1.50", "x", "unknown", "job"]
    assert len(head.rstrip()) <= 80 and len(row.rstrip()) <= 80
    assert evidence.startswith("since 1510: 60 of 60 samples above 1.10 x the usual ")
    plain = rtk("detect", "-", stdin="".join(f"{time_s}\n" for time_s in times_s())).stdout.splitlines()
    assert plain[1].startswith("since sample")
    assert plain[2].split()[0] == "150"


@pytest.mark.parametrize("count", [1, 5, 20])
def test_too_few_samples_tell_nothing(count: int) -> None:
    """Where no fail-slow could have been found, none is ruled out: the line says how many samples are needed."""
    said = rtk("detect", "-", stdin=megatron(times_s()[:count])).stdout
    assert "too few to tell whether anything is slow (21 are needed)" in said
    assert "nothing slow" not in said
    assert "nothing slow" in rtk("detect", "-", stdin=megatron(times_s()[:21])).stdout


def test_exit_code_says_whether_anything_is_slow(log: Path, tmp_path: Path) -> None:
    """With --exit-code 1 for a finding, 0 for none."""
    well = tmp_path / "well.txt"
    well.write_text("".join(f"{time_s}\n" for time_s in times_s(slow=())))
    assert rtk("detect", str(log), "--exit-code").returncode == 1
    assert rtk("detect", str(well), "--exit-code", "--json").returncode == 0
    assert rtk("detect", str(well)).stdout.rstrip().endswith("nothing slow")


def test_short_and_constant_series_are_well() -> None:
    """One iteration, or always the same time: no events, and no error."""
    for series, count in (("0.5\n", 1), ("0.5\n" * 500, 500)):
        (found,) = document(rtk("detect", "-", "--json", stdin=series).stdout)["files"]
        assert (found["samples"], found["events"]) == (count, [])


def test_several_files_in_their_order_with_a_picture(log: Path, tmp_path: Path) -> None:
    """Each file has its findings, in order; the picture has a panel each, and nothing half-written stays."""
    packed = tmp_path / "out.html.gz"
    done = rtk("detect", "-", str(log), "--json", "-o", str(packed), stdin="0.5\n" * 30)
    assert [found["file"] for found in document(done.stdout)["files"]] == ["-", str(log)]
    assert done.stderr == f"wrote {packed}\n"
    assert rtk("detect", str(log), "-o", str(tmp_path / "out.svg"), "--quiet").returncode == 0
    assert (tmp_path / "out.svg").read_text().startswith("<svg ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html.gz", "out.svg", "train.log"]


def test_formats_are_those_of_the_readers() -> None:
    """--format names every reader, and the two kinds of files that are no series."""
    assert set(get_args(SeriesFormat)) == set(READERS)


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    """A log that begins with a number is read as what --format says."""
    path = tmp_path / "odd.log"
    path.write_text("12345\n" + megatron(times_s()))
    assert "not a number" in rtk("detect", str(path)).stderr
    assert "1 fail-slow" in rtk("detect", str(path), "--format", "megatron").stdout


@pytest.mark.parametrize("mode", ["robust", "paper"])
def test_both_modes_find_what_is_plain(log: Path, mode: str) -> None:
    """The paper's detector finds a fail-slow of 1.5 times, too; --shortest is for the other one."""
    (found,) = document(rtk("detect", str(log), "--json", "--mode", mode).stdout)["files"]
    assert len(found["events"]) == 1
    (sooner,) = document(rtk("detect", str(log), "--json", "--mode", mode, "--shortest", "8").stdout)["files"]
    gained = found["events"][0]["confirmed"] - sooner["events"][0]["confirmed"]
    assert gained > 0 if mode == "robust" else gained == 0


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["missing.log"], "No such file"),
        (["."], "Is a directory"),
        (["empty.log"], "the file is empty"),
        (["nan.txt"], "nan.txt, line 2"),
        (["train.log", "-o", "out.jpg"], "names no picture"),
        (["train.log", "-o", "no/out.svg"], "nothing can be written into the folder no\nat: --output no/out.svg"),
        (["-", "-"], "only once"),
        (["train.log", "-", "--follow"], "2 files to be followed"),
        (["train.log", "--follow", "--format", "operations"], "whole files"),
        (["train.log", "--shortest", "2"], "shortest"),
        (["train.log", "--format", "numbers"], "not a number"),
    ],
)
def test_what_makes_no_sense_is_one_clear_error(log: Path, arguments: list[str], what: str) -> None:
    """Exit code 2, the reason on standard error, nothing on standard output, and no file is left behind."""
    (log.parent / "empty.log").write_text("")
    (log.parent / "nan.txt").write_text("0.5\nnan\n")
    done = rtk("detect", *arguments, cwd=log.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert what in done.stderr and "Traceback" not in done.stderr
    assert len(list(log.parent.iterdir())) == 3


def test_standard_input_is_followed_to_its_end() -> None:
    """Each change is a line as it comes, and the findings are the same as without --follow."""
    text = megatron(times_s())
    done = rtk("detect", "-", "--follow", "--json", stdin=text)
    assert json.loads(done.stdout) == json.loads(rtk("detect", "-", "--json", stdin=text).stdout)
    kinds = [line.split(": ")[1].split(":")[0] for line in done.stderr.splitlines()]
    assert kinds == ["suspicion", "confirmed", "relief"]
    assert "since iteration 1510" in done.stderr
    assert rtk("detect", "-", "--follow", stdin=text).stdout.startswith(done.stderr)
    assert rtk("detect", "-", "--follow", "--json", "--quiet", stdin=text).stderr == ""


def test_a_growing_log_is_followed_until_ctrl_c(tmp_path: Path) -> None:
    """What is appended is found within the second, and an interrupt ends with the document and exit code 0."""
    path = tmp_path / "train.log"
    rows = megatron(times_s(slow=range(150, 300))).splitlines(keepends=True)
    path.write_text("".join(rows[:150]))
    command = [*RTK, "detect", "--follow", "--json", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        with path.open("a") as stream:
            stream.write("".join(rows[150:]) + " iteration     9999/  5000 | elapsed ti")
        assert "suspicion" in process.stderr.readline()
        assert "confirmed" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    (found,) = document(out)["files"]
    assert process.returncode == 0 and 150 < found["samples"] <= 300
    assert [(event["onset"], event["relief"]) for event in found["events"]] == [(150, None)]


def test_call_logs_are_read_whole_or_as_they_come(tmp_path: Path) -> None:
    """The same fail-slow is found in a file of calls, on standard input, and beside a log of iteration times."""
    t_s, rows = 0.0, list[dict[str, Any]]()
    for time_s in times_s(slow=range(150, 210)):
        rows += [
            {"t": t_s + time_s * number / 4, "rank": 0, "op": "all_reduce", "group": "dp", "bytes": number}
            for number in range(4)
        ]
        t_s += time_s
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "calls.jsonl").write_text(text)
    for arguments in (["calls.jsonl", "-"], ["-", "--format", "calls"], ["-", "--follow"]):
        done = rtk("detect", *arguments, "--json", stdin=text, cwd=tmp_path)
        for found in document(done.stdout)["files"]:
            (event,) = found["events"]
            assert found["kind"] == "call log"
            assert abs(event["onset"] - 150) <= 1 and abs(event["relief"] - 210) <= 1


def test_a_table_of_operations_that_is_none_is_refused(tmp_path: Path) -> None:
    """--format operations hands a file to the reader of such tables, whose error names it."""
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    done = rtk("detect", "table.csv", "--format", "operations", cwd=tmp_path)
    assert done.returncode == 2 and "table.csv" in done.stderr


def test_the_lines_of_rtk_run_are_followed_to_its_end(tmp_path: Path) -> None:
    """A run's JSON lines say when it is over: nobody has to interrupt."""
    rows: list[dict[str, Any]] = [{"event": "start"}]
    rows += [{"event": "iteration", "iteration": i, "iteration_time_s": t} for i, t in enumerate(times_s())]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"event": "end"}]))
    done = rtk("detect", "--follow", str(path))
    assert done.returncode == 0 and "relief: as usual again since iteration 210" in done.stdout
