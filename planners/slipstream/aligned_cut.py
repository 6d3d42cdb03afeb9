"""The aligned cut: slots of one grid at the start and at the end, and wide ones between them (slots.py says why).

A stage with n slots of w ranks has n w - M ranks to spare. Each slot that is narrowed to the grid of g ranks takes
w - g of them: it affords floor((n w - M) / (w - g)) narrow ones. How many slots n a stage may have follows from what
the iteration shall take, by the bound on its busiest worker (routing_bound.py); a margin is left for what slots cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...schemas.atlas import NarrowSlots
from .slots import Slots


class AlignedCut(NamedTuple):
    """How slots are aligned.

    Attributes:
        smooth: whether stages are only as wide as they must be, and no narrower than the stage before; else as wide as
            they can.
        margin: what an iteration shall take less than its bound, in F of one micro-batch.
        share: of the narrow slots, how many come first; the others come last.
    """

    smooth: bool
    margin: float
    share: float


def aligned(jobs: int, live: Sequence[int], most: Sequence[int], cut: AlignedCut) -> Slots:
    """Cut the ranks.

    Args:
        jobs: micro-batches of all pipelines.
        live: workers of each stage, 1 or more.
        most: slots that each stage may have; it gets as many as it needs.
        cut: how.
    """
    rounds = [max(n, -(-jobs // workers)) for n, workers in zip(most, live, strict=True)]
    widths = list(live)
    if cut.smooth:
        for i, (n, workers) in enumerate(zip(rounds, live, strict=True)):
            widths[i] = min(max(widths[i - 1] if i else 0, -(-jobs // n)), workers)
    grid = min(widths)
    narrow = [
        min(jobs // grid, (n * width - jobs) // (width - grid) if width > grid else jobs)
        for n, width in zip(rounds, widths, strict=True)
    ]
    first = [int(cut.share * number) for number in narrow]
    last = [number - begun for number, begun in zip(narrow, first, strict=True)]
    return Slots(jobs, tuple(widths), narrow=NarrowSlots(grid, tuple(first), tuple(last)))
