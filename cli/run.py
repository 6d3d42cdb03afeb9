"""`rtk run`: a plan on real ranks."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.documents import canonical
from ..schemas.errors import InvalidInputError, RtkError, RuntimeFailedError
from ..schemas.files import STANDARD_STREAM
from .console import SETTINGS, Debug, Json, Quiet, Seed
from .coordinating import (
    Announcements,
    AtlasOption,
    CheckpointEvery,
    CheckpointOption,
    DataOption,
    HeartbeatLimit,
    HostMemory,
    InjectOption,
    Iterations,
    JobConfig,
    JobController,
    LearningRate,
    Metrics,
    MicrobatchSize,
    MitigateOption,
    ModelOption,
    NormalizeWithin,
    Paced,
    PolicyOption,
    Resume,
    SequenceLength,
    StallLimit,
    Threads,
    TimelineOption,
    Training,
    TransportKind,
    TransportOption,
    device,
    first_beyond,
    load_training,
    raise_for,
    tokens_of,
    training_of,
)
from .options import ProfileOption, read_valid_plan
from .run_output import RunFacts, RunReport

if TYPE_CHECKING:
    from ..runners.resilience.events import Announcement
    from ..runners.resilience.link import CoordinatorLink
    from ..runners.resilience.protocol import End, Hello, Returning
    from ..runners.resilience.server import Finished, Server
    from ..runners.torch.corpus import ByteBatch
    from ..runners.torch.iteration import Task
    from ..runners.torch.rendezvous import MeetingPlace
    from ..runners.torch.runner import PlanRunner
    from ..schemas.plan import Plan


# A worker of a resilient run: one process, which a coordinator tells what to execute.


M_ARENA_MAX = -8  # of malloc.h
LAST_WORDS_S = 1.0
COORDINATOR, SECRET, NOT_BEFORE = "RTK_COORDINATOR", "RTK_SECRET", "RTK_NOT_BEFORE"


class EndedError(RtkError):
    """The job ended without success; whoever coordinates has said why."""

    def __init__(self, end: "End") -> None:
        super().__init__(f"the coordinator has ended the job: {end.reason}")
        self.exit_code = end.exit_code


def work(
    plan: "Plan",
    training: Training,
    name: str,
    addresses: list[str],
    secret: bytes,
    patience_s: float,
    others: Sequence[str] = (),
) -> None:
    """Be worker `name` until the coordinator says that the job, or this worker's part in it, is over.

    Args:
        plan: that the job begins with.
        training: what to train.
        name: `k/i`.
        addresses: of the coordinator, and of standbys.
        secret: the job's.
        patience_s: how long to look for a lost coordinator, in s.
        others: this machine's addresses on other networks than that of the coordinator.

    Raises:
        InvalidInputError: the model or the data do not fit the plan, an address is not this machine's, or the
            coordinator refuses this worker.
        RuntimeFailedError: no coordinator is found for `patience_s`.
        EndedError: the job failed.
    """
    _keep_one_arena()
    import torch

    from ..runners.resilience.link import CoordinatorLink
    from ..runners.resilience.protocol import Failed
    from ..runners.torch.rendezvous import MeetingPlace
    from ..runners.torch.resilient import ResilientWorker

    die_with_launcher()
    torch.set_num_threads(training.threads)
    hostname = _own_address(addresses[0])
    task = _task(plan, training, name, secret, hostname, others)
    meeting, besides = MeetingPlace(secret, hostname), _places_besides(secret, others)
    worker = ResilientWorker(task)
    hello = _hello_of(task, meeting.address, tuple(place.address for place in besides))
    link = CoordinatorLink(
        addresses, secret, hello, patience_s=patience_s, on_interrupt=worker.announce, on_inquiry=worker.answer
    )
    SETTINGS.trains = True
    welcome = link.start()
    _leave_when_told(link)
    try:
        end = worker.run(link, welcome, partial(_end_at_once, link))
    except InvalidInputError as error:
        link.send(Failed(error.exit_code, str(error)))
        raise
    finally:
        link.close()
        for place in (meeting, *besides):
            place.close()
    if end.exit_code:
        raise EndedError(end)


def _end_at_once(link: "CoordinatorLink", exit_code: int, reason: str) -> None:
    """End this process, whose main thread nothing wakes any more, and let the coordinator know why.

    The kernel closes what is open; exit functions would wait for that thread.
    """
    from ..runners.resilience.protocol import Failed

    print(f"error: {reason}; this worker ends itself", file=sys.stderr, flush=True)
    telling = threading.Thread(target=link.send, args=(Failed(exit_code, reason),), daemon=True)
    telling.start()
    telling.join(LAST_WORDS_S)  # a coordinator that is stopped does not take them
    os._exit(exit_code)


def _task(plan: "Plan", training: Training, name: str, secret: bytes, hostname: str, others: Sequence[str]) -> "Task":
    """What the worker is to train; `hostname` and `others` are its addresses."""
    import torch

    from ..runners.torch.iteration import Task

    model, corpus = load_training(plan, training)
    return Task(
        name=name,
        plan=plan,
        make_layers=lambda: load_training(plan, training)[0].layers,
        loss=model.loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=training.learning_rate),
        batch=corpus.batch,
        settings=training.settings(),
        secret=secret,
        device=device(),
        hostname=hostname,
        others=tuple(others),
        paced=training.paced,
        seed=training.seed,
        transport=training.transport,
    )


def _hello_of(task: "Task", store: str, others: tuple[str, ...]) -> "Callable[[str, Returning | None], Hello]":
    """What the worker says to each coordinator first; `store` and `others`: where its meeting places are."""
    from ..runners.resilience.conditions import cores_here
    from ..runners.resilience.protocol import Hello
    from ..schemas.documents import digest

    plan_digest, cores = digest(task.plan), cores_here()

    def hello(proof: str, returning: "Returning | None") -> Hello:
        return Hello(
            proof=proof,
            worker=task.name,
            store=store,
            plan=plan_digest,
            job=task.settings,
            pid=os.getpid(),
            not_before=0 if returning else int(os.environ.get(NOT_BEFORE, "0")),
            returning=returning,
            others=others,
            cores=cores,
        )

    return hello


def name_of_rank(plan: "Plan", worker: str | None) -> str:
    """The name of this worker: as given, else that of the plan's live worker number RANK.

    Raises:
        InvalidInputError: there is neither, or the plan has no such worker.
    """
    names = [one.name for one in plan.workers]
    if worker is not None:
        if worker not in names:
            raise InvalidInputError(f"the plan has no worker {worker}", where="--worker", fix="name one as k/i")
        return worker
    live, rank = plan.live_workers(), os.environ.get("RANK")
    if rank is None or not rank.isdecimal() or int(rank) >= len(live):
        raise InvalidInputError(
            f"RANK is {rank}, the plan has {len(live)} live workers" if rank else "nothing says which worker this is",
            where="RANK",
            fix=f"give --worker k/i, or start {len(live)} workers with torchrun",
        )
    return live[int(rank)].name


def secret_of(file: str | None) -> bytes:
    """The job's secret: from a file, else from the environment.

    Raises:
        InvalidInputError: there is none, or it is too short.
    """
    from ..runners.resilience.wire import SHORTEST_BYTES, read_secret

    if file is not None:
        return read_secret(file)
    secret = os.environ.get(SECRET, "").strip().encode()
    if len(secret) < SHORTEST_BYTES:
        raise InvalidInputError(
            f"the job's secret is missing, or shorter than {SHORTEST_BYTES} bytes",
            where=f"--secret-file or {SECRET}",
            fix="give a file; `rtk coordinate` makes one where there is none, and its workers need the same",
        )
    return secret


def _keep_one_arena() -> None:
    """Have glibc allocate for all threads in one place.

    Every epoch has threads of its own; with an arena each, what they leave behind grew by 20 MB in 100 epochs.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def _places_besides(secret: bytes, addresses: Sequence[str]) -> "list[MeetingPlace]":
    """Where other workers find this one on other networks."""
    from ..runners.torch.rendezvous import MeetingPlace

    try:
        return [MeetingPlace(secret, address) for address in addresses]
    except RuntimeFailedError as error:
        raise InvalidInputError(error.what, where="--interface", fix=error.fix) from None


def _own_address(coordinator: str) -> str:
    """The address of this machine on the way to the coordinator: other workers reach it there as well."""
    from ..runners.resilience.wire import parse_address

    host, port = parse_address(coordinator, where="--coordinator")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing; only chooses the interface
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InvalidInputError(
            f"there is no way to the coordinator: {error.strerror or error}", where=coordinator, fix="check the address"
        ) from None


def _leave_when_told(link: "CoordinatorLink") -> None:
    """On SIGTERM, as spot instances give it before they go: finish the iteration and leave."""
    from ..runners.resilience.protocol import Leaving

    def leave(*_: object) -> None:
        # In a thread: the interrupted code may hold the lock that sending takes.
        threading.Thread(target=link.send, args=(Leaving(),), daemon=True).start()
        print("asked to leave: will do so after this iteration", file=sys.stderr)

    signal.signal(signal.SIGTERM, leave)


# Worker processes on this machine, started and ended together.


# How long a worker may take to end by itself, once the job is over, before it is killed.
GRACE_S = 5.0
LAUNCHED = "RTK_LAUNCHED"


class WorkerProcesses:
    """`rtk ARGUMENTS` in processes of their own, whose standard output and error are the caller's.

    When this process dies, they notice and end. Use as a context: at its end they are waited for, and then killed.

    Args:
        keep: descriptors that they inherit, under the same numbers.
    """

    def __init__(self, keep: Sequence[int] = ()) -> None:
        self._keep = tuple(keep)
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start one more process.

        Args:
            name: of the worker.
            arguments: the command line behind `rtk`.
            environment: what it finds in its environment beside ours.
        """
        command = [sys.executable, "-m", "rtk.cli.main", *arguments]
        variables = {**os.environ, **environment, LAUNCHED: "1"}
        process = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, pass_fds=self._keep)
        self._processes.append((name, process))

    def resume(self, name: str) -> None:
        """Let a stopped worker go on."""
        for other, process in self._processes:
            if other == name and process.poll() is None:
                process.send_signal(signal.SIGCONT)

    def ended(self) -> tuple[str, int] | None:
        """A worker that has ended without success, and its exit code, negative for a signal; None while all is well."""
        found = [(name, process.poll()) for name, process in self._processes]
        codes = [(name, code) for name, code in found if code]
        # Invalid input on one worker shows on the others as a broken connection (5): the lower code is the cause.
        killed = [one for one in codes if one[1] < 0]
        return killed[0] if killed else min(codes, key=lambda one: one[1], default=None)

    def are_over(self) -> bool:
        """Whether all have ended."""
        return all(process.poll() is not None for _, process in self._processes)

    def __enter__(self) -> "WorkerProcesses":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        deadline = time.monotonic() + (GRACE_S if error is None else 0.0)
        while time.monotonic() < deadline and any(process.poll() is None for _, process in self._processes):
            time.sleep(0.01)
        for _, process in self._processes:
            if process.poll() is None:
                process.kill()
        for _, process in self._processes:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def die_with_launcher() -> None:
    """In a worker that `WorkerProcesses` started: end with the launcher; elsewhere do nothing."""
    if LAUNCHED not in os.environ:
        return

    def watch() -> None:
        # The launcher holds the other end of our standard input and never writes to it. Python's own stream object
        # would be locked by this read when the interpreter shuts down.
        os.read(0, 1)
        os._exit(RuntimeFailedError.exit_code)

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()


NAME = "run"
SUMMARY = "Execute a plan on real processes, and go on when some die."


def command(
    plan: Annotated[str, typer.Argument(help="The plan; `-` is standard input.")],
    model: ModelOption,
    data: DataOption = None,
    iterations: Iterations = 10,
    learning_rate: LearningRate = 1e-3,
    microbatch_size: MicrobatchSize = None,
    sequence_length: SequenceLength = None,
    threads: Threads = 1,
    paced: Paced = False,
    transport: TransportOption = TransportKind.AUTO,
    seed: Seed = 0,
    policy: PolicyOption = None,
    atlas: AtlasOption = None,
    normalize_within: NormalizeWithin = 100,
    host_memory: HostMemory = 0.0,
    mitigate: MitigateOption = None,
    checkpoint: CheckpointOption = None,
    checkpoint_every: CheckpointEvery = 0,
    resume: Resume = None,
    inject: InjectOption = None,
    heartbeat_limit: HeartbeatLimit = 2.0,
    stall_limit: StallLimit = None,
    timeline: TimelineOption = None,
    metrics: Metrics = None,
    coordinator: Annotated[
        list[str] | None,
        typer.Option(
            "--coordinator", envvar=COORDINATOR, help="host:port of `rtk coordinate`, and of standbys: be its worker."
        ),
    ] = None,
    worker: Annotated[str | None, typer.Option("--worker", help="Be this worker, k/i; else the RANK-th.")] = None,
    interface: Annotated[
        list[str] | None,
        typer.Option(
            "--interface",
            help="A further address of this machine, on another network, by which workers reach each other where a "
            "link breaks. May be repeated; all workers give their networks in the same order.",
        ),
    ] = None,
    secret_file: Annotated[
        str | None, typer.Option("--secret-file", help=f"The job's secret; else {SECRET} holds it.")
    ] = None,
    patience: Annotated[
        float, typer.Option("--patience", min=0, help="Seconds that a worker looks for a lost coordinator.")
    ] = 60.0,
    profile: ProfileOption = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Execute a plan on real processes.

    Started plainly: a coordinator in this process, and one worker process per live worker on this machine; a job that
    is saved to start again (--mitigate S4) does so once, with new processes. With --coordinator: one worker, whose
    coordinator leads the job and alone decides on iterations, checkpoints and faults. Under torchrun without a
    coordinator: one worker of a job that ends when one of them fails.

    Data are bytes of text files, chosen by iteration and micro-batch and never by rank. With --json, one JSON line an
    event.
    """
    is_worker = bool(coordinator) or "RANK" in os.environ
    if is_worker and plan == STANDARD_STREAM:
        raise InvalidInputError("every worker reads the plan by itself", where="PLAN", fix="give a file, not `-`")
    if interface and not coordinator:
        raise InvalidInputError(
            "only a coordinator's workers meet there", where="--interface", fix="give --coordinator"
        )
    read = read_valid_plan(plan, profile)
    training = training_of(
        read, model, data, learning_rate, microbatch_size, sequence_length, threads, paced, seed, transport
    )
    how = JobConfig(
        iterations=iterations,
        timeline=timeline,
        policy=policy,
        atlas=atlas,
        normalize_within=normalize_within,
        host_memory=host_memory,
        mitigate=mitigate,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        resume=resume,
        inject=inject,
        heartbeat_limit_s=heartbeat_limit,
        stall_limit_s=stall_limit,
        metrics=metrics,
    )
    if coordinator:
        _refuse_conducting(how)
        name, secret = name_of_rank(read, worker), secret_of(secret_file)
        work(read, training, name, _addresses(coordinator), secret, patience, interface or ())
    elif is_worker:
        work_under_torchrun(read, training, how, as_json, quiet)
    else:
        run_here(read, training, how, as_json, quiet)


def run_here(plan: "Plan", training: Training, how: JobConfig, as_json: bool = False, quiet: bool = False) -> None:
    """Lead a job from this process, with one process per live worker on this machine.

    What all workers would refuse is refused here, once, before any of them is started.

    Raises:
        InvalidInputError: something does not fit the plan.
        RuntimeFailedError: training could not go on.
    """
    conductor = JobController(plan, how)
    _, corpus = load_training(plan, training)
    facts = RunFacts(plan, training.model, tokens_of(plan, corpus), training.paced, how.iterations)
    report = RunReport(facts, as_json=as_json, quiet=quiet, metrics=how.metrics)
    # The workers read a copy, for the plan may have come through a pipe; it has no name, so that nothing can be left.
    with tempfile.TemporaryFile() as copy, report:
        copy.write(canonical(plan))
        copy.flush()
        options = [*training.arguments(), *(["--debug"] if SETTINGS.debug else [])]
        finished = _lead(conductor, copy.fileno(), options, report.report)
        if conductor.may_go_on:
            conductor = conductor.again()
            finished = _lead(conductor, copy.fileno(), options, report.report)
    conductor.write_timeline()
    raise_for(finished, conductor)


def _lead(conductor: JobController, plan: int, options: list[str], report: Announcements) -> "Finished":
    """Lead a job, or the rest of it, with processes of its own, which read the plan from a descriptor."""
    from ..runners.resilience.wire import make_secret

    secret = make_secret()
    with WorkerProcesses(keep=[plan]) as workers:
        server = conductor.server(secret, _hear(report, conductor, workers))
        arguments = ["run", f"/dev/fd/{plan}", *options]
        _start_workers(workers, conductor, arguments, server.address, secret)
        threading.Thread(target=conductor.warm_up, name="warm-up", daemon=True).start()
        return _led(server, workers, conductor)


def _start_workers(
    workers: WorkerProcesses, conductor: JobController, arguments: list[str], address: str, secret: bytes
) -> None:
    """All live workers, and those that a trace will have join."""
    names = [worker.name for worker in conductor.plan.live_workers()]
    events = conductor.trace.events if conductor.trace else ()
    joins = [(event.worker, event.iteration) for event in events if event.kind == "join"]
    for index, (name, not_before) in enumerate([*((name, 0) for name in names), *joins]):
        assert name is not None
        environment = {
            COORDINATOR: address,
            SECRET: secret.decode(),
            NOT_BEFORE: str(not_before),
            "LOCAL_RANK": str(index),
            "LOCAL_WORLD_SIZE": str(len(names)),
        }
        workers.start(name, [*arguments, "--worker", name], environment)


def _hear(report: Announcements, conductor: JobController, workers: WorkerProcesses) -> Announcements:
    """Hand everything that happens to the report, but the end of a job that starts again; a trace's `recover` lets a
    stopped process go on."""
    from ..runners.resilience.events import IterationCommitted, JobEnded

    events = conductor.trace.events if conductor.trace else ()
    recovering = [(event.iteration, event.worker) for event in events if event.kind == "recover"]

    def hear(what: "Announcement") -> None:
        if not isinstance(what, JobEnded) or not conductor.may_go_on:
            report(what)
        if isinstance(what, IterationCommitted):
            for iteration, name in recovering:
                if iteration == (what.iteration or 0) + 1 and name is not None:
                    workers.resume(name)

    return hear


def _led(server: "Server", workers: WorkerProcesses, conductor: JobController) -> "Finished":
    """Lead until the end; a worker that ends before the job has begun ends it, with the exit code it had."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.05):
            ended = workers.ended()
            if ended is not None and not conductor.has_begun:
                time.sleep(0.2)  # others that end for the same reason may say so
                name, code = workers.ended() or ended
                how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                server.finish(code if code > 0 else RuntimeFailedError.exit_code, f"worker {name} {how}")
                return

    watcher = threading.Thread(target=watch, name="watching workers", daemon=True)
    watcher.start()
    try:
        return server.run()
    finally:
        is_over.set()


def _addresses(given: list[str]) -> list[str]:
    """All addresses, several of which may stand in one text, as in an environment variable."""
    from ..runners.resilience.wire import parse_address

    addresses = [one for text in given for one in text.replace(",", " ").split()]
    for address in addresses or [""]:
        parse_address(address, where="--coordinator")
    return addresses


def _refuse_conducting(how: JobConfig) -> None:
    """The coordinator alone decides how its job is led."""
    option = first_beyond(JobConfig(iterations=10), how)
    if option is not None:
        fix = (
            "let `rtk run` lead its own job: no --coordinator" if option == "--inject" else "give it to rtk coordinate"
        )
        raise InvalidInputError(f"the coordinator decides on {option}, not its workers", where=option, fix=fix)


# A worker of a plain run: one process of torchrun's, without a coordinator, which fails with the others.


def work_under_torchrun(plan: "Plan", training: Training, how: JobConfig, as_json: bool, quiet: bool) -> None:
    """Be one worker of a job without a coordinator, which ends when one of its workers fails.

    Raises:
        InvalidInputError: the model or the data do not fit the plan, or an option needs a coordinator.
    """
    _refuse_resilience(how)
    import torch

    from ..runners.torch.runner import PlanRunner
    from ..schemas.documents import write_document

    torch.set_num_threads(training.threads)
    model, corpus = load_training(plan, training)
    runner = PlanRunner(
        plan,
        model.layers,
        model.loss,
        lambda parameters: torch.optim.AdamW(parameters, lr=training.learning_rate),
        device=device(),
        paced=training.paced,
        seed=training.seed,
        transport=training.transport,
    )
    SETTINGS.trains = True
    facts = RunFacts(plan, training.model, tokens_of(plan, corpus), training.paced, how.iterations)
    report = RunReport(facts, as_json=as_json, quiet=quiet, metrics=how.metrics)
    if runner.reports_loss():
        with report:
            _report_all(runner, corpus.batch, how.iterations, report)
    else:
        for iteration in range(how.iterations):
            runner.step(corpus.batch(iteration))
    if how.timeline is not None:
        timeline = runner.timeline()
        if timeline is not None:
            write_document(how.timeline, timeline)
    runner.close()


def _report_all(runner: "PlanRunner", batch: "Callable[[int], ByteBatch]", iterations: int, report: RunReport) -> None:
    """Run all iterations, and say what each gave; it lasts from the end of the one before it."""
    from ..runners.resilience.events import IterationCommitted, JobEnded, JobStarted

    live = len(runner.plan.live_workers())
    report.report(JobStarted(epoch=0, live_workers=live, iterations=iterations, iteration=0))
    times_s, last_end_s = [], None
    for iteration in range(iterations):
        result = runner.step(batch(iteration))
        times_s.append(result.end_s - (result.start_s if last_end_s is None else last_end_s))
        last_end_s = result.end_s
        report.report(
            IterationCommitted(
                epoch=0, iteration=iteration, loss=result.loss, iteration_time_s=times_s[-1], live_workers=live
            )
        )
    done = "all iterations are done"
    report.report(JobEnded(epoch=0, exit_code=0, reason=done, iterations=iterations, iteration_time_s=median(times_s)))


def _refuse_resilience(how: JobConfig) -> None:
    """Without a coordinator there is nobody to lead."""
    option = first_beyond(JobConfig(how.iterations, timeline=how.timeline, metrics=how.metrics), how)
    if option is not None:
        raise InvalidInputError(
            f"{option} needs a coordinator",
            where=option,
            fix="start `rtk coordinate`, and the workers with --coordinator",
        )
