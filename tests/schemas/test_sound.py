"""Machine code for large plans: it judges, times and reads as numpy does, in whatever way a plan is broken."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.schemas import check, orders
from rtk.schemas.check import check_plan, deadlock_free_times
from rtk.schemas.plan import Plan

from ..strategies import any_plans


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


@settings(max_examples=300)
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
