"""How much of the reading of data is hidden: iterations whose micro-batches each take 10 ms to read.

One rank trains a small GPT on a data set of 10^9 rows, in a permuted order, with data in memory, read when they are
needed, read ahead by a thread, and by a process, in turns. Reading waits (as for a disk) or computes (as a decoder
does, which needs a core). What is hidden is the share of the reading for which training need not wait: 1 - its waits
for data / its waits when it reads at need. The iterations' times are beside it: they also have what reading takes from
the same cores.
A second part reads tokens from a file, which takes microseconds: what a micro-batch costs when it is read at need.

    python benchmarks/reading_ahead.py --output reading_ahead.json
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import HashStore

from rtk.benchmarks.common import in_turns, spread, write_result
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig
from rtk.runners.torch.data.feed import RowFeed
from rtk.runners.torch.data.provider import Batch
from rtk.runners.torch.data.tokens import Row, Tokens
from rtk.runners.torch.runner import PlanRunner
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

READ_S, ROWS = 0.010, 10**9
MICROBATCHES, SIZE, LENGTH, VOCABULARY = 8, 4, 64, 256
WIDTH, BLOCKS = 128, 2
ROUNDS, REPEATS = 5, 4


class SlowRows:
    """Rows of which a micro-batch takes READ_S to read.

    Args:
        wait: spends that time.
    """

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Row:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Row]:
        """Rows of tokens that follow from their numbers."""
        self._wait()
        tokens = [(torch.arange(LENGTH + 1) + row) % VOCABULARY for row in rows]
        return [(one[:-1], one[1:]) for one in tokens]


def sleep() -> None:
    """As a disk or a network lets one wait."""
    time.sleep(READ_S)


def compute() -> None:
    """As a decoder in Python does; by CPU time, so that a thread does not count its waits for the interpreter."""
    end_s = time.thread_time() + READ_S
    while time.thread_time() < end_s:
        sum(range(100))


def main() -> None:
    """Measure both kinds of reading, and tokens in a file, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="-", help="where the JSON goes; standard output by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runner = PlanRunner(
        plan_of(), layers(), language_model_loss, torch.optim.SGD, rank=0, world_size=1, store=HashStore()
    )
    found = {"waits": hidden(runner, sleep), "computes": hidden(runner, compute)}
    for name, figures in found.items():
        told = ", ".join(f"{side} {100 * share:.1f} %" for side, share in figures["hidden"].items())
        print(f"reading {name}: hidden by a {told}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        tokens = at_need(Path(folder))
    print(f"tokens of a file: {1e6 * tokens['median']:.0f} us a micro-batch of {SIZE} x 1,024", file=sys.stderr)
    result = {"benchmark": "reading ahead", "target_hidden": 0.95, "read_s": READ_S, "rows": ROWS}
    write_result({**result, "microbatches": MICROBATCHES, **found, "tokens_at_need_s": tokens}, arguments.output)


class Waited:
    """A batch that notes for how long one waits for each of its micro-batches.

    Args:
        batch: the micro-batches.
        waits: takes the seconds.
    """

    def __init__(self, batch: Batch, waits: list[float]) -> None:
        self._batch, self._waits = batch, waits
        self._last: tuple[int, Any] = (-1, None)

    def __getitem__(self, microbatch: int) -> Any:
        if self._last[0] != microbatch:
            begun_s = time.perf_counter()
            self._last = microbatch, self._batch[microbatch]
            self._waits.append(time.perf_counter() - begun_s)
        return self._last[1]


def hidden(runner: PlanRunner, wait: Callable[[], None]) -> dict[str, Any]:
    """The seconds of an iteration by who reads, and the shares of the reading that are hidden."""
    feeds = {
        "thread": RowFeed(SlowRows(wait), SIZE, MICROBATCHES),
        "process": RowFeed(SlowRows(wait), SIZE, MICROBATCHES, loader_workers=1),
    }
    at_need = RowFeed(SlowRows(wait), SIZE, MICROBATCHES)
    memory = [at_need.batch(0)[number] for number in range(MICROBATCHES)]
    feeds["process"].start()
    waits: dict[str, list[float]] = {"at need": [], "thread": [], "process": []}

    def ahead(name: str, feed: RowFeed) -> Callable[[], float]:
        number = 0

        def measure() -> float:
            nonlocal number
            begun_s = time.perf_counter()
            for one in (number, number + 1):
                feed.prefetch(one, runner.reads)
            runner.step(Waited(feed.batch(number), waits[name]))
            number += 1
            return time.perf_counter() - begun_s

        return measure

    def step(batch: Any) -> float:
        begun_s = time.perf_counter()
        runner.step(batch)
        return time.perf_counter() - begun_s

    sides = {
        "memory": lambda: step(memory),
        "at need": lambda: step(Waited(at_need.batch(0), waits["at need"])),
        **{name: ahead(name, feed) for name, feed in feeds.items()},
    }
    turns = in_turns(sides, ROUNDS, REPEATS)
    for feed in feeds.values():
        feed.close()
    return {
        "iteration_s": {side: spread([*chain.from_iterable(values)]) for side, values in turns.items()},
        "wait_s": {side: spread(values) for side, values in waits.items()},
        "hidden": {side: 1 - sum(waits[side]) / sum(waits["at need"]) for side in feeds},
    }


def at_need(folder: Path) -> dict[str, float]:
    """Seconds to read a micro-batch of 4 rows of 1,024 tokens out of a file, at places in no order."""
    np.random.default_rng(0).integers(0, 50_000, 50_000_000).astype("uint16").tofile(folder / "tokens.bin")
    feed = RowFeed(Tokens(folder / "tokens.bin", "uint16", sequence_length=1024), SIZE, MICROBATCHES, vocabulary=50_000)
    seconds = []
    for number in range(500):
        begun_s = time.perf_counter()
        _ = feed.batch(number)[0]
        seconds.append(time.perf_counter() - begun_s)
    return spread(seconds)


def layers() -> list[torch.nn.Module]:
    """Of a GPT that takes some 20 ms a micro-batch."""
    torch.manual_seed(0)
    return gpt_layers(GptConfig(BLOCKS, WIDTH, 4, VOCABULARY, LENGTH))


def plan_of() -> Plan:
    """One stage on one worker."""
    profile = Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * len(layers()))
    return plan_pipeline(profile, Shape(1, 1, MICROBATCHES), "1f1b")


if __name__ == "__main__":
    main()
