"""`rtk coordinate`: the coordinator of a resilient run, started on its own."""

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import InvalidInputError
from .console import Debug, Json, Quiet, remark
from .coordinating import (
    AtlasOption,
    CheckpointEvery,
    CheckpointOption,
    HeartbeatLimit,
    HostMemory,
    Iterations,
    JobConfig,
    JobController,
    Metrics,
    MitigateOption,
    NormalizeWithin,
    PolicyOption,
    Resume,
    StallLimit,
    TimelineOption,
    raise_for,
    sizes_of,
)
from .options import ProfileOption, read_valid_plan
from .run import SECRET, secret_of
from .run_output import RunFacts, RunReport

if TYPE_CHECKING:
    from ..runners.resilience.journal import Journal
    from ..schemas.plan import Plan

NAME = "coordinate"
SUMMARY = "Lead a run whose workers are started elsewhere."
INTERRUPTED = 130


def command(
    plan: Annotated[str, typer.Argument(help="The plan that the workers are started with.")],
    iterations: Iterations = 10,
    listen: Annotated[
        str, typer.Option("--listen", help="host:port; by default any free port of the loopback interface.")
    ] = "127.0.0.1:0",
    secret_file: Annotated[
        str | None, typer.Option("--secret-file", help=f"The job's secret, made if absent; else {SECRET} holds it.")
    ] = None,
    log: Annotated[
        str | None, typer.Option("--log", help="Keep a log here, from which another coordinator can take over.")
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait until the coordinator that has the log is gone, then take over.")
    ] = False,
    policy: PolicyOption = None,
    atlas: AtlasOption = None,
    normalize_within: NormalizeWithin = 100,
    host_memory: HostMemory = 0.0,
    mitigate: MitigateOption = None,
    checkpoint: CheckpointOption = None,
    checkpoint_every: CheckpointEvery = 0,
    resume: Resume = None,
    heartbeat_limit: HeartbeatLimit = 2.0,
    stall_limit: StallLimit = None,
    timeline: TimelineOption = None,
    metrics: Metrics = None,
    profile: ProfileOption = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Lead a run: who is alive, which plan they execute, and which iterations count.

    Workers are started with `rtk run PLAN --coordinator HOST:PORT` and the same plan and secret, on any machine.
    Started again with the same log, or as a standby, it takes the workers back, and nothing committed is lost.
    """
    from ..runners.resilience.journal import take
    from ..schemas.documents import digest

    if standby and log is None:
        raise InvalidInputError("a standby waits for a log", where="--standby", fix="give --log FILE as well")
    read = read_valid_plan(plan, profile)
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
        heartbeat_limit_s=heartbeat_limit,
        stall_limit_s=stall_limit,
        metrics=metrics,
    )
    conductor = JobController(read, how)
    host, port = _listening(listen)
    secret = _secret(secret_file)
    # A standby has time before its turn; workers may be waiting for anybody else.
    warming = threading.Thread(target=conductor.warm_up, name="warm-up", daemon=True)
    warming.start()
    if standby:
        warming.join()
    journal: Journal | None = None
    if standby:
        remark(f"standing by until the coordinator that has {log} is gone")
    if log is not None:
        journal = take(log, plan=digest(read), job=conductor.settings(), wait=standby)
    with RunReport(_facts(read, iterations), as_json=as_json, quiet=quiet, metrics=metrics) as report:
        server = conductor.server(secret, report.report, journal, host, port)
        remark(f"coordinating at {server.address}")
        # Workers are to hear that it is over; they would wait for another coordinator.
        signal.signal(signal.SIGINT, lambda *_: server.finish(INTERRUPTED, "interrupted"))
        try:
            finished = server.run()
        finally:
            if journal is not None:
                journal.close()
    conductor.write_timeline()
    raise_for(finished, conductor)


def _facts(plan: "Plan", iterations: int) -> RunFacts:
    """What the plan tells of the run; only the workers know it for sure."""
    size, length = sizes_of(plan)
    tokens = plan.total_microbatches() * size * length if size and length else None
    return RunFacts(plan, str(plan.planner.options.get("model") or ""), tokens, iterations=iterations)


def _listening(text: str) -> tuple[str, int]:
    """host and port; port 0 for any free one."""
    from ..runners.resilience.wire import parse_address

    if text.endswith(":0"):
        host, _ = parse_address(text[:-1] + "1", where="--listen")
        return host, 0
    return parse_address(text, where="--listen")


def _secret(file: str | None) -> bytes:
    """The job's secret; a file that is not there yet is made, readable for its owner alone."""
    from ..runners.resilience.wire import make_secret

    if file is not None and not Path(file).exists():
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise InvalidInputError(
                f"the job's secret cannot be written: {error.strerror}", where=file, fix="name another file"
            ) from None
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(make_secret() + b"\n")
    return secret_of(file)
