"""Dead workers, slow workers and slow links at once: joint plans against each technique on its own.

`python benchmarks/joint.py [-o FILE] [--seeds N]`

F = I = W = 10 ms, four times as many micro-batches as stages. Failures are in random distinct stages; one pair of
neighbours of one pipeline has a delay (20 or 60 ms), and one worker takes 1.5 times as long. Memory: no limit, or that
of 1F1B's first stage (as many activations as there are stages, half of one kept as weight stash). The techniques are
those of planners/joint/single_techniques.py; gains are how much longer they take than the joint plan, which is that of
`replan_joint`. Times are of machine code that is loaded: `search` finds routing and orders, `whole` is all that
`replan_joint` does, texts and checker included.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean, median
from typing import Any, NamedTuple

from rtk.benchmarks.common import write_result
from rtk.planners.joint.bypass import named_pairs
from rtk.planners.joint.plan import RULES, replan_joint, warm_up
from rtk.planners.joint.search import joint_schedule
from rtk.planners.joint.single_techniques import TOGETHER, single_techniques
from rtk.planners.joint.situation import Situation
from rtk.planners.scheduling.retime import Retimer
from rtk.schemas.check import check_plan
from rtk.schemas.plan import Link, Pipeline, Place, Plan, Planner, Stage, Template, Worker

SHAPES = ((4, 4), (4, 8), (8, 4), (8, 8))  # stages, pipelines
# Delay of one link, and whether a worker is slow.
TROUBLES = ((0.02, False), (0.06, False), (0.0, True), (0.02, True), (0.06, True))
OPERATION_S, SLOW = 0.01, 1.5
ROUNDS = 5
RUNS = 40  # about so many schedules are timed of each cell


@dataclass(frozen=True)
class Case:
    """One cell's troubles at random places."""

    pp: int
    dp: int
    failures: int
    delay_s: float
    slow: bool
    capped: bool
    seed: int

    @property
    def kind(self) -> str:
        """What is wrong, in words."""
        return " + ".join(["fail", *["slow worker"] * self.slow, *["slow link"] * (self.delay_s > 0)])

    def plan(self) -> Plan:
        """The pipelines, without orders."""
        chance = random.Random(f"{self.pp} {self.dp} {self.failures} {self.seed}")
        dead = {(chance.randrange(self.dp), i) for i in chance.sample(range(self.pp), self.failures)}
        pairs = [(k, i) for k, i in _places(self.dp, self.pp - 1) if not dead & {(k, i), (k, i + 1)}]
        slow_link = chance.choice(pairs)
        slow_worker = chance.choice([place for place in _places(self.dp, self.pp) if place not in dead])
        slow = {slow_worker: SLOW} if self.slow else {}
        workers = (
            Worker(*p, failed=True) if p in dead else Worker(*p, "", slow.get(p)) for p in _places(self.dp, self.pp)
        )
        own = tuple(Link(self.delay_s if i == slow_link[1] else 0.0) for i in range(self.pp - 1))
        pipelines = (
            Pipeline("t", 4 * self.pp, own if k == slow_link[0] and self.delay_s else None) for k in range(self.dp)
        )
        return Plan(Planner("joint", "1", {}), (self._template(),), tuple(pipelines), "synchronous", tuple(workers))

    def _template(self) -> Template:
        limit = float(self.pp) if self.capped else None
        times = (OPERATION_S,) * 3
        stages = (
            Stage((i, i + 1), *times, activation_bytes=1.0, weight_stash_bytes=0.5, memory_limit_bytes=limit)
            for i in range(self.pp)
        )
        return Template("t", tuple(stages), (Link(),) * (self.pp - 1))


class Row(NamedTuple):
    """A case's figures: gains over each technique, distance to the bound, and times in s."""

    case: Case
    gains: dict[str, float]
    gap: float
    technique: str
    search_s: float
    whole_s: float

    @property
    def best_single(self) -> float:
        """The gain over the best single technique."""
        return min(gain for name, gain in self.gains.items() if name != TOGETHER)


def _places(pipelines: int, stages: int) -> list[Place]:
    return [(k, i) for k in range(pipelines) for i in range(stages)]


def cases(seeds: int) -> Iterator[Case]:
    """All cells, so many seeds of each."""
    cells = product((False, True), SHAPES, (1, 2), TROUBLES, range(seeds))
    for capped, (pp, dp), failures, (delay_s, slow), seed in cells:
        yield Case(pp, dp, failures, delay_s, slow, capped, seed)


def measured(case: Case) -> Row:
    """Plan a case jointly and by each technique."""
    plan = case.plan()
    made = replan_joint(plan)
    assert made.prediction is not None
    assert not check_plan(made)
    situation = Situation(plan, split=True)
    singles = {x.name: Retimer(x.problem, RUNS).value_s(x.orders(situation)) for x in single_techniques(situation)}
    return Row(
        case,
        {name: single_s / made.prediction.iteration_time_s - 1 for name, single_s in singles.items()},
        made.prediction.gap,
        made.planner.options["technique"],
        _seconds(lambda: _search(plan)),
        _seconds(lambda: replan_joint(plan)),
    )


def _search(plan: Plan) -> None:
    situation = Situation(plan, split=True)
    joint_schedule(situation, named_pairs(situation.home, ()), RULES)


def _seconds(call: Callable[[], object]) -> float:
    """The least of some rounds: the cores are shared."""
    found = []
    for _ in range(ROUNDS):
        start_s = time.perf_counter()
        call()
        found.append(time.perf_counter() - start_s)
    return min(found)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """What some cells have in common; gains and gaps as fractions, times in s."""
    best = [row.best_single for row in rows]
    names = {name for row in rows for name in row.gains}
    gains = {name: [row.gains[name] for row in rows if name in row.gains] for name in sorted(names)}
    return {
        "cells": len(rows),
        "gain_over_best_single": {"mean": mean(best), "max": max(best), "least": min(best)},
        "share_worse": sum(gain < -1e-9 for gain in best) / len(rows),
        "share_10_percent": sum(gain >= 0.1 for gain in best) / len(rows),
        "gains": {name: {"mean": mean(found), "max": max(found)} for name, found in gains.items()},
        "gap": {"mean": mean(row.gap for row in rows), "max": max(row.gap for row in rows)},
        "share_within_half_percent": sum(row.gap <= 0.005 for row in rows) / len(rows),
        "search_s": {"median": median(row.search_s for row in rows), "max": max(row.search_s for row in rows)},
        "whole_s": {"median": median(row.whole_s for row in rows), "max": max(row.whole_s for row in rows)},
        "techniques": {
            name: sum(row.technique == name for row in rows) for name in sorted({r.technique for r in rows})
        },
    }


def tables(rows: Sequence[Row]) -> dict[str, Any]:
    """By memory and kind of trouble, and the cells with all three by shape and failures as well."""
    found: dict[str, Any] = {}
    for row in rows:
        memory = "1F1B memory" if row.case.capped else "no limit"
        found.setdefault(f"{memory}, {row.case.kind}", []).append(row)
        if row.case.slow and row.case.delay_s:
            shape = f"PP {row.case.pp}, DP {row.case.dp}, {row.case.failures} dead, all three"
            found.setdefault(f"{memory}, {shape}", []).append(row)
    return {name: summary(own) for name, own in found.items()}


def show(found: dict[str, Any]) -> None:
    """The tables' main columns, on standard output."""
    print(f"{'':58} {'gain over best single':>21} {'worse':>6} {'above bound':>14} {'search':>15} {'whole':>15}")
    for name, own in found.items():
        gain, gap, search, whole = (own[key] for key in ("gain_over_best_single", "gap", "search_s", "whole_s"))
        print(
            f"{name:58} {gain['mean']:8.1%} max {gain['max']:7.1%} {own['share_worse']:7.0%}"
            f" {gap['mean']:6.2%} {gap['max']:6.2%} {search['median'] * 1e3:5.1f} {search['max'] * 1e3:6.1f} ms"
            f" {whole['median'] * 1e3:5.1f} {whole['max'] * 1e3:6.1f} ms"
        )


def main() -> None:
    """Measure everything, print the tables and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="")
    parser.add_argument("--seeds", type=int, default=6)
    arguments = parser.parse_args()
    warm_up(Case(4, 4, 1, 0.02, True, True, 0).plan())
    found = tables([measured(case) for case in cases(arguments.seeds)])
    show(found)
    if arguments.output:
        write_result({"seeds": arguments.seeds, "tables": found}, arguments.output)


if __name__ == "__main__":
    main()
