"""A training script as people write them, after torch's tutorials; it knows nothing of rtk.

`torchrun --standalone --nproc-per-node 2 training_script.py ddp|fsdp|fsdp1|gpipe|1f1b …`
"""

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

MICROBATCHES = 4
CPU = torch.device("cpu")
Step = Callable[[torch.Tensor], None]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("strategies", nargs="+", choices=("ddp", "fsdp", "fsdp1", "gpipe", "1f1b"))
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--others", type=int, help="iterations of all strategies but that of --strategy")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each iteration rests")
    parser.add_argument("--slow", default="-1:0:0:0", help="RANK:FIRST:STOP:SECONDS, where a rank rests longer")
    parser.add_argument("--strategy", help="the only one in which ranks rest")
    parser.add_argument("--out", type=Path, help="a folder for each rank's times, and its parameters' hash")
    return parser.parse_args()


def main() -> None:
    """Train."""
    options = _options()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for strategy in options.strategies:
        _train(strategy, options)
    dist.destroy_process_group()


def _train(strategy: str, options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model, step = _prepare(strategy, options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0 if strategy in ("gpipe", "1f1b") else dist.get_rank())
    times_s: list[float] = []
    for _ in _iterations(strategy, options, times_s):
        optimizer.zero_grad()
        step(torch.randn(options.batch, options.width, generator=generator))
        optimizer.step()
    if options.out is not None:
        _tell(options.out / f"{strategy}-{dist.get_rank()}.json", model, times_s)


def _prepare(strategy: str, options: argparse.Namespace) -> tuple[nn.Module, Step]:
    """The model of this rank, and what makes its gradients."""
    if strategy in ("gpipe", "1f1b"):
        return _pipelined(strategy, options)
    model: nn.Module = nn.Sequential(*(_layer(options.width) for _ in range(options.layers)))
    if strategy == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=options.width**2 * 8 / 2**20)
    elif strategy == "fsdp":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        for number, layer in enumerate(list(model.children())):
            setattr(model, str(number), FullyShardedDataParallel(layer, device_id=CPU))
        model = FullyShardedDataParallel(model, device_id=CPU)

    def step(inputs: torch.Tensor) -> None:
        torch.autograd.backward(mse_loss(model(inputs), inputs))

    return model, step


def _pipelined(strategy: str, options: argparse.Namespace) -> tuple[nn.Module, Step]:
    rank, world = dist.get_rank(), dist.get_world_size()
    module = nn.Sequential(*(_layer(options.width) for _ in range(options.layers // world)))
    stage = PipelineStage(module, rank, world, CPU)
    schedule = (Schedule1F1B if strategy == "1f1b" else ScheduleGPipe)(stage, MICROBATCHES, loss_fn=mse_loss)

    def step(inputs: torch.Tensor) -> None:
        arguments = (inputs,) if rank == 0 else ()
        schedule.step(*arguments, target=inputs if rank == world - 1 else None)

    return module, step


def _layer(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU())


def _iterations(strategy: str, options: argparse.Namespace, times_s: list[float]) -> Iterator[int]:
    """The numbers of the iterations; notes how long each takes."""
    slow_rank, first, stop, slow_s = (float(part) for part in options.slow.split(":"))
    is_the_one = strategy == (options.strategy or strategy)
    for iteration in range(options.iterations if is_the_one else options.others or options.iterations):
        began_s = time.perf_counter()
        if is_the_one:
            is_slow = dist.get_rank() == slow_rank and first <= iteration < stop
            time.sleep(options.pause + is_slow * slow_s)
        yield iteration
        times_s.append(time.perf_counter() - began_s)


def _tell(file: Path, model: nn.Module, times_s: list[float]) -> None:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        digest.update(local.detach().numpy().tobytes())
    told = {"parameters": digest.hexdigest(), "times_s": times_s}
    file.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
