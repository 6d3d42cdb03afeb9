"""From orders to a Plan: predicted by the evaluator, bounded, and judged by the independent checker."""

from dataclasses import replace

from ...schemas.check import check_plan
from ...schemas.plan import Plan, Prediction
from .bounds.lower_bound import lower_bound
from .evaluate import evaluate
from .problem import problem_of

# A schedule this close to its bound, relatively, differs from it by rounding only.
ROUNDING = 1e-9


def with_prediction(plan: Plan, bound_s: float = 0.0) -> Plan:
    """The plan with what its orders promise: times, memory, and how far from optimal they can be.

    Args:
        plan: with orders.
        bound_s: a lower bound on its iteration time that is proven already, such as a solver's, in s.

    Raises:
        AssertionError: the checker finds the plan broken, which is a bug of the planner that made the orders.
    """
    evaluation = evaluate(plan)
    iteration_s = evaluation.iteration_time_s
    bound_s = max(bound_s, lower_bound(problem_of(plan)).value_s)
    if abs(iteration_s - bound_s) <= ROUNDING * iteration_s:
        bound_s = iteration_s
    predicted = replace(
        plan,
        prediction=Prediction(
            iteration_time_s=iteration_s,
            makespan_s=evaluation.makespan_s,
            period_s=evaluation.period_s,
            lower_bound_s=bound_s,
            gap=iteration_s / bound_s - 1 if bound_s else 0.0,
            proof="optimal" if iteration_s == bound_s else "bound",
            bubble_ratio=evaluation.bubble_ratio,
            peak_memory_bytes=evaluation.peak_memory_bytes,
        ),
    )
    problems = check_plan(predicted)
    assert not problems, f"the planner made a broken plan: {problems[0].path}: {problems[0].message}"
    return predicted
