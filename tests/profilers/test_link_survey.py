"""What a job's links are like: usual paths, slow pairs, and sums beside what the planner reckons."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.profilers.link_survey import LinkSurvey, survey
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, NodeNetwork, Profile, SideBySide

SIZES = (4, 1024, 2**16, 2**20, 2**24)
INTRA, INTER = Connection(1e-5, 1e10), Connection(1e-4, 1e9)
UNREST = (1.0, 1.01, 1.0, 3.0, 1.0)

Ends = tuple[int, int]


def surveyed(hosts: str, slow: Ends = (-1, -1), latency: float = 1.0, byte: float = 1.0) -> LinkSurvey:
    """All pairs of ranks on these hosts, a letter each, and a sum over all; one pair is slow."""
    exchange_s = {}
    for ends in itertools.combinations(range(len(hosts)), 2):
        path = INTRA if hosts[ends[0]] == hosts[ends[1]] else INTER
        assert path.bandwidth_bytes_per_s is not None
        more, longer = (latency, byte) if ends == slow else (1.0, 1.0)
        exchange_s[ends] = {
            size: [part * (more * path.latency_s + longer * size / path.bandwidth_bytes_per_s) for part in UNREST]
            for size in SIZES
        }
    ring = INTRA if len(set(hosts)) == 1 else INTER
    sums = {tuple(range(len(hosts))): {size: [2 * ring.ring_s(size, len(hosts))] for size in SIZES}}
    return survey(hosts, exchange_s, sums)


def is_about(found: Connection | None, wanted: Connection) -> bool:
    """Whether a path is what it should be."""
    assert found is not None
    assert found.bandwidth_bytes_per_s == pytest.approx(wanted.bandwidth_bytes_per_s)
    return found.latency_s == pytest.approx(wanted.latency_s)


@settings(max_examples=20)
@given(st.sampled_from(list(itertools.combinations(range(4), 2))), st.floats(1.2, 50), st.floats(1.2, 50))
def test_a_slow_pair_is_named_and_spoils_nothing(slow: Ends, latency: float, byte: float) -> None:
    """Of six pairs one may be any times slower: the usual path is that of the others, and it alone is named."""
    found = surveyed("aaaa", slow, latency, byte)
    assert is_about(found.network.intra_node, INTRA)
    named = [pair for pair in found.pairs if pair.slow_latency or pair.slow_bandwidth]
    assert [pair.ends for pair in named] == [slow]
    assert named[0].slow_latency == pytest.approx(latency)
    assert named[0].slow_bandwidth == pytest.approx(byte)


def test_links_in_nodes_and_between_them_are_told_apart() -> None:
    """Each kind has its usual path, and neither makes the other one slow."""
    found = surveyed("aabb")
    assert is_about(found.network.intra_node, INTRA)
    assert is_about(found.network.inter_node, INTER)
    assert [pair.within_node for pair in found.pairs] == [True, False, False, False, False, True]
    assert not any(pair.slow_latency or pair.slow_bandwidth for pair in found.pairs)


@pytest.mark.parametrize(("hosts", "missing"), [("aa", "inter_node"), ("ab", "intra_node")])
def test_a_kind_that_there_is_none_of_has_no_path(hosts: str, missing: str) -> None:
    """Without a pair in a node, or between nodes, nothing is said of such links."""
    network = surveyed(hosts).network
    assert getattr(network, missing) is None
    assert (network.intra_node is None) != (network.inter_node is None)


@pytest.mark.parametrize("hosts", ["aaaa", "aabb"])
def test_sums_are_compared_with_the_planners_ring(hosts: str) -> None:
    """A sum that takes twice as long as a ring over the usual path is twice over what is planned, at every size."""
    (found,) = surveyed(hosts).allreduces
    assert list(found.over_planned) == list(SIZES)
    assert list(found.over_planned.values()) == pytest.approx([2.0] * len(SIZES))


@given(st.lists(st.floats(1e8, 1e11), min_size=2, max_size=8), st.sampled_from(["stages", "peers"]))
def test_a_node_has_what_its_pairs_reach_together(rates: list[float], order: SideBySide) -> None:
    """Whatever each pair gets, the node has their sum; it goes into a profile, and who sits where stays as it was."""
    hosts = "a" * len(rates) + "b" * len(rates)
    crowd_s = {
        (rank, rank + len(rates)): {size: [INTER.latency_s + size / rate] for size in SIZES}
        for rank, rate in enumerate(rates)
    }
    found = survey(hosts, {}, {}, crowd_s).network.node
    assert found is not None
    assert found.gpus == len(rates)
    assert found.bandwidth_bytes_per_s == pytest.approx(sum(rates))
    assert [one.worth_pairs for one in survey(hosts, {}, {}, crowd_s).nodes] == [None]  # no pair was measured alone
    alone_s = {(0, len(rates)): {size: [INTER.latency_s] for size in SIZES}}
    assert [one.worth_pairs for one in survey(hosts, alone_s, {}, crowd_s).nodes] == [None]  # nor one that size slows
    known = Network(None, INTER, NodeNetwork(4, 1.0, order))
    written = survey(hosts, {}, {}, crowd_s).into(Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),), network=known)).network
    assert (written.inter_node, written.node) == (INTER, replace(found, side_by_side=order))
