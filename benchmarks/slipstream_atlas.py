"""SlipStream's running example, and all plans for 1 to 25 % failures, against the paper's Table 3."""

import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from subprocess import run
from typing import Any

import numpy as np

from rtk.benchmarks.instances import Times
from rtk.benchmarks.papers.slipstream_tables import PAPER_S, PP_DEGREES, paper_s
from rtk.benchmarks.scheduling import timed
from rtk.benchmarks.slipstream_clusters import STAGE_MS, TECHNIQUES, profile_of, quarter, replanner
from rtk.planners.slipstream.cluster import Technique
from rtk.planners.slipstream.replanner import Replanner
from rtk.schemas.atlas import AtlasEntry
from rtk.schemas.documents import write_document

EXAMPLE: list[Times] = [(1000.0, 1000.0, 1000.0)] * 4
CALLED_OUT = ((8, 8), (32, 16), (32, 64))  # DP, PP
# So many of the failure counts are planned for where all of them take minutes, evenly spread.
SAMPLE = 24
COMMANDS = ((8, 8), (64, 32))  # PP, DP


def example(rounds: int = 7) -> list[dict[str, Any]]:
    """PP 4, DP 3, 6 micro-batches, F = I = W = 1 s: worker 1/2 dead, and none, with each technique."""
    cases: list[tuple[Technique, float | None, float]] = [(technique, None, 0.0) for technique in TECHNIQUES]
    cases += [("staggered", 4.0, 0.5), ("decoupled", 4.0, 0.5)]
    rows = []
    for failed, (technique, limit, stash) in product(([(1, 2)], []), cases):
        times_s = []
        for _ in range(rounds + 1):
            start_s = time.perf_counter()
            job = replanner(4, 3, 6, technique, most=1, times_ms=EXAMPLE, limit=limit, stash=stash)
            found = job.in_place(frozenset(failed)).prediction
            times_s.append(time.perf_counter() - start_s)
        assert found is not None
        rows.append(
            {
                "failed": [f"{k}/{i}" for k, i in failed],
                "technique": technique,
                "limit_activations": limit,
                "stash": stash,
                "makespan_s": found.makespan_s,
                "period_s": found.period_s,
                "bound_s": found.lower_bound_s,
                "proof": found.proof,
                "plan_s": median(times_s[1:]),
            }
        )
    return rows


def table_3(technique: Technique, shapes: Sequence[tuple[int, int]], rounds: int) -> list[dict[str, Any]]:
    """All plans for 1 to 25 % failures at 4 micro-batches a stage, for each (DP, PP).

    Args:
        technique: SlipStream's.
        shapes: which.
        rounds: how often it is timed, each time from nothing but machine code; 0 times a sample of the counts, once.
    """
    whole_atlas(replanner(64, 32, 256, technique, most=1), [1])
    return [atlas_row(technique, dp, pp, rounds) for dp, pp in shapes]


def atlas_row(technique: Technique, dp: int, pp: int, rounds: int) -> dict[str, Any]:
    """One cell of Table 3."""
    most = quarter(pp, dp)
    step = 1 if rounds else -(-most // SAMPLE)
    counts = range(most, 0, -step)
    entries: list[AtlasEntry] = []
    times_s = []
    for _ in range(max(rounds, 1)):
        job = replanner(pp, dp, 4 * pp, technique)
        entries, took_s = timed(whole_atlas, job, counts)
        times_s.append(took_s)
    return {
        "technique": technique,
        "dp": dp,
        "pp": pp,
        "plans": most,
        "planned": len(counts),
        "best_s": min(times_s) * most / len(counts),
        "median_s": median(times_s) * most / len(counts),
        "paper_s": paper_s(pp, dp),
        **quality(job, entries),
    }


def whole_atlas(job: Replanner, counts: Sequence[int]) -> list[AtlasEntry]:
    """The entries for these numbers of failures."""
    return [job.entry(failures)[0] for failures in counts]


def quality(job: Replanner, entries: Sequence[AtlasEntry]) -> dict[str, Any]:
    """How far entries are above their bounds, and how unlike they are."""
    gaps = np.array([gaps_of(job, entry) for entry in entries])
    recipes = [entry.recipe for entry in entries]
    return {
        "largest_makespan_gap": float(gaps[:, 0].max()),
        "largest_period_gap": float(gaps[:, 1].max()),
        "largest_gap_of_objective": max(entry.prediction.gap for entry in entries),
        "not_optimal": sum(entry.prediction.proof != "optimal" for entry in entries),
        "in_slots": sum(recipe.scheduled == "slots" for recipe in recipes),
        "by_workers": sum(recipe.scheduled == "workers" for recipe in recipes),
        "stored": sum(recipe.stored is not None for recipe in recipes),
        "different_failure_vectors": len({entry.failures for entry in entries}),
        "different_recipes": len(set(recipes)),
        "different_iteration_times": len({round(entry.prediction.iteration_time_s, 9) for entry in entries}),
    }


def gaps_of(job: Replanner, entry: AtlasEntry) -> tuple[float, float]:
    """How far makespan and period are above the bounds for these numbers of dead workers."""
    live = job.common.dp - np.array(entry.failures)
    makespan_s, period_s = (job.search.bound.value_s(live, staggered) for staggered in (False, True))
    return entry.prediction.makespan_s / makespan_s - 1, entry.prediction.period_s / period_s - 1


def atlases() -> dict[str, Any]:
    """The whole of Table 3 with all techniques but for re-routing alone, and part of it by a sample of the counts."""
    every = [(dp, pp) for dp in PAPER_S for pp in PP_DEGREES]
    return {
        "staggered": table_3("staggered", every, rounds=3),
        "decoupled": table_3("decoupled", [(8, 8), (8, 16), (32, 8), (32, 16), (32, 64)], rounds=0),
        "adaptive": table_3("adaptive", [(dp, pp) for dp in (2, 4, 8) for pp in (2, 4, 8)], rounds=0),
    }


def command(rounds: int = 3) -> list[dict[str, Any]]:
    """`rtk plan slipstream … --max-failures 25% -o atlas/` as a process, from start to end."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for (pp, dp), jobs in product(COMMANDS, (1, 2)):
            write_document(str(Path(folder, "profile.json")), profile_of([STAGE_MS] * pp))
            times_s = [atlas_command_s(folder, pp, dp, jobs, attempt) for attempt in range(rounds + 1)][1:]
            size = sum(path.stat().st_size for path in Path(folder).glob(f"atlas-{pp}-{jobs}-0/*"))
            rows.append(
                {"dp": dp, "pp": pp, "jobs": jobs, "wall_s": median(times_s), "all_s": times_s, "size_bytes": size}
            )
    return rows


def atlas_command_s(folder: str, pp: int, dp: int, jobs: int, attempt: int) -> float:
    """How long the command takes, start-up included."""
    command = [sys.executable, "-m", "rtk.cli.main", "plan", "slipstream", "profile.json", "--quiet"]
    shape = ["--pp", f"{pp}", "--dp", f"{dp}", "--microbatches", f"{4 * pp}", "--max-failures", "25%"]
    start_s = time.perf_counter()
    run([*command, *shape, "--jobs", f"{jobs}", "-o", f"atlas-{pp}-{jobs}-{attempt}"], cwd=folder, check=True)
    return time.perf_counter() - start_s
