"""CPU time of an iteration: our runner against torch.distributed.pipelining's Schedule1F1B on the same model.

Both train the same GPT with 1F1B: 4 stages on 4 processes of one thread, 8 micro-batches, full backward, SGD. In one
run they take turns several times. The value is the CPU time of an iteration (`time.process_time`, all threads) summed
over the processes, which unlike wall time does not depend on how many cores they share. At the end the parameters of
both are compared: they did the same work.

    python benchmarks/interpreter_overhead.py --output overhead.json
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from rtk.benchmarks.common import in_turns, spread, write_result
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig
from rtk.runners.torch.groups import PrefixStore, Store
from rtk.runners.torch.runner import PlanRunner
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

STAGES, MICROBATCHES = 4, 8
# One block a stage, with the embedding before the first and the head behind the last; a micro-batch is one sample.
# Narrow, the interpreter and the messages are half of the time; wide, the matrix products are most of it.
WIDTHS = (64, 256)
VOCABULARY, SEQUENCE_LENGTH = 256, 128
ROUNDS, REPEATS = 16, 4
LEARNING_RATE = 1e-2
DEADLINE_S = 300.0

Batch = list[tuple[torch.Tensor, torch.Tensor]]


def main() -> None:
    """Measure every width and write the figures; as `--rank R FOLDER`, be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="-", help="where the JSON goes; standard output by default")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        run_rank(int(arguments.rank[0]), Path(arguments.rank[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        run_processes(Path(folder))
        ranks = [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(STAGES)]
    figures = [compare(width, [rank[number] for rank in ranks]) for number, width in enumerate(WIDTHS)]
    for found in figures:
        words = "width {width}: rtk {rtk_cpu_s[median]:.4f} s, torch {torch_cpu_s[median]:.4f} s, ratio {ratio:.3f}"
        print(words.format(**found), file=sys.stderr)
    write_result({"benchmark": "interpreter overhead", "target_ratio": 1.0, "widths": figures}, arguments.output)


def run_processes(folder: Path) -> None:
    """One process a stage, each leaving its values in the folder; none outlives this call."""
    ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), str(folder)]) for rank in range(STAGES)]
    deadline = time.monotonic() + DEADLINE_S
    try:
        for rank in ranks:
            if rank.wait(max(0.0, deadline - time.monotonic())):
                sys.exit("a process failed")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def compare(width: int, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a width from the values of all ranks: sums over ranks first, medians over iterations then."""
    turns = {
        side: [[sum(values) for values in zip(*turn, strict=True)] for turn in zip(*own, strict=True)]
        for side, own in ((side, [rank["cpu_s"][side] for rank in ranks]) for side in ("rtk", "torch"))
    }
    rtk, torch_ = (spread(list(chain.from_iterable(turns[side]))) for side in ("rtk", "torch"))
    by_turn = [median(ours) / median(theirs) for ours, theirs in zip(turns["rtk"], turns["torch"], strict=True)]
    return {
        "width": width,
        "microbatch_size": 1,
        "sequence_length": SEQUENCE_LENGTH,
        "stages": STAGES,
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
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=STAGES)
    values = [measure(width, rank) for width in WIDTHS]
    (folder / str(rank)).write_text(json.dumps(values))
    distributed.destroy_process_group()


def measure(width: int, rank: int) -> dict[str, Any]:
    """This rank's CPU seconds of every iteration by side and turn, and how far the sides' parameters are apart."""
    torch.manual_seed(0)
    layers = gpt_layers(GptConfig(STAGES, width, 4, VOCABULARY, SEQUENCE_LENGTH))
    shape = (1, SEQUENCE_LENGTH)
    batch = [(torch.randint(VOCABULARY, shape), torch.randint(VOCABULARY, shape)) for _ in range(MICROBATCHES)]
    plan = make_plan()
    first, stop = plan.templates[0].stages[rank].layers
    theirs, ours = nn.Sequential(*copy.deepcopy(layers[first:stop])), nn.Sequential(*layers[first:stop])
    store = PrefixStore(f"width/{width}", distributed.distributed_c10d._get_default_store())
    sides = {"torch": torch_side(theirs, rank, batch), "rtk": rtk_side(plan, layers, rank, batch, store)}
    cpu_s = in_turns(sides, ROUNDS, REPEATS)
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return {"cpu_s": cpu_s, "difference": max(float((a - b).detach().abs().max()) for a, b in pairs)}


def make_plan() -> Plan:
    """1F1B of one block a stage."""
    block, end = Layer((LayerCost(1.0, 1.0, 1.0),)), Layer((LayerCost(0.1, 0.1, 0.1),))
    profile = Profile((end, *(block for _ in range(STAGES)), end))
    return plan_pipeline(profile, Shape(STAGES, 1, MICROBATCHES), "1f1b")


def torch_side(module: nn.Module, rank: int, batch: Batch) -> Callable[[], float]:
    """An iteration of torch's schedule on this rank's stage."""
    stage = PipelineStage(module, rank, STAGES, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=language_model_loss)
    optimizer = torch.optim.SGD(module.parameters(), LEARNING_RATE)
    inputs = [torch.cat([inputs for inputs, _ in batch])] if rank == 0 else []
    target = torch.cat([targets for _, targets in batch]) if rank == STAGES - 1 else None

    def iterate() -> None:
        optimizer.zero_grad()
        schedule.step(*inputs, target=target, return_outputs=False)
        optimizer.step()

    return timed(iterate)


def rtk_side(plan: Plan, layers: list[nn.Module], rank: int, batch: Batch, store: Store) -> Callable[[], float]:
    """An iteration of our runner on this rank's stage."""
    runner = PlanRunner(
        plan,
        layers,
        language_model_loss,
        lambda parameters: torch.optim.SGD(parameters, LEARNING_RATE),
        rank=rank,
        world_size=STAGES,
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
