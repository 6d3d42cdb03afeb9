"""`rtk plan slipstream` as a user types it: plans, atlases, interruptions, and what is refused."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rtk.schemas.documents import write_document
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile

from .shell import RTK, Done, rtk, rtk_process

GOLDEN = Path(__file__).parent.parent / "golden"
SHAPE = ("--pp", "4", "--dp", "3", "--microbatches", "6")
SMALL = ("p.json", *SHAPE)
# Entries that take a tenth of a second and more each: time enough to be killed in.
# Too large for a search, too unlike for slots: some hundredths of a second an entry.
LONG = ("uneven.json", "--pp", "8", "--dp", "16", "--microbatches", "32", "--max-failures", "20%")
LONG_ENTRIES = 26  # a fifth of 128 workers, and none


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with profiles of alike stages, of layers with sizes and a network, and of unlike layers."""
    place = tmp_path_factory.mktemp("slipstream")
    (place / "p.json").write_text((GOLDEN / "profile-slots4.json").read_text())
    cost = LayerCost(0.01, 0.01, 0.01, optimizer_s=0.001)
    sized = Layer((cost,), parameter_bytes=2**27, state_bytes=3 * 2**28, activation_bytes=2, weight_stash_bytes=1)
    network = Network(inter_node=Connection(1e-5, 1e10))
    write_document(str(place / "sized.json"), Profile((sized,) * 8, network=network))
    uneven = (LayerCost(1 + 0.13 * (5 * i % 7), 1.1 + 0.07 * (3 * i % 5), 0.9 + 0.05 * (i % 3)) for i in range(8))
    layers = tuple(Layer((cost,), activation_bytes=2, weight_stash_bytes=1) for cost in uneven)
    write_document(str(place / "uneven.json"), Profile(layers))
    done = plan(*SMALL, "--max-failures", "2", "-o", "atlas", cwd=place)
    assert done.returncode == 0, done.stderr
    return place


def plan(*arguments: str, cwd: Path) -> Done:
    return rtk("plan", "slipstream", *arguments, cwd=cwd)


def made(*arguments: str, cwd: Path) -> tuple[dict[str, Any], str]:
    """A plan that a command prints, and its remarks."""
    done = plan(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("technique", "makespan_s", "period_s"), [("adaptive", 33, None), ("decoupled", 29, None), ("staggered", 29, 27)]
)
def test_the_example_of_the_paper(technique: str, makespan_s: float, period_s: float | None, folder: Path) -> None:
    """Worker 1/2 dead: each technique reaches its proven optimum, and checker and simulator agree."""
    name = f"{technique}.json"
    tree, _ = made(*SMALL, "--failed", "1/2", "--technique", technique, "--json", "-o", name, cwd=folder)
    promise = tree["prediction"]
    assert (promise["proof"], promise["iteration_time_s"]) == ("optimal", period_s or makespan_s)
    assert promise["makespan_s"] == makespan_s
    dead = [f"{worker['pipeline']}/{worker['stage']}" for worker in tree["workers"] if worker.get("failed")]
    assert dead == ["1/2"]
    assert rtk("verify", name, "--profile", "p.json", cwd=folder).returncode == 0
    report = json.loads(rtk("simulate", name, "--json", cwd=folder).stdout)
    assert all(report[key] == promise[key] for key in ("iteration_time_s", "makespan_s", "period_s"))


def test_the_example_can_be_drawn_and_told(folder: Path) -> None:
    """The dead worker has an empty row and its micro-batches are marked; `diff` says who runs which of them."""
    for name, option in (("whole.json", ("--failures", "0")), ("dead.json", ("--failed", "1/2"))):
        assert plan(*SMALL, *option, "-o", name, cwd=folder).returncode == 0
    rows = rtk("viz", "dead.json", cwd=folder, environment={"NO_COLOR": "1"}).stdout.splitlines()
    assert [row.strip() for row in rows if row.startswith("1/2")] == ["1/2"]
    assert any("re-routed from pipeline 1" in row for row in rows)
    told = rtk("diff", "whole.json", "dead.json", cwd=folder).stdout
    assert "worker 1/2 failed" in told
    (moved,) = re.findall("micro-batches 1.0–1.5 of stage 2 moved from worker 1/2 to (.*)", told)  # noqa: RUF001
    assert sorted(re.findall(r"\d/2", moved)) == ["0/2", "2/2"]
    assert sorted(re.findall(r"1\.\d", moved)) == [f"1.{number}" for number in range(6)]
    assert "iteration time: 19 s → 27 s (+8 s, +42.1 %)" in told


def test_in_place_and_normalized_are_both_said(folder: Path) -> None:
    """A plan in place says what normalization would move and gain, a normalized one what it does, in GiB and ms."""
    job = ("sized.json", *SHAPE, "--technique", "adaptive", "--failed", "1/2", "-o")
    in_place = plan(*job, "in_place.json", cwd=folder).stderr
    normalized = plan(*job, "normalized.json", "--failures", "1", cwd=folder).stderr
    moves = "2/0 becomes 1/2; 1.75 GiB to copy in 187.9 ms, which pays after "
    assert "in place; normalized 617.9 ms: " in in_place
    assert "normalized, not in place (697.9 ms): " in normalized
    assert moves in in_place
    assert moves in normalized
    failed = [json.loads((folder / f"{name}.json").read_text())["planner"]["options"]["failed"] for name in
              ("in_place", "normalized")]  # fmt: skip
    assert failed == [["1/2"], ["2/0"]]


@pytest.mark.parametrize(
    ("technique", "arguments", "remark"),
    [
        ("adaptive", ("--failures", "0"), None),
        ("adaptive", ("--failures", "1"), "at most 1 worker must move and 1.75 GiB be copied; --failed k/i… beside"),
        ("adaptive", ("--failures", "3"), "at most 3 workers must move and 5.25 GiB be copied; "),
        (
            "adaptive",
            ("--failures", "1", "--failed", "2/0"),
            "no other places for the failures would be better",
        ),
        ("decoupled", ("--failed", "1/2", "--slow", "0/1=1.5"), None),
    ],
)
def test_remarks_fit_their_numbers(
    technique: str, arguments: tuple[str, ...], remark: str | None, folder: Path
) -> None:
    """One and many are told apart, and nothing is said of moves where there are none to make."""
    _, said = made("sized.json", *SHAPE, "--technique", technique, *arguments, cwd=folder)
    lines = said.splitlines()
    assert re.match(r"iteration \d{3}\.\d ms \(optimal", lines[0])
    assert len(lines) == (1 if remark is None else 2)
    assert remark is None or remark in lines[1]


def test_a_profile_without_sizes_promises_no_bytes(folder: Path) -> None:
    """Where the profile gives no sizes, no remark speaks of 0 bytes or of copies that have paid at once."""
    for failures in ((), ("--failures", "1")):
        _, said = made(*SMALL, "--technique", "adaptive", "--failed", "1/2", *failures, cwd=folder)
        assert "2/0 becomes 1/2; the profile does not say how many bytes that copies" in said


def test_units_die_together(folder: Path) -> None:
    """With --failure-unit one named worker takes its whole unit along."""
    options = made(*SMALL, "--failure-unit", "1x2", "--failed", "1/2", cwd=folder)[0]["planner"]["options"]
    assert options["failed"] == ["1/2", "1/3"]
    shape = ("p.json", "--pp", "4", "--dp", "4", "--microbatches", "4")
    options = made(*shape, "--failure-unit", "2x1", "--failed", "1/2", cwd=folder)[0]["planner"]["options"]
    assert options["failed"] == ["0/2", "1/2"]


def test_json_is_one_document(folder: Path) -> None:
    """--json prints one document and nothing else: the plan, or the atlas; --quiet leaves standard error empty."""
    done = plan(*SMALL, "--failed", "1/2", "--json", "--quiet", "-o", "zipped.json.gz", cwd=folder)
    assert json.loads(done.stdout)["format"] == "rtk.plan"
    assert done.stderr == ""
    assert gzip.decompress((folder / "zipped.json.gz").read_bytes()) == done.stdout.encode()
    assert plan(*SMALL, "--failed", "1/2", "--json", cwd=folder).stdout == done.stdout
    done = plan(*SMALL, "--json", "--quiet", "-o", "printed", cwd=folder)
    assert json.loads(done.stdout)["format"] == "rtk.atlas"
    assert (folder / "printed" / "atlas.json").read_text() == done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    "job",
    [
        SMALL,
        # Unlike stages with full backwards: a search finds one of the plans, which is then stored.
        ("uneven.json", "--pp", "4", "--dp", "2", "--microbatches", "4", "--technique", "adaptive"),
    ],
    ids=["by recipe", "stored"],
)
def test_a_plan_from_an_atlas_is_the_plan_made_directly(job: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """For every number of failures, and for their places, an atlas gives the very bytes that planning gives."""
    atlas = str(tmp_path / "atlas")
    assert plan(*job, "-o", atlas, cwd=folder).returncode == 0
    entries = json.loads((tmp_path / "atlas" / "atlas.json").read_text())["plans"]
    named = ("--failures", "1", "--failed", "1/2")
    for asked in (*(("--failures", str(number)) for number in range(len(entries))), named):
        direct, rebuilt = plan(*job, *asked, cwd=folder), plan("--from", atlas, *asked, cwd=folder)
        assert direct.returncode == rebuilt.returncode == 0, direct.stderr + rebuilt.stderr
        assert rebuilt.stdout == direct.stdout
    assert plan("--from", atlas, *named[2:], cwd=folder).stdout == direct.stdout


@pytest.fixture(scope="module")
def long_atlas(folder: Path) -> dict[str, bytes]:
    """The files of an atlas that was never interrupted."""
    done = plan(*LONG, "-o", "through", cwd=folder)
    assert done.returncode == 0, done.stderr
    return contents(folder / "through")


def test_several_processes_make_the_same_atlas(long_atlas: dict[str, bytes], folder: Path) -> None:
    """--jobs 2 gives the same bytes as --jobs 1, and going on from a smaller atlas as well."""
    assert plan(*LONG[:-1], "4", "-o", "jobs", cwd=folder).returncode == 0
    done = rtk_process("plan", "slipstream", *LONG, "--jobs", "2", "-o", "jobs", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert f"5 of {LONG_ENTRIES} plans are there already" in done.stderr
    assert contents(folder / "jobs") == long_atlas


@pytest.mark.parametrize(
    ("jobs", "blow", "code"),
    [("1", signal.SIGKILL, -9), ("2", signal.SIGKILL, -9), ("2", signal.SIGINT, 130)],
)
def test_an_interruption_loses_nothing(
    jobs: str, blow: signal.Signals, code: int, long_atlas: dict[str, bytes], folder: Path, tmp_path: Path
) -> None:
    """Killed or interrupted midway, an atlas ends at once and leaves no process; the same command goes on from what was
    finished, and ends in the bytes of an atlas that was never interrupted."""
    journal = tmp_path / "a" / "unfinished.jsonl"
    command = [*RTK, "plan", "slipstream", *LONG, "--jobs", jobs, "-o", str(tmp_path / "a")]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as run:
        _until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 3)
        workers = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        run.send_signal(blow)
        assert run.wait(60) == code
        assert run.stderr is not None
        said = run.stderr.read()
        assert ("the same command goes on from there" in said) == said.endswith("interrupted\n") == (code == 130)
    _until(lambda: not any(_runs(pid) for pid in workers))

    finished = journal.read_text().splitlines()
    assert 3 < len(finished) <= LONG_ENTRIES
    assert plan("--from", str(tmp_path / "a"), "--failures", "1", cwd=folder).returncode == 2
    done = plan(*LONG, "-o", str(tmp_path / "a"), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert f"{len(finished) - 1} of {LONG_ENTRIES} plans are there already" in done.stderr
    assert contents(tmp_path / "a") == long_atlas


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _runs(pid: str) -> bool:
    """Whether a process is there and no zombie, which nobody may be there to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.usefixtures("short_search")
def test_a_plan_that_is_not_proven_ends_with_4(folder: Path) -> None:
    """--require-optimal ends with 4 where the bound is not reached, and the plan or atlas is written all the same."""
    job = ("p.json", "--pp", "2", "--dp", "3", "--microbatches", "3", "--memory-limit", "2", "--solver", "heuristic")
    done = plan(*job, "--failed", "0/1", "--require-optimal", "-o", "open.json", cwd=folder)
    assert done.returncode == 4
    assert "s is not proven optimal: the bound is " in done.stderr
    assert json.loads((folder / "open.json").read_text())["prediction"]["proof"] == "bound"
    done = plan(*job, "--require-optimal", "-o", "open", cwd=folder)
    assert done.returncode == 4
    assert " failure" in done.stderr
    assert (folder / "open" / "atlas.json").exists()


LOST = "stage 2 has lost all its workers: no peer holds its parameters"
ALL_OF_STAGE_2 = ("--failed", "0/2", "--failed", "1/2", "--failed", "2/2")
FROM = ("--from", "atlas")


@pytest.mark.parametrize(
    ("arguments", "code", "what", "where"),
    [
        ((*SMALL, "--failed", "1/2", "--failed", "1/2"), 2, "worker 1/2 is named twice", "--failed"),
        ((*SMALL, "--failed", "3/2"), 2, "there is no worker 3/2", "--failed"),
        ((*SMALL, "--failed", "1-2"), 2, "'1-2' cannot be read", "--failed"),
        ((*SMALL, *ALL_OF_STAGE_2), 3, LOST, "--failed"),
        ((*SMALL, *ALL_OF_STAGE_2, "--slow", "0/1=2"), 3, LOST, "--failed"),
        ((*SMALL, "--failures", "9"), 3, "9 failures leave a stage without a live worker", "--failures"),
        ((*SMALL, "--max-failures", "9"), 3, "9 failures leave a stage without a live worker", "--max-failures"),
        ((*SMALL, "--max-failures", "100%"), 3, "12 failures leave a stage", "--max-failures"),
        ((*SMALL, "--max-failures", "101%"), 2, "'101%' cannot be read", "--max-failures"),
        ((*SMALL, "--max-failures", "many"), 2, "'many' cannot be read", "--max-failures"),
        ((*SMALL, "--failure-unit", "2x"), 2, "'2x' cannot be read", "--failure-unit"),
        ((*SMALL, "--failure-unit", "1x3"), 2, "do not divide 3 pipelines x 4 stages", "--failure-unit"),
        ((*SMALL, "--max-failures", "2", "--failed", "1/2"), 2, "an atlas is for any failures", "--max-failures"),
        ((*SMALL, "--failures", "2", "--failed", "1/2"), 2, "--failures says 2", "--failed"),
        ((*SMALL, "--failures", "1", "--slow", "0/1=2"), 2, "between workers that differ", "--slow or --link-delay"),
        ((*SMALL, "--slow", "0/1=2"), 2, "which must be equal", "--slow or --link-delay"),
        ((*SMALL, "--link-delay", "1/0=2"), 2, "which must be equal", "--slow or --link-delay"),
        ((*SMALL, "--slow", "0/1=2", "--slow", "0/01=3", "--failed", "1/2"), 2, "'0/01=3' cannot be read", "--slow"),
        ((*SMALL, "--memory-limit", "0.5"), 3, "its memory limit is 0.5", "--memory-limit"),
        ((*SMALL, "-o", "-"), 2, "it cannot go to standard output", "--output"),
        ((*SMALL, "-o", "made.json"), 2, "it cannot go to a file such as made.json", "--output"),
        ((*SMALL, "-o", "nowhere/made"), 2, "nothing can be written into the folder nowhere", "--output nowhere/made"),
        (("p.json", *SHAPE[2:], "--failures", "1"), 2, "it must be given", "--pp"),
        ((*SHAPE, "--failures", "1"), 2, "it must be given", "PROFILE"),
        ((*FROM,), 2, "which plan of the atlas?", "--from"),
        ((*FROM, "--failures", "3"), 2, "the atlas has plans for up to 2 failures", "--failures"),
        ((*FROM, *ALL_OF_STAGE_2), 2, "the atlas has plans for up to 2 failures", "--failed"),
        ((*FROM, "--failures", "1", "--failed", "0/2", "--failed", "1/2"), 2, "--failures says 1", "--failed"),
        ((*FROM, "--failures", "1", "--pp", "4"), 2, "the atlas was made with a value of its own", "--pp"),
        ((*FROM, "--failures", "1", "--technique", "staggered"), 2, "a value of its own", "--technique"),
        (("sized.json", *FROM, "--failures", "1"), 2, "from another profile", "atlas, /inputs/profile"),
        (("--from", "nowhere", "--failures", "1"), 2, "there is no atlas here", "nowhere"),
    ],
)
def test_wrong_usage_is_one_clear_error(
    arguments: tuple[str, ...], code: int, what: str, where: str, folder: Path
) -> None:
    """Every wrong call says what, at which option or place, and what to do (of a lost stage, what the paper does
    then); nothing is left behind."""
    before = {path.name for path in folder.iterdir()}
    output = () if "-o" in arguments else ("-o", "made")
    done = plan(*arguments, *output, cwd=folder)
    error, place, todo = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, "")
    assert error.startswith("error: ")
    assert what in error
    assert place == f"at: {where}"
    assert todo.startswith("do: restore a checkpoint and plan a new shape" if what == LOST else "do: ")
    assert {path.name for path in folder.iterdir()} == before


def test_a_negative_number_of_failures_is_refused(folder: Path) -> None:
    """--failures below 0 is wrong usage, with and without an atlas."""
    for job in (SMALL, FROM):
        done = plan(*job, "--failures", "-1", cwd=folder)
        assert done.returncode == 2
        assert "at: --failures\n" in done.stderr


def test_a_folder_of_another_atlas_stays_as_it_is(folder: Path) -> None:
    """Neither another profile nor another technique overwrites an atlas; the error points at what differs."""
    before = contents(folder / "atlas")
    for job, difference in (
        (("sized.json", *SHAPE), "/inputs/profile"),
        ((*SMALL, "--technique", "adaptive"), "/split"),
    ):
        done = plan(*job, "-o", "atlas", cwd=folder)
        assert done.returncode == 2
        assert "the folder holds the atlas of other inputs: they differ at " in done.stderr
        assert difference in done.stderr
        assert contents(folder / "atlas") == before


def test_an_unfinished_atlas_is_no_atlas_yet(folder: Path, tmp_path: Path) -> None:
    """A folder with a journal only is refused, with how far it has come."""
    common = json.loads((folder / "atlas" / "atlas.json").read_text())
    entries = common.pop("plans")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "unfinished.jsonl").write_text("".join(json.dumps(x) + "\n" for x in (common, *entries[:2])))
    done = plan("--from", "half", "--failures", "1", "-o", "made.json", cwd=tmp_path)
    assert done.returncode == 2
    assert (
        "the atlas is unfinished: 2 plans are there\nat: half\ndo: run the command that makes it again" in done.stderr
    )
    assert [path.name for path in tmp_path.iterdir()] == ["half"]


LOADED = """
import json, sys
from rtk.cli.main import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code, arguments
print(*sorted({"numba", "torch", "ortools", "highspy", "pandas", "plotly"} & set(sys.modules)), file=sys.stderr)
"""


def test_small_questions_load_nothing_heavy(folder: Path) -> None:
    """Neither the help nor plans that slots prove load torch, numba or a solver: what makes the start slow."""
    questions = (("--help",), (*SMALL, "--failed", "1/2"), (*SMALL, "--failures", "2"), (*FROM, "--failures", "1"))
    asked = json.dumps([("plan", "slipstream", *arguments) for arguments in questions])
    command = [sys.executable, "-c", LOADED, asked]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, timeout=60, check=True, env=dict(os.environ)
    )
    assert done.stderr.splitlines()[-1] == ""
