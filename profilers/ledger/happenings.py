"""What a job's log says has happened: the one type between all readers of logs and the ledger."""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
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
        cause: of a failure: the last line of the error, a signal, an exit code, a state of the scheduler.
        steps: how many iterations the line stands for (the log interval).
        skipped: how many of them skipped their update (overflow of fp16).
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
