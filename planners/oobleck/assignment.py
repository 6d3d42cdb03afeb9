"""Which node takes which place in the next pipelines, so that least is copied.

A node that takes a place copies the layers of the place that it does not hold. The places' layers are given, so least
is copied where most is kept: over all pairs of a node and its place, the bytes of the layers that both have.

Nodes that hold the same layers are of one kind, and so are places with the same layers: a transportation problem
between kinds, whose vertices are whole numbers. Two facts keep it small:

* Where a node's layers R are those of a place, they may meet at once. If they do not in an optimum, a node with layers
  S has the place R, and the node R a place Q; swapped, no less is kept, for |S ∩ R| + |R ∩ Q| <= |R| + |S ∩ Q|. After
  the loss of one node, few others are left to be decided on.
* A node and a place without a common layer need no variable: what the rest leaves over meets in any way.

So the answer is exact, up to the solver's tolerance (HiGHS, 1e-10 of the largest pair). Among nodes of one kind and
places of one kind, those keep their pipeline that keep most state in it, and their index where they can.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from ...schemas.checkpoint import missing_layers, print_layers
from ...schemas.errors import InfeasibleError
from ...schemas.plan import Place, Plan, Stage
from ...schemas.templates import nodes_of_stages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


# The nodes of a running job: where each is and which layers' state it holds.


Range = tuple[int, int]  # layers [first, stop)


@dataclass(frozen=True)
class CrewNode:
    """A node that is there.

    Attributes:
        name: of the node.
        position: its pipeline and its index there; None for one that joins.
        layers: [first, stop) whose state it holds; None where it holds none. In a running job these can differ from
            the plan's, for a failure may come before the copies for the last one were made.
    """

    name: str
    position: tuple[int, int] | None
    layers: Range | None


@dataclass(frozen=True)
class NodeShape:
    """What a node of a pipeline holds: stages [first, stop) and their layers [first, stop)."""

    stages: Range
    layers: Range


def node_shapes(stages: tuple[Stage, ...], gpus_per_node: int) -> tuple[NodeShape, ...]:
    """The nodes of a pipeline in order; `gpus_per_node` is M."""
    nodes = nodes_of_stages(stages, gpus_per_node)
    runs = [[i for i, _ in found] for _, found in groupby(enumerate(nodes), key=lambda pair: pair[1])]
    return tuple(
        NodeShape((run[0], run[-1] + 1), (stages[run[0]].layers[0], stages[run[-1]].layers[1])) for run in runs
    )


def crew_of(plan: Plan, gpus_per_node: int, failed: Collection[Place] = ()) -> tuple[CrewNode, ...]:
    """The nodes of a plan, each named by its first worker, `k/i`; without those that a failed worker is on.

    Args:
        plan: of pipelines made from templates; workers that it marks as failed have failed.
        gpus_per_node: M.
        failed: places of workers, pipeline and stage.
    """
    gone = {*failed, *(worker.place for worker in plan.workers if worker.failed)}
    shapes = {template.name: node_shapes(template.stages, gpus_per_node) for template in plan.templates}
    return tuple(
        CrewNode(f"{k}/{shape.stages[0]}", (k, node), shape.layers)
        for k, pipeline in enumerate(plan.pipelines)
        for node, shape in enumerate(shapes[pipeline.template])
        if not any((k, i) in gone for i in range(*shape.stages))
    )


def require_all_layers(crew: Sequence[CrewNode], layers: int) -> None:
    """Raise InfeasibleError if no node holds some layer: its state is lost."""
    lost = missing_layers(layers, {node.layers for node in crew if node.layers is not None})
    if lost:
        raise InfeasibleError(
            f"the state of {print_layers(lost)} is lost: no node that is left holds it",
            where="the nodes that are left",
            fix="go on from a checkpoint",
        )


# Who copies which layer from whom.
#
# "Oobleck", section 5: "nodes share information about the ownership of model states and copy missing model states from
# others". Ownership is by layer: whoever holds it and is still there may send it, whatever pipeline it is in. Layers
# that fewest hold come first, for they leave no choice; each comes from the holder that sends least so far.


NOTHING = (0, 0)  # layers


@dataclass(frozen=True)
class LayerCopy:
    """A node, `target`, gets the state of layers [first, stop) from another, `source`."""

    layers: Range
    source: str
    target: str
    size_bytes: float


def copies_between(
    crew: Sequence[CrewNode], needed: Sequence[tuple[CrewNode, Range]], layer_bytes: Sequence[float]
) -> tuple[LayerCopy, ...]:
    """What is copied so that nodes hold what they need.

    Args:
        crew: who can send; each layer is held by one of them or more.
        needed: the layers of nodes' new places.
        layer_bytes: state of each layer.
    """
    missing = [
        (layer, node.name)
        for node, place in needed
        if node.layers != place
        for layer in range(*place)
        if layer not in range(*node.layers or NOTHING)
    ]
    senders = _Senders(crew, {layer for layer, _ in missing}, layer_bytes)
    order = sorted(range(len(missing)), key=lambda n: (senders.holders[missing[n][0]], n))
    sources = {missing[n]: senders.next_of(missing[n][0]) for n in order}
    return tuple(_merged(missing, sources, layer_bytes))


class _Senders:
    """The nodes that hold each of some layers, by what they send so far.

    Attributes:
        holders: how many hold each layer.
    """

    def __init__(self, crew: Sequence[CrewNode], layers: set[int], layer_bytes: Sequence[float]) -> None:
        self._crew, self._bytes = crew, layer_bytes
        kinds: defaultdict[Range, list[tuple[float, int, int]]] = defaultdict(list)
        for n, node in enumerate(crew):
            if node.layers:
                kinds[node.layers].append((0.0, 0, n))  # bytes, layers and the node: a heap, for n ascends
        self._heaps = {layer: [heap for kind, heap in kinds.items() if layer in range(*kind)] for layer in layers}
        self.holders = {layer: sum(map(len, heaps)) for layer, heaps in self._heaps.items()}

    def next_of(self, layer: int) -> str:
        """The holder of a layer that sends least so far, which now sends this too."""
        heap = min(self._heaps[layer], key=itemgetter(0))
        size_bytes, layers, n = heap[0]
        heapreplace(heap, (size_bytes + self._bytes[layer], layers + 1, n))
        return self._crew[n].name


def _merged(
    missing: Sequence[tuple[int, str]], sources: dict[tuple[int, str], str], layer_bytes: Sequence[float]
) -> Iterator[LayerCopy]:
    """Copies, neighbouring layers from one source in one."""
    if not missing:
        return
    first = missing[0][0]
    for (layer, target), then in pairwise([*missing, (-1, "")]):
        source = sources[layer, target]
        if then != (layer + 1, target) or sources[then] != source:
            yield LayerCopy((first, layer + 1), source, target, sum(layer_bytes[first : layer + 1]))
            first = then[0]


# The sizes of the next pipelines: the paper's three steps.
#
# "Oobleck: Resilient Distributed Training of Large Models Using Pipeline Templates", section 5.1 and Appendix B. A
# pipeline that lost nodes takes the template of its new size (*simple*); if it is too small for any, it *borrows* nodes
# from the largest; if nobody can yield one, pipelines *merge*. Nodes that *join* are ours to place.
#
# What the paper leaves open, or its implementation got wrong:
#
# * Only sizes are decided here. Which node goes where is another question (assignment.py), for a node's worth lies in
# the
#   layers that it holds, not in the pipeline that it is in.
# * What a merge brings beyond the smallest size is lent at once to others that are too small, so that three pipelines
# of
#   3, 3 and 2 nodes become two of 4 and not one of 8.
# * A merged pipeline can exceed the largest template where few templates were made; the rest goes to the smallest
# others.
# * A pipeline that lost all its nodes is *dropped*, unless that leaves fewer than f + 1: then it borrows all of them.
# * Nodes that join fill up pipelines that are too small, then form new ones; a rest too small for that makes the
# smallest
#   pipelines larger, and where all are as large as can be, it borrows what it lacks.
#
# Merging ends with n // n_0 pipelines for n nodes: while it goes on all others have n_0 nodes, and the merged ones have
# fewer than 2 n_0 together. So from (f + 1) n_0 nodes on, f + 1 pipelines remain.


Step = Literal["drop", "simple", "borrow", "merge", "join", "new set"]
STEPS: tuple[Step, ...] = ("drop", "simple", "borrow", "merge", "join")


@dataclass(frozen=True)
class Sizes:
    """What pipelines may look like.

    Attributes:
        smallest, largest: nodes of each.
        fewest: pipelines that there must be.
        most: pipelines that the batch can be split for, `fewest` or more; None where that does not limit them. The
            steps do not heed it.
    """

    smallest: int
    largest: int
    fewest: int
    most: int | None = None

    @property
    def least(self) -> int:
        """The fewest nodes that there must be."""
        return self.fewest * self.smallest

    def require(self, nodes: int, *, or_more: bool = False) -> None:
        """Raise InfeasibleError unless pipelines can use exactly so many nodes; or all but some that wait."""
        if nodes < self.least:
            raise InfeasibleError(
                f"{nodes} nodes cannot hold {self.fewest} pipelines of {self.smallest} nodes or more",
                where="the nodes that are left",
                fix=f"at least {self.least} nodes are needed: go on from a checkpoint once there are so many",
            )
        usable = self.usable(nodes)
        if nodes > usable and not or_more:
            raise InfeasibleError(
                self.cannot_use(nodes),
                where="the nodes that are left",
                fix=f"let {nodes - usable} wait: {usable} can be used",
            )

    def usable(self, nodes: int) -> int:
        """How many of so many nodes pipelines can use; more than the job began with may leave some over."""
        pipelines = nodes // self.smallest
        return min(nodes, (pipelines if self.most is None else min(pipelines, self.most)) * self.largest)

    def cannot_use(self, nodes: int) -> str:
        """What is wrong with a number of nodes that pipelines cannot use all of."""
        sizes = f"pipelines of {self.smallest} to {self.largest} nodes cannot use {nodes} nodes"
        if self.most is None or nodes // self.smallest <= self.most:
            return sizes
        return f"{self.most} {sizes}, and the batch is too small for more"

    def around(self, nodes: int) -> list[int]:
        """The numbers next to this one of which pipelines can use all; just this one, where they can."""
        below, above = self.usable(nodes), (nodes // self.smallest + 1) * self.smallest  # enough for another pipeline
        return [below, above] if below < nodes and self.usable(above) == above else [below]


@dataclass(frozen=True)
class PipelineAssignment:
    """The next pipelines.

    Attributes:
        sizes: nodes of each.
        origins: the present pipeline that each replaces, None for a new one.
        steps: what was done.
    """

    sizes: tuple[int, ...]
    origins: tuple[int | None, ...]
    steps: tuple[Step, ...]


@dataclass
class _NodeGroup:
    origin: int | None
    nodes: int
    held_bytes: float


def reinstantiate(
    before: Sequence[int], left: Sequence[int], held_bytes: Sequence[float], joining: int, allowed: Sizes
) -> PipelineAssignment:
    """The next pipelines.

    Args:
        before: nodes of each present pipeline.
        left: those that survive.
        held_bytes: what these hold: of pipelines that merge, the one that holds most goes on.
        joining: nodes that join.
        allowed: the sizes there are.

    Raises:
        InfeasibleError: no pipelines of these sizes use these nodes, or fewer than must be.
    """
    allowed.require(sum(left) + joining)
    steps: set[Step] = set()
    if any(allowed.smallest <= now < was for now, was in zip(left, before, strict=True)):
        steps.add("simple")
    if joining:
        steps.add("join")
    # The pipelines that have nodes, and as many empty ones as are needed beside them.
    found = [_NodeGroup(k, nodes, held) for k, (nodes, held) in enumerate(zip(left, held_bytes, strict=True))]
    living = sum(nodes > 0 for nodes in left)
    empty = [group for group in found if not group.nodes][: max(0, allowed.fewest - living)]
    missing = allowed.fewest - living - len(empty)
    new = [_NodeGroup(None, 0, 0.0) for _ in range(missing)]
    groups = [group for group in found if group.nodes] + empty + new
    if len(groups) < len(before):
        steps.add("drop")
    spare = _fill(groups, joining, allowed.smallest)
    steps |= _complete(groups, allowed)
    steps |= _place(groups, spare, allowed)
    groups.sort(key=lambda group: (group.origin is None, group.origin))
    return PipelineAssignment(
        tuple(group.nodes for group in groups),
        tuple(group.origin for group in groups),
        tuple(step for step in STEPS if step in steps),
    )


def _fill(groups: list[_NodeGroup], joining: int, smallest: int) -> int:
    """Give joining nodes to pipelines that are too small, least missing first; what is left of them."""
    for group in sorted(groups, key=lambda group: -group.nodes):
        given = min(joining, max(0, smallest - group.nodes))
        group.nodes += given
        joining -= given
    return joining


def _complete(groups: list[_NodeGroup], allowed: Sizes) -> set[Step]:
    """Borrow, and where nobody can yield, merge, until no pipeline is too small."""
    steps: set[Step] = set()
    while True:
        small = sorted((g for g in groups if g.nodes < allowed.smallest), key=lambda g: g.nodes)
        if not small:
            return steps
        largest = max(reversed(groups), key=lambda g: g.nodes)  # of equal ones the last, as upstream has it
        if largest.nodes > allowed.smallest:
            largest.nodes -= 1
            small[-1].nodes += 1
            steps.add("borrow")
        else:
            steps |= {"merge"} if small[0].nodes else set()
            # Merge the two smallest pipelines; what is too much for one goes to the smallest others.
            one = small[0]
            other = small[1] if len(small) > 1 else min((g for g in groups if g is not one), key=lambda g: g.nodes)
            kept, given = sorted((one, other), key=lambda g: -g.held_bytes)
            kept.nodes += given.nodes
            kept.held_bytes += given.held_bytes
            groups[:] = [g for g in groups if g is not given]
            excess = max(0, kept.nodes - allowed.largest)
            kept.nodes -= excess
            _spread(groups, excess, allowed.largest)


def _place(groups: list[_NodeGroup], spare: int, allowed: Sizes) -> set[Step]:
    """Use nodes that joined and that no pipeline lacks."""
    while spare >= allowed.smallest:
        groups.append(_NodeGroup(None, allowed.smallest, 0.0))
        spare -= allowed.smallest
    spare = _spread(groups, spare, allowed.largest)
    if not spare:
        return set()
    groups.append(_NodeGroup(None, spare, 0.0))
    return _complete(groups, allowed)


def _spread(groups: list[_NodeGroup], nodes: int, largest: int) -> int:
    """Give nodes one by one to the smallest pipelines; what remains when all are as large as can be."""
    while nodes:
        smallest = min(groups, key=lambda g: g.nodes)
        if smallest.nodes >= largest:
            return nodes
        smallest.nodes += 1
        nodes -= 1
    return 0


if TYPE_CHECKING:
    Flows = Counter[tuple[Range | None, Range]]

NO_LAYERS = (0, 0)
TOLERANCE = 1e-10

Seats = list[list[CrewNode]]


class LayerSizes:
    """What layers weigh, and ranges of them.

    Args:
        layer_bytes: of each layer; where nothing has a size, each layer counts as one byte.
    """

    def __init__(self, layer_bytes: Sequence[float]) -> None:
        sizes = layer_bytes if any(layer_bytes) else [1.0] * len(layer_bytes)
        self.until = np.array([0.0, *accumulate(sizes)])

    def common(self, one: Range | None, other: Range | None) -> float:
        """The bytes of the layers in both ranges."""
        if one is None or other is None:
            return 0.0
        first, stop = max(one[0], other[0]), min(one[1], other[1])
        return float(self.until[stop] - self.until[first]) if first < stop else 0.0

    def table(self, ones: Sequence[Range], others: Sequence[Range]) -> Floats:
        """`common` of every pair, `ones x others`."""
        one, other = np.array(ones).reshape(-1, 1, 2), np.array(others).reshape(1, -1, 2)
        first = np.maximum(one[..., 0], other[..., 0])
        stop = np.maximum(first, np.minimum(one[..., 1], other[..., 1]))
        return cast("Floats", self.until[stop] - self.until[first])


def assign(
    crew: Sequence[CrewNode], pipelines: PipelineAssignment, places: Mapping[int, Sequence[Range]], weigh: LayerSizes
) -> Seats:
    """The nodes of each pipeline, by their index there, so that least is copied.

    Args:
        crew: as many nodes as the pipelines have.
        pipelines: to be filled.
        places: the layers of each node of a pipeline, by the pipeline's number of nodes.
        weigh: sizes of the layers.
    """
    supply = Counter(node.layers for node in crew)
    demand = Counter(layers for size in pipelines.sizes for layers in places[size])
    return _Seating(pipelines, places, weigh, _flows(supply, demand, weigh)).seated(crew)


def _flows(supply: Counter[Range | None], demand: Counter[Range], weigh: LayerSizes) -> Flows:
    """How many nodes of each kind take places of each kind."""
    supply, demand = supply.copy(), demand.copy()
    flows: Flows = Counter()
    for take in (_equal, _overlapping, _others):
        for kind, place, number in list(take(supply, demand, weigh)):
            flows[kind, place] += number
            supply[kind] -= number
            demand[place] -= number
        supply, demand = +supply, +demand
    return flows


def _equal(
    supply: Counter[Range | None], demand: Counter[Range], weigh: LayerSizes
) -> Iterator[tuple[Range, Range, int]]:
    """Nodes whose place has just their layers."""
    for place, number in demand.items():
        if supply[place]:
            yield place, place, min(number, supply[place])


def _overlapping(
    supply: Counter[Range | None], demand: Counter[Range], weigh: LayerSizes
) -> Iterator[tuple[Range, Range, int]]:
    """Nodes that keep some layers, as the transportation problem has it."""
    kinds, places = sorted(kind for kind in supply if kind is not None), sorted(demand)
    if not kinds or not places:
        return
    kept = weigh.table(kinds, places)
    one, other = np.nonzero(kept)
    if not len(one):
        return
    limits = [supply[kind] for kind in kinds] + [demand[place] for place in places]
    numbers = _transport(one, other + len(kinds), kept[one, other], limits)
    for k, p, number in zip(one.tolist(), other.tolist(), numbers, strict=True):
        if number:
            yield kinds[k], places[p], number


def _others(
    supply: Counter[Range | None], demand: Counter[Range], weigh: LayerSizes
) -> Iterator[tuple[Range | None, Range, int]]:
    """Nodes that keep nothing, in order."""
    kinds = sorted(supply.elements(), key=lambda kind: kind or NO_LAYERS)
    for kind, place in zip(kinds, sorted(demand.elements()), strict=True):
        yield kind, place, 1


def _transport(one: NDArray[np.int64], other: NDArray[np.int64], worth: Floats, limits: Sequence[int]) -> list[int]:
    """How much flows along each edge, so that all is worth most and no end has more than its limit."""
    import highspy

    edges = len(one)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = edges, len(limits)
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_ = worth / worth.max()
    model.col_lower_, model.col_upper_ = np.zeros(edges), np.full(edges, highspy.kHighsInf)
    model.row_lower_, model.row_upper_ = np.full(len(limits), -highspy.kHighsInf), np.array(limits, dtype=float)
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.arange(edges + 1) * 2
    model.a_matrix_.index_ = np.stack([one, other], axis=1).ravel()
    model.a_matrix_.value_ = np.ones(2 * edges)
    highs = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 1), ("solver", "simplex"),
                          ("dual_feasibility_tolerance", TOLERANCE)):  # fmt: skip
        highs.setOptionValue(option, value)
    highs.passModel(model)
    highs.run()
    assert highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return [round(value) for value in highs.getSolution().col_value]


class _Seating:
    """From numbers between kinds to nodes in places."""

    def __init__(
        self, pipelines: PipelineAssignment, places: Mapping[int, Sequence[Range]], weigh: LayerSizes, flows: Flows
    ) -> None:
        self._pipelines, self._places, self._weigh, self._flows = pipelines, places, weigh, flows
        self._seats: list[list[CrewNode | None]] = [[None] * size for size in pipelines.sizes]
        self._free: dict[Range, list[tuple[int, int]]] = defaultdict(list)
        for j, size in reversed(list(enumerate(pipelines.sizes))):
            for i, layers in reversed(list(enumerate(places[size]))):
                self._free[layers].append((j, i))
        self._targets: dict[Range | None, list[Range]] = defaultdict(list)
        for kind, place in sorted(flows, key=lambda flow: (flow[0] or NO_LAYERS, flow[1])):
            self._targets[kind].append(place)

    def seated(self, crew: Sequence[CrewNode]) -> Seats:
        """The nodes of each pipeline."""
        standing: set[str] = set()
        for node, seat in self._staying(crew):
            if node.name not in standing and self._take(node, *seat):
                standing.add(node.name)
        for node in crew:
            if node.name not in standing:
                place = next(place for place in self._targets[node.layers] if self._flows[node.layers, place])
                while not self._take(node, *self._free[place].pop()):
                    pass
        return cast("Seats", self._seats)

    def _take(self, node: CrewNode, j: int, i: int) -> bool:
        """Seat a node, if nobody sits there and its kind may."""
        flow = node.layers, self._places[self._pipelines.sizes[j]][i]
        if self._seats[j][i] is not None or not self._flows[flow]:
            return False
        self._seats[j][i] = node
        self._flows[flow] -= 1
        return True

    def _staying(self, crew: Sequence[CrewNode]) -> list[tuple[CrewNode, tuple[int, int]]]:
        """Nodes with seats in the pipeline they are in: those that keep most first, and their own index first."""
        next_of = {origin: j for j, origin in enumerate(self._pipelines.origins) if origin is not None}
        index_of = [{layers: i for i, layers in enumerate(self._places[size])} for size in self._pipelines.sizes]
        found = []
        for n, node in enumerate(crew):
            if node.position is None or node.position[0] not in next_of:
                continue
            j = next_of[node.position[0]]
            for place in self._targets[node.layers]:
                i = index_of[j].get(place)
                if i is not None:
                    kept = self._weigh.common(node.layers, place)
                    found.append((-kept, abs(i - node.position[1]), n, (j, i)))
        return [(crew[n], seat) for _, _, n, seat in sorted(found)]
