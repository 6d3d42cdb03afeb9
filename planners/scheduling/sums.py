"""The parts in which gradients are summed: runs of layers with the same holders, from the last to the first.

The sum of a part begins when all its holders have ended their operations and are through with the parts behind that
they hold, and takes its share of their longest `allreduce_s` (docs/semantics.md). Somebody holds both of two
neighbouring parts of a component, so the parts of a component are summed one after the other. Where all pipelines cut
the layers alike, a part is a stage, and a component too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ...schemas.plan import Layers


@dataclass(frozen=True)
class Parts:
    """The parts of stages, in ascending order of layers; stages are known by their layers, and numbered as in `held`.

    Attributes:
        held: the layers of each stage, ascending, each once.
        foremost, hindmost: of each stage, the number of its first and of its last part.
        linked: whether somebody holds a part and the one behind it.
        shares: of each part, its holders, and which share of its all-reduce each takes for it.
    """

    held: tuple[Layers, ...]
    foremost: tuple[int, ...]
    hindmost: tuple[int, ...]
    linked: tuple[bool, ...]
    shares: tuple[tuple[tuple[int, float], ...], ...]

    @cached_property
    def number(self) -> dict[Layers, int]:
        """The number of each stage."""
        return {layers: number for number, layers in enumerate(self.held)}

    @cached_property
    def alone(self) -> tuple[bool, ...]:
        """Of each stage, whether no other shares layers with it."""
        return tuple(len(self.shares[part]) == 1 and self.foremost[n] == part for n, part in enumerate(self.hindmost))

    def lasts_s(self, reduce_s: Sequence[float]) -> list[float]:
        """How long the sum of each part takes, in s, where all of a stage's layers take `reduce_s`."""
        return [max(reduce_s[stage] * share for stage, share in holders) for holders in self.shares]

    def begun_s(self, lasts_s: Sequence[float], ends_s: Sequence[float]) -> list[float]:
        """When the sum of each part begins, in s.

        Args:
            lasts_s: how long each takes.
            ends_s: when the last worker of each stage has ended its operations.
        """
        found = [0.0] * len(lasts_s)
        for stage, part in enumerate(self.hindmost):
            found[part] = max(found[part], ends_s[stage])
        for part in reversed(range(len(found) - 1)):
            if self.linked[part]:
                found[part] = max(found[part], found[part + 1] + lasts_s[part + 1])
        return found

    def own_s(self, lasts_s: Sequence[float]) -> list[float]:
        """How long the parts of each stage take together, in s."""
        return [sum(lasts_s[one : last + 1]) for one, last in zip(self.foremost, self.hindmost, strict=True)]

    def following_s(self, lasts_s: Sequence[float]) -> list[float]:
        """What follows each stage's last end at least, in s: its own sums, and all that wait for them."""
        chains_s = list(lasts_s)
        for part in range(1, len(chains_s)):
            if self.linked[part - 1]:
                chains_s[part] += chains_s[part - 1]
        return [chains_s[part] for part in self.hindmost]


def parts_of(held: Iterable[Layers]) -> Parts:
    """The parts of stages.

    Args:
        held: the layers of all live workers' stages, any number of times.
    """
    return _parts_of(tuple(sorted(set(held))))


@lru_cache(maxsize=64)  # a replay times thousands of plans of the same stages
def _parts_of(held: tuple[Layers, ...]) -> Parts:
    cuts = sorted({boundary for layers in held for boundary in layers})
    place = {boundary: number for number, boundary in enumerate(cuts)}
    shares: list[list[tuple[int, float]]] = [[] for _ in cuts]
    linked = [False] * len(cuts)
    for stage, (first, stop) in enumerate(held):
        for part in range(place[first], place[stop]):
            shares[part].append((stage, (cuts[part + 1] - cuts[part]) / (stop - first)))
            linked[part] = linked[part] or part + 1 < place[stop]
    there = [part for part, holders in enumerate(shares) if holders]  # nobody alive may hold the layers between two
    number = {part: n for n, part in enumerate(there)}
    return Parts(
        held,
        tuple(number[place[first]] for first, _ in held),
        tuple(number[place[stop] - 1] for _, stop in held),
        tuple(linked[part] for part in there),
        tuple(tuple(shares[part]) for part in there),
    )
