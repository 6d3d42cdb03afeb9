"""What `rtk profile links` says: a table of times by size and one of fits, for people, and a JSON document."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from ..profilers.failslow.monitor.job import SlowParts
from ..profilers.link_survey import AllReduceFit, LinkFit, LinkSurvey, NodeFit, PairFit, bandwidth_of
from ..schemas.errors import remark
from ..schemas.quantities import print_bytes, print_percent, print_share, print_time
from .console import print_table

if TYPE_CHECKING:
    from ..probing import ProbeFindings
    from ..runners.torch.probe import Place


POOR = 0.2  # a median error above this is no line
WIDE = 2.0  # a range that ends at more than so many times its beginning
ODD = 1.25  # so many times as long, or as short, as the planner reckons is said
Fitted = Sequence[PairFit | AllReduceFit]
Kinds = Mapping[str, Fitted]

IN_NODES = "all-reduce in a node"
CROWDS = "pairs between nodes, all at once"
PAIRS = {True: "pairs in a node", False: "pairs between nodes"}


def print_survey(survey: LinkSurvey, places: "Sequence[Place]") -> None:
    """Both tables and the remarks, on standard error.

    Args:
        survey: what was found.
        places: of the ranks.
    """
    # What a table has a line or a column for.
    every: dict[str, Fitted] = {name: survey.pairs_of(within) for within, name in PAIRS.items()}
    every[CROWDS] = [one for node in survey.nodes for one in node.pairs]
    for name in dict.fromkeys(_group_name(one, len(places)) for one in survey.allreduces):
        every[name] = [one for one in survey.allreduces if _group_name(one, len(places)) == name]
    kinds = {name: members for name, members in every.items() if members}
    sizes = sorted({size for members in kinds.values() for one in members for size in one.usual_s})
    rows = ([print_bytes(size), *(_median(members, size) for members in kinds.values())] for size in sizes)
    print_table(("bytes", *kinds), rows, to_stderr=True)
    remark("")
    columns = ("fit", "latency µs", "95 %", "GB/s", "95 %", "error", "worst")
    counted = {f"{name} ({len(members)})" if len(members) > 1 else name: members for name, members in kinds.items()}
    rows = ([name, *_cells([one.fit for one in members])] for name, members in counted.items())
    print_table(columns, rows, to_stderr=True)
    remark("")
    for sentence in _said(survey, kinds):
        remark(sentence)
    from ..runners.torch.probe import crowded_hosts

    for host in crowded_hosts(places):
        remark(f"ranks on {host} share its cores: times include waits for a processor")


def _group_name(one: AllReduceFit, ranks: int) -> str:
    if len(one.ranks) == ranks:
        return f"all-reduce of all {ranks}"
    return IN_NODES if one.within_node else "all-reduce, one a node"


def _median(members: Fitted, size: int) -> str:
    """What a size takes in the median of a kind; nothing where it was not measured."""
    times_s = [one.usual_s[size] for one in members if size in one.usual_s]
    if not times_s:
        return ""
    return print_time(median(times_s))


def _cells(fits: Sequence[LinkFit]) -> Iterator[str]:
    yield f"{1e6 * median(fit.latency_s for fit in fits):.4g}"
    yield "-".join(f"{1e6 * median(fit.latency_range_s[end] for fit in fits):.4g}" for end in (0, 1))
    yield _rate(median(fit.s_per_byte for fit in fits))
    yield "-".join(_rate(median(fit.s_per_byte_range[end] for fit in fits)) for end in (1, 0))
    yield print_share(median(fit.median_error for fit in fits))
    yield print_share(max(fit.worst_error for fit in fits))


def _said(survey: LinkSurvey, kinds: Kinds) -> Iterator[str]:
    """In words."""
    for pair in survey.pairs:
        yield from _slow(pair)
    for name, members in kinds.items():
        error = median(one.fit.median_error for one in members)
        if error > POOR:
            yield f"{name}: no line fits well (median error {print_percent(error)}); trust the times by size more"
        ranges_s = [one.fit.latency_range_s for one in members]
        if 2 * sum(most_s > WIDE * least_s for least_s, most_s in ranges_s) > len(members):
            yield f"{name}: readings differ so much that the latency is uncertain: is the machine busy?"
    for name, members in kinds.items():
        for one in members:
            if isinstance(one, AllReduceFit):
                largest = max(one.usual_s)
                ratio = one.over_planned.get(largest, 1.0)
                if not 1 / ODD < ratio < ODD:
                    who = f"{name}, from rank {one.ranks[0]} on" if name == IN_NODES else name
                    yield f"{who}: {print_bytes(largest)} take {ratio:.2f} times what a ring over such pairs would"
    yield from _of_nodes(survey)


def _of_nodes(survey: LinkSurvey) -> Iterator[str]:
    """What nodes share, and of which kind of links nothing is known."""
    for node in survey.nodes:
        yield from _shared(node)
    if survey.network.intra_node is None:
        yield "no two ranks on one host were measured: nothing is known of links in a node"
    if survey.network.inter_node is None:
        yield "all ranks are on one host: nothing is known of links between nodes"


def _shared(node: NodeFit) -> Iterator[str]:
    rate, worth = node.bandwidth_bytes_per_s, node.worth_pairs
    if rate is None:
        return
    beside = "" if worth is None else f", as much as {worth:.2f} pairs that are alone"
    here, there = node.hosts
    yield f"{here} and {there}: {len(node.pairs)} pairs at once have {rate / 1e9:.3g} GB/s in all{beside}"


def _slow(one: PairFit) -> Iterator[str]:
    ends = f"pair {one.ends[0]}-{one.ends[1]} is slow: "
    if one.slow_latency is not None:
        yield f"{ends}its latency is {one.slow_latency:.2f} times that of others"
    if one.slow_bandwidth is not None:
        yield f"{ends}a byte takes {one.slow_bandwidth:.2f} times as long as on others"


def _rate(s_per_byte: float) -> str:
    bandwidth = bandwidth_of(s_per_byte)
    return f"{bandwidth / 1e9:.3g}" if bandwidth is not None else "any"


# What `rtk probe` says: a table of all tests for people, or one JSON document, and who is slow.


T = TypeVar("T")


def print_probe(found: "ProbeFindings") -> None:
    """Two tables, and a line for whatever is slow."""
    slow, compute_s, exchange_s = found.slow, found.compute_s, found.exchange_s
    how = f"{found.pairs}, {found.passes} passes, {print_time(found.took_s)}"
    workers = [str(rank) for rank in sorted(found.readings)]
    hosts = {str(rank): f"{one.place.host}, {one.place.device}" for rank, one in found.readings.items()}
    rows = ([name, hosts[name], *_probed_cells(compute_s, name), _factor(slow.workers.get(name))] for name in workers)
    print_table(("worker", "where", *compute_s, "slow"), rows)
    if exchange_s:
        sizes = [f"{int(size) / 1e6:g} MB" for size in exchange_s]
        print()
        lines = (
            ["-".join(sorted(link, key=int)), *_probed_cells(exchange_s, link), _factor(slow.links.get(link))]
            for link in found.links
        )
        print_table((f"link ({how})", *sizes, "slow"), lines)
    print()
    print("\n".join(_probed_in_words(slow, found.crowded)))


def _probed_cells(tested: Mapping[str, Mapping[T, Sequence[float]]], one: T) -> Iterable[str]:
    return [print_time(median(times_s[one])) for times_s in tested.values()]


def _factor(slowdown: float | None) -> str:
    return "" if slowdown is None else f"{slowdown:.2f} x"


def _probed_in_words(slow: SlowParts, crowded: Sequence[str]) -> Iterator[str]:
    """In words."""
    for worker, factor in slow.workers.items():
        yield f"worker {worker} is slow: it computes {factor:.2f} times as long as others"
    for link, factor in slow.links.items():
        ends = "-".join(sorted(link, key=int))
        yield f"link {ends} is slow: its messages take {factor:.2f} times as long as on others"
    for worker in slow.cards:
        yield f"all links of worker {worker} are slow: look at its network card, or its machine"
    if not slow:
        yield "nothing is slow"
    for kind in slow.alone:
        yield f"there is only one link {kind}: nothing to compare it with"
    for host in crowded:
        yield f"ranks on {host} share its cores: who is slow there may only have waited for another one"
