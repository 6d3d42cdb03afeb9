"""Tests of all workers and of the links between them, by the ranks of a job themselves, over torch.distributed.

Greyhound, sections 4.3 and 6 (BenchmarkExecutor): every worker multiplies matrices of the same size, in the data types
that its device has, all at the same time; then messages of the same sizes go over the links, in passes in which no
worker has two of them. The paper takes the mean of three readings; here all readings are kept, for medians. A message
goes there and back, and half of that counts: both directions are tried, and one clock is enough.
"""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any

import torch
from torch import distributed

from ...schemas.conditions import Pair, pair_of
from ...schemas.errors import InvalidInputError, RuntimeFailedError
from ...schemas.quantities import print_bytes
from ..passes import Pass, groups_by_host, node_passes
from .transport import PROBE_TAG, Sample, Transport

# Silence for so long is a failure; the tests together take seconds.
SILENCE = timedelta(minutes=2)
# Products a reading: enough that the clock and the start of a kernel do not count.
PRODUCTS = 4
USUAL_SIDE = {"cpu": 512, "cuda": 8192}
USUAL_SIZES = {"cpu": (1_000_000, 2_000_000, 4_000_000), "cuda": (16_000_000, 32_000_000, 64_000_000)}
FLOAT_8_FROM = (8, 9)  # the compute capability that has products of 8-bit numbers

Product = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Trials:
    """What is tested, the same on all ranks.

    Attributes:
        passes: pairs of ranks that exchange messages at the same time.
        sizes_bytes: of the messages; none: what is usual for the device.
        side: of the square matrices; None: what is usual for the device.
        repeat: readings of each test.
    """

    passes: tuple[Pass, ...]
    sizes_bytes: tuple[int, ...] = ()
    side: int | None = None
    repeat: int = 3


Computed = dict[str, dict[str, list[float]]]  # by data type, then by worker, in s
Exchanged = dict[str, dict[Pair, list[float]]]  # by message size, then by link, in s


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is.

    Attributes:
        host: the name of its machine.
        device: what computes: `cpu`, or the name of a GPU.
        cores: how many processor cores the rank may use.
    """

    host: str
    device: str
    cores: int


@dataclass(frozen=True, slots=True)
class ProbeSamples:
    """What one rank has measured.

    Attributes:
        place: where it is.
        compute_s: by data type, what `PRODUCTS` products took, once a repetition.
        exchange_s: by (other rank, bytes), what a message took one way, once a repetition and pass; only the rank that
            sends first has them.
    """

    place: Place
    compute_s: Mapping[str, Sequence[float]]
    exchange_s: Mapping[tuple[int, int], Sequence[float]]


class ProbeWorkload:
    """What takes the time in the tests; a test of the tests may make some of it slow.

    Args:
        device: where matrices and messages are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def products(self, side: int) -> dict[str, Product]:
        """Products of two matrices, by the name of the data type, in all types that the device has."""
        made: dict[str, Product] = {}
        if self.device.type == "cuda" and torch.cuda.get_device_capability(self.device) >= FLOAT_8_FROM:
            made["float8"] = _float_8_product(side, self.device)
        for kind in (torch.float16, torch.float32) if self.device.type == "cuda" else (torch.float32, torch.float64):
            made[str(kind).removeprefix("torch.")] = _product(side, kind, self.device)
        return made

    def multiply(self, product: Product) -> None:
        """Have a product computed `PRODUCTS` times."""
        for _ in range(PRODUCTS):
            product()
        self.wait()

    def exchange(self, peer: int, message: torch.Tensor, is_first: bool) -> None:
        """Have a message go to another rank and back, or wait for it and give it back."""
        for sends in (is_first, not is_first):
            if sends:
                distributed.send(message, peer)
            else:
                distributed.recv(message, peer)
        self.wait()

    def sum(self, numbers: torch.Tensor, group: Any) -> None:
        """Have numbers summed over the ranks of a group."""
        distributed.all_reduce(numbers, group=group)
        self.wait()

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@contextmanager
def meeting(file: str | None = None) -> Iterator[torch.device]:
    """Meet the other ranks, and give this rank's device; RANK, WORLD_SIZE and so on say which rank it is.

    Args:
        file: on which all ranks of a single machine meet; None: as torchrun has arranged it.

    Raises:
        RuntimeFailedError: not all ranks came, or one failed.
    """
    device = _device()
    where: dict[str, Any] = {}
    if file is not None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        where = {"init_method": f"file://{file}", "rank": rank, "world_size": size}
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        distributed.init_process_group(backend, timeout=SILENCE, **where)
        try:
            yield device
        finally:
            distributed.destroy_process_group()
    except (RuntimeError, ValueError) as error:
        raise RuntimeFailedError(
            f"the ranks cannot test each other: {str(error).splitlines()[0]}",
            where=f"rank {os.environ.get('RANK', '?')}",
            fix="see whether another rank has failed, and whether the machines reach each other",
        ) from error


def take_readings(
    trials: Trials, bench: ProbeWorkload, clock: Callable[[], float] = time.perf_counter
) -> dict[int, ProbeSamples]:
    """Do all tests, together with all other ranks; inside `meeting`.

    Args:
        trials: what is tested.
        bench: what takes the time.
        clock: seconds.

    Returns:
        What each rank has measured, by rank.
    """
    kind = bench.device.type
    control = distributed.new_group(backend="gloo", timeout=SILENCE)
    compute_s = _compute(trials.side or USUAL_SIDE[kind], trials.repeat, bench, control, clock)
    exchange_s: dict[tuple[int, int], list[float]] = {}
    for one in trials.passes:
        for size in trials.sizes_bytes or USUAL_SIZES[kind]:
            _exchange(one, size, trials.repeat, bench, control, clock, exchange_s)
    return dict(enumerate(gathered(ProbeSamples(place_on(bench.device), compute_s, exchange_s), control)))


def by_test(readings: Mapping[int, ProbeSamples]) -> tuple[Computed, Exchanged]:
    """What ranks have measured, by test, and then by worker or link."""
    compute_s: Computed = {}
    exchange_s: Exchanged = {}
    for rank, one in readings.items():
        for test, times_s in one.compute_s.items():
            compute_s.setdefault(test, {})[str(rank)] = list(times_s)
        # Both directions of a link, and passes that it comes in twice, together.
        for (peer, size_bytes), times in sorted(one.exchange_s.items()):
            of_size = exchange_s.setdefault(str(size_bytes), {})
            of_size.setdefault(pair_of(str(rank), str(peer)), []).extend(times)
    return compute_s, exchange_s


def gathered(own: Any, control: Any) -> list[Any]:
    """What each rank has, in their order; all call it, over the group `control`."""
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, own, group=control)
    return everyone


def _compute(
    side: int, repeat: int, bench: ProbeWorkload, control: Any, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """All products one after the other, each at the same time as on all other ranks."""
    taken_s: dict[str, list[float]] = {}
    for name, product in bench.products(side).items():
        bench.multiply(product)  # the first one sets things up
        for _ in range(repeat):
            distributed.barrier(group=control)
            begin_s = clock()
            bench.multiply(product)
            taken_s.setdefault(name, []).append(clock() - begin_s)
    return taken_s


def _exchange(
    pairs: Pass,
    size: int,
    repeat: int,
    bench: ProbeWorkload,
    control: Any,
    clock: Callable[[], float],
    taken_s: dict[tuple[int, int], list[float]],
) -> None:
    """One pass with messages of one size."""
    rank = distributed.get_rank()
    pair = next((pair for pair in pairs if rank in pair), None)
    message = torch.zeros(size, dtype=torch.uint8, device=bench.device)
    for _ in range(repeat):
        distributed.barrier(group=control)
        if pair is None:
            continue
        is_first, peer = rank == pair[0], pair[1] if rank == pair[0] else pair[0]
        # The barrier lets them go at different times; and the first one connects the two, where they are not yet.
        bench.exchange(peer, message[:1], is_first)
        begin_s = clock()
        bench.exchange(peer, message, is_first)
        if is_first:
            taken_s.setdefault((peer, size), []).append((clock() - begin_s) / 2)


def _product(side: int, kind: torch.dtype, device: torch.device) -> Product:
    one, other = (torch.ones(side, side, dtype=kind, device=device) for _ in range(2))
    result = torch.empty(side, side, dtype=kind, device=device)
    return lambda: torch.matmul(one, other, out=result)


def _float_8_product(side: int, device: torch.device) -> Product:
    one, other = (torch.ones(side, side, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.ones((), device=device)
    # The second matrix must lie column by column.
    return lambda: torch._scaled_mm(one, other.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def _device() -> torch.device:
    """A GPU of one's own if the machine has one for each of its ranks, else the processor."""
    rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.is_available() and torch.cuda.device_count() >= ranks:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def place_on(device: torch.device) -> Place:
    """Where this rank is; RTK_HOST names its machine where the machine's own name does not tell it from others."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return Place(os.environ.get("RTK_HOST") or socket.gethostname(), name, len(os.sched_getaffinity(0)))


def crowded_hosts(places: Iterable[Place]) -> list[str]:
    """Machines with more ranks than processor cores, where these compute."""
    given = list(places)
    ranks = Counter(one.host for one in given if one.device == "cpu")
    cores = {one.host: one.cores for one in given}
    return sorted(host for host, count in ranks.items() if count > cores[host])


# Tiny messages over slow links that the plan sends nothing over: a recovery must be seen there as well.


LEAVING_S = 5.0  # how long `close` waits for threads that have been woken and only need to leave


class Probes:
    """Sends each peer one number an iteration, and notes when such numbers leave and arrive.

    Nobody waits for a probe. The next one leaves when the last has been taken; an iteration that comes earlier has
    none. The number of iteration n's probe is -1 - n, below those of all messages. A link on which they fail is not
    probed any more: training does not depend on it.

    Args:
        carrier: takes them; interrupt it before `close`.
        peers: the ranks; this one has to be among theirs.
        names: of the workers, by rank.
        now_s: as `Transfers`.
    """

    def __init__(
        self, carrier: Transport, peers: Collection[int], names: Sequence[str], now_s: Callable[[], float]
    ) -> None:
        self._carrier, self._names, self._now_s = carrier, names, now_s
        self._changed = threading.Condition()
        self._due = dict.fromkeys(peers, -1)  # the newest iteration, by peer
        self._over = False
        self._sent: list[Sample] = []
        self._arrived: list[Sample] = []
        self._threads = [
            threading.Thread(target=work, args=(peer,), name=f"probing {peer}", daemon=True)
            for peer in sorted(peers)
            for work in (self._send, self._receive)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, iteration: int) -> None:
        """An iteration begins: a probe is due on each link."""
        with self._changed:
            self._due = dict.fromkeys(self._due, iteration)
            self._changed.notify_all()

    def taken(self) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        """What has been sent and what has arrived since this was asked last."""
        with self._changed:
            found = tuple(self._sent), tuple(self._arrived)
            self._sent, self._arrived = [], []
        return found

    def close(self) -> None:
        """Wait for the threads to leave, which the carrier's interruption has woken."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        deadline_s = time.monotonic() + LEAVING_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _send(self, peer: int) -> None:
        last = -1
        while True:
            with self._changed:
                while self._due[peer] == last and not self._over:
                    self._changed.wait()
                if self._over:
                    return
                last = self._due[peer]
                self._sent.append((self._names[peer], -1 - last, self._now_s()))
            try:
                self._carrier.deliver(PROBE_TAG, peer, torch.tensor([last]))
            except RuntimeFailedError:
                return

    def _receive(self, peer: int) -> None:
        while not self._over:
            try:
                self._carrier.post_receive(PROBE_TAG, peer, torch.tensor([0]))
                number = self._carrier.receive(PROBE_TAG, peer)
            except RuntimeFailedError:
                return
            with self._changed:
                self._arrived.append((self._names[peer], -1 - int(number), self._now_s()))


# What messages and sums of many sizes take between the ranks of a job, over torch.distributed.
#
# Pairs come one at a time where a line shall be fitted (alpha-beta): pairs that exchange at the same time share network
# cards, and on a machine with fewer cores than ranks they wait for each other's processes, so that the line would tell
# of the others as well. In passes of disjoint pairs at once they show just that, what is left of a link when all are
# busy.
#
# A message goes there and back, and half of that counts: one clock is enough. A sum counts from when a rank begins to
# when it has the result, as the median over the ranks, right after a sum of one number, with which all begin together.
# All sizes have their turn in every round, so that a disturbance is spread over them; a first round that does not count
# connects ranks, touches memory and lets TCP find its pace.


LINK_SIZES = {
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
        crowd_s: the same of pairs between two hosts, while all ranks of both exchanged.
        allreduce_s: by group of ranks and by bytes, what a sum took, once a repetition.
    """

    places: tuple[Place, ...]
    exchange_s: Mapping[Ends, Mapping[int, Sequence[float]]]
    crowd_s: Mapping[Ends, Mapping[int, Sequence[float]]]
    allreduce_s: Mapping[Group, Mapping[int, Sequence[float]]]


def take_link_readings(
    trials: LinkTrials,
    bench: ProbeWorkload,
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
    hosts = [place.host for place in places]
    groups, crowds = groups_by_host(hosts), node_passes(hosts)
    tests = _Tests(trials, bench, clock)
    alone: list[tuple[Ends, BySize]] = []
    crowded: list[tuple[Ends, BySize]] = []
    sums: dict[Group, BySize] = {}
    total = len(trials.passes) + len(crowds) + len(groups)
    for done, pairs in enumerate(trials.passes):
        progress(done, total)
        distributed.barrier(group=control)
        alone += tests.exchange(pairs)
    for done, pairs in enumerate(crowds, len(trials.passes)):
        progress(done, total)
        crowded += tests.exchange(pairs, lambda: distributed.barrier(group=control))
    for done, group in enumerate(groups, len(trials.passes) + len(crowds)):
        progress(done, total)
        distributed.barrier(group=control)
        sums |= tests.sum(group)
    exchange_s, crowd_s = (
        _merged(part for parts in gathered(own, control) for part in parts) for own in (alone, crowded)
    )
    all_sums = gathered(sums, control)
    allreduce_s = {}  # of each repetition the median over the ranks
    for group in groups:
        own = [all_sums[rank][group] for rank in group]
        allreduce_s[group] = {
            size: [median(times) for times in zip(*(one[size] for one in own), strict=True)] for size in own[0]
        }
    return LinkReadings(places, exchange_s, crowd_s, allreduce_s)


class _Tests:
    """A rank's part in them, with one buffer of which all messages and sums are parts."""

    def __init__(self, trials: LinkTrials, bench: ProbeWorkload, clock: Callable[[], float]) -> None:
        self._bench, self._clock, self._repeat = bench, clock, trials.repeat
        # Each once, as `_timed` has them: ranks meet as often, with a pair and without.
        self._sizes = tuple(dict.fromkeys(trials.sizes_bytes or LINK_SIZES[bench.device.type]))
        self._numbers = _numbers(max(self._sizes), bench.device)

    def exchange(self, pairs: Pass, meet: Callable[[], None] = lambda: None) -> list[tuple[Ends, BySize]]:
        """Messages between this rank and its other one in a pass; the first of both has what they took one way.

        Before each of them all ranks `meet`, those without a pair as well.
        """
        rank, message = distributed.get_rank(), self._numbers.view(torch.uint8)
        pair = next((pair for pair in pairs if rank in pair), None)
        if pair is None:
            for _ in range(len(self._sizes) * (1 + self._repeat)):
                meet()
            return []
        is_first, peer = rank == pair[0], pair[1] if rank == pair[0] else pair[0]
        taken_s = self._timed(self._sizes, lambda size: self._bench.exchange(peer, message[:size], is_first), meet)
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

    def _timed(
        self, sizes: Iterable[int], do: Callable[[int], None], meet: Callable[[], None] = lambda: None
    ) -> BySize:
        """What something takes at each size, once a repetition; the least, right before, lets all begin together."""
        taken_s: BySize = {size: [] for size in sizes}
        for number in range(1 + self._repeat):
            for size, times_s in taken_s.items():
                meet()
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
            f"{print_bytes(size_bytes)} do not fit into the memory of {device}",
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
