"""One policy in three places: a replay, a simulated story and a job of real processes take the same decisions."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rtk.planners.recovery.rtk import Rtk
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.profilers.failslow.monitor import ring
from rtk.runners.training import JobConfig
from rtk.schemas.conditions import HEALTHY, Conditions, SlowWorker
from rtk.schemas.documents import write_document
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile
from rtk.schemas.protocols import Monitor
from rtk.schemas.replay import Moment, TrainingState, Transition

from ..runners.processes import ProcessJob
from .shell import rtk
from .test_remedies import TRAINING, Told

SHAPE = Shape(2, 3, 4, [100.0, 100.0])
LAYER = Layer((LayerCost(0.0005, 0.0005, 0.0005),), parameter_bytes=1.0, state_bytes=1.0, activation_bytes=2.0)
PROFILE = Profile((LAYER,) * 10, network=Network(inter_node=Connection(0.0, 1e9)))
# Who dies is the last of his stage, so that a replay, which calls others the last then, calls them as a run does.
STORY = [
    {"iteration": 2, "kind": "fail", "worker": "2/0"},
    {"iteration": 6, "kind": "slow_compute", "worker": "1/1", "factor": 3.0},
    {"iteration": 30, "kind": "recover", "worker": "1/1"},
    {"iteration": 50, "kind": "join", "worker": "2/0"},
]
WORDS = ["re-route", "S2", "relief", "join"]
ITERATIONS = 54
NO_COSTS = ["detection_s=0", "planning_s=0", "regrouping_s=0", "slow_detection_iterations=3"]


@dataclass(frozen=True)
class Decision:
    """What was done, and the orders of whoever is at a place from then on."""

    answers: tuple[str, ...]
    orders: tuple[tuple[str, str], ...]


class Decisions(list[Decision]):
    """What rtk's policy decides, whoever asks it; asked twice in a row for the same, it decides once."""

    def note(self, policy: Rtk, steps: Transition) -> None:
        """The steps of an answer that are more than a change of pace."""
        for step in steps:
            if step.answer:
                plan = policy.plan(step.standing)
                assert plan is not None
                orders = tuple((worker.name, worker.order or "") for worker in plan.live_workers())
                found = Decision((step.answer,), orders)
                if not self or self[-1] != found:
                    self.append(found)


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Decisions]:
    """What is decided from now on."""
    found, react = Decisions(), Rtk.react

    def watched(policy: Rtk, standing: TrainingState, moment: Moment) -> Transition:
        steps = react(policy, standing, moment)
        found.note(policy, steps)
        return steps

    monkeypatch.setattr(Rtk, "react", watched)
    yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A profile, a plan of it, and the story."""
    write_document(str(tmp_path / "p.json"), PROFILE)
    write_document(str(tmp_path / "plan.json"), _plan())
    (tmp_path / "story.jsonl").write_text("".join(json.dumps(event) + "\n" for event in STORY))
    return tmp_path


def _plan() -> Plan:
    return Replanner(opening(PROFILE, AtlasRequest(SHAPE)), 0).in_place(frozenset())


def _replayed(folder: Path, decisions: Decisions) -> list[Decision]:
    """`rtk replay --policies rtk`."""
    costs = [part for cost in NO_COSTS for part in ("--cost", cost)]
    shape = ("--pp", "2", "--dp", "3", "--microbatches", "4", "--memory-limit", "100,100")
    done = rtk(
        "replay", "--profile", "p.json", "--trace", "story.jsonl", *shape, "--policies", "rtk", *costs, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return _taken(decisions)


def _simulated(folder: Path, decisions: Decisions) -> list[Decision]:
    """`rtk simulate --inject`."""
    asked = ("simulate", "plan.json", "--inject", "story.jsonl", "--iterations", str(ITERATIONS))
    done = rtk(*asked, cwd=folder)
    assert done.returncode == 0, done.stderr
    return _taken(decisions)


def _taken(decisions: Decisions) -> list[Decision]:
    found = list(decisions)
    decisions.clear()
    return found


def test_a_replay_a_simulated_story_and_a_run_decide_the_same(
    folder: Path, decisions: Decisions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies, another one becomes slow and is well again, a new one comes: event by event the same answer, with
    the same operations for everybody, in the same order."""
    replayed = _replayed(folder, decisions)
    assert [one.answers[0] for one in replayed] == WORDS
    assert _simulated(folder, decisions) == replayed
    slow = Conditions(slow_workers=(SlowWorker("1/1", 3.0),))

    def monitor_of(plan: Plan, is_resumed: bool = False) -> Monitor:
        return Told({6: slow, 30: HEALTHY})

    monkeypatch.setattr(ring, "monitor_of", monitor_of)
    how = JobConfig(ITERATIONS, inject=str(folder / "story.jsonl"))
    with ProcessJob(_plan(), how, TRAINING) as job:
        job.start("2/0", not_before=50)
        assert job.result(120).exit_code == 0
    assert _taken(decisions) == replayed
