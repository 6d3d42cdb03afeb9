"""The policy `rtk` on the traces of Oobleck's Figure 10, beside the policies of the papers."""

from collections.abc import Iterator
from dataclasses import replace

from ...planners.recovery.catalogue import NAMES, policy
from ...planners.recovery.job import TrainingJob
from ...planners.recovery.rtk import most_microbatches
from ...planners.shape import Shape
from ...profilers.analytic.estimate import profile_analytic
from ...runners.replay.engine import replay
from ...schemas.errors import InfeasibleError
from ...schemas.replay import Moment
from .measured import moments_of
from .reproduction import Basis, Claim, Reproduction, Row

TRACES = {"EC2 P3": "scale_p3-trace.csv", "GCP": "scale_gcp-trace.csv", "A100": "a100x1-east1b.txt"}
MODEL, GPU, MICROBATCH_SIZE = "gpt3-2.7b", "a40", 2
STAGES, MICROBATCHES = 2, 512
LEAST, GOAL = 0.99, 1.05
RTK, FAULT_FREE = "rtk", "fault-free"


def spot_traces() -> Reproduction:
    """rtk's own policy against the best of all others, on the spot traces that other papers' artifacts brought.

    The comparison is ours, no paper's: the goal was 5 % over the best single policy on most traces, never 1 % below it.
    """
    found = {name: _goodputs(moments_of(file)) for name, file in TRACES.items()}
    return Reproduction(
        "rtk-policy",
        "rtk's own policy: micro-batches committed over those of the best single policy, on three traces",
        ("policies", "slipstream", "oobleck"),
        tuple(row for name, goodputs in found.items() for row in _rows(name, goodputs)),
        tuple(_claims(found)),
        METHOD,
        UNSAID,
    )


METHOD = (
    f"{MODEL} on as many {GPU} as the trace ever has, in {STAGES} stages (its best shape while nothing fails), about "
    f"{MICROBATCHES} micro-batches of {MICROBATCH_SIZE} an iteration; costs are those of `rtk replay`, the same for "
    "all policies, but that only rtk goes on with interrupted iterations: the others are as published. The bound: all "
    "GPUs that are there compute all the time; no policy can have more."
)

UNSAID = (
    f"Asked for was {LEAST} of the best single policy or more on every trace, and {GOAL} on most as a goal. This job "
    "does not reach the goal: the best single policy is within 6 to 11 % of the bound, and the pauses that follow "
    "failures, and whole micro-batches and layers, are lost by everybody. Where memory makes pipelines deep, or nodes "
    "are slow, there is more to be had (`benchmarks/rtk_policy.py`).",
)


def _goodputs(moments: tuple[Moment, ...]) -> dict[str, float]:
    """Of every policy, and the bound's, over the cluster that never fails."""
    nodes = max(len(moment.fleet.nodes) for moment in moments)
    pipelines = nodes // STAGES
    profile = profile_analytic(MODEL, gpu=GPU, microbatch_size=MICROBATCH_SIZE)
    job = TrainingJob(profile, Shape(STAGES, pipelines, round(MICROBATCHES / pipelines)))
    published = replace(job, costs=replace(job.costs, redo_all=1))
    committed = {name: _committed(name, job if name == RTK else published, moments) for name in NAMES}
    committed["bound"] = most_microbatches(job, moments, moments[-1].time_s)
    return {name: each / committed[FAULT_FREE] for name, each in committed.items()}


def _committed(name: str, job: TrainingJob, moments: tuple[Moment, ...]) -> float:
    try:
        return replay(policy(name, job), moments).microbatches
    except InfeasibleError:
        return 0.0


def _best(goodputs: dict[str, float]) -> str:
    """The best of all policies but rtk's own."""
    others = (name for name in goodputs if name not in (RTK, FAULT_FREE, "bound"))
    return max(others, key=lambda name: goodputs[name])


def _rows(trace: str, goodputs: dict[str, float]) -> Iterator[Row]:
    best = _best(goodputs)
    had = f"goodput {goodputs[RTK]:.3f}, {best} {goodputs[best]:.3f}"
    note = f"{had}; no policy can have more than {goodputs['bound']:.3f}"
    yield Row(
        f"{trace}, rtk : best single ({best})",
        GOAL,
        goodputs[RTK] / goodputs[best],
        Basis.SIMULATED,
        sense="at least",
        note=note,
    )


def _claims(found: dict[str, dict[str, float]]) -> Iterator[Claim]:
    yield Claim(
        f"on every trace rtk's own policy has {LEAST} of the best single policy or more",
        all(goodputs[RTK] >= LEAST * goodputs[_best(goodputs)] for goodputs in found.values()),
    )
    yield Claim(
        "no policy has more than the bound",
        all(goodputs[name] <= goodputs["bound"] for goodputs in found.values() for name in NAMES if name != FAULT_FREE),
    )
