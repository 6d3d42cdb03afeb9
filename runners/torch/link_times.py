"""What messages and sums of many sizes take between the ranks of a job, over torch.distributed.

Pairs come one at a time where a line shall be fitted (alpha-beta): pairs that exchange at the same time share network
cards, and on a machine with fewer cores than ranks they wait for each other's processes, so that the line would tell
of the others as well. In passes of disjoint pairs at once they show just that, what is left of a link when all are
busy.

A message goes there and back, and half of that counts: one clock is enough. A sum counts from when a rank begins to
when it has the result, as the median over the ranks, right after a sum of one number, with which all begin together.
All sizes have their turn in every round, so that a disturbance is spread over them; a first round that does not count
connects ranks, touches memory and lets TCP find its pace.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import distributed

from ...schemas.errors import InvalidInputError
from ..passes import Pass, groups_by_host
from .probe import SILENCE, Bench, Place, gathered, place_on

USUAL_SIZES = {
    "cpu": (4, 64, 1024, *(4**power for power in range(7, 13))),  # to 16 MiB
    "cuda": tuple(4**power for power in range(5, 14)),  # 1 KiB to 64 MiB
}
NUMBER_BYTES = 4

Ends = tuple[int, int]
Group = tuple[int, ...]
BySize = dict[int, list[float]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class LinkTrials:
    """What is tested, the same on all ranks.

    Attributes:
        passes: pairs of ranks that exchange messages at the same time.
        sizes_bytes: of messages and of sums, rising; none: what is usual for the device.
        repeat: readings of each.
    """

    passes: tuple[Pass, ...]
    sizes_bytes: tuple[int, ...] = ()
    repeat: int = 15


@dataclass(frozen=True, slots=True)
class LinkReadings:
    """What all ranks have measured.

    Attributes:
        places: of each rank.
        exchange_s: by pair of ranks and by bytes, what a message took one way, once a repetition.
        allreduce_s: by group of ranks and by bytes, what a sum took, once a repetition.
    """

    places: tuple[Place, ...]
    exchange_s: Mapping[Ends, Mapping[int, Sequence[float]]]
    allreduce_s: Mapping[Group, Mapping[int, Sequence[float]]]


def take_link_readings(
    trials: LinkTrials,
    bench: Bench,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress = lambda done, total: None,
) -> LinkReadings:
    """Do all tests, together with all other ranks; inside `meeting`.

    Args:
        trials: what is tested.
        bench: what takes the time.
        clock: seconds.
        progress: told how many of how many tests are done.

    Returns:
        What all ranks have measured, the same on each of them.

    Raises:
        InvalidInputError: the largest size does not fit into memory.
    """
    control = distributed.new_group(backend="gloo", timeout=SILENCE)
    places: tuple[Place, ...] = tuple(gathered(place_on(bench.device), control))
    groups = groups_by_host([place.host for place in places])
    tests = _Tests(trials, bench, clock)
    exchanges: list[tuple[Ends, BySize]] = []
    sums: dict[Group, BySize] = {}
    total = len(trials.passes) + len(groups)
    for done, pairs in enumerate(trials.passes):
        progress(done, total)
        distributed.barrier(group=control)
        exchanges += tests.exchange(pairs)
    for done, group in enumerate(groups, len(trials.passes)):
        progress(done, total)
        distributed.barrier(group=control)
        sums |= tests.sum(group)
    exchange_s = _merged(part for parts in gathered(exchanges, control) for part in parts)
    all_sums = gathered(sums, control)
    allreduce_s = {group: _over_ranks([all_sums[rank][group] for rank in group]) for group in groups}
    return LinkReadings(places, exchange_s, allreduce_s)


class _Tests:
    """A rank's part in them, with one buffer of which all messages and sums are parts."""

    def __init__(self, trials: LinkTrials, bench: Bench, clock: Callable[[], float]) -> None:
        self._bench, self._clock, self._repeat = bench, clock, trials.repeat
        self._sizes = trials.sizes_bytes or USUAL_SIZES[bench.device.type]
        self._numbers = _numbers(max(self._sizes), bench.device)

    def exchange(self, pairs: Pass) -> list[tuple[Ends, BySize]]:
        """Messages between this rank and its other one in a pass; the first of both has what they took one way."""
        rank, message = distributed.get_rank(), self._numbers.view(torch.uint8)
        pair = next((pair for pair in pairs if rank in pair), None)
        if pair is None:
            return []
        is_first, peer = rank == pair[0], pair[1] if rank == pair[0] else pair[0]
        taken_s = self._timed(self._sizes, lambda size: self._bench.exchange(peer, message[:size], is_first))
        one_way_s = {size: [time_s / 2 for time_s in times_s] for size, times_s in taken_s.items()}
        return [(pair, one_way_s)] if is_first else []

    def sum(self, group: Group) -> dict[Group, BySize]:
        """Sums over a group, as this rank saw them; all ranks call this."""
        handle = distributed.new_group(list(group), timeout=SILENCE)
        if distributed.get_rank() not in group:
            return {}
        counts = dict.fromkeys(max(1, size // NUMBER_BYTES) for size in self._sizes)
        taken_s = self._timed(counts, lambda count: self._bench.sum(self._numbers[:count], handle))
        return {group: {count * NUMBER_BYTES: times_s for count, times_s in taken_s.items()}}

    def _timed(self, sizes: Iterable[int], do: Callable[[int], None]) -> BySize:
        """What something takes at each size, once a repetition; the least, right before, lets all begin together."""
        taken_s: BySize = {size: [] for size in sizes}
        for number in range(1 + self._repeat):
            for size, times_s in taken_s.items():
                do(1)
                begin_s = self._clock()
                do(size)
                if number > 0:
                    times_s.append(self._clock() - begin_s)
        return taken_s


def _numbers(size_bytes: int, device: torch.device) -> torch.Tensor:
    try:
        return torch.zeros(-(-size_bytes // NUMBER_BYTES), device=device)
    except RuntimeError as error:
        raise InvalidInputError(
            f"{size_bytes} bytes do not fit into the memory of {device}",
            where="--sizes",
            fix="leave out the largest size",
        ) from error


def _merged(parts: Iterable[tuple[Ends, BySize]]) -> dict[Ends, BySize]:
    """By pair, the lower rank first; a pair may come in several passes, and begin at either end."""
    found: dict[Ends, BySize] = {}
    for (one, other), taken_s in parts:
        of_pair = found.setdefault((min(one, other), max(one, other)), {})
        for size, times_s in taken_s.items():
            of_pair.setdefault(size, []).extend(times_s)
    return found


def _over_ranks(of_ranks: Sequence[BySize]) -> BySize:
    """By bytes, of each repetition the median over the ranks."""
    sizes = of_ranks[0]
    return {size: [median(times) for times in zip(*(one[size] for one in of_ranks), strict=True)] for size in sizes}
