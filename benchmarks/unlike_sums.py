"""What a plan of unlike pipelines says of its all-reduce, against sums layer by layer, as the torch runner makes them.

`python benchmarks/unlike_sums.py [--plans N] [--seed S] [-o FILE]`. Random models, networks and nodes, plans by
`plan_oobleck`, of unlike templates. Figures are of iterations as a runner makes them, the last layers first:

* *as one*: how long they take, of what plans stated when they had a component summed from its last worker's end on, in
  its longest `allreduce_s`;
* *part by part*: of what plans state now;
* *first layers first*: how long they would take in the other order, of what they take in this one.
"""

import argparse
import random
from statistics import median

from rtk.benchmarks.common import write_result
from rtk.planners.oobleck.plan import plan_oobleck
from rtk.planners.oobleck.templates import plan_templates
from rtk.planners.scheduling.evaluate import OrderEvaluation, evaluate
from rtk.runners.program import lower
from rtk.schemas.conditions import components
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


def run_s(evaluation: OrderEvaluation, is_descending: bool) -> float:
    """How long an iteration takes whose layers are summed part by part, in s, as the program of a runner has it."""
    plan, program = evaluation.plan, lower(evaluation.plan)
    free_s = [row[-1].end_s for row in evaluation.operations if row]
    parts = {part for rank in range(len(program.workers)) for part in program.reduction(rank).parts}
    for part in sorted(parts, key=lambda one: one.layers, reverse=is_descending):
        end_s = max(free_s[rank] for rank in part.ranks) + part.duration_s
        for rank in part.ranks:
            free_s[rank] = end_s
    return max(free_s) + max(plan.stage_of(worker).optimizer_s for worker in program.workers)


def as_one_s(evaluation: OrderEvaluation) -> float:
    """How long an iteration takes whose components are summed as one, in s."""
    plan = evaluation.plan
    pairs = zip(plan.workers, evaluation.operations, strict=True)
    workers = [(plan.stage_of(worker), row[-1].end_s) for worker, row in pairs if row]
    component_of = components(stage.layers for stage, _ in workers)
    summed_s = [
        max(end_s for stage, end_s in workers if component_of[stage.layers] == component)
        + max(stage.allreduce_s for stage, _ in workers if component_of[stage.layers] == component)
        for component in set(component_of.values())
    ]
    return max(summed_s) + max(stage.optimizer_s for stage, _ in workers)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", default="-")
    arguments = parser.parse_args()
    chance, found = random.Random(arguments.seed), list[tuple[float, ...]]()
    while len(found) < arguments.plans:
        plan = random_plan(chance)
        if plan is not None:
            evaluation = evaluate(plan)
            down_s, up_s = run_s(evaluation, True), run_s(evaluation, False)
            found.append((down_s / as_one_s(evaluation), down_s / evaluation.makespan_s, up_s / down_s))
    ways = zip(("as one", "part by part", "first layers first"), zip(*found, strict=True), strict=True)
    figures = {name: {"least": min(ones), "median": median(ones), "most": max(ones)} for name, ones in ways}
    write_result({"plans": arguments.plans, "seed": arguments.seed, "ratios of iterations": figures}, arguments.output)


if __name__ == "__main__":
    main()
