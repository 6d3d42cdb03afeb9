"""DeepSpeed's own lines, where Megatron's tell of no iterations (deepspeed/runtime/engine.py, pipe/engine.py)."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from ...failslow.readers.lines import NUMBER, number_in, rank_of
from ...failslow.readers.stamps import LineClock
from ..happenings import Happening
from .reader import HappeningReader, LineContext, Progress, passed_s, quantity_of, unreadable_line

_STEP = re.compile(rb"\[Rank 0\] step=(\d{1,15}), skipped=(\d{1,15})")
_TIMED = re.compile(rb"\bsteps: (\d{1,15}) loss: .*?iter time \(s\): " + NUMBER)
_TAG = re.compile(rb"global_step(\d{1,15})")
_WORLD = re.compile(rb"dist_world_size=(\d{1,9})")


class DeepSpeedLog(HappeningReader):
    """DeepSpeed: `[2021-05-27 19:54:20,386] [INFO] … [Rank 0] step=2, skipped=0, …`.

    The pipeline engine says in a line after it how long an iteration took (`steps: 2 loss: … iter time (s): …`); other
    engines tell steps and clocks only. `skipped` counts from the beginning of the job.
    """

    NAME: ClassVar[str] = "deepspeed"
    MARKS: ClassVar[tuple[bytes, ...]] = (
        b"[Rank 0] step=",
        b"iter time (s): ",
        b" is about to be saved!",
        b" is ready now!",
        b" Load checkpoint from ",
        b"dist_world_size=",
        b"exits successfully",
    )

    def __init__(self, clock: LineClock) -> None:
        super().__init__(clock)
        self._progress = Progress()
        self._skipped = 0
        self._held: Happening | None = None  # a step of which the next line may tell how long it took
        self._begun_s: float | None = None

    def read(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        """What a line tells."""
        if timed := _TIMED.search(line):
            step_s = quantity_of(timed[2].replace(b",", b"."), "the time of a step")  # it writes no thousands
            yield self._timed(int(timed[1]), step_s, line, around)
            return
        yield from self.finish()
        time_s = self.clock.of(line)
        if step := _STEP.search(line):
            self._hold(int(step[1]), int(step[2]), time_s, around)
        elif b"[Rank 0] step=" in line or b"iter time (s): " in line:
            raise unreadable_line("a step's line is cut off or written over")
        elif b"is about to be saved" in line or b"Begin Load" in line:
            self._begun_s = time_s
        elif b" is ready now!" in line or b"End Load" in line:
            passed = passed_s(self._begun_s, time_s)
            number, self._begun_s = number_in(_TAG, line), None
            is_load = b"End Load" in line
            if is_load:
                self._progress.restart(number)
            yield Happening("load" if is_load else "save", time_s, around.place, passed, number)
        elif (world := number_in(_WORLD, line)) is not None:
            self._progress.restart(0)
            self._skipped = 0
            yield Happening("start", time_s, around.place, gpus=world)
        elif b"exits successfully" in line:
            yield Happening("end", time_s, around.place)

    def finish(self) -> Iterable[Happening]:
        """The step of which nothing more was told."""
        held, self._held = self._held, None
        return (held,) if held else ()

    def _hold(self, number: int, skipped: int, time_s: float | None, around: LineContext) -> None:
        if number == 0:  # said when the engine is made
            self._progress.restart(0)
            self._skipped = skipped
            self._held = Happening("init", time_s, around.place)
            return
        more, self._skipped = max(0, skipped - self._skipped), skipped
        steps = self._progress.steps(number, None)
        self._held = Happening("iteration", time_s, around.place, None, number, steps=steps, skipped=min(more, steps))

    def _timed(self, number: int, took_s: float, line: bytes, around: LineContext) -> Happening:
        held, self._held = self._held, None
        if held is not None and held.iteration == number:
            return replace(held, took_s=took_s)
        rank = rank_of(line)
        return Happening(
            "iteration",
            self.clock.of(line),
            around.place,
            took_s,
            number,
            ranks=(rank,) if rank else (),
            steps=self._progress.steps(number, rank),
        )
