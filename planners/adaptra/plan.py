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
from itertools import accumulate, pairwise
from math import ceil
from typing import Any, Literal

from ... import __version__
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Link, Plan, Planner, Stage
from ...schemas.profile import Profile
from ...schemas.quantities import print_time
from ..placement.pipelines import with_placed_pipelines
from ..scheduling.assemble import with_prediction
from ..scheduling.list_schedule import DispatchRules, Priority, list_schedule, most_in_flight
from ..scheduling.problem import BACKWARD, FORWARD, KINDS, alone, home_problem, with_orders
from ..scheduling.solve import Effort, solve
from ..shape import Shape, plan_without_orders, shape_options, template_of

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
        where no delay cascades. Theorem and equation are for one stage a worker: with a placement they are left out.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch, or there are fewer layers than stages.
        InvalidInputError: a link or limit that the shape does not have, or a technique that is not for its placement.
    """
    tried = {"solver": effort.solver, "time_limit_s": effort.time_limit_s} if technique == "best" else {}
    told = {"technique": technique, **tried, **shape_options(profile, shape)}
    plan = plan_without_orders(profile, shape, Planner("adaptra", __version__, told, effort.seed))
    if plan.is_placed:
        if technique != "best":
            raise InvalidInputError(
                f"the warm-ups of {technique} are for one stage a worker", where="--technique", fix="take best"
            )
        return with_placed_pipelines(plan, split=True, effort=effort)
    usual = template_of(profile, replace(shape, link_delay_s=None)).links
    links = [plan.links_of(k) for k in range(shape.dp)]
    share = replace(effort, time_limit_s=effort.time_limit_s / len(set(links)))
    found = {one: _schedule(alone(plan, links.index(one)), usual, technique, share) for one in dict.fromkeys(links)}
    kinds = [found[one] for one in links]
    options = plan.planner.options | {"pipelines": [one.tolerance for one in kinds]}
    workers = tuple(replace(worker, order=kinds[worker.pipeline].orders[worker.stage]) for worker in plan.workers)
    plan = replace(plan, planner=replace(plan.planner, options=options), workers=workers)
    return with_prediction(plan, bound_s=max(one.bound_s for one in kinds))


def cascading_links(plan: Plan) -> list[str]:
    """The links whose delay is beyond what the plan's slackness absorbs, in words; none where Equation 1 holds.

    Args:
        plan: made by `plan_adaptra`; of one with a placement nothing is said.
    """
    if plan.is_placed:
        return []
    words: list[str] = []
    alike = all(pipeline.links is None for pipeline in plan.pipelines)
    for k in range(1 if alike else len(plan.pipelines)):
        tolerated = plan.planner.options["pipelines"][k]["tolerated_delay_s"]
        for i, (link, most_s) in enumerate(zip(plan.links_of(k), tolerated, strict=True)):
            if most_s is not None and link.delay_s > most_s * (1 + 1e-9):
                name = f"{i}" if alike else f"{k}/{i}"
                words.append(f"link {name} takes {print_time(link.delay_s)} and tolerates {print_time(most_s)}")
    return words


@dataclass(frozen=True)
class _TolerantOrders:
    """One pipeline's orders, what they tolerate, and a proven bound on its iteration time in s (0 without one)."""

    orders: tuple[str, ...]
    tolerance: dict[str, Any]
    bound_s: float


def _schedule(one: Plan, usual: tuple[Link, ...], technique: Technique, effort: Effort) -> _TolerantOrders:
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
    warmup = [warmup_of(order) for order in orders]
    tolerance = {
        "warmup_forwards": warmup,
        "slackness": slackness(warmup),
        "tolerated_delay_s": tolerated_delays_s(stages, orders),
    }
    return _TolerantOrders(tuple(worker.order or "" for worker in workers), tolerance, bound_s)


def own_rules(one: Plan, microbatches: int) -> tuple[DispatchRules, DispatchRules]:
    """The rules of `adapted`, and those of `initial`, for a single pipeline; its orders do not matter.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    stages, links = one.templates[0].stages, one.links_of(0)
    adapted = _rules(adapted_warmups(stages, links, microbatches), Priority.INPUT_FIRST, microbatches)
    return adapted, _rules(initial_warmups(stages, microbatches), Priority.ALTERNATE, microbatches)


def _rules(warmup: Sequence[int], priority: Priority, microbatches: int) -> DispatchRules:
    """A warm-up, then that priority with W last (Algorithm 3), without any further limit than memory."""
    none = [microbatches] * len(warmup)
    return DispatchRules(warmup, none, [0.0] * len(warmup), none, [priority] * len(warmup))


# Adaptra's Algorithm 1: the warm-ups of a pipeline that does not know yet which link will turn slow.
#
# Section 4.2: any link may be the slow one, so the least slackness is made as large as memory admits. The first stage
# warms up with all the micro-batches it can hold, the last one with 1, and the steps between are as even as can be, the
# larger ones first.
#
# We deviate:
# * The paper has one memory limit M and one activation size M_F; ours are per stage. So a stage is cut to its own room,
#   and what is left from there on is again divided evenly over the links that follow. With equal rooms this is
#   Algorithm 1 to the letter, and with unequal ones the least slackness is still the largest possible: if each room
#   admits a step of d for every link behind it, induction along the stages keeps that true of what this hands on.
# * More than N forwards cannot be warmed up.
# * Without a memory limit the paper's x_max is unbounded. We start at 2S - 1, which is slackness 2 on every link: the
#   least that leaves equal stages without bubbles, and what the paper's Figures 4 and 5 show.


def initial_warmups(stages: Sequence[Stage], microbatches: int) -> list[int]:
    """Warm-up forwards of each stage, by Algorithm 1: non-increasing, at least 1, within each stage's memory.

    Args:
        stages: the pipeline's stages, with their memory limits.
        microbatches: how many pass.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    rooms = most_in_flight(stages, microbatches)
    limited = stages[0].memory_limit_bytes is not None and stages[0].activation_bytes > 0
    warmup = [rooms[0] if limited else min(microbatches, 2 * len(stages) - 1)]
    for links_left, room in zip(range(len(stages) - 1, 0, -1), rooms[1:], strict=True):
        step = ceil((warmup[-1] - 1) / links_left)
        warmup.append(min(warmup[-1] - step, room))
    return warmup


# Adaptra's Algorithm 2: the warm-ups that absorb the delays that links have now.
#
# Section 4.2: the last stage warms up with 1 forward, and from there back to the first each stage with as many more as
# Equation 1 asks for, at least 2 and at most N - 2S:
#
#     D_i = min(N - 2S, max(ceil((tF_i + tB_i + 2 c_i) / (tF_{i+1} + tB_{i+1})), 2)),   x_i = x_{i+1} + D_i
#
# Taken literally that may ask for more forwards than there are micro-batches, or, where N <= 2S, for fewer and fewer
# towards the first stage; memory is left out, for the paper offloads activations. A schedule by such warm-ups never
# ends. So here D_i is at least 1, and the result is cut to N and to each stage's memory and made non-increasing (Lemma
# 1).


# A quotient this close above a whole number, relatively, is that number but for rounding.
ROUNDING = 1e-9


def adapted_warmups(stages: Sequence[Stage], links: Sequence[Link], microbatches: int) -> list[int]:
    """Warm-up forwards of each stage, by Algorithm 2: non-increasing, at least 1, within each stage's memory.

    Args:
        stages: the pipeline's stages, with their memory limits.
        links: the links between them, with the delays to absorb.
        microbatches: how many pass.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    wanted = algorithm_2(stages, links, max(microbatches - 2 * len(stages), 1))
    cut = [min(x, room) for x, room in zip(wanted, most_in_flight(stages, microbatches), strict=True)]
    return list(accumulate(cut, min))


def algorithm_2(stages: Sequence[Stage], links: Sequence[Link], most: int) -> list[int]:
    """Warm-up forwards of each stage as printed, neither cut to the micro-batches nor to memory.

    Args:
        stages: the pipeline's stages.
        links: the links between them, with the delays to absorb.
        most: the largest slackness of a link, N - 2S in the paper.
    """
    warmup = [1]
    for i in reversed(range(len(links))):
        wanted = needed_slack(stages[i], stages[i + 1], links[i].delay_s) * (1 - ROUNDING)
        warmup.insert(0, warmup[0] + ceil(min(most, max(wanted, 2))))
    return warmup


# Slackness: how many more forwards a stage warms up with than the next one, and the link delay that this absorbs.
#
# Adaptra, section 4.1. Stage i runs x_i forwards before its first backward; link i has the slackness D_i = x_i -
# x_{i+1}. By Theorem 1 a delay of link i costs about itself, once, as long as the slack absorbs it; beyond that it
# opens a bubble every D_i + 1 micro-batches, and these cascade: about N c_i / (D_i + 1). Equation 1 says where the one
# turns into the other, for stages of unlike times:
#
#     tF_i + tB_i + 2 c_i <= D_i (tF_{i+1} + tB_{i+1})        (the paper's B is I here)
#
# The theorem's costs are orders of growth, so they are not computed here: a plan's prediction has the exact ones.


Counts = tuple[int, int, int]  # operations of each kind, in the order of their codes


def warmup_of(order: Sequence[int]) -> int:
    """The forwards that an order of operation codes has before its first backward."""
    return next((place for place, code in enumerate(order) if code % KINDS != FORWARD), len(order))


def slackness(warmup: Sequence[int]) -> list[int]:
    """D_i = x_i - x_{i+1} of each link, for the warm-up forwards x_i of each stage."""
    return [here - above for here, above in pairwise(warmup)]


def tolerated_delays_s(stages: Sequence[Stage], orders: Sequence[Sequence[int]]) -> list[float | None]:
    """The largest delay of each link that Equation 1 admits, read off the orders of one pipeline.

    The equation compares two stretches of work: stage i + 1, having ended I of micro-batch a, works on until F of
    micro-batch b (the right side), and meanwhile I of a must come to stage i, run there with the F of b that is next,
    and F of b come back (the left side). The paper takes the right side from the warm-ups. We deviate and count what
    the orders hold there, for every I and the next F of stage i, and keep the least: the slack of a warm-up does not
    last where, by Algorithm 3, backwards that had to wait for the end of the warm-up then go before forwards. In orders
    that run I and F in turns after the warm-up the two are equal.

    Args:
        stages: the pipeline's stages.
        orders: operation codes of each stage, the backward split.

    Returns:
        Seconds for each link: 0 where the next stage waits even without a delay, so that any adds to it; None where no
        F comes after an I, so that nothing cascades whatever the delay.
    """
    pipeline = list(zip(stages, orders, strict=True))
    return [_tolerated_s(here, above) for here, above in pairwise(pipeline)]


def needed_slack(here: Stage, above: Stage, delay_s: float) -> float:
    """The least D_i that keeps Equation 1, as a real number; infinite where the next stage takes no time.

    Args:
        here: stage i.
        above: stage i + 1.
        delay_s: the delay c_i of the link between them, in s.
    """
    wanted_s = here.forward_s + here.backward_input_s + 2 * delay_s
    offered_s = above.forward_s + above.backward_input_s
    if wanted_s == 0.0:
        return 0.0
    return wanted_s / offered_s if offered_s else float("inf")


def _tolerated_s(here: tuple[Stage, Sequence[int]], above: tuple[Stage, Sequence[int]]) -> float | None:
    """Half of what the upper stage's stretch is longer than the lower one's, at least, over all F and the I before."""
    before_here, before_above = _done_before(here[1]), _done_before(above[1])
    spare_s, returned = [], None
    for code in here[1]:
        if code % KINDS == BACKWARD:
            returned = code
        elif code % KINDS == FORWARD and returned is not None:
            own_s = _work_s(here[0], before_here[returned], before_here[code]) + here[0].forward_s
            other_s = _work_s(above[0], before_above[returned], before_above[code]) - above[0].backward_input_s
            spare_s.append(other_s - own_s)
    return max(0.0, min(spare_s) / 2) if spare_s else None


def _done_before(order: Sequence[int]) -> dict[int, Counts]:
    """For each operation of an order, how many of each kind come before it."""
    counts = [0] * KINDS
    before: dict[int, Counts] = {}
    for code in order:
        before[code] = (counts[0], counts[1], counts[2])
        counts[code % KINDS] += 1
    return before


def _work_s(stage: Stage, since: Counts, until: Counts) -> float:
    """How long a stage works between two places of its order, in s; counts times durations, so without rounding up."""
    return sum((b - a) * stage.duration_s(kind) for a, b, kind in zip(since, until, "FIW", strict=True))
