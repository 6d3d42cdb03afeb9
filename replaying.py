"""Traces under policies, from files to reports: what `rtk replay` and `rtk sweep` have in common.

It stands at the root because it hands the planners' policies to the runners' clock. `replay` is for one question;
`replays` is how a program asks many at once, of any executor of `concurrent.futures`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from . import __version__
from .runners.traces.verbs import FaultScenario
from .schemas.documents import canonical_json, digest, to_tree
from .schemas.errors import InfeasibleError, InvalidInputError, RtkError
from .schemas.plan import name_of
from .schemas.replay import AskedJob, Costs, Fleet, Moment

if TYPE_CHECKING:
    from .planners.choosing import PlacementChoice
    from .planners.recovery.job import TrainingJob
    from .runners.replay.engine import Record
    from .runners.traces.formats import Leaving
    from .runners.traces.read import TraceCounter, TraceOptions
    from .schemas.cluster import Cluster
    from .schemas.degrees import AskedDegrees
    from .schemas.orders import LeanSchedule
    from .schemas.plan import Plan
    from .schemas.profile import Profile
    from .schemas.protocols import RecoveryPolicy
    from .schemas.replay import ReplayReport

FAULT_FREE = "fault-free"
MADE_UP = "the made-up trace"
LONGEST = ("slipstream", "rtk", "oobleck", "greyhound")  # policies that plan longest; others share what time is left


@dataclass(frozen=True)
class ReplayRequest:
    """What a replay is about: all that a process on another machine must be told, but the trace's file.

    Attributes:
        job: what is trained, and what changes cost it.
        trace: a file's path, or how one is made up.
        reading: how the file is to be read. What only the job can tell need not be there: nodes, which are those of the
            job then, the nodes of workers, the time of an iteration and of a message.
        policies: names, each once.
        until_s: when the trace ends; None: with its last event.
        name: what the trace is called in the report.
        placement: that the job is to start with, as far as policies know placements; None: one stage a worker.
    """

    job: TrainingJob
    trace: str | FaultScenario
    reading: TraceOptions
    policies: tuple[str, ...]
    until_s: float | None = None
    name: str = MADE_UP
    placement: PlacementChoice | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"placement"})


@dataclass(frozen=True)
class Answer:
    """What came of one policy: its record and what it does with all nodes there, or why it refuses the job.

    Attributes:
        policy: its name.
        record: of its replay.
        healthy_s: its iteration time with all nodes there.
        placement: in which it trains then, in words; None: it knows none, or the job was asked for with none.
        refusal: why it cannot train.
    """

    policy: str
    record: Record | None = None
    healthy_s: float | None = None
    placement: str | None = None
    refusal: str | None = None


def replay(
    profile: Profile,
    trace: str,
    *,
    pp: int,
    microbatches: int,
    dp: int | None = None,
    policies: Sequence[str] | None = None,
    cluster: str | Cluster | None = None,
    tensor_parallel: AskedDegrees = None,
    schedule: LeanSchedule = "1f1b",
    memory_limit: float | Sequence[float] | None = None,
    placement: str = "plain",
    chunks: int | None = None,
    cost: Costs | Mapping[str, float] | None = None,
    until_s: float | None = None,
    trace_format: str | None = None,
    nodes: int | None = None,
    leaving: Leaving = "random",
    slow_faults: bool = False,
    seed: int = 0,
    name: str | None = None,
    executor: Executor | None = None,
    watch: Callable[[Iterable[Answer]], Iterable[Answer]] = iter,
) -> ReplayReport:
    """Replay a failure trace under each policy: goodput, and where the time went.

    Args:
        profile: the model's costs.
        trace: the file of the failures: rtk's own traces, spot logs, counts, fault lists.
        pp, microbatches: the shape of the job, as for `plan_slipstream`.
        dp: pipelines; None: as many as the cluster's nodes hold.
        policies: names; None: all but those that are told of single GPUs, `worker-lost`, `degree-lowered` and `ntp`.
        cluster: the machines, as for `plan_pipeline`; None: a node is one worker.
        tensor_parallel: GPUs of a worker: a degree, or "auto", the profile's best; None: its least.
        schedule: "1f1b" or "zero-bubble", of pipelines whose policy has none of its own.
        memory_limit: activation bytes of a worker: one, or one a stage.
        placement, chunks: as for `plan_pipeline`: how many stages a worker holds at the start, under policies that know
            placements; what `best` has found stands in the report.
        cost: what changes cost, such as `{"restart_s": 600}`.
        until_s: end there; None: with the last event.
        trace_format: None: it is recognised.
        nodes: that are there at the start, where the trace does not say; None: those that the job takes.
        leaving: who leaves when a count drops.
        slow_faults: faults that a node can live with slow it down instead of taking it down.
        seed: of whatever draws.
        name: what the report calls the trace; None: its file's name.
        executor: of other processes, which share the policies; None: one after the other, here.
        watch: sees the policies' answers as they come.

    Raises:
        InvalidInputError: the trace cannot be read, or there is no such policy or cost.
        InfeasibleError: not even a cluster that never fails can train the job, or the machines are too few.
    """
    from .planners.degrees import DegreeChoice, naming_what_fits
    from .planners.plain.verbs import degree_of_job, job_of, limits_of
    from .planners.recovery.catalogue import NAMES, require_name
    from .runners.traces.read import reading_of
    from .schemas.orders import LeanSchedule
    from .schemas.site import machines_of, site_of
    from .schemas.text import known

    names = NAMES if policies is None else tuple(policies)
    for one in names:
        require_name(one)
    known(schedule, get_args(LeanSchedule), "--schedule")
    if not isinstance(cost, Costs):
        for one in cost or {}:
            known(one, [field.name for field in fields(Costs)], "--cost")
        cost = Costs(**dict(cost or {}))  # type: ignore[arg-type]
    asked = AskedJob(pp, microbatches, dp, 1, schedule, limits_of(memory_limit), placement, chunks)
    machines = site_of(cluster, None).cluster
    degree = degree_of_job(profile, machines, asked, tensor_parallel)
    site, asked = machines_of(machines, nodes, degree), replace(asked, tensor_parallel=degree)
    job = job_of(profile, site, asked, cost, seed)
    reading = reading_of(trace_format, site.nodes_at_start(), leaving, slow_faults, seed)
    called = Path(trace).name if name is None else name
    question = ReplayRequest(job, trace, reading, names, until_s, called, placement_of(asked))
    with naming_what_fits(DegreeChoice(job.profile, replace(job.shape, dp=1), (degree,), machines)):
        return ask(question, executor, watch)


def placement_of(asked: AskedJob) -> PlacementChoice | None:
    """The placement that is asked for; None: one stage a worker, as ever.

    Raises:
        InvalidInputError: there is no such placement, or it cannot have so many chunks.
    """
    from .planners.choosing import PlacementChoice, parse_placement

    choice = parse_placement(asked.placement, asked.chunks)
    return None if choice == PlacementChoice() else choice


def replays(
    questions: Sequence[ReplayRequest], executor: Executor | None = None
) -> Iterator[tuple[int, ReplayReport | InfeasibleError]]:
    """Replay many traces, each under all of its policies, in this process or in others.

    Args:
        questions: which; a process on another machine must find their files under the same paths.
        executor: of any kind that `concurrent.futures` knows, such as a ProcessPoolExecutor or a Dask client's; None:
            one after the other, here. Who stops half-way cancels the rest by `executor.shutdown(cancel_futures=True)`.

    Yields:
        The number of a question and its report, as they are finished; or why not even a cluster that never fails can
        train its job.

    Raises:
        InvalidInputError: a trace cannot be read, or a policy's name is unknown.
    """
    if executor is None:
        yield from ((number, _unless_wrong(replayed(question))) for number, question in enumerate(questions))
        return
    numbers = {executor.submit(replayed, question): number for number, question in enumerate(questions)}
    for future in as_completed(numbers):
        yield numbers.pop(future), _unless_wrong(future.result())


def replayed(question: ReplayRequest) -> ReplayReport | RtkError:
    """The report, or what was wrong: as a value, which every executor brings back as it is."""
    try:
        return ask(question)
    except RtkError as error:
        return error


def ask(
    question: ReplayRequest,
    executor: Executor | None = None,
    watch: Callable[[Iterable[Answer]], Iterable[Answer]] = iter,
) -> ReplayReport:
    """Replay a trace under every policy.

    Args:
        question: which.
        executor: of other processes, which share the policies; None: one after the other, here.
        watch: sees the policies' answers as they come.

    Raises:
        InvalidInputError: the trace cannot be read, it or an iteration lasts no time, or a policy's name is unknown.
        InfeasibleError: not even a cluster that never fails can train the job.
    """
    from .planners.recovery.catalogue import policy

    placed, compared = _placed(question)
    never_fails = policy(FAULT_FREE, placed.job)
    complete = replace(placed, reading=_reading(placed, never_fails))
    names = question.policies
    if executor is None:
        answers = (answered(complete, name) for name in names)
    else:  # begun at once, those that take longest first
        longest_first = sorted(names, key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST))
        futures = {name: executor.submit(answered, complete, name) for name in longest_first}
        answers = (futures[name].result() for name in names)
    report = _report(complete, never_fails, watch(answers))
    inputs = {**report.inputs, "question": digest_of(question)}
    return replace(report, job=report.job | compared, inputs=inputs)


def answered(question: ReplayRequest, name: str) -> Answer:
    """One policy's replay.

    Raises:
        InvalidInputError: the trace cannot be read, or there is no such policy.
    """
    from .planners.recovery.catalogue import gpu_policy, knows_placements
    from .planners.scheduling.forms import many_problems
    from .runners.replay.engine import replay

    try:
        with many_problems():
            found = gpu_policy(name, question.job)
            healthy = found.begin(Fleet(tuple(f"node{number}" for number in range(question.job.nodes))))
            record = replay(found, _moments(question), question.until_s)
            is_placed = question.placement is not None and knows_placements(name)
            words = _placement_words(found.plan(healthy)) if is_placed else None
            return Answer(name, record, healthy.iteration_time_s, words)
    except InfeasibleError as error:
        return Answer(name, refusal=error.what)


def digest_of(question: ReplayRequest) -> str:
    """The sha256, in hexadecimal, of all that a report depends on, rtk's version included."""
    if isinstance(question.trace, FaultScenario):
        trace = to_tree(question.trace)
    else:
        try:
            with Path(question.trace).open("rb") as stream:
                trace = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            what = f"cannot read the file: {error.strerror or error}"
            raise InvalidInputError(what, where=question.trace, fix="check the path") from error
    told = {**to_tree(replace(question, trace="")), "trace": trace, "rtk": __version__}
    return hashlib.sha256(canonical_json(told)).hexdigest()


def _placed(question: ReplayRequest) -> tuple[ReplayRequest, dict[str, Any]]:
    """The question with a job in the placement that is asked for, and what the report says of that.

    Raises:
        InfeasibleError: not even one stage a worker can be.
    """
    if question.placement is None:
        return question, {}
    from .planners.recovery.placing import placed_job
    from .schemas.placement import placement_words
    from .schemas.plan import plain_placement

    job, compared = placed_job(question.job, question.placement)
    words = placement_words(job.shape.columns or plain_placement(job.shape.pp))
    return replace(question, job=job), {"placement": words, **({"placements": compared} if compared else {})}


def _placement_words(plan: Plan | None) -> str | None:
    """The placement of a plan; None: there is no plan."""
    from .schemas.placement import placements_of

    return None if plan is None else ", ".join(placements_of(plan)) or "plain"


def _unless_wrong(found: ReplayReport | RtkError) -> ReplayReport | InfeasibleError:
    if isinstance(found, RtkError) and not isinstance(found, InfeasibleError):
        raise found
    return found


def _reading(question: ReplayRequest, never_fails: RecoveryPolicy) -> TraceOptions:
    """How the trace is read, with what the job tells: only our own traces ask for it.

    Raises:
        InvalidInputError: an iteration takes no time.
        InfeasibleError: not even a cluster that never fails can train the job.
    """
    from .planners.shape import template_of

    job, given = question.job, question.reading
    iteration_s = never_fails.begin(Fleet(())).iteration_time_s
    if not iteration_s:
        raise InvalidInputError(
            "an iteration takes no time", where="the profile, /layers", fix="give layers that take some"
        )
    nodes = job.nodes if given.nodes is None else given.nodes
    names = tuple(f"node{number}" for number in range(1, nodes + 1)) if isinstance(nodes, int) else nodes
    links = template_of(job.profile, job.shape).links
    return replace(
        given,
        nodes=nodes,
        iteration_time_s=iteration_s,
        worker_nodes=dict(_worker_nodes(job, names)),
        usual_link_s=max((link.delay_s for link in links), default=0.0),
        gpus_per_node=job.gpus_per_node,
    )


def _worker_nodes(job: TrainingJob, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The workers on the first nodes, which take the units of the job's grid row after row."""
    units = ((row, column) for row in range(job.grid.units) for column in range(job.grid.columns))
    for unit, node in zip(units, names, strict=False):
        yield from ((name_of(place), node) for place in job.grid.places(unit))


def _report(question: ReplayRequest, never_fails: RecoveryPolicy, answers: Iterable[Answer]) -> ReplayReport:
    """The report: every answer measured against the cluster that never fails."""
    from .planners.recovery.catalogue import BY_GPU
    from .runners.replay.engine import refused, replay, report_of, yardstick_of
    from .schemas.replay import ReplayReport
    from .schemas.text import joined

    job, facts = question.job, _Facts(question.job)
    reference = replay(never_fails, facts.watching(_moments(question)), question.until_s)
    if reference.lasts_s <= 0:
        raise InvalidInputError(
            "the trace lasts no time", where=question.name, fix="say when it ends: --until, or an event `end`"
        )
    yardstick = yardstick_of(reference, job.gpus_per_node, job.costs.gpu_hour_price)
    shape, per_node = job.shape, job.workers_per_node
    workers = "one worker" if per_node == 1 else f"{per_node} workers"
    gpus = "a GPU" if shape.degree == 1 else f"{shape.degree} GPUs"
    most, began = facts.bound.most_microbatches(reference.lasts_s), reference.began
    trace = {"name": question.name, **facts.told(reference.lasts_s)}
    return ReplayReport(
        trace=trace,
        job={
            "model": job.profile.model.get("name"),
            "pp": shape.pp,
            "dp": shape.dp,
            "microbatches": shape.microbatches,
            "tensor_parallel": shape.degree,
            "gpus_per_node": job.gpus_per_node,
            "nodes": job.nodes,
            "schedule": job.schedule,
        },
        costs=asdict(job.costs),
        fault_free={
            "nodes": began.nodes,
            "iteration_time_s": began.iteration_time_s,
            "microbatches": began.microbatches,
            "committed": reference.microbatches,
            "goodput_bound": most / reference.microbatches if reference.microbatches else None,
        },
        policies=tuple(
            refused(one.policy, one.refusal or "")
            if one.record is None
            else replace(report_of(one.policy, one.record, yardstick, one.healthy_s), placement=one.placement)
            for one in answers
        ),
        mapping=f"A node holds {workers} of {gpus} each, in (pipeline, stage) order: the first nodes of the trace take "
        f"the places from 0/0 to {shape.dp - 1}/{shape.pp - 1}, nodes beyond the first {job.nodes} are spares."
        + (f" A node is lost with one of its GPUs, but to {joined(BY_GPU)}." if "gpus_lost" in trace else ""),
        inputs={"profile": digest(job.profile)},
    )


def _moments(question: ReplayRequest) -> Iterator[Moment]:
    from .runners.traces.files import Told
    from .runners.traces.read import moments, read_moments
    from .runners.traces.verbs import generate

    if isinstance(question.trace, str):
        return read_moments(question.trace, question.reading)
    return moments((Told(event, MADE_UP) for event in generate(question.trace)), question.reading.ledger)


class _Facts:
    """What a trace is like, and what the job could do with it at most, learned while it passes."""

    def __init__(self, job: TrainingJob) -> None:
        from .planners.recovery.rtk import WorkBound

        self.bound = WorkBound(job)
        self._tally: TraceCounter | None = None
        self._moments = 0

    def watching(self, moments: Iterable[Moment]) -> Iterator[Moment]:
        """The moments, as they come; one after which nobody asks for more lies behind the replay's end."""
        for moment in moments:
            yield moment
            self._note(moment)

    def told(self, lasts_s: float) -> dict[str, Any]:
        """The facts, of a trace that lasts so long."""
        assert self._tally is not None
        found = self._tally.summary(lasts_s)
        return {
            "duration_s": found.lasts_s,
            "moments": self._moments,
            "moments_with_losses": found.failures,
            "nodes_lost": found.nodes_lost,
            "nodes_at_start": found.nodes_at_start,
            "nodes_min": found.nodes_min,
            "nodes_max": found.nodes_max,
            "nodes_mean": found.nodes_mean,
            **({"gpus_lost": found.gpus_lost} if found.gpus_lost else {}),
        }

    def _note(self, moment: Moment) -> None:
        from .runners.traces.read import TraceCounter

        self._moments += 1
        self.bound.note(moment)
        if self._tally is None:
            self._tally = TraceCounter(moment)
        else:
            self._tally.note(moment)
