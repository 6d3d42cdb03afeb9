"""`rtk coordinate`: the coordinator of a resilient run, started on its own."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..runners.ranks import counted_processes, degree_of, processes_of
from ..runners.training import SECRET, JobConfig, sizes_of
from ..running import controller_of, logs_of
from ..schemas.errors import InvalidInputError, remark
from ..schemas.quantities import DURATION, print_time
from ..schemas.text import counted
from .console import CommonOfEvents, grouped, quantity
from .options import LeadOptions, ProfileOption, read_valid_plan
from .run_output import RunFacts, RunReport, saying_how_to_go_on

if TYPE_CHECKING:
    from ..runners.resilience.server import Server


@grouped
def command(
    plan: Annotated[str, typer.Argument(help="The plan that the workers are started with.")],
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
    min_workers: Annotated[
        int | None,
        typer.Option("--min-workers", min=1, help="Begin with so many workers, if no other comes; else with all."),
    ] = None,
    join_wait_s: Annotated[
        float,
        quantity(DURATION, "--join-wait", "How long nobody may have come before the job begins without the others."),
    ] = JobConfig.join_wait_s,
    script: Annotated[
        str | None,
        typer.Option("--script", metavar="FILE", help="The workers' script, whose listeners hear of the job here."),
    ] = None,
    *,
    how: LeadOptions,
    profile: ProfileOption = None,
    common: CommonOfEvents,
) -> None:
    """Lead a run: who is alive, which plan they execute, and which iterations count.

    Workers are started with `rtk run PLAN --coordinator HOST:PORT` and the same plan and secret, on any machine.
    Started again with the same log, or as a standby, it takes the workers back, and nothing committed is lost.
    """
    if standby and log is None:
        raise InvalidInputError("a standby waits for a log", where="--standby", fix="give --log FILE as well")
    from ..runners.addresses import parse_listening

    read = read_valid_plan(plan, profile)
    logs = logs_of(script)
    asked = replace(how, min_workers=min_workers, join_wait_s=join_wait_s)
    controller = controller_of(read, replace(asked, profile=profile) if how.lower_degree else asked)
    (host, port), secret = parse_listening(listen, where="--listen"), _secret(secret_file)
    journal = controller.take_over(log, standby)
    # What the plan tells of the run; only the workers know it for sure.
    size, length = sizes_of(read)
    tokens = read.total_microbatches() * size * length if size and length else None
    facts = RunFacts(read, str(read.planner.options.get("model") or ""), tokens, iterations=how.iterations)

    def is_ready(server: "Server") -> None:
        model = read.planner.options.get("model") or "MODEL"
        option = f" --secret-file {secret_file}" if secret_file else ""
        remark(f"coordinating at {server.address}")
        if degree_of(read) == 1:
            workers, kind = counted(len(read.live_workers()), "worker"), "k/i"
        else:
            workers, kind = f"{len(read.live_ranks())} processes, {counted_processes(read)}", "k/i:r"
        enough = f", or for {min_workers} if no other comes for {print_time(join_wait_s)}" if min_workers else ""
        remark(f"waiting for {workers}{enough}; start each, on any machine, with --worker {kind}:")
        first = processes_of(read)[0]
        trained = f"--script {script}" if script else f"--model {model}"
        remark(f"  rtk run {plan} {trained} --coordinator {server.address}{option} --worker {first}")

    with (
        saying_how_to_go_on(how.checkpoint),
        RunReport(
            facts,
            as_json=common.as_json,
            quiet=common.quiet,
            metrics=how.metrics,
            log_to=how.log_to,
            logs=logs,
            page=how.page,
        ) as report,
    ):
        controller.lead(report.report, secret, journal, host, port, is_ready)


def _secret(file: str | None) -> bytes:
    """The job's secret; a file that is not there yet is made, readable for its owner alone."""
    from ..runners.resilience.wire import make_secret, secret_of

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
