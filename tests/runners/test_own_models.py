"""Models of people's own survive deaths: what they keep beside parameters is then what it is without."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rtk.planners.recovery.answers import PolicyName, answers_for
from rtk.runners.resilience.protocol import Job
from rtk.runners.torch.precision import Precision
from rtk.runners.torch.schedules import cosine
from rtk.runners.torch.stage import add_loss
from rtk.schemas.plan import Plan

from . import scripted
from .scripted import ThreadJob, plan_of

WIDTH, TOKENS, ITERATIONS, MICROBATCHES = 8, 64, 6, 4


class Normed(nn.Module):
    """A batch norm over channels, whose output is not in one piece, and a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(self.norm(x.transpose(1, 2)).transpose(1, 2))
        add_loss(0.01 * y.float().square().sum())
        found: torch.Tensor = x.transpose(0, 1).contiguous().transpose(0, 1) + y
        return found


def _made() -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        embedding = nn.Embedding(TOKENS, WIDTH)
        return [embedding, Normed(), nn.ReLU(inplace=True), Normed(), nn.Tanh(), nn.Linear(WIDTH, TOKENS)]


MADE = _made()  # here, for workers that are threads share the generator


def layers() -> list[nn.Module]:
    """As many as the plans' models have, the same at every call."""
    return copy.deepcopy(MADE)


def doubles() -> list[nn.Module]:
    return [layer.double() for layer in layers()]


def loss(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ignored = target.masked_fill(target >= 50, -100).flatten()
    return F.cross_entropy(output.flatten(0, 1), ignored, reduction="sum"), (ignored != -100).sum()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02)


def job_of(plan: Plan, *deaths: tuple[str, int], **changes: Any) -> ThreadJob:
    job = ThreadJob(
        plan, Job(plan, ITERATIONS), answers_for(plan, PolicyName.SLIPSTREAM, None, 0), set(deaths), loss=loss
    )
    schedule = cosine(warmup=2, steps=ITERATIONS)
    job.changes = {"make_layers": doubles, "optimizer": adamw, "clip_norm": 0.3, "schedule": schedule, **changes}
    assert job.run().exit_code == 0
    return job


@pytest.mark.parametrize("shared", ["lowest", "mean"])
@pytest.mark.parametrize("is_staggered", [False, True])
def test_deaths_change_nothing_and_peers_agree(shared: str, is_staggered: bool) -> None:
    """Losses are those without deaths, to rounding, whatever is redone; peers' states are equal, buffers included."""
    plan = plan_of(2, 3, MICROBATCHES, staggered=is_staggered)
    calm = job_of(plan, buffers=shared)
    wild = job_of(plan, ("1/0", 2), ("0/1", 4), buffers=shared)
    assert wild.losses() == pytest.approx(calm.losses(), rel=1e-9)
    for job in (calm, wild):
        assert all(len(sums) == 1 for sums in job.checksums().values())
    # Those of the lowest peer, which does more after a death, once for each committed iteration.
    assert tracked(calm) == {ITERATIONS * MICROBATCHES}
    assert all(ITERATIONS * MICROBATCHES <= count < 3 * ITERATIONS * MICROBATCHES for count in tracked(wild))


def tracked(job: ThreadJob) -> set[int]:
    """What the batch norms of all workers have counted."""
    states = (worker.held.state() for worker in job.workers.values())
    return {int(value) for state in states for name, value in state.items() if name.endswith("num_batches_tracked")}


@pytest.mark.parametrize("precision", ["bf16", "bf16-autocast", "bf16-master", "fp16-master"])
def test_precisions_survive(precision: Precision) -> None:
    """A death in 16 bits leaves peers with equal bits, and the losses but for rounding."""
    plan = plan_of(2, 2, MICROBATCHES, "zero-bubble")
    calm, wild = (job_of(plan, *deaths, make_layers=layers, precision=precision) for deaths in ((), (("1/1", 3),)))
    assert wild.losses() == pytest.approx(calm.losses(), rel=0.02)
    assert all(len(sums) == 1 for sums in wild.checksums().values())
    assert len(wild.losses()) == ITERATIONS


def test_bf16_takes_numbers_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs in float32 are no error where the parameters are in bfloat16: the first stage converts them."""

    def batches(microbatches: int) -> Any:
        values = torch.randn(microbatches, 2, 3, WIDTH, generator=torch.Generator().manual_seed(1))
        return lambda iteration: [(value, value.argmax(-1)) for value in values]

    monkeypatch.setattr(scripted, "batches", batches)
    job = job_of(
        plan_of(2, 1, MICROBATCHES),
        make_layers=lambda: [*layers()[1:], nn.Identity()],
        precision="bf16",
        buffers="mean",
    )
    assert len(job.losses()) == ITERATIONS
