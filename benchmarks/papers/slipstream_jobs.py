"""SlipStream's jobs of section 5.1: shapes, stage times, and throughput under failures by the real planners.

S. Gandhi, M. Zhao, A. Skiadopoulos and C. Kozyrakis, "SlipStream: Adapting Pipelines for Distributed Training of Large
DNNs Amid Failures"; later "ReCycle: Resilient Training of Large DNNs using Pipeline Adaptation" (SOSP 2024). A stage's
work is counted in transformer blocks: a block is 1, and the embedding and the head weigh what `Ends` says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import mean

from ...planners.batch.distribute import distribute
from ...planners.batch.exact import Pace
from ...planners.oobleck.assignment import Sizes, reinstantiate
from ...planners.pipeline import plan_pipeline
from ...planners.scheduling.solve import Effort
from ...planners.shape import Shape, least_bottleneck_cut
from ...planners.slipstream.cluster import AtlasRequest, Technique, opening
from ...planners.slipstream.replanner import Replanner
from ...profilers.analytic.configuration import KnownModel, known_model
from ...profilers.analytic.costs import MicrobatchShape
from ...profilers.analytic.estimate import forward_flops, profile_analytic
from ...schemas.plan import Prediction
from ...schemas.profile import Profile
from .measured import stages_profile

GPU = "a100-sxm"  # section 5.1: A100 80GB, 600 GB/s NVLink
QUICK = Effort("rules")  # where slots leave a gap, rules must do: no local search


@dataclass(frozen=True, slots=True)
class Job:
    """One of the three.

    Attributes:
        name: the paper's.
        model: rtk's name of it.
        billions: of parameters.
        pp, dp: its shape on 32 GPUs.
        batch, microbatch_size: in samples.
        samples_per_s: of DeepSpeed without failures (ReCycle's slides, Table 1).
        fewest: GPUs that an Oobleck pipeline needs; assumed.
    """

    name: str
    model: str
    billions: float
    pp: int
    dp: int
    batch: int
    microbatch_size: int
    samples_per_s: float
    fewest: int

    @property
    def iteration_s(self) -> float:
        """Without failures, on 32 GPUs."""
        return self.batch / self.samples_per_s

    @property
    def microbatches(self) -> int:
        """Of all pipelines."""
        return self.batch // self.microbatch_size

    @property
    def blocks(self) -> int:
        """Transformer blocks."""
        return self.known.shape.blocks

    @property
    def known(self) -> KnownModel:
        """Its shape."""
        return known_model(self.model)


MEDIUM = Job("GPT-3 Medium", "gpt3-medium", 0.35, 2, 16, 8192, 8, 27.58, 1)
MIDDLE = Job("GPT-3 3.35B", "gpt3-3.35b", 3.35, 4, 8, 1024, 1, 14.87, 2)
LARGE = Job("GPT-3 6.7B", "gpt3-6.7b", 6.7, 8, 4, 1024, 1, 5.33, 2)
JOBS = (MEDIUM, MIDDLE, LARGE)


@dataclass(frozen=True, slots=True)
class Ends:
    """What the embedding and the head weigh, in blocks."""

    embedding: float
    head: float


EQUAL = Ends(0.0, 0.0)


def ends_by_time(job: Job) -> Ends:
    """By rtk's analytic profile for the paper's GPU in bf16: what the layers take."""
    first, block, *_, last = (layer.costs[0].work_s for layer in analytic(job).layers)
    return Ends(first / block, last / block)


def ends_by_flops(job: Job) -> Ends:
    """By FLOPs: the head's 2Vh against a block's 24h² + 4sh, for a token."""
    known = job.known
    blocks, head = forward_flops(known.shape, MicrobatchShape(known.microbatch_size, known.sequence_length, "bf16"))
    return Ends(0.0, head * job.blocks / blocks)


def analytic(job: Job) -> Profile:
    """The profile that `rtk profile MODEL --analytic --gpu a100-sxm` computes."""
    return profile_analytic(job.model, gpu=GPU)


def stage_works(job: Job, pp: int, ends: Ends) -> list[float]:
    """The work of each stage, in blocks: as many blocks each, the embedding in the first one, the head in the last."""
    works = [job.blocks / pp] * pp
    works[0] += ends.embedding
    works[-1] += ends.head
    return works


def whole_s(works: Sequence[float], microbatches: int) -> float:
    """What 1F1B takes without failures, by `rtk plan pipeline`."""
    found = plan_pipeline(stages_profile(works), Shape(len(works), 1, microbatches), "1f1b").prediction
    assert found is not None
    return found.makespan_s


def re_routed(
    works: Sequence[float],
    dp: int,
    microbatches: int,
    failures: Sequence[int],
    technique: Technique = "staggered",
) -> list[Prediction]:
    """What `rtk plan slipstream --failures` promises, for each number of failures.

    Args:
        works: of the stages.
        dp: pipelines.
        microbatches: of each.
        failures: dead workers, normalized.
        technique: SlipStream's.
    """
    request = AtlasRequest(Shape(len(works), dp, microbatches), technique, effort=QUICK)
    planner = Replanner(opening(stages_profile(works), request), max(failures))
    return [planner.entry(count)[0].prediction for count in failures]


def slipstream_rates(job: Job, pp: int, dp: int, ends: Ends, most: int) -> list[float]:
    """SlipStream's throughput with 0 to `most` failures, relative to 1F1B without any.

    Never above 1: the paper says that SlipStream runs DeepSpeed's schedule where nothing has failed, and claims no
    gain. A batch that pipelines cannot share evenly is rounded up.
    """
    works, microbatches = stage_works(job, pp, ends), -(-job.microbatches // dp)
    reference_s = whole_s(works, microbatches)
    times_s = (found.iteration_time_s for found in re_routed(works, dp, microbatches, range(most + 1)))
    return [min(1.0, reference_s / time_s) for time_s in times_s]


# SlipStream's rivals, as its sections 2.3 and 5.2 describe them: Oobleck's and Bamboo's throughput under failures.
#
# Oobleck's pipelines are re-instantiated by the steps of rtk's planner (borrow, then merge), the layers cut into stages
# of least bottleneck, the batch distributed for the least time; the random victims are drawn from a seed.


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
