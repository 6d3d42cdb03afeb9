"""What the links of a job are like: a fit for every pair and all-reduce, and one path for a profile's network.

The path within a node, and the one between nodes, is the median over its pairs of the latency and of the bandwidth.
So a slow pair changes nothing in it; it is named instead, by the rule of `rtk probe` (monitor/job.py): over
10 % more than usual for its kind, and surely so, by the ranges of all fits. What a node has of the network is what all
pairs between two hosts reach together, while all exchange.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeVar

import numpy as np

from ..schemas.documents import to_tree
from ..schemas.profile import Connection, Network, NodeNetwork, Profile, ring_steps
from .failslow.monitor.job import slow_among

# Latency and bandwidth out of what messages of several sizes took: the alpha-beta model, t = alpha + bytes * beta.
#
# alpha is the latency (s), 1 / beta the bandwidth (bytes/s); neither is negative. Errors count as factors,
# |log(line / measured)|: a message of 4 bytes says as much as one of 64 MB, where least squares of seconds see the
# largest only, and twice as long is as wrong as half. Of the lines through two of the points, and of those through one
# with alpha or beta 0, the one with the least sum of errors is taken; all are tried. So a size that does not fit, for
# another protocol carries it, does not bend the line, be it too slow or too fast: it stands beside it as an error.
#
# What a message of a size takes is the lower quartile of its readings: waits, for a processor or behind other traffic,
# only ever add, and on a machine with other work more than half of all readings may have waited.
#
# A ring's all-reduce over n ranks is 2 (n - 1) steps, in each of which every rank sends 1/n of the bytes to the next
# one (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005): a step is
# fitted as a message is, and 1 / beta is then the bus bandwidth of nccl-tests.


Floats = np.ndarray[Any, np.dtype[np.float64]]
Range = tuple[float, float]
Size = TypeVar("Size", int, float)

QUARTER = 25.0  # per cent
RESAMPLES = 200
LIKELY = (2.5, 97.5)  # per cent of what resampled readings give: a range of 95 %


@dataclass(frozen=True, slots=True)
class LinkFit:
    """A line through the times of messages.

    Attributes:
        latency_s: alpha.
        s_per_byte: beta.
        latency_range_s: what alpha is in 95 of 100 cases where the readings are drawn anew from those that there are.
        s_per_byte_range: the same for beta.
        median_error: by which part the longer one of line and measured time is above the other; of all sizes, the
            median one.
        worst_error: the largest one.
    """

    latency_s: float
    s_per_byte: float
    latency_range_s: Range
    s_per_byte_range: Range
    median_error: float
    worst_error: float

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """None where size made no difference."""
        return bandwidth_of(self.s_per_byte)

    @property
    def bandwidth_range_bytes_per_s(self) -> tuple[float | None, float | None]:
        """From the least to the most."""
        low, high = self.s_per_byte_range
        return bandwidth_of(high), bandwidth_of(low)

    def tree(self) -> dict[str, Any]:
        """It as JSON."""
        return {
            "latency_s": self.latency_s,
            "latency_range_s": list(self.latency_range_s),
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "bandwidth_range_bytes_per_s": list(self.bandwidth_range_bytes_per_s),
            "error": {"median": self.median_error, "worst": self.worst_error},
        }


def bandwidth_of(s_per_byte: float) -> float | None:
    """Bytes a second; None where bytes take no time."""
    return 1 / s_per_byte if s_per_byte > 0 else None


def fit_link(readings_s: Mapping[Size, Sequence[float]], seed: int = 0) -> LinkFit:
    """Fit alpha and beta to the lower quartiles of readings.

    Args:
        readings_s: by the size of the message in bytes (two sizes or more, above 0), what it took one way, above 0.
        seed: of the resampling that gives the ranges. They know of readings that differ, not of a disturbance that
            lasted through all of them.

    Returns:
        The line, and how well it fits.
    """
    sizes = np.array(sorted(readings_s), dtype=float)
    readings = [np.array(readings_s[size], dtype=float) for size in sizes]
    usual_s = np.array([usual_time_s(one) for one in readings])
    ((alpha, beta),) = lines(sizes, usual_s[None, :])
    errors = np.exp(np.abs(np.log((alpha + beta * sizes) / usual_s))) - 1
    random = np.random.default_rng(seed)
    drawn = [one[random.integers(len(one), size=(RESAMPLES, len(one)))] for one in readings]
    alphas, betas = lines(sizes, np.stack([np.percentile(one, QUARTER, axis=1) for one in drawn], axis=1)).T
    return LinkFit(
        latency_s=float(alpha),
        s_per_byte=float(beta),
        latency_range_s=_range(alphas, float(alpha)),
        s_per_byte_range=_range(betas, float(beta)),
        median_error=float(np.median(errors)),
        worst_error=float(np.max(errors)),
    )


def fit_allreduce(readings_s: Mapping[int, Sequence[float]], ranks: int, seed: int = 0) -> LinkFit:
    """Fit alpha and beta of one step of a ring, t = 2 (n - 1) (alpha + bytes / n * beta).

    Args:
        readings_s: by the size of what is summed in bytes, what the whole all-reduce took.
        ranks: n, 2 or more.
        seed: as for `fit_link`.
    """
    steps = ring_steps(ranks)
    return fit_link({size / ranks: [time_s / steps for time_s in times] for size, times in readings_s.items()}, seed)


def usual_time_s(times_s: Sequence[float] | Floats) -> float:
    """What counts of some readings of the same: their lower quartile."""
    return float(np.percentile(times_s, QUARTER))


def lines(sizes: Floats, times_s: Floats) -> Floats:
    """The lines of least error.

    Args:
        sizes: of messages, in bytes, rising, shape (sizes,).
        times_s: of the messages, in any number of cases, shape (cases, sizes).

    Returns:
        alpha and beta, shape (cases, 2), both at least 0.
    """
    candidates = _candidates(sizes, times_s)
    is_allowed = (candidates >= 0).all(axis=2)
    alpha, beta = (np.where(is_allowed, candidates[..., part], 1.0) for part in (0, 1))
    errors = np.abs(np.log((alpha[..., None] + beta[..., None] * sizes) / times_s[:, None, :])).sum(axis=2)
    best = np.where(is_allowed, errors, np.inf).argmin(axis=1)
    chosen: Floats = candidates[np.arange(len(times_s)), best]
    return chosen


def _candidates(sizes: Floats, times_s: Floats) -> Floats:
    """Lines through two of the points, and through one of them without alpha or without beta; (cases, lines, 2)."""
    one, other = np.triu_indices(len(sizes), k=1)
    beta = (times_s[:, other] - times_s[:, one]) / (sizes[other] - sizes[one])
    through_two = np.stack([times_s[:, one] - beta * sizes[one], beta], axis=2)
    no_size = np.stack([times_s, np.zeros_like(times_s)], axis=2)
    no_latency = np.stack([np.zeros_like(times_s), times_s / sizes], axis=2)
    return np.concatenate([through_two, no_size, no_latency], axis=1)


def _range(values: Floats, estimate: float) -> Range:
    low, high = (float(one) for one in np.percentile(values, LIKELY))
    return min(low, estimate), max(high, estimate)


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
class NodeFit:
    """What two hosts have of the network while all of their ranks exchange.

    Attributes:
        hosts: their names.
        pairs: between them, that exchanged at the same time.
        alone_s_per_byte: of a pair between hosts that is alone, as usual; None where none was measured, 0 where
            size made no difference to it.
    """

    hosts: tuple[str, str]
    pairs: tuple[PairFit, ...]
    alone_s_per_byte: float | None

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Of all pairs together, each way; None where size made no difference to one of them."""
        rates = [one.fit.bandwidth_bytes_per_s for one in self.pairs]
        return sum(rate for rate in rates if rate is not None) if None not in rates else None

    @property
    def worth_pairs(self) -> float | None:
        """How many pairs that are alone have as much: as many as there are, if nothing is shared."""
        rate, alone = self.bandwidth_bytes_per_s, self.alone_s_per_byte
        return None if rate is None or not alone else rate * alone

    def tree(self) -> dict[str, Any]:
        """It as JSON."""
        return {
            "hosts": list(self.hosts),
            "pairs": [list(one.ends) for one in self.pairs],
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "worth_pairs": self.worth_pairs,
        }


@dataclass(frozen=True, slots=True)
class LinkSurvey:
    """All fits, and what is usual; `network` has None for a kind of pairs that there are none of."""

    pairs: tuple[PairFit, ...]
    allreduces: tuple[AllReduceFit, ...]
    network: Network
    nodes: tuple[NodeFit, ...] = ()

    def pairs_of(self, within_node: bool) -> list[PairFit]:
        """Those of one kind."""
        return [one for one in self.pairs if one.within_node == within_node]

    def tree(self) -> dict[str, Any]:
        """All fits as JSON."""
        return {
            "pairs": [
                {
                    "from": one.ends[0],
                    "to": one.ends[1],
                    "within_node": one.within_node,
                    **one.fit.tree(),
                    "slow_latency": one.slow_latency,
                    "slow_bandwidth": one.slow_bandwidth,
                    "one_way_s": {str(size): time_s for size, time_s in one.usual_s.items()},
                }
                for one in self.pairs
            ],
            # Latency and bandwidth are those of one step of a ring, so they compare with those of pairs.
            "allreduce": [
                {
                    "ranks": list(one.ranks),
                    "within_node": one.within_node,
                    **one.fit.tree(),
                    "time_s": {str(size): time_s for size, time_s in one.usual_s.items()},
                    "over_planned": {str(size): ratio for size, ratio in one.over_planned.items()},
                }
                for one in self.allreduces
            ],
            "nodes": [one.tree() for one in self.nodes],
            "intra_node": to_tree(self.network.intra_node),
            "inter_node": to_tree(self.network.inter_node),
            "node": to_tree(self.network.node),
        }

    def into(self, profile: Profile) -> Profile:
        """The profile with what was measured; a kind that no pair was of, and who sits where, stay as they are."""
        network, measured = profile.network, self.network
        node = measured.node or network.node
        if node is not None and network.node is not None:
            node = replace(node, side_by_side=network.node.side_by_side)
        changed = Network(measured.intra_node or network.intra_node, measured.inter_node or network.inter_node, node)
        return replace(profile, network=changed)


def survey(
    hosts: Sequence[str],
    exchange_s: Mapping[Ends, BySize],
    allreduce_s: Mapping[Group, BySize],
    crowd_s: Mapping[Ends, BySize] | None = None,
    seed: int = 0,
) -> LinkSurvey:
    """Fit all, and judge.

    Args:
        hosts: the machine of each rank.
        exchange_s: by pair of ranks and size, what messages took one way.
        allreduce_s: by group of ranks and size, what all-reduces took.
        crowd_s: as `exchange_s`, of pairs between two hosts while all of them exchanged.
        seed: of the fits' ranges.
    """
    pairs = _fits(exchange_s, hosts, seed)
    inside, outside = ([one for one in pairs if one.within_node == within] for within in (True, False))
    nodes = _nodes(_fits(crowd_s or {}, hosts, seed), hosts, outside)
    network = Network(usual(inside), usual(outside), _usual_node(nodes))
    judged = sorted((*_judged(inside), *_judged(outside)), key=lambda one: one.ends)
    sums = []
    for group, read in allreduce_s.items():
        within_node, usual_s = _are_on_one(group, hosts), _usual_times(read)
        path = network.intra_node if within_node else network.inter_node
        planned_s = {size: path.ring_s(size, len(group)) for size in usual_s} if path is not None else {}
        over = {size: usual_s[size] / time_s for size, time_s in planned_s.items() if time_s > 0}
        sums.append(AllReduceFit(group, within_node, fit_allreduce(read, len(group), seed), usual_s, over))
    return LinkSurvey(tuple(judged), tuple(sums), network, nodes)


def usual(pairs: Sequence[PairFit]) -> Connection | None:
    """The path that a message between any of these pairs has: of latency and of bandwidth the median of each."""
    if not pairs:
        return None
    s_per_byte = median(one.fit.s_per_byte for one in pairs)
    return Connection(median(one.fit.latency_s for one in pairs), bandwidth_of(s_per_byte))


def _fits(read_s: Mapping[Ends, BySize], hosts: Sequence[str], seed: int) -> list[PairFit]:
    return [
        PairFit(ends, _are_on_one(ends, hosts), fit_link(read, seed), _usual_times(read))
        for ends, read in sorted(read_s.items())
    ]


def _nodes(crowd: Sequence[PairFit], hosts: Sequence[str], alone: Sequence[PairFit]) -> tuple[NodeFit, ...]:
    """The pairs that exchanged at once, by the two hosts that they join."""
    of_two: dict[tuple[str, str], list[PairFit]] = {}
    for one in crowd:
        here, there = sorted(hosts[end] for end in one.ends)
        of_two.setdefault((here, there), []).append(one)
    s_per_byte = median(one.fit.s_per_byte for one in alone) if alone else None
    return tuple(NodeFit(two, tuple(pairs), s_per_byte) for two, pairs in of_two.items())


def _usual_node(nodes: Sequence[NodeFit]) -> NodeNetwork | None:
    """What a node has, in the median over those that were measured with the most ranks."""
    most = max((len(one.pairs) for one in nodes), default=0)
    rates = [one.bandwidth_bytes_per_s for one in nodes if len(one.pairs) == most]
    known = [rate for rate in rates if rate is not None]
    return NodeNetwork(most, median(known)) if known else None


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
