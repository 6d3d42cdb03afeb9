"""Heads and tails: what must come before each operation of a chain and what after, whatever the orders.

The k-th F, I and W of a stage are those of the chain's k-th micro-batch, as identical ones may be taken first in, first
out. The **head** of an operation is a time before which it cannot start, the **tail** a time that passes at least
between its end and that of the iteration (or of what else `ends_s` is counted to); tails of -inf say that nothing need
follow. An operation's head is the largest of

* the end of the same operation of the micro-batch before: one worker executes all of a stage;
* the arrival of its message: F's end at the stage below, I's at the stage above, each plus the delay of the link; and
  the end of its own micro-batch's F, for I, or I, for W;
* for I and W the work that is done before on its worker: k + 1 F and k I before I_k, k + 1 F, k + 1 I and k W before
  W_k (counted from 0), none of which starts before the stage's first F.

Tails are heads in reversed time, with the last micro-batch first, W in the place of F and F in the place of W.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..problem import BACKWARD, FORWARD, KINDS, WEIGHT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..problem import Floats
    from .chains import Chain


@dataclass(frozen=True, eq=False)
class HeadsAndTails:
    """Heads and tails in s; arrays kinds x stages x micro-batches, heads ascending and tails descending in the last."""

    heads_s: Floats
    tails_s: Floats

    def part(self, stage: int, count: int) -> HeadsAndTails:
        """Those of one stage for `count` micro-batches: heads of the first, tails of the last."""
        start = self.tails_s.shape[2] - count
        return HeadsAndTails(self.heads_s[:, stage : stage + 1, :count], self.tails_s[:, stage : stage + 1, start:])


def heads_and_tails(chain: Chain, count: int, ends_s: Sequence[float]) -> HeadsAndTails:
    """Heads and tails of identical micro-batches, without regard to memory limits.

    The heads of the first n are those of n micro-batches in all, and so are the tails of the last n.

    Args:
        chain: what each micro-batch costs.
        count: how many there are.
        ends_s: what follows the last operation of each stage at least; -inf for nothing.
    """
    return HeadsAndTails(_heads(chain, count), _tails(chain, count, ends_s))


def _heads(chain: Chain, count: int) -> Floats:
    heads = np.zeros((KINDS, chain.depth, count))
    for i in range(chain.depth):
        arrival = heads[FORWARD, i - 1] + (chain.forward_s[i - 1] + chain.delay_s[i - 1]) if i else heads[FORWARD, i]
        heads[FORWARD, i] = _in_sequence(arrival, chain.forward_s[i])
    for i in reversed(range(chain.depth)):
        f, b, w = chain.forward_s[i], chain.backward_s[i], chain.weight_s[i]
        arrival = np.maximum(heads[FORWARD, i] + f, _after_work(heads[FORWARD, i, 0], f, b, count))
        if i < chain.depth - 1:
            arrival = np.maximum(arrival, heads[BACKWARD, i + 1] + (chain.backward_s[i + 1] + chain.delay_s[i]))
        heads[BACKWARD, i] = _in_sequence(arrival, b)
        arrival = np.maximum(heads[BACKWARD, i] + b, _after_work(heads[FORWARD, i, 0], f + b, w, count))
        heads[WEIGHT, i] = _in_sequence(arrival, w)
    return heads


def _tails(chain: Chain, count: int, ends_s: Sequence[float]) -> Floats:
    """As `_heads`, from the last micro-batch back."""
    tails = np.empty((KINDS, chain.depth, count))
    for i in range(chain.depth):
        b, w = chain.backward_s[i], chain.weight_s[i]
        tails[WEIGHT, i] = _in_sequence(np.full(count, ends_s[i]), w)
        tail = np.maximum(tails[WEIGHT, i] + w, _after_work(tails[WEIGHT, i, 0], w, b, count))
        if i:
            tail = np.maximum(tail, tails[BACKWARD, i - 1] + (chain.backward_s[i - 1] + chain.delay_s[i - 1]))
        tails[BACKWARD, i] = _in_sequence(tail, b)
    for i in reversed(range(chain.depth)):
        f, b, w = chain.forward_s[i], chain.backward_s[i], chain.weight_s[i]
        tail = np.maximum(tails[BACKWARD, i] + b, _after_work(tails[WEIGHT, i, 0], b + w, f, count))
        if i < chain.depth - 1:
            tail = np.maximum(tail, tails[FORWARD, i + 1] + (chain.forward_s[i + 1] + chain.delay_s[i]))
        tails[FORWARD, i] = _in_sequence(tail, f)
    return tails[:, :, ::-1]


def _after_work(start: float, before_s: float, own_s: float, count: int) -> Floats:
    """When k + 1 times `before_s` and k times `own_s` are done after `start`, for each k."""
    number = np.arange(count)
    found: Floats = start + (number + 1) * before_s + number * own_s
    return found


def _in_sequence(ready: Floats, duration: float) -> Floats:
    """Starts of operations of equal duration that are ready at `ready`, one after the other."""
    shift = np.arange(len(ready)) * duration
    starts: Floats = np.maximum.accumulate(ready - shift) + shift
    return starts
