"""What must come before, above and after a worker's operations, whatever the routing: shortest paths over workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..scheduling.problem import Floats, Problem


@dataclass(frozen=True, eq=False)
class Costs:
    """Alike pipelines as arrays, pipelines x stages, in s; infinite durations where a worker failed.

    Attributes:
        forward_s, back_s, weight_s: F, then I (or B), and W (0 where B does it).
        hop_s: between worker p of stage i and worker q of the next; links x pipelines x pipelines.
        reduce_s, step_s: all-reduce and optimizer of each stage.
        room: micro-batches that a worker of each stage may hold between F and I, 1 or more.
    """

    forward_s: Floats
    back_s: Floats
    weight_s: Floats
    hop_s: Floats
    reduce_s: Floats
    step_s: Floats
    room: Floats


def costs_of(home: Problem) -> Costs:
    """The costs of alike pipelines."""
    workers, pipelines = home.workers, len(home.depth)
    split = home.split[0]

    def rows(values: Floats) -> Floats:
        return np.where(workers.live, values, np.inf).reshape(pipelines, -1)

    hop_s = np.repeat(home.between_s.min(axis=0)[:, None], pipelines**2, axis=1).reshape(-1, pipelines, pipelines)
    every = np.arange(pipelines)
    hop_s[:, every, every] = home.inside_s.T
    held, limits = workers.activation_bytes[: len(split)], workers.limit_bytes[: len(split)]
    room = np.floor(limits * (1 + 1e-9) / np.where(held > 0, held, 1.0))
    return Costs(
        forward_s=rows(workers.forward_s),
        back_s=np.where(split, rows(workers.input_s), rows(workers.full_s)),
        weight_s=np.where(split, workers.weight_s.reshape(pipelines, -1), 0.0),
        hop_s=hop_s,
        reduce_s=workers.allreduce_s[: len(split)],
        step_s=workers.optimizer_s[: len(split)],
        room=np.where(held > 0, np.maximum(room, 1.0), np.inf),
    )


def reach_s(costs: Costs, first: int = 0) -> Floats:
    """From the start of some F at stage `first` to the earliest start of F with each worker; 0 up to that stage."""
    found = np.zeros_like(costs.forward_s)
    for i in range(first, found.shape[1] - 1):
        found[:, i + 1] = _least(found[:, i] + costs.forward_s[:, i], costs.hop_s[i])
    return found


def turn_s(costs: Costs) -> Floats:
    """From the end of F with each worker to the earliest start of its I."""
    found = np.zeros_like(costs.forward_s)
    for i in reversed(range(found.shape[1] - 1)):
        above_s = costs.forward_s[:, i + 1] + found[:, i + 1] + costs.back_s[:, i + 1]
        found[:, i] = _least(above_s, 2 * costs.hop_s[i].T)
    return found


def end_s(costs: Costs, first: int, after_s: Callable[[int], Floats | float]) -> Floats:
    """What follows the end of an I with each worker: I of the stages before, down to `first`, their W, and the rest.

    Args:
        costs: of the pipelines.
        first: the stage that ends it; 0 in what is returned for those before.
        after_s: what follows the end of an I at a stage without those before: its W, all-reduce and more, in s.
    """
    found = np.zeros_like(costs.forward_s)
    found[:, first] = after_s(first)
    for i in range(first, found.shape[1] - 1):
        before_s = _least(costs.back_s[:, i] + found[:, i], costs.hop_s[i])
        found[:, i + 1] = np.maximum(after_s(i + 1), before_s)
    return found


def _least(of_s: Floats, hop_s: Floats) -> Floats:
    """For each worker q the least of `of_s[p] + hop_s[p, q]` over the workers p."""
    found: Floats = (of_s[:, None] + hop_s).min(axis=0)
    return found
