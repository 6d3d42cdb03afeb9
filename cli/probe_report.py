"""What `rtk probe` says: a table of all tests for people, or one JSON document, and who is slow."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from ..profilers.failslow.slow_parts import SlowParts, slow_parts
from ..schemas.conditions import Pair, pair_of
from ..schemas.documents import canonical_json
from ..schemas.files import write_bytes
from .console import print_json, print_table
from .ranks import crowded_hosts

if TYPE_CHECKING:
    from ..runners.torch.probe import Readings

T = TypeVar("T")
Computed = dict[str, dict[str, list[float]]]  # by data type, then by worker, in s
Exchanged = dict[str, dict[Pair, list[float]]]  # by message size, then by link, in s


def report(
    readings: "Mapping[int, Readings]", pairs: str, passes: int, took_s: float, output: str | None, as_json: bool
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


def _computed(readings: "Mapping[int, Readings]") -> Computed:
    found: Computed = {}
    for rank, one in readings.items():
        for test, times_s in one.compute_s.items():
            found.setdefault(test, {})[str(rank)] = list(times_s)
    return found


def _exchanged(readings: "Mapping[int, Readings]") -> Exchanged:
    """Both directions of a link, and passes that it comes in twice, together."""
    found: Exchanged = {}
    for rank, one in readings.items():
        for (peer, size), times_s in sorted(one.exchange_s.items()):
            of_size = found.setdefault(str(size), {})
            of_size.setdefault(pair_of(str(rank), str(peer)), []).extend(times_s)
    return found


def _tree(
    readings: "Mapping[int, Readings]", compute_s: Computed, exchange_s: Exchanged, slow: SlowParts
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
    readings: "Mapping[int, Readings]", compute_s: Computed, exchange_s: Exchanged, slow: SlowParts, how: str
) -> None:
    """Two tables, and a line for whatever is slow."""
    workers = [str(rank) for rank in sorted(readings)]
    hosts = {str(rank): f"{one.place.host}, {one.place.device}" for rank, one in readings.items()}
    rows = ([name, hosts[name], *_cells(compute_s, name), _factor(slow.workers.get(name))] for name in workers)
    print_table(("worker", "where", *compute_s, "slow"), rows)
    if exchange_s:
        sizes = [f"{int(size) / 1e6:g} MB" for size in exchange_s]
        print()
        lines = (
            ["-".join(sorted(link, key=int)), *_cells(exchange_s, link), _factor(slow.links.get(link))]
            for link in _links(exchange_s)
        )
        print_table((f"link ({how})", *sizes, "slow"), lines)
    print()
    print("\n".join(_said(slow, crowded_hosts(one.place for one in readings.values()))))


def _cells(tested: Mapping[str, Mapping[T, Sequence[float]]], one: T) -> Iterable[str]:
    return [f"{1e3 * median(times_s[one]):.3g} ms" for times_s in tested.values()]


def _link(ends: Pair) -> str:
    return "-".join(sorted(ends, key=int))


def _factor(slowdown: float | None) -> str:
    return "" if slowdown is None else f"{slowdown:.2f} x"


def _said(slow: SlowParts, crowded: Sequence[str]) -> Iterator[str]:
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
