"""`rtk run`: a plan on real ranks."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.documents import STANDARD_STREAM
from ..schemas.errors import InvalidInputError
from .console import Debug, Json, Quiet, Seed, remark
from .verify import ProfileOption

if TYPE_CHECKING:
    from ..profilers.models.load import Model
    from ..runners.torch.corpus import ByteCorpus
    from ..runners.torch.runner import PlanRunner, StepResult
    from ..schemas.plan import Plan

NAME = "run"
SUMMARY = "Execute a plan on real processes."


@dataclass(frozen=True)
class Job:
    """What is run how: the options of the command that every worker shares."""

    model: str
    data: tuple[str, ...]
    iterations: int
    learning_rate: float
    microbatch_size: int | None
    sequence_length: int | None
    threads: int
    paced: bool
    seed: int
    timeline: str | None
    as_json: bool
    quiet: bool
    debug: bool

    def arguments(self, plan: str) -> list[str]:
        """The command line that makes a worker process do this job."""
        pairs: list[tuple[str, object]] = [
            ("--model", self.model),
            *(("--data", file) for file in self.data),
            ("--iterations", self.iterations),
            ("--lr", self.learning_rate),
            ("--microbatch-size", self.microbatch_size),
            ("--sequence-length", self.sequence_length),
            ("--threads", self.threads),
            ("--seed", self.seed),
            ("--timeline", self.timeline),
        ]
        given = [text for option, value in pairs if value is not None for text in (option, str(value))]
        switches = {"--paced": self.paced, "--json": self.as_json, "--quiet": self.quiet, "--debug": self.debug}
        return ["run", plan, *given, *(switch for switch, on in switches.items() if on)]


def command(
    plan: Annotated[str, typer.Argument(help="The plan; `-` is standard input.")],
    model: Annotated[str, typer.Option("--model", help="A preset, or file.py:factory.")],
    data: Annotated[
        list[str] | None, typer.Option("--data", help="A text file; Python's own library where none. Repeatable.")
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", min=1, help="How many.")] = 10,
    learning_rate: Annotated[float, typer.Option("--lr", min=0, help="Learning rate of AdamW.")] = 1e-3,
    microbatch_size: Annotated[
        int | None, typer.Option("--microbatch-size", min=1, help="Samples a micro-batch; the profile's by default.")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", min=1, help="Tokens a sample; the profile's by default.")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Torch threads of each worker.")] = 1,
    paced: Annotated[
        bool, typer.Option("--paced", help="Let every operation last what the plan says: more workers than cores.")
    ] = False,
    seed: Seed = 0,
    timeline: Annotated[str | None, typer.Option("--timeline", help="Write the measured timeline here.")] = None,
    profile: ProfileOption = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Execute a plan on real processes: under torchrun, or, started plainly, one process per worker on this machine.

    Data are bytes of text files, chosen by iteration and micro-batch and never by rank. With --json, one JSON line an
    event.
    """
    from .plans import read_valid_plan

    launched = "RANK" in os.environ
    if launched and plan == STANDARD_STREAM:
        raise InvalidInputError("under torchrun every process reads the plan", where="PLAN", fix="give a file, not `-`")
    read = read_valid_plan(plan, profile)
    size, length = _sizes(read, microbatch_size, sequence_length)
    job = Job(
        model=model,
        data=tuple(data or ()),
        iterations=iterations,
        learning_rate=learning_rate,
        microbatch_size=size,
        sequence_length=length,
        threads=threads,
        paced=paced,
        seed=seed,
        timeline=timeline,
        as_json=as_json,
        quiet=quiet,
        debug=debug,
    )
    if launched:
        _work(read, job)
    else:
        launch_workers(read, job)


def launch_workers(plan: "Plan", job: Job) -> None:
    """Run a job in one process per live worker on this machine; what all of them would refuse is refused here, once."""
    from ..runners.torch.launch import launch
    from ..schemas.documents import canonical

    _load(plan, job)
    workers = len(plan.live_workers())
    if workers > available_cores() and not job.paced and not job.quiet:
        remark(f"{workers} workers share {available_cores()} cores and take turns: expect longer than predicted")
    with tempfile.TemporaryDirectory(prefix="rtk-run-") as folder:
        # The workers read a copy: the plan may have come through a pipe.
        copy = Path(folder) / "plan.json"
        copy.write_bytes(canonical(plan))
        launch(job.arguments(str(copy)), workers)


def available_cores() -> int:
    """The cores that this process, and so the workers it starts, may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _load(plan: "Plan", job: Job) -> "tuple[Model, ByteCorpus]":
    """The model and the data, checked against the plan and each other."""
    from ..profilers.models.load import load_model
    from ..runners.torch.corpus import ByteCorpus
    from ..runners.torch.runner import check_model

    model = load_model(job.model, job.microbatch_size, job.sequence_length, job.seed)
    check_model(plan, model.layers)
    if model.vocabulary is None or model.vocabulary < 256 or model.sequence_length is None:
        raise InvalidInputError(
            "the model does not read bytes: its vocabulary must be 256 or more",
            where="--model",
            fix="for other data, use PlanRunner in a script of your own (docs/library.md)",
        )
    return model, ByteCorpus(job.data, model.microbatch_size, model.sequence_length, job.seed)


def _work(plan: "Plan", job: Job) -> None:
    """One worker's part of the job."""
    import torch

    from ..runners.torch.launch import die_with_launcher
    from ..runners.torch.runner import PlanRunner
    from ..schemas.documents import write_document

    die_with_launcher()
    torch.set_num_threads(job.threads)
    model, corpus = _load(plan, job)
    runner = PlanRunner(
        plan,
        model.layers,
        model.loss,
        lambda parameters: torch.optim.AdamW(parameters, lr=job.learning_rate),
        device=_device(),
        paced=job.paced,
        seed=job.seed,
    )
    report = _Reporter(runner, corpus, job) if runner.reports_loss() else None
    for iteration in range(job.iterations):
        result = runner.step(corpus.batch(iteration))
        if report:
            report.iteration(result)
    if report:
        report.end()
    if job.timeline is not None:
        timeline = runner.timeline()
        if timeline is not None:
            write_document(job.timeline, timeline)
    runner.close()


class _Reporter:
    """What a run says on standard output: JSON lines, or lines for people."""

    def __init__(self, runner: "PlanRunner", corpus: "ByteCorpus", job: Job) -> None:
        self._job = job
        self._live = len(runner.plan.live_workers())
        self._tokens = runner.plan.total_microbatches() * corpus.microbatch_size * corpus.sequence_length
        self._prediction = runner.plan.prediction
        self._times_s: list[float] = []
        self._last_end_s: float | None = None
        self._loss: float | None = None
        start = {"live_workers": self._live, "model": job.model, "paced": job.paced, "tokens": self._tokens}
        self._say("start", start, f"{self._live} workers, {self._tokens} tokens an iteration")

    def iteration(self, result: "StepResult") -> None:
        """Report one iteration; it lasts from the end of the one before it."""
        since_s = result.start_s if self._last_end_s is None else self._last_end_s
        time_s = result.end_s - since_s
        self._last_end_s = result.end_s
        self._times_s.append(time_s)
        self._loss = result.loss
        fields = {
            "iteration": result.iteration,
            "loss": result.loss,
            "iteration_time_s": time_s,
            "tokens_per_s": self._tokens / time_s,
            "live_workers": self._live,
            "paced": self._job.paced,
        }
        speed = f"{time_s:.4f} s  {self._tokens / time_s:.0f} tokens/s"
        self._say("iteration", fields, f"iteration {result.iteration:3d}  loss {result.loss:.4f}  {speed}")

    def end(self) -> None:
        """Report the whole run."""
        predicted_s = self._prediction.iteration_time_s if self._prediction else None
        from statistics import median

        measured_s = median(self._times_s)
        fields = {
            "iterations": len(self._times_s),
            "loss": self._loss,
            "iteration_time_s": measured_s,
            "predicted_iteration_time_s": predicted_s,
            "paced": self._job.paced,
        }
        against = f", predicted {predicted_s:.4f} s ({measured_s / predicted_s - 1:+.1%})" if predicted_s else ""
        mark = " (paced)" if self._job.paced else ""
        self._say("end", fields, f"median iteration {measured_s:.4f} s{mark}{against}")

    def _say(self, event: str, fields: dict[str, Any], words: str) -> None:
        if self._job.as_json:
            print(json.dumps({"event": event, **fields}, sort_keys=True), flush=True)
        elif not self._job.quiet:
            print(words, flush=True)


def _sizes(plan: "Plan", microbatch_size: int | None, sequence_length: int | None) -> tuple[int | None, int | None]:
    """The sizes asked for, else those of the profile that the plan was made from, as its options tell."""
    told = plan.planner.options
    found = [told.get("microbatch_size"), told.get("sequence_length")]
    size, length = (value if isinstance(value, int) else None for value in found)
    return microbatch_size or size, sequence_length or length


def _device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
