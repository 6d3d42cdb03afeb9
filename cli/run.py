"""`rtk run`: a plan on real ranks."""

import os
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.documents import canonical
from ..schemas.errors import InvalidInputError, RuntimeFailedError
from ..schemas.files import STANDARD_STREAM
from .conducting import (
    Announcements,
    CheckpointEvery,
    CheckpointOption,
    Conduct,
    Conductor,
    HeartbeatLimit,
    InjectOption,
    Iterations,
    Metrics,
    Resume,
    StallLimit,
    TimelineOption,
    first_beyond,
    raise_for,
)
from .console import SETTINGS, Debug, Json, Quiet, Seed
from .launch import Workers
from .plans import ProfileOption, read_valid_plan
from .policy import AtlasOption, HostMemory, MitigateOption, NormalizeWithin, PolicyOption
from .resilient_worker import COORDINATOR, NOT_BEFORE, SECRET, name_of_rank, secret_of, work
from .run_report import RunReport
from .run_story import RunFacts
from .torchrun_worker import work_under_torchrun
from .training import (
    DataOption,
    LearningRate,
    MicrobatchSize,
    ModelOption,
    Paced,
    SequenceLength,
    Threads,
    Training,
    Transport,
    TransportOption,
    load_training,
    tokens_of,
    training_of,
)

if TYPE_CHECKING:
    from ..runners.resilience.announcements import Announcement
    from ..runners.resilience.server import Finished, Server
    from ..schemas.plan import Plan

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
    transport: TransportOption = Transport.AUTO,
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
    how = Conduct(
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


def run_here(plan: "Plan", training: Training, how: Conduct, as_json: bool = False, quiet: bool = False) -> None:
    """Lead a job from this process, with one process per live worker on this machine.

    What all workers would refuse is refused here, once, before any of them is started.

    Raises:
        InvalidInputError: something does not fit the plan.
        RuntimeFailedError: training could not go on.
    """
    conductor = Conductor(plan, how)
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


def _lead(conductor: Conductor, plan: int, options: list[str], report: Announcements) -> "Finished":
    """Lead a job, or the rest of it, with processes of its own, which read the plan from a descriptor."""
    from ..runners.resilience.secret import make_secret

    secret = make_secret()
    with Workers(keep=[plan]) as workers:
        server = conductor.server(secret, _hear(report, conductor, workers))
        arguments = ["run", f"/dev/fd/{plan}", *options]
        _start_workers(workers, conductor, arguments, server.address, secret)
        threading.Thread(target=conductor.warm_up, name="warm-up", daemon=True).start()
        return _led(server, workers, conductor)


def _start_workers(workers: Workers, conductor: Conductor, arguments: list[str], address: str, secret: bytes) -> None:
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


def _hear(report: Announcements, conductor: Conductor, workers: Workers) -> Announcements:
    """Hand everything that happens to the report, but the end of a job that starts again; a trace's `recover` lets a
    stopped process go on."""
    from ..runners.resilience.announcements import IterationCommitted, JobEnded

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


def _led(server: "Server", workers: Workers, conductor: Conductor) -> "Finished":
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
    from ..runners.resilience.addresses import parse_address

    addresses = [one for text in given for one in text.replace(",", " ").split()]
    for address in addresses or [""]:
        parse_address(address, where="--coordinator")
    return addresses


def _refuse_conducting(how: Conduct) -> None:
    """The coordinator alone decides how its job is led."""
    option = first_beyond(Conduct(iterations=10), how)
    if option is not None:
        fix = (
            "let `rtk run` lead its own job: no --coordinator" if option == "--inject" else "give it to rtk coordinate"
        )
        raise InvalidInputError(f"the coordinator decides on {option}, not its workers", where=option, fix=fix)
