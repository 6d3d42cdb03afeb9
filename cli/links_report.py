"""What `rtk profile links` says: a table of times by size and one of fits, for people, and a JSON document."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from ..profilers.failslow.monitor.job import SlowParts, slow_parts
from ..profilers.link_survey import AllReduceFit, LinkFit, LinkSurvey, PairFit, bandwidth_of
from ..schemas.conditions import Pair, pair_of
from ..schemas.documents import canonical_json, to_tree
from ..schemas.files import write_bytes
from .console import print_json, print_table, remark
from .probe import crowded_hosts

if TYPE_CHECKING:
    from ..runners.torch.probe import Place, ProbeSamples


POOR = 0.2  # a median error above this is no line
WIDE = 2.0  # a range that ends at more than so many times its beginning
ODD = 1.25  # so many times as long, or as short, as the planner reckons is said
Fitted = Sequence[PairFit | AllReduceFit]
Kinds = Mapping[str, Fitted]

IN_NODES = "all-reduce in a node"
PAIRS = {True: "pairs in a node", False: "pairs between nodes"}


def tree_of(survey: LinkSurvey, places: "Sequence[Place]", is_together: bool) -> dict[str, Any]:
    """The JSON document; `places` are those of the ranks."""
    return {
        "ranks": [{"rank": rank, "host": one.host, "device": one.device} for rank, one in enumerate(places)],
        "pairs_at_once": is_together,
        "crowded": crowded_hosts(places),
        "pairs": [_pair(one) for one in survey.pairs],
        "allreduce": [_allreduce(one) for one in survey.allreduces],
        "intra_node": to_tree(survey.network.intra_node),
        "inter_node": to_tree(survey.network.inter_node),
    }


def print_survey(survey: LinkSurvey, places: "Sequence[Place]") -> None:
    """Both tables and the remarks, on standard error.

    Args:
        survey: what was found.
        places: of the ranks.
    """
    kinds = _kinds(survey, len(places))
    _print_times(kinds)
    _print_fits(kinds)
    for sentence in (*_said(survey, kinds), *_crowded(places)):
        remark(sentence)


def _pair(one: PairFit) -> dict[str, Any]:
    return {
        "from": one.ends[0],
        "to": one.ends[1],
        "within_node": one.within_node,
        **_fit(one.fit),
        "slow_latency": one.slow_latency,
        "slow_bandwidth": one.slow_bandwidth,
        "one_way_s": {str(size): time_s for size, time_s in one.usual_s.items()},
    }


def _allreduce(one: AllReduceFit) -> dict[str, Any]:
    """Latency and bandwidth are those of one step of a ring, so they compare with those of pairs."""
    return {
        "ranks": list(one.ranks),
        "within_node": one.within_node,
        **_fit(one.fit),
        "time_s": {str(size): time_s for size, time_s in one.usual_s.items()},
        "over_planned": {str(size): ratio for size, ratio in one.over_planned.items()},
    }


def _fit(fit: LinkFit) -> dict[str, Any]:
    return {
        "latency_s": fit.latency_s,
        "latency_range_s": list(fit.latency_range_s),
        "bandwidth_bytes_per_s": fit.bandwidth_bytes_per_s,
        "bandwidth_range_bytes_per_s": list(fit.bandwidth_range_bytes_per_s),
        "error": {"median": fit.median_error, "worst": fit.worst_error},
    }


def _kinds(survey: LinkSurvey, ranks: int) -> Kinds:
    """What a table has a line or a column for."""
    kinds: dict[str, Fitted] = {name: survey.pairs_of(within) for within, name in PAIRS.items()}
    for name in dict.fromkeys(_group_name(one, ranks) for one in survey.allreduces):
        kinds[name] = [one for one in survey.allreduces if _group_name(one, ranks) == name]
    return {name: members for name, members in kinds.items() if members}


def _group_name(one: AllReduceFit, ranks: int) -> str:
    if len(one.ranks) == ranks:
        return f"all-reduce of all {ranks}"
    return IN_NODES if one.within_node else "all-reduce, one a node"


def _print_times(kinds: Kinds) -> None:
    """By size, the median of each kind."""
    sizes = sorted({size for members in kinds.values() for one in members for size in one.usual_s})
    rows = ([_size(size), *(_time_at(members, size) for members in kinds.values())] for size in sizes)
    print_table(("bytes", *kinds), rows, to_stderr=True)
    remark("")


def _time_at(members: Fitted, size: int) -> str:
    times_s = [one.usual_s[size] for one in members if size in one.usual_s]
    return _time(median(times_s)) if times_s else ""


def _print_fits(kinds: Kinds) -> None:
    """For each kind the medians of its fits, and the worst error of all."""
    columns = ("fit", "latency us", "95 %", "GB/s", "95 %", "error", "worst")
    rows = ([_counted(name, members), *_cells([one.fit for one in members])] for name, members in kinds.items())
    print_table(columns, rows, to_stderr=True)
    remark("")


def _counted(name: str, members: Fitted) -> str:
    return f"{name} ({len(members)})" if len(members) > 1 else name


def _cells(fits: Sequence[LinkFit]) -> Iterator[str]:
    yield f"{1e6 * median(fit.latency_s for fit in fits):.4g}"
    yield "-".join(f"{1e6 * median(fit.latency_range_s[end] for fit in fits):.4g}" for end in (0, 1))
    yield _rate(median(fit.s_per_byte for fit in fits))
    yield "-".join(_rate(median(fit.s_per_byte_range[end] for fit in fits)) for end in (1, 0))
    yield f"{median(fit.median_error for fit in fits):.1%}"
    yield f"{max(fit.worst_error for fit in fits):.1%}"


def _said(survey: LinkSurvey, kinds: Kinds) -> Iterator[str]:
    """In words."""
    for pair in survey.pairs:
        yield from _slow(pair)
    for name, members in kinds.items():
        error = median(one.fit.median_error for one in members)
        if error > POOR:
            yield f"{name}: no line fits well (median error {error:.0%}); trust the times by size more"
        if 2 * sum(_is_wide(one.fit) for one in members) > len(members):
            yield f"{name}: readings differ so much that the latency is uncertain: is the machine busy?"
    for name, members in kinds.items():
        yield from (sentence for one in members if isinstance(one, AllReduceFit) for sentence in _odd(name, one))
    if survey.network.intra_node is None:
        yield "no two ranks on one host were measured: nothing is known of links in a node"
    if survey.network.inter_node is None:
        yield "all ranks are on one host: nothing is known of links between nodes"


def _is_wide(fit: LinkFit) -> bool:
    least_s, most_s = fit.latency_range_s
    return most_s > WIDE * least_s


def _slow(one: PairFit) -> Iterator[str]:
    ends = f"pair {one.ends[0]}-{one.ends[1]} is slow: "
    if one.slow_latency is not None:
        yield f"{ends}its latency is {one.slow_latency:.2f} times that of others"
    if one.slow_bandwidth is not None:
        yield f"{ends}a byte takes {one.slow_bandwidth:.2f} times as long as on others"


def _odd(name: str, one: AllReduceFit) -> Iterator[str]:
    """Where the planner would be wrong about large sums."""
    largest = max(one.usual_s)
    ratio = one.over_planned.get(largest, 1.0)
    if not 1 / ODD < ratio < ODD:
        who = f"{name}, from rank {one.ranks[0]} on" if name == IN_NODES else name
        yield f"{who}: {_size(largest)} take {ratio:.2f} times what a ring over such pairs would"


def _crowded(places: "Sequence[Place]") -> Iterator[str]:
    for host in crowded_hosts(places):
        yield f"ranks on {host} share its cores: times include waits for a processor"


def _size(size_bytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def _time(seconds: float) -> str:
    return f"{1e6 * seconds:.4g} us" if seconds < 1e-3 else f"{1e3 * seconds:.4g} ms"


def _rate(s_per_byte: float) -> str:
    bandwidth = bandwidth_of(s_per_byte)
    return f"{bandwidth / 1e9:.3g}" if bandwidth is not None else "any"


# What `rtk probe` says: a table of all tests for people, or one JSON document, and who is slow.


T = TypeVar("T")
Computed = dict[str, dict[str, list[float]]]  # by data type, then by worker, in s
Exchanged = dict[str, dict[Pair, list[float]]]  # by message size, then by link, in s


def report(
    readings: "Mapping[int, ProbeSamples]", pairs: str, passes: int, took_s: float, output: str | None, as_json: bool
) -> bool:
    """Judge, and say what was found; whether nothing is slow.

    Args:
        readings: of each rank.
        pairs: which links were tested.
        passes: in how many passes.
        took_s: the duration of all tests.
        output: where the JSON document goes as well.
        as_json: print it instead of tables.
    """
    compute_s, exchange_s = _computed(readings), _exchanged(readings)
    slow = slow_parts(compute_s, exchange_s, {str(rank): one.place.host for rank, one in readings.items()})
    tree = _tree(readings, compute_s, exchange_s, slow) | {"pairs": pairs, "passes": passes, "took_s": took_s}
    if output is not None:
        write_bytes(output, canonical_json(tree))
    if as_json:
        print_json(tree)
    else:
        _print(readings, compute_s, exchange_s, slow, f"{pairs}, {passes} passes, {took_s:.1f} s")
    return not slow


def _computed(readings: "Mapping[int, ProbeSamples]") -> Computed:
    found: Computed = {}
    for rank, one in readings.items():
        for test, times_s in one.compute_s.items():
            found.setdefault(test, {})[str(rank)] = list(times_s)
    return found


def _exchanged(readings: "Mapping[int, ProbeSamples]") -> Exchanged:
    """Both directions of a link, and passes that it comes in twice, together."""
    found: Exchanged = {}
    for rank, one in readings.items():
        for (peer, size), times_s in sorted(one.exchange_s.items()):
            of_size = found.setdefault(str(size), {})
            of_size.setdefault(pair_of(str(rank), str(peer)), []).extend(times_s)
    return found


def _tree(
    readings: "Mapping[int, ProbeSamples]", compute_s: Computed, exchange_s: Exchanged, slow: SlowParts
) -> dict[str, Any]:
    return {
        "workers": [
            {
                "rank": str(rank),
                "host": one.place.host,
                "device": one.place.device,
                "compute_s": {test: times_s[str(rank)] for test, times_s in compute_s.items()},
                "slowdown": slow.workers.get(str(rank)),
            }
            for rank, one in sorted(readings.items())
        ],
        "links": [
            {
                "ends": list(link),
                "exchange_s": {size: of_size[link] for size, of_size in exchange_s.items()},
                "slowdown": slow.links.get(link),
            }
            for link in _links(exchange_s)
        ],
        "slow_at_their_end": list(slow.cards),
        "not_comparable": list(slow.alone),
        "crowded": crowded_hosts(one.place for one in readings.values()),
    }


def _links(exchange_s: Exchanged) -> list[Pair]:
    found = {link for of_size in exchange_s.values() for link in of_size}
    return sorted(found, key=lambda link: sorted(int(end) for end in link))


def _print(
    readings: "Mapping[int, ProbeSamples]", compute_s: Computed, exchange_s: Exchanged, slow: SlowParts, how: str
) -> None:
    """Two tables, and a line for whatever is slow."""
    workers = [str(rank) for rank in sorted(readings)]
    hosts = {str(rank): f"{one.place.host}, {one.place.device}" for rank, one in readings.items()}
    rows = ([name, hosts[name], *_probed_cells(compute_s, name), _factor(slow.workers.get(name))] for name in workers)
    print_table(("worker", "where", *compute_s, "slow"), rows)
    if exchange_s:
        sizes = [f"{int(size) / 1e6:g} MB" for size in exchange_s]
        print()
        lines = (
            ["-".join(sorted(link, key=int)), *_probed_cells(exchange_s, link), _factor(slow.links.get(link))]
            for link in _links(exchange_s)
        )
        print_table((f"link ({how})", *sizes, "slow"), lines)
    print()
    print("\n".join(_probed_in_words(slow, crowded_hosts(one.place for one in readings.values()))))


def _probed_cells(tested: Mapping[str, Mapping[T, Sequence[float]]], one: T) -> Iterable[str]:
    return [f"{1e3 * median(times_s[one]):.3g} ms" for times_s in tested.values()]


def _link(ends: Pair) -> str:
    return "-".join(sorted(ends, key=int))


def _factor(slowdown: float | None) -> str:
    return "" if slowdown is None else f"{slowdown:.2f} x"


def _probed_in_words(slow: SlowParts, crowded: Sequence[str]) -> Iterator[str]:
    """In words."""
    for worker, factor in slow.workers.items():
        yield f"worker {worker} is slow: it computes {factor:.2f} times as long as others"
    for link, factor in slow.links.items():
        yield f"link {_link(link)} is slow: its messages take {factor:.2f} times as long as on others"
    for worker in slow.cards:
        yield f"all links of worker {worker} are slow: look at its network card, or its machine"
    if not slow:
        yield "nothing is slow"
    for kind in slow.alone:
        yield f"there is only one link {kind}: nothing to compare it with"
    for host in crowded:
        yield f"ranks on {host} share its cores: who is slow there may only have waited for another one"
