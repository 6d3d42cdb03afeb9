"""Slots under memory limits: aligned cuts, schedules shared between numbers of failures, machine code when it pays."""

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.planners.slipstream import normalization, slot_search
from rtk.planners.slipstream.bounds import RoutingBound
from rtk.planners.slipstream.cluster import AtlasRequest, opening, single_pipeline
from rtk.planners.slipstream.replanner import Replanner
from rtk.planners.slipstream.rotation import AlignedCut, aligned
from rtk.planners.slipstream.slot_search import SlotSearch
from rtk.schemas.atlas import Atlas
from rtk.schemas.check import check_plan

from .equal_pipelines import Cluster, clusters
from .running_plans import profile

CUTS = st.builds(AlignedCut, st.booleans(), st.sampled_from([-2, 0, 6, 12]), st.floats(0, 1))


def _opening(pp: int, dp: int, microbatches: int, limits: list[float], optimizer: str = "staggered") -> Atlas:
    """Stages of F = I = W = 1 s with an activation of 1, half of it stash."""
    shape = Shape(pp, dp, microbatches, limits)
    return opening(profile([(1.0, 1.0, 1.0)] * pp), AtlasRequest(shape, optimizer, effort=Effort("rules")))  # type: ignore[arg-type]


@pytest.fixture
def shared() -> Iterator[None]:
    """Schedules are shared, however small the problem."""
    with patch.multiple(normalization, SHARED_OPERATIONS=0), patch.multiple(slot_search, SEARCHED_OPERATIONS=0):
        yield


@given(st.data())
def test_aligned_cuts_have_no_more_slots_than_a_stage_may_have(data: st.DataObject) -> None:
    """Nor wider ones than it has live workers; their narrow slots are as wide as the narrowest stage."""
    live = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    jobs = max(live) * data.draw(st.integers(1, 8))
    most = [data.draw(st.integers(1, 2 * jobs)) for _ in live]
    slots = aligned(jobs, live, most, data.draw(CUTS))
    assert slots.narrow is not None
    assert slots.narrow.grid == min(slots.group_sizes)
    for width, workers, count, may in zip(slots.group_sizes, live, slots.counts.tolist(), most, strict=True):
        assert width <= workers
        assert count <= max(may, -(-jobs // workers))
    assert (np.diff(slots.ends, axis=0) >= 0).all()
    assert (slots.ends[-1] == jobs).all()


@given(clusters(), st.booleans(), st.floats(1, 100))
def test_who_has_more_than_the_rounds_within_a_time_takes_longer(
    cluster: Cluster, staggered: bool, within_s: float
) -> None:
    """With so many micro-batches a stage says no more than that time by its load alone, with one more it says more."""
    bound = RoutingBound(cluster.pipeline, cluster.jobs)
    live = np.array(cluster.live)
    rounds = -(-cluster.jobs // live)
    if (rounds > bound.rounds_within(within_s, staggered)).any():
        assert bound.value_s(live, staggered) > within_s * (1 - 1e-6)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("limits", [[4.0], [4.0, 3.0, 2.0, 1.0]])
@pytest.mark.parametrize("technique", ["adaptive", "decoupled", "staggered"])
def test_plans_of_shared_entries_keep_what_they_promise_or_do_better(limits: list[float], technique: str) -> None:
    """Valid, no slower, no more memory, never below the bound; as many failures as asked for."""
    replanner = Replanner(_opening(4, 4, 6, limits, technique), 6)
    for failures in range(7):
        entry, stored = replanner.entry(failures)
        assert stored is None
        plan, promised = replanner.rebuilt(entry), entry.prediction
        assert check_plan(plan) == []
        assert plan.prediction is not None
        assert plan.prediction.makespan_s <= promised.makespan_s * (1 + 1e-9)
        assert plan.prediction.period_s <= promised.period_s * (1 + 1e-9)
        assert plan.prediction.iteration_time_s >= promised.lower_bound_s * (1 - 1e-9)
        for i, most in enumerate(promised.peak_memory_bytes):
            assert max(plan.prediction.peak_memory_bytes[i::4]) <= most
        assert sum(entry.failures) == sum(bool(worker.failed) for worker in plan.workers) == failures


@pytest.mark.usefixtures("shared")
def test_shared_entries_do_not_depend_on_what_else_is_asked() -> None:
    """In any order, up to any number, after others or alone: so jobs and interruptions leave the bytes alone."""
    common = _opening(4, 4, 6, [4.0])
    upwards, downwards = Replanner(common, 6), Replanner(common, 9)
    entries = {failures: downwards.entry(failures)[0] for failures in range(9, -1, -1)}
    assert [upwards.entry(failures)[0] for failures in range(7)] == [entries[failures] for failures in range(7)]
    assert Replanner(common, 5).entry(5)[0] == entries[5]


@pytest.mark.usefixtures("shared")
def test_failures_of_one_bound_share_a_schedule() -> None:
    """At 1F1B's memory, where the first schedule is optimal, all numbers of failures but some have another's recipe."""
    replanner = Replanner(_opening(4, 8, 8, [4.0, 3.0, 2.0, 1.0]), 8)
    entries = [replanner.entry(failures)[0] for failures in range(9)]
    assert len({entry.recipe for entry in entries}) < len(entries)


def test_aligned_cuts_are_at_the_bound_where_wide_slots_are_not() -> None:
    """8 x 8 x 32 at a limit of 8 activations: all numbers of failures of a quarter are planned optimally, by slots."""
    common = _opening(8, 8, 32, [8.0])
    replanner = Replanner(common, 16)
    entries = [replanner.entry(failures)[0] for failures in (5, 7, 13, 15)]
    assert [entry.prediction.proof for entry in entries] == ["optimal"] * 4
    assert any(entry.recipe.narrow is not None for entry in entries)


def test_many_runs_are_done_by_machine_code_though_few_were_announced() -> None:
    """What decides is what has been scheduled; results are the same."""
    common = _opening(4, 4, 6, [4.0])
    told, untold = (SlotSearch(single_pipeline(common), 4, searches=searches) for searches in (10**6, 1))
    with patch.object(slot_search, "INTERPRETED_OPERATIONS", 1000):
        found = [untold.look([0, 1, 0, count]) for count in (0, 1, 2, 3)]
        assert untold._scheduler.compiled
    assert [replace(told.look([0, 1, 0, count]), times=one.times) for count, one in enumerate(found)] == found
