"""Which worker sits where, and what becomes of it when machines fail or are slow."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.cluster import (
    Cluster,
    Overlay,
    SlowPath,
    Spot,
    digest_of,
    on_cluster,
    seats_of_plan,
    seats_of_shape,
    troubles,
    whole_nodes,
)
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile

from ..strategies import plans


@dataclass(frozen=True)
class Case:
    """A cluster that is large enough for a shape, and what is wrong with it."""

    cluster: Cluster
    pp: int
    dp: int
    overlay: Overlay


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any shape, nodes of any size, a few spares, and any overlay."""
    pp, dp, size = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    count = -(-pp * dp // size) + draw(st.integers(0, 2))
    cluster = Cluster(tuple(f"n{number}" for number in range(count)), size)
    spots: st.SearchStrategy[Spot] = st.tuples(
        st.sampled_from(cluster.nodes), st.one_of(st.none(), st.integers(0, size - 1))
    )
    overlay = Overlay(
        tuple(draw(st.lists(spots, max_size=3))),
        tuple(draw(st.lists(st.tuples(spots, st.floats(0.5, 4)), max_size=3))),
        tuple(draw(st.lists(st.builds(SlowPath, st.tuples(spots, spots), st.floats(0, 1)), max_size=3))),
    )
    return Case(cluster, pp, dp, overlay)


def struck(spots: Iterator[Spot], cluster: Cluster) -> set[tuple[str, int]]:
    """The GPUs that are meant."""
    return {gpu for node, number in spots for gpu in cluster.gpus() if gpu[0] == node and number in (None, gpu[1])}


@given(cases())
def test_every_worker_has_a_gpu_of_its_own(case: Case) -> None:
    """Worker k/i sits on GPU number k * pp + i, nodes being filled one after the other."""
    seats, gpus = seats_of_shape(case.cluster, case.pp, case.dp), list(case.cluster.gpus())
    assert seats == {(k, i): (gpus[k * case.pp + i],) for k in range(case.dp) for i in range(case.pp)}
    assert len({gpu for own in seats.values() for gpu in own}) == case.pp * case.dp


@given(cases())
def test_exactly_the_workers_of_what_failed_are_dead(case: Case) -> None:
    """A failed node fails all its workers and no other; what is slow makes those on it slow; nobody is both."""
    seats = seats_of_shape(case.cluster, case.pp, case.dp)
    found = troubles(seats, case.overlay)
    dead = struck(iter(case.overlay.failed), case.cluster)
    assert set(found.failed) == {place for place, (gpu,) in seats.items() if gpu in dead}
    for place, (gpu,) in seats.items():
        factors = [factor for spot, factor in case.overlay.slow if gpu in struck(iter([spot]), case.cluster)]
        expected = max(factors) if factors and gpu not in dead else None
        assert found.slow.get(place) == expected


@given(cases())
def test_a_slow_path_delays_the_links_that_take_it(case: Case) -> None:
    """Between neighbouring stages of one pipeline, whichever way; the slowest of several counts; others are told."""
    seats = seats_of_shape(case.cluster, case.pp, case.dp)
    found, used = troubles(seats, case.overlay), []
    for k in range(case.dp):
        for i in range(case.pp - 1):
            here, there = set(seats[k, i]), set(seats[k, i + 1])
            delays_s = []
            for path in case.overlay.slow_links:
                one, other = (struck(iter([end]), case.cluster) for end in path.ends)
                if (here <= one and there <= other) or (here <= other and there <= one):
                    delays_s.append(path.delay_s)
                    used.append(path)
            assert found.link_delay_s.get((k, i)) == max(delays_s, default=None)
    assert set(found.unused) == set(case.overlay.slow_links) - set(used)
    assert set(found.link_delay_s) <= {(k, i) for k in range(case.dp) for i in range(case.pp - 1)}


@given(plans(), st.integers(1, 4), st.integers(1, 3))
def test_workers_of_a_plan_take_as_many_gpus_as_their_degree(plan: Plan, size: int, degree: int) -> None:
    """No GPU is anybody's twice, the order is the plan's, and the GPUs of one worker follow each other."""
    wide = tuple(
        replace(one, stages=tuple(replace(stage, tensor_parallel=degree) for stage in one.stages))
        for one in plan.templates
    )
    cluster = Cluster(tuple(f"n{number}" for number in range(len(plan.workers) * degree)), size)
    seats = seats_of_plan(cluster, replace(plan, templates=wide))
    assert [gpu for own in seats.values() for gpu in own] == list(cluster.gpus())[: len(plan.workers) * degree]
    assert list(seats) == [(worker.pipeline, worker.stage) for worker in plan.workers]


def test_too_few_gpus() -> None:
    """The error says how many there are and how many are needed."""
    with pytest.raises(InfeasibleError, match="20 workers need 20 GPUs, the cluster has 16: 2 nodes of 8") as caught:
        seats_of_shape(Cluster(("a", "b"), 8), 4, 5)
    assert caught.value.fix == "take 4 GPUs more, or fewer stages or pipelines"


def test_nodes_are_whole_or_not() -> None:
    """A node that has lost one GPU is not whole, and one that is only slow is."""
    cluster = Cluster(("a", "b", "c"), 2)
    assert whole_nodes(cluster, Overlay(failed=(("a", None), ("c", 1)), slow=((("b", 0), 2.0),))) == ("b",)


def test_what_a_cluster_says_goes_before_a_profile() -> None:
    """Memory and paths that the cluster says replace the profile's; the others, and all costs, stay."""
    layer = Layer((LayerCost(1.0, 1.0, 1.0),))
    inside, between, other = Connection(1e-6, 1e11), Connection(1e-5, 1e10), Connection(2e-6, 4e11)
    profile = Profile((layer,), device=Device("x", 1e9), network=Network(inside, between))
    said = on_cluster(profile, Cluster(("a", "b"), 8, memory_bytes=8e10, network=Network(intra_node=other)))
    assert said == replace(profile, device=Device("x", 8e10), network=Network(other, between))
    assert on_cluster(profile, Cluster(("a", "b"), 8)) == profile
    assert on_cluster(profile, Cluster(("a",), 8)).network == Network(inside, None)
    alone = replace(profile, network=Network(None, between))
    assert on_cluster(alone, Cluster(("a",), 8)) == alone


def test_a_digest_names_what_is_said() -> None:
    """Equal clusters have equal digests, unlike ones do not."""
    assert digest_of(Cluster(("a",), 8)) == digest_of(Cluster(("a",), 8))
    assert digest_of(Cluster(("a",), 8)) != digest_of(Cluster(("a",), 8, gpu="h100-sxm"))
    assert digest_of(Overlay((("a", None),))) != digest_of(Overlay((("a", 0),)))
