"""What policies make of single GPUs that die: of the node, of the worker, and of a part of the worker."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.recovery.catalogue import BY_GPU, gpu_policy, policy
from rtk.planners.recovery.gpu_faults import LowerDegrees
from rtk.planners.recovery.job import TrainingJob
from rtk.planners.recovery.rtk import most_microbatches
from rtk.runners.replay.engine import replay
from rtk.runners.simulator import simulate
from rtk.schemas.profile import LayerCost, Network
from rtk.schemas.replay import Fleet, Moment

from .gpu_stories import TIMES, gpu_stories, shared_job, shared_jobs, shared_layer
from .stories import Story, held_at_most, told

FEW = settings(max_examples=20, deadline=None)
WHOLE = ("slipstream", "checkpoint-restart", "elastic-batching", "oobleck", "greyhound")


def _moments(story: Story) -> Iterator[Moment]:
    yield Moment(0.0, story.began)
    yield from story.moments


@FEW
@given(st.sampled_from(BY_GPU), st.data())
def test_a_standing_is_what_the_simulator_says_of_its_plan(name: str, data: st.DataObject) -> None:
    """Times and micro-batches are the plan's, and nobody has a seat whose GPUs are all dead, or who is not there."""
    job = data.draw(shared_jobs())
    found = gpu_policy(name, job)
    for fleet, standing in told(found, data.draw(gpu_stories(job)), data.draw(st.sampled_from([1, 2]))):
        plan, seats = found.plan(standing), found.seats(standing)
        hash(standing.formation)
        if plan is None:
            assert standing.iteration_time_s is None and not seats and standing.nodes == 0
            continue
        simulated = simulate(plan)
        assert standing.iteration_time_s == pytest.approx(simulated.iteration_time_s, rel=1e-9)
        assert standing.microbatches == plan.total_microbatches()
        assert {worker.place for worker in plan.live_workers()} == set(seats)
        assert set(seats.values()) <= set(fleet.nodes)
        assert 0 < standing.nodes <= len(set(seats.values()))
        assert held_at_most(plan, job, simulated.peak_memory_bytes) <= standing.peak_memory_bytes * (1 + 1e-9)
        assert job.profile.device.memory_bytes is None or standing.peak_memory_bytes <= job.profile.device.memory_bytes
        for node in fleet.nodes:
            assert list(seats.values()).count(node) <= _able(name, job, fleet.dead_gpus.get(node, ()))


def _able(name: str, job: TrainingJob, dead: Sequence[int]) -> int:
    """The workers of a node that can be at work: with all their GPUs, or with some."""
    left = [4 - sum(gpu // 4 == worker for gpu in dead) for worker in range(job.workers_per_node)]
    if name == "ntp" and 0 in left:
        return 0
    return sum(alive == 4 if name == "worker-lost" else alive > 0 for alive in left)


@FEW
@given(st.sampled_from(BY_GPU), st.data())
def test_the_same_question_has_the_same_answer(name: str, data: st.DataObject) -> None:
    """Two policies of one job agree, whatever they were asked before."""
    job = data.draw(shared_jobs())
    story = data.draw(gpu_stories(job))
    first, second = gpu_policy(name, job), gpu_policy(name, job)
    list(told(first, data.draw(gpu_stories(job))))
    assert list(told(first, story)) == list(told(second, story))


@FEW
@given(st.sampled_from(WHOLE), st.data())
def test_a_policy_of_nodes_loses_the_node_with_the_gpu(name: str, data: st.DataObject) -> None:
    """A trace in which GPUs die is to it one in which their nodes do; only that these are there, and paid for."""
    job = data.draw(shared_jobs())
    story = data.draw(gpu_stories(job))
    seen = replay(gpu_policy(name, job), list(_moments(story)))
    mapped = [replace(moment, lost_gpus=(), came_gpus=()) for moment in _as_nodes(story)]
    lost = replay(policy(name, job), mapped)
    assert (seen.microbatches, seen.answers, seen.worked_s) == (lost.microbatches, lost.answers, lost.worked_s)
    assert seen.present_s >= lost.present_s


def _as_nodes(story: Story) -> Iterator[Moment]:
    """The story, told by what was there before and is there after: nodes that lack a GPU are not."""
    yield Moment(0.0, story.began)
    before = list(story.began.nodes)
    for moment in story.moments:
        whole = [node for node in moment.fleet.nodes if node not in moment.fleet.dead_gpus]
        lost = tuple(node for node in before if node not in whole)
        came = tuple(node for node in whole if node not in before)
        fleet = Fleet(tuple(whole), {node: factor for node, factor in moment.fleet.slow.items() if node in whole})
        if lost or came:
            yield replace(moment, fleet=fleet, lost=lost, came=came)
        else:
            yield Moment(moment.time_s, fleet, failures=moment.failures)
        before = whole


@FEW
@given(st.data())
def test_where_a_node_is_a_worker_and_no_gpu_dies_nothing_is_new(data: st.DataObject) -> None:
    """The trace of nodes is SlipStream's, to the second."""
    job = data.draw(shared_jobs().filter(lambda one: one.workers_per_node == 1))
    story = data.draw(gpu_stories(job))
    moments = list(_as_nodes(story))
    one, other = (replay(gpu_policy(name, job), moments) for name in ("slipstream", "worker-lost"))
    assert (one.microbatches, one.answers, one.spent_s) == (other.microbatches, other.answers, other.spent_s)


@FEW
@given(st.sampled_from([*BY_GPU, *WHOLE, "rtk"]), st.data())
def test_nobody_beats_the_gpus_that_are_alive(name: str, data: st.DataObject) -> None:
    """No policy commits more than all GPUs that are alive can compute."""
    job = data.draw(shared_jobs())
    moments = list(_moments(data.draw(gpu_stories(job))))
    record = replay(gpu_policy(name, job), moments, 7000.0)
    assert record.microbatches <= most_microbatches(job, moments, 7000.0) * (1 + 1e-9)


@FEW
@given(st.data())
def test_a_degree_is_lowered_only_where_that_is_no_slower(data: st.DataObject) -> None:
    """What follows a GPU's death is no slower than where the profile has no smaller degree, and the worker is lost."""
    job = data.draw(shared_jobs())
    layers = tuple(
        replace(one, costs=tuple(cost for cost in one.costs if cost.tensor_parallel == 4)) for one in job.profile.layers
    )
    nodes = tuple(f"n{number}" for number in range(job.nodes))
    gpu = data.draw(st.tuples(st.sampled_from(nodes), st.integers(0, job.gpus_per_node - 1)))
    dies = Moment(1e3, Fleet(nodes, dead_gpus={gpu[0]: (gpu[1],)}), failures=1, lost_gpus=(gpu,))
    found = []
    for one in (job, replace(job, profile=replace(job.profile, layers=layers))):
        asked = gpu_policy("degree-lowered", one)
        found.append(asked.react(asked.begin(Fleet(nodes)), dies)[-1].standing.microbatches_per_s)
    assert found[0] >= found[1] * (1 - 1e-9)


def test_a_gpu_dies_and_is_repaired() -> None:
    """Of two workers a node, one is lost with its GPU; or goes on, slower by what its stage takes at degree 2."""
    job = shared_job(4, 4, 8, workers=2)
    nodes = tuple(f"n{number}" for number in range(8))
    dies = Moment(1e3, Fleet(nodes, dead_gpus={"n3": (5,)}), failures=1, lost_gpus=(("n3", 5),))
    repaired = Moment(5e3, Fleet(nodes), failures=1, came_gpus=(("n3", 5),))
    answers, per_s, working = {}, {}, {}
    for name in ("slipstream", "worker-lost", "degree-lowered", "ntp"):
        found = gpu_policy(name, job)
        begun = found.begin(Fleet(nodes))
        steps = found.react(begun, dies)
        back = found.react(steps[-1].standing, repaired)
        answers[name] = [step.answer for step in (*steps, *back)]
        per_s[name], working[name] = steps[-1].standing.microbatches_per_s, steps[-1].standing.nodes
        assert back[-1].standing.iteration_time_s == begun.iteration_time_s and back[-1].standing.nodes == 8
    assert answers == {
        "slipstream": ["re-route", "join"],
        "worker-lost": ["re-route", "join"],
        "degree-lowered": ["re-route", "lower", "raise"],
        "ntp": ["restart", "grow"],
    }
    assert working == {"slipstream": 7, "worker-lost": 7.5, "degree-lowered": 7.75, "ntp": 7.5}
    assert per_s["degree-lowered"] > per_s["worker-lost"] >= per_s["slipstream"]


def test_a_lower_degree_takes_what_the_profile_says() -> None:
    """Operations, the step and the longer sum of gradients, all of an iteration, in the plan of the smaller degree."""
    job = shared_job(2, 2, 4)
    nodes = ("n0", "n1", "n2", "n3")
    found = gpu_policy("degree-lowered", job)
    lacking = Fleet(nodes, dead_gpus={"n1": (0,)})
    plan = found.plan(found.begin(lacking))
    assert plan is not None
    (slow,) = (worker.slowdown for worker in plan.workers if worker.slowdown)
    stage = plan.templates[0].stages[0]
    once_s, half = 4 * stage.work_s + stage.allreduce_s + stage.optimizer_s, TIMES[2] / TIMES[4]
    sum_s = 2 * 1e-3 + 2 * (stage.allreduce_s - 2 * 1e-3)  # two steps of 1 ms each, and twice as many bytes
    assert slow == pytest.approx((4 * half * stage.work_s + sum_s + stage.optimizer_s) / once_s)


def test_who_has_no_memory_for_a_lower_degree_is_lost() -> None:
    """At degree 2 a GPU would hold 200 bytes of state beside activations: with 150 it cannot, and peers take over."""
    nodes = ("n0", "n1", "n2", "n3")
    dies = Moment(1e3, Fleet(nodes, dead_gpus={"n1": (0,)}), failures=1, lost_gpus=(("n1", 0),))
    for memory_bytes, expected in ((150.0, ["re-route"]), (300.0, ["re-route", "lower"])):
        found = gpu_policy("degree-lowered", shared_job(2, 2, 4, memory_bytes=memory_bytes))
        assert [step.answer for step in found.react(found.begin(Fleet(nodes)), dies)] == expected


def test_a_limit_of_activations_leaves_less_beside_more_state() -> None:
    """A GPU has what its limit and its state are at the job's own degree: 60 and 100 bytes are not the 200 of state."""
    nodes, job = ("n0", "n1", "n2", "n3"), shared_job(2, 2, 4)
    dies = Moment(1e3, Fleet(nodes, dead_gpus={"n1": (0,)}), failures=1, lost_gpus=(("n1", 0),))
    for limits, expected in (((60.0,), ["re-route"]), ((150.0, 60.0), ["re-route"]), ((150.0,), ["re-route", "lower"])):
        found = gpu_policy("degree-lowered", replace(job, shape=replace(job.shape, memory_limit_bytes=limits)))
        assert [step.answer for step in found.react(found.begin(Fleet(nodes)), dies)] == expected


def test_a_stage_that_takes_no_time_is_not_made_slower() -> None:
    """The factor of a lower degree is that of the stages that take time; where none does, there is none."""
    job = shared_job(2, 2, 4)
    timeless = replace(shared_layer(), costs=tuple(LayerCost(0.0, 0.0, 0.0, 0.0, degree) for degree in TIMES))
    factors = [
        LowerDegrees.replayed(replace(job, profile=replace(job.profile, layers=layers, network=Network()))).factor(2)
        for layers in ((timeless, timeless), (timeless, shared_layer()), (shared_layer(), shared_layer()))
    ]
    assert factors[0] == 1 < factors[1] == factors[2]


def test_whole_workers_take_seats_before_others() -> None:
    """A spare node that lacks no GPU takes the seat, and the one that does waits."""
    found = gpu_policy("degree-lowered", shared_job(1, 2, 4))
    nodes = ("n0", "n1", "n2")
    dies = Moment(1e3, Fleet(nodes, dead_gpus={"n1": (0,)}), failures=1, lost_gpus=(("n1", 0),))
    steps = found.react(found.begin(Fleet(nodes)), dies)
    assert set(found.seats(steps[-1].standing).values()) == {"n0", "n2"}


def test_nonuniform_degrees_share_by_what_works() -> None:
    """The paper's arithmetic: three of four GPUs do three of four micro-batches, and nobody waits for them."""
    job = shared_job(1, 4, 8)
    nodes = tuple(f"n{number}" for number in range(4))
    found = gpu_policy("ntp", job)
    whole, hit = found.begin(Fleet(nodes)), found.begin(Fleet(nodes, dead_gpus={"n0": (2,)}))
    assert hit.microbatches == whole.microbatches - 2 and hit.iteration_time_s == whole.iteration_time_s
    assert hit.nodes == 3.75
    again = found.begin(Fleet(nodes, dead_gpus={"n0": (2,), "n3": (0, 1)}))
    assert again.microbatches == whole.microbatches - 2 - 4
