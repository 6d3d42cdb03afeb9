"""`rtk replay`: which way of surviving failures is worth it, for one job and one trace."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.errors import InfeasibleError, InvalidInputError
from ..schemas.fields import MOST_NODES
from ..schemas.files import STANDARD_STREAM, opened, source_of
from ..schemas.quantities import parse_time_s
from ..schemas.text import counted, did_you_mean
from .cluster import ClusterOption, Site, read_site_or_count
from .console import Debug, Json, Quiet, Seed, emit, picture_ending, print_table, progress, remark
from .options import MemoryLimit, Microbatches, Stages, parse_memory_limit
from .trace import DepartureOrder, FormatName, Leaves, Nodes, SlowFaults, reading_of

if TYPE_CHECKING:
    from ..planners.policies.job import TrainingJob
    from ..replaying import ReplayRequest
    from ..schemas.cluster import Cluster
    from ..schemas.profile import Profile
    from ..schemas.replay import Costs
    from ..schemas.replay_report import PolicyReport, ReplayReport


# The job of a replay, put together from what options or a sweep's file say.


MOST = 1e15  # of a cost: `Seconds` of schemas/fields.py, and far above what anything costs


class ReplaySchedule(StrEnum):
    """Of pipelines whose policy has no schedule of its own."""

    ONE_F_ONE_B = "1f1b"
    ZERO_BUBBLE = "zero-bubble"


@dataclass(frozen=True)
class Asked:
    """A shape as it is asked for; without pipelines there are as many as the cluster holds."""

    pp: int
    microbatches: int
    dp: int | None = None
    tensor_parallel: int = 1
    schedule: ReplaySchedule = ReplaySchedule.ONE_F_ONE_B
    memory_limit_bytes: "Sequence[float] | None" = None


def read_machines(cluster: str | None, nodes: int | None, tensor_parallel: int) -> Site:
    """The machines of a replay: of `--cluster`, or so many nodes that each hold one worker; of neither, none.

    Raises:
        InvalidInputError: the cluster cannot be read, or has another number of nodes.
    """
    if cluster is None and nodes is None:
        return Site()
    return read_site_or_count(cluster, nodes, tensor_parallel if cluster is None else None, None, None)


def nodes_at_start(site: Site) -> int | tuple[str, ...] | None:
    """The nodes of a cluster, for traces that do not say them: by name where somebody has named them, else how many."""
    from ..schemas.cluster_file import counted_cluster

    if site.cluster is None:
        return None
    names = site.cluster.nodes
    return len(names) if names == counted_cluster(len(names), 1).nodes else names


def job_of(profile: "Profile", site: Site, asked: Asked, costs: "Costs", seed: int) -> "TrainingJob":
    """What is trained, on which machines.

    Raises:
        InvalidInputError: nothing says how many pipelines there are, or nodes and pipelines do not go together.
        InfeasibleError: the machines are too few.
    """
    from ..planners.policies.job import TrainingJob
    from ..planners.shape import Shape

    dp, gpus_per_node = asked.dp, asked.tensor_parallel
    if site.cluster is not None:
        dp, gpus_per_node = _pipelines(site.cluster, asked), site.cluster.gpus_per_node
    if dp is None:
        raise InvalidInputError("how many pipelines are there?", where="--dp", fix="give --dp K, or --cluster NxM")
    gpus = asked.pp * dp * asked.tensor_parallel
    if gpus > MOST_NODES * gpus_per_node:
        raise InvalidInputError(
            f"{dp} pipelines take {gpus // gpus_per_node} nodes, which are too many",
            where="--dp",
            fix=f"take pipelines for up to {MOST_NODES} nodes",
        )
    shape = Shape(asked.pp, dp, asked.microbatches, asked.memory_limit_bytes, None, asked.tensor_parallel)
    return TrainingJob(site.adapted(profile), shape, gpus_per_node, costs, asked.schedule.value, seed)


def _pipelines(cluster: "Cluster", asked: Asked) -> int:
    gpus, each = cluster.size, asked.pp * asked.tensor_parallel
    most = gpus // each
    if most < (asked.dp or 1):
        raise InfeasibleError(
            f"there is no room for {counted(asked.dp or 1, 'pipeline')} of {counted(each, 'GPU')} "
            f"on {counted(gpus, 'GPU')}",
            where="--cluster",
            fix=f"take at most {most} pipelines, or a larger cluster" if most else "take fewer stages or more nodes",
        )
    return asked.dp or most


def parse_cost(name: str, text: str, where: str) -> float:
    """What one thing costs.

    Raises:
        InvalidInputError: there is no such cost, or it is no number of 0 or more.
    """
    from ..schemas.replay import Costs

    kinds = {one.name: one.type for one in fields(Costs)}
    if name not in kinds:
        fix = did_you_mean(name, kinds, f"costs are {', '.join(kinds)}")
        raise InvalidInputError(f"there is no cost {name!r}", where=where, fix=fix)
    is_whole, is_rate = kinds[name] is int, name.endswith("_bytes_per_s")
    most = float("inf") if is_rate else MOST
    try:
        number = int(text) if is_whole else float(text)
    except ValueError:
        number = -1
    if not 0 <= number < most or (is_rate and not number):
        kind = "above 0" if is_rate else f"from 0 to below {MOST:g}" if number >= MOST else "of 0 or more"
        what = f"{text!r} is no {'whole ' * is_whole}number {kind}"
        raise InvalidInputError(what, where=where, fix=f"write a plain number, such as 10: {name} says its unit")
    return number


NAME = "replay"
SUMMARY = "Replay a failure trace under each policy: goodput, and where the time went."
SHARES = ("goodput", "all well", "working", "lost", "paused", "waiting")
HEADINGS = ("policy", *SHARES, "GPU-h lost", "cost", "memory")  # within 100 columns, of a year too


def command(
    profile: Annotated[str, typer.Option("--profile", help="The profile of the model.")],
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
        str | None, typer.Option("--policies", metavar="NAME,…", help="Which, with commas between them. Default: all.")
    ] = None,
    cluster: ClusterOption = None,
    tensor_parallel: Annotated[int, typer.Option("--tensor-parallel", min=1, help="GPUs of a worker.")] = 1,
    schedule: Annotated[
        ReplaySchedule, typer.Option("--schedule", help="Of pipelines whose policy has no schedule of its own.")
    ] = ReplaySchedule.ONE_F_ONE_B,
    memory_limit: MemoryLimit = None,
    cost: Annotated[
        list[str] | None,
        typer.Option("--cost", metavar="NAME=NUMBER", help="What a change costs, such as restart_s=600. Repeatable."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="End there, such as 12h or 30d. Default: the last event."),
    ] = None,
    trace_format: FormatName = None,
    nodes: Nodes = None,
    leaving: Leaves = DepartureOrder.RANDOM,
    slow_faults: SlowFaults = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes, which share the policies.")] = 1,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Where to write the report; `-` is standard output, .gz compresses."),
    ] = None,
    html: Annotated[
        str | None, typer.Option("--html", help="Where to write a page with pictures, to be mailed.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Replay a failure trace under each policy: goodput, and where the time went.

    Node n of the trace's first nodes holds the n-th workers in (pipeline, stage) order, as torchrun would start them;
    nodes beyond the job's are spares. Without --cluster a node is one worker. Goodput is a share of what the cluster
    would commit if it never failed; "all well" is the throughput with all nodes there, as a share of the same; then
    shares of the job's time: working, on work that was lost, paused, waiting.
    """
    from ..replaying import ReplayRequest, parse_policies

    if html is not None:
        picture_ending(html, (".html",), "end it in .html", "--html")
    require_places({"--output": output, "--html": html}, {"--profile": profile, "--trace": trace})
    names, until_s = parse_policies(policies), None if until is None else parse_time_s(until, "--until")
    asked = Asked(pp, microbatches, dp, tensor_parallel, schedule, parse_memory_limit(memory_limit))
    job, at_start = _job(profile, (cluster, nodes), asked, parse_costs(cost), seed)
    reading = reading_of(trace_format, at_start, leaving, slow_faults, seed)
    with readable_again(trace) as path:
        report = _asked(ReplayRequest(job, path, reading, names, until_s, source_of(trace)), jobs)
    _tell(report, output, html, as_json)


def require_places(outputs: Mapping[str, str | None], inputs: Mapping[str, str]) -> None:
    """Refuse at once outputs that could not be written after all the work, or that would take another file's place.

    Args:
        outputs: by option; None is not asked for.
        inputs: by option.

    Raises:
        InvalidInputError: a folder is missing or closed, or an output is one of the inputs, or the same as another.
    """
    taken = {os.path.realpath(path): option for option, path in inputs.items() if path != STANDARD_STREAM}
    for option, path in outputs.items():
        if path is None or path == STANDARD_STREAM:
            continue
        folder, place = Path(path).parent, os.path.realpath(path)
        if not path or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise InvalidInputError(
                f"nothing can be written into the folder {folder}" if path else "a file without a name",
                where=f"{option} {path}".strip(),
                fix="check the path and its permissions",
            )
        if place in taken:
            raise InvalidInputError(
                f"this is the file of {taken[place]}", where=f"{option} {path}", fix="write to another one"
            )
        if Path(path).is_file() or not Path(path).exists():
            taken[place] = option  # a device, such as /dev/null, may be written to twice


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
        f"{one.goodput:.1%}",
        f"{fault_free_s / one.healthy_iteration_time_s:.1%}" if one.healthy_iteration_time_s else "",
        *(f"{lasts_s / whole_s:.1%}" for lasts_s in shares),
        print_amount(one.gpu_hours.lost, most[0]),
        print_amount(one.cost, most[1]),
        print_memory(one.peak_memory_bytes) if one.peak_memory_bytes else "",
    )


def parse_costs(values: Iterable[str] | None) -> "Costs":
    """The values of `--cost`: `restart_s=600`.

    Raises:
        InvalidInputError: there is no such cost, or it is no number, or below 0.
    """
    from ..schemas.replay import Costs

    given: dict[str, Any] = {}
    for value in values or ():
        name, equals, text = value.partition("=")
        if not equals or name in given:
            what = f"{name} stands there twice" if equals else f"{value!r} cannot be read"
            raise InvalidInputError(what, where="--cost", fix="write NAME=NUMBER, each once, such as restart_s=600")
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


def _job(
    path: str, machines: tuple[str | None, int | None], asked: Asked, costs: "Costs", seed: int
) -> "tuple[TrainingJob, int | tuple[str, ...] | None]":
    """What is trained, and the nodes that are there at the start."""
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    site = read_machines(*machines, asked.tensor_parallel)
    return job_of(read_document(path, Profile), site, asked, costs, seed), nodes_at_start(site)


def _asked(question: "ReplayRequest", jobs: int) -> "ReplayReport":
    """The answer, with a bar that shows how many policies are through."""
    from ..replaying import ask
    from .executors import process_pool

    count = len(question.policies)
    with process_pool(min(jobs, count)) if min(jobs, count) > 1 else nullcontext() as executor, progress() as bar:
        return ask(question, executor, lambda answers: bar.track(answers, count, description="policies"))


def _tell(report: "ReplayReport", output: str | None, html: str | None, as_json: bool) -> None:
    """Write what is asked for, and a table where standard output is free."""
    if output is not None or as_json:
        emit(report, STANDARD_STREAM if output is None else output, as_json)
    if html is not None:
        _write_page(report, html)
    for path in (output, html):
        if path not in (None, STANDARD_STREAM):
            remark(f"wrote {path}")
    if not (as_json or output == STANDARD_STREAM):
        from ..viz.replay import most_amounts

        fault_free_s, most = report.fault_free["iteration_time_s"], most_amounts(report)
        rows = [row_of(one, fault_free_s, most) for one in report.policies]
        print_table(HEADINGS, [*rows, _most(report)])
    for one in report.policies:
        if one.refusal is not None:
            remark(f"{one.policy} cannot train: {one.refusal}")


def _most(report: "ReplayReport") -> Sequence[str]:
    """The row of what no policy can exceed."""
    bound = report.fault_free["goodput_bound"]
    return ("at most", "" if bound is None else f"{bound:.1%}", *[""] * (len(HEADINGS) - 2))


def _write_page(report: "ReplayReport", path: str) -> None:
    from ..schemas.files import write_bytes
    from ..viz.replay_page import replay_html

    write_bytes(path, replay_html(report).encode())
