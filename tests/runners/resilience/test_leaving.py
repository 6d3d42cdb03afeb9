"""Workers that are asked to leave: with a sharded optimizer never both that hold a part of the state at once."""

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.resilience.membership import Member, leavers
from rtk.runners.resilience.protocol import Epoch, Job, Leaving
from rtk.runners.resilience.worker_rules import plan_of
from rtk.schemas.resumption import layers_in

from .test_rules import check_states, run
from .toy_cluster import ToyCluster, ToyTraining, toy_plan

RANGES = st.tuples(st.integers(0, 6), st.integers(1, 3)).map(lambda one: ((one[0], sum(one)),))


@given(st.lists(RANGES, max_size=6))
def test_who_goes_at_once_has_no_layer_in_common(held: list[tuple[tuple[int, int], ...]]) -> None:
    """And nobody else could go with them; nobody goes while somebody is lost, and all go where nothing is shared."""
    holdings = {str(number): ranges for number, ranges in enumerate(held)}
    members = {name: Member(name, None, "", (0, 0), ranges, leaving=Leaving()) for name, ranges in holdings.items()}
    assert leavers(members, members, is_sharded=False) == tuple(members)
    assert leavers(members, [*members, "lost"], is_sharded=True) == ()
    going = leavers(members, members, is_sharded=True)
    taken = [layer for name in going for layer in layers_in(holdings[name])]
    assert len(taken) == len(set(taken))
    assert all(not layers_in(ranges).isdisjoint(taken) for ranges in holdings.values())


@given(seed=st.integers(0, 2**32), stages=st.integers(1, 2), faults=st.lists(st.booleans(), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_at_most_one_holder_of_a_layer_leaves_at_a_time(seed: int, stages: int, faults: list[bool]) -> None:
    """Whoever is asked and whoever dies when: from one epoch to the next a layer loses the dead, or one who leaves; all
    who were asked have left in the end, or sit there with others who were."""
    rng = random.Random(seed)
    cluster = ToyCluster(Job(toy_plan(stages, 4, 1, False), iterations=12), rng, training=ToyTraining(is_sharded=True))
    epochs: list[Epoch] = []
    killed, asked = set[str](), set[str]()
    for leaves in [*faults, None]:
        for _ in range(rng.randrange(150)):
            cluster.step()
            _note(cluster, epochs)
        live = [one for one in cluster.live() if one.name not in killed | asked]
        if leaves is None or cluster.finished is not None or cluster.rules.phase != "running" or len(live) < 2:
            break
        victim = rng.choice(live)
        (cluster.leave if leaves else cluster.kill)(victim)
        (asked if leaves else killed).add(victim.name)
    while cluster.finished is None and cluster.step():
        _note(cluster, epochs)
    run(cluster)
    for before, after in pairwise(epochs):
        if before.nothing_committed and after.nothing_committed:
            continue
        _check_gone(before, after, asked, killed)
    if cluster.finished is not None and cluster.finished.exit_code == 0:
        check_states(cluster, 12)


def _note(cluster: ToyCluster, epochs: list[Epoch]) -> None:
    """Remember the epoch that has just begun."""
    latest = cluster.rules._epoch_message
    if latest is not None and (not epochs or latest.epoch > epochs[-1].epoch):
        epochs.append(latest)


def _check_gone(before: Epoch, after: Epoch, asked: set[str], killed: set[str]) -> None:
    gone = {seat.worker for seat in before.seats} - {seat.worker for seat in after.seats}
    left = gone - killed
    assert left <= asked
    places = dict(zip((seat.worker for seat in before.seats), plan_of(before.plan).live_workers(), strict=True))
    stages = [places[name].stage for name in left]
    assert len(stages) == len(set(stages))
    if left:
        assert gone == left, "somebody left while somebody was lost"
