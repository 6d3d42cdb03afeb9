"""What `explain` says of a joint plan: who took over, what is bypassed or absorbed, and what single techniques take."""

import pytest
from hypothesis import given, settings

from rtk.planners.explain.explain import explain
from rtk.planners.explain.troubles import troubles_of
from rtk.planners.explain.words import words_of_explanation
from rtk.planners.joint.plan import replan_joint
from rtk.planners.scheduling.solve import Effort
from rtk.schemas.plan import Plan

from .troubled import alike, troubled, troubled_plans


def _said(plan: Plan) -> str:
    return " ".join(words_of_explanation(explain(plan, Effort("rules"), searches=0)).split())


def test_one_dead_worker_one_slow_one_and_one_slow_link() -> None:
    """Everybody who does more or less is named, and the link that carries nothing, and the best single technique."""
    said = _said(replan_joint(troubled(alike(4, 4, 16), frozenset({(1, 2)}), {(3, 1): 1.5}, {(2, 0): 0.06})))
    assert "Stage 2: worker 1/2 is dead; 0/2 takes 6 micro-batches more than its own 16, 2/2 5, 3/2 5." in said
    assert "worker 3/1 takes 1.5 times as long and executes 12 micro-batches instead of 16; 0/1 takes 2 " in said
    assert "Link 0 of pipeline 2 takes 60 ms and carries nothing: 16 micro-batches of worker 2/0 go on in" in said
    assert "What each technique takes on its own, against 680 ms: re-routing, told what is slow 690 ms +1.5 %" in said
    assert "re-routing, in arrival order 730 ms +7.4 %" in said
    assert "these, one after the other" in said


def test_a_delay_that_cannot_be_bypassed() -> None:
    """With one pipeline every delay is met by slackness: absorbed if Equation 1 says so, else its bubbles cascade."""
    plan = replan_joint(troubled(alike(4, 1, 16), delays_s={(0, 1): 0.02}))
    (link,) = troubles_of(plan).links  # type: ignore[union-attr]
    assert (link.pipeline, link.link, link.crossing, link.elsewhere, link.slackness) == (0, 1, 16, 0, 7)
    assert link.tolerated_s == pytest.approx(0.05)
    assert "16 micro-batches; its slackness, 7, absorbs 50 ms (Eq. 1), so it costs itself once, at most." in _said(plan)
    assert plan.prediction and plan.prediction.iteration_time_s == pytest.approx(0.53)
    tight = replan_joint(troubled(alike(4, 1, 16, limit_bytes=4.0), delays_s={(0, 1): 0.02}))
    assert "its slackness, 1, absorbs 5 ms (Eq. 1), so bubbles cascade." in _said(tight)


@settings(max_examples=15)
@given(troubled_plans(max_pp=3))
def test_loads_and_crossings_add_up(plan: Plan) -> None:
    """What peers do beyond their own is what the dead and slow ones leave, and alternatives are no better."""
    made = replan_joint(plan)
    found = troubles_of(made)
    assert made.prediction is not None
    for stage in found.stages if found else ():
        left = len(stage.dead) * stage.own + sum(stage.own - load for _, _, load in stage.slow if load < stage.own)
        more = sum(extra for _, extra in stage.more)
        assert left <= more
    for one in found.alternatives if found else ():
        assert made.prediction.iteration_time_s <= one.iteration_time_s * (1 + 1e-9)


def test_plans_of_others_have_none() -> None:
    """Neither has a joint plan where nothing is wrong."""
    assert troubles_of(replan_joint(alike(2, 2, 2))) is None
