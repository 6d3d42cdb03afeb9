"""Memory while a worker reads its stage of a Hugging Face model, against what the stage's parameters take.

`python benchmarks/stage_memory.py [-o FILE] [--layers N] [--stages N …]`. A Llama of random weights (876 MB in float32
by default, in shards of 200 MB) is written to a temporary folder; then every stage is made in a process of its own, as
a worker does: the model is made and cut without values, and its stage is filled. A small model of the same family was
loaded before, so that code is not counted. Of the peak, beyond what was resident before:

* `private_bytes`: anonymous memory, sampled every millisecond, which nobody else can use;
* `resident_bytes`: all, as the kernel's high-water mark has it, with the pages of files that were mapped at that
  moment. A file is mapped for one tensor at a time, so these are few; they are clean, and the kernel takes them back.

`ratio` is `resident_bytes` to the stage's parameters. `whole` is the same of the whole model, as for a profile.
"""

import argparse
import copy
import ctypes
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rtk.benchmarks.common import write_result
from rtk.profilers.models.huggingface import HuggingFace
from rtk.profilers.models.load import load_model
from rtk.schemas.plan import Layers

SIZE, LENGTH = 4, 512
LLAMA: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
TINY = LLAMA | {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}


def read_stage(folder: str, held: Layers) -> int:
    """As a worker does; gives the bytes of the parameters."""
    model = HuggingFace(folder).load(SIZE, LENGTH)
    layers = copy.deepcopy(model.layers)
    assert model.fill is not None
    model.fill(layers, held)
    return sum(one.nbytes for layer in layers[slice(*held)] for one in layer.parameters())


def read_whole(folder: str) -> int:
    """All layers with values."""
    return sum(one.nbytes for layer in load_model(folder, SIZE, LENGTH).layers for one in layer.parameters())


def measured(read: Callable[[str], int], folder: str, tiny: str) -> dict[str, Any]:
    """What reading takes, in this process."""
    torch.set_num_threads(1)
    read_whole(tiny)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, private_before = _status_bytes("VmRSS"), _status_bytes("RssAnon")
    private, is_done = [private_before], threading.Event()

    def sample() -> None:
        while not is_done.wait(0.001):
            private[0] = max(private[0], _status_bytes("RssAnon"))

    sampler = threading.Thread(target=sample)
    sampler.start()
    begun_s = time.perf_counter()
    parameter_bytes = read(folder)
    took_s = time.perf_counter() - begun_s
    is_done.set()
    sampler.join()
    resident_bytes = _status_bytes("VmHWM") - before
    return {
        "parameter_bytes": parameter_bytes,
        "private_bytes": private[0] - private_before,
        "resident_bytes": resident_bytes,
        "ratio": resident_bytes / parameter_bytes,
        "seconds": took_s,
    }


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _in_own_process(read: Callable[[str], int], folder: str, tiny: str) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, (read, folder, tiny))


def _write(folder: str, config: dict[str, Any]) -> str:
    import transformers

    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    make: Any = transformers.AutoModelForCausalLM
    make.from_config(transformers.AutoConfig.for_model("llama", **config)).save_pretrained(
        folder, max_shard_size="200MB"
    )
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all stages and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args(arguments)
    count = options.layers + 2
    rows = []
    with tempfile.TemporaryDirectory() as place:
        tiny = _write(f"{place}/tiny", TINY)
        large = _write(f"{place}/large", LLAMA | {"num_hidden_layers": options.layers})
        ways: list[tuple[dict[str, Any], Callable[[str], int]]] = [
            ({"stages": stages, "layers": held}, partial(read_stage, held=held))
            for stages in options.stages
            for held in [(i * count // stages, (i + 1) * count // stages) for i in range(stages)]
        ]
        for told, read in (*ways, ({"whole": True}, read_whole)):
            row = told | _in_own_process(read, large, tiny)
            rows.append(row)
            sizes = ", ".join(
                f"{name} {row[f'{name}_bytes'] / 1e6:.0f} MB" for name in ("parameter", "private", "resident")
            )
            print(f"{told}: {sizes}, {row['ratio']:.2f}, {row['seconds']:.1f} s", file=sys.stderr)
    worst = max(row["ratio"] for row in rows if "stages" in row)
    write_result({"rows": rows, "worst_ratio": worst, "microbatch": [SIZE, LENGTH]}, options.output)


if __name__ == "__main__":
    main()
