"""How often the period of generated call logs is found, and how well iteration times are told by the calls alone.

`python benchmarks/call_periods.py [--logs N] [--seed S] [-o FILE]`. Each log is that of one rank of a job of a kind:
data-parallel (`ddp`: buckets), sharded (`fsdp`: gathers and scatters layer by layer), a stage of a pipeline (`1f1b`),
tensor-parallel (`tp`), or all of these (`hybrid`); half of them with 0.5 to 5 % strays, half with evaluations and
checkpoints, and three in ten with the sum of a loss every few iterations. The script's own time of an iteration is
what the generator gave it, without evaluations, checkpoints and the time between iterations. Right is a period of as
many calls as the generator's.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from statistics import median
from time import process_time
from typing import Any, Literal, TypeAlias

from rtk.benchmarks.common import write_result
from rtk.profilers.failslow.calls.comparison import CommunicationCall
from rtk.profilers.failslow.calls.iterations import MOST, LoggedIteration, Periods

KINDS = ("ddp", "fsdp", "1f1b", "tp", "hybrid")
MODES: tuple[Literal["robust"], Literal["paper"]] = ("robust", "paper")
METRIC = ("all_reduce", "0,1,2,3", 12, 0.01)  # of an evaluation
LOSS = ("all_reduce", "0,1,2,3", 8, 0.0002)  # that is printed now and then
Step: TypeAlias = tuple[str, str, int, float]  # operation, group, bytes, and the time until the next call


@dataclass
class Log:
    """A generated call log.

    Attributes:
        kind: of job.
        period: calls in an iteration.
        calls: all calls of a rank.
        times_s: what the script measured of each iteration.
        begins_s: when the iterations began.
        pauses_s: when evaluations and checkpoints began, between iterations.
        has_strays, has_bursts: whether there are other calls, and evaluations or checkpoints.
    """

    kind: str
    period: int
    has_strays: bool
    has_bursts: bool
    calls: list[CommunicationCall] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    begins_s: list[float] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)


def generate(seed: int) -> Log:
    """The log of this seed."""
    random = Random(seed)
    kind = KINDS[seed % len(KINDS)]
    loop = _loop(kind, random)
    log = Log(kind, len(loop), random.random() < 0.5, random.random() < 0.5)
    writer = _Writer(log, random, strays=random.uniform(0.005, 0.05) if log.has_strays else 0.0)
    iterations = random.randint(30, 120) if len(loop) < 300 else random.randint(10, 30)
    prints = random.randint(5, 20) if random.random() < 0.3 else iterations + 1
    evaluates, saves = random.randint(8, 40), random.randint(15, 60)
    forward = [METRIC] if kind == "ddp" else loop[: max(1, len(loop) // 3)]  # no gradients, so no buckets
    writer.write([("broadcast", "0,1,2,3", 4096 * (n + 1), 0.001) for n in range(random.randint(0, 30))])
    for number in range(iterations):
        writer.iterate(loop, random.gauss(1.0, 0.02))
        if number % prints == prints - 1:
            writer.write([LOSS])
        if log.has_bursts and number % evaluates == evaluates - 1:
            log.pauses_s.append(log.calls[-1].t_s)
            writer.write(forward * random.randint(1, 4) + [METRIC])
        if log.has_bursts and number % saves == saves - 1:
            log.pauses_s.append(log.calls[-1].t_s)
            writer.write([("barrier", "0,1,2,3", 0, random.uniform(0.5, 5.0)), ("barrier", "0,1,2,3", 0, 0.01)])
    return log


class _Writer:
    """Writes calls with a clock that goes on."""

    def __init__(self, log: Log, random: Random, strays: float) -> None:
        self._log, self._random, self._strays = log, random, strays
        self._now_s = 1_700_000_000.0 + random.random()

    def iterate(self, loop: Sequence[Step], pace: float) -> None:
        """One iteration; its last step is what comes after the last call."""
        self._log.begins_s.append(self._now_s)
        self._now_s += 0.1 * loop[-1][3] * pace  # the batch is loaded
        self.write(loop, pace)
        self._log.times_s.append(self._now_s - self._log.begins_s[-1])

    def write(self, steps: Sequence[Step], pace: float = 1.0) -> None:
        """Some calls."""
        for op, group, size, time_s in steps:
            self._log.calls.append(CommunicationCall(self._now_s, 0, op, group, size, "Float"))
            if self._random.random() < self._strays:
                self._stray()
            self._now_s += time_s * pace * self._random.gauss(1.0, 0.01)

    def _stray(self) -> None:
        sizes = [4, 8, 64, 512, self._random.randint(1, 10_000)]
        op = self._random.choice(["all_reduce", "all_gather", "broadcast", "barrier"])
        self._log.calls.append(
            CommunicationCall(self._now_s + 1e-5, 0, op, "0,1,2,3", self._random.choice(sizes), "Long")
        )


def _loop(kind: str, random: Random) -> list[Step]:
    """The calls of an iteration, the optimizer's time after the last one."""
    loops = {"ddp": _ddp, "fsdp": _fsdp, "1f1b": _pipeline, "tp": _tensor, "hybrid": _hybrid}
    steps = loops[kind](random)
    if random.random() < 0.5:
        steps.append(("all_reduce", "0,1,2,3", 4, 0.0))  # the gradient's norm
    op, group, size, time_s = steps[-1]
    return [*steps[:-1], (op, group, size, time_s + random.uniform(0.1, 0.3) * sum(step[3] for step in steps) + 0.005)]


def _ddp(random: Random) -> list[Step]:
    buckets = random.randint(2, 14)
    last = random.randint(1, 5_000_000)
    first = ("all_reduce", "0,1,2,3", 1_050_000, random.uniform(0.01, 0.03))
    full = ("all_reduce", "0,1,2,3", 26_000_000 if random.random() < 0.5 else 26_214_400, random.uniform(0.01, 0.03))
    return [first, *[full] * (buckets - 2), ("all_reduce", "0,1,2,3", last, 0.02)]


def _fsdp(random: Random) -> list[Step]:
    layers, size = random.randint(4, 48), random.randint(1, 100) * 4096
    gather = ("all_gather", "0,1,2,3", size, random.uniform(0.002, 0.01))
    scatter = ("reduce_scatter", "0,1,2,3", size * 4, random.uniform(0.002, 0.01))
    root = ("all_gather", "0,1,2,3", size // 2 + 64, 0.002)
    forward = [root] * (random.random() < 0.7) + [gather] * layers
    return forward + [gather, scatter] * layers


def _pipeline(random: Random) -> list[Step]:
    stages = random.randint(2, 8)
    stage, batches = random.randrange(stages), random.randint(stages, 4 * stages)
    steps = _one_f_one_b(stage, stages, batches, 1_000_000, random.uniform(0.002, 0.01), [], [])
    return steps + [("all_reduce", "0,4", size * 1000, 0.005) for size in range(1, random.randint(2, 4))]


def _one_f_one_b(
    stage: int, stages: int, batches: int, size: int, time_s: float, forward: list[Step], backward: list[Step]
) -> list[Step]:
    """The messages and sums of a stage, in the order of 1F1B."""
    before, after = f"{stage - 1}->{stage}", f"{stage}->{stage + 1}"
    up, down = f"{stage + 1}->{stage}", f"{stage}->{stage - 1}"
    has_before, has_after = stage > 0, stage < stages - 1
    one_f: list[Step] = [*[("recv", before, size, time_s)] * has_before, *forward]
    one_f += [("send", after, size, 0.0005)] * has_after
    one_b: list[Step] = [*[("recv", up, size, 2 * time_s)] * has_after, *backward]
    one_b += [("send", down, size, 0.0005)] * has_before
    ahead = min(stages - 1 - stage, batches)
    return one_f * ahead + (one_f + one_b) * (batches - ahead) + one_b * ahead


def _tensor(random: Random) -> list[Step]:
    layers, batches = random.randint(2, 12), random.randint(1, 8)
    one = ("all_reduce", "0,1", 4_194_304, random.uniform(0.0005, 0.003))
    loss: list[Step] = [("all_reduce", "0,1", 8192, 0.0002)] * 3
    batch = [one] * (2 * layers + 1) + loss + [one] * (2 * layers)
    return batch * batches + [("all_reduce", "0,2", 77_000_000, 0.01)]


def _hybrid(random: Random) -> list[Step]:
    stages, layers = random.randint(2, 6), random.randint(1, 4)
    one = ("all_reduce", "0,1", 4_194_304, random.uniform(0.0005, 0.003))
    stage, batches = random.randrange(stages), random.randint(stages, 3 * stages)
    steps = _one_f_one_b(stage, stages, batches, 2_000_000, 0.002, [one] * 2 * layers, [one] * 2 * layers)
    return [*steps, ("reduce_scatter", "0,2", 90_000_000, 0.02), ("all_gather", "0,2", 22_500_000, 0.01)]


def examine(log: Log, mode: Literal["robust", "paper"]) -> dict[str, Any]:
    """What is found in a log."""
    periods = Periods(mode, min(len(log.calls), MOST))
    begin_s = process_time()
    found = [one for call in log.calls for one in periods.note(call)] + list(periods.finish())
    spent_s = process_time() - begin_s
    row = {"kind": log.kind, "strays": log.has_strays, "bursts": log.has_bursts, "calls": len(log.calls)}
    row |= {"period": log.period, "found": periods.period, "right": periods.period == log.period}
    row |= {"us_per_call": spent_s / len(log.calls) * 1e6, "told": len(found) / len(log.times_s)}
    row |= _live(log, mode)
    undisturbed = [one for one in found if one.phase == periods.phase and not _is_across(log.pauses_s, one)]
    pairs = list(_pairs(log, undisturbed))
    if row["right"] and pairs:
        row["error"] = median(abs(time_s / own_s - 1) for time_s, own_s in pairs)
        row["mean_error"] = abs(sum(time_s for time_s, _ in pairs) / sum(own_s for _, own_s in pairs) - 1)
    return row


def _live(log: Log, mode: Literal["robust", "paper"]) -> dict[str, Any]:
    """What is found by somebody who listens: whether it is right in the end, and after how many iterations it is."""
    periods, settled_s = Periods(mode), None
    for call in log.calls:
        periods.note(call)
        if periods.period != log.period:
            settled_s = None
        elif settled_s is None:
            settled_s = call.t_s
    after = sum(begin_s <= settled_s for begin_s in log.begins_s) if settled_s is not None else None
    return {"live": settled_s is not None, "live_after": after}


def _is_across(pauses_s: Sequence[float], one: LoggedIteration) -> bool:
    return any(one.begin_s <= pause_s < one.begin_s + one.time_s for pause_s in pauses_s)


def _pairs(log: Log, found: Sequence[LoggedIteration]) -> Iterator[tuple[float, float]]:
    """Each time, and the script's own of the iteration that has most of it."""
    place = 0
    for one in found:
        middle_s = one.begin_s + one.time_s / 2
        while place + 1 < len(log.begins_s) and log.begins_s[place + 1] <= middle_s:
            place += 1
        yield one.time_s, log.times_s[place]


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares and medians of some logs."""
    right = [row for row in rows if row["right"]]
    errors = sorted(row["error"] for row in right if "error" in row)
    means = sorted(row["mean_error"] for row in right if "error" in row)
    return {
        "logs": len(rows),
        "right": len(right),
        "median_error": median(errors) if errors else None,
        "worst_error": errors[-1] if errors else None,
        "median_mean_error": median(means) if means else None,
        "worst_mean_error": means[-1] if means else None,
        "iterations_told": median(row["told"] for row in right) if right else None,
        "live_right": sum(row["live"] for row in rows),
        "live_after_iterations": median(row["live_after"] for row in rows if row["live"]) if right else None,
        "us_per_call": median(row["us_per_call"] for row in rows),
    }


def by_kind(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The summary of all, and of each kind of job and of disturbance."""
    parts: dict[str, Callable[[dict[str, Any]], bool]] = {
        "all": lambda row: True,
        **{kind: partial(_is_of, kind) for kind in KINDS},
        "clean": lambda row: not row["strays"] and not row["bursts"],
        "strays": lambda row: row["strays"],
        "bursts": lambda row: row["bursts"],
    }
    return {name: summary([row for row in rows if belongs(row)]) for name, belongs in parts.items()}


def _is_of(kind: str, row: dict[str, Any]) -> bool:
    return bool(row["kind"] == kind)


def main() -> None:
    """Generate, examine and write."""
    parser = argparse.ArgumentParser(description="Periods and iteration times out of generated call logs.")
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=100_000, help="of the first log; the others follow")
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args()
    logs = [generate(options.seed + number) for number in range(options.logs)]
    rows = {mode: [examine(log, mode) for log in logs] for mode in MODES}
    wrong = [(options.seed + place, row["kind"]) for place, row in enumerate(rows["robust"]) if not row["right"]]
    found: dict[str, Any] = {mode: by_kind(rows[mode]) for mode in MODES}
    write_result({"logs": options.logs, "seed": options.seed, "wrong": wrong, **found}, options.output)


if __name__ == "__main__":
    main()
