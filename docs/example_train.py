"""torchrun --nproc-per-node 2 docs/example_train.py plan.json: a plan of 2 workers and 4 layers, executed."""

import functools
import sys

import torch
from torch import nn

from rtk.profilers.models.joint import ModelCuts
from rtk.runners.torch.runner import PlanRunner
from rtk.schemas.documents import read_document
from rtk.schemas.plan import Plan

plan = read_document(sys.argv[1], Plan)
torch.manual_seed(0)  # the same layers on every rank
layers = [nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(4)]
cuts = ModelCuts({"0": "colwise", "2": "rowwise"})  # for plans of several GPUs a worker
optimizer = functools.partial(torch.optim.AdamW, lr=1e-2)
runner = PlanRunner(plan, layers, nn.functional.mse_loss, optimizer, cuts=cuts)


def batch(iteration: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The iteration's micro-batches (inputs, targets), the same on every rank; each takes those it needs."""
    generator = torch.Generator().manual_seed(iteration)
    inputs = torch.randn(plan.total_microbatches(), 8, 16, generator=generator)
    return [(x, x.roll(1, dims=-1)) for x in inputs]


for iteration in range(100):
    result = runner.step(batch(iteration))
    if runner.reports_loss() and iteration % 20 == 0:
        print(f"iteration {iteration}: loss {result.loss:.4f}, {result.end_s - result.start_s:.4f} s")
runner.close()
