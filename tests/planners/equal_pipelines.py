"""Equal pipelines with dead workers, as problems and as plans without orders."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from hypothesis import strategies as st

from rtk.planners.scheduling.list_schedule import DispatchRules, Priority
from rtk.planners.scheduling.problem import Problem, home_problem
from rtk.schemas.plan import Link, Pipeline, Place, Plan, Stage, Template, Worker

from ..strategies import BY_HAND

WHOLE_S = st.integers(0, 6).map(float)
BROKEN_S = st.floats(0.001, 10.0)


@dataclass(frozen=True)
class Cluster:
    """Equal pipelines, of which some workers are dead.

    Attributes:
        template: shape of each.
        dp, microbatches: how many pipelines, and micro-batches of each.
        split: whether each stage has I and W instead of B.
        failed: the dead workers.
        staggered: whether the period counts.
    """

    template: Template
    dp: int
    microbatches: int
    split: tuple[bool, ...]
    failed: frozenset[Place]
    staggered: bool = False

    @property
    def stages(self) -> int:
        """Stages of a pipeline."""
        return len(self.split)

    @property
    def jobs(self) -> int:
        """Micro-batches of all pipelines."""
        return self.dp * self.microbatches

    @property
    def dead(self) -> tuple[int, ...]:
        """Dead workers of each stage."""
        return tuple(sum(i == stage for _, i in self.failed) for stage in range(self.stages))

    @property
    def live(self) -> tuple[int, ...]:
        """Live workers of each stage."""
        return tuple(self.dp - number for number in self.dead)

    @property
    def plan(self) -> Plan:
        """All pipelines, without orders."""
        return self._plan(self.dp, self.failed)

    @cached_property
    def home(self) -> Problem:
        """Every worker runs its own micro-batches, dead ones too."""
        return self._problem(self.plan)

    @cached_property
    def pipeline(self) -> Problem:
        """One pipeline alone, all its workers alive."""
        return self._problem(self._plan(1, frozenset()))

    def _plan(self, dp: int, failed: frozenset[Place]) -> Plan:
        workers = tuple(
            Worker(k, i, failed=True) if (k, i) in failed else Worker(k, i, "")
            for k in range(dp)
            for i in range(self.stages)
        )
        pipelines = tuple(Pipeline("t0", self.microbatches) for _ in range(dp))
        optimizer = "staggered" if self.staggered else "synchronous"
        return Plan(BY_HAND, (self.template,), pipelines, optimizer, workers)  # type: ignore[arg-type]

    def _problem(self, plan: Plan) -> Problem:
        found = home_problem(plan, split=True)
        return replace(found, split=np.tile(np.array(self.split), (found.jobs, 1)))


@st.composite
def clusters(
    draw: st.DrawFn,
    max_pp: int = 5,
    max_dp: int = 5,
    max_microbatches: int = 8,
    *,
    whole: bool = True,
    limits: bool = True,
    overheads: bool = True,
) -> Cluster:
    """Random equal pipelines with dead workers, never all of a stage; if `whole`, all times are whole numbers."""
    depth, dp = draw(st.integers(1, max_pp)), draw(st.integers(2, max_dp))
    seconds = WHOLE_S if whole else BROKEN_S
    after = st.one_of(st.just(0.0), seconds) if overheads else st.just(0.0)
    stages = tuple(
        Stage(
            (i, i + 1),
            draw(seconds),
            draw(seconds),
            draw(seconds),
            optimizer_s=draw(after),
            allreduce_s=draw(after),
            activation_bytes=1.0,
            weight_stash_bytes=draw(st.sampled_from([0.0, 0.5, 1.0])),
            memory_limit_bytes=draw(st.sampled_from([None, None, 1.0, 2.0, 3.5, 6.0])) if limits else None,
        )
        for i in range(depth)
    )
    links = tuple(Link(draw(st.one_of(st.just(0.0), seconds))) for _ in range(depth - 1))
    failed = frozenset(
        (k, i)
        for i in range(depth)
        for k in draw(st.permutations(range(dp)))[: draw(st.one_of(st.just(0), st.integers(0, dp - 1)))]
    )
    split = draw(
        st.one_of(
            st.just((True,) * depth),
            st.just((False,) * depth),
            st.lists(st.booleans(), min_size=depth, max_size=depth).map(tuple),
        )
    )
    return Cluster(
        Template("t0", stages, links), dp, draw(st.integers(1, max_microbatches)), split, failed, draw(st.booleans())
    )


@st.composite
def rules(draw: st.DrawFn, entries: int) -> DispatchRules:
    """Any rules for so many stages or workers."""

    def each(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=entries, max_size=entries))

    waits = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=entries, max_size=entries))
    priorities = draw(st.lists(st.sampled_from(Priority), min_size=entries, max_size=entries))
    counts = st.integers(1, 9)
    return DispatchRules(each(counts), each(counts), waits, each(counts), priorities)


@st.composite
def routed(draw: st.DrawFn) -> tuple[Cluster, Problem, DispatchRules]:
    """A cluster whose micro-batches go to any live workers, their own ones too, and any rules."""
    cluster = draw(clusters(max_pp=4, max_microbatches=5, whole=draw(st.booleans())))
    executor = cluster.home.executor.copy()
    even = draw(st.booleans())
    for stage in range(cluster.stages):
        live = [w for w in executor[: cluster.dp, stage].tolist() if cluster.home.workers.live[w]]
        takers = (live * cluster.jobs)[: cluster.jobs]
        chosen = (
            st.permutations(takers)
            if even
            else st.lists(st.sampled_from(live), min_size=cluster.jobs, max_size=cluster.jobs)
        )
        executor[:, stage] = draw(chosen)
    problem = replace(cluster.home, executor=executor)
    return cluster, problem, draw(rules(len(problem.workers.stage)))
