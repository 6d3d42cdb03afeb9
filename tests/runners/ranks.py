"""Ranks as threads: every rank of a plan in this process, over real gloo sockets, in a fraction of a second."""

import copy
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import nn
from torch._C._distributed_c10d import HashStore, Store

from rtk.runners.program import Sending
from rtk.runners.torch.runner import OptimizerFactory, PlanRunner
from rtk.runners.torch.stage import Loss
from rtk.schemas.plan import Plan
from rtk.schemas.protocols import LayerCuts

T = TypeVar("T")


def run_ranks(
    plan: Plan,
    layers: Sequence[nn.Module],
    loss: Loss,
    optimizer: OptimizerFactory,
    body: Callable[[PlanRunner], T],
    paced: bool = False,
    transport: Sending = "auto",
    clip_norm: float | None = None,
    cuts: LayerCuts | None = None,
) -> list[T]:
    """Run `body` with a PlanRunner of every rank, each on a copy of the layers, and give what they returned."""

    def make(rank: int, store: Store) -> PlanRunner:
        return PlanRunner(
            plan,
            copy.deepcopy(list(layers)),
            loss,
            optimizer,
            rank=rank,
            world_size=size,
            store=store,
            paced=paced,
            transport=transport,
            clip_norm=clip_norm,
            cuts=cuts,
        )

    size = sum(map(plan.gpus_of, plan.live_workers()))
    return run_made(size, make, body)


def run_made(size: int, make: Callable[[int, Store], PlanRunner], body: Callable[[PlanRunner], T]) -> list[T]:
    """Run `body` with what `make` makes for each of so many ranks, which meet at a store; give what they returned."""
    # Ranks that are threads would otherwise each start as many threads again, for one core.
    torch.set_num_threads(1)
    store = HashStore()
    results: dict[int, T] = {}
    failures: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            runner = make(rank, store)
            results[rank] = body(runner)
            runner.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return [results[rank] for rank in range(size)]
