"""Whether the reserve rule ever locks up: any placement, any limit that admits each micro-batch, any priorities.

python -m rtk.benchmarks.placed_deadlocks -o benchmarks/results/placed_deadlocks.json
"""

import argparse
from math import isfinite

import numpy as np

from rtk.benchmarks.common import write_result
from rtk.planners.placement.problem import PlacedProblem
from rtk.planners.placement.scheduler import DueTimes, SeatScheduler, fits
from rtk.planners.scheduling.problem import KINDS

COMPILED = 10**9  # runs that pay for machine code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance = np.random.default_rng(asked.seed)
    stuck = over = operations = 0
    for _ in range(asked.schedules):
        problem = problem_of(chance)
        scheduler = SeatScheduler(problem, COMPILED)
        operations += problem.operations
        if not isfinite(scheduler.run(rules_of(chance, problem))):
            stuck += 1
        elif not fits(problem, scheduler.orders()):
            over += 1
    result = {
        "schedules": asked.schedules, "operations": operations, "deadlocks": stuck, "over_limits": over,
        "seed": asked.seed,
    }  # fmt: skip
    write_result(result, asked.output)


def problem_of(chance: np.random.Generator) -> PlacedProblem:
    """Up to 5 columns, virtual stages at any of them, 3 pipelines, and 8 micro-batches of each on any peers."""
    columns, pipelines = int(chance.integers(1, 6)), int(chance.integers(1, 4))
    more = chance.integers(0, columns, chance.integers(0, 3 * columns + 1))
    column = chance.permutation(np.concatenate([np.arange(columns), more]))
    microbatches, stages, workers = int(chance.integers(1, 9)), len(column), columns * pipelines
    jobs = microbatches * pipelines
    own = np.repeat(np.tile(np.arange(pipelines), microbatches)[:, None], stages, axis=1)
    rerouted = chance.random((jobs, stages)) < chance.choice([0.0, 0.2, 1.0])
    executor = np.where(rerouted, chance.integers(0, pipelines, (jobs, stages)), own) * columns + column
    needs = np.zeros((jobs, workers))
    activation_bytes = chance.choice([1 / 3, 0.5, 1.0, 1.7], stages)
    np.add.at(needs, (np.arange(jobs)[:, None], executor), activation_bytes)
    spare = chance.choice([0.0, 1.0, 3.0, np.inf], workers, p=[0.4, 0.3, 0.2, 0.1])
    split = chance.random((jobs, stages)) < chance.choice([0.0, 0.5, 1.0])
    return PlacedProblem(
        origin=np.tile(np.arange(pipelines), microbatches),
        microbatch=np.repeat(np.arange(microbatches), pipelines),
        column=column,
        pipeline=np.repeat(np.arange(pipelines), columns),
        worker_column=np.tile(np.arange(columns), pipelines),
        live=np.ones(workers, dtype=np.bool_),
        executor=executor,
        split=split,
        duration_s=chance.choice([0.0, 0.5, 1.0, 3.0], (workers, stages, 4), p=[0.1, 0.2, 0.5, 0.2]),
        activation_bytes=activation_bytes,
        stash_bytes=activation_bytes * chance.choice([0.0, 0.5, 1.0], stages),
        limit_bytes=needs.max(axis=0) + spare,
        hop_s=chance.choice([0.0, 0.5, 5.0]) * (np.diff(column) != 0) * np.ones((jobs, stages - 1)),
        allreduce_s=np.zeros(columns),
        optimizer_s=np.zeros(columns),
        staggered=False,
    )


def rules_of(chance: np.random.Generator, problem: PlacedProblem) -> DueTimes:
    """Any priorities: by stage and kind, or by operation; jobs due in order, at once, or the last first."""
    shape = (problem.stages, KINDS) if chance.random() < 0.5 else (*problem.executor.shape, KINDS)
    due_s = np.arange(problem.jobs) * chance.choice([0.0, 1.0, 6.0, -2.0])
    burst = problem.jobs if chance.random() < 0.5 else int(chance.integers(0, 6))
    enters_s = 5 * chance.random() * np.maximum(np.arange(problem.jobs) - burst, 0)
    wait = float(chance.choice([0.0, 0.5, 1.0]))
    return DueTimes(due_s, chance.normal(size=shape) * chance.choice([1.0, 10.0]), enters_s, wait)


if __name__ == "__main__":
    main()
