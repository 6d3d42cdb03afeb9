"""Jobs that never ran, of which everything is known: what happened when, and where each second went.

A job has failures, hangs, checkpoints, roll-backs, slow phases, and clocks that are put back and forward. What it tells
is written as happenings (`happenings_of`) or as logs of a framework (`made_logs.py`).
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from rtk.profilers.ledger.happenings import Happening, LogPlace
from rtk.schemas.ledger import LedgerClass

FaultKind = Literal["error", "hang", "killed", "silent", "preempted"]
FAULTS: tuple[FaultKind, ...] = ("error", "hang", "killed", "silent", "preempted")
BEGIN_S = 1_714_550_400.0  # 1 May 2024
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class MadeLine:
    """Something that the job tells of itself.

    Attributes:
        kind: as of a happening; a `failure` has its kind in `fault`.
        time_s: Unix time by the clock of the job, which may have been put back or forward.
        iteration, took_s, steps: as of a happening; of an `init`, after which iteration training goes on.
        paused_s: of an iteration: what checkpoints took since the line before, or the evaluation after it.
    """

    kind: Literal[
        "start", "rendezvous", "init", "load", "iteration", "save", "evaluation", "failure", "detected", "end"
    ]
    time_s: float
    iteration: int = 0
    took_s: float = 0.0
    steps: int = 1
    fault: FaultKind | None = None
    paused_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MadeShape:
    """What a made job is like.

    Attributes:
        seed: of all chance.
        faults: how many failures it has; None: one to ten.
        gpus, base_s, interval, save_every: world size, time of an iteration, iterations a line and a checkpoint.
        slow: share of the iterations that lie in slow phases, about.
        clock: how far the clock jumps in the midst of an attempt, in s; 0: never.
        ranks: that all print.
        evaluate_every: iterations an evaluation, a multiple of `interval`; 0: there is none.
        saves_first: where a checkpoint and an evaluation are due at once, the checkpoint comes first, as in torchtitan.
    """

    seed: int
    faults: int | None = None
    gpus: int = 64
    base_s: float = 4.0
    interval: int = 1
    save_every: int = 50
    slow: float = 0.03
    clock: float = 0.0
    ranks: int = 1
    evaluate_every: int = 0
    saves_first: bool = False

    @classmethod
    def of(cls, seed: int, faults: int | None = None) -> "MadeShape":
        """One of many: all drawn from the seed."""
        chance = Random(seed)
        return cls(
            seed,
            faults,
            gpus=chance.choice((8, 64, 512)),
            base_s=round(chance.uniform(1.0, 15.0), 3),
            interval=chance.choice((1, 1, 5, 10)),
            save_every=10 * chance.randint(3, 20),
            slow=chance.choice((0.0, 0.02, 0.05)),
            clock=chance.choice((0.0, 0.0, -HOUR_S, HOUR_S, -150.0)),
            ranks=chance.choice((1, 1, 4)),
            evaluate_every=Random(f"evaluations of {seed}").choice((0, 40, 100, 250)),
        )


@dataclass
class MadeJob:
    """A job and the truth about it.

    Attributes:
        shape: that was asked for.
        told: what it tells, in order.
        truth_s: seconds of the job by class.
        failures_s: of each failure, when it began and when the next attempt did, in seconds of the job.
        iterations: that it has in the end.
    """

    shape: MadeShape
    told: list[MadeLine] = field(default_factory=list)
    truth_s: dict[LedgerClass, float] = field(default_factory=lambda: defaultdict(float))
    failures_s: list[tuple[float, float]] = field(default_factory=list)
    iterations: int = 0

    @property
    def goodput(self) -> float:
        """Useful time over all time."""
        return self.truth_s["useful"] / sum(self.truth_s.values())


class _Maker:
    """Lives through a job."""

    def __init__(self, shape: MadeShape) -> None:
        self.job, self.chance = MadeJob(shape), Random(shape.seed)
        self.chance_of_evaluations = Random(f"times of evaluations of {shape.seed}")
        self.saved = 0
        self.time_s = BEGIN_S
        self.offset_s = 0.0
        self.done: dict[int, dict[LedgerClass, float]] = {}  # what the doing that counts has taken, by iteration
        self.is_slow = 1.0

    def spend(self, name: LedgerClass, took_s: float) -> None:
        """Time goes on."""
        self.time_s += took_s
        self.job.truth_s[name] += took_s

    def tell(self, kind: str, **what: object) -> None:
        """The job says so."""
        self.job.told.append(MadeLine(kind, self.time_s + self.offset_s, **what))  # type: ignore[arg-type]

    def start(self, resumes: int, is_first: bool) -> None:
        """An attempt comes up, from a checkpoint if there is one."""
        self.tell("start")
        self.spend("restart", self.chance.uniform(10, 120))
        self.tell("rendezvous")
        took_s = self.chance.uniform(5, 40)
        self.spend("load", took_s)
        self.tell("init", took_s=took_s, iteration=0 if is_first else resumes)
        if not is_first and resumes:
            took_s = self.chance.uniform(10, 90)
            self.spend("load", took_s)
            self.tell("load", iteration=resumes, took_s=took_s)

    def iterate(self, number: int, is_first: bool) -> float:
        """An iteration; how long it took."""
        if self.is_slow == 1.0 and self.chance.random() < self.job.shape.slow / 20:
            self.is_slow = self.chance.uniform(1.3, 3.0)
        elif self.is_slow > 1.0 and self.chance.random() < 1 / 20:
            self.is_slow = 1.0
        healthy_s = self.job.shape.base_s * self.chance.gauss(1.0, 0.01)
        beyond_s = healthy_s * (self.is_slow - 1)
        starting_s = self.chance.uniform(5, 40) if is_first else 0.0
        self.spend("load", starting_s)
        self.time_s += healthy_s + beyond_s
        self.done[number] = {"useful": healthy_s, "slow": beyond_s}
        return healthy_s + beyond_s + starting_s

    def pause(self, number: int) -> float:
        """A checkpoint and an evaluation, where they are due; how long the clock of a trainer of iterations runs on."""
        shape, paused_s = self.job.shape, 0.0
        for kind in ("save", "evaluation") if shape.saves_first else ("evaluation", "save"):
            if kind == "evaluation" and shape.evaluate_every and number % shape.evaluate_every == 0:
                took_s = self.chance_of_evaluations.uniform(4, 60)
                self.time_s += took_s
                self.done[number]["useful"] += took_s
                self.tell("evaluation", iteration=number, took_s=took_s)
                paused_s = 0.0
            elif kind == "save" and number % shape.save_every == 0:
                took_s = self.chance.uniform(3, 40)
                self.spend("checkpoint", took_s)
                self.tell("save", iteration=number, took_s=took_s)
                self.saved, paused_s = number, took_s
        return paused_s

    def fail(self, number: int, fault: FaultKind) -> None:
        """An iteration that does not end; then everything after the failure, up to the next start."""
        begun_s = self.time_s - BEGIN_S
        self.spend("detection", self.chance.uniform(0.05, 0.9) * self.job.shape.base_s)
        if fault == "hang":
            self.spend("detection", self.chance.choice((600.0, 1800.0)))
            self.tell("detected", fault=fault)
        elif fault != "silent":
            self.spend("detection", self.chance.uniform(0.5, 5.0))
            self.tell("failure", fault=fault)
        if fault == "silent":
            self.spend("idle", self.chance.uniform(60, 2400))
        else:
            self.spend("idle", self.chance.expovariate(1 / 900.0) + 20.0)
        self.job.failures_s.append((begun_s, self.time_s - BEGIN_S))

    def lose(self, after: int) -> None:
        """Everything after an iteration was done in vain."""
        for number in [one for one in self.done if one > after]:
            self.job.truth_s["redone"] += sum(self.done.pop(number).values())


def make_job(shape: MadeShape) -> MadeJob:
    """A job of that shape; equal shapes give equal jobs."""
    maker = _Maker(shape)
    chance, job = maker.chance, maker.job
    faults = chance.randint(1, 10) if shape.faults is None else shape.faults
    jumps_in = chance.randint(0, faults) if shape.clock else -1
    for attempt in range(faults + 1):
        maker.start(maker.saved, attempt == 0)
        lasts = chance.randint(shape.save_every // 3, 8 * shape.save_every) + shape.interval + 2
        first, line_s, paused_s, lines = maker.saved + 1, 0.0, 0.0, 0
        for number in range(first, first + lasts):
            line_s += maker.iterate(number, number == first)
            lines += 1
            if attempt == jumps_in and number == first + lasts // 2:
                maker.offset_s += shape.clock
            if number % shape.interval == 0:
                maker.tell("iteration", iteration=number, took_s=line_s / lines, steps=lines, paused_s=paused_s)
                line_s, paused_s, lines = 0.0, 0.0, 0
            paused_s += maker.pause(number)
        if attempt < faults:
            maker.fail(first + lasts, chance.choice(FAULTS))
            maker.lose(maker.saved)
    if lines:
        maker.tell("iteration", iteration=number, took_s=line_s / lines, steps=lines, paused_s=paused_s)
    maker.tell("end")
    job.iterations = len(maker.done)
    for took_s in maker.done.values():
        for name, spent_s in took_s.items():
            job.truth_s[name] += spent_s
    return job


def happenings_of(job: MadeJob, has_timers: bool = True) -> Iterator[Happening]:
    """What the perfect reader would make of the job's log.

    Args:
        job: that tells.
        has_timers: iterations say how long they took.
    """
    for line, told in enumerate(job.told, start=1):
        fault = told.fault if told.kind in ("failure", "detected") else None
        took_s = told.took_s or None
        if told.kind == "iteration" and not has_timers:
            took_s = None
        for rank in range(job.shape.ranks if told.kind == "iteration" else 1):
            yield Happening(
                told.kind,
                told.time_s + 1e-3 * rank,
                LogPlace("made.log", line),
                took_s,
                told.iteration if told.kind in ("iteration", "save", "evaluation", "load") else None,
                job.shape.gpus if told.kind == "rendezvous" else None,
                (str(rank),) if job.shape.ranks > 1 else (),
                fault,
                told.steps,
            )
