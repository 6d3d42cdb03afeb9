"""What slow nodes and links do to whoever does not heed them: what the simulator says of his plan with them in it."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.greyhound.mitigate import placed
from rtk.planners.greyhound.topology import best_assignment
from rtk.planners.recovery.bamboo import Bamboo
from rtk.planners.recovery.checkpoint_restart import CheckpointRestart
from rtk.planners.recovery.detecting import Ordering, Unheeding
from rtk.planners.recovery.elastic_batching import ElasticBatching
from rtk.planners.recovery.job import TrainingJob
from rtk.planners.recovery.oobleck import Oobleck, TemplateJob
from rtk.planners.recovery.slipstream import GridJob, SlipStream
from rtk.planners.recovery.spares import Spares
from rtk.planners.recovery.varuna import Varuna
from rtk.planners.scheduling.retimed import Retimed
from rtk.planners.shape import plan_without_orders
from rtk.schemas.conditions import pair_of
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Planner
from rtk.schemas.replay import Fleet, TrainingState

from .slow_stories import slow_moment, slow_stories, slowed
from .stories import job, jobs, names, require_true, told


def slipstream(job: TrainingJob) -> SlipStream:
    """The policy of a job that is replayed."""
    return SlipStream(GridJob.replayed(job))


def oobleck(job: TrainingJob) -> Oobleck:
    """The policy of a job that is replayed."""
    return Oobleck(TemplateJob.replayed(job))


Made = Callable[[TrainingJob], Ordering]
UNHEEDING: tuple[Made, ...] = (CheckpointRestart, Spares, ElasticBatching, slipstream, oobleck, Bamboo, Varuna)
FOUR = Fleet(names(4))


@pytest.mark.parametrize("made", UNHEEDING)
@settings(max_examples=10)
@given(st.data())
def test_a_slow_standing_is_what_the_simulator_says_of_its_plan(made: Made, data: st.DataObject) -> None:
    """Whatever is slow among whichever nodes: times, micro-batches, memory and seats are those of the plan."""
    found_job = data.draw(jobs())
    policy = Unheeding(made(found_job))
    try:
        story = list(told(policy, data.draw(slow_stories(found_job))))
    except InfeasibleError:
        return  # Oobleck has no templates for so few nodes
    for fleet, standing in story:
        require_true(policy, found_job, fleet, standing)


@pytest.mark.parametrize("made", (*UNHEEDING, Varuna, Bamboo))
@settings(max_examples=10)
@given(st.data())
def test_orders_that_are_there_sooner_are_those_of_the_plan(made: Made, data: st.DataObject) -> None:
    """Timed under anything slow, and in memory, to the last bit."""
    found_job = data.draw(jobs())
    policy = made(found_job)
    try:
        story = list(told(policy, data.draw(slow_stories(found_job))))
    except InfeasibleError:
        return
    for fleet, standing in story:
        plan = policy.plan(standing)
        if plan is not None:
            troubles = fleet.at(policy.seats(standing)).felt()
            sooner, read = policy.ordered(standing), Retimed.of(plan)
            assert sooner.iteration_time_s(troubles) == read.iteration_time_s(troubles)
            assert sooner.peaks_bytes().tolist() == read.peaks_bytes().tolist()


@given(st.data())
def test_what_is_slow_is_placed_as_by_the_topology_planner(data: st.DataObject) -> None:
    """Workers, hops and sums of healthy pipelines take as long as in `rtk plan topology` when nobody moves."""
    found_job = data.draw(jobs())
    bare = plan_without_orders(found_job.profile, found_job.shape, Planner("by hand", "1", {}))
    seats = {worker.place: worker.name for worker in bare.workers}
    fleet = data.draw(slowed(Fleet(tuple(seats.values()))))
    links = {pair_of(*pair): delay_s for pair, delay_s in fleet.slow_links.items() if pair[0] != pair[1]}
    home = {worker.name: worker.place for worker in bare.workers}
    stay = best_assignment(bare, home, fleet.slow, links, keep_microbatches=True, most_moves=0)
    assert fleet.at(seats).under(bare) == placed(bare, stay, fleet.slow, links)


@given(st.data())
def test_nothing_slow_is_nothing_changed(data: st.DataObject) -> None:
    """While nothing is slow, and after relief, standings are the policy's but for their formations."""
    found_job = data.draw(jobs())
    inner = CheckpointRestart(found_job)
    policy, fleet = Unheeding(inner), Fleet(names(found_job.nodes))
    began = policy.begin(fleet)
    standing = _after(policy, began, slow_moment(1.0, data.draw(slowed(fleet))))
    assert _after(policy, standing, slow_moment(2.0, fleet)) == began
    assert began.iteration_time_s == inner.begin(fleet).iteration_time_s
    assert policy.plan(began) == inner.plan(inner.begin(fleet))


def test_a_slow_node_slows_its_pipeline_down_and_interrupts_nothing() -> None:
    """A first stage of factor 2 computes 3 x 6 s and waits 1 s for a backward; 0.5 s and sums come after that."""
    policy = Unheeding(CheckpointRestart(job(2, 2, 3)))
    (step,) = policy.react(policy.begin(FOUR), slow_moment(1.0, Fleet(FOUR.nodes, {"n0": 2.0})))
    assert (step.answer, step.interrupts, step.pauses, step.after_s) == ("", False, (), 0.0)
    assert step.standing.iteration_time_s == pytest.approx(19.5, abs=0.2)


def test_links_without_messages_cost_nothing() -> None:
    """n0 and n3 are of different stages and pipelines: that their link is slow changes nothing that can be seen."""
    policy = Unheeding(CheckpointRestart(job(2, 2, 3)))
    began = policy.begin(FOUR)
    (step,) = policy.react(began, slow_moment(1.0, Fleet(FOUR.nodes, {}, {("n0", "n3"): 9.0})))
    assert (step.answer, step.standing.iteration_time_s) == ("", began.iteration_time_s)


def _after(policy: Unheeding, standing: TrainingState, moment: object) -> TrainingState:
    for step in policy.react(standing, moment):  # type: ignore[arg-type]
        standing = step.standing
    return standing
