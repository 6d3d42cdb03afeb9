"""Activation memory: what a profile predicts against the measured peak of a stage with 1 to 4 micro-batches in flight.

`python benchmarks/profile_memory.py [-o FILE]`. Every configuration has a process of its own. The whole model is one
stage with gradients and an optimizer's state, as `rtk run` holds it. For k = 1, 2, 3, 4 it runs k F, then the backward
passes; the peak is that of torch's allocator (on a GPU `max_memory_allocated`, on a CPU the sum of all allocations and
releases that torch's profiler records). `measured_bytes` is what each further micro-batch adds to the peak, compared
with `predicted_bytes`, the activations of all layers. `operation_bytes` is what a peak has beyond its activations: it
is there during one operation only (gradients between layers, the logits' softmax, an embedding's dense gradient), and
no profile holds it. The held bytes are parameters, gradients and optimizer state. `resident_bytes` is what a further
micro-batch adds to the peak of the process's resident set (Linux, CPU), fragmentation included.
"""

import argparse
import ctypes
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import linear_regression
from typing import Any

import torch

from rtk.benchmarks.common import write_result
from rtk.profilers.measure import measure_profile
from rtk.profilers.models.load import Model, load_model
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.profile import DataType, ModelForm, held_bytes

IN_FLIGHT = (1, 2, 3, 4)


@dataclass(frozen=True)
class Configuration:
    """What is measured."""

    model: str
    dtype: DataType = "fp32"
    checkpointing: bool = False
    split: bool = True


CONFIGURATIONS = (
    Configuration("gpt-tiny"),
    Configuration("gpt-tiny", split=False),
    Configuration("gpt-tiny", dtype="bf16"),
    Configuration("gpt-tiny", checkpointing=True),
    Configuration("gpt-tiny", checkpointing=True, split=False),
    Configuration("gpt-small"),
    Configuration("gpt-small", checkpointing=True, split=False),
    Configuration("gpt-small", dtype="bf16"),
)


def compare(one: Configuration) -> dict[str, Any]:
    """Prediction and measurement of one configuration."""
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    form = ModelForm(dtype=one.dtype, checkpointing=one.checkpointing)
    model = load_model(one.model, form=form)
    profile = measure_profile(model, TorchStage, device=device, repeats=1)
    predicted_bytes = sum(layer.activation_bytes for layer in profile.layers)
    held, before_bytes = _hold(model, device, one.split)
    run = _runner(held, model, device, one.split)
    run(1)
    meter = _gpu_peak if device.type == "cuda" else _cpu_peak
    peaks = [meter(partial(run, k)) for k in IN_FLIGHT]
    resident = [_resident_peak(partial(run, k)) for k in IN_FLIGHT] if device.type == "cpu" else None
    measured_bytes = linear_regression(IN_FLIGHT, peaks).slope
    return {
        **asdict(one),
        "predicted_bytes": predicted_bytes,
        "measured_bytes": measured_bytes,
        "error": predicted_bytes / measured_bytes - 1,
        "operation_bytes": peaks[0] - measured_bytes,
        "peaks_bytes": peaks,
        "resident_bytes": linear_regression(IN_FLIGHT, resident).slope if resident else None,
        "predicted_held_bytes": sum(held_bytes(profile.layers, 0, len(profile.layers))),
        "measured_held_bytes": before_bytes,
    }


def _hold(model: Model, device: torch.device, split: bool) -> tuple[HeldStage, int]:
    """The whole model as one stage that has stepped, and the bytes of its parameters, gradients and state."""
    held = HeldStage(
        model.layers,
        (0, len(model.layers)),
        model.loss,
        lambda parameters: torch.optim.AdamW(parameters, lr=0.0),
        device,
        is_last=True,
        is_split=split,
    )
    held.prime_optimizer()
    state_bytes = sum(tensor.nbytes for tensor in held.state().values())
    return held, state_bytes + sum(buffer.nbytes for buffer in held.gradients.buffers)


def _runner(held: HeldStage, model: Model, device: torch.device, split: bool) -> Callable[[int], None]:
    inputs, target = (tensor.to(device) for tensor in model.example(0))

    def run(in_flight: int) -> None:
        for key in range(in_flight):
            held.stage.forward(key, inputs.clone(), target)
        for key in range(in_flight):
            if split:
                held.stage.backward_input(key)
                held.stage.backward_weight(key)
            else:
                held.stage.backward(key)

    return run


def _gpu_peak(run: Callable[[], None]) -> int:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() - before


def _cpu_peak(run: Callable[[], None]) -> int:
    """The most bytes that torch held beyond those from before, from all its allocations in their order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    records: Any = profiler.profiler.kineto_results.events()
    changes = sorted((one.start_ns(), one.nbytes()) for one in records if one.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


def _resident_peak(run: Callable[[], None]) -> int:
    ctypes.CDLL(None).malloc_trim(0)  # what is free already would hide what is taken
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status_bytes("VmRSS")
    run()
    return _status_bytes("VmHWM") - before


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _in_own_process(one: Configuration) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(compare, (one,))


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare all configurations and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--quick", action="store_true", help="gpt-tiny only")
    options = parser.parse_args(arguments)
    rows = []
    for one in CONFIGURATIONS:
        if options.quick and one.model != "gpt-tiny":
            continue
        row = _in_own_process(one)
        rows.append(row)
        sizes = f"{row['predicted_bytes'] / 1e6:.2f} MB, measured {row['measured_bytes'] / 1e6:.2f} MB"
        print(f"{one}: {sizes}, {row['error']:+.2%}", file=sys.stderr)
    write_result({"rows": rows, "worst_error": max(abs(row["error"]) for row in rows)}, options.output)


if __name__ == "__main__":
    main()
