"""`rtk trace`: what happens to clusters, read from other people's files, made up, and told in numbers."""

from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..runners.traces.formats import TraceFormat
from ..schemas.errors import InvalidInputError
from ..schemas.fields import MOST_NODES
from ..schemas.files import STANDARD_STREAM, source_of
from ..schemas.quantities import parse_time_s
from .console import Debug, Json, Output, Quiet, Seed, print_json, print_table, remark

if TYPE_CHECKING:
    from ..runners.traces.generate import (
        Distribution,
        FaultScenario,
        Lasting,
        Racks,
        Renewal,
        SlowLinkEpisodes,
        SlowNodes,
    )
    from ..runners.traces.read import Summary, TraceOptions

    _Drawn = tuple[Distribution, float, str]  # its shape, and the option that says that


# `rtk trace generate`: traces made up from rates of failures and times of repair.


DAY_S = 86_400.0
# What is usual where nobody says otherwise.
SHAPE, SIGMA, FACTOR, EPISODE, DELAY = 1.0, 1.0, 1.5, "1h", "20ms"
EXPONENTIAL: "_Drawn" = ("exponential", 1.0, "")


class Between(StrEnum):
    """How times between failures are distributed."""

    EXPONENTIAL = "exponential"
    WEIBULL = "weibull"


class Repairs(StrEnum):
    """How repair times are distributed."""

    EXPONENTIAL = "exponential"
    LOGNORMAL = "lognormal"
    FIXED = "fixed"


def generate(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=MOST_NODES, help="How many, called node1, node2, ….")],
    days: Annotated[float, typer.Option("--days", help="How long the trace is.")],
    mtbf: Annotated[
        str | None, typer.Option("--mtbf", metavar="TIME", help="Of one node, from repaired to failed, such as 30d.")
    ] = None,
    repair: Annotated[
        str | None, typer.Option("--repair", metavar="TIME", help="Mean time until a node is back, such as 4h.")
    ] = None,
    distribution: Annotated[
        Between, typer.Option("--distribution", help="Of times between failures, of nodes and racks.")
    ] = Between.EXPONENTIAL,
    shape: Annotated[
        float, typer.Option("--shape", help="Weibull's: below 1 failures come early, above 1 nodes wear out.")
    ] = SHAPE,
    repairs: Annotated[
        Repairs, typer.Option("--repair-distribution", help="Of repair times, of nodes and racks.")
    ] = Repairs.EXPONENTIAL,
    repair_sigma: Annotated[
        float,
        typer.Option("--repair-sigma", help="Of lognormal repair times: the standard deviation of the logarithm."),
    ] = SIGMA,
    rack_size: Annotated[
        int | None, typer.Option("--rack-size", min=1, help="So many nodes also fail together.")
    ] = None,
    rack_mtbf: Annotated[str | None, typer.Option("--rack-mtbf", metavar="TIME", help="Of a rack.")] = None,
    rack_repair: Annotated[
        str | None, typer.Option("--rack-repair", metavar="TIME", help="Mean time until a rack is back; else --repair.")
    ] = None,
    slow_every: Annotated[
        str | None, typer.Option("--slow-every", metavar="TIME", help="Mean time between slow episodes of a node.")
    ] = None,
    slow_lasts: Annotated[str, typer.Option("--slow-lasts", metavar="TIME", help="Their mean time.")] = EPISODE,
    slow_factor: Annotated[
        float, typer.Option("--slow-factor", help="Operations then take so many times as long.")
    ] = FACTOR,
    slow_link_every: Annotated[
        str | None,
        typer.Option(
            "--slow-link-every",
            metavar="TIME",
            help="Mean time between slow episodes of a link between neighbouring nodes.",
        ),
    ] = None,
    slow_link_lasts: Annotated[
        str, typer.Option("--slow-link-lasts", metavar="TIME", help="Their mean time.")
    ] = EPISODE,
    slow_link_delay: Annotated[
        str, typer.Option("--slow-link-delay", metavar="TIME", help="What a message then takes in all.")
    ] = DELAY,
    output: Output = STANDARD_STREAM,
    seed: Seed = 0,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make up a trace: nodes that fail and are repaired, racks that fail as a whole, slow nodes and slow links.

    Each is a renewal process with random numbers of its own: the same seed gives the same bytes, and more nodes, or
    slow episodes beside failures, leave the others as they were. All nodes are new at 0.
    """
    from ..runners.traces.files import LONGEST_S
    from ..runners.traces.generate import generate as generated
    from ..runners.traces.read import write_events

    if not 0 < days * DAY_S < LONGEST_S:
        fix = f"give more than 0, and less than {LONGEST_S / DAY_S:.0f}"
        raise InvalidInputError(f"a trace cannot last {days * DAY_S:g} s", where="--days", fix=fix)
    _require_heeded(shape != SHAPE, distribution is Between.WEIBULL, "--shape", "--distribution weibull")
    is_lognormal = repairs is Repairs.LOGNORMAL
    _require_heeded(repair_sigma != SIGMA, is_lognormal, "--repair-sigma", "--repair-distribution lognormal")
    _require_heeded(rack_repair is not None, rack_mtbf is not None, "--rack-repair", "--rack-mtbf")
    _require_heeded(slow_factor != FACTOR, slow_every is not None, "--slow-factor", "--slow-every")
    _require_heeded(slow_lasts != EPISODE, slow_every is not None, "--slow-lasts", "--slow-every")
    is_link = slow_link_every is not None
    _require_heeded(slow_link_lasts != EPISODE, is_link, "--slow-link-lasts", "--slow-link-every")
    _require_heeded(slow_link_delay != DELAY, is_link, "--slow-link-delay", "--slow-link-every")
    recipe = recipe_of(
        nodes, days * DAY_S, seed,
        mtbf=mtbf, repair=repair, distribution=distribution, shape=shape, repairs=repairs, repair_sigma=repair_sigma,
        rack_size=rack_size, rack_mtbf=rack_mtbf, rack_repair=rack_repair,
        slow_every=slow_every, slow_lasts=slow_lasts, slow_factor=slow_factor,
        slow_link_every=slow_link_every, slow_link_lasts=slow_link_lasts, slow_link_delay=slow_link_delay,
    )  # fmt: skip
    count = write_events(output, generated(recipe))
    if output != STANDARD_STREAM:
        remark(f"wrote {output}: {count} events")


def recipe_of(
    nodes: int,
    lasts_s: float,
    seed: int,
    *,
    mtbf: str | None = None,
    repair: str | None = None,
    distribution: Between = Between.EXPONENTIAL,
    shape: float = SHAPE,
    repairs: Repairs = Repairs.EXPONENTIAL,
    repair_sigma: float = SIGMA,
    rack_size: int | None = None,
    rack_mtbf: str | None = None,
    rack_repair: str | None = None,
    slow_every: str | None = None,
    slow_lasts: str = EPISODE,
    slow_factor: float = FACTOR,
    slow_link_every: str | None = None,
    slow_link_lasts: str = EPISODE,
    slow_link_delay: str = DELAY,
) -> "FaultScenario":
    """What is to happen, by what `rtk trace generate` is told; times are texts with units.

    Raises:
        InvalidInputError: a value is not one that it can be, or one is missing; names the option.
    """
    from ..runners.traces.generate import FaultScenario

    between: _Drawn = (distribution.value, shape, "--shape")
    back: _Drawn = (repairs.value, repair_sigma, "--repair-sigma")
    if repair is not None and mtbf is None and rack_mtbf is None:
        raise InvalidInputError("nothing fails that could be repaired", where="--repair", fix="add --mtbf")
    return FaultScenario(
        nodes=nodes,
        lasts_s=lasts_s,
        failing=_failing(mtbf, repair, "--mtbf", "--repair", between, back),
        racks=_racks(
            rack_size, _failing(rack_mtbf, rack_repair or repair, "--rack-mtbf", "--rack-repair", between, back)
        ),
        slow_nodes=_slow_nodes(slow_every, slow_lasts, slow_factor),
        slow_links=_slow_links(slow_link_every, slow_link_lasts, slow_link_delay),
        seed=seed,
    )


def _require_heeded(is_given: bool, is_heeded: bool, option: str, needed: str) -> None:
    """Refuse an option that would say something about what is not asked for."""
    if is_given and not is_heeded:
        raise InvalidInputError("this option means nothing here", where=option, fix=f"add {needed}, or leave it out")


def _failing(
    mtbf: str | None,
    repair: str | None,
    mtbf_option: str,
    repair_option: str,
    between: "_Drawn",
    back: "_Drawn",
) -> "Renewal | None":
    """Failures and repairs, where they are asked for."""
    from ..runners.traces.generate import Renewal

    if mtbf is None:
        return None
    if repair is None:
        raise InvalidInputError(
            f"{mtbf_option} without a time of repair", where=repair_option, fix=f"add it, such as {repair_option} 4h"
        )
    return Renewal(_lasting(mtbf, mtbf_option, between), _lasting(repair, repair_option, back))


def _racks(size: int | None, failing: "Renewal | None") -> "Racks | None":
    from ..runners.traces.generate import Racks

    if (size is None) != (failing is None):
        missing = "--rack-size" if size is None else "--rack-mtbf"
        raise InvalidInputError("racks need a size and a rate", where=missing, fix=f"add {missing}")
    return None if size is None or failing is None else Racks(size, failing)


def _slow_nodes(every: str | None, lasts: str, factor: float) -> "SlowNodes | None":
    from ..runners.traces.generate import SlowNodes

    return None if every is None else SlowNodes(_episodes(every, "--slow-every", lasts, "--slow-lasts"), factor)


def _slow_links(every: str | None, lasts: str, delay: str) -> "SlowLinkEpisodes | None":
    from ..runners.traces.generate import SlowLinkEpisodes

    if every is None:
        return None
    episodes = _episodes(every, "--slow-link-every", lasts, "--slow-link-lasts")
    return SlowLinkEpisodes(episodes, parse_time_s(delay, "--slow-link-delay"))


def _episodes(every: str, every_option: str, lasts: str, lasts_option: str) -> "Renewal":
    from ..runners.traces.generate import Renewal

    return Renewal(_lasting(every, every_option, EXPONENTIAL), _lasting(lasts, lasts_option, EXPONENTIAL))


def _lasting(mean: str, option: str, drawn: "_Drawn") -> "Lasting":
    from ..runners.traces.generate import LEAST_S, Lasting

    mean_s, (distribution, shape, shape_option) = parse_time_s(mean, option), drawn
    try:
        return Lasting(mean_s, distribution, shape)
    except InvalidInputError as error:
        raise InvalidInputError(
            error.what, where=shape_option if mean_s >= LEAST_S else option, fix=error.fix
        ) from None


app = typer.Typer(no_args_is_help=True, help="Traces of failures and slow-downs: convert, make up, and look at them.")


class DepartureOrder(StrEnum):
    """Who leaves when a count drops."""

    RANDOM = "random"
    NEWEST = "newest"


File = Annotated[str, typer.Argument(metavar="FILE", help="The trace, .gz or not; `-` is standard input.")]
FormatName = Annotated[
    TraceFormat | None, typer.Option("--format", "--trace-format", help="Read the file as this; else it is recognised.")
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
Leaves = Annotated[DepartureOrder, typer.Option("--leaving", help="Who leaves when a count drops.")]
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
    leaving: Leaves = DepartureOrder.RANDOM,
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
    from ..runners.traces.read import read_events, write_events

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
    leaving: Leaves = DepartureOrder.RANDOM,
    slow_faults: SlowFaults = False,
    iteration_time: IterationTime = None,
    link_time: LinkTime = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say what a trace is like: how long, how many nodes, how often some are lost and how many at once."""
    from ..runners.traces.read import read_events, summary_of

    reading = _reading(format_name, nodes, leaving, slow_faults, iteration_time, link_time, seed)
    found = summary_of(read_events(file, reading), reading.usual_link_s)
    if as_json:
        print_json(asdict(found))
    else:
        print_table(("", Path(source_of(file)).name), _rows(found), left=2)


def _reading(
    format_name: TraceFormat | None,
    nodes: int | None,
    leaving: DepartureOrder,
    slow_faults: bool,
    iteration_time: str | None,
    link_time: str | None,
    seed: int,
) -> "TraceOptions":
    return replace(
        reading_of(format_name, nodes, leaving, slow_faults, seed),
        iteration_time_s=None if iteration_time is None else parse_time_s(iteration_time, "--iteration-time"),
        usual_link_s=0.0 if link_time is None else parse_time_s(link_time, "--link-time"),
    )


def reading_of(
    format_name: TraceFormat | None,
    nodes: int | tuple[str, ...] | None,
    leaving: DepartureOrder,
    slow_faults: bool,
    seed: int,
) -> "TraceOptions":
    """How a trace is to be read, by the options that all commands share that read one."""
    from ..runners.traces.formats import SLOW_FAULTS
    from ..runners.traces.read import TraceOptions

    return TraceOptions(
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
