"""One re-plan at 2,048 workers, equal and unlike stages, and what failures in place cost more than moved ones."""

from collections.abc import Callable, Iterator
from itertools import product
from statistics import mean, median
from typing import Any

import numpy as np

from rtk.benchmarks.scheduling import timed
from rtk.benchmarks.slipstream_clusters import home_of, in_place_s, quarter, random_units, replanner, unlike_ms
from rtk.planners.scheduling.problem import with_orders
from rtk.planners.slipstream.cluster import Technique, effort_of, plan_with_failures
from rtk.planners.slipstream.normalization import least_worst
from rtk.planners.slipstream.replanner import Replanner, Units
from rtk.planners.slipstream.rerouting import reroute_alike
from rtk.planners.slipstream.slots import expanded
from rtk.schemas.check import check_plan
from rtk.schemas.plan import Plan

PP, DP, MICROBATCHES = 64, 32, 256
STASH = 0.5  # of an activation, until W
FAILURES = (20, 100, 204, 512)
EQUAL = 1 + 1e-9
OBJECTIVES: tuple[tuple[str, Technique], ...] = (("makespan", "decoupled"), ("period", "staggered"))


def replan(seeds: int = 3, rounds: int = 3) -> list[dict[str, Any]]:
    """Failures at random places: how long each part of a plan takes; medians over seeds and rounds."""
    rows = []
    for limit, failures in product((None, float(PP)), FAILURES):
        job = large_job(limit)
        job.in_place(frozenset({(0, 0)}))
        drawn = [random_units(PP, DP, failures, seed) for seed in range(seeds)]
        measured = [parts_of(job, large_job(limit), units, rounds) for units in drawn if units is not None]
        times_s = {name: median(part["times_s"][name] for part in measured) for name in measured[0]["times_s"]}
        rows.append(
            {
                "limit_activations": limit,
                "failures": failures,
                "seeds": list(range(seeds)),
                "largest_gap": max(part["gap"] for part in measured),
                "operations": measured[0]["operations"],
                "times_s": times_s,
            }
        )
    return rows


def large_job(limit: float | None) -> Replanner:
    """A job whose workers hold so many activations at most, with a stash of a half until W."""
    return replanner(PP, DP, MICROBATCHES, "staggered", limit=limit, stash=0.0 if limit is None else STASH)


def parts_of(job: Replanner, new: Replanner, units: Units, rounds: int) -> dict[str, Any]:
    """Decide, expand, write, check, and all that at once; medians of rounds in s, and the plan's gap.

    `decided_first` is with numbers of slots that are new to the job; `one_schedule` is the best of those that deciding
    tries.
    """
    dead = job.grid.stage_failures(job.grid.column_failures(units))
    fresh = new.search
    fresh.look([0] * PP)
    found, first_s = timed(fresh.look, dead)
    home = home_of(job, units)
    problem, orders = expanded(home, found.slots, fresh.orders(found.slots, found.rules))
    empty = plan_with_failures(job.common, units)
    plan = with_orders(empty, problem, orders)
    assert not check_plan(plan)
    made: list[Plan] = []
    sides: dict[str, Callable[[], Any]] = {
        "decided_again": lambda: fresh.look(dead),
        "one_schedule": lambda: fresh.run(found.slots, found.rules),
        "home_problem": lambda: home_of(job, units),
        "expanded": lambda: expanded(home, found.slots, fresh.orders(found.slots, found.rules)),
        "texts": lambda: with_orders(empty, problem, orders),
        "checked": lambda: check_plan(plan),
        "whole_plan": lambda: made.append(job.in_place(units)),
    }
    times_s = {name: median(timed(side)[1] for _ in range(rounds)) for name, side in sides.items()}
    prediction = made[-1].prediction
    assert prediction is not None
    return {"times_s": {"decided_first": first_s, **times_s}, "gap": prediction.gap, "operations": problem.operations}


def unlike(seeds: int = 3) -> dict[str, Any]:
    """Stages of 8 to 12 ms an operation, delays of 2 ms, an eighth to all of 25 % failures, placed in two ways."""
    rows = [
        unlike_row(objective, technique, seed, eighths)
        for (objective, technique), seed in product(OBJECTIVES, range(seeds))
        for eighths in unlike_jobs(technique, seed)
    ]
    summary = [
        {
            "objective": objective,
            "placed": placed,
            "mean_gap": mean(gaps),
            "largest_gap": max(gaps),
            "over_half_percent": sum(gap > 0.005 for gap in gaps),
            "plans": len(gaps),
        }
        for (objective, _), placed in product(OBJECTIVES, ("chosen", "least_worst"))
        for gaps in [[row[placed]["gap"] for row in rows if row["objective"] == objective]]
    ]
    return {"summary": summary, "rows": rows}


def unlike_jobs(technique: Technique, seed: int) -> Iterator[tuple[Replanner, int]]:
    """One job, made ready once, with each number of failures."""
    job = replanner(PP, DP, MICROBATCHES, technique, times_ms=unlike_ms(PP, seed), delay_ms=2.0)
    for eighths in range(1, 9):
        yield job, eighths * quarter(PP, DP) // 8


def unlike_row(objective: str, technique: Technique, seed: int, asked: tuple[Replanner, int]) -> dict[str, Any]:
    """A number of failures placed by normalization, and so that the busiest stage has the least to do."""
    job, failures = asked
    contenders, choose_s = timed(job._placement.contenders, failures)
    chosen, _ = contenders[0]
    row: dict[str, Any] = {"objective": objective, "seed": seed, "failures": failures, "choose_s": choose_s}
    for placed, vector in (("chosen", chosen), ("least_worst", least_worst(loads_s(job), failures)[failures])):
        if placed == "least_worst" and vector == chosen:
            row[placed] = row["chosen"]
            continue
        units = job.grid.last_units(vector)
        dead = job.grid.stage_failures(vector)
        found, took_s = timed(reroute_alike, home_of(job, units), job.search, dead, effort_of(job.common))
        row[placed] = {
            "value_s": found.value_s,
            "bound_s": found.bound_s,
            "gap": found.value_s / found.bound_s - 1,
            "slots_gap": job.search.look(dead).value_s / found.bound_s - 1,
            "by": None if found.recipe is None else found.recipe.scheduled,
            "most_dead": max(vector),
            "took_s": took_s,
        }
    return row


def loads_s(job: Replanner) -> list[list[float]]:
    """What the bound says of each stage alone, by its number of dead workers, in s."""
    dp, staggered = job.common.dp, job.common.optimizer == "staggered"
    alone = [job.search.bound.alone_s(np.full(PP, dp - dead), staggered) for dead in range(dp)]
    return [list(row) for row in np.stack(alone, axis=1).tolist()]


def in_place(seeds: int = 8) -> list[dict[str, Any]]:
    """Random failures where they are against normalized ones, staggered: is it worth to move workers?"""
    rows: list[dict[str, Any]] = []
    shapes = ((4, 8, 16), (8, 8, 32), (8, 32, 32), (16, 32, 64), (64, 32, 256))
    for (pp, dp, microbatches), stages in product(shapes, ("equal", "unlike")):
        times_ms, delay_ms = (None, 0.0) if stages == "equal" else (unlike_ms(pp, 0), 2.0)
        job = replanner(pp, dp, microbatches, "staggered", times_ms=times_ms, delay_ms=delay_ms)
        counts = [max(1, round(share * pp * dp)) for share in (0.02, 0.05, 0.1, 0.25)]
        draws = seeds if pp < PP else 3
        rows += [in_place_row(job, stages, failures, draws) for failures in counts]
    return rows


def in_place_row(job: Replanner, stages: str, failures: int, seeds: int) -> dict[str, Any]:
    """How much longer an iteration takes in place than normalized, over draws of places."""
    pp, dp = job.grid.stages, job.grid.pipelines
    normalized_s = job.entry(failures)[0].prediction.iteration_time_s
    drawn = [random_units(pp, dp, failures, seed) for seed in range(seeds)]
    ratios = [in_place_s(job, units) / normalized_s for units in drawn if units is not None]
    return {
        "stages": stages,
        "pp": pp,
        "dp": dp,
        "microbatches": job.common.microbatches,
        "failures": failures,
        "seeds": list(range(len(drawn))),
        "stage_lost": drawn.count(None),
        "mean_ratio": mean(ratios),
        "median_ratio": median(ratios),
        "largest_ratio": max(ratios),
        "as_good": sum(ratio <= EQUAL for ratio in ratios),
    }
