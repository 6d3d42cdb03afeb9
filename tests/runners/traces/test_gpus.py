"""Faults of single GPUs in traces: read, told as moments, made up, and refused where they cannot be."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.traces.files import told
from rtk.runners.traces.read import Ledger, TraceOptions, moments, read_events, read_moments, write_events
from rtk.runners.traces.verbs import FailingGpus, FaultScenario, Lasting, Racks, Renewal, generate
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.trace import TraceEvent, print_event

from .told_in import at, story

NODES = ("a", "b")


@st.composite
def _histories(draw: st.DrawFn) -> list[TraceEvent]:
    """What can happen to three GPUs of each of two nodes, and to the nodes."""
    here, dead = {*NODES}, set[tuple[str, int]]()
    events = []
    for time_s in sorted(draw(st.lists(st.integers(1, 6), max_size=20))):
        node, gpu = draw(st.sampled_from(NODES)), draw(st.none() | st.integers(0, 2))
        if node not in here:
            events.append(at(time_s, "join", node))
            here.add(node)
        elif gpu is None:
            events.append(at(time_s, "fail", node))
            here.discard(node)
            dead = {one for one in dead if one[0] != node}
        else:
            kinds = ["join", "recover"] if (node, gpu) in dead else ["fail", "stop"]
            events.append(at(time_s, draw(st.sampled_from(kinds)), node, gpu=gpu))
            dead ^= {(node, gpu)}
    return events


@given(_histories())
def test_dead_gpus_are_what_each_last_event_says(events: list[TraceEvent]) -> None:
    """At every moment, by looking at all events until then; a node that comes back has all of them."""
    for moment in story(*events, nodes=NODES):
        dead: dict[str, set[int]] = {node: set() for node in NODES}
        for event in (one for one in events if one.time_s is not None and one.time_s <= moment.time_s):
            if event.gpu is None:
                dead[event.node or ""] = set()
            else:
                dead[event.node or ""] ^= {event.gpu}
        expected = {node: tuple(sorted(gpus)) for node, gpus in dead.items() if gpus}
        assert moment.fleet.dead_gpus == expected


@given(_histories())
def test_changes_lead_from_one_fleet_to_the_next(events: list[TraceEvent]) -> None:
    """What is lost and has come says what is different; of GPUs only where their node has stayed."""
    for before, after in pairwise(story(*events, nodes=NODES)):
        stayed = {*before.fleet.nodes} - {*after.lost}
        lacked = {(node, gpu) for node, gpus in before.fleet.dead_gpus.items() for gpu in gpus if node in stayed}
        now = {(node, gpu) for node, gpus in after.fleet.dead_gpus.items() for gpu in gpus if node in stayed}
        assert (lacked | {*after.lost_gpus}) - {*after.came_gpus} == now
        assert {*after.lost_gpus} & lacked == set() and {*after.came_gpus} <= lacked | {*after.lost_gpus}
        assert {node for node, _ in (*after.lost_gpus, *after.came_gpus)} <= stayed
        assert {(node, gpu) for node in stayed for gpu in after.lacked_before[node]} == lacked


@given(_histories())
def test_to_who_knows_nodes_they_come_and_go_with_their_gpus(events: list[TraceEvent]) -> None:
    """Whole nodes that are there before and not after are lost, and the other way round; order is that of coming."""
    for before, after in pairwise(one.of_nodes for one in story(*events, nodes=NODES)):
        had, has = {*before.fleet.nodes}, {*after.fleet.nodes}
        assert not after.fleet.dead_gpus
        assert had - has <= {*after.lost} and has - had <= {*after.came}
        assert {*after.came} <= has and not (has & had) - {*after.lost} & {*after.came}


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.csv.gz"])
def test_files_round_trip(tmp_path: Path, name: str) -> None:
    """A GPU is a number in both forms."""
    found = [at(0, "join", "a"), at(1, "fail", "a", gpu=7), at(2, "join", "a", gpu=7), at(3, "end")]
    write_events(str(tmp_path / name), found)
    assert [one.event for one in read_events(str(tmp_path / name))] == found
    assert list(read_moments(str(tmp_path / name))) == list(moments(told(found)))


@pytest.mark.parametrize(
    ("event", "message", "where"),
    [
        (at(1, "fail", "a", gpu=8), "no GPU 8 in a, which has the GPUs 0 to 7", "gpu"),
        (at(1, "join", "a", gpu=0), "GPU 0 of a is well", "/events/1"),
        (at(1, "fail", "c", gpu=0), "c is short of a GPU, but never came", "/events/1"),
    ],
)
def test_what_cannot_happen_to_a_gpu_is_refused(event: TraceEvent, message: str, where: str) -> None:
    """There is no such GPU, it is well already, or its node is not there."""
    with pytest.raises(InvalidInputError, match=message) as refused:
        list(moments(told([at(0, "join", "a"), event]), Ledger(0.0, 8)))
    assert where in str(refused.value.where)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"time_s": 1, "kind": "fail", "worker": "0/0", "gpu": 1}', "nobody says on which node the worker 0/0 runs"),
        ('{"time_s": 1, "kind": "slow_compute", "node": "a", "gpu": 1, "factor": 2.0}', "happens to no single GPU"),
        ('{"time_s": 1, "kind": "fail", "node": "a", "gpu": -1}', "greater than or equal to 0"),
        ('{"time_s": 1, "kind": "fail", "node": "a", "gpu": "x"}', "integer"),
    ],
)
def test_a_gpu_that_makes_no_sense_is_refused(tmp_path: Path, line: str, message: str) -> None:
    """The line is named, and what to write instead."""
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"time_s": 0, "kind": "join", "node": "a"}}\n{line}\n')
    with pytest.raises(InvalidInputError, match=message) as refused:
        list(read_moments(str(path), TraceOptions()))
    assert "/events/1" in str(refused.value.where)


def _renewals() -> st.SearchStrategy[Renewal]:
    times = st.builds(Lasting, st.floats(1, 300))
    return st.builds(Renewal, times, times)


@settings(max_examples=40)
@given(
    st.builds(
        FaultScenario,
        nodes=st.integers(1, 4),
        lasts_s=st.floats(1, 800),
        failing=st.none() | _renewals(),
        racks=st.none() | st.builds(Racks, st.integers(1, 3), _renewals()),
        seed=st.integers(0, 2**32),
        gpus=st.builds(FailingGpus, st.integers(1, 3), _renewals()),
    )
)
def test_what_is_made_up_can_happen_and_leaves_nodes_as_they_were(recipe: FaultScenario) -> None:
    """Every event is one that can be, and without GPUs the trace is that of the recipe without them."""
    found = list(generate(recipe))
    assert recipe.gpus is not None
    list(moments(told(found), Ledger(0.0, recipe.gpus.per_node)))
    without = FaultScenario(recipe.nodes, recipe.lasts_s, recipe.failing, recipe.racks, seed=recipe.seed)
    assert [one for one in found if one.gpu is None] == list(generate(without))
    assert b"".join(map(print_event, found)) == b"".join(map(print_event, generate(recipe)))


def test_gpus_fail_as_often_as_they_are_said_to() -> None:
    """Of 80 GPUs that fail every 100 s and are repaired in 25 s a fifth is dead, on average, within a few percent."""
    failing = Renewal(Lasting(100.0), Lasting(25.0))
    recipe = FaultScenario(20, 5_000.0, seed=1, gpus=FailingGpus(4, failing))
    dead_s = last_s = 0.0
    dead = 0
    for moment in moments(told(generate(recipe))):
        dead_s, last_s, dead = dead_s + dead * (moment.time_s - last_s), moment.time_s, moment.fleet.dead_gpu_count
    assert dead_s / recipe.lasts_s / 80 == pytest.approx(0.2, rel=0.05)
