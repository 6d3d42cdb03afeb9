"""Plans and timelines that the tests of the pictures draw."""

from collections.abc import Callable

import pytest

from rtk.runners.simulator import simulate
from rtk.schemas.plan import Link, Pipeline, Plan, Planner, Prediction, Stage, Template, Worker
from rtk.schemas.timeline import Event, Span, Timeline, WorkerMemory

MakePlan = Callable[..., Plan]


def one_forward_one_backward(stages: int, stage: int, microbatches: int, split: bool = False) -> str:
    warm_up = min(stages - stage, microbatches)
    tokens = [f"F{j}" for j in range(warm_up)]
    for j in range(microbatches):
        tokens += [f"I{j}", f"W{j}"] if split else [f"B{j}"]
        if warm_up + j < microbatches:
            tokens.append(f"F{warm_up + j}")
    return " ".join(tokens)


@pytest.fixture(scope="session")
def make_plan() -> MakePlan:
    """A 1F1B plan of a given size; `orders` and `failed` replace those of some workers."""

    def make(
        pipelines: int = 2,
        stages: int = 3,
        microbatches: int = 4,
        split: bool = False,
        orders: dict[str, str] | None = None,
        failed: tuple[str, ...] = (),
        prediction: Prediction | None = None,
        forward_s: float = 0.01,
    ) -> Plan:
        shape = tuple(
            Stage(
                (i, i + 1),
                forward_s,
                0.01,
                0.009,
                allreduce_s=0.004,
                optimizer_s=0.003,
                activation_bytes=300.1,
                weight_stash_bytes=100.3,
                memory_limit_bytes=2000,
            )
            for i in range(stages)
        )
        workers = []
        for k in range(pipelines):
            for i in range(stages):
                order = one_forward_one_backward(stages, i, microbatches, split)
                order = (orders or {}).get(f"{k}/{i}", order)
                is_dead = f"{k}/{i}" in failed
                workers.append(Worker(k, i, None if is_dead else order, failed=True if is_dead else None))
        return Plan(
            planner=Planner("by hand", "1", {}),
            templates=(Template("t0", shape, tuple(Link(0.001) for _ in range(stages - 1))),),
            pipelines=tuple(Pipeline("t0", microbatches) for _ in range(pipelines)),
            optimizer="synchronous",
            workers=tuple(workers),
            prediction=prediction,
        )

    return make


@pytest.fixture(scope="session")
def rerouted_plan(make_plan: MakePlan) -> Plan:
    """Three pipelines of two stages; worker 1/1 failed, its four micro-batches go to 0/1 and 2/1."""
    orders = {
        "0/1": "F0 B0 F1.0 I1.0 W1.0 F1 B1 F1.1 B1.1 F2 B2 F3 B3",
        "2/1": "F0 B0 F1.2 B1.2 F1 B1 F1.3 B1.3 F2 B2 F3 B3",
    }
    return make_plan(pipelines=3, stages=2, orders=orders, failed=("1/1",))


@pytest.fixture(scope="session")
def rerouted(rerouted_plan: Plan) -> Timeline:
    return simulate(rerouted_plan).timeline


@pytest.fixture(scope="session")
def small() -> Timeline:
    """One worker, two micro-batches, by hand: F0 F1 I0 W0 B1, then an all-reduce and a step; one event."""
    ops = [("F0", 0, 1), ("F1", 1, 2), ("I0", 3, 4), ("W0", 4, 5), ("B1", 5, 7), ("allreduce", 7, 8), ("step", 8, 9)]
    return Timeline(
        source="simulated",
        spans=tuple(Span("0/0", op, float(start), float(end)) for op, start, end in ops),
        workers=(WorkerMemory("0/0", activation_bytes=10, weight_stash_bytes=4, memory_limit_bytes=25),),
        events=(Event(2.5, "slow_compute", "0/0", "factor 2 <since> now"),),
    )
