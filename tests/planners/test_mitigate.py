"""Ski rental over several strategies: the proven ratio, which no adversary exceeds, and the one who reaches it."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.greyhound.mitigate import STRATEGIES, plan_switches, ratio_of
from rtk.schemas.errors import InvalidInputError

costs = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=5).map(sorted)
shares = st.floats(0.0, 1.0)
PAPER = {"S2": 5.0, "S3": 60.0, "S4": 1200.0}


def losses_s(costs_s: Sequence[float], left: Sequence[float], lasts_s: float) -> tuple[float, float]:
    """What Algorithm 1 loses, and what one loses who knows the end.

    Args:
        costs_s: ascending.
        left: what is left of the slow-down under each strategy, of 1.
        lasts_s: until all would be well again, had nobody done anything; then all is well at once.
    """
    impact_s, now_s, bought_s, rate = 0.0, 0.0, 0.0, 1.0
    for cost_s, share in zip(costs_s, left, strict=True):
        reached_s = now_s + (cost_s - impact_s) / rate if rate else float("inf")
        if reached_s > lasts_s:
            break
        impact_s, now_s, bought_s, rate = cost_s, reached_s, bought_s + cost_s, share
    known_s = min([lasts_s, *(cost_s + share * lasts_s for cost_s, share in zip(costs_s, left, strict=True))])
    return impact_s + rate * (lasts_s - now_s) + bought_s, known_s


@given(costs, st.data())
def test_nobody_loses_more_than_the_ratio(costs_s: list[float], data: st.DataObject) -> None:
    """However much the strategies help, as long as dearer ones help no less, and however long it lasts."""
    left = sorted(data.draw(st.lists(shares, min_size=len(costs_s), max_size=len(costs_s))), reverse=True)
    lasts_s = data.draw(st.floats(0.0, 1e5) | st.sampled_from(costs_s))
    ours_s, known_s = losses_s(costs_s, left, lasts_s)
    assert ours_s <= ratio_of(costs_s) * known_s * (1 + 1e-9)


@given(costs)
def test_somebody_loses_as_much(costs_s: list[float]) -> None:
    """Where the cheaper strategies do not help, and all is well right after some switch: the ratio is tight."""
    useless = [1.0] * len(costs_s)
    found = [ours_s / known_s for ours_s, known_s in (losses_s(costs_s, useless, end_s) for end_s in costs_s)]
    assert max(found) == pytest.approx(ratio_of(costs_s))


@pytest.mark.parametrize(
    ("costs_s", "ratio"),
    [
        ((5, 60, 1200), 2 + 5 / 60),
        ((7,), 2.0),
        ((60, 60, 60), 4.0),
        ((30, 60, 600), 2.5),
        ((1, 10, 100, 1000), 2.111),
        ((), 1.0),
    ],
)
def test_known_ratios(costs_s: tuple[float, ...], ratio: float) -> None:
    """2.083 for 5, 60 and 1200 s, the classical 2 for one ski, 4 for three that cost the same."""
    assert ratio_of(costs_s) == pytest.approx(ratio)


def test_the_switches_are_in_the_order_of_costs() -> None:
    """Each at its own cost; what it takes to revert belongs to S3's."""
    found = plan_switches(PAPER)
    assert [(one.strategy, one.after_s) for one in found.switches] == list(PAPER.items())
    assert found.ratio == pytest.approx(2.0833, abs=1e-4)
    assert found.dropped == ()
    assert [one.after_s for one in plan_switches(PAPER, revert_s=20.0).switches] == [5.0, 80.0, 1200.0]
    assert [one.strategy for one in plan_switches({"S4": 9.0, "S2": 1.0}).switches] == ["S2", "S4"]


@pytest.mark.parametrize(
    ("costs_s", "left", "kept"),
    [
        ((5, 60, 1200), {}, "S2 S3 S4"),
        ((60, 60, 60), {}, "S2 S3 S4"),
        ((50, 5, 1200), {}, "S3 S4"),  # S3 helps no less than S2
        ((50, 60, 7), {}, "S4"),
        ((50, 5, 1200), {"S2": 0.1, "S3": 0.5}, "S3 S2 S4"),
        ((5, 60, 1200), {"S2": 0.97}, "S3 S4"),  # a gain of less than 5 %
        ((5, 60, 1200), {"S2": 0.4, "S3": 0.4}, "S2 S4"),
        ((5, 60, 1200), {"S2": 0.4, "S3": 0.7, "S4": 0.0}, "S2 S4"),
        ((5, 60, 1200), {"S2": 0.04}, "S2"),  # hardly anything is left
        ((5, 60, 1200), {"S2": 1.2, "S3": 1.0, "S4": 1.0}, ""),
        ((60, 60, 60), {"S2": 0.5, "S3": 0.2, "S4": 0.0}, "S4"),
    ],
)
def test_needless_strategies_are_dropped(costs_s: Sequence[float], left: dict[str, float], kept: str) -> None:
    """Dearer ones that help no more, by what is known or else by their ranks; all are named, with a reason."""
    found = plan_switches(dict(zip(STRATEGIES, map(float, costs_s), strict=True)), left)
    assert " ".join(one.strategy for one in found.switches) == kept
    assert {one.strategy for one in found.switches} | {one.strategy for one in found.dropped} == set(STRATEGIES)
    assert all(one.why for one in found.dropped)
    assert found.ratio == ratio_of([one.after_s for one in found.switches])


@given(st.tuples(*[st.floats(0.1, 1e3)] * 3), st.tuples(*[st.floats(0.0, 1.3)] * 3), st.floats(0.0, 1e4))
def test_what_is_kept_keeps_the_promise(costs_s: tuple[float, ...], left: tuple[float, ...], lasts_s: float) -> None:
    """Of strategies of any costs and any help, those that are kept help the more the dearer they are, so the ratio
    holds for them."""
    shares = dict(zip(STRATEGIES, left, strict=True))
    found = plan_switches(dict(zip(STRATEGIES, costs_s, strict=True)), shares)
    kept = [(one.after_s, shares[one.strategy]) for one in found.switches]
    assert kept == sorted(kept, key=lambda one: (one[0], -one[1]))
    assert [share for _, share in kept] == sorted((share for _, share in kept), reverse=True)
    ours_s, known_s = losses_s([cost_s for cost_s, _ in kept], [share for _, share in kept], lasts_s)
    assert ours_s <= found.ratio * known_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("costs_s", "left", "revert_s", "says"),
    [
        ({}, {}, 0.0, "no costs"),
        ({"S2": 0.0}, {}, 0.0, "S2 costs 0 s"),
        ({"S2": -1.0}, {}, 0.0, "S2 costs -1 s"),
        ({"S2": float("nan")}, {}, 0.0, "S2 costs nan s"),
        ({"S2": float("inf")}, {}, 0.0, "S2 costs inf s"),
        ({"S1": 1.0}, {}, 0.0, "no strategy S1"),
        ({"S2": 1.0}, {"S3": 0.5}, 0.0, "S3 has no cost"),
        ({"S2": 1.0}, {"S2": -0.5}, 0.0, "cannot be left"),
        ({"S2": 1.0}, {"S2": float("nan")}, 0.0, "cannot be left"),
        ({"S3": 1.0}, {}, -1.0, "to revert"),
    ],
)
def test_what_is_refused(costs_s: dict[str, float], left: dict[str, float], revert_s: float, says: str) -> None:
    """Costs that are none, and shares that cannot be."""
    with pytest.raises(InvalidInputError, match=says):
        plan_switches(costs_s, left, revert_s)
