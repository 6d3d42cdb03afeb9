"""What the links of a job are like: a fit for every pair and all-reduce, and one path for a profile's network.

The path within a node, and the one between nodes, is the median over its pairs of the latency and of the bandwidth.
So a slow pair changes nothing in it; it is named instead, by the rule of `rtk probe` (failslow/slow_parts.py): over
10 % more than usual for its kind, and surely so, by the ranges of all fits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ..schemas.profile import Connection, Network
from .failslow.slow_parts import slow_among
from .link_fits import LinkFit, bandwidth_of, fit_allreduce, fit_link, usual_time_s

Ends = tuple[int, int]
Group = tuple[int, ...]
BySize = Mapping[int, Sequence[float]]  # readings in s, by bytes


@dataclass(frozen=True, slots=True)
class PairFit:
    """The path between two ranks, as the first one saw it.

    Attributes:
        ends: the ranks.
        within_node: whether both are on the same host.
        fit: of a message one way.
        usual_s: of what was read, by bytes.
        slow_latency: how many times the usual latency it has, where that is slow.
        slow_bandwidth: how many times as long as usual a byte takes, likewise.
    """

    ends: Ends
    within_node: bool
    fit: LinkFit
    usual_s: Mapping[int, float]
    slow_latency: float | None = None
    slow_bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class AllReduceFit:
    """A sum over some ranks.

    Attributes:
        ranks: who takes part.
        within_node: whether all are on the same host.
        fit: of one step of a ring, which is a message of 1/n of the bytes.
        usual_s: of what was read, by bytes.
        over_planned: by bytes, how many times as long it takes as the planner reckons: a ring over the usual path
            between such ranks; empty where no such path was measured.
    """

    ranks: Group
    within_node: bool
    fit: LinkFit
    usual_s: Mapping[int, float]
    over_planned: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class LinkSurvey:
    """All fits, and what is usual; `network` has None for a kind of pairs that there are none of."""

    pairs: tuple[PairFit, ...]
    allreduces: tuple[AllReduceFit, ...]
    network: Network

    def pairs_of(self, within_node: bool) -> list[PairFit]:
        """Those of one kind."""
        return [one for one in self.pairs if one.within_node == within_node]


def survey(
    hosts: Sequence[str], exchange_s: Mapping[Ends, BySize], allreduce_s: Mapping[Group, BySize], seed: int = 0
) -> LinkSurvey:
    """Fit all, and judge.

    Args:
        hosts: the machine of each rank.
        exchange_s: by pair of ranks and size, what messages took one way.
        allreduce_s: by group of ranks and size, what all-reduces took.
        seed: of the fits' ranges.
    """
    pairs = [
        PairFit(ends, _are_on_one(ends, hosts), fit_link(read, seed), _usual_times(read))
        for ends, read in sorted(exchange_s.items())
    ]
    inside, outside = ([one for one in pairs if one.within_node == within] for within in (True, False))
    network = Network(intra_node=usual(inside), inter_node=usual(outside))
    judged = sorted((*_judged(inside), *_judged(outside)), key=lambda one: one.ends)
    sums = (_sum(group, _are_on_one(group, hosts), read, network, seed) for group, read in allreduce_s.items())
    return LinkSurvey(tuple(judged), tuple(sums), network)


def usual(pairs: Sequence[PairFit]) -> Connection | None:
    """The path that a message between any of these pairs has: of latency and of bandwidth the median of each."""
    if not pairs:
        return None
    s_per_byte = median(one.fit.s_per_byte for one in pairs)
    return Connection(median(one.fit.latency_s for one in pairs), bandwidth_of(s_per_byte))


def _sum(ranks: Group, within_node: bool, readings_s: BySize, network: Network, seed: int) -> AllReduceFit:
    path = network.intra_node if within_node else network.inter_node
    usual_s = _usual_times(readings_s)
    planned_s = {size: path.ring_s(size, len(ranks)) for size in usual_s} if path is not None else {}
    over = {size: usual_s[size] / time_s for size, time_s in planned_s.items() if time_s > 0}
    return AllReduceFit(ranks, within_node, fit_allreduce(readings_s, len(ranks), seed), usual_s, over)


def _are_on_one(ranks: Group, hosts: Sequence[str]) -> bool:
    return len({hosts[rank] for rank in ranks}) == 1


def _judged(pairs: Sequence[PairFit]) -> list[PairFit]:
    """Pairs of one kind, each with the factors by which it is slow."""
    latency = slow_among({one.ends: _three(one.fit.latency_range_s, one.fit.latency_s) for one in pairs}, True)
    bandwidth = slow_among({one.ends: _three(one.fit.s_per_byte_range, one.fit.s_per_byte) for one in pairs}, True)
    return [replace(one, slow_latency=latency.get(one.ends), slow_bandwidth=bandwidth.get(one.ends)) for one in pairs]


def _three(span: tuple[float, float], middle: float) -> tuple[float, float, float]:
    """A range in place of readings: its median is the estimate."""
    return span[0], middle, span[1]


def _usual_times(readings_s: BySize) -> dict[int, float]:
    return {size: usual_time_s(times_s) for size, times_s in sorted(readings_s.items())}
