"""The joint planner where workers hold several virtual stages: valid, never below its bound, never worse than each
technique on its own; and orders timed again under what is slow."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.joint.placed import PlacedSituation
from rtk.planners.joint.plan import plan_joint, replan_joint
from rtk.planners.placement.pipelines import with_placed_pipelines
from rtk.planners.placement.problem import placed_problem, with_placed_orders
from rtk.planners.placement.retimed import retimed_of
from rtk.planners.placement.search import solve
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.planners.slipstream.placed_rerouting import rerouted_plan
from rtk.schemas.check import check_plan
from rtk.schemas.conditions import LinkPlace, PlanConditions, under_conditions
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.placement import loop_placement, v_placement
from rtk.schemas.plan import Link, Place, Placement, Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

from ..placed_plans import placed_plans
from .placed_grids import placed_grid, placed_grids

RULES = Effort("rules")
EVEN = Profile((Layer((LayerCost(0.01, 0.01, 0.01),), activation_bytes=1.0, weight_stash_bytes=0.5),) * 8)


@st.composite
def troubled_grids(draw: st.DrawFn) -> Plan:
    """A grid in which some workers are dead, some slow, and some links between columns, of all pipelines or of one; a B
    takes as long as I and W, or half of that."""
    plan = draw(placed_grids())
    if draw(st.booleans()):
        (template,) = plan.templates
        shorter_s = [(one.backward_input_s + one.backward_weight_s) / 2 for one in template.stages]
        stages = (replace(one, backward_s=own) for one, own in zip(template.stages, shorter_s, strict=True))
        plan = replace(plan, templates=(replace(template, stages=tuple(stages)),))
    factors = st.sampled_from([None, None, 1.5, 3.0])
    workers = tuple(replace(one, slowdown=None if one.failed else draw(factors)) for one in plan.workers)
    delays_s = st.sampled_from([0.0, 0.5, 4.0])
    numbers = [(None, i) for i in range(len(plan.template_of(0).columns) - 1)]
    own = [(k, i) for k in range(len(plan.pipelines)) for _, i in numbers]
    slow: dict[LinkPlace, float] = {}
    for place in (*numbers, *own):
        k, i = place
        if plan.template_of(0).link_between(i, i + 1) is not None and draw(st.booleans()):
            slow[k, i] = draw(delays_s)
    return under_conditions(replace(plan, workers=workers), {}, slow)


@given(troubled_grids())
def test_a_joint_plan_is_valid_and_no_worse_than_each_technique_alone(plan: Plan) -> None:
    """Re-routing that is told what is slow, and each pipeline alone where nobody is dead; its bound is below all."""
    made = replan_joint(plan)
    assert check_plan(made) == []
    found = made.prediction
    assert found is not None
    assert found.iteration_time_s == pytest.approx(evaluate(made).iteration_time_s)
    assert found.lower_bound_s <= found.iteration_time_s * (1 + 1e-9)
    bare = replace(plan, workers=tuple(replace(one, order=None if one.failed else "") for one in plan.workers))
    others = [rerouted_plan(bare, True, RULES)]
    if not any(one.failed for one in plan.workers):
        others.append(with_placed_pipelines(bare, split=True, effort=RULES))
    for other in others:
        assert other.prediction is not None
        # What is left of a gap that is good enough for a running job.
        assert found.iteration_time_s <= other.prediction.iteration_time_s * 1.003 + 1e-9


@given(troubled_grids(), st.integers(0, 2**32))
def test_no_random_routing_is_below_the_bound(plan: Plan, seed: int) -> None:
    """Whoever of a column's live workers runs which virtual stage of which micro-batch."""
    chance = random.Random(seed)
    home = placed_problem(plan, split=True)
    executor = home.executor.copy()
    for stage, column in enumerate(home.column.tolist()):
        peers = np.flatnonzero((home.worker_column == column) & home.live).tolist()
        executor[:, stage] = [chance.choice(peers) for _ in range(home.jobs)]
    problem = home.routed(plan, executor)
    try:
        orders = solve(problem, RULES).orders
    except InfeasibleError:
        return
    value_s = evaluate(with_placed_orders(plan, problem, orders)).iteration_time_s
    assert PlacedSituation(plan, split=True).bound.value_s <= value_s * (1 + 1e-9)


@given(placed_plans(), st.data())
def test_orders_timed_again_take_what_the_plan_takes_under_what_is_slow(plan: Plan, data: st.DataObject) -> None:
    """Slow workers, slow links between any two, and the sums that these delay: as the evaluator has it."""
    if len(plan.templates) > 1 or not any("F" in (one.order or "") for one in plan.workers):
        return
    live = sorted(one.place for one in plan.live_workers())
    factors = data.draw(st.dictionaries(st.sampled_from(live), st.sampled_from([1.5, 3.0]), max_size=2))
    pairs = st.tuples(st.sampled_from(live), st.sampled_from(live)).filter(lambda pair: pair[0] < pair[1])
    links = data.draw(st.dictionaries(pairs, st.sampled_from([0.5, 7.0]), max_size=2))
    conditions = PlanConditions(tuple(sorted(factors.items())), tuple(sorted(links.items())))
    timed, expected = retimed_of(plan), evaluate(conditions.under(plan))
    assert timed.iteration_time_s(conditions) == pytest.approx(expected.iteration_time_s)
    ends_s = [max((one.end_s for one in row), default=0.0) for row in expected.operations]
    assert timed.ends_s(conditions)[: len(ends_s)] == pytest.approx(ends_s)


def slowed(plan: Plan, slow: dict[Place, float], links: dict[LinkPlace, float]) -> Plan:
    """The plan with slow workers and links."""
    workers = tuple(replace(one, slowdown=slow.get(one.place)) for one in plan.workers)
    return under_conditions(replace(plan, workers=workers), {}, links)


@pytest.mark.parametrize("placement", [v_placement(4), loop_placement(4, 2)], ids=["v", "loop"])
def test_all_that_is_wrong_at_once_is_planned_for_without_a_loss(placement: Placement) -> None:
    """A dead worker, a slow one and a slow link, at the memory of 1F1B: 18 micro-batches on two peers take 54 chunk
    rounds of 3, as if nothing else was wrong; the slow link carries nothing."""
    plan = slowed(placed_grid(placement, 3, 6, [(1, 2)], 8), {(0, 1): 1.5}, {(0, 1): 3.0})
    made = replan_joint(plan)
    said = made.planner.options
    assert made.prediction is not None
    assert made.prediction.proof == "optimal"
    assert made.prediction.iteration_time_s == 54.0
    assert said["bypassed_links"] == ["0/1"]
    assert said["loads"]["1/2"] == [0, 0]
    assert sum(said["loads"]["0/1"]) < min(sum(said["loads"][name]) for name in ("1/1", "2/1"))


def test_pairs_of_different_pipelines_are_avoided_on_every_leg() -> None:
    """No micro-batch goes between the two, neither down the V nor up; nobody exchanges messages across two columns."""
    plan = placed_grid(v_placement(4), 3, 6, [(0, 2)])
    pair = ((0, 1), (1, 2))
    made = replan_joint(plan, [pair])
    assert made.planner.options["avoided_jobs"] == 0
    assert not retimed_of(made).crosses([pair])
    with pytest.raises(InvalidInputError, match="exchange no messages"):
        replan_joint(plan, [((0, 1), (1, 3))])


def test_the_way_back_of_a_loop_is_a_link_like_others() -> None:
    """Where it is slow in one pipeline, another one's workers take over, and it carries nothing."""
    plan = placed_grid(loop_placement(4, 2), 3, 6)
    slow = PlanConditions((), ((((0, 0), (0, 3)), 9.0),))
    assert slow.under(plan).links_of(0)[3] == Link(9.0)
    assert replan_joint(slow.under(plan)).planner.options["bypassed_links"] == ["0/3"]


@pytest.mark.parametrize(("placement", "chunks"), [("v", 2), ("loop", 2), ("plain", 1)])
@pytest.mark.parametrize("technique", ["adaptive", "staggered"])
def test_placements_are_planned_as_asked(placement: str, chunks: int, technique: str) -> None:
    """From a profile: the limit of each worker is kept, backwards are whole where they shall be."""
    shape = Shape(4, 2, 4, (8.0,) * 4, placement=placement, chunks=chunks)  # type: ignore[arg-type]
    made = plan_joint(EVEN, shape, [(0, 1)], {(1, 2): 2.0}, RULES, technique)  # type: ignore[arg-type]
    assert made.is_placed == (placement != "plain")
    assert made.prediction is not None
    assert max(made.prediction.peak_memory_bytes) <= 8.0
    assert any("I" in (one.order or "") for one in made.workers) == (technique == "staggered")


def test_memory_for_no_micro_batch_is_refused() -> None:
    """With the column that it lacks."""
    with pytest.raises(InfeasibleError):
        replan_joint(placed_grid(v_placement(2), 2, 3, limit=1.5))
