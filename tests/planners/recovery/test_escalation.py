"""Ski rental around a monitor: which costly remedies are worth it by now, and what that costs in all."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.recovery.answers import PolicyName
from rtk.planners.recovery.escalation import Escalating, RemedyCosts, parse_mitigate
from rtk.planners.shape import Shape
from rtk.runners.resilience.controller import events_after
from rtk.runners.training import JobConfig
from rtk.running import controller_of
from rtk.schemas.conditions import HEALTHY, Conditions, SlowWorker
from rtk.schemas.documents import write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.protocols import Measured
from rtk.schemas.trace import Trace, TraceEvent

from ...cli.shell import rtk

SLOW = Conditions(slow_workers=(SlowWorker("0/1", 2.0),))
LAYER = Layer((LayerCost(0.01, 0.01, 0.01),))
PLAN = plan_pipeline(Profile((LAYER,) * 4), Shape(4, 2, 8), "1f1b")
USUAL_S = 1.0


class Script:
    """A monitor that says what stands at an iteration, when the last worker tells of it."""

    def __init__(self, says: dict[int, Conditions], workers: int) -> None:
        self._says, self._workers, self._heard = says, workers, 0

    def note(self, measured: Measured) -> Conditions | None:
        """The findings of an iteration."""
        self._heard += 1
        return self._says.get(measured.iteration) if self._heard % self._workers == 0 else None

    def forget(self, worker: str) -> None:
        """Nothing is known of anybody."""


def levels(
    times_s: list[float], says: dict[int, Conditions], costs_s: tuple[float, ...], workers: int = 2
) -> list[int]:
    """The level after each iteration, of which the workers tell that they took so long, but for the first."""
    watch = Escalating(Script(says, workers), lambda usual_s: costs_s)
    found, level = [], 0
    for iteration, time_s in enumerate(times_s):
        for worker in range(workers):
            said = watch.note(Measured(f"{worker}/0", iteration, iteration_s=time_s * (1.0 if worker else 0.5)))
            level = level if said is None else said.level
        found.append(level)
    return found


# Parts of 64, so that sums and differences are exact, and so is the moment when a loss has come to a cost.
EXTRA_S = st.integers(0, 192).map(lambda parts: parts / 64)
COST_S = st.integers(32, 1920).map(lambda parts: parts / 64)


@given(
    st.lists(EXTRA_S, min_size=1, max_size=40),
    st.lists(COST_S, min_size=1, max_size=3).map(lambda costs: tuple(sorted(costs))),
)
def test_levels_rise_with_what_being_slow_has_cost(extra_s: list[float], costs_s: tuple[float, ...]) -> None:
    """While something is slow they never fall, and none is reached before the iterations have lost its cost, nor later
    than one iteration after; with relief all is forgotten."""
    healthy, stop = 6, 6 + len(extra_s)
    times_s = [USUAL_S] * healthy + [USUAL_S + one for one in extra_s] + [USUAL_S] * 2
    found = levels(times_s, {healthy: SLOW, stop: HEALTHY}, costs_s)
    assert found[:healthy] == [0] * healthy
    assert found[stop:] == [0, 0]
    for number in range(len(extra_s)):
        lost_s = sum(extra_s[:number])  # that of this iteration is known with the next one
        assert found[healthy + number] == sum(lost_s >= cost_s for cost_s in costs_s)


@given(
    st.lists(st.floats(0.01, 20.0), min_size=1, max_size=3).map(sorted),
    st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4).map(lambda rates: sorted(rates, reverse=True)),
    st.integers(0, 200),
)
def test_in_all_it_costs_little_more_than_the_best_remedy_in_hindsight(
    costs_s: list[float], rates: list[float], lasts: int
) -> None:
    """At most 1 + max (b_1 + … + b_i) / b_i times as much, and an iteration or two a level until it takes effect, where
    a remedy leaves iterations no slower than a cheaper one."""
    watch = Escalating(Script({4: SLOW}, 1), lambda usual_s: tuple(costs_s))
    paid_s, level = 0.0, 0
    for iteration in range(5 + lasts):
        extra_s = rates[level] if iteration > 4 else 0.0
        said = watch.note(Measured("0/0", iteration, iteration_s=USUAL_S + extra_s))
        paid_s += extra_s
        if said is not None and said.level > level:
            paid_s, level = paid_s + sum(costs_s[level : said.level]), said.level
    best_s = min(cost_s + rate * lasts for cost_s, rate in zip([0.0, *costs_s], rates, strict=False))
    ratio = 1 + max(sum(costs_s[: i + 1]) / cost_s for i, cost_s in enumerate(costs_s))
    assert paid_s <= ratio * best_s + 2 * ratio * rates[0] + 1e-6


def test_what_was_lost_before_it_was_found_counts() -> None:
    """The last iterations that were slow already, while nobody knew of what."""
    times_s = [1.0] * 10 + [2.0] * 6
    assert levels(times_s, {12: SLOW}, (3.5,)) == [0] * 13 + [0, 1, 1]
    assert levels([1.0] * 10 + [1.0] * 2 + [2.0] * 6, {12: SLOW}, (3.5,))[:16] == [0] * 16


def test_slow_from_the_start() -> None:
    """Then an iteration usually takes what the plan says; if it says nothing, no remedy is worth it."""
    for expected_s, level in ((1.0, 1), (None, 0)):
        watch = Escalating(Script({0: SLOW}, 1), lambda usual_s: (2.5 * usual_s,), expected_s)
        said = [watch.note(Measured("0/0", iteration, iteration_s=2.0)) for iteration in range(5)]
        assert max(one.level for one in said if one is not None) == level


def test_who_is_gone_is_not_slow() -> None:
    """With the last slow worker everything is forgotten; and what fewer workers take longer is not lost to slowness."""
    watch = Escalating(Script({3: SLOW, 9: SLOW}, 2), lambda usual_s: (1.5,))

    def note(iteration: int, *workers: str, took_s: float) -> int:
        said = [watch.note(Measured(worker, iteration, iteration_s=took_s)) for worker in workers]
        return max((one.level for one in said if one is not None), default=-1)

    for iteration in range(4):
        note(iteration, "0/0", "0/1", took_s=1.0)
    assert [note(n, "0/0", "0/1", took_s=2.0) for n in (4, 5, 6)] == [-1, -1, 1]
    watch.forget("0/1")
    assert watch.note(Measured("0/0", 7, iteration_s=2.0)) is None
    watch.forget("0/0")
    assert [note(n, "1/0", "1/1", took_s=2.0) for n in (8, 9)] == [-1, 0]
    assert [note(n, "1/0", took_s=4.0) for n in (10, 11, 12)] == [-1, -1, -1]


@pytest.mark.parametrize(
    ("text", "remedies"),
    [
        (None, RemedyCosts()),
        ("S3=20", RemedyCosts(20.0)),
        ("S4=6e2, S3=.5", RemedyCosts(0.5, 600.0)),
    ],
)
def test_what_the_option_says(text: str | None, remedies: RemedyCosts) -> None:
    """Costs in seconds; what is not said of S3 is estimated, and without S4 nobody starts again."""
    assert parse_mitigate(text) == remedies
    assert remedies.costs_s(7.0)[0] == (7.0 if remedies.move_s is None else remedies.move_s)
    assert replace(remedies, move_s=None).costs_s(1e9)[0] == (1e9 if remedies.restart_s is None else 600.0)
    assert remedies.costs_s(7.0)[1] == (math.inf if remedies.restart_s is None else 600.0)
    assert parse_mitigate(remedies.without_restart()) == replace(remedies, restart_s=None)


@pytest.mark.parametrize("text", ["", "S2=1", "S3", "S3=-1", "S3=1,S3=2", "S3=1;S4=2", "S3=nan", "20", "S3=5,S4=5"])
def test_what_it_cannot_say(text: str) -> None:
    """It is refused, with what to write."""
    with pytest.raises(InvalidInputError) as caught:
        parse_mitigate(text)
    assert caught.value.where == "--mitigate"


def test_remedies_that_the_job_cannot_have() -> None:
    """A restart needs checkpoints, and only one policy takes what is slow into account."""
    for how in (JobConfig(9, mitigate="S4=1"), JobConfig(9, policy=PolicyName.SLIPSTREAM, mitigate="S3=1")):
        with pytest.raises(InvalidInputError) as caught:
            controller_of(PLAN, how)
        assert caught.value.where == "--mitigate"


def test_what_a_trace_holds_for_new_workers() -> None:
    """What has happened is over, with what would have cured it; what is to come, comes."""
    events = (
        TraceEvent("slow_compute", iteration=2, worker="0/0", factor=2.0),
        TraceEvent("fail", iteration=3, worker="1/1"),
        TraceEvent("recover", iteration=8, worker="0/0"),
        TraceEvent("join", iteration=9, worker="1/1"),
        TraceEvent("slow_link", iteration=9, link="0/0-0/1", delay_s=0.1),
        TraceEvent("recover", iteration=12, link="0/0-0/1"),
    )
    assert events_after(Trace(events), 7).events == events[4:]
    assert events_after(Trace(events), 1).events == events


def simulated(folder: Path, *more: str, iterations: int = 60) -> tuple[int, list[tuple[str, str]]]:
    """A story of a slow link between peers: exit code, and what happened, with the words for it."""
    write_document(str(folder / "plan.json"), plan_pipeline(Profile((LAYER,) * 3), Shape(3, 2, 6), "1f1b"))
    events = [
        {"iteration": 5, "kind": "slow_link", "link": "0/1-1/1", "delay_s": 0.05},
        {"iteration": 40, "kind": "recover", "link": "0/1-1/1"},
    ]
    (folder / "t.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    story = ("simulate", "plan.json", "--inject", "t.jsonl", "--iterations", str(iterations), "--timeline", "s.json")
    done = rtk(*story, *more, cwd=folder)
    told = json.loads((folder / "s.json").read_text())["events"]
    return done.returncode, [(event["kind"], event.get("message", "")) for event in told]


def test_a_story_of_workers_that_change_places_and_go_back(tmp_path: Path) -> None:
    """Once being slow has cost as much as that; with relief they are where they were; where it costs too much, or
    nobody may move, nobody does."""
    code, told = simulated(tmp_path, "--mitigate", "S3=0.5")
    kinds = [kind for kind, _ in told]
    assert code == 0
    assert kinds.index("slow_link") < kinds.index("copy") < kinds.index("relief")
    moved = sorted(words.split(",")[0] for kind, words in told[: kinds.index("relief")] if kind == "copy")
    assert len(moved) == 2
    assert kinds[kinds.index("relief") :].count("copy") == 2
    for more in (("--mitigate", "S3=1000"), ("--mitigate", "S3=0.5", "--normalize-within", "0")):
        code, told = simulated(tmp_path, *more)
        assert (code, [kind for kind, _ in told if kind == "copy"]) == (0, [])


def test_a_story_of_a_job_that_is_to_start_again(tmp_path: Path) -> None:
    """On the virtual clock it ends there, with 5 and the reason."""
    code, told = simulated(tmp_path, "--mitigate", "S4=2", "--normalize-within", "0")
    assert code == 5
    assert ("restart", "slow for so long that a restart on other workers pays: link 0/1-1/1 (50 ms)") in told
