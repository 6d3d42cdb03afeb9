"""Several GPUs a worker, on a CPU: what cutting a block costs in CPU time, and whether a run is as the simulator says.

Cost: a block of GPT-2's size for 2 and 4 ranks, without its sums, which are messages. A rank's share as it is trained
is beside the same share as a profile measures it, so the ratio is that of the calls alone; and all shares one after the
other are beside the whole block, so that what all ranks do alike (norms, what is added to the stream) counts as well.
The value is the CPU time of F and B, and of F, I and W. Sides take turns, and the least of each is compared, for what
others do on the machine adds to all of them.

Run: a plan of 2 stages, 2 pipelines and 2 ranks a worker, paced, on 8 processes, against its simulation.

Job: the same plan as `rtk run` has it, against `rtk simulate`, with the same trace: nothing happens, a rank is killed
and another one joins later, or one that stands by takes over in the same iteration. Of each the iterations with all
workers and without one, and the losses against those of a job of one GPU a worker (float64).

    python benchmarks/shared_workers.py --output shared_workers.json [--only job]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain, product
from pathlib import Path
from statistics import median

import torch
from torch import nn

import rtk
from rtk.benchmarks.common import in_turns, write_result
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import TENSOR_PARALLEL, Block, gpt_layers, language_model_loss
from rtk.profilers.models.joint import ModelCuts
from rtk.profilers.models.presets import GptConfig
from rtk.profilers.models.sharding import shard_of
from rtk.runners.resilience.announcements import IterationCommitted
from rtk.runners.simulator import simulate
from rtk.runners.torch.groups import TCPStore
from rtk.runners.torch.rank_group import RankGroup
from rtk.runners.torch.runner import PlanRunner
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.timeline import Span, Timeline
from rtk.schemas.trace import Trace, TraceEvent

CUTS = ModelCuts(TENSOR_PARALLEL)
BLOCK = GptConfig(blocks=1, width=768, heads=12, vocabulary=64, positions=256)
SAMPLES, TOKENS = 1, 256
ROUNDS, REPEATS = 4, 3
DEGREES = (2, 4)

SMALL = GptConfig(blocks=2, width=32, heads=4, vocabulary=64, positions=16)
JOB_ITERATIONS, FAILS_IN, JOINS_IN = 12, 3, 7
LOST = TraceEvent("fail", iteration=FAILS_IN, worker="1/1", gpu=1)
TRACES = {
    "nothing happens": Trace(()),
    "joins later": Trace((LOST, TraceEvent("join", iteration=JOINS_IN, worker="1/1", gpu=1))),
    "stands by": Trace((LOST, TraceEvent("join", iteration=FAILS_IN, worker="1/1", gpu=1))),
}
RANKS, PACE_S, ITERATIONS = 8, 0.1, 4  # of an F of a layer; the first iteration is not counted


def main() -> None:
    """Measure both and write the figures; as `--rank RANK PORT FOLDER`, be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="-", help="where the JSON goes; standard output by default")
    parser.add_argument("--only", choices=("cost", "run", "job"), help="one part only")
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.rank:
        rank, port, folder = arguments.rank
        (Path(folder) / rank).write_text(json.dumps(paced_rank(int(rank), int(port))))
        return
    parts: dict[str, Callable[[], object]] = {"cost": costs, "run": run_by_plan_runner, "job": jobs}
    asked = [arguments.only] if arguments.only else list(parts)
    write_result({name: parts[name]() for name in asked}, arguments.output)


def run_by_plan_runner() -> dict[str, object]:
    """How long iterations take, measured and simulated, in s."""
    measured_s = run_processes()
    simulated_s = duration_s(simulate(paced_plan()).timeline.spans)
    return {"simulated_s": simulated_s, "measured_s": measured_s, "ratio": median(measured_s) / simulated_s}


def run_processes() -> list[float]:
    """How long each iteration of the run took that counts."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--rank"]
        started = [subprocess.Popen([*command, str(rank), str(store.port), folder]) for rank in range(RANKS)]
        for one in started:
            one.wait()
        found: list[float] = json.loads((Path(folder) / "0").read_text())
        return found


# What a block costs.


class BlockPasses:
    """A micro-batch forward and backward through a block, each time it is called; gives the CPU seconds."""

    def __init__(self, layer: nn.Module, is_split: bool) -> None:
        self._stage = TorchStage([layer], None, is_split)
        self._input = torch.randn(SAMPLES, TOKENS, BLOCK.width)
        self._gradient = torch.randn(SAMPLES, TOKENS, BLOCK.width)

    def __call__(self) -> float:
        """Run them."""
        start_s = time.process_time()
        self._stage.forward(0, self._input)
        if self._stage.is_split:
            self._stage.backward_input(0, self._gradient)
            self._stage.backward_weight(0)
        else:
            self._stage.backward(0, self._gradient)
        return time.process_time() - start_s


def block() -> Block:
    """The same each time."""
    torch.manual_seed(0)
    return Block(BLOCK)


def costs() -> dict[str, dict[str, float]]:
    """By degree and passes the least CPU seconds of each side, and the ratios."""
    found = {}
    for is_split, degree in product((False, True), DEGREES):
        run = [BlockPasses(CUTS.cut(block(), RankGroup(degree, rank)), is_split) for rank in range(degree)]
        sides: dict[str, Callable[[], float]] = {
            "whole": BlockPasses(block(), is_split),
            "measured alone": BlockPasses(shard_of(block(), degree, TENSOR_PARALLEL), is_split),
            "trained": run[0],
            "trained, all ranks": partial(_sum_of, run),
        }
        turns = in_turns(sides, ROUNDS, REPEATS)
        least_s = {name: min(chain.from_iterable(every)) for name, every in turns.items()}
        found[f"{degree} ranks, {'F, I, W' if is_split else 'F, B'}"] = {
            **least_s,
            "calls": least_s["trained"] / least_s["measured alone"],
            "all ranks": least_s["trained, all ranks"] / least_s["whole"],
        }
    return found


def _sum_of(shares: Sequence[BlockPasses]) -> float:
    return sum(share() for share in shares)


# A run and its simulation.


def paced_plan(ranks: int = 2) -> Plan:
    """Two stages, two pipelines, so many ranks a worker."""
    costs = tuple(LayerCost(PACE_S, PACE_S, PACE_S, tensor_parallel=degree) for degree in (1, 2))
    profile = Profile((Layer(costs, activation_bytes=2, weight_stash_bytes=1),) * (SMALL.blocks + 2))
    return plan_pipeline(profile, Shape(2, 2, 4, tensor_parallel=ranks), "zero-bubble")


def paced_rank(rank: int, port: int) -> list[float] | None:
    """Be a rank of the run; rank 0 gives how long each iteration took, of all workers together."""
    torch.manual_seed(0)
    plan, layers = paced_plan(), gpt_layers(SMALL)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    runner = PlanRunner(
        plan,
        layers,
        language_model_loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        rank=rank,
        world_size=RANKS,
        store=store,
        paced=True,
        cuts=CUTS,
    )
    tokens = torch.randint(SMALL.vocabulary, (plan.total_microbatches(), 2, 17))
    for _ in range(ITERATIONS):
        runner.step([(rows[:, :-1], rows[:, 1:]) for rows in tokens])
    timeline = runner.timeline()
    runner.close()
    if timeline is None:
        return None
    every = ([span for span in timeline.spans if span.iteration == number] for number in range(1, ITERATIONS))
    return [duration_s(spans) for spans in every]


def duration_s(spans: Sequence[Span]) -> float:
    """From the first operation to the end of the last."""
    return max(span.end_s for span in spans) - min(span.start_s for span in spans)


# A job and its simulation.


def jobs() -> dict[str, dict[str, object]]:
    """By what happens: iterations with all workers and with one less, measured over simulated, and losses."""
    plan, found = paced_plan(), {}
    _, one_gpu = job_of(paced_plan(ranks=1), Trace(()), is_paced=False)
    for name, trace in TRACES.items():
        timeline, losses = job_of(plan, trace, is_paced=True)
        simulated = rtk.inject(plan, trace, iterations=JOB_ITERATIONS).timeline
        measured_s, promised_s = (iterations_of(one) for one in (timeline, simulated))
        away = range(FAILS_IN + 1, JOINS_IN) if name == "joins later" else range(0)
        changing = (FAILS_IN, FAILS_IN + 1, JOINS_IN)  # the iterations in which somebody comes or goes
        back = [number for number in range(1, JOB_ITERATIONS) if number not in (*away, *changing)]
        ratios = {
            which: median(measured_s[n] for n in numbers) / median(promised_s[n] for n in numbers)
            for which, numbers in (("all workers", back), ("without one", away))
            if numbers
        }
        unlike = max(abs(one - other) for one, other in zip(losses, one_gpu, strict=True))
        found[name] = {"measured over simulated": ratios, "losses differ by": unlike, "measured_s": measured_s}
    return found


def job_of(plan: Plan, trace: Trace, *, is_paced: bool) -> tuple[Timeline, list[float]]:
    """A job of real processes to which a trace happens: its timeline and losses."""
    with tempfile.TemporaryDirectory() as folder:
        faults, timeline = Path(folder) / "faults.jsonl", Path(folder) / "run.json"
        rtk.write(faults, trace)
        model = f"{Path(__file__).parent / 'cut_gpt.py'}:layers"
        training = rtk.TrainingConfig(model, microbatch_size=2, sequence_length=16, paced=is_paced)
        how = rtk.JobConfig(JOB_ITERATIONS, inject=str(faults), timeline=str(timeline))
        happened = rtk.run(plan, training, how)
        losses = [one.loss for one in happened if isinstance(one, IterationCommitted) and one.loss is not None]
        return rtk.read(timeline, Timeline), losses


def iterations_of(timeline: Timeline) -> list[float]:
    """How long each iteration took, in s."""
    numbers = range(JOB_ITERATIONS)
    return [duration_s([span for span in timeline.spans if span.iteration == number]) for number in numbers]


if __name__ == "__main__":
    main()
