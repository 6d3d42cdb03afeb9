"""`rtk replay`: which way of surviving failures is worth it, for one job and one trace."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import STANDARD_STREAM, opened, source_of, write_bytes
from ..schemas.orders import LeanSchedule
from ..schemas.quantities import parse_memory_limit, parse_time_s, print_share
from .console import Common, Seed, Writes, emit, grouped, picture_ending, print_table, progress
from .options import ChunksOption, ClusterOption, MemoryLimit, Microbatches, PlacementOption, Stages
from .trace import ReadingOptions

if TYPE_CHECKING:
    from ..schemas.replay import Costs, PolicyReport, ReplayReport


SHARES = ("goodput", "all well", "working", "lost", "paused", "waiting")
HEADINGS = ("policy", *SHARES, "GPU-h lost", "cost", "memory")  # within 100 columns, of a year too


@grouped
def command(
    profile: Annotated[str, typer.Option("--profile", help="The model's profile.")],
    trace: Annotated[
        str,
        typer.Option(
            "--trace", help="The failures: rtk's own traces, spot logs, counts, fault lists; `-` is standard input."
        ),
    ],
    pp: Stages,
    microbatches: Microbatches,
    dp: Annotated[
        int | None, typer.Option("--dp", min=1, help="Pipelines. Default: as many as the cluster's nodes hold.")
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            metavar="NAME,…",
            help="Recovery policies to replay. Default: all but those for faults of GPUs.",
        ),
    ] = None,
    cluster: ClusterOption = None,
    tensor_parallel: Annotated[
        str | None,
        typer.Option(
            "--tensor-parallel",
            metavar="T|auto",
            help="GPUs of a worker: a degree of the profile, or the best of them. Its least if not given.",
            show_default=False,
        ),
    ] = None,
    schedule: Annotated[
        LeanSchedule,
        typer.Option("--schedule", help="Pipeline schedule, for policies that do not bring their own."),
    ] = "1f1b",
    memory_limit: MemoryLimit = None,
    placement: PlacementOption = "plain",
    chunks: ChunksOption = None,
    cost: Annotated[
        list[str] | None,
        typer.Option("--cost", metavar="NAME=VALUE", help="Cost of a change, such as restart_s=10min. Repeatable."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="DURATION", help="End of the replay, such as 12h or 30d. Default: the last event."
        ),
    ] = None,
    *,
    reading: ReadingOptions,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that share the policies.")] = 1,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Where to write the report; `-` is standard output, .gz compresses."),
        Writes("an rtk.replay"),
    ] = None,
    html: Annotated[
        str | None,
        typer.Option("--html", help="Where to write an HTML page with the results."),
        Writes("a web page"),
    ] = None,
    seed: Seed = 0,
    common: Common,
) -> None:
    """Replay a failure trace under each policy: goodput, and where the time went.

    Node n of the trace's first nodes holds the n-th workers in (pipeline, stage) order, as torchrun would start them;
    nodes beyond the job's are spares, which are paid for. Without --cluster a node is one worker. Goodput is a share of
    what the job's nodes would train, with the fastest plan for the job's shape, if none ever failed; a policy exceeds
    100 % with other pipelines, stages or orders. "all well" is the throughput with all nodes there, as a share of the
    same; then shares of the job's time: working, on work that was lost, paused, waiting. A placement is for the
    policies that know some; under best standard error says what each is worth at the start.
    """
    from ..planners.recovery.catalogue import parse_policies
    from ..replaying import replay
    from ..schemas.documents import read_document
    from ..schemas.pools import process_pool
    from ..schemas.profile import Profile

    if html is not None:
        picture_ending(html, (".html",), "end it in .html", "--html")
    names, until_s = parse_policies(policies), None if until is None else parse_time_s(until, "--until")
    limits, costs, count = parse_memory_limit(memory_limit), parse_costs(cost), len(names)
    read, processes = read_document(profile, Profile), min(jobs, count)
    pool = process_pool(processes) if processes > 1 else nullcontext()
    with readable_again(trace) as path, pool as executor, progress() as bar:
        report = replay(
            read,
            path,
            pp=pp,
            microbatches=microbatches,
            dp=dp,
            policies=names,
            cluster=cluster,
            tensor_parallel=tensor_parallel,
            schedule=schedule,
            memory_limit=limits,
            placement=placement,
            chunks=chunks,
            cost=costs,
            until_s=until_s,
            **vars(reading),
            seed=seed,
            name=source_of(trace),
            executor=executor,
            watch=lambda answers: bar.track(answers, count, description="policies"),
        )
    _tell(report, output, html, common.as_json)


def row_of(one: "PolicyReport", fault_free_s: float, most: tuple[float, float]) -> Sequence[str]:
    """A policy's row of the table.

    Args:
        one: the policy.
        fault_free_s: an iteration of the cluster that never fails.
        most: the most GPU-hours and the highest cost of all policies.
    """
    from ..viz.replay import print_amount, print_memory

    if one.refusal is not None:
        return (one.policy, "cannot train", *[""] * (len(HEADINGS) - 2))
    time = one.time
    paused_s = time.detecting_s + time.planning_s + time.copying_s + time.restarting_s + time.checkpointing_s
    whole_s = (time.working_s + time.lost_s + paused_s + time.waiting_s) or 1.0
    shares = (time.working_s, time.lost_s, paused_s, time.waiting_s)
    return (
        one.policy,
        print_share(one.goodput),
        print_share(fault_free_s / one.healthy_iteration_time_s) if one.healthy_iteration_time_s else "",
        *(print_share(lasts_s / whole_s) for lasts_s in shares),
        print_amount(one.gpu_hours.lost, most[0]),
        print_amount(one.cost, most[1]),
        print_memory(one.peak_memory_bytes) if one.peak_memory_bytes else "",
    )


def parse_costs(values: Iterable[str] | None) -> "Costs":
    """The values of `--cost`: `restart_s=600`.

    Raises:
        InvalidInputError: there is no such cost, or it is no number, or below 0.
    """
    from ..schemas.replay import Costs, parse_cost

    given: dict[str, Any] = {}
    for value in values or ():
        name, equals, text = value.partition("=")
        if not equals or name in given:
            what = f"{name} stands there twice" if equals else f"{value!r} cannot be read"
            raise InvalidInputError(what, where="--cost", fix="write NAME=VALUE, each once, such as restart_s=10min")
        given[name] = parse_cost(name, text, "--cost")
    return Costs(**given)


@contextmanager
def readable_again(trace: str) -> Iterator[str]:
    """A file with the trace that every policy can read for itself, also where the trace comes through a pipe."""
    if trace != STANDARD_STREAM and (not Path(trace).exists() or Path(trace).is_file() or Path(trace).is_dir()):
        yield trace  # what cannot be read is refused where it is read
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / (Path(trace).name or "trace")  # its ending says whether it is compressed
        with path.open("wb") as spool, opened(trace, is_packed=True) as pipe:
            shutil.copyfileobj(pipe, spool)
        try:
            yield str(path)
        except InvalidInputError as error:
            where = None if error.where is None else error.where.replace(str(path), source_of(trace))
            raise InvalidInputError(error.what, where=where, fix=error.fix) from None


def _tell(report: "ReplayReport", output: str | None, html: str | None, as_json: bool) -> None:
    """Write what is asked for, and a table where standard output is free."""
    from ..planners.choosing import comparison_words
    from ..planners.recovery.catalogue import BY_GPU

    if output is not None or as_json:
        emit(report, STANDARD_STREAM if output is None else output, as_json)
    if html is not None:
        from ..viz.replay_page import replay_html

        write_bytes(html, replay_html(report).encode())
    for path in (output, html):
        if path not in (None, STANDARD_STREAM):
            remark(f"wrote {path}")
    if not (as_json or output == STANDARD_STREAM):
        from ..viz.replay import most_amounts

        fault_free_s, most = report.fault_free["iteration_time_s"], most_amounts(report)
        rows, bound = [row_of(one, fault_free_s, most) for one in report.policies], report.fault_free["goodput_bound"]
        at_most = ("at most", "" if bound is None else print_share(bound), *[""] * (len(HEADINGS) - 2))
        print_table(HEADINGS, [*rows, at_most])
    for one in report.policies:
        if one.refusal is not None:
            remark(f"{one.policy} cannot train: {one.refusal}")
    if report.trace.get("gpus_lost") and not {one.policy for one in report.policies}.intersection(BY_GPU):
        remark(f"single GPUs die in this trace: what loses less than a node for them is --policies {','.join(BY_GPU)}")
    for line in (*comparison_words(report.job.get("placements", []), "/job/placements"), *report.remarks):
        remark(line)
