"""Greyhound's planners: S3 against all arrangements, its time at 256 slots, and the paper's figures in simulation.

`python benchmarks/topology.py [-o FILE] [--quick]`

* `exact`: random cases of 8 slots: `best_assignment`, and its local search alone, against all 40,320 arrangements,
  which another implementation of the model looks at (`all_times_s`).
* `model`: the analytic model against the 1F1B schedules of random cases.
* `slots`: seconds of the processor of the search alone, once machine code is loaded.
* `remedies`: times over those of the healthy job, as it is, after S2, S3 and both, by 1F1B schedules: medians. 1 in 8
  workers is slow, by 1.2 to 2, or there are as many slow links between neighbours or peers, 0.5 to 2 times as long as a
  micro-batch takes at a stage, or both.
* `figure_12`, `figure_15_left`: by rtk's planner and simulator.
* `figure_15_right`: not simulated: a fit with one parameter, T = 1 + 0.3 for each stage that uses a slow link.
* `switching`: the ratios of ski rental.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtk.benchmarks.common import write_result
from rtk.planners.greyhound.arrangement import Kinds, Search
from rtk.planners.greyhound.mitigate import plan_switches, plan_topology, ratio_of
from rtk.planners.greyhound.topology import best_assignment
from rtk.planners.shape import Shape, plan_without_orders
from rtk.runners.simulator import simulate
from rtk.schemas.conditions import Pair, pair_of
from rtk.schemas.plan import Plan, Planner, place_of
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile

Floats = NDArray[np.float64]

EIGHT = ((1, 8), (2, 4), (4, 2), (8, 1))  # pipelines, stages
LARGE = ((4, 4), (16, 4), (32, 8))
TYPICAL = ((16, 2), (4, 4))
MICROBATCHES = (4, 8, 16)
FACTORS, DELAYS_S = (1.1, 3.0), (0.3, 8.0)  # a stage's F, I and W take 0.5 to 1.5 s each
EXACTLY = 1e-8
EVERY = 8  # of so many workers, or links, one is slow
SWITCHING = {"paper": (5.0, 60.0, 1200.0), "dearer": (30.0, 60.0, 600.0), "equal": (1.0, 1.0, 1.0), "one": (1.0,)}


@dataclass(frozen=True)
class Case:
    """Pipelines without orders, everybody at home, and what is slow."""

    plan: Plan
    slow: dict[str, float]
    links: dict[Pair, float]

    @property
    def start(self) -> dict[str, tuple[int, int]]:
        """Who sits where."""
        return {worker.name: place_of(worker.name) for worker in self.plan.workers}

    @property
    def counts(self) -> list[int]:
        """The micro-batches of each pipeline."""
        return [pipeline.microbatches for pipeline in self.plan.pipelines]


def drawn(dp: int, pp: int, draw: random.Random, workers: int, links: int) -> Case:
    """A random case with so many slow workers and slow links, between any two workers."""
    times_s = [draw.uniform(0.5, 1.5) for _ in range(pp)] if draw.random() < 0.5 else [1.0] * pp
    layers = tuple(Layer((LayerCost(time_s, time_s, time_s),), parameter_bytes=1e6) for time_s in times_s)
    profile = Profile(layers, network=Network(inter_node=Connection(draw.choice([0.0, 0.05]), 1e9)))
    plan = plan_without_orders(profile, Shape(pp, dp, draw.choice(MICROBATCHES)), Planner("benchmark", "1", {}))
    names = [worker.name for worker in plan.workers]
    slow = {name: round(draw.uniform(*FACTORS), 2) for name in draw.sample(names, workers)}
    return Case(plan, slow, {pair_of(*draw.sample(names, 2)): draw.uniform(*DELAYS_S) for _ in range(links)})


def exact(cases: int) -> dict[str, Any]:
    """Gaps to the best of all arrangements; of ten cases four keep their micro-batches, others distribute them."""
    gaps: dict[str, list[float]] = {"answer": [], "local_search_alone": []}
    for seed in range(cases):
        draw = random.Random(seed)
        case = drawn(*draw.choice(EIGHT), draw, draw.randint(0, 4), draw.randint(1, 4))
        keep = draw.random() < 0.4
        times_s = all_times_s(case, keep)
        kinds = Kinds.among(case.start, case.slow, case.links)
        search = Search(case.plan, case.start, kinds, case.counts if keep else None)
        for name, who in (("answer", search.best(8, 0)[0]), ("local_search_alone", search.local(8, 0))):
            gaps[name].append(float(times_s[_number(who, case, kinds)] / times_s.min()) - 1)
    return {"cases": cases, "arrangements": 40320} | {
        name: {"not_optimal": sum(gap > EXACTLY for gap in found), "largest_gap": max(max(found), 0.0)}
        for name, found in gaps.items()
    }


def _number(who: NDArray[np.int64], case: Case, kinds: Kinds) -> int:
    """The row of `all_times_s` in which these kinds sit at these places."""
    home = np.array([kinds.of[worker.name] for worker in case.plan.workers])
    return int((home[ORDERS] == who).all(axis=1).argmax())


ORDERS = np.array(list(permutations(range(8))))  # of workers at places


def all_times_s(case: Case, keep: bool) -> Floats:
    """T of all arrangements of 8 workers; shape (40320,)."""
    plan, names = case.plan, [worker.name for worker in case.plan.workers]
    dp, pp = len(plan.pipelines), len(plan.templates[0].stages)
    stages, links = plan.templates[0].stages, plan.templates[0].links
    factor = np.array([case.slow.get(name, 1.0) for name in names])[ORDERS].reshape(-1, dp, pp)
    slow_s = np.zeros((8, 8))
    for (one, other), delay_s in case.links.items():
        slow_s[names.index(one), names.index(other)] = slow_s[names.index(other), names.index(one)] = delay_s
    who = ORDERS.reshape(-1, dp, pp)
    hops_s = np.maximum(slow_s[who[:, :, :-1], who[:, :, 1:]], [link.delay_s for link in links])
    once_s = factor * [stage.duration_s("F") + stage.duration_s("B") for stage in stages]
    back_s = factor * [stage.duration_s("B") for stage in stages]
    below_s = np.cumsum(back_s[:, :, :-1] + hops_s, axis=2)
    between_s = slow_s[who[:, :, None, :], who[:, None, :, :]].max(axis=(1, 2))
    tail_s = np.array([stage.allreduce_s + stage.optimizer_s for stage in stages]) + 2 * (dp - 1) * between_s
    last_s = np.maximum(tail_s[:, None, 0], (tail_s[:, None, 1:] - below_s).max(axis=2, initial=-np.inf))
    fixed_s, paces_s = _lines(once_s, back_s, hops_s, case, keep)
    if keep:
        return (fixed_s + last_s + paces_s * case.counts).max(axis=1)  # type: ignore[no-any-return]
    return _distributed_s(fixed_s + last_s, paces_s, plan.total_microbatches())


def _lines(once_s: Floats, back_s: Floats, hops_s: Floats, case: Case, keep: bool) -> tuple[Floats, Floats]:
    """What each pipeline takes beside its micro-batches, and for each of them, at about as many as to be expected."""
    pp, mean = once_s.shape[2], case.counts[0]
    cycles_s = np.stack([_slowest_cycle_s(once_s, hops_s, p) for p in range(pp)], axis=2)
    usual_s = max(stage.duration_s("F") + stage.duration_s("B") for stage in case.plan.templates[0].stages)
    slowest_s = cycles_s.max(axis=2)
    share = np.ones_like(slowest_s) if keep else np.minimum(1, usual_s / slowest_s)
    expected = np.maximum(1, mean * share)[:, :, None]
    warm_up = np.minimum(np.arange(pp, 0, -1), expected)
    whole_s = (once_s.sum(axis=2) + 2 * hops_s.sum(axis=2))[:, :, None]
    fixed_s = whole_s - warm_up * cycles_s + (warm_up - 1) * np.maximum(back_s, once_s - back_s)
    binding = (fixed_s + expected * cycles_s).argmax(axis=2)[:, :, None]
    return np.take_along_axis(fixed_s, binding, 2)[:, :, 0], np.take_along_axis(cycles_s, binding, 2)[:, :, 0]


def _slowest_cycle_s(once_s: Floats, hops_s: Floats, p: int) -> Floats:
    """Seconds of a micro-batch in the slowest cycle of stage p with those that follow it."""
    cycles = [
        (once_s[:, :, p : q + 1].sum(axis=2) + 2 * hops_s[:, :, p:q].sum(axis=2)) / (q - p + 1)
        for q in range(p, once_s.shape[2])
    ]
    return np.stack(cycles).max(axis=0)  # type: ignore[no-any-return]


def _distributed_s(fixed_s: Floats, paces_s: Floats, total: int) -> Floats:
    """The slowest pipelines' times, every micro-batch where it ends first; shape (arrangements,)."""
    counts, rows = np.ones_like(fixed_s), np.arange(len(fixed_s))
    for _ in range(total - fixed_s.shape[1]):
        counts[rows, (fixed_s + (counts + 1) * paces_s).argmin(axis=1)] += 1
    return (fixed_s + counts * paces_s).max(axis=1)  # type: ignore[no-any-return]


def model(cases: int) -> dict[str, Any]:
    """How far the analytic model is from 1F1B schedules, over all answers of random cases."""
    ratios = [one for case in random_plans(cases) for one in case]
    return {"schedules": len(ratios), "median": median(ratios), "least": min(ratios), "most": max(ratios)}


def random_plans(cases: int) -> Iterator[list[float]]:
    """The model's times over those of the schedules, of all four answers."""
    for seed in range(cases):
        draw = random.Random(f"model {seed}")
        dp, pp = draw.choice(((2, 4), (4, 4), (8, 2), (4, 8)))
        case = drawn(dp, pp, draw, draw.randint(0, dp), draw.randint(0, dp))
        layers = tuple(
            Layer((LayerCost(stage.forward_s, stage.backward_input_s, stage.backward_weight_s),))
            for stage in case.plan.templates[0].stages
        )
        options = plan_topology(Profile(layers), Shape(pp, dp, 16), case.slow, case.links).planner.options
        yield [options["model_s"][name] / time_s for name, time_s in options["iteration_time_s"].items()]


def slots(rounds: int) -> list[dict[str, Any]]:
    """Seconds of `best_assignment`, of every 25 workers one slow and as many slow links; the first run loads."""
    return [_timed(dp, pp, rounds, share) for dp, pp in LARGE for share in ((25,) if dp < 32 else (100, 25, 10))]


def _timed(dp: int, pp: int, rounds: int, share: int) -> dict[str, Any]:
    lasted_s, gains = [], []
    for seed in range(-1, rounds):
        count = max(1, dp * pp // share)
        case = drawn(dp, pp, random.Random(f"slots {seed}"), count, count)
        began_s = process_time()
        answer = best_assignment(case.plan, case.start, case.slow, case.links)
        if seed >= 0:
            lasted_s.append(process_time() - began_s)
            gains.append(answer.after_s / answer.before_s)
    return {
        "pipelines": dp,
        "stages": pp,
        "slow_workers": count,
        "slow_links": count,
        "median_s": median(lasted_s),
        "longest_s": max(lasted_s),
        "median_after_before": median(gains),
    }


def remedies(cases: int) -> list[dict[str, Any]]:
    """T over the healthy one's, in the median, by 1F1B schedules."""
    return [_median_of(dp, pp, kind, cases) for dp, pp in TYPICAL for kind in ("slow workers", "slow links", "both")]


def _median_of(dp: int, pp: int, kind: str, cases: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    profile = even_profile(pp)
    healthy_s = plan_topology(profile, Shape(pp, dp, 16), {}, {}).planner.options["iteration_time_s"]["as it is"]
    for seed in range(cases):
        draw = random.Random(f"{dp} {pp} {kind} {seed}")
        names = [f"{k}/{i}" for k in range(dp) for i in range(pp)]
        slow = {name: draw.uniform(1.2, 2.0) for name in draw.sample(names, len(names) // EVERY)}
        pairs = draw.sample(_used_links(dp, pp), max(1, len(names) // EVERY))
        links = {pair: draw.uniform(0.5, 2.0) for pair in pairs}
        made = plan_topology(
            profile, Shape(pp, dp, 16), slow if kind != "slow links" else {}, links if kind != "slow workers" else {}
        )
        for name, time_s in made.planner.options["iteration_time_s"].items():
            found.setdefault(name, []).append(time_s / healthy_s)
    return {"pipelines": dp, "stages": pp, "slow": kind, "over_healthy": {n: median(t) for n, t in found.items()}}


def _used_links(dp: int, pp: int) -> list[Pair]:
    """Pairs of neighbours in a pipeline, and of peers that follow each other in a ring."""
    ring = [pair_of(f"{k}/{i}", f"{(k + 1) % dp}/{i}") for k in range(dp) for i in range(pp)]
    return sorted({*ring, *(pair_of(f"{k}/{i}", f"{k}/{i + 1}") for k in range(dp) for i in range(pp - 1))})


def even_profile(pp: int, stage_s: float = 1.0) -> Profile:
    """Stages of equal times, F and B together `stage_s`; no sums, no usual delays."""
    return Profile((Layer((LayerCost(stage_s / 3, stage_s / 3, stage_s / 3),)),) * pp)


def figure_12() -> dict[str, Any]:
    """Two stragglers in two stages of a pipeline, or in one stage: P = 3, 4 micro-batches, 1.5 times as slow."""

    def times_s(*slow: str) -> dict[str, float]:
        made = plan_topology(even_profile(3), Shape(3, 2, 4), dict.fromkeys(slow, 1.5), {})
        return made.planner.options["iteration_time_s"]  # type: ignore[no-any-return]

    scattered = times_s("0/1", "0/2")
    return {"paper_s": [8.5, 8.0], "ours_s": scattered, "in_the_last_stage_s": times_s("0/2", "1/2")["as it is"]}


def figure_15_left() -> dict[str, Any]:
    """1 to 4 of 4 groups 1.77 times as slow, 32 micro-batches: before and after S2, simulated."""
    factor = (4 * 1.31 / 0.83 - 1) / 3  # what 1.31 and 0.83 s imply, if micro-batches could be split
    profile = even_profile(1, 1.31 / factor / 8)
    rows = []
    for count in range(5):
        slow = {f"{k}/0": factor for k in range(count)}
        made = plan_topology(profile, Shape(1, 4, 8), slow, {})
        rows.append(
            {
                "slow_groups": count,
                "before_s": made.planner.options["iteration_time_s"]["as it is"],
                "after_s": simulate(made).report(made, 0.0).iteration_time_s,
                "microbatches": [pipeline.microbatches for pipeline in made.pipelines],
            }
        )
    return {"paper_one_group_s": [1.31, 0.83], "factor": factor, "groups": rows}


def figure_15_right() -> list[dict[str, Any]]:
    """1 + 0.3 for each of 4 stages on slow links, beside the paper's: fitted, not simulated."""
    paper = {
        "1 link": (2, 1.6),
        "2 links": (2, 1.7),
        "consolidated": (1, 1.3),
        "3 links": (3, 1.9),
        "3, mitigated": (2, 1.7),
    }
    return [
        {"case": name, "slow_stages": count, "fitted": round(1 + 0.3 * count, 2), "paper": published}
        for name, (count, published) in paper.items()
    ]


def switching() -> dict[str, Any]:
    """The ratios of some costs, and the switches for the paper's."""
    plan = plan_switches({"S2": 5.0, "S3": 60.0, "S4": 1200.0})
    return {
        "ratios": {name: ratio_of(costs_s) for name, costs_s in SWITCHING.items()},
        "switches_after_s": {one.strategy: one.after_s for one in plan.switches},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--quick", action="store_true", help="a tenth of the cases")
    asked = parser.parse_args(arguments)
    part = 10 if asked.quick else 1
    result = {
        "exact": exact(300 // part),
        "model": model(200 // part),
        "slots": slots(20 // part),
        "remedies": remedies(100 // part),
        "figure_12": figure_12(),
        "figure_15_left": figure_15_left(),
        "figure_15_right": figure_15_right(),
        "switching": switching(),
    }
    write_result(result, asked.output)


if __name__ == "__main__":
    main()
