"""NeMo and Lightning: progress lines and bars, checkpoints, and what their loggers say.

Sources: nemo/lightning/pytorch/callbacks/progress_printer.py (NeMo 2), Lightning's progress bars as NeMo 1 fills them,
lightning/pytorch/trainer, megatron/core/dist_checkpointing (`Global Checkpoint Save …`).
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from ...failslow.readers.lines import LONGEST_BYTES, NUMBER, number_in, rank_of
from ...failslow.readers.stamps import LineClock
from ..happenings import Happening
from .reader import MOST_QUANTITY, HappeningReader, LineContext, Progress, quantity_of, text_of, unreadable_line

_STEP = re.compile(rb"global_step[:=]\s?" + NUMBER)
_TIMING = re.compile(rb"train_step_timing in s[:=]\s?" + NUMBER)
_DRAWN = re.compile(rb"\| (\d{1,15})/\d+ \[")
# Not of the check before training: `Sanity checking Validation: iteration 1/2`, `Sanity Checking DataLoader 0: …`.
_VALIDATION = re.compile(
    rb"(?<!checking )Validation(?:: iteration \d| DataLoader (\d{1,9}):.*?\[(?:(\d{1,4}):)?(\d{1,2}):(\d\d)<)"
)
_BAR = re.compile(rb"\d/\d+ \[[^\]]*?,\s*" + NUMBER + rb"(s/it|it/s)")
# A bar of training as NeMo draws it, up to the next one. What matches says neither a time of the day (there is no colon
# but those of the bar), nor a rank, nor anything about a validation; its first step and timing are those that it finds.
_WORDS = rb"[^,:=V\r\x1b]*+"
_FIELDS = rb"(?:, " + _WORDS + rb"(?<!global_step)(?<!train_step_timing in s)=" + _WORDS + rb")*+"
_STEP_OF_BAR = re.compile(
    rb"Epoch \d{1,9}: {1,3}\d{1,3}%\|[^|:=V\r\x1b]*+\| \d{1,15}/\d{1,15} \[[\d:?]++<[\d:?]++, {0,3}[\d.]++(?:s/it|it/s)"
    + (_FIELDS + rb", global_step=(\d{1,15})(?:\.0*+)?")
    + (_FIELDS + rb", train_step_timing in s=(\d{1,9}(?:\.\d{1,15})?)(?:, |\])[^:V\r\x1b]*+(?:\r++|\Z)")
)
_SAVED = re.compile(rb"Global Checkpoint Save\s*:.*?Iteration\s*:\s*(\d{1,15}).*?Save duration\s*:\s*" + NUMBER)
_LOADED = re.compile(rb"Global Checkpoint Load\s*:.*?Time spent in load_checkpoint\s*:\s*" + NUMBER)
_MEMBER = re.compile(rb"GLOBAL_RANK: (\d{1,9}), MEMBER: \d{1,9}/(\d{1,9})")
_REGISTERED = re.compile(rb"All distributed processes registered. Starting with (\d{1,9}) processes")
_RESTORED = re.compile(rb"Restored all states from the checkpoint at .*?(?:step[=_-]?(\d{1,15})\b|$)")


class NemoLog(HappeningReader):
    """NeMo: `Training epoch 0, iteration 9/99 | lr: … | global_step: 9 | … | train_step_timing in s: 1.2`, or a bar.

    `global_step` counts from 0, so that step 9 is iteration 10. A bar is printed over and over: only what is new in it
    counts. Neither has a clock. What lines and bars of a validation tell is told after the last of them; only bars say
    how long it took, in whole seconds.
    """

    NAME: ClassVar[str] = "nemo"
    MARKS: ClassVar[tuple[bytes, ...]] = (
        b"global_step",
        b"Global Checkpoint ",
        b"GLOBAL_RANK: ",
        b"All distributed processes registered",
        b"Restored all states from",
        b"`Trainer.fit` stopped",
        b"Validation",
    )

    def __init__(self, clock: LineClock) -> None:
        super().__init__(clock)
        self._progress = Progress()
        self._told: int | None = None
        self._validation: Happening | None = None
        self._loader: bytes | None = None  # of what is validated

    def read(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        """What a line tells."""
        if validation := _VALIDATION.search(line):
            yield from self._validated(validation, line, around)
            return
        if b"Validation" in line:
            return
        yield from self.finish()
        if b"global_step" in line:
            yield from self._iteration(line, around)
            return
        time_s = self.clock.of(line)
        if saved := _SAVED.search(line):
            yield Happening(
                "save", time_s, around.place, quantity_of(saved[2], "the time of a checkpoint"), int(saved[1])
            )
        elif loaded := _LOADED.search(line):
            yield Happening("load", time_s, around.place, quantity_of(loaded[1], "the time of a checkpoint"))
        elif member := _MEMBER.search(line):
            self._told = None
            self._progress.restart(0)
            yield Happening("start", time_s, around.place, gpus=int(member[2]), ranks=(text_of(member[1]),))
        elif (world := number_in(_REGISTERED, line)) is not None:
            yield Happening("rendezvous", time_s, around.place, gpus=world)
        elif restored := _RESTORED.search(line):
            number = int(restored[1]) if restored[1] else None
            self._told = None
            self._progress.restart(number)
            yield Happening("load", time_s, around.place, iteration=number)
        elif b"`Trainer.fit` stopped" in line:
            yield Happening("end", time_s, around.place)

    def read_run(self, line: bytes, at: int, around: LineContext) -> tuple[Happening | None, int]:
        """Steps of a bar."""
        told, times = self._told, list[float]()
        if told is None or self._validation is not None or not self._progress.is_at(told):
            return None, at
        while (match := _STEP_OF_BAR.match(line, at)) is not None:
            step, timing = match.groups()
            number, took_s, stop = int(step) + 1, float(timing), match.end()
            if number != told:  # else it is drawn again
                if number != told + 1 or not took_s or stop - at > LONGEST_BYTES:
                    break
                told = number
                times.append(took_s)
            at = stop
        if not times:
            return None, at
        self._told = told
        self._progress.follow(told)
        run = Happening("iteration", None, around.place, None, told, steps=len(times), each_s=tuple(times))
        return (run if len(times) > 1 else next(run.singles())), at

    def finish(self) -> Iterator[Happening]:
        """The validation of which nothing more was told."""
        held, self._validation = self._validation, None
        if held is not None:
            yield held

    def _validated(self, found: re.Match[bytes], line: bytes, around: LineContext) -> Iterator[Happening]:
        if found[1] != self._loader:
            yield from self.finish()
        self._loader = found[1]
        took_s = 3600.0 * int(found[2] or 0) + 60 * int(found[3]) + int(found[4]) if found[3] else None
        self._validation = Happening("evaluation", self.clock.of(line), around.place, took_s, self._told)

    def _iteration(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        if b"raining" not in line and b"Epoch" not in line:
            return
        step = _STEP.search(line)
        if step is None:
            raise unreadable_line("a progress line lacks its step")
        number = int(quantity_of(step[1], "the number of a step")) + 1
        if b"e" in step[1] and (drawn := number_in(_DRAWN, line)) is not None:  # 3.2e+4, of which the rest is lost
            number = drawn
        if number == self._told:
            return
        self._told, rank = number, rank_of(line)
        yield Happening(
            "iteration",
            self.clock.of(line),
            around.place,
            self._took_s(line),
            number,
            ranks=(rank,) if rank else (),
            steps=self._progress.steps(number, rank),
        )

    def _took_s(self, line: bytes) -> float | None:
        if timing := _TIMING.search(line):
            return quantity_of(timing[1], "the time of a step") or None
        if bar := _BAR.search(line):
            rate = quantity_of(bar[1], "the pace of a bar")
            took_s = rate if bar[2] == b"s/it" or not rate else 1 / rate
            return took_s if 0 < took_s < MOST_QUANTITY else None
        return None
