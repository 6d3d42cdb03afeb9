"""Alike pipelines that only sum gradients together: each with its own micro-batches, orders, slow workers and links.

None waits for another one before it sums, so each is timed alone: an iteration takes until the last worker of a stage
is done and its peers have summed. What a pipeline takes is remembered by all that it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...schemas.plan import Plan, Planner, Template
from ..greyhound.topology import are_peers
from ..pipeline import scheduled
from ..scheduling.assemble import with_prediction
from .job import TrainingJob
from .memory import peak_memory_bytes
from .pipelines import NOBODY, JobPipelines, TimeAndMemory, iteration_s
from .retimed import Retimed
from .slowness import HEALTHY, PlanSlowness

Delays = tuple[float, ...]  # of a pipeline's links, in s


@dataclass(frozen=True, slots=True)
class PipelineKey:
    """What a pipeline's orders depend on: its micro-batches, and the delays that they are made for, where any are."""

    microbatches: int
    delays_s: Delays | None = None


class SeparatePipelines:
    """A job's pipelines.

    Args:
        job: what it trains.
        ordered: the orders of each stage of a pipeline of some kind, as in a plan of it alone; None: by the job's
            schedule, whatever delays there are.
    """

    def __init__(self, job: TrainingJob, ordered: Callable[[PipelineKey], tuple[str, ...]] | None = None) -> None:
        self._job, self._ordered, self._pipelines = job, ordered or self._by_schedule, JobPipelines(job)
        self._orders: dict[PipelineKey, tuple[str, ...]] = {}
        self._retimed: dict[PipelineKey, Retimed] = {}
        self._ends: dict[tuple[PipelineKey, PlanSlowness], tuple[float, ...]] = {}

    def template(self, pipelines: int) -> Template:
        """The stages of so many pipelines; the rest as for `JobPipelines`."""
        return self._pipelines.template(pipelines)

    def bare(self, kinds: Sequence[PipelineKey], planner: Planner = NOBODY) -> Plan:
        """The plan of such pipelines without orders."""
        return self._pipelines.bare(len(kinds), [kind.microbatches for kind in kinds], planner)

    def plan(self, kinds: Sequence[PipelineKey], planner: Planner) -> Plan:
        """Their plan with nothing slow, checked and with its prediction."""
        return with_prediction(self._with_orders(kinds, planner))

    def outcome(self, kinds: Sequence[PipelineKey], troubles: PlanSlowness = HEALTHY) -> TimeAndMemory:
        """What they hold, and what they take, as `rtk simulate` of their plan under these troubles has it."""
        stages = self.template(len(kinds)).stages
        more_s = sums_of_alike_s(troubles, len(kinds), len(stages))
        time_s = iteration_s(stages, self._all_ends_s(kinds, troubles), more_s)
        held = tuple(map(max, zip(*(self._ready(kind).peaks_bytes().tolist() for kind in set(kinds)), strict=True)))
        return TimeAndMemory(time_s, peak_memory_bytes(self._job, self.template(len(kinds)), held))

    def alone_s(self, kind: PipelineKey, troubles: PlanSlowness) -> float:
        """When a pipeline by itself has executed its last operation."""
        return max(self._ends_s(kind, troubles))

    def _all_ends_s(self, kinds: Sequence[PipelineKey], troubles: PlanSlowness) -> tuple[float, ...]:
        """When the last worker of each stage is done."""
        own = troubles.by_pipeline()
        found = {(kind, own.get(k, HEALTHY)) for k, kind in enumerate(kinds)}
        return tuple(map(max, zip(*(self._ends_s(*each) for each in found), strict=True)))

    def _ends_s(self, kind: PipelineKey, troubles: PlanSlowness) -> tuple[float, ...]:
        if (kind, troubles) not in self._ends:
            self._ends[kind, troubles] = tuple(self._ready(kind).ends_s(troubles).tolist())
        return self._ends[kind, troubles]

    def _ready(self, kind: PipelineKey) -> Retimed:
        if kind not in self._retimed:
            self._retimed[kind] = Retimed.of(self._with_orders([kind], NOBODY))
        return self._retimed[kind]

    def _with_orders(self, kinds: Sequence[PipelineKey], planner: Planner) -> Plan:
        bare = self.bare(kinds, planner)
        orders = [order for kind in kinds for order in self._orders_of(kind)]
        workers = (replace(worker, order=order) for worker, order in zip(bare.workers, orders, strict=True))
        return replace(bare, workers=tuple(workers))

    def _orders_of(self, kind: PipelineKey) -> tuple[str, ...]:
        if kind not in self._orders:
            self._orders[kind] = self._ordered(kind)
        return self._orders[kind]

    def _by_schedule(self, kind: PipelineKey) -> tuple[str, ...]:
        plan = scheduled(self.bare([kind]), self._job.schedule)
        return tuple(worker.order or "" for worker in plan.workers)


def sums_of_alike_s(troubles: PlanSlowness, pipelines: int, stages: int) -> list[float]:
    """How much longer the sums of each stage of so many alike pipelines take, nobody of whom is dead."""
    found = [0.0] * stages
    for pair, delay_s in troubles.across_s.items():
        if are_peers(pair):
            stage = pair[0][1]
            found[stage] = max(found[stage], 2 * (pipelines - 1) * delay_s)
    return found
