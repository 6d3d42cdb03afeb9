"""Bamboo: every node repeats its neighbour's forwards, and takes over when it dies.

J. Thorpe et al., "Bamboo: Making Preemptible Instances Resilient for Affordable Training of Large DNNs" (NSDI 2023), as
the papers of Oobleck (sections 2.2, 2.3, 7.1 and 7.4.2) and SlipStream (sections 2.3 and 5.2) describe it:

* "Each pipeline stage is redundantly computed in two subsequent nodes": the forward always, which makes every iteration
  longer, the backward only after a failure (`bamboo.py`). Oobleck's authors see "an increased number of pipeline
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

Where we deviate: replicas cost no optimizer step; a plan's stages hold consecutive layers (`bamboo.py`); more nodes
than the job asks for are spares. Of the job's shape its number of stages, its tensor-parallel degree and the global
batch count, and a limit of activations if it is the same for all stages; the schedule is 1F1B, memory and network are
the profile's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil

from ... import __version__
from ...schemas.documents import digest
from ...schemas.errors import InfeasibleError
from ...schemas.network import Rings, rings_of_nodes
from ...schemas.plan import Link, Pipeline, Place, Plan, Planner, Stage, Template, Worker
from ...schemas.quantities import print_apart, print_bytes
from ...schemas.replay import Checkpointing, Fleet, Moment, StateChange, TrainingState, Transition
from ..oobleck.pace import reduced_bytes
from ..pipeline import scheduled
from ..scheduling.assemble import with_prediction
from ..scheduling.retimed import Retimed
from ..shape import cut_stages, shape_options
from .job import (
    Copied,
    Seating,
    TrainingJob,
    activation_limit_bytes,
    checkpointing,
    copying_s,
    failing_over,
    filled,
    gpu_bytes,
    loading_s,
    pays,
    peak_bytes,
    regrouping,
    require_rate,
    restart,
    rows_of,
    seating_of,
    seatless,
    total_s,
    until_next_failure_s,
    whole_rows,
    without,
)
from .layout import Layout, PipelineKey, Pipelines, spread

# Pipelines whose nodes compute some of their neighbours' work as well, as Bamboo has it (bamboo.py).
#
# The nodes of a pipeline are a ring. Each keeps the state of the next one's layers beside its own, and repeats its
# forwards; the last one does so for the first. When a node is gone, the one before it has both nodes' layers, forward
# and backward, and repeats nobody's forwards any more; its GPUs share both nodes' stages, neighbours together. So two
# neighbours in the ring must not be gone at once.
#
# In a plan a repeated forward lengthens the stage's own: whether it fits into a bubble is for the schedule to say. A
# stage of a plan holds consecutive layers, so the first node's, once it is gone, are joined to the second's there,
# though it is the last node that has them: the time is that of two nodes' layers in one, all the same. Activations of
# repeated forwards are in the host's memory.


Gone = tuple[int, ...]  # nodes of a pipeline, by their index, ascending


@dataclass(frozen=True)
class Redundant:
    """The stages and links of a pipeline without some of its nodes, and the state that a GPU of each stage holds."""

    stages: tuple[Stage, ...]
    links: tuple[Link, ...]
    state_bytes: tuple[float, ...]


class Redundancy:
    """One job's pipelines with redundancy; degree of tensor parallelism, memory and network are its own.

    Args:
        job: what it trains.
        nodes: of a pipeline, two at least.

    Raises:
        InfeasibleError: there are fewer layers than stages, or each stage of the job has a limit of its own.
        InvalidInputError: a layer has no cost at the job's tensor-parallel degree.
    """

    def __init__(self, job: TrainingJob, nodes: int) -> None:
        self.job, self.nodes = job, nodes
        unlimited = replace(job.profile, device=replace(job.profile.device, memory_bytes=None))
        self._most_bytes = activation_limit_bytes(job, "Bamboo")
        self._alone = cut_stages(unlimited, nodes * job.workers_per_node, 1, job.shape.degree)
        self._known: dict[Gone, Redundant] = {}

    def require_memory(self) -> None:
        """Raise InfeasibleError if a GPU cannot hold two stages and a micro-batch of both, as after a failure."""
        needed_bytes, memory_bytes = self._of_two(self._least_bytes), self.job.profile.device.memory_bytes
        if memory_bytes is not None and needed_bytes > memory_bytes:
            needed, there = print_apart(needed_bytes, memory_bytes, print_bytes)
            raise InfeasibleError(
                f"with redundancy a GPU holds its own stage and its neighbour's, {needed}, and it has {there}",
                where="the profile, /device/memory_bytes",
                fix=f"leave Bamboo out: without redundancy a GPU holds {print_bytes(max(self._least_bytes))}",
            )
        needed_bytes = self._of_two([stage.activation_bytes for stage in self._alone.stages])
        if self._most_bytes is not None and needed_bytes > self._most_bytes:
            needed, most = print_apart(needed_bytes, self._most_bytes, print_bytes)
            raise InfeasibleError(
                f"with redundancy a GPU holds {needed} of activations of a micro-batch, of its own stage and its "
                f"neighbour's, and the limit is {most}",
                where="--memory-limit",
                fix="leave Bamboo out, or raise the limit",
            )

    def covers(self, gone: Gone) -> bool:
        """Whether a pipeline goes on without these nodes: no two are neighbours, and what others take over fits."""
        if any((node + 1) % self.nodes in gone for node in gone):
            return False
        return all(
            stage.memory_limit_bytes is None or stage.memory_limit_bytes >= stage.activation_bytes
            for stage in self.without(gone).stages
        )

    def without(self, gone: Gone) -> Redundant:
        """A pipeline without nodes of which no two are neighbours."""
        if gone not in self._known:
            rows = [row for node, covered in self._covering(gone) for row in self._node(node, covered, gone)]
            stages = tuple(stage for stage, _ in rows)
            ends = {stage.layers[1]: link for stage, link in zip(self._alone.stages, self._alone.links, strict=False)}
            links = tuple(ends[stage.layers[1]] for stage in stages[:-1])
            self._known[gone] = Redundant(stages, links, tuple(held_bytes for _, held_bytes in rows))
        return self._known[gone]

    @cached_property
    def whole_bytes(self) -> tuple[float, ...]:
        """Parameters and state that a GPU of each stage holds, its neighbour's not counted."""
        return tuple(gpu_bytes(self.job.profile.layers, stage) for stage in self._alone.stages)

    @cached_property
    def _least_bytes(self) -> tuple[float, ...]:
        """What a GPU of each stage holds with one micro-batch, its neighbour's not counted."""
        pairs = zip(self.whole_bytes, self._alone.stages, strict=True)
        return tuple(state_bytes + stage.activation_bytes for state_bytes, stage in pairs)

    def _of_two(self, values: Sequence[float]) -> float:
        """The most of a GPU and the same one of the next node in the ring."""
        width = self.job.workers_per_node
        return max(one + other for one, other in zip(values, (*values[width:], *values[:width]), strict=True))

    def _covering(self, gone: Gone) -> Iterator[tuple[int, range]]:
        """The nodes that are left, each with those whose layers it has."""
        left = [node for node in range(self.nodes) if node not in gone]
        ends = [0, *left[1:], self.nodes]
        return zip(left, (range(first, stop) for first, stop in pairwise(ends)), strict=True)

    def _node(self, node: int, covered: range, gone: Gone) -> Iterator[tuple[Stage, float]]:
        """The stages of a node's workers, and the state that a GPU of each holds."""
        width, each = self.job.workers_per_node, len(covered)
        follows = (node + 1) % self.nodes not in gone
        for first in range(covered.start * width, covered.stop * width, each):
            stages = self._alone.stages[first : first + each]
            state_bytes = sum(self.whole_bytes[first : first + each])
            repeated_s = 0.0
            if each == 1:
                replica = (first + width) % len(self._alone.stages)
                state_bytes += self.whole_bytes[replica]
                repeated_s = self._alone.stages[replica].forward_s if follows else 0.0
            yield _joined(stages, repeated_s, self._limit_bytes(state_bytes)), state_bytes

    def _limit_bytes(self, state_bytes: float) -> float | None:
        """What a GPU has for activations."""
        memory_bytes = self.job.profile.device.memory_bytes
        if memory_bytes is None:
            return self._most_bytes
        room_bytes = max(0.0, memory_bytes - state_bytes)
        return room_bytes if self._most_bytes is None else min(room_bytes, self._most_bytes)


def _joined(stages: Sequence[Stage], repeated_s: float, limit_bytes: float | None) -> Stage:
    """Neighbouring stages as one, which repeats forwards of another as well."""
    return replace(
        stages[0],
        layers=(stages[0].layers[0], stages[-1].layers[1]),
        forward_s=sum(stage.forward_s for stage in stages) + repeated_s,
        backward_input_s=sum(stage.backward_input_s for stage in stages),
        backward_weight_s=sum(stage.backward_weight_s for stage in stages),
        optimizer_s=sum(stage.optimizer_s for stage in stages),
        activation_bytes=sum(stage.activation_bytes for stage in stages),
        weight_stash_bytes=sum(stage.weight_stash_bytes for stage in stages),
        memory_limit_bytes=limit_bytes,
        backward_s=sum(one.duration_s("B") for one in stages) if any(one.backward_s for one in stages) else None,
    )


DEEPER = 1.5  # times as many stages as without redundancy


class Bamboo:
    """Redundant pipelines; formations are seatings, a row a pipeline.

    For replays only: `rtk run` cannot obey it.

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

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
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
        layout = self._layout(seating_of(standing))
        return with_prediction(self._scheduled(layout)) if layout else None

    def ordered(self, standing: TrainingState) -> Retimed:
        """The orders of the pipelines' plan."""
        return Retimed.of(self._scheduled(self._layout(seating_of(standing))))

    def _scheduled(self, layout: Layout) -> Plan:
        templates = {key.shape: self._template(key.shape, len(layout)) for key in layout}
        pipelines = tuple(Pipeline(templates[key.shape].name, key.microbatches) for key in layout)
        depths = [len(templates[key.shape].stages) for key in layout]
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
        width = self._job.workers_per_node
        rows = rows_of(seating_of(standing), self._redundancy.nodes)
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
    def _pipelines(self) -> Pipelines:
        return Pipelines(self._job.profile.layers, self._rings, self._redundancy.without)

    @property
    def _rings(self) -> Rings:
        """How gradients are summed: each pipeline has whole nodes."""
        return rings_of_nodes(self._job.profile.network, self._job.gpus_per_node)

    @property
    def _most_rows(self) -> int:
        return min(self._job.nodes // self._redundancy.nodes, self._job.microbatches)

    @cached_property
    def _checkpointing(self) -> Checkpointing:
        return checkpointing(self._job.costs, self._redundancy.whole_bytes)

    @cached_property
    def _loading_s(self) -> float:
        """How long nodes read their own state and the replica."""
        width = self._job.workers_per_node
        held_bytes = self._redundancy.without(()).state_bytes
        degree = self._job.shape.degree
        firsts = range(0, len(held_bytes), width)
        return loading_s(self._job.costs, [degree * sum(held_bytes[first : first + width]) for first in firsts])

    def _rows(self, fleet: Fleet) -> Seating:
        """The first nodes, in whole pipelines."""
        return whole_rows(fleet.nodes, self._redundancy.nodes, self._most_rows)

    def _gone(self, seating: Seating) -> list[Gone]:
        """The empty seats of each pipeline."""
        return [
            tuple(i for i, node in enumerate(row) if node is None) for row in rows_of(seating, self._redundancy.nodes)
        ]

    def _layout(self, seating: Seating) -> Layout:
        """The pipelines, by their empty seats."""
        gone = self._gone(seating)
        return tuple(map(PipelineKey, spread(self._job.microbatches, len(gone)), gone)) if gone else ()

    def _standing(self, seating: Seating) -> TrainingState:
        layout = self._layout(seating)
        if not layout:
            return TrainingState((), None, 0, 0)
        return TrainingState(
            formation=seating,
            iteration_time_s=self._pipelines.seconds(layout),
            microbatches=self._job.microbatches,
            nodes=len(seating) - seating.count(None),
            peak_memory_bytes=max(
                peak_bytes(self._redundancy.without(key.shape).state_bytes, self._pipelines.activation_bytes(key))
                for key in set(layout)
            ),
            checkpointing=self._checkpointing,
        )

    def _template(self, gone: Gone, pipelines: int) -> Template:
        """The stages of a pipeline with these empty seats, one of so many."""
        found, layers = self._redundancy.without(gone), self._job.profile.layers
        stages = (
            replace(stage, allreduce_s=self._rings.ring_s(reduced_bytes(layers, stage), pipelines))
            for stage in found.stages
        )
        return Template("-".join(["t0", *map(str, gone)]), tuple(stages), found.links)

    def _formed(self, standing: TrainingState, moment: Moment) -> Transition:
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
