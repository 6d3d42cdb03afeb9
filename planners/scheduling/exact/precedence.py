"""What is decided about the order of operations once a value is to be reached, and what is left to decide.

The arcs of an instance and their transitive closure decide many pairs of operations of a worker. An upper bound decides
more: a window of the objective has room for so much only, and a pair that fits into it in one order alone has this one.
Decided pairs raise heads and tails, and so it goes on until nothing changes (J. Carlier and E. Pinson, "An algorithm
for solving the job-shop problem", Management Science 35, 1989: immediate selection).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .arcs import Arc, followers_of, topological
from .instance import Instance

if TYPE_CHECKING:
    from ..problem import Flags, Ints

Pair = tuple[int, int]
NEVER = -(2**60)  # the head or tail of an operation without a path from, or to, a frame


class Precedences:
    """Decided and undecided pairs of an instance, for schedules of at most `most` units.

    Heads and tails are measured in frames: the makespan has one, from 0 to the end of all, the period has one for each
    window. A head is the least time from the frame's begin to an operation's start, a tail that from its end to the
    frame's, with the overhead of the window in it; NEVER where no path leads there.

    Attributes:
        arcs: those of the instance, and decided pairs that do not follow from them.
        undecided: pairs of operations of one worker that may come in either order, each once.
        before: whether an operation comes before another, `operations x operations`.
        frame: of each operation, that of its window.
        heads, tails: `frames x operations`, in units.
    """

    def __init__(self, instance: Instance, most: int) -> None:
        self.instance, self.most = instance, most
        self.arcs: list[Arc] = list(instance.arcs)
        self.undecided: list[Pair] = []
        self._members = [np.array(members) for members in instance.operations_of.values()]
        self._workmates = {o: members for members in self._members for o in members.tolist()}
        self._durations: Ints = np.array(instance.durations)
        self.frame = np.zeros(len(instance.codes), dtype=np.int64)
        self._own_heads, self._own_tails = self._frames()
        self._measure()
        while decided := list(self._decide()):
            self.arcs += decided
            self._measure()

    def slack(self, earlier: int, later: int) -> int:
        """How much the later operation can start before the end of the earlier one if their order is the other."""
        return int((self.most - self.tails[:, earlier] - self.heads[:, later]).min())

    def following(self, members: Sequence[int]) -> dict[int, list[int]]:
        """Which of some operations come directly after each of them, with none of them in between."""
        known = self.before[np.ix_(members, members)]
        direct = known & ~(known.astype(np.float32) @ known.astype(np.float32) > 0)
        return {one: [members[j] for j in np.flatnonzero(direct[i]).tolist()] for i, one in enumerate(members)}

    def _frames(self) -> tuple[Ints, Ints]:
        """Heads and tails of each operation on its own."""
        staggered, windows = self.instance.problem.staggered, self.instance.windows
        shape = len(windows) if staggered else 1, len(self.frame)
        heads, tails = np.full(shape, NEVER), np.full(shape, NEVER)
        for number, window in enumerate(windows):
            operations = list(window.operations)
            frame = number if staggered else 0
            self.frame[operations] = frame
            heads[frame, operations] = 0
            tails[frame, operations] = window.overhead
        return heads, tails

    def _measure(self) -> None:
        """Closure, heads and tails under the arcs."""
        count = len(self.frame)
        after = followers_of(count, self.arcs)
        order = topological(after, range(count))
        self.before: Flags = np.zeros((count, count), dtype=np.bool_)
        for operation in reversed(order):
            for later, _ in after[operation]:
                self.before[operation] |= self.before[later]
                self.before[operation, later] = True
        reversed_ = followers_of(count, [(b, a, lag) for a, b, lag in self.arcs])
        self.heads = self._longest(self._own_heads, order, after, self.before)
        self.tails = self._longest(self._own_tails, order[::-1], reversed_, self.before.T)

    def _longest(
        self, own: Ints, order: Sequence[int], followers: Sequence[Sequence[tuple[int, int]]], before: Flags
    ) -> Ints:
        """Longest paths from the frames, on which what comes before an operation on its worker goes one by one."""
        found = own.copy()
        for operation in order:
            mates, frame = self._workmates[operation], self.frame[operation]
            earlier = mates[before[mates, operation]]
            done = _end_of_all(found[frame, earlier], self._durations[earlier])
            found[frame, operation] = max(found[frame, operation], done)
            leaving = found[:, operation] + self._durations[operation]
            for later, lag in followers[operation]:
                found[:, later] = np.maximum(found[:, later], leaving + lag)
        return found

    def _decide(self) -> Iterator[Arc]:
        """The pairs that fit in one order only; the others become the undecided ones."""
        self.undecided = []
        for members in self._members:
            known = self.before[np.ix_(members, members)]
            fits = self._fits(members)
            for i, j in np.argwhere(np.triu(~(known | known.T), 1)).tolist():
                a, b = int(members[i]), int(members[j])
                if fits[i, j] and fits[j, i]:
                    self.undecided.append((a, b))
                else:
                    yield (a, b, 0) if fits[i, j] else (b, a, 0)

    def _fits(self, members: Ints) -> Flags:
        """Whether one operation can come before another as far as room goes, `members x members`."""
        lengths = self._durations[members]
        fits = np.ones((len(members), len(members)), dtype=np.bool_)
        for heads, tails in zip(self.heads[:, members], self.tails[:, members], strict=True):
            fits &= (heads + lengths)[:, None] + (lengths + tails)[None, :] <= self.most
        return fits


def _end_of_all(ready: Ints, durations: Ints) -> int:
    """When operations are done that are executed one by one, each when it is ready or later; NEVER for none."""
    if not len(ready):
        return NEVER
    order = np.argsort(ready, kind="stable")
    left = np.cumsum(durations[order][::-1])[::-1]
    return int((ready[order] + left).max())
