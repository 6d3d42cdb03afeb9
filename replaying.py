"""Traces under policies, from files to reports: what `rtk replay` and `rtk sweep` have in common.

`replays` is how a program asks many questions at once, of any executor of `concurrent.futures`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .runners.traces.generate import FaultScenario
from .schemas.documents import canonical_json, digest, to_tree
from .schemas.errors import InfeasibleError, InvalidInputError, RtkError
from .schemas.plan import name_of
from .schemas.replay import Fleet, Moment

if TYPE_CHECKING:
    from .planners.policies.job import TrainingJob
    from .runners.replay.engine import Record
    from .runners.traces.read import TraceCounter, TraceOptions
    from .schemas.protocols import Policy
    from .schemas.replay_report import PolicyReport, ReplayReport

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
    """

    job: TrainingJob
    trace: str | FaultScenario
    reading: TraceOptions
    policies: tuple[str, ...]
    until_s: float | None = None
    name: str = MADE_UP


@dataclass(frozen=True)
class Answer:
    """What came of one policy: its record and the iteration time with all nodes there, or why it refuses the job."""

    policy: str
    record: Record | None = None
    healthy_s: float | None = None
    refusal: str | None = None


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
    from .planners.policies.catalogue import policy

    never_fails = policy(FAULT_FREE, question.job)
    complete = replace(question, reading=_reading(question, never_fails))
    report = _report(complete, never_fails, watch(_answers(complete, executor)))
    return replace(report, inputs={**report.inputs, "question": digest_of(question)})


def _answers(question: ReplayRequest, executor: Executor | None) -> Iterator[Answer]:
    """The policies' answers in order, begun at once where others make them."""
    if executor is None:
        return (answered(question, name) for name in question.policies)
    longest_first = sorted(question.policies, key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST))
    futures = {name: executor.submit(answered, question, name) for name in longest_first}
    return (futures[name].result() for name in question.policies)


def answered(question: ReplayRequest, name: str) -> Answer:
    """One policy's replay.

    Raises:
        InvalidInputError: the trace cannot be read, or there is no such policy.
    """
    from .planners.policies.catalogue import policy
    from .planners.scheduling.forms import many_problems
    from .runners.replay.engine import replay

    try:
        with many_problems():
            found = policy(name, question.job)
            healthy = found.begin(Fleet(tuple(f"node{number}" for number in range(question.job.nodes))))
            return Answer(name, replay(found, _moments(question), question.until_s), healthy.iteration_time_s)
    except InfeasibleError as error:
        return Answer(name, refusal=error.what)


def digest_of(question: ReplayRequest) -> str:
    """The sha256, in hexadecimal, of all that a report depends on, rtk's version included."""
    trace = to_tree(question.trace) if isinstance(question.trace, FaultScenario) else _file_digest(question.trace)
    told = {**to_tree(replace(question, trace="")), "trace": trace, "rtk": __version__}
    return hashlib.sha256(canonical_json(told)).hexdigest()


def _unless_wrong(found: ReplayReport | RtkError) -> ReplayReport | InfeasibleError:
    if isinstance(found, RtkError) and not isinstance(found, InfeasibleError):
        raise found
    return found


def _reading(question: ReplayRequest, never_fails: Policy) -> TraceOptions:
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
    )


def _worker_nodes(job: TrainingJob, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The workers on the first nodes, which take the units of the job's grid row after row."""
    units = ((row, column) for row in range(job.grid.units) for column in range(job.grid.columns))
    for unit, node in zip(units, names, strict=False):
        yield from ((name_of(place), node) for place in job.grid.places(unit))


def _report(question: ReplayRequest, never_fails: Policy, answers: Iterable[Answer]) -> ReplayReport:
    """The report: every answer measured against the cluster that never fails."""
    from .runners.replay.engine import replay, yardstick_of
    from .schemas.replay_report import ReplayReport

    job, facts = question.job, _Facts(question.job)
    reference = replay(never_fails, facts.watching(_moments(question)), question.until_s)
    if reference.lasts_s <= 0:
        raise InvalidInputError(
            "the trace lasts no time", where=question.name, fix="say when it ends: --until, or an event `end`"
        )
    yardstick = yardstick_of(reference, job.gpus_per_node, job.costs.gpu_hour_price)
    most, began = facts.bound.most_microbatches(reference.lasts_s), reference.began
    return ReplayReport(
        trace={"name": question.name, **facts.told(reference.lasts_s)},
        job=_job_told(job),
        costs=asdict(job.costs),
        fault_free={
            "nodes": began.nodes,
            "iteration_time_s": began.iteration_time_s,
            "microbatches": began.microbatches,
            "committed": reference.microbatches,
            "goodput_bound": most / reference.microbatches if reference.microbatches else None,
        },
        policies=tuple(_policy_told(answer, yardstick) for answer in answers),
        mapping=_mapping(job),
        inputs={"profile": digest(job.profile)},
    )


def _moments(question: ReplayRequest) -> Iterator[Moment]:
    from .runners.traces.files import Told
    from .runners.traces.generate import generate
    from .runners.traces.read import moments, read_moments

    if isinstance(question.trace, str):
        return read_moments(question.trace, question.reading)
    return moments(Told(event, MADE_UP) for event in generate(question.trace))


def _policy_told(answer: Answer, yardstick: Any) -> PolicyReport:
    from .runners.replay.engine import refused, report_of

    if answer.record is None:
        return refused(answer.policy, answer.refusal or "")
    return report_of(answer.policy, answer.record, yardstick, answer.healthy_s)


class _Facts:
    """What a trace is like, and what the job could do with it at most, learned while it passes."""

    def __init__(self, job: TrainingJob) -> None:
        from .planners.policies.rtk import WorkBound

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
        }

    def _note(self, moment: Moment) -> None:
        from .runners.traces.read import TraceCounter

        self._moments += 1
        self.bound.note(moment)
        if self._tally is None:
            self._tally = TraceCounter(moment)
        else:
            self._tally.note(moment)


def _job_told(job: TrainingJob) -> dict[str, Any]:
    return {
        "model": job.profile.model.get("name"),
        "pp": job.shape.pp,
        "dp": job.shape.dp,
        "microbatches": job.shape.microbatches,
        "tensor_parallel": job.shape.tensor_parallel,
        "gpus_per_node": job.gpus_per_node,
        "nodes": job.nodes,
        "schedule": job.schedule,
    }


def _mapping(job: TrainingJob) -> str:
    per_node, degree = job.workers_per_node, job.shape.tensor_parallel
    workers = "one worker" if per_node == 1 else f"{per_node} workers"
    gpus = "a GPU" if degree == 1 else f"{degree} GPUs"
    return (
        f"A node holds {workers} of {gpus} each, in (pipeline, stage) order: the first nodes of the trace take the "
        f"places from 0/0 to {job.shape.dp - 1}/{job.shape.pp - 1}, nodes beyond the first {job.nodes} are spares."
    )


def _file_digest(path: str) -> str:
    try:
        with Path(path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        what = f"cannot read the file: {error.strerror or error}"
        raise InvalidInputError(what, where=path, fix="check the path") from error


def parse_policies(text: str | None) -> tuple[str, ...]:
    """The value of `--policies`: names with commas between them; None: all.

    Raises:
        InvalidInputError: a name is unknown, or stands there twice.
    """
    from .planners.policies.catalogue import NAMES, require_name

    if text is None:
        return tuple(NAMES)
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        require_name(name)
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None or not names:
        what = f"{doubled} stands there twice" if doubled else "there are no policies"
        raise InvalidInputError(what, where="--policies", fix=f"take some of {', '.join(NAMES)}")
    return names
