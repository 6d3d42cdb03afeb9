"""`rtk run`: a plan on real ranks."""

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from ..runners.training import COORDINATOR, SECRET, JobConfig, TrainingConfig, first_beyond, name_of_rank, training_of
from ..running import local_job, plain_job, work
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM
from ..schemas.quantities import DURATION
from .console import SETTINGS, Common, CommonOfEvents, grouped, quantity
from .options import InjectOptions, ProfileOption, TrainingOptions, read_valid_plan
from .run_output import RunFacts, RunReport, saying_how_to_go_on

if TYPE_CHECKING:
    from ..schemas.plan import Plan


@grouped
def command(
    plan: Annotated[str, typer.Argument(help="The plan; `-` is standard input.")],
    asked: TrainingOptions,
    how: InjectOptions,
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
        float, quantity(DURATION, "--patience", "How long a worker looks for a lost coordinator.")
    ] = 60.0,
    profile: ProfileOption = None,
    *,
    common: CommonOfEvents,
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
    trained = asked.settled()
    read = read_valid_plan(plan, profile)
    training = training_of(read, trained, None if coordinator else how.iterations)
    if coordinator:
        from ..runners.resilience.wire import secret_of

        option = first_beyond(JobConfig(), how)
        if option is not None:
            raise InvalidInputError(
                f"the coordinator decides on {option}, not its workers",
                where=option,
                fix="let `rtk run` lead its own job: no --coordinator"
                if option == "--inject"
                else "give it to rtk coordinate",
            )
        name, secret, addresses = name_of_rank(read, worker), secret_of(secret_file), _addresses(coordinator)
        SETTINGS.trains = True
        work(read, training, name, addresses, secret, patience, interface or ())
    elif is_worker:
        option = first_beyond(
            JobConfig(how.iterations, timeline=how.timeline, metrics=how.metrics, log_to=how.log_to), how
        )
        if option is not None:
            raise InvalidInputError(
                f"{option} needs a coordinator",
                where=option,
                fix="start `rtk coordinate`, and the workers with --coordinator",
            )
        job = plain_job(read, training)
        SETTINGS.trains = True
        with _report(read, training, how, 0, common) if job.reports_loss else nullcontext() as report:
            job.run(how.iterations, report.report if report else lambda what: None)
        job.end(how.timeline)
    else:
        local = local_job(read, training, how, ["--debug"] if SETTINGS.debug else [])
        with (
            saying_how_to_go_on(how.checkpoint),
            _report(read, training, how, local.tokens, common) as report,
        ):
            local.run(report.report)


def _report(plan: "Plan", training: TrainingConfig, how: JobConfig, tokens: int, common: Common) -> RunReport:
    facts = RunFacts(plan, training.script or training.model, tokens, training.paced, how.iterations)
    return RunReport(facts, as_json=common.as_json, quiet=common.quiet, metrics=how.metrics, log_to=how.log_to)


def _addresses(given: list[str]) -> list[str]:
    """All addresses, several of which may stand in one text, as in an environment variable."""
    from ..runners.resilience.wire import parse_address

    addresses = [one for text in given for one in text.replace(",", " ").split()]
    for address in addresses or [""]:
        parse_address(address, where="--coordinator")
    return addresses
