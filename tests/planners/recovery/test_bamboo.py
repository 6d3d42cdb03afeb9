"""Bamboo: neighbours' forwards are repeated, neighbours take over."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.recovery.bamboo import Bamboo, Redundancy
from rtk.planners.recovery.job import TrainingJob
from rtk.planners.shape import Shape
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.profile import Device, Network
from rtk.schemas.replay import Costs, Fleet, TrainingState

from .stories import moment, profile, require_true, stories, told


@st.composite
def jobs(draw: st.DrawFn) -> TrainingJob:
    """Of 2 nodes and more, with layers enough for two, and perhaps with room for little more than two stages."""
    gpus, degree = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (2, 2)]))
    workers = gpus // degree
    layers = draw(st.integers(2 * workers, 6))
    works = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=layers, max_size=layers))
    model = profile(*works)
    costs = [replace(one, costs=(replace(one.costs[0], tensor_parallel=degree),)) for one in model.layers]
    pp = draw(st.sampled_from([n for n in range(1, layers + 1) if n % workers == 0]))
    memory_bytes = draw(st.sampled_from([None, 6 * 420.0]))
    dp = draw(st.integers(-(-2 * workers // pp), 3))
    model = replace(model, layers=tuple(costs), device=Device(memory_bytes=memory_bytes))
    return TrainingJob(model, Shape(pp, dp, draw(st.integers(1, 4)), tensor_parallel=degree), gpus)


@settings(max_examples=24)
@given(st.data())
def test_every_standing_is_what_the_simulator_says(data: st.DataObject) -> None:
    """Whatever comes and goes, before steps are due and after them."""
    job = data.draw(jobs())
    policy = Bamboo(job)
    for fleet, standing in told(policy, data.draw(stories(job))):
        require_true(policy, job, fleet, standing)
        assert standing.microbatches == (job.microbatches if standing.iteration_time_s else 0)


def six_layers(dp: int = 2, **options: object) -> TrainingJob:
    """Of four stages asked for, pipelines have six, of a layer and a node each."""
    return TrainingJob(profile(*[1.0] * 6), Shape(4, dp, 6), **options)  # type: ignore[arg-type]


def began(policy: Bamboo, nodes: str) -> TrainingState:
    """With nodes of one letter each."""
    return policy.begin(Fleet(tuple(nodes)))


def test_every_stage_repeats_the_forward_of_the_next() -> None:
    """A pipeline is one and a half times as deep, and a stage's forward takes as long as two."""
    policy = Bamboo(six_layers())
    plan = policy.plan(began(policy, "abcdef"))
    assert plan is not None and len(plan.pipelines) == 1
    stages = plan.template_of(0).stages
    assert [stage.forward_s for stage in stages] == [2.0] * 6
    assert [stage.duration_s("B") for stage in stages] == [2.0] * 6


def test_the_neighbour_of_a_dead_node_has_both_stages() -> None:
    """Nothing but the iteration is lost; two stages in one, whose forward is repeated no more."""
    policy = Bamboo(six_layers(dp=3))
    (step,) = policy.react(began(policy, "abcdefghijkl"), moment(*"abdefghijkl", lost=("c",), time_s=0.0))
    assert step.answer == "take over" and step.interrupts and not step.rolls_back
    plan = policy.plan(step.standing)
    assert plan is not None
    assert [stage.layers for stage in plan.template_of(0).stages] == [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6)]
    assert [stage.forward_s for stage in plan.template_of(0).stages] == [2.0] * 5
    assert [stage.duration_s("B") for stage in plan.template_of(0).stages] == [2.0, 4.0, 2.0, 2.0, 2.0]
    assert [policy.seats(step.standing)[0, i] for i in range(5)] == list("abdef")
    assert plan.pipelines[0].microbatches == plan.pipelines[1].microbatches


@pytest.mark.parametrize("lost", ["bc", "fa"])
def test_two_neighbours_take_the_job_back_to_its_checkpoint(lost: str) -> None:
    """The ends of a pipeline are neighbours too; others may die together."""
    policy = Bamboo(six_layers(dp=3))
    nodes = "abcdefghijkl"
    left = [node for node in nodes if node not in lost]
    (step,) = policy.react(began(policy, nodes), moment(*left, lost=tuple(sorted(lost))))
    assert step.answer == "restart" and step.rolls_back and step.standing.nodes == 6
    others = [node for node in nodes if node not in "ac"]
    first, *_ = policy.react(began(policy, nodes), moment(*others, lost=("a", "c"), time_s=0.0))
    assert first.answer == "take over" and not first.rolls_back


def test_spares_take_empty_seats_at_the_end_of_the_iteration() -> None:
    """After copying the state of two nodes; nobody else moves."""
    policy = Bamboo(six_layers(costs=Costs(copy_bytes_per_s=100.0)))
    standing = began(policy, "abcdefx")
    taken, filled = policy.react(standing, moment(*"abdefx", lost=("c",)))
    assert taken.standing.nodes == 5 and filled.answer == "fill" and not filled.interrupts
    assert [policy.seats(filled.standing)[0, i] for i in range(6)] == list("abxdef")
    assert filled.pauses[0].kind == "copying"
    assert filled.pauses[0].lasts_s == pytest.approx(2 * (4.0 + 1e-3))
    assert filled.standing.iteration_time_s == standing.iteration_time_s


def test_a_pipeline_is_dissolved_where_that_pays() -> None:
    """Its nodes fill others' seats, if the next failure is far enough; else all go on, one of them slowed."""
    costs = Costs(mean_time_between_failures_s=1.0)
    policy = Bamboo(TrainingJob(profile(*[1.0] * 3), Shape(2, 12, 6), costs=costs))
    nodes = "abcdefghijklmnopqrstuvwx"
    standing = began(policy, nodes)
    change = moment(*nodes[1:], lost=("a",), time_s=1.0)
    assert [step.answer for step in policy.react(standing, change)] == ["take over"]
    change = moment(*nodes[1:], lost=("a",), time_s=1e6)
    taken, formed = policy.react(standing, change)
    assert (taken.answer, formed.answer) == ("take over", "form")
    plan = policy.plan(formed.standing)
    assert plan is not None and len(plan.pipelines) == 7 and formed.standing.nodes == 21
    assert formed.standing.microbatches_per_s > taken.standing.microbatches_per_s


def test_nodes_that_come_fill_seats_and_form_pipelines() -> None:
    """The first of them the empty seat; once six more are there, they are another pipeline where that pays."""
    policy = Bamboo(six_layers(dp=3))
    (taken,) = policy.react(began(policy, "abcdef"), moment(*"abdef", lost=("c",), time_s=0.0))
    (filled,) = policy.react(taken.standing, moment(*"abdefg", came=("g",)))
    assert filled.answer == "fill" and filled.standing.nodes == 6
    (formed,) = policy.react(filled.standing, moment(*"abdefghijklm", came=tuple("hijklm")))
    assert formed.answer == "form" and formed.standing.nodes == 12
    assert set(policy.seats(formed.standing).values()) == set("abdefghijklm")


def test_two_stages_that_do_not_fit_are_refused_with_both_numbers() -> None:
    """A GPU would hold 2 x 420 bytes with redundancy, 420 without."""
    model = replace(profile(*[1.0] * 6), device=Device(memory_bytes=839.0))
    with pytest.raises(InfeasibleError, match=r"redundancy.*840 B.*839 B") as refused:
        began(Bamboo(TrainingJob(model, Shape(4, 2, 6))), "abcdef")
    assert "420 B" in str(refused.value.fix)
    model = replace(model, device=Device(memory_bytes=840.0))
    assert began(Bamboo(TrainingJob(model, Shape(4, 2, 6))), "abcdef").nodes == 6


def test_a_pipeline_needs_two_nodes() -> None:
    """Who has no neighbour cannot be taken over."""
    with pytest.raises(InfeasibleError, match="two nodes or more"):
        began(Bamboo(TrainingJob(profile(1.0, 1.0), Shape(1, 1, 2))), "a")
    with pytest.raises(InvalidInputError, match="how long copying"):
        began(Bamboo(TrainingJob(profile(1.0, 1.0, network=Network()), Shape(2, 1, 2))), "ab")


@given(st.sets(st.integers(0, 5)), st.sampled_from([1, 2]))
def test_who_is_left_has_all_layers(gone: set[int], workers: int) -> None:
    """Each layer once, in order, in one stage of each worker that is left; unless neighbours are gone."""
    model = profile(*[1.0] * (6 * workers))
    redundancy = Redundancy(TrainingJob(model, Shape(6 * workers, 1, 1), workers), 6)
    neighbours = any((node + 1) % 6 in gone for node in gone)
    assert redundancy.covers(tuple(sorted(gone))) != neighbours
    if not neighbours:
        stages = redundancy.without(tuple(sorted(gone))).stages
        assert len(stages) == (6 - len(gone)) * workers
        assert [layer for stage in stages for layer in range(*stage.layers)] == list(range(6 * workers))
