"""Changes that could make an iteration shorter, one at a time: more memory, faster links, faster stages.

Each is a relaxation: under it no orders take longer, or hold more than they may.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..scheduling.problem import Problem
from .alike import Alike

if TYPE_CHECKING:
    from ...schemas.plan import Plan
    from ..scheduling.problem import Floats

Kind = Literal["memory", "link", "compute", "slowdown", "allreduce", "optimizer"]
Members = list[int]  # workers, or pipelines, by number
LinkUse = tuple[int, Members, Members]  # a link, the pipelines that use it inside, those whose messages use it between

# What operation times, and delays, are multiplied by.
FASTER, HALF = 0.9, 0.5
EVERY_STAGE, EVERY_LINK = "every stage", "every link"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a plan's conditions.

    Attributes:
        kind: "memory" admits one more activation, "link" halves a delay, "compute" makes operations 10 % faster,
            "slowdown" ends one, "allreduce" and "optimizer" halve these times.
        where: the place in words, such as "stage 2", "every link", "worker 0/3".
        stages, links, workers: the place as numbers and names; empty for every one.
        extra_bytes: what "memory" adds to the limit of each worker of the stage; None for others.
    """

    kind: Kind
    where: str
    stages: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    workers: tuple[str, ...] = ()
    extra_bytes: float | None = None

    @property
    def everywhere(self) -> bool:
        """Whether it is made at every place."""
        return not (self.stages or self.links or self.workers)


Changed = tuple[Change, Problem]  # with the problem as the change makes it


def changes_of(alike: Alike, problem: Problem) -> list[Changed]:
    """The changes that can be tried on a plan.

    Args:
        alike: the plan, with one of each kind of pipelines.
        problem: its problem.
    """
    return [
        *_memory(alike, problem),
        *_compute(alike, problem),
        *_slowdowns(alike, problem),
        *_links(alike, problem),
        *_overheads(problem),
    ]


def stages_of(plan: Plan) -> Iterator[tuple[str, int, Members]]:
    """Each stage of each template that is in use: what to call it, its number, and its live workers."""
    found: dict[tuple[str, int], Members] = {}
    for number, worker in enumerate(plan.workers):
        if not worker.failed:
            found.setdefault((plan.pipelines[worker.pipeline].template, worker.stage), []).append(number)
    several = len({template for template, _ in found}) > 1
    for (template, stage), members in found.items():
        yield f"stage {stage}" + (f" of template {template}" if several else ""), stage, members


def short_of_memory(problem: Problem, members: Sequence[int]) -> bool:
    """Whether one of these workers cannot hold all its micro-batches at once."""
    workers, chosen = problem.workers, np.asarray(members)
    return bool((problem.job_counts * workers.activation_bytes > workers.limit_bytes)[chosen].any())


def without_limits(problem: Problem, members: Sequence[int]) -> Problem:
    """The problem without the memory limits of some workers."""
    limit_bytes = problem.workers.limit_bytes.astype(np.float64)
    limit_bytes[members] = np.inf
    return replace(problem, workers=replace(problem.workers, limit_bytes=limit_bytes))


def _memory(alike: Alike, problem: Problem) -> Iterator[Changed]:
    """One more activation, for each stage that cannot hold all its micro-batches, and for all of these."""
    limited: Members = []
    for where, stage, members in stages_of(alike.plan):
        if short_of_memory(problem, members):
            extra_bytes = float(problem.workers.activation_bytes[members[0]])
            yield Change("memory", where, stages=(stage,), extra_bytes=extra_bytes), _with_room(problem, members)
            limited += members
    if limited:
        yield Change("memory", EVERY_STAGE), _with_room(problem, limited)


def _with_room(problem: Problem, members: Members) -> Problem:
    """One more activation for some workers, and not a rounding less."""
    workers, limit_bytes = problem.workers, problem.workers.limit_bytes.astype(np.float64)
    one_bytes = workers.activation_bytes[members]
    held = np.floor(limit_bytes[members] / one_bytes * (1 + 1e-9))
    limit_bytes[members] = np.maximum(limit_bytes[members] + one_bytes, (held + 1) * one_bytes)
    return replace(problem, workers=replace(workers, limit_bytes=limit_bytes))


def _compute(alike: Alike, problem: Problem) -> Iterator[Changed]:
    for where, stage, members in stages_of(alike.plan):
        yield Change("compute", where, stages=(stage,)), _with_times(problem, members, FASTER)


def _slowdowns(alike: Alike, problem: Problem) -> Iterator[Changed]:
    for number, worker in enumerate(alike.plan.workers):
        if worker.slowdown is not None and worker.slowdown > 1 and not worker.failed:
            names = alike.names_of(number)
            change = Change("slowdown", _listed("worker", names), workers=names)
            yield change, _with_times(problem, [number], 1 / worker.slowdown)


def _with_times(problem: Problem, members: Members, factor: float) -> Problem:
    """Some workers' operation times multiplied."""
    workers = problem.workers
    factors = np.ones(len(workers.stage))
    factors[members] = factor
    times = {name: getattr(workers, name) * factors for name in ("forward_s", "input_s", "weight_s", "full_s")}
    return replace(problem, workers=replace(workers, **times))


def _links(alike: Alike, problem: Problem) -> Iterator[Changed]:
    """Half the delay, of each link, and of all."""
    places = list(_delays(alike, problem))
    for link, inside, between in places:
        pipelines = sorted(k for member in inside for k in alike.pipelines[member])
        where = f"link {link} of {_listed('pipeline', pipelines)}" if inside else f"link {link} between pipelines"
        everyone = len(inside) == len(alike.pipelines)
        change = Change("link", f"link {link}" if everyone else where, links=(link,))
        yield change, _with_delays(problem, [(link, inside, between)])
    if places:
        yield Change("link", EVERY_LINK), _with_delays(problem, places)


def _delays(alike: Alike, problem: Problem) -> Iterator[LinkUse]:
    """The links with a delay; of a template's pipelines those with the same delay together."""
    for link in range(problem.inside_s.shape[1]):
        found: dict[tuple[str, float], tuple[Members, Members]] = {}
        for k, pipeline in enumerate(alike.plan.pipelines):
            found.setdefault((pipeline.template, problem.inside_s[k, link]), ([], []))[0].append(k)
            if alike.rerouted:
                found.setdefault((pipeline.template, problem.between_s[k, link]), ([], []))[1].append(k)
        for (_, delay_s), (inside, between) in found.items():
            if delay_s > 0:
                yield link, inside, between


def _with_delays(problem: Problem, places: Sequence[LinkUse]) -> Problem:
    inside_s, between_s = problem.inside_s.copy(), problem.between_s.copy()
    for link, inside, between in places:
        inside_s[inside, link] *= HALF
        between_s[between, link] *= HALF
    return replace(problem, inside_s=inside_s, between_s=between_s)


def _overheads(problem: Problem) -> Iterator[Changed]:
    workers = problem.workers
    if workers.allreduce_s.any():
        half: Floats = workers.allreduce_s * HALF
        yield Change("allreduce", EVERY_STAGE), replace(problem, workers=replace(workers, allreduce_s=half))
    if workers.optimizer_s.any():
        half = workers.optimizer_s * HALF
        yield Change("optimizer", EVERY_STAGE), replace(problem, workers=replace(workers, optimizer_s=half))


def _listed(noun: str, names: Sequence[object]) -> str:
    """`worker 0/1`, or `workers 0/1, 2/1`."""
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(map(str, names))}"
