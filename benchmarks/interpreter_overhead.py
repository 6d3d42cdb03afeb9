"""CPU time of an iteration: our runner against the schedules of torch.distributed.pipelining on the same model.

Both train the same GPT in the same orders, torch's own: Schedule1F1B, ScheduleInterleaved1F1B (a loop of two virtual
stages a worker, full backward passes) and ScheduleZBVZeroBubble (a V, backward passes split), on 4 processes of one
thread, 8 micro-batches, SGD. In one run they take turns several times. The value is the CPU time of an iteration
(`time.process_time`, all threads) summed over the processes, which unlike wall time does not depend on how many cores
they share. At the end the parameters of both are compared: they did the same work.

    python benchmarks/interpreter_overhead.py --output overhead.json
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from rtk.benchmarks.common import in_turns, spread, write_result
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig
from rtk.runners.torch.groups import PrefixStore, Store
from rtk.runners.torch.runner import PlanRunner
from rtk.schemas.placement import loop_placement, v_placement
from rtk.schemas.plan import Link, Pipeline, Placement, Plan, Planner, Stage, Template, Worker, plain_placement

RANKS, MICROBATCHES = 4, 8


class Case(NamedTuple):
    """A schedule of torch's, and where its stages lie."""

    schedule: type[Any]
    placement: Placement


CASES = (
    Case(Schedule1F1B, plain_placement(RANKS)),
    Case(ScheduleInterleaved1F1B, loop_placement(RANKS, 2)),
    Case(ScheduleZBVZeroBubble, v_placement(RANKS)),
)
# One block a stage, with the embedding before the first and the head behind the last; a micro-batch is one sample.
# Narrow, the interpreter and the messages are half of the time; wide, the matrix products are most of it.
WIDTHS = (64, 256)
VOCABULARY, SEQUENCE_LENGTH = 256, 128
ROUNDS, REPEATS = 8, 4
LEARNING_RATE = 1e-2
DEADLINE_S = 1800.0

Batch = list[tuple[torch.Tensor, torch.Tensor]]


def main() -> None:
    """Measure every schedule and width and write the figures; as `--rank R FOLDER`, be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="-", help="where the JSON goes; standard output by default")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        run_rank(int(arguments.rank[0]), Path(arguments.rank[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        run_processes(Path(folder))
        ranks = [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(RANKS)]
    settings = [(case, width) for case in CASES for width in WIDTHS]
    figures = [compare(*setting, [rank[number] for rank in ranks]) for number, setting in enumerate(settings)]
    for found in figures:
        words = "width {width}: rtk {rtk_cpu_s[median]:.4f} s, torch {torch_cpu_s[median]:.4f} s, ratio {ratio:.3f}"
        print(f"{found['schedule']}, {words.format(**found)}", file=sys.stderr)
    write_result({"benchmark": "interpreter overhead", "target_ratio": 1.0, "widths": figures}, arguments.output)


def run_processes(folder: Path) -> None:
    """One process a rank, each leaving its values in the folder; none outlives this call."""
    ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), str(folder)]) for rank in range(RANKS)]
    deadline = time.monotonic() + DEADLINE_S
    try:
        for rank in ranks:
            if rank.wait(max(0.0, deadline - time.monotonic())):
                sys.exit("a process failed")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def compare(case: Case, width: int, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a setting from the values of all ranks: sums over ranks first, medians over iterations then."""
    turns = {
        side: [[sum(values) for values in zip(*turn, strict=True)] for turn in zip(*own, strict=True)]
        for side, own in ((side, [rank["cpu_s"][side] for rank in ranks]) for side in ("rtk", "torch"))
    }
    rtk, torch_ = (spread(list(chain.from_iterable(turns[side]))) for side in ("rtk", "torch"))
    by_turn = [median(ours) / median(theirs) for ours, theirs in zip(turns["rtk"], turns["torch"], strict=True)]
    return {
        "schedule": case.schedule.__name__,
        "width": width,
        "microbatch_size": 1,
        "sequence_length": SEQUENCE_LENGTH,
        "ranks": RANKS,
        "stages": sum(map(len, case.placement)),
        "microbatches": MICROBATCHES,
        "iterations": ROUNDS * REPEATS,
        "rtk_cpu_s": rtk,
        "torch_cpu_s": torch_,
        "ratio": rtk["median"] / torch_["median"],
        "ratio_by_turn": by_turn,
        "largest_parameter_difference": max(rank["difference"] for rank in ranks),
    }


def run_rank(rank: int, folder: Path) -> None:
    """Measure both sides on one rank."""
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'store'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    values = [measure(case, width, rank) for case in CASES for width in WIDTHS]
    (folder / str(rank)).write_text(json.dumps(values))
    distributed.destroy_process_group()


def measure(case: Case, width: int, rank: int) -> dict[str, Any]:
    """This rank's CPU seconds of every iteration by side and turn, and how far the sides' parameters are apart."""
    torch.manual_seed(0)
    held = case.placement[rank]
    layers = gpt_layers(GptConfig(sum(map(len, case.placement)), width, 4, VOCABULARY, SEQUENCE_LENGTH))
    parts = [nn.Sequential(*layers[slice(*stage.layers)]) for stage in stages_of(case)]
    shape = (1, SEQUENCE_LENGTH)
    batch = [(torch.randint(VOCABULARY, shape), torch.randint(VOCABULARY, shape)) for _ in range(MICROBATCHES)]
    theirs, ours = copy.deepcopy([parts[stage] for stage in held]), [parts[stage] for stage in held]
    store = PrefixStore(f"{case.schedule.__name__}/{width}", distributed.distributed_c10d._get_default_store())
    iterate, plan = torch_side(case, theirs, rank, batch)
    sides = {"torch": iterate, "rtk": rtk_side(plan, layers, rank, batch, store)}
    cpu_s = in_turns(sides, ROUNDS, REPEATS)
    pairs = zip(nn.ModuleList(ours).parameters(), nn.ModuleList(theirs).parameters(), strict=True)
    return {"cpu_s": cpu_s, "difference": max(float((a - b).detach().abs().max()) for a, b in pairs)}


def stages_of(case: Case) -> tuple[Stage, ...]:
    """One block each, the embedding with the first and the head with the last."""
    count = sum(map(len, case.placement))
    cuts = (0, *range(2, count + 1), count + 2)
    return tuple(Stage(layers, 1.0, 1.0, 1.0) for layers in pairwise(cuts))


def plan_of(case: Case, orders: Sequence[str]) -> Plan:
    """A plan of torch's orders."""
    stages = stages_of(case)
    placement = case.placement if len(stages) > RANKS else None
    template = Template("torch", stages, (Link(),) * (len(stages) - 1), placement)
    workers = tuple(Worker(0, rank, order) for rank, order in enumerate(orders))
    name = Planner(case.schedule.__name__, torch.__version__, {})
    return Plan(name, (template,), (Pipeline("torch", MICROBATCHES),), "synchronous", workers)


def torch_side(case: Case, parts: list[nn.Sequential], rank: int, batch: Batch) -> tuple[Callable[[], float], Plan]:
    """An iteration of torch's schedule on this rank's stages, and the plan that says what it does."""
    held, count = case.placement[rank], sum(map(len, case.placement))
    stages = [PipelineStage(part, v, count, torch.device("cpu")) for v, part in zip(held, parts, strict=True)]
    is_plain = count == RANKS
    schedule = case.schedule(stages[0] if is_plain else stages, MICROBATCHES, loss_fn=language_model_loss)
    optimizer = torch.optim.SGD([one for part in parts for one in part.parameters()], LEARNING_RATE)
    inputs = [torch.cat([inputs for inputs, _ in batch])] if 0 in held else []
    target = torch.cat([targets for _, targets in batch]) if count - 1 in held else None

    def iterate() -> None:
        optimizer.zero_grad()
        schedule.step(*inputs, target=target, return_outputs=False)
        optimizer.step()

    if is_plain:
        orders = [one_forward_one_backward(stage) for stage in range(RANKS)]
    else:
        orders = [" ".join(str(one) for one in schedule.pipeline_order[rank] if one) for rank in range(RANKS)]
    return timed(iterate), plan_of(case, orders)


def one_forward_one_backward(stage: int) -> str:
    """The order of 1F1B."""
    ahead = min(RANKS - 1 - stage, MICROBATCHES)
    pairs = [f"F{n + ahead} B{n}" for n in range(MICROBATCHES - ahead)]
    rest = [f"B{n}" for n in range(MICROBATCHES - ahead, MICROBATCHES)]
    return " ".join([*(f"F{n}" for n in range(ahead)), *pairs, *rest])


def rtk_side(plan: Plan, layers: list[nn.Module], rank: int, batch: Batch, store: Store) -> Callable[[], float]:
    """An iteration of our runner on this rank's stages."""
    runner = PlanRunner(
        plan,
        layers,
        language_model_loss,
        lambda parameters: torch.optim.SGD(parameters, LEARNING_RATE),
        rank=rank,
        world_size=RANKS,
        store=store,
    )
    return timed(lambda: runner.step(batch))


def timed(iterate: Callable[[], object]) -> Callable[[], float]:
    """Measure the CPU seconds of all of this process's threads."""

    def measure_once() -> float:
        start_s = time.process_time()
        iterate()
        return time.process_time() - start_s

    return measure_once


if __name__ == "__main__":
    main()
