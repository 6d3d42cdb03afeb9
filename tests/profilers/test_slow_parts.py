"""Which workers and links are slow, by what the same tests took on each."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from rtk.profilers.failslow.monitor.job import slow_among, slow_parts
from rtk.schemas.conditions import Pair

JITTER = st.floats(0.97, 1.03)


def readings(usual_s: float, jitter: list[float], factor: float = 1.0) -> list[float]:
    """Three readings of a test."""
    return [usual_s * factor * one for one in jitter[:3]]


@given(count=st.integers(2, 40), data=st.data(), factor=st.floats(1.2, 50), usual_s=st.floats(1e-5, 10))
def test_slow_workers_are_named(count: int, data: st.DataObject, factor: float, usual_s: float) -> None:
    """Up to two thirds of the workers can be slow: these are named, by their factor, and no one else."""
    slow = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1 - (count - 1) // 3))
    jitter = data.draw(st.lists(st.lists(JITTER, min_size=3, max_size=3), min_size=count, max_size=count))
    taken = {str(n): readings(usual_s, jitter[n], factor if n in slow else 1.0) for n in range(count)}
    found = slow_parts({"float32": taken}, {}).workers
    assert set(found) == {str(n) for n in slow}
    assert all(abs(one / factor - 1) < 0.07 for one in found.values())


@given(count=st.integers(3, 9), data=st.data())
def test_a_slow_end_is_told_from_a_slow_link(count: int, data: st.DataObject) -> None:
    """One slow link accuses no worker; where all links of a worker are slow, it is named."""
    pairs = [(str(one), str(other)) for one, other in combinations(range(count), 2)]
    link = data.draw(st.sampled_from(pairs))
    found = slow_parts({}, {"1000": {pair: [3.0 if pair == link else 1.0] * 3 for pair in pairs}})
    assert (dict(found.links), found.cards) == ({link: 3.0}, ())
    end = data.draw(st.sampled_from(link))
    found = slow_parts({}, {"1000": {pair: [3.0 if end in pair else 1.0] * 3 for pair in pairs}})
    assert (set(found.links), found.cards) == ({pair for pair in pairs if end in pair}, (end,))


def test_links_within_and_between_machines_are_compared_apart() -> None:
    """A link between machines may take ten times as long as one within, yet one of three times that is slow."""
    node_of = {str(rank): "ab"[rank // 3] for rank in range(6)}
    ring: list[Pair] = [("0", "1"), ("1", "2"), ("2", "3"), ("3", "4"), ("4", "5"), ("0", "5")]
    taken = {pair: [1.0 if node_of[pair[0]] == node_of[pair[1]] else 10.0] for pair in ring}
    assert not slow_parts({}, {"1": taken}, node_of)
    assert dict(slow_parts({}, {"1": taken | {("0", "5"): [30.0]}}, node_of).links) == {("0", "5"): 3.0}
    assert dict(slow_parts({}, {"1": taken | {("1", "2"): [1.2]}}, node_of).links) == {("1", "2"): 1.2}


def test_one_busy_moment_accuses_nobody() -> None:
    """A worker is slow only if its fastest reading is too long, too."""
    assert slow_among({"a": [1.0, 1.0, 1.0], "b": [1.0, 5.0, 5.0], "c": [1.0, 1.0, 1.0]}) == {}
    assert slow_among({"a": [1.0, 1.0, 1.0], "b": [1.2, 5.0, 5.0], "c": [1.0, 1.0, 1.0]}) == {"b": 5.0}


def test_busy_machines_accuse_no_link() -> None:
    """Messages that differ by no more than those over one link do are not slow; of computation the fastest counts."""
    restless = {"a": [1.0, 1.4, 1.2], "b": [1.5, 1.9, 1.6], "c": [1.1, 1.4, 1.2]}
    assert slow_among(restless, are_messages=True) == {}
    assert list(slow_among(restless | {"b": [4.0, 5.0, 6.0]}, are_messages=True)) == ["b"]
    assert list(slow_among(restless)) == ["b"]


def test_a_link_is_slow_with_most_sizes_or_not_at_all() -> None:
    """One size of three does not make a link slow, two do."""
    pairs: list[Pair] = [("0", "1"), ("1", "2"), ("0", "2")]
    usual, slow = ({pair: [1.0, 3.0][pair == pairs[0] and one] for pair in pairs} for one in (False, True))
    tests = [{pair: [time_s] for pair, time_s in one.items()} for one in (usual, slow, slow)]
    assert dict(slow_parts({}, {"1": tests[0], "2": tests[0], "3": tests[1]}).links) == {}
    assert dict(slow_parts({}, {"1": tests[0], "2": tests[1], "3": tests[2]}).links) == {pairs[0]: 3.0}


def test_a_worker_is_slow_with_most_types_or_not_at_all() -> None:
    """A worker is slow if most data types show it, by its largest factor."""
    usual, slow, slower = ({"a": [1.0], "b": [time_s]} for time_s in (1.0, 2.0, 3.0))
    assert dict(slow_parts({"float8": slow, "float16": usual, "float32": usual}, {}).workers) == {}
    assert dict(slow_parts({"float8": slow, "float16": slower, "float32": usual}, {}).workers) == {"b": 3.0}


def test_one_link_has_nothing_to_be_compared_with() -> None:
    """A single worker or link is not judged, and a single link is said to be alone."""
    found = slow_parts({"float32": {"a": [1.0]}}, {"1": {("a", "b"): [9.0]}})
    assert (dict(found.workers), dict(found.links), found.alone) == ({}, {}, ("within a machine",))
    assert not found
