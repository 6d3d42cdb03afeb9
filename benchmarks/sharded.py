"""What a sharded optimizer does while workers are killed and join: `python benchmarks/sharded.py --only SECTION`.

* chaos: cycles of a random SIGKILL at a random moment and a re-join, in a job of real processes. Each worker writes
  down a sum over each block that it holds after every step: do owner and buddy have the same bits? What was sent of the
  optimizer's state, of what there is? The losses beside those of a job that nothing happens to.
* pause: the same deaths with and without a sharded optimizer: from the kill to the next commit, and the iteration in
  which state is on its way beside those before.

`--cycles` is so many in each job; each `--seed` is a job of its own. What the output has already is not measured again,
and it is written after each job, so that the command can be broken off and given again.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.benchmarks.survival import FOREVER, exact, is_event, is_healthy, plan_of, recent_s, tail_of
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.documents import canonical
from rtk.schemas.plan import Plan
from rtk.tests.runners.processes import ProcessJob, work

if __name__ != "worker":
    from rtk.tests.warm import fork

SHAPES = {"4 peers": (1, 4), "2 stages, 3 peers": (2, 3)}  # stages, pipelines
STATE_BYTES = 16  # of AdamW's two moments of a float64 parameter


def write_down(path: Path) -> None:
    """Have this process write down what it steps, and what of the optimizer's state it sends."""
    from rtk.runners.torch.packing import PackedEntries
    from rtk.runners.torch.resharding import STATES_TAG
    from rtk.runners.torch.stage_blocks import StageBlocks

    told = path.open("a", buffering=1)
    noted, sent = StageBlocks.note_step, PackedEntries.send

    def note(blocks: StageBlocks, version: int) -> None:
        noted(blocks, version)
        sums = {f"{layer}.{number}": _sum_of(blocks, (layer, number)) for layer, number in sorted(blocks.held)}
        told.write(json.dumps({"step": version, "sums": sums, "of": sum(blocks.sizes.values())}) + "\n")

    def send(packed: PackedEntries, transport: Any, *to: int) -> None:
        if packed.tag_of(0) == STATES_TAG:
            size = sum(one.nbytes for one in packed.entries.values() if one.dim())
            told.write(json.dumps({"sent": size * len(to)}) + "\n")
        sent(packed, transport, *to)

    StageBlocks.note_step = note  # type: ignore[assignment, method-assign]
    PackedEntries.send = send  # type: ignore[assignment, method-assign]


def _sum_of(blocks: Any, block: tuple[int, int]) -> str:
    sha256 = hashlib.sha256()
    for name, value in (blocks.values_of([block]) | blocks.state_of([block])).items():
        sha256.update(name.encode() + value.contiguous().numpy().tobytes())
    return sha256.hexdigest()[:16]


class NotedJob(ProcessJob):
    """A job whose workers write down what they step.

    Args:
        folder: where.
        plan, training: as of `ProcessJob`.
    """

    def __init__(self, folder: Path, plan: Plan, training: TrainingConfig) -> None:
        super().__init__(plan, JobConfig(FOREVER), training)
        self._folder, self._started = folder, 0

    def start(self, name: str, not_before: int = 0) -> None:
        """Start a worker, or its replacement."""
        self._started += 1
        path = self._folder / f"{name.replace('/', '-')}.{self._started}.jsonl"
        arguments = (canonical(self.plan), self.training, name, self.addresses, self.secret, not_before)
        self.processes[name] = fork(__file__, path, *arguments)


def training(is_sharded: bool) -> TrainingConfig:
    """In double precision."""
    return replace(exact(), shard_optimizer=is_sharded)


def chaos(plan: Plan, cycles: int, seed: int) -> dict[str, Any]:
    """Kill a random worker at a random moment, let a replacement join, and so on."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        with NotedJob(Path(folder), plan, training(True)) as job:
            job.wait_for_iteration(5)
            kills = [kill_and_join(job, chance) for _ in range(cycles)]
            losses = job.losses()
        told = [line for path in sorted(Path(folder).iterdir()) for line in lines_of(path)]
    found = {"kill_to_commit_s": tail_of(kills), **compared(told), **sent(told, plan, cycles)}
    print(json.dumps(found), file=sys.stderr)  # the job without deaths takes as long again
    with ProcessJob(plan, JobConfig(len(losses)), training(False)) as job:
        job.result(timeout_s=3600)
        difference = max(abs(one - other) for one, other in zip(losses, job.losses(), strict=True))
    return {
        "pipelines": len(plan.pipelines),
        "cycles": cycles,
        "kills_and_joins": 2 * cycles,
        "iterations": len(losses),
        "loss_difference": difference,
        **found,
    }


def kill_and_join(job: ProcessJob, chance: random.Random) -> float:
    """One cycle; gives the seconds from the kill to the next commit."""
    name = chance.choice(sorted(job.processes))
    time.sleep(chance.random() * recent_s(job))
    killed_s, since = time.perf_counter(), len(job.said)
    job.signal(name, signal.SIGKILL)
    at = job.wait_for(is_event("recovered"), since=since)
    took_s = float(job.said[at]["at_s"]) - killed_s
    job.start(name)
    at = job.wait_for(is_event("join", worker=name), since=at)
    job.wait_for(is_event("recovered"), since=at)
    return took_s


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """What a worker has written down; the last line may have been cut off with it."""
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def compared(told: list[dict[str, Any]]) -> dict[str, Any]:
    """Of how many blocks, after how many steps, all who held them had the same bits, or not."""
    sums: dict[tuple[int, str], list[str]] = defaultdict(list)
    for one in told:
        for block, found in one.get("sums", {}).items():
            sums[one["step"], block].append(found)
    return {
        "blocks_compared": sum(len(found) > 1 for found in sums.values()),
        "blocks_unlike": sum(len(set(found)) > 1 for found in sums.values()),
    }


def sent(told: list[dict[str, Any]], plan: Plan, cycles: int) -> dict[str, Any]:
    """What was sent of the state for a death and a join, of all that the stage has, beside 2 of so many parts."""
    whole_bytes = STATE_BYTES * max(one["of"] for one in told if "of" in one)
    total_bytes = sum(one.get("sent", 0) for one in told)
    peers = len(plan.pipelines)
    return {
        "state_sent_a_cycle": total_bytes / cycles / whole_bytes,
        "least_a_cycle": 2 / peers + 2 / peers,  # what a dead one held, and what who comes is to hold
    }


def pause(plan: Plan, cycles: int, seed: int) -> dict[str, Any]:
    """Deaths and joins with and without a sharded optimizer."""
    found: dict[str, Any] = {}
    for name, is_sharded in (("replicated", False), ("sharded", True)):
        chance = random.Random(seed)
        with ProcessJob(plan, JobConfig(FOREVER), training(is_sharded)) as job:
            job.wait_for_iteration(10)
            kills = [kill_and_join(job, chance) for _ in range(cycles)]
            times = [one["iteration_time_s"] for one in job.said if is_healthy(one, plan)]
        found[name] = {"kill_to_commit_s": tail_of(kills), "healthy_iteration_s": statistics.median(times)}
    return found


SECTIONS = {"chaos": chaos, "pause": pause}


def main() -> None:
    """Measure the sections that are asked for, of each shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=sorted(SECTIONS), action="append")
    parser.add_argument("--shape", choices=sorted(SHAPES), action="append")
    parser.add_argument("--cycles", type=int, default=25)
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("-o", "--output", default="-")
    asked = parser.parse_args()
    result = measured_before(asked.output)
    for section, shape, seed in product(
        asked.only or sorted(SECTIONS), asked.shape or sorted(SHAPES), asked.seed or range(2)
    ):
        name = f"{shape}, seed {seed}"
        if name in result.setdefault(section, {}):
            continue
        print(f"{section}, {name}", file=sys.stderr)
        found = SECTIONS[section](plan_of(*SHAPES[shape]), asked.cycles, seed)
        result[section][name] = {**found, "load_average": os.getloadavg()[0]}
        if asked.output != "-":
            write_result(result, asked.output)
    if asked.output == "-":
        write_result(result, "-")


def measured_before(output: str) -> dict[str, Any]:
    """What a result has already, by section and job."""
    path = Path(output)
    before = json.loads(path.read_text()) if output != "-" and path.exists() else {}
    return {section: before[section] for section in SECTIONS if section in before}


if __name__ == "worker":
    told_at, *arguments_of_worker = globals()["ARGUMENTS"]
    write_down(told_at)
    work(*arguments_of_worker)
elif __name__ == "__main__":
    main()
