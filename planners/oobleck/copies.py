"""Who copies which layer from whom, and how long that takes.

"Oobleck", section 5: "nodes share information about the ownership of model states and copy missing model states from
others". Ownership is by layer: whoever holds it and is still there may send it, whatever pipeline it is in. Layers that
fewest hold come first, for they leave no choice; each comes from the holder that sends least so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import pairwise

from ...schemas.profile import Connection
from .crew import CrewNode, Range


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
    missing = [
        (layer, node.name) for node, (first, stop) in needed for layer in range(first, stop) if not _holds(node, layer)
    ]
    senders = _Senders(crew, {layer for layer, _ in missing}, layer_bytes)
    order = sorted(range(len(missing)), key=lambda n: (senders.holders(missing[n][0]), n))
    sources = {missing[n]: senders.next_of(missing[n][0]) for n in order}
    return tuple(_merged(missing, sources, layer_bytes))


def copying_s(copies: Sequence[Copy], connection: Connection | None) -> float | None:
    """How long copies take in s, None where that is not known.

    A node sends one copy at a time, and receives one at a time, and does both at once. The busiest node's time is
    the whole time: copies that may be interrupted can be ordered so (Gonzalez and Sahni, open shops).
    """
    if not any(copy.size_bytes for copy in copies):
        return 0.0
    if connection is None or connection.bandwidth_bytes_per_s is None:
        return None
    sends_s: Counter[str] = Counter()
    receives_s: Counter[str] = Counter()
    for copy in copies:
        lasts_s = connection.transfer_s(copy.size_bytes)
        sends_s[copy.source] += lasts_s  # type: ignore[assignment]
        receives_s[copy.target] += lasts_s  # type: ignore[assignment]
    return float(max(*sends_s.values(), *receives_s.values()))


class _Senders:
    """The nodes that hold each of some layers, by what they send so far."""

    def __init__(self, crew: Sequence[CrewNode], layers: set[int], layer_bytes: Sequence[float]) -> None:
        self._crew, self._bytes = crew, layer_bytes
        self._sent = [(0.0, 0, n) for n in range(len(crew))]  # bytes, layers and the node
        self._heaps: dict[int, list[tuple[float, int, int]]] = {layer: [] for layer in layers}
        for n, node in enumerate(crew):
            for layer in range(*node.layers) if node.layers else ():
                if layer in layers:
                    self._heaps[layer].append(self._sent[n])
        for heap in self._heaps.values():
            heapify(heap)

    def holders(self, layer: int) -> int:
        """How many hold a layer."""
        return len(self._heaps[layer])

    def next_of(self, layer: int) -> str:
        """The holder of a layer that sends least so far, which now sends this too."""
        heap = self._heaps[layer]
        while heap[0] != self._sent[heap[0][2]]:
            heapreplace(heap, self._sent[heap[0][2]])
        size_bytes, layers, n = heap[0]
        self._sent[n] = size_bytes + self._bytes[layer], layers + 1, n
        return self._crew[n].name


def _holds(node: CrewNode, layer: int) -> bool:
    return node.layers is not None and node.layers[0] <= layer < node.layers[1]


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
