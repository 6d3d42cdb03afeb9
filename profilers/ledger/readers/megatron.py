"""Megatron-LM and Megatron-DeepSpeed: what megatron/training/training.py and checkpointing.py print.

Lines of 2021, without any clock but at the beginning and the end, are read as those of 2025, which have one each.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from ...failslow.readers.formats import Megatron, iteration_time
from ...failslow.readers.lines import number_in, rank_of
from ...failslow.readers.stamps import LineClock
from ..happenings import Happening, HappeningKind
from .reader import HappeningReader, LineContext, Progress, passed_s, quantity_of, text_of, unreadable_line

_SKIPS = b"number of skipped iterations:"
_SKIPPED = re.compile(_SKIPS + rb"\s*(\d{1,9})")
_WORLD = re.compile(rb"using world size:\s*(\d{1,9})")
_INTERVAL = re.compile(rb"log_interval\s+\.+\s*(\d{1,9})")
_CHECKPOINT = re.compile(rb"checkpoint\b.*?\biteration\s+(\d{1,15})")
_TIMER = re.compile(rb"(?:load|save)-checkpoint[ .]*:\s*(?:\([\d.]+,\s*(\d+\.?\d*)\)|(\d+\.?\d*))")
_EVALUATED = re.compile(rb"\b(?:validation|test) loss at (?:iteration (\d{1,15})|the end of training)\b")
_EVALUATION_TIMER = re.compile(rb"\bevaluate [ .]*:\s*(?:\([\d.]+,\s*(\d+\.?\d*)\)|(\d+\.?\d*))")
_DATED = re.compile(rb"\[([^][]{1,80})\] datetime:")
_INITIALIZED = re.compile(rb"time to initialize megatron \(seconds\):\s*(\d+\.?\d*)")
_EXITING = re.compile(rb"exiting program (.{0,80})")
_STEP = re.compile(rb"(?:\[Rank 0\] step|/global_step)=(\d{1,15}),")  # DeepSpeed's


_KINDS: dict[str, HappeningKind] = {
    "after megatron is initialized": "rendezvous",
    "after model, optimizer, and learning rate scheduler are built": "init",
    "after training is done": "end",
}


class MegatronLog(HappeningReader):
    """Megatron-LM: arguments, iterations, checkpoints, `[after …] datetime:` lines, timers, its ways to end.

    * An iteration's line tells the mean over the log interval. Where it has no clock and DeepSpeed's line of the same
      step has one, that is its time.
    * A checkpoint's time is what its timer says (`save-checkpoint`, the slowest rank's), or else what lies between the
      clocks of the lines before and after it. A save that goes on in the background counts when it is scheduled.
    * An evaluation tells its timer (`evaluate`) before the loss, of each set of data (megatron/training/training.py,
      `evaluate_and_print_results`); since 2024 the iterations' timer stands still meanwhile.
    """

    NAME: ClassVar[str] = "megatron"
    MARKS: ClassVar[tuple[bytes, ...]] = (
        Megatron.MARK,
        b"using world size:",
        b"] datetime: ",
        b"checkpoint",
        b" loss at ",
        b"evaluate .",
        b"log_interval ",
        b"time to initialize megatron",
        b"exiting program ",
        b"[Rank 0] step=",
        b"/global_step=",
    )

    def __init__(self, clock: LineClock) -> None:
        super().__init__(clock)
        self._progress = Progress()
        self._begun_s: float | None = None  # when the checkpoint that is being read or written was begun
        self._held: Happening | None = None  # a checkpoint of which a timer may still tell
        self._evaluated_s: float | None = None  # by the timer of the evaluation whose losses follow
        self._evaluated: int | None = None  # after which iteration they were told
        self._stepped: tuple[int, float | None] = (-1, None)  # DeepSpeed's last step, and when

    def read(self, line: bytes, around: LineContext) -> Iterable[Happening]:
        """What a line tells."""
        if Megatron.MARK in line:
            iteration = self._iteration(line, around)
            return (*self.finish(), iteration) if self._held is not None else (iteration,)
        if timer := _TIMER.search(line):
            took_s = quantity_of(timer[1] or timer[2], "a timer") / 1e3
            return [replace(held, took_s=took_s) for held in self.finish()]
        told = list(self.finish())
        if timer := _EVALUATION_TIMER.search(line):
            self._evaluated_s = quantity_of(timer[1] or timer[2], "a timer") / 1e3
        elif b" loss at " in line:
            told += self._evaluation(line, around)
        elif step := _STEP.search(line):
            self._stepped = int(step[1]), self.clock.of(line)
        elif b"checkpoint" in line and (number := number_in(_CHECKPOINT, line)) is not None:
            self._checkpoint(number, line, around)
        else:
            told += self._course(line, around)
        return told

    def finish(self) -> Iterable[Happening]:
        """The checkpoint of which nothing more was told."""
        held, self._held = self._held, None
        return (held,) if held else ()

    def _iteration(self, line: bytes, around: LineContext) -> Happening:
        took, number = Megatron.TIME.search(line), number_in(Megatron.ITERATION, line)
        took_s = None if took is None else iteration_time(took[1], b"ms")
        if took_s is None or number is None:
            raise unreadable_line("an iteration's line lacks its number or its time")
        time_s = self.clock.of(line)
        if time_s is None and self._stepped[0] == number:
            time_s = self._stepped[1]
        rank, skipped = rank_of(line), _SKIPPED.search(line, max(line.find(_SKIPS), 0))
        ranks, steps = (rank,) if rank else (), self._progress.steps(number, rank)
        skips = int(skipped[1]) if skipped else 0
        return Happening("iteration", time_s, around.place, took_s, number, None, ranks, None, steps, skips)

    def _evaluation(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        evaluated = _EVALUATED.search(line)
        if evaluated is None:
            return
        number = int(evaluated[1]) if evaluated[1] else None
        took_s, self._evaluated_s = self._evaluated_s, None
        if took_s is None and number is not None and number == self._evaluated:
            return  # another line of the same
        self._evaluated, rank = number, rank_of(line)
        ranks = (rank,) if rank else ()
        yield Happening("evaluation", self.clock.of(line), around.place, took_s, number, ranks=ranks)

    def _checkpoint(self, number: int, line: bytes, around: LineContext) -> None:
        time_s = self.clock.of(line)
        if b"successfully" not in line and b"async checkpoint save" not in line:  # it begins
            self._begun_s = time_s
            return
        took_s, self._begun_s = passed_s(self._begun_s, time_s), None
        rank = rank_of(line)
        made = Happening("save", time_s, around.place, took_s, number, ranks=(rank,) if rank else ())
        if b"loaded" in line:
            self._progress.restart(number)
            made = replace(made, kind="load")
        self._held = made

    def _course(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        """What tells of the job as a whole."""
        if dated := _DATED.search(line):
            kind = _KINDS.get(text_of(dated[1]))
            if kind is not None:
                yield Happening(kind, self.clock.of(line, anywhere=True), around.place)
                return
        if (world := number_in(_WORLD, line)) is not None:
            self._progress.restart(0)
            yield Happening("start", self.clock.of(line), around.place, gpus=world)
        elif (interval := number_in(_INTERVAL, line)) is not None:
            self._progress.interval = interval
        elif initialized := _INITIALIZED.search(line):
            yield Happening(
                "init", self.clock.of(line), around.place, quantity_of(initialized[1], "the time to initialize")
            )
        elif ending := _EXITING.search(line):
            yield Happening("end", self.clock.of(line, anywhere=True), around.place, cause=text_of(ending[1]))
