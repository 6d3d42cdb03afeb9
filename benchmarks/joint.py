"""Dead workers, slow workers and slow links at once: joint plans against each technique on its own.

`python benchmarks/joint.py [-o FILE] [--troubles N] [--seeds N] [--searched N]`

* **random**: random troubles (`random_trouble`), each with both optimizers, without a limit on memory and with that of
  1F1B's first stage (as many activations as there are stages, half of one kept as weight stash).
* **cells**: F = I = W = 10 ms, four times as many micro-batches as stages. Failures are in random distinct stages; one
  pair of neighbours of one pipeline has a delay (20 or 60 ms), and one worker takes 1.5 times as long.
* **searched**: the first random troubles again, with the effort of `rtk plan joint`, against the plans of `rtk plan
  slipstream` and `adaptra`, which search as long, timed under the same troubles.

Gains say how much longer a technique takes than the joint plan: the quickest of all (planners/joint/
search.py), and of those that are published, which leaves out re-routing that is told what is slow. Joint
plans are made by rules, as a running job asks for them; their times are of machine code that is loaded.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import mean, median, quantiles
from typing import Any, NamedTuple

from rtk.benchmarks.common import write_result
from rtk.planners.adaptra.plan import plan_adaptra
from rtk.planners.joint.plan import RULES, plan_joint, warm_up
from rtk.planners.joint.search import TOGETHER, Situation, TechniqueName, singles_s
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, Technique, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.schemas.check import check_plan
from rtk.schemas.conditions import LinkPlace, under_conditions
from rtk.schemas.plan import Place, Plan, name_of
from rtk.schemas.profile import Layer, LayerCost, Profile

TECHNIQUES: tuple[Technique, ...] = ("decoupled", "staggered")
SHAPES = ((4, 4), (4, 8), (8, 4), (8, 8))  # stages, pipelines
# Delay of one link, and whether a worker is slow.
TROUBLES = ((0.02, False), (0.06, False), (0.0, True), (0.02, True), (0.06, True))
OPERATION_S, SLOW = 0.01, 1.5
TOLD: TechniqueName = "re-routing, told what is slow"
TIE = 1e-9


@dataclass(frozen=True)
class Trouble:
    """What is wrong with which pipelines."""

    pp: int
    dp: int
    microbatches: int
    times_s: tuple[tuple[float, float, float], ...]
    failed: frozenset[Place]
    slow: dict[Place, float]
    delays_s: dict[LinkPlace, float]
    labels: tuple[str, ...] = field(default=())

    @property
    def kind(self) -> str:
        """What is wrong, in words."""
        there = (("dead", self.failed), ("slow worker", self.slow), ("slow link", self.delays_s))
        return " + ".join(name for name, some in there if some)

    @property
    def profile(self) -> Profile:
        """A layer a stage, of 1 byte a micro-batch, half of it stash; no all-reduce."""
        return Profile(
            tuple(Layer((LayerCost(*row),), activation_bytes=1.0, weight_stash_bytes=0.5) for row in self.times_s)
        )

    def shape(self, capped: bool) -> Shape:
        """What a planner is asked for, without the dead and slow workers."""
        limits = [float(self.pp)] if capped else None
        return Shape(self.pp, self.dp, self.microbatches, limits, self.delays_s)

    def planned(self, technique: Technique, capped: bool, effort: Effort) -> Plan:
        """The joint plan."""
        return plan_joint(self.profile, self.shape(capped), sorted(self.failed), self.slow, effort, technique)


class Row(NamedTuple):
    """A plan's figures: what it was made for, its time and bound, the techniques' times, how long it took; in s."""

    trouble: Trouble
    technique: Technique
    capped: bool
    made_by: str
    joint_s: float
    bound_s: float
    singles_s: Mapping[TechniqueName, float]
    planning_s: float

    @property
    def gain(self) -> float:
        """Over the quickest technique."""
        return min(own_s for name, own_s in self.singles_s.items() if name != TOGETHER) / self.joint_s - 1

    @property
    def published_gain(self) -> float:
        """Over the quickest published one."""
        return min(own_s for name, own_s in self.singles_s.items() if name not in (TOGETHER, TOLD)) / self.joint_s - 1

    @property
    def possible_gain(self) -> float:
        """What the gain would be at the bound."""
        return (1 + self.gain) * self.joint_s / self.bound_s - 1


def random_trouble(seed: int) -> Trouble:
    """2 to 8 stages and pipelines, 2 to 4 times as many micro-batches as stages, stages equal or unlike by 20 %.

    Up to two dead workers, up to two slow ones (1.2 to 2 times as long), up to two pairs of neighbours with a delay
    (0.5 to 6 times that of an operation); at least two of these kinds.
    """
    chance = random.Random(seed)
    pp, dp = chance.choice((2, 3, 4, 6, 8)), chance.choice((2, 3, 4, 6, 8))
    microbatches, spread = pp * chance.choice((2, 3, 4)), chance.choice((0.0, 0.2))
    times_s = [[OPERATION_S * (1 + spread * chance.uniform(-1, 1)) for _ in range(3)] for _ in range(pp)]
    numbers = (0, 0, 0)
    while sum(number > 0 for number in numbers) < 2:
        numbers = chance.randint(0, 2), chance.randint(0, 2), chance.randint(0, 2)
    dead: set[Place] = set()
    while len(dead) < numbers[0]:
        place = chance.randrange(dp), chance.randrange(pp)
        if sum(stage == place[1] for _, stage in dead | {place}) < dp:
            dead.add(place)
    live = [place for place in _places(dp, pp) if place not in dead]
    slow = {place: round(chance.uniform(1.2, 2.0), 2) for place in chance.sample(live, numbers[1])}
    links: list[LinkPlace] = [*_places(dp, pp - 1)]
    delays_s = {link: OPERATION_S * round(chance.uniform(0.5, 6), 1) for link in chance.sample(links, numbers[2])}
    return Trouble(pp, dp, microbatches, tuple(map(tuple, times_s)), frozenset(dead), slow, delays_s)  # type: ignore[arg-type]


def cells(seeds: int) -> Iterator[Trouble]:
    """All cells, so many seeds of each."""
    for (pp, dp), failures, (delay_s, slow), seed in product(SHAPES, (1, 2), TROUBLES, range(seeds)):
        chance = random.Random(f"{pp} {dp} {failures} {seed}")
        dead = {(chance.randrange(dp), i) for i in chance.sample(range(pp), failures)}
        link = chance.choice([(k, i) for k, i in _places(dp, pp - 1) if not dead & {(k, i), (k, i + 1)}])
        worker = chance.choice([place for place in _places(dp, pp) if place not in dead])
        labels = (f"PP {pp}, DP {dp}, {failures} dead, all three",) if slow and delay_s else ()
        yield Trouble(
            pp, dp, 4 * pp, ((OPERATION_S,) * 3,) * pp, frozenset(dead), {worker: SLOW} if slow else {},
            {link: delay_s} if delay_s else {}, labels,
        )  # fmt: skip


def _places(pipelines: int, stages: int) -> list[Place]:
    return [(k, i) for k in range(pipelines) for i in range(stages)]


def measured(trouble: Trouble, technique: Technique, capped: bool) -> Row:
    """Plan by rules, jointly and by each technique."""
    start_s = time.perf_counter()
    made = trouble.planned(technique, capped, RULES)
    planning_s = time.perf_counter() - start_s
    return _row(trouble, technique, capped, made, singles_s(Situation(made, split=True)), planning_s)


def searched(trouble: Trouble, technique: Technique, capped: bool) -> Row:
    """Plan as the commands do, jointly and by SlipStream and Adaptra."""
    effort, shape = Effort("heuristic"), trouble.shape(capped)
    start_s = time.perf_counter()
    made = trouble.planned(technique, capped, effort)
    planning_s = time.perf_counter() - start_s
    request = AtlasRequest(shape, technique, effort=effort)
    found: dict[TechniqueName, Plan] = {
        name: Replanner(opening(trouble.profile, asked), len(trouble.failed)).in_place(trouble.failed, compared=False)
        for name, asked in (
            (TOLD, replace(request, slowdown=trouble.slow)),
            ("re-routing, in slots", replace(request, shape=replace(shape, link_delay_s=None))),
        )
    }
    if not trouble.failed and technique == "decoupled":
        found["each pipeline alone, searched"] = plan_adaptra(trouble.profile, shape, "best", effort)
    slow = {name_of(place): factor for place, factor in trouble.slow.items()}
    taken_s = {
        name: evaluate(under_conditions(plan, slow, trouble.delays_s)).iteration_time_s for name, plan in found.items()
    }
    return _row(trouble, technique, capped, made, taken_s, planning_s)


def _row(
    trouble: Trouble,
    technique: Technique,
    capped: bool,
    made: Plan,
    taken_s: Mapping[TechniqueName, float],
    planning_s: float,
) -> Row:
    """The figures of a plan in which the checker finds nothing."""
    assert made.prediction is not None
    assert not check_plan(made)
    promised, made_by = made.prediction, made.planner.options["made_by"]
    return Row(
        trouble, technique, capped, made_by, promised.iteration_time_s, promised.lower_bound_s, taken_s, planning_s
    )


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """What some plans have in common; gains and gaps as fractions, times in s."""
    gains, makers = [row.gain for row in rows], [row.made_by for row in rows]
    names = {name for row in rows for name in row.singles_s}
    over = {
        name: [row.singles_s[name] / row.joint_s - 1 for row in rows if name in row.singles_s] for name in sorted(names)
    }
    return {
        "plans": len(rows),
        "lost": sum(gain < -TIE for gain in gains),
        "ties": sum(abs(gain) <= TIE for gain in gains),
        "wins": sum(gain > TIE for gain in gains),
        "optimal": sum(row.joint_s <= row.bound_s * (1 + TIE) for row in rows),
        "gain": _spread(gains),
        "published_gain": _spread([row.published_gain for row in rows]),
        "possible_gain": _spread([row.possible_gain for row in rows]),
        "gap": _spread([row.joint_s / row.bound_s - 1 for row in rows]),
        "planning_s": _spread([row.planning_s for row in rows]),
        "gain_over": {name: _spread(found) for name, found in over.items()},
        "made_by": {name: makers.count(name) for name in sorted(set(makers))},
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    ninth = quantiles(values, n=10)[-1] if len(values) > 1 else values[0]
    return {"mean": mean(values), "median": median(values), "p90": ninth, "least": min(values), "most": max(values)}


def tables(rows: Sequence[Row], *groupings: Callable[[Row], Sequence[str]]) -> dict[str, Any]:
    """By optimizer and memory, and these by each grouping."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        memory = "1F1B memory" if row.capped else "no limit"
        name = f"{'staggered' if row.technique == 'staggered' else 'synchronous'}, {memory}"
        for group in ("", *(f", {part}" for grouping in groupings for part in grouping(row))):
            found.setdefault(name + group, []).append(row)
    return {name: summary(found[name]) for name in sorted(found)}


def by_pipelines(row: Row) -> Sequence[str]:
    """Their number, and whether there are four."""
    return f"DP {row.trouble.dp}", "DP >= 4" if row.trouble.dp >= 4 else "DP < 4"


def show(title: str, found: dict[str, Any]) -> None:
    """The tables' main columns, on standard output."""
    print(f"{title:54} {'plans lost ties':>16} {'gain: mean median p90':>23} {'possible':>9} {'over published':>23}"
          f" {'above bound, most':>17} {'planning: median p90 most':>27}")  # fmt: skip
    for name, own in found.items():
        gain, published, gap, planning = (own[key] for key in ("gain", "published_gain", "gap", "planning_s"))
        print(
            f"{name:54} {own['plans']:6} {own['lost']:4} {own['ties']:4}"
            f" {gain['mean']:9.1%} {gain['median']:6.1%} {gain['p90']:6.1%} {own['possible_gain']['mean']:9.1%}"
            f" {published['mean']:9.1%} {published['median']:6.1%} {published['p90']:6.1%}"
            f" {gap['mean']:9.2%} {gap['most']:7.2%}"
            f" {planning['median'] * 1e3:9.1f} {planning['p90'] * 1e3:7.1f} {planning['most'] * 1e3:7.1f} ms"
        )


def main() -> None:
    """Measure what is asked for, print the tables and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="")
    parser.add_argument("--troubles", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--searched", type=int, default=0)
    arguments = parser.parse_args()
    for technique, capped in product(TECHNIQUES, (False, True)):
        warm_up(random_trouble(1).planned(technique, capped, RULES))
    ways = [*product(TECHNIQUES, (False, True))]
    asked = {
        "random": ([random_trouble(seed) for seed in range(arguments.troubles)], measured, (by_pipelines, _by_kind)),
        "cells": ([*cells(arguments.seeds)], measured, (_by_kind, lambda row: row.trouble.labels)),
        "searched": ([random_trouble(seed) for seed in range(arguments.searched)], searched, (by_pipelines,)),
    }
    found = {}
    for title, (troubles, measure, groupings) in asked.items():
        if troubles:
            rows = [measure(trouble, *way) for trouble in troubles for way in ways]
            found[title] = tables(rows, *groupings)
            show(title, found[title])
    if arguments.output:
        write_result({**vars(arguments), "tables": found}, arguments.output)


def _by_kind(row: Row) -> Sequence[str]:
    return (row.trouble.kind,)


if __name__ == "__main__":
    main()
