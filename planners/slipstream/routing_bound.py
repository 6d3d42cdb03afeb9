"""A lower bound on what failures cost, whatever the routing and the orders, for equal workers in each stage.

Some worker of a stage with L live ones executes at least n = ceil(M / L) of its M micro-batches, wherever they come
from. No F of these starts before its message could have come all the way from the first stage, no I before its own F,
all later stages and back, no W before its I; and after an I, the I of all stages before follow. With these heads and
tails the n micro-batches are a one-machine problem as in scheduling/bounds/lower_bound.py, and all of a kind have the
same head and tail. For such, the best pre-emptive schedule lasts as long as the largest of min head + work + min tail
over the sets of kinds (J. Carlier, EJOR 11, 1982): seven sums a stage.

If the last of these n rounds of a stage has more micro-batches than some stage k before has live workers, then not all
of its workers can start at once: the first L_k micro-batches arrive one F of stage k before the others. Some worker
then has n micro-batches and starts that much later, or another n + 1. Likewise at the end, where stage k has to run
their I, as far as the iteration ends with what follows at stage k or before it.

Memory adds three arguments, where a worker has room for C micro-batches between F and I (or B):

* before its first I can start it has executed no more than C of its F, so all other work comes after that moment: once
  with W, once without it, where the I of earlier stages follow;
* each of the n micro-batches keeps one of C places from its F through all later stages and back to the end of its I.

For the period the same holds in the window of each stage, as there: heads count from its first F, tails to its last
operation, and the F and I of all later stages lie inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...schemas.check import ROUNDING

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Ints, Problem

SETS = [kinds for size in (1, 2, 3) for kinds in combinations(range(3), size)]
# The same of all arguments: seven sets, and three where memory is limited, the first of which counts W.
STARTS = np.array([*(0 in kinds for kinds in SETS), False, False, False])  # the least head is that of F
RETURNS = np.array([*(2 not in kinds for kinds in SETS), False, False, False])  # the I of earlier stages follow
WEIGHTS = np.array([*(2 in kinds for kinds in SETS), True, False, False])


class _Path(NamedTuple):
    """Durations and delays along one pipeline, and sums of them; arrays of stages, in s."""

    work_s: Floats  # kinds x stages
    reach_s: Floats  # from the start of F at stage 0 to that at stage i
    return_s: Floats  # from the end of I at stage i to that at stage 0
    turn_s: Floats  # from the end of F at stage i to the start of its I


class RoutingBound:
    """Equal pipelines, made ready to bound any numbers of dead workers.

    Args:
        pipeline: one pipeline alone, all its workers alive.
        jobs: micro-batches of all pipelines.
    """

    def __init__(self, pipeline: Problem, jobs: int) -> None:
        self._jobs = jobs
        workers, split = pipeline.workers, pipeline.split[0]
        back_s = np.where(split, workers.input_s, workers.full_s)
        weight_s = np.where(split, workers.weight_s, 0.0)
        hop_s = pipeline.hop_s[0]
        self._work_s = np.stack([workers.forward_s, back_s, weight_s])
        self._reduce_s, self._step_s = workers.allreduce_s, workers.optimizer_s
        reach_s = np.concatenate([[0.0], np.cumsum(workers.forward_s[:-1] + hop_s)])
        return_s = np.concatenate([[0.0], np.cumsum(back_s[:-1] + hop_s)])
        turn_s = (reach_s[-1] + workers.forward_s[-1] - reach_s - workers.forward_s) + (
            return_s[-1] + back_s[-1] - return_s - back_s
        )
        self._path = _Path(self._work_s, reach_s, return_s, turn_s)
        # After an I, the last operation of some stage before it, or its own, ends the iteration: when, by its end at 0.
        held = workers.activation_bytes > 0
        room = np.floor(workers.limit_bytes * (1 + ROUNDING) / np.where(held, workers.activation_bytes, 1.0))
        self._room = np.where(held, np.maximum(room, 1.0), np.inf)
        self._last_s = np.maximum.accumulate(weight_s + self._reduce_s - return_s)
        self._makespan = self._of_iteration()
        self._windows = self._of_windows()

    def value_s(self, live: Ints, staggered: bool) -> float:
        """No routing and no orders have a smaller makespan, or period if `staggered`, in s.

        Args:
            live: workers of each stage, 1 or more.
            staggered: whether the period counts.
        """
        rounds = -(-self._jobs // live)
        if staggered:
            return float(self.alone_s(live, staggered).max())
        fixed_s, each_s = self._makespan
        return float((fixed_s + each_s * rounds + self._late_s(live, rounds)).max() + self._step_s.max())

    def alone_s(self, live: Ints, staggered: bool) -> Floats:
        """What each stage says by its number of live workers alone, whatever that of the others, in s."""
        fixed_s, each_s = self._windows if staggered else self._makespan
        own_s = fixed_s + each_s * -(-self._jobs // live)
        found: Floats = own_s.reshape(-1, len(live)).max(axis=0)
        return found if staggered else found + self._step_s.max()

    def _late_s(self, live: Ints, rounds: Ints) -> Floats:
        """How much later the last workers of a stage start, or must end; arguments x stages."""
        last_round = self._jobs - live * (rounds - 1)
        few = np.tril(live[None, :] < last_round[:, None], -1)  # stage k before stage i has too few workers
        # What follows between stages k and i may end that much later without a loss.
        spare_s = self._last_s[:, None] - self._last_s[None, :]
        delays_s = self._work_s[0], self._work_s[1] - spare_s
        late_s = [np.where(few, delay_s, 0.0).max(axis=1, initial=0.0) for delay_s in delays_s]
        head_s, tail_s = np.where(STARTS[:, None], late_s[0], 0.0), np.where(RETURNS[:, None], late_s[1], 0.0)
        each_s = self._makespan[1]
        found: Floats = np.maximum(np.where(head_s < each_s, head_s, 0.0), np.where(tail_s < each_s, tail_s, 0.0))
        return found

    def _of_iteration(self) -> tuple[Floats, Floats]:
        """Of each argument and stage: what it says without micro-batches, and with each one more."""
        _, reach_s, return_s, _ = self._path
        return _arguments(self._path, self._room, reach_s, self._last_s + return_s, self._reduce_s)

    def _of_windows(self) -> tuple[Floats, Floats]:
        """The same of each argument, window and stage; arguments x windows x stages."""
        work_s, reach_s, return_s, _ = self._path
        after_s = self._reduce_s + self._step_s
        ends_s = return_s[None, :] - return_s[:, None] + (work_s[2] + after_s)[:, None]
        heads_s = reach_s[None, :] - reach_s[:, None]
        fixed_s, each_s = _arguments(self._path, self._room, heads_s, ends_s, after_s[:, None])
        stages = np.arange(len(reach_s))
        window, stage = stages[:, None], stages[None, :]
        # W of later stages may end after the window.
        inside = (stage == window) | ((stage > window) & ~WEIGHTS[:, None, None])
        return np.where(inside, fixed_s, -np.inf), np.where(inside, each_s, 0.0)


def _arguments(path: _Path, room: Floats, reach_s: Floats, ends_s: Floats, last_s: Floats) -> tuple[Floats, Floats]:
    """What each argument says without micro-batches, and with each one more; arguments x (windows x) stages, in s.

    Args:
        path: along one pipeline.
        room: micro-batches that a worker holds at most, infinite without a limit.
        reach_s: heads of F.
        ends_s: tails of I.
        last_s: tails of W.
    """
    forward_s, back_s, weight_s = path.work_s
    input_head_s = reach_s + forward_s + path.turn_s
    heads_s = [reach_s, input_head_s, input_head_s + back_s]
    tails_s = [path.turn_s + back_s + ends_s, ends_s, last_s + 0 * ends_s]
    fixed = [_least(heads_s, kinds) + _least(tails_s, kinds) for kinds in SETS]
    work = [sum(path.work_s[kind] for kind in kinds) + 0 * reach_s for kinds in SETS]
    limited = np.isfinite(room)
    places = np.where(limited, room, 1.0)
    early_s = input_head_s - places * forward_s
    tight = [
        (early_s + last_s, forward_s + back_s + weight_s),
        (early_s + ends_s, forward_s + back_s),
        (reach_s + ends_s, (forward_s + path.turn_s + back_s) / places),
    ]
    fixed += [np.where(limited, said_s, -np.inf) for said_s, _ in tight]
    work += [np.where(limited, each_s + 0 * reach_s, 0.0) for _, each_s in tight]
    return np.stack(fixed), np.stack(work)


def _least(times_s: Sequence[Floats], kinds: tuple[int, ...]) -> Floats:
    """The least of the times of some kinds."""
    found: Floats = np.min([times_s[kind] for kind in kinds], axis=0)
    return found
