"""Plans where a full backward pass takes another time than its two halves: bounds hold, whoever splits and joins."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.joint.plan import replan_joint
from rtk.planners.scheduling.problem import home_problem, least_halves_s, with_any_split
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, Technique, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.schemas.check import check_plan
from rtk.schemas.plan import Place, Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

from .troubled import troubled_plans

RULES = Effort("rules")
SHARES = st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.1, 2.0])


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Profile, Shape, set[Place]]:
    """Layers whose B is a share of I + W, equal pipelines of them, and some dead workers, not all of a stage."""
    chance = Random(draw(st.integers(0, 2**32)))
    pp, dp, share = draw(st.integers(1, 4)), draw(st.integers(2, 3)), draw(SHARES)

    def layer() -> Layer:
        forward_s, input_s, weight_s = (chance.choice([0.5, 1.0, 1.0, 2.0]) for _ in range(3))
        cost = LayerCost(forward_s, input_s, weight_s, backward_s=share * (input_s + weight_s))
        return Layer((cost,), activation_bytes=1.0, weight_stash_bytes=0.5)

    limits = draw(st.sampled_from([None, [2.0], [float(pp)]]))
    shape = Shape(pp, dp, draw(st.integers(1, 5)), limits)
    dead = {(chance.randrange(dp), stage) for stage in range(pp) if chance.random() < 0.5}
    return Profile(tuple(layer() for _ in range(pp))), shape, dead


@settings(max_examples=60)
@given(clusters(), st.sampled_from(["adaptive", "decoupled", "staggered"]))
def test_slipstream_never_undercuts_its_bound(case: tuple[Profile, Shape, set[Place]], technique: Technique) -> None:
    """What joins I and W to a shorter B is still above what was proven for every routing and every split."""
    profile, shape, dead = case
    common = opening(profile, AtlasRequest(shape, technique, (1, 1), RULES))
    plan = Replanner(common, len(dead)).in_place(frozenset(dead), compared=False)
    assert check_plan(plan) == []
    assert plan.prediction is not None
    assert plan.prediction.lower_bound_s <= plan.prediction.iteration_time_s


@settings(max_examples=10)
@given(troubled_plans(max_pp=3), SHARES)
def test_joint_plans_never_undercut_their_bound(plan: Plan, share: float) -> None:
    """The same of dead workers, slow ones and slow links in one schedule."""
    (template,) = plan.templates
    stages = tuple(
        replace(stage, backward_s=share * (stage.duration_s("I") + stage.duration_s("W"))) for stage in template.stages
    )
    made = replan_joint(replace(plan, templates=(replace(template, stages=stages),), prediction=None))
    assert check_plan(made) == []


@given(troubled_plans(max_pp=3), SHARES)
def test_least_halves_undercut_both_ways_of_going_back(plan: Plan, share: float) -> None:
    """I and W take no longer than either they or B do, and all that is proven of plain costs stays as it was."""
    workers = home_problem(plan, split=True).workers
    assert with_any_split(workers).input_s.tolist() == workers.input_s.tolist()
    assert with_any_split(workers).weight_s.tolist() == workers.weight_s.tolist()
    full_s = share * (workers.input_s + workers.weight_s)
    input_s, weight_s = least_halves_s(workers.input_s, workers.weight_s, full_s)
    assert (input_s <= workers.input_s).all()
    assert (weight_s <= workers.weight_s).all()
    assert share > 1 or (input_s + weight_s <= full_s * (1 + 1e-9)).all()
