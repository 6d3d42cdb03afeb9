"""rtk's own policy against every other one: `python benchmarks/rtk_policy.py [--only WORD] [--quick] [-o FILE]`.

Two jobs, each on every trace of ../shared/data/traces and on made-up ones with slow nodes and links:

* wide: gpt3-2.7b on A40, two stages, which is its best shape while nothing fails;
* deep: gpt3-13b on A40, eight stages, or nine or ten where that fits the nodes: six at least, for memory.

Of each policy the goodput. SlipStream and Oobleck do an interrupted iteration all over again, as in their papers; what
they have where all is kept that was not lost, as `rtk run` and rtk's own policy have it, is `kept`. Then the best
single policy, rtk over it, and the bound: all GPUs that are there compute all the time (`planners/recovery/rtk.py`), of
which no policy can have more. Two figures say how much of the gap below it is in rtk's reach: `shapes` is what the
fastest of its ways on the nodes of each moment would commit, if changes took no time and what is slow were known at
once; `shapes_paused` the same where each loss of nodes stops all for detection and new groups, and nothing else ever
pauses. Neither is proven where something is slow: there ways are found by rules. The year of 400 nodes is llama3-70b on
eight H100 a node. --only takes traces and jobs whose name has WORD; --quick ends each trace after two hours.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.planners.recovery.catalogue import NAMES, policy
from rtk.planners.recovery.job import TrainingJob
from rtk.planners.recovery.rtk import most_microbatches, ways_of
from rtk.planners.scheduling.forms import many_problems
from rtk.planners.shape import Shape
from rtk.profilers.analytic.estimate import profile_analytic
from rtk.runners.replay.engine import replay
from rtk.runners.traces.files import Told
from rtk.runners.traces.read import TraceOptions, moments, read_moments
from rtk.runners.traces.verbs import FaultScenario, Lasting, Renewal, SlowLinkEpisodes, SlowNodes, generate
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.profile import Profile
from rtk.schemas.replay import Fleet, Moment

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
HOUR_S = 3600.0
QUICK_S = 2 * HOUR_S
MICROBATCHES = 512
FILES = {
    "p3": "bamboo/p3-trace.csv",
    "g4dn": "bamboo/g4dn-trace.csv",
    "v100": "bamboo/v100x1-east1c.txt",
    "a100": "bamboo/a100x1-east1b.txt",
    "scale-p3": "oobleck_artifact/scale_p3-trace.csv",
    "scale-gcp": "oobleck_artifact/scale_gcp-trace.csv",
    **{f"every-{each}": f"oobleck_artifact/{each}.csv" for each in ("6h", "3h", "1h", "30m", "10m", "5m")},
    "parcae-ll": "parcae/gpt-1.5b_trace_ll_10_11.txt",
    "parcae-lh": "parcae/gpt-1.5b_trace_lh_80_90.txt",
    "parcae-hl": "parcae/gpt-1.5b_trace_hl_15_25.txt",
    "parcae-hh": "parcae/gpt-1.5b_trace_hh_55_65.txt",
}


@dataclass(frozen=True)
class Model:
    """A model's profile, and stages: the first that fit are taken."""

    profile: Profile
    pp: tuple[int, ...]

    def job(self, nodes: int) -> TrainingJob:
        """On so many nodes of one GPU, with about as many micro-batches whatever their number."""
        pp = next(pp for pp in self.pp if nodes % pp == 0)
        dp = nodes // pp
        return TrainingJob(self.profile, Shape(pp, dp, round(MICROBATCHES / dp)))


WIDE = Model(profile_analytic("gpt3-2.7b", gpu="a40", microbatch_size=2), (2,))
DEEP = Model(profile_analytic("gpt3-13b", gpu="a40", microbatch_size=1), (8, 10, 9))
YEAR = profile_analytic("llama3-70b", gpu="h100-sxm", checkpointing=True, tp=(1, 2, 4, 8))


@dataclass(frozen=True)
class Case:
    """A job and a trace."""

    name: str
    job: TrainingJob
    moments: tuple[Moment, ...]


def cases(only: str) -> Iterator[Case]:
    """All, or those whose names have a word."""
    for kind, model in (("wide", WIDE), ("deep", DEEP)):
        for name, file in FILES.items():
            if only in f"{kind} {name}":
                found = tuple(read_moments(str(DATA / file)))
                yield Case(f"{kind} {name}", model.job(max(len(one.fleet.nodes) for one in found)), found)
        for name, recipe in recipes():
            if only in f"{kind} {name}":
                yield Case(f"{kind} {name}", model.job(recipe.nodes), _made_up(name, recipe))
    if only in "year":
        job = TrainingJob(YEAR, Shape(8, 50, 32, tensor_parallel=8), 8)
        yield Case("year", job, tuple(read_moments(str(DATA / "stepfun/fault_trace.json"), TraceOptions(nodes=400))))


def _made_up(name: str, recipe: FaultScenario) -> tuple[Moment, ...]:
    return tuple(moments(Told(event, name) for event in generate(recipe)))


def recipes() -> Iterator[tuple[str, FaultScenario]]:
    """A day of 32 nodes, some of which are slow for a while, or links between them; with failures and without."""
    for failing in (None, Renewal(Lasting(100 * HOUR_S), Lasting(HOUR_S))):
        fails = "" if failing is None else "-failing"
        for number, factor in enumerate((1.2, 1.5, 2.5)):
            slow = SlowNodes(Renewal(Lasting(24 * HOUR_S), Lasting(HOUR_S)), factor)
            yield f"slow-nodes-{factor}{fails}", FaultScenario(32, 24 * HOUR_S, failing, slow_nodes=slow, seed=number)
        for number, delay_s in enumerate((0.01, 0.06)):
            links = SlowLinkEpisodes(Renewal(Lasting(24 * HOUR_S), Lasting(HOUR_S)), delay_s)
            yield f"slow-links-{delay_s}{fails}", FaultScenario(32, 24 * HOUR_S, failing, slow_links=links, seed=number)


def by_shapes(case: Case, ends_s: float) -> tuple[float, float]:
    """Micro-batches of the fastest way at each moment: if changes took no time, and if losses paused for groups."""
    ways, costs, known = ways_of(case.job), case.job.costs, {}

    def per_s(fleet: Fleet) -> float:
        key = len(fleet.nodes), tuple(sorted(fleet.slow.values())), tuple(sorted(fleet.slow_links.values()))
        if key not in known:
            known[key] = max(way.begin(fleet, fleet).microbatches_per_s for way in ways)
        return known[key]

    found, paused, resumes_s = 0.0, 0.0, 0.0
    ends = [min(moment.time_s, ends_s) for moment in case.moments[1:]]
    for moment, until_s in zip(case.moments, ends, strict=False):
        if moment.lost:
            resumes_s = moment.time_s + costs.detection_s + costs.regrouping_s
        found += max(0.0, until_s - moment.time_s) * per_s(moment.fleet)
        paused += max(0.0, until_s - max(moment.time_s, resumes_s)) * per_s(moment.fleet)
    return found, paused


def compared(case: Case, names: Sequence[str], until_s: float | None) -> dict[str, Any]:
    """One case's figures."""
    ends_s = case.moments[-1].time_s if until_s is None else min(until_s, case.moments[-1].time_s)
    yardstick = replay(policy("fault-free", case.job), case.moments, ends_s).microbatches
    published = replace(case.job, costs=replace(case.job.costs, redo_all=1))

    def replayed(name: str, job: TrainingJob) -> float:
        try:
            return replay(policy(name, job), case.moments, ends_s).microbatches / yardstick
        except (InfeasibleError, InvalidInputError):
            return 0.0

    goodput, took_s = {}, {}
    for name in names:
        begun_s = perf_counter()
        goodput[name] = replayed(name, case.job if name == "rtk" else published)
        took_s[name] = perf_counter() - begun_s
    kept = {name: replayed(name, case.job) for name in ("slipstream", "oobleck") if name in names}
    best = max((name for name in names if name != "rtk"), key=lambda name: goodput[name])
    most = most_microbatches(case.job, case.moments, ends_s)
    shapes, shapes_paused = by_shapes(case, ends_s)
    return {
        "case": case.name,
        "goodput": goodput,
        "kept": kept,
        "took_s": took_s,
        "best_single": best,
        "rtk_over_best_single": goodput["rtk"] / goodput[best] if goodput[best] else None,
        "bound": most / yardstick,
        "shapes": shapes / yardstick,
        "shapes_paused": shapes_paused / yardstick,
    }


def main() -> None:
    """Print a line a case, and write all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--policies", default=",".join(name for name in NAMES if name != "fault-free"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-o", "--output")
    asked = parser.parse_args()
    found = []
    for case in cases(asked.only):
        with many_problems():
            one = compared(case, asked.policies.split(","), QUICK_S if asked.quick else None)
        found.append(one)
        ratio, best = one["rtk_over_best_single"], one["best_single"]
        print(
            f"{one['case']:28} rtk {one['goodput']['rtk']:.4f}  {best} {one['goodput'][best]:.4f}  "
            f"{'' if ratio is None else format(ratio, '.3f')}  bound {one['bound']:.4f}  shapes {one['shapes']:.4f}, "
            f"paused {one['shapes_paused']:.4f}  {one['took_s']['rtk']:.1f} s",
            flush=True,
        )
    if asked.output:
        write_result({"cases": found}, asked.output)


if __name__ == "__main__":
    main()
