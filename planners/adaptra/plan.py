"""`rtk plan adaptra`: pipelines whose warm-ups absorb slow links, after "Adaptra" (the published rules, and better).

Each pipeline is scheduled on its own, for without re-routing none waits for another; equal ones once. Techniques:

* `initial`: Algorithm 1's warm-ups, scheduled for the links of the profile as if none had turned slow. These orders are
  then timed under the delays given: what a pipeline that does not adapt makes of them.
* `adapted`: Algorithm 2's warm-ups for the delays given, completed by Algorithm 3's priorities.
* `best`: both of these sets of rules first, then everything that the scheduling core has.

We deviate from Algorithms 3 and 4: time is exact instead of stepped, a forward that memory does not admit is held back,
and a stage in warm-up that has a backward but no forward at hand takes the backward instead of nothing. After Algorithm
1's warm-ups F and I go in turns instead of I before F: the backwards that had to wait for the end of the warm-up would
otherwise use up the slack that it has built. On equal stages of slackness 4 that leaves (D - 1) t = 30 ms instead of
10 ms, at the same makespan; at slackness 2, as in the paper's Figures 4 and 5, both are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ... import __version__
from ...schemas.plan import Link, Plan, Planner, Stage
from ...schemas.profile import Profile
from ..scheduling.assemble import with_prediction
from ..scheduling.list_schedule import list_schedule
from ..scheduling.problem import Orders, alone, home_problem, with_orders
from ..scheduling.rules import Priority, Rules
from ..scheduling.solve import Effort, solve
from ..shape import Shape, plan_without_orders, shape_options, template_of
from .adaptation import adapted_warmups
from .initial_plan import initial_warmups
from .slackness import slackness, tolerated_delays_s, warmup_of

Technique = Literal["initial", "adapted", "best"]


def plan_adaptra(profile: Profile, shape: Shape, technique: Technique, effort: Effort) -> Plan:
    """Plan pipelines for the link delays of a shape.

    Args:
        profile: the model's costs.
        shape: stages, pipelines, micro-batches, limits, and the delays that links have now.
        technique: whose orders; the prediction is under the shape's delays whatever the technique.
        effort: how hard `best` tries; its time limit is shared by the pipelines that differ.

    Returns:
        A checked plan with its prediction. `planner.options["pipelines"]` says for each pipeline what its orders come
        to: `warmup_forwards` of each stage, `slackness` of each link, and by Equation 1 its `tolerated_delay_s`, null
        where no delay cascades.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch, or there are fewer layers than stages.
        InvalidInputError: a link or limit that the shape does not have.
    """
    planner = Planner("adaptra", __version__, _options(profile, shape, technique, effort), effort.seed)
    plan = plan_without_orders(profile, shape, planner)
    usual = template_of(profile, replace(shape, link_delay_s=None)).links
    links = [plan.links_of(k) for k in range(shape.dp)]
    share = replace(effort, time_limit_s=effort.time_limit_s / len(set(links)))
    found = {one: _schedule(alone(plan, links.index(one)), usual, technique, share) for one in dict.fromkeys(links)}
    return with_prediction(
        _joined(plan, [found[one] for one in links]), bound_s=max(one.bound_s for one in found.values())
    )


def cascading_links(plan: Plan) -> list[str]:
    """The links whose delay is beyond what the plan's slackness absorbs, in words; none where Equation 1 holds.

    Args:
        plan: made by `plan_adaptra`.
    """
    words: list[str] = []
    alike = all(pipeline.links is None for pipeline in plan.pipelines)
    for k in range(1 if alike else len(plan.pipelines)):
        tolerated = plan.planner.options["pipelines"][k]["tolerated_delay_s"]
        for i, (link, most_s) in enumerate(zip(plan.links_of(k), tolerated, strict=True)):
            if most_s is not None and link.delay_s > most_s * (1 + 1e-9):
                name = f"{i}" if alike else f"{k}/{i}"
                words.append(f"link {name} takes {link.delay_s:.6g} s and tolerates {most_s:.6g} s")
    return words


@dataclass(frozen=True)
class _Found:
    """One pipeline's orders, what they tolerate, and a proven bound on its iteration time in s (0 without one)."""

    orders: tuple[str, ...]
    tolerance: dict[str, Any]
    bound_s: float


def _options(profile: Profile, shape: Shape, technique: Technique, effort: Effort) -> dict[str, Any]:
    tried = {"solver": effort.solver, "time_limit_s": effort.time_limit_s} if technique == "best" else {}
    return {"technique": technique, **tried, **shape_options(profile, shape)}


def _schedule(one: Plan, usual: tuple[Link, ...], technique: Technique, effort: Effort) -> _Found:
    """Orders for a single pipeline; `usual` are the links before any turned slow."""
    problem, stages = home_problem(one, split=True), one.templates[0].stages
    adapted, initial = own_rules(one, problem.jobs)
    if technique == "best":
        solution = solve(problem, effort, first=[adapted, initial])
        orders, bound_s = solution.orders, solution.bound_s
    elif technique == "adapted":
        orders, bound_s = list_schedule(problem, adapted), 0.0
    else:
        unaware = replace(one, pipelines=(replace(one.pipelines[0], links=usual),))
        orders, bound_s = list_schedule(home_problem(unaware, split=True), initial), 0.0
    workers = with_orders(one, problem, orders).workers
    return _Found(tuple(worker.order or "" for worker in workers), _tolerance(stages, orders), bound_s)


def own_rules(one: Plan, microbatches: int) -> tuple[Rules, Rules]:
    """The rules of `adapted`, and those of `initial`, for a single pipeline; its orders do not matter.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    stages, links = one.templates[0].stages, one.links_of(0)
    adapted = _rules(adapted_warmups(stages, links, microbatches), Priority.INPUT_FIRST, microbatches)
    return adapted, _rules(initial_warmups(stages, microbatches), Priority.ALTERNATE, microbatches)


def _rules(warmup: Sequence[int], priority: Priority, microbatches: int) -> Rules:
    """A warm-up, then that priority with W last (Algorithm 3), without any further limit than memory."""
    none = [microbatches] * len(warmup)
    return Rules(warmup, none, [0.0] * len(warmup), none, [priority] * len(warmup))


def _tolerance(stages: Sequence[Stage], orders: Orders) -> dict[str, Any]:
    warmup = [warmup_of(order) for order in orders]
    return {
        "warmup_forwards": warmup,
        "slackness": slackness(warmup),
        "tolerated_delay_s": tolerated_delays_s(stages, orders),
    }


def _joined(plan: Plan, found: Sequence[_Found]) -> Plan:
    """The plan with the orders of each pipeline, and what their warm-ups tolerate."""
    workers = tuple(replace(worker, order=found[worker.pipeline].orders[worker.stage]) for worker in plan.workers)
    options = plan.planner.options | {"pipelines": [one.tolerance for one in found]}
    return replace(plan, planner=replace(plan.planner, options=options), workers=workers)
