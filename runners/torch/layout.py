"""Workers of several ranks: which rank is which of which worker, and messages and sums between them.

A program is a worker's. All its ranks run it in step, each with its slices of the layers; what flows between stages is
whole on each of them, so that no rank needs more of it than one of the sender's has.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch

from ..program import Program, RankPair
from ..ranks import degree_of
from ..resilience.protocol import MeetingPoint, RankAssignment
from .detours import Detour
from .nccl import Channel
from .transport import Transport


class RankTuple(tuple[int, ...]):
    """A group that is told by ranks, where else groups are told by workers."""


@dataclass(frozen=True)
class RankLayout:
    """The ranks of all workers: those of the first one first.

    Attributes:
        degrees: how many ranks each worker is.
    """

    degrees: tuple[int, ...]

    @classmethod
    def of(cls, program: Program) -> "RankLayout":
        """That of a plan's live workers.

        Raises:
            InvalidInputError: a worker's stages are of unlike degrees.
        """
        degree_of(program.plan)  # which refuses them
        return cls(tuple(map(program.plan.gpus_of, program.workers)))

    @classmethod
    def of_seats(cls, seats: Sequence[RankAssignment]) -> "RankLayout":
        """That of an epoch's workers, in the order of their seats."""
        return cls(tuple(1 + len(seat.further) for seat in seats))

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return sum(self.degrees)

    @cached_property
    def seats(self) -> tuple[tuple[int, int], ...]:
        """For each rank its worker's number, and which of that worker's ranks it is."""
        return tuple((worker, share) for worker, degree in enumerate(self.degrees) for share in range(degree))

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first rank of each worker, which tells what all of them know."""
        return tuple(self.ranks_of(worker)[0] for worker in range(len(self.degrees)))

    def ranks_of(self, worker: int) -> tuple[int, ...]:
        """The ranks of a worker."""
        first = sum(self.degrees[:worker])
        return tuple(range(first, first + self.degrees[worker]))

    def source_of(self, rank: int, worker: int) -> int:
        """The rank of a worker from which a rank of another one has its messages."""
        ranks = self.ranks_of(worker)
        return ranks[self.seats[rank][1] % len(ranks)]

    def targets_of(self, rank: int, worker: int) -> tuple[int, ...]:
        """The ranks of a worker to which a rank of another one sends its messages."""
        own, _ = self.seats[rank]
        return tuple(target for target in self.ranks_of(worker) if self.source_of(target, own) == rank)

    def partners_of(self, rank: int, workers: Sequence[int]) -> frozenset[int]:
        """All ranks of other workers with which a rank exchanges messages, if its worker does with these."""
        found = {self.source_of(rank, other) for other in workers}
        return frozenset(found.union(*(self.targets_of(rank, other) for other in workers)))

    def group_of(self, rank: int, workers: Sequence[int]) -> tuple[int, ...]:
        """The ranks that hold the same slices as a rank, of workers of one degree that sum something."""
        share = self.seats[rank][1]
        return tuple(self.ranks_of(worker)[share] for worker in workers)

    def pairs(self, workers: Collection[RankPair]) -> list[RankPair]:
        """All pairs of ranks, ascending, of pairs of workers, ascending."""
        return [pair for one, other in workers for pair in product(self.ranks_of(one), self.ranks_of(other))]

    def detours(self, detours: Collection[Detour]) -> list[Detour]:
        """Those of ranks, of detours of workers: each rank of the one between passes some ranks' messages on."""
        found = []
        for first, second, between in detours:
            ranks = self.ranks_of(between)
            for one, other in self.pairs([(first, second)]):
                found.append((one, other, ranks[self.seats[one][1] % len(ranks)]))
        return found

    def channels(self, channels: set[Channel]) -> set[Channel]:
        """The (source, to) pairs of ranks, of those of workers."""
        return {
            (rank, target)
            for source, to in channels
            for rank in self.ranks_of(source)
            for target in self.targets_of(rank, to)
        }


class GroupedTransport:
    """The transport of a rank, spoken to by the numbers of workers.

    Args:
        inner: by the numbers of ranks.
        layout: of all ranks.
        rank: this one.

    Attributes:
        by_ranks: the inner one.
    """

    def __init__(self, inner: Transport, layout: RankLayout, rank: int) -> None:
        self.by_ranks, self._layout, self._rank = inner, layout, rank

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """As the inner transport, from that rank of a worker which sends to this one."""
        self.by_ranks.post_receive(tag, self._layout.source_of(self._rank, source), like)

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """As the inner transport, from that rank of a worker which sends to this one."""
        return self.by_ranks.receive(tag, self._layout.source_of(self._rank, source))

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """As the inner transport, to those ranks of a worker that have their messages from this one."""
        for target in self._layout.targets_of(self._rank, to):
            self.by_ranks.send(tag, target, tensor)

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """As the inner transport, to those ranks of a worker that have their messages from this one."""
        for target in self._layout.targets_of(self._rank, to):
            self.by_ranks.deliver(tag, target, tensor)

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum over the ranks of these workers that hold the same slices, or over `RankTuple`."""
        self.by_ranks.all_reduce(self._ranks(group), tensor)

    def begin_sum(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """As the inner transport, over the ranks that hold the same slices, or over `RankTuple`."""
        self.by_ranks.begin_sum(self._ranks(group), tensor)

    def end_sums(self) -> None:
        """As the inner transport."""
        self.by_ranks.end_sums()

    def flush(self, but: int = 0) -> None:
        """As the inner transport; all, where this rank may have sent several messages for one, or none."""
        self.by_ranks.flush(but if len(set(self._layout.degrees)) == 1 else 0)

    def interrupt(self) -> None:
        """As the inner transport."""
        self.by_ranks.interrupt()

    def close(self) -> None:
        """As the inner transport."""
        self.by_ranks.close()

    def _ranks(self, group: tuple[int, ...]) -> tuple[int, ...]:
        return group if isinstance(group, RankTuple) else self._layout.group_of(self._rank, group)


def points_of(seats: Sequence[RankAssignment]) -> list[MeetingPoint]:
    """Where the ranks of an epoch's workers are met, in the order of a layout of these seats."""
    return [point for seat in seats for point in (MeetingPoint(seat.store, seat.others), *seat.further)]
