"""Machine code for large plans: it judges, times and reads as numpy does, in whatever way a plan is broken."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.schemas import check, orders, sound
from rtk.schemas.check import check_plan, deadlock_free_times
from rtk.schemas.plan import Plan

from ..strategies import any_plans, hand_plan


@contextmanager
def machine_code(used: bool) -> Iterator[None]:
    """Plans are read and judged in this way, however small."""
    with patch.object(orders, "pays", lambda *_: used), patch.object(check, "pays", lambda *_: used):
        yield


@st.composite
def perhaps_broken(draw: st.DrawFn) -> Plan:
    """A plan some of whose operations were taken away, doubled, moved, renamed or put in another order."""
    plan = draw(any_plans())
    texts = [(worker.order or "").split() for worker in plan.workers]
    for _ in range(draw(st.integers(1, 3))):
        here, there = (draw(st.sampled_from([n for n, one in enumerate(texts) if one or at])) for at in range(2))
        place = draw(st.integers(0, len(texts[here]) - 1))
        change = draw(st.sampled_from(["drop", "double", "move", "rename", "swap", "shuffle"]))
        token = texts[here][place]
        if change == "drop":
            del texts[here][place]
        elif change == "double":
            texts[there].append(token)
        elif change == "move":
            texts[there].insert(draw(st.integers(0, len(texts[there]))), texts[here].pop(place))
        elif change == "rename":
            texts[here][place] = draw(st.sampled_from("FIWB")) + draw(st.sampled_from(["0", "1", "1.0", "7", "9.9"]))
        elif change == "swap":
            other = draw(st.integers(0, len(texts[here]) - 1))
            texts[here][place], texts[here][other] = texts[here][other], token
        else:
            texts[here] = draw(st.permutations(texts[here]))
        if not any(texts):
            break
    workers = (
        one if one.failed else replace(one, order=" ".join(text)) for one, text in zip(plan.workers, texts, strict=True)
    )
    return replace(plan, workers=tuple(workers))


@settings(max_examples=60)
@given(perhaps_broken())
def test_machine_code_finds_the_problems_that_numpy_finds(plan: Plan) -> None:
    """The very same, in the same words and order: broken orders, deadlocks, limits and predictions."""
    with machine_code(False):
        problems = check_plan(plan)
    with machine_code(True):
        assert check_plan(plan) == problems


@given(any_plans())
def test_machine_code_times_valid_plans_to_the_last_bit(plan: Plan) -> None:
    """Starts and ends of all operations, and what every worker holds, are those that numpy finds."""
    with machine_code(True):
        cells = check._number_cells(check._tabulate(plan))
        run = check._run(cells)
    assert run is not None
    start_s, end_s = deadlock_free_times(plan)
    assert run.start_s.tolist() == start_s.tolist()
    assert run.end_s.tolist() == end_s.tolist()
    assert run.peaks.tolist() == check._peak_memory(cells.table).tolist()


SOUND: dict[str, str | None] = {
    "0/0": "F0 F1 I0 W0 B1",
    "0/1": "F0 B0 F1 I1 F1.0 B1.0 W1",
    "1/0": "F0 B0 F1 B1",
    "1/1": "F1 B1",
}
CHANGES: dict[str, dict[str, str | None]] = {
    "nothing": {},
    "an F is missing": {"0/0": "F0 I0 W0 B1"},
    "an F comes twice": {"0/0": "F0 F1 F1 I0 W0 B1"},
    "a micro-batch that there is not": {"1/1": "F1 B1 F7"},
    "a pipeline that there is not": {"1/1": "F1 B1 F5.0"},
    "a B before its F": {"1/1": "B1 F1"},
    "a W before its I": {"0/0": "F0 F1 W0 I0 B1"},
    "a W is missing": {"0/0": "F0 F1 I0 B1"},
    "an I with another worker's F": {"0/1": "F0 B0 F1 I1 F1.0 W1", "1/1": "F1 B1 B0"},
    "a deadlock": {"0/0": "F0 I0 W0 F1 B1", "0/1": "F1 B1 F0 B0 F1.0 B1.0"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_source_of_the_machine_code_judges_as_numpy_does(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted, the two passes refuse what has problems, and time what has none as numpy does."""
    monkeypatch.setattr(sound, "compiled", lambda function: function)
    plan = replace(hand_plan(SOUND | CHANGES[change], 2), prediction=None)
    cells = check._number_cells(check._tabulate(plan))
    run = check._run(cells)
    assert (run is None) == (check_plan(plan) != []) == (change != "nothing")
    if run is not None:
        start_s, end_s = deadlock_free_times(plan)
        assert run.start_s.tolist() == start_s.tolist()
        assert run.end_s.tolist() == end_s.tolist()
        assert run.peaks.tolist() == check._peak_memory(cells.table).tolist()
