"""Loads corrected by what a schedule shows: micro-batches go from peers that end late to peers that end early.

Water (water_fill.py) knows how long workers compute, but not when their first micro-batch arrives, when the last one
must have left, nor how long they wait for messages where memory admits few micro-batches at once. A schedule does: at
each stage, who ends last hands one micro-batch to who would end first with it, at all stages at once, or else at one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Ints

# So many stages, those with most to gain, are tried one by one.
ONE_BY_ONE = 4


def shifts(loads: Ints, ends_s: Floats, each_s: Floats) -> Iterator[Ints]:
    """Other loads that a schedule suggests, the most promising first.

    Args:
        loads: jobs of each worker, pipelines x stages.
        ends_s: when each ended its last operation, in s; the same shape.
        each_s: what one job takes with each, in s; infinite where it failed.
    """
    late = np.where(loads > 0, ends_s, -np.inf).argmax(axis=0)
    early = (ends_s + each_s).argmin(axis=0)
    stages = np.arange(loads.shape[1])
    apart_s = ends_s[late, stages] - ends_s[early, stages]
    gain_s = np.where((late != early) & (apart_s > 0), apart_s - each_s[early, stages], -np.inf)
    ranked = [stage for stage in np.argsort(-gain_s, kind="stable").tolist() if np.isfinite(gain_s[stage])]
    choices = [ranked] if len(ranked) > 1 else []
    for chosen in [*choices, *([stage] for stage in ranked[:ONE_BY_ONE])]:
        other = loads.copy()
        other[late[chosen], chosen] -= 1
        other[early[chosen], chosen] += 1
        yield other
