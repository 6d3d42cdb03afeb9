"""`rtk sweep`: combinations from a file, reports in a folder, processes and clusters that make them."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from rtk import replaying
from rtk.planners.plain.verbs import degree_of_job
from rtk.replaying import ReplayRequest, replays
from rtk.runners.replay.sweep import executor_of
from rtk.schemas.documents import canonical, read_document, write_document
from rtk.schemas.errors import InfeasibleError, InvalidInputError, RuntimeFailedError
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.replay import AskedJob, ReplayReport
from rtk.schemas.site import read_cluster
from rtk.sweeping import read_sweep

from .shell import RTK, rtk, rtk_process

PROFILE = Path(__file__).parents[1] / "golden" / "profile-slots4.json"
SPOT = "".join(f"0,add,{node}\n" for node in "abcdefgh") + "600000,remove,c\n1800000,add,i\n3600000,remove,a\n"
SPEC = f"""
profiles: {PROFILE}
jobs:
  - {{pp: 4, microbatches: [6, 8]}}
clusters: [8x1, 9x1]
traces:
  - log.csv
  - generate: {{duration: 2d, mtbf: 1d, repair: 1h}}
    seeds: 2
policies: [spares, checkpoint-restart]
costs:
  restart_s: [60, 300]
"""
LONG = f"""
profiles: {PROFILE}
jobs: {{pp: 4, dp: 2, microbatches: 6}}
traces: {{generate: {{duration: 25d, mtbf: 2d, repair: 1h}}, seeds: 30}}
policies: [spares]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a sweep of 24 replays."""
    (tmp_path / "log.csv").write_text(SPOT)
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path


def reports(folder: Path) -> dict[str, bytes]:
    """The reports of a folder, which are all that is there beside the summary, by their names."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "summary.json"}


def test_every_combination_is_asked_once(folder: Path) -> None:
    """A list is tried item by item, also inside of a job or a trace; a combination that stands twice counts once."""
    found = read_sweep(str(folder / "spec.yaml"))
    assert len({one.name for one in found}) == len({one.digest for one in found}) == len(found) == 2 * 2 * 3 * 2
    first, last = found[0], found[-1]
    assert (first.question.job.shape.dp, first.question.job.costs.restart_s, first.axes["cluster"]) == (2, 60, "8x1")
    assert last.question.name == "generated, duration 2d, mtbf 1d, repair 1h, seed 1"
    twice = (folder / "spec.yaml").read_text().replace("- log.csv", "- log.csv\n  - {file: log.csv}")
    (folder / "spec.yaml").write_text(twice)
    assert [one.digest for one in read_sweep(str(folder / "spec.yaml"))] == [one.digest for one in found]


@pytest.mark.wheel("replay", "sweep")
def test_a_report_is_that_of_rtk_replay(folder: Path) -> None:
    """What a sweep writes of a combination is what `rtk replay` says of the same."""
    rtk("sweep", "spec.yaml", "-o", "out", cwd=folder)
    given = ("--profile", str(PROFILE), "--pp", "4", "--microbatches", "8", "--cluster", "9x1", "--trace", "log.csv")
    costs = ("--cost", "restart_s=60", "--policies", "spares,checkpoint-restart")
    replayed = json.loads(rtk("replay", *given, *costs, "--json", cwd=folder).stdout)
    [combination] = [
        one
        for one in read_sweep(str(folder / "spec.yaml"))
        if [one.axes[key] for key in ("cluster", "microbatches", "trace", "restart_s")] == ["9x1", "8", "log.csv", "60"]
    ]
    assert json.loads((folder / "out" / combination.name).read_bytes()) == replayed


def test_the_summary_says_what_all_reports_say(folder: Path) -> None:
    """Means, quartiles, extremes, who is the best how often, and means for each value of what was varied."""
    done = rtk("sweep", "spec.yaml", "-o", "out", "--json", cwd=folder)
    found = json.loads(done.stdout)
    assert (folder / "out" / "summary.json").read_text() == done.stdout
    goodputs = {one["file"]: one["goodput"] for one in found["replays"]}
    made = {name: json.loads(data)["policies"] for name, data in reports(folder / "out").items()}
    assert goodputs == {
        name: {one["policy"]: one["goodput"] for one in one_report} for name, one_report in made.items()
    }
    spares = sorted(one["spares"] for one in goodputs.values())
    told = found["policies"]["spares"]
    assert (told["min"], told["max"]) == (spares[0], spares[-1])
    assert told["lower_quartile"] <= told["median"] <= told["upper_quartile"]
    assert (told["mean"], told["refusals"]) == (pytest.approx(sum(spares) / 24), 0)
    assert told["best_share"] == sum(one["spares"] >= one["checkpoint-restart"] for one in goodputs.values()) / 24
    # Axes stand in the order of JSON's keys.
    assert list(found["axes"]) == ["cluster", "microbatches", "restart_s", "trace"]
    tables = rtk("sweep", "spec.yaml", "-o", "out", cwd=folder).stdout.split("\n\n")
    assert [table.split()[0] for table in tables] == ["policy", "cluster", "microbatches", "trace", "restart_s"]
    assert tables[1].split()[:3] == ["cluster", "8x1", "9x1"]
    halves = [means["spares"] for means in found["axes"]["cluster"].values()]
    assert sum(halves) / 2 == pytest.approx(told["mean"])


def test_names_stand_as_they_are(folder: Path) -> None:
    """Brackets and colons in a file's name are no colours and no pictures."""
    (folder / "[bold]:fire:[.csv").write_text(SPOT)
    traces = 'traces: ["[bold]:fire:[.csv", log.csv]\n'
    spec = f"profiles: {PROFILE}\njobs: {{pp: 4, dp: 2, microbatches: 6}}\n{traces}policies: [spares]\n"
    (folder / "spec.yaml").write_text(spec)
    assert "[bold]:fire:[.csv" in rtk("sweep", "spec.yaml", "-o", "out", cwd=folder).stdout


def test_what_is_there_is_not_made_again(folder: Path) -> None:
    """A second run makes only what is damaged, cut short, of other inputs, or new; all ends in the same bytes."""
    rtk("sweep", "spec.yaml", "-o", "out", cwd=folder)
    before = reports(folder / "out")
    cut, other, damaged, *left = (folder / "out" / name for name in before)
    cut.write_bytes(cut.read_bytes()[:-300])
    other.write_bytes(damaged.read_bytes())
    damaged.write_bytes(damaged.read_bytes().replace(b'"goodput"', b'"badput"'))
    untouched = [path.stat() for path in left]
    done = rtk("sweep", "spec.yaml", "-o", "out", cwd=folder)
    assert done.stderr == "21 of 24 reports are there already\n"
    assert (reports(folder / "out"), [path.stat().st_ino for path in left]) == (
        before,
        [one.st_ino for one in untouched],
    )
    (folder / "log.csv").write_text(SPOT.replace("600000", "700000"))
    assert rtk("sweep", "spec.yaml", "-o", "out", cwd=folder).stderr == "16 of 24 reports are there already\n"


def test_an_interruption_keeps_what_is_done(folder: Path) -> None:
    """Ctrl-C ends with exit code 130 and a remark; the same command goes on from there."""
    answers = iter([replaying.replayed] * 5)

    def interrupted(question: ReplayRequest) -> object:
        found = next(answers, None)
        if found is None:
            raise KeyboardInterrupt
        return found(question)

    with mock.patch.object(replaying, "replayed", interrupted):
        done = rtk("sweep", "spec.yaml", "-o", "out", cwd=folder)
    assert done.returncode == 130
    assert done.stderr == "what is finished is kept: the same command goes on from there\ninterrupted\n"
    assert rtk("sweep", "spec.yaml", "-o", "out", cwd=folder).stderr == "5 of 24 reports are there already\n"


def test_a_sweep_that_is_killed_goes_on(tmp_path: Path) -> None:
    """Killed with its processes at work, a sweep leaves whole reports and no process; the next run makes the others."""
    (tmp_path / "spec.yaml").write_text(LONG)
    command = [*RTK, "sweep", "spec.yaml", "-o", "out", "--jobs", "2"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        until(lambda: len(list((tmp_path / "out").glob("*.json"))) >= 2)
        children = children_of(running.pid)
        running.send_signal(signal.SIGKILL)
    assert len(children) >= 2
    until(lambda: not any(map(runs, children)))
    finished = {path: path.stat().st_ino for path in (tmp_path / "out").glob("*.json")}
    for path in finished:
        read_document(str(path), ReplayReport)
    done = rtk("sweep", "spec.yaml", "-o", "out", cwd=tmp_path)
    assert done.stderr == f"{len(finished)} of 30 reports are there already\n"
    assert len(reports(tmp_path / "out")) - len(list((tmp_path / "out").glob(".*"))) == 30
    assert {path: path.stat().st_ino for path in finished} == finished


def until(holds: Any) -> None:
    """Wait until it holds."""
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended; whoever inherits it may take a while to notice that it has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_any_executor_replays(folder: Path) -> None:
    """`replays` gives every question's report whoever makes it; the numbers say whose it is."""
    questions = [one.question for one in read_sweep(str(folder / "spec.yaml"))[:5]]
    alone = dict(replays(questions))
    with ThreadPoolExecutor(3) as executor:
        together = dict(replays(questions, executor))
    assert sorted(together) == [0, 1, 2, 3, 4]
    for number, report in alone.items():
        assert isinstance(report, ReplayReport)
        assert canonical(report) == canonical(together[number])  # type: ignore[arg-type]


def test_a_dask_cluster_replays(folder: Path) -> None:
    """With workers of a Dask cluster the bytes are those of this process; an error in them is an error here.

    Work that no worker survives is given up.
    """
    distributed = pytest.importorskip("distributed")
    dask_config = pytest.importorskip("dask.config")
    with (
        dask_config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
    ):
        executor = f"dask:{cluster.scheduler_address}"
        done = rtk_process("sweep", "spec.yaml", "-o", "dask", "--executor", executor, cwd=folder)
        question = read_sweep(str(folder / "spec.yaml"))[0].question
        (folder / "log.csv").write_text("0,add,a\n5,remove,z\n")
        with executor_of(executor, 1) as dask, pytest.raises(InvalidInputError, match="z is removed, but never came"):
            list(replays([question], dask))
        with pytest.raises(RuntimeFailedError, match="Dask could not finish"), executor_of(executor, 1) as dask:
            dask.submit(os._exit, 9).result()  # type: ignore[union-attr]
    assert (done.returncode, done.stderr) == (0, "")
    (folder / "log.csv").write_text(SPOT)
    rtk("sweep", "spec.yaml", "-o", "here", cwd=folder)
    assert reports(folder / "dask") == reports(folder / "here")


def test_what_ray_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of this machine alone, or one at an address; left at the end. `test_ray.py` asks Ray itself.

    This stand-in, of what is called of Ray, keeps that in order where Ray is not installed.
    """
    calls: list[Any] = []

    def remote(call: Any) -> Any:
        def submit(*arguments: Any) -> Any:
            future: Future[Any] = Future()
            future.set_result(call(*arguments))
            return SimpleNamespace(future=lambda: future)

        return SimpleNamespace(remote=submit)

    def init(address: str, **options: Any) -> None:
        if address == "nowhere":
            raise ConnectionError("nobody there\nat all")
        print("Ray talks")
        calls.append((address, options))

    def shutdown(wait_for_processes: bool) -> None:
        calls.append(wait_for_processes)

    errors = SimpleNamespace(RayError=type("RayError", (Exception,), {}))
    ray = SimpleNamespace(init=init, remote=remote, shutdown=shutdown, exceptions=errors)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with socket.create_server(("127.0.0.1", 0)) as head:
        there = f"ray://127.0.0.1:{head.getsockname()[1]}"
        for output, executor in (("local", "ray"), ("far", f"ray:{there}")):
            given = ("--executor", executor, "--jobs", "3")
            done = rtk("sweep", "spec.yaml", "-o", output, *given, cwd=folder)
            assert (done.returncode, "talks" in done.stdout, "Ray talks" in done.stderr) == (0, False, True)
        head.close()
        lost = [
            rtk("sweep", "spec.yaml", "-o", "lost", "--executor", f"ray:{place}", cwd=folder)
            for place in ("nowhere", there)
        ]
    (place, local), ended, (address, far), left, *_ = calls
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    assert (place, local["num_cpus"], local["include_dashboard"], ended) == ("local", 3, False, True)
    assert local.items() >= quiet.items()
    assert not Path(local["_temp_dir"]).exists()
    assert (address, far, left) == (there, quiet, True)
    assert reports(folder / "local") == reports(folder / "far")
    assert [one.returncode for one in lost] == [5, 5]
    assert "no Ray answers: nobody there\nat: --executor, nowhere" in lost[0].stderr
    assert f"refused\nat: --executor, {there}" in lost[1].stderr


@pytest.mark.parametrize("package", ["distributed", "ray"])
def test_an_extra_that_is_missing_is_named(folder: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the error says which extra to install."""
    extra = {"distributed": "dask", "ray": "ray"}[package]
    executor = {"dask": "dask:tcp://127.0.0.1:1", "ray": "ray"}[extra]
    monkeypatch.setitem(sys.modules, package, None)
    done = rtk("sweep", "spec.yaml", "-o", "out", "--executor", executor, cwd=folder)
    assert (done.returncode, f"do: pip install 'rtk-train[{extra}]'" in done.stderr) == (2, True)


@pytest.mark.parametrize("executor", ["threads", "dask", "dask:", "ray:", "process:2"])
def test_an_executor_that_nobody_knows_is_refused(folder: Path, executor: str) -> None:
    """Exit code 2, and what there is."""
    done = rtk("sweep", "spec.yaml", "-o", "out", "--executor", executor, cwd=folder)
    assert (done.returncode, f"there is no executor {executor!r}" in done.stderr) == (2, True)


def test_the_best_degree_is_chosen_for_each_cluster(tmp_path: Path) -> None:
    """`auto` in a job's `tensor_parallel` is what `rtk replay --tensor-parallel auto` takes on the same machines."""
    costs = tuple(
        LayerCost(seconds, seconds, seconds, tensor_parallel=degree) for degree, seconds in ((1, 1.0), (2, 0.4))
    )
    profile = Profile((Layer(costs),) * 4)
    write_document(str(tmp_path / "p.json"), profile)
    (tmp_path / "spec.yaml").write_text(
        "profiles: p.json\njobs: {pp: 4, microbatches: 8, tensor_parallel: auto}\nclusters: [8x1, 8x2]\n"
        "traces: {generate: {duration: 2d, mtbf: 1d, repair: 1h}, seeds: 2}\npolicies: [spares]\n"
    )
    taken = {one.axes["cluster"]: one.question.job.shape.degree for one in read_sweep(str(tmp_path / "spec.yaml"))}
    asked = {name: degree_of_job(profile, read_cluster(name), AskedJob(4, 8), "auto") for name in taken}
    assert taken == asked == {"8x1": 1, "8x2": 2}


def test_jobs_that_cannot_be_are_counted(folder: Path) -> None:
    """A job too large for its memory is left out and said; where all are, the sweep is infeasible."""
    spec = (folder / "spec.yaml").read_text()
    (folder / "spec.yaml").write_text(spec.replace("microbatches: [6, 8]", "microbatches: 6, memory_limit: [0.5, 4]"))
    done = rtk("sweep", "spec.yaml", "-o", "out", "--json", cwd=folder)
    found = json.loads(done.stdout)
    assert (done.returncode, len(found["impossible"]), len(found["replays"])) == (0, 12, 12)
    assert done.stderr.startswith("12 of 24 cannot be: ")
    assert {one["axes"]["memory_limit"] for one in found["impossible"]} == {"0.5"}
    (folder / "spec.yaml").write_text(spec.replace("microbatches: [6, 8]", "microbatches: 6, memory_limit: 0.5"))
    assert rtk("sweep", "spec.yaml", "-o", "out", cwd=folder).returncode == 3
    [(_, error)] = replays([read_sweep(str(folder / "spec.yaml"))[0].question])
    assert isinstance(error, InfeasibleError)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("policies: [spares", "policies: [sapres", "line 10, /policies/0\ndo: did you mean spares?"),
        ("  restart_s:", "  restart:", "there is no cost 'restart'\nat: spec.yaml, line 12, /costs/restart/0\ndo: did"),
        ("[60, 300]", "[60, -1]", "at: spec.yaml, line 12, /costs/restart_s/1"),
        ("[60, 300]", "[]", "the list is empty\nat: spec.yaml, line 12, /costs/restart_s"),
        ("{pp: 4,", "{pp: four,", "'four' is no whole number of 1 or more\nat: spec.yaml, line 4, /jobs/0/pp"),
        ("{pp: 4,", "{", "the key 'pp' is missing\nat: spec.yaml, line 4, /jobs/0"),
        ("{pp: 4,", "{pp: 4, schedule: 1f2b,", "did you mean 1f1b?"),
        ("mtbf: 1d", "mtfb: 1d", "unknown key 'mtfb'\nat: spec.yaml, line 8, /traces/1/generate/mtfb"),
        ("mtbf: 1d", "mtbf: 1 day", "'day' in '1 day' is no unit here\nat: spec.yaml, line 8, /traces/1/generate/mtbf"),
        (", repair: 1h", "", "at: spec.yaml, line 8, /traces/1/generate\ndo: add it, such as repair 4h"),
        ("duration: 2d, ", "", "the key 'duration' is missing\nat: spec.yaml, line 8, /traces/1/generate"),
        ("duration: 2d", "duration: 0d", "a trace cannot last 0 s\nat: spec.yaml, line 8, /traces/1/generate"),
        ("seeds: 2", "seeds: 200000", "200000 seeds are too many\nat: spec.yaml, line 9, /traces/1/seeds"),
        ("seeds: 2", "seeds: 90000", "720008 replays are too many\nat: spec.yaml, line 2, /"),
        ("duration: 2d", "nodes: 999999999, duration: 2d", "999999999 nodes are too many\nat: spec.yaml, line 8, /"),
        ("seeds: 2", "seeds: [2, x]", "'x' is no seed\nat: spec.yaml, line 9, /traces/1/seeds/1"),
        ("- log.csv", "- {file: log.csv, slow_faults: yes}", "'yes' is neither true nor false"),
        ("- log.csv", "- {file: log.csv, seed: 3}", "unknown key 'seed'"),
        ("- log.csv", "- nothing.csv", "cannot read the file"),
        ("clusters: [8x1", "clusters: [8x", "at: 8x"),
        ("profiles:", "profile:", "at: spec.yaml, line 2, /profile\ndo: did you mean 'profiles'?"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(folder: Path, old: str, new: str, says: str) -> None:
    """Each is exit code 2 and an error that says what, where in the file, and what to do; nothing is written."""
    assert old in SPEC
    (folder / "spec.yaml").write_text(SPEC.replace(old, new))
    done = rtk("sweep", "spec.yaml", "-o", "out", cwd=folder)
    assert (done.returncode, done.stdout, (folder / "out").exists()) == (2, "", False)
    assert says in done.stderr


def test_a_cluster_too_small_for_a_job_is_infeasible(folder: Path) -> None:
    """Exit code 3, and which job it is."""
    (folder / "spec.yaml").write_text(SPEC.replace("clusters: [8x1", "clusters: [3x1"))
    done = rtk("sweep", "spec.yaml", "-o", "out", cwd=folder)
    assert (done.returncode, "at: spec.yaml, line 4, /jobs/0" in done.stderr) == (3, True)
