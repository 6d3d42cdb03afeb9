"""Oobleck's five models on its 30 GPUs under rtk's own policies: its planner and replay, nothing fitted.

Table 1 says the micro-batches, section 7.1 the machines: A40s with 40 GB, one a node, 200 Gb/s between them. Profiles
are computed (fp32, for TF32 is not known to them), costs of changes are the defaults of `rtk replay`, which come from
other clusters (`schemas/replay.py`); Varuna saves every ten iterations, as there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from ...planners.policies.catalogue import policy
from ...planners.policies.job import Job
from ...planners.shape import Shape
from ...profilers.analytic.catalogue import known_model
from ...profilers.analytic.costs import Batch, DecoderShape
from ...profilers.analytic.estimate import analytic_profile, rates_of
from ...runners.replay.engine import Record, replay
from ...schemas.errors import InfeasibleError
from ...schemas.form import DataType
from ...schemas.gpus import gpu
from ...schemas.profile import Connection, Network, Profile
from ...schemas.replay import Costs, Moment
from .oobleck_stalls import EPSILON_S, FAILURES, INTERVALS_S, MODELS, NODES, Model, failing_every

GPU, MEMORY_BYTES = "a40", 40e9
DTYPE: DataType = "fp32"
NETWORK = Network(None, Connection(5e-6, 200e9 / 8))
MEDIUM = known_model("gpt3-medium").shape
BERT_LARGE = replace(MEDIUM, vocabulary=30522, positions=512, position_rows=512, is_tied=True)
GPT_2 = replace(MEDIUM, positions=1024, position_rows=1024, is_tied=True)
SAVED_EVERY = 10  # iterations, by Varuna (section 7.1)
DEPTHS = (2, 3, 5, 6, 10, 15)  # of Bamboo's pipelines; which it had is not said
TOLERANCE = 0.10


@dataclass(frozen=True, slots=True)
class Trained:
    """A model of Table 1.

    Attributes:
        shape: BERT-Large's is that of a decoder as large.
        microbatch: of Varuna and Oobleck, which keep the inputs of blocks only.
        bamboos: of Bamboo, which keeps all; None where it cannot run.
    """

    shape: DecoderShape
    microbatch: int
    bamboos: int | None = None


TRAINED: Mapping[str, Trained] = {
    "BERT-Large": Trained(BERT_LARGE, 32, 4),
    "GPT-2": Trained(GPT_2, 32, 1),
    "GPT-3 Medium": Trained(MEDIUM, 16),
    "GPT-3 2.7b": Trained(known_model("gpt3-2.7b").shape, 2),
    "GPT-3 6.7b": Trained(known_model("gpt3-6.7b").shape, 2),
}
assert list(TRAINED) == [model.name for model in MODELS]


@cache
def profile_of(name: str, microbatch: int, *, is_checkpointing: bool) -> Profile:
    """Of a model on the paper's machines, by rtk's analytic profiler."""
    shape, device = TRAINED[name].shape, gpu(GPU)
    batch = Batch(microbatch, shape.positions, DTYPE)
    computed = analytic_profile(name, shape, batch, device, rates_of(device, DTYPE), is_checkpointing=is_checkpointing)
    return replace(computed, device=replace(computed.device, memory_bytes=MEMORY_BYTES), network=NETWORK)


def job_of(model: Model, system: str, depth: int = 2, costs: Costs | None = None, microbatch: int | None = None) -> Job:
    """What a system trains; of its shape only Bamboo heeds more than the global batch.

    Args:
        model: of Table 1.
        system: as `rtk replay` calls it.
        depth: stages, of Bamboo's pipelines.
        costs: of changes; the defaults unless said.
        microbatch: in samples; Table 1's unless said.
    """
    microbatch = microbatch or microbatch_of(model, system)
    profile = profile_of(model.name, microbatch, is_checkpointing=system != "bamboo")
    pipelines = NODES // depth
    return Job(profile, Shape(depth, pipelines, round(model.batch / microbatch / pipelines)), costs=costs or Costs())


def costs_of(model: Model, every: int = SAVED_EVERY, pause_s: float | None = None) -> Costs:
    """The defaults, but for checkpoints of Varuna after so many iterations of all nodes.

    Args:
        model: which.
        every: so many iterations.
        pause_s: how long a checkpoint holds training up; None: the default.
    """
    began = record("varuna", job_of(model, "varuna"), failing_every(INTERVALS_S["6 h"]), EPSILON_S).began
    assert began.iteration_time_s is not None
    return Costs(checkpoint_every_s=every * began.iteration_time_s, checkpoint_pause_s=pause_s)


def record(system: str, job: Job, moments: Iterable[Moment], until_s: float) -> Record:
    """What comes of a trace under a policy of rtk's."""
    return replay(policy(system, job), moments, until_s)


@cache
def failing(model: Model, system: str, often: str, *, is_saving: bool = True) -> Record:
    """What comes of a failure every so often.

    Args:
        model: which.
        system: as `rtk replay` calls it.
        often: a key of `INTERVALS_S`.
        is_saving: whether Varuna's checkpoints, every ten iterations, take time; else they take none, every two.

    Raises:
        InfeasibleError: the system cannot train the model on such GPUs.
    """
    interval_s = INTERVALS_S[often]
    until_s = FAILURES * interval_s + EPSILON_S
    if system != "bamboo":
        costs = None
        if system == "varuna":
            costs = costs_of(model) if is_saving else costs_of(model, every=2, pause_s=0.0)
        return record(system, job_of(model, system, costs=costs), failing_every(interval_s), until_s)
    return record(system, bamboos_job(model), failing_every(interval_s), until_s)


@cache
def bamboos_job(model: Model) -> Job:
    """In the depth that is fastest where failures are rare.

    Raises:
        InfeasibleError: no depth fits.
    """
    rare_s = INTERVALS_S["6 h"]
    found = []
    for depth in DEPTHS:
        job = job_of(model, "bamboo", depth)
        try:
            done = record("bamboo", job, failing_every(rare_s), FAILURES * rare_s + EPSILON_S)
        except InfeasibleError:
            continue
        found.append((done.microbatches, depth))
    if not found:
        raise InfeasibleError("Bamboo fits in no depth", where=model.name)
    return job_of(model, "bamboo", max(found)[1])


def samples_per_s(model: Model, system: str, often: str, *, is_saving: bool = True) -> float:
    """Samples of a failure every so often."""
    done = failing(model, system, often, is_saving=is_saving)
    return done.microbatches * microbatch_of(model, system) / done.lasts_s


def microbatch_of(model: Model, system: str) -> int:
    """Samples of a micro-batch in Table 1; 1 for what Bamboo could not run."""
    trained = TRAINED[model.name]
    return (trained.bamboos or 1) if system == "bamboo" else trained.microbatch
