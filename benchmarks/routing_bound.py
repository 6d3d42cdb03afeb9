"""The bound on all routings against exact optima, which CP-SAT finds over all routings and orders of small clusters.

python -m rtk.benchmarks.routing_bound -o benchmarks/results/routing_bound.json
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf
from random import Random
from statistics import mean
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from rtk.benchmarks.common import write_result
from rtk.planners.scheduling.problem import Problem, home_problem
from rtk.planners.slipstream.bounds import RoutingBound
from rtk.schemas.plan import Link, Pipeline, Plan, Planner, Stage, Template, Worker

HALVES = 2  # memory is counted in half activations
SINGLE, ROUTED = 92, 1000
PATIENCE_S = 20.0  # of an idle machine: it is counted in work, not by the clock


@dataclass(frozen=True)
class Case:
    """A small cluster: of each stage F, I and W, the limit in activations, and the live workers; times are whole.

    `stash` is counted in half activations.
    """

    times: tuple[tuple[int, int, int], ...]
    limits: tuple[int, ...]
    stash: int
    live: tuple[int, ...]
    microbatches: int
    pipelines: int
    staggered: bool

    @property
    def pipeline(self) -> Problem:
        """One of the pipelines alone."""
        stages = tuple(
            Stage((i, i + 1), float(f), float(b), float(w), activation_bytes=1.0,
                  weight_stash_bytes=self.stash / HALVES, memory_limit_bytes=float(limit))
            for i, ((f, b, w), limit) in enumerate(zip(self.times, self.limits, strict=True))
        )  # fmt: skip
        template = Template("t0", stages, (Link(0.0),) * (len(stages) - 1))
        workers = tuple(Worker(0, i, "") for i in range(len(stages)))
        plan = Plan(
            Planner("benchmark", "1", {}, 0), (template,), (Pipeline("t0", self.microbatches),), "synchronous", workers
        )
        return home_problem(plan, split=True)

    @property
    def bound_s(self) -> float:
        """What rtk proves."""
        bound = RoutingBound(self.pipeline, self.microbatches * self.pipelines)
        return bound.value_s(np.array(self.live), self.staggered)


def drawn_pipeline(chance: Random) -> Case:
    """A single pipeline whose stages have random limits; F, I and W take 1 each."""
    stages = chance.randint(2, 4)
    limits = tuple(chance.randint(1, stages + 1) for _ in range(stages))
    jobs = chance.randint(3, 7)
    return Case(((1, 1, 1),) * stages, limits, 1, (1,) * stages, jobs, 1, bool(chance.getrandbits(1)))


def drawn_cluster(chance: Random, most_jobs: int = 5) -> Case:
    """One to three pipelines of unlike stages, some of whose workers are dead."""
    stages, pipelines = chance.randint(1, 4), chance.randint(1, 3)
    jobs = chance.randint(1, most_jobs // pipelines)
    times = tuple((chance.randint(0, 3), chance.randint(0, 3), chance.randint(0, 3)) for _ in range(stages))
    return Case(
        times if chance.random() < 0.7 else ((1, 1, 1),) * stages,
        tuple(chance.randint(1, stages + 1) for _ in range(stages)),
        chance.randint(0, HALVES),
        tuple(chance.randint(1, pipelines) for _ in range(stages)),
        jobs,
        pipelines,
        bool(chance.getrandbits(1)),
    )


class Model:
    """All routings and orders of a case.

    By the contract, memory goes by the order, also of operations that take no time. Here it goes by intervals, and
    those of no length hold nothing. This makes a difference where F and I of a stage both take no time: else, what
    ends at a moment can be ordered before what begins then. In such cases, each operation that takes no time takes one
    tick, and a unit of time has so many ticks that all of them together do not matter.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.model = case, cp_model.CpModel()
        self.jobs, self.stages = range(case.microbatches * case.pipelines), range(len(case.times))
        blind = any(not f and not i for f, i, _ in case.times)
        self.empty = len(self.jobs) * sum(own.count(0) for own in case.times) if blind else 0
        # The least period of an order is a sum of durations over a number of stages: a multiple of 1 / stages, or more.
        self.ticks = (self.empty + 1) * (len(self.stages) + 1) if self.empty else 1
        self.lasting = [[time * self.ticks or int(blind) for time in own] for own in case.times]
        self.horizon = len(self.jobs) * sum(map(sum, self.lasting)) + 1
        self.start = {
            (j, i, kind): self.model.new_int_var(0, self.horizon, "")
            for j in self.jobs
            for i in self.stages
            for kind in range(3)
        }
        for i in self.stages:
            self._route(i)
        for j in self.jobs:
            self._follow(j)
        self.value = self.model.new_int_var(0, self.horizon, "")
        for i in self.stages:
            self._end(i)
        self.model.minimize(self.value)

    def _ends(self, j: int, i: int, kind: int) -> Any:
        return self.start[j, i, kind] + self.lasting[i][kind]

    def _route(self, i: int) -> None:
        """Every micro-batch has one worker at a stage, with one operation at a time and room for what it holds."""
        chosen = {(j, w): self.model.new_bool_var("") for j in self.jobs for w in range(self.case.live[i])}
        for j in self.jobs:
            self.model.add_exactly_one(chosen[j, w] for w in range(self.case.live[i]))
        for w in range(self.case.live[i]):
            operations = [
                self.model.new_optional_fixed_size_interval_var(
                    self.start[j, i, k], self.lasting[i][k], chosen[j, w], ""
                )
                for j in self.jobs
                for k in range(3)
            ]
            self.model.add_no_overlap(operations)
            held, sizes = [], []
            for j in self.jobs:
                for first, last, size in ((0, 1, HALVES), (1, 2, self.case.stash)):
                    begin = self.start[j, i, 0] if first == 0 else self._ends(j, i, 1)
                    lasts = self.model.new_int_var(0, self.horizon, "")
                    end = self._ends(j, i, last)
                    held.append(self.model.new_optional_interval_var(begin, lasts, end, chosen[j, w], ""))
                    sizes.append(size)
            self.model.add_cumulative(held, sizes, HALVES * self.case.limits[i])

    def _follow(self, j: int) -> None:
        for i in self.stages:
            if i:
                self.model.add(self.start[j, i, 0] >= self._ends(j, i - 1, 0))
                self.model.add(self.start[j, i - 1, 1] >= self._ends(j, i, 1))
            self.model.add(self.start[j, i, 1] >= self._ends(j, i, 0))
            self.model.add(self.start[j, i, 2] >= self._ends(j, i, 1))
        if j:
            self.model.add(self.start[j, 0, 0] >= self.start[j - 1, 0, 0])

    def _end(self, i: int) -> None:
        first = self.model.new_int_var(0, self.horizon, "") if self.case.staggered else 0
        for j in self.jobs:
            if self.case.staggered:
                self.model.add(first <= self.start[j, i, 0])
            self.model.add(self.value >= self._ends(j, i, 2) - first)

    def solve(self) -> tuple[float, bool]:
        """The best value, infinite if none was found, and whether it is proven."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers, solver.parameters.max_deterministic_time = 1, PATIENCE_S
        status = solver.solve(self.model)
        known = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        if not known:
            return inf, False
        unrounded = (round(solver.objective_value) - (self.empty + 1 if self.empty else 0)) / self.ticks
        return float(max(0, ceil(unrounded))), status == cp_model.OPTIMAL


def rows(draw: Any, count: int) -> Iterator[dict[str, Any]]:
    """Random cases with what CP-SAT and rtk say; a value that CP-SAT has not proven is one that can be had."""
    for seed in range(count):
        case = draw(Random(seed))
        value_s, proven = Model(case).solve()
        yield {"seed": seed, "value_s": value_s, "proven": proven, "bound_s": case.bound_s}


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """How many bounds are met, and how many are wrong."""
    proven = [row for row in found if row["proven"]]
    return {
        "cases": len(found),
        "proven": len(proven),
        "tight": sum(row["bound_s"] >= row["value_s"] - 1e-6 for row in proven),
        "above": sum(row["bound_s"] > row["value_s"] * (1 + 1e-9) for row in found),
        "mean_gap": mean(row["value_s"] / row["bound_s"] - 1 if row["bound_s"] else 0.0 for row in proven),
        "loose_seeds": [row["seed"] for row in proven if row["bound_s"] < row["value_s"] - 1e-6][:50],
    }


def main() -> None:
    """Write both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--single", type=int, default=SINGLE)
    parser.add_argument("--routed", type=int, default=ROUTED)
    asked = parser.parse_args()
    start_s = time.perf_counter()
    tables = {"single": list(rows(drawn_pipeline, asked.single)), "routed": list(rows(drawn_cluster, asked.routed))}
    result: dict[str, Any] = {name: summary(found) for name, found in tables.items()}
    result["took_s"] = time.perf_counter() - start_s
    write_result(result, asked.output)


if __name__ == "__main__":
    main()
