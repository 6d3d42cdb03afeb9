"""Logs that training programs write for people, and those of MLPerf: one line tells of one iteration.

Other lines are passed over, whatever they are. Colours are taken out, and a line may begin with the rank as torchrun
(`[rank0]:`, `[default0]:`) or srun (`0:`) put it there.
"""

import re
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

from ....schemas.errors import InvalidInputError
from .reading import SECONDS_OF, Reading, checked_time, number_of
from .rows import parsed_object

_LONGEST = 8192  # of a line, what is looked at
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_RANK = re.compile(rb"\s*(?:\[(?:rank|default)(\d{1,9})\]:|(\d{1,9}):\s)")
_NUMBER = rb"([-+]?(?:[0-9][0-9.]{0,30}(?:[eE][-+]?[0-9]{1,4})?|nan|NaN|inf))"


class Megatron:
    """Megatron-LM: `iteration 10/ 500 | elapsed time per iteration (ms): 512.3 | ... | global batch size: 64 | ...`.

    A line may stand for several iterations, of which it tells the mean. The batch size counts as the iteration's size,
    for it may grow while the job runs.
    """

    NAME: ClassVar[str] = "megatron"
    _MARK = b"elapsed time per iteration (ms)"
    _TIME = re.compile(re.escape(_MARK) + rb"\s*[:=]\s*" + _NUMBER)
    _ITERATION = re.compile(rb"iteration\s+(\d{1,15})\s*/")
    _BATCH = re.compile(rb"global batch size:\s*(\d{1,15})")

    def __init__(self) -> None:
        self.per, self.is_over = "iteration", False

    def read(self, line: bytes) -> Reading | None:
        """The time of the iterations that a line tells of."""
        if self._MARK not in line:
            return None
        line = _plain(line)
        match = self._TIME.search(line)
        if match is None:
            return None
        batch = self._BATCH.search(line)
        return Reading(_time(match[1], b"ms"), _number(self._ITERATION, line), _rank(line), _size(batch))


class NanoGpt:
    """nanoGPT and its descendants: `iter 10: loss 3.1415, time 123.45ms, mfu 30.00%`.

    The iteration after an evaluation (`step 10: train loss ..., val loss ...`) is left out: its time holds that of the
    evaluation.
    """

    NAME: ClassVar[str] = "nanogpt"
    _LINE = re.compile(rb"\biter\s+(\d{1,15})\b.*?\bloss\b.*?\btime:?\s*" + _NUMBER + rb"\s*(ms|s)\b")
    _EVALUATION = re.compile(rb"\bstep\s+(\d{1,15}): train loss ")

    def __init__(self) -> None:
        self.per, self.is_over = "iteration", False
        self._evaluated: int | None = None

    def read(self, line: bytes) -> Reading | None:
        """The time of the iteration that a line tells of."""
        if b"loss" not in line:
            return None
        line = _plain(line)
        match = self._LINE.search(line)
        if match is None:
            self._evaluated = _number(self._EVALUATION, line) if b"train loss" in line else self._evaluated
            return None
        iteration = int(match[1])
        if iteration == self._evaluated:
            return None
        return Reading(_time(match[2], match[3]), iteration, _rank(line))


class _Window(NamedTuple):
    """Where torchtitan begins to count tokens and time: after which step, and when."""

    step: int
    at: datetime | None


class TorchTitan:
    """torchtitan: `[titan] 2025-06-20 19:13:39,663 - root - INFO - step: 10  loss: ...  tps: 5,970  ...`.

    A line tells the tokens a second since the line before. How many tokens an iteration has is learned from the clock
    of the first two lines; without a clock times are those of a token. The first line of a job, which has the start-up
    in it, is left out, and evaluations (`validate step: 10`) are, as torchtitan itself does.
    """

    NAME: ClassVar[str] = "torchtitan"
    _STEP = re.compile(rb"(validate )?step:\s*(\d{1,15})\s+loss:.*?\btps:\s*([0-9][0-9,.]{0,30})")
    _CLOCK = re.compile(rb"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)[,.](\d{3})")
    _START = b"Training starts at step"

    def __init__(self) -> None:
        self.per, self.is_over = "iteration", False
        self._windows: dict[str | None, _Window] = {}
        self._tokens: float | None = None

    def read(self, line: bytes) -> Reading | None:
        """The mean time of the iterations since the line before."""
        if b"step" not in line:
            return None
        line = _plain(line)
        if self._START in line:
            self._windows.pop(_rank(line), None)
            return None
        match = self._STEP.search(line)
        if match is None:
            return None
        rank, step = _rank(line), int(match[2])
        before, here = self._windows.get(rank), _Window(step, self._clock(line))
        self._windows[rank] = here
        if match[1] or before is None or step <= before.step:
            return None
        rate = number_of(match[3].replace(b",", b""), "tps")
        if rate <= 0:
            raise InvalidInputError(f"tps is {rate:g}: nothing was computed", fix="remove the line")
        return Reading(checked_time(self._tokens_of(rate, before, here) / rate, f"tps is {rate:g}"), step, rank)

    def _clock(self, line: bytes) -> datetime | None:
        match = self._CLOCK.search(line)
        try:
            return datetime.fromisoformat(f"{match[1].decode()}.{match[2].decode()}") if match else None
        except ValueError:
            return None

    def _tokens_of(self, rate: float, before: _Window, here: _Window) -> float:
        """How many tokens an iteration has, on each of the devices among which tps divides them."""
        if self._tokens is None:
            passed_s = (here.at - before.at).total_seconds() if here.at and before.at else 0.0
            self._tokens = rate * passed_s / (here.step - before.step) if passed_s > 0 else 1.0
            self.per = "iteration" if passed_s > 0 else "token"
        return self._tokens


class MlPerf:
    """MLPerf's `:::MLLOG {...}` lines of `tracked_stats`: the time of a training step, or else the throughput.

    Which of them the first line tells is read from all: they are not of one kind.
    """

    NAME: ClassVar[str] = "mlperf"
    _MARK = b":::MLLOG"
    _TIMES = ("train_step_time", "train_step_timing in s")

    def __init__(self) -> None:
        self.per, self.is_over = "iteration", False
        self._key: str | None = None

    def read(self, line: bytes) -> Reading | None:
        """What a line of tracked_stats tells."""
        if self._MARK not in line or b"tracked_stats" not in line:
            return None
        try:
            row = parsed_object(line.partition(self._MARK)[2].strip())
        except InvalidInputError:  # ranks have written into each other's lines
            return None
        value = row.get("value")
        if row.get("key") != "tracked_stats" or not isinstance(value, dict):
            return None
        if self._key is None:
            self._key = next((key for key in (*self._TIMES, "throughput") if key in value), None)
            self.per = "sample" if self._key == "throughput" else "iteration"
        return self._reading(value) if self._key in value else None

    def _reading(self, value: dict[str, Any]) -> Reading:
        assert self._key is not None
        number = number_of(value[self._key], self._key)
        words = f"{self._key} is {number:g}"
        if self._key != "throughput":
            return Reading(checked_time(number, words))
        return Reading(checked_time(1 / number if number else 0.0, words))


class DlLogger:
    """DLLogger lines of MLPerf's graph network: `DLL 2024-... - Iteration 10 | ... | iteration_time : 12.3 ms`."""

    NAME: ClassVar[str] = "dllogger"
    _LINE = re.compile(
        rb"\bDLL\b.*?\bIteration:?\s*(\d{1,15}).*?\biteration_time\s*:\s*" + _NUMBER + rb"\s*(ms|us|s)\b"
    )

    def __init__(self) -> None:
        self.per, self.is_over = "iteration", False

    def read(self, line: bytes) -> Reading | None:
        """The time of the iteration that a line tells of."""
        if b"iteration_time" not in line:
            return None
        line = _plain(line)
        match = self._LINE.search(line)
        return Reading(_time(match[2], match[3]), int(match[1]), _rank(line)) if match else None


def _plain(line: bytes) -> bytes:
    line = line[:_LONGEST]
    return _COLOUR.sub(b"", line) if b"\x1b" in line else line


def _time(number: bytes, unit: bytes) -> float:
    words = f"{number.decode()} {unit.decode()}"
    return checked_time(number_of(number, "an iteration time") * SECONDS_OF[unit.decode()], words)


def _number(pattern: re.Pattern[bytes], line: bytes) -> int | None:
    match = pattern.search(line)
    return int(match[1]) if match else None


def _size(match: re.Match[bytes] | None) -> float | None:
    return float(match[1]) or None if match else None


def _rank(line: bytes) -> str | None:
    match = _RANK.match(line)
    return (match[1] or match[2]).decode() if match else None
