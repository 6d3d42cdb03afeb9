"""What rtk does, shown on this machine in about a minute: `rtk quickstart`.

It stands at the root because every wing has its part in it. Each step is a command, which is said with it: whoever
types it in the same folder gets the same.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .runners.processes import available_cores
from .runners.training import JobConfig, TrainingConfig
from .running import run
from .schemas.errors import InvalidInputError, installing, remark
from .schemas.pace import FAR
from .schemas.quantities import print_percent, print_time
from .schemas.timeline import IterationTime, iteration_time_s
from .schemas.trace import Trace, TraceEvent
from .wiring import drawing_of_files, inject, profile_measured, write

if TYPE_CHECKING:
    from .runners.resilience.announcements import Announcement
    from .schemas.plan import Plan
    from .schemas.profile import Profile

MODEL, PP, DP, MICROBATCHES = "gpt-tiny", 2, 2, 4
# The job that is simulated: a model and GPUs as people have them.
LARGE_MODEL, GPU, LARGE_SHAPE = "llama3-8b", "h100-sxm", (4, 4, 8)
ITERATIONS, FAILS_IN, JOINS_IN, VICTIM = 9, 3, 6, "1/1"
FAULTS = Trace(
    (
        TraceEvent("fail", iteration=FAILS_IN, worker=VICTIM),
        TraceEvent("join", iteration=JOINS_IN, worker=VICTIM),
    )
)
REPEATS = 10  # of the measurements
# Workers that share a core take turns; this much longer than their share, so that each can keep the plan's pace.
MARGIN = 1.5
Progress = Callable[[int, int], None]  # hears how much is done, and of how much
Showing = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True)
class QuickstartTimes:
    """What iterations took with so many live workers, in the median, and what the plan predicted."""

    live_workers: int
    predicted_s: float
    measured_s: float

    @property
    def beyond(self) -> float:
        """By how much longer they took: 0.1 is 10 %; to a thousandth."""
        return round(self.measured_s / self.predicted_s - 1, 3) + 0.0  # no -0


@dataclass(frozen=True)
class QuickstartIteration:
    """One iteration of the run in which a worker was killed, and its loss in the run in which nothing happened.

    A simulated one has no loss.
    """

    iteration: int
    live_workers: int
    time_s: float
    loss: float | None = None
    undisturbed_loss: float | None = None


@dataclass(frozen=True)
class QuickstartResult:
    """What came of it.

    Attributes:
        iterations: those that were committed, in order.
        paces: predicted and measured times, by how many workers were there; all of them first.
        recovered_s: from the failure's detection to the end of the iteration that was done again.
        undisturbed_s, total_s: what all iterations take where nothing happens, and took; only where simulated.
        simulated: on a virtual clock; nothing was trained.
        paced: operations were stretched to the plan's durations.
        load: other programs that wanted a core when it began (the load average).
        commands: of all steps.
        files: that were written.
    """

    iterations: tuple[QuickstartIteration, ...]
    paces: tuple[QuickstartTimes, ...]
    recovered_s: float
    undisturbed_s: float | None = None
    total_s: float | None = None
    simulated: bool = False
    paced: bool = False
    load: float = 0.0
    commands: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def predicted_s(self) -> float:
        """An iteration's time with all workers, by the plan."""
        return self.paces[0].predicted_s

    @property
    def measured_s(self) -> float:
        """The median time of iterations with all workers."""
        return self.paces[0].measured_s

    @property
    def largest_difference(self) -> float | None:
        """Of two losses of one iteration; None where nothing was trained."""
        pairs = [(one.loss, one.undisturbed_loss) for one in self.iterations]
        found = [abs(loss - other) for loss, other in pairs if loss is not None and other is not None]
        return max(found, default=None)

    @property
    def conclusion(self) -> str:
        """All of it in one sentence."""
        workers = self.paces[0].live_workers
        came = (
            f"Of {workers} workers {VICTIM} was killed in iteration {FAILS_IN}: its peers took over its micro-batches, "
            f"the iteration was done {print_time(self.recovered_s)} after that, a replacement joined in iteration "
            f"{JOINS_IN}, and "
        )
        count, largest = len(self.iterations), self.largest_difference
        if self.total_s is not None and self.undisturbed_s is not None:
            longer = f"{print_percent(self.total_s / self.undisturbed_s - 1)} longer than without the failure"
            return f"{came}{count} iterations took {print_time(self.total_s)}, {longer}."
        apart = f" to within {largest:.0e}" if largest else ""
        return f"{came}all {count} losses equal those of an undisturbed run{apart}."

    @property
    def busy(self) -> str:
        """Why measured times are far beyond the predicted ones; empty where they are not."""
        if all(one.beyond <= FAR for one in self.paces):
            return ""
        if self.load >= 0.5:
            return (
                f"The machine was busy: other programs had a load of {self.load:.1f} on {available_cores()} cores when "
                "this began. Times say little; losses do not depend on them."
            )
        return (
            "The machine was quiet when this began. Other programs since then, or cores that became slower under load, "
            "made operations take longer than they did when the model was measured."
        )


@contextmanager
def _unshown(what: str) -> Iterator[Progress]:
    yield lambda done, of: None


def quickstart(
    folder: str = "rtk-quickstart", seed: int = 0, showing: Showing = _unshown, *, simulated: bool = False
) -> QuickstartResult:
    """Profile a model, plan its training, train it, kill a worker on the way and take a replacement in, and draw it.

    A tiny GPT is trained on 4 processes of this machine, with the failure and without, and the losses are compared.

    Args:
        folder: for all files; git ignores it.
        seed: of all randomness.
        showing: shows how far something is that it is told.
        simulated: on a virtual clock, without torch: an 8-billion-parameter Llama on 16 H100 GPUs.

    Raises:
        InvalidInputError: the folder cannot be made, or torch is not installed.
        RuntimeFailedError: training could not go on.
    """
    if not simulated and find_spec("torch") is None:
        raise InvalidInputError(
            "torch is not installed", fix=f"{installing('torch')}\nor see it simulated: rtk quickstart --simulate"
        )
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    (place / ".gitignore").write_text("*\n")
    write(place / "faults.jsonl", FAULTS)
    return _simulated(place) if simulated else _trained(place, seed, showing)


@dataclass
class _Steps:
    """The commands so far; each is said before its work is done."""

    place: Path
    count: int
    commands: list[str] = field(default_factory=list)
    done: int = 0

    def begin(self, what: str, *commands: Sequence[str]) -> None:
        """Say what comes next, and how to do it by hand."""
        if not self.done:
            remark(f"All files are in {self.place}; each step can be repeated there by its command.")
        self.done += 1
        lines = [shlex.join(("rtk", *command)) for command in commands]
        remark("\n".join((f"[{self.done}/{self.count}] {what}", *(f"      $ {line}" for line in lines))))
        self.commands += lines

    def result(
        self, happened: "Sequence[Announcement]", undisturbed: "Sequence[Announcement]" = ()
    ) -> QuickstartResult:
        """What came of it, as far as two runs tell; all steps are done."""
        files = tuple(str(one) for one in sorted(self.place.iterdir()) if not one.name.startswith("."))
        commands = tuple(self.commands)
        return QuickstartResult(
            _iterations(happened, undisturbed), _paces(happened), _recovered_s(happened), commands=commands, files=files
        )


def _trained(place: Path, seed: int, showing: Showing) -> QuickstartResult:
    steps, seeded, load = _Steps(place, 5), ("--seed", str(seed)) if seed else (), os.getloadavg()[0]
    steps.begin(
        f"measure {MODEL}, layer by layer",
        ("profile", MODEL, "--repeats", str(REPEATS), *seeded, "-o", "profile.json"),
    )
    with showing(f"measuring {MODEL}") as tell:
        profile = profile_measured(MODEL, repeats=REPEATS, seed=seed, tell=tell)
    cores, workers = available_cores(), PP * DP
    factor = 1.0 if cores >= workers else MARGIN * workers / cores
    plan = _plan(steps, profile, (PP, DP, MICROBATCHES), factor)
    is_paced = factor > 1
    if is_paced:
        remark(f"      {workers} workers share {cores} cores: all operations are planned {factor:g} times as long")

    training = ("run", "plan.json", "--model", MODEL, "--iterations", str(ITERATIONS), *seeded)
    steps.begin(
        f"train on {workers} processes; {VICTIM} is killed in iteration {FAILS_IN}, and replaced in {JOINS_IN}",
        (*training, *(["--paced"] if is_paced else []), "--inject", "faults.jsonl", "--timeline", "run.json"),
    )
    job = JobConfig(ITERATIONS, inject=str(place / "faults.jsonl"), timeline=str(place / "run.json"))
    happened = run(plan, TrainingConfig(MODEL, paced=is_paced, seed=seed), job, _tell)
    steps.begin("train the same again, undisturbed and at full speed, to compare the losses", training)
    with showing("training undisturbed") as tell:
        alone = TrainingConfig(MODEL, seed=seed)
        undisturbed = run(plan, alone, JobConfig(ITERATIONS), lambda what: _count(what, tell))
    _draw(steps, is_measured=True)
    told = steps.result(happened, undisturbed)
    return replace(told, paced=is_paced, load=load)


def _simulated(place: Path) -> QuickstartResult:
    from .profilers.analytic.estimate import profile_analytic
    from .runners.virtual.job import SwitchCosts

    steps = _Steps(place, 4)
    steps.begin(
        f"compute what {LARGE_MODEL} costs on a GPU that need not be here",
        ("profile", LARGE_MODEL, "--analytic", "--gpu", GPU, "--checkpointing", "-o", "profile.json"),
    )
    plan = _plan(steps, profile_analytic(LARGE_MODEL, gpu=GPU, checkpointing=True), LARGE_SHAPE)
    simulating = ("simulate", "plan.json", "--iterations", str(ITERATIONS), "--inject", "faults.jsonl")
    steps.begin(
        f"simulate the job; worker {VICTIM} is killed in iteration {FAILS_IN}, and replaced in {JOINS_IN}",
        (*simulating, "--timeline", "run.json"),
    )
    story = inject(plan, FAULTS, iterations=ITERATIONS, costs=SwitchCosts(heartbeat_limit_s=2.0, regroup_s=0.05))
    happened = [what for _, what in story.announced]
    for what in happened:
        _tell(what)
    write(place / "run.json", story.timeline)
    _draw(steps, is_measured=False)
    told = steps.result(happened)
    return replace(told, simulated=True, undisturbed_s=told.predicted_s * ITERATIONS, total_s=story.total_s)


def _plan(steps: "_Steps", profile: "Profile", shape: tuple[int, int, int], factor: float = 1.0) -> "Plan":
    """Write the profile and a plan for so many stages, pipelines and micro-batches; all workers `factor` as slow."""
    from .planners.plain.verbs import plan_joint

    pp, dp, microbatches = shape
    slow = {} if factor == 1 else {f"{k}/{i}": factor for k in range(dp) for i in range(pp)}
    sizes = ("--pp", str(pp), "--dp", str(dp), "--microbatches", str(microbatches), "--technique", "decoupled")
    slowed = [word for name in slow for word in ("--slow", f"{name}={factor!r}".removesuffix(".0"))]
    steps.begin(
        f"plan {dp} pipelines of {pp} stages, on {pp * dp} workers",
        ("plan", "joint", "profile.json", *sizes, *slowed, "-o", "plan.json"),
    )
    write(steps.place / "profile.json", profile)
    plan = plan_joint(profile, pp=pp, dp=dp, microbatches=microbatches, technique="decoupled", slow=slow)
    write(steps.place / "plan.json", plan)
    return plan


def _draw(steps: _Steps, is_measured: bool) -> None:
    """The run; and, where measured, its last iteration before the failure, below the same one as planned."""
    pictures: list[tuple[str, list[str], int | None]] = [(name, ["run.json"], None) for name in ("run.svg", "run.html")]
    if is_measured:
        pictures.append(("compare.html", ["plan.json", "run.json"], FAILS_IN - 1))
    chosen = [() if iteration is None else ("--iterations", str(iteration)) for _, _, iteration in pictures]
    commands = (("viz", *files, *only, "-o", name) for (name, files, _), only in zip(pictures, chosen, strict=True))
    steps.begin("draw it", *commands)
    for name, files, iteration in pictures:
        _picture(steps.place, name, files, iteration)


def _picture(place: Path, name: str, files: Sequence[str], iteration: int | None) -> None:
    """As `rtk viz` draws it."""
    from .schemas.columns import Selection
    from .schemas.files import written
    from .viz.drawing import drawn

    part = None if iteration is None else Selection(iterations=(iteration, iteration))
    drawing = drawing_of_files([str(place / file) for file in files], [Path(file).stem for file in files], part)
    with written(str(place / name)) as stream:
        stream.writelines(drawn(drawing, drawing.title or name, Path(name).suffix))


def _tell(what: "Announcement") -> None:
    """Say what has happened in a run."""
    from .runners.resilience.announcements import IterationCommitted, Recovered

    if isinstance(what, IterationCommitted):
        loss = "" if what.loss is None else f"loss {what.loss:.4f}  "
        took = "" if what.iteration_time_s is None else f"{print_time(what.iteration_time_s)}  "
        remark(f"      iteration {what.iteration}  {loss}{took}{what.live_workers} workers")
    elif isinstance(what, Recovered):
        if what.iteration == FAILS_IN:
            remark(f"      iteration {what.iteration} is done, {print_time(what.seconds)} after the failure")
    elif what.sentence:
        remark(f"      {what.sentence}")


def _count(what: "Announcement", tell: Progress) -> None:
    from .runners.resilience.announcements import IterationCommitted

    if isinstance(what, IterationCommitted):
        tell((what.iteration or 0) + 1, ITERATIONS)


def _iterations(
    happened: "Sequence[Announcement]", undisturbed: "Sequence[Announcement]"
) -> tuple[QuickstartIteration, ...]:
    from .runners.resilience.announcements import IterationCommitted

    right = {one.iteration: one.loss for one in undisturbed if isinstance(one, IterationCommitted)}
    return tuple(
        QuickstartIteration(
            one.iteration or 0, one.live_workers, one.iteration_time_s or 0.0, one.loss, right.get(one.iteration)
        )
        for one in happened
        if isinstance(one, IterationCommitted)
    )


def _paces(happened: "Sequence[Announcement]") -> tuple[QuickstartTimes, ...]:
    """Of all epochs with equally many workers together, the most workers first."""
    from .runners.resilience.announcements import EpochBegun, IterationCommitted

    predicted: dict[int, float] = {}
    times: dict[int, list[IterationTime]] = {}
    is_first = True
    for what in happened:
        if isinstance(what, EpochBegun):
            is_first = True
            if what.predicted_iteration_time_s is not None:
                predicted[what.live_workers] = what.predicted_iteration_time_s
        elif isinstance(what, IterationCommitted) and what.iteration_time_s is not None:
            took = IterationTime(what.iteration or 0, what.iteration_time_s, is_first)
            times.setdefault(what.live_workers, []).append(took)
            is_first = False
    counts = sorted(predicted.keys() & times.keys(), reverse=True)
    return tuple(QuickstartTimes(count, predicted[count], iteration_time_s(times[count]) or 0.0) for count in counts)


def _recovered_s(happened: "Sequence[Announcement]") -> float:
    """After the first change: the failure."""
    from .runners.resilience.announcements import Recovered

    return next(one.seconds for one in happened if isinstance(one, Recovered))
