"""torchtitan: the lines of its log, and the JSON lines of its structured logger (torchtitan 0.3.0).

Sources: torchtitan/trainer.py, components/metrics.py, components/checkpointer/dcp.py, observability/structured_logger.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from ....schemas.errors import InvalidInputError
from ...failslow.readers.formats import TorchTitan
from ...failslow.readers.lines import NUMBER, number_in, rank_of
from ...failslow.readers.stamps import LineClock
from ..happenings import Happening, HappeningKind
from .reader import MOST_CAUSE, MOST_QUANTITY, HappeningReader, LineContext, Progress, quantity_of, unreadable_line

_BEGINS = re.compile(rb"Training starts at step (\d{1,15})")
# Before 0.3.0: `Finished saving the checkpoint (or staging if async is enabled)in 5.53 seconds.`
_FINISHED = re.compile(
    rb"(?:Finished (saving|staging|loading) the|Last step) checkpoint(?: completed| \(or staging[^)]{0,40}\))? ?in "
    + NUMBER
    + rb"\s?s"
)
_MESH = re.compile(rb"Building device mesh with parallelism: (.*)")
_DEGREE = re.compile(rb"(\w+)=(\d{1,9})")  # experts are dealt within the others
_LOADED_STEP = re.compile(rb"step[-_](\d{1,15})\b")


_SPANS: dict[str, HappeningKind] = {
    "checkpoint_save_end": "save",
    "checkpoint_load_end": "load",
    "torch_distributed_init_end": "rendezvous",
    "model_parallelism_init_end": "init",
    "structured_logger_started": "start",
    "training_start": "init",
}
_DOES_NOTHING_S = 1e-3  # the span of a save stands in every step, and mostly finds that none is due


class TorchTitanLog(HappeningReader):
    """torchtitan's text: `[titan] 2025-06-20 19:13:39,663 - root - INFO - step: 10  loss: … tps: 5,970 …`.

    How long an iteration took follows from its tokens a second, as for `rtk detect`, less what saves took meanwhile; of
    the first line of a job it is not known. A checkpoint is said to be saved without its step: it is that of the line
    before.
    """

    NAME: ClassVar[str] = "torchtitan"
    MARKS: ClassVar[tuple[bytes, ...]] = (
        b"step: ",
        b"Training starts at step",
        b" the checkpoint",
        b"Last step checkpoint",
        b"Training completed",
        b"Building device mesh",
        b"torchtitan version",
        b"Starting job:",
    )

    def __init__(self, clock: LineClock) -> None:
        super().__init__(clock)
        self._times, self._progress = TorchTitan(), Progress()
        self._step: dict[str | None, int] = {}  # done, by rank
        self._loading: dict[str | None, int] = {}  # the step of the checkpoint that is being loaded
        self._saved_s: dict[str | None, float] = {}  # what saves took since the line before

    def read(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        """What a line tells."""
        rank = rank_of(line)
        ranks = (rank,) if rank else ()
        time_s = self.clock.of(line)
        if step := TorchTitan.STEP.search(line):
            yield from self._iteration(line, around, step)
        elif (first := number_in(_BEGINS, line)) is not None:
            self._times.read(line)
            self._progress.restart(first - 1)
            self._step[rank] = first - 1
            yield Happening("init", time_s, around.place, ranks=ranks)
        elif finished := _FINISHED.search(line):
            yield self._checkpoint(line, around, finished)
        elif b"Loading the checkpoint from" in line:
            if (loaded := number_in(_LOADED_STEP, line)) is not None:
                self._loading[rank] = loaded
        elif mesh := _MESH.search(line):
            gpus = math.prod(int(degree) for name, degree in _DEGREE.findall(mesh[1]) if name != b"ep")
            yield Happening("rendezvous", time_s, around.place, gpus=gpus, ranks=ranks)
        elif b"Training completed" in line:
            yield Happening("end", time_s, around.place, ranks=ranks)
        elif b"Starting job:" in line or b"torchtitan version" in line:
            yield Happening("start", time_s, around.place, ranks=ranks)

    def _iteration(self, line: bytes, around: LineContext, step: re.Match[bytes]) -> Iterator[Happening]:
        reading, rank, number = self._times.read(line), rank_of(line), int(step[2])
        if step[1]:  # a validation, after which its clock begins anew
            self._saved_s.pop(rank, None)
            ranks = (rank,) if rank else ()
            yield Happening("evaluation", self.clock.of(line), around.place, None, number, ranks=ranks)
            return
        steps = self._progress.steps(number, rank)
        saved_s, took_s = self._saved_s.pop(rank, 0.0) / steps, None
        if reading is not None and self._times.per == "iteration" and reading.time_s > saved_s:
            took_s = reading.time_s - saved_s
        self._step[rank] = number
        ranks = (rank,) if rank else ()
        yield Happening("iteration", self.clock.of(line), around.place, took_s, number, ranks=ranks, steps=steps)

    def _checkpoint(self, line: bytes, around: LineContext, finished: re.Match[bytes]) -> Happening:
        rank, took_s = rank_of(line), quantity_of(finished[2], "the time of a checkpoint")
        ranks, time_s = (rank,) if rank else (), self.clock.of(line)
        if finished[1] == b"loading":
            return Happening("load", time_s, around.place, took_s, self._loading.pop(rank, None), ranks=ranks)
        self._saved_s[rank] = self._saved_s.get(rank, 0.0) + took_s
        return Happening("save", time_s, around.place, took_s, self._step.get(rank), ranks=ranks)


class TorchTitanEvents(HappeningReader):
    """torchtitan's structured log: a JSON object a line, spans with their end and how long they took in ms."""

    NAME: ClassVar[str] = "torchtitan-events"
    MARKS: ClassVar[tuple[bytes, ...]] = tuple(
        f'"log_type_name": "{name}"'.encode() for name in ("step_end", "step_error", *_SPANS)
    )

    def __init__(self, clock: LineClock) -> None:
        super().__init__(clock)
        self._progress = Progress()
        self._saved_s: dict[str, float] = {}  # in the step that is under way, by rank: its span holds that of the save
        self._broken: set[str] = set()  # ranks whose step ended in an error

    def read(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        """What an object tells."""
        row = _object(line)
        name, rank = str(row.get("log_type_name")), str(row.get("global_rank", row.get("rank", "")))
        time_s, ranks = row["time_us"] / 1e6, (rank,) if rank else ()
        value, step = row.get("value"), row.get("step")
        took_s = value / 1e3 if isinstance(value, int | float) and 0 <= value < MOST_QUANTITY else None
        number = step if isinstance(step, int) and step >= 0 else None
        if name == "step_error":
            self._broken.add(rank)
            cause = str(row.get("message", "")).partition("step_error: ")[2][:MOST_CAUSE]
            yield Happening("failure", time_s, around.place, ranks=ranks, cause=cause or "an exception in a step")
        elif name == "step_end":
            saved_s = self._saved_s.pop(rank, 0.0)
            if rank in self._broken or number is None:
                self._broken.discard(rank)
                return
            took_s = max(0.0, took_s - saved_s) if took_s is not None else None
            steps = self._progress.steps(number, rank)
            yield Happening("iteration", time_s, around.place, took_s, number, ranks=ranks, steps=steps)
        elif name in _SPANS:
            if name.startswith("checkpoint_") and (took_s or 0.0) < _DOES_NOTHING_S:
                return
            if name == "checkpoint_save_end":
                self._saved_s[rank] = self._saved_s.get(rank, 0.0) + (took_s or 0.0)
            yield Happening(_SPANS[name], time_s, around.place, took_s, number, ranks=ranks)


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line[line.index(b"{") :])
    except ValueError:
        raise unreadable_line("a JSON object is cut off or damaged") from None
    if not isinstance(row, dict) or not isinstance(row.get("time_us"), int):
        raise InvalidInputError("an event has no time_us")
    return row
