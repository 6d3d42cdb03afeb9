"""What it costs a healthy iteration that the next death in it costs little: the log, the ledger, sums out of place.

A worker of the middle stage of three, in two pipelines, runs iterations of a GPT with and without noting its progress,
in turns in one process. Messages and sums are nothing, here: what is copied and noted is all that one side does more.
The value is the CPU time of an iteration, step included.

    python benchmarks/progress_overhead.py --output progress.json
"""

import argparse
import sys
import time
from collections.abc import Callable
from itertools import chain
from statistics import median
from typing import Any

import torch
from torch import nn

from rtk.benchmarks.common import in_turns, spread, write_result
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig
from rtk.runners.program import lower
from rtk.runners.resilience.protocol import StepTerms
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.iteration import Iteration
from rtk.runners.torch.progress import IterationProgress
from rtk.runners.torch.rank import Rank
from rtk.schemas.profile import Layer, LayerCost, Profile

MICROBATCHES = 8
WIDTHS = (128, 256, 512)
BLOCKS, SEQUENCE_LENGTH = 2, 128  # of a stage; a micro-batch is four samples
TARGETS = {"wanted": 1.005, "at_least": 1.02}


class Nowhere:
    """A transport on which every message has come, and a sum is that of one."""

    def __init__(self) -> None:
        self._announced: dict[tuple[int, int], torch.Tensor] = {}

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """Have it."""
        self._announced[source, tag] = torch.zeros_like(like)

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """Give it."""
        return self._announced.pop((source, tag))

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Nobody takes it."""

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Nobody takes it."""

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Of one."""

    def begin_sum(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Of one."""

    def end_sums(self) -> None:
        """Of one."""

    def flush(self, but: int = 0) -> None:
        """Nothing is under way."""

    def interrupt(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """There is nothing to let go of."""


def main() -> None:
    """Measure every width and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="-", help="where the JSON goes; standard output by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = [measure(width) for width in WIDTHS]
    for found in figures:
        words = (
            "width {width}: {without_s[median]:.4f} s, {extra_s:.5f} s more, ratio {ratio:.4f} ({ratio_measured:.3f})"
        )
        print(words.format(**found), file=sys.stderr)
    write_result({"benchmark": "progress overhead", "target_ratio": TARGETS, "widths": figures}, arguments.output)


def measure(width: int) -> dict[str, Any]:
    """Both sides in turns; and again with layers that compute nothing, for the difference is below the host's noise."""
    rank = make_rank(width, is_idle=False)
    whole, idle = both_sides(rank, 6, 2), both_sides(make_rank(width, is_idle=True), 12, 10)
    without_s, extra_s = median(whole["without"]), median(idle["noting"]) - median(idle["without"])
    return {
        "width": width,
        "microbatches": MICROBATCHES,
        "parameter_bytes": sum(one.numel() * one.element_size() for one in rank.held.stage.parameters()),
        "boundary_bytes": rank.like(2 * BLOCKS).nbytes,
        "without_s": spread(whole["without"]),
        "noting_s": spread(whole["noting"]),
        "idle_without_s": spread(idle["without"]),
        "idle_noting_s": spread(idle["noting"]),
        "extra_s": extra_s,
        "ratio": 1 + extra_s / without_s,
        "ratio_measured": median(whole["noting"]) / without_s,
    }


def both_sides(rank: Rank, rounds: int, repeats: int) -> dict[str, list[float]]:
    """CPU seconds of iterations that note their progress, and that do not."""
    kept: list[IterationProgress | None] = []

    def side(notes: bool) -> Callable[[], float]:
        def iterate() -> float:
            begun_s = time.process_time()
            progress = IterationProgress() if notes else None
            run = Iteration(rank, 0, [], progress)
            run.reduce()
            run.step(StepTerms(MICROBATCHES, None, 0))
            kept[:] = [progress]  # until the next one, as until its commit
            return time.process_time() - begun_s

        return iterate

    values = in_turns({"without": side(False), "noting": side(True)}, rounds, repeats)
    return {name: list(chain.from_iterable(own)) for name, own in values.items()}


class Idle(nn.Module):
    """A layer with all parameters, which computes nothing and steps nothing."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """The same, anew."""
        return value.clone()


def make_rank(width: int, *, is_idle: bool) -> Rank:
    """The middle stage of the first pipeline; if it `is_idle` only what is around the layers takes time."""
    torch.manual_seed(0)
    layers = gpt_layers(GptConfig(BLOCKS, width, 4, 256, SEQUENCE_LENGTH))[1:-1]
    block = Layer((LayerCost(1.0, 1.0, 1.0),))
    program = lower(plan_pipeline(Profile((block,) * (3 * BLOCKS)), Shape(3, 2, MICROBATCHES), "zero-bubble"))
    own = [Idle(layer) for layer in layers] if is_idle else list(layers)
    held = HeldStage(
        [*map(nn.Identity, range(BLOCKS)), *own, *map(nn.Identity, range(BLOCKS))],
        (BLOCKS, 2 * BLOCKS),
        language_model_loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.0 if is_idle else 1e-3),
        is_split=True,
    )
    like = torch.zeros(4, SEQUENCE_LENGTH, width)
    return Rank(program, 1, held, Nowhere(), lambda boundary: like, time.perf_counter, lambda span: None)


if __name__ == "__main__":
    main()
