"""Jobs of real processes whose workers have several ranks: a small GPT in float64, cut among them by hand."""

import copy
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.lifeline import LIFELINE
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import RtkError
from rtk.schemas.orders import Schedule
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

if __name__ != "worker":
    from ..warm import fork
    from .processes import PATIENCE_S, ProcessJob

BLOCKS, WORDS, LENGTH = 2, 64, 16
RATE = 1e-4


def plan_of(pp: int, dp: int, microbatches: int, degree: int, schedule: Schedule = "1f1b", **changes: Any) -> Plan:
    """A classic schedule over equal layers, each worker on so many GPUs."""
    costs = tuple(LayerCost(0.002, 0.002, 0.002, tensor_parallel=one) for one in sorted({1, degree}))
    layer = Layer(costs, activation_bytes=2, weight_stash_bytes=1)
    plan = plan_pipeline(
        Profile((layer,) * (BLOCKS + 2)), Shape(pp, dp, microbatches, tensor_parallel=degree), schedule
    )
    return replace(plan, prediction=None, **changes) if changes else plan


@cache
def _made() -> list[Any]:
    import torch

    from rtk.profilers.models.gpt import gpt_layers
    from rtk.profilers.models.presets import GptConfig

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        made = gpt_layers(GptConfig(blocks=BLOCKS, width=32, heads=4, vocabulary=WORDS, positions=LENGTH))
    return [layer.double() for layer in made]


def layers() -> list[Any]:
    """The model's, whole, the same at every call."""
    return copy.deepcopy(_made())


def batches(microbatches: int) -> Callable[[int], Sequence[Any]]:
    """Random tokens, the same for the same iteration."""
    import torch

    def batch(iteration: int) -> Sequence[Any]:
        generator = torch.Generator().manual_seed(iteration)
        tokens = torch.randint(0, WORDS, (microbatches, 2, LENGTH + 1), generator=generator)
        return [(rows[:, :-1], rows[:, 1:]) for rows in tokens]

    return batch


def losses_alone(iterations: int, microbatches: int, clip_norm: float | None = None) -> list[float]:
    """The losses of all micro-batches one after the other through the whole model, then AdamW, in one process."""
    import torch

    from rtk.profilers.models.gpt import language_model_loss

    torch.set_num_threads(1)
    whole = torch.nn.Sequential(*layers())
    optimizer, batch, found = torch.optim.AdamW(whole.parameters(), lr=RATE), batches(microbatches), []
    for iteration in range(iterations):
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in batch(iteration):
            loss = language_model_loss(whole(inputs), targets) / microbatches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        found.append(total)
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(whole.parameters(), clip_norm)
        optimizer.step()
    return found


def task_of(
    plan: Plan,
    process: str,
    clip_norm: float | None = None,
    is_sharded: bool = False,
    secret: bytes = b"",
    hostname: str = "",
) -> Any:
    """What a rank `k/i:r` of a plan's worker trains, maybe with peers that share the optimizer's state."""
    import torch

    from rtk.profilers.models.gpt import TENSOR_PARALLEL, language_model_loss
    from rtk.profilers.models.joint import ModelCuts
    from rtk.runners.torch.task import Task

    torch.set_num_threads(1)
    name, _, share = process.partition(":")
    return Task(
        name,
        plan,
        layers,
        language_model_loss,
        lambda ones: torch.optim.AdamW(ones, lr=RATE),
        batches(plan.total_microbatches()),
        {"lr": RATE} | ({"shard_optimizer": True} if is_sharded else {}),
        secret,
        hostname=hostname,
        clip_norm=clip_norm,
        share=int(share or 0),
        cuts=ModelCuts(TENSOR_PARALLEL),
        shard_optimizer=is_sharded,
    )


def be_rank(
    plan: bytes,
    process: str,
    clip_norm: float | None,
    is_sharded: bool,
    addresses: list[str],
    secret: bytes,
    patience_s: float,
    not_before: int,
    lifeline: str | None,
) -> None:
    """One rank's process, from its beginning to its end."""
    from rtk.runners.torch.worker import be_worker
    from rtk.runners.training import NOT_BEFORE

    os.environ[NOT_BEFORE] = str(not_before)
    if lifeline is not None:
        os.environ[LIFELINE] = str(os.open(lifeline, os.O_RDWR))
    known = parse_document(plan, Plan, "the plan")
    try:
        be_worker(lambda host: task_of(known, process, clip_norm, is_sharded, secret, host), addresses, patience_s)
    except RtkError as error:
        print(f"{process}: {error.what}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ != "worker":

    class RankedJob(ProcessJob):
        """A coordinator in a thread of this process, and ranks of workers that can be killed for real.

        Args:
            plan: of workers of several GPUs.
            iterations: how many.
            clip_norm: of the gradients.
            is_sharded: whether peers share the optimizer's state.
            spare_ranks: as of ProcessJob.
            how: what else the job is asked to be.
        """

        def __init__(
            self,
            plan: Plan,
            iterations: int,
            clip_norm: float | None = None,
            is_sharded: bool = False,
            spare_ranks: int = 0,
            **how: Any,
        ) -> None:
            led = JobConfig(iterations, **how)
            super().__init__(plan, led, TrainingConfig(), is_watchful=False, spare_ranks=spare_ranks)
            self._trains = clip_norm, is_sharded

        def launch(self, name: str, not_before: int, lifeline: str | None) -> Any:
            """The process of a rank."""
            how = (self.addresses, self.secret, PATIENCE_S, not_before, lifeline)
            return fork(__file__, canonical(self.plan), name, *self._trains, *how)


if __name__ == "worker":
    be_rank(*globals()["ARGUMENTS"])
