"""SlipStream Figure 11: peak memory of each stage of GPT-3 6.7B, DeepSpeed without failures and SlipStream with them.

The figure's bars have no numbers in the text; ours are computed, and shown beside what the text says of theirs.
"""

from itertools import pairwise

from ...planners.pipeline import plan_pipeline
from ...planners.shape import Shape
from ...planners.slipstream.cluster import Request, opening
from ...planners.slipstream.replanner import Replanner
from ...schemas.plan import Plan
from ...schemas.profile import Profile, held_bytes
from .reproduction import Basis, Claim, Reproduction, Row
from .slipstream_jobs import LARGE, QUICK, analytic

GB = 1e9
MOST_FAILURES = 12


def reproduce(failures: int = MOST_FAILURES) -> Reproduction:
    """SlipStream Figure 11: peak memory of each stage of GPT-3 6.7B, DeepSpeed without failures and SlipStream with them.

    The figure's bars have no numbers in the text; ours are computed, and shown beside what the text says of theirs.

    The figure, by rtk's analytic profile and its planners.

    Args:
        failures: the most that there are; one every 30 min makes 12 in 6 h.
    """
    profile = analytic(LARGE)
    room_gb = (profile.device.memory_bytes or 0.0) / GB
    calm = calm_gb(profile)
    each = re_routed_gb(profile, failures)
    routed = [max(peaks) for peaks in zip(*each, strict=True)]
    return Reproduction(
        "slipstream-figure-11",
        f"SlipStream Figure 11: peak memory of a GPU, GB of {room_gb:g}, by stage of GPT-3 6.7B",
        ("pipeline", "slipstream"),
        (
            *_rows("1F1B, no failures", calm),
            *_rows(f"SlipStream, {failures} failures", each[-1]),
            *_rows(f"SlipStream, most of 1 to {failures} failures", routed),
        ),
        (
            Claim("activations of 1F1B fall from stage to stage, so that memory lies idle", _falls(profile)),
            Claim(
                "SlipStream holds more than 1F1B in every stage", all(a < b for a, b in zip(calm, routed, strict=True))
            ),
            Claim("no GPU holds more than it has", max(routed) <= room_gb * (1 + 1e-9)),
            Claim(
                f"SlipStream fills {_filled(routed, room_gb)} of 8 stages to over 90 %, 1F1B {_filled(calm, room_gb)}",
                _filled(routed, room_gb) > len(routed) // 2 and not _filled(calm, room_gb),
            ),
        ),
        METHOD,
        UNSAID,
    )


METHOD = (
    "`rtk profile gpt3-6.7b --analytic --gpu a100-sxm` (bf16 with AdamW: 16 bytes a parameter; no checkpointing, "
    "2048 tokens), then `rtk plan pipeline` and `rtk plan slipstream --failures f` with 8 stages, 4 pipelines and 256 "
    "micro-batches, under the GPU's memory: parameters and state of a stage, and the most activations that a worker of "
    "it ever holds."
)
UNSAID = (
    "All numbers: the figure is only drawn. What the text says of it holds here, later stages of 1F1B use less memory, "
    "and none is exhausted, but for one thing: SlipStream does not use nearly all of it. Within limits rtk plans such "
    "unlike stages in rotation, which puts fewer micro-batches off for the same time, or less.",
    "Numbers of bytes, checkpointing, sequence length and what the framework itself holds: assumed as in the method, "
    "and nothing for the framework, the allocator's gaps and NCCL.",
    "Which number of failures is drawn. Filled “uniformly” is only the most over all numbers: with any one of them "
    "stages that have all their workers put off little, and hold little.",
    "How stages are cut: by rtk, for the least bottleneck; stages 0 and 6 have a layer more.",
)


def calm_gb(profile: Profile) -> list[float]:
    """Of each stage under 1F1B, all workers alive."""
    return _peaks_gb(profile, _one_f_one_b(profile))


def re_routed_gb(profile: Profile, most: int) -> list[list[float]]:
    """Of each stage under SlipStream, for 1 to `most` failures."""
    shape = Shape(LARGE.pp, LARGE.dp, LARGE.microbatches // LARGE.dp)
    planner = Replanner(opening(profile, Request(shape, effort=QUICK)), most)
    return [_peaks_gb(profile, planner.rebuilt(planner.entry(failures)[0])) for failures in range(1, most + 1)]


def _one_f_one_b(profile: Profile) -> Plan:
    return plan_pipeline(profile, Shape(LARGE.pp, 1, LARGE.microbatches // LARGE.dp), "1f1b")


def _peaks_gb(profile: Profile, plan: Plan) -> list[float]:
    """Of each stage: what it holds all the time, and the most activations of any of its workers."""
    assert plan.prediction is not None
    stages = plan.templates[0].stages
    peaks = [0.0] * len(stages)
    for worker, held in zip(plan.workers, plan.prediction.peak_memory_bytes, strict=True):
        peaks[worker.stage] = max(peaks[worker.stage], held)
    return [
        (sum(held_bytes(profile.layers, *stage.layers)) + peak) / GB for stage, peak in zip(stages, peaks, strict=True)
    ]


def _falls(profile: Profile) -> bool:
    found = _one_f_one_b(profile).prediction
    assert found is not None
    peaks = found.peak_memory_bytes
    return all(now > after for now, after in pairwise(peaks))


def _filled(peaks_gb: list[float], room_gb: float) -> int:
    return sum(peak > 0.9 * room_gb for peak in peaks_gb)


def _rows(what: str, peaks_gb: list[float]) -> list[Row]:
    return [Row(f"stage {stage}, {what}", None, peak, Basis.PLANNED) for stage, peak in enumerate(peaks_gb)]
