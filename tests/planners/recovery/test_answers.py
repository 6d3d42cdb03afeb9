"""`--policy`: which planner answers the failures of a running job."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rtk.planners.oobleck.plan import plan_oobleck
from rtk.planners.oobleck.templates import plan_templates
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.recovery.answers import PolicyName, answers_for, answers_if_any
from rtk.planners.shape import Shape
from rtk.schemas.conditions import HEALTHY, Conditions, SlowLink
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Plan, Planner
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile
from rtk.schemas.protocols import Hand
from rtk.schemas.timeline import Timeline

from ...cli.shell import rtk

LAYER = Layer((LayerCost(0.01, 0.01, 0.01),), state_bytes=1000.0)
PROFILE = Profile((LAYER,) * 6, network=Network(inter_node=Connection(0.0, 1000.0)))
SLOW = Conditions((SlowLink(("0/0", "0/1"), 0.5),))


def unlike(nodes: int) -> Plan:
    """Pipelines of two single-worker nodes or more, f = 1."""
    return plan_oobleck(plan_templates(PROFILE, nodes, 1, 1, memory_limit_bytes=3000.0), nodes, 8, 1)


def crew_of(plan: Plan, *dead: str) -> tuple[Hand, ...]:
    """All workers of a plan but some, with the layers of their stages."""
    return tuple(
        Hand(worker.name, (worker.pipeline, worker.stage), plan.layers_of(worker))
        for worker in plan.workers
        if worker.name not in dead
    )


def test_each_plan_has_its_policy() -> None:
    """Without --policy failures are answered as the plan was made: by other pipelines, or by re-routing, and then slow
    links are as well."""
    made, plain = unlike(5), plan_pipeline(PROFILE, Shape(2, 2, 4), "1f1b")
    regrouped = answers_for(made, None, None, 100)(made, crew_of(made, "0/0"), HEALTHY)
    assert [pipeline.template for pipeline in regrouped.plan.pipelines] == ["n2", "n2"]
    rerouted = answers_for(plain, None, None, 100)(plain, crew_of(plain, "0/0"), HEALTHY)
    assert [worker.name for worker in rerouted.plan.workers if worker.failed] == ["0/0"]
    assert answers_for(plain, None, None, 100)(plain, crew_of(plain), SLOW).plan.planner.name == "joint"
    assert answers_for(plain, PolicyName.SLIPSTREAM, None, 100)(plain, crew_of(plain), SLOW).plan is plain


def test_oobleck_does_not_heed_what_is_slow() -> None:
    """Where nobody comes or goes, everybody goes on with the running plan."""
    made = unlike(5)
    found = answers_for(made, None, None, 100)(made, crew_of(made), SLOW)
    assert found.plan is made
    assert found.seats == tuple((hand.worker, hand.place) for hand in crew_of(made))


def test_pipelines_that_are_alike_may_be_rerouted_whoever_planned_them() -> None:
    """A plan of two equal pipelines by Oobleck takes slipstream's answer when it is asked for."""
    made = unlike(4)
    found = answers_for(made, PolicyName.SLIPSTREAM, None, 0)(made, crew_of(made, "0/0"), HEALTHY)
    assert len(found.plan.live_workers()) == len(found.seats) == 3


@pytest.mark.parametrize(
    ("plan", "policy", "atlas", "where"),
    [
        (plan_pipeline(PROFILE, Shape(2, 2, 4), "1f1b"), PolicyName.OOBLECK, None, "/planner/options/templates"),
        (unlike(5), PolicyName.SLIPSTREAM, None, "/pipelines/1/template"),
        (unlike(5), None, "atlas", "--atlas"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused(
    plan: Plan, policy: PolicyName | None, atlas: str | None, where: str
) -> None:
    """Before training begins, with the place of what does not fit."""
    for answers in (answers_for, answers_if_any):
        with pytest.raises(InvalidInputError) as caught:
            answers(plan, policy, atlas, 100)
        assert caught.value.where == where


def test_a_plan_that_nobody_can_answer_for_runs_until_a_failure() -> None:
    """Unlike pipelines that were not made from templates are led all the same; then there is no plan."""
    made = unlike(5)
    stranger = replace(made, planner=Planner("by hand", "1", {}))
    answers = answers_if_any(stranger, None, None, 100)
    with pytest.raises(InfeasibleError, match="differ"):
        answers(stranger, crew_of(stranger, "0/0"), HEALTHY)


def test_a_trace_under_oobleck(tmp_path: Path) -> None:
    """On the virtual clock the same rules and the same planner: copies take what the plan's network says."""
    write_document(str(tmp_path / "plan.json"), unlike(5))
    events = [{"iteration": 1, "kind": "fail", "worker": "0/0"}, {"iteration": 4, "kind": "join", "worker": "0/0"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    story = ("simulate", "plan.json", "--inject", "t.jsonl", "--iterations", "6", "--timeline", "s.json")
    done = rtk(*story, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = read_document(str(tmp_path / "s.json"), Timeline)
    kinds = [event.kind for event in told.events]
    assert kinds.index("failure") < kinds.index("copy") < kinds.index("join")
    epochs = [event.time_s for event in told.events if event.kind == "epoch"]
    first = min(
        span.start_s for span in read_document(str(tmp_path / "s.json"), Timeline).spans if span.start_s > epochs[0]
    )
    assert first - epochs[0] > 1.0  # a layer has 1000 bytes, and 1000 bytes go in a second


def test_too_few_nodes_end_a_story_with_5(tmp_path: Path) -> None:
    """Below (f + 1) n_0 nodes the job stops, and says what it would need."""
    write_document(str(tmp_path / "plan.json"), unlike(4))
    (tmp_path / "t.jsonl").write_text('{"iteration": 1, "kind": "fail", "worker": "1/1"}\n')
    done = rtk("simulate", "plan.json", "--inject", "t.jsonl", "--iterations", "6", cwd=tmp_path)
    assert done.returncode == 5
    assert "3 nodes cannot hold 2 pipelines of 2 nodes or more" in done.stderr
