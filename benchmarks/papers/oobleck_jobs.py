"""Oobleck's five models on its 30 GPUs under rtk's own policies: its planner and replay, nothing fitted.

Table 1 says the micro-batches, section 7.1 the machines: A40s with 40 GB, one a node, 200 Gb/s between them. Profiles
are computed (fp32, for TF32 is not known to them), costs of changes are the defaults of `rtk replay`, which come from
other clusters (`schemas/replay.py`); Varuna saves every ten iterations, as there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from ...planners.recovery.catalogue import policy
from ...planners.recovery.job import TrainingJob
from ...planners.shape import Shape
from ...profilers.analytic.configuration import known_model
from ...profilers.analytic.costs import DecoderShape, MicrobatchShape
from ...profilers.analytic.estimate import analytic_profile, rates_of
from ...runners.replay.engine import Record, replay
from ...schemas.errors import InfeasibleError
from ...schemas.gpus import gpu
from ...schemas.plan import Place, Plan
from ...schemas.profile import Connection, DataType, Network, Profile
from ...schemas.replay import Checkpointing, Costs, Fleet, Moment, Pause, StateChange, TrainingState, Transition

# What Oobleck's evaluation prints, and the simplest policy that could have made it: a stall at each failure.
#
# X(D) = A (1 - min(s, D) / D) is the throughput when something fails every D seconds, A that between failures, averaged
# over the nodes that are left, and s the stall. `Stalling` says the same to the engine of `rtk replay`.


INTERVALS_S = {"6 h": 21_600.0, "1 h": 3_600.0, "10 min": 600.0}
NODES, FAILURES = 30, 15  # section 7.2: 30 GPUs, until fewer than half are left
EPSILON_S = 1e-3  # the first failure comes as training begins


@dataclass(frozen=True, eq=False)
class Model:
    """A model of Table 1, and its rows of Table 2.

    Attributes:
        name: as there.
        billions: of parameters.
        batch: samples of an iteration.
        printed: samples per s at 6 h, 1 h and 10 min, by system.
        stalls_s: what a failure costs each system, in s, fitted to these.
    """

    name: str
    billions: float
    batch: int
    printed: Mapping[str, tuple[float, float, float]]
    stalls_s: Mapping[str, float]


MODELS = (
    Model(
        "BERT-Large",
        0.34,
        8192,
        {"Oobleck": (287.10, 286.28, 282.11), "Varuna": (259.57, 245.39, 168.15), "Bamboo": (77.04, 75.60, 69.84)},
        {"Oobleck": 11.0, "Varuna": 215.0, "Bamboo": 58.0},
    ),
    Model(
        "GPT-2",
        0.345,
        8192,
        {"Oobleck": (85.59, 85.42, 84.80), "Varuna": (86.42, 83.94, 69.67), "Bamboo": (17.47, 17.13, 16.01)},
        {"Oobleck": 6.0, "Varuna": 119.0, "Bamboo": 52.0},
    ),
    Model(
        "GPT-3 Medium",
        0.35,
        8192,
        {"Oobleck": (29.30, 29.21, 28.70), "Varuna": (29.52, 27.61, 20.71)},
        {"Oobleck": 12.5, "Varuna": 183.0},
    ),
    Model(
        "GPT-3 2.7b",
        2.7,
        1024,
        {"Oobleck": (7.29, 7.23, 6.89), "Varuna": (7.27, 6.41, 0.36)},
        {"Oobleck": 34.0, "Varuna": 571.0},
    ),
    Model(
        "GPT-3 6.7b",
        6.7,
        1024,
        {"Oobleck": (4.33, 4.22, 3.55), "Varuna": (4.02, 2.91, 0.12)},
        {"Oobleck": 110.5, "Varuna": 583.0},
    ),
)


def default_stall_s(model: Model) -> float:
    """Oobleck's by the model's size alone: 5 s, and 14 s for a billion parameters, fitted to all of its rows."""
    return 5.0 + 14.0 * model.billions


def closed_form(between: float, stall_s: float, interval_s: float) -> float:
    """X(D)."""
    return between * (1 - min(stall_s, interval_s) / interval_s)


def between_failures(six_hours: float, stall_s: float) -> float:
    """A, from what was measured at 6 h."""
    return six_hours / (1 - stall_s / INTERVALS_S["6 h"])


@dataclass(frozen=True)
class Stalling:
    """A policy: all nodes train, and stop for a while whenever nodes go or come.

    Attributes:
        samples_per_node_s: throughput is in proportion to the nodes.
        stall_s: when nodes are lost.
        join_stall_s: when nodes only come.
        iteration_samples: that are committed together; what is under way at a failure is lost. So few that nothing is
            lost, unless said.
        checkpoint_every: iterations; at each change what came after the last checkpoint is lost, too. None: it is not.
    """

    samples_per_node_s: float
    stall_s: float
    join_stall_s: float = 0.0
    iteration_samples: float = 1e-3
    checkpoint_every: int | None = None

    def begin(self, fleet: Fleet) -> TrainingState:
        """All nodes train."""
        return self._standing(len(fleet.nodes))

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """All that are left do."""
        pause = Pause("restarting", self.stall_s if moment.lost else self.join_stall_s)
        going_on = self._standing(len(moment.fleet.nodes))
        rolls_back = self.checkpoint_every is not None
        return (StateChange(going_on, "stall", (pause,), interrupts=True, rolls_back=rolls_back),)

    def plan(self, standing: TrainingState) -> Plan | None:
        """There is none: throughputs are the paper's."""
        return None

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Nobody's."""
        return {}

    def _standing(self, nodes: int) -> TrainingState:
        iteration_s = self.iteration_samples / (self.samples_per_node_s * nodes) if nodes else None
        every = self.checkpoint_every
        checkpointing = Checkpointing(every * iteration_s, 0.0) if every and iteration_s else None
        return TrainingState(nodes, iteration_s, 1, nodes, checkpointing=checkpointing)


def failing_every(interval_s: float) -> Iterator[Moment]:
    """Of 30 nodes one is lost at the beginning, and one more after each interval, until 15 are left."""
    nodes = tuple(f"node{number}" for number in range(1, NODES + 1))
    yield Moment(0.0, Fleet(nodes))
    for failure in range(1, FAILURES + 1):
        left = NODES - failure
        yield Moment(EPSILON_S + (failure - 1) * interval_s, Fleet(nodes[:left]), (nodes[left],), (), failure)


def per_node(between: float) -> float:
    """Of a node, where A is that of all, averaged over the intervals of `failing_every`."""
    return between / (NODES - (FAILURES + 1) / 2)


def replayed(policy: Stalling, interval_s: float) -> float:
    """Samples per s under failures every so often."""
    return throughput(policy, failing_every(interval_s), FAILURES * interval_s + EPSILON_S)


def throughput(policy: Stalling, moments: Iterable[Moment], until_s: float | None = None) -> float:
    """Samples per s over a trace."""
    record = replay(policy, moments, until_s)
    return record.microbatches * policy.iteration_samples / record.lasts_s


GPU, MEMORY_BYTES = "a40", 40e9
DTYPE: DataType = "fp32"
NETWORK = Network(None, Connection(5e-6, 200e9 / 8))
MEDIUM = known_model("gpt3-medium").shape
BERT_LARGE = replace(MEDIUM, vocabulary=30522, positions=512, position_rows=512, is_tied=True)
GPT_2 = replace(MEDIUM, positions=1024, position_rows=1024, is_tied=True)
SAVED_EVERY = 10  # iterations, by Varuna (section 7.1)
DEPTHS = (2, 3, 5, 6, 10, 15)  # of Bamboo's pipelines; which it had is not said
TOLERANCE = 0.10
AS_PUBLISHED = Costs(redo_all=1)  # the paper's systems do interrupted iterations again


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
    batch = MicrobatchShape(microbatch, shape.positions, DTYPE)
    computed = analytic_profile(name, shape, batch, device, rates_of(device, DTYPE), is_checkpointing=is_checkpointing)
    return replace(computed, device=replace(computed.device, memory_bytes=MEMORY_BYTES), network=NETWORK)


def job_of(
    model: Model, system: str, depth: int = 2, costs: Costs | None = None, microbatch: int | None = None
) -> TrainingJob:
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
    return TrainingJob(
        profile, Shape(depth, pipelines, round(model.batch / microbatch / pipelines)), costs=costs or AS_PUBLISHED
    )


def costs_of(model: Model, every: int = SAVED_EVERY, pause_s: float | None = None) -> Costs:
    """The defaults, but for checkpoints of Varuna after so many iterations of all nodes.

    Args:
        model: which.
        every: so many iterations.
        pause_s: how long a checkpoint holds training up; None: the default.
    """
    began = record("varuna", job_of(model, "varuna"), failing_every(INTERVALS_S["6 h"]), EPSILON_S).began
    assert began.iteration_time_s is not None
    return replace(AS_PUBLISHED, checkpoint_every_s=every * began.iteration_time_s, checkpoint_pause_s=pause_s)


def record(system: str, job: TrainingJob, moments: Iterable[Moment], until_s: float) -> Record:
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
def bamboos_job(model: Model) -> TrainingJob:
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
