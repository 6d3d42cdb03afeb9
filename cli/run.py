"""`rtk run`: a plan on real ranks."""

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ..runners.processes import arguments_of
from ..runners.ranks import name_of_rank, processes_of
from ..runners.training import (
    COORDINATOR,
    SECRET,
    JobConfig,
    TrainingConfig,
    first_beyond,
    is_script_name,
    training_of,
)
from ..running import local_job, logs_of, supervise, work
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM
from ..schemas.quantities import DURATION
from .console import SETTINGS, Common, CommonOfEvents, grouped, quantity
from .options import InjectOptions, ProfileOption, TrainingOptions, read_valid_plan
from .run_output import RunFacts, RunReport, saying_how_to_go_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..runners.log_writers import LogWriter
    from ..schemas.plan import Plan


@grouped
def command(
    plan: Annotated[str, typer.Argument(envvar="RTK_PLAN", help="The plan; `-` is standard input.")],
    asked: TrainingOptions,
    how: InjectOptions,
    coordinator: Annotated[
        list[str] | None,
        typer.Option(
            "--coordinator", envvar=COORDINATOR, help="host:port of `rtk coordinate`, and of standbys: be its worker."
        ),
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(
            "--worker",
            envvar="RTK_WORKER",
            help="Be this worker, k/i, or where a worker is on several GPUs the process of its GPU r, k/i:r; else the "
            "RANK-th of all.",
        ),
    ] = None,
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
        float, quantity(DURATION, "--patience", "How long a worker looks for a lost coordinator.")
    ] = 60.0,
    profile: ProfileOption = None,
    *,
    common: CommonOfEvents,
) -> None:
    """Execute a plan on real processes.

    Started plainly: a coordinator in this process, and one worker process per live worker on this machine, or one per
    GPU of each where the plan has workers on several; a job that is saved to start again (--mitigate S4) does so once,
    with new processes. With --coordinator: one worker, whose coordinator leads the job and alone decides on iterations,
    checkpoints and faults. Under torchrun: a supervisor, which starts a worker, and another one when that dies; without
    --coordinator, rank 0's leads the job.

    Data are chosen by iteration and micro-batch and never by rank. With --json, one JSON line an event.
    """
    is_alone = not coordinator and "RANK" not in os.environ
    if not is_alone and plan == STANDARD_STREAM:
        raise InvalidInputError("every worker reads the plan by itself", where="PLAN", fix="give a file, not `-`")
    if interface and not coordinator:
        raise InvalidInputError(
            "only a coordinator's workers meet there", where="--interface", fix="give --coordinator"
        )
    if is_script_name(plan):
        raise InvalidInputError(
            "this is a script, and a plan is needed here",
            where=plan,
            fix=f"rtk run plan.json --script {plan}; without a plan: rtk profile {plan}, then rtk plan pipeline",
        )
    from ..runners.resilience.torchrun import is_rank, require_as_many
    from ..runners.resilience.wire import secret_of

    trained = asked.settled()
    how = replace(how, profile=profile) if how.lower_degree else how
    is_supervisor = is_rank(bool(coordinator))
    read = read_valid_plan(plan, profile)
    training = training_of(read, trained, None if coordinator else how.iterations)
    options = ["--debug"] if SETTINGS.debug else []
    if coordinator:
        _refuse_what_a_coordinator_decides(how)
        name, secret, addresses = name_of_rank(read, worker), secret_of(secret_file), _addresses(coordinator)
        if is_supervisor:
            options += arguments_of({"--patience": f"{patience}s", "--interface": tuple(interface or ())})
            sys.exit(supervise(read, training, how, name, addresses, secret, options=options))
        SETTINGS.trains = True
        work(read, training, name, addresses, secret, patience, interface or ())
    elif is_supervisor:
        require_as_many(read)
        if how.inject is not None:
            raise InvalidInputError(
                "workers that torchrun starts play no faults: they are started again",
                where="--inject",
                fix="leave torchrun away: rtk run starts the workers of one machine itself",
            )
        name = name_of_rank(read, worker)
        given = secret_of(secret_file) if secret_file or os.environ.get(SECRET) else None
        if name != processes_of(read)[0]:
            sys.exit(supervise(read, training, how, name, secret=given, options=options))
        logs = logs_of(training.script)
        with saying_how_to_go_on(how.checkpoint), _report(read, training, how, None, common, logs) as report:
            supervise(read, training, how, name, secret=given, options=options, announce=report.report)
    else:
        local = local_job(read, training, how, options)
        with (
            saying_how_to_go_on(how.checkpoint),
            _report(read, training, how, local.tokens, common, local.logs) as report,
        ):
            local.run(report.report)


def _refuse_what_a_coordinator_decides(how: JobConfig) -> None:
    option = first_beyond(JobConfig(), how)
    if option is not None:
        raise InvalidInputError(
            f"the coordinator decides on {option}, not its workers",
            where=option,
            fix="let `rtk run` lead its own job: no --coordinator"
            if option == "--inject"
            else "give it to rtk coordinate",
        )


def _report(
    plan: "Plan",
    training: TrainingConfig,
    how: JobConfig,
    tokens: int | None,
    common: Common,
    logs: "Sequence[LogWriter]",
) -> RunReport:
    if tokens is None and training.microbatch_size and training.sequence_length:
        tokens = plan.total_microbatches() * training.microbatch_size * training.sequence_length
    facts = RunFacts(plan, training.script or training.model, tokens, training.paced, how.iterations)
    return RunReport(
        facts,
        as_json=common.as_json,
        quiet=common.quiet,
        metrics=how.metrics,
        log_to=how.log_to,
        logs=logs,
        page=how.page,
    )


def _addresses(given: list[str]) -> list[str]:
    """All addresses, several of which may stand in one text, as in an environment variable."""
    from ..runners.addresses import parse_address

    addresses = [one for text in given for one in text.replace(",", " ").split()]
    for address in addresses or [""]:
        parse_address(address, where="--coordinator")
    return addresses
