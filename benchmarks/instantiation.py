"""Instantiation: as fast as the best of all enumerated sets, how long it takes, and how well paces foretell a plan.

python -m rtk.benchmarks.instantiation -o benchmarks/results/instantiation.json
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from random import Random
from statistics import median
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.benchmarks.scheduling import timed
from rtk.planners.batch.distribute import distribute
from rtk.planners.batch.exact import Pace
from rtk.planners.oobleck.instantiation import fastest_sizes, fewest_pipelines, instantiate
from rtk.planners.oobleck.pace import Ending, ending_of, paces_of
from rtk.planners.oobleck.plan import plan_of
from rtk.planners.oobleck.templates import plan_templates
from rtk.schemas.network import Rings
from rtk.schemas.plan import Planner, Stage
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile
from rtk.schemas.templates import LayerState, PipelineTemplate, Templates

LAYERS = 128
CASES = ((128, 8, 3), (64, 2, 2), (256, 8, 3), (1000, 8, 3), (1000, 5, 3))  # nodes, n_0 and f
KINDS = ("whole", "random", "alike", "measured")
ENDINGS = ("none", "shared", "unrelated")  # the larger a pipeline, the less its stages have to reduce; or anything
MICROBATCHES = 16 * LAYERS  # to be shared, where paces are timed
NETWORKS = (Connection(), Connection(0.1), Connection(0.05, 1.0), Connection(0.0, 0.3))


def campaign(cases: int) -> dict[str, Any]:
    """Random small cases: the chosen set against the best of all."""
    chance, worse, sets = Random(0), 0, 0
    for _ in range(cases):
        templates, paces, nodes = drawn(chance)
        ending = endings(chance, templates.smallest, templates.largest, chance.choice(ENDINGS))
        multiple_of = chance.randint(1, 3)
        units = fewest_pipelines(templates, nodes) + chance.choice([0, 1, 5, 20, 60])
        microbatches = units * multiple_of
        times_s = [
            lasts_s(templates, paces, ending, sizes, microbatches, multiple_of)
            for sizes in every_set(templates, nodes)
            if len(sizes) <= units
        ]
        found = fastest_sizes(templates, paces, ending, nodes, microbatches, multiple_of)
        worse += lasts_s(templates, paces, ending, found, microbatches, multiple_of) != min(times_s)
        sets += len(times_s)
    return {"cases": cases, "sets": sets, "other_than_the_best": worse}


def drawn(chance: Random) -> tuple[Templates, list[Pace], int]:
    """Templates whose stages do not matter, paces of them, and nodes that they cover."""
    smallest, fault_tolerance = chance.randint(1, 4), chance.randint(0, 3)
    largest = smallest + chance.randint(0, 8)
    pipelines = chance.randint(fault_tolerance + 1, fault_tolerance + 3)
    nodes = chance.randint(pipelines * smallest, min(pipelines * largest, pipelines * smallest + 12))
    return bare(smallest, largest, fault_tolerance), paces(chance, smallest, largest, chance.choice(KINDS[:3])), nodes


def bare(smallest: int, largest: int, fault_tolerance: int) -> Templates:
    """Templates of one stage; only their sizes matter."""
    stages = (Stage((0, 1), 1.0, 1.0, 1.0),)
    sizes = range(smallest, largest + 1)
    return Templates(
        Planner("benchmark", "1", {}),
        "four-per-stage",
        fault_tolerance,
        largest + fault_tolerance * smallest,
        1,
        tuple(PipelineTemplate(nodes, 1.0, 4, stages, ()) for nodes in sizes),
        (LayerState(),),
    )


def paces(chance: Random, smallest: int, largest: int, kind: str) -> list[Pace]:
    """Paces in whole seconds (many ties), any, or almost so much faster as there are more nodes."""
    sizes = range(smallest, largest + 1)
    if kind == "whole":
        return [Pace(float(chance.randint(0, 6)), float(chance.randint(1, 5))) for _ in sizes]
    if kind == "random":
        return [Pace(chance.random(), 0.01 + chance.random()) for _ in sizes]
    return [Pace(0.3, (1 + 0.1 * chance.random()) / nodes) for nodes in sizes]


def endings(chance: Random, smallest: int, largest: int, kind: str) -> Ending:
    """None; a model's bytes and step time, shared by a template's nodes; or whatever, in small numbers and others."""
    sizes = range(smallest, largest + 1)
    rings, scale = Rings(Network(inter_node=chance.choice(NETWORKS)), 1), chance.choice([0.1, 1.0, 5.0])
    if kind == "none":
        return Ending(smallest, rings, (0.0,) * len(sizes), (0.0,) * len(sizes))
    if kind == "shared":
        shares = tuple(scale / nodes for nodes in sizes)
        return Ending(smallest, rings, shares, shares)
    reduced, steps = (tuple(scale * chance.choice([0.0, 1.0, 2.0, chance.random()]) for _ in sizes) for _ in range(2))
    return Ending(smallest, rings, reduced, steps)


def every_set(templates: Templates, nodes: int) -> Iterator[tuple[int, ...]]:
    """All sets of f + 1 pipelines or more that fill the nodes, sizes descending."""

    def sets(left: int, largest: int) -> Iterator[tuple[int, ...]]:
        if left == 0:
            yield ()
        for size in range(templates.smallest, min(left, largest) + 1):
            for rest in sets(left - size, size):
                yield (size, *rest)

    return (found for found in sets(nodes, templates.largest) if len(found) > templates.fault_tolerance)


def lasts_s(
    templates: Templates,
    paces: Sequence[Pace],
    ending: Ending,
    sizes: Sequence[int],
    microbatches: int,
    multiple_of: int,
) -> float:
    """The least time of a set: of its slowest pipeline, and what follows."""
    chosen = [paces[size - templates.smallest] for size in sizes]
    return distribute(chosen, microbatches, multiple_of).slowest_s + ending.lasts_s(sizes)


def number_of_sets(nodes: int, smallest: int, least_pipelines: int) -> int:
    """How many feasible sets there are: partitions of the nodes into so many parts or more, none below n_0.

    "Oobleck" lists those of fewer parts first and then drops them: 497,245 for 128 nodes, n_0 = 8 and f = 3.
    """
    # Parts of nodes, with at most `least_pipelines` counted.
    counts = [[0] * (least_pipelines + 1) for _ in range(nodes + 1)]
    counts[0][0] = 1
    for size in range(smallest, nodes + 1):
        for left in range(size, nodes + 1):
            for parts in range(least_pipelines, -1, -1):
                counts[left][min(parts + 1, least_pipelines)] += counts[left - size][parts]
    return counts[nodes][least_pipelines]


def speed(rounds: int) -> list[dict[str, Any]]:
    """How long the choice takes for large clusters, with 8 and 64 micro-batches a node."""
    rows = []
    for (nodes, smallest, fault_tolerance), kind, after, each in product(CASES, KINDS, ENDINGS, (8, 64)):
        largest = min(nodes - fault_tolerance * smallest, LAYERS if kind == "measured" else nodes)
        templates = bare(smallest, largest, fault_tolerance)
        times_s = []
        for seed in range(1 if after == "unrelated" and nodes > 256 else rounds):
            found = (
                list(measured(nodes * each, nodes)[smallest - 1 : largest])
                if kind == "measured"
                else paces(Random(seed), smallest, largest, kind)
            )
            ending = endings(Random(seed), smallest, largest, after)
            times_s.append(timed(fastest_sizes, templates, found, ending, nodes, nodes * each)[1])
        rows.append(
            {
                "nodes": nodes,
                "smallest": smallest,
                "largest": largest,
                "fault_tolerance": fault_tolerance,
                "microbatches": nodes * each,
                "paces": kind,
                "endings": after,
                "sets": number_of_sets(nodes, smallest, fault_tolerance + 1) if nodes <= 128 else None,
                "median_s": median(times_s),
                "largest_s": max(times_s),
            }
        )
    return rows


@cache
def planned() -> Templates:
    """Templates of 1 to 128 nodes for 128 unlike layers."""
    chance, inter_node = Random(0), Connection(1e-5, 1.25e10)
    times_s = [0.01 * chance.uniform(0.7, 1.3) for _ in range(LAYERS)]
    costs = [LayerCost(time_s, time_s, time_s) for time_s in times_s]
    layers = tuple(Layer((cost,), parameter_bytes=4e8, output_bytes=3e7) for cost in costs)
    return plan_templates(Profile(layers, device=Device("any"), network=Network(None, inter_node)), LAYERS, 1, 0)


@cache
def measured(microbatches: int, nodes: int) -> list[Pace]:
    """Their paces, where so many micro-batches are shared on so many nodes."""
    return paces_of(planned().templates, microbatches, nodes)


def pace_figures() -> dict[str, Any]:
    """How long the paces of 128 templates take, and how far they are from what plans promise."""
    templates = planned()
    asked = templates.templates, MICROBATCHES, LAYERS
    _, first_s = timed(paces_of, *asked)
    found, again_s = timed(paces_of, *asked)
    errors = []
    for nodes, each in product((1, 2, 5, 16, 48, 96), (1, 2, 3, 5, 8)):
        plan = plan_of(templates, [nodes], [nodes * each])
        assert plan.prediction is not None
        errors.append((each, found[nodes - 1].time_s(nodes * each) / plan.prediction.makespan_s - 1))
    return {
        "templates": len(found),
        "microbatches": MICROBATCHES,
        "first_s": first_s,
        "again_s": again_s,
        "errors_by_microbatches_a_stage": {
            str(each): [min(part), max(part)]
            for each in (1, 2, 3, 5, 8)
            for part in [[error for other, error in errors if other == each]]
        },
    }


def whole_plans() -> list[dict[str, Any]]:
    """The plan for many nodes, from the choice to the check."""
    rows = []
    for nodes in (13, 128, 1000):
        found, chosen_s = timed(instantiate, planned(), nodes, 16 * nodes)
        plan, planned_s = timed(plan_of, planned(), found.sizes, found.microbatches)
        assert plan.prediction is not None
        rows.append(
            {
                "nodes": nodes,
                "pipelines": len(found.sizes),
                "instantiate_s": chosen_s,
                "plan_s": planned_s,
                "foretold_s": found.slowest_s + ending_of(planned()).lasts_s(found.sizes),
                "iteration_time_s": plan.prediction.iteration_time_s,
                "gap": plan.prediction.gap,
            }
        )
    return rows


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    result = {
        "campaign": campaign(asked.cases),
        "paces": pace_figures(),
        "speed": speed(asked.rounds),
        "plans": whole_plans(),
    }
    write_result(result, asked.output)


if __name__ == "__main__":
    main()
