"""The sum of a profile's layer times against the measured whole iteration of one process.

`python benchmarks/profile_sum.py [--model M] [--pairs P] [--rounds R] [-o FILE]`. Two processes take turns, round by
round, so that the machine's mood meets both: one trains the whole model as one stage, as `rtk run` does with PP 1 (N
micro-batches F, I, W, the step, the zeroing of gradients); the other rehearses the layers as `rtk profile` does. How a
process's memory happens to lie changes its times by some percent, so there are several pairs of new processes. Two
figures for each pair, predicted / measured - 1 for N micro-batches and one step: of the medians, as they come, and of
the fastest quarter (its upper end), what an idle machine would show. Predicted is what planners take for a stage of all
layers: the sum of their times, less the boundaries between them. `unsplit` is the error for a plan without a split
backward pass, by the profile's `backward_s`; `unsplit_of_halves` what it would be by I and W, which carry the cost of
putting weight gradients off.

Where other processes are busy, wall clocks are unfair to the long operations of a whole model, which are interrupted
more often than those of a layer: `--clock cpu` reads the processor time that a process has had instead.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from statistics import mean, median, quantiles
from typing import Any

import torch

from rtk.benchmarks.common import write_result
from rtk.profilers.boundary import measure_boundary
from rtk.profilers.measure import Clock, ClockStopwatch, Rehearsal
from rtk.profilers.models.load import load_model
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.profile import BoundaryCost

MICROBATCHES = 4
WARM_UP = 2
Times = Sequence[float]


def whole(name: str, clock: Clock, split: bool) -> Callable[[], list[list[float]]]:
    """Iterations of the whole model; each gives the mean F, I and W (or B and 0), and step with zeroing, in s."""
    model = load_model(name)
    inputs, target = model.example(0)
    held = HeldStage(
        model.layers,
        (0, len(model.layers)),
        model.loss,
        lambda parameters: torch.optim.AdamW(parameters, lr=0.0),
        is_last=True,
        is_split=split,
    )
    stage = held.stage
    backward = (stage.backward_input, stage.backward_weight) if split else (stage.backward, lambda key: None)

    def run() -> list[list[float]]:
        zeroing_s = timed(clock, held.gradients.clear)
        times_s = []
        for key in range(MICROBATCHES):
            operations = (lambda key: stage.forward(key, inputs, target), *backward)
            times_s.append([timed(clock, partial(operation, key)) for operation in operations])
        step_s = timed(clock, held.optimizer.step)
        return [[mean(same)] for same in zip(*times_s, strict=True)] + [[step_s + zeroing_s]]

    return run


def layers(name: str, clock: Clock) -> Callable[[], list[list[float]]]:
    """Rehearsals of the layers; each gives F, I, W, step and B of every layer, in s."""
    model = load_model(name)
    inputs, target = model.example(0)
    rehearsal = Rehearsal(model.layers, TorchStage, model.loss, inputs, target)
    watch = ClockStopwatch(clock)
    return lambda: [list(same) for same in zip(*rehearsal.run(watch), strict=True)]


def timed(clock: Clock, action: Callable[[], object]) -> float:
    """How long an action takes, in s."""
    start_s = clock()
    action()
    return clock() - start_s


CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
SIDES: dict[str, Callable[[str, Clock], Callable[[], list[list[float]]]]] = {
    "whole": partial(whole, split=True),
    "unsplit": partial(whole, split=False),
    "layers": layers,
}


def serve(side: str, name: str, clock: str, pipe: Connection) -> None:
    """One of the processes: a round whenever it is asked."""
    torch.set_num_threads(1)
    run = SIDES[side](name, CLOCKS[clock])
    for _ in range(WARM_UP):
        run()
    pipe.send("ready")
    while pipe.recv():
        pipe.send(run())


def pair(name: str, clock: str, rounds: int) -> dict[str, dict[str, float]]:
    """New processes of all sides, measured in turns: iteration times and errors, as they come and quiet."""
    context = multiprocessing.get_context("spawn")
    pipes = {}
    for side in SIDES:
        pipes[side], theirs = context.Pipe()
        context.Process(target=serve, args=(side, name, clock, theirs), daemon=True).start()
    for pipe in pipes.values():
        pipe.recv()
    readings: dict[str, list[Any]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side, pipe in pipes.items():
            pipe.send(True)
            readings[side].append(pipe.recv())
    for pipe in pipes.values():
        pipe.send(False)
    boundary = measure_boundary(TorchStage, clock=CLOCKS[clock])
    return {
        "median": errors(readings, boundary, median),
        "quiet": errors(readings, boundary, lambda v: quantiles(v, n=4)[0]),
    }


def errors(readings: dict[str, list[Any]], boundary: BoundaryCost, join: Callable[[Times], float]) -> dict[str, float]:
    """Each side's iteration at the joined times of its operations, and predicted / measured - 1."""
    parts_s = {side: [joined(one, number, join) for number in range(len(one[0]))] for side, one in readings.items()}
    between = len(readings["layers"][0][0]) - 1
    inner_s = (boundary.forward_s, boundary.backward_input_s, boundary.backward_weight_s, 0.0, boundary.backward_s)
    parts_s["layers"] = [part - between * one for part, one in zip(parts_s["layers"], inner_s, strict=True)]
    iterations_s = {side: MICROBATCHES * sum(one[:3]) + one[3] for side, one in parts_s.items()}
    found = {f"{side}_iteration_s": value for side, value in iterations_s.items()}
    for place, operation in enumerate(("F", "I", "W", "step")):
        found[f"error_{operation}"] = parts_s["layers"][place] / parts_s["whole"][place] - 1
    found["error"] = iterations_s["layers"] / iterations_s["whole"] - 1
    forward_s, _, _, step_s, full_s = parts_s["layers"]
    found["error_unsplit"] = (MICROBATCHES * (forward_s + full_s) + step_s) / iterations_s["unsplit"] - 1
    found["error_unsplit_of_halves"] = iterations_s["layers"] / iterations_s["unsplit"] - 1
    return found


def joined(rounds: Sequence[Sequence[Times]], number: int, join: Callable[[Times], float]) -> float:
    """The sum over layers of an operation's joined time."""
    return sum(join([one[number][layer] for one in rounds]) for layer in range(len(rounds[0][number])))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt-tiny")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args(arguments)
    pairs = []
    for _ in range(options.pairs):
        pairs.append(pair(options.model, options.clock, options.rounds))
        words = ", ".join(
            f"{kind} {one['error']:+.2%}, unsplit {one['error_unsplit']:+.2%}" for kind, one in pairs[-1].items()
        )
        print(f"{options.model}: {words}", file=sys.stderr)
    figures = {
        f"{kind}_{name}": median(one[kind][name] for one in pairs)
        for kind in ("median", "quiet")
        for name in ("error", "error_unsplit", "error_unsplit_of_halves")
    }
    write_result(
        {"model": options.model, "clock": options.clock, "microbatches": MICROBATCHES, "pairs": pairs, **figures},
        options.output,
    )


if __name__ == "__main__":
    main()
