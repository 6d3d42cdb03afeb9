"""The list scheduler: whatever the rules, costs and limits, its orders are complete and never deadlock."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.list_schedule import Rules, Token, list_schedule
from rtk.schemas.check import check_plan
from rtk.schemas.orders import Operation, print_order
from rtk.schemas.plan import Link, Pipeline, Plan, Stage, Template, Worker

from ..strategies import BY_HAND, templates


def _plan(template: Template, microbatches: int, orders: list[list[Token]]) -> Plan:
    texts = [print_order((Operation(kind, 0, j) for kind, j in order), 0) for order in orders]
    return Plan(
        BY_HAND,
        (template,),
        (Pipeline("t0", microbatches),),
        "synchronous",
        tuple(Worker(0, stage, text) for stage, text in enumerate(texts)),
    )


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Template, int, Rules]:
    depth, microbatches = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    template = draw(templates(depth))
    stages = tuple(draw(_limited(stage)) for stage in template.stages)
    counts = st.lists(st.integers(1, 9), min_size=depth, max_size=depth)
    rules = Rules(
        draw(counts),
        draw(counts),
        draw(st.sampled_from(["backward", "alternate"])),
        draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
    return replace(template, stages=stages), microbatches, rules


@st.composite
def _limited(draw: st.DrawFn, stage: Stage) -> Stage:
    """The stage with sizes and a limit that admits one micro-batch at least."""
    held, stash = draw(st.sampled_from([(0.0, 0.0), (1.0, 0.0), (1.0, 0.5), (1.0, 1.0), (0.3, 0.1)]))
    limit = draw(st.sampled_from([None, 1.0, 1.6, 3.0]))
    return replace(stage, activation_bytes=held, weight_stash_bytes=stash, memory_limit_bytes=limit)


@settings(max_examples=100)
@given(_cases())
def test_orders_are_valid_under_any_rules_and_limits(case: tuple[Template, int, Rules]) -> None:
    """Every order is complete, deadlock-free and under its memory limit, and no stage holds more than it may."""
    template, microbatches, rules = case
    orders = list_schedule(template.stages, template.links, microbatches, rules)
    assert check_plan(_plan(template, microbatches, orders)) == []
    for order, most in zip(orders, rules.in_flight, strict=True):
        flight = [sum({"F": 1, "I": -1, "W": 0, "B": 0}[kind] for kind, _ in order[: n + 1]) for n in range(len(order))]
        assert max(flight) <= most
        assert all([j for kind, j in order if kind == wanted] == list(range(microbatches)) for wanted in "FIW")


def test_warm_up_runs_that_many_forwards_first() -> None:
    """A first stage with warm-up 3 runs three forwards, then takes backwards first."""
    stage = Stage((0, 1), 1.0, 1.0, 1.0)
    order = list_schedule([stage], [], 5, Rules([3], [99]))[0]
    assert [kind for kind, _ in order[:4]] == ["F", "F", "F", "I"]


def test_alternate_takes_forwards_and_backwards_in_turns() -> None:
    """`alternate` gives 1F1B's steady state, `backward` empties the backwards first."""
    stage = Stage((0, 1), 1.0, 1.0, 1.0)
    order = list_schedule([stage], [], 4, Rules([2], [99], steady="alternate"))[0]
    assert "".join(kind for kind, _ in order) == "FFIFIFIIWWWW"


@pytest.mark.parametrize(("wait", "expected"), [(0.0, "F0 F1 I0 W0 I1 W1"), (1.0, "F0 F1 I0 I1 W0 W1")])
def test_waiting_for_a_message_puts_weights_off(wait: float, expected: str) -> None:
    """With `weight_wait` a W of 3 s does not start 0.9 s before an I arrives."""
    stages = [Stage((0, 1), 1.0, 1.0, 3.0), Stage((1, 2), 0.9, 1.0, 0.0)]
    order = list_schedule(stages, [Link(0.0)], 2, Rules([2, 1], [9, 9], weight_wait=wait))[0]
    assert " ".join(f"{kind}{j}" for kind, j in order) == expected
