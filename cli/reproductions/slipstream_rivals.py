"""SlipStream's rivals, as its sections 2.3 and 5.2 describe them: Oobleck's and Bamboo's throughput under failures.

Oobleck's pipelines are re-instantiated by the steps of rtk's planner (borrow, then merge), the layers cut into stages
of least bottleneck, the batch distributed for the least time; the random victims are drawn from a seed.
"""

from itertools import pairwise
from random import Random
from statistics import mean

from ...planners.batch.distribute import distribute
from ...planners.batch.groups import Pace
from ...planners.oobleck.assignment import Sizes, reinstantiate
from ...planners.shape import least_bottleneck_cut
from .slipstream_jobs import Ends, Job

BAMBOO_SHARE = 0.733  # of DeepSpeed's throughput is left by redundant computation; fitted to Table 1's Bamboo row
SEEDS = 20


class Oobleck:
    """Its pipelines, which shrink and grow with the GPUs that are there.

    Args:
        job: whose batch and layers.
        pp, dp: the shape that it starts in.
        ends: what embedding and head weigh.
        seed: of the victims.
    """

    def __init__(self, job: Job, pp: int, dp: int, ends: Ends, seed: int) -> None:
        self._works = [1.0 + ends.embedding, *[1.0] * (job.blocks - 2), 1.0 + ends.head]
        self._microbatches, self._chance = job.microbatches, Random(seed)
        self._allowed = Sizes(job.fewest, largest=job.blocks, fewest=1)
        self._paces: dict[int, Pace] = {}
        self._times_s: dict[tuple[int, ...], float] = {}
        self._sizes = (pp,) * dp
        self._whole_s = self._time_s()

    def rate_with(self, gpus: int) -> float:
        """Its throughput once so many GPUs are there, relative to its own without failures; never above 1."""
        left = list(self._sizes)
        for _ in range(sum(left) - gpus):
            left[self._chance.choices(range(len(left)), left)[0]] -= 1
        joining = max(0, gpus - sum(self._sizes))
        self._sizes = reinstantiate(self._sizes, left, list(map(float, left)), joining, self._allowed).sizes
        return min(1.0, self._whole_s / self._time_s())

    def _time_s(self) -> float:
        sizes = tuple(sorted(self._sizes))
        if sizes not in self._times_s:
            self._times_s[sizes] = distribute(list(map(self._pace, sizes)), self._microbatches).slowest_s
        return self._times_s[sizes]

    def _pace(self, size: int) -> Pace:
        if size not in self._paces:
            ends = least_bottleneck_cut(self._works, size)
            works = [sum(self._works[first:stop]) for first, stop in pairwise([0, *ends])]
            self._paces[size] = Pace(sum(works) - max(works), max(works))
        return self._paces[size]


def oobleck_rates(job: Job, ends: Ends, most: int) -> list[float]:
    """Oobleck's throughput with 0 to `most` failures on 32 GPUs, a mean over victims."""
    gpus = job.pp * job.dp
    runs = [Oobleck(job, job.pp, job.dp, ends, seed) for seed in range(SEEDS)]
    return [mean(run.rate_with(gpus - failures) for run in runs) for failures in range(most + 1)]


def bamboo_rate(gpus: int, of: int) -> float:
    """Bamboo's throughput with so many GPUs of all, relative to DeepSpeed's with all."""
    return BAMBOO_SHARE * gpus / of
