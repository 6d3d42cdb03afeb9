"""What only a GPU can show: `python benchmarks/gpu.py [--device cuda|cpu] [--small] [--only CHECK] [-o FILE]`.

Each check runs on whatever GPUs there are, and says why where it cannot. `--device cpu --small` proves that the checks
work, in tests: its figures say nothing of GPUs.

* profile: F, I, W and step of GPT-3 medium and Llama 1B in bf16, measured, beside the analytic estimate for this GPU,
  and the share of its peak that the weights' products reach.
* overlap: what a forward and a backward pass side by side are worth, in two streams.
* annotated: the passes of four stages on one GPU under torch's profiler, annotated as by torch's schedules: the times
  that the trace gives beside those of the profile, and what `rtk bubble` says of it.
* memory: of GPT-3 medium, measured beside the profile's prediction (benchmarks/profile_memory.py).
* plan: iterations of a pipeline over the GPUs there are, measured beside the plan's prediction.
* survive: four workers on one GPU, which talk over gloo through pinned memory; one is killed, and joins again. Losses
  beside those of the same job undisturbed.
* delegates: an iteration by delegates beside one without, two stages.
* copies: what recovery copies: a stage's state aside and back, and through pinned memory.
* nccl: a rank of three dies; the others' communicators are aborted, and new ones made among those that live. On CPUs
  gloo stands for NCCL.
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore
from torch.profiler import ProfilerActivity, record_function

from rtk.benchmarks.common import gpu_here, write_result
from rtk.benchmarks.profile_memory import Configuration, compare
from rtk.bubbling import bubble
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.analytic.estimate import profile_analytic
from rtk.profilers.annotations import read_annotations
from rtk.profilers.measure import measure_profile
from rtk.profilers.models.load import Model, load_model
from rtk.profilers.overlap import measure_overlap
from rtk.runners.program import Sending
from rtk.runners.torch.groups import ProcessGroupGloo, Store, abort, poison
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.nccl import NcclTransport, nccl_group
from rtk.runners.torch.runner import PlanRunner
from rtk.runners.torch.stage import TorchStage
from rtk.runners.torch.staging import HostStaging
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.errors import RtkError, RuntimeFailedError
from rtk.schemas.gpus import gpu as known_gpu
from rtk.schemas.plan import Plan
from rtk.schemas.profile import DataType, Layer, LayerCost, ModelForm, Profile
from rtk.tests.runners.processes import ProcessJob
from rtk.tests.warm import forking

LLAMA_1B = {  # the sizes of Llama 3.2 1B
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
SECONDS = 120  # that a rank may take


class CannotRunError(Exception):
    """Why a check cannot run here."""


class Bench:
    """Where the checks run.

    Args:
        device: of which all checks take their GPUs, or the CPU.
        small: whether models are so small that a CPU trains them in seconds.
        folder: for models' configurations, and traces.
    """

    def __init__(self, device: str, small: bool, folder: Path) -> None:
        self.small = small
        self.folder = folder
        self.count = torch.cuda.device_count() if device == "cuda" else 0
        self.device = torch.device(device, 0) if device == "cuda" else torch.device("cpu")
        self.gpu = gpu_here(device)
        self.dtype: DataType = "fp32" if self.device.type == "cpu" else "bf16"
        # Samples of a micro-batch, tokens of a sample: so many that a GPU computes for longer than its host launches.
        self.sizes = (1, 32) if small else (8, 1024)
        self.models = {"gpt-tiny": "gpt-tiny"}
        if not small:
            (folder / "llama-1b").mkdir(exist_ok=True)
            (folder / "llama-1b" / "config.json").write_text(json.dumps(LLAMA_1B))
            self.models = {"gpt3-medium": "gpt3-medium", "llama-1b": str(folder / "llama-1b" / "config.json")}
        self._loaded: dict[str, Model] = {}

    @property
    def first(self) -> str:
        """The smaller model."""
        return next(iter(self.models.values()))

    def of_rank(self, rank: int) -> torch.device:
        """A rank's device: GPUs in turn."""
        return torch.device("cuda", rank % self.count) if self.count else self.device

    def load(self, model: str) -> Model:
        """A model in this bench's type, made once and copied for each check."""
        if model not in self._loaded:
            self._loaded[model] = load_model(model, *self.sizes, form=ModelForm(dtype=self.dtype))
        return deepcopy(self._loaded[model])

    def profile(self, model: Model) -> Profile:
        """Measured on the first device."""
        return measure_profile(model, TorchStage, device=self.device, repeats=2 if self.small else 20)

    def wait(self) -> float:
        """The time at which all that was launched is done."""
        if self.device.type == "cuda":
            for number in range(self.count):
                torch.cuda.synchronize(number)
        return time.perf_counter()


def profile(bench: Bench) -> dict[str, Any]:
    """Times of each pass, summed over the layers, measured and estimated."""
    found = {}
    for name, path in bench.models.items():
        model = bench.load(path)
        measured = bench.profile(model)
        size, length = bench.sizes
        estimated = profile_analytic(
            path, gpu=bench.gpu, microbatch_size=size, sequence_length=length, dtype=bench.dtype
        )
        passes = {}
        for kind in ("forward_s", "backward_input_s", "backward_weight_s", "optimizer_s"):
            times = [sum(getattr(layer.costs[0], kind) for layer in one.layers) for one in (measured, estimated)]
            passes[kind] = {"measured": times[0], "estimated": times[1], "ratio": times[1] / times[0]}
        # The embedding is no product; attention's products are left out, which understates the share.
        weights = sum(one.numel() for layer in model.layers[1:] for one in layer.parameters() if one.ndim > 1)
        tokens = model.microbatch_size * (model.sequence_length or 1)
        work_s = sum(passes[kind]["measured"] for kind in ("forward_s", "backward_input_s", "backward_weight_s"))
        flops = 6 * weights * tokens
        peak = known_gpu(bench.gpu).peaks[bench.dtype]
        found[name] = {**passes, "flops": flops, "share_of_peak": flops / work_s / peak}
    return found


def memory(bench: Bench) -> dict[str, Any]:
    """Predicted and measured bytes, and by how much the prediction is off."""
    return compare(Configuration(bench.first, bench.dtype))


def overlap(bench: Bench) -> dict[str, Any]:
    """Time of a pair over that of both one after the other, by model; 1: nothing is gained beyond the noise."""
    repeats = 8 if bench.small else None
    return {
        name: measure_overlap(bench.load(path), TorchStage, device=bench.device, repeats=repeats)
        for name, path in bench.models.items()
    }


def annotated(bench: Bench) -> dict[str, Any]:
    """Of passes of four stages on one device under torch's profiler, medians by the trace and by the clock's events."""
    model, trace = bench.load(bench.first), bench.folder / "trace.json.gz"
    by_profile: dict[str, float] = defaultdict(float)
    cuts = [round(number * len(model.layers) / 4) for number in range(5)]
    stage_of = [stage for stage, (begin, end) in enumerate(itertools.pairwise(cuts)) for _ in range(begin, end)]
    for stage, layer in zip(stage_of, bench.profile(model).layers, strict=True):
        cost = layer.costs[0]
        for kind, time_s in (("F", cost.forward_s), ("I", cost.backward_input_s), ("W", cost.backward_weight_s)):
            by_profile[f"{stage}{kind}"] += time_s
    trace_passes(bench, model, cuts, trace)
    timeline = read_annotations([trace])
    readings: dict[str, list[float]] = defaultdict(list)
    for span in timeline.spans:
        readings[span.worker.split("/")[1] + span.op[0]].append(span.end_s - span.start_s)
    by_trace = {name: statistics.median(own) for name, own in sorted(readings.items())}
    ratios = {name: time_s / by_profile[name] for name, time_s in by_trace.items()}
    report = bubble(str(trace))
    return {
        "clock": timeline.options["clock"],
        "by_trace_s": by_trace,
        "over_profile": ratios,
        "bubble_ratio": report.bubble_ratio,
        "iteration_time_s": report.iteration_time_s,
    }


def trace_passes(bench: Bench, model: Model, cuts: Sequence[int], path: Path) -> None:
    """Write a trace of three iterations of four micro-batches, each through all stages and back."""
    parts = [[layer.to(bench.device) for layer in model.layers[begin:end]] for begin, end in itertools.pairwise(cuts)]
    last = len(parts) - 1
    stages = [TorchStage(part, model.loss if number == last else None) for number, part in enumerate(parts)]
    data, target = (value.to(bench.device) for value in model.example(0))

    def pass_of(stage: int, kind: str, microbatch: int, value: torch.Tensor | None) -> Any:
        with record_function(f"PP:{stage}{kind}{microbatch}"):
            match kind:
                case "F":
                    return stages[stage].forward(microbatch, value, target if stage == last else None)
                case "I":
                    return stages[stage].backward_input(microbatch, value)
                case _:
                    return stages[stage].backward_weight(microbatch)

    def iteration() -> None:
        for number in range(4):
            value: torch.Tensor | None = data
            for stage in range(last + 1):
                value = pass_of(stage, "F", number, value)
            value = None
            for stage in reversed(range(last + 1)):
                value = pass_of(stage, "I", number, value)
            for stage in reversed(range(last + 1)):
                pass_of(stage, "W", number, None)
        bench.wait()

    iteration()
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (bench.device.type == "cuda")]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(3):
            iteration()
    profiler.export_chrome_trace(str(path))


def plan(bench: Bench) -> dict[str, Any]:
    """The plan's time of an iteration beside the measured one."""
    model = bench.load(bench.first)
    stages = max(1, min(bench.count, 4))
    made = plan_pipeline(bench.profile(model), Shape(stages, 1, 2 * stages + 2), "zero-bubble")
    times = iteration_times(bench, made, model, "direct")
    assert made.prediction is not None
    predicted, measured = made.prediction.iteration_time_s, statistics.median(times)
    return {"stages": stages, "predicted_s": predicted, "measured_s": measured, "ratio": measured / predicted}


def survive(bench: Bench) -> dict[str, Any]:
    """Four workers, a kill, a join: the losses, and how long it took."""
    name = "gpt-tiny" if bench.small else "gpt-small"
    loaded = bench.load(name)
    made = plan_pipeline(even(len(loaded.layers)), Shape(2, 2, 2), "1f1b")
    sizes = (1, 32) if bench.small else (2, 512)
    training = TrainingConfig(name, None, 1e-3, *sizes, form=loaded.form)
    with ProcessJob(made, JobConfig(10**6), training) as job:
        job.wait_for_iteration(2 if bench.small else 10, SECONDS)
        killed_s = time.perf_counter()
        job.signal("1/1", signal.SIGKILL)
        at = job.wait_for(lambda one: one["event"] == "recovered", SECONDS)
        job.start("1/1")
        joined = job.wait_for(lambda one: one["event"] == "join", SECONDS, at)
        back = job.wait_for(lambda one: one["event"] == "recovered", SECONDS, joined)
        job.wait_for(lambda one: one["event"] == "iteration", SECONDS, back)
        losses = job.losses()
    with ProcessJob(made, JobConfig(len(losses)), training) as undisturbed:
        undisturbed.result(4 * SECONDS)
        wanted = undisturbed.losses()
    return {
        "iterations": len(losses),
        "kill_to_commit_s": job.said[at]["at_s"] - killed_s,
        "join_to_commit_s": job.said[back]["at_s"] - job.said[joined]["at_s"],
        "loss_difference": max(abs(a - b) for a, b in zip(losses, wanted, strict=True)),
    }


def delegates(bench: Bench) -> dict[str, Any]:
    """Medians of an iteration of two stages, with all messages by delegates and without."""
    model = bench.load(bench.first)
    made = plan_pipeline(even(len(model.layers)), Shape(2, 1, 4), "1f1b")
    kinds: tuple[Sending, ...] = ("direct", "delegated")
    times: dict[Sending, list[float]] = {kind: [] for kind in kinds}
    for _ in range(1 if bench.small else 3):  # in turns
        for kind in kinds:
            times[kind] += iteration_times(bench, made, model, kind)
    medians: dict[str, float] = {kind: statistics.median(found) for kind, found in times.items()}
    return {**medians, "overhead": medians["delegated"] / medians["direct"] - 1}


def copies(bench: Bench) -> dict[str, Any]:
    """Seconds and bytes a second of the copies that a recovery takes."""
    model = bench.load(bench.first)
    held = HeldStage(model.layers, (0, len(model.layers)), model.loss, torch.optim.AdamW, bench.device, is_last=True)
    held.prime_optimizer()
    state = held.state()
    size = sum(value.nbytes for value in state.values())
    staging = HostStaging.of(bench.device)

    def through_host() -> None:
        there = [staging.to_host(value) for value in state.values()]
        for back in [staging.to_device(value()) for value in there]:
            back()

    found: dict[str, Any] = {"bytes": size}
    for name, copy in (("keep", held.keep), ("restore", held.restore), ("through_host", through_host)):
        copy()
        times = []
        for _ in range(3):
            before_s = bench.wait()
            copy()
            times.append(bench.wait() - before_s)
        found[name] = {"seconds": statistics.median(times), "bytes_per_s": size / statistics.median(times)}
    return found


def nccl(bench: Bench) -> dict[str, Any]:
    """From the death of a rank to the first sum of those that live, over communicators of their own."""
    if bench.device.type == "cuda" and bench.count < 3:
        raise CannotRunError(f"NCCL wants a GPU for each of three ranks, there are {bench.count}")
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    ranks = [
        forking().Process(target=be_peer, args=(rank, store.port, bench.of_rank(rank).type), daemon=True)
        for rank in range(3)
    ]
    for rank in ranks:
        rank.start()
    try:
        store.wait(["ready/0", "ready/1", "ready/2"])
        time.sleep(0.5)  # until the others wait for the one that dies
        died_s = time.monotonic()
        os.kill(ranks[2].pid or 0, signal.SIGKILL)
        store.set("died", "")
        told = [json.loads(store.get(f"told/{rank}")) for rank in (0, 1)]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    if any(one["sum"] != 3 for one in told):
        raise RuntimeFailedError(f"the sums of those that live are wrong: {told}")
    return {
        "woken_s": max(one["woken_s"] for one in told) - died_s,
        "death_to_sum_s": max(one["summed_s"] for one in told) - died_s,
        "errors": [one["error"] for one in told],
    }


def be_peer(rank: int, port: int, device: str) -> None:
    """A rank: 0 waits for a message of 2's, 1 for a sum with it; both are woken by `interrupt`, and go on by two."""
    store = TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
    where = torch.device(device, rank) if device == "cuda" else torch.device(device)
    make, wake = (nccl_group, abort) if device == "cuda" else (gloo_group, poison)

    def connect(name: str, ranks: tuple[int, ...]) -> NcclTransport:
        own = {(one, other) for one in ranks for other in ranks if one != other}
        return NcclTransport(PrefixStore(name, store), rank, {ranks}, own, where, make_group=make, wake=wake)

    first = connect("first", (0, 1, 2))
    total = torch.ones(1, device=where)
    first.all_reduce((0, 1, 2), total)
    store.set(f"ready/{rank}", "")
    if rank == 2:
        threading.Event().wait()
    error: list[str] = []

    def wait() -> None:
        try:
            if rank == 0:
                first.post_receive(1, 2, torch.empty(1_000_000, device=where))
                first.receive(1, 2)
            else:
                first.all_reduce((0, 1, 2), torch.ones(1_000_000, device=where))
            if device == "cuda":
                torch.cuda.synchronize(where)
        except RuntimeFailedError as found:
            error.append(found.what)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    store.wait(["died"])
    first.close()
    waiting.join(SECONDS)
    woken_s = time.monotonic()
    second = connect("second", (0, 1))
    total = torch.full((1,), float(rank + 1), device=where)
    second.all_reduce((0, 1), total)
    told = {"sum": total.item(), "woken_s": woken_s, "summed_s": time.monotonic(), "error": (*error, None)[0]}
    second.post_receive(1, 1 - rank, total)
    second.send(1, 1 - rank, total)
    second.receive(1, 1 - rank)
    second.flush()
    store.set(f"told/{rank}", json.dumps(told))
    threading.Event().wait()  # the store's host ends this process


def gloo_group(store: Store, rank: int, size: int) -> Any:
    """What stands for an NCCL group on a CPU."""
    options = ProcessGroupGloo._Options()
    options._threads = 1
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return ProcessGroupGloo(store, rank, size, options)


def even(layers: int) -> Profile:
    """Equal costs, for plans whose times are of no account."""
    return Profile(tuple(Layer((LayerCost(1e-3, 1e-3, 1e-3),)) for _ in range(layers)))


def iteration_times(bench: Bench, made: Plan, model: Model, transport: Sending) -> list[float]:
    """Seconds of iterations of a plan, its ranks being threads of this process, each on a device in turn."""
    store, size = HashStore(), len(made.live_workers())
    os.environ["LOCAL_WORLD_SIZE"] = str(size)  # ranks that share a GPU talk over gloo
    examples = [model.example(number) for number in range(made.total_microbatches())]
    times: list[float] = []
    failures: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            runner = PlanRunner(
                made,
                deepcopy(model.layers),
                model.loss,
                torch.optim.AdamW,
                rank=rank,
                world_size=size,
                store=store,
                device=bench.of_rank(rank),
                transport=transport,
            )
            for _ in range(3 if bench.small else 12):
                done = runner.step(examples)
                if rank == 0:
                    times.append(done.end_s - done.start_s)
            runner.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * SECONDS)
    if failures:
        raise failures[0]
    return times[1 if bench.small else 2 :]


CHECKS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    one.__name__: one for one in (profile, overlap, annotated, memory, plan, survive, delegates, copies, nccl)
}


def run(
    bench: Bench, names: list[str], so_far: Callable[[dict[str, Any]], None] = lambda found: None
) -> dict[str, Any]:
    """The checks' results by name; for one that cannot run the reason. What is found so far is told after each."""
    found: dict[str, Any] = {}
    for name in names:
        began_s = time.monotonic()
        try:
            found[name] = CHECKS[name](bench)
        except CannotRunError as reason:
            found[name] = {"reason": str(reason)}
        except (RtkError, RuntimeError, AssertionError) as error:
            found[name] = {"reason": f"it failed: {type(error).__name__}: {error}"}
        print(f"{name}: {time.monotonic() - began_s:.1f} s", json.dumps(found[name])[:300], file=sys.stderr, flush=True)
        so_far(found)
    return found


def main() -> None:
    """Run the checks and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="models that a CPU trains in seconds")
    parser.add_argument("--only", choices=CHECKS, action="append", help="this check; may be given again")
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--keep", help="a folder in which models' configurations and traces stay")
    given = parser.parse_args()
    names = given.only or list(CHECKS)
    if given.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # for workers too
        torch.set_num_threads(1)
    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]

    def write(found: dict[str, Any]) -> None:
        write_result({"checks": found, "devices": devices, "small": given.small}, given.output)

    if given.device == "cuda" and not torch.cuda.is_available():
        write({name: {"reason": "there is no GPU here"} for name in names})
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(given.keep or scratch)
        folder.mkdir(exist_ok=True)
        write(
            run(Bench(given.device, given.small, folder), names, write if given.output != "-" else lambda found: None)
        )


if __name__ == "__main__":
    main()
