"""What saving, reading and copying state costs, by a job's costs."""

from math import sqrt

import pytest

from rtk.planners.recovery.job import (
    checkpointing,
    copying_s,
    failing_over,
    from_peers,
    loading_s,
    node_bytes,
    restarting,
    saved,
    saved_and_restarting,
    state_bytes,
)
from rtk.planners.recovery.layout import JobPipelines
from rtk.planners.slipstream.normalization import Grid
from rtk.schemas.replay import Checkpointing, Costs, Pause

from .stories import job


def test_checkpoints_follow_young() -> None:
    """The largest GPU says how long a checkpoint holds training up, and Young's formula how often there is one."""
    asked = job(2, 2, 2, costs=Costs(snapshot_bytes_per_s=100.0, mean_time_between_failures_s=50.0))
    assert checkpointing(asked.costs, [400.0, 300.0]) == Checkpointing(every_s=sqrt(2 * 4 * 50), pause_s=4.0)


def test_what_the_costs_say_of_checkpoints_counts() -> None:
    """Neither formula is used where both are given."""
    asked = job(2, 2, 2, costs=Costs(checkpoint_every_s=60.0, checkpoint_pause_s=1.0))
    assert checkpointing(asked.costs, [400.0]) == Checkpointing(60.0, 1.0)


def test_a_node_reads_each_of_its_stages_once() -> None:
    """Two stages in a node are read one after the other; two pipelines share what they read."""
    stages = job(4, 2, 2, gpus_per_node=2, costs=Costs(storage_bytes_per_s=100.0))
    assert node_bytes(stages, [1.0, 2.0, 3.0, 4.0]) == [3.0, 7.0]
    pipelines = job(1, 4, 2, gpus_per_node=2)
    assert node_bytes(pipelines, [5.0]) == [5.0]
    assert loading_s(stages.costs, [300.0, 700.0]) == 7.0


def test_state_is_parameters_gradients_and_optimizer_state() -> None:
    """Of the stages that the job's pipelines have."""
    asked = job(2, 2, 2)
    template = JobPipelines(asked).template(2)
    assert state_bytes(asked, template) == (400.0, 400.0)
    assert saved(asked, template).gpu_bytes == (400.0, 400.0)


def test_copies_from_one_peer_come_one_after_the_other() -> None:
    """Three nodes that join a stage with two live peers take two turns of one of them."""
    grid = Grid(5, 1)
    copies = from_peers(grid, [(0, 0), (1, 0)], [(2, 0), (3, 0), (4, 0)], [500.0])
    assert [sender for sender, _, _ in copies] == [(0, 0), (1, 0), (0, 0)]
    assert copying_s(job(1, 5, 2, costs=Costs(copy_bytes_per_s=250.0)), copies) == pytest.approx(2 * (1e-3 + 2.0))


def test_every_worker_of_a_node_copies_its_own_stage() -> None:
    """From the same worker of another node, side by side."""
    grid = Grid(2, 4, unit_stages=2)
    assert from_peers(grid, [(0, 1)], [(1, 1)], [1.0, 2.0, 3.0, 4.0]) == [
        ((0, 2), (1, 2), 3.0),
        ((0, 3), (1, 3), 4.0),
    ]


def test_pauses_come_in_the_order_of_what_happens() -> None:
    """Notice, plan, copy, form groups; or save, restart, read. What takes no time is left out."""
    costs = Costs(detection_s=1.0, regrouping_s=4.0, restart_s=50.0)
    assert failing_over(costs, planning_s=2.0, copying_s=3.0) == (
        Pause("detecting", 1.0), Pause("planning", 2.0), Pause("copying", 3.0), Pause("restarting", 4.0),
    )  # fmt: skip
    assert failing_over(costs) == (Pause("detecting", 1.0), Pause("restarting", 4.0))
    assert restarting(costs, 6.0, detected=True) == (
        Pause("detecting", 1.0), Pause("restarting", 50.0), Pause("copying", 6.0),
    )  # fmt: skip
    assert saved_and_restarting(costs, 5.0, 6.0) == (
        Pause("checkpointing", 5.0), Pause("restarting", 50.0), Pause("copying", 6.0),
    )  # fmt: skip
