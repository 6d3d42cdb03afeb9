"""What policies say of their standings is what the simulator says of their plans, whatever happens to nodes."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.recovery.catalogue import NAMES, policy
from rtk.planners.recovery.job import TrainingJob
from rtk.planners.shape import Shape
from rtk.runners.simulator import simulate
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.orders import LeanSchedule
from rtk.schemas.profile import Device, Network, Profile
from rtk.schemas.replay import Costs, Fleet, Moment

from .stories import job, jobs, layer, names, profile, require_true, stories, told

# Those of which tests of their own ask the same, of jobs that suit them; all others are asked here.
ASKED_ELSEWHERE = ("oobleck", "adaptra", "greyhound", "rtk", "bamboo", "varuna", "fault-free")
SURVIVORS = [name for name in NAMES if name not in ASKED_ELSEWHERE]


@pytest.mark.parametrize("name", SURVIVORS)
@settings(max_examples=12)
@given(st.data())
def test_a_standing_is_what_the_simulator_says_of_its_plan(name: str, data: st.DataObject) -> None:
    """Times, micro-batches, memory, seats: all as in the plan; and no node that is not there has a seat."""
    job = data.draw(jobs())
    found = policy(name, job)
    for fleet, standing in told(found, data.draw(stories(job)), data.draw(st.sampled_from([1, 2]))):
        require_true(found, job, fleet, standing)


@pytest.mark.parametrize("name", SURVIVORS)
@settings(max_examples=12)
@given(st.data())
def test_training_goes_on_wherever_a_pipeline_is_possible(name: str, data: st.DataObject) -> None:
    """Once an answer has come to pass, a policy waits only where the nodes do not fill a single pipeline."""
    job = data.draw(jobs())
    found, story = policy(name, job), data.draw(stories(job))
    standing = found.begin(story.began)
    for moment in story.moments:
        for step in found.react(standing, moment):
            standing = step.standing
        if standing.iteration_time_s is None and job.schedule in get_args(LeanSchedule):
            assert len(moment.fleet.nodes) < job.grid.columns


@pytest.mark.parametrize("name", SURVIVORS)
@settings(max_examples=10)
@given(st.data())
def test_the_same_question_has_the_same_answer(name: str, data: st.DataObject) -> None:
    """Two policies of one job agree, whatever they were asked before."""
    job = data.draw(jobs())
    story = data.draw(stories(job))
    first, second = policy(name, job), policy(name, job)
    list(told(first, data.draw(stories(job))))
    assert list(told(first, story)) == list(told(second, story))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fault-free"])
def test_who_is_back_at_once_has_failed_all_the_same(name: str) -> None:
    """A node that is lost and comes within a moment has lost what it held: nobody takes it for one that has stayed."""
    found = policy(name, job(2, 4, 4, costs=Costs(mean_time_between_failures_s=1e9)))
    began = found.begin(Fleet(names(8)))
    change = Moment(5.0, Fleet((*names(8)[1:], "n0")), ("n0",), ("n0",), failures=1)
    first, *_ = found.react(began, change)
    assert first.interrupts and first.pauses[0].kind == "detecting"


def test_a_limit_of_activations_is_heeded_or_refused() -> None:
    """With room for two micro-batches a stage each GPU holds that much at most; Oobleck knows no such limit."""
    limited = Shape(2, 4, 4, [60.0])
    for name in NAMES:
        found = policy(name, TrainingJob(profile(1.0, 1.0, 1.0), limited))
        if name == "oobleck":
            with pytest.raises(InfeasibleError, match="no limit of activations"):
                found.begin(Fleet(names(8)))
        else:
            plan = found.plan(found.begin(Fleet(names(8))))
            assert plan is not None and max(simulate(plan).peak_memory_bytes) <= 60.0


def test_limits_stage_by_stage_are_refused_by_who_cuts_other_stages() -> None:
    """Bamboo's pipelines are deeper than asked for."""
    found = policy("bamboo", TrainingJob(profile(1.0, 1.0, 1.0), Shape(2, 4, 4, [80.0, 60.0])))
    with pytest.raises(InfeasibleError, match="stages of its own"):
        found.begin(Fleet(names(8)))
    tight = policy("bamboo", TrainingJob(profile(1.0, 1.0, 1.0), Shape(2, 4, 4, [39.0])))
    with pytest.raises(InfeasibleError, match=r"40 B of activations of a micro-batch.*and the limit is 39 B"):
        tight.begin(Fleet(names(8)))


@pytest.mark.parametrize("name", [*SURVIVORS, "fault-free"])
def test_a_gpu_too_small_for_its_stage_is_refused(name: str) -> None:
    """A device that cannot hold parameters, state and one micro-batch is an infeasible job at the beginning."""
    small = Profile((layer(), layer()), device=Device(memory_bytes=410.0), network=profile(1.0).network)
    with pytest.raises(InfeasibleError):
        policy(name, TrainingJob(small, Shape(2, 2, 2))).begin(Fleet(names(4)))


@pytest.mark.parametrize("name", ["slipstream", "elastic-batching"])
def test_copying_over_an_unknown_network_is_refused(name: str) -> None:
    """Who copies state must know how fast."""
    with pytest.raises(InvalidInputError, match="how long copying"):
        policy(name, TrainingJob(profile(1.0, 1.0, network=Network()), Shape(2, 2, 2))).begin(Fleet(names(4)))


@pytest.mark.parametrize("name", [*SURVIVORS, "fault-free"])
def test_a_slow_link_of_a_single_pipeline_is_refused(name: str) -> None:
    """Who will hold the link nobody knows."""
    shape = Shape(2, 2, 2, link_delay_s={(1, 0): 3.0})
    with pytest.raises(InvalidInputError, match="link 0 of pipeline 1"):
        policy(name, TrainingJob(profile(1.0, 1.0), shape)).begin(Fleet(names(4)))
