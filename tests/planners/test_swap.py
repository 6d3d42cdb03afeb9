"""Swaps of two workers' places, by which slow links between peers carry nothing any more."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.adaptra.swap import PlacePair, are_neighbours, are_peers, best_swap, swapped
from rtk.planners.pipeline.plan import plan_pipeline
from rtk.planners.shape import Shape
from rtk.schemas.plan import Plan, Worker

from .running_plans import profile


def grid(pp: int, dp: int) -> Plan:
    """Pipelines that are alike."""
    return plan_pipeline(profile([(1.0, 1.0, 1.0)] * pp), "gpipe", Shape(pp, dp, 1))


def peers_s(slow: dict[PlacePair, float]) -> float:
    """The delays between peers."""
    return sum(delay_s for pair, delay_s in slow.items() if are_peers(pair))


@given(st.integers(2, 5), st.integers(2, 4), st.data())
def test_a_slow_link_between_peers_is_moved_for_the_fewest_bytes(pp: int, dp: int, data: st.DataObject) -> None:
    """One of its ends goes to another stage, where it has nothing to send to the other end; no other stage of the
    kind is smaller."""
    stage = data.draw(st.integers(0, pp - 1))
    state_bytes = data.draw(st.lists(st.integers(1, 5).map(float), min_size=pp, max_size=pp))
    k, other = sorted(data.draw(st.sets(st.integers(0, dp - 1), min_size=2, max_size=2)))
    slow = {((k, stage), (other, stage)): 0.5}
    swap = best_swap(grid(pp, dp), slow, state_bytes)
    assert swap is not None
    end, place = swap
    assert end in next(iter(slow))
    ((pair, delay_s),) = swapped(slow, swap).items()
    assert delay_s == 0.5
    assert not are_peers(pair)
    assert not are_neighbours(pair)
    assert state_bytes[place[1]] == min(size for i, size in enumerate(state_bytes) if i != stage)


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_swap_only_makes_things_better(pp: int, dp: int, data: st.DataObject) -> None:
    """Whatever is slow, afterwards there is less delay between peers, or as much and less inside pipelines; after a few
    swaps nothing is to be gained any more."""
    plan = grid(pp, dp)
    places = [(one.pipeline, one.stage) for one in plan.workers]
    pairs = [(a, b) for a in places for b in places if a < b]
    chosen = data.draw(st.lists(st.sampled_from(pairs), max_size=4, unique=True)) if pairs else []
    slow = {pair: 1.0 + number for number, pair in enumerate(chosen)}
    for _ in range(50):
        swap = best_swap(plan, slow, [1.0] * pp)
        if swap is None:
            return
        before, slow = peers_s(slow), swapped(slow, swap)
        assert peers_s(slow) <= before
    raise AssertionError("swaps go on for ever")


def test_dead_workers_swap_with_nobody() -> None:
    """And with a single stage there is nowhere to go."""
    plan = grid(2, 2)
    dead = tuple(Worker(one.pipeline, one.stage, failed=True) if one.stage == 1 else one for one in plan.workers)
    slow: dict[PlacePair, float] = {((0, 0), (1, 0)): 1.0}
    assert best_swap(replace(plan, workers=dead), slow, [1.0, 1.0]) is None
    assert best_swap(grid(1, 2), slow, [1.0]) is None
