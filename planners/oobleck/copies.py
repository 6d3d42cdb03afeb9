"""Who copies which layer from whom.

"Oobleck", section 5: "nodes share information about the ownership of model states and copy missing model states from
others". Ownership is by layer: whoever holds it and is still there may send it, whatever pipeline it is in. Layers that
fewest hold come first, for they leave no choice; each comes from the holder that sends least so far.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from itertools import pairwise
from operator import itemgetter

from .crew import CrewNode, Range

NOTHING = (0, 0)  # layers


@dataclass(frozen=True)
class Copy:
    """A node, `target`, gets the state of layers [first, stop) from another, `source`."""

    layers: Range
    source: str
    target: str
    size_bytes: float


def copies_between(
    crew: Sequence[CrewNode], needed: Sequence[tuple[CrewNode, Range]], layer_bytes: Sequence[float]
) -> tuple[Copy, ...]:
    """What is copied so that nodes hold what they need.

    Args:
        crew: who can send; each layer is held by one of them or more.
        needed: the layers of nodes' new places.
        layer_bytes: state of each layer.
    """
    missing = [(layer, node.name) for node, place in needed for layer in _missing(node, place)]
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


def _missing(node: CrewNode, place: Range) -> Iterable[int]:
    """The layers of a place that a node does not hold."""
    held = range(*node.layers or NOTHING)
    return (layer for layer in range(*place) if layer not in held) if node.layers != place else ()


def _merged(
    missing: Sequence[tuple[int, str]], sources: dict[tuple[int, str], str], layer_bytes: Sequence[float]
) -> Iterator[Copy]:
    """Copies, neighbouring layers from one source in one."""
    if not missing:
        return
    first = missing[0][0]
    for (layer, target), then in pairwise([*missing, (-1, "")]):
        source = sources[layer, target]
        if then != (layer + 1, target) or sources[then] != source:
            yield Copy((first, layer + 1), source, target, sum(layer_bytes[first : layer + 1]))
            first = then[0]
