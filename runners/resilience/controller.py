"""A job that survives, led: its coordinator with all that it needs, and its workers where they run on this machine.

What a planner answers and a profiler's monitor finds come in as a `JobAdvice` (schemas/protocols.py).
"""

import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.checkpoint import Checkpoint
from ...schemas.conditions import Conditions
from ...schemas.documents import canonical, digest, to_tree, write_document
from ...schemas.errors import InvalidInputError, RtkError, RuntimeFailedError, remark
from ...schemas.plan import Plan, rank_name
from ...schemas.protocols import Hand, JobAdvice, Replanned
from ...schemas.rank_trace import by_rank, spare_ranks, whole_newcomers
from ...schemas.text import counted, listed
from ...schemas.timeline import Span, Timeline, memory_of_workers
from ...schemas.trace import Trace, TraceEvent, link_ends, read_valid_trace
from ..checkpoint import find, read_manifest, refuse_partial
from ..nursery import Nursery
from ..processes import LED, WorkerProcesses
from ..ranks import degree_of, processes_of
from ..training import COORDINATOR, NOT_BEFORE, SECRET, JobConfig, checkpoints_due
from .announcements import (
    Announcement,
    CheckpointSaved,
    IterationCommitted,
    JobEnded,
    JobRestarting,
    JobStarted,
    OperationsTimed,
    timeline_events,
)
from .conditions import Crowding
from .journal import Journal, take
from .pace import PaceFollower
from .progress import INTERRUPTED
from .protocol import DataPosition, Hello, Job, Welcome
from .regrouping import rehearse
from .rules import CoordinatorRules
from .server import Finished, Limits, Server, Surroundings
from .unit_gate import UnitGate
from .wire import make_secret

if TYPE_CHECKING:
    from ..log_writers import LogWriter

Announcements = Callable[[Announcement], None]
Adviser = Callable[[Plan, JobConfig], JobAdvice]

# Within it a second Ctrl-C is the first one: torchrun passes on what a terminal has sent to all its processes.
TWICE_S = 0.3

# What another coordinator of the same job may have otherwise.
OF_A_COORDINATOR = ("heartbeat_limit_s", "stall_limit_s", "timeline", "metrics", "log_to", "page")
# What jobs of earlier versions did not know.
ADDED = ("tp_across", "lower_degree", "profile", "min_workers", "join_wait_s")


class JobController:
    """A job, read and checked, and what its coordinator needs around it.

    Args:
        plan: valid.
        how: how to lead it.
        advise: gives what planners and profilers know of it.
        trace: what happens to its workers; None: what `how.inject` says.

    Attributes:
        has_begun: whether all workers have come, and training has begun.
        happened: all announcements so far, and when they came, by the clock of `time.perf_counter`.
        events: of the trace, each with the rank that it happens to where workers have several.
        saved: the last checkpoint, if there is one.
        restarts_at: before which iteration the job is to start again on other workers, once it is saved; None: it goes
            on.

    Raises:
        InvalidInputError: the atlas, the checkpoint or the trace is not for this plan, or remedies not for its policy,
            or the stages of one worker are on unlike numbers of GPUs.
    """

    def __init__(self, plan: Plan, how: JobConfig, advise: Adviser, trace: Trace | None = None) -> None:
        degree_of(plan)  # refused now or never
        self.plan, self.how = plan, how
        self.trace = _trace(plan, how.inject) if trace is None else trace
        self.events = () if self.trace is None else by_rank(plan, self.trace).events
        self.job = _job(plan, how, self.trace)
        self._advise, self._advice = advise, advise(plan, how)
        self.job = replace(self.job, lower=self._advice.lower)
        self._spans: list[tuple[str, str, float, float, int]] = []
        self._planned: list[Plan] = []
        self.happened: list[tuple[float, Announcement]] = []
        self.has_begun = False
        self.restarts_at: int | None = None
        self.saved: str | None = None
        self._is_paced = False
        self._follower = PaceFollower(self._advice.pace, plan)
        self._missing = dict.fromkeys(processes_of(plan))  # in this order
        self._tells_who_comes = False
        self._crowding: Crowding | None = None

    def settings(self) -> dict[str, Any]:
        """What makes it this job, for the header of its log."""
        told = {name: value for name, value in asdict(self.how).items() if name not in OF_A_COORDINATOR}
        told["profile"] = self.how.profile is not None or None  # wherever it is, it is the plan's
        usual = {one.name: one.default for one in fields(self.how)}
        # As in logs of before there were such settings.
        return {name: value for name, value in told.items() if name not in ADDED or value != usual[name]}

    def server(
        self,
        secret: bytes,
        announce: Announcements,
        journal: Journal | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        is_watchful: bool = True,
    ) -> Server:
        """A coordinator that listens.

        Args:
            secret: the job's.
            announce: hears of everything that happens.
            journal: its log, or None.
            host, port: where to listen.
            is_watchful: whether it looks for what is slow, unless workers without a pace share cores; where a trace
                slows something down it always does.
        """

        def note(what: Announcement) -> None:
            told = self._follower.note(what, rules.plan)
            if told is not None:
                announce(told)
            self._note(what)
            announce(what)

        rules = CoordinatorRules(self.job)

        slows = self.trace is not None and any(event.kind.startswith("slow") for event in self.trace.events)
        monitor = self._advice.monitor(is_resumed=journal is not None) if is_watchful or slows else None
        self._crowding = None if monitor is None or slows else Crowding(monitor, remark)
        surroundings = Surroundings(
            make_plan=self._make_plan,
            resume=lambda *what: self._advice.resume(*what),  # late, too
            welcome=self._welcome,
            announce=note,
            on_spans=partial(self._take_spans, announce),
            monitor=self._crowding or monitor,
            log=lambda line: print(line, file=sys.stderr),
        )
        limits = Limits(heartbeat_s=self.how.heartbeat_limit_s)
        return Server(UnitGate(rules), journal, secret, surroundings, host=host, port=port, limits=limits)

    def warm_up(self) -> None:
        """Load what planning needs before the first worker dies."""
        self._advice.answers.warm_up()
        rehearse(self.plan, self._advice.resume)

    def lead(
        self,
        announce: Announcements,
        secret: bytes,
        journal: Journal | None,
        host: str,
        port: int,
        is_ready: Callable[[Server], None],
        stops: Sequence[int] = (signal.SIGINT,),
    ) -> None:
        """Listen, and lead the job until its end.

        Args:
            announce, secret, journal, host, port: as for `server`.
            is_ready: is told the coordinator once it listens.
            stops: the signals that stop the job.

        Raises:
            RuntimeFailedError: training could not go on.
        """
        server = self.server(secret, announce, journal, host, port)
        self._tells_who_comes = True
        is_ready(server)
        try:
            # Workers elsewhere are to hear that it is over; they would wait for another coordinator.
            with heeding(server, stops, partial(server.finish, INTERRUPTED, "interrupted")):
                finished = server.run()
        finally:
            if journal is not None:
                journal.close()
        self.write_timeline()
        raise_for(finished, self)

    def take_over(self, log: str | None, standby: bool) -> Journal | None:
        """Load what planning needs, meanwhile open the log, if there is one; a standby waits until it is free.

        Raises:
            InvalidInputError: the log is of another job, or cannot be written.
        """
        # A standby has time before its turn; workers may be waiting for anybody else.
        warming = threading.Thread(target=self.warm_up, name="warm-up", daemon=True)
        warming.start()
        if standby:
            warming.join()
            remark(f"standing by until the coordinator that has {log} is gone")
        return None if log is None else take(log, plan=digest(self.plan), job=self.settings(), wait=standby)

    @property
    def may_go_on(self) -> bool:
        """Whether the job was saved to start again."""
        return self.restarts_at is not None and self.saved is not None

    def again(self) -> "JobController":
        """What leads the rest of a job that may go on.

        It starts again no more, and what was injected into the old workers does not happen to the new ones.
        """
        assert self.restarts_at is not None
        how = replace(self.how, inject=None, resume=self.saved, mitigate=self._advice.mitigate_without_restart)
        trace = self.trace and events_after(Trace(self.events), self.restarts_at)
        next_one = JobController(self.plan, how, self._advise, trace)
        next_one._spans, next_one._planned, next_one.happened = self._spans, self._planned, self.happened
        return next_one

    def write_timeline(self) -> None:
        """Write what the workers executed, and what happened to them, where that was asked for."""
        if self.how.timeline is not None:
            write_document(self.how.timeline, self._timeline())

    def _note(self, what: Announcement) -> None:
        """Something has happened."""
        if not isinstance(what, JobEnded) or not self.may_go_on:
            self.happened.append((time.perf_counter(), what))
        match what:
            case JobStarted():
                self.has_begun = True
            case JobRestarting():
                self.restarts_at = what.iteration
            case CheckpointSaved() if what.path and not what.error:
                self.saved = what.path

    def _make_plan(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
        found = self._advice.answers(plan, crew, conditions)
        if self.how.timeline is not None:
            self._planned.append(found.plan)
        return found

    def _welcome(self, hello: Hello) -> Welcome:
        self._is_paced = bool(hello.job.get("paced"))
        self._follower.arrive(hello)
        if self._missing.pop(hello.process, "") is None and self._tells_who_comes:
            rest = f"waiting for {listed(self._missing)}" if self._missing else "all are there"
            remark(f"worker {hello.process} is there; {rest}")
        if self._crowding is not None:
            self._crowding.arrive(hello)
        events = tuple(to_tree(event) for event in _events_of(self.events, hello))
        # All ranks of a worker compute in step: whichever is the first one tells for all.
        is_shown = self.how.timeline is not None or self.how.page is not None
        wants_spans = is_shown or self._follower.can_follow
        return Welcome(1.0, 0.0, "", spans=wants_spans, inject=events, data=self.job.data)

    def _take_spans(
        self, announce: Announcements, worker: str, place: str, spans: tuple[tuple[str, float, float, int], ...]
    ) -> None:
        self._follower.take(place, spans)
        if self.how.page is not None:
            announce(OperationsTimed(place=place, spans=spans))
        if self.how.timeline is not None:
            self._spans.extend((place, *span) for span in spans)

    def _timeline(self) -> Timeline:
        origin_s = min((start_s for _, _, start_s, _, _ in self._spans), default=0.0)
        spans = [Span(p, op, start_s - origin_s, end_s - origin_s, n) for p, op, start_s, end_s, n in self._spans]
        return Timeline(
            "measured",
            tuple(sorted(spans, key=lambda span: (span.start_s, span.worker))),
            memory_of_workers(self.plan, *self._planned),
            events=timeline_events((max(0.0, at_s - origin_s), what) for at_s, what in self.happened),
            plan=digest(self.plan),
            paced=self._is_paced,
        )


class JobEndedError(RtkError):
    """A worker has said what is wrong and ended with an exit code, which becomes ours."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class JobStoppedError(RtkError):
    """The job has ended early, because somebody wanted it to.

    Args:
        checkpoint: with what was done; None where there is none.
    """

    exit_code = INTERRUPTED

    def __init__(self, checkpoint: str | None) -> None:
        how = "a job with --checkpoint is saved when it is stopped"
        super().__init__("stopped as asked", fix=f"go on with --resume {checkpoint}" if checkpoint else how)
        self.checkpoint = checkpoint


@contextmanager
def heeding(server: Server, numbers: Sequence[int], end_at_once: Callable[[], None]) -> Iterator[None]:
    """Let the first of some signals stop a job after the iteration under way, and the next Ctrl-C end it at once.

    Only in the main thread, and only signals that nobody else handles, or has shut off.

    Args:
        server: of the job.
        numbers: the signals.
        end_at_once: called from the handler.
    """
    asked_s: list[float] = []

    def hear(number: int, frame: object) -> None:
        now_s = time.monotonic()
        if not asked_s:
            server.stop()
        elif number == signal.SIGINT and now_s > asked_s[-1] + TWICE_S:
            end_at_once()
        asked_s.append(now_s)

    usual: list[Any] = [signal.SIG_DFL, signal.default_int_handler]
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers}
    ours = {number: handler for number, handler in before.items() if is_main and handler in usual}
    for number in ours:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


def _interrupt() -> None:
    raise KeyboardInterrupt


def raise_for(finished: Finished, controller: JobController) -> None:
    """Turn an end without success into the error that has its exit code."""
    if finished.exit_code == INTERRUPTED:
        raise JobStoppedError(controller.saved)
    if controller.restarts_at is not None and finished.exit_code:
        resume = f"--resume {controller.how.checkpoint}"
        raise RuntimeFailedError(
            finished.reason, fix=f"start all commands again on other machines: rtk coordinate … {resume}, a new --log"
        )
    if finished.exit_code == RuntimeFailedError.exit_code:
        raise RuntimeFailedError(finished.reason, fix="start the run again, with --resume where there is a checkpoint")
    if finished.exit_code:
        raise JobEndedError(finished.exit_code, finished.reason)


def events_after(trace: Trace, iteration: int) -> Trace:
    """What a trace holds for workers that are all new from an iteration on, where nothing is slow, broken or dead."""
    struck: set[tuple[str | None, int | None]] = set()
    kept = []
    for event in trace.events:
        assert event.iteration is not None
        who = (event.worker or event.link, event.gpu)
        is_cure = event.kind in ("recover", "join")
        if event.iteration >= iteration and (not is_cure or who in struck):
            struck.add(who)
            kept.append(event)
    return Trace(tuple(kept))


def _job(plan: Plan, how: JobConfig, trace: Trace | None) -> Job:
    every, every_s = checkpoints_due(how.checkpoint_every)
    most = len(plan.live_workers())
    if how.min_workers is not None and not 1 <= how.min_workers <= most:
        raise InvalidInputError(
            f"the plan has {most} live workers, and the job is to begin with {how.min_workers}",
            where="--min-workers",
            fix=f"take from 1 to {most}, or make a plan of more workers",
        )
    job = Job(
        plan=plan,
        iterations=how.iterations,
        heartbeat_limit_s=how.heartbeat_limit_s,
        stall_limit_s=how.stall_limit_s,
        # Workers may have been started in other folders.
        checkpoint=None if how.checkpoint is None else str(Path(how.checkpoint).absolute()),
        checkpoint_every=every,
        checkpoint_every_s=every_s,
        newcomers=whole_newcomers(plan, trace) if trace else 0,
        spare_ranks=spare_ranks(plan, trace) if trace else 0,
        tp_across=how.tp_across,
        min_workers=how.min_workers,
        join_wait_s=how.join_wait_s,
    )
    return job if how.resume is None else _resumed(job, how.resume)


def _resumed(job: Job, folder: str) -> Job:
    """The job from a checkpoint on.

    Raises:
        InvalidInputError: there is none, it is of another model, or nothing is left to do.
    """
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
    if manifest.row is None and manifest.total_microbatches != job.plan.total_microbatches():
        remark(
            f"the checkpoint's plan had {manifest.total_microbatches} micro-batches an iteration, "
            f"this one has {job.plan.total_microbatches()}: the data go on from other samples"
        )
    data = None if manifest.row is None else DataPosition(manifest.iteration, manifest.row, _rows_of(manifest))
    taken = manifest.iteration if manifest.steps is None else manifest.steps
    return replace(job, first_iteration=manifest.iteration, resume=str(path.resolve()), taken=taken, data=data)


def _rows_of(manifest: Checkpoint) -> int | None:
    """How many rows the data had; None where the settings do not say."""
    told = manifest.job.get("dataset")
    rows = told.get("rows") if isinstance(told, dict) else None
    return rows if isinstance(rows, int) and rows > 0 else None


def _trace(plan: Plan, path: str | None) -> Trace | None:
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


def _events_of(events: Sequence[TraceEvent], hello: Hello) -> list[TraceEvent]:
    """The events that a process plays: its own between its start, or join, and the next join.

    Those of its worker's links are all its own, for they happen to machines, whoever runs there.
    """
    mine = [event for event in events if event.worker == hello.worker and (event.gpu or 0) == hello.rank]
    starts = [0, *(i + 1 for i, event in enumerate(mine) if event.kind == "join"), len(mine) + 1]
    played: list[TraceEvent] = []
    for first, stop in pairwise(starts):
        joined_at = mine[first - 1].iteration if first else 0
        if joined_at == hello.not_before:
            played = mine[first : stop - 1]
            break
    own = {id(event) for event in played}
    return [
        event
        for event in events
        if id(event) in own or (event.link is not None and hello.worker in link_ends(event.link))
    ]


# A job of this machine.


class LocalJob:
    """A job that this process leads, with one process per live worker on this machine.

    Args:
        controller: of the job.
        tokens: of one iteration.
        arguments: the workers' command line behind the plan.
        nursery: forks them, and is closed at the end.
        logs: what a script wants to be told of the job, beside whoever runs it.

    Attributes:
        tokens: of one iteration.
        logs: as given.
    """

    def __init__(
        self,
        controller: JobController,
        tokens: int,
        arguments: Sequence[str],
        nursery: Nursery,
        logs: "Sequence[LogWriter]" = (),
    ) -> None:
        self._controller, self.tokens, self._arguments = controller, tokens, list(arguments)
        self._nursery, self.logs = nursery, list(logs)

    def run(self, announce: Announcements) -> list[Announcement]:
        """Lead it until its end, and give all that has happened.

        Args:
            announce: hears of everything that happens, as it happens.

        Raises:
            RuntimeFailedError: training could not go on.
        """
        # The workers read a copy, for the plan may have come through a pipe; it has no name, so that nothing can be
        # left.
        with closing(self._nursery), tempfile.TemporaryFile() as copy:
            copy.write(canonical(self._controller.plan))
            copy.flush()
            finished = self._lead(copy.fileno(), announce)
            if self._controller.may_go_on:
                self._controller = self._controller.again()
                finished = self._lead(copy.fileno(), announce)
        self._controller.write_timeline()
        raise_for(finished, self._controller)
        return [what for _, what in self._controller.happened]

    def _lead(self, plan: int, report: Announcements) -> Finished:
        """Lead the job, or the rest of it, with processes of its own, which read the plan from a descriptor."""
        controller, secret = self._controller, make_secret()
        server: Server  # it is there before the workers, of whose deaths it is told
        with WorkerProcesses(self._nursery, [plan], lambda name, pid: server.mourn(name, pid)) as workers:
            remark(f"starting {_counted_workers(controller.plan)} …")
            server = controller.server(secret, _hear(report, controller, workers))
            arguments = ["run", f"/dev/fd/{plan}", *self._arguments]
            # While the nursery loads torch, and not while workers need the cores.
            threading.Thread(target=controller.warm_up, name="warm-up", daemon=True).start()
            _start_workers(workers, controller, arguments, server.address, secret)
            return _led(server, workers, controller)


def _counted_workers(plan: Plan) -> str:
    """How many workers are started, and how many processes they are, where that is not the same."""
    workers, processes = len(plan.live_workers()), len(plan.live_ranks())
    return counted(workers, "worker") + (f", {processes} processes" if processes > workers else "")


def _start_workers(
    workers: WorkerProcesses, controller: JobController, arguments: list[str], address: str, secret: bytes
) -> None:
    """All processes of live workers, and those that a trace will have join."""
    plan = controller.plan
    names = processes_of(plan)
    newcomers = [(process_of(plan, one), one.iteration or 0) for one in controller.events if one.kind == "join"]
    for index, (name, not_before) in enumerate([*((name, 0) for name in names), *newcomers]):
        environment = {
            COORDINATOR: address,
            SECRET: secret.decode(),
            NOT_BEFORE: str(not_before),
            "LOCAL_RANK": str(index),
            "LOCAL_WORLD_SIZE": str(len(names)),
            LED: "1",
        }
        workers.start(name, [*arguments, "--worker", name], environment)


def process_of(plan: Plan, event: TraceEvent) -> str:
    """The name of the process that an event of a worker happens to."""
    assert event.worker is not None
    worker = next(one for one in plan.workers if one.name == event.worker)
    return rank_name(event.worker, event.gpu or 0, plan.gpus_of(worker))


def _hear(report: Announcements, controller: JobController, workers: WorkerProcesses) -> Announcements:
    """Hand everything that happens to the report, but the end of a job that starts again; a trace's `recover` lets a
    stopped process go on."""
    recovering = [
        (event.iteration, process_of(controller.plan, event))
        for event in controller.events
        if event.kind == "recover" and event.worker is not None
    ]

    def hear(what: Announcement) -> None:
        if not isinstance(what, JobEnded) or not controller.may_go_on:
            report(what)
        if isinstance(what, IterationCommitted):
            for iteration, name in recovering:
                if iteration == (what.iteration or 0) + 1:
                    workers.resume(name)

    return hear


def _led(server: Server, workers: WorkerProcesses, controller: JobController) -> Finished:
    """Lead until the end; a worker that ends before the job has begun ends it, with the exit code it had."""
    is_over = threading.Event()

    def watch() -> None:
        """In a thread beside the server: end the job if a worker ends before it has begun."""
        while not is_over.wait(0.05):
            ended = workers.ended()
            if ended is not None and not controller.has_begun:
                time.sleep(0.2)  # others that end for the same reason may say so
                name, code = workers.ended() or ended
                how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                server.finish(code if code > 0 else RuntimeFailedError.exit_code, f"worker {name} {how}")
                return

    watcher = threading.Thread(target=watch, name="watching workers", daemon=True)
    watcher.start()
    try:
        with heeding(server, (signal.SIGINT, signal.SIGTERM), _interrupt):
            return server.run()
    finally:
        is_over.set()
