"""How far plans train from a single process: the largest differences of gradients and losses.

`python benchmarks/training.py [-o FILE]`: PP 2, DP 1 and 2, 1F1B and zero-bubble; gradients after one iteration, losses
over 50 iterations of AdamW. The tests hold them below 1e-6 and 1e-5; this says how large they are.
"""

import argparse
from typing import Any

import torch
from torch import nn

from rtk.benchmarks.common import write_result
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import language_model_loss
from rtk.runners.torch.runner import PlanRunner
from rtk.schemas.orders import Schedule
from rtk.schemas.plan import Plan
from rtk.tests.runners.ranks import run_ranks
from rtk.tests.runners.test_plan_runner import batch, gradients, model, profile, single_process

ITERATIONS = 50


def gradient_difference(plan: Plan) -> float:
    """The largest absolute difference of a gradient after one iteration."""
    layers = model()
    parts = run_ranks(plan, layers, language_model_loss, lambda ps: torch.optim.SGD(ps, lr=0.0), gradients)
    single_process(layers, 1, plan.total_microbatches(), lr=0.0)
    wanted = {name: p.grad for name, p in nn.Sequential(*layers).named_parameters() if p.grad is not None}
    return max(float((found - wanted[name]).abs().max()) for part in parts for name, found in part.items())


def loss_difference(plan: Plan) -> float:
    """The largest absolute difference of a loss in 50 iterations."""

    def train(runner: PlanRunner) -> list[float | None]:
        return [runner.step(batch(n, plan.total_microbatches())).loss for n in range(ITERATIONS)]

    ranks = run_ranks(plan, model(), language_model_loss, lambda ps: torch.optim.AdamW(ps, lr=1e-3), train)
    wanted = single_process(model(), ITERATIONS, plan.total_microbatches(), lr=1e-3)
    return max(abs(a - b) for losses in ranks for a, b in zip(losses, wanted, strict=True) if a is not None)


def row(schedule: Schedule, dp: int) -> dict[str, Any]:
    """Both differences of one plan."""
    plan = plan_pipeline(profile(), Shape(2, dp, 4), schedule)
    return {
        "schedule": schedule,
        "dp": dp,
        "gradient_difference": gradient_difference(plan),
        "loss_difference": loss_difference(plan),
    }


def main() -> None:
    """Train everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="-")
    output = parser.parse_args().output
    schedules: tuple[Schedule, ...] = ("1f1b", "zero-bubble")
    write_result({"rows": [row(schedule, dp) for schedule in schedules for dp in (1, 2)]}, output)


if __name__ == "__main__":
    main()
