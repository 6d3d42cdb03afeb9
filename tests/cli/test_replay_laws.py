"""What must hold of every replay, whatever the policy, the trace and the costs."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.recovery.catalogue import NAMES, policy
from rtk.planners.recovery.job import TrainingJob
from rtk.planners.shape import Shape
from rtk.runners.replay.engine import Record, replay
from rtk.runners.traces.files import told
from rtk.runners.traces.read import moments
from rtk.schemas.documents import read_document
from rtk.schemas.profile import LayerCost, Profile
from rtk.schemas.replay import Costs
from rtk.schemas.trace import TraceEvent

Events = list[TraceEvent]

PROFILE = str(Path(__file__).parents[1] / "golden" / "profile-slots4.json")
SHAPE = Shape(4, 2, 4)
NODES = [f"n{number}" for number in range(10)]  # two more than the job takes
FEW = settings(max_examples=15, deadline=None)
POLICIES = st.sampled_from(NAMES)


@cache
def job(slower: float = 1.0) -> TrainingJob:
    """A job in which everything takes so many times as long."""
    profile = read_document(PROFILE, Profile)
    layers = tuple(replace(layer, costs=tuple(_slower(one, slower) for one in layer.costs)) for layer in profile.layers)
    costs = Costs(
        detection_s=5.0 * slower,
        planning_s=0.25 * slower,
        regrouping_s=5.0 * slower,
        restart_s=60.0 * slower,
        copy_bytes_per_s=64.0 / slower,
        checkpoint_pause_s=2.0 * slower,
        storage_bytes_per_s=64.0 / slower,
        mean_time_between_failures_s=1000.0 * slower,
    )
    return TrainingJob(replace(profile, layers=layers), SHAPE, costs=costs)


def _slower(cost: LayerCost, factor: float) -> LayerCost:
    times = ("forward_s", "backward_input_s", "backward_weight_s", "optimizer_s")
    return replace(cost, **{name: getattr(cost, name) * factor for name in times})


@st.composite
def traces(draw: st.DrawFn) -> Events:
    """Nodes that are there, then are lost, come back, become slow and well, some at once; perhaps nothing then."""
    time_s, here, slow = 0.0, dict.fromkeys(NODES[: draw(st.integers(6, 10))]), set[str]()
    found = [TraceEvent("join", time_s=0.0, node=node) for node in here]
    for node in draw(st.lists(st.sampled_from(NODES), max_size=10)):
        time_s += draw(st.sampled_from([0.0, 3.0, 64.0, 1000.0]))
        if node not in here:
            found.append(TraceEvent("join", time_s=time_s, node=node))
            here[node] = None
        elif node in slow:
            found.append(TraceEvent("recover", time_s=time_s, node=node))
            slow.discard(node)
        elif draw(st.booleans()) and time_s:
            found.append(TraceEvent("fail", time_s=time_s, node=node))
            del here[node]
        else:
            found.append(TraceEvent("slow_compute", time_s=time_s, node=node, factor=1.5))
            slow.add(node)
    return [*found, TraceEvent("end", time_s=time_s + draw(st.sampled_from([0.0, 1.0, 5000.0])))]


def replayed(name: str, events: Events, until_s: float | None = None, of: TrainingJob | None = None) -> Record:
    """The record of a trace under a policy."""
    return replay(policy(name, of or job()), moments(told(events)), until_s)


@FEW
@given(POLICIES, traces())
def test_the_books_are_closed(name: str, events: Events) -> None:
    """Every second has one purpose, every micro-batch one stretch, and nobody works on nodes that are not there."""
    record = replayed(name, events)
    assert sum(record.spent_s.values()) == pytest.approx(record.lasts_s)
    assert record.spans[-1].end_s == record.lasts_s == events[-1].time_s
    assert min(record.spent_s.values(), default=0) >= -1e-6
    assert sum(span.microbatches for span in record.spans) == record.microbatches >= 0
    assert all(span.microbatches >= 0 for span in record.spans)
    assert [span.start_s for span in record.spans] == [0, *(span.end_s for span in record.spans[:-1])]
    assert name == "fault-free" or all(span.working_nodes <= span.nodes for span in record.spans)


@FEW
@given(POLICIES, traces())
def test_everything_twice_as_long_commits_as_much(name: str, events: Events) -> None:
    """Units of time mean nothing: with all times doubled, in the trace, the profile and the costs, all is as it was."""
    later = [replace(event, time_s=2 * (event.time_s or 0.0)) for event in events]
    record, slower = replayed(name, events), replayed(name, later, of=job(2.0))
    assert (slower.microbatches, slower.answers) == (record.microbatches, record.answers)


@FEW
@given(POLICIES, traces(), st.sampled_from([1.0, 500.5, 2000.0]))
def test_nobody_knows_the_future(name: str, events: Events, until_s: float) -> None:
    """A replay until some time is that of a trace that ends there."""
    past = [event for event in events if (event.time_s or 0.0) < until_s and event.kind != "end"]
    ended = replayed(name, [*past, TraceEvent("end", time_s=until_s)])
    stopped = replayed(name, events, until_s)
    assert (stopped.microbatches, stopped.spent_s, stopped.spans) == (ended.microbatches, ended.spent_s, ended.spans)


@FEW
@given(POLICIES, traces())
def test_names_of_nodes_mean_nothing(name: str, events: Events) -> None:
    """Nodes with other names, in another order of the alphabet, make the same replay."""
    others = {node: f"m{99 - number}" for number, node in enumerate(NODES)}
    renamed = [replace(event, node=others.get(event.node or "")) for event in events]
    assert replayed(name, renamed).spans == replayed(name, events).spans


@FEW
@given(POLICIES)
def test_without_costs_and_events_all_time_counts(name: str) -> None:
    """With all nodes there and checkpoints for nothing, what is committed is what the plan in force commits."""
    free = replace(job(), costs=Costs(checkpoint_pause_s=0.0, checkpoint_every_s=50.0, copy_bytes_per_s=1e18))
    events = [*(TraceEvent("join", time_s=0.0, node=node) for node in NODES[:8]), TraceEvent("end", time_s=5000.0)]
    record = replayed(name, events, of=free)
    assert record.began.iteration_time_s is not None
    assert record.microbatches == int(5000 / record.began.iteration_time_s + 1e-9) * record.began.microbatches
