"""`rtk plan best`: nothing that is enumerated is faster, bounds are bounds, and what it says of shapes is true."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.planners.best.answer import OPTION
from rtk.planners.best.bounds import FormTotals, least_of_cut
from rtk.planners.best.forms import CostedForm
from rtk.planners.best.search import BestQuestion, PricedShape, ShapeSearch, ShapeWay, _proven_s
from rtk.planners.gpu_memory import FRAGMENTS, FRAMEWORK_BYTES
from rtk.schemas.check import check_plan
from rtk.schemas.cluster_file import counted_cluster
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.network import seated_in
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, NodeNetwork, Profile, SideBySide
from rtk.shaping import plan_best

GB = 1e9
ORDERS: tuple[SideBySide, ...] = get_args(SideBySide)
LAYER = Layer((LayerCost(1.0, 1.0, 1.0, 0.5),), parameter_bytes=GB, state_bytes=3 * GB, activation_bytes=GB)


@st.composite
def costed_forms(draw: st.DrawFn) -> CostedForm:
    """A few unlike layers at degrees 1 and 2, on GPUs that hold some of them; full backwards may hide sums at 2."""
    seconds, sizes = st.sampled_from((0.5, 1.0, 1.0, 2.0)), st.sampled_from((0.0, 1.0, 2.0))
    again, hides = draw(st.booleans()), draw(st.booleans())
    layers = []
    for _ in range(draw(st.integers(2, 4))):
        forward_s, input_s, weight_s, step_s = draw(st.tuples(seconds, seconds, seconds, sizes))
        costs = tuple(
            LayerCost(
                share * forward_s,
                share * input_s,
                share * weight_s,
                share * step_s,
                tensor_parallel=degree,
                backward_s=0.5 * (input_s + weight_s) if hides and degree == 2 else None,
            )
            for degree, share in ((1, 1.0), (2, 0.6))
        )
        own = draw(sizes) * GB
        layers.append(
            Layer(
                costs,
                parameter_bytes=own,
                state_bytes=3 * own,
                activation_bytes=draw(sizes) * GB,
                output_bytes=draw(sizes) * GB / 4,
            )
        )
    memory_bytes = draw(st.sampled_from((None, 12.0, 20.0, 40.0)))
    device = Device("a GPU", None if memory_bytes is None else memory_bytes * GB)
    node = draw(st.sampled_from((None, NodeNetwork(2, 4 * GB))))
    network = Network(Connection(0.01, 40 * GB), Connection(0.05, draw(st.sampled_from((2.0, 20.0))) * GB), node)
    model = {"checkpointing": True, "recomputed_bytes": GB / 2} if again else {}
    profile = Profile(tuple(layers), model, device=device, network=network, overlap=draw(st.sampled_from((None, 0.8))))
    return CostedForm(profile, profile, draw(st.sampled_from((1, 2))), again)


def enumerated(search: ShapeSearch) -> dict[int, PricedShape]:
    """Every shape planned in every way, without any bound: the fastest way of each that fits."""
    found: dict[int, PricedShape] = {}
    for (number, shape), way in product(enumerate(search.shapes), search.question.ways):
        if shape.pp * way.chunks > len(shape.form.profile.layers) or (way.overlap and not shape.form.profile.overlap):
            continue
        search._open[number] += 1
        priced = search._priced(number, way)
        if priced is not None and (number not in found or priced.iteration_time_s < found[number].iteration_time_s):
            found[number] = priced
    return found


PLAIN = tuple(ShapeWay(schedule, side_by_side=order) for order in ORDERS for schedule in ("1f1b", "zero-bubble"))
PLACED = (*PLAIN, ShapeWay("1f1b", "v", 2))
CHUNKED = (ShapeWay(), ShapeWay("zero-bubble", "v", 2), ShapeWay("zero-bubble", "loop", 2), ShapeWay("1f1b", "v", 3))


def question_of(forms: list[CostedForm], holders: int = 1, ways: Sequence[ShapeWay] = PLAIN) -> BestQuestion:
    """Two nodes of two GPUs; eight samples, or four where plans of several stages a worker are searched for long.

    The optimizer is not sharded, or each part has one or two holders.
    """
    return BestQuestion(forms, 2, 2, 8 if ways is PLAIN else 4, ways, None, holders > 0, max(1, holders))


def require_true_order(question: BestQuestion) -> None:
    """All shapes come in ascending order of their best plan, with the times of an enumeration that knows no bound."""
    search, every = ShapeSearch(question), enumerated(ShapeSearch(question))
    ranked = [one.iteration_time_s for one in search.ranked()]
    assert ranked == sorted(ranked)
    assert ranked == pytest.approx(sorted(one.iteration_time_s for one in every.values()))
    assert search.too_large == len(search.shapes) - len(every)


@settings(max_examples=20)
@given(st.lists(costed_forms(), min_size=1, max_size=2), st.integers(0, 2))
def test_the_search_finds_what_full_enumeration_finds(forms: list[CostedForm], holders: int) -> None:
    """Shapes come in their true order, of one form or several."""
    require_true_order(question_of(forms, holders))


@settings(max_examples=4)
@given(costed_forms(), st.sampled_from((PLACED, CHUNKED)))
def test_the_search_finds_what_full_enumeration_finds_among_placements(
    form: CostedForm, ways: Sequence[ShapeWay]
) -> None:
    """The same where workers may hold several stages, in V's or loops."""
    require_true_order(question_of([form], ways=ways))


def test_pairs_are_searched_where_the_profile_knows_them() -> None:
    """A forward beside a backward is faster where it pays, its plan is valid, and nothing enumerated is faster."""
    profile = Profile((replace(LAYER, activation_bytes=0.0),) * 2, overlap=0.6)
    form = CostedForm(profile, profile, 2, recomputes=False)
    question = BestQuestion([form], 1, 2, 8, (ShapeWay(), ShapeWay(overlap=True)), None, True)
    require_true_order(question)
    best = next(ShapeSearch(question).ranked())
    assert (
        best.way.overlap
        and best.iteration_time_s < next(ShapeSearch(replace(question, ways=(ShapeWay(),))).ranked()).iteration_time_s
    )
    made = best.plan()
    assert made.has_pairs and not check_plan(made)
    assert sum(best.parts) == pytest.approx(best.iteration_time_s)
    with pytest.raises(InvalidInputError, match="side by side"):
        plan_best(Profile((LAYER,) * 4), cluster="2x2", batch=8, overlap=True)


@pytest.mark.parametrize(("told", "orders"), [("stages", {"stages", "peers"}), ("peers", {"peers"})])
def test_both_orders_of_gpus_in_a_node_are_tried(told: SideBySide, orders: set[str]) -> None:
    """Gradients that leave a node in fewer rings make peers worth it; the plan and its cluster say so."""
    network = Network(Connection(0.0, 100 * GB), Connection(0.0, 10 * GB), NodeNetwork(4, 10 * GB, told))
    cluster = replace(counted_cluster(2, 4), network=network)
    profile = Profile((LAYER,) * 4, device=Device("a GPU", FRAMEWORK_BYTES + 7 * (1 + FRAGMENTS) * GB))
    found = plan_best(profile, cluster=cluster, batch=8)
    assert {way.side_by_side for way in found.question.ways} == orders
    assert found.best.way.side_by_side == "peers"
    of_peers = replace(cluster, network=seated_in(network, "peers"))
    alone = plan_best(profile, cluster=of_peers, batch=8)
    assert found.plan().prediction == alone.plan().prediction
    assert found.plan().inputs == alone.plan().inputs
    assert plan_best(profile, cluster=cluster, batch=8, side_by_side="stages").best.way.side_by_side == "stages"


@given(costed_forms(), st.integers(1, 4))
def test_the_busiest_worker_has_no_less_than_is_proven(form: CostedForm, workers: int) -> None:
    """Whoever gets which layers, somebody has as much; and where layers are alike, no more than that is needed."""
    totals = FormTotals(form, 1)
    works_s = totals.works_s
    handed_out = product(range(workers), repeat=len(works_s))
    least_s = min(
        max(sum(s for s, to in zip(works_s, one, strict=True) if to == w) for w in set(one)) for one in handed_out
    )
    assert totals.busiest_s(workers) <= least_s * (1 + 1e-12)
    assert totals.busiest_s(workers) >= max(works_s)
    if len(set(works_s)) == 1:
        assert totals.busiest_s(workers) == pytest.approx(least_s)


@settings(max_examples=16)
@given(costed_forms(), st.integers(0, 2), st.sampled_from((PLACED, CHUNKED)))
def test_bounds_lie_below_every_plan(form: CostedForm, holders: int, ways: Sequence[ShapeWay]) -> None:
    """No plan takes less than what is proven of its shape, its cut or all orders, nor holds less than is proven."""
    search = ShapeSearch(question_of([form], holders, ways))
    for number, one in enumerated(search).items():
        shape = one.shape
        bound_s = search._bound_s(number, shape)
        assert bound_s is not None and bound_s <= search._way_s(shape, one.way) <= one.iteration_time_s
        template = search._template(number, one.way)
        assert template is not None
        assert least_of_cut(template, shape.microbatches, in_order=one.way.is_in_order) <= one.iteration_time_s
        assert _proven_s(template, shape.microbatches, one.way) <= one.iteration_time_s
        totals = FormTotals(form, shape.tensor_parallel)
        assert totals.least_bytes(shape.pp, shape.held_shards) <= one.memory.total_bytes


@pytest.mark.usefixtures("short_search")
@settings(max_examples=20)
@given(costed_forms(), st.sampled_from((1, 2)))
def test_what_is_said_of_a_shape_is_true_of_its_plan(form: CostedForm, holders: int) -> None:
    """The whole plan of all pipelines is valid, takes what one of them took, and a GPU has room for all it holds."""
    for one in ShapeSearch(question_of([form], holders, ways=PLACED)).ranked():
        made = one.plan()
        made.validate()
        assert not check_plan(made)
        assert made.shards_optimizer == (holders == 2 and one.shape.dp > 1)
        assert made.prediction is not None
        assert made.prediction.iteration_time_s == pytest.approx(one.iteration_time_s)
        assert sum(one.parts) == pytest.approx(one.iteration_time_s)
        memory_bytes = form.profile.device.memory_bytes
        assert memory_bytes is None or one.memory.total_bytes <= memory_bytes * (1 + 1e-9)


@settings(max_examples=25)
@given(costed_forms())
def test_a_sharded_optimizer_is_never_slower(form: CostedForm) -> None:
    """So the search leaves out what is not sharded, where it may shard: the fastest of those is no faster."""
    best = [next(ShapeSearch(question_of([form], holders)).ranked(), None) for holders in (1, 0)]
    assume(best[1] is not None)
    assert best[0] is not None and best[1] is not None
    assert best[0].iteration_time_s <= best[1].iteration_time_s * (1 + 1e-9)


def test_a_plan_says_how_its_shape_was_chosen() -> None:
    """Its options count what was ruled out, and it names the profile as it was given."""
    found = plan_best(Profile((LAYER,) * 4), cluster="2x2", batch=8)
    made = found.plan()
    told = made.planner.options[OPTION]
    assert told["batch"] == 8
    assert told["shapes"] == told["memory"] + told["bound"] + told["planned"]
    assert found.tree()["shapes"][0]["iteration_time_s"] == made.prediction.iteration_time_s  # type: ignore[union-attr]


def test_a_cluster_that_no_shape_fits() -> None:
    """The error says which shape needs the least, how much that is, and how many nodes would do."""
    small = Profile((LAYER,) * 4, device=Device("a GPU", FRAMEWORK_BYTES + 5 * (1 + FRAGMENTS) * GB))
    assert plan_best(small, cluster="4x1", batch=8).best.shape.pp == 4
    with pytest.raises(InfeasibleError) as caught:
        plan_best(small, cluster="2x1", batch=8)
    assert "none of" in caught.value.what and "needs the least" in caught.value.what
    assert "4 nodes, which would do" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batch": 7, "microbatch_size": None}, "7 samples are no whole number of micro-batches of 2"),
        ({"batch": 8, "recompute": True}, "the profile is of one form"),
        ({"batch": 8, "gpu": "h100-sxm"}, "the profile is of one form"),
        ({"batch": 8, "tensor_parallel": [2]}, "no tensor-parallel degree is left"),
        ({"batch": 8, "schedule": "gpipe"}, "gpipe"),
    ],
)
def test_what_cannot_be_searched(given: dict[str, object], says: str) -> None:
    """What contradicts a profile, or leaves nothing to search, is one clear error."""
    profile = Profile((LAYER,) * 4, microbatch_size=2)
    with pytest.raises(InvalidInputError, match=says):
        plan_best(profile, cluster=counted_cluster(2, 2), **given)  # type: ignore[arg-type]


def test_two_holders_of_each_part_are_as_a_run_has_them() -> None:
    """Its memory is that with one of the pipelines lost, and the plan says what it has to be run with."""
    found, zero = (plan_best(Profile((LAYER,) * 4), cluster="4x1", batch=8, holders=number) for number in (2, 1))
    best = found.best
    made = found.plan()
    assert made.shards_optimizer == (best.shape.dp > 1)
    for one in found.shapes:
        same = next(other for other in zero.planned if replace(one.shape, holders=1) == other.shape)
        part = min(1.0, 2 / max(1, one.shape.dp - 1)) * one.shape.dp
        assert one.memory.optimizer_bytes == pytest.approx(part * same.memory.optimizer_bytes)
    for wrong in ({"holders": 3}, {"holders": 2, "shard_optimizer": False}):
        with pytest.raises(InvalidInputError, match="holders of each part"):
            plan_best(Profile((LAYER,) * 4), cluster="4x1", batch=8, **wrong)  # type: ignore[arg-type]


def test_where_nodes_fail_spares_may_be_worth_more_than_speed() -> None:
    """Every shape that may be the best in expectation is replayed, and none does better than without failures."""
    found = plan_best(Profile((LAYER,) * 4), cluster="4x1", batch=8, mtbf=86400.0)
    assert found.expected and found.is_proven
    best = found.expected[0]
    assert all(one.goodput <= 1 + 1e-9 for one in found.expected)
    assert all(one.samples_per_s <= best.samples_per_s for one in found.expected)
    missing = [one for one in found.shapes if all(one is not other.priced for other in found.expected)]
    assert found.unreplayed or all(one.samples_per_s(8) <= best.samples_per_s for one in missing)
