"""`rtk trace`: failures and slow-downs of clusters: converted from other formats, generated, and summarized."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..runners.traces.formats import TraceFormat
from ..runners.traces.verbs import DELAY, EPISODE, FACTOR, SHAPE, SIGMA
from ..schemas.errors import InvalidInputError, remark
from ..schemas.fields import MOST_NODES
from ..schemas.files import STANDARD_STREAM, source_of
from ..schemas.quantities import DAYS, parse_time_s, print_time
from .console import Common, Debug, Force, Output, Quiet, Seed, grouped, print_json, print_table, quantity

if TYPE_CHECKING:
    from ..runners.traces.read import TraceOptions


# `rtk trace generate`: traces from failure rates and repair times.


@dataclass(frozen=True)
class FaultOptions:
    """What is to happen."""

    mtbf: Annotated[
        str | None,
        typer.Option("--mtbf", metavar="DURATION", help="Mean time between failures of a node, such as 30d."),
    ] = None
    repair: Annotated[
        str | None, typer.Option("--repair", metavar="DURATION", help="Mean time to repair a node, such as 4h.")
    ] = None
    distribution: Annotated[
        Literal["exponential", "weibull"],
        typer.Option("--distribution", help="Distribution of the times between failures."),
    ] = "exponential"
    shape: Annotated[
        float,
        typer.Option("--shape", help="Shape of the Weibull distribution: below 1 failures come early, above 1 late."),
    ] = SHAPE
    repairs: Annotated[
        Literal["exponential", "lognormal", "fixed"],
        typer.Option("--repair-distribution", help="Distribution of the repair times."),
    ] = "exponential"
    repair_sigma: Annotated[
        float,
        typer.Option("--repair-sigma", help="Standard deviation of the logarithm of lognormal repair times."),
    ] = SIGMA
    rack_size: Annotated[
        int | None, typer.Option("--rack-size", min=1, help="Nodes of a rack, which also fail together.")
    ] = None
    rack_mtbf: Annotated[
        str | None, typer.Option("--rack-mtbf", metavar="DURATION", help="Mean time between failures of a rack.")
    ] = None
    rack_repair: Annotated[
        str | None,
        typer.Option("--rack-repair", metavar="DURATION", help="Mean time to repair a rack; default: --repair."),
    ] = None
    gpus_per_node: Annotated[
        int | None,
        typer.Option("--gpus-per-node", min=1, help="GPUs of a node, which also fail one by one while it goes on."),
    ] = None
    gpu_mtbf: Annotated[
        str | None, typer.Option("--gpu-mtbf", metavar="DURATION", help="Mean time between failures of a GPU.")
    ] = None
    gpu_repair: Annotated[
        str | None, typer.Option("--gpu-repair", metavar="DURATION", help="Mean time to repair a GPU.")
    ] = None
    slow_every: Annotated[
        str | None, typer.Option("--slow-every", metavar="DURATION", help="Mean time between slow episodes of a node.")
    ] = None
    slow_lasts: Annotated[
        str, typer.Option("--slow-lasts", metavar="DURATION", help="Mean length of a slow episode.")
    ] = EPISODE
    slow_factor: Annotated[
        float, typer.Option("--slow-factor", help="How many times as long operations then take.")
    ] = FACTOR
    slow_link_every: Annotated[
        str | None,
        typer.Option(
            "--slow-link-every",
            metavar="DURATION",
            help="Mean time between slow episodes of a link between neighbouring nodes.",
        ),
    ] = None
    slow_link_lasts: Annotated[
        str, typer.Option("--slow-link-lasts", metavar="DURATION", help="Mean length of a slow episode of a link.")
    ] = EPISODE
    slow_link_delay: Annotated[
        str, typer.Option("--slow-link-delay", metavar="DURATION", help="Time that a message then takes.")
    ] = DELAY


@grouped
def generate(
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=MOST_NODES, help="Number of nodes; they are called node1, node2, ….")
    ],
    days: Annotated[float, quantity(DAYS, "--days", "Length of the trace.")],
    faults: FaultOptions,
    output: Output = STANDARD_STREAM,
    seed: Seed = 0,
    quiet: Quiet = False,
    debug: Debug = False,
    force: Force = False,
) -> None:
    """Generate a trace: nodes that fail and are repaired, racks that fail as a whole, single GPUs, what is slow.

    Each is a renewal process with random numbers of its own: the same seed gives the same bytes, and more nodes, or
    slow episodes beside failures, leave the others as they were. All nodes are new at 0.
    """
    from ..runners.traces.read import write_events
    from ..runners.traces.verbs import trace_generate

    weibull, lognormal = faults.distribution == "weibull", faults.repairs == "lognormal"
    slow, slow_links = faults.slow_every is not None, faults.slow_link_every is not None
    for is_given, is_heeded, option, needed in (
        (faults.shape != SHAPE, weibull, "--shape", "--distribution weibull"),
        (faults.repair_sigma != SIGMA, lognormal, "--repair-sigma", "--repair-distribution lognormal"),
        (faults.rack_repair is not None, faults.rack_mtbf is not None, "--rack-repair", "--rack-mtbf"),
        (faults.gpu_repair is not None, faults.gpu_mtbf is not None, "--gpu-repair", "--gpu-mtbf"),
        (faults.slow_factor != FACTOR, slow, "--slow-factor", "--slow-every"),
        (faults.slow_lasts != EPISODE, slow, "--slow-lasts", "--slow-every"),
        (faults.slow_link_lasts != EPISODE, slow_links, "--slow-link-lasts", "--slow-link-every"),
        (faults.slow_link_delay != DELAY, slow_links, "--slow-link-delay", "--slow-link-every"),
    ):
        if is_given and not is_heeded:  # it would say something about what is not asked for
            raise InvalidInputError(
                "this option means nothing here", where=option, fix=f"add {needed}, or leave it out"
            )
    count = write_events(output, trace_generate(nodes=nodes, days=days, seed=seed, **vars(faults)))
    if output != STANDARD_STREAM:
        remark(f"wrote {output}: {count} events")


app = typer.Typer(no_args_is_help=True, help="Traces of failures and slow-downs: convert, generate and summarize them.")


File = Annotated[str, typer.Argument(metavar="FILE", help="The trace, .gz or not; `-` is standard input.")]


@dataclass(frozen=True)
class ReadingOptions:
    """How a trace is to be read."""

    trace_format: Annotated[
        TraceFormat | None,
        typer.Option("--format", "--trace-format", help="Read the file as this; else it is recognised."),
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=1,
            max=MOST_NODES,
            help="Nodes at the start, where the trace does not say, as lists of faults.",
        ),
    ] = None
    leaving: Annotated[
        Literal["random", "newest"], typer.Option("--leaving", help="Which nodes leave when a count drops.")
    ] = "random"
    slow_faults: Annotated[
        bool,
        typer.Option(
            "--slow-faults",
            help="Faults that a node can live with, such as a hot GPU or a narrow link, slow it down instead of taking "
            "it down, by factors from 1.3 to 2 that are assumed.",
        ),
    ] = False


@dataclass(frozen=True)
class TimingOptions(ReadingOptions):
    """The same, with what a job would tell of its times."""

    iteration_time: Annotated[
        str | None, typer.Option("--iteration-time", metavar="DURATION", help="For events by iteration, such as 2s.")
    ] = None
    link_time: Annotated[
        str | None,
        typer.Option(
            "--link-time",
            metavar="DURATION",
            help="Time of a message between nodes, for links that are slow by a factor.",
        ),
    ] = None
    seed: Seed = 0

    def reading(self) -> "TraceOptions":
        """The readers' word for it.

        Raises:
            InvalidInputError: a time cannot be read.
        """
        from ..runners.traces.read import reading_of

        iteration, link = self.iteration_time, self.link_time
        return replace(
            reading_of(self.trace_format, self.nodes, self.leaving, self.slow_faults, self.seed),
            iteration_time_s=None if iteration is None else parse_time_s(iteration, "--iteration-time"),
            usual_link_s=0.0 if link is None else parse_time_s(link, "--link-time"),
        )


@app.command("convert")
@grouped
def convert(
    file: File,
    output: Output = STANDARD_STREAM,
    *,
    timing: TimingOptions,
    quiet: Quiet = False,
    debug: Debug = False,
    force: Force = False,
) -> None:
    """Write a trace as rtk's own: JSON lines, or CSV where the name ends in .csv.

    Formats are logs of spot instances (`t_ms,add|remove,node`), Parcae's JSON lines, counts over time (dated samples,
    or `t,count` in ms, s or h), StepFun's list of hardware faults, and rtk's own. What is written begins at 0 with a
    join for each node that is there at the start; what passes before the first nodes come is left out. Where nodes have
    no names they are called node1, node2, …; --seed says who leaves when a count drops, and which of --nodes are those
    with faults.
    """
    from ..runners.traces.verbs import trace_convert

    count = trace_convert(file, output, timing.reading())
    if output != STANDARD_STREAM:
        remark(f"wrote {output}: {count} events")


app.command("generate")(generate)


@app.command("show")
@grouped
def show(
    file: File,
    timing: TimingOptions,
    common: Common,
) -> None:
    """Summarize a trace: how long, how many nodes, how often some are lost and how many at once."""
    from ..runners.traces.verbs import trace_show

    found = trace_show(file, timing.reading())
    if common.as_json:
        print_json(asdict(found))
        return
    mean_s = found.mean_time_between_failures_s
    kinds = ", ".join(f"{number} {kind}" for kind, number in found.events.items())
    rows = [
        ("lasts", print_time(found.lasts_s)),
        ("nodes at the start", str(found.nodes_at_start)),
        ("fewest, most", f"{found.nodes_min}, {found.nodes_max}"),
        ("on average over time", f"{found.nodes_mean:.1f}"),
        ("events", kinds),
        ("failures (moments with losses)", str(found.failures)),
        ("mean time between them", "-" if mean_s is None else print_time(mean_s)),
        ("longest time without", print_time(found.longest_without_loss_s)),
        ("nodes lost, different ones", f"{found.nodes_lost}, {found.distinct_nodes_lost}"),
        ("most lost at once", str(found.most_lost_at_once)),
        ("most slow at once", str(found.most_slow_at_once)),
    ]
    if found.gpus_lost:
        rows.append(("GPUs lost of nodes that stayed, most dead at once", f"{found.gpus_lost}, {found.most_dead_gpus}"))
    print_table(("", Path(source_of(file)).name), rows, left=2)
