"""A running job whose workers hold several virtual stages: the dead are re-routed, who returns takes his place."""

import pytest

from rtk.planners.recovery.answers import PolicyName, answers_for, remedies_of
from rtk.planners.scheduling.solve import Effort
from rtk.planners.slipstream.placed_rerouting import rerouted_plan
from rtk.profilers.failslow.monitor.ring import monitor_of
from rtk.runners.virtual.job import simulate_story
from rtk.schemas.check import check_plan
from rtk.schemas.conditions import HEALTHY, Conditions, SlowLink, SlowWorker
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.placement import loop_placement, v_placement
from rtk.schemas.plan import Placement, Plan
from rtk.schemas.protocols import Hand
from rtk.schemas.trace import Trace, TraceEvent

from ..placed_grids import placed_grid
from .test_adapting import crew_after
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


def iteration_s(plan: Plan) -> float:
    """What a plan promises."""
    assert plan.prediction is not None
    return plan.prediction.iteration_time_s


LOOP, V = loop_placement(4, 2), v_placement(4)
LINK, PEERS, BACK = (("0/1", "0/2"), ("0/1", "1/1"), ("0/0", "0/3"))


@pytest.mark.parametrize(
    ("placement", "conditions"),
    [
        (V, Conditions(slow_workers=(SlowWorker("0/1", 2.0),))),
        (V, Conditions((SlowLink(LINK, 9.0),))),
        (LOOP, Conditions((SlowLink(LINK, 9.0),), (SlowWorker("2/3", 2.0),))),
        (LOOP, Conditions((SlowLink(BACK, 9.0),))),
    ],
    ids=["worker", "link", "both", "way back"],
)
def test_what_is_slow_is_planned_for_and_relief_brings_the_first_plan_back(
    placement: Placement, conditions: Conditions
) -> None:
    """By a valid joint plan with the same placement in which nobody moves; the dead are in it, too. Once all is well it
    is the plan for the failures alone."""
    plan = running(placement, microbatches=6)
    answers = answers_for(plan, None, None, 100)
    found = answers(plan, crew_of(plan), conditions)
    assert found.plan.planner.name == "joint"
    assert found.plan.templates == plan.templates
    assert check_plan(found.plan) == []
    assert dict(found.seats) == {one.name: one.place for one in plan.workers}
    assert answers(found.plan, crew_after(found), HEALTHY).plan == plan
    crew = tuple(hand for hand in crew_after(found) if hand.worker != "1/2")
    without = answers(found.plan, crew, conditions)
    assert without.plan.planner.name == "joint"
    assert [one.name for one in without.plan.workers if one.failed] == ["1/2"]
    assert check_plan(without.plan) == []


def test_a_delay_that_the_plan_has_slack_for_changes_nothing() -> None:
    """Nor does one between workers that send each other nothing."""
    plan = running(V, microbatches=6)
    for ends, delay_s in ((LINK, 0.01), (BACK, 9.0)):
        found = answers_for(plan, None, None, 100)(plan, crew_of(plan), Conditions((SlowLink(ends, delay_s),)))
        assert found.plan is plan


def test_the_ends_of_a_slow_link_between_peers_change_places() -> None:
    """From level 1 on, in a V as elsewhere: the two then have nothing to send to each other; after relief they go home,
    with all their chunks."""
    plan, conditions = running(V, microbatches=6), Conditions((SlowLink(PEERS, 5.0),), level=1)
    answers = answers_for(plan, None, None, 100)
    found = answers(plan, crew_of(plan), conditions)
    seats = dict(found.seats)
    assert seats["0/1"][1] != seats["1/1"][1]
    assert iteration_s(found.plan) == iteration_s(plan)
    back = answers(found.plan, crew_after(found), HEALTHY)
    assert dict(back.seats) == {one.name: one.place for one in plan.workers}


def test_a_restart_is_for_what_nothing_else_helps_against() -> None:
    """At level 2 of Greyhound's strategies, where the joint orders are still slower than they could be."""
    plan = running(V, dp=1, microbatches=6)
    conditions = Conditions(slow_workers=(SlowWorker("0/1", 3.0),), level=2)
    assert "0/1" in answers_for(plan, None, None, 100)(plan, crew_of(plan), conditions).restart


def test_what_costly_remedies_cost_can_be_said_of_a_placed_job() -> None:
    """As of others: its usual policy heeds what is slow; re-routing alone does not, and says so."""
    plan = running(V)
    assert remedies_of("S3=1h", plan, None).move_s == 3600
    with pytest.raises(InvalidInputError, match="policy joint"):
        remedies_of("S3=1h", plan, PolicyName.SLIPSTREAM)


def test_more_memory_of_the_host_is_for_adapted_orders_only() -> None:
    """It comes on top of the limits of columns; the first plan keeps them."""
    plan, conditions = running(V, dp=1, microbatches=8), Conditions((SlowLink(LINK, 6.0),))
    tight, roomy = (answers_for(plan, None, None, 100, more)(plan, crew_of(plan), conditions) for more in (0.0, 8.0))
    assert iteration_s(roomy.plan) < iteration_s(tight.plan)
    assert roomy.plan.template_of(0).memory_limits_bytes == (16.0,) * 4


def test_a_simulated_job_finds_a_slow_worker_in_a_v_and_adapts() -> None:
    """Its monitor notices, the job goes on by a joint plan, and when the worker is well again by the first one."""
    plan = running(V, microbatches=6)
    events = (
        TraceEvent("slow_compute", iteration=2, worker="0/1", factor=2.0),
        TraceEvent("recover", iteration=12, worker="0/1"),
    )
    story = simulate_story(plan, Trace(events=events), 20, answers_for(plan, None, None, 100), monitor=monitor_of(plan))
    assert story.exit_code == 0 and len(story.committed_s) == 20
    assert len(story.plans) == 3
