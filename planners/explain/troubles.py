"""What is wrong in a joint plan, and what becomes of it: who executes more and less, and which links carry what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...schemas.plan import Plan
from ..adaptra.plan import warmup_of
from ..joint.plan import NAME
from ..joint.search import TOGETHER, Situation, singles_s
from ..scheduling.problem import BACKWARD, FORWARD, KINDS, Orders, Problem, codes_of, problem_of

if TYPE_CHECKING:
    from ..scheduling.problem import Flags


@dataclass(frozen=True, slots=True)
class UnevenStage:
    """A stage with dead or slow workers.

    Attributes:
        stage: its number.
        own: micro-batches that each of its workers would execute.
        dead: its dead workers.
        slow: name, factor and micro-batches of each slow one.
        more: name, and micro-batches beyond its own, of each that executes more than these.
    """

    stage: int
    own: int
    dead: tuple[str, ...]
    slow: tuple[tuple[str, float, int], ...]
    more: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class DelayedLink:
    """A link with a delay: that of one pipeline where it is slower than between pipelines, else of all of them.

    Attributes:
        pipeline: the pipeline, None for all.
        link: its number.
        delay_s: of a message.
        crossing: micro-batches that cross it; of all pipelines, where it is that of all.
        elsewhere: micro-batches of the worker below it that go on with another pipeline's worker.
        slackness: by how much the warm-ups of its two workers differ; the least of all pipelines.
        tolerated_s: the delay that this absorbs by Equation 1, the least of all pipelines; None where none cascades.
    """

    pipeline: int | None
    link: int
    delay_s: float
    crossing: int
    elsewhere: int
    slackness: int
    tolerated_s: float | None


@dataclass(frozen=True, slots=True)
class Alternative:
    """What a technique takes for the same pipelines; `single` unless it is several, one after the other."""

    technique: str
    iteration_time_s: float
    single: bool


@dataclass(frozen=True, slots=True)
class Degradations:
    """All that is wrong, what the plan does about it, and what each technique takes, the quickest single one first."""

    stages: tuple[UnevenStage, ...]
    links: tuple[DelayedLink, ...]
    alternatives: tuple[Alternative, ...]


def troubles_of(plan: Plan) -> Degradations | None:
    """What is wrong, and what becomes of it; None if nothing is, or it is not a joint plan of alike pipelines."""
    if plan.planner.name != NAME or len({(pipe.template, pipe.microbatches) for pipe in plan.pipelines}) > 1:
        return None
    problem = problem_of(plan)
    orders = codes_of(plan, problem)
    stages, links = tuple(_stages(plan, problem)), tuple(_slow_links(plan, problem, orders))
    if not stages and not links:
        return None
    taken_s = singles_s(Situation(plan, bool(problem.split.any())))
    found = [Alternative(name, iteration_s, name != TOGETHER) for name, iteration_s in taken_s.items()]
    return Degradations(stages, links, tuple(sorted(found, key=lambda one: (not one.single, one.iteration_time_s))))


def _stages(plan: Plan, problem: Problem) -> Iterator[UnevenStage]:
    own, loads = plan.pipelines[0].microbatches, problem.job_counts.tolist()
    for stage in range(problem.executor.shape[1]):
        peers = [(worker, load) for worker, load in zip(plan.workers, loads, strict=True) if worker.stage == stage]
        dead = tuple(worker.name for worker, _ in peers if worker.failed)
        slow = tuple((w.name, w.slowdown, load) for w, load in peers if w.slowdown not in (None, 1.0))
        if dead or slow:
            more = tuple((worker.name, load - own) for worker, load in peers if load > own)
            yield UnevenStage(stage, own, dead, slow, more)


def _slow_links(plan: Plan, problem: Problem, orders: Orders) -> Iterator[DelayedLink]:
    pipelines, links = problem.inside_s.shape
    for link in range(links):
        usual_s = float(problem.between_s[:, link].min())
        own = [k for k in range(pipelines) if problem.inside_s[k, link] > usual_s]
        for k in own:
            yield _link(problem, orders, link, [k], k)
        if usual_s:
            yield _link(problem, orders, link, [k for k in range(pipelines) if k not in own], None)


def _link(problem: Problem, orders: Orders, link: int, pipelines: Sequence[int], named: int | None) -> DelayedLink:
    stages, live = problem.executor.shape[1], problem.workers.live
    firsts = [k * stages + link for k in pipelines]
    pairs = [(here, here + 1) for here in firsts if live[here] and live[here + 1]]
    crossing = [(problem.executor[:, [link, link + 1]] == pair).all(axis=1) for pair in pairs]
    tolerated = [_tolerated_s(problem, orders, pair, jobs) for pair, jobs in zip(pairs, crossing, strict=True)]
    crossed = sum(int(jobs.sum()) for jobs in crossing)
    return DelayedLink(
        pipeline=named,
        link=link,
        delay_s=float(problem.between_s[0, link] if named is None else problem.inside_s[named, link]),
        crossing=crossed,
        elsewhere=sum(int(problem.job_counts[here]) for here, _ in pairs) - crossed,
        slackness=min((warmup_of(orders[here]) - warmup_of(orders[above]) for here, above in pairs), default=0),
        tolerated_s=min((delay_s for delay_s in tolerated if delay_s is not None), default=None),
    )


def _tolerated_s(problem: Problem, orders: Orders, pair: tuple[int, int], crossing: Flags) -> float | None:
    """The delay that two workers' orders absorb by Equation 1 (adaptra/plan.py), over the jobs that both execute.

    From the I of a job to the F of another, the worker above must have at least as much to do as the one below has,
    and the two messages take.
    """
    below, above = (_clock(problem, worker, orders[worker]) for worker in pair)
    spare_s, returned = [], None
    for code in orders[pair[0]]:
        job, kind = divmod(code, KINDS)
        if crossing[job] and kind == BACKWARD:
            returned = code
        elif crossing[job] and kind == FORWARD and returned is not None:
            own_s = below[code][1] - below[returned][0]
            spare_s.append(above[code][0] - above[returned][1] - own_s)
    return max(0.0, min(spare_s) / 2) if spare_s else None


def _clock(problem: Problem, worker: int, order: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Start and end of each operation of a worker that never waits, in s."""
    workers, split = problem.workers, problem.split[:, problem.workers.stage[worker]]
    forward_s, weight_s = float(workers.forward_s[worker]), float(workers.weight_s[worker])
    found, now_s = {}, 0.0
    for code in order:
        job, kind = divmod(code, KINDS)
        lasts_s = (forward_s, problem.backward_s(worker, bool(split[job])), weight_s)[kind]
        found[code] = now_s, now_s + lasts_s
        now_s += lasts_s
    return found
