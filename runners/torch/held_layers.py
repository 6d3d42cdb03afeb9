"""Which layers of the model a worker holds, and at which places they stand among these."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...schemas.plan import Layers
from ...schemas.resumption import layer_runs, layers_in


@dataclass(frozen=True)
class HeldLayers:
    """Layers of the model in ascending order, those of several stages where a worker holds several.

    Attributes:
        ranges: [first, stop), ascending, none next to another.
    """

    ranges: tuple[Layers, ...]

    @classmethod
    def of(cls, ranges: Sequence[Layers]) -> "HeldLayers":
        """Those of some ranges, in any order."""
        return cls(layer_runs(layers_in(ranges)))

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The number in the model of each."""
        return tuple(number for layers in self.ranges for number in range(*layers))

    def place(self, layer: int) -> int:
        """Where a layer stands among those held; it must be one of them."""
        return self._places[layer]

    def places(self, layers: Layers) -> range:
        """Where neighbouring layers [first, stop) stand, all of them held; there may be none."""
        if layers[0] == layers[1]:
            return range(0)
        first = self._places[layers[0]]
        return range(first, first + layers[1] - layers[0])

    def __contains__(self, layer: int) -> bool:
        return layer in self._places

    @cached_property
    def _places(self) -> dict[int, int]:
        return {number: place for place, number in enumerate(self.numbers)}
