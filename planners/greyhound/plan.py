"""`rtk plan topology`: a plan with slow workers and links where they cost least, and uneven pipelines if these help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ... import __version__
from ...schemas.conditions import LinkPlace, Pair, under_conditions
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Plan, Planner, Stage, Template, name_of
from ...schemas.profile import Profile
from ..pipeline import one_forward_one_backward, zero_bubble
from ..scheduling.assemble import with_orders_and_prediction
from ..scheduling.lower_bound import lower_bound
from ..scheduling.problem import Orders, Problem, alone, coded, home_problem, in_jobs
from ..scheduling.retime import value_s
from ..shape import Shape, plan_without_orders, shape_options
from .topology import Assignment, PlacePair, are_neighbours, are_peers, best_assignment

NAME = "topology"
Schedule = Literal["1f1b", "zero-bubble"]
Technique = Literal["as it is", "S2", "S3", "S2 and S3"]


def plan_topology(
    profile: Profile,
    shape: Shape,
    slow: Mapping[str, float],
    slow_links: Mapping[Pair, float],
    schedule: Schedule = "1f1b",
    seed: int = 0,
) -> Plan:
    """Plan for workers and links that are slow wherever they sit: who takes which place, and how many micro-batches.

    Four answers are made and timed as schedules: as it is, uneven pipelines (S2), other places (S3), and both. The
    fastest is taken, of equal ones the first of these, for it changes the least.

    Args:
        profile: the model's costs.
        shape: stages, pipelines, micro-batches, limits.
        slow: slow-down factors of workers, 1 or more, by the names `k/i` of the places they have at first.
        slow_links: delays by pairs of workers, ascending, in s: what a message between them takes in all.
        schedule: of every pipeline.
        seed: of the search.

    Returns:
        A checked plan with the slow workers and links at their new places; its bound is for these places and micro-
        batches. `planner.options` say what was `taken`, who moved (`assignment`: place by name, those only who move),
        what was slow, for each of the four the iteration time (`iteration_time_s`) and what the analytic model says
        (`model_s`), and whether no places are better by that (`places_proof`).

    Raises:
        InvalidInputError: there is no such worker, a factor is below 1, or a limit does not fit the shape.
        InfeasibleError: a memory limit does not admit a single micro-batch, or there are fewer layers than stages.
    """
    bare = plan_without_orders(profile, shape, Planner(NAME, __version__, {}, seed))
    _check(bare, slow, slow_links)
    start = {worker.name: worker.place for worker in bare.workers}
    answers = {
        "as it is": best_assignment(bare, start, slow, slow_links, keep_microbatches=True, most_moves=0),
        "S2": best_assignment(bare, start, slow, slow_links, most_moves=0),
        "S3": best_assignment(bare, start, slow, slow_links, keep_microbatches=True, seed=seed),
        "S2 and S3": best_assignment(bare, start, slow, slow_links, seed=seed),
    }
    tried = {name: _scheduled(placed(bare, answer, slow, slow_links), schedule) for name, answer in answers.items()}
    taken = min(tried, key=lambda name: tried[name].rounded_s)
    options = {
        "schedule": schedule,
        **shape_options(profile, shape),
        "slow": dict(slow),
        "slow_links": {"-".join(pair): delay_s for pair, delay_s in slow_links.items()},
        "taken": taken,
        "assignment": {name: name_of(place) for name, _, place in answers[taken].moves},
        "iteration_time_s": {name: one.iteration_s for name, one in tried.items()},
        "model_s": {name: answer.after_s for name, answer in answers.items()},
        "places_proof": answers[taken].proof,
    }
    best = tried[taken]
    plan = replace(best.plan, planner=Planner(NAME, __version__, options, seed))
    return with_orders_and_prediction(plan, best.problem, best.orders, lower_bound(best.problem).value_s)


def placed(plan: Plan, answer: Assignment, slow: Mapping[str, float], slow_links: Mapping[Pair, float]) -> Plan:
    """A plan without orders as it is with everybody at his place: slow workers, links, sums, and micro-batches.

    A slow link between peers of a stage delays each of the 2 (n - 1) steps of their sum; one between workers who have
    nothing to send to each other does not count.

    Args:
        plan: of alike pipelines.
        answer: who sits where, and how many micro-batches each pipeline has.
        slow, slow_links: as for `best_assignment`.
    """
    pipelines = (
        replace(pipeline, microbatches=count)
        for pipeline, count in zip(plan.pipelines, answer.microbatches, strict=True)
    )
    plan = replace(plan, pipelines=tuple(pipelines))
    delays_s = dict(_placed(answer, slow_links))
    by_delay = sorted(delays_s.items(), key=lambda one: one[1])  # of a stage's slow links the slowest counts
    sums = {pair[0][1]: delay_s for pair, delay_s in by_delay if are_peers(pair)}
    hops: dict[LinkPlace, float] = {
        here: max(delay_s, plan.links_of(here[0])[here[1]].delay_s)
        for (here, above), delay_s in delays_s.items()
        if are_neighbours((here, above))
    }
    factors = {name_of(answer.places[name]): factor for name, factor in slow.items() if factor != 1}
    steps = 2 * (len(plan.pipelines) - 1)
    template = _with_sums(plan.templates[0], {stage: steps * delay_s for stage, delay_s in sums.items()})
    return under_conditions(replace(plan, templates=(template,)), factors, hops)


def _placed(answer: Assignment, slow_links: Mapping[Pair, float]) -> Iterator[tuple[PlacePair, float]]:
    for (one, other), delay_s in slow_links.items():
        here, there = sorted((answer.places[one], answer.places[other]))
        yield (here, there), delay_s


def _with_sums(template: Template, more_s: Mapping[int, float]) -> Template:
    """A template whose sums of gradients take longer, by stage."""

    def longer(number: int, stage: Stage) -> Stage:
        return replace(stage, allreduce_s=stage.allreduce_s + more_s.get(number, 0.0))

    return replace(template, stages=tuple(longer(i, stage) for i, stage in enumerate(template.stages)))


@dataclass(frozen=True)
class _Scheduled:
    """A plan, what is to be ordered, its orders, and the time of an iteration."""

    plan: Plan
    problem: Problem
    orders: Orders
    iteration_s: float

    @property
    def rounded_s(self) -> float:
        """The time but for its last digits, which depend on the order of sums."""
        return float(f"{self.iteration_s:.9g}")


def _scheduled(plan: Plan, schedule: Schedule) -> _Scheduled:
    """Orders for every pipeline; alike ones once."""
    problem = home_problem(plan, split=schedule == "zero-bubble")
    depth = len(plan.templates[0].stages)
    found: dict[tuple[object, ...], Orders] = {}
    orders: list[Sequence[int]] = []
    for k, pipeline in enumerate(plan.pipelines):
        workers = plan.workers[k * depth : (k + 1) * depth]
        key = (pipeline, tuple(worker.slowdown for worker in workers))
        if key not in found:
            found[key] = _of_one(alone(plan, k), schedule)
        orders += in_jobs(found[key], (problem.origin == k).nonzero()[0].tolist())
    return _Scheduled(plan, problem, orders, value_s(problem, orders))


def _of_one(one: Plan, schedule: Schedule) -> Orders:
    """The orders of a single pipeline."""
    if schedule == "1f1b":
        return coded(one_forward_one_backward(one.templates[0].stages, one.links_of(0), one.pipelines[0].microbatches))
    problem = home_problem(one, split=True)
    return zero_bubble(problem, lower_bound(problem).value_s)


def _check(plan: Plan, slow: Mapping[str, float], slow_links: Mapping[Pair, float]) -> None:
    names = {worker.name for worker in plan.workers}
    named = [(name, "--slow") for name in slow] + [(name, "--slow-link") for pair in slow_links for name in pair]
    for name, option in named:
        if name not in names:
            raise InvalidInputError(
                f"there is no worker {name}", where=option, fix=f"workers run from 0/0 to {plan.workers[-1].name}"
            )
    for name, factor in slow.items():
        if factor < 1:
            raise InvalidInputError(
                f"worker {name} takes {factor:g} times as long, which is quicker",
                where="--slow",
                fix="give factors of 1 or more",
            )
