"""Traces with plain arguments: what `rtk trace …` calls, and what Python calls.

Generated traces are of nodes that fail and are repaired, racks that fail as a whole, single GPUs, slow episodes of
nodes and links. Everything is a renewal process: a time until it begins, a time that it lasts, and again, each drawn
anew; at 0 all nodes are new. Each node, rack, GPU and link has random numbers of its own, so adding nodes leaves what
happens to the others as it was, and so does adding faults of GPUs, or slow episodes, to failures.
"""

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...schemas.degrees import MOST_GPUS
from ...schemas.errors import InvalidInputError
from ...schemas.fields import MOST_NODES
from ...schemas.quantities import parse_time_s, print_time
from ...schemas.trace import TraceEvent
from .files import LONGEST_S
from .read import Summary, TraceOptions, read_events, summary_of, write_events

if TYPE_CHECKING:
    from numpy.random import Generator, SeedSequence


# How long something lasts, drawn at random: times between failures, repairs, episodes.


Distribution = Literal["exponential", "weibull", "lognormal", "fixed"]
LEAST_S = 1e-3  # of a mean: traces count whole milliseconds, and in less of them time stands still
# Beyond these nearly all draws are nothing, a few are longer than any trace, and time stands still.
SHAPES = {"weibull": (0.1, 100.0), "lognormal": (0.0, 5.0)}


@dataclass(frozen=True)
class Lasting:
    """A distribution of times.

    Attributes:
        mean_s: its mean.
        distribution: `exponential`; `weibull`; `lognormal`; or `fixed`, always the mean.
        shape: of a Weibull distribution k (below 1 what has just begun ends soonest, as with early failures; 1 is
            exponential; above 1 it wears out); of a lognormal one sigma, the standard deviation of the logarithm.

    Raises:
        InvalidInputError: the mean is below a millisecond, or the shape not one of `SHAPES`.
    """

    mean_s: float
    distribution: Distribution = "exponential"
    shape: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean_s) and self.mean_s >= LEAST_S):
            what = f"the mean {print_time(self.mean_s)} of a distribution is not a millisecond or more"
            raise InvalidInputError(what, fix="give at least 1ms")
        least, most = SHAPES.get(self.distribution, (-math.inf, math.inf))
        if not least <= self.shape <= most:
            raise InvalidInputError(
                f"a {self.distribution} distribution cannot have the shape {self.shape:g}",
                fix=f"give one from {least:g} to {most:g}",
            )

    def draw_s(self, generator: "Generator") -> float:
        """A time, 0 or more."""
        match self.distribution:
            case "fixed":
                return self.mean_s
            case "exponential":
                return self.mean_s * generator.standard_exponential()
            case "weibull":
                return self.mean_s * float(generator.weibull(self.shape)) / math.gamma(1 + 1 / self.shape)
            case "lognormal":
                return self.mean_s * float(generator.lognormal(-(self.shape**2) / 2, self.shape))


Interval = tuple[float, float]
LARGEST_FACTOR = 1e9  # as `Factor` of schemas/fields.py


@dataclass(frozen=True)
class Renewal:
    """Something that comes and goes: how long until it begins, and how long it then lasts."""

    until: Lasting
    lasts: Lasting


@dataclass(frozen=True)
class Racks:
    """Nodes that also fail together: `size` at a time in the order of their numbers, all at once, and back at once."""

    size: int
    failing: Renewal


@dataclass(frozen=True)
class FailingGpus:
    """GPUs that fail one by one while their node goes on: so many of each node."""

    per_node: int
    failing: Renewal


@dataclass(frozen=True)
class SlowNodes:
    """Episodes in which a node's operations take `factor` times as long."""

    episodes: Renewal
    factor: float


@dataclass(frozen=True)
class SlowLinkEpisodes:
    """Episodes in which a message between two neighbouring nodes takes `delay_s` in all; each link has its own."""

    episodes: Renewal
    delay_s: float


@dataclass(frozen=True)
class FaultScenario:
    """What is to happen to a cluster.

    Attributes:
        nodes: how many, called node1, node2, ….
        lasts_s: how long the trace is.
        failing: of every node by itself; None: never.
        racks: None: nodes share nothing.
        slow_nodes: None: nodes are never slow.
        slow_links: None: links are never slow.
        seed: of everything.
        gpus: None: no GPU fails but with its node.

    Raises:
        InvalidInputError: a number is not one that it can be.
    """

    nodes: int
    lasts_s: float
    failing: Renewal | None = None
    racks: Racks | None = None
    slow_nodes: SlowNodes | None = None
    slow_links: SlowLinkEpisodes | None = None
    seed: int = 0
    gpus: FailingGpus | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"gpus"})  # digests of questions stay as they were

    def __post_init__(self) -> None:
        _require(self.nodes >= 1, f"{self.nodes} nodes are no cluster", "give at least one node")
        _require(self.nodes <= MOST_NODES, f"{self.nodes} nodes are too many", f"up to {MOST_NODES}")
        _require(
            0 < self.lasts_s < LONGEST_S,
            f"a trace cannot last {print_time(self.lasts_s)}",
            f"let it last longer than 0 s, and less than {print_time(LONGEST_S)}",
        )
        if self.racks is not None:
            _require(self.racks.size >= 1, f"a rack of {self.racks.size} nodes", "put at least one node into a rack")
        if self.gpus is not None:
            gpus = self.gpus.per_node
            _require(1 <= gpus <= MOST_GPUS, f"{gpus} GPUs of a node", f"give 1 to {MOST_GPUS}")
        if self.slow_nodes is not None:
            factor = self.slow_nodes.factor
            _require(1 < factor < LARGEST_FACTOR, f"a slow node's factor cannot be {factor:g}", "give one such as 1.5")
        if self.slow_links is not None:
            delay_s = self.slow_links.delay_s
            _require(
                0 < delay_s < LONGEST_S, f"a slow link's delay cannot be {print_time(delay_s)}", "give one such as 20ms"
            )


def generate(recipe: FaultScenario) -> Iterator[TraceEvent]:
    """The events of a generated trace, in time order and one after the other, however long it is.

    It begins with all nodes, which come at 0, and ends with its `end`. A node whose rack fails while it is down is back
    when both are repaired. Who fails while slow is well afterwards, and nobody becomes slow who is down; so it is with
    GPUs: a node that fails comes back with all of them.
    """
    from numpy.random import SeedSequence

    names = [f"node{number}" for number in range(1, recipe.nodes + 1)]
    of_nodes, of_racks, of_links, of_gpus = SeedSequence(recipe.seed).spawn(4)
    own, rack_seeds = of_nodes.spawn(recipe.nodes), of_racks.spawn(recipe.nodes)
    size = recipe.racks.size if recipe.racks is not None else 1
    streams = [_node_events(recipe, name, own[number], rack_seeds[number // size]) for number, name in enumerate(names)]
    if recipe.gpus is not None:
        for number, seed in enumerate(of_gpus.spawn(recipe.nodes)):
            downs = partial(_downs, recipe, own[number], rack_seeds[number // size])
            each = enumerate(seed.spawn(recipe.gpus.per_node))
            streams += [_gpu_events(recipe.gpus, names[number], gpu, own_seed, downs()) for gpu, own_seed in each]
    if recipe.slow_links is not None:
        pairs = zip(names, names[1:], of_links.spawn(recipe.nodes), strict=False)
        streams += [_link_events(recipe.slow_links, one, other, seed) for one, other, seed in pairs]
    starts = (TraceEvent("join", time_s=0.0, node=name) for name in names)
    happening = takewhile(lambda event: _time_s(event) < recipe.lasts_s, heapq.merge(*streams, key=_time_s))
    return chain(starts, happening, [TraceEvent("end", time_s=recipe.lasts_s)])


def _node_events(
    recipe: FaultScenario, name: str, own: "SeedSequence", of_rack: "SeedSequence"
) -> Iterator[TraceEvent]:
    """What happens to a node, without an end."""
    slow = recipe.slow_nodes
    episodes = iter(()) if slow is None else _intervals(slow.episodes, _spawned(own)[1])
    marked = heapq.merge(
        ((start, end, True) for start, end in _downs(recipe, own, of_rack)),
        ((start, end, False) for start, end in episodes),
    )
    return _alternating(name, marked, 1.0 if slow is None else slow.factor)


def _downs(recipe: FaultScenario, own: "SeedSequence", of_rack: "SeedSequence") -> Iterator[Interval]:
    """From when to when a node is down, by itself or with its rack; the same whenever it is asked."""
    downs = [] if recipe.failing is None else [_intervals(recipe.failing, _spawned(own)[0])]
    if recipe.racks is not None:
        downs.append(_intervals(recipe.racks.failing, of_rack))
    return _united(heapq.merge(*downs))


def _spawned(own: "SeedSequence") -> list["SeedSequence"]:
    """The seeds of a node's failures and of its slow episodes; a sequence spawns others each time it is asked."""
    return type(own)(own.entropy, spawn_key=own.spawn_key).spawn(2)


def _gpu_events(
    gpus: FailingGpus, node: str, gpu: int, seed: "SeedSequence", downs: Iterator[Interval]
) -> Iterator[TraceEvent]:
    """What happens to a GPU while its node is up: it fails, and is repaired, unless its node fails before."""
    down = next(downs, (math.inf, math.inf))
    for start, end in _intervals(gpus.failing, seed):
        while down[1] <= start:
            down = next(downs, (math.inf, math.inf))
        if down[0] <= start:
            continue
        yield TraceEvent("fail", time_s=start, node=node, gpu=gpu)
        if end < down[0]:
            yield TraceEvent("join", time_s=end, node=node, gpu=gpu)


def _alternating(name: str, marked: Iterable[tuple[float, float, bool]], factor: float) -> Iterator[TraceEvent]:
    """A node's events, from when to when it is down (True) or slow (False), by their starts."""
    down_until = 0.0
    slow_until: float | None = None
    for start, end, is_down in marked:
        if start < down_until:
            continue
        if slow_until is not None and (slow_until < start or not is_down):
            yield TraceEvent("recover", time_s=slow_until, node=name)
        slow_until = None if is_down else end
        if is_down:
            down_until = end
            yield TraceEvent("fail", time_s=start, node=name)
            yield TraceEvent("join", time_s=end, node=name)
        else:
            yield TraceEvent("slow_compute", time_s=start, node=name, factor=factor)


def _link_events(slow: SlowLinkEpisodes, one: str, other: str, seed: "SeedSequence") -> Iterator[TraceEvent]:
    for start, end in _intervals(slow.episodes, seed):
        yield TraceEvent("slow_link", time_s=start, node=one, peer=other, delay_s=slow.delay_s)
        yield TraceEvent("recover", time_s=end, node=one, peer=other)


def _intervals(renewal: Renewal, seed: "SeedSequence") -> Iterator[Interval]:
    """From when to when, to the millisecond, without an end."""
    from numpy.random import default_rng

    generator = default_rng(seed)
    now_s = 0.0
    while True:
        start_s = now_s + renewal.until.draw_s(generator)
        now_s = start_s + renewal.lasts.draw_s(generator)
        yield round(start_s, 3), round(now_s, 3)


def _united(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Intervals, by their starts, with those that touch or overlap made one."""
    current: Interval | None = None
    for start, end in intervals:
        if current is None or start > current[1]:
            if current is not None:
                yield current
            current = start, end
        else:
            current = current[0], max(current[1], end)


def _time_s(event: TraceEvent) -> float:
    assert event.time_s is not None
    return event.time_s


def _require(is_right: bool, what: str, fix: str) -> None:
    if not is_right:
        raise InvalidInputError(what, fix=fix)


# Recipes as texts with units say them: `rtk trace generate`, and the files of `rtk sweep`.


DAY_S = 86_400.0
# What is usual where nobody says otherwise.
SHAPE, SIGMA, FACTOR, EPISODE, DELAY = 1.0, 1.0, 1.5, "1h", "20ms"
_Drawn = tuple[Distribution, float, str]  # its shape, and the option that says that


def recipe_of(
    nodes: int,
    lasts_s: float,
    seed: int,
    *,
    mtbf: str | None = None,
    repair: str | None = None,
    distribution: Literal["exponential", "weibull"] = "exponential",
    shape: float = SHAPE,
    repairs: Literal["exponential", "lognormal", "fixed"] = "exponential",
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
    gpus_per_node: int | None = None,
    gpu_mtbf: str | None = None,
    gpu_repair: str | None = None,
) -> FaultScenario:
    """What is to happen, by what `rtk trace generate` is told; times are texts with units.

    Raises:
        InvalidInputError: a value is not one that it can be, or one is missing; names the option.
    """
    between: _Drawn = (distribution, shape, "--shape")
    back: _Drawn = (repairs, repair_sigma, "--repair-sigma")
    if (gpus_per_node is None) != (gpu_mtbf is None):
        missing = "--gpus-per-node" if gpus_per_node is None else "--gpu-mtbf"
        raise InvalidInputError("GPUs need a number and a rate", where=missing, fix=f"add {missing}")
    if repair is not None and mtbf is None and rack_mtbf is None:
        raise InvalidInputError("nothing fails that could be repaired", where="--repair", fix="add --mtbf")
    if (rack_size is None) != (rack_mtbf is None):
        missing = "--rack-size" if rack_size is None else "--rack-mtbf"
        raise InvalidInputError("racks need a size and a rate", where=missing, fix=f"add {missing}")
    if all(rate is None for rate in (mtbf, rack_mtbf, gpu_mtbf, slow_every, slow_link_every)):
        raise InvalidInputError(
            "nothing fails in this trace, and nothing is slow", where="--mtbf", fix="add --mtbf 30d --repair 4h, say"
        )
    nodes_fail = _failing(mtbf, repair, "--mtbf", "--repair", between, back)
    racks_fail = _failing(rack_mtbf, rack_repair or repair, "--rack-mtbf", "--rack-repair", between, back)
    gpus_fail = _failing(gpu_mtbf, gpu_repair, "--gpu-mtbf", "--gpu-repair", between, back)
    slow_nodes = _episodes(slow_every, slow_lasts, "--slow-every", "--slow-lasts")
    slow_links = _episodes(slow_link_every, slow_link_lasts, "--slow-link-every", "--slow-link-lasts")
    delay_s = 0.0 if slow_links is None else parse_time_s(slow_link_delay, "--slow-link-delay")
    return FaultScenario(
        nodes=nodes,
        lasts_s=lasts_s,
        failing=nodes_fail,
        racks=None if rack_size is None or racks_fail is None else Racks(rack_size, racks_fail),
        slow_nodes=None if slow_nodes is None else SlowNodes(slow_nodes, slow_factor),
        slow_links=None if slow_links is None else SlowLinkEpisodes(slow_links, delay_s),
        seed=seed,
        gpus=None if gpus_per_node is None or gpus_fail is None else FailingGpus(gpus_per_node, gpus_fail),
    )


def _failing(
    mtbf: str | None,
    repair: str | None,
    mtbf_option: str,
    repair_option: str,
    between: _Drawn,
    back: _Drawn,
) -> Renewal | None:
    """Failures and repairs, where they are asked for."""
    if mtbf is None:
        return None
    if repair is None:
        raise InvalidInputError(
            f"{mtbf_option} without a time of repair", where=repair_option, fix=f"add it, such as {repair_option} 4h"
        )
    return Renewal(_lasting(mtbf, mtbf_option, between), _lasting(repair, repair_option, back))


def _episodes(every: str | None, lasts: str, every_option: str, lasts_option: str) -> Renewal | None:
    if every is None:
        return None
    usual: _Drawn = ("exponential", 1.0, "")
    return Renewal(_lasting(every, every_option, usual), _lasting(lasts, lasts_option, usual))


def _lasting(mean: str, option: str, drawn: _Drawn) -> Lasting:
    mean_s, (distribution, shape, shape_option) = parse_time_s(mean, option), drawn
    try:
        return Lasting(mean_s, distribution, shape)
    except InvalidInputError as error:
        raise InvalidInputError(
            error.what, where=shape_option if mean_s >= LEAST_S else option, fix=error.fix
        ) from None


def trace_generate(*, nodes: int, days: float, seed: int = 0, **faults: Any) -> Iterator[TraceEvent]:
    """Make up a trace: nodes that fail and are repaired, racks that fail as a whole, single GPUs, what is slow.

    Args:
        nodes: how many, called node1, node2, ….
        days: how long it lasts.
        seed: of all that is drawn; the same gives the same events.
        faults: what is to happen, as the options of `rtk trace generate` say it (`recipe_of`): `mtbf="30d"`.

    Raises:
        InvalidInputError: a value is not one that it can be, or one is missing; names the option.
    """
    if not 0 < days * DAY_S < LONGEST_S:
        fix = f"give more than 0, and less than {LONGEST_S / DAY_S:.0f}"
        raise InvalidInputError(f"a trace cannot last {print_time(days * DAY_S)}", where="--days", fix=fix)
    return generate(recipe_of(nodes, days * DAY_S, seed, **faults))


def trace_convert(file: str, output: str, options: TraceOptions | None = None) -> int:
    """Write somebody's trace as rtk's own: JSON lines, or CSV where the name ends in .csv.

    Args:
        file: in any format that `rtk trace convert` names.
        output: where to write.
        options: what the trace does not say itself.

    Returns:
        How many events it has.

    Raises:
        InvalidInputError: it cannot be read, or written.
    """
    return write_events(output, (one.event for one in read_events(file, options)))


def trace_show(file: str, options: TraceOptions | None = None) -> Summary:
    """What a trace is like: how long, how many nodes, how often some are lost and how many at once.

    Args:
        file, options: as for `trace_convert`.

    Raises:
        InvalidInputError: it cannot be read.
    """
    return summary_of(read_events(file, options), (options or TraceOptions()).ledger)
