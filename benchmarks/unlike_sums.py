"""What a plan of unlike pipelines says of its all-reduce, against sums layer by layer, as the torch runner makes them.

`python benchmarks/unlike_sums.py [--plans N] [--seed S] [-o FILE]`. Random models, networks and nodes, plans by
`plan_oobleck`, of unlike templates. A plan says that a component is summed from its last worker's end on, in its
longest `allreduce_s`. Here each run of layers with the same holders begins when all of them have ended and are through
with the runs before it, and takes its share of `allreduce_s`, by layers, of the holder for whom that is longest. Two
orders: from the first layers up, as the runner did, and from the last layers down. Each figure is the iteration, of
what is stated.
"""

import argparse
import random
from statistics import median

from rtk.benchmarks.common import write_result
from rtk.planners.oobleck.plan import plan_oobleck
from rtk.planners.oobleck.templates import plan_templates
from rtk.planners.scheduling.evaluate import Evaluation, evaluate
from rtk.runners.program import lower
from rtk.schemas.errors import RtkError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile


def random_plan(chance: random.Random) -> Plan | None:
    """A plan of unlike pipelines; None where the dice have thrown none."""
    share, count, nodes = chance.choice([0.05, 0.2, 0.5, 1.0]), chance.randint(8, 20), chance.randint(5, 11)
    layers = tuple(
        Layer(
            (LayerCost(0.002 * chance.uniform(0.7, 1.3), 0.002, 0.002, 0.0005),),
            parameter_bytes=5e7 * chance.uniform(0.5, 1.5),
            state_bytes=1e8,
        )
        for _ in range(count)
    )
    profile = Profile(layers, network=Network(None, Connection(1e-5, 2.5e9 / share)))
    try:
        templates = plan_templates(profile, nodes, 1, 1, memory_limit_bytes=count * 2e8 / chance.choice([2, 3]))
        plan = plan_oobleck(templates, nodes, chance.choice([2, 4, 8]) * nodes, 1)
    except RtkError:  # too few nodes for the model
        return None
    return plan if len({pipeline.template for pipeline in plan.pipelines}) > 1 else None


def iteration_s(evaluation: Evaluation, is_descending: bool) -> float:
    """How long an iteration takes whose layers are summed part by part, in s."""
    plan, program = evaluation.plan, lower(evaluation.plan)
    stages = [plan.stage_of(worker) for worker in program.workers]
    free_s = [row[-1].end_s for row in evaluation.operations if row]
    parts = {part for rank in range(len(stages)) for part in program.reduction(rank).parts}
    for part in sorted(parts, key=lambda one: one.layers, reverse=is_descending):
        end_s = max(free_s[rank] for rank in part.ranks) + max(
            stages[rank].allreduce_s * _length(part.layers) / _length(stages[rank].layers) for rank in part.ranks
        )
        for rank in part.ranks:
            free_s[rank] = end_s
    return max(free_s) + max(stage.optimizer_s for stage in stages)


def _length(layers: tuple[int, int]) -> int:
    return layers[1] - layers[0]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", default="-")
    arguments = parser.parse_args()
    chance, found = random.Random(arguments.seed), list[tuple[float, float]]()
    while len(found) < arguments.plans:
        plan = random_plan(chance)
        if plan is not None:
            evaluation = evaluate(plan)
            up_s, down_s = iteration_s(evaluation, False), iteration_s(evaluation, True)
            found.append((up_s / evaluation.makespan_s, down_s / evaluation.makespan_s))
    orders = zip(("first layers first", "last layers first"), zip(*found, strict=True), strict=True)
    figures = {name: {"least": min(ones), "median": median(ones), "most": max(ones)} for name, ones in orders}
    write_result(
        {"plans": arguments.plans, "seed": arguments.seed, "of the stated iteration": figures}, arguments.output
    )


if __name__ == "__main__":
    main()
