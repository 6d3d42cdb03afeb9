"""A running job's iterations beside its plan (rtk/runners/resilience/pace.py)."""

from typing import Any

import pytest

from rtk.planners.explain.pace import pace_of
from rtk.runners.resilience.announcements import EpochBegun, IterationCommitted, JobEnded, PaceExplained
from rtk.runners.resilience.conditions import cores_here
from rtk.runners.resilience.pace import EVERY, KEPT, PaceFollower
from rtk.runners.resilience.protocol import Cores, Hello
from rtk.runners.simulator import simulate
from rtk.schemas.conditions import under_conditions

from .toy_cluster import toy_plan

PLAN = toy_plan(2, 2, 2, False)
ENDED = JobEnded(exit_code=0, reason="", iterations=0)


def follow(follower: PaceFollower, factor: float, iterations: int, first: int = 0) -> list[PaceExplained]:
    """Let all workers execute iterations, so much slower than planned."""
    slow = under_conditions(PLAN, {worker.name: factor for worker in PLAN.workers}, {})
    spans = simulate(slow).repeated(first + iterations).spans
    said = [follower.note(EpochBegun(live_workers=4, workers={}, iteration=first), PLAN)]
    for iteration in range(first, first + iterations):
        for worker in PLAN.workers:
            own = [span for span in spans if (span.worker, span.iteration) == (worker.name, iteration)]
            follower.take(worker.name, tuple((one.op, one.start_s, one.end_s, iteration) for one in own))
        done = IterationCommitted(loss=None, iteration_time_s=None, live_workers=4, iteration=iteration)
        said.append(follower.note(done, PLAN))
    said.append(follower.note(ENDED, PLAN))
    return [one for one in said if one is not None]


def test_a_slow_job_says_why_now_and_then_and_at_its_end() -> None:
    """By how much, and due to what; it keeps no more than it looks at."""
    follower = PaceFollower(pace_of, PLAN)
    said = follow(follower, 2.0, 3 * EVERY)
    assert {one.why for one in said} == {"all workers compute 2 x slower (+100 %)"}
    assert [one.measured_s / one.planned_s for one in said] == pytest.approx([2.0] * 4)
    assert len(follower._spans) <= KEPT


@pytest.mark.parametrize(("factor", "iterations"), [(1.05, 20), (2.0, 2)])
def test_there_is_nothing_to_say(factor: float, iterations: int) -> None:
    """It is about as planned, or only the first iteration, which warms up, is known."""
    assert follow(PaceFollower(pace_of, PLAN), factor, iterations) == []


def test_an_epoch_is_judged_by_itself() -> None:
    """What was slow before a change is not said after it."""
    follower = PaceFollower(pace_of, PLAN)
    assert follow(follower, 3.0, EVERY)
    assert follow(follower, 1.0, EVERY, first=EVERY) == []


@pytest.mark.parametrize(
    ("cores", "load", "words"),
    [
        (2, 0.4, "; 4 workers share 2 cores"),
        (2, 6.5, "; 4 workers share 2 cores, load 6.5: other programs are measured too"),
        (8, 0.4, ""),
        (8, 9.1, "; 8 cores, load 9.1: other programs are measured too"),
    ],
)
def test_a_busy_machine_is_said(monkeypatch: pytest.MonkeyPatch, cores: int, load: float, words: str) -> None:
    """Where workers share cores, and where other programs want them as well."""
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    follower = PaceFollower(pace_of, PLAN)
    for number, worker in enumerate(PLAN.workers):
        hello: dict[str, Any] = {"proof": "", "worker": worker.name, "store": "-", "plan": "", "job": {}}
        follower.arrive(Hello(**hello, cores=Cores(cores_here().machine, tuple(range(cores))), pid=number))
    (said,) = follow(follower, 2.0, 4)
    assert said.why == f"all workers compute 2 x slower (+100 %){words}"
