"""Alike pipelines with dead and slow workers, slow links and memory limits, as plans without orders."""

from dataclasses import replace

from hypothesis import strategies as st

from rtk.planners.joint.search import Situation
from rtk.schemas.plan import Link, Pipeline, Place, Plan, Planner, Stage, Template, Worker

from .equal_pipelines import WHOLE_S
from .running_plans import bearable

JOINT = Planner("joint", "1", {})


def alike(pp: int, dp: int, microbatches: int, time_s: float = 0.01, limit_bytes: float | None = None) -> Plan:
    """Stages of one time for each operation, and 1 byte a micro-batch, half of it stash."""
    stages = tuple(
        Stage((i, i + 1), time_s, time_s, time_s, activation_bytes=1.0, weight_stash_bytes=0.5) for i in range(pp)
    )
    stages = tuple(replace(stage, memory_limit_bytes=limit_bytes) for stage in stages)
    template = Template("t0", stages, tuple(Link() for _ in range(pp - 1)))
    workers = tuple(Worker(k, i, "") for k in range(dp) for i in range(pp))
    return Plan(JOINT, (template,), (Pipeline("t0", microbatches),) * dp, "synchronous", workers)


def troubled(
    plan: Plan,
    failed: frozenset[Place] = frozenset(),
    slow: dict[Place, float] | None = None,
    delays_s: dict[Place, float] | None = None,
) -> Plan:
    """A plan with dead workers, factors of slow ones, and delays of links (pipeline, link)."""
    places = [(worker.pipeline, worker.stage) for worker in plan.workers]
    workers = tuple(
        Worker(*place, failed=True) if place in failed else Worker(*place, "", (slow or {}).get(place))
        for place in places
    )
    pipelines = []
    for k, pipeline in enumerate(plan.pipelines):
        own = {i: delay_s for (pipe, i), delay_s in (delays_s or {}).items() if pipe == k}
        links = tuple(Link(own.get(i, link.delay_s)) for i, link in enumerate(plan.template_of(k).links))
        pipelines.append(replace(pipeline, links=links if own else None))
    return replace(plan, workers=workers, pipelines=tuple(pipelines))


@st.composite
def troubled_plans(
    draw: st.DrawFn, max_pp: int = 4, max_dp: int = 3, max_microbatches: int = 4, *, trouble: bool = True
) -> Plan:
    """Any costs, delays, limits and objective; never all workers of a stage dead; no troubles unless `trouble`."""
    pp, dp = draw(st.integers(1, max_pp)), draw(st.integers(1, max_dp))
    microbatches, after = draw(st.integers(1, max_microbatches)), draw(st.sampled_from([0.0, 0.0, 2.0]))
    limit = st.sampled_from([None, None, 1.0, 2.0, 3.5])
    stages = tuple(
        Stage((i, i + 1), *draw(st.tuples(WHOLE_S, WHOLE_S, WHOLE_S)), 1, after / 2, after, 1.0, 0.5, draw(limit))
        for i in range(pp)
    )
    links = tuple(Link(draw(st.sampled_from([0.0, 0.0, 2.0]))) for _ in range(pp - 1))
    plan = replace(alike(pp, dp, microbatches), templates=(Template("t0", stages, links),))
    plan = replace(plan, optimizer=draw(st.sampled_from(["synchronous", "synchronous", "staggered"])))
    if not trouble:
        return plan
    places = st.tuples(st.integers(0, dp - 1), st.integers(0, pp - 1))
    failed = frozenset(draw(st.sets(places, max_size=2)))
    slow = draw(st.dictionaries(places, st.sampled_from([0.8, 1.0, 1.5, 3.0]), max_size=2))
    hops = st.tuples(st.integers(0, dp - 1), st.integers(0, max(pp - 2, 0)))
    delays_s = draw(st.dictionaries(hops, WHOLE_S, max_size=2)) if pp > 1 else {}
    return troubled(plan, failed if bearable(failed, pp, dp) else frozenset(), slow, delays_s)


def situation(plan: Plan) -> Situation:
    """As a joint plan sees it."""
    return Situation(plan, split=True)
