"""Pipeline templates: exactly the least iteration time in memory, sizes that use up every node, clear refusals."""

from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.oobleck.mapping import MappingObjective
from rtk.planners.oobleck.templates import NodeSpecification, plan_templates, specify_nodes
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile
from rtk.schemas.templates import PipelineTemplate, Templates

from ..cli.shell import rtk
from .oobleck_reference import Stage as ByHand
from .oobleck_reference import (
    best_by_hand,
    best_by_recursion,
    in_memory,
    one_forward_one_backward_s,
    ours,
    random_node,
    random_profile,
    stage_time_s,
    time_of,
)

CASES = 120


def rising(layers: int) -> Profile:
    """Layers with F = B = 1, 2, 3 and so on, on one GPU."""
    return Profile(tuple(Layer((LayerCost(i + 1.0, i + 1.0, 0.0),)) for i in range(layers)))


def alike(layers: int, degrees: tuple[int, ...] = (1,), memory_bytes: float | None = None) -> Profile:
    """Equal layers of 8 bytes of parameters and 8 of activations, whose times fall with the degree."""
    costs = tuple(LayerCost(1 / d, 1 / d, 1 / d, tensor_parallel=d) for d in degrees)
    layer = Layer(costs, parameter_bytes=8.0, activation_bytes=8.0, weight_stash_bytes=4.0, output_bytes=100.0)
    return Profile((layer,) * layers, device=Device(memory_bytes=memory_bytes))


def shown(template: PipelineTemplate) -> tuple[ByHand, ...]:
    """A template's stages, as the reference has them."""
    return tuple((stage.layers[1], stage.tensor_parallel, stage.layers[0]) for stage in template.stages)


@pytest.mark.parametrize("microbatches", [None, 1, 2, 8, 20])
@pytest.mark.parametrize("limited", [False, True])
def test_mappings_equal_brute_force(limited: bool, microbatches: int | None) -> None:
    """T is the least of all mappings within memory, and none is found where none fits; ties go to the first of them."""
    compared = 0
    for seed in range(CASES):
        chance = Random(seed)
        profile = random_profile(chance, limited, whole=seed % 2 == 0)
        gpus = random_node(chance, profile)
        found = ours(profile, gpus, 3, microbatches)
        for nodes in (1, 2, 3):
            best = best_by_hand(profile, nodes, gpus, microbatches)
            assert (nodes in found) == (best is not None), (seed, nodes)
            if best is not None:
                mapping = found[nodes]
                assert in_memory(profile, mapping, microbatches), (seed, nodes)
                times_s = [stage_time_s(profile, stage) for stage in mapping]
                assert time_of(times_s, microbatches) == pytest.approx(best[0], rel=1e-9, abs=1e-12), (seed, nodes)
                assert mapping == best[1] or seed % 2, (seed, nodes)
                compared += 1
    assert compared > CASES / 2


def test_never_worse_than_the_published_recursion() -> None:
    """T is never more than what equations 1 to 4 find with the best mapping of each part remembered."""
    for seed in range(CASES):
        chance = Random(seed)
        profile = random_profile(chance, limited=False, whole=False)
        gpus = random_node(chance, profile)
        for nodes, mapping in ours(profile, gpus, 2, None).items():
            time_s = time_of([stage_time_s(profile, stage) for stage in mapping], None)
            assert time_s <= best_by_recursion(profile, nodes, gpus) * (1 + 1e-12), (seed, nodes)


@pytest.mark.parametrize("microbatches", [None, 6, 40])
def test_machine_code_maps_as_plain_python_does(microbatches: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled and interpreted kernels choose the same stages, with counts of stages and without."""
    for seed, memory_bytes in ((1, None), (2, 150.0), (3, 90.0)):
        chance = Random(seed)
        costs = ((chance.random(), chance.random()) for _ in range(9))
        layers = tuple(
            Layer(
                (LayerCost(f, f, w), LayerCost(f / 2, f / 2, w, tensor_parallel=2)),
                parameter_bytes=24.0,
                activation_bytes=12.0,
            )
            for f, w in costs
        )
        profile = Profile(layers, device=Device(memory_bytes=memory_bytes))
        found = []
        for most_interpreted in (10**9, -1):
            monkeypatch.setattr("rtk.planners.oobleck.mapping.pays", lambda *_, most=most_interpreted: most < 0)
            found.append(ours(profile, 2, 4, microbatches))
        assert found[0] == found[1] != {}


def test_values_of_the_original() -> None:
    """Six layers with F = B = 1 to 6 are cut as the original's tests say, at T = 196, 234 and 222; equal ones at 54."""
    made = plan_templates(rising(6), nodes=4, gpus_per_node=1, fault_tolerance=0)
    assert [template.iteration_time_s for template in made.templates[1:]] == [196.0, 234.0, 222.0]
    cuts = [[stage.layers[1] for stage in template.stages] for template in made.templates]
    assert cuts[1:] == [[4, 6], [3, 5, 6], [3, 4, 5, 6]]
    equal = Profile((Layer((LayerCost(1.0, 1.0, 0.0),)),) * 6)
    template = plan_templates(equal, nodes=2, gpus_per_node=1, fault_tolerance=0).templates[1]
    assert [stage.layers for stage in template.stages] == [(0, 3), (3, 6)] and template.iteration_time_s == 54.0


def test_published_case_of_24_layers() -> None:
    """24 equal layers of F = 1 and B = 2 on 1 to 8 nodes of one GPU take what the exact search of our notes took."""
    profile = Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * 24)
    made = plan_templates(profile, nodes=8, gpus_per_node=1, fault_tolerance=0)
    assert [len(template.stages) for template in made.templates] == list(range(1, 9))
    assert made.templates[-1].iteration_time_s == time_of([9.0] * 8, None) == 351.0


@given(
    st.lists(st.floats(0.0, 4.0) | st.integers(0, 4).map(float), min_size=1, max_size=8),
    st.integers(1, 24),
    st.floats(0.0, 1.0),
)
def test_iteration_with_given_microbatches_takes_what_1f1b_does(
    times_s: list[float], microbatches: int, forward: float
) -> None:
    """T is no less than 1F1B takes, and no more than the stages behind the last slowest one above it."""
    time_s, takes_s = time_of(times_s, microbatches), one_forward_one_backward_s(times_s, microbatches, forward)
    last = max(range(len(times_s)), key=lambda i: (times_s[i], i))
    assert MappingObjective(microbatches).iteration_time_s(times_s) == pytest.approx(time_s)
    assert takes_s <= time_s * (1 + 1e-9)
    assert takes_s >= (time_s - sum(times_s[last + 1 :])) * (1 - 1e-9)


@given(st.integers(1, 256), st.integers(0, 8), st.integers(1, 40))
def test_every_number_of_nodes_is_used_up(nodes: int, fault_tolerance: int, smallest: int) -> None:
    """From (f + 1) n_0 to N, to 256, some f + 1 templates or more use up all nodes; with p > n_0 - 1 also beyond N."""
    if (fault_tolerance + 1) * smallest > nodes:
        return
    found = specify_nodes(nodes, fault_tolerance, range(smallest, nodes + 1), str)
    beyond = nodes + 3 * smallest if found.frobenius else nodes
    pipelines = most_pipelines(found, beyond)
    assert all(pipelines[left] >= fault_tolerance + 1 for left in range(found.fewest_nodes, beyond + 1))
    assert found.uncovered() == []


@given(st.integers(1, 100), st.integers(0, 4), st.integers(1, 20), st.integers(0, 30))
def test_numbers_left_out_are_those_that_no_pipelines_use_up(
    nodes: int, fault_tolerance: int, smallest: int, more: int
) -> None:
    """With any largest size, the numbers that a specification names are those that coin change cannot make."""
    found = NodeSpecification(nodes, fault_tolerance, smallest, smallest + more)
    pipelines = most_pipelines(found, max(nodes, smallest))
    wanted = range(found.fewest_nodes, nodes + 1)
    assert found.uncovered() == [left for left in wanted if pipelines[left] < fault_tolerance + 1]


def most_pipelines(sizes: NodeSpecification, nodes: int) -> list[float]:
    """The most pipelines that use up each number of nodes; minus infinity where none do (coin change)."""
    most = [0.0]
    for left in range(1, nodes + 1):
        most.append(1 + max((most[left - size] for size in sizes.sizes if size <= left), default=-inf))
    return most


def test_templates_are_stages_of_plans() -> None:
    """A stage adds up its layers' times; a GPU of it holds its share; links are those within and between nodes."""
    network = Network(Connection(1.0, 100.0), Connection(2.0, 50.0))
    profile = replace(alike(6, (1, 2), 200.0), network=network, model={"name": "m"}, microbatch_size=4)
    made = plan_templates(profile, nodes=3, gpus_per_node=3, fault_tolerance=1, microbatches=5)
    made.validate()
    assert (made.objective, made.smallest, made.largest) == ("microbatches", 1, 2)
    assert made.planner.options["model"] == "m" and made.planner.options["microbatch_size"] == 4
    two = made.templates[1]
    assert two.microbatches == 5 and sum(stage.tensor_parallel for stage in two.stages) == 6
    for stage in two.stages:
        layers, gpus = stage.layers[1] - stage.layers[0], stage.tensor_parallel
        assert stage.forward_s == sum([1 / gpus] * layers)
        assert (stage.activation_bytes, stage.weight_stash_bytes) == (8.0 * layers / gpus, 4.0 * layers / gpus)
        assert stage.memory_limit_bytes == 200.0 - 8.0 * layers / gpus
    across = [i for i, used in enumerate(_used(two)[:-1]) if used % 3 == 0]
    assert [link.delay_s for link in two.links] == [4.0 if i in across else 2.0 for i in range(len(two.links))]
    only = replace(profile, network=Network(inter_node=Connection(2.0, 50.0)))
    assert {link.delay_s for link in plan_templates(only, 2, 3, 0).templates[1].links} == {4.0}


def _used(template: PipelineTemplate) -> list[int]:
    degrees = [stage.tensor_parallel for stage in template.stages]
    return [sum(degrees[: i + 1]) for i in range(len(degrees))]


def test_smallest_size_is_the_fewest_nodes_that_hold_the_model() -> None:
    """n_0 follows from memory: on nodes of 48 bytes, stages of 1, 2 and 3 layers hold what 1F1B has in flight there."""
    profile = alike(6, memory_bytes=48.0)
    made = plan_templates(profile, nodes=7, gpus_per_node=1, fault_tolerance=1)
    assert made.smallest == 3 == next(n for n in range(1, 7) if best_by_hand(profile, n, 1, None))
    assert made.planner.options["guarantee"] == {
        "from_nodes": 6,
        "to_nodes": 7,
        "pipelines": 2,
        "beyond": False,
    }
    assert plan_templates(alike(6), 8, 1, 2).smallest == 1


@pytest.mark.parametrize(
    ("profile", "asked", "words"),
    [
        (alike(6), {"nodes": 9}, ["the model has layers for 6", "--largest 6", "--nodes 7"]),
        (
            alike(6),
            {"nodes": 4, "gpus_per_node": 8},
            ["8 stages or more", "tensor_parallel 2", "layer 0 and 5 more lack it"],
        ),
        (
            alike(6, (2, 4)),
            {"nodes": 4, "gpus_per_node": 3},
            ["stages of 2 GPUs", "do not fill a node of 3", "tensor_parallel 1"],
        ),
        (alike(6, (4,)), {"nodes": 4, "gpus_per_node": 2}, ["no tensor-parallel degree up to 2", "tensor_parallel 1"]),
        (
            alike(6),
            {"nodes": 4, "fault_tolerance": 4},
            ["5 pipelines of 1 node each", "need 5 nodes, there are 4", "--fault-tolerance 3", "--nodes 5"],
        ),
        (alike(6), {"nodes": 4, "largest": 4}, ["cannot have 4 nodes", "take 1", "to 3"]),
        (
            alike(6),
            {"nodes": 4, "memory_limit_bytes": 15.0},
            ["on 4 nodes or fewer with 1 GPU of 15 B each", "GPUs of 48 bytes"],
        ),
        (alike(6), {"nodes": 2, "memory_limit_bytes": 60.0}, ["does not fit on 2 nodes or fewer", "--nodes 6"]),
    ],
)
def test_bad_input_names_the_number_that_would_work(profile: Profile, asked: dict[str, Any], words: list[str]) -> None:
    """Too many nodes or GPUs, a missing degree, f or memory that cannot be met: the error says what could be."""
    with pytest.raises((InvalidInputError, InfeasibleError)) as caught:
        plan_templates(profile, **({"gpus_per_node": 1, "fault_tolerance": 1} | asked))
    assert [word for word in words if word not in str(caught.value)] == []


def test_largest_size_must_leave_no_number_of_nodes_out() -> None:
    """--largest is refused where some number of nodes could not be used up, naming it and the least that will do."""
    sizes = range(4, 20)
    with pytest.raises(InfeasibleError, match="cannot use up 11 nodes") as caught:
        specify_nodes(12, 1, sizes, str, largest=5)
    assert "--largest 6 or more" in str(caught.value)
    assert specify_nodes(12, 1, sizes, str, largest=6).sizes == range(4, 7)


def test_command_writes_templates_and_says_what_they_promise(tmp_path: Path) -> None:
    """`rtk plan templates` writes the document, prints it with --json, and states sizes and guarantee for people."""
    profile, output = tmp_path / "p.json", tmp_path / "t.json"
    write_document(str(profile), alike(6, (1, 2)))
    done = rtk(
        *("plan", "templates", str(profile), "--nodes", "4", "--gpus-per-node", "2", "-o", str(output), "--json")
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == output.read_text()
    made = read_document(str(output), Templates)
    assert made == plan_templates(alike(6, (1, 2)), 4, 2, 1)
    assert "2 or more pipelines use up any 2 to 4 nodes" in done.stderr
    assert len(done.stderr.splitlines()) == 1 + len(made.templates) + 2
