"""Oobleck's templates: Table 3 of the paper beside ours, and campaigns against brute force and the paper's recursion.

    python benchmarks/oobleck_templates.py -o benchmarks/results/oobleck-templates.json

Sections (`--only`): `table_3` times one template and all templates of every cell, on unlike layers; `first_call` a cell
in a new process, with the machine code in numba's cache and without; `memory` cells whose memory decides; `exactness`
compares T with all mappings of small random cases; `recursion` with equations 1 to 4 as published; `objectives` says
what the templates of each objective take under 1F1B; `estimate` how far T with given micro-batches is from that.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import median
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.benchmarks.papers.oobleck import LAYERS, PAPER_S
from rtk.planners.oobleck.mapping import Mapper, Mapping, MappingObjective, MappingRequest, Stages, stages_of
from rtk.schemas.profile import Device, Layer, LayerCost, Profile
from rtk.tests.planners.oobleck_reference import (
    Stage,
    best_by_hand,
    best_by_recursion,
    in_memory,
    one_forward_one_backward_s,
    ours,
    random_node,
    random_profile,
    stage_time_s,
    time_of,
)

ALLREDUCE_S = {1: 0.0, 2: 0.1, 4: 0.15, 8: 0.2}  # of a layer's forward, and of its backward, at each degree
REPEATS = 3
LARGEST = (24, 8, 96)
CASES = 2500
EXACT_CASES = 10_000  # some 2,000 of them comparable under the paper's objective
MICROBATCHES = (None, 1, 2, 3, 5, 8, 20, 50)


def unlike_layers(layers: int, gpus_per_node: int, memory_bytes: float | None = None) -> Profile:
    """Layers of F = 0.5 to 1.5 s and B = 2 F on one GPU, with degrees that are powers of two."""
    chance = Random(7)
    return Profile(
        tuple(_layer(0.5 + chance.random(), gpus_per_node) for _ in range(layers)),
        device=Device(memory_bytes=memory_bytes),
    )


def _layer(forward_s: float, gpus_per_node: int) -> Layer:
    costs = (
        LayerCost(forward_s / d + extra_s, forward_s / d + extra_s / 2, forward_s / d + extra_s / 2, tensor_parallel=d)
        for d, extra_s in ALLREDUCE_S.items()
        if d <= gpus_per_node
    )
    return Layer(tuple(costs), parameter_bytes=10.0, activation_bytes=1.0)


def plan(
    profile: Profile, gpus: int, sizes: list[int], microbatches: int | None = None
) -> tuple[Stages, list[Mapping]]:
    """Mappings onto so many nodes, from the profile on."""
    stages = stages_of(profile, gpus)
    mapper = Mapper(MappingRequest(stages, gpus, MappingObjective(microbatches), max(sizes)))
    return stages, mapper.best([size for size in sizes if size in mapper.fitting])


def seconds(profile: Profile, gpus: int, sizes: list[int], microbatches: int | None = None) -> float:
    """How long `plan` takes, in s; median of a few."""
    took_s = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        plan(profile, gpus, sizes, microbatches)
        took_s.append(time.perf_counter() - start_s)
    return median(took_s)


def table_3() -> list[dict[str, Any]]:
    """One template of so many nodes, and all up to it; median of a few, the machine code loaded before."""
    plan(unlike_layers(32, 8), 8, [8])
    rows = []
    for (nodes, gpus), published_s in PAPER_S.items():
        for layers, paper_s in zip(LAYERS, published_s, strict=True):
            profile = unlike_layers(layers, gpus)
            one_s = seconds(profile, gpus, [nodes])
            rows.append(
                {
                    "nodes": nodes,
                    "gpus_per_node": gpus,
                    "layers": layers,
                    "paper_s": paper_s,
                    "one_s": one_s,
                    "all_s": seconds(profile, gpus, list(range(1, nodes + 1))),
                    "times_faster": paper_s / one_s,
                }
            )
    return rows


def first_call() -> dict[str, float]:
    """One template of the largest cell in a new process, imports aside: kernels compiled, and from the cache."""
    script = (
        "from rtk.benchmarks.oobleck_templates import *; "
        "nodes, gpus, layers = LARGEST; profile = unlike_layers(layers, gpus); "
        "start_s = time.perf_counter(); plan(profile, gpus, [nodes]); print(time.perf_counter() - start_s)"
    )
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", script]
        found = [
            float(
                subprocess.run(
                    command, env={**os.environ, "NUMBA_CACHE_DIR": cache}, capture_output=True, check=True
                ).stdout
            )
            for _ in range(2)
        ]
    return {"compiled_s": found[0], "cached_s": found[1]}


def memory() -> list[dict[str, Any]]:
    """The largest cell with memory that decides: 10 bytes of parameters a layer, 1 of activations a micro-batch."""
    nodes, gpus, layers = LARGEST
    rows = []
    for memory_bytes in (None, 40.0, 20.0, 17.0, 15.0, 14.0, 13.0):
        for microbatches in (None, 192, 48):
            profile = unlike_layers(layers, gpus, memory_bytes)
            stages, (mapping,) = plan(profile, gpus, [nodes], microbatches)
            time_s = MappingObjective(microbatches).iteration_time_s([stages.time_s(stage) for stage in mapping])
            rows.append(
                {
                    "memory_bytes": memory_bytes,
                    "microbatches": microbatches,
                    "one_s": seconds(profile, gpus, [nodes], microbatches),
                    "stages": len(mapping),
                    "iteration_time_s": time_s,
                }
            )
    return rows


def exactness() -> dict[str, Any]:
    """T against all mappings: random layers, degrees, nodes, memory and both objectives."""
    counts = {"compared": 0, "four_per_stage": 0, "limited": 0, "nothing_fits": 0, "different": 0}
    for seed in range(EXACT_CASES):
        chance = Random(seed)
        limited = chance.random() < 0.5
        profile = random_profile(chance, limited, whole=chance.random() < 0.5)
        gpus, microbatches = random_node(chance, profile), chance.choice(MICROBATCHES)
        found = ours(profile, gpus, 3, microbatches)
        for nodes in (1, 2, 3):
            best = best_by_hand(profile, nodes, gpus, microbatches)
            if best is None:
                counts["nothing_fits"] += 1
                counts["different"] += nodes in found
                continue
            counts["compared"] += 1
            counts["limited"] += limited
            counts["four_per_stage"] += microbatches is None
            counts["different"] += not equal(profile, found.get(nodes), best[0], microbatches)
    return counts


def equal(profile: Profile, mapping: tuple[Stage, ...] | None, time_s: float, microbatches: int | None) -> bool:
    """Whether a mapping is in memory and takes so long."""
    if mapping is None or not in_memory(profile, mapping, microbatches):
        return False
    found_s = time_of([stage_time_s(profile, stage) for stage in mapping], microbatches)
    return abs(found_s - time_s) <= 1e-9 * time_s


def recursion() -> dict[str, Any]:
    """T against the published recursion, memory aside: how often ours is less, and by how much at most."""
    compared, worse, gains = 0, 0, []
    for seed in range(CASES):
        chance = Random(seed)
        profile = random_profile(chance, limited=False, whole=False)
        profile = replace(profile, layers=profile.layers + profile.layers[: chance.randint(0, 2)])
        gpus = random_node(chance, profile)
        for nodes, mapping in ours(profile, gpus, 3, None).items():
            time_s = time_of([stage_time_s(profile, stage) for stage in mapping], None)
            gain = best_by_recursion(profile, nodes, gpus) / time_s - 1
            compared += 1
            worse += gain < -1e-9
            if gain > 1e-9:
                gains.append(gain)
    return {"compared": compared, "worse": worse, "better": len(gains), "most_better": max(gains, default=0.0)}


def objectives() -> list[dict[str, Any]]:
    """What the largest cell's templates take under 1F1B, F a third of each stage: four a stage, and as many as run."""
    nodes, gpus, layers = LARGEST
    profile = unlike_layers(layers, gpus)
    rows = []
    for microbatches in (24, 48, 96, 192, 384):
        row: dict[str, Any] = {"microbatches": microbatches}
        for name, given in (("four_per_stage", None), ("given", microbatches)):
            stages, (mapping,) = plan(profile, gpus, [nodes], given)
            times_s = [stages.time_s(stage) for stage in mapping]
            row[f"{name}_stages"] = len(mapping)
            row[f"{name}_takes_s"] = one_forward_one_backward_s(times_s, microbatches)
        row["given_iteration_time_s"] = MappingObjective(microbatches).iteration_time_s(times_s)
        row["gain_percent"] = 100 * (1 - row["given_takes_s"] / row["four_per_stage_takes_s"])
        rows.append(row)
    return rows


def estimate() -> dict[str, Any]:
    """T with given micro-batches against 1F1B: random stages, half of them whole numbers, F any share of their time."""
    too_low, too_high, ratios = 0, 0, []
    for seed in range(CASES):
        chance = Random(seed)
        whole, count, microbatches = chance.random() < 0.5, chance.randint(1, 8), chance.randint(1, 32)
        times_s = [float(chance.randint(1, 4)) if whole else chance.random() for _ in range(count)]
        takes_s = one_forward_one_backward_s(times_s, microbatches, chance.random())
        time_s = MappingObjective(microbatches).iteration_time_s(times_s)
        last = max(range(count), key=lambda i: (times_s[i], i))
        too_low += takes_s > time_s * (1 + 1e-9)
        too_high += takes_s < (time_s - sum(times_s[last + 1 :])) * (1 - 1e-9)
        ratios.append(time_s / takes_s)
    return {
        "compared": CASES,
        "below_1f1b": too_low,
        "above_1f1b_by_more_than_later_stages": too_high,
        "median_ratio": median(ratios),
        "largest_ratio": max(ratios),
    }


SECTIONS: dict[str, Callable[[], Any]] = {
    "table_3": table_3,
    "first_call": first_call,
    "memory": memory,
    "exactness": exactness,
    "recursion": recursion,
    "objectives": objectives,
    "estimate": estimate,
}


def main() -> None:
    """Measure the sections asked for and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--only", nargs="*", choices=list(SECTIONS), metavar="SECTION")
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    for name in arguments.only or SECTIONS:
        start_s = time.perf_counter()
        result[name] = SECTIONS[name]()
        result[f"{name}_took_s"] = time.perf_counter() - start_s
    write_result(result, arguments.output)


if __name__ == "__main__":
    main()
