"""A trace of one GPT's steps on this CPU or GPU, and what the steps of others are then computed to take.

`python benchmarks/traced.py [--device cuda] [--rounds N] [--keep TRACE] [-o FILE]`. In each round the traced GPT does a
step under torch's profiler, and then each of the others does one without it, so that whatever else the machine does
falls on all alike. Predicted is the sum of F, I, W and the step of all layers: as computed; calibrated by the trace
with its settings; and by the trace alone. Ratios are predicted over the median of what was measured, on the wall.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from rtk.benchmarks.common import gpu_here, write_result
from rtk.calibrating import read_calibration
from rtk.profilers.analytic.estimate import profile_analytic
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig


@dataclass(frozen=True, slots=True)
class TracedCase:
    """A GPT and its micro-batch."""

    config: GptConfig
    microbatch_size: int
    sequence_length: int

    def step(self, device: torch.device) -> Callable[[], None]:
        """What does a step of it and waits for the end, warmed up; on a GPU in bf16."""
        torch.manual_seed(0)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        with device:
            net = torch.nn.Sequential(*gpt_layers(self.config)).to(dtype)
        optimizer = torch.optim.AdamW(net.parameters())
        shape = (self.microbatch_size, self.sequence_length)
        tokens = torch.randint(self.config.vocabulary, shape, device=device)

        def stepping() -> None:
            torch.autograd.backward(language_model_loss(net(tokens), tokens))
            optimizer.step()
            optimizer.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        stepping()
        stepping()
        return stepping

    def write(self, path: Path) -> str:
        """The model's configuration."""
        one = self.config
        sizes = {"n_layer": one.blocks, "n_embd": one.width, "n_head": one.heads, "vocab_size": one.vocabulary}
        kind = {"model_type": "gpt2", "activation_function": "gelu", "tie_word_embeddings": False}
        path.write_text(json.dumps({**kind, **sizes, "n_positions": one.positions}))
        return str(path)


TRACED = {
    "cpu": TracedCase(GptConfig(2, 512, 8, 1024, 256), 2, 256),
    "cuda": TracedCase(GptConfig(4, 2048, 16, 50304, 1024), 8, 1024),
}
OTHERS = {
    "cpu": (
        TracedCase(GptConfig(4, 384, 6, 1024, 256), 2, 256),
        TracedCase(GptConfig(2, 768, 12, 1024, 512), 1, 512),
        TracedCase(GptConfig(3, 512, 8, 2048, 256), 4, 256),
        TracedCase(GptConfig(2, 640, 10, 512, 128), 2, 128),
    ),
    "cuda": (
        TracedCase(GptConfig(12, 1024, 16, 50304, 1024), 8, 1024),
        TracedCase(GptConfig(6, 2560, 20, 50304, 2048), 4, 2048),
        TracedCase(GptConfig(4, 4096, 32, 50304, 2048), 4, 2048),
        TracedCase(GptConfig(8, 2048, 16, 131072, 512), 8, 512),
    ),
}
SETTINGS = """\
model: {model}
gpu: {gpu}
pp: 1
dtype: {dtype}
microbatch_size: {batch.microbatch_size}
sequence_length: {batch.sequence_length}
global_batch: {batch.microbatch_size}
trace: trace.json.gz
"""


def measured(device: torch.device, rounds: int, folder: Path) -> list[float]:
    """What a step of each of the others took, in s; the trace lies in the folder."""
    traced = TRACED[device.type].step(device)
    others = [one.step(device) for one in OTHERS[device.type]]
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (device.type == "cuda")]
    times_s: list[list[float]] = [[] for _ in others]
    with profile(activities=activities, record_shapes=True) as recording:
        for number in range(rounds):
            with record_function(f"ProfilerStep#{number}"):
                traced()
            recording.toggle_collection_dynamic(False, activities)
            for step, own in zip(others, times_s, strict=True):
                began = time.perf_counter()
                step()
                own.append(time.perf_counter() - began)
            recording.toggle_collection_dynamic(True, activities)
    recording.export_chrome_trace(str(folder / "trace.json.gz"))
    return [median(own) for own in times_s]


def compared(device: torch.device, rounds: int, folder: Path) -> dict[str, Any]:
    """Ratios of all cases, and what was learned."""
    times_s = measured(device, rounds, folder)
    gpu = gpu_here(device.type)
    dtype = "bf16" if device.type == "cuda" else "fp32"
    settings = folder / "run.yaml"
    traced = TRACED[device.type]
    settings.write_text(SETTINGS.format(model=traced.write(folder / "traced.json"), gpu=gpu, dtype=dtype, batch=traced))
    learned = {
        "computed": None,
        "settings": read_calibration(str(settings), gpu=gpu),
        "trace": read_calibration(str(folder / "trace.json.gz"), gpu=gpu),
    }
    ratios: dict[str, list[float]] = {name: [] for name in learned}
    for case, time_s in zip(OTHERS[device.type], times_s, strict=True):
        model = case.write(folder / "other.json")
        for name, calibrate in learned.items():
            made = profile_analytic(
                model, gpu=gpu, microbatch_size=case.microbatch_size, sequence_length=case.sequence_length,
                calibrate=calibrate,
            )  # fmt: skip
            costs = [layer.costs[0] for layer in made.layers]
            ratios[name].append(sum(cost.work_s + cost.optimizer_s for cost in costs) / time_s)
    remarks = {name: getattr(one, "remarks", ()) for name, one in learned.items()}
    return {"gpu": gpu, "rounds": rounds, "measured_s": times_s, "ratios": ratios, "remarks": remarks}


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--keep", type=Path, help="where the trace is to stay (.json.gz)")
    parser.add_argument("-o", "--output", default="-", help="where to write the JSON")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result = compared(torch.device(asked.device), asked.rounds, Path(folder))
        if asked.keep:
            shutil.copy(Path(folder) / "trace.json.gz", asked.keep)
    write_result(result, asked.output)


if __name__ == "__main__":
    main()
