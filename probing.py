"""Tests that the ranks of a job do themselves: `rtk probe` and `rtk profile links`.

It stands at the root because the runners take the readings, and the profilers judge them.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .runners.processes import MEETING, be_rank, several
from .schemas.conditions import Pair

if TYPE_CHECKING:
    from .profilers.failslow.monitor.job import SlowParts
    from .profilers.link_survey import LinkSurvey
    from .runners.torch.probe import Computed, Exchanged, Place, ProbeSamples
    from .schemas.profile import Profile

ProbedLinks = Literal["ring", "tree", "all"]


@dataclass(frozen=True)
class ProbeFindings:
    """What a probe found.

    Attributes:
        readings: of each rank.
        pairs: which links were tested, in how many `passes`.
        took_s: the duration of all tests.
        compute_s: of matrix products, by their data type, then by worker, in s.
        exchange_s: of messages, by their size, then by link, both directions together, in s.
        slow: who is.
    """

    readings: "Mapping[int, ProbeSamples]"
    pairs: ProbedLinks
    passes: int
    took_s: float
    compute_s: "Computed"
    exchange_s: "Exchanged"
    slow: "SlowParts"

    @property
    def links(self) -> list[Pair]:
        """Those that were tested."""
        found = {link for of_size in self.exchange_s.values() for link in of_size}
        return sorted(found, key=lambda link: sorted(int(end) for end in link))

    @property
    def crowded(self) -> list[str]:
        """Machines with more ranks than cores."""
        from .runners.torch.probe import crowded_hosts

        return crowded_hosts(one.place for one in self.readings.values())

    def tree(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "workers": [
                {
                    "rank": str(rank),
                    "host": one.place.host,
                    "device": one.place.device,
                    "compute_s": {test: times_s[str(rank)] for test, times_s in self.compute_s.items()},
                    "slowdown": self.slow.workers.get(str(rank)),
                }
                for rank, one in sorted(self.readings.items())
            ],
            "links": [
                {
                    "ends": list(link),
                    "exchange_s": {size: of_size[link] for size, of_size in self.exchange_s.items()},
                    "slowdown": self.slow.links.get(link),
                }
                for link in self.links
            ],
            "slow_at_their_end": list(self.slow.cards),
            "not_comparable": list(self.slow.alone),
            "crowded": self.crowded,
            "pairs": self.pairs,
            "passes": self.passes,
            "took_s": self.took_s,
        }


def probe(
    pairs: ProbedLinks = "ring", *, sizes_bytes: Sequence[int] = (), gemm: int | None = None, repeat: int = 3
) -> ProbeFindings | None:
    """Test all workers and links of a job, and find the slow ones; to be called on every rank, as under torchrun.

    Args:
        pairs: the links of a "ring", of NCCL's two trees ("tree"), or "all".
        sizes_bytes: of the messages; none: 16, 32 and 64 MB on GPUs, 1, 2 and 4 MB on CPUs.
        gemm: rows of the matrices; None: 8192 on GPUs, 512 on CPUs.
        repeat: readings of each test.

    Returns:
        What was found; None on all ranks but 0.

    Raises:
        InvalidInputError: this process is no rank of a job.
    """
    from .profilers.failslow.monitor.job import slow_parts
    from .runners import passes as orders
    from .runners.torch.probe import ProbeWorkload, Trials, by_test, meeting, take_readings

    be_rank("rtk probe")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    with meeting(os.environ.get(MEETING)) as device:
        begin_s = time.perf_counter()
        order = {"ring": orders.ring_passes, "tree": orders.tree_passes, "all": orders.pairwise_passes}[pairs]
        passes = order(size)
        readings = take_readings(Trials(passes, tuple(sizes_bytes), gemm, repeat), ProbeWorkload(device))
        took_s = time.perf_counter() - begin_s
    if int(os.environ["RANK"]) != 0:
        return None
    compute_s, exchange_s = by_test(readings)
    slow = slow_parts(compute_s, exchange_s, {str(rank): one.place.host for rank, one in readings.items()})
    return ProbeFindings(readings, pairs, len(passes), took_s, compute_s, exchange_s, slow)


@dataclass(frozen=True)
class MeasuredLinks:
    """Latency and bandwidth between the ranks of a job.

    Attributes:
        survey: the fits.
        places: of the ranks.
        together: whether disjoint pairs exchanged at the same time.
    """

    survey: "LinkSurvey"
    places: "Sequence[Place]"
    together: bool

    def tree(self) -> dict[str, Any]:
        """All of it as JSON."""
        from .runners.torch.probe import crowded_hosts

        return {
            "ranks": [{"rank": rank, "host": one.host, "device": one.device} for rank, one in enumerate(self.places)],
            "pairs_at_once": self.together,
            "crowded": crowded_hosts(self.places),
            **self.survey.tree(),
        }

    def into(self, profile: "Profile") -> "Profile":
        """The profile with the paths that were measured; a kind that no pair was of stays as it is."""
        return self.survey.into(profile)


def profile_links(
    *,
    sizes_bytes: Sequence[int] = (),
    repeat: int = 15,
    together: bool = False,
    seed: int = 0,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> MeasuredLinks | None:
    """Measure messages between pairs of ranks, and all-reduces; to be called on every rank, as under torchrun.

    Args:
        sizes_bytes: of messages and sums, two or more; none: 1 KiB to 64 MiB on GPUs, 4 B to 16 MiB on CPUs.
        repeat: readings of each.
        together: disjoint pairs exchange at the same time: links as they are when busy.
        seed: of the fits.
        tell: on rank 0, hears how far all are.

    Returns:
        What was found; None on all ranks but 0.

    Raises:
        InvalidInputError: this process is no rank of a job, or the only one.
    """
    from .profilers.link_survey import survey
    from .runners.passes import one_at_a_time, passes_of
    from .runners.torch.probe import LinkTrials, ProbeWorkload, meeting, take_link_readings

    be_rank("rtk profile links")
    several(int(os.environ.get("WORLD_SIZE", "1")))
    passes, is_first = passes_of(int(os.environ["WORLD_SIZE"])), os.environ["RANK"] == "0"
    trials = LinkTrials(passes if together else one_at_a_time(passes), tuple(sizes_bytes), repeat)
    with meeting(os.environ.get(MEETING)) as device:
        progress = tell if is_first else lambda done, of: None
        readings = take_link_readings(trials, ProbeWorkload(device), progress=progress)
    if not is_first:
        return None
    hosts = [place.host for place in readings.places]
    return MeasuredLinks(
        survey(hosts, readings.exchange_s, readings.allreduce_s, readings.crowd_s, seed),
        tuple(readings.places),
        together,
    )
