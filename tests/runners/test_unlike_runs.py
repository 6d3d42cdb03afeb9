"""Jobs of unlike pipelines: nodes die and come, layers change hands, and the losses are those of one process."""

from collections.abc import Sequence
from typing import Any

import pytest

from rtk.planners.oobleck.plan import plan_oobleck
from rtk.planners.oobleck.templates import plan_templates
from rtk.planners.recovery.answers import PolicyName, answers_for
from rtk.runners.resilience.protocol import Job
from rtk.schemas.plan import Plan

from .scripted import ThreadJob, profile, single_process


def unlike(nodes: int, gpus_per_node: int, smallest: int, microbatches: int) -> Plan:
    """A plan of pipelines of `smallest` nodes or more, for models of six layers, two pipelines at least."""
    known = profile(state_bytes=600.0)
    # A GPU has room for the layers that make a pipeline of just so many nodes.
    room_bytes = 600.0 * -(-6 // (smallest * gpus_per_node)) + 100.0
    templates = plan_templates(known, nodes, gpus_per_node, 1, memory_limit_bytes=room_bytes)
    assert templates.smallest == smallest
    return plan_oobleck(templates, nodes, microbatches, 1)


def job_of(plan: Plan, iterations: int, *deaths: tuple[str, int], **more: Any) -> ThreadJob:
    return ThreadJob(plan, Job(plan, iterations, **more), answers_for(plan, PolicyName.OOBLECK, None, 100), set(deaths))


def assert_holders_agree(job: ThreadJob) -> None:
    """Every layer is held, with the same bits by all that hold it."""
    assert {layer: len(sums) for layer, sums in job.checksums().items()} == dict.fromkeys(range(6), 1)


def shapes(job: ThreadJob) -> Sequence[list[int]]:
    """The numbers of stages of the pipelines of each epoch."""
    places = [list(one["workers"]) for one in job.events("epoch")]
    return [[sum(name.startswith(f"{k}/") for name in epoch) for k in range(len(epoch))] for epoch in places]


def test_a_node_dies_and_comes_back() -> None:
    """Five nodes as pipelines of 3 and 2, then 2 and 2, then 3 and 2: each loss is that of one process."""
    plan = unlike(5, 1, 2, 7)
    assert [pipeline.template for pipeline in plan.pipelines] == ["n3", "n2"]
    job = job_of(plan, 14, ("0/1", 4))
    job.start("0/1", not_before=9)
    assert job.run().exit_code == 0
    assert job.losses() == pytest.approx(single_process(14, 7), abs=1e-6)
    assert_holders_agree(job)
    assert [[size for size in epoch if size] for epoch in shapes(job)] == [[3, 2], [2, 2], [3, 2]]
    assert [one["worker"] for one in job.events("join")] == ["0/1"]
    assert job.events("copy")


def test_a_second_node_dies_in_the_midst_of_the_copies() -> None:
    """Two of seven nodes die in one iteration, and later a third: nothing is lost while each layer has a holder."""
    job = job_of(unlike(7, 1, 2, 7), 12, ("0/0", 3), ("1/1", 3), ("1/0", 7))
    assert job.run().exit_code == 0
    assert job.losses() == pytest.approx(single_process(12, 7), abs=1e-6)
    assert_holders_agree(job)


def test_the_others_of_a_broken_node_wait_until_it_is_whole() -> None:
    """Three nodes of two workers: one worker dies, its mate has no place until a new one comes; then both work."""
    plan = unlike(3, 2, 1, 6)
    job = job_of(plan, 14, ("1/1", 4))
    job.start("1/1", not_before=8)
    assert job.run().exit_code == 0
    assert job.losses() == pytest.approx(single_process(14, 6), abs=1e-6)
    assert_holders_agree(job)
    assert [(one["worker"], one["iteration"]) for one in job.events("wait")] == [("1/0", 4)]
    assert [one["live_workers"] for one in job.events("iteration")] == [6] * 4 + [4] * 4 + [6] * 6


def test_too_few_nodes_end_the_job_with_what_would_do() -> None:
    """With fewer than (f + 1) n_0 nodes the job ends with 5, and says how many it needs."""
    job = job_of(unlike(4, 1, 2, 6), 9, ("1/1", 3))
    finished = job.run()
    assert finished.exit_code == 5
    assert "3 nodes cannot hold 2 pipelines of 2 nodes or more" in finished.reason


def test_checkpoints_of_unlike_pipelines_are_whole(tmp_path: Any) -> None:
    """The savers hold all layers together, each once, also after nodes have died."""
    job = job_of(unlike(5, 1, 2, 7), 6, ("1/0", 2), checkpoint=str(tmp_path), checkpoint_every=2)
    assert job.run().exit_code == 0
    saved = [one for one in job.events("checkpoint") if one["path"] is not None]
    assert [one["iteration"] for one in saved] == [2, 4, 6]
