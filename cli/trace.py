"""`rtk trace`: what happens to clusters, read from other people's files, made up, and told in numbers."""

from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..runners.traces.formats import Format
from ..schemas.fields import MOST_NODES
from ..schemas.files import STANDARD_STREAM, source_of
from ..schemas.quantities import parse_time_s
from .console import Debug, Json, Output, Quiet, Seed, print_json, print_table, remark
from .trace_generate import DAY_S, generate

if TYPE_CHECKING:
    from ..runners.traces.read import Reading
    from ..runners.traces.summary import Summary

app = typer.Typer(no_args_is_help=True, help="Traces of failures and slow-downs: convert, make up, and look at them.")


class Leaving(StrEnum):
    """Who leaves when a count drops."""

    RANDOM = "random"
    NEWEST = "newest"


File = Annotated[str, typer.Argument(metavar="FILE", help="The trace, .gz or not; `-` is standard input.")]
FormatName = Annotated[
    Format | None, typer.Option("--format", "--trace-format", help="Read the file as this; else it is recognised.")
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        min=1,
        max=MOST_NODES,
        help="How many there are at the start, where the trace does not say, as lists of faults.",
    ),
]
Leaves = Annotated[Leaving, typer.Option("--leaving", help="Who leaves when a count drops.")]
SlowFaults = Annotated[
    bool,
    typer.Option(
        "--slow-faults",
        help="Faults that a node can live with, such as a hot GPU or a narrow link, slow it down instead of taking it "
        "down, by factors from 1.3 to 2 that are assumed.",
    ),
]
IterationTime = Annotated[
    str | None, typer.Option("--iteration-time", metavar="TIME", help="For events by iteration, such as 2s.")
]
LinkTime = Annotated[
    str | None,
    typer.Option("--link-time", metavar="TIME", help="What a message between nodes takes, for links slow by a factor."),
]


@app.command("convert")
def convert(
    file: File,
    output: Output = STANDARD_STREAM,
    format_name: FormatName = None,
    nodes: Nodes = None,
    leaving: Leaves = Leaving.RANDOM,
    slow_faults: SlowFaults = False,
    iteration_time: IterationTime = None,
    link_time: LinkTime = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a trace as rtk's own: JSON lines, or CSV where the name ends in .csv.

    Formats are logs of spot instances (`t_ms,add|remove,node`), Parcae's JSON lines, counts over time (dated samples,
    or `t,count` in ms, s or h), StepFun's list of hardware faults, and rtk's own. What is written begins at 0 with a
    join for each node that is there at the start; what passes before the first nodes come is left out. Where nodes have
    no names they are called node1, node2, …; --seed says who leaves when a count drops, and which of --nodes are those
    with faults.
    """
    from ..runners.traces.read import read_events
    from ..runners.traces.write import write_events

    reading = _reading(format_name, nodes, leaving, slow_faults, iteration_time, link_time, seed)
    count = write_events(output, (one.event for one in read_events(file, reading)))
    if output != STANDARD_STREAM:
        remark(f"wrote {output}: {count} events")


app.command("generate")(generate)


@app.command("show")
def show(
    file: File,
    format_name: FormatName = None,
    nodes: Nodes = None,
    leaving: Leaves = Leaving.RANDOM,
    slow_faults: SlowFaults = False,
    iteration_time: IterationTime = None,
    link_time: LinkTime = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say what a trace is like: how long, how many nodes, how often some are lost and how many at once."""
    from ..runners.traces.read import read_events
    from ..runners.traces.summary import summary_of

    reading = _reading(format_name, nodes, leaving, slow_faults, iteration_time, link_time, seed)
    found = summary_of(read_events(file, reading), reading.usual_link_s)
    if as_json:
        print_json(asdict(found))
    else:
        print_table(("", Path(source_of(file)).name), _rows(found), left=2)


def _reading(
    format_name: Format | None,
    nodes: int | None,
    leaving: Leaving,
    slow_faults: bool,
    iteration_time: str | None,
    link_time: str | None,
    seed: int,
) -> "Reading":
    return replace(
        reading_of(format_name, nodes, leaving, slow_faults, seed),
        iteration_time_s=None if iteration_time is None else parse_time_s(iteration_time, "--iteration-time"),
        usual_link_s=0.0 if link_time is None else parse_time_s(link_time, "--link-time"),
    )


def reading_of(
    format_name: Format | None, nodes: int | tuple[str, ...] | None, leaving: Leaving, slow_faults: bool, seed: int
) -> "Reading":
    """How a trace is to be read, by the options that all commands share that read one."""
    from ..runners.traces.faults import SLOW_FAULTS
    from ..runners.traces.read import Reading

    return Reading(
        format=None if format_name is None else format_name.value,
        nodes=nodes,
        seed=seed,
        leaving=leaving.value,
        slow_faults=SLOW_FAULTS if slow_faults else {},
    )


def _rows(found: "Summary") -> list[tuple[str, str]]:
    mean_s = found.mean_time_between_failures_s
    kinds = ", ".join(f"{number} {kind}" for kind, number in found.events.items())
    return [
        ("lasts", _duration(found.lasts_s)),
        ("nodes at the start", str(found.nodes_at_start)),
        ("fewest, most", f"{found.nodes_min}, {found.nodes_max}"),
        ("on average over time", f"{found.nodes_mean:.1f}"),
        ("events", kinds),
        ("failures (moments with losses)", str(found.failures)),
        ("mean time between them", "-" if mean_s is None else _duration(mean_s)),
        ("longest time without", _duration(found.longest_without_loss_s)),
        ("nodes lost, different ones", f"{found.nodes_lost}, {found.distinct_nodes_lost}"),
        ("most lost at once", str(found.most_lost_at_once)),
        ("most slow at once", str(found.most_slow_at_once)),
    ]


def _duration(time_s: float) -> str:
    """A time in the largest unit of which it has two or more."""
    units = (("d", DAY_S), ("h", 3600.0), ("min", 60.0))
    name, unit_s = next(((name, unit_s) for name, unit_s in units if time_s >= 2 * unit_s), ("s", 1.0))
    return f"{time_s / unit_s:.2f} {name}"
