"""A plan's iteration as columns."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.simulator import simulate
from rtk.runners.undisturbed import columns_of_plan
from rtk.schemas import check
from rtk.schemas.columns import timeline_from
from rtk.schemas.plan import Plan
from rtk.schemas.timeline import Timeline

from ..placed_plans import any_placed_plans
from ..strategies import any_plans, hand_plan


def timeline_of(plan: Plan) -> Timeline:
    """Two iterations if its optimizers are staggered, for they overlap."""
    simulation = simulate(plan)
    return simulation.repeated(2) if plan.optimizer == "staggered" else simulation.timeline


@given(st.one_of(any_plans(), any_placed_plans()))
def test_it_is_what_the_simulator_gives(plan: Plan) -> None:
    """Columns and the simulated timeline hold the same spans in the same order, to the last bit of their times."""
    for optimizer in ("synchronous", "staggered"):
        asked = replace(plan, optimizer=optimizer)
        assert timeline_from(columns_of_plan(asked)) == replace(timeline_of(asked), options={})


def test_machine_code_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large plans are timed by machine code, with the same result."""
    plan = hand_plan({"0/0": "F0 F1 B0 B1", "0/1": "F0 B0 F1 B1"}, microbatches=2)
    before = timeline_from(columns_of_plan(plan))
    monkeypatch.setattr(check, "NUMPY_OPERATIONS", 0)
    assert timeline_from(columns_of_plan(plan)) == before
