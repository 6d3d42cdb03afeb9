"""Throughput under failures against the paper's Figure 9, and what each technique adds, as in its Figure 10."""

from operator import truediv
from statistics import mean
from typing import Any

from rtk.benchmarks.slipstream_clusters import STAGE_MS, TECHNIQUES, replanner
from rtk.planners.slipstream.cluster import Technique

WORK_S = sum(STAGE_MS) / 1000  # F, I and W of one micro-batch
CLUSTERS = ((256, 8, 32), (512, 16, 32), (1024, 32, 32), (1536, 64, 24))  # GPUs, PP, DP
MEGATRON = {
    8: 32,
    16: 48,
    32: 56,
    64: 96,
}  # micro-batches of a pipeline by PP, if batches are those of Megatron's paper
SHARES = (0.01, 0.05, 0.10)
PAPER_LOSS, WITHIN = 0.115, 0.999
ABLATION = ((2, 16), (4, 8), (8, 4))  # PP, DP
FAILURES = range(1, 13)  # one every 30 minutes for 6 hours, the first at the start
PER_STAGE = (1, 2, 4, 8, 16, 32, 64)  # micro-batches of a pipeline, by stage


def one_f_one_b_s(pp: int, microbatches: int) -> float:
    """Fault-free 1F1B with equal stages, in s: its closed form."""
    return (microbatches + pp - 1) * WORK_S


def figure_9() -> dict[str, Any]:
    """Normalized failures on the paper's clusters, for several numbers of micro-batches."""
    rows = [row for gpus, pp, dp in CLUSTERS for count in microbatch_counts(pp) for row in cluster(gpus, pp, dp, count)]
    allowed = [row for row in rows if row["work_bound_allows"]]
    return {
        "gates": {
            "worst_against_fault_scaled": min(row["throughput"] / row["fault_scaled"] - 1 for row in rows),
            "paper_gate_held": all(row["throughput"] >= row["fault_scaled"] * (1 - PAPER_LOSS) for row in rows),
            "allowed": len(allowed),
            "rows": len(rows),
            "goal_held_where_allowed": all(row["throughput"] >= row["fault_scaled"] * WITHIN for row in allowed),
        },
        "rows": rows,
    }


def microbatch_counts(pp: int) -> list[int]:
    """What the paper may have used: it does not say."""
    return sorted({pp, MEGATRON[pp], 4 * pp, 16 * pp, 64 * pp})


def cluster(gpus: int, pp: int, dp: int, microbatches: int) -> list[dict[str, Any]]:
    """One cluster at all shares of failures; throughputs relative to fault-free 1F1B."""
    job = replanner(pp, dp, microbatches, "staggered")
    reference_s = one_f_one_b_s(pp, microbatches)
    whole_s = job.entry(0)[0].prediction.iteration_time_s
    rows = []
    for share in SHARES:
        failures = round(share * gpus)
        entry, _ = job.entry(failures)
        fewest = dp - -(-failures // pp)
        work_bound_s = -(-microbatches * dp // fewest) * WORK_S
        scaled = 1 - failures / gpus
        rows.append(
            {
                "gpus": gpus,
                "pp": pp,
                "dp": dp,
                "microbatches": microbatches,
                "failures": failures,
                "fault_scaled": scaled,
                "throughput": reference_s / entry.prediction.iteration_time_s,
                "against_fault_scaled": reference_s / entry.prediction.iteration_time_s / scaled - 1,
                "work_bound": reference_s / work_bound_s,
                "work_bound_allows": reference_s / work_bound_s >= scaled * WITHIN,
                "of_fault_free_same_technique": whole_s / entry.prediction.iteration_time_s,
                "work_bound_of_same_technique": whole_s / work_bound_s,
                "iteration_s": entry.prediction.iteration_time_s,
                "proof": entry.prediction.proof,
                "gap": entry.prediction.gap,
            }
        )
    return rows


def ablation() -> dict[str, Any]:
    """Mean throughput over 1 to 12 normalized failures by technique and micro-batches, relative to fault-free 1F1B."""
    rows = [ablation_row(pp, dp, per_stage * pp) for pp, dp in ABLATION for per_stage in PER_STAGE]
    ordered = all(row["adaptive"] < row["decoupled"] < row["staggered"] for row in rows)
    return {"ordered_everywhere": ordered, "rows": rows}


def ablation_row(pp: int, dp: int, microbatches: int) -> dict[str, Any]:
    """All techniques on one shape."""
    found = {technique: throughputs(pp, dp, microbatches, technique) for technique in TECHNIQUES}
    means: dict[str, float] = {technique: mean(values) for technique, values in found.items()}
    return {
        "pp": pp,
        "dp": dp,
        "microbatches": microbatches,
        **means,
        "decoupled_adds": means["decoupled"] / means["adaptive"] - 1,
        "decoupled_adds_most": max(map(truediv, found["decoupled"], found["adaptive"])) - 1,
        "staggered_adds": means["staggered"] / means["decoupled"] - 1,
    }


def throughputs(pp: int, dp: int, microbatches: int, technique: Technique) -> list[float]:
    """For each number of failures, relative to fault-free 1F1B."""
    job = replanner(pp, dp, microbatches, technique, most=max(FAILURES))
    times_s = [job.entry(failures)[0].prediction.iteration_time_s for failures in FAILURES]
    return [one_f_one_b_s(pp, microbatches) / time_s for time_s in times_s]
