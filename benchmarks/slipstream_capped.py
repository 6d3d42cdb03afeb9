"""Re-routing at the memory of 1F1B, the paper's equation 6: whole atlases beside its Table 3, and single plans.

F, I and W take 10 ms each, and W keeps half of an activation. `uniform`: every worker holds as many activations as
there are stages, what 1F1B holds at the first; `1f1b`: a worker of stage i holds S - i.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from statistics import mean
from typing import Any, Literal

import numpy as np

from rtk.benchmarks.papers.slipstream_tables import PAPER_S, PP_DEGREES, paper_s
from rtk.benchmarks.scheduling import timed
from rtk.benchmarks.slipstream_atlas import whole_atlas
from rtk.benchmarks.slipstream_clusters import quarter, random_units, replanner
from rtk.planners.slipstream.cluster import Technique
from rtk.planners.slipstream.replanner import Replanner
from rtk.schemas.atlas import AtlasEntry

Memory = Literal["uniform", "1f1b"]
STASH = 0.5
SHAPES = ((8, 8), (8, 32), (16, 32), (32, 32), (64, 32))  # PP, DP
COUNTS = 12
ASKED: tuple[tuple[Technique, Memory], ...] = (
    ("staggered", "uniform"), ("staggered", "1f1b"), ("adaptive", "1f1b"), ("adaptive", "uniform"),
    ("decoupled", "uniform"), ("decoupled", "1f1b"),
)  # fmt: skip


def capped_job(pp: int, dp: int, technique: Technique, memory: Memory) -> Replanner:
    """Pipelines of 4 micro-batches a stage at that memory."""
    limits = [float(pp)] if memory == "uniform" else [float(pp - i) for i in range(pp)]
    return replanner(pp, dp, 4 * pp, technique, limit=limits, stash=STASH)


def capped_atlases() -> list[dict[str, Any]]:
    """Table 3 at the memory of 1F1B, technique `staggered`: all plans for 1 to 25 % failures."""
    warm_up()
    cells = product(("uniform", "1f1b"), PAPER_S, PP_DEGREES)
    return [capped_atlas_row(dp, pp, memory) for memory, dp, pp in cells]  # type: ignore[arg-type]


def warm_up() -> None:
    """Load the machine code."""
    capped_job(32, 32, "staggered", "uniform").entry(20)


def capped_atlas_row(dp: int, pp: int, memory: Memory) -> dict[str, Any]:
    """One cell of Table 3."""
    job = capped_job(pp, dp, "staggered", memory)
    entries, took_s = timed(whole_atlas, job, range(quarter(pp, dp), 0, -1))
    return {
        "memory": memory,
        "dp": dp,
        "pp": pp,
        "took_s": took_s,
        "paper_s": paper_s(pp, dp),
        "different_recipes": len({entry.recipe for entry in entries}),
        "stored": sum(entry.recipe.stored is not None for entry in entries),
        **gaps(entries),
    }


def gaps(entries: Sequence[AtlasEntry]) -> dict[str, Any]:
    """How far plans are above the bounds for their failures."""
    found = [entry.prediction.gap for entry in entries]
    return {
        "plans": len(found),
        "proven": sum(entry.prediction.proof == "optimal" for entry in entries),
        "mean_gap": mean(found),
        "largest_gap": max(found),
    }


def capped_plans() -> list[dict[str, Any]]:
    """Single plans, each by a planner that has made no other: decided, normalized and in place."""
    warm_up()
    rows = []
    for (pp, dp), (technique, memory) in product(SHAPES, ASKED):
        rows.append(normalized_row(pp, dp, technique, memory))
    return [*rows, *(in_place_row(pp, dp, memory) for (pp, dp), memory in product(SHAPES, ("uniform", "1f1b")))]  # type: ignore[arg-type]


def counts_of(pp: int, dp: int) -> list[int]:
    """Numbers of failures from 1 to 25 %, evenly spread."""
    most = quarter(pp, dp)
    return sorted({max(1, round(share * most)) for share in np.linspace(0.04, 1, COUNTS)})


def normalized_row(pp: int, dp: int, technique: Technique, memory: Memory) -> dict[str, Any]:
    """Failures where they cost least; also how far values are above the least bound of all places thought of."""
    shown, took_s, above = [], [], []
    for count in counts_of(pp, dp):
        job = capped_job(pp, dp, technique, memory)
        contenders, decided_s = timed(job._placement.contenders, count)
        _, found = contenders[0]
        least_s = min(job.search.bound_s(job.grid.stage_failures(one)) for one in job._placement._answers(count))
        shown.append(found.value_s / found.bound_s - 1)
        above.append(found.value_s / least_s - 1)
        took_s.append(decided_s)
    return {
        "places": "normalized", "pp": pp, "dp": dp, "technique": technique, "memory": memory,
        "mean_above_least_bound": mean(above), **summary(shown, took_s),
    }  # fmt: skip


def in_place_row(pp: int, dp: int, memory: Memory) -> dict[str, Any]:
    """Failures at random places, `staggered`."""
    shown, took_s = [], []
    for count in counts_of(pp, dp):
        job = capped_job(pp, dp, "staggered", memory)
        units = random_units(pp, dp, count, seed=0)
        if units is None:
            continue
        dead = job.grid.stage_failures(job.grid.column_failures(units))
        found, decided_s = timed(job.search.look, dead)
        shown.append(found.value_s / found.bound_s - 1)
        took_s.append(decided_s)
    return {
        "places": "in place", "pp": pp, "dp": dp, "technique": "staggered", "memory": memory, **summary(shown, took_s)
    }  # fmt: skip


def summary(shown: Sequence[float], took_s: Sequence[float]) -> dict[str, Any]:
    """Gaps and times of some plans."""
    return {
        "plans": len(shown),
        "proven": sum(gap <= 1e-9 for gap in shown),
        "mean_gap": mean(shown),
        "largest_gap": max(shown),
        "mean_s": mean(took_s),
        "largest_s": max(took_s),
    }


def table(rows: Sequence[dict[str, Any]], memory: Memory) -> Iterator[str]:
    """Table 3 in Markdown: ours, the gaps, the paper's."""
    yield "| DP | " + " | ".join(f"PP {pp}" for pp in PP_DEGREES) + " |"
    yield "|---" * (1 + len(PP_DEGREES)) + "|"
    for dp in PAPER_S:
        cells = [row for row in rows if (row["dp"], row["memory"]) == (dp, memory)]
        texts = (
            f"{row['took_s']:.2f} ({100 * row['mean_gap']:.2f}/{100 * row['largest_gap']:.2f} %) / {row['paper_s']:.0f}"
            for row in cells
        )
        yield f"| {dp} | " + " | ".join(texts) + " |"
