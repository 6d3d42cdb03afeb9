"""Swaps of two workers' places (S3): whom they concern, and which one is taken."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.greyhound.topology import ALIKE, Swap, best_swap, exchanged
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.schemas.conditions import PlanConditions, are_neighbours, are_peers
from rtk.schemas.plan import Place, Plan, Worker

from .running_plans import profile


def grid(pp: int, dp: int) -> Plan:
    """Pipelines that are alike."""
    return plan_pipeline(profile([(1.0, 1.0, 1.0)] * pp), Shape(pp, dp, 1), "gpipe")


def of_peers(slow: PlanConditions) -> float:
    """A time that grows with the delays between peers."""
    return 1 + sum(delay_s for pair, delay_s in slow.links_s if are_peers(pair))


@given(st.integers(2, 5), st.integers(2, 4), st.data())
def test_a_slow_link_between_peers_is_moved_for_the_fewest_bytes(pp: int, dp: int, data: st.DataObject) -> None:
    """One of its ends goes to another stage, where it has nothing to send to the other end; no other stage of the
    kind is smaller."""
    stage = data.draw(st.integers(0, pp - 1))
    state_bytes = data.draw(st.lists(st.integers(1, 5).map(float), min_size=pp, max_size=pp))
    k, other = sorted(data.draw(st.sets(st.integers(0, dp - 1), min_size=2, max_size=2)))
    slow = PlanConditions(links_s=((((k, stage), (other, stage)), 0.5),))

    def time_s(swap: Swap | None) -> float:
        return of_peers(slow.moved(exchanged(swap)))

    swap = best_swap(grid(pp, dp), slow, state_bytes, time_s, time_s)
    assert swap is not None
    ((pair, delay_s),) = slow.moved(exchanged(swap)).links_s
    assert delay_s == 0.5
    assert not are_peers(pair)
    assert not are_neighbours(pair)
    (there,) = [place for place in swap if place[1] != stage]
    assert state_bytes[there[1]] == min(size for i, size in enumerate(state_bytes) if i != stage)


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_swap_is_nearly_the_fastest_of_those_that_were_tried(pp: int, dp: int, data: st.DataObject) -> None:
    """It concerns somebody who is slow, or an end of a slow link, and another live worker; it makes iterations shorter,
    and none that was tried makes them shorter by more than what counts as alike."""
    plan = grid(pp, dp)
    places = [(one.pipeline, one.stage) for one in plan.workers]
    slow = data.draw(st.sets(st.sampled_from(places), max_size=2))
    dead = data.draw(st.sets(st.sampled_from(places), max_size=1))
    workers = tuple(Worker(*place, failed=True) if place in dead else Worker(*place) for place in places)
    tried: dict[Swap | None, float] = {}

    def time_s(swap: Swap | None) -> float:
        if swap not in tried:
            tried[swap] = data.draw(st.floats(1.0, 2.0))
        return tried[swap]

    there = PlanConditions(tuple((place, 2.0) for place in sorted(slow)))
    swap = best_swap(replace(plan, workers=workers), there, [1.0] * pp, lambda swap: 1.0, time_s)
    least_s = min(tried.values(), default=0.0)
    if swap is None:
        assert least_s == tried.get(None, 0.0)
        return
    assert swap[0] < swap[1]
    assert slow & {*swap}
    assert not dead & {*swap}
    assert tried[swap] <= least_s * (1 + ALIKE)


def test_only_some_of_many_pipelines_that_are_alike_are_looked_at() -> None:
    """With sixteen pipelines a slow worker is tried with those of its own and of two others."""
    asked: set[Place] = set()

    def time_s(swap: Swap | None) -> float:
        asked.update(swap or ())
        return 1.0

    assert best_swap(grid(4, 16), PlanConditions((((5, 1), 2.0),)), [0.0] * 4, time_s, time_s) is None
    assert {k for k, _ in asked} == {0, 1, 5}
