"""Tests that the ranks of a job do themselves: `rtk probe` and `rtk profile links`.

It stands at the root because the runners take the readings, and the profilers judge them.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from .runners.processes import die_with_launcher
from .schemas.conditions import Pair, pair_of
from .schemas.documents import to_tree
from .schemas.errors import InvalidInputError

if TYPE_CHECKING:
    from .profilers.failslow.monitor.job import SlowParts
    from .profilers.link_survey import LinkFit, LinkSurvey
    from .runners.torch.probe import Place, ProbeSamples
    from .schemas.profile import Profile

MEETING = "RTK_PROBE_MEETING"  # a file on which ranks meet that were started without torchrun: nobody listens on a port
ProbedLinks = Literal["ring", "tree", "all"]
Computed = dict[str, dict[str, list[float]]]  # by data type, then by worker, in s
Exchanged = dict[str, dict[Pair, list[float]]]  # by message size, then by link, in s


def be_rank(command: str) -> None:
    """Make sure that this process is a rank of a job, which ends with whoever started it.

    Args:
        command: what the user calls, such as `rtk probe`.

    Raises:
        InvalidInputError: it is none.
    """
    if "RANK" not in os.environ:
        raise InvalidInputError(
            f"{command} runs on every rank of a job, and this process is none",
            where="RANK",
            fix=f"start it as `torchrun --nproc-per-node 8 --no-python {command}`, or here with --processes N",
        )
    die_with_launcher()


def crowded_hosts(places: "Iterable[Place]") -> list[str]:
    """Machines with more ranks than processor cores, where these compute."""
    given = list(places)
    ranks = Counter(one.host for one in given if one.device == "cpu")
    cores = {one.host: one.cores for one in given}
    return sorted(host for host, count in ranks.items() if count > cores[host])


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
    compute_s: Computed
    exchange_s: Exchanged
    slow: "SlowParts"

    @property
    def links(self) -> list[Pair]:
        """Those that were tested."""
        found = {link for of_size in self.exchange_s.values() for link in of_size}
        return sorted(found, key=lambda link: sorted(int(end) for end in link))

    @property
    def crowded(self) -> list[str]:
        """Machines with more ranks than cores."""
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
    from .runners.torch.probe import ProbeWorkload, Trials, meeting, take_readings

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
    compute_s: Computed = {}
    exchange_s: Exchanged = {}
    for rank, one in readings.items():
        for test, times_s in one.compute_s.items():
            compute_s.setdefault(test, {})[str(rank)] = list(times_s)
        # Both directions of a link, and passes that it comes in twice, together.
        for (peer, size_bytes), times in sorted(one.exchange_s.items()):
            of_size = exchange_s.setdefault(str(size_bytes), {})
            of_size.setdefault(pair_of(str(rank), str(peer)), []).extend(times)
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
        return {
            "ranks": [{"rank": rank, "host": one.host, "device": one.device} for rank, one in enumerate(self.places)],
            "pairs_at_once": self.together,
            "crowded": crowded_hosts(self.places),
            "pairs": [
                {
                    "from": one.ends[0],
                    "to": one.ends[1],
                    "within_node": one.within_node,
                    **_fit(one.fit),
                    "slow_latency": one.slow_latency,
                    "slow_bandwidth": one.slow_bandwidth,
                    "one_way_s": {str(size): time_s for size, time_s in one.usual_s.items()},
                }
                for one in self.survey.pairs
            ],
            # Latency and bandwidth are those of one step of a ring, so they compare with those of pairs.
            "allreduce": [
                {
                    "ranks": list(one.ranks),
                    "within_node": one.within_node,
                    **_fit(one.fit),
                    "time_s": {str(size): time_s for size, time_s in one.usual_s.items()},
                    "over_planned": {str(size): ratio for size, ratio in one.over_planned.items()},
                }
                for one in self.survey.allreduces
            ],
            "intra_node": to_tree(self.survey.network.intra_node),
            "inter_node": to_tree(self.survey.network.inter_node),
        }

    def into(self, profile: "Profile") -> "Profile":
        """The profile with the paths that were measured; a kind that no pair was of stays as it is."""
        return with_network(profile, self.survey)


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
        survey(hosts, readings.exchange_s, readings.allreduce_s, seed), tuple(readings.places), together
    )


def several(ranks: int) -> int:
    """So many ranks; raises InvalidInputError where it is one, which has no links."""
    if ranks < 2:
        raise InvalidInputError(
            "there are no links in a job of one rank", where="--processes, or torchrun", fix="start two ranks or more"
        )
    return ranks


def with_network(profile: "Profile", found: "LinkSurvey") -> "Profile":
    """The profile with the paths that were measured; a kind that no pair was of stays as it is."""
    network, measured = profile.network, found.network
    changed = replace(
        network,
        intra_node=measured.intra_node or network.intra_node,
        inter_node=measured.inter_node or network.inter_node,
    )
    return replace(profile, network=changed)


def _fit(fit: "LinkFit") -> dict[str, Any]:
    return {
        "latency_s": fit.latency_s,
        "latency_range_s": list(fit.latency_range_s),
        "bandwidth_bytes_per_s": fit.bandwidth_bytes_per_s,
        "bandwidth_range_bytes_per_s": list(fit.bandwidth_range_bytes_per_s),
        "error": {"median": fit.median_error, "worst": fit.worst_error},
    }
