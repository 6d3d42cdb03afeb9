"""Unlike stages within memory limits: how far rotation's plans are above the bound, and how long they take."""

from collections.abc import Callable
from itertools import product
from statistics import mean, median
from typing import Any

import numpy as np

from rtk.benchmarks.instances import Times, head_ms, stepped_ms
from rtk.benchmarks.scheduling import timed
from rtk.benchmarks.slipstream_clusters import replanner, unlike_ms
from rtk.planners.slipstream.cluster import Technique
from rtk.planners.slipstream.replanner import Replanner

SHAPES = ((8, 8, 32), (8, 32, 32), (16, 32, 64))  # PP, DP, micro-batches; every worker holds PP activations
STASH = 0.5
SHARES = (32, 12, 4)  # dead is one worker of so many
KINDS: dict[str, Callable[[int, int], list[Times]]] = {"unlike": unlike_ms, "stepped": stepped_ms, "head": head_ms}
# Kinds and seeds: those of the table in the notes, and others that nothing was chosen on.
NOTED, OTHERS = (("unlike", 1), ("unlike", 2), ("head", 0)), (("unlike", 11), ("unlike", 12), ("stepped", 11))
TECHNIQUES: tuple[Technique, ...] = ("staggered", "decoupled", "adaptive")


def rotation() -> dict[str, Any]:
    """Every shape, technique, kind and share; a summary for each shape, technique and set of kinds."""
    rows = []
    for (pp, dp, microbatches), technique in product(SHAPES, TECHNIQUES):
        if technique == "staggered" or (pp, dp) == (8, 32):
            for kind, seed in NOTED + OTHERS:
                rows += rows_of(kind, seed, pp, dp, microbatches, technique)
    return {"summary": summary(rows), "rows": rows}


def rows_of(kind: str, seed: int, pp: int, dp: int, microbatches: int, technique: Technique) -> list[dict[str, Any]]:
    """An entry of the atlas for each share of dead workers, decided by search and quickly."""
    times_ms = KINDS[kind](pp, seed)
    job = replanner(pp, dp, microbatches, technique, times_ms=times_ms, limit=float(pp), stash=STASH)
    job.entry(1)
    return [
        {"kind": kind, "seed": seed, "pp": pp, "dp": dp, "technique": technique, **entry_row(job, pp * dp // share)}
        for share in SHARES
    ]


def entry_row(job: Replanner, failures: int) -> dict[str, Any]:
    """The plan of one number of failures; gaps are to the least bound of all answers of normalization."""
    (entry, _), took_s = timed(job.entry, failures)
    found = entry.prediction
    bound_s = min(job.search.bound_s(job.grid.stage_failures(v)) for v in job._placement.answers(failures))
    search, live = job.search.rotation, job.grid.pipelines - np.array(entry.failures)
    assert search is not None
    first, first_s = timed(search.look, live, found.lower_bound_s)
    return {
        "failures": failures,
        "value_s": found.iteration_time_s,
        "bound_s": bound_s,
        "gap": found.iteration_time_s / bound_s - 1,
        "gap_to_own_bound": found.gap,
        "first_gap": None if first is None else first.value_s / bound_s - 1,
        "by": entry.recipe.scheduled,
        "peak_over_limit": max(found.peak_memory_bytes) / job.grid.stages,
        "took_s": took_s,
        "first_took_s": first_s,
    }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and largest gap and median time, of the noted kinds and of the others."""
    found = []
    for (pp, dp, _), technique, kinds in product(SHAPES, TECHNIQUES, (NOTED, OTHERS)):
        chosen = [
            row
            for row in rows
            if (row["pp"], row["dp"], row["technique"]) == (pp, dp, technique) and (row["kind"], row["seed"]) in kinds
        ]
        if chosen:
            found.append(
                {
                    "pp": pp,
                    "dp": dp,
                    "technique": technique,
                    "kinds": [f"{kind} {seed}" for kind, seed in kinds],
                    "plans": len(chosen),
                    "mean_gap": mean(row["gap"] for row in chosen),
                    "largest_gap": max(row["gap"] for row in chosen),
                    "took_s": median(row["took_s"] for row in chosen),
                    "first_mean_gap": mean(row["first_gap"] for row in chosen if row["first_gap"] is not None),
                    "first_took_s": median(row["first_took_s"] for row in chosen),
                    "largest_peak_over_limit": max(row["peak_over_limit"] for row in chosen),
                }
            )
    return found
