"""`rtk goodput`, as a user runs it: logs in, and a table, a page, a ledger or a trace out."""

import gzip
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import rtk as library
from rtk.profilers.ledger.failure_trace import costs_of, failures_of
from rtk.schemas.documents import read_document
from rtk.schemas.ledger import CLASSES, GoodputLedger
from rtk.schemas.trace import read_trace
from rtk.viz.ledger import segments_of

from .shell import rtk

DOCS = Path(__file__).parents[2] / "docs"
GOLDEN = Path(__file__).parents[1] / "golden"


def stamp(second: int) -> str:
    """A time of the job's day."""
    return f"2025-08-01 {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


def attempt(second: int, first: int, last: int, each_s: int = 10) -> list[str]:
    """Megatron's lines of an attempt that begins at some second, with a checkpoint at iteration 20."""
    lines = [
        "using world size: 16, data-parallel size: 2, tensor-model-parallel size: 4, pipeline-model-parallel size: 2",
        f"[after megatron is initialized] datetime: {stamp(second)} ",
    ]
    if first > 1:
        lines.append(f"  successfully loaded checkpoint from /ckpt [ t 1/4, p 1/2 ] at iteration {first - 1}")
    lines.append(f"[after model, optimizer, and learning rate scheduler are built] datetime: {stamp(second + 30)} ")
    for number in range(first, last + 1):
        second += each_s + 30 * (number == first)
        lines.append(
            f" [{stamp(second)}] iteration {number:8d}/ 1000 | consumed samples: 1 | elapsed time per iteration (ms): "
            f"{each_s * 1000}.0 | learning rate: 1.0E-04 | number of skipped iterations:   0 |"
        )
        if number == 20:
            lines.append("  successfully saved checkpoint from iteration      20 to /ckpt [ t 1/4, p 1/2 ]")
    return lines


LOG = "\n".join(
    [
        *attempt(0, 1, 30),
        "NCCL INFO Channel 00/02 : 0 1 2 3",
        f"slurmstepd: error: *** STEP 1.0 ON node7 CANCELLED AT {stamp(930).replace(' ', 'T')} DUE TO NODE FAILURE ***",
        *attempt(1530, 21, 60),
        f"[after training is done] datetime: {stamp(1530 + 30 + 400)} ",
        "",
    ]
)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A job that is lost at iteration 30, and goes on from 20 ten minutes after that was noticed."""
    path = tmp_path / "job.log"
    path.write_text(LOG)
    return str(path)


@pytest.mark.wheel("goodput")
def test_a_ledger_is_one_document(log: str) -> None:
    """With --json: the classes add up to the GPUs times the span."""
    done = rtk("goodput", log, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["format"] == "rtk.ledger"
    assert sum(found["time"].values()) == pytest.approx(16 * found["span_s"])
    assert found["span_s"] == 1960
    assert found["time"]["useful_gpu_s"] == 16 * 600
    assert found["time"]["redone_gpu_s"] == 16 * 100
    assert found["time"]["detection_gpu_s"] == 16 * 600
    (failure,) = found["failures"]
    assert "node failure" in failure["cause"]
    assert failure["iterations_lost"] == 10
    assert (found["lines"]["formats"], found["lines"]["read"]) == ({log: "megatron"}, LOG.count("\n"))


def test_what_people_read_begins_with_one_sentence(log: str) -> None:
    """How much made progress, and what cost most; then a line a class and a failure."""
    done = rtk("goodput", log)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert said.startswith("Of 8.71 GPU-hours, 30.6 % made progress; the most expensive: ")
    for name in CLASSES:
        assert re.search(rf"^{name} ", done.stdout, re.MULTILINE)
    assert "10 iterations lost" in said


@pytest.mark.parametrize("ending", ["html", "svg", "png", "json", "json.gz"])
def test_output_by_its_ending(log: str, tmp_path: Path, ending: str) -> None:
    """A page, a picture, or the ledger; the same each time; the ledger can be drawn later."""
    path = tmp_path / f"found.{ending}"
    done = rtk("goodput", log, "-o", str(path))
    assert done.returncode == 0, done.stderr
    first = path.read_bytes()
    assert rtk("goodput", log, "-o", str(path), "--force").returncode == 0
    assert path.read_bytes() == first
    if ending == "html":
        page = first.decode()
        assert "Of 8.71 GPU-hours, 30.6 % made progress" in page
        assert "<script" not in page
        assert page.count("<svg") == 2
    if ending == "json":
        assert read_document(str(path), GoodputLedger).goodput == pytest.approx(600 / 1960)
        assert rtk("viz", str(path), "-o", str(tmp_path / "later.html")).returncode == 0
        assert "30.6 % made progress" in rtk("viz", str(path)).stdout


def test_from_python(log: str, tmp_path: Path) -> None:
    """The same ledger, and its page."""
    found = library.goodput([log])
    assert json.loads(rtk("goodput", log, "--json").stdout)["time"]["idle_gpu_s"] == found.time.idle_gpu_s
    library.draw(found, str(tmp_path / "page.html"))
    assert "GPU-hours" in (tmp_path / "page.html").read_text()


def test_logs_that_are_packed_or_come_from_a_pipe(log: str, tmp_path: Path) -> None:
    """Read all the same."""
    packed = tmp_path / "job.log.gz"
    packed.write_bytes(gzip.compress(LOG.encode()))
    whole = json.loads(rtk("goodput", log, "--json").stdout)["time"]
    assert json.loads(rtk("goodput", str(packed), "--json").stdout)["time"] == whole
    assert json.loads(rtk("goodput", "-", "--json", stdin=LOG).stdout)["time"] == whole


def test_the_trace_of_failures_is_replayed_by_the_command_that_is_printed(log: str, tmp_path: Path) -> None:
    """With the profile and the cut filled in; the job's own costs are in it."""
    trace = str(tmp_path / "failures.jsonl")
    done = rtk("goodput", log, "--trace", trace, "--json")
    assert done.returncode == 0, done.stderr
    events = read_trace(trace).events
    assert [(one.kind, one.node, one.time_s) for one in events] == [
        ("join", "node1", 0.0),
        ("join", "node2", 0.0),
        ("fail", "node1", 330.0),
        ("join", "node1", 1530.0),
    ]
    (line,) = (line for line in done.stderr.splitlines() if line.lstrip().startswith("rtk replay"))
    filled = {"PROFILE": str(GOLDEN / "profile-slots4.json"), "STAGES": "4", "MICROBATCHES": "8"}
    words = [filled.get(word, word) for word in shlex.split(line)[1:]]
    replayed = rtk(*words, "--policies", "checkpoint-restart,spares,rtk", "--cost", "copy_bytes_per_s=1e9", "--json")
    assert replayed.returncode == 0, replayed.stderr
    hours = {one["policy"]: one["gpu_hours"]["lost"] for one in json.loads(replayed.stdout)["policies"]}
    assert hours["rtk"] < hours["checkpoint-restart"]


def test_costs_are_what_the_job_has_paid(log: str) -> None:
    """By the names of rtk replay --cost."""
    found = library.goodput([log])
    assert costs_of(found)["detection_s"] == 600.0
    assert costs_of(found)["mean_time_between_failures_s"] == 1960.0
    assert failures_of(found).events[-1].kind == "end"


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("nothing\nof any training\n", (), "iteration"),
        (LOG, ("-o", "page.txt"), "names neither a ledger nor a picture"),
        (LOG, ("--format", "torchtitan"), "iteration"),
        (LOG, ("--pattern", "("), "regular expression"),
        (LOG, ("--sacct", "nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_one_clear_error(text: str, arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """What, where, and what to do; nothing is written."""
    (tmp_path / "job.log").write_text(text)
    done = rtk("goodput", "job.log", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["job.log"]


def test_what_the_page_of_the_documentation_says_of_classes_is_what_the_ledger_says() -> None:
    """The table in docs/goodput.md has the words of `CLASSES`."""
    text = (DOCS / "goodput.md").read_text()
    for name, words in CLASSES.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        assert re.split(r"[:;.,]", words)[0].lower() in row.lower()


def test_the_patterns_of_the_documentation_read_such_lines(tmp_path: Path) -> None:
    """The example's expressions, on lines as it means them."""
    command = re.search(r"rtk goodput my\.log (.*?) --gpus", (DOCS / "goodput.md").read_text(), re.DOTALL)
    assert command is not None
    path = tmp_path / "my.log"
    lines = [f"{stamp(10 * number)} step {number} took 10000.0 ms" for number in range(1, 11)]
    path.write_text("\n".join([*lines, f"{stamp(104)} wrote step 10 in 4 s", ""]))
    words: list[Any] = shlex.split(command[1].replace("\\\n", " "))
    found = json.loads(rtk("goodput", str(path), *words, "--gpus", "64", "--json").stdout)
    assert found["time"]["useful_gpu_s"] == 64 * 100
    assert found["time"]["checkpoint_gpu_s"] == 64 * 4


def test_what_the_picture_says_of_idle_time_is_what_the_classes_say() -> None:
    """Between a launcher's word of a failure and its next start the job is not idle: it restarts."""
    found = library.goodput([str(Path(__file__).parents[1] / "profilers" / "logs" / "nvrx.log")])
    assert found.time.idle_gpu_s == 0
    drawn = [segment for attempt in found.attempts for segment in segments_of(attempt)]
    assert {name for name, _, _ in drawn} == {"restart", "useful", "redone", "detection"}
