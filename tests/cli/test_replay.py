"""`rtk replay`, as a user runs it: a profile and a trace in, a report and a table out."""

import gzip
import json
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rtk.planners.recovery.catalogue import NAMES
from rtk.planners.recovery.job import TrainingJob
from rtk.planners.shape import Shape
from rtk.replaying import ReplayRequest, ask
from rtk.runners.traces.read import TraceOptions, write_events
from rtk.runners.traces.verbs import FaultScenario, Lasting, Racks, Renewal, SlowLinkEpisodes, generate
from rtk.schemas.documents import canonical, parse_document, read_document
from rtk.schemas.errors import InfeasibleError, InvalidInputError, RtkError
from rtk.schemas.profile import Profile
from rtk.schemas.quantities import print_share
from rtk.schemas.replay import Costs, ReplayReport
from rtk.viz.replay_page import replay_html

from .shell import rtk, rtk_process

PROFILE = str(Path(__file__).parents[1] / "golden" / "profile-slots4.json")
JOB = ("replay", "--profile", PROFILE, "--pp", "4", "--microbatches", "6", "--cost", "copy_bytes_per_s=1e9")
BASELINES = ("--policies", "elastic-batching,checkpoint-restart,spares")
SPOT = "".join(f"0,add,{node}\n" for node in "abcdefgh") + "600000,remove,c\n1800000,add,i\n3600000,remove,a\n"


def told(*arguments: str, stdin: str = SPOT) -> dict[str, Any]:
    """A replay's report."""
    done = rtk(*JOB, "--trace", "-", "--json", *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_policy_is_reported() -> None:
    """Without --policies all are there, in one JSON document with goodput, where the time went, GPU-hours and cost."""
    found = told("--dp", "2", "--cost", "gpu_hour_price=3")
    assert [one["policy"] for one in found["policies"]] == list(NAMES)
    assert (found["trace"]["duration_s"], found["trace"]["nodes_min"], found["trace"]["nodes_lost"]) == (3600, 7, 2)
    for one in found["policies"]:
        assert sum(one["time"].values()) == pytest.approx(3600)
        assert one["gpu_hours"]["present"] == pytest.approx(8 if one["policy"] == "fault-free" else 8 - 1 / 3)
        assert one["cost"] == pytest.approx(3 * one["gpu_hours"]["present"])
        assert one["goodput"] == pytest.approx(one["microbatches"] / found["fault_free"]["committed"])
    assert found["policies"][-1]["goodput"] == 1


def test_a_table_for_people() -> None:
    """A row a policy on standard output, with its goodput, and what none can exceed; the report goes to the file."""
    done = rtk(*JOB, "--dp", "2", "--trace", "-", *BASELINES, stdin=SPOT)
    rows, found = [line.replace(" %", "%").split() for line in done.stdout.splitlines()], told("--dp", "2", *BASELINES)
    assert [row[0] for row in rows] == ["policy", "elastic-batching", "checkpoint-restart", "spares", "at"]
    assert [row[1] for row in rows[1:-1]] == [print_share(one["goodput"]).replace(" ", "") for one in found["policies"]]
    assert rows[-1][1:] == ["most", print_share(found["fault_free"]["goodput_bound"]).replace(" ", "")]
    assert found["fault_free"]["goodput_bound"] >= max(one["goodput"] for one in found["policies"])
    assert done.stderr == ""


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_steady_state_is_what_simulate_says(tmp_path: Path, schedule: str) -> None:
    """With all nodes there an iteration takes what `rtk simulate` says of the plan of `rtk plan`."""
    plan = str(tmp_path / "plan.json")
    shape = ("--pp", "4", "--dp", "2", "--microbatches", "6", "--schedule", schedule)
    rtk("plan", "pipeline", PROFILE, *shape, "-o", plan)
    iteration_s = json.loads(rtk("simulate", plan, "--json").stdout)["iteration_time_s"]
    found = told("--dp", "2", "--policies", "spares", "--schedule", schedule)
    assert found["policies"][0]["healthy_iteration_time_s"] == pytest.approx(iteration_s)


def test_the_same_question_has_the_same_bytes(tmp_path: Path) -> None:
    """Again, from a file, from standard input and by two processes: equal reports."""
    (tmp_path / "log.csv").write_text(SPOT)
    given = (*JOB, "--dp", "2", *BASELINES, "--trace", "log.csv")
    once, again = (rtk(*given, "-o", "-", cwd=tmp_path).stdout for _ in range(2))
    shared = rtk_process(*given, "--jobs", "2", "-o", "report.json.gz", cwd=tmp_path)
    assert (shared.returncode, shared.stderr) == (0, "wrote report.json.gz\n")
    assert once == again == gzip.decompress((tmp_path / "report.json.gz").read_bytes()).decode()
    assert read_document(str(tmp_path / "report.json.gz"), ReplayReport).policies[2].policy == "spares"
    assert told("--dp", "2", *BASELINES)["policies"] == json.loads(once)["policies"]


def test_events_of_workers_and_by_iteration_are_those_of_nodes_and_times() -> None:
    """What happens to a worker in an iteration happens to its node then; nodes are filled stage after stage."""
    by_worker = """{"iteration": 10, "kind": "slow_compute", "worker": "1/2", "factor": 2}
{"iteration": 20, "kind": "slow_link", "link": "0/1-0/2", "delay_s": 3}
{"iteration": 90, "kind": "recover", "worker": "1/2"}
{"iteration": 95, "kind": "fail", "worker": "0/3"}
{"iteration": 99, "kind": "end"}"""
    given = ("--dp", "2", "--policies", "rtk,elastic-batching")
    found = told(*given, stdin=by_worker)
    iteration_s = found["fault_free"]["iteration_time_s"]
    by_node = by_worker.replace('"worker": "1/2"', '"node": "n7"').replace('"worker": "0/3"', '"node": "n4"')
    by_node = by_node.replace('"link": "0/1-0/2"', '"node": "n2", "peer": "n3"')
    for number in (10, 20, 90, 95, 99):
        by_node = by_node.replace(f'"iteration": {number}', f'"time_s": {number * iteration_s}')
    joins = "".join(f'{{"time_s": 0, "kind": "join", "node": "n{number}"}}\n' for number in range(1, 9))
    assert told(*given, stdin=joins + by_node)["policies"] == found["policies"]


def test_a_cluster_names_nodes_and_counts_pipelines(tmp_path: Path) -> None:
    """Without --dp there are as many pipelines as the cluster holds, and its names are those of the trace."""
    (tmp_path / "cluster.yaml").write_text("nodes: [red, green, blue]\ngpus_per_node: 4\n")
    trace = '{"time_s": 60, "kind": "fail", "node": "green"}\n{"time_s": 600, "kind": "end"}'
    found = told("--cluster", str(tmp_path / "cluster.yaml"), *BASELINES, stdin=trace)
    assert (found["job"]["dp"], found["job"]["nodes"], found["trace"]["nodes_min"]) == (3, 3, 2)
    spare = told("--cluster", str(tmp_path / "cluster.yaml"), "--dp", "2", *BASELINES, stdin=trace)
    assert [one["answers"] for one in spare["policies"]][2] == {"spare": 1}


def test_a_policy_that_does_not_fit_says_so(tmp_path: Path) -> None:
    """Bamboo's redundancy does not fit GPUs that hold the job: it cannot train, and the others are replayed."""
    (tmp_path / "cluster.yaml").write_text("nodes: 8\ngpus_per_node: 1\nmemory: 50B\n")
    heavy = (
        Path(PROFILE).read_text().replace('"weight_stash', '"parameter_bytes": 10, "state_bytes": 20, "weight_stash')
    )
    (tmp_path / "profile.json").write_text(heavy)
    machines = ("--profile", str(tmp_path / "profile.json"), "--cluster", str(tmp_path / "cluster.yaml"))
    given = (*machines, "--policies", "bamboo,spares")
    done = rtk(*JOB, "--trace", "-", *given, stdin=SPOT)
    assert done.returncode == 0
    assert "cannot train" in done.stdout
    assert done.stderr.startswith("bamboo cannot train: ")
    bamboo, spares = told(*given)["policies"]
    assert (bamboo["goodput"], "refusal" in bamboo, "refusal" in spares) == (0, True, False)


def test_until_ends_a_trace_or_lets_it_go_on() -> None:
    """Events from --until on do not happen; after the last one the cluster stays as it is."""
    short, long = (told("--dp", "2", *BASELINES, "--until", until)["trace"] for until in ("20min", "10h"))
    assert (short["duration_s"], short["moments"], short["nodes_lost"]) == (1200, 2, 1)
    assert (short["nodes_mean"], long["duration_s"], long["nodes_lost"]) == (7.5, 36_000, 2)


def test_a_page_is_written(tmp_path: Path) -> None:
    """--html writes a page, beside the table; it cannot go to standard output."""
    page = tmp_path / "page.html"
    done = rtk(*JOB, "--dp", "2", "--trace", "-", *BASELINES, "--html", str(page), stdin=SPOT)
    assert (done.returncode, done.stderr) == (0, f"wrote {page}\n")
    assert "elastic-batching" in page.read_text()
    assert rtk(*JOB, "--dp", "2", "--trace", "-", "--html", "-", stdin=SPOT).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (("--policies", "slipsteam"), SPOT, "at: --policies\ndo: did you mean slipstream?"),
        (("--policies", "spares,spares"), SPOT, "spares stands there twice\nat: --policies"),
        (("--cost", "restart=4"), SPOT, "there is no cost 'restart'\nat: --cost\ndo: did you mean restart_s?"),
        (("--cost", "restart_s=-4"), SPOT, "'-4' is too little\nat: --cost"),
        (("--cost", "slow_detection_iterations=1.5"), SPOT, "'1.5' is no whole number of 0 or more"),
        (("--cost", "storage_bytes_per_s=0"), SPOT, "'0' is nothing"),
        (("--cost", "restart_s"), SPOT, "'restart_s' cannot be read\nat: --cost"),
        (("--cost", "gpu_hour_price=1e300"), SPOT, "'1e300' is too much\nat: --cost\ndo: give less than 1e+15"),
        (("--html", "x.txt"), SPOT, "'.txt' names no picture\nat: --html x.txt"),
        (("--trace", "."), "", "cannot read the file: Is a directory\nat: ."),
        ((), '{"time_s": 5, "kind": "fail", "worker": "7/0"}', "no node that is there at the start has a worker 7/0"),
        (("--until", "12x"), SPOT, "'x' in '12x' is no unit here\nat: --until\ndo: write 10ms, 2s, 5min or 12h"),
        (("--dp", "1000000"), SPOT, "1000000 pipelines take 4000000 nodes, which are too many\nat: --dp"),
        (("--trace-format", "parcae"), SPOT, "standard input, line 1"),
        ((), SPOT + "5,add,z\n", "the event lies before the one ahead of it\nat: standard input, line 12\ndo: sort"),
        ((), SPOT + "3700000,remove,z\n", "z is removed, but never came\nat: standard input, line 12"),
        ((), "", "the trace is empty\nat: standard input"),
        ((), "0,add,a\n", "the trace lasts no time\nat: standard input\ndo: say when it ends: --until"),
        (("--nodes", "9", "--cluster", "8x1"), SPOT, "--nodes says 9, the cluster 8"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], stdin: str, says: str) -> None:
    """Each is exit code 2 and an error that says what, where and what to do."""
    done = rtk(*JOB, "--dp", "2", "--trace", "-", *arguments, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_outputs_are_looked_at_before_the_work(tmp_path: Path) -> None:
    """What cannot be written, or would destroy another file, is refused at once, and all files are as they were."""
    (tmp_path / "log.csv").write_text(SPOT)
    given = (*JOB, "--dp", "2", "--trace", "log.csv")
    for more, says in (
        (("-o", "none/report.json"), "nothing can be written into the folder none\nat: --output none/report.json"),
        (("--html", "none/page.html"), "nothing can be written into the folder none\nat: --html none/page.html"),
        (("-o", ""), "a file without a name\nat: --output\ndo: check"),
        (("-o", "./log.csv"), "--trace is the same file\nat: --output ./log.csv\ndo: write to another file"),
        (("-o", PROFILE), "--profile is the same file"),
        (("-o", "x.html", "--html", "x.html"), "--output is the same file\nat: --html x.html"),
    ):
        done = rtk(*given, *more, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]
    assert (tmp_path / "log.csv").read_text() == SPOT


def test_a_pipe_may_be_compressed(tmp_path: Path) -> None:
    """What comes through a named pipe is read as a file of its name would be."""
    os.mkfifo(tmp_path / "log.csv.gz")
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit((tmp_path / "log.csv.gz").write_bytes, gzip.compress(SPOT.encode()))
        done = rtk(*JOB, "--dp", "2", *BASELINES, "--trace", "log.csv.gz", "--json", cwd=tmp_path)
        assert (done.returncode, written.result() > 0) == (0, True)
    assert json.loads(done.stdout)["policies"] == told("--dp", "2", *BASELINES)["policies"]


def test_a_short_replay_has_figures_too() -> None:
    """GPU-hours and costs below 1 have their digits, and memory its unit."""
    rows = rtk(*JOB, "--dp", "2", "--policies", "spares", "--until", "10min", "--trace", "-", stdin=SPOT).stdout
    assert rows.splitlines()[1].split()[-4:-2] == ["0.40", "2.67"]


def test_a_profile_whose_iterations_take_no_time_is_refused(tmp_path: Path) -> None:
    """Nobody can say how many of them there are."""
    still = re.sub(r'(_s": )[0-9.]+', r"\g<1>0", Path(PROFILE).read_text())
    (tmp_path / "p.json").write_text(still)
    done = rtk(*JOB, "--profile", "p.json", "--dp", "2", "--trace", "-", stdin=SPOT, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: an iteration takes no time")


def test_somebody_must_say_how_many_pipelines_there_are() -> None:
    """Without --dp and --cluster nobody knows: exit code 2."""
    assert "at: --dp\ndo: give --dp K, or --cluster NxM" in rtk(*JOB, "--trace", "-", stdin=SPOT).stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--dp", "4", "--cluster", "13x1"), "take at most 3 pipelines"),
        (("--cluster", "3x1"), "there is no room for 1 pipeline of 4 GPUs on 3 GPUs"),
        (("--dp", "2", "--memory-limit", "0.5"), "memory"),
    ],
)
def test_a_job_that_cannot_be_is_infeasible(arguments: tuple[str, ...], says: str) -> None:
    """A cluster smaller than the job, or memory for nobody: exit code 3."""
    done = rtk(*JOB, "--trace", "-", *arguments, stdin=SPOT)
    assert (done.returncode, done.stdout) == (3, "")
    assert says in done.stderr


def test_made_up_is_as_written_and_read(tmp_path: Path) -> None:
    """A question may have a recipe instead of a file: the answer is that of the trace that it makes."""
    failing = Renewal(Lasting(40_000.0), Lasting(3_000.0))
    links = SlowLinkEpisodes(Renewal(Lasting(50_000.0), Lasting(5_000.0)), 2.0)
    recipe = FaultScenario(9, 100_000.0, failing, Racks(3, failing), slow_links=links, seed=5)
    path = str(tmp_path / "trace.jsonl")
    write_events(path, generate(recipe))
    job = TrainingJob(read_document(PROFILE, Profile), Shape(4, 2, 6), costs=Costs(copy_bytes_per_s=1e9))
    question = ReplayRequest(job, recipe, TraceOptions(), ("rtk", "elastic-batching", "spares"))
    made, written = ask(question), ask(replace(question, trace=path))
    assert canonical(replace(made, inputs={})) == canonical(replace(written, inputs={}))
    assert made.inputs["question"] != written.inputs["question"]


@pytest.mark.parametrize("kind", [InvalidInputError, InfeasibleError])
def test_errors_come_back_from_other_processes(kind: type[RtkError]) -> None:
    """An error that was pickled says the same, and ends a command with the same code."""
    error = pickle.loads(pickle.dumps(kind("what", where="file, line 3", fix="mend it")))
    assert (str(error), error.exit_code) == ("what\nat: file, line 3\ndo: mend it", kind.exit_code)


def test_a_trace_of_more_nodes_than_the_job_uses_is_remarked(tmp_path: Path) -> None:
    """Nodes that the job has no place for are told as paid spares, with a remedy: on the terminal and on the page."""
    joins = "".join(f"0,add,n{number}\n" for number in range(40)) + "3600000,remove,n39\n"
    done = rtk(*JOB, "--dp", "2", "--trace", "-", *BASELINES, "--html", "page.html", stdin=joins, cwd=tmp_path)
    note = "the trace has 40 nodes, the job uses 8: the others are counted as paid spares"
    assert done.returncode == 0
    assert f"{note}; to use them take more pipelines (--dp), or replay a trace of fewer nodes\n" in done.stderr
    assert f"Note: {note}" in (tmp_path / "page.html").read_text()
    assert "spares" not in rtk(*JOB, "--dp", "2", "--trace", "-", *BASELINES, stdin=SPOT).stderr


@pytest.mark.parametrize(("goodput", "is_told"), [(1.016, True), (1.0, False), (0.7, False)])
def test_a_goodput_above_one_is_explained(goodput: float, is_told: bool) -> None:
    """Where a policy exceeds 100 % the report says what that is, and how it can be exceeded; else nothing."""
    found = parse_document(json.dumps(told("--dp", "2", *BASELINES)).encode(), ReplayReport, "told")
    first, *others = found.policies
    report = replace(found, policies=(replace(first, goodput=goodput), *others))
    words = "goodput is above 100 % where a policy trains more on as many nodes than the fastest plan"
    assert [line.startswith(words) for line in report.remarks] == [True] * is_told
    assert ("Note: goodput is above 100 %" in replay_html(report)) == is_told
