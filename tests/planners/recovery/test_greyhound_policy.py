"""Greyhound's policy: Algorithm 1 over what remedies cost, and the way back."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.planners.greyhound.mitigate import STRATEGIES
from rtk.planners.recovery.checkpoint_restart import CheckpointRestart
from rtk.planners.recovery.detecting import Unheeding
from rtk.planners.recovery.greyhound import NOTICED, Greyhound
from rtk.planners.recovery.job import TrainingJob, total_s
from rtk.planners.shape import Shape
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.profile import Network
from rtk.schemas.replay import Costs, Fleet, Moment, StateChange, TrainingState

from .slow_stories import slow_moment, slow_stories, slowed
from .stories import job, jobs, kinds, moment, names, profile, require_true, told

AT_S = 1000.0
# Iterations of some 40 s, in which S2 to S4 are worth it one after the other.
COSTS = Costs(planning_s=0.2, regrouping_s=60.0, restart_s=1200.0, slow_detection_iterations=2, checkpoint_pause_s=1.0)


@settings(max_examples=10)
@given(st.data())
def test_a_standing_is_what_the_simulator_says_of_its_plan(data: st.DataObject) -> None:
    """Under every remedy, with whatever is slow, and after failures in the midst of it."""
    found_job = data.draw(jobs())
    policy = Greyhound(found_job)
    for fleet, standing in told(policy, data.draw(slow_stories(found_job)), data.draw(st.sampled_from([1, 2, 4]))):
        require_true(policy, found_job, fleet, standing)


@settings(max_examples=10)
@given(st.data())
def test_remedies_come_when_the_loss_has_reached_their_cost(data: st.DataObject) -> None:
    """Algorithm 1, reckoned anew: no remedy before the detection, each when as much is lost as it costs, or at once."""
    found_job = _with_costs(data.draw(jobs()), data.draw(st.sampled_from([Costs(), COSTS])))
    policy, fleet = Greyhound(found_job), Fleet(names(found_job.nodes))
    began = policy.begin(fleet)
    slow = data.draw(slowed(fleet))
    steps = policy.react(began, slow_moment(AT_S, slow))
    remedies = [step for step in steps if step.answer in STRATEGIES]
    if remedies:
        usual_s, slow_s = _time_s(began), _time_s(steps[0].standing)
        found_s = found_job.costs.slow_detection_iterations * slow_s
        assert slow_s > usual_s * (1 + NOTICED)
        assert remedies[0].after_s >= found_s * (1 - 1e-9)
        _require_ski_rental(steps[0], remedies, usual_s, found_s)


@settings(max_examples=10)
@given(st.data())
def test_each_remedy_is_faster_than_what_it_replaces(data: st.DataObject) -> None:
    """In the end an iteration takes no longer than if nobody had heeded what is slow."""
    found_job = _with_costs(data.draw(jobs()), COSTS)
    policy, other = Greyhound(found_job), Unheeding(CheckpointRestart(found_job))
    fleet = Fleet(names(data.draw(st.integers(found_job.nodes, found_job.nodes + 2))))
    change = slow_moment(AT_S, data.draw(slowed(fleet)))
    steps = policy.react(policy.begin(fleet), change)
    times_s = [_time_s(step.standing) for step in steps]
    assert all(after < before for before, after in pairwise(times_s))
    unheeding = other.react(other.begin(fleet), change)
    assert bool(unheeding) == bool(steps)
    if steps:
        assert times_s[-1] <= _time_s(unheeding[0].standing) * (1 + 1e-9)


@settings(max_examples=10)
@given(st.data())
def test_relief_restores(data: st.DataObject) -> None:
    """Once nothing is slow any more, iterations take what they took; whoever goes back has his place and plan again."""
    found_job = _with_costs(data.draw(jobs()), COSTS)
    policy, fleet = Greyhound(found_job), Fleet(names(found_job.nodes))
    began = policy.begin(fleet)
    standing = _after(began, policy.react(began, slow_moment(AT_S, data.draw(slowed(fleet)))))
    steps = policy.react(standing, slow_moment(AT_S * 2, fleet))
    restored = _after(standing, steps)
    assert _time_s(restored) == pytest.approx(_time_s(began), rel=1e-9)
    if steps and steps[-1].answer == "relief":
        assert policy.plan(restored) == policy.plan(began) and policy.seats(restored) == policy.seats(began)


@settings(max_examples=10)
@given(st.data())
def test_what_has_nothing_to_do_with_it_delays_no_remedy(data: st.DataObject) -> None:
    """At a moment in the midst of a slow-down the remedies that are still to come come when they would have come."""
    found_job = _with_costs(data.draw(jobs()), COSTS)
    policy, fleet = Greyhound(found_job), Fleet(names(found_job.nodes))
    began = policy.begin(fleet)
    slow = data.draw(slowed(fleet))
    steps = policy.react(began, slow_moment(AT_S, slow))
    assume(len(steps) > 1)
    between_s = steps[1].after_s * data.draw(st.sampled_from([0.1, 0.9]))
    again = policy.react(steps[0].standing, slow_moment(AT_S + between_s, slow))
    assert [step.answer for step in again] == [step.answer for step in steps[1:]]
    for first, second in zip(steps[1:], again, strict=True):
        assert second.after_s + between_s == pytest.approx(first.after_s)
        assert second.standing.iteration_time_s == first.standing.iteration_time_s


def test_micro_batches_leave_a_slow_node_at_once_and_others_move_later() -> None:
    """4 pipelines of 4 nodes, two in different ones 3 times as slow: S2 at the detection, S3 and S4 once they pay."""
    found = replace(job(4, 4, 8), costs=replace(COSTS, regrouping_s=400.0))
    policy, fleet = Greyhound(found), Fleet(names(20))
    began = policy.begin(fleet)
    steps = policy.react(began, slow_moment(AT_S, Fleet(fleet.nodes, {"n0": 3.0, "n5": 3.0})))
    assert [step.answer for step in steps] == ["", "S2", "S3", "S4"]
    assert kinds(steps[1]) == ["planning"] and kinds(steps[3])[0] == "checkpointing"
    assert {"copying", "restarting"} >= set(kinds(steps[2])) - {"planning"}
    assert steps[1].after_s == pytest.approx(2 * _time_s(steps[0].standing))
    assert steps[3].standing.iteration_time_s == began.iteration_time_s
    assert not {"n0", "n5"} & set(policy.seats(steps[3].standing).values())


def test_a_slow_link_goes_where_it_carries_nothing() -> None:
    """Where the link between neighbours is slow, one of them changes places; he need not go back on relief."""
    policy, fleet = Greyhound(replace(job(4, 4, 8), costs=COSTS)), Fleet(names(16))
    began = policy.begin(fleet)
    steps = policy.react(began, slow_moment(AT_S, Fleet(fleet.nodes, {}, {("n0", "n1"): 20.0})))
    assert [step.answer for step in steps][:2] == ["", "S3"]
    assert steps[1].standing.iteration_time_s == began.iteration_time_s
    assert "restarting" in kinds(steps[1])
    (back,) = policy.react(steps[1].standing, slow_moment(AT_S * 9, fleet))
    assert back.answer == ""


def test_who_was_left_out_is_so_until_he_is_well_or_needed() -> None:
    """After S4 a failure restarts the job without the slow node, unless there is no pipeline without it."""
    found = replace(job(2, 2, 8), costs=replace(COSTS, restart_s=1.0, regrouping_s=1e6, planning_s=1e5))
    policy, slow = Greyhound(found), {"n0": 9.0}
    began = policy.begin(Fleet(names(6)))
    steps = policy.react(began, slow_moment(AT_S, Fleet(names(6), slow)))
    assert [step.answer for step in steps] == ["", "S4"]
    fewer = Moment(AT_S * 2, Fleet(("n0", "n2", "n3", "n4"), slow), lost=("n1", "n5"), failures=1)
    assert steps[-1].standing.nodes == 4
    (again, *_) = policy.react(steps[-1].standing, replace(fewer, lost=("n1", "n5")))
    assert again.answer == "restart" and set(policy.seats(again.standing).values()) == {"n2", "n3"}
    needed = Moment(AT_S * 3, Fleet(("n0", "n2"), slow), lost=("n3", "n4"), failures=2)
    (last, *_) = policy.react(again.standing, needed)
    assert set(policy.seats(last.standing).values()) == {"n0", "n2"}
    well = policy.react(again.standing, Moment(AT_S * 3, Fleet(("n0", "n2", "n3", "n4")), failures=1))
    assert [step.answer for step in well] == ["grow"]


def test_after_a_restart_what_is_slow_is_found_anew() -> None:
    """A failure in the midst of a slow-down: the remedies come after the restart and another detection."""
    policy = Greyhound(replace(job(2, 3, 8), costs=COSTS))
    began, slow = policy.begin(Fleet(names(6))), {"n0": 3.0}
    standing = _after(began, policy.react(began, slow_moment(AT_S, Fleet(names(6), slow)))[:2])
    change = replace(moment(*names(5), lost=("n5",)), fleet=Fleet(names(5), slow))
    steps = policy.react(standing, change)
    assert [step.answer for step in steps][:2] == ["restart", "S2"]
    assert steps[1].after_s >= total_s(steps[0].pauses) + 2 * _time_s(steps[0].standing)


def test_copying_over_an_unknown_network_is_refused() -> None:
    """Who moves state must know how fast."""
    with pytest.raises(InvalidInputError, match="how long copying"):
        Greyhound(TrainingJob(profile(1.0, 1.0, network=Network()), Shape(2, 2, 2))).begin(Fleet(names(4)))


def _require_ski_rental(slower: StateChange, remedies: Sequence[StateChange], usual_s: float, found_s: float) -> None:
    """The loss until a remedy is what it costs, for S3 there and back; or more, at the detection."""
    lost_s, now_s, standing = 0.0, 0.0, slower.standing
    for step in remedies:
        lost_s += (step.after_s - now_s) * (1 - usual_s / _time_s(standing))
        there_and_back = 2 if step.answer == "S3" else 1
        cost_s = max(1e-6, total_s(step.pauses) * there_and_back)
        if step.after_s > found_s * (1 + 1e-9):
            assert lost_s == pytest.approx(cost_s)
        else:
            assert lost_s >= cost_s * (1 - 1e-9)
        now_s, standing = step.after_s + total_s(step.pauses), step.standing


def _with_costs(found: TrainingJob, costs: Costs) -> TrainingJob:
    return replace(found, costs=costs)


def _after(standing: TrainingState, steps: Sequence[StateChange]) -> TrainingState:
    return steps[-1].standing if steps else standing


def _time_s(standing: TrainingState) -> float:
    assert standing.iteration_time_s is not None
    return standing.iteration_time_s
