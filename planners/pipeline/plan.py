"""`rtk plan pipeline`: the classic schedules, or given orders, for any shape, costs, delays and limits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ... import __version__
from ...schemas.check import check_plan, in_brief
from ...schemas.errors import InvalidInputError
from ...schemas.orders import Kind, Operation, Token, print_order
from ...schemas.plan import Plan, Planner, Worker
from ...schemas.profile import Profile
from ..scheduling.assemble import with_prediction
from ..scheduling.bounds.lower_bound import lower_bound
from ..scheduling.problem import KINDS, alone, home_problem
from ..shape import Shape, plan_without_orders, shape_options
from .gpipe import gpipe
from .one_forward_one_backward import one_forward_one_backward
from .zero_bubble import zero_bubble

Schedule = Literal["gpipe", "1f1b", "zero-bubble"]
SPLIT_KINDS: tuple[Kind, ...] = ("F", "I", "W")  # of operation codes, whose jobs are the micro-batches here


def plan_pipeline(profile: Profile, shape: Shape, schedule: Schedule) -> Plan:
    """Plan fault-free pipelines of one shape.

    Args:
        profile: the model's costs.
        shape: stages, pipelines, micro-batches, limits and delays.
        schedule: GPipe, 1F1B or zero-bubble.

    Returns:
        A checked plan with its prediction.

    Raises:
        InfeasibleError: a memory limit admits no schedule of this kind.
        InvalidInputError: a link or limit that the shape does not have.
    """
    planner = Planner("pipeline", __version__, {"schedule": schedule, **shape_options(profile, shape)})
    return with_prediction(scheduled(plan_without_orders(profile, shape, planner), schedule))


def scheduled(plan: Plan, schedule: Schedule) -> Plan:
    """A plan without orders with those of a classic schedule in each pipeline; still without a prediction.

    Args:
        plan: all its workers alive.
        schedule: GPipe, 1F1B or zero-bubble.

    Raises:
        InfeasibleError: a memory limit admits no schedule of this kind.
    """
    kinds = [(each.template, each.microbatches, plan.links_of(k)) for k, each in enumerate(plan.pipelines)]
    orders = {kind: _orders(alone(plan, kinds.index(kind)), schedule) for kind in dict.fromkeys(kinds)}
    return _with_orders(plan, [orders[kind] for kind in kinds])


def plan_from_orders(
    profile: Profile, orders: Sequence[Sequence[Token]], shape: Shape, planner: str, source: str
) -> Plan:
    """Make a plan of orders that come from elsewhere, the same in every pipeline.

    Args:
        profile: the model's costs.
        orders: the order of each stage.
        shape: stages (as many as orders), pipelines, micro-batches, limits and delays.
        planner: who made the orders, for the plan to name.
        source: where they came from, for errors.

    Returns:
        A checked plan with its prediction.

    Raises:
        InvalidInputError: the orders are incomplete, deadlock, or hold more than a memory limit.
        InfeasibleError: the profile cannot be cut into that many stages.
    """
    made_by = Planner(planner, __version__, shape_options(profile, shape))
    plan = _with_orders(plan_without_orders(profile, shape, made_by), [orders] * shape.dp)
    problems = check_plan(plan)
    if problems:
        fix = "correct the orders; worker k/i runs that of stage i, and operations are counted from 0"
        raise InvalidInputError(in_brief(problems), where=source, fix=fix)
    return with_prediction(plan)


def _with_orders(plan: Plan, orders: Sequence[Sequence[Sequence[Token]]]) -> Plan:
    """The plan with orders and without a prediction; `orders[k][i]` is that of stage i in pipeline k."""
    return replace(plan, workers=tuple(worker for k, found in enumerate(orders) for worker in _workers(found, k)))


def _orders(one: Plan, schedule: Schedule) -> list[list[Token]]:
    """The order of each stage of a single pipeline."""
    stages, links, microbatches = one.template_of(0).stages, one.links_of(0), one.pipelines[0].microbatches
    if schedule == "gpipe":
        return gpipe(stages, links, microbatches)
    if schedule == "1f1b":
        return one_forward_one_backward(stages, links, microbatches)
    problem = home_problem(one, split=True)
    orders = zero_bubble(problem, lower_bound(problem).value_s)
    return [[(SPLIT_KINDS[code % KINDS], code // KINDS) for code in order] for order in orders]


def _workers(orders: Sequence[Sequence[Token]], pipeline: int) -> list[Worker]:
    return [
        Worker(pipeline, stage, print_order((Operation(kind, pipeline, j) for kind, j in order), pipeline))
        for stage, order in enumerate(orders)
    ]
