"""The ledger of goodput: how fast it reads logs, and how right it is.

`python benchmarks/goodput.py [--section speed|truth] [--size 1GB] [-o FILE]`; sections that are not run again stay as
they are in the file.

**speed**: logs of a gigabyte are written to a temporary folder, and ledgers made of them, each in a process of its own:
wall time, processor time and the peak of its memory. `iterations` is Megatron's log with a line for each interval of
ten iterations and its timers, half of whose bytes are such lines; `chatty` has an iteration's line among 3,000 of
NCCL's; `bars` is NeMo's progress bar, hundreds of steps a line.

**truth**: `goodput_truth.py`.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.benchmarks.goodput_truth import truth
from rtk.profilers.goodput import goodput
from rtk.schemas.quantities import parse_bytes

RESULT = Path(__file__).parent / "results" / "goodput.json"
BEGIN = datetime(2025, 8, 1, tzinfo=UTC)


def iteration_line(number: int) -> bytes:
    """As Megatron-LM writes it, a second an iteration."""
    clock = BEGIN + timedelta(seconds=number)
    return (
        f" [{clock:%Y-%m-%d %H:%M:%S}] iteration {number:8d}/ 9000000 | consumed samples: {1024 * number:12d} | "
        f"elapsed time per iteration (ms): {1000 + number % 7:.1f} | throughput per GPU (TFLOP/s/GPU): 412.3 | "
        "learning rate: 1.491000E-04 | global batch size:  1024 | lm loss: 7.790527E+00 | loss scale: 1.0 | "
        "grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    ).encode()


def iterations_log() -> Iterator[bytes]:
    """Hardly anything but iterations and timers."""
    timers = (
        b"(min, max) time across ranks (ms):\n"
        b"    forward-backward ...............................: (812.10, 815.29)\n"
        b"    optimizer ......................................: (12.10, 15.29)\n"
    )
    for number in count(10, 10):
        yield iteration_line(number) + timers


def chatty_log() -> Iterator[bytes]:
    """Hardly anything about iterations."""
    chat = b"".join(
        f"r7i3n0:{30000 + line % 97}:38671 [{line % 8}] NCCL INFO comm 0x1489a8001060 rank {line % 16} nranks 16 "
        "cudaDev 3 busId 8a000 - Init COMPLETE\n".encode()
        for line in range(3000)
    )
    for number in count(10, 10):
        yield iteration_line(number) + chat


def bars_log() -> Iterator[bytes]:
    """A progress bar that is drawn over and over, of epochs of 500 steps."""
    for step in count():
        end = "\n" if step % 500 == 499 else "\r"
        yield (
            f"Epoch {step // 500}: {step % 500 // 5:3d}%|{'#' * 20}| {step % 500}/500 [07:58<01:48, 1.36s/it, v_num=, "
            f"reduced_train_loss=3.090, global_step={step}.0, consumed_samples=1.6e+6, train_step_timing in s=1.360]"
            f"{end}"
        ).encode()


LOGS: dict[str, Callable[[], Iterator[bytes]]] = {
    "iterations": iterations_log,
    "chatty": chatty_log,
    "bars": bars_log,
}


def write_log(path: str, parts: Iterator[bytes], size_bytes: int) -> None:
    """So many bytes of a log."""
    with Path(path).open("wb") as stream:
        while stream.tell() < size_bytes:
            stream.write(b"".join(next(parts) for _ in range(100)))


def reading(path: str) -> dict[str, Any]:
    """What it takes to read a log, in this process."""
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    ledger = goodput([path], gpus=8)
    return {
        "wall_s": time.perf_counter() - begun_s,
        "processor_s": time.process_time() - begun_cpu_s,
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        "bytes": Path(path).stat().st_size,
        "lines": ledger.lines.read,
        "telling": ledger.lines.telling,
        "iterations": ledger.iterations,
    }


def speed(size_bytes: int) -> dict[str, Any]:
    """Each log, written, read and removed."""
    found = {}
    for name, parts in LOGS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/{name}.log"
            write_log(path, parts(), size_bytes)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found[name] = pool.apply(reading, (path,))
        print(name, found[name], file=sys.stderr)
    return found


SECTIONS: Mapping[str, Callable[[int], dict[str, Any]]] = {"speed": speed, "truth": truth}


def main() -> None:
    """Run the sections that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", action="append", choices=list(SECTIONS))
    parser.add_argument("--size", default="1GB", help="of each log that is read")
    parser.add_argument("-o", "--output", default=str(RESULT))
    options = parser.parse_args()
    size_bytes = int(parse_bytes(options.size, "--size"))
    found = {name: SECTIONS[name](size_bytes) for name in options.section or SECTIONS}
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    write_result({name: before[name] for name in SECTIONS if name in before} | found, options.output)


if __name__ == "__main__":
    main()
