"""An account of an iteration adds up to all of it, for every plan."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.explain.account import IterationAccount, account_of
from rtk.planners.explain.explain import explain
from rtk.planners.explain.words import words_of_account
from rtk.schemas.plan import Layers, Plan

from ..placed_plans import placed_plans
from ..strategies import any_plans


@dataclass(frozen=True)
class _Made:
    """A pass of two parts, of which one is computed again."""

    one: float
    again_s: float

    def by_name(self) -> Mapping[str, float]:
        return {"once": self.one, "again": self.again_s}


def _whole_s(account: IterationAccount) -> float:
    return sum(one.time_s for one in account.shares)


@settings(max_examples=25)
@given(st.one_of(any_plans(), placed_plans()), st.integers(1, 9), st.integers(0, 9))
def test_an_account_adds_up_to_the_iteration(plan: Plan, one: int, again: int) -> None:
    """Whatever passes are made of, parts, waiting, sums and the step are all of the iteration, and none is below 0."""
    found = explain(plan, searches=0)

    def made_of(layers: Layers, degree: int, kind: str) -> _Made:
        return _Made(float(one), float(again))

    for parts_of_stage in (None, made_of):
        account = account_of(plan, found.busiest, parts_of_stage)
        assert _whole_s(account) == pytest.approx(found.iteration_time_s)
        assert sum(share.share for share in account.shares) == pytest.approx(1 if account.shares else 0)
        assert all(share.time_s > 0 for share in account.shares)
        assert account.worker == found.busiest.worker
        assert all(len(line) <= 100 for line in words_of_account(account).splitlines())
    passes_s = {share.what: share.time_s for share in account.shares}
    slow_s = passes_s.get("slowdown", 0.0)
    work_s = passes_s.get("once", 0.0) + passes_s.get("again", 0.0)
    assert work_s + slow_s == pytest.approx(found.busiest.compute_s)
    assert account.again_s == pytest.approx(work_s * again / (one + again))
