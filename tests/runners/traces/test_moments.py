"""Moments: who is there, who was lost, what is slow; and what cannot have happened."""

from collections.abc import Iterator
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.traces.files import told
from rtk.runners.traces.read import Ledger, from_start, moments
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.replay import Fleet, Moment
from rtk.schemas.trace import TraceEvent

from .told_in import at, story


@st.composite
def _histories(draw: st.DrawFn) -> list[TraceEvent]:
    """What can happen to five nodes, all of them there at 0."""
    names = [f"n{number}" for number in range(5)]
    here, slow = set(names), set[str]()
    events = [at(0, "join", name) for name in names]
    for time_s in sorted(draw(st.lists(st.integers(1, 9), max_size=25))):
        node = draw(st.sampled_from(names))
        if node not in here:
            events.append(at(time_s, draw(st.sampled_from(["join", "recover"])), node))
            here.add(node)
        elif draw(st.booleans()):
            events.append(at(time_s, draw(st.sampled_from(["fail", "stop"])), node))
            here.discard(node)
            slow.discard(node)
        elif node in slow:
            events.append(at(time_s, "recover", node))
            slow.discard(node)
        else:
            events.append(at(time_s, "slow_compute", node, factor=2.0))
            slow.add(node)
    return events


def _slowly(events: list[TraceEvent], time_s: float) -> tuple[set[str], set[str]]:
    """Who is there at a time and who is slow, by looking at each node's last event."""
    last = {event.node: event for event in events if event.time_s is not None and event.time_s <= time_s}
    here = {node for node, event in last.items() if node and event.kind not in ("fail", "stop")}
    return here, {node for node in here if last[node].kind == "slow_compute"}


@given(_histories())
def test_the_fleet_is_what_each_nodes_last_event_says(events: list[TraceEvent]) -> None:
    """At every moment those are there, and slow, whose last event says so; failures count the moments with losses."""
    found = list(moments(told(events)))
    failures = 0
    for earlier, moment in zip([None, *found], found, strict=False):
        assert (set(moment.fleet.nodes), set(moment.fleet.slow)) == _slowly(events, moment.time_s)
        failures += bool(moment.lost)
        assert moment.failures == failures
        if earlier is not None:
            assert earlier.time_s < moment.time_s
            before = set(earlier.fleet.nodes)
            assert set(moment.lost) <= before
            assert set(moment.fleet.nodes) == (before - set(moment.lost)) | set(moment.came)
    assert found[-1].fleet == list(moments(told(events)))[-1].fleet


def test_equal_times_are_one_moment_and_the_first_is_the_start() -> None:
    """Events of a time make one moment; those of the first time make the fleet at 0, with nobody as come."""
    found = story(at(480, "join", "a"), at(480, "join", "b"), at(540, "fail", "a"), at(540, "join", "c"))
    assert found == [Moment(0.0, Fleet(("a", "b"))), Moment(60.0, Fleet(("b", "c")), ("a",), ("c",), 1)]


def test_nodes_at_the_start_leave_times_as_they_are() -> None:
    """With nodes that are there at the start the trace begins at 0, whenever its first event is."""
    assert story(at(5, "fail", "a"), nodes=("a", "b"))[1].time_s == 5.0


def test_back_in_the_same_instant() -> None:
    """Who goes and comes back at once is lost and has come; who comes and goes at once was never there."""
    back = story(at(1, "fail", "a"), at(1, "join", "a"), nodes=("a", "b"))
    assert back[1] == Moment(1.0, Fleet(("b", "a")), ("a",), ("a",), 1)
    assert len(story(at(1, "join", "c"), at(1, "fail", "c"), nodes=("a",))) == 1


def test_who_comes_back_is_the_newest_and_well() -> None:
    """A node that was slow when it failed is well when it is back, and stands behind all others."""
    found = story(at(1, "slow_compute", "a", factor=2.0), at(2, "fail", "a"), at(3, "recover", "a"), nodes=("a", "b"))
    assert found[1].fleet == Fleet(("a", "b"), {"a": 2.0})
    assert found[-1].fleet == Fleet(("b", "a"))


def test_links_are_slow_whoever_is_at_their_ends() -> None:
    """A slow link counts while both of its nodes are there; a delay is what a message takes in all."""
    slow = at(1, "slow_link", "b", peer="a", delay_s=0.02)
    found = story(slow, at(2, "fail", "a"), at(3, "join", "a"), at(4, "recover", "a", peer="b"), nodes=("a", "b"))
    assert [moment.fleet.slow_links for moment in found] == [{}, {("a", "b"): 0.02}, {}, {("a", "b"): 0.02}, {}]
    inside = story(at(1, "slow_link", "a", peer="a", delay_s=1.0), nodes=("a",))
    assert inside[1].fleet.slow_links == {("a", "a"): 1.0}


def test_links_slow_by_a_factor_of_the_usual() -> None:
    """The usual time of a message, times the factor, and the delay beside it."""
    slow = at(1, "slow_link", "a", peer="b", factor=3.0, delay_s=0.5)
    found = list(moments(from_start(told([slow]), ("a", "b")), Ledger(0.25)))
    assert found[1].fleet.slow_links == {("a", "b"): 1.25}


def test_what_changes_nothing_is_no_moment_but_the_end_is() -> None:
    """The same factor once more asks nobody; the end of the trace does, with the fleet of the moment before."""
    slow = at(1, "slow_compute", "a", factor=2.0)
    found = story(slow, at(2, "slow_compute", "a", factor=2.0), at(9, "end"), nodes=("a",))
    assert [moment.time_s for moment in found] == [0.0, 1.0, 9.0]
    assert found[2] == Moment(9.0, found[1].fleet)
    assert len(story(at(9, "join", "b"), at(9, "end"), nodes=("a",))) == 2


@pytest.mark.parametrize(
    ("events", "what", "index"),
    [
        ([at(2, "fail", "a"), at(1, "fail", "b")], "before the one ahead of it", 1),
        ([at(1, "fail", "node")], "node is removed, but never came (did you mean node1?)", 0),
        ([at(1, "fail", "a"), at(1, "fail", "a")], "a is removed, but has gone already", 1),
        ([at(1, "join", "a")], "a is added, but is there already", 0),
        ([at(1, "recover", "a")], "a recovers, but is well", 0),
        ([at(1, "recover", "zzzzzz")], "zzzzzz is well again, but never came", 0),
        ([at(1, "slow_compute", "a", factor=1.0)], "not slow", 0),
        ([at(1, "fail", "a"), at(1, "slow_compute", "a", factor=2.0)], "a is slow, but has gone", 1),
        ([at(1, "slow_link", "a", delay_s=1.0)], "two ends", 0),
        ([at(1, "slow_link", "a", peer="zzzzzz", delay_s=1.0)], "zzzzzz is at an end of a slow link, but never", 0),
        ([at(1, "slow_link", "a", peer="b", factor=2.0)], "nobody says what a message usually takes", 0),
        ([at(1, "recover", "a", peer="b")], "the link a-b recovers, but is well", 0),
        ([at(1, "end"), at(1, "fail", "a")], "after its end", 1),
    ],
)
def test_what_cannot_have_happened_is_refused(events: list[TraceEvent], what: str, index: int) -> None:
    """Each contradiction is an error with the event's place and what to do."""
    with pytest.raises(InvalidInputError) as caught:
        story(*events, nodes=("a", "b", "node1"))
    assert what in caught.value.what
    assert (caught.value.where or "").startswith(f"/events/{index}")
    assert caught.value.fix


def test_a_trace_without_nodes_at_the_start_is_refused() -> None:
    """Whoever comes and goes in the first instant leaves a cluster without nodes, and so do no events."""
    with pytest.raises(InvalidInputError, match="no nodes are there"):
        story(at(0, "join", "a"), at(0, "fail", "a"))
    with pytest.raises(InvalidInputError, match="no events"):
        story()


def test_an_endless_trace_is_read_as_it_comes() -> None:
    """Nothing is held: of a trace without an end the first moments are there once their events are read."""
    taken = 0

    def endless() -> Iterator[TraceEvent]:
        nonlocal taken
        for number in count():
            taken += 1
            yield at(number // 2, "fail" if number % 2 else "join", f"n{number // 2 - number % 2 * 3}")

    found = list(islice(moments(from_start(told(endless()), ("n-3", "n-2", "n-1"))), 1000))
    assert found[-1].fleet.nodes == ("n997", "n998", "n999")
    assert taken == 2001
