"""Small jobs, stories of nodes that come and go, and what must hold of every standing of every policy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import pytest
from hypothesis import strategies as st

from rtk.planners.recovery.job import TrainingJob
from rtk.planners.shape import Shape
from rtk.runners.simulator import simulate
from rtk.schemas.orders import LeanSchedule, Schedule
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile, held_bytes
from rtk.schemas.protocols import RecoveryPolicy
from rtk.schemas.replay import Costs, Fleet, Moment, StateChange, TrainingState

# Slow enough that copies count.
NETWORK = Network(None, Connection(1e-3, 1e3))
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


@dataclass(frozen=True)
class Story:
    """Nodes at the beginning, and what becomes of them."""

    began: Fleet
    moments: tuple[Moment, ...]


def layer(work: float = 1.0, tensor_parallel: int = 1) -> Layer:
    """A layer whose F, I and W take so many seconds each; state of 400 bytes, activations of 20."""
    cost = LayerCost(work, work, work, 0.5, tensor_parallel)
    return Layer((cost,), "layer", parameter_bytes=100.0, state_bytes=300.0, activation_bytes=20.0,
                 weight_stash_bytes=8.0, output_bytes=10.0)  # fmt: skip


def profile(*works: float, network: Network = NETWORK) -> Profile:
    """Layers of such work."""
    return Profile(tuple(layer(work) for work in works), network=network)


def job(pp: int, dp: int, microbatches: int, **options: object) -> TrainingJob:
    """Equal stages of one layer each; a node a worker unless `gpus_per_node` says more."""
    return TrainingJob(profile(*[1.0] * pp), Shape(pp, dp, microbatches), **options)  # type: ignore[arg-type]


@st.composite
def jobs(draw: st.DrawFn) -> TrainingJob:
    """A job of up to 4 x 4 workers, of equal or unlike stages, whose nodes hold parts of pipelines or several."""
    pp, dp = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    degree = draw(st.sampled_from([1, 1, 2]))
    works = draw(
        st.one_of(st.just([1.0] * pp), st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=pp, max_size=pp + 2))
    )
    workers = draw(st.sampled_from([n for n in range(1, pp * dp + 1) if _divide(n, pp, dp)]))
    schedule = draw(st.sampled_from(SCHEDULES))
    # Room for a micro-batch in each stage, whatever is cut; GPipe holds all of them.
    limits = draw(st.sampled_from([None, [20.0 * len(works) / degree]])) if schedule in get_args(LeanSchedule) else None
    shape = Shape(pp, dp, draw(st.integers(1, 5)), limits, tensor_parallel=degree)
    layers = Profile(tuple(layer(work, degree) for work in works), network=NETWORK)
    costs = Costs(mean_time_between_failures_s=draw(st.sampled_from([1.0, 100.0, 1e5])))
    return TrainingJob(layers, shape, workers * degree, costs, schedule)


@st.composite
def stories(draw: st.DrawFn, job: TrainingJob, most_moments: int = 6) -> Story:
    """Nodes of a job that are lost and come, in any numbers; perhaps too few at the beginning, perhaps spares."""
    names = [f"n{number}" for number in range(draw(st.integers(0, job.nodes + 2)))]
    began, time_s, failures, known = Fleet(tuple(names)), 0.0, 0, len(names)
    moments = []
    for _ in range(draw(st.integers(1, most_moments))):
        lost = draw(st.sets(st.sampled_from(names), max_size=draw(st.sampled_from([0, 1, 3])))) if names else set()
        came = [f"n{known + number}" for number in range(draw(st.sampled_from([0, 0, 1, 2, job.nodes])))]
        names, known = [name for name in names if name not in lost] + came, known + len(came)
        time_s, failures = time_s + draw(st.sampled_from([1.0, 1000.0])), failures + bool(lost)
        moments.append(Moment(time_s, Fleet(tuple(names)), tuple(sorted(lost)), tuple(came), failures))
    return Story(began, tuple(moments))


def told(policy: RecoveryPolicy, story: Story, most_steps: int = 2) -> Iterator[tuple[Fleet, TrainingState]]:
    """The standings of a story, each with the nodes that are there; of an answer the first steps come to pass."""
    standing = policy.begin(story.began)
    yield story.began, standing
    for moment in story.moments:
        for step in policy.react(standing, moment)[:most_steps]:
            standing = step.standing
            yield moment.fleet, standing
        yield moment.fleet, standing


def require_true(policy: RecoveryPolicy, job: TrainingJob, fleet: Fleet, standing: TrainingState) -> None:
    """A standing is what the simulator says of its plan, and only nodes that are there have seats in it."""
    plan, seats = policy.plan(standing), policy.seats(standing)
    hash(standing.formation)
    if plan is None:
        assert standing.iteration_time_s is None and not seats and standing.nodes == 0
        return
    simulated = simulate(plan)
    assert standing.iteration_time_s == pytest.approx(simulated.iteration_time_s, rel=1e-9)
    assert standing.microbatches == plan.total_microbatches()
    assert {worker.place for worker in plan.live_workers()} == set(seats)
    assert set(seats.values()) <= set(fleet.nodes)
    assert len(set(seats.values())) == standing.nodes
    assert held_at_most(plan, job, simulated.peak_memory_bytes) <= standing.peak_memory_bytes * (1 + 1e-9)


def held_at_most(plan: Plan, job: TrainingJob, activation_bytes: tuple[float, ...]) -> float:
    """The most that a GPU of a live worker holds, with such peaks of activations."""

    def held(number: int) -> float:
        worker = plan.workers[number]
        state_bytes = sum(sum(held_bytes(job.profile.layers, *one.layers)) for one in plan.stages_of(worker))
        return state_bytes / plan.stages_of(worker)[0].tensor_parallel + activation_bytes[number]

    return max(held(number) for number, worker in enumerate(plan.workers) if not worker.failed)


def moment(*nodes: str, lost: tuple[str, ...] = (), came: tuple[str, ...] = (), time_s: float = 1e6) -> Moment:
    """A change, after which these nodes are there; the first failure if nodes were lost."""
    return Moment(time_s, Fleet(nodes), lost, came, failures=int(bool(lost)))


def names(count: int) -> tuple[str, ...]:
    """Nodes n0, n1, …"""
    return tuple(f"n{number}" for number in range(count))


def kinds(step: StateChange) -> list[str]:
    """What a step pauses for."""
    return [pause.kind for pause in step.pauses]


def _divide(workers: int, pp: int, dp: int) -> bool:
    """Whether nodes of so many workers hold whole parts of a pipeline, or whole pipelines."""
    return pp % workers == 0 or (workers % pp == 0 and dp % (workers // pp) == 0)
