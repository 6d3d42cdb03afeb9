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
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, cast

import numpy as np

from .crew import CrewNode, Range
from .steps import Pipelines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flows = Counter[tuple[Range | None, Range]]
    Floats = NDArray[np.float64]

NO_LAYERS = (0, 0)
TOLERANCE = 1e-10

Seats = list[list[CrewNode]]


class LayerBytes:
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
    crew: Sequence[CrewNode], pipelines: Pipelines, places: Mapping[int, Sequence[Range]], weigh: LayerBytes
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


def _flows(supply: Counter[Range | None], demand: Counter[Range], weigh: LayerBytes) -> Flows:
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
    supply: Counter[Range | None], demand: Counter[Range], weigh: LayerBytes
) -> Iterator[tuple[Range, Range, int]]:
    """Nodes whose place has just their layers."""
    for place, number in demand.items():
        if supply[place]:
            yield place, place, min(number, supply[place])


def _overlapping(
    supply: Counter[Range | None], demand: Counter[Range], weigh: LayerBytes
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
    supply: Counter[Range | None], demand: Counter[Range], weigh: LayerBytes
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
        self, pipelines: Pipelines, places: Mapping[int, Sequence[Range]], weigh: LayerBytes, flows: Flows
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
