"""Warm-ups for unlike loads: Adaptra's Algorithm 2, scaled to what each worker executes.

A worker that executes n micro-batches where its pipeline has N of its own warms up with n / N times as many forwards:
its peers' micro-batches come in between its own, so the same time is filled with as many more. Links that carry nothing
have no delay to absorb. Two deviations from Algorithm 2 (adaptra/adaptation.py): the slackness of a link may be 2
whatever N is, and warm-ups need not fall towards the last stage. Here they are preferences: a worker that has no
forward at hand runs a backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.plan import Link, Stage
from ..adaptra.adaptation import ROUNDING, algorithm_2
from ..scheduling.limits import rooms
from ..scheduling.problem import Problem
from ..scheduling.rules import Priority, Rules
from .bypass import crossing

if TYPE_CHECKING:
    from ..scheduling.problem import Flags, Floats

# More micro-batches than any problem has.
UNLIMITED = 1 << 40
# Where memory is limited: F beyond the warm-up that may be in flight (None: any), and what goes first.
TIGHT = (
    (None, Priority.INPUT_FIRST),
    (None, Priority.ALTERNATE),
    (0, Priority.FORWARD_FIRST),
    (None, Priority.UNBLOCK),
)


def joint_rules(problem: Problem, stages: Sequence[Stage], slow: Flags) -> Iterator[Rules]:
    """Rules worth trying on a routing, the scaled warm-ups with I before F before W first.

    Args:
        problem: alike pipelines, and who executes what.
        stages: of each pipeline.
        slow: pairs that a routing may avoid (`bypass.slow_pairs`).

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    adapted = warmups_of(stages, remaining_delays_s(problem, slow), problem.jobs)
    room, counts = rooms(problem), problem.job_counts.tolist()
    if all(most >= count for most, count in zip(room, counts, strict=True)):
        scaled = _scaled(adapted, problem)
        yield from (_rules(scaled, None, wait, Priority.INPUT_FIRST, room) for wait in (0.0, 0.5, 1.0))
        yield _rules(scaled, None, 0.0, Priority.ALTERNATE, room)
        return
    classic = [len(stages) - i for i in problem.workers.stage.tolist()]
    shapes = (_scaled(adapted, problem), _scaled(classic, problem), classic)
    for wait, (margin, priority), shape in product((0.0, 0.5), TIGHT, shapes):
        yield _rules(shape, margin, wait, priority, room)


def adaptra_rules(problem: Problem, stages: Sequence[Stage]) -> Rules:
    """Algorithm 2's warm-ups for the fault-free pipelines, with I before F before W: Adaptra on its own."""
    warmup = warmups_of(stages, problem.inside_s, problem.jobs)
    return _rules(warmup, None, 0.0, Priority.INPUT_FIRST, rooms(problem))


def warmups_of(stages: Sequence[Stage], delay_s: Floats, jobs: int) -> list[int]:
    """Algorithm 2's warm-up of each worker.

    Args:
        stages: of each pipeline.
        delay_s: of each pipeline's links, pipelines x links.
        jobs: of all pipelines.
    """
    rows = list(map(tuple, delay_s.tolist()))
    most = max(jobs // len(rows) - 2 * len(stages), 2)
    found = {row: algorithm_2(stages, [Link(c_s) for c_s in row], most) for row in dict.fromkeys(rows)}
    return [x for row in rows for x in found[row]]


def remaining_delays_s(problem: Problem, slow: Flags) -> Floats:
    """The delay of each link inside each pipeline, where its slow pair carries nothing that between pipelines."""
    own = np.arange(len(problem.depth))
    unused = (slow & (crossing(problem, slow) == 0))[:, own, own].T
    return np.where(unused, problem.between_s, problem.inside_s)


def _scaled(warmup: Sequence[int], problem: Problem) -> list[int]:
    share = problem.jobs / len(problem.depth)
    return [ceil(x * n / share - ROUNDING) for x, n in zip(warmup, problem.job_counts.tolist(), strict=True)]


def _rules(shape: Sequence[int], margin: int | None, wait: float, priority: Priority, room: Sequence[int]) -> Rules:
    """Rules with this warm-up, as far as there is room; `margin` as in TIGHT."""
    warmup = [max(min(x, most), 1) for x, most in zip(shape, room, strict=True)]
    count = len(warmup)
    in_flight = [UNLIMITED if margin is None else x + margin for x in warmup]
    return Rules(warmup, in_flight, [wait] * count, [UNLIMITED] * count, [priority] * count)
