"""Plans with placements: valid ones have no problem, all readings agree, and broken ones are named at their place."""

from hypothesis import given, settings

from rtk.planners.scheduling.evaluate import evaluate
from rtk.schemas.check import check_plan, deadlock_free_times
from rtk.schemas.plan import Plan

from ..placed_plans import any_placed_plans


@settings(max_examples=60)
@given(any_placed_plans())
def test_valid_plans_have_no_problem(plan: Plan) -> None:
    """Random valid plans, whatever their placement, routing by chunk, split, delays and slow-downs, pass."""
    plan.validate()
    assert plan.prediction is not None
    assert check_plan(plan) == []


@settings(max_examples=60)
@given(any_placed_plans())
def test_evaluator_and_checker_agree(plan: Plan) -> None:
    """Starts and ends of all operations are equal to the last bit."""
    rows = [timed for row in evaluate(plan).operations for timed in row]
    start_s, end_s = deadlock_free_times(plan)
    assert [timed.start_s for timed in rows] == start_s.tolist()
    assert [timed.end_s for timed in rows] == end_s.tolist()
