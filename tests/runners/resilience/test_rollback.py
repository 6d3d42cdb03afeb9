"""Jobs in which nobody has a part of the optimizer's state any more: all go back to the last checkpoint, or end."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.resilience.events import Said
from rtk.runners.resilience.protocol import End, Epoch, Job, Leaving, Ready, StateLost
from rtk.schemas.conditions import HEALTHY, Conditions
from rtk.schemas.plan import Plan
from rtk.schemas.protocols import Hand, Replanned

from .test_rules import check_states, live_through, run, steps_of
from .toy_cluster import Rerouting, ToyCluster, ToyTraining, ToyWorker, copy_of, toy_plan

LAST = 8


class LossyCluster(ToyCluster):
    """A cluster in which, as an epoch begins, some find that state is lost; what is loaded is what was saved."""

    losses = 0  # how many are still to come

    def _state_taken(self, worker: ToyWorker, epoch: Epoch) -> Ready | StateLost:
        if self.losses and not epoch.nothing_committed and self.rng.random() < 0.5:
            self.losses -= 1
            return StateLost(epoch.epoch, (0,))
        ready = super()._state_taken(worker, epoch)
        if epoch.nothing_committed and epoch.resume is not None and worker.state is not None:
            saved = steps_of(self, int(epoch.resume.removeprefix("step-")))
            worker.state = copy_of(dict.fromkeys(worker.state, saved))
        return ready


@given(
    seed=st.integers(0, 2**32),
    stages=st.integers(1, 2),
    dp=st.integers(2, 3),
    staggered=st.booleans(),
    faults=st.lists(st.sampled_from(["kill", "join", "leave", "restart", "touch"]), min_size=1, max_size=6),
    not_finite=st.frozensets(st.integers(0, 7), max_size=2),
    losses=st.integers(0, 3),
    every=st.sampled_from([0, 1, 3]),
    regroups=st.booleans(),
    ranks=st.sampled_from([1, 1, 2]),
)
@settings(max_examples=60, deadline=None)
def test_all_go_back_to_the_last_checkpoint(
    seed: int,
    stages: int,
    dp: int,
    staggered: bool,
    faults: list[str],
    not_finite: frozenset[int],
    losses: int,
    every: int,
    regroups: bool,
    ranks: int,
) -> None:
    """Whatever else happens: who finishes has taken exactly the steps of one process, and iterations follow each other
    but for those that go back to a checkpoint; where there is none, the job ends with exit code 5 and says why."""
    rng = random.Random(seed)
    job = Job(toy_plan(stages, dp, 2, staggered, False, ranks), LAST, checkpoint="ckpt", checkpoint_every=every)
    training = ToyTraining(is_sharded=True)
    cluster = LossyCluster(job, rng, not_finite, regroups=regroups and not staggered, training=training)
    cluster.losses = losses
    live_through(cluster, faults, rng)
    assert cluster.finished is not None
    if cluster.finished.exit_code == 0:
        check_states(cluster, LAST)
    elif "is lost" in cluster.finished.reason:
        assert cluster.finished.exit_code == 5 and cluster.finished.reason.endswith("no checkpoint to go back to")
    _check_course(cluster)


def _check_course(cluster: ToyCluster) -> None:
    """Each iteration follows the one before it, or the checkpoint that was gone back to, which was the last one."""
    follows, saved = 0, dict[int, None]()
    for one in cluster.announced:
        match one["event"]:
            case "iteration":
                assert one["iteration"] == follows
                follows += 1
            case "checkpoint" if one["path"] and "error" not in one:
                saved[one["iteration"]] = saved.pop(one["iteration"], None)
            case "rollback":
                assert one["iteration"] == [*saved][-1] <= follows
                assert one["path"] == f"step-{one['iteration']}"
                follows = one["iteration"]


def test_steps_are_counted_on_from_a_checkpoint_of_before() -> None:
    """One that does not say how many steps were taken: as many as iterations, at first as after all went back to it."""
    job = Job(toy_plan(1, 4, 2, False, False, 1), LAST, first_iteration=4, resume="step-4")
    cluster = LossyCluster(job, random.Random(0), frozenset(), regroups=False, training=ToyTraining(is_sharded=True))
    while cluster.rules.committed < 5:
        assert cluster.step()
    assert cluster.rules._epoch_message is not None and cluster.rules._epoch_message.taken == 4
    cluster.losses = 9
    cluster.kill(cluster.live()[0])
    while cluster.rules.committed >= 4 or cluster.rules.must_change:
        assert cluster.step()
    assert (cluster.rules._epoch_message.iteration, cluster.rules._epoch_message.taken) == (4, 4)


class Unseating(Rerouting):
    """Once somebody is lost one worker alone does everything, and the others wait."""

    def __call__(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions = HEALTHY) -> Replanned:
        return super().__call__(plan, crew if len(crew) == len(self.plan.workers) else crew[:1], conditions)


def giving(iterations: int, leaver: str | None = None) -> tuple[ToyCluster, Epoch]:
    """A job in whose epoch, which has just begun, two of four send what they hold to the only one with a seat; one may
    have been told to go, once the fourth was lost."""
    plan = toy_plan(1, 4, 2, False)
    cluster = ToyCluster(Job(plan, iterations), random.Random(0), training=ToyTraining(is_sharded=True))
    cluster.replan = Unseating(plan)
    while cluster.rules.committed < 2:
        assert cluster.step()
    cluster.kill(next(one for one in cluster.workers if one.name == "1/0"))
    while "1/0" in cluster.rules.members:
        assert cluster.step()
    if leaver is not None:
        tell_to_go(cluster, leaver)
    while not (epoch := cluster.rules._epoch_message) or not epoch.givers:
        assert cluster.step()
    assert [one.worker for one in epoch.givers] == ["2/0", "3/0"]
    return cluster, epoch


def tell_to_go(cluster: ToyCluster, name: str) -> ToyWorker:
    """A worker is, and the coordinator knows at once that it will."""
    worker = next(one for one in cluster.workers if one.name == name)
    cluster._feed(Said(cluster.now_s, worker.connection, Leaving()))
    return worker


@pytest.mark.parametrize("before", [False, True])
def test_who_is_told_to_go_while_others_lack_what_it_holds_gives_that_first(before: bool) -> None:
    """Also where it was told as it had a seat yet: it goes as soon as they have it, and waits for no other place."""
    cluster, epoch = giving(LAST, "2/0" if before else None)
    leaver = next(one for one in cluster.workers if one.name == "2/0") if before else tell_to_go(cluster, "2/0")
    assert not any(isinstance(one, End) for one in leaver.inbox)
    while leaver.connection in cluster.rules._roster.newcomers:
        assert cluster.step()
    assert cluster.rules._checksums.covers(["0/0"]) and cluster.rules.epoch == epoch.epoch
    assert [one.exit_code for one in leaver.inbox if isinstance(one, End)] == [0]
    assert cluster.finished is None
    run(cluster)
    check_states(cluster, LAST)


def test_who_gives_what_it_holds_does_so_in_the_epoch_that_comes_instead() -> None:
    """The epoch that it gives in comes to nothing: it hears of the next one, in which it is needed as before."""
    cluster, epoch = giving(6)
    worker = next(one for one in cluster.workers if one.name == "0/0")
    while worker.epoch is None or worker.epoch.epoch < epoch.epoch:
        assert cluster.step()
    cluster.complain(worker, None)
    run(cluster)
    check_states(cluster, 6)
    assert cluster.rules.epoch == epoch.epoch + 1


def test_who_cannot_give_what_it_holds_is_not_waited_for_for_ever() -> None:
    """One that never enters the epoch, though its process lives: the others do without what it has."""
    cluster, _ = giving(6)
    next(one for one in cluster.workers if one.name == "3/0").hangs = "mute"
    run(cluster)
    assert cluster.finished is not None and cluster.finished.exit_code == 0, cluster.finished
    check_states(cluster, 6)
