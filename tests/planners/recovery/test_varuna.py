"""Varuna: the best shape for the nodes that are left, from the last checkpoint."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.recovery.job import TrainingJob
from rtk.planners.recovery.layout import JobPipelines, alike, spread
from rtk.planners.recovery.varuna import Varuna
from rtk.planners.shape import Shape
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.profile import Device
from rtk.schemas.replay import Costs, Fleet, TrainingState

from .stories import job, jobs, moment, profile, require_true, stories, told


@settings(max_examples=20)
@given(st.data())
def test_every_standing_is_what_the_simulator_says(data: st.DataObject) -> None:
    """Whatever comes and goes, before steps are due and after them."""
    asked = data.draw(jobs())
    policy = Varuna(asked)
    for fleet, standing in told(policy, data.draw(stories(asked))):
        require_true(policy, asked, fleet, standing)
        assert standing.microbatches == (asked.microbatches if standing.iteration_time_s else 0)


@settings(max_examples=20)
@given(jobs(), st.integers(1, 16))
def test_no_shape_of_so_many_nodes_is_faster(asked: TrainingJob, nodes: int) -> None:
    """The bound that spares most shapes their schedule never hides the best."""
    names = tuple(f"n{n}" for n in range(min(nodes, asked.nodes)))
    standing = Varuna(asked).begin(Fleet(names))
    shortest_s = min(possible_s(asked, len(names)), default=None)
    assert standing.iteration_time_s == (None if shortest_s is None else pytest.approx(shortest_s))


def possible_s(asked: TrainingJob, nodes: int) -> list[float]:
    """The iteration times of all numbers of stages, in as many pipelines as nodes and micro-batches allow."""
    found = []
    for stages in range(1, len(asked.profile.layers) + 1):
        for pipelines in range(asked.microbatches, 0, -1):
            with suppress(InfeasibleError, InvalidInputError):
                shaped = replace(asked, shape=replace(asked.shape, pp=stages, dp=pipelines))
                if shaped.nodes <= nodes:
                    found.append(JobPipelines(shaped).seconds(alike(spread(asked.microbatches, pipelines))))
                    break
    return found


def began(policy: Varuna, nodes: str) -> TrainingState:
    """With nodes of one letter each."""
    return policy.begin(Fleet(tuple(nodes)))


def test_a_failure_breaks_the_grid() -> None:
    """A node holds two of four layers at most: with three nodes one is idle, or all have a stage of one pipeline."""
    model = replace(profile(*[1.0] * 4), device=Device(memory_bytes=900.0))
    policy = Varuna(TrainingJob(model, Shape(2, 2, 4)))
    (step,) = policy.react(began(policy, "abcd"), moment(*"bcd", lost=("a",)))
    assert step.interrupts and step.rolls_back and step.answer == "restart"
    assert [pause.kind for pause in step.pauses] == ["detecting", "restarting", "copying"]
    plan = policy.plan(step.standing)
    assert plan is not None and len(plan.pipelines) == 1 and step.standing.nodes in {2, 3}


def test_nodes_that_come_are_taken_in_where_that_pays() -> None:
    """By a checkpoint first, so that nothing is lost; not where the next failure comes too soon."""
    costs = Costs(restart_s=10.0, mean_time_between_failures_s=1.0)
    policy = Varuna(job(2, 2, 4, costs=costs))
    standing = began(policy, "ab")
    assert policy.react(standing, moment(*"abcd", came=("c", "d"), time_s=1.0)) == ()
    (step,) = policy.react(standing, moment(*"abcd", came=("c", "d"), time_s=1e6))
    assert step.answer == "grow" and not step.interrupts and step.pauses[0].kind == "checkpointing"
    assert step.standing.nodes == 4


def test_too_few_nodes_wait() -> None:
    """And restart once there are enough."""
    model = replace(profile(1.0, 1.0), device=Device(memory_bytes=450.0))
    policy = Varuna(TrainingJob(model, Shape(2, 1, 4)))
    (step,) = policy.react(began(policy, "ab"), moment("b", lost=("a",)))
    assert step.answer == "wait" and step.standing.iteration_time_s is None
    assert policy.plan(step.standing) is None and policy.seats(step.standing) == {}
    assert policy.react(step.standing, moment("b")) == ()
    (step,) = policy.react(step.standing, moment("b", "c", came=("c",)))
    assert step.answer == "restart" and step.standing.nodes == 2


def test_a_model_that_fits_in_no_shape_is_refused() -> None:
    """A layer alone is too large for a GPU."""
    model = replace(profile(1.0, 1.0), device=Device(memory_bytes=390.0))
    with pytest.raises(InfeasibleError):
        began(Varuna(TrainingJob(model, Shape(2, 1, 4))), "ab")


def test_stages_with_limits_of_their_own_stay() -> None:
    """What a job says stage by stage has no meaning for other numbers of stages."""
    shape = Shape(2, 2, 3, link_delay_s={(None, 0): 1.0})
    policy = Varuna(TrainingJob(profile(1.0, 1.0, 1.0), shape))
    plan = policy.plan(began(policy, "abcd"))
    assert plan is not None and len(plan.template_of(0).stages) == 2
