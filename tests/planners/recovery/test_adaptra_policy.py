"""Adaptra's policy: warm-ups for slow links, once they are found, and the first ones again on relief."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.adaptra.plan import plan_adaptra
from rtk.planners.recovery.adaptra import Adaptra
from rtk.planners.scheduling.solve import Effort
from rtk.schemas.replay import Fleet, StateChange, TrainingState

from .slow_stories import slow_moment, slow_stories, slowed
from .stories import job, jobs, kinds, moment, names, require_true, told

AT_S = 1000.0


@settings(max_examples=15)
@given(st.data())
def test_a_standing_is_what_the_simulator_says_of_its_plan(data: st.DataObject) -> None:
    """With first orders and others, with whatever is slow, and after failures in the midst of it."""
    found_job = data.draw(jobs())
    policy = Adaptra(found_job)
    for fleet, standing in told(policy, data.draw(slow_stories(found_job)), data.draw(st.sampled_from([1, 2]))):
        require_true(policy, found_job, fleet, standing)


@settings(max_examples=15)
@given(st.data())
def test_adapted_orders_are_faster_and_relief_restores_the_first(data: st.DataObject) -> None:
    """Orders change once only, at the detection, and only to faster ones; what comes after relief is as at first."""
    found_job = data.draw(jobs())
    policy, fleet = Adaptra(found_job), Fleet(names(found_job.nodes))
    began = policy.begin(fleet)
    steps = policy.react(began, slow_moment(AT_S, data.draw(slowed(fleet))))
    assert [step.answer for step in steps[1:]] in ([], ["adapt"])
    if steps[1:]:
        found_s = found_job.costs.slow_detection_iterations * _time_s(steps[0].standing)
        assert steps[1].after_s == pytest.approx(found_s)
        assert _time_s(steps[1].standing) < _time_s(steps[0].standing)
    standing = _after(began, steps)
    restored = _after(standing, policy.react(standing, slow_moment(AT_S * 2, fleet)))
    assert restored.iteration_time_s == began.iteration_time_s
    assert policy.seats(restored) == policy.seats(began) and policy.plan(restored) == policy.plan(began)


@settings(max_examples=15)
@given(st.data())
def test_while_all_is_well_the_plan_is_adaptras_first(data: st.DataObject) -> None:
    """All nodes there: the orders of `rtk plan adaptra --technique initial`."""
    found_job = data.draw(jobs())
    policy = Adaptra(found_job)
    plan = policy.plan(policy.begin(Fleet(names(found_job.nodes))))
    assert plan is not None
    assert plan.workers == plan_adaptra(found_job.profile, found_job.shape, "initial", Effort("rules")).workers


def test_only_the_pipeline_with_the_slow_link_is_adapted() -> None:
    """4 stages, 24 micro-batches, 8 s late between n0 and n1: half of it comes back; the second pipeline stays."""
    policy, fleet = Adaptra(job(4, 2, 24)), Fleet(names(8))
    began = policy.begin(fleet)
    slower, adapted = policy.react(began, slow_moment(AT_S, Fleet(fleet.nodes, {}, {("n0", "n1"): 8.0})))
    usual_s, slow_s = _time_s(began), _time_s(slower.standing)
    assert _time_s(adapted.standing) - usual_s < (slow_s - usual_s) / 2
    assert kinds(adapted) == ["planning"] and not adapted.interrupts
    first, other = policy.plan(began), policy.plan(adapted.standing)
    assert first is not None and other is not None
    assert other.workers[4:] == first.workers[4:] and other.workers[:4] != first.workers[:4]


def test_slow_nodes_are_not_heeded() -> None:
    """A slow node makes iterations longer, and that is all."""
    policy = Adaptra(job(4, 2, 8))
    steps = policy.react(policy.begin(Fleet(names(8))), slow_moment(AT_S, Fleet(names(8), {"n0": 3.0})))
    assert [step.answer for step in steps] == [""]


def test_after_a_restart_what_is_slow_is_found_anew() -> None:
    """A failure while orders are adapted: first orders after the restart, others after another detection."""
    policy, slow = Adaptra(job(4, 2, 24)), {("n0", "n1"): 8.0}
    began = policy.begin(Fleet(names(8)))
    standing = _after(began, policy.react(began, slow_moment(AT_S, Fleet(names(8), {}, slow))))
    change = replace(moment(*names(7), lost=("n7",)), fleet=Fleet(names(7), {}, slow))
    steps = policy.react(standing, change)
    assert [step.answer for step in steps] == ["restart", "adapt"]
    lasts_s = sum(pause.lasts_s for pause in steps[0].pauses)
    assert steps[1].after_s == pytest.approx(lasts_s + 14 * _time_s(steps[0].standing))


def _after(standing: TrainingState, steps: Sequence[StateChange]) -> TrainingState:
    return steps[-1].standing if steps else standing


def _time_s(standing: TrainingState) -> float:
    assert standing.iteration_time_s is not None
    return standing.iteration_time_s
