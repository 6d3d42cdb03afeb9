"""A running job whose workers hold several virtual stages: the dead are re-routed, who returns takes his place."""

import pytest

from rtk.planners.recovery.answers import PolicyName, answers_for
from rtk.planners.scheduling.solve import Effort
from rtk.planners.slipstream.placed_rerouting import rerouted_plan
from rtk.runners.virtual.job import simulate_story
from rtk.schemas.check import check_plan
from rtk.schemas.conditions import HEALTHY
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.placement import loop_placement, v_placement
from rtk.schemas.plan import Placement, Plan
from rtk.schemas.protocols import Hand
from rtk.schemas.trace import Trace, TraceEvent

from ..placed_grids import placed_grid
from .test_answers import crew_of


def running(placement: Placement, dp: int = 3, microbatches: int = 4) -> Plan:
    """A plan for healthy workers."""
    return rerouted_plan(placed_grid(placement, dp, microbatches, limit=8), True, Effort("rules"))


@pytest.mark.parametrize("placement", [v_placement(3), loop_placement(2, 3)])
def test_who_dies_is_re_routed_in_place_and_who_returns_takes_his_place_again(placement: Placement) -> None:
    """The placement stays, nobody else moves; with everybody back the job runs the plan that it began with."""
    plan = running(placement)
    answers = answers_for(plan, None, None, 100)
    answers.warm_up()
    lost = answers(plan, crew_of(plan, "1/1"), HEALTHY)
    assert [worker.name for worker in lost.plan.workers if worker.failed] == ["1/1"]
    assert lost.plan.templates == plan.templates and lost.plan.pipelines == plan.pipelines
    assert check_plan(lost.plan) == []
    assert dict(lost.seats) == {one.name: one.place for one in plan.workers if one.name != "1/1"}
    back = answers(lost.plan, (*crew_of(plan, "1/1"), Hand("1/1", None, None)), HEALTHY)
    assert back.plan == plan
    assert dict(back.seats) == {one.name: one.place for one in plan.workers}


def test_a_column_without_a_live_worker_ends_the_job() -> None:
    """Its layers are lost: nobody else holds them."""
    plan = running(v_placement(2), dp=2)
    with pytest.raises(InfeasibleError):
        answers_for(plan, None, None, 100)(plan, crew_of(plan, "0/1", "1/1"), HEALTHY)


def test_oobleck_refuses_a_placement_by_name() -> None:
    """Its templates are of one stage a worker."""
    with pytest.raises(InvalidInputError, match="oobleck"):
        answers_for(running(v_placement(2)), PolicyName.OOBLECK, None, 100)


def test_a_simulated_job_goes_on_after_a_death_in_a_v() -> None:
    """It commits all iterations, those between the death and the return with the re-routed plan's time."""
    plan = running(v_placement(3))
    answers = answers_for(plan, None, None, 100)
    trace = Trace(events=(TraceEvent("fail", iteration=2, worker="1/1"), TraceEvent("join", iteration=5, worker="1/1")))
    story = simulate_story(plan, trace, 8, answers)
    assert story.exit_code == 0 and len(story.committed_s) == 8
