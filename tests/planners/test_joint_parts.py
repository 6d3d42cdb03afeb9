"""The parts of a joint plan: loads, who takes which micro-batch, swaps around slow pairs, and warm-ups."""

from itertools import product
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.adaptra.plan import algorithm_2
from rtk.planners.joint.bound import shifts
from rtk.planners.joint.routings import (
    bypassed,
    crossing,
    handed_out,
    in_turns,
    job_s,
    least_loads,
    routed,
    water_filled,
)
from rtk.planners.joint.search import joint_rules, remaining_delays_s, warmups_of
from rtk.schemas.plan import Link, Plan

from .troubled import alike, situation, troubled, troubled_plans

PACES = st.lists(st.sampled_from([1.0, 1.0, 1.5, 3.0, float("inf")]), min_size=1, max_size=3)


@given(PACES.filter(lambda paces: min(paces) < float("inf")), st.integers(0, 7))
def test_no_other_loads_end_earlier(paces: list[float], jobs: int) -> None:
    """All jobs are taken, none by who takes none, and the last worker ends as early as by any other loads."""
    found = least_loads(np.array(paces), jobs)

    def end_s(loads: tuple[int, ...]) -> float:
        return max(n * pace if n else 0.0 for n, pace in zip(loads, paces, strict=True))

    choices = [loads for loads in product(range(jobs + 1), repeat=len(paces)) if sum(loads) == jobs]
    assert found.sum() == jobs
    assert end_s(tuple(found.tolist())) == min(map(end_s, choices))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_everybody_keeps_its_own_first(room: list[int], chance: object) -> None:
    """Each takes what it has room for, and gives nothing away that it has room for."""
    owner = np.array([k for k in range(len(room)) for _ in range(room[k])], dtype=np.int64)
    chance.shuffle(owner)  # type: ignore[attr-defined]
    rotated = np.roll(np.array(room), 1)
    taker = handed_out(owner, rotated)
    assert np.bincount(taker, minlength=len(room)).tolist() == rotated.tolist()
    kept = np.bincount(owner[taker == owner], minlength=len(room))
    assert kept.tolist() == np.minimum(room, rotated).tolist()


@given(troubled_plans())
def test_turns_keep_loads_and_peers_in_step(plan: Plan) -> None:
    """Of the first jobs of a stage, however many, everybody has its share but for less than two."""
    home = situation(plan).home
    loads = water_filled(home).job_counts.reshape(job_s(home).shape)
    turns = in_turns(home, loads)
    assert turns.job_counts.tolist() == loads.ravel().tolist()
    stages = home.executor.shape[1]
    for stage in range(stages):
        taken = (turns.executor[:, [stage]] // stages == np.arange(len(loads))).cumsum(axis=0)
        share = np.outer(np.arange(1, home.jobs + 1), loads[:, stage]) / home.jobs
        assert (np.abs(taken - share) < 2).all()


@given(troubled_plans(), st.randoms(use_true_random=False))
def test_a_shift_takes_from_who_ends_last_and_gives_to_a_live_peer_that_ends_earlier(
    plan: Plan, chance: Random
) -> None:
    """One micro-batch at each of some stages, so the loads of a stage still add up, and can be routed."""
    home = situation(plan).home
    each_s, loads = job_s(home), water_filled(home).job_counts.reshape(job_s(home).shape)
    ends_s = np.where(loads > 0, np.array([chance.uniform(0, 9) for _ in loads.flat]).reshape(loads.shape), 0.0)
    for other in shifts(loads, ends_s, each_s):
        assert routed(home, other).job_counts.tolist() == other.ravel().tolist()
        assert in_turns(home, other).job_counts.tolist() == other.ravel().tolist()
        changed = (other != loads).any(axis=0)
        assert changed.any()
        for moved, load, end_s, live in zip((other - loads).T, loads.T, ends_s.T, np.isfinite(each_s).T, strict=True):
            if moved.any():
                late, early = int(moved.argmin()), int(moved.argmax())
                assert sorted(moved.tolist()) == [-1, *[0] * (len(moved) - 2), 1]
                assert live[early]
                assert end_s[late] == end_s[load > 0].max() > end_s[early]


@given(troubled_plans(), st.data())
def test_swaps_keep_loads_and_cross_no_more_slow_pairs(plan: Plan, data: st.DataObject) -> None:
    """Whatever pairs are slow, every worker executes as much as before."""
    found = situation(plan)
    filled = water_filled(found.home)
    flat = st.lists(st.booleans(), min_size=found.slow.size, max_size=found.slow.size)
    slow = np.array(data.draw(flat), dtype=np.bool_).reshape(found.slow.shape)
    swapped = bypassed(filled, slow)
    assert swapped.job_counts.tolist() == filled.job_counts.tolist()
    assert crossing(swapped, slow).sum() <= crossing(filled, slow).sum()


def test_a_slow_pair_carries_nothing_and_its_neighbours_what_they_did() -> None:
    """The swap is with the nearest micro-batch, so all others stay where they were."""
    found = situation(troubled(alike(3, 3, 4), delays_s={(1, 0): 0.05}))
    swapped = bypassed(found.home, found.slow)
    assert crossing(swapped, found.slow).sum() == 0
    moved = np.flatnonzero((swapped.executor != found.home.executor).any(axis=1)).tolist()
    assert moved == [0, 1, 3, 4, 6, 7, 9, 10]  # those of pipeline 1, each with the one ahead of it, of pipeline 0
    assert (swapped.executor[:, 0] == found.home.executor[:, 0]).all()


def test_warm_ups_are_those_of_algorithm_2_for_what_links_carry_scaled_to_the_load() -> None:
    """Two pipelines do a third one's work at stage 1: half as many forwards more; bypassed links do not count."""
    plan = troubled(alike(3, 3, 12), frozenset({(2, 1)}), delays_s={(0, 0): 0.05})
    found = situation(plan)
    stages, links = found.stages, plan.links_of(0)
    filled = water_filled(found.home)
    for problem, expected in ((bypassed(filled, found.slow), (Link(), Link())), (filled, links)):
        delays_s = remaining_delays_s(problem, found.slow)
        warmup = warmups_of(stages, delays_s, problem.jobs)
        assert warmup[:3] == algorithm_2(stages, expected, 12 - 2 * 3)
        first = next(joint_rules(problem, stages, found.slow))
        assert list(first.warmup)[:2] == [warmup[0], -(-warmup[1] * 3 // 2)]
