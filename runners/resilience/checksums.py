"""Whether copies of layers' states are equal to what was copied, by the checksums that both sides have said."""

from collections.abc import Iterator

from ...schemas.plan import Layers
from .messages import Epoch, Ready


class Checksums:
    """Those of one epoch."""

    def __init__(self) -> None:
        self._said: dict[str, dict[int, str]] = {}

    def add(self, worker: str, ready: Ready, epoch: Epoch) -> Iterator[tuple[str, str]]:
        """What a worker has said; gives (source, target) of every copy of the epoch known to be wrong by now."""
        self._said[worker] = dict(ready.checksums)
        for copy in epoch.copies:
            source, target = (epoch.seats[rank].worker for rank in (copy.source, copy.target))
            if self._differ(source, target, copy.layers):
                yield source, target

    def _differ(self, one: str, other: str, layers: Layers) -> bool:
        """Whether two workers have both said what they hold of some layers, and not the same."""
        sums = [self._said.get(name, {}) for name in (one, other)]
        return any(
            layer in sums[0] and layer in sums[1] and sums[0][layer] != sums[1][layer] for layer in range(*layers)
        )
