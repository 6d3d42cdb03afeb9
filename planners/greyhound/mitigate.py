"""When to do what about a slow-down whose end nobody knows: ski rental with several skis (Greyhound, section 5.1).

Every second that an iteration loses is rent; a strategy is bought once, for the seconds that it takes. Algorithm 1 buys
the strategy of cost b_i as soon as the loss so far, its impact, has reached b_i. The paper proves nothing; we do.

Let b_1 <= … <= b_k, let r_i be what is left of the slow-down under strategy i (r_0 = 1), r_0 >= r_1 >= …, and let a
slow-down end that lasts D with impact x, b_i <= x < b_(i+1). Algorithm 1 has lost x + b_1 + … + b_i. Who knew D had
lost b_j + r_j D with some j, or r_0 D with none. For j <= i the impact was b_j when j was bought, and grew by at most
r_j a second from then on, so x <= b_j + r_j D; without j, x <= D. For j > i, x < b_j. So nobody loses less than x, and

    loss <= (1 + max_i (b_1 + … + b_i) / b_i) * the least loss.

It is tight: where the cheaper strategies do not help (r_j = 1 for j < i, which nobody knows beforehand), and all is
well right after the switch that attains the maximum. A strategy that leaves more of the slow-down than a cheaper one
breaks the proof, and is left out beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Predicate

from ... import __version__
from ...schemas.conditions import Pair, slow_at
from ...schemas.documents import typed
from ...schemas.errors import InvalidInputError
from ...schemas.fields import Count, Factor, Seconds
from ...schemas.orders import LeanSchedule
from ...schemas.plan import Place, Plan, Planner, name_of, place_of
from ...schemas.profile import Profile
from ...schemas.quantities import print_time
from ..pipeline import scheduled
from ..scheduling.assemble import with_orders_and_prediction
from ..scheduling.lower_bound import lower_bound
from ..scheduling.problem import codes_of, problem_of
from ..scheduling.retimed import Retimed
from ..shape import Shape, plan_without_orders, shape_options
from .topology import Assignment, best_assignment

STRATEGIES = ("S2", "S3", "S4")  # by how much they help (Table 2)
REVERTED = "S3"  # the strategy that is taken back on relief
LEAST_GAIN = 0.05  # of the slow-down; a dearer strategy that takes away less than this of it is not worth it


@dataclass(frozen=True)
class StrategySwitch:
    """Take a strategy once so much has been lost: iterations' times beyond the usual, added up, in s."""

    strategy: str
    after_s: float


@dataclass(frozen=True)
class Dropped:
    """A strategy that is never taken, and why."""

    strategy: str
    why: str


@dataclass(frozen=True)
class Switching:
    """When to switch; the loss is at most `ratio` times that of who knows the end beforehand."""

    switches: tuple[StrategySwitch, ...]
    ratio: float
    dropped: tuple[Dropped, ...]


def plan_switches(
    costs_s: Mapping[str, float], left: Mapping[str, float] | None = None, revert_s: float = 0.0
) -> Switching:
    """The switching plan.

    Args:
        costs_s: of strategies, some of `STRATEGIES`, in s.
        left: what share of the slow-down is left under each, as far as that is known; else a later strategy of
            `STRATEGIES` leaves no more than an earlier one.
        revert_s: what it takes to undo S3 on relief; it belongs to its cost.

    Raises:
        InvalidInputError: no costs, one that is not above 0, or a share below 0.
    """
    left = left or {}
    if not costs_s:
        raise InvalidInputError("there are no costs", where="--costs", fix="give seconds: 5,60,1200, or S3=60,S4=1200")
    for name in (*costs_s, *left):
        if name not in STRATEGIES:
            raise InvalidInputError(f"there is no strategy {name}", where="--costs", fix="take S2, S3 and S4")
    for name, cost_s in costs_s.items():
        if not 0 < cost_s < float("inf"):
            what = f"{name} costs {print_time(cost_s)}"
            raise InvalidInputError(what, where="--costs", fix="costs are finite and above 0, in seconds")
    for name, share in left.items():
        if name not in costs_s:
            raise InvalidInputError(f"{name} has no cost", where="--left", fix="give it one with --costs")
        if not (isfinite(share) and share >= 0):
            what = f"{share:g} of the slow-down cannot be left under {name}"
            raise InvalidInputError(what, where="--left", fix="0 is none of it, 1 all of it")
    if not (isfinite(revert_s) and revert_s >= 0):
        raise InvalidInputError(
            f"{print_time(revert_s)} to revert", where="--revert-cost", fix="give 0 or more seconds"
        )
    costs_s = {name: cost_s + (revert_s if name == REVERTED else 0.0) for name, cost_s in costs_s.items()}
    dropped = dict(_dominated(costs_s, left))
    kept = sorted((cost_s, STRATEGIES.index(name)) for name, cost_s in costs_s.items() if name not in dropped)
    return Switching(
        tuple(StrategySwitch(STRATEGIES[number], cost_s) for cost_s, number in kept),
        ratio_of([cost_s for cost_s, _ in kept]),
        tuple(Dropped(name, dropped[name]) for name in sorted(dropped)),
    )


def ratio_of(costs_s: Sequence[float]) -> float:
    """The most that Algorithm 1 can lose, as a multiple of the least loss; 1 without strategies.

    Args:
        costs_s: ascending, above 0, in s.
    """
    return 1 + max((total_s / cost_s for total_s, cost_s in zip(accumulate(costs_s), costs_s, strict=True)), default=0)


def _dominated(costs_s: Mapping[str, float], left: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """The strategies that a cheaper one makes needless, and why."""
    least, by = 1.0, "nothing"
    for name in sorted(costs_s, key=lambda one: (costs_s[one], left.get(one, 0.0), STRATEGIES.index(one))):
        later = (one for one in STRATEGIES[STRATEGIES.index(name) + 1 :] if one in costs_s)
        better = next((one for one in later if costs_s[one] < costs_s[name] and not {one, name} <= left.keys()), None)
        share = left.get(name, 0.0)  # where nobody knows, it may help with all of it
        if better:
            yield name, f"{better} costs less and helps as much"
        elif least - share < LEAST_GAIN:
            yield name, f"it leaves {share:.3g} of the slow-down, and {by} leaves {least:.3g}"
        elif name in left:
            least, by = share, name


# `rtk plan topology`: a plan with slow workers and links where they cost least, and uneven pipelines if these help.


NAME = "topology"
Technique = Literal["as it is", "S2", "S3", "S2 and S3"]


def plan_topology(
    profile: Profile,
    shape: Shape,
    slow: Mapping[str, float],
    slow_links: Mapping[Pair, float],
    schedule: LeanSchedule = "1f1b",
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
    _check_given(bare, slow, slow_links)
    start = {worker.name: worker.place for worker in bare.workers}
    answers = {
        "as it is": best_assignment(bare, start, slow, slow_links, keep_microbatches=True, most_moves=0),
        "S2": best_assignment(bare, start, slow, slow_links, most_moves=0),
        "S3": best_assignment(bare, start, slow, slow_links, keep_microbatches=True, seed=seed),
        "S2 and S3": best_assignment(bare, start, slow, slow_links, seed=seed),
    }
    tried = {name: scheduled(placed(bare, answer, slow, slow_links), schedule) for name, answer in answers.items()}
    times_s = {name: Retimed.of(plan).iteration_time_s() for name, plan in tried.items()}
    taken = min(tried, key=lambda name: float(f"{times_s[name]:.9g}"))  # last digits depend on the order of sums
    options = {
        "schedule": schedule,
        **shape_options(profile, shape),
        "slow": dict(slow),
        "slow_links": {"-".join(pair): delay_s for pair, delay_s in slow_links.items()},
        "taken": taken,
        "assignment": {name: name_of(place) for name, _, place in answers[taken].moves},
        "iteration_time_s": times_s,
        "model_s": {name: answer.after_s for name, answer in answers.items()},
        "places_proof": answers[taken].proof,
    }
    plan = replace(tried[taken], planner=Planner(NAME, __version__, options, seed))
    problem = problem_of(plan)
    return with_orders_and_prediction(plan, problem, codes_of(plan, problem), lower_bound(problem).value_s)


def placed(plan: Plan, answer: Assignment, slow: Mapping[str, float], slow_links: Mapping[Pair, float]) -> Plan:
    """A plan without orders as it is with everybody at his place: slow workers, links, sums, and micro-batches.

    What is slow counts as `PlanConditions.under` has it.

    Args:
        plan: of alike pipelines.
        answer: who sits where, and how many micro-batches each pipeline has.
        slow, slow_links: as for `best_assignment`.
    """
    pipelines = (
        replace(pipeline, microbatches=count)
        for pipeline, count in zip(plan.pipelines, answer.microbatches, strict=True)
    )
    seats = {place: name for name, place in answer.places.items()}
    return slow_at(seats, slow, slow_links).under(replace(plan, pipelines=tuple(pipelines)))


def _check_given(plan: Plan, slow: Mapping[str, float], slow_links: Mapping[Pair, float]) -> None:
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


AS_IT_IS = "as it is"
MOST_NAMED = 8  # of what moves, in words


def _is_worker(name: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}/[0-9]{1,9}", name) is not None


def _is_pair(name: str) -> bool:
    return name.count("-") == 1 and all(map(_is_worker, name.split("-")))


Name = Annotated[str, Predicate(_is_worker)]


@dataclass(frozen=True, slots=True)
class _TopologyOptions:
    """What a plan's options say of who sits where."""

    microbatches: Count
    slow: dict[Name, Factor]
    slow_links: dict[Annotated[str, Predicate(_is_pair)], Seconds]
    taken: str
    assignment: dict[Name, Name]
    iteration_time_s: dict[str, Seconds]

    __pydantic_config__: ClassVar[Any] = {"extra": "ignore", "strict": True}


def topology_words(plan: Plan) -> list[str]:
    """Who moves and what it is worth, in lines; none for plans of other planners."""
    if plan.planner.name != NAME:
        return []
    told: _TopologyOptions = typed(plan.planner.options, _TopologyOptions, "/planner/options")
    return [
        _worth(told),
        *_few(list(_moves(told.assignment))),
        *_few([_link(name, delay_s, told.assignment) for name, delay_s in told.slow_links.items()]),
        *_gathered(told),
        *_uneven(plan, told.microbatches),
    ]


def _worth(told: _TopologyOptions) -> str:
    """What each of the four answers takes."""
    times_s = told.iteration_time_s
    ordered = sorted(times_s, key=lambda name: (name != AS_IT_IS, len(name), name))
    times = ", ".join(f"{name} {print_time(times_s[name])}" for name in ordered)
    return f"taken: {told.taken} ({times})"


def _few(lines: Sequence[str]) -> list[str]:
    more = len(lines) - MOST_NAMED
    return [*lines[:MOST_NAMED], f"… and {more} more"] if more > 0 else list(lines)


def _moves(assignment: Mapping[str, str]) -> Iterator[str]:
    for name, place in assignment.items():
        if assignment.get(place) != name:
            yield f"worker {name} goes to {place}"
        elif name < place:
            yield f"workers {name} and {place} change places"


def _link(pair: str, delay_s: float, assignment: Mapping[str, str]) -> str:
    """What a slow link carried, and what it carries now."""
    ends = pair.split("-")
    before, after = (_traffic(*map(place_of, names)) for names in (ends, [assignment.get(end, end) for end in ends]))
    kept = f"still carries {after}" if before == after else f"carries {after} instead of {before}"
    return f"slow link {pair} ({print_time(delay_s)}) {kept}"


def _traffic(here: Place, there: Place) -> str:
    """What the link between two places carries."""
    if here[1] == there[1]:
        return f"the sums of stage {here[1]}"
    if here[0] == there[0] and abs(here[1] - there[1]) == 1:
        return f"what stages {min(here[1], there[1])} and {max(here[1], there[1])} of pipeline {here[0]} send"
    return "nothing"


def _gathered(told: _TopologyOptions) -> Iterator[str]:
    """In how many pipelines and stages slow workers sit, where that has changed."""
    then, now = (
        [len(set(numbers)) for numbers in zip(*(place_of(name) for name in names), strict=True)]
        for names in (told.slow, [told.assignment.get(name, name) for name in told.slow])
    )
    if then != now:
        yield f"pipelines with slow workers: {now[0]} instead of {then[0]}; stages: {now[1]} instead of {then[1]}"


def _uneven(plan: Plan, usual: int) -> Iterator[str]:
    counts = [pipeline.microbatches for pipeline in plan.pipelines]
    fewer = [f"pipeline {k} {count}" for k, count in enumerate(counts) if count < usual]
    if fewer:
        yield f"micro-batches instead of {usual}: {', '.join(_few(fewer))}, others up to {max(counts)}"
