"""A replay's memory does not grow with the trace, and what it forgets nobody sees."""

import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.replay import engine
from rtk.runners.replay.engine import (
    Record,
    StateInterval,
    merged,
    neighbours,
    replay,
    report_of,
    stretches_of,
    yardstick_of,
)
from rtk.schemas.replay import Fleet, Moment, StateChange, TrainingState, Transition

from .test_engine import ANSWERS, STANDINGS, Scripted, moments_of

FLEETS = tuple(Fleet(tuple(f"n{number}" for number in range(nodes))) for nodes in range(1, 5))


class Restless(Scripted):
    """A policy that goes over to another standing at every moment; none of them ever saves a checkpoint."""

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """So many nodes work."""
        nodes = len(moment.fleet.nodes)
        return (StateChange(TrainingState("x", 1.0, nodes, nodes), "on", interrupts=True),)


def restless(moments: int, most: int) -> Record:
    """A replay of so many moments, of which a clock keeps so many spans at most."""

    def stream() -> Iterator[Moment]:
        return (Moment(3.0 * number, FLEETS[number * 7 % 4], came=("n",)) for number in range(moments))

    with mock.patch.object(engine, "MOST_SPANS", most):
        return replay(Restless(TrainingState("x", 1.0, 3, 2), {}), stream())


@settings(max_examples=150)
@given(STANDINGS, ANSWERS, st.integers(91, 140), st.integers(2, 6))
def test_merging_changes_no_books(first: TrainingState, answers: Mapping[int, Any], end: int, most: int) -> None:
    """Whatever is taken back when: with few spans every sum is as with all of them, and they still fill the time."""
    policy = Scripted(first, {float(time): steps for time, steps in answers.items()})
    whole = replay(policy, moments_of(answers), float(end))
    with mock.patch.object(engine, "MOST_SPANS", most):
        found = replay(policy, moments_of(answers), float(end))
    assert found.spent_s == pytest.approx(whole.spent_s)
    assert (found.microbatches, found.answers) == (whole.microbatches, whole.answers)
    assert (found.present_s, found.worked_s) == (whole.present_s, whole.worked_s)
    assert sum(span.microbatches for span in found.spans) == found.microbatches
    assert len(found.spans) <= most + 1
    assert all(before.end_s == after.start_s for before, after in pairwise(found.spans))
    node_s = sum((span.end_s - span.start_s) * max(span.nodes, span.working_nodes) for span in whole.spans)
    assert whole.present_s == pytest.approx(node_s)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50), st.integers(0, 99)), min_size=1), st.floats(0, 30))
def test_neighbours_are_all_spans_in_groups_of_some_length(given_spans: Any, least_s: float) -> None:
    """Nothing is left out, all groups but the last are long enough, and as one span each weighs what its spans did."""
    spans, now_s = [], 0.0
    for lasts_s, nodes, microbatches in given_spans:
        spans.append(StateInterval(now_s, nodes, nodes // 2, now_s + lasts_s, microbatches))
        now_s += lasts_s
    groups = list(neighbours(spans, least_s))
    assert [span for group in groups for span in group] == spans
    wholes = [merged(group) for group in groups]
    assert all(whole.end_s - whole.start_s >= least_s for whole in wholes[:-1])
    assert sum(whole.microbatches for whole in wholes) == sum(span.microbatches for span in spans)
    node_s = [sum((one.end_s - one.start_s) * one.nodes for one in some) for some in (wholes, spans)]
    assert node_s[0] == pytest.approx(node_s[1])


def test_a_trace_four_times_as_long_takes_no_more_memory() -> None:
    """Neither spans nor what a roll-back would take are kept for each event."""

    def peak_bytes(moments: int) -> int:
        tracemalloc.start()
        try:
            assert len(restless(moments, 100).spans) <= 101
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(500)
    assert peak_bytes(8000) < 1.2 * peak_bytes(2000)


def test_a_report_of_a_long_trace_is_as_of_all_spans() -> None:
    """All figures are the same; where a stretch begins, merging has moved it by a fraction of one."""
    whole, found = restless(4000, 10_000), restless(4000, 1000)
    assert len(whole.spans) > 3000 > 1000 >= len(found.spans) - 1
    reports = [report_of("x", one, yardstick_of(whole, 8, 2.0), 1.0) for one in (whole, found)]
    assert replace(reports[0], stretches=()) == replace(reports[1], stretches=())
    exact, moved = (stretches_of(one.spans, most=40) for one in (whole, found))
    assert len(exact) == pytest.approx(len(moved), abs=4)
    assert [one.time_s for one in moved] == pytest.approx(
        [12_000 / len(moved) * number for number in range(len(moved))], abs=12_000 / 40
    )
