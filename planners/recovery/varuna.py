"""Varuna: after every failure the best shape for the nodes that are left, from the last checkpoint.

S. Athlur et al., "Varuna: Scalable, Low-cost Training of Massive Deep Learning Models" (EuroSys 2022), as Oobleck's
paper describes and measures it (sections 2.2, 7.1 and 7.4.3): *job morphing* finds the number of stages with which the
nodes that are left train fastest, and restarts all of them from the most recent checkpoint. All pipelines are alike,
the global batch stays, and nodes that fill no pipeline are idle: "one GPU failure breaks the grid of GPUs".

* The number of stages is the one whose iteration is shortest, of all that the memory admits: each is cut and scheduled
  by our planners, except where a bound says that it cannot be the shortest.
* Nodes that come are taken in by a checkpoint and a restart, where that is expected to pay before the next failure.
  (Varuna's manager morphs at its next checkpoint; ours saves one at the end of the iteration.)
* Checkpoints come as the job's costs have them, for all policies alike. Oobleck's authors took one every 10 iterations.

Where we deviate: a pipeline runs the job's schedule, not Varuna's own variant of 1F1B; the micro-batch's size, which
Varuna may change as well, is the profile's; no more nodes are used than the job asks for. No notice of a preemption is
assumed, with which Varuna could save before a node goes. Where the job's shape names delays or limits stage by stage,
the number of stages stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import cast

from ...schemas.errors import InfeasibleError
from ...schemas.plan import Place, Plan
from ...schemas.replay import Fleet, Moment, TrainingState, Transition
from ..placement.retimed import AnyRetimed
from .job import TrainingJob, checkpointing, loading_s, node_bytes, restart_or_grow, seats, state_bytes
from .layout import JobPipelines, Layout, TimeAndMemory, alike, spread

Cut = tuple[int, int]  # stages, and pipelines of so many


@dataclass(frozen=True)
class VarunaLayout:
    """Stages, pipelines, and their nodes, pipeline after pipeline; nothing while the job waits."""

    cut: Cut = (0, 0)
    nodes: tuple[str, ...] = ()


class Varuna:
    """Shapes of alike pipelines; formations say which shape, and its nodes.

    For replays only: `rtk run` cannot obey it.

    Args:
        job: whose nodes, global batch and tensor-parallel degree count.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._found: dict[int, Cut | None] = {}  # by number of nodes
        self._shapes: dict[int, JobPipelines] = {}  # by number of stages

    def begin(self, fleet: Fleet) -> TrainingState:
        """In the best shape for these nodes; waiting where none fits so few.

        Raises:
            InfeasibleError: with no number of stages the model fits on the job's nodes.
        """
        if self._best(self._job.nodes) is None:
            self._outcome((self._job.shape.pp, self._job.shape.dp))  # says why
        return self._standing(fleet)

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """A restart in the best shape, if a node at work was lost, or if more nodes pay, or any suffice at last."""
        following = self._standing(moment.fleet)
        lost = not set(_formation(standing).nodes).isdisjoint(moment.lost)
        cut = _formation(following).cut
        read_bytes = node_bytes(self._shaped(*cut), self._gpu_bytes(cut)) if cut[0] else [0.0]
        loads_s = loading_s(self._job.costs, read_bytes)
        return restart_or_grow(self._job.costs, standing, following, loads_s, moment, lost=lost)

    def plan(self, standing: TrainingState) -> Plan | None:
        """The pipelines' plan."""
        stages, pipelines = _formation(standing).cut
        return self._pipelines(stages).plan(self._layout(pipelines)) if stages else None

    def ordered(self, standing: TrainingState) -> AnyRetimed:
        """The orders of the pipelines' plan."""
        stages, pipelines = _formation(standing).cut
        return self._pipelines(stages).ordered(self._layout(pipelines))

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Pipeline after pipeline."""
        formation = _formation(standing)
        return seats(formation.nodes, self._shaped(*formation.cut).grid) if formation.nodes else {}

    def _standing(self, fleet: Fleet) -> TrainingState:
        """Training in the best shape for the first nodes; waiting where there is none."""
        cut = self._best(min(len(fleet.nodes), self._job.nodes))
        if cut is None:
            return TrainingState(VarunaLayout(), None, 0, 0)
        stages, pipelines = cut
        job = self._shaped(stages, pipelines)
        outcome = self._outcome(cut)
        formation, every = VarunaLayout(cut, fleet.nodes[: job.nodes]), checkpointing(job.costs, self._gpu_bytes(cut))
        return outcome.standing(formation, self._job.microbatches, job.nodes, every)

    def _best(self, nodes: int) -> Cut | None:
        """The stages and pipelines of the shortest iteration; None where no shape fits so many nodes.

        What is bound to take longer than the best so far is not looked at.
        """
        if nodes not in self._found:
            best_s, self._found[nodes] = inf, None
            for least_s, cut in sorted((self._least_s(cut), cut) for cut in self._cuts(nodes)):
                if least_s >= best_s:
                    break
                iteration_s = self._iteration_s(cut)
                if iteration_s < best_s:
                    best_s, self._found[nodes] = iteration_s, cut
        return self._found[nodes]

    def _cuts(self, nodes: int) -> Iterator[Cut]:
        """All shapes of so many nodes: whole nodes a pipeline, or whole pipelines a node; a micro-batch a pipeline."""
        each, most = self._job.workers_per_node, self._job.microbatches
        for stages in self._stages:
            if stages % each == 0:
                pipelines = min(nodes // (stages // each), most)
            elif each % stages == 0:
                of_a_node = each // stages
                pipelines = min(nodes, most // of_a_node) * of_a_node
            else:
                continue
            if pipelines:
                yield stages, pipelines

    @property
    def _stages(self) -> Sequence[int]:
        """The numbers of stages to look at."""
        shape = self._job.shape
        if shape.link_delay_s or len(shape.memory_limit_bytes or ()) > 1:
            return (shape.pp,)
        return range(1, len(self._job.profile.layers) + 1)

    def _iteration_s(self, cut: Cut) -> float:
        """How long an iteration takes; for ever where the memory does not admit it."""
        try:
            return self._outcome(cut).iteration_time_s
        except InfeasibleError:
            return inf

    def _least_s(self, cut: Cut) -> float:
        """What an iteration takes at least, however the layers are cut.

        With V the time, m micro-batches and t_k the work of stage k for one of them, V >= m t_k + r (t_0 + .. + t_k-1):
        the first comes to stage k through those before it, the last goes back through them, and r is what of their work
        must be done by then. So V - r (t_0 + .. + t_k) >= (1 - r / m) (V - r (t_0 + .. + t_k-1)), stage after stage.
        """
        stages, pipelines = cut
        work_s, longest_s, share = self._work
        microbatches = -(-self._job.microbatches // pipelines)
        filled = 1 - (1 - share / microbatches) ** stages
        return max(share * work_s / filled, microbatches * longest_s) * (1 - 1e-9)

    @cached_property
    def _work(self) -> tuple[float, float, float]:
        """Of all layers, and of the longest, in s; and the share that a micro-batch's way there and back takes."""
        degree, profile = self._job.shape.degree, self._job.profile
        costs = [cost for layer in profile.layers for cost in layer.costs if cost.tensor_parallel == degree]
        waits_for_all = self._job.schedule in ("gpipe", "1f1b")  # no backward of theirs is split
        work_s = [profile.least_work_s(cost) for cost in costs]
        bound_s = profile.inner.forward_s + profile.inner.backward_input_s
        shares = [
            1.0 if waits_for_all else min(1.0, (cost.forward_s + cost.backward_input_s - bound_s) / least_s)
            for cost, least_s in zip(costs, work_s, strict=True)
            if least_s
        ]
        return sum(work_s), max(work_s, default=0.0), min(shares, default=1.0)

    def _outcome(self, cut: Cut) -> TimeAndMemory:
        stages, pipelines = cut
        return self._pipelines(stages).outcome(self._layout(pipelines))

    def _layout(self, pipelines: int) -> Layout:
        return alike(spread(self._job.microbatches, pipelines))

    def _pipelines(self, stages: int) -> JobPipelines:
        if stages not in self._shapes:
            self._shapes[stages] = JobPipelines(self._shaped(stages, max(1, self._job.workers_per_node // stages)))
        return self._shapes[stages]

    def _shaped(self, stages: int, pipelines: int) -> TrainingJob:
        """The job in another shape."""
        return replace(self._job, shape=replace(self._job.shape, pp=stages, dp=pipelines))

    def _gpu_bytes(self, cut: Cut) -> tuple[float, ...]:
        return state_bytes(self._job, self._pipelines(cut[0]).template(cut[1]))


def _formation(standing: TrainingState) -> VarunaLayout:
    return cast("VarunaLayout", standing.formation)
