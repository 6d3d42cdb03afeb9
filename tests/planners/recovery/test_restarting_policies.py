"""Checkpoint-restart, spares and elastic batching: what of them is simple, and the cluster that never fails."""

from dataclasses import replace

from rtk.planners.recovery.checkpoint_restart import CheckpointRestart
from rtk.planners.recovery.elastic_batching import ElasticBatching
from rtk.planners.recovery.fault_free import FaultFree
from rtk.planners.recovery.job import TrainingJob
from rtk.planners.recovery.slipstream import GridJob
from rtk.planners.recovery.spares import Spares
from rtk.schemas.replay import Costs, Fleet, Pause

from .stories import job, kinds, moment, names

COSTS = Costs(
    detection_s=1.0, regrouping_s=2.0, restart_s=10.0, copy_bytes_per_s=100.0, storage_bytes_per_s=40.0,
    mean_time_between_failures_s=1000.0,
)  # fmt: skip


def test_any_failure_restarts_on_the_whole_pipelines_that_are_left() -> None:
    """The batch stays, so three pipelines share the micro-batches of four; all since the checkpoint is lost."""
    found = CheckpointRestart(job(2, 4, 3, costs=COSTS))
    (step,) = found.react(found.begin(Fleet(names(8))), moment(*names(7), lost=("n7",)))
    assert (step.answer, step.interrupts, step.rolls_back) == ("restart", True, True)
    assert step.pauses == (Pause("detecting", 1.0), Pause("restarting", 10.0), Pause("copying", 10.0))
    plan = found.plan(step.standing)
    assert plan is not None and [one.microbatches for one in plan.pipelines] == [4, 4, 4]


def test_a_job_grows_where_that_pays_before_the_next_failure() -> None:
    """After a checkpoint, so that nothing is lost; where failures are frequent it waits for the next restart."""
    found = CheckpointRestart(job(2, 4, 3, costs=replace(COSTS, mean_time_between_failures_s=50.0)))
    began = found.begin(Fleet(names(6)))
    (rare,) = found.react(began, moment(*names(8), came=("n6", "n7")))
    assert (rare.answer, rare.interrupts, rare.rolls_back) == ("grow", False, False)
    assert kinds(rare)[0] == "checkpointing" and rare.standing.nodes == 8
    assert found.react(began, moment(*names(8), came=("n6", "n7"), time_s=0.0)) == ()


def test_fewer_pipelines_that_cannot_hold_the_batch_wait() -> None:
    """GPipe holds all micro-batches: with a limit for six, two pipelines of six each train, one of twelve does not."""
    asked = job(1, 2, 6, schedule="gpipe", costs=COSTS)
    limited = CheckpointRestart(_with_limit(asked, 6 * 20.0))
    (step,) = limited.react(limited.begin(Fleet(names(2))), moment("n0", lost=("n1",)))
    assert (step.answer, step.standing.iteration_time_s) == ("wait", None)


def test_a_spare_takes_the_dead_ones_seat_and_no_process_restarts() -> None:
    """The shape stays; all read the checkpoint."""
    found = Spares(job(2, 2, 2, costs=COSTS))
    (step,) = found.react(found.begin(Fleet(names(5))), moment("n0", "n2", "n3", "n4", lost=("n1",)))
    assert (step.answer, step.rolls_back, step.standing.nodes) == ("spare", True, 4)
    assert step.pauses == (Pause("detecting", 1.0), Pause("copying", 10.0), Pause("restarting", 2.0))
    assert found.seats(step.standing)[0, 1] == "n4"


def test_without_enough_spares_the_job_restarts_smaller() -> None:
    """As checkpoint-restart does."""
    asked = job(2, 2, 2, costs=COSTS)
    fleet, change = Fleet(names(5)), moment("n0", "n2", "n4", lost=("n1", "n3"))
    spares, restarts = Spares(asked), CheckpointRestart(asked)
    assert spares.react(spares.begin(fleet), change) == restarts.react(restarts.begin(fleet), change)


def test_a_broken_pipeline_is_dropped_with_its_micro_batches() -> None:
    """The others go on with theirs; nothing since the checkpoint is lost."""
    found = ElasticBatching(job(2, 4, 3, costs=COSTS))
    (step,) = found.react(found.begin(Fleet(names(8))), moment(*names(7), lost=("n7",)))
    assert (step.answer, step.interrupts, step.rolls_back) == ("drop", True, False)
    assert (step.standing.microbatches, step.standing.nodes) == (9, 6)


def test_nodes_of_broken_pipelines_form_new_ones() -> None:
    """Two broken pipelines leave a node each: together they copy a live pipeline's state and join."""
    found = ElasticBatching(job(2, 4, 3, costs=COSTS))
    lost = moment("n0", "n1", "n2", "n3", "n4", "n7", lost=("n5", "n6"))
    dropped, formed = found.react(found.begin(Fleet(names(8))), lost)
    assert (dropped.standing.microbatches, formed.standing.microbatches) == (6, 9)
    assert (formed.answer, formed.interrupts) == ("form", False)
    assert formed.after_s > 1.0 + 2.0 + 4.0
    assert {node for place, node in found.seats(formed.standing).items() if place[0] == 2} == {"n4", "n7"}


def test_elastic_batching_without_a_whole_pipeline_reads_the_checkpoint() -> None:
    """Though the nodes that are left fill one, none of them has the state of a whole one."""
    found = ElasticBatching(job(2, 2, 3, costs=COSTS))
    (step,) = found.react(found.begin(Fleet(names(4))), moment("n0", "n3", lost=("n1", "n2")))
    assert (step.answer, step.rolls_back, step.standing.nodes) == ("restart", True, 2)


def test_nodes_without_a_seat_may_go() -> None:
    """No policy answers the loss of an idle node."""
    asked = job(2, 2, 2, costs=COSTS)
    for found in (CheckpointRestart(asked), Spares(asked), ElasticBatching(asked)):
        assert found.react(found.begin(Fleet(names(5))), moment(*names(4), lost=("n4",))) == ()


def test_the_cluster_that_never_fails_is_the_fastest_there_is() -> None:
    """No slower than the job's schedule or re-routing without failures, whoever is there, and it never changes."""
    asked = job(2, 2, 4, schedule="gpipe", costs=COSTS)
    found, rerouted = FaultFree(asked), GridJob.replayed(asked).pipelines.outcome(frozenset())
    standing = found.begin(Fleet(names(1)))
    assert standing == found.begin(Fleet(names(1))) and standing.nodes == 4
    assert standing.iteration_time_s <= rerouted.iteration_time_s  # type: ignore[operator]
    assert found.react(standing, moment(lost=("n0",))) == ()
    assert standing.checkpointing is None
    assert found.plan(standing).total_microbatches() == 8


def _with_limit(asked: TrainingJob, limit_bytes: float) -> TrainingJob:
    return replace(asked, shape=replace(asked.shape, memory_limit_bytes=[limit_bytes]))
