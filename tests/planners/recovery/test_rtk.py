"""rtk's own policy: what it says is true of its plans, whatever fails or is slow; and it is no worse than its ways."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.recovery.catalogue import policy
from rtk.planners.recovery.detecting import DetectionState
from rtk.planners.recovery.job import TrainingJob
from rtk.planners.recovery.rtk import UnlikeZeroBubble, least_gpu_s, most_microbatches, ways_of
from rtk.planners.shape import Shape
from rtk.runners.replay.engine import replay
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.profile import Connection, Network
from rtk.schemas.protocols import RecoveryPolicy
from rtk.schemas.replay import Costs, Fleet, Moment

from .slow_stories import slow_moment, slow_stories
from .stories import job, jobs, kinds, moment, names, profile, require_true, stories, told

FAST = Network(None, Connection(1e-3, 1e5))
COSTS = Costs(detection_s=1.0, planning_s=0.1, regrouping_s=2.0, restart_s=50.0, mean_time_between_failures_s=1e5)


def replayed(job: TrainingJob) -> RecoveryPolicy:
    """rtk's own policy of a job."""
    return policy("rtk", job)


def wide(stages: int = 2, pipelines: int = 4, microbatches: int = 6, **options: object) -> TrainingJob:
    """A job with more layers than stages, so that pipelines can have several lengths."""
    found = profile(*[1.0] * (3 * stages), network=FAST)
    return TrainingJob(found, Shape(stages, pipelines, microbatches), costs=COSTS, **options)  # type: ignore[arg-type]


@settings(max_examples=12)
@given(st.data())
def test_a_standing_is_what_the_simulator_says_of_its_plan(data: st.DataObject) -> None:
    """Times, micro-batches, memory, seats, with slow nodes and links: as in the plan; nobody who is gone has a seat."""
    job = data.draw(jobs())
    try:
        found = replayed(job)
    except InfeasibleError:
        return
    for fleet, standing in told(found, data.draw(slow_stories(job)), data.draw(st.sampled_from([1, 2, 3]))):
        require_true(found, job, fleet, standing)


@settings(max_examples=12)
@given(st.data())
def test_unlike_zero_bubble_pipelines_are_what_the_simulator_says(data: st.DataObject) -> None:
    """The same of the way that most standings are in, also with micro-batches and orders that heed what is slow."""
    job = wide(microbatches=data.draw(st.integers(2, 5)))
    found = UnlikeZeroBubble(job)
    for fleet, standing in told(found, data.draw(slow_stories(job))):
        require_true(found, job, fleet, standing)
        adapted = found.adapted(standing, fleet, fleet)
        require_true(found, job, fleet, adapted)
        plain = found.adapted(standing, Fleet(fleet.nodes), fleet)
        assert adapted.microbatches_per_s >= plain.microbatches_per_s


@settings(max_examples=6)
@given(st.data())
def test_the_same_question_has_the_same_answer(data: st.DataObject) -> None:
    """Two policies of one job agree, whatever they were asked before."""
    job = wide()
    story = data.draw(slow_stories(job))
    first, second = replayed(job), replayed(job)
    list(told(first, data.draw(slow_stories(job))))
    assert list(told(first, story)) == list(told(second, story))


@settings(max_examples=8)
@given(st.data())
def test_it_is_hardly_worse_than_the_best_of_its_ways(data: st.DataObject) -> None:
    """Over any trace of failures and returns: a way that never changes commits little more, whichever it is."""
    job = wide(microbatches=4)
    moments = tuple(_moments(data.draw(stories(job))))
    mine, *others = (replay(one, moments, 5e4).microbatches for one in (replayed(job), *_ways(job)))
    assert mine >= 0.97 * max(others)


def test_nodes_that_are_slow_for_long_are_spared_and_return() -> None:
    """Who takes ten times as long is done without, once that is found; and is taken in again when that has passed."""
    found = replayed(wide())
    began = found.begin(Fleet(names(8)))
    slow = Fleet(names(8), slow={"n3": 10.0})
    *_, spared = found.react(began, slow_moment(1e5, slow))
    assert spared.after_s >= COSTS.slow_detection_iterations * 9 * (began.iteration_time_s or 0.0)
    assert "detecting" not in kinds(spared) and not spared.interrupts
    assert "n3" not in found.seats(spared.standing).values()
    *_, back = found.react(spared.standing, slow_moment(2e5, Fleet(names(8))))
    assert set(found.seats(back.standing).values()) == {*names(8)}
    assert back.standing.iteration_time_s == began.iteration_time_s


def test_slow_nodes_get_fewer_micro_batches_where_that_is_enough() -> None:
    """Who takes a tenth longer stays at work, and others do some of it."""
    found = replayed(wide(microbatches=25))
    began = found.begin(Fleet(names(8)))
    paced, *_, last = found.react(began, slow_moment(1e5, Fleet(names(8), slow={"n3": 1.1})))
    slower_s, adapted_s = paced.standing.iteration_time_s, last.standing.iteration_time_s
    assert paced.after_s == 0 and last.after_s >= COSTS.slow_detection_iterations * (slower_s or 0.0)
    assert began.iteration_time_s < adapted_s < slower_s  # type: ignore[operator]
    assert "n3" in found.seats(last.standing).values()


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 7])
def test_few_nodes_train_as_well_as_under_varuna(nodes: int) -> None:
    """Unlike pipelines go on with any nodes that hold the model, also where all nodes are faster in a grid."""
    asked = job(4, 2, 6, costs=COSTS)
    fleet = Fleet(names(nodes))
    rivals = [policy(name, asked).begin(fleet).microbatches_per_s for name in ("varuna", "oobleck")]
    assert replayed(asked).begin(fleet).microbatches_per_s >= 0.99 * max(rivals)


def test_checkpoints_are_rarer_where_peers_have_the_state() -> None:
    """By the failures that take two given nodes; by all failures where no two nodes have a layer."""
    many, alone = replayed(wide()), replayed(job(2, 1, 4, costs=COSTS))
    peers, single = many.begin(Fleet(names(8))).checkpointing, alone.begin(Fleet(names(2))).checkpointing
    assert peers is not None and single is not None
    assert peers.every_s**2 == pytest.approx(2 * peers.pause_s * COSTS.mean_time_between_failures_s * 7)
    assert single.every_s**2 == pytest.approx(2 * single.pause_s * COSTS.mean_time_between_failures_s)


def test_a_lost_layer_restarts_from_a_checkpoint() -> None:
    """All nodes of a stage at once: what was committed since the last checkpoint is lost."""
    found = replayed(job(2, 1, 4, costs=COSTS))
    (step, *_) = found.react(found.begin(Fleet(names(3))), moment("n0", "n2", lost=("n1",)))
    assert (step.answer, step.rolls_back) == ("restart", True)


def test_what_is_slow_is_known_after_so_long_whatever_else_happens() -> None:
    """Other changes meanwhile do not put it off; nodes that are gone are known to be."""
    fleet = Fleet(("a", "b", "c"), {"a": 2.0}, {("b", "c"): 0.1})
    begun = DetectionState().by(fleet, 10.0, 5.0)
    assert begun.believed(fleet) == Fleet(("a", "b", "c")) and begun.due_s == 15.0
    more = replace(fleet, slow={"a": 2.0, "b": 3.0})
    later = begun.by(more, 14.0, 5.0).by(more, 15.0, 5.0)
    assert later.believed(more) == fleet
    assert later.all().believed(more) == more
    gone = Fleet(("b",), {"b": 3.0})
    assert later.by(gone, 16.0, 5.0).believed(gone) == Fleet(("b",))


@settings(max_examples=6)
@given(st.data())
def test_no_policy_commits_more_than_the_work_bound(data: st.DataObject) -> None:
    """The micro-batches that all GPUs could compute are more than any policy's."""
    job = wide()
    moments = tuple(_moments(data.draw(slow_stories(job))))
    most = most_microbatches(job, moments, 5e4)
    assert replay(replayed(job), moments, 5e4).microbatches <= most


def test_the_bound_counts_gpus_and_their_pace() -> None:
    """Two nodes for 60 s, then one at half its pace for 60 s; a micro-batch takes 6 s."""
    job = TrainingJob(profile(1.0, 1.0), Shape(2, 1, 1))
    moments = (Moment(0.0, Fleet(("a", "b"))), Moment(60.0, Fleet(("a",), {"a": 2.0}), lost=("b",)))
    assert least_gpu_s(job.profile) == 6.0
    assert most_microbatches(job, moments, 120.0) == pytest.approx((120 + 30) / 6)


def _ways(job: TrainingJob) -> Iterator[RecoveryPolicy]:
    yield from (way.policy for way in ways_of(job))
    yield from (policy(name, job) for name in ("slipstream", "oobleck"))


def _moments(story: object) -> Iterator[Moment]:
    yield Moment(0.0, story.began)  # type: ignore[attr-defined]
    yield from story.moments  # type: ignore[attr-defined]
