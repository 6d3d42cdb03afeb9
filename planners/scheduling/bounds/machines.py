"""Workers as one-machine problems: which micro-batches each has, and their heads and tails with and without limits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..problem import KINDS, WEIGHT
from .heads_and_tails import HeadsAndTails, heads_and_tails
from .memory_bounds import Limited, limit_binds, raise_by_memory
from .one_machine import Machine, Queue, Spot

if TYPE_CHECKING:
    from .chains import Chain

Kind = tuple["Chain", tuple[float, ...]]  # micro-batches that cost the same, and what follows the stages' last ones


class Part(NamedTuple):
    """Some micro-batches of a worker: number of their kind, the worker's stage among their chain's, and how many."""

    kind: int
    stage: int
    jobs: int


class Machines:
    """One-machine problems, made of routes; of equal ones (peers without re-routing) only the first is looked at."""

    def __init__(self) -> None:
        self._number: dict[Kind, int] = {}
        self._counts: list[int] = []
        self._parts: dict[Spot, list[Part]] = {}

    def kind(self, chain: Chain, ends_s: tuple[float, ...]) -> int:
        """The number of a kind of micro-batches.

        Args:
            chain: what each costs, from the stage on that heads are counted from.
            ends_s: what follows the last operation of each of these stages at least; -inf for nothing.
        """
        number = self._number.setdefault((chain, ends_s), len(self._number))
        self._counts.extend([0] * (number + 1 - len(self._counts)))
        return number

    def add(self, spot: Spot, part: Part) -> None:
        """Give a worker micro-batches."""
        if part.jobs > self._counts[part.kind]:
            self._counts[part.kind] = part.jobs
        self._parts.setdefault(spot, []).append(part)

    def unlimited(self) -> list[Machine]:
        """The problems without memory limits."""
        return [Machine(spot, self._queues(parts, self._unlimited)) for parts, spot in self._distinct.items()]

    def limited(self) -> list[Machine]:
        """Those that memory limits change, with the limits; each must admit a micro-batch."""
        known = self._limited
        changed = [a is not b for a, b in zip(known, self._unlimited, strict=True)]
        found = [
            Machine(spot, self._queues(parts, known))
            for parts, spot in self._distinct.items()
            if any(changed[part.kind] for part in parts)
        ]
        return found + self._shared(known)

    @cached_property
    def _chains(self) -> list[Chain]:
        return [chain for chain, _ in self._number]

    @cached_property
    def _distinct(self) -> dict[tuple[Part, ...], Spot]:
        found: dict[tuple[Part, ...], Spot] = {}
        for spot, parts in self._parts.items():
            found.setdefault(tuple(sorted(parts)), spot)
        return found

    @cached_property
    def _unlimited(self) -> list[HeadsAndTails]:
        kinds = zip(self._number, self._counts, strict=True)
        return [heads_and_tails(chain, count, ends_s) for (chain, ends_s), count in kinds]

    @cached_property
    def _limited(self) -> list[HeadsAndTails]:
        """As `_unlimited`, the same objects where no limit binds."""
        known = list(self._unlimited)
        binding = [n for n, chain in enumerate(self._chains) if limit_binds(chain, self._counts[n])]
        raised = raise_by_memory([Limited(known[n], self._chains[n], [0.0] * self._chains[n].depth) for n in binding])
        for n, times in zip(binding, raised, strict=True):
            known[n] = times
        return known

    def _queues(self, parts: Sequence[Part], known: Sequence[HeadsAndTails]) -> list[Queue]:
        return [
            queue
            for part in parts
            for queue in _queues(self._alone(part), known[part.kind].part(part.stage, part.jobs))
        ]

    def _shared(self, known: Sequence[HeadsAndTails]) -> list[Machine]:
        """Workers that have micro-batches of several chains, as one queue for each kind of operation."""
        found = [(spot, self._together(parts, known)) for parts, spot in self._distinct.items() if self._compete(parts)]
        raised = raise_by_memory([task for _, task in found])
        return [Machine(spot, _queues(task.chain, times)) for (spot, task), times in zip(found, raised, strict=True)]

    def _compete(self, parts: Sequence[Part]) -> bool:
        """Whether several chains share a worker's memory, too little for all, with operations of the same durations."""
        alone = self._alone(parts[0])
        enough = len(parts) == 1 or not limit_binds(alone, sum(part.jobs for part in parts))
        return not enough and all(self._alone(part) == alone for part in parts)

    def _alone(self, part: Part) -> Chain:
        return self._chains[part.kind].at_stage(part.stage)

    def _together(self, parts: Sequence[Part], known: Sequence[HeadsAndTails]) -> Limited:
        columns = [known[part.kind].part(part.stage, part.jobs) for part in parts]
        heads_s = np.sort(np.concatenate([times.heads_s for times in columns], axis=2))
        tails_s = np.sort(np.concatenate([times.tails_s for times in columns], axis=2))[:, :, ::-1]
        turn_s = min(self._chains[part.kind].round_trip_s(part.stage) for part in parts)
        return Limited(HeadsAndTails(heads_s, tails_s), self._alone(parts[0]), [turn_s])


def _queues(chain: Chain, times: HeadsAndTails) -> list[Queue]:
    """The operations of a chain of one stage, without those that need not end."""
    durations_s = (*chain.forward_s, *chain.backward_s, *chain.weight_s)
    heads_s, tails_s = times.heads_s[:, 0], times.tails_s[:, 0]
    kinds = [kind for kind in range(KINDS) if tails_s[kind, 0] > -inf and (kind != WEIGHT or chain.split[0])]
    return [Queue(heads_s[kind], durations_s[kind], tails_s[kind]) for kind in kinds]
