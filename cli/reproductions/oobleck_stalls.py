"""What Oobleck's evaluation prints, and the simplest policy that could have made it: a stall at each failure.

X(D) = A (1 - min(s, D) / D) is the throughput when something fails every D seconds, A that between failures, averaged
over the nodes that are left, and s the stall. `Stalling` says the same to the engine of `rtk replay`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...runners.replay.engine import replay
from ...schemas.plan import Place, Plan
from ...schemas.replay import Checkpointing, Fleet, Moment, Pause, Standing, Step

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

    def begin(self, fleet: Fleet) -> Standing:
        """All nodes train."""
        return self._standing(len(fleet.nodes))

    def answer(self, standing: Standing, moment: Moment) -> tuple[Step, ...]:
        """All that are left do."""
        pause = Pause("restarting", self.stall_s if moment.lost else self.join_stall_s)
        going_on = self._standing(len(moment.fleet.nodes))
        rolls_back = self.checkpoint_every is not None
        return (Step(going_on, "stall", (pause,), interrupts=True, rolls_back=rolls_back),)

    def plan(self, standing: Standing) -> Plan | None:
        """There is none: throughputs are the paper's."""
        return None

    def seats(self, standing: Standing) -> Mapping[Place, str]:
        """Nobody's."""
        return {}

    def _standing(self, nodes: int) -> Standing:
        iteration_s = self.iteration_samples / (self.samples_per_node_s * nodes) if nodes else None
        every = self.checkpoint_every
        checkpointing = Checkpointing(every * iteration_s, 0.0) if every and iteration_s else None
        return Standing(nodes, iteration_s, 1, nodes, checkpointing=checkpointing)


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
