"""What a job's log says has happened: the one type between all readers of logs and the ledger."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

HappeningKind = Literal[
    "start", "rendezvous", "init", "load", "iteration", "save", "evaluation", "failure", "detected", "end", "other"
]


class LogPlace(NamedTuple):
    """A line of a log: the file's name and the line's number, the first being 1."""

    file: str
    line: int

    def __str__(self) -> str:
        """As error messages name it."""
        return f"{self.file}:{self.line}"


@dataclass(
    slots=True
)  # not frozen, as other values are: a long log has millions, and a frozen one takes four times as long
class Happening:
    """One thing that a job's log says has happened.

    Attributes:
        kind: "start": a process, or an attempt of the job, begins. "rendezvous": the group is formed. "init": model,
            optimizer or compilation are ready. "load": a checkpoint is loaded. "iteration": `steps` iterations are
            done, the last of them being `iteration`. "save": a checkpoint is saved. "evaluation": the model was
            evaluated (validated). "failure": something broke. "detected": somebody noticed (a time-out fired, a
            watchdog, an agent). "end": a clean end.
        time_s: Unix time by the line's own clock: the end of what took `took_s`. None where the line has no clock.
        where: the line.
        took_s: iteration (one, not all `steps`), save, evaluation, load, rendezvous, init: how long it took, where
            the line says so. Detected: for how long it had been so.
        iteration: the iteration that is done, or the last one that the checkpoint saved or loaded contains, or that was
            done before the evaluation; the first iteration is 1.
        gpus: world size, where said.
        ranks: who, where said: ranks, nodes or hosts, as the log writes them.
        cause: of a failure: the last line of the error, a signal, an exit code, a state of the scheduler. Of a start:
            who says so, where it is not the program itself.
        steps: how many iterations the line stands for (the log interval).
        skipped: how many of them skipped their update (overflow of fp16).
        each_s: how long each of the `steps` iterations took, where a line without a clock tells of many one by one, as
            a progress bar does; else empty. They are as good as as many happenings, which `singles` gives.
    """

    kind: HappeningKind
    time_s: float | None
    where: LogPlace
    took_s: float | None = None
    iteration: int | None = None
    gpus: int | None = None
    ranks: tuple[str, ...] = ()
    cause: str | None = None
    steps: int = 1
    skipped: int = 0
    each_s: tuple[float, ...] = ()

    def singles(self, begin: int = 0) -> Iterator["Happening"]:
        """Those of which it tells one by one; itself, if it tells of one thing only.

        Args:
            begin: so many of the first ones are left out.
        """
        if not self.each_s:
            yield self
        first = (self.iteration or 0) - len(self.each_s) + 1
        for place in range(begin, len(self.each_s)):
            yield replace(self, took_s=self.each_s[place], iteration=first + place, steps=1, each_s=())
