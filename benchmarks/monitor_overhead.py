"""What `rtk monitor` costs an unchanged DDP script, and how well iteration times are inferred from calls alone.

`python -m rtk.benchmarks.monitor_overhead [--quick] [-o RESULT.json]`

* `call`: what the shim adds to a call of a single rank, in turns.
* `overhead`: two ranks train by DDP on gloo; the shim comes and goes every few iterations, on both ranks at once, and
  each turn with it is divided by the mean of those before and after: processor time (user and system, both ranks) and
  wall time. `watching` is what the watching process uses, in a run where the shim is on all the time, over what the
  ranks use, and `cpu` is the sum. Where two turns differ by chance more than by the shim, `accounted` is the better
  figure: the calls of a rank times what each costs, over the processor time of the rank, and the watching.
* `inferred`: the script's own iteration times against those that are heard of, for each kind of job. The loop's calls
  begin in the middle of an iteration, so single ones differ by as much as its first part varies; `total` compares the
  times from the first to the last.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rtk.benchmarks.common import in_turns, spread, write_result
from rtk.profilers.failslow.monitor.job import Heard, WatchedJob
from rtk.profilers.failslow.monitor.watch import POLL_S, environment

SCRIPT = Path(__file__).parents[1] / "tests" / "profilers" / "training_script.py"
STRATEGIES = ("ddp", "fsdp", "fsdp1", "gpipe", "1f1b")
RANKS = 2
WIDTH, LAYERS = 512, 8
# Short iterations, and eight times as long ones: how many are a turn of some seconds. In shorter turns the shim's
# coming and going weighs more than the shim.
BATCHES = {384: 40, 3072: 6}
TURNS, STEADY = 24, 4


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--calls", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.calls:
        _be_called(asked.calls)
    elif asked.train:
        _train(asked.train, asked.turns, asked.batch)
    else:
        call = _call()
        result = {
            "call": call,
            "overhead": {
                f"batch {batch}": _overhead(call["added_us"]["median"], 3 if asked.quick else TURNS, batch)
                for batch in BATCHES
            },
            "inferred": {name: _inferred(name, 100 if asked.quick else 300) for name in STRATEGIES},
        }
        write_result(result, asked.output)


@contextmanager
def _watched(command: Sequence[str], ranks: int = 1) -> Iterator[tuple[list[subprocess.Popen[bytes]], WatchedJob]]:
    """Start ranks of a job that is watched."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        shared = {
            **environment(Path(folder)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "WORLD_SIZE": str(ranks),
        }
        started = [subprocess.Popen(command, env={**shared, "RANK": str(rank)}) for rank in range(ranks)]
        yield started, WatchedJob(Path(folder))
        if any(one.wait() for one in started):
            raise RuntimeError("a rank has failed")


def _poll(started: Sequence[subprocess.Popen[bytes]], watch: WatchedJob) -> tuple[list[Heard], float]:
    """Watch the job to the end, as `rtk monitor` does; what was heard, and the processor time that it took."""
    heard: list[Heard] = []
    began_s = time.process_time()
    while any(one.poll() is None for one in started):
        time.sleep(POLL_S)
        heard += watch.poll()
    taken_s = time.process_time() - began_s
    return [*heard, *watch.finish()], taken_s


def _call() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        with _watched([sys.executable, __file__, "--calls", out]) as (started, watch):
            _poll(started, watch)
        told: dict[str, Any] = json.loads((Path(out) / "calls.json").read_text())
    return told


def _be_called(out: Path) -> None:
    """A rank alone that reduces a small tensor again and again, with the shim and without."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.ones(8)

    def timed() -> float:
        began_s = time.process_time()
        for _ in range(500):
            dist.all_reduce(tensor)
        return (time.process_time() - began_s) / 500 * 1e6

    def quiet() -> float:
        with _without_shim():
            return timed()

    values = in_turns({"with": timed, "without": quiet}, 12, 3)
    best = {side: [min(turn) for turn in turns] for side, turns in values.items()}
    added = [mine - other for mine, other in zip(best["with"], best["without"], strict=True)]
    (out / "calls.json").write_text(json.dumps({"added_us": spread(added), "without_us": spread(best["without"])}))
    dist.destroy_process_group()


@contextmanager
def _without_shim() -> Iterator[None]:
    """For a while, calls go to torch's own kernels at once."""
    recorder = sys.modules["_rtk_shim.recorder"]
    running = recorder._running
    running[1]._destroy()
    yield
    running[1] = recorder.listen(running[0])


def _train(out: Path, turns: int, batch: int) -> None:
    """A rank that trains by DDP, in turns with the shim and without; always with it, where no turns are asked for."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS))
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=WIDTH**2 * 8 / 2**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(batch, WIDTH)

    def iterate(times: int) -> None:
        for _ in range(times):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.mse_loss(model(inputs), inputs))
            optimizer.step()

    def turn() -> tuple[float, float]:
        iterate(1)  # whatever a switch of the dispatcher's kernels entails belongs to neither side
        dist.barrier()
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        iterate(BATCHES[batch])
        return time.process_time() - cpu_s, time.perf_counter() - wall_s

    turn()
    taken: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    for _ in range(turns or STEADY):
        taken["with"].append(turn())
        if turns:
            with _without_shim():
                taken["without"].append(turn())
    told = {
        side: {"cpu_s": [one for one, _ in all_], "wall_s": [one for _, one in all_]} for side, all_ in taken.items()
    }
    (out / f"{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def _overhead(added_us: float, turns: int, batch: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, __file__, "--train", out, "--batch", str(batch), "--turns"]
        with _watched([*command, str(turns)], RANKS) as (started, watch):
            _poll(started, watch)
        ranks = [json.loads((Path(out) / f"{rank}.json").read_text()) for rank in range(RANKS)]
        with _watched([*command, "0"], RANKS) as (started, watch):
            heard, watching_s = _poll(started, watch)
        steady = [json.loads((Path(out) / f"{rank}.json").read_text()) for rank in range(RANKS)]
    cpu_s = {
        side: [sum(both) for both in zip(*(rank[side]["cpu_s"] for rank in ranks), strict=True)] for side in ranks[0]
    }
    ratios = {
        "cpu": _ratios(cpu_s["with"], cpu_s["without"]),
        "wall": _ratios(ranks[0]["with"]["wall_s"], ranks[0]["without"]["wall_s"]),
    }
    shim = {name: {"turns": len(values), **spread([value - 1 for value in values])} for name, values in ratios.items()}
    used_s = sum(sum(rank["with"]["cpu_s"]) for rank in steady)
    watching = watching_s / used_s
    return {
        "shim": shim,
        "watching": watching,
        "cpu": shim["cpu"]["median"] + watching,
        "accounted": watching + added_us / 1e6 * watch.calls / sum(steady[0]["with"]["cpu_s"]),
        "calls_an_iteration": watch.period,
        "iteration_s": median(one.time_s for one in heard),
    }


def _ratios(those: Sequence[float], others: Sequence[float]) -> list[float]:
    """Each turn with the shim over the mean of the turns before and after it."""
    return [value / ((before + after) / 2) for value, before, after in zip(those, others, others[1:], strict=False)]


def _inferred(strategy: str, iterations: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        options = ["--iterations", str(iterations), "--width", "256", "--batch", "256", "--pause", "0.02", "--out", out]
        with _watched([sys.executable, str(SCRIPT), strategy, *options], RANKS) as (started, watch):
            heard, _ = _poll(started, watch)
        own_s = json.loads((Path(out) / f"{strategy}-0.json").read_text())["times_s"]
    phase = heard[-1].phase
    heard_s = [one.time_s for one in heard if one.phase == phase]
    own_s = own_s[len(own_s) - len(heard_s) :]
    errors = [abs(one / own - 1) for one, own in zip(heard_s, own_s, strict=True)]
    return {
        "iterations": len(own_s),
        "calls_an_iteration": watch.period,
        "iteration_s": median(own_s),
        "single": spread(errors),
        "total": abs(sum(heard_s) / sum(own_s) - 1),
        "median": abs(median(heard_s) / median(own_s) - 1),
    }


if __name__ == "__main__":
    main()
