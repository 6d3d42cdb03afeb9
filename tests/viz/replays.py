"""Reports of replays that the tests of their pictures draw: by hand, out of a real replay, and at random."""

from collections.abc import Mapping
from dataclasses import asdict

from hypothesis import strategies as st

from rtk.runners.replay.engine import refused, replay, report_of, yardstick_of
from rtk.schemas.plan import Place, Plan
from rtk.schemas.replay import (
    Costs,
    Fleet,
    GpuHours,
    Moment,
    Pause,
    PolicyReport,
    ReplayReport,
    StateChange,
    Stretch,
    TrainingState,
    Transition,
    WhereTimeWent,
)

NODES = tuple(f"n{number}" for number in range(8))


class Scripted:
    """Trains with as many nodes as there are; a change interrupts it and costs a pause."""

    def __init__(self, pause_s: float, never_fails: bool = False) -> None:
        self._pause_s, self._never_fails = pause_s, never_fails

    def begin(self, fleet: Fleet) -> TrainingState:
        return TrainingState((), 80.0 / len(fleet.nodes), 16, len(fleet.nodes), 2.0**30)

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        if self._never_fails:
            return ()
        pauses = (Pause("restarting", self._pause_s),)
        return (StateChange(self.begin(moment.fleet), "restart", pauses, interrupts=True),)

    def plan(self, standing: TrainingState) -> Plan | None:
        return None

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        return {}


def replayed(pauses_s: Mapping[str, float], refusals: Mapping[str, str] | None = None) -> ReplayReport:
    """A half day in which a node is lost or comes back every 20 minutes, under scripted policies."""
    counts = [8 - index % 4 for index in range(36)]
    moments = [Moment(1200.0 * index, Fleet(NODES[:count])) for index, count in enumerate(counts)]
    free = replay(Scripted(0.0, never_fails=True), moments, 43_200.0)
    yardstick = yardstick_of(free, 4, 2.0)
    records = {name: replay(Scripted(pause_s), moments, 43_200.0) for name, pause_s in pauses_s.items()}
    policies = [report_of(name, record, yardstick, 10.0) for name, record in records.items()]
    policies += [refused(name, why) for name, why in (refusals or {}).items()]
    policies.append(report_of("fault-free", free, yardstick, 10.0))
    return report(*policies)


def report(*policies: PolicyReport, **changed: object) -> ReplayReport:
    """A report of these policies; of the facts around them some may be others than usual."""
    facts: dict[str, object] = {
        "trace": {"name": "traces/spot.csv", "duration_s": 43_200.0, "moments": 36, "nodes_max": 8},
        "job": {"model": "gpt", "pp": 2, "dp": 4, "microbatches": 4, "nodes": 8, "gpus_per_node": 4},
        "costs": asdict(Costs()),
        "fault_free": {"nodes": 8, "iteration_time_s": 10.0, "microbatches": 16},
        "mapping": "Node n holds the n-th worker.",
    }
    return ReplayReport(policies=policies, **{**facts, **changed})  # type: ignore[arg-type]


def policy(name: str, goodput: float, hours: float = 1000.0, cost: float = 2000.0, count: int = 1000) -> PolicyReport:
    """One that loses what it loses to restarts, evenly over 1000 s."""
    micro = round(goodput * count)
    spent = WhereTimeWent(working_s=1000.0 * min(goodput, 1.0), restarting_s=1000.0 * max(0.0, 1 - goodput))
    gpu_hours = GpuHours(hours, goodput * hours, 0.0, (1 - goodput) * hours)
    stretches = (Stretch(0.0, 8, 8, micro / 1000.0),)
    return PolicyReport(name, goodput, micro, 10.0, spent, gpu_hours, cost, 2.0**30, {"restart": 3}, stretches)


amounts = st.floats(0, 1e6, allow_nan=False)
ratios = st.floats(-2, 3, allow_nan=False)
counts = st.integers(0, 500)
stretches = st.lists(st.builds(Stretch, amounts, counts, counts, ratios), max_size=8).map(
    lambda found: tuple(sorted(found, key=lambda one: one.time_s))
)
names = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=8)  # that XML can hold
policies = st.builds(
    PolicyReport,
    policy=names,
    goodput=ratios,
    microbatches=st.integers(0, 10**14),
    healthy_iteration_time_s=amounts,
    time=st.builds(WhereTimeWent, *[amounts] * 8),
    gpu_hours=st.builds(GpuHours, *[ratios] * 4),
    cost=amounts,
    peak_memory_bytes=amounts,
    # By words, of which none ends as the names of times do.
    answers=st.dictionaries(names.filter(lambda name: not name.endswith("_s")), counts, max_size=5),
    stretches=stretches,
    refusal=st.none() | st.none() | names,
)
values = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1e9, 1e9) | names
keys = st.sampled_from(("name", "duration_s", "nodes", "nodes_mean", "nodes_max", "model", "iteration_time_s")) | names
facts = st.dictionaries(keys, values, max_size=5)
reports = st.builds(
    ReplayReport,
    trace=facts,
    job=facts,
    costs=st.dictionaries(st.sampled_from(tuple(asdict(Costs()))) | names, values, max_size=5),
    fault_free=facts,
    policies=st.lists(policies, min_size=1, max_size=4, unique_by=lambda one: one.policy).map(tuple),
    mapping=names,
    inputs=st.dictionaries(names, names, max_size=2),
)
