"""Bamboo: every node repeats its neighbour's forwards, and takes over when it dies.

J. Thorpe et al., "Bamboo: Making Preemptible Instances Resilient for Affordable Training of Large DNNs" (NSDI 2023), as
the papers of Oobleck (sections 2.2, 2.3, 7.1 and 7.4.2) and SlipStream (sections 2.3 and 5.2) describe it:

* "Each pipeline stage is redundantly computed in two subsequent nodes": the forward always, which makes every iteration
  longer, the backward only after a failure (`redundancy.py`). Oobleck's authors see "an increased number of pipeline
  stages"; we take 1.5 times as many, from memory of Bamboo's own paper, which is not at hand. So of as many nodes there
  are fewer pipelines.
* A node holds the state of two: models that fit without redundancy run "out of memory", which `begin` says.
* "When a node fails, the backup node computes the forward and backward passes of the failed node." Its pipeline is a
  straggler then, for batches are not distributed anew. At most one iteration is lost.
* Where two neighbours are gone, all is restarted from the last checkpoint.
* Nodes that come, and spares, take empty seats at the end of the iteration, after copying two nodes' state each.

What the papers leave open: pipelines with empty seats are dissolved to fill others' where that is expected to pay
before the next failure. What they measured is slower: Bamboo has no activation checkpointing and so smaller
micro-batches (Oobleck, section 7.1), which a profile of its own would have to say. SlipStream's Table 1 is met by 0.733
of the share of nodes left, a number fitted to it; without a failure the repeated forwards alone give 0.75 of a model
whose backward takes twice as long as its forward.

Where we deviate: replicas cost no optimizer step; a plan's stages hold consecutive layers (`redundancy.py`); more nodes
than the job asks for are spares. Of the job's shape its number of stages, its tensor-parallel degree and the global
batch count, and a limit of activations if it is the same for all stages; the schedule is 1F1B, memory and network are
the profile's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil

from ... import __version__
from ...schemas.documents import digest
from ...schemas.errors import InfeasibleError
from ...schemas.plan import Pipeline, Place, Plan, Planner, Template, Worker
from ...schemas.profile import Connection
from ...schemas.replay import Checkpointing, Fleet, Moment, StateChange, TrainingState
from ..pipeline import scheduled
from ..scheduling.assemble import with_prediction
from ..shape import shape_options
from .checkpoints import checkpointing, loading_s
from .copies import Copied, copying_s, require_rate
from .job import TrainingJob
from .memory import peak_bytes
from .outlook import pays, until_next_failure_s
from .pauses import failing_over, regrouping, total_s
from .pipelines import spread
from .redundancy import Gone, Redundancy
from .restart import restart
from .retimed import Retimed
from .seating import Seating, filled, seating_of, seatless, whole_rows, without
from .unlike_pipelines import UnlikePipelines, summed_bytes

DEEPER = 1.5  # times as many stages as without redundancy


class Bamboo:
    """Redundant pipelines; formations are seatings, a row a pipeline.

    Args:
        job: what it trains.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job = job

    def begin(self, fleet: Fleet) -> TrainingState:
        """On as many whole pipelines as there are nodes for.

        Raises:
            InfeasibleError: a GPU cannot hold two stages; or there are not two nodes, or layers for two, in a pipeline;
                or each stage of the job has a limit of its own.
            InvalidInputError: a layer has no cost at the job's tensor-parallel degree, or nobody says how fast state is
                copied.
        """
        require_rate(self._job)
        self._redundancy.require_memory()
        return self._standing(self._rows(fleet))

    def answer(self, standing: TrainingState, moment: Moment) -> tuple[StateChange, ...]:
        """Neighbours take over, or all restart where these are gone, too; then nodes without a seat take some."""
        seating = seating_of(standing)
        left = without(seating, moment.lost)
        if not seating or not all(self._redundancy.covers(gone) for gone in self._gone(left)):
            following = self._standing(self._rows(moment.fleet))
            return restart(self._job.costs, following, self._loading_s, lost=bool(seating))
        if left == seating:
            return self._formed(standing, moment)
        taken = self._standing(left)
        failed_over = StateChange(taken, "take over", failing_over(self._job.costs), interrupts=True)
        return (failed_over, *self._formed(taken, moment))

    def plan(self, standing: TrainingState) -> Plan | None:
        """The pipelines in 1F1B, with repeated forwards, and a stage less for each worker that is gone."""
        kinds = self._kinds(seating_of(standing))
        return with_prediction(self._scheduled(kinds)) if kinds else None

    def ordered(self, standing: TrainingState) -> Retimed:
        """The orders of the pipelines' plan."""
        return Retimed.of(self._scheduled(self._kinds(seating_of(standing))))

    def _scheduled(self, kinds: Sequence[tuple[Gone, int]]) -> Plan:
        templates = {gone: self._template(gone, len(kinds)) for gone, _ in kinds}
        pipelines = tuple(Pipeline(templates[gone].name, count) for gone, count in kinds)
        depths = [len(templates[gone].stages) for gone, _ in kinds]
        options = shape_options(self._job.profile, self._job.shape) | {"nodes": self._redundancy.nodes}
        bare = Plan(
            planner=Planner("bamboo", __version__, options, self._job.seed),
            inputs={"profile": digest(self._job.profile)},
            templates=tuple(templates.values()),
            pipelines=pipelines,
            optimizer="synchronous",
            workers=tuple(Worker(k, i, "") for k, depth in enumerate(depths) for i in range(depth)),
        )
        return scheduled(bare, "1f1b")

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Pipeline after pipeline: the workers of the nodes that are left, in order."""
        seating, columns, width = seating_of(standing), self._redundancy.nodes, self._job.workers_per_node
        rows = [seating[first : first + columns] for first in range(0, len(seating), columns)]
        lefts = [[node for node in row if node is not None] for row in rows]
        return {
            (k, i * width + j): node
            for k, left in enumerate(lefts)
            for i, node in enumerate(left)
            for j in range(width)
        }

    @cached_property
    def _redundancy(self) -> Redundancy:
        """The pipelines: their depth, in whole nodes."""
        job = self._job
        width = job.workers_per_node
        possible = min(job.nodes, len(job.profile.layers) // width)
        if possible < 2:
            raise InfeasibleError(
                f"Bamboo's pipelines have two nodes or more, and here one has {possible} at most",
                where="--policies",
                fix=f"leave Bamboo out, or take a job of two nodes or more and a model of {2 * width} layers or more",
            )
        return Redundancy(job, min(possible, max(2, ceil(DEEPER * job.shape.pp / width))))

    @cached_property
    def _pipelines(self) -> UnlikePipelines[Gone]:
        return UnlikePipelines(self._job.profile.layers, self._network, self._redundancy.without)

    @property
    def _network(self) -> Connection:
        return self._job.profile.network.between_workers or Connection()

    @property
    def _most_rows(self) -> int:
        return min(self._job.nodes // self._redundancy.nodes, self._job.microbatches)

    @cached_property
    def _checkpointing(self) -> Checkpointing:
        return checkpointing(self._job, self._redundancy.whole_bytes)

    @cached_property
    def _loading_s(self) -> float:
        """How long nodes read their own state and the replica."""
        width = self._job.workers_per_node
        held_bytes = self._redundancy.without(()).state_bytes
        degree = self._job.shape.tensor_parallel
        firsts = range(0, len(held_bytes), width)
        return loading_s(self._job, [degree * sum(held_bytes[first : first + width]) for first in firsts])

    def _rows(self, fleet: Fleet) -> Seating:
        """The first nodes, in whole pipelines."""
        return whole_rows(fleet.nodes, self._redundancy.nodes, self._most_rows)

    def _gone(self, seating: Seating) -> list[Gone]:
        """The empty seats of each pipeline."""
        columns = self._redundancy.nodes
        rows = (seating[first : first + columns] for first in range(0, len(seating), columns))
        return [tuple(i for i, node in enumerate(row) if node is None) for row in rows]

    def _kinds(self, seating: Seating) -> list[tuple[Gone, int]]:
        """The empty seats and the micro-batches of each pipeline."""
        gone = self._gone(seating)
        return list(zip(gone, spread(self._job.microbatches, len(gone)), strict=True)) if gone else []

    def _standing(self, seating: Seating) -> TrainingState:
        kinds = self._kinds(seating)
        if not kinds:
            return TrainingState((), None, 0, 0)
        return TrainingState(
            formation=seating,
            iteration_time_s=self._pipelines.iteration_time_s(frozenset(kinds), len(kinds)),
            microbatches=self._job.microbatches,
            nodes=len(seating) - seating.count(None),
            peak_memory_bytes=max(self._peak_bytes(*kind) for kind in set(kinds)),
            checkpointing=self._checkpointing,
        )

    def _peak_bytes(self, gone: Gone, microbatches: int) -> float:
        """The most that a GPU of a pipeline holds."""
        activations = self._pipelines.activation_bytes(gone, microbatches)
        return peak_bytes(self._redundancy.without(gone).state_bytes, activations)

    def _template(self, gone: Gone, pipelines: int) -> Template:
        """The stages of a pipeline with these empty seats, one of so many."""
        found, layers = self._redundancy.without(gone), self._job.profile.layers
        stages = (
            replace(stage, allreduce_s=self._network.ring_s(summed_bytes(layers, stage), pipelines))
            for stage in found.stages
        )
        return Template("-".join(["t0", *map(str, gone)]), tuple(stages), found.links)

    def _formed(self, standing: TrainingState, moment: Moment) -> tuple[StateChange, ...]:
        """Nodes without a seat take empty ones; pipelines are dissolved or begun where that pays."""
        seating = seating_of(standing)
        spares = seatless(seating, moment.fleet.nodes)
        fill = self._step(seating, filled(seating, spares), "fill")
        form = self._step(seating, self._regrouped(seating, spares), "form")
        if form is None or (fill is not None and fill.standing.formation == form.standing.formation):
            return (fill,) if fill is not None else ()
        before, busy_s = (fill.standing, total_s(fill.pauses)) if fill is not None else (standing, 0.0)
        left_s = until_next_failure_s(self._job.costs, moment) - busy_s
        rates = before.microbatches_per_s, form.standing.microbatches_per_s
        if pays(left_s, total_s(form.pauses) - busy_s, *rates):
            return (form,)
        return (fill,) if fill is not None else ()

    def _step(self, seating: Seating, following: Seating, answer: str) -> StateChange | None:
        """To another seating, after copies; None where it is the same, or none at all."""
        if not following or following == seating:
            return None
        copied_s = copying_s(self._job, self._copies(seating, following))
        return StateChange(self._standing(following), answer, regrouping(self._job.costs, copying_s=copied_s))

    def _regrouped(self, seating: Seating, spares: tuple[str, ...]) -> Seating:
        """Whole pipelines only, as many as there are nodes for: those that lack least stay, the others fill them."""
        columns, gone = self._redundancy.nodes, self._gone(seating)
        nodes = len(seating) - seating.count(None) + len(spares)
        count = min(self._most_rows, nodes // columns)
        kept = sorted(sorted(range(len(gone)), key=lambda k: len(gone[k]))[:count])
        rows = tuple(node for k in kept for node in seating[k * columns : (k + 1) * columns])
        rest = seatless(rows, (*spares, *(node for node in seating if node is not None)))
        return filled(rows + (None,) * (count * columns - len(rows)), rest)

    def _copies(self, seating: Seating, following: Seating) -> Iterator[Copied]:
        """What nodes on new seats copy: the state of their own layers and of the next node's, each from who has it."""
        columns, width = self._redundancy.nodes, self._job.workers_per_node
        state_bytes, turns = self._redundancy.whole_bytes, Counter[int]()
        column_of = {node: n % columns for n, node in enumerate(seating) if node is not None}
        for n, node in enumerate(following):
            column = n % columns
            if node is None or column_of.get(node) == column:
                continue
            for wanted in (column, (column + 1) % columns):
                row, at = self._source(seating, wanted, turns[wanted])
                turns[wanted] += 1
                for j in range(width):
                    sender, receiver = (row, at * width + j), (n // columns, column * width + j)
                    yield sender, receiver, state_bytes[wanted * width + j]

    def _source(self, seating: Seating, column: int, turn: int) -> Place:
        """A row and a column whose node has a column's state: its own; where all of these are gone, the replica."""
        columns = self._redundancy.nodes
        for at in (column, (column - 1) % columns):
            rows = [row for row, node in enumerate(seating[at::columns]) if node is not None]
            if rows:
                return rows[turn % len(rows)], at
        raise AssertionError("neighbours are gone in every pipeline")
