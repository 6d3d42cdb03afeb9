"""What pictures of a replay show: averages that keep the sum, shares that add up, colours that tell apart."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtk.schemas.replay import PolicyReport, ReplayReport, Stretch, WhereTimeWent
from rtk.viz.replay import (
    MOST_STEPS,
    TimeAxis,
    averages,
    axis_of,
    colours_of,
    contestants,
    courses_of,
    duration_s,
    fault_free_per_s,
    shares_of,
)
from rtk.viz.style import LOOKS

from .replays import policies, policy, replayed, report, reports, stretches


@given(st.floats(0, 1e12, allow_nan=False), stretches)
@settings(max_examples=60, deadline=None)
@example(0.0, ())
def test_averages_keep_the_sum(more_s: float, found: tuple[Stretch, ...]) -> None:
    """Averages times the lengths of their steps add up to what the stretches do."""
    end_s = (found[-1].time_s if found else 0.0) + more_s
    axis = TimeAxis(end_s, max(end_s / 37, 1e-9))
    means = averages(axis, found, lambda one: one.nodes)
    ends = [*(one.time_s for one in found[1:]), end_s][: len(found)]
    whole = sum((end_s - one.time_s) * one.nodes for one, end_s in zip(found, ends, strict=True))
    mean_sum = sum(mean * (axis.edge(step + 1) - axis.edge(step)) for step, mean in enumerate(means))
    assert mean_sum == pytest.approx(whole, rel=1e-6, abs=1e-6)


@given(reports, st.integers(1, MOST_STEPS))
@settings(max_examples=25, deadline=None)
def test_the_axis_reaches_to_the_end(drawn: ReplayReport, most: int) -> None:
    """There are no more steps than were asked for; they follow each other from 0 to where the last policy ends."""
    axis = axis_of(drawn, most)
    edges = [axis.edge(step) for step in range(axis.steps + 1)]
    assert 1 <= axis.steps <= most
    assert edges[0] == 0.0 and edges == sorted(edges)
    assert edges[-1] >= max(duration_s(one) for one in drawn.policies)


@given(policies)
@settings(max_examples=25, deadline=None)
def test_shares_add_up(drawn: PolicyReport) -> None:
    """No part of the time is below 0, and together they are all of it."""
    shares = [share for _, share in shares_of(drawn)]
    assert min(shares) >= 0
    assert sum(shares) == pytest.approx(1.0 if duration_s(drawn) else 0.0)


def test_throughput_averages_to_goodput() -> None:
    """Of a real replay, the mean over the picture's steps is the goodput beside it, however long they are."""
    drawn = replayed({"quick": 10.0, "slow": 900.0})
    for most in (10, MOST_STEPS):
        axis = axis_of(drawn, most)
        for course in courses_of(drawn, axis, colours_of([drawn])):
            weighted = (share * (axis.edge(n + 1) - axis.edge(n)) for n, share in enumerate(course.throughput))
            assert sum(weighted) / axis.end_s == pytest.approx(course.policy.goodput)
            assert max(course.there) <= 8 and max(course.working) <= 8


@pytest.mark.parametrize(
    ("end_s", "step_s", "unit"),
    [(100.0, 1.0, "s"), (1500.0, 5.0, "min"), (43_200.0, 120.0, "h"), (31_536_000.0, 86_400.0, "days")],
)
def test_steps_and_units_are_round(end_s: float, step_s: float, unit: str) -> None:
    """Half a day is drawn by pairs of minutes in hours, a year by days in days."""
    lasting = replace(policy("a", 1.0), time=WhereTimeWent(working_s=end_s), healthy_iteration_time_s=0.1)
    axis = axis_of(report(lasting))
    assert (axis.end_s, axis.step_s, axis.unit.name) == (end_s, step_s, unit)


def test_a_step_holds_some_iterations() -> None:
    """Steps are no shorter than five iterations: in a shorter one those that end in it would pass for their pace."""
    lasting = replace(policy("a", 1.0), time=WhereTimeWent(working_s=3600.0), healthy_iteration_time_s=27.0)
    assert axis_of(report(lasting)).step_s == 300.0
    short = replace(lasting, time=WhereTimeWent(working_s=4.0))
    assert (axis_of(report(short)).step_s, axis_of(report(short)).steps) == (4.0, 1)


def test_contestants_are_ranked_without_the_fault_free_cluster() -> None:
    """The best comes first; what cannot train is left out, and the fault-free cluster unless it is alone."""
    drawn = replayed({"slow": 900.0, "quick": 10.0}, {"huge": "too large"})
    assert [one.policy for one in contestants(drawn)] == ["quick", "slow"]
    assert [one.policy for one in contestants(replayed({}))] == ["fault-free"]
    assert fault_free_per_s(replayed({})) == pytest.approx(1.6, rel=0.01)


def test_colours_are_of_names() -> None:
    """Eleven policies have eleven colours; a policy has the same one in all reports."""
    first = report(*(policy(f"p{number}", 0.5) for number in range(11)))
    second = report(policy("p7", 0.5), policy("p0", 0.5))
    colours = colours_of([first, second])
    assert len(set(colours.values())) == 11
    assert colours["p0"] == LOOKS["F"].colour
