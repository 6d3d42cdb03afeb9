"""What a job would take if some of its operations took what is usual of their kind.

After "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), sections 3 and 4, with the
definitions of the published tool (github.com/ByteDance-Seed/StragglerAnalysis): computation's own time is its duration,
that of communication begins when its last member has started. Usual is the mean of a kind over all steps, stages and
peers for computation, the median for communication. Time between operations, in which no operation that it waits for
is at work, is left out of both sides.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ....schemas.errors import InvalidInputError
from . import kinds
from .dependencies import Dependencies, dependencies_of
from .operations import Operations
from .table import Times

T = TypeVar("T")
Mask = NDArray[np.bool_]  # by operation, step and peer; dimensions of length 1 stand for all

# The share of the workers that counts as the slowest ones (the paper's M_W).
SLOWEST = 0.03


def replay(job: Operations, dependencies: Dependencies, busy_s: Times, late_s: Times | None = None) -> Times:
    """When each operation is over, if they take these times.

    Args:
        job: whose operations.
        dependencies: what each waits for.
        busy_s: what each takes once it and all that start with it have started, by operation, step and peer.
        late_s: how much later than it could each starts; None: all at once.

    Returns:
        The ends in s since the beginning of the step, by operation, step and peer.
    """
    end_s = np.zeros_like(busy_s)
    for event in dependencies.events:
        begin_s = None
        for member in event.members:
            could_s = _latest(end_s, dependencies.before[member], job)
            own_s = could_s if late_s is None else could_s + late_s[member]
            begin_s = own_s if begin_s is None else np.maximum(begin_s, own_s)
        assert begin_s is not None
        if event.among_peers:
            begin_s = begin_s.max(axis=1, keepdims=True)
        for member in event.members:
            end_s[member] = begin_s + busy_s[member]
    return end_s


def _latest(end_s: Times, before: tuple[int, ...], job: Operations) -> Times:
    """The last end of some operations, by step and peer."""
    if not before:
        return np.zeros((job.steps, job.peers))
    latest_s: Times = end_s[before[0]]
    for one in before[1:]:
        latest_s = np.maximum(latest_s, end_s[one])
    return latest_s


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """A job's measured operations, and what is usual.

    Attributes:
        job: the operations.
        dependencies: what each waits for.
        busy_s: what each took on its own, waiting left out, by operation, step and peer.
        late_s: how much later than it could each started.
        usual_s: what is usual, by operation; the other dimensions are 1.
    """

    job: Operations
    dependencies: Dependencies
    busy_s: Times
    late_s: Times
    usual_s: Times

    @classmethod
    def of(cls, job: Operations, where: str) -> "WhatIf":
        """Take a job's measurements apart.

        Args:
            job: the operations.
            where: the file, for errors.

        Raises:
            InvalidInputError: messages do not fit to the micro-batches, or nothing takes any time.
        """
        dependencies = dependencies_of(job, where)
        busy_s = _own_times(job, dependencies)
        late_s = np.stack([job.start_s[n] - _latest(job.end_s, b, job) for n, b in enumerate(dependencies.before)])
        if not busy_s.any():
            raise InvalidInputError("no operation takes any time", where=where, fix="give durations in seconds")
        return cls(job, dependencies, busy_s, late_s, _usual_times(job, busy_s))

    def steps_s(self, busy_s: Times) -> Times:
        """What each step takes, if the operations take these times, without time between operations."""
        steps_s: Times = replay(self.job, self.dependencies, busy_s).max(axis=(0, 2))
        return steps_s

    def takes_s(self, busy_s: Times) -> float:
        """What a step takes on average."""
        return float(self.steps_s(busy_s).mean())

    def as_it_was_s(self) -> float:
        """What a step took on average, without time between operations."""
        return self.takes_s(self.busy_s)

    def ideal_s(self) -> float:
        """What a step takes if all operations of a kind take the same."""
        return self.takes_s(np.broadcast_to(self.usual_s, self.busy_s.shape))

    def without(self, mask: Mask) -> Times:
        """The operations' times, if these took what is usual."""
        return np.where(mask, self.usual_s, self.busy_s)

    def only(self, mask: Mask) -> Times:
        """The operations' times, if all but these took what is usual."""
        return np.where(mask, self.busy_s, self.usual_s)

    def on_stage(self, stage: int) -> Mask:
        """The operations of a stage."""
        return np.array([o.stage == stage for o in self.job.operations])[:, None, None]

    def of_peer(self, peer: int) -> Mask:
        """The operations of a data-parallel peer's whole pipeline."""
        mask: Mask = np.arange(self.job.peers) == peer
        return mask[None, None, :]


def _own_times(job: Operations, dependencies: Dependencies) -> Times:
    """What operations took from the last start of their event on."""
    busy_s = job.duration_s.copy()
    for event in dependencies.events:
        if job.operations[event.members[0]].kind in kinds.WAITING:
            members = list(event.members)
            begin_s = job.start_s[members].max(axis=0)
            begin_s = begin_s.max(axis=1, keepdims=True) if event.among_peers else begin_s
            # A message may be on its way before its receiver asks for it: then it takes nothing.
            busy_s[members] = np.maximum(job.end_s[members] - begin_s, 0.0)
    return busy_s


def _usual_times(job: Operations, busy_s: Times) -> Times:
    of_kind = np.array([o.kind for o in job.operations])
    usual_s = np.empty((len(of_kind), 1, 1))
    for kind in np.unique(of_kind):
        middle = np.median if kind in kinds.COMMUNICATION else np.mean
        usual_s[of_kind == kind] = middle(busy_s[of_kind == kind])
    return usual_s


def slowest(slowness: Mapping[T, float]) -> list[T]:
    """The slowest `SLOWEST` of some, at least one, the slowest first; of equals, the first."""
    ordered = sorted(slowness, key=lambda one: -slowness[one])
    return ordered[: math.ceil(SLOWEST * len(ordered) - 1e-9)]
