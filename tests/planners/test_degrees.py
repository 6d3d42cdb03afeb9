"""Tensor-parallel degrees in plans: what a shape asks for, `auto`, what fits, and how files say it."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, combinations, pairwise
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.degrees import degree_comparison
from rtk.planners.oobleck.plan import plan_oobleck
from rtk.planners.plain.slipstream import plan_atlas, plan_from_atlas, plan_slipstream
from rtk.planners.plain.verbs import plan_adaptra, plan_joint, plan_pipeline, plan_templates, plan_topology
from rtk.planners.shape import cut_stages
from rtk.schemas.check import check_plan
from rtk.schemas.cluster import Cluster, seats_of_shape
from rtk.schemas.degrees import parse_degrees, print_degrees
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InfeasibleError, InvalidInputError, NoRoomError
from rtk.schemas.network import PipelineSeats
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, NodeNetwork, Profile

DEGREES = (1, 2, 4)
Planned = Callable[..., Plan]
PLANNERS: dict[str, Planned] = {
    "pipeline": plan_pipeline,
    "v": lambda profile, **given: plan_pipeline(profile, placement="v", schedule="zero-bubble", **given),
    "adaptra": lambda profile, **given: plan_adaptra(profile, link_delay={0: 0.5}, **given),
    "joint": lambda profile, **given: plan_joint(profile, failed=["0/0"], slow={"1/1": 1.5}, **given),
    "slipstream": lambda profile, **given: plan_slipstream(profile, failed=["1/0"], **given),
    "topology": lambda profile, **given: plan_topology(profile, slow={"0/1": 2.0}, **given),
}


def layer_of(times_s: dict[int, float], held: float = 4.0, states: float = 0.0) -> Layer:
    """A layer whose F, I and W each take this at each degree."""
    costs = tuple(LayerCost(time_s, time_s, time_s, tensor_parallel=degree) for degree, time_s in times_s.items())
    return Layer(costs, activation_bytes=held, weight_stash_bytes=held / 2, state_bytes=states)


@st.composite
def profiles(draw: st.DrawFn, layers: int = 4) -> Profile:
    """Profiles with costs at degrees 1, 2 and 4, in whole seconds."""
    times = st.fixed_dictionaries({degree: st.integers(1, 9).map(float) for degree in DEGREES})
    return Profile(tuple(layer_of(draw(times)) for _ in range(layers)))


def alone_at(profile: Profile, degree: int) -> Profile:
    """A profile of degree 1 that says what one GPU does and holds at this degree."""

    def share(layer: Layer) -> Layer:
        (cost,) = (one for one in layer.costs if one.tensor_parallel == degree)
        sizes = {name: getattr(layer, name) / degree for name in ("activation_bytes", "weight_stash_bytes")}
        return replace(layer, costs=(replace(cost, tensor_parallel=1),), **sizes)

    return replace(profile, layers=tuple(map(share, profile.layers)))


@pytest.mark.parametrize("planner", PLANNERS)
@given(profile=profiles(), degree=st.sampled_from(DEGREES))
@settings(max_examples=3)
def test_a_plan_at_a_degree_is_that_of_one_gpus_share(planner: str, profile: Profile, degree: int) -> None:
    """Every planner plans at a degree as it plans at 1 what each GPU does then, and its plan says the degree."""
    asked: dict[str, Any] = {"pp": 2, "dp": 2, "microbatches": 3}
    plan = PLANNERS[planner](profile, tensor_parallel=degree, **asked)
    of_share = PLANNERS[planner](alone_at(profile, degree), **asked)
    assert plan.prediction == of_share.prediction
    assert [worker.order for worker in plan.workers] == [worker.order for worker in of_share.workers]
    assert {plan.gpus_of(worker) for worker in plan.workers} == {degree}
    assert plan.planner.options.get("tensor_parallel", 1) == degree
    assert not check_plan(plan)


@given(profile=profiles(layers=6), degrees=st.lists(st.sampled_from(DEGREES), min_size=3, max_size=3).map(tuple))
def test_stages_of_unlike_degrees_are_cut_for_the_least_bottleneck(profile: Profile, degrees: tuple[int, ...]) -> None:
    """With a degree a stage no cut has a shorter slowest stage, each stage at its own degree's times."""
    at = [{cost.tensor_parallel: cost.work_s for cost in layer.costs} for layer in profile.layers]

    def slowest(ends: tuple[int, ...]) -> float:
        spans = zip((0, *ends), (*ends, 6), degrees, strict=True)
        return max(sum(one[degree] for one in at[first:stop]) for first, stop, degree in spans)

    stages = cut_stages(profile, 3, 1, degrees).stages
    assert max(stage.work_s for stage in stages) == min(map(slowest, combinations(range(1, 6), 2)))
    assert tuple(stage.tensor_parallel for stage in stages) == degrees


@given(profile=profiles(), sites=st.booleans())
@settings(max_examples=20)
def test_auto_takes_the_degree_of_most_worth(profile: Profile, sites: bool) -> None:
    """Auto's plan is the shortest on a cluster, and of the fewest GPU-seconds without one; the others are told."""
    asked: dict[str, Any] = {"pp": 2, "microbatches": 3, "cluster": "2x4" if sites else None}
    each = {degree: plan_pipeline(profile, tensor_parallel=degree, **asked) for degree in DEGREES}
    worth = {degree: times(plan) * (1 if sites else degree) for degree, plan in each.items()}
    plan = plan_pipeline(profile, tensor_parallel="auto", **asked)
    taken = plan.planner.options.get("tensor_parallel", 1)
    assert worth[taken] == min(worth.values())
    rows = plan.planner.options["degrees"]
    assert [row["iteration_time_s"] for row in rows] == [times(each[degree]) for degree in DEGREES]
    assert [row["tensor_parallel"] for row in rows if row.get("chosen")] == [taken]
    assert sum(line.endswith(", taken") for line in degree_comparison(plan)) == 1


def times(plan: Plan) -> float:
    """What a plan promises, in s."""
    assert plan.prediction is not None
    return plan.prediction.iteration_time_s


HEAVY = Profile((layer_of({1: 4.0, 2: 2.0, 4: 1.0}, 4.0, 20.0),) * 4, device=Device(memory_bytes=30.0))


def test_where_memory_does_not_suffice_the_degrees_that_fit_are_named() -> None:
    """The error names the degrees at which states and a micro-batch fit, and at these there is a plan."""
    with pytest.raises(NoRoomError, match="hold 40 B") as caught:
        plan_pipeline(HEAVY, pp=2, microbatches=2)
    assert "--tensor-parallel 2 or 4, where it fits" in str(caught.value)
    for degree in (2, 4):
        plan_pipeline(HEAVY, pp=2, microbatches=2, tensor_parallel=degree)
    with pytest.raises(NoRoomError, match="a micro-batch") as caught:
        plan_adaptra(HEAVY, pp=4, microbatches=2, memory_limit=1.0, tensor_parallel=2)
    assert "--tensor-parallel 4, where it fits" in str(caught.value)
    with pytest.raises(NoRoomError) as caught:
        plan_pipeline(HEAVY, pp=1, microbatches=2, cluster="1x2")
    assert "none of the profile's other tensor-parallel degrees fits" in str(caught.value)


def test_auto_leaves_out_what_the_machines_have_no_room_for() -> None:
    """On eight GPUs, four workers of one stage each take at most two; a degree must fill a node."""
    rows = plan_pipeline(HEAVY, pp=4, microbatches=2, cluster="2x4", tensor_parallel="auto").planner.options["degrees"]
    assert [row["gpus"] for row in rows] == [4, 8]
    with pytest.raises(InfeasibleError, match="none of the profile's tensor-parallel degrees fits"):
        plan_pipeline(HEAVY, pp=4, microbatches=2, cluster="1x2", tensor_parallel="auto")


def test_without_the_option_the_least_degree_of_the_profile_counts() -> None:
    """A profile that was made at degrees 2 and 4 only is planned at 2."""
    layers = tuple(replace(layer, costs=layer.costs[1:]) for layer in HEAVY.layers)
    plan = plan_pipeline(replace(HEAVY, layers=layers), pp=2, microbatches=2)
    assert {plan.gpus_of(worker) for worker in plan.workers} == {2}


@given(asked=st.one_of(st.integers(1, 4096), st.lists(st.integers(1, 64), min_size=2, max_size=6).map(tuple)))
def test_degrees_are_read_as_they_are_printed(asked: int | tuple[int, ...]) -> None:
    """What is printed is read back, and so are Python's numbers and tuples."""
    assert parse_degrees(print_degrees(asked)) == asked == parse_degrees(asked)


@pytest.mark.parametrize("asked", ["", "x", "0", "4,", "-1", "1.5", "99999", 0, (2, 0)])
def test_what_is_no_degree_is_refused(asked: Any) -> None:
    """Everything but whole numbers above 0 and auto is refused by name."""
    with pytest.raises(InvalidInputError, match="no tensor-parallel degree"):
        parse_degrees(asked)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tensor_parallel": 3}, "no cost at tensor_parallel 3, only at 1, 2 and 4"),
        ({"tensor_parallel": (2, 4, 2)}, "3 tensor-parallel degrees for 2 stages"),
        ({"tensor_parallel": (2, 4, 2), "placement": "v"}, "3 tensor-parallel degrees for 2 columns"),
    ],
)
def test_degrees_that_the_profile_or_the_shape_lacks(given: dict[str, Any], message: str) -> None:
    """A degree without costs, and degrees for other stages than there are, are one clear error."""
    with pytest.raises(InvalidInputError, match=message):
        plan_pipeline(HEAVY, pp=2, microbatches=2, **given)


@pytest.mark.parametrize("placement", ["v", "loop"])
def test_workers_of_several_stages_may_have_unlike_degrees(placement: str) -> None:
    """One degree a worker: all its stages are at it, the slower worker gets fewer layers, and the plan is valid."""
    profile = Profile((layer_of({1: 4.0, 2: 2.0, 4: 1.0}, 4.0, 20.0),) * 6)
    plan = plan_pipeline(profile, pp=2, microbatches=3, tensor_parallel=(4, 2), placement=placement)
    assert not check_plan(plan)
    (template,) = plan.templates
    held = [[template.stages[v] for v in column] for column in template.columns]
    assert [{stage.tensor_parallel for stage in column} for column in held] == [{4}, {2}]
    assert [sum(stage.layers[1] - stage.layers[0] for stage in column) for column in held] == [4, 2]
    assert plan.planner.options["tensor_parallel"] == [4, 2]
    assert [plan.gpus_of(worker) for worker in plan.workers] == [4, 2]


def test_where_workers_may_change_places_all_have_equally_many_gpus() -> None:
    """Normalized failures and topologies move workers between stages: unlike degrees are refused."""
    for planned, more in ((plan_slipstream, {"failures": 1}), (plan_topology, {"slow": {"0/1": 2.0}})):
        with pytest.raises(InvalidInputError, match="places, and the stages are on unlike numbers of GPUs"):
            planned(HEAVY, pp=2, dp=2, microbatches=2, tensor_parallel=(2, 4), **more)
    assert not check_plan(plan_joint(HEAVY, pp=2, microbatches=2, tensor_parallel=(2, 4)))


def test_plans_at_a_degree_are_of_a_version_that_older_readers_refuse() -> None:
    """A plan that was asked for a degree is of format version 3.0, reads back, and is none of 2.0."""
    plan = plan_pipeline(HEAVY, pp=2, microbatches=2, tensor_parallel=(2, 4))
    tree = json.loads(canonical(plan))
    assert tree["format_version"] == "3.0" and parse_document(canonical(plan), Plan, "plan") == plan
    with pytest.raises(InvalidInputError, match="tensor-parallel degrees, which format version"):
        parse_document(json.dumps(tree | {"format_version": "2.0"}).encode(), Plan, "plan")


def test_plans_of_before_keep_their_version() -> None:
    """A plan at degree 1 is of version 1.0 and says no degree; and so are Oobleck's, whatever theirs."""
    plain = plan_pipeline(replace(HEAVY, device=Device()), pp=2, microbatches=2)
    of_templates = plan_oobleck(plan_templates(HEAVY, nodes=2, gpus_per_node=4, fault_tolerance=0), 2, 8, 1)
    assert "tensor_parallel" not in plain.planner.options
    assert max(of_templates.gpus_of(worker) for worker in of_templates.workers) > 1
    for plan in (plain, of_templates):
        assert json.loads(canonical(plan))["format_version"] == "1.0"


def test_an_atlas_knows_on_which_gpus_its_workers_are(tmp_path: Any) -> None:
    """A node that fails takes the workers whose GPUs it had, at the atlas's own degree."""
    (tmp_path / "dead.yaml").write_text("failed: [node1]")
    plan_atlas(HEAVY, str(tmp_path / "atlas"), pp=2, dp=2, microbatches=2, tensor_parallel="auto", cluster="4x4")
    assert json.loads((tmp_path / "atlas/atlas.json").read_text())["format_version"] == "3.0"
    plan = plan_from_atlas(str(tmp_path / "atlas"), cluster="4x4", overlay=str(tmp_path / "dead.yaml"))
    assert [worker.name for worker in plan.workers if worker.failed] == ["0/1"]
    assert {plan.gpus_of(worker) for worker in plan.workers} == {4}


@given(
    degrees=st.lists(st.integers(1, 4), min_size=2, max_size=5).map(tuple), pipelines=st.integers(1, 6),
    gpus=st.integers(1, 12), side_by_side=st.sampled_from(["stages", "peers"]),
)  # fmt: skip
def test_hops_and_rings_know_each_stages_own_degree(
    degrees: tuple[int, ...], pipelines: int, gpus: int, side_by_side: Literal["stages", "peers"]
) -> None:
    """Whether a hop leaves a node is as the GPUs sit; one degree and the same one a stage are the same."""
    network = Network(Connection(1.0, 8.0), Connection(5.0, 2.0), NodeNetwork(gpus, 4.0, side_by_side))
    seating, workers = PipelineSeats(len(degrees), pipelines, degrees), range(len(degrees))
    rows = [(k, i) for k in range(pipelines) for i in workers]
    order = rows if side_by_side == "stages" else sorted(rows, key=lambda place: place[::-1])
    first = dict(zip(order, accumulate((degrees[i] for _, i in order), initial=0), strict=False))
    for here, there in pairwise(workers):
        leaves = any(first[k, here] // gpus != first[k, there] // gpus for k in range(pipelines))
        assert seating.crosses(network, here, there) == leaves
    alike, each = (
        PipelineSeats(len(degrees), pipelines, degrees[0]),
        PipelineSeats(len(degrees), pipelines, degrees[:1] * len(degrees)),
    )
    assert [alike.hop_s(network, 64.0, *ends) for ends in pairwise(workers)] == [
        each.hop_s(network, 64.0, *ends) for ends in pairwise(workers)
    ]
    assert {alike.rings(network, i) for i in workers} == {each.rings(network, i) for i in workers}


@given(
    nodes=st.integers(1, 4), per_node=st.integers(1, 8), dp=st.integers(1, 3),
    degrees=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
)  # fmt: skip
def test_workers_take_their_gpus_one_after_the_other(
    nodes: int, per_node: int, dp: int, degrees: tuple[int, ...]
) -> None:
    """Seats use up the GPUs in order; too few of them, or a worker on two nodes, are refused."""
    cluster = Cluster(tuple(f"n{number}" for number in range(nodes)), per_node)
    starts = [
        dp_start + sum(degrees[:i])
        for dp_start in range(0, dp * sum(degrees), sum(degrees))
        for i in range(len(degrees))
    ]
    ends = [start + degree - 1 for start, degree in zip(starts, degrees * dp, strict=True)]
    fits = ends[-1] < cluster.size and all(a // per_node == b // per_node for a, b in zip(starts, ends, strict=True))
    if not fits:
        with pytest.raises(InfeasibleError):
            seats_of_shape(cluster, len(degrees), dp, degrees)
        return
    seats = seats_of_shape(cluster, len(degrees), dp, degrees)
    assert [gpu for gpus in seats.values() for gpu in gpus] == list(cluster.gpus())[: dp * sum(degrees)]
    assert [len(gpus) for gpus in seats.values()] == [*degrees] * dp
