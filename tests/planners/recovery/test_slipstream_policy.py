"""SlipStream: re-routing, normalizing, joining, and starting again where a stage is lost."""

from dataclasses import replace

import pytest

from rtk.planners.recovery.job import TrainingJob
from rtk.planners.recovery.slipstream import GridJob, SlipStream
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.schemas.replay import Costs, Fleet

from .stories import job, kinds, moment, names, profile

COSTS = Costs(detection_s=1.0, planning_s=0.5, regrouping_s=2.0, restart_s=10.0, copy_bytes_per_s=100.0)
OFTEN = replace(COSTS, mean_time_between_failures_s=1.0)


def slipstream(job: TrainingJob) -> SlipStream:
    """The policy of a job that is replayed."""
    return SlipStream(GridJob.replayed(job))


def test_a_failure_is_re_routed_and_nothing_is_rolled_back() -> None:
    """The same micro-batches on the workers that are left, at the time that the planner promises."""
    asked = job(2, 4, 4, costs=COSTS)
    found = slipstream(asked)
    step, *_ = found.react(found.begin(Fleet(names(8))), moment(*names(7), lost=("n7",)))
    assert (step.answer, step.interrupts, step.rolls_back) == ("re-route", True, False)
    assert step.standing.microbatches == 16 and step.standing.nodes == 7
    entry, _ = Replanner(opening(asked.profile, AtlasRequest(asked.shape)), 4).entry(1)
    assert step.standing.iteration_time_s == pytest.approx(entry.prediction.iteration_time_s)


def test_plans_for_the_best_places_are_there_and_others_are_made() -> None:
    """Training pauses for planning only where failures are elsewhere."""
    found = slipstream(TrainingJob(profile(1.0, 3.0), Shape(2, 3, 3), costs=OFTEN))
    began = found.begin(Fleet(names(6)))
    (light,) = found.react(began, moment(*names(6)[1:], lost=("n0",), time_s=0.0))
    (heavy,) = found.react(began, moment(*names(6)[:5], lost=("n5",), time_s=0.0))
    assert kinds(light) == ["detecting", "restarting"]
    assert kinds(heavy) == ["detecting", "planning", "restarting"]


def test_failures_in_bad_places_are_moved_where_that_pays() -> None:
    """A node of the light stage takes the dead one's place in the heavy stage, if failures are rare; else not."""
    found = slipstream(TrainingJob(profile(1.0, 3.0), Shape(2, 3, 3), costs=OFTEN))
    began = found.begin(Fleet(names(6)))
    (rare,) = found.react(began, moment(*names(6)[:5], lost=("n5",), time_s=1e9))
    (often,) = found.react(began, moment(*names(6)[:5], lost=("n5",), time_s=0.0))
    assert rare.answer == "normalize" and "copying" in kinds(rare)
    assert often.answer == "re-route"
    assert rare.standing.iteration_time_s < often.standing.iteration_time_s  # type: ignore[operator]
    heavy = [node for (_, stage), node in found.seats(rare.standing).items() if stage == 1]
    assert len(heavy) == 3 and "n5" not in heavy


def test_a_node_that_comes_takes_an_empty_seat_once_it_has_its_state() -> None:
    """It copies while the others train, and joins at an iteration's end after a short pause."""
    found = slipstream(job(2, 4, 4, costs=COSTS))
    failed, *_ = found.react(found.begin(Fleet(names(8))), moment(*names(7), lost=("n7",)))
    (joined,) = found.react(failed.standing, moment(*names(7), "new", came=("new",)))
    assert (joined.answer, joined.interrupts) == ("join", False)
    assert joined.after_s == pytest.approx(400 / 100.0 + 1e-3)
    assert kinds(joined) == ["restarting"]
    assert set(found.seats(joined.standing).values()) == {*names(7), "new"}


def test_a_spare_node_joins_after_a_failure() -> None:
    """Re-routing first, the spare as soon as it has its state; nobody moves for so short a time."""
    found = slipstream(TrainingJob(profile(1.0, 3.0), Shape(2, 3, 3), costs=COSTS))
    began = found.begin(Fleet(names(7)))
    first, second = found.react(began, moment("n0", "n1", "n2", "n3", "n4", "n6", lost=("n5",), time_s=1e9))
    assert (first.answer, second.answer) == ("re-route", "join")
    assert second.after_s > 1.0 + 2.0
    assert second.standing.nodes == 6


def test_a_lost_stage_restarts_on_all_nodes_that_are_left() -> None:
    """From the last checkpoint; the seats left empty are in the best places, and no node waits."""
    found = slipstream(job(2, 2, 2, costs=COSTS))
    began = found.begin(Fleet(names(4)))
    (step,) = found.react(began, moment("n0", "n2", lost=("n1", "n3")))
    assert (step.answer, step.rolls_back, kinds(step)) == ("restart", True, ["detecting", "restarting", "copying"])
    assert step.standing.nodes == 2 and set(found.seats(step.standing)) == {(0, 0), (0, 1)}


def test_without_a_whole_pipeline_training_waits() -> None:
    """And restarts when there are nodes again, with nothing more to lose."""
    found = slipstream(job(2, 2, 2, costs=COSTS))
    (waiting,) = found.react(found.begin(Fleet(names(4))), moment("n0", lost=("n1", "n2", "n3")))
    assert (waiting.answer, waiting.rolls_back, waiting.standing.iteration_time_s) == ("wait", True, None)
    assert found.react(waiting.standing, moment("n0")) == ()
    (step,) = found.react(waiting.standing, moment("n0", "new", came=("new",)))
    assert (step.answer, step.rolls_back) == ("restart", False)


def test_too_few_nodes_at_the_beginning_are_failures() -> None:
    """Seats stay empty where that costs least."""
    found = slipstream(TrainingJob(profile(1.0, 3.0), Shape(2, 3, 3), costs=COSTS))
    standing = found.begin(Fleet(names(5)))
    assert sum(stage == 1 for _, stage in found.seats(standing)) == 3
