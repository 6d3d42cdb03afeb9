"""What a worker holds and how long it steps, replicated and sharded among 2, 4 and 8 peers: predicted and measured.

A GPT in one stage, AdamW, float32. `alone` is one worker of each number of peers, without the others: the bytes of its
optimizer's tensors, and its step's seconds, sides in turns; beside them what a plan says, made from the profile of
the model on this machine. `run` is all of them as processes, which sum, step and gather: bytes of tensors and anonymous
memory of each, and the iteration's seconds (many processes share few cores here, so only ratios within a row count).

    python benchmarks/shard_memory.py --output shard_memory.json
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from rtk.benchmarks.common import in_turns, write_result
from rtk.planners.gpu_memory import memory_of
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.measure import measure_profile
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.model import Model
from rtk.profilers.models.presets import GptConfig
from rtk.runners.resilience.protocol import StepTerms
from rtk.runners.torch.groups import TCPStore
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.runner import PlanRunner
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.blocks import deal_layers
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Profile
from rtk.schemas.sharded import OptimizerShare

GPT = GptConfig(blocks=4, width=512, heads=8, vocabulary=2048, positions=32)
PEERS = (2, 4, 8)
ROUNDS, REPEATS, ITERATIONS = 4, 3, 6


def main() -> None:
    """Measure all and write the figures; as `--rank …`, be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="-", help="where the JSON goes; standard output by default")
    parser.add_argument("--peers", type=int, nargs="+", default=PEERS)
    parser.add_argument("--rank", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.rank:
        rank, peers, is_sharded, port, folder = arguments.rank
        told = rank_of(int(rank), int(peers), bool(int(is_sharded)), int(port))
        (Path(folder) / rank).write_text(json.dumps(told))
        return
    profile = measured_profile()
    found = {
        "parameters": sum(one.numel() for layer in gpt_layers(GPT) for one in layer.parameters()),
        "alone": alone(profile, arguments.peers),
        "run": {f"{peers} peers": together(peers) for peers in arguments.peers},
    }
    write_result(found, arguments.output)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """With moments of 8 bytes a parameter."""
    return torch.optim.AdamW(parameters, lr=1e-4)


def tokens(seed: int) -> torch.Tensor:
    """One sample, and what follows each token of it."""
    return torch.randint(GPT.vocabulary, (1, GPT.positions + 1), generator=torch.Generator().manual_seed(seed))


def moments_bytes(state: dict[str, torch.Tensor]) -> int:
    """Of the optimizer's tensors in a state; step counters count, too."""
    return sum(value.nbytes for name, value in state.items() if "/" in name)


# One worker by itself, and what a plan says of it.


def measured_profile() -> Profile:
    """Of the model, on this machine; nobody sums or gathers."""

    def example(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = tokens(seed)
        return rows[:, :-1], rows[:, 1:]

    model = Model("gpt", gpt_layers(GPT), language_model_loss, 1, GPT.positions, GPT.vocabulary, example)
    return measure_profile(model, TorchStage, clock=time.process_time)


def plan(profile: Profile, peers: int, is_sharded: bool) -> Plan:
    """A micro-batch for each of so many pipelines of one stage."""
    return plan_pipeline(profile, Shape(1, peers, 1, share=OptimizerShare(peers) if is_sharded else None), "1f1b")


def alone(profile: Profile, every: Iterable[int]) -> list[dict[str, Any]]:
    """By number of peers what a worker holds of the optimizer and how long it steps, as predicted and measured."""
    asked = [(peers, is_sharded) for peers in every for is_sharded in (False, True)]
    workers = {f"{peers} {is_sharded}": LoneWorker(peers, is_sharded) for peers, is_sharded in asked}
    turns = in_turns(workers, ROUNDS, REPEATS)
    rows = []
    for peers, is_sharded in asked:
        made, name = plan(profile, peers, is_sharded), f"{peers} {is_sharded}"
        held = memory_of(profile, made)[0]
        assert held is not None
        rows.append(
            {
                "peers": peers,
                "sharded": is_sharded,
                "predicted_state_bytes": held.optimizer_bytes,
                "measured_state_bytes": workers[name].state_bytes,
                "predicted_step_s": made.templates[0].stages[0].optimizer_s,
                "measured_step_s": median(chain.from_iterable(turns[name])),
            }
        )
        print(rows[-1], file=sys.stderr)
    return rows


class LoneWorker:
    """The first of some peers; steps whenever it is called, and gives the CPU seconds."""

    def __init__(self, peers: int, is_sharded: bool) -> None:
        layers = gpt_layers(GPT)
        whole = (0, len(layers))
        self._held = HeldStage(layers, whole, language_model_loss, adamw, is_last=True, is_sharded=is_sharded)
        if self._held.blocks is not None:
            sizes, workers = self._held.blocks.sizes, range(peers)
            dealt = deal_layers(sizes, dict.fromkeys(range(*whole), workers), dict.fromkeys(workers, ""))
            self._held.blocks.hold(block for block, holders in dealt.items() if 0 in holders)
        self._steps = 0
        self._held.begin()
        self()
        self.state_bytes = moments_bytes(self._held.state())

    def __call__(self) -> float:
        """Step on gradients that were summed."""
        for buffer in self._held.gradients.buffers:
            buffer.fill_(1e-3)
        start_s = time.process_time()
        self._held.step(StepTerms(1.0, None, self._steps))
        took_s = time.process_time() - start_s
        self._steps += 1
        return took_s


# All of them, as processes.


def together(peers: int) -> dict[str, dict[str, Any]]:
    """What each side's workers hold, the mean of them, and how long their iterations take."""
    found: dict[str, dict[str, Any]] = {}
    for is_sharded in (False, True):
        told = run_processes(peers, is_sharded)
        means = {name: sum(one[name] for one in told) / peers for name in told[0]}
        found["sharded" if is_sharded else "replicated"] = means
        print(peers, is_sharded, means, file=sys.stderr)
    found["ratio"] = {name: found["sharded"][name] / found["replicated"][name] for name in found["sharded"]}
    return found


def run_processes(peers: int, is_sharded: bool) -> list[dict[str, float]]:
    """What each rank tells."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        command = partial(_command, peers, is_sharded, store.port, folder)
        for one in [subprocess.Popen(command(rank)) for rank in range(peers)]:
            one.wait()
        return [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(peers)]


def _command(peers: int, is_sharded: bool, port: int, folder: str, rank: int) -> list[str]:
    return [sys.executable, __file__, "--rank", str(rank), str(peers), str(int(is_sharded)), str(port), folder]


def rank_of(rank: int, peers: int, is_sharded: bool, port: int) -> dict[str, float]:
    """Be a rank: bytes of its optimizer's tensors, its anonymous memory beyond what it had before, and its seconds."""
    torch.manual_seed(0)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=240))
    layers, asked = gpt_layers(GPT), plan(_priced(), peers, is_sharded)
    before = _private_bytes()
    with_ranks: Callable[..., PlanRunner] = partial(PlanRunner, rank=rank, world_size=peers, store=store)
    runner = with_ranks(asked, layers, language_model_loss, adamw, shard_optimizer=is_sharded)
    rows = [tokens(number) for number in range(peers)]
    took_s = []
    for _ in range(ITERATIONS):
        start_s = time.perf_counter()
        runner.step([(one[:, :-1], one[:, 1:]) for one in rows])
        took_s.append(time.perf_counter() - start_s)
    told = {
        "state_bytes": float(moments_bytes(runner.state())),
        "private_bytes": float(_private_bytes() - before),
        "iteration_s": median(took_s[1:]),
    }
    runner.close()
    return told


def _priced() -> Profile:
    """Costs of nothing: a rank's plan needs an order only."""
    from rtk.schemas.profile import Layer, LayerCost

    return Profile((Layer((LayerCost(1.0, 1.0, 1.0),), activation_bytes=1.0),) * (GPT.blocks + 2))


def _private_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


if __name__ == "__main__":
    main()
