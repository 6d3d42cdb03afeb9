"""What `rtk run` and `rtk coordinate` share: a coordinator made ready for a job."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..planners.recovery.answers import Answers, PolicyName, answers_if_any, remedies_of
from ..planners.recovery.escalation import RemedyCosts, escalating
from ..schemas.errors import InvalidInputError, RtkError, RuntimeFailedError
from ..schemas.form import AS_USUAL, ModelForm, form_of
from ..wiring import monitor_of
from .console import remark
from .options import read_valid_trace

if TYPE_CHECKING:
    from ..profilers.models.load import Model
    from ..runners.program import Sending
    from ..runners.resilience.conditions import Crowding
    from ..runners.resilience.events import Announcement
    from ..runners.resilience.journal import Journal
    from ..runners.resilience.protocol import Hello, Job, Welcome
    from ..runners.resilience.server import Finished, Server
    from ..runners.torch.corpus import ByteCorpus
    from ..schemas.conditions import Conditions
    from ..schemas.plan import Plan
    from ..schemas.protocols import Hand, Monitor, Replanned
    from ..schemas.timeline import Timeline
    from ..schemas.trace import Trace, TraceEvent


Announcements = Callable[["Announcement"], None]

Iterations = Annotated[int, typer.Option("--iterations", min=1, help="How many, those before --resume included.")]
TimelineOption = Annotated[str | None, typer.Option("--timeline", help="Write the measured timeline here.")]
CheckpointOption = Annotated[str | None, typer.Option("--checkpoint", help="Save checkpoints in this folder.")]
CheckpointEvery = Annotated[
    int, typer.Option("--checkpoint-every", min=0, help="Iterations between checkpoints; 0: only at the end.")
]
Resume = Annotated[
    str | None, typer.Option("--resume", help="Go on from this checkpoint, or the newest one in this folder.")
]
InjectOption = Annotated[
    str | None, typer.Option("--inject", help="A trace of faults to inject, with `iteration` and `worker`.")
]
HeartbeatLimit = Annotated[
    float, typer.Option("--heartbeat-limit", min=0.1, help="Seconds of silence after which a worker is lost.")
]
StallLimit = Annotated[
    float | None,
    typer.Option(
        "--stall-limit",
        min=0.5,
        help="Seconds without a commit after which all are asked who holds them up; else 5 iterations, at least 10 s.",
    ),
]
Metrics = Annotated[str | None, typer.Option("--metrics", help="Append what happens to this JSON-lines file.")]


@dataclass(frozen=True)
class JobConfig:
    """How a job is led: the options that only its coordinator has."""

    iterations: int
    timeline: str | None = None
    policy: PolicyName | None = None
    atlas: str | None = None
    normalize_within: int = 100
    host_memory: float = 0.0
    mitigate: str | None = None
    checkpoint: str | None = None
    checkpoint_every: int = 0
    resume: str | None = None
    inject: str | None = None
    heartbeat_limit_s: float = 2.0
    stall_limit_s: float | None = None
    metrics: str | None = None


def first_beyond(usual: JobConfig, how: JobConfig) -> str | None:
    """The first option by which a job would be led otherwise than usual."""
    unlike = (name for name, value in vars(how).items() if value != getattr(usual, name))
    return next(("--" + name.removesuffix("_s").replace("_", "-") for name in unlike), None)


class JobController:
    """A job, read and checked, and what its coordinator needs around it.

    Args:
        plan: valid.
        how: how to lead it.

    Attributes:
        has_begun: whether all workers have come, and training has begun.
        restarts_at: before which iteration the job is to start again on other workers, once it is saved; None: it goes
            on.

    Raises:
        InvalidInputError: the atlas, the checkpoint or the trace is not for this plan, or remedies not for its policy.
    """

    def __init__(self, plan: "Plan", how: JobConfig, trace: "Trace | None" = None) -> None:
        self.plan, self.how = plan, how
        self.trace = _trace(plan, how.inject) if trace is None else trace
        self.job = _job(plan, how, self.trace)
        self._remedies = _remedies(plan, how)
        if how.atlas is not None or how.policy is not None:
            _ = self._answers  # refused now or never
        self._spans: list[tuple[str, str, float, float, int]] = []
        self._planned: list[Plan] = []
        self._happened: list[tuple[float, Announcement]] = []
        self.has_begun = False
        self.restarts_at: int | None = None
        self._saved: str | None = None
        self._is_paced = False
        self._crowding: Crowding | None = None

    @cached_property
    def _answers(self) -> Answers:
        """Made late: loading the planners takes longer than all that a restarted coordinator has to do at first."""
        how = self.how
        return answers_if_any(self.plan, how.policy, how.atlas, how.normalize_within, how.host_memory)

    def settings(self) -> dict[str, Any]:
        """What makes it this job, for the header of its log."""
        kept = (
            "iterations",
            "policy",
            "atlas",
            "normalize_within",
            "host_memory",
            "mitigate",
            "checkpoint",
            "checkpoint_every",
            "resume",
            "inject",
        )
        return {name: value for name, value in asdict(self.how).items() if name in kept}

    def server(
        self,
        secret: bytes,
        announce: Announcements,
        journal: "Journal | None" = None,
        host: str = "127.0.0.1",
        port: int = 0,
        is_watchful: bool = True,
    ) -> "Server":
        """A coordinator that listens.

        Args:
            secret: the job's.
            announce: hears of everything that happens.
            journal: its log, or None.
            host, port: where to listen.
            is_watchful: whether it looks for what is slow, unless workers without a pace share cores; where a trace
                slows something down it always does.
        """
        from ..runners.resilience.conditions import Crowding
        from ..runners.resilience.rules import CoordinatorRules
        from ..runners.resilience.server import Limits, Server, Surroundings

        def note(what: "Announcement") -> None:
            self._note(what)
            announce(what)

        slows = self.trace is not None and any(event.kind.startswith("slow") for event in self.trace.events)
        monitor = self._monitor(is_resumed=journal is not None) if is_watchful or slows else None
        self._crowding = None if monitor is None or slows else Crowding(monitor, remark)
        surroundings = Surroundings(
            make_plan=self._make_plan,
            welcome=self._welcome,
            announce=note,
            on_spans=self._take_spans,
            monitor=self._crowding or monitor,
            log=lambda line: print(line, file=sys.stderr),
        )
        limits = Limits(heartbeat_s=self.how.heartbeat_limit_s)
        return Server(CoordinatorRules(self.job), journal, secret, surroundings, host=host, port=port, limits=limits)

    def warm_up(self) -> None:
        """Load what planning needs before the first worker dies."""
        self._answers.warm_up()

    @property
    def may_go_on(self) -> bool:
        """Whether the job was saved to start again."""
        return self.restarts_at is not None and self._saved is not None

    def again(self) -> "JobController":
        """What leads the rest of a job that may go on.

        It starts again no more, and what was injected into the old workers does not happen to the new ones.
        """
        assert self.restarts_at is not None
        how = replace(self.how, inject=None, resume=self._saved, mitigate=self._remedies.without_restart())
        trace = self.trace and events_after(self.trace, self.restarts_at)
        next_one = JobController(self.plan, how, trace)
        next_one._spans, next_one._planned, next_one._happened = self._spans, self._planned, self._happened
        return next_one

    def write_timeline(self) -> None:
        """Write what the workers executed, and what happened to them, where that was asked for."""
        from ..schemas.documents import write_document

        if self.how.timeline is not None:
            write_document(self.how.timeline, self._timeline())

    def _note(self, what: "Announcement") -> None:
        """Something has happened."""
        from ..runners.resilience.events import CheckpointSaved, JobEnded, JobRestarting, JobStarted

        if not isinstance(what, JobEnded) or not self.may_go_on:
            self._happened.append((time.perf_counter(), what))
        match what:
            case JobStarted():
                self.has_begun = True
            case JobRestarting():
                self.restarts_at = what.iteration
            case CheckpointSaved() if what.path and not what.error:
                self._saved = what.path

    def _monitor(self, is_resumed: bool) -> "Monitor":
        return escalating(monitor_of(self.plan, is_resumed), self.plan, self._remedies, lambda: self._answers)

    def _make_plan(self, plan: "Plan", crew: "tuple[Hand, ...]", conditions: "Conditions") -> "Replanned":
        found = self._answers(plan, crew, conditions)
        if self.how.timeline is not None:
            self._planned.append(found.plan)
        return found

    def _welcome(self, hello: "Hello") -> "Welcome":
        from ..runners.resilience.protocol import Welcome
        from ..schemas.documents import to_tree

        self._is_paced = bool(hello.job.get("paced"))
        if self._crowding is not None:
            self._crowding.arrive(hello)
        events = tuple(to_tree(event) for event in _events_of(self.trace, hello)) if self.trace else ()
        return Welcome(1.0, 0.0, "", spans=self.how.timeline is not None, inject=events)

    def _take_spans(self, worker: str, place: str, spans: tuple[tuple[str, float, float, int], ...]) -> None:
        self._spans.extend((place, *span) for span in spans)

    def _timeline(self) -> "Timeline":
        from ..runners.resilience.events import timeline_events
        from ..schemas.documents import digest
        from ..schemas.timeline import Span, Timeline, memory_of_workers

        origin_s = min((start_s for _, _, start_s, _, _ in self._spans), default=0.0)
        spans = [Span(p, op, start_s - origin_s, end_s - origin_s, n) for p, op, start_s, end_s, n in self._spans]
        return Timeline(
            "measured",
            tuple(sorted(spans, key=lambda span: (span.start_s, span.worker))),
            memory_of_workers(self.plan, *self._planned),
            events=timeline_events((max(0.0, at_s - origin_s), what) for at_s, what in self._happened),
            plan=digest(self.plan),
            paced=self._is_paced,
        )


class JobEndedError(RtkError):
    """A worker has said what is wrong and ended with an exit code, which becomes ours."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


def raise_for(finished: "Finished", conductor: JobController) -> None:
    """Turn an end without success into the error that has its exit code."""
    if conductor.restarts_at is not None and finished.exit_code:
        resume = f"--resume {conductor.how.checkpoint}"
        raise RuntimeFailedError(
            finished.reason, fix=f"start all commands again on other machines: rtk coordinate … {resume}, a new --log"
        )
    if finished.exit_code == RuntimeFailedError.exit_code:
        raise RuntimeFailedError(finished.reason, fix="start the run again, with --resume where there is a checkpoint")
    if finished.exit_code:
        raise JobEndedError(finished.exit_code, finished.reason)


def events_after(trace: "Trace", iteration: int) -> "Trace":
    """What a trace holds for workers that are all new from an iteration on, where nothing is slow, broken or dead."""
    from ..schemas.trace import Trace

    struck: set[str | None] = set()
    kept = []
    for event in trace.events:
        assert event.iteration is not None
        who = event.worker or event.link
        is_cure = event.kind in ("recover", "join")
        if event.iteration >= iteration and (not is_cure or who in struck):
            struck.add(who)
            kept.append(event)
    return Trace(tuple(kept))


def _remedies(plan: "Plan", how: JobConfig) -> RemedyCosts:
    remedies = remedies_of(how.mitigate, plan, how.policy)
    if remedies.restart_s is not None and how.checkpoint is None:
        raise InvalidInputError(
            "a job that is not saved cannot start again", where="--mitigate", fix="give --checkpoint, or leave S4 out"
        )
    return remedies


def _job(plan: "Plan", how: JobConfig, trace: "Trace | None") -> "Job":
    from ..runners.resilience.protocol import Job
    from ..runners.virtual.cluster import joins

    job = Job(
        plan=plan,
        iterations=how.iterations,
        heartbeat_limit_s=how.heartbeat_limit_s,
        stall_limit_s=how.stall_limit_s,
        # Workers may have been started in other folders.
        checkpoint=None if how.checkpoint is None else str(Path(how.checkpoint).absolute()),
        checkpoint_every=how.checkpoint_every,
        newcomers=joins(trace) if trace else 0,
    )
    return job if how.resume is None else _resumed(job, how.resume)


def _resumed(job: "Job", folder: str) -> "Job":
    """The job from a checkpoint on.

    Raises:
        InvalidInputError: there is none, it is of another model, or nothing is left to do.
    """
    from ..runners.checkpoint import find, read_manifest, refuse_partial

    path = find(Path(folder))
    manifest = read_manifest(path)
    refuse_partial(path, manifest)
    layers = job.plan.templates[0].stages[-1].layers[1]
    if manifest.layers != layers:
        raise InvalidInputError(
            f"the checkpoint has {manifest.layers} layers, the plan {layers}",
            where=str(path),
            fix="plan from a profile of the model that was saved",
        )
    if manifest.iteration >= job.iterations:
        raise InvalidInputError(
            f"{manifest.iteration} iterations are done already", where=str(path), fix="ask for more with --iterations"
        )
    if manifest.total_microbatches != job.plan.total_microbatches():
        remark(
            f"the checkpoint's plan had {manifest.total_microbatches} micro-batches an iteration, "
            f"this one has {job.plan.total_microbatches()}: the data go on from other samples"
        )
    return replace(job, first_iteration=manifest.iteration, resume=str(path.resolve()))


def _trace(plan: "Plan", path: str | None) -> "Trace | None":
    """The faults to inject; all of them such as a worker can play on itself.

    Raises:
        InvalidInputError: an event does not fit the plan, or happens at a time instead of in an iteration.
    """
    if path is None:
        return None
    trace = read_valid_trace(path, plan)
    for index, event in enumerate(trace.events):
        where = f"{path}, /events/{index}"
        if event.iteration is None:
            raise InvalidInputError(
                "a run injects faults by iteration, not by time", where=where, fix="give the event an `iteration`"
            )
    return trace


def _events_of(trace: "Trace", hello: "Hello") -> "list[TraceEvent]":
    """The events that a process plays: those of its worker between its own start, or join, and the next join.

    Those of its worker's links are all its own, for they happen to machines, whoever runs there.
    """
    from ..runners.virtual.cluster import link_ends

    mine = [event for event in trace.events if event.worker == hello.worker]
    joins = [0, *(i + 1 for i, event in enumerate(mine) if event.kind == "join"), len(mine) + 1]
    played: list[TraceEvent] = []
    for first, stop in pairwise(joins):
        joined_at = mine[first - 1].iteration if first else 0
        if joined_at == hello.not_before:
            played = mine[first : stop - 1]
            break
    own = {id(event) for event in played}
    return [
        event
        for event in trace.events
        if id(event) in own or (event.link is not None and hello.worker in link_ends(event.link))
    ]


# What a run trains: the options that all its workers share, and the model and data they name.


class TransportKind(StrEnum):
    """How messages are sent."""

    AUTO = "auto"
    DIRECT = "direct"
    DELEGATED = "delegated"


ModelOption = Annotated[str, typer.Option("--model", help="A preset, file.py:factory, or a config.json.")]
DataOption = Annotated[
    list[str] | None, typer.Option("--data", help="A text file; Python's own library where none. Repeatable.")
]
LearningRate = Annotated[float, typer.Option("--lr", min=0, help="Learning rate of AdamW.")]
MicrobatchSize = Annotated[
    int | None, typer.Option("--microbatch-size", min=1, help="Samples a micro-batch; the profile's by default.")
]
SequenceLength = Annotated[
    int | None, typer.Option("--sequence-length", min=1, help="Tokens a sample; the profile's by default.")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Torch threads of each worker.")]
Paced = Annotated[
    bool, typer.Option("--paced", help="Let every operation last what the plan says: more workers than cores.")
]
TransportOption = Annotated[
    TransportKind,
    typer.Option(
        "--transport",
        help="direct: sending holds a worker for the link's delay; delegated: other threads send and fetch; auto: "
        "delegated on links of which the plan says a delay, or which are found to be slow.",
    ),
]


@dataclass(frozen=True)
class Training:
    """What is trained how; the same for all workers but for `threads`. All workers read the form out of the plan."""

    model: str
    data: tuple[str, ...]
    learning_rate: float
    microbatch_size: int | None
    sequence_length: int | None
    threads: int
    paced: bool
    seed: int
    transport: "Sending" = "auto"
    form: ModelForm = AS_USUAL

    def arguments(self) -> list[str]:
        """The options by which another process trains the same."""
        pairs: list[tuple[str, object]] = [
            ("--model", self.model),
            *(("--data", file) for file in self.data),
            ("--lr", self.learning_rate),
            ("--microbatch-size", self.microbatch_size),
            ("--sequence-length", self.sequence_length),
            ("--threads", self.threads),
            ("--seed", self.seed),
            ("--transport", self.transport),
        ]
        given = [text for option, value in pairs if value is not None for text in (option, str(value))]
        return [*given, *(["--paced"] if self.paced else [])]

    def settings(self) -> dict[str, Any]:
        """What the coordinator compares between workers."""
        told = {name: value for name, value in asdict(self).items() if name not in ("threads", "form")}
        return told | {"data": list(self.data)} | self.form.options()


def training_of(
    plan: "Plan",
    model: str,
    data: list[str] | None,
    learning_rate: float,
    microbatch_size: int | None,
    sequence_length: int | None,
    threads: int,
    paced: bool,
    seed: int,
    transport: TransportKind = TransportKind.AUTO,
) -> Training:
    """The training that options ask for; sizes that they leave open, and the form, are of the profile behind the plan.

    Raises:
        InvalidInputError: the plan's options ask for a form that there is not.
    """
    size, length = sizes_of(plan)
    return Training(
        model=model,
        data=tuple(data or ()),
        learning_rate=learning_rate,
        microbatch_size=microbatch_size or size,
        sequence_length=sequence_length or length,
        threads=threads,
        paced=paced,
        seed=seed,
        transport=transport.value,
        form=form_of(plan.planner.options),
    )


def sizes_of(plan: "Plan") -> tuple[int | None, int | None]:
    """Samples a micro-batch and tokens a sample of the profile behind a plan; None where the plan does not say."""
    told = (plan.planner.options.get(name) for name in ("microbatch_size", "sequence_length"))
    size, length = (value if isinstance(value, int) else None for value in told)
    return size, length


def load_training(plan: "Plan", training: Training) -> "tuple[Model, ByteCorpus]":
    """The model and the data, checked against the plan and each other.

    Raises:
        InvalidInputError: they do not fit.
    """
    from ..profilers.models.load import load_model
    from ..runners.torch.corpus import ByteCorpus
    from ..runners.torch.runner import check_model

    _require_one_device_a_stage(plan)
    model = load_model(training.model, training.microbatch_size, training.sequence_length, training.seed, training.form)
    check_model(plan, model.layers)
    if model.vocabulary is None or model.vocabulary < 256 or model.sequence_length is None:
        raise InvalidInputError(
            "the model does not read bytes: its vocabulary must be 256 or more",
            where="--model",
            fix="for other data, use PlanRunner in a script of your own (docs/library.md)",
        )
    return model, ByteCorpus(training.data, model.microbatch_size, model.sequence_length, training.seed)


def _require_one_device_a_stage(plan: "Plan") -> None:
    for t, template in enumerate(plan.templates):
        for i, stage in enumerate(template.stages):
            if stage.tensor_parallel > 1:
                raise InvalidInputError(
                    f"a stage of template {template.name} is on {stage.tensor_parallel} GPUs; a worker computes on one",
                    where=f"/templates/{t}/stages/{i}/tensor_parallel",
                    fix="plan from a profile with costs at tensor_parallel 1 only",
                )


def tokens_of(plan: "Plan", corpus: "ByteCorpus") -> int:
    """Tokens of one iteration."""
    return plan.total_microbatches() * corpus.microbatch_size * corpus.sequence_length


def available_cores() -> int:
    """The cores that this process, and so the workers it starts, may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device() -> str:
    """Where this worker computes: its GPU, of those that there are, else the CPU."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"


# Options of how a running job answers failures, newcomers and slow parts; planners/recovery/ has the answers.


PolicyOption = Annotated[
    PolicyName | None,
    typer.Option(
        "--policy",
        help="What follows: slipstream re-routes a dead worker's micro-batches to its peers, joint does so too and "
        "adapts the plan to slow links and workers, oobleck makes pipelines of all nodes that are left and adapts to "
        "nothing else. Default: oobleck for its own plans, joint for others.",
    ),
]
AtlasOption = Annotated[
    str | None, typer.Option("--atlas", help="A folder of plans made ahead; else failures are planned on the spot.")
]
NormalizeWithin = Annotated[
    int,
    typer.Option(
        "--normalize-within",
        min=0,
        help="Move workers, or form other pipelines, if that pays within so many iterations; 0: never.",
    ),
]
HostMemory = Annotated[
    float,
    typer.Option(
        "--host-memory",
        min=0,
        help="Bytes of activations that a worker may hold beyond its memory limit, on the host, under an adapted plan.",
    ),
]
MitigateOption = Annotated[
    str | None,
    typer.Option(
        "--mitigate",
        metavar="S3=SECONDS,S4=SECONDS",
        help="What costly remedies for slow workers and links cost, each taken once being slow has cost as much: S3, "
        "workers change places (by default the copies' time, there and back); S4, the job is saved and starts again "
        "on other workers (never, unless given).",
    ),
]
