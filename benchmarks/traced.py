"""A trace of one GPT's steps on this CPU, and what the steps of others are then computed to take.

`python benchmarks/traced.py [--rounds N] [-o FILE]`. In each round the traced GPT does a step under torch's profiler,
and then each of the others does one without it, so that whatever else the machine does falls on all alike. Predicted is
the sum of F, I, W and the step of all layers, as computed; calibrated by the trace with its settings; and by the trace
alone. Ratios are predicted over the median of what was measured, by the clock on the wall.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from rtk.benchmarks.common import write_result
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

    def step(self) -> Callable[[], None]:
        """What does a step of it, warmed up."""
        torch.manual_seed(0)
        net = torch.nn.Sequential(*gpt_layers(self.config))
        optimizer = torch.optim.AdamW(net.parameters())
        tokens = torch.randint(self.config.vocabulary, (self.microbatch_size, self.sequence_length))

        def stepping() -> None:
            torch.autograd.backward(language_model_loss(net(tokens), tokens))
            optimizer.step()
            optimizer.zero_grad()

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


TRACED = TracedCase(GptConfig(2, 512, 8, 1024, 256), 2, 256)
OTHERS = (
    TracedCase(GptConfig(4, 384, 6, 1024, 256), 2, 256),
    TracedCase(GptConfig(2, 768, 12, 1024, 512), 1, 512),
    TracedCase(GptConfig(3, 512, 8, 2048, 256), 4, 256),
    TracedCase(GptConfig(2, 640, 10, 512, 128), 2, 128),
)
SETTINGS = """\
model: {model}
gpu: cpu
pp: 1
microbatch_size: {batch.microbatch_size}
sequence_length: {batch.sequence_length}
global_batch: {batch.microbatch_size}
trace: trace.json.gz
"""


def measured(rounds: int, folder: Path) -> list[float]:
    """What a step of each of the others took, in s; the trace lies in the folder."""
    traced, others = TRACED.step(), [one.step() for one in OTHERS]
    times_s: list[list[float]] = [[] for _ in others]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        for number in range(rounds):
            with record_function(f"ProfilerStep#{number}"):
                traced()
            recording.toggle_collection_dynamic(False, [ProfilerActivity.CPU])
            for step, own in zip(others, times_s, strict=True):
                began = time.perf_counter()
                step()
                own.append(time.perf_counter() - began)
            recording.toggle_collection_dynamic(True, [ProfilerActivity.CPU])
    recording.export_chrome_trace(str(folder / "trace.json.gz"))
    return [median(own) for own in times_s]


def compared(rounds: int, folder: Path) -> dict[str, Any]:
    """Ratios of all cases, and what was learned."""
    times_s = measured(rounds, folder)
    settings = folder / "run.yaml"
    settings.write_text(SETTINGS.format(model=TRACED.write(folder / "traced.json"), batch=TRACED))
    learned = {
        "computed": None,
        "settings": read_calibration(str(settings), gpu="cpu"),
        "trace": read_calibration(str(folder / "trace.json.gz"), gpu="cpu"),
    }
    ratios: dict[str, list[float]] = {name: [] for name in learned}
    for case, time_s in zip(OTHERS, times_s, strict=True):
        model = case.write(folder / "other.json")
        for name, calibrate in learned.items():
            made = profile_analytic(
                model, gpu="cpu", microbatch_size=case.microbatch_size, sequence_length=case.sequence_length,
                calibrate=calibrate,
            )  # fmt: skip
            costs = [layer.costs[0] for layer in made.layers]
            ratios[name].append(sum(cost.work_s + cost.optimizer_s for cost in costs) / time_s)
    remarks = {name: getattr(one, "remarks", ()) for name, one in learned.items()}
    return {"rounds": rounds, "measured_s": times_s, "ratios": ratios, "remarks": remarks}


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("-o", "--output", default="-", help="where to write the JSON")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_result(compared(asked.rounds, Path(folder)), asked.output)


if __name__ == "__main__":
    main()
