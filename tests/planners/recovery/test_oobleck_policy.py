"""Oobleck as a policy: the real planner's pipelines at every change."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.oobleck.assignment import crew_of
from rtk.planners.oobleck.plan import plan_oobleck
from rtk.planners.oobleck.reconfiguration import Reconfigurer
from rtk.planners.recovery.job import TrainingJob
from rtk.planners.recovery.oobleck import Oobleck, TemplateJob
from rtk.planners.shape import Shape
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Connection, Device, Network, Profile
from rtk.schemas.replay import Costs, Fleet, StateChange, TrainingState, Transition

from .stories import layer, moment, profile, require_true, stories, told

# A GPU holds two layers of `stories.layer` and what a pipeline of all layers has in flight.
TWO_LAYERS = 2 * 400.0 + 2 * 6 * 20.0


def oobleck(job: TrainingJob, *pays_within: int) -> Oobleck:
    """The policy of a job that is replayed."""
    return Oobleck(TemplateJob.replayed(job), *pays_within)


@st.composite
def jobs(draw: st.DrawFn) -> TrainingJob:
    """Of 4 to 8 nodes, each of which holds a part of a model of 2 to 6 layers, or all of it."""
    layers = draw(st.integers(2, 6))
    gpus = draw(st.sampled_from([1, 1, 2])) if layers >= 4 else 1
    memory_bytes = draw(st.sampled_from([None, TWO_LAYERS]))
    works = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=layers, max_size=layers))
    model = replace(profile(*works), device=Device(memory_bytes=memory_bytes))
    shape = Shape(gpus, draw(st.sampled_from([6, 8])), draw(st.integers(1, 3)))
    return TrainingJob(model, shape, gpus)


@settings(max_examples=20)
@given(st.data())
def test_every_standing_is_what_the_simulator_says(data: st.DataObject) -> None:
    """Whatever comes and goes, before steps are due and after them."""
    job = data.draw(jobs())
    policy = oobleck(job, data.draw(st.sampled_from([0, 100])))
    for fleet, standing in told(policy, data.draw(stories(job))):
        require_true(policy, job, fleet, standing)
        assert standing.microbatches == (job.microbatches if standing.iteration_time_s else 0)


def four_layers(**options: object) -> TrainingJob:
    """Six nodes that hold two layers each, so that n_0 is 2: three pipelines of two nodes."""
    model = replace(profile(1.0, 1.0, 1.0, 1.0), device=Device(memory_bytes=TWO_LAYERS))
    return TrainingJob(model, Shape(2, 3, 4), **options)  # type: ignore[arg-type]


def began(policy: Oobleck, nodes: str) -> TrainingState:
    """With nodes of one letter each."""
    return policy.begin(Fleet(tuple(nodes)))


def only(steps: Transition) -> StateChange:
    """The one step of an answer."""
    (step,) = steps
    return step


@settings(max_examples=15)
@given(st.permutations("abcdef"), st.integers(1, 2))
def test_a_failure_is_answered_as_the_reconfigurer_does(order: list[str], lost: int) -> None:
    """The same pipelines, micro-batches and time of copying, whatever the nodes are called."""
    policy = oobleck(four_layers())
    standing = began(policy, "".join(order))
    plan, seats = policy.plan(standing), policy.seats(standing)
    assert plan is not None
    left = [name for name in order if name not in order[:lost]]
    step = only(policy.react(standing, moment(*left, lost=tuple(order[:lost]))))
    crew = [node for node in crew_of(plan, 1) if seats[node.position or (0, 0)] in left]
    expected = Reconfigurer(plan).next_of(plan, crew)
    assert sorted(shapes(policy.plan(step.standing))) == sorted(shapes(expected.plan))
    copying_s = sum(pause.lasts_s for pause in step.pauses if pause.kind == "copying")
    assert copying_s == pytest.approx(expected.copying_s)
    assert step.interrupts and not step.rolls_back


def shapes(plan: Plan | None) -> list[tuple[str, int]]:
    """The template and the micro-batches of each pipeline."""
    assert plan is not None
    return [(pipeline.template, pipeline.microbatches) for pipeline in plan.pipelines]


def test_it_begins_with_the_plan_of_rtk_plan_oobleck() -> None:
    """The fastest pipelines for the nodes that are there; more than the job asks for are spares."""
    policy = oobleck(four_layers())
    for nodes in ("abcde", "abcdef", "abcdefgh"):
        expected = plan_oobleck(policy.templates, min(6, len(nodes)), 12, 1)
        assert shapes(policy.plan(began(policy, nodes))) == shapes(expected)


def test_nodes_that_come_join_at_the_end_of_the_iteration() -> None:
    """After copies and new groups, nothing is lost; a spare changes nothing."""
    policy = oobleck(four_layers(costs=Costs(regrouping_s=7.0)))
    step = only(policy.react(began(policy, "abcde"), moment(*"abcdef", came=("f",))))
    assert step.standing.nodes == 6 and not step.interrupts and not step.rolls_back
    kinds = [pause.kind for pause in step.pauses]
    assert kinds == ["copying", "restarting"] and step.pauses[-1].lasts_s == 7.0
    assert policy.react(step.standing, moment(*"abcdefg", came=("g",))) == ()
    assert policy.react(step.standing, moment(*"abcdef", lost=("g",))) == ()


def test_a_spare_takes_part_in_the_answer_to_a_failure() -> None:
    """It joins in the same reconfiguration."""
    policy = oobleck(four_layers())
    step = only(policy.react(began(policy, "abcdefg"), moment(*"bcdefg", lost=("a",))))
    assert step.standing.nodes == 6 and "g" in policy.seats(step.standing).values()


def test_below_two_smallest_pipelines_the_job_saves_and_waits() -> None:
    """Nothing but the iteration is lost (section 3.4); it restarts from there once there are enough nodes."""
    policy = oobleck(four_layers(costs=Costs(checkpoint_pause_s=3.0)))
    standing = began(policy, "abcd")
    first = policy.plan(standing)
    assert first is not None and len(first.pipelines) == 2
    step = only(policy.react(standing, moment(*"bcd", lost=("a",))))
    assert step.standing.iteration_time_s is None and step.interrupts and not step.rolls_back
    assert [pause.kind for pause in step.pauses] == ["detecting", "checkpointing"]
    assert policy.react(step.standing, moment(*"cd", lost=("b",))) == ()
    again = only(policy.react(step.standing, moment(*"cdef", came=("e", "f"))))
    assert again.answer == "restart" and not again.rolls_back and again.standing.nodes == 4


def test_a_lost_layer_takes_the_job_back_to_its_checkpoint() -> None:
    """All nodes of one place are lost: nobody has its layers. With enough nodes it restarts, with fewer it waits."""
    policy = oobleck(four_layers())
    standing = began(policy, "abcdef")
    seats = policy.seats(standing)
    firsts = tuple(sorted(node for (_, stage), node in seats.items() if stage == 0))
    left = [node for node in "abcdef" if node not in firsts]
    step = only(policy.react(standing, moment(*left, *"xyz", lost=firsts, came=tuple("xyz"))))
    assert step.answer == "restart" and step.rolls_back and step.standing.nodes == 6
    step = only(policy.react(standing, moment(*left, lost=firsts)))
    assert step.answer == "wait" and step.rolls_back
    assert [pause.kind for pause in step.pauses] == ["detecting"]


def test_a_model_that_two_pipelines_cannot_hold_is_refused() -> None:
    """However many nodes there are now."""
    model = replace(profile(1.0, 1.0, 1.0, 1.0), device=Device(memory_bytes=TWO_LAYERS))
    with pytest.raises(InfeasibleError, match="2 pipelines of 2 nodes"):
        began(oobleck(TrainingJob(model, Shape(3, 1, 4))), "abc")
    with pytest.raises(InfeasibleError, match="cannot be split over 2 pipelines"):
        began(oobleck(TrainingJob(model, Shape(4, 1, 1))), "a")


def test_nodes_that_no_pipeline_can_use_wait() -> None:
    """With a layer a node there are pipelines of three nodes only: of eight nodes two are spares."""
    model = replace(profile(1.0, 1.0, 1.0), device=Device(memory_bytes=500.0))
    policy = oobleck(TrainingJob(model, Shape(3, 3, 4)))
    standing = began(policy, "abcdefghi")
    assert standing.nodes == 9
    step = only(policy.react(standing, moment(*"abcdefgh", lost=("i",))))
    assert step.standing.nodes == 6 and not step.rolls_back
    assert set(policy.seats(step.standing).values()) <= set("abcdefgh")
    left = [node for node in "abcdefgh" if node not in list(policy.seats(step.standing).values())[:1]]
    assert only(policy.react(step.standing, moment(*left))).standing.nodes == 6


def test_copies_need_a_network() -> None:
    """A job is refused where nobody knows how fast state is copied."""
    model = replace(four_layers().profile, network=Network())
    with pytest.raises(InvalidInputError, match="how long copying"):
        began(oobleck(TrainingJob(model, Shape(2, 3, 4))), "abcdef")
    assert began(oobleck(TrainingJob(model, Shape(2, 3, 4), costs=Costs(copy_bytes_per_s=1e3))), "abcdef").nodes == 6


@pytest.mark.parametrize(("gpus", "copied_bytes"), [(1, 2 * 400.0), (2, 4 * 400.0)])
def test_the_gpus_of_a_node_copy_side_by_side(gpus: int, copied_bytes: float) -> None:
    """A node of two GPUs copies twice the layers in the same time."""
    model = Profile(
        tuple(layer() for _ in range(4)),
        network=Network(None, Connection(0.0, 1e3)),
        device=Device(memory_bytes=TWO_LAYERS),
    )
    policy = oobleck(TrainingJob(model, Shape(2, 3 * gpus, 4), gpus))
    nodes = "abcdef" if gpus == 1 else "abc"
    before = began(policy, nodes[: len(nodes) - 2 // gpus])
    step = only(policy.react(before, moment(*nodes, came=tuple(nodes[len(nodes) - 2 // gpus :]))))
    lasts_s = [pause.lasts_s for pause in step.pauses if pause.kind == "copying"]
    assert lasts_s == [pytest.approx(copied_bytes / (gpus * 1e3))]
