"""What replays take, and what comes of them: `python benchmarks/replay.py --only SECTION [--quick] [-o FILE]`.

* year: a year of StepFun's cluster of 400 nodes (its list of 1,168 hardware faults): llama3-70b on 8 H100 a worker.
* large: 12 hours of 2,048 workers, one a GPU, on 256 nodes; one of them fails every 10 minutes and is back in an hour.
* p3: 11.4 hours of AWS p3 spot instances, as Parcae counts them: gpt3-2.7b on 32 A40.
* sweep: a hundred replays of a week, 32 nodes that fail every 10 days: by one process and by two.

Of a replay the seconds of each policy, one after the other in a process that has replayed an hour of the same under all
of them (machine code is loaded, nothing else remembered); those of all and of the cluster that never fails, which they
are measured against; and those of the whole command with `--jobs 2`, processes and all. --quick replays 30 days of the
year, an hour of the others, and sweeps ten.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.benchmarks.scheduling import timed
from rtk.planners.plain.verbs import job_of
from rtk.planners.recovery.catalogue import parse_policies
from rtk.replaying import Answer, ReplayRequest, ask
from rtk.runners.traces.read import TraceOptions
from rtk.schemas.documents import read_document
from rtk.schemas.profile import Profile
from rtk.schemas.replay import AskedJob, Costs
from rtk.schemas.site import site_of

RTK = [sys.executable, "-m", "rtk.cli.main"]
LLAMA = ("llama3-70b", "--gpu", "h100-sxm", "--checkpointing", "--tp", "1,2,4,8")
GPT = ("gpt3-2.7b", "--gpu", "a40", "--microbatch-size", "2")
HOUR_S, DAY_S = 3600.0, 86_400.0
FAILING = ("--mtbf", "42h", "--repair", "1h")
SWEEP = """
profiles: profile.json
clusters: 32x1
jobs: {pp: 8, dp: 4, microbatches: 32}
traces: {generate: {duration: 7d, mtbf: 10d, repair: 4h}, seeds: SEEDS}
policies: [varuna, checkpoint-restart, spares, elastic-batching]
"""


@dataclass(frozen=True)
class Case:
    """A replay: its model, job and trace, and until when a quick one goes on."""

    model: tuple[str, ...]
    cluster: str
    asked: AskedJob
    trace: str
    quick_s: float


CASES = {
    "year": Case(LLAMA, "400x8", AskedJob(8, 32, tensor_parallel=8), "stepfun/fault_trace.json", 30 * DAY_S),
    "large": Case(GPT, "256x8", AskedJob(8, 32), "large.jsonl", HOUR_S),
    "p3": Case(GPT, "32x1", AskedJob(8, 128, dp=4), "parcae/p3.csv", HOUR_S),
}


def replayed(case: Case, folder: Path, data: Path, policies: Sequence[str], is_quick: bool) -> dict[str, Any]:
    """One replay's seconds and goodputs."""
    profile = _profiled(case.model, folder)
    trace = str(data / case.trace if "/" in case.trace else _generated(folder))
    site = site_of(case.cluster, None)
    job = job_of(read_document(profile, Profile), site, case.asked, Costs(), 0)
    assert site.cluster is not None
    reading = TraceOptions(nodes=len(site.cluster.nodes))
    question = ReplayRequest(job, trace, reading, tuple(policies), case.quick_s if is_quick else None, case.trace)
    ask(replace(question, until_s=HOUR_S))
    took_s: list[float] = []
    report, whole_s = timed(ask, question, watch=partial(_timing, took_s))
    _, command_s = timed(_run, *_command(case, question, profile, "2"))
    return {
        "trace": report.trace,
        "job": report.job,
        "fault_free": report.fault_free,
        "policies": {
            one.policy: {"goodput": one.goodput, "refusal": one.refusal, "took_s": each_s}
            for one, each_s in zip(report.policies, took_s, strict=True)
        },
        "took_s": whole_s,
        "command_s": command_s,
    }


def _timing(took_s: list[float], answers: Iterable[Answer]) -> Iterator[Answer]:
    """The answers, which are made when they are asked for, and how long each takes."""
    stream = iter(answers)
    while True:
        answer, each_s = timed(next, stream, None)
        if answer is None:
            return
        took_s.append(each_s)
        yield answer


def swept(folder: Path, is_quick: bool) -> dict[str, Any]:
    """A sweep by one process and by two, each into a new folder."""
    _profiled(GPT, folder)
    seeds = 10 if is_quick else 100
    (folder / "sweep.yaml").write_text(SWEEP.replace("SEEDS", str(seeds)))
    took_s = {}
    for jobs in ("1", "2"):
        command = ("sweep", str(folder / "sweep.yaml"), "-o", str(folder / f"jobs{jobs}"), "--jobs", jobs)
        took_s[jobs] = timed(_run, *command)[1]
    return {"replays": seeds, "took_s": took_s}


def _command(case: Case, question: ReplayRequest, profile: str, jobs: str) -> list[str]:
    shape = question.job.shape
    until = [] if question.until_s is None else ["--until", f"{question.until_s:.0f}s"]
    return [
        "replay", "--profile", profile, "--cluster", case.cluster, "--trace", str(question.trace),
        "--pp", str(shape.pp), "--dp", str(shape.dp), "--microbatches", str(shape.microbatches),
        "--tensor-parallel", str(shape.tensor_parallel), "--policies", ",".join(question.policies), "--jobs", jobs,
        *until,
    ]  # fmt: skip


def _profiled(model: tuple[str, ...], folder: Path) -> str:
    path = str(folder / "profile.json")
    _run("profile", model[0], "--analytic", *model[1:], "-o", path)
    return path


def _generated(folder: Path) -> Path:
    path = folder / "large.jsonl"
    _run("trace", "generate", "--nodes", "256", "--days", "0.5", *FAILING, "-o", str(path))
    return path


def _run(*arguments: str) -> None:
    subprocess.run([*RTK, *arguments], check=True, capture_output=True)


def main() -> None:
    """Measure one section and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*CASES, "sweep"], required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--policies", help="with commas between them; default: all")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/traces"))
    parser.add_argument("-o", "--output", default="-")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.only == "sweep":
            found = swept(Path(folder), given.quick)
        else:
            case, policies = CASES[given.only], parse_policies(given.policies)
            found = replayed(case, Path(folder), given.data, policies, given.quick)
    write_result({given.only: found}, given.output)


if __name__ == "__main__":
    main()
