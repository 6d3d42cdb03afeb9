"""What a coordinator is given: faults that happen to links, a monitor that knows the plan, and its options."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.failslow.monitor.ring import LATE_S, monitor_of
from rtk.runners.resilience.controller import JobController
from rtk.runners.resilience.protocol import Hello
from rtk.runners.training import JobConfig, first_beyond
from rtk.running import controller_of
from rtk.schemas.conditions import HEALTHY, Conditions, SlowLink
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.protocols import Measured, Monitor

PROFILE = Profile((Layer((LayerCost(0.02, 0.03, 0.01),)),) * 3)
PLAN = plan_pipeline(PROFILE, Shape(3, 2, 4, link_delay_s={(None, 0): 0.1, (1, 1): 0.2}), "1f1b")
LATE_LINK_S = 0.2 * 0.05


def said(watch: Monitor, iterations: range, ends: tuple[str, str], delay_s: float, plan: Plan) -> list[object]:
    """What a monitor says of each iteration, while one link takes so long and all others take no time."""
    return [[watch.note(one) for one in _measured(iteration, ends, delay_s, plan)][-1] for iteration in iterations]


def _measured(iteration: int, ends: tuple[str, str], delay_s: float, plan: Plan) -> Iterator[Measured]:
    names = [worker.name for worker in plan.workers]
    sent = tuple((other, 0, float(iteration)) for other in names)
    for name in names:
        slow = [one for one in ends if name in ends and one != name]
        arrived = tuple((one, 0, iteration + (delay_s if one in slow else 0.0)) for one in names if one != name)
        yield Measured(name, iteration, sent=sent, arrived=arrived)


@pytest.mark.parametrize(
    ("one", "other", "usual_s"),
    [("0/0", "0/1", 0.1), ("1/0", "1/1", 0.1), ("0/0", "1/1", 0.1), ("0/1", "0/2", 0.0), ("1/1", "1/2", 0.2)],
)
def test_the_monitor_knows_what_the_plan_expects(one: str, other: str, usual_s: float) -> None:
    """A link is slow beyond its own delay in the plan, by 20 % of the shortest F and I of a stage."""
    assert said(monitor_of(PLAN), range(5), (one, other), usual_s + LATE_LINK_S * 0.9, PLAN) == [None] * 5
    late_s = round(usual_s + LATE_LINK_S * 1.1, 6)
    slow = Conditions((SlowLink((one, other), late_s),))
    assert said(monitor_of(PLAN), range(4), (one, other), late_s, PLAN) == [None, None, slow, None]


def test_tiny_operations_do_not_make_every_hiccup_a_slow_link() -> None:
    """Three milliseconds are never too long."""
    tiny = plan_pipeline(Profile((Layer((LayerCost(1e-4, 1e-4, 1e-4),)),) * 2), Shape(2, 1, 2), "1f1b")
    ends, slow = ("0/0", "0/1"), Conditions((SlowLink(("0/0", "0/1"), 0.0033),))
    for delay_s, found in ((LATE_S * 0.9, None), (LATE_S * 1.1, slow)):
        watch = monitor_of(tiny)
        assert said(watch, range(3), ends, 0.0, tiny) == [None] * 3
        assert said(watch, range(3, 6), ends, delay_s, tiny) == [None, None, found]


def test_a_coordinator_that_takes_over_says_what_it_finds() -> None:
    """Its log may end with a slow link that has been relieved since."""
    told = said(monitor_of(PLAN, is_resumed=True), range(6), ("0/0", "0/1"), 0.0, PLAN)
    assert told == [None] * 4 + [HEALTHY, None]


def conductor(tmp_path: Path, lines: str, plan: Plan = PLAN) -> JobController:
    """What leads a job to which this happens."""
    (tmp_path / "trace.jsonl").write_text(lines)
    return controller_of(plan, JobConfig(iterations=9, inject=str(tmp_path / "trace.jsonl")))


def played(made: JobController, worker: str, not_before: int = 0) -> list[tuple[object, object]]:
    """The events that a process of a worker is given."""
    hello = Hello("proof", worker, "127.0.0.1:1", "digest", {}, not_before=not_before)
    return [(event["iteration"], event["kind"]) for event in made._welcome(hello).inject]


def test_both_ends_of_a_link_play_its_events(tmp_path: Path) -> None:
    """Also links of peers, and links that break; a replacement needs those of before as well."""
    made = conductor(
        tmp_path,
        '{"iteration": 1, "kind": "slow_link", "link": "0/0-0/1", "delay_s": 0.1}\n'
        '{"iteration": 2, "kind": "slow_link", "link": "0/1-1/1", "factor": 3}\n'
        '{"iteration": 3, "kind": "fail", "worker": "0/1"}\n'
        '{"iteration": 4, "kind": "fail", "link": "1/1-1/2"}\n'
        '{"iteration": 5, "kind": "join", "worker": "0/1"}\n'
        '{"iteration": 6, "kind": "slow_compute", "worker": "0/1", "factor": 2}\n'
        '{"iteration": 7, "kind": "recover", "link": "0/0-0/1"}\n',
    )
    links = [(1, "slow_link"), (2, "slow_link")]
    assert played(made, "0/0") == [(1, "slow_link"), (7, "recover")]
    assert played(made, "0/1") == [*links, (3, "fail"), (7, "recover")]
    assert played(made, "0/1", not_before=5) == [*links, (6, "slow_compute"), (7, "recover")]
    assert played(made, "1/1") == [(2, "slow_link"), (4, "fail")]
    assert played(made, "1/0") == []


def test_host_memory_is_the_coordinators_and_the_jobs() -> None:
    """It stands in the log's header, and a worker that names it is told so."""
    made = controller_of(PLAN, JobConfig(iterations=1, host_memory=5.0))
    assert made.settings()["host_memory"] == 5.0
    assert first_beyond(JobConfig(iterations=1), made.how) == "--host-memory"
