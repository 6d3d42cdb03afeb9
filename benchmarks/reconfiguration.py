"""Reconfiguration's figures: one node lost among a thousand, many at once, and a hundred one after the other.

`python benchmarks/reconfiguration.py [-o FILE]`

A model like GPT-3 175B, 96 unlike layers of 29 GB, on 1,000 nodes of 8 GPUs with 80 GB each; f = 3, templates from what
memory asks for to 24 nodes. `decided` is pipelines, batch, seats and copies; `planned` comes on top, the Plan with its
orders, its prediction and its check. One core, warm; `decided_first` has the templates' paces to time.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.benchmarks.scheduling import timed
from rtk.planners.oobleck.assignment import CrewNode
from rtk.planners.oobleck.instantiation import instantiate
from rtk.planners.oobleck.plan import plan_of
from rtk.planners.oobleck.reconfiguration import Choice, GlobalBatch, SurvivingNodes, Weighing
from rtk.planners.oobleck.templates import plan_templates
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile
from rtk.schemas.templates import Templates

NODES, GPUS, LAYERS, LARGEST, FAULTS = 1000, 8, 96, 24, 3
MICROBATCHES = 8192
PAYS_WITHIN = 100
DRAWS = 20
FAST = Connection(10e-6, 25e9)  # 200 Gbit/s
SLOW = Connection(10e-6, 1.25e9)  # 10 Gbit/s


def job(connection: Connection) -> Templates:
    """Templates of a model with 96 unlike layers, 29 GB of parameters and state each (GPT-3 175B's)."""
    chance = Random(0)
    return plan_templates(
        Profile(
            tuple(_layer(chance.uniform(0.5, 1.5)) for _ in range(LAYERS)),
            device=Device("80 GB", 80e9),
            network=Network(intra_node=Connection(5e-6, 300e9), inter_node=connection),
        ),
        NODES,
        GPUS,
        FAULTS,
        largest=LARGEST,
    )


def _layer(factor: float) -> Layer:
    each_s = {d: factor * (0.008 / d + 0.0004 * (d > 1)) for d in (1, 2, 4, 8)}
    costs = tuple(LayerCost(took_s, took_s, took_s, tensor_parallel=d) for d, took_s in each_s.items())
    return Layer(costs, parameter_bytes=3.6e9, state_bytes=25.4e9, activation_bytes=1e9, output_bytes=5e7)


def begun(weighing: Weighing) -> SurvivingNodes:
    """All nodes, in the fastest pipelines, holding what these need."""
    sizes = instantiate(weighing.templates, NODES, MICROBATCHES).sizes
    new = tuple(CrewNode(f"{n}", None, None) for n in range(NODES - 1))
    # Who holds nothing can be placed by anybody's rules: one that holds all is there to copy from.
    first = CrewNode(f"{NODES - 1}", None, (0, LAYERS))
    choice = weighing.chosen(SurvivingNodes((), (*new, first)), 10**9)
    assert sorted(choice.pipelines.sizes) == sorted(sizes)
    return SurvivingNodes(choice.pipelines.sizes, choice.crew)


def without(standing: SurvivingNodes, lost: Sequence[int]) -> SurvivingNodes:
    """Some nodes, by their numbers, are lost."""
    return SurvivingNodes(standing.before, tuple(node for n, node in enumerate(standing.crew) if n not in set(lost)))


def losses(templates: Templates, lost: int) -> dict[str, Any]:
    """So many random nodes are lost at once: medians and worst over draws."""
    weighing = Weighing(templates, GlobalBatch(MICROBATCHES))
    standing = begun(weighing)
    drawn = [without(standing, Random(seed).sample(range(NODES), lost)) for seed in range(DRAWS)]
    _, first_s = timed(Weighing(templates, GlobalBatch(MICROBATCHES)).chosen, drawn[0], PAYS_WITHIN)
    found = [timed(weighing.chosen, one, PAYS_WITHIN) for one in drawn]
    decided_s = [took_s for _, took_s in found]
    planned_s = [timed(plan_of, templates, one.pipelines.sizes, one.microbatches)[1] for one, _ in found]
    return {
        "lost": lost,
        "draws": DRAWS,
        "decided_first_s": first_s,
        "decided_s": {"median": median(decided_s), "largest": max(decided_s)},
        "planned_s": {"median": median(planned_s), "largest": max(planned_s)},
        "steps": sorted({" ".join(choice.pipelines.steps) for choice, _ in found}),
        "weighed": told([choice for choice, _ in found]),
        "steps_only": told([weighing.chosen(one, 0) for one in drawn]),
    }


def told(choices: Sequence[Choice]) -> dict[str, float]:
    """Medians of what choices cost and give."""
    return {
        "moved_bytes": median(choice.moved_bytes for choice in choices),
        "copying_s": median(choice.copying_s or 0.0 for choice in choices),
        "iteration_s": median(choice.iteration_s for choice in choices),
        "pipelines": median(len(choice.pipelines.sizes) for choice in choices),
    }


def one_by_one(templates: Templates, pays_within: int, count: int = 100) -> dict[str, Any]:
    """So many nodes are lost one after the other, each followed by a reconfiguration and 100 iterations."""
    weighing, chance = Weighing(templates, GlobalBatch(MICROBATCHES)), Random(1)
    standing, total_s, copying_s, moved_bytes, taken = begun(weighing), 0.0, 0.0, 0.0, Counter[str]()
    for _ in range(count):
        choice = weighing.chosen(without(standing, [chance.randrange(len(standing.crew))]), pays_within)
        standing = SurvivingNodes(choice.pipelines.sizes, choice.crew)
        taken[" ".join(choice.pipelines.steps)] += 1
        copying_s += choice.copying_s or 0.0
        moved_bytes += choice.moved_bytes
        total_s += (choice.copying_s or 0.0) + PAYS_WITHIN * choice.iteration_s
    return {
        "pays_within": pays_within,
        "lost": count,
        "total_s": total_s,
        "copying_s": copying_s,
        "moved_bytes": moved_bytes,
        "last_iteration_s": choice.iteration_s,
        "steps": dict(sorted(taken.items())),
    }


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="-", help="where to write; `-` is standard output")
    output = parser.parse_args().output
    networks = {"200 Gbit/s": job(FAST), "10 Gbit/s": job(SLOW)}
    sizes = networks["200 Gbit/s"]
    result = {
        "nodes": NODES,
        "gpus_per_node": GPUS,
        "layers": LAYERS,
        "fault_tolerance": FAULTS,
        "templates": [sizes.smallest, sizes.largest],
        "microbatches": MICROBATCHES,
        "losses": {name: [losses(made, lost) for lost in (1, 3, 10, 100)] for name, made in networks.items()},
        "one_by_one": {
            name: [one_by_one(made, pays_within) for pays_within in (0, PAYS_WITHIN)] for name, made in networks.items()
        },
    }
    write_result(result, output)


if __name__ == "__main__":
    main()
