"""The scheduling core's figures: slow links, random pipelines with and without memory limits, and large ones.

`python benchmarks/scheduling.py [--only SECTION …] [-o FILE]`

One core, machine code warm: everything is run once before it is timed. `capped` and `tiny` ask CP-SAT for the best
known and take tens of minutes; `--reference-s` limits each of its attempts.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from statistics import mean, median
from typing import Any

import numpy as np

from rtk.benchmarks.common import write_result
from rtk.benchmarks.instances import pipeline, random_pipeline, split
from rtk.benchmarks.papers.adaptra_pipelines import time_stepped
from rtk.planners.pipeline import one_forward_one_backward, zero_bubble
from rtk.planners.scheduling.cp_sat import CpSatSolver
from rtk.planners.scheduling.list_schedule import DispatchRules, ListScheduler, Priority, list_schedule
from rtk.planners.scheduling.lower_bound import lower_bound, lower_bounds_s, makespan_bound, period_bound
from rtk.planners.scheduling.milp import MilpSolver
from rtk.planners.scheduling.problem import Orders, Problem, home_problem
from rtk.planners.scheduling.retime import value_s
from rtk.planners.scheduling.solve import Effort, Solution, solve
from rtk.schemas.plan import Plan

HEURISTIC = Effort("heuristic")
SECONDS_TO_MS = 1000
SEEDS = 100
TINY = 300


def timed(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, float]:
    """What a call returns, and the seconds that it took."""
    start_s = time.perf_counter()
    found = function(*arguments, **options)
    return found, time.perf_counter() - start_s


def ms(seconds: float) -> float:
    """Milliseconds, without the last digits' rounding."""
    return round(seconds * SECONDS_TO_MS, 6)


def slow_links() -> list[dict[str, Any]]:
    """Equal stages of 10 ms with one slow link: frozen orders, adapted ones, their bound, and the peers."""
    rows = []
    for depth, count in ((4, 12), (8, 32), (64, 256)):
        fast = split(pipeline([(10.0, 10.0, 10.0)] * depth, count))
        frozen = list_schedule(fast, doubled(fast))
        for link in (0, depth - 2):
            for delay in (0, 10, 20, 30, 40, 50, 60):
                delays = [0.0] * (depth - 1)
                delays[link] = float(delay)
                plan = pipeline([(10.0, 10.0, 10.0)] * depth, count, delays=delays)
                problem = split(plan)
                solution, took_s = timed(solve, problem, HEURISTIC)
                rows.append(
                    {
                        "stages": depth,
                        "microbatches": count,
                        "link": link,
                        "delay_ms": delay,
                        "frozen_ms": ms(value_s(problem, frozen)),
                        "adapted_ms": ms(solution.value_s),
                        "bound_ms": ms(solution.bound_s),
                        "optimal": solution.optimal,
                        "plan_s": took_s,
                        **({} if depth > 8 else peers(plan, problem)),
                    }
                )
    return rows


def doubled(problem: Problem) -> DispatchRules:
    """I before F before W after warm-ups of 2 (S - i) - 1, without limits: the schedule that the papers freeze."""
    after = (problem.depth[problem.workers.pipeline] - problem.workers.stage).tolist()
    none = [problem.jobs] * len(after)
    return DispatchRules(
        [2 * n - 1 for n in after], none, [0.0] * len(after), none, [Priority.INPUT_FIRST] * len(after)
    )


def peers(plan: Plan, problem: Problem) -> dict[str, Any]:
    """Makespans and planning times of 1F1B, zero-bubble and Adaptra's published rule on one pipeline."""
    stages, links, count = plan.templates[0].stages, plan.templates[0].links, problem.jobs
    coupled = home_problem(plan, split=False)

    def one_f_one_b() -> Orders:
        tokens = one_forward_one_backward(stages, links, count)
        return [[3 * j + (0 if kind == "F" else 1) for kind, j in order] for order in tokens]

    found: dict[str, Any] = {}
    methods: dict[str, tuple[Problem, Callable[[], Orders]]] = {
        "1f1b": (coupled, one_f_one_b),
        "zero_bubble": (problem, lambda: zero_bubble(problem, lower_bounds_s(problem))),
        "adaptra_published": (problem, lambda: time_stepped(stages, links, count)),
    }
    for name, (judged, method) in methods.items():
        orders, took_s = timed(method)
        found[name] = {"makespan_ms": ms(value_s(judged, orders)), "plan_s": took_s}
    return found


def uncapped() -> dict[str, Any]:
    """Random pipelines without limits: gap to the proven bound and time, ours and the peers'."""
    plans = [random_pipeline(Random(seed), (3, 8), (6, 32), capped=False) for seed in range(SEEDS)]
    solve_all(plans)
    rows = solve_all(plans)
    for plan, row in zip(plans, rows, strict=True):
        others = peers(plan, split(plan))
        row["peer_gaps"] = {name: found["makespan_ms"] / row["bound_ms"] - 1 for name, found in others.items()}
        row["peer_plan_s"] = {name: found["plan_s"] for name, found in others.items()}
    summary = summarize(rows)
    for name in rows[0]["peer_gaps"]:
        summary[f"mean_gap_{name}"] = mean(row["peer_gaps"][name] for row in rows)
        summary[f"median_plan_s_{name}"] = median(row["peer_plan_s"][name] for row in rows)
    return {"summary": summary, "rows": rows}


def solve_all(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """Each plan's problem solved by the heuristics."""
    return [row_of(plan, *timed(solve, split(plan), HEURISTIC)) for plan in plans]


def row_of(plan: Plan, solution: Solution, took_s: float) -> dict[str, Any]:
    """An instance and its solution."""
    template = plan.templates[0]
    return {
        "stages": len(template.stages),
        "microbatches": plan.pipelines[0].microbatches,
        "delays_ms": [ms(link.delay_s) for link in template.links],
        "limits": [stage.memory_limit_bytes for stage in template.stages],
        "stash": template.stages[0].weight_stash_bytes,
        "makespan_ms": ms(solution.value_s),
        "bound_ms": ms(solution.bound_s),
        "gap": solution.value_s / solution.bound_s - 1,
        "optimal": solution.optimal,
        "found_by": solution.found_by,
        "plan_s": took_s,
    }


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Gaps and times over all rows."""
    gaps, times = [row["gap"] for row in rows], [row["plan_s"] for row in rows]
    return {
        "instances": len(rows),
        "proven_optimal": sum(row["optimal"] for row in rows),
        "mean_gap": mean(gaps),
        "largest_gap": max(gaps),
        "median_plan_s": median(times),
        "largest_plan_s": max(times),
        "under_20_ms": sum(took_s < 0.02 for took_s in times),
        "under_1_s": sum(took_s < 1 for took_s in times),
    }


def capped(reference_s: float) -> dict[str, Any]:
    """Random pipelines with limits: how far above the best that is known, with CP-SAT started from ours."""
    plans = [random_pipeline(Random(seed), (3, 8), (6, 32), capped=True) for seed in range(SEEDS)]
    solve_all(plans)
    rows = solve_all(plans)
    for plan, row in zip(plans, rows, strict=True):
        refer(row, split(plan), reference_s)
    return {"summary": summarize(rows) | above_best(rows), "rows": rows}


def refer(row: dict[str, Any], problem: Problem, reference_s: float) -> None:
    """Add what CP-SAT comes to from our orders, where these are not proven optimal."""
    row["best_known_ms"], row["reference"] = row["makespan_ms"], "bound"
    if not row["optimal"]:
        solution = solve(problem, HEURISTIC)
        attempt = CpSatSolver().improve(problem, solution.orders, solution.bound_s, time_limit_s=reference_s, seed=0)
        row["reference"] = attempt.status
        if attempt.orders is not None:
            row["best_known_ms"] = ms(value_s(problem, attempt.orders))
    row["above_best_known"] = row["makespan_ms"] / row["best_known_ms"] - 1


def above_best(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How far above the best known, over all rows, and how many are known to be optimal."""
    above = [row["above_best_known"] for row in rows]
    return {
        "mean_above_best_known": mean(above),
        "largest_above_best_known": max(above),
        "equal_best_known": sum(value <= 1e-9 for value in above),
        "best_known_is_optimal": sum(row["reference"] in ("bound", "optimal") for row in rows),
    }


def tiny(reference_s: float) -> dict[str, Any]:
    """Tiny pipelines with limits and delays: how many reach the proven optimum."""
    plans = [random_pipeline(Random(10_000 + seed), (2, 4), (2, 6), capped=True) for seed in range(TINY)]
    solve_all(plans[:3])
    rows = solve_all(plans)
    for plan, row in zip(plans, rows, strict=True):
        refer(row, split(plan), reference_s)
    return {"summary": summarize(rows) | above_best(rows), "rows": rows}


def large() -> list[dict[str, Any]]:
    """64 stages x 32 pipelines x 256 micro-batches, 1.57 million operations: no failures, and 204 of 2048 spread."""
    rows = []
    for failures, routing in ((0, "home"), (204, "slots"), (512, "slots"), (204, "turns"), (512, "turns")):
        problem = rerouted(split(pipeline([(10.0, 10.0, 10.0)] * 64, 256, dp=32)), failures, routing)
        rules = doubled(problem)
        scheduler, ready_s = timed(ListScheduler, problem)
        scheduler.run(rules)
        times = [timed(scheduler.run, rules) for _ in range(7)]
        makespan_s = times[0][0]
        took_s = median(took_s for _, took_s in times)
        bound, bound_took_s = timed(makespan_bound, problem)
        rows.append(
            {
                "failed_workers": failures,
                "routing": routing,
                "operations": problem.operations,
                "schedule_s": took_s,
                "make_ready_s": ready_s,
                "operations_per_s": problem.operations / took_s,
                "makespan_ms": ms(makespan_s),
                "bound_ms": ms(bound.value_s),
                "gap": makespan_s / bound.value_s - 1,
                "bound_took_s": bound_took_s,
            }
        )
    return rows


def rerouted(problem: Problem, failures: int, routing: str) -> Problem:
    """The problem with failed workers spread over all stages, whose micro-batches run on their peers.

    Args:
        problem: equal pipelines.
        failures: how many workers fail, the remainder in early stages.
        routing: "turns" hands a stage's lost micro-batches to its live workers in turns; "slots" cuts the ranks in runs
            of as many as there are live workers, and in each gives the lost ones to those without one of their own.
    """
    stages, pipelines = int(problem.depth[0]), len(problem.depth)
    executor = problem.executor.copy()
    for stage in range(stages):
        number = failures // stages + (stage < failures % stages)
        dead = [(stage + 7 * n) % pipelines for n in range(number)]
        live = [k for k in range(pipelines) if k not in dead]
        lost = np.flatnonzero(np.isin(problem.origin, dead))
        takers = in_slots(problem, dead, live) if routing == "slots" else np.resize(live, len(lost))
        executor[lost, stage] = takers * stages + stage
    return replace(problem, executor=executor)


def in_slots(problem: Problem, dead: Sequence[int], live: Sequence[int]) -> Any:
    """Who takes each lost micro-batch, in rank order, so that no slot gives a worker two."""
    takers: list[int] = []
    for first in range(0, problem.jobs, len(live)):
        homes = problem.origin[first : first + len(live)].tolist()
        free = [k for k in live if k not in homes]
        turn = first // len(live) % max(len(free), 1)
        lost = sum(home in dead for home in homes)
        takers += (free[turn:] + free[:turn])[:lost]
    return np.array(takers, dtype=np.int64)


def large_capped() -> list[dict[str, Any]]:
    """64 stages x 256 micro-batches under limits: makespan and period against memory-aware bounds."""
    rows = []
    equal = [(10.0, 10.0, 10.0)] * 64
    chance = Random(5)
    unlike = [
        (10.0 + chance.uniform(-1, 1), 10.0 + chance.uniform(-1, 1), 10.0 + chance.uniform(-1, 1)) for _ in range(64)
    ]
    cases = [(equal, "equal", limit, stash) for limit in (64.0, 80.0, 96.0) for stash in (0.0, 0.5, 1.0)]
    for times, name, limit, stash in [*cases, (unlike, "unlike", 80.0, 0.5)]:
        problem = split(pipeline(times, 256, limits=[limit] * 64, stash=stash))
        row: dict[str, Any] = {"stages": name, "limit": limit, "stash": stash}
        for staggered, objective, bound_of in ((False, "makespan", makespan_bound), (True, "period", period_bound)):
            judged = problem.with_objective(staggered)
            bound, bound_took_s = timed(bound_of, judged)
            solution, took_s = timed(solve, judged, HEURISTIC)
            row[objective] = {
                "value_ms": ms(solution.value_s),
                "bound_ms": ms(max(bound.value_s, solution.bound_s)),
                "gap": solution.value_s / max(bound.value_s, solution.bound_s) - 1,
                "plan_s": took_s,
                "bound_s": bound_took_s,
                "found_by": solution.found_by,
            }
        rows.append(row)
    return rows


def exact() -> list[dict[str, Any]]:
    """SlipStream's example decoupled, 216 operations: from a start that is not optimal, until 29 is proven optimal."""
    fast = split(pipeline([(1000.0, 1000.0, 1000.0)] * 4, 6, dp=3))
    executor = fast.executor.copy()
    jobs = np.flatnonzero(fast.origin == 1)
    executor[jobs, 2] = np.array([2, 10])[np.arange(len(jobs)) % 2]
    problem = replace(fast, executor=executor)
    weaker = [orders for orders in weaker_orders(problem) if value_s(problem, orders) > 29]
    start = min(weaker, key=lambda orders: value_s(problem, orders))
    rows = []
    for solver in (MilpSolver(), CpSatSolver()):
        attempt, took_s = timed(solver.improve, problem, start, lower_bound(problem).value_s, time_limit_s=60, seed=0)
        rows.append(
            {
                "solver": attempt.solver,
                "operations": problem.operations,
                "start": value_s(problem, start),
                "found": value_s(problem, attempt.orders) if attempt.orders else None,
                "bound": attempt.bound_s,
                "status": attempt.status,
                "took_s": took_s,
            }
        )
    solution, took_s = timed(solve, problem, HEURISTIC)
    rows.append({"solver": solution.found_by, "found": solution.value_s, "bound": solution.bound_s, "took_s": took_s})
    return rows


def weaker_orders(problem: Problem) -> list[Orders]:
    """Orders that leave the exact solvers something to do: with too few micro-batches in flight."""
    count = len(problem.job_counts)
    none = [problem.jobs] * count
    return [
        list_schedule(
            problem, DispatchRules([1] * count, [most] * count, [0.0] * count, none, [Priority.INPUT_FIRST] * count)
        )
        for most in (2, 3, 4, 5)
    ]


def main() -> None:
    """Measure the sections asked for and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--reference-s", type=float, default=60.0)
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    sections: dict[str, Callable[[], Any]] = {
        "slow_links": slow_links,
        "uncapped": uncapped,
        "large": large,
        "large_capped": large_capped,
        "exact": exact,
        "tiny": lambda: tiny(arguments.reference_s),
        "capped": lambda: capped(arguments.reference_s),
    }
    chosen = arguments.only or list(sections)
    write_result({name: sections[name]() for name in chosen}, arguments.output)


if __name__ == "__main__":
    main()
