"""What a death in the middle of an iteration costs: `python benchmarks/midway.py --only CASE [--cycles N] -o FILE`.

Jobs of real processes that train benchmarks/midway_training.py in double precision, and real SIGKILLs. What is there of
the case in FILE is kept and added to, so that a long measurement can be made in pieces; `--chart FILE.svg` draws what
the two ways of the case `moments` have lost by the moment of the kill.

* alike, clip, ties, buffers, log: a worker is killed at a random moment, or inside a sum, and replaced. `log` keeps a
  third of the messages.
* unlike: pipelines of 3 and 2 and 2 workers, whose cuts differ, so that pipelines are re-formed.
* second: another worker dies while the first death is being recovered from. join: another worker dies in the very
  iteration that the first one's replacement is waiting for.
* staggered, neighbours: with a staggered optimizer; with two neighbours of a pipeline dead at once.
* failover: a worker is killed, and a moment later the coordinator, of which a standby takes over.
* moments: paced so that an iteration takes seconds; every moment and victim twice, by what is left and by all again.

Every commit's loss, count and gradient norm are compared with those of a training in one process that nothing happens
to, and so are, element by element, the gradients of the iterations in which somebody died, and the parameters.
"""

import argparse
import json
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import fsum, sqrt
from pathlib import Path
from typing import Any

import torch

from rtk.benchmarks.common import write_result
from rtk.benchmarks.midway_chart import lost_in, write_chart
from rtk.benchmarks.midway_training import DEPTH, Kind, NumberedData, layers, loss, optimizer
from rtk.benchmarks.survival import LedJob
from rtk.planners.oobleck.plan import plan_oobleck
from rtk.planners.oobleck.templates import plan_templates
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.runners.torch.checkpoint import read_state
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.protocols import Resume
from rtk.tests.runners.processes import ProcessJob

FAILOVER = "failover"
FOREVER = 10**6
MOST_S = 120.0
IN_SUMS = 0.3  # the share of kills inside a sum
CYCLES_A_JOB = 25

# What is trained, by which plan


def profile(operation_s: float) -> Profile:
    """Layers of equal times; two of them make an operation."""
    each_s = operation_s / 2
    return Profile(tuple(Layer((LayerCost(each_s, each_s, each_s),), state_bytes=1.0) for _ in range(DEPTH)))


def alike_plan(operation_s: float, microbatches: int = 8) -> Plan:
    """3 pipelines of 3 stages."""
    return plan_pipeline(profile(operation_s), Shape(3, 3, microbatches), "1f1b")


def split_plan(operation_s: float) -> Plan:
    """The same with I and W."""
    return plan_pipeline(profile(operation_s), Shape(3, 3, 8), "zero-bubble")


def unlike_plan(operation_s: float) -> Plan:
    """Pipelines of 3, 2 and 2 workers."""
    templates = plan_templates(profile(operation_s), 7, 1, 1, memory_limit_bytes=3.0)
    return plan_oobleck(templates, 7, 24, 1)


def staggered_plan(operation_s: float) -> Plan:
    """3 pipelines of 3 stages whose optimizers step one after the other."""
    request = AtlasRequest(Shape(3, 3, 8), "staggered")
    return Replanner(opening(profile(operation_s), request), 1).in_place(frozenset())


@dataclass(frozen=True)
class Case:
    """What is done to which job.

    Attributes:
        plan: made for operations of so many seconds.
        strike: kills workers of a job; gives their names, and when.
        kind, clip_norm: of the training.
        log_memory: as of TrainingConfig.
        operation_s: of a paced operation.
        deaths: strikes until the dead are replaced.
        both: every strike twice, with and without what is left.
    """

    plan: Callable[[float], Plan]
    strike: "Callable[[Strike], list[str]]"
    kind: Kind = "rows"
    clip_norm: float | None = None
    log_memory: float | None = None
    operation_s: float = 0.012
    deaths: int = 1
    both: bool = False


# The truth


class Reference:
    """A training in one process, one micro-batch after the other, that nothing happens to."""

    def __init__(self, kind: Kind, clip_norm: float | None, microbatches: int) -> None:
        self._data, self._clip_norm, self._microbatches = NumberedData(kind), clip_norm, microbatches
        self._layers = layers(kind)
        self._whole = torch.nn.Sequential(*self._layers)
        self._optimizer = optimizer(self._whole.parameters())
        self._done = 0

    def judge(self, commits: list[dict[str, Any]], states: dict[int, dict[str, torch.Tensor]]) -> dict[str, float]:
        """The worst differences.

        Args:
            commits: as they were announced, later ones than those judged before.
            states: some of those that are saved, by the last iteration in them.
        """
        worst = {"loss": 0.0, "norm": 0.0, "gradients": 0.0, "parameters": 0.0, "counted_wrong": 0, "checked": 0}
        for one in commits:
            true = self.after(one["iteration"])
            worst["counted_wrong"] += one["count"] != true["count"]
            for name, key in (("loss", "loss"), ("norm", "grad_norm")):
                worst[name] = max(worst[name], abs(one[key] - true[name]) / abs(true[name]))
            if (state := states.get(one["iteration"])) is not None:
                worst["checked"] += 1
                found = {name: state[f"{name}/momentum_buffer"] for name in true["gradients"]}
                worst["gradients"] = max(worst["gradients"], difference(found, true["gradients"]))
                worst["parameters"] = max(worst["parameters"], difference(state, true["parameters"]))
        return worst

    def after(self, iteration: int) -> dict[str, Any]:
        """Loss, count, norm, and by name the stepped gradients and the parameters; iterations are asked for in turn."""
        while self._done <= iteration:
            found = self._step(self._done)
            self._done += 1
        return found

    def _step(self, iteration: int) -> dict[str, Any]:
        self._optimizer.zero_grad()
        batch, sums, counts = self._data.batch(iteration), [], []
        for number in range(self._microbatches):
            inputs, targets = batch[number]
            total, count = loss(self._whole(inputs), targets)
            total.backward()  # type: ignore[no-untyped-call]
            sums.append(total.item())
            counts.append(int(count))
        gradients = [one.grad for one in self._whole.parameters() if one.grad is not None]
        norm = sqrt(fsum(float(one.square().sum()) for one in gradients)) / sum(counts)
        factor = 1 / sum(counts)
        if self._clip_norm is not None:
            factor *= min(1.0, self._clip_norm / (norm + 1e-6))
        for one in gradients:
            one.mul_(factor)
        self._optimizer.step()
        named = {
            f"{place}.{name}": one for place, layer in enumerate(self._layers) for name, one in layer.named_parameters()
        }
        return {
            "loss": fsum(sums) / sum(counts),
            "count": sum(counts),
            "norm": norm,
            "gradients": {name: one.grad for name, one in named.items()},
            "parameters": {name: one.detach() for name, one in named.items()},
        }


def difference(found: dict[str, Any], true: dict[str, Any]) -> float:
    """The largest one of any entry, beside the largest entry."""
    largest = max(float(one.abs().max()) for one in true.values())
    return max(float((found[name] - one).abs().max()) for name, one in true.items()) / largest


# One job, and what happens to it


def script_in(folder: Path, kind: Kind, clip_norm: float | None) -> str:
    """A script of benchmarks/midway_training.py whose workers find their fuses in `fuses`."""
    script, fuses = folder / "train.py", folder / "fuses"
    fuses.mkdir()
    script.write_text(
        "from rtk.benchmarks import midway_training\n"
        f"training = midway_training.training({kind!r}, {clip_norm!r}, {str(fuses)!r})\n"
    )
    return str(script)


class Job:
    """A job that is struck again and again.

    Args:
        case: what it is.
        folder: for its script, its fuses and its checkpoints.
    """

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.plan = case.plan(case.operation_s)
        self.reference = Reference(case.kind, case.clip_norm, self.plan.total_microbatches())
        self.is_whole = False  # whether all is done again
        self.dead: list[str] = []
        self._checked = 0
        script = script_in(folder, case.kind, case.clip_norm)
        every = 0 if case.both else 1
        how = JobConfig(FOREVER, checkpoint=None if case.both else str(folder / "saved"), checkpoint_every=every)
        asked = TrainingConfig(script=script, paced=True, log_memory=case.log_memory)
        self.process = ProcessJob(self.plan, how, asked, is_watchful=False)
        self._let_choose(self.process)

    @contextmanager
    def running(self) -> Iterator["Job"]:
        """From its first iterations to its end."""
        with self.process as process:
            process.wait_for_iteration(3)
            yield self

    @property
    def said(self) -> list[dict[str, Any]]:
        """All announcements so far."""
        return self.process.said

    @property
    def healthy_s(self) -> float:
        """What an iteration of all workers takes."""
        whole = len(self.plan.live_workers())
        times = [float(one["iteration_time_s"]) for one in self.commits() if one["live_workers"] == whole]
        return statistics.median(times[-7:])

    def commits(self) -> list[dict[str, Any]]:
        """The iterations so far."""
        return [one for one in self.said if one["event"] == "iteration"]

    def await_event(self, event: str, since: int, **fields: Any) -> int:
        """Wait for an announcement; gives its place."""
        return self.process.wait_for(
            lambda one: one["event"] == event and all(one.get(key) == value for key, value in fields.items()),
            MOST_S,
            since,
        )

    def replace(self) -> None:
        """Start replacements of the dead, and wait until everybody trains."""
        since = len(self.said)
        for name in self.dead:
            self.process.processes[name].join(60)
            self.process.start(name)
        self.dead.clear()
        self.await_event("iteration", since, live_workers=len(self.plan.live_workers()))

    def check(self) -> dict[str, float]:
        """Compare all commits since the last check with the truth."""
        numbers = [one["iteration"] for one in self.commits()]
        if numbers != list(range(len(numbers))):
            raise AssertionError(f"iterations are missing or double: {numbers[self._checked :]}")
        news, self._checked = self.commits()[self._checked :], len(numbers)
        return self.reference.judge(news, self._states())

    def _states(self) -> dict[int, dict[str, torch.Tensor]]:
        """The states that are saved, by the last iteration in them."""
        found = {}
        for path in (self.folder / "saved").glob("*") if not self.case.both else ():
            try:
                found[int("".join(filter(str.isdigit, path.name))) - 1] = read_state(path, (0, DEPTH))
            except Exception:  # it is being written, or removed
                continue
        return found

    def _let_choose(self, process: ProcessJob) -> None:
        """Plan what is left only where that is wanted."""
        advice: Any = process.conductor._advice
        plan_rest: Resume = advice.resume

        def resume(*what: Any) -> Any:
            if self.is_whole:
                raise InfeasibleError("all is to be done again")
            return plan_rest(*what)

        advice.resume = resume


# Strikes


@dataclass
class Strike:
    """What happens to a job in one cycle.

    Attributes:
        job: whose workers are killed.
        chance: what is left to it.
        moment: of the kill, as a share of an iteration after a commit; None: inside a sum.
        killed: when each worker was killed, by name.
        in_sums: how many of them were killed inside a sum.
    """

    job: Job
    chance: random.Random
    moment: float | None
    killed: dict[str, float] = field(default_factory=dict)
    in_sums: int = 0

    def live(self) -> list[str]:
        """The workers that may be killed: nobody who is the last of a stage."""
        left = sorted(set(self.job.process.processes) - set(self.job.dead))
        stages = [name.split("/")[1] for name in left]
        return [name for name in left if stages.count(name.split("/")[1]) > 1]

    def wait(self) -> None:
        """Until the moment."""
        if self.moment is not None:
            self.job.process.wait_for_iteration(self.job.commits()[-1]["iteration"] + 1)
            time.sleep(self.moment * self.job.healthy_s)

    def kill(self, name: str) -> None:
        """Kill a worker, now, or in its next sum."""
        process = self.job.process.processes[name]
        if self.moment is None:
            fuse = self.job.folder / "fuses" / str(process.pid)
            fuse.with_suffix(".part").write_text(f"{self.chance.random() * 0.0015}")
            fuse.with_suffix(".part").rename(fuse)
            process.join(MOST_S)
            self.in_sums += 1
            self.killed[name] = float(fuse.with_suffix(".dead").read_text())
        else:
            self.killed[name] = time.perf_counter()
            self.job.process.signal(name, signal.SIGKILL)
        self.job.dead.append(name)


def one_dies(strike: Strike) -> list[str]:
    """One worker."""
    name = strike.chance.choice(strike.live())
    strike.wait()
    strike.kill(name)
    return [name]


def neighbours_die(strike: Strike) -> list[str]:
    """Two neighbours of a pipeline at once."""
    first = strike.chance.choice([name for name in strike.live() if int(name.split("/")[1]) < 2])
    pipeline, stage = first.split("/")
    both = [first, f"{pipeline}/{int(stage) + 1}"]
    strike.moment = strike.chance.random() if strike.moment is None else strike.moment
    strike.wait()
    for name in both:
        strike.kill(name)
    return both


def second_dies(strike: Strike) -> list[str]:
    """Another worker, while the first death is being recovered from; everybody's stage has a third holder."""
    first = one_dies(strike)
    second = strike.chance.choice(strike.live())
    strike.moment = strike.chance.random()
    time.sleep(strike.moment * strike.chance.choice((0.05, 0.3, 1.0)) * strike.job.healthy_s)
    strike.kill(second)
    return [*first, second]


def one_dies_for_a_newcomer(strike: Strike) -> list[str]:
    """One worker, and while its replacement comes another one."""
    job, since = strike.job, len(strike.job.said)
    first = one_dies(strike)
    job.await_event("recovered", since)
    job.process.start(first[0])
    second = strike.chance.choice(strike.live())
    job.dead.clear()
    strike.moment = strike.chance.random()
    time.sleep(strike.moment * 1.2)
    strike.kill(second)
    return [second]


CASES = {
    "alike": Case(alike_plan, one_dies, deaths=3),
    "split": Case(split_plan, one_dies, deaths=3),
    "clip": Case(alike_plan, one_dies, clip_norm=0.01, deaths=3),
    "ties": Case(alike_plan, one_dies, "tied", deaths=3),
    "buffers": Case(alike_plan, one_dies, "buffers", deaths=3),
    "log": Case(alike_plan, one_dies, log_memory=20_000, deaths=3),
    "unlike": Case(unlike_plan, one_dies),
    "second": Case(alike_plan, second_dies),
    "join": Case(alike_plan, one_dies_for_a_newcomer),
    "staggered": Case(staggered_plan, one_dies, deaths=3),
    "neighbours": Case(staggered_plan, neighbours_die),
    "moments": Case(alike_plan, one_dies, operation_s=0.06, both=True),
}


# What came of it


def tell(case: Case, seed: int, cycles: int) -> Iterator[dict[str, Any]]:
    """The cycles of one job, one after the other."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, Job(case, Path(folder)).running() as job:
        for cycle in range(cycles):
            moment: float | None = (cycle + chance.random()) / cycles if case.both else chance.random()
            if not case.both and chance.random() < IN_SUMS:
                moment = None
            drawn = chance.getrandbits(32)
            for is_whole in (False, True) if case.both else (False,):
                job.is_whole = is_whole
                strike = Strike(job, random.Random(drawn), moment)
                yield {"way": "redo" if is_whole else "rest", **struck(strike)}


def struck(strike: Strike) -> dict[str, Any]:
    """One cycle."""
    job, since = strike.job, len(strike.job.said)
    names = job.case.strike(strike)
    first_s = min(strike.killed[name] for name in names)
    failures = [job.await_event("failure", since, worker=name) for name in names]
    at = job.await_event("recovered", max(failures))
    if job.case.both:
        live = [one for one in job.commits() if one["at_s"] <= job.said[at]["at_s"]][-1]["live_workers"]
        for _ in range(2):  # as many re-routed iterations, by which the others are measured
            since_next = len(job.said)
            job.await_event("iteration", since_next, live_workers=live)
    commits = [one for one in job.commits() if one["at_s"] <= job.said[at]["at_s"]]
    after = [one["at_s"] for one in job.commits()[len(commits) - 1 :]]
    rerouted_s = statistics.median(b - a for a, b in pairwise(after)) if len(after) > 1 else None
    row = {
        "killed": names,
        "moment": strike.moment,
        "in_sums": strike.in_sums,
        "after_commit_s": first_s - max(one["at_s"] for one in job.commits() if one["at_s"] < first_s),
        "detected_s": job.said[min(failures)]["at_s"] - first_s,
        "kill_to_commit_s": job.said[at]["at_s"] - first_s,
        "iteration_s": commits[-1]["at_s"] - commits[-2]["at_s"],
        "healthy_s": job.healthy_s,
        "rerouted_s": rerouted_s,
        "recovered": _fields([job.said[at]], "recovered")[0],
        "resumed": _fields(job.said[since : at + 1], "resume"),
        "redone": _fields(job.said[since : at + 1], "redo"),
    }
    worst = job.check()
    if len(job.dead) >= job.case.deaths:
        job.replace()
    return {**row, "worst": worst}


def _fields(said: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    """All announcements of one kind, without what they have in common."""
    common = ("event", "at_s", "time_s", "epoch")
    return [{key: value for key, value in one.items() if key not in common} for one in said if one["event"] == event]


def tell_failover(seed: int, cycles: int) -> Iterator[dict[str, Any]]:
    """A worker is killed, and while the others go on, the coordinator as well; a standby takes over."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        asked = TrainingConfig(script=script_in(Path(name), "rows", None), paced=True)
        job = LedJob(Path(name), alike_plan(0.012), asked)
        reference, judged = Reference("rows", None, job.plan.total_microbatches()), -1
        job.coordinate()
        job.start_workers()
        try:
            job.wait_for_commit(5)
            for _ in range(cycles):
                job.coordinate("--standby")
                time.sleep(3.0)  # until it waits
                since, victim = len(job.said), chance.choice(sorted(job.workers))
                time.sleep(0.4 * chance.random())
                job.workers[victim].kill()
                killed_s = time.perf_counter()
                time.sleep(0.4 * chance.random() ** 2)
                job.coordinators[-2].kill()
                job.coordinators[-2].wait()
                commit = _await_workers(job, since, len(job.workers) - 1)
                job.start(victim)
                _await_workers(job, commit, len(job.workers))
                said = {one["iteration"]: one for one in job.commits}
                news = [one for number, one in sorted(said.items()) if number > judged]
                judged = max(said)
                yield {
                    "way": "rest",
                    "killed": [victim, "coordinator"],
                    "moment": None,
                    "kill_to_commit_s": job.said[commit]["at_s"] - killed_s,
                    "rerouted_s": None,
                    "resumed": [one for one in job.said[since : commit + 1] if one["event"] == "resume"],
                    "redone": [one for one in job.said[since : commit + 1] if one["event"] == "redo"],
                    "worst": reference.judge(news, {}),
                }
        finally:
            job.end()


def _await_workers(job: LedJob, since: int, live: int) -> int:
    """The place of the first iteration of so many workers."""
    deadline_s = time.monotonic() + MOST_S
    while time.monotonic() < deadline_s:
        for place, one in enumerate(job.said[since:], since):
            if one["event"] == "iteration" and one["live_workers"] == live:
                return place
        time.sleep(0.005)
    raise AssertionError(f"no iteration of {live} workers; last: {job.said[-3:]}")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst of what must not differ, and how long it took."""
    worst = {name: max(row["worst"][name] for row in rows) for name in rows[0]["worst"]}
    times = [row["kill_to_commit_s"] for row in rows]
    found = {
        "cycles": len(rows),
        "kills": sum(len(row["killed"]) for row in rows),
        "resumed": sum(bool(row["resumed"]) for row in rows),
        "worst": worst,
        "kill_to_commit_s": {"median": statistics.median(times), "max": max(times)},
    }
    return found | {way: lost_by(rows, way) for way in ("rest", "redo") if any(row["rerouted_s"] for row in rows)}


def lost_by(rows: list[dict[str, Any]], way: str) -> dict[str, Any]:
    """Of one way, in re-routed iterations: what was lost, with and without regrouping, and the time to the commit."""
    own = [row for row in rows if row["way"] == way and row["rerouted_s"]]
    if not own:
        return {}
    lost, without, times = [], [], []
    for row in own:
        regrouped_s = row["detected_s"] + row["recovered"]["after_s"].get("ready", 0.0)
        lost.append(lost_in(row))
        without.append((row["iteration_s"] - regrouped_s) / row["rerouted_s"] - 1)
        times.append(row["kill_to_commit_s"] / row["rerouted_s"])
    return {
        name: {"mean": statistics.fmean(values), "median": statistics.median(values), "max": max(values)}
        for name, values in (("lost", lost), ("lost_without_regrouping", without), ("kill_to_commit", times))
    }


def main() -> None:
    """Strike jobs of one case, and add what came of it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*CASES, FAILOVER], required=True)
    parser.add_argument("--cycles", type=int, default=CYCLES_A_JOB)
    parser.add_argument("--chart", help="draw what `moments` has lost here")
    parser.add_argument("-o", "--output", required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    there = Path(given.output)
    found = json.loads(there.read_text())["cases"] if there.is_file() else {}
    rows: list[dict[str, Any]] = found.get(given.only, {}).get("rows", [])
    while given.cycles > 0:
        # Another job now and then: a seed is good for one whole job, and what is there already tells how many were.
        tell_one = tell_failover if given.only == FAILOVER else partial(tell, CASES[given.only])
        for row in tell_one(1_000 * len(rows) + 1, min(given.cycles, CYCLES_A_JOB)):
            rows.append(row)
            print(given.only, json.dumps(row), flush=True)
            found[given.only] = {**summary(rows), "rows": rows}
            write_result({"cases": found}, given.output)
        given.cycles -= CYCLES_A_JOB
    if given.chart:
        write_chart(found["moments"]["rows"], Path(given.chart))


if __name__ == "__main__":
    main()
