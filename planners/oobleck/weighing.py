"""Two sets of pipelines for the nodes that are there, and which of them to take.

The paper's steps keep what runs; the fastest set may be worth more copies. Each gets the whole batch, seats its nodes
so that least is copied, and is judged by when it has done so many iterations, the time of copying counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from ...schemas.errors import InfeasibleError
from ...schemas.profile import Connection
from ...schemas.templates import Templates
from ..batch.distribute import Distribution, Objective, Solver, distribute
from ..batch.pace import Pace
from ..scheduling.proof import ROUNDING
from .assignment import LayerBytes, assign
from .copies import Copy, copies_between
from .crew import CrewNode, Range, node_shapes, require_all_layers
from .ending import connection_of, ending_of
from .instantiation import fastest_sizes, fewest_pipelines
from .pace import paces_of
from .steps import Pipelines, Sizes, reinstantiate


@dataclass(frozen=True)
class Batch:
    """What is distributed over pipelines: all micro-batches of an iteration, and how (planners/batch/distribute.py)."""

    microbatches: int
    multiple_of: int = 1
    objective: Objective = "min-max"
    solver: Solver = "exact"


@dataclass(frozen=True)
class Standing:
    """Who is there.

    Attributes:
        before: nodes of each pipeline of the running plan.
        crew: the nodes that are left, and those that join.
    """

    before: tuple[int, ...]
    crew: tuple[CrewNode, ...]

    @cached_property
    def left(self) -> tuple[int, ...]:
        """Nodes that are left of each pipeline."""
        counts = [0] * len(self.before)
        for node in self.crew:
            if node.position is not None:
                counts[node.position[0]] += 1
        return tuple(counts)


@dataclass(frozen=True)
class Proposal:
    """A set of pipelines, nobody seated yet; as for a `Choice`."""

    pipelines: Pipelines
    microbatches: tuple[int, ...]
    iteration_s: float


@dataclass(frozen=True)
class Choice:
    """A set of pipelines, seated.

    Attributes:
        pipelines: their sizes, and which present ones they replace.
        microbatches: of each.
        iteration_s: the time of the slowest by its pace, and then of the all-reduce and the optimizer step.
        seats: the nodes of each, in order.
        places: the layers of these places, by a pipeline's number of nodes.
        copies: who copies what from whom.
        copying_s: how long that takes; None where it is not known.
    """

    pipelines: Pipelines
    microbatches: tuple[int, ...]
    iteration_s: float
    seats: tuple[tuple[CrewNode, ...], ...]
    places: Mapping[int, tuple[Range, ...]]
    copies: tuple[Copy, ...]
    copying_s: float | None

    @property
    def moved_bytes(self) -> float:
        """All that is copied."""
        return sum(copy.size_bytes for copy in self.copies)

    @property
    def crew(self) -> tuple[CrewNode, ...]:
        """The nodes in the order of their places, holding what these need: once the copies are made."""
        return tuple(
            CrewNode(node.name, (j, i), self.places[self.pipelines.sizes[j]][i])
            for j, nodes in enumerate(self.seats)
            for i, node in enumerate(nodes)
        )


class Weighing:
    """One job's templates and batch, made ready to choose pipelines for any nodes.

    Args:
        templates: of the job.
        batch: that stays the same, whatever happens.
        copying: what a node's state is copied over; None: the network between nodes.
        paces: of the templates; None: as their 1F1B has them.
    """

    def __init__(
        self,
        templates: Templates,
        batch: Batch,
        copying: Connection | None = None,
        paces: Sequence[Pace] | None = None,
    ) -> None:
        self.templates, self.batch = templates, batch
        self._given_paces = paces
        fewest = templates.fault_tolerance + 1
        units = batch.microbatches // batch.multiple_of
        self.sizes = Sizes(templates.smallest, templates.largest, fewest, max(fewest, units))
        self.layer_bytes = [layer.parameter_bytes + layer.state_bytes for layer in templates.layers]
        self._ending = ending_of(templates)
        self._connection = copying or connection_of(templates)
        self._weigh = LayerBytes(self.layer_bytes)
        self._sizes_of: dict[int, tuple[int, ...]] = {}  # by number of nodes
        self._shared: dict[tuple[int, ...], Distribution] = {}  # by sizes of pipelines

    def anew(self, nodes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The pipelines of so many nodes whose iteration ends first: the nodes of each, and its micro-batches.

        Raises:
            InfeasibleError: the batch has too few micro-batches for f + 1 pipelines.
        """
        sizes = self._fastest_sizes(nodes)
        return sizes, self._distributed(sizes)[0]

    def chosen(self, standing: Standing, pays_within: int) -> Choice:
        """The pipelines that have done `pays_within` iterations first; where that is 0 or unknown, the steps'.

        Raises:
            InfeasibleError: no pipelines use these nodes, a layer's state is lost, or the batch has too few
                micro-batches for f + 1 pipelines.
        """
        require_all_layers(standing.crew, len(self.layer_bytes))
        stepped = self._stepped(standing)
        if stepped is None:
            return self._seated(standing, self._fastest(standing))
        if not pays_within or not self._knows_copying:
            return self._seated(standing, stepped)
        fastest = self._fastest(standing)
        if sorted(fastest.pipelines.sizes) == sorted(stepped.pipelines.sizes):  # the least copies are the same, too
            return self._seated(standing, stepped)
        found = self._seated(standing, fastest)
        if _pays_anyway(found, stepped, pays_within):
            return found
        kept = self._seated(standing, stepped)
        return found if _is_better(found, kept, pays_within) else kept

    @property
    def _knows_copying(self) -> bool:
        """Whether it is known how much is copied and how fast: else copying would seem to be free."""
        return any(self.layer_bytes) and self._connection.bandwidth_bytes_per_s is not None

    def _stepped(self, standing: Standing) -> Proposal | None:
        """What the paper's steps give; None where they give more pipelines than the batch can be split for."""
        held = [0.0] * len(standing.before)
        for node in standing.crew:
            if node.position is not None:
                held[node.position[0]] += self._weigh.common(node.layers, (0, len(self.layer_bytes)))
        joining = len(standing.crew) - sum(standing.left)
        pipelines = reinstantiate(standing.before, standing.left, held, joining, self.sizes)
        try:
            return Proposal(pipelines, *self._distributed(pipelines.sizes))
        except InfeasibleError:
            return None

    def _fastest(self, standing: Standing) -> Proposal:
        """The pipelines whose iteration ends first, if all were begun anew."""
        pipelines = _succeeding(self._fastest_sizes(len(standing.crew)), standing.left)
        return Proposal(pipelines, *self._distributed(pipelines.sizes))

    def _fastest_sizes(self, nodes: int) -> tuple[int, ...]:
        """The nodes of each of these pipelines, descending."""
        if nodes not in self._sizes_of:
            batch = self.batch
            fewest = [self._paces[-1]] * fewest_pipelines(self.templates, nodes)
            distribute(fewest, batch.microbatches, batch.multiple_of)  # says which batch would do
            asked = nodes, batch.microbatches, batch.multiple_of
            near = min(self._sizes_of, key=lambda known: abs(known - nodes), default=None)
            likely = None if near is None else len(self._sizes_of[near])
            self._sizes_of[nodes] = fastest_sizes(self.templates, self._paces, self._ending, *asked, likely)
        return self._sizes_of[nodes]

    def _distributed(self, sizes: Sequence[int]) -> tuple[tuple[int, ...], float]:
        """The micro-batches of pipelines of these sizes, and the time of an iteration."""
        falling = tuple(sorted(sizes, reverse=True))
        if falling not in self._shared:
            self._shared[falling] = self._distribution(falling)
        found = self._shared[falling]
        rest: dict[int, list[int]] = {size: [] for size in falling}
        for size, number in zip(reversed(falling), reversed(found.microbatches), strict=True):
            rest[size].append(number)
        return tuple(rest[size].pop() for size in sizes), found.slowest_s + self._ending.lasts_s(sizes)

    def _distribution(self, falling: Sequence[int]) -> Distribution:
        """The micro-batches of pipelines of falling sizes.

        Least variance asks for equal numbers in equal pipelines, but a job must go on: where the batch cannot be split
        so, each pipeline has a number of its own.
        """
        batch, paces = self.batch, [self._paces[size - self.templates.smallest] for size in falling]
        asked = (paces, batch.microbatches, batch.multiple_of, batch.objective, batch.solver)
        if batch.objective == "variance":
            with suppress(InfeasibleError):
                return distribute(*asked, shared=[falling.count(size) for size in dict.fromkeys(falling)])
        return distribute(*asked)

    def _seated(self, standing: Standing, proposal: Proposal) -> Choice:
        pipelines = proposal.pipelines
        places = {size: self._places[size - self.templates.smallest] for size in set(pipelines.sizes)}
        seats = assign(standing.crew, pipelines, places, self._weigh)
        needed = [
            (node, layers)
            for size, nodes in zip(pipelines.sizes, seats, strict=True)
            for node, layers in zip(nodes, places[size], strict=True)
        ]
        copies = copies_between(standing.crew, needed, self.layer_bytes)
        copying_s = self._connection.copying_s((copy.source, copy.target, copy.size_bytes) for copy in copies)
        return Choice(
            pipelines,
            proposal.microbatches,
            proposal.iteration_s,
            tuple(map(tuple, seats)),
            places,
            copies,
            copying_s,
        )

    @cached_property
    def _paces(self) -> Sequence[Pace]:
        if self._given_paces is not None:
            return self._given_paces
        return paces_of(self.templates.templates, self.batch.microbatches, self.templates.nodes)

    @cached_property
    def _places(self) -> list[tuple[Range, ...]]:
        """The layers of each node, of each template."""
        gpus = self.templates.gpus_per_node
        return [
            tuple(shape.layers for shape in node_shapes(template.stages, gpus)) for template in self.templates.templates
        ]


def _pays_anyway(fastest: Choice, stepped: Proposal, pays_within: int) -> bool:
    """Whether the fastest pipelines have done so many iterations first even if the others had nothing to copy."""
    assert fastest.copying_s is not None
    gain_s = stepped.iteration_s - fastest.iteration_s
    return gain_s > ROUNDING * stepped.iteration_s and pays_within * gain_s > fastest.copying_s


def _is_better(fastest: Choice, stepped: Choice, pays_within: int) -> bool:
    """Whether the fastest pipelines have done so many iterations first; equal times: whether they move less."""
    assert fastest.copying_s is not None and stepped.copying_s is not None
    if abs(fastest.iteration_s - stepped.iteration_s) <= ROUNDING * stepped.iteration_s:
        return fastest.moved_bytes < stepped.moved_bytes * (1 - ROUNDING)
    gain_s = pays_within * (stepped.iteration_s - fastest.iteration_s)
    return gain_s > fastest.copying_s - stepped.copying_s


def _succeeding(sizes: Sequence[int], left: Sequence[int]) -> Pipelines:
    """Pipelines that replace present ones: those with as many nodes first, then the larger the larger ones."""
    free = sorted(sizes, reverse=True)
    found: list[tuple[int, int]] = []
    others = []
    for k in sorted((k for k, nodes in enumerate(left) if nodes), key=lambda k: -left[k]):
        if left[k] in free:
            free.remove(left[k])
            found.append((k, left[k]))
        else:
            others.append(k)
    found += zip(others, free, strict=False)
    new = free[len(others) :]
    found.sort()
    return Pipelines((*(size for _, size in found), *new), (*(k for k, _ in found), *[None] * len(new)), ("new set",))
