"""`rtk sweep`: hundreds of replays, of every combination of models, jobs, clusters, traces and costs."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.errors import InfeasibleError
from .console import Debug, Json, Quiet, print_json, print_table, progress, remark

if TYPE_CHECKING:
    from .sweeping import Combination, SweepFolder, SweepOutcome

NAME = "sweep"
SUMMARY = "Replay every combination of models, jobs, clusters, traces and costs."


def command(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="The YAML file of lists; `-` is standard input.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="A report a combination, and summary.json.")
    ],
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes, which share the combinations.")] = 1,
    executor: Annotated[
        str,
        typer.Option(
            "--executor", metavar="process|dask:ADDRESS|ray[:ADDRESS]", help="Who replays: processes, or a cluster's."
        ),
    ] = "process",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Replay every combination of models, jobs, clusters, traces and costs, and say what they have in common.

    SPEC has lists of profiles, jobs (pp, dp, microbatches, tensor_parallel, schedule, memory_limit), clusters, traces
    (a path; file with format, nodes, leaving, slow_faults, seeds; or generate with the options of `rtk trace generate`,
    and seeds), policies, costs, and until. A value of a job, a trace or a cost may be a list, of which each item is
    tried. Reports that are in FOLDER already, of the same inputs, are not made again. Goodputs are those of `rtk
    replay`; a policy that cannot train a job counts as 0.
    """
    from .sweeping import SweepFolder, read_sweep, summary_of

    combinations = read_sweep(spec)
    folder = SweepFolder(output)
    outcomes = folder.finished(combinations)
    if outcomes:
        remark(f"{len(outcomes)} of {len(combinations)} reports are there already")
    try:
        _replay_missing(combinations, outcomes, folder, executor, jobs)
    except KeyboardInterrupt:
        remark("what is finished is kept: the same command goes on from there")
        raise
    summary = summary_of([(one, outcomes[number]) for number, one in enumerate(combinations)])
    folder.summarize(summary)
    _tell(summary, as_json)


def _replay_missing(
    combinations: "list[Combination]",
    outcomes: "dict[int, SweepOutcome]",
    folder: "SweepFolder",
    executor: str,
    jobs: int,
) -> None:
    """Add the outcomes that are not there yet, each once its report is written."""
    from ..replaying import replays
    from .executors import executor_of
    from .sweeping import SweepOutcome

    missing = [number for number in range(len(combinations)) if number not in outcomes]
    if not missing:
        return
    with executor_of(executor, min(jobs, len(missing))) as pool, progress() as bar:
        task = bar.add_task("replays", total=len(combinations), completed=len(outcomes))
        for index, found in replays([combinations[number].question for number in missing], pool):
            number = missing[index]
            if isinstance(found, InfeasibleError):
                outcomes[number] = SweepOutcome({}, {}, found.what)
            else:
                outcomes[number] = folder.keep(combinations[number], found)
            bar.advance(task)


def _tell(summary: dict[str, Any], as_json: bool) -> None:
    """Say it as JSON or in tables.

    Raises:
        InfeasibleError: there is nothing to say, for no job can be trained.
    """
    from .sweeping import HEADINGS, axis_tables, policy_rows

    impossible = summary["impossible"]
    if impossible:
        remark(f"{len(impossible)} of {len(impossible) + len(summary['replays'])} cannot be: {impossible[0]['why']}")
    if as_json:
        print_json(summary)
    elif summary["replays"]:
        print_table(HEADINGS, policy_rows(summary))
        for headings, rows in axis_tables(summary):
            print()
            print_table(headings, rows)
    if not summary["replays"]:
        raise InfeasibleError("none of the jobs can be trained", where="jobs", fix="take smaller ones, or larger GPUs")
