"""The page's data and its text."""

import base64
import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.simulator import simulate
from rtk.runners.undisturbed import columns_of_plan
from rtk.schemas.columns import columns_of
from rtk.schemas.plan import Link, Pipeline, Plan
from rtk.schemas.timeline import Span, Timeline
from rtk.viz.gantt import gantt_html
from rtk.viz.pack import MOST_TICKS, pack, tick_of

from ..placed_plans import any_placed_plans
from ..strategies import any_plans

MakePlan = Callable[..., Plan]


class Shown(NamedTuple):
    """A span as the page has it."""

    timeline: int
    worker: str
    op: str
    start: int
    end: int
    iteration: int
    flags: int


def unpacked(data: bytes) -> tuple[dict[str, Any], list[Shown]]:
    """What a page shows with all its pipelines unfolded: a second reading of the format in viz/pack.py."""
    raw = zlib.decompress(data)
    length = int.from_bytes(raw[:4], "little")
    head = json.loads(raw[4 : 4 + length])
    n, at = head["spans"], 4 + length

    def numbers(count: int) -> list[int]:
        nonlocal at
        planes = [raw[at + k * count : at + (k + 1) * count] for k in range(4)]
        at += 4 * count
        return [int.from_bytes(bytes(digits), "little", signed=True) for digits in zip(*planes, strict=True)]

    kind, flags = raw[at : at + n], raw[at + n : at + 2 * n]
    at += 2 * n
    microbatch, gap, takes, iteration = (numbers(n) for _ in range(4))
    owners = iter(numbers(sum(flag & 1 for flag in flags)))
    chunks = iter(numbers(sum(flag & 32 > 0 for flag in flags)))
    assert at == len(raw)
    shown, i = [], 0
    for group in head["groups"]:
        for row in group["rows"]:
            before = number = 0
            last = [0] * len(head["kinds"])
            for _ in range(row["spans"]):
                start = before + gap[i]
                before = start + takes[i]
                last[kind[i]] += microbatch[i]
                number += iteration[i]
                op = head["kinds"][kind[i]]["name"]
                if kind[i] < 4:
                    op += (f"{next(owners)}." if flags[i] & 1 else "") + str(last[kind[i]])
                    op = f"{row['seats'][next(chunks)]}{op}" if flags[i] & 32 else op
                for pipeline in group["pipelines"]:
                    worker = f"{pipeline}/{row['stage']}"
                    shown.append(Shown(row["timeline"], worker, op, start, before, number, flags[i]))
                i += 1
    return head, shown


def expected(timelines: Sequence[Timeline], tick_s: float) -> list[tuple[object, ...]]:
    def ticks(time_s: float) -> int:
        return int(np.rint(time_s / tick_s))

    rows = []
    for number, timeline in enumerate(timelines):
        first_s = min((span.start_s for span in timeline.spans), default=0.0)
        for span in timeline.spans:
            times = ticks(span.start_s - first_s), ticks(span.end_s - first_s)
            rows.append((number, span.worker, span.op, *times, span.iteration))
    return sorted(rows)


spans = st.builds(
    lambda worker, op, start_s, takes_s, iteration: Span(worker, op, start_s, start_s + takes_s, iteration),
    st.sampled_from(["0/0", "0/1", "1/0", "12/3"]),
    st.sampled_from(["F0", "F1", "I0", "W7", "B3", "F7.2", "B13.5", "allreduce", "step", "save"]),
    st.floats(0, 1e4),
    st.floats(0, 100),
    st.integers(0, 3000),
)


@given(st.lists(st.lists(spans, max_size=12), min_size=1, max_size=2))
def test_every_span_is_in_the_data_once(drawn: list[list[Span]]) -> None:
    """The page's data hold every span of every timeline exactly once, its times to the tick that the data state."""
    timelines = [Timeline("measured", tuple(one)) for one in drawn]
    head, shown = unpacked(pack([(str(n), columns_of(one)) for n, one in enumerate(timelines)]))
    assert sorted(one[:6] for one in shown) == expected(timelines, head["tick_s"])
    assert head["end_s"] <= head["tick_s"] * MOST_TICKS


@given(st.one_of(any_plans(), any_placed_plans()))
def test_plans_are_shown_whole(plan: Plan) -> None:
    """A plan's page shows what its simulation gives, whatever of its pipelines stands there once."""
    columns = columns_of_plan(plan)
    head, shown = unpacked(pack([("simulated", columns)]))
    timeline = simulate(plan).timeline
    if plan.optimizer == "synchronous":
        assert sorted(one[:6] for one in shown) == expected([timeline], head["tick_s"])
    owners = {(one.worker, one.op) for one in shown if one.flags & 1}
    assert owners == {(span.worker, span.op) for span in timeline.spans if "." in span.op}


@given(st.floats(1e-9, 1e7))
def test_ticks_fit_32_bits(end_s: float) -> None:
    """A tick is a power of ten that gives the last time 32 bits, and a ten-millionth of the whole or finer."""
    tick_s = tick_of(end_s)
    assert end_s / tick_s <= MOST_TICKS * (1 + 1e-9)
    assert tick_s == 1e-9 or end_s / tick_s >= MOST_TICKS / 10.1


def test_alike_pipelines_stand_there_once(make_plan: MakePlan) -> None:
    """Pipelines with the same times are one group; one with a slow link is a group of its own."""
    plan = make_plan(pipelines=3)
    groups = unpacked(pack([("simulated", columns_of_plan(plan))]))[0]["groups"]
    assert [group["pipelines"] for group in groups] == [[0, 1, 2]]
    slow = Pipeline("t0", 4, (Link(0.5), Link(0.001)))
    unlike = replace(plan, pipelines=(plan.pipelines[0], slow, plan.pipelines[2]))
    head, shown = unpacked(pack([("simulated", columns_of_plan(unlike))]))
    assert [group["pipelines"] for group in head["groups"]] == [[0, 2], [1]]
    assert len(shown) == len(simulate(unlike).timeline.spans)


def test_a_million_alike_operations_are_small(make_plan: MakePlan) -> None:
    """What pipelines have in common takes no room: 64 of them take hardly more than one."""
    one, many = (len(pack([("s", columns_of_plan(make_plan(k, 4, 64)))])) for k in (1, 64))
    assert many < 1.3 * one


@pytest.fixture(scope="module")
def page(rerouted_plan: Plan) -> str:
    return gantt_html([("simulated", columns_of_plan(rerouted_plan))], "Worker <1/1> failed")


def test_page_is_self_contained(page: str) -> None:
    """The page is under 100 kB, names no other address, and its data can be read."""
    assert len(page) < 100_000
    assert not re.search(r"https?://", page)
    assert not re.search(r"<(?:script|img)[^>]+src=", page)
    data = re.search(r'id="data">([^<]+)<', page)
    assert data and len(unpacked(base64.b64decode(data[1]))[1]) > 40


def test_equal_timelines_are_equal_bytes(page: str, rerouted_plan: Plan, rerouted: Timeline) -> None:
    """Drawing the same twice gives the same bytes, and a plan's page differs from its timeline's by what it knows."""
    assert gantt_html([("simulated", columns_of_plan(rerouted_plan))], "Worker <1/1> failed") == page
    assert pack([("a", columns_of(rerouted))]) == pack([("a", columns_of(rerouted))])


def test_title_facts_and_layers_are_said_and_escaped(page: str) -> None:
    """The page begins with its title, the source, the makespan and each stage's layers; text is escaped."""
    assert "<h1>Worker &lt;1/1&gt; failed</h1>" in page
    assert re.search(r'<p class="facts">simulated · makespan [\d.]+ ms', page)
    assert '<p class="facts">layers of the stages: 0, 1</p>' in page


def test_an_empty_timeline_is_a_page() -> None:
    """A timeline without spans still gives a page that says so."""
    assert "no operations" in gantt_html([("simulated", Timeline("simulated", ()))], "t")
