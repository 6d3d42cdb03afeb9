"""A worker that has lost a rank goes on at a smaller degree where that is predicted to be faster, and comes back."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.resilience.protocol import Job
from rtk.schemas.plan import Plan
from rtk.schemas.protocols import DegreeFactors

from .test_rules import HANGS, check_states, inject, run
from .test_unit_gate import events_of, strike
from .toy_cluster import ToyCluster, ToyTraining, toy_plan

ITERATIONS = 12
FAULTS = ["kill", "kill", "kill", "leave", "join", "join", "restart", "cut off", "slow", "touch"]


def lowering(plan: Plan, iterations: int = ITERATIONS, **more: Any) -> Job:
    """A job whose workers may go on at any smaller degree, slower by the number of ranks."""
    factors = {one.name: {d: plan.gpus_of(one) / d for d in range(1, plan.gpus_of(one))} for one in plan.workers}
    return Job(plan, iterations=iterations, lower=DegreeFactors(factors), **more)


def story(
    seed: int, ranks: int, dp: int, staggered: bool, faults: list[str], regroups: bool, checkpoint: bool = False
) -> ToyCluster:
    """Faults at random moments; all that are dead are started again at last."""
    rng = random.Random(seed)
    plan = toy_plan(2, dp, 2, staggered and not regroups, ranks=ranks)
    training = ToyTraining(regroups=rng.random() < 0.8, degrees=tuple(range(1, ranks)))
    job = lowering(plan, checkpoint="ckpt" if checkpoint else None, checkpoint_every=3)
    cluster = ToyCluster(job, rng, regroups=regroups, training=training)
    dead = strike(cluster, faults, rng, 150)
    while dead and cluster.finished is None:
        for _ in range(20):
            cluster.step()
        inject(cluster, "join", rng, dead)
    run(cluster)
    return cluster


@given(
    seed=st.integers(0, 2**32),
    ranks=st.integers(2, 4),
    dp=st.integers(2, 3),
    staggered=st.booleans(),
    faults=st.lists(st.sampled_from([*FAULTS, *HANGS]), max_size=8),
    regroups=st.booleans(),
    checkpoint=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_at_whatever_degrees_workers_go_on_each_iteration_is_committed_once(
    seed: int, ranks: int, dp: int, staggered: bool, faults: list[str], regroups: bool, checkpoint: bool
) -> None:
    """Single ranks die, hang, leave and come back, and the coordinator dies, at any moment, also while others become
    something else: nothing hangs, and every iteration is committed once, of every micro-batch once at every rank."""
    cluster = story(seed, ranks, dp, staggered, faults, regroups, checkpoint)
    assert cluster.finished is not None
    if cluster.finished.exit_code == 0:
        check_states(cluster, ITERATIONS)
    commits = [one["iteration"] for one in events_of(cluster, "iteration")]
    assert sorted(set(commits)) == commits
