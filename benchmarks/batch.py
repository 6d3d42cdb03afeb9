"""Batch distribution's figures: exact algorithms against all splits, their times, and Pyomo's solvers beside them.

`python benchmarks/batch.py [-o FILE]`

Pipelines take 1 to 2 s a micro-batch, uniformly at random. The time is that of `distribute`, checks included. Greyhound
(table 5) needs 35.93 s for 512 pipelines, with cvxpy, on another machine and other data.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtk.benchmarks.common import write_result
from rtk.planners.batch.distribute import Distribution, Objective, distribute
from rtk.planners.batch.exact import Pace, Range, nearest
from rtk.schemas.errors import InfeasibleError, LimitReachedError

OBJECTIVES: tuple[Objective, ...] = ("min-max", "variance")
SIZES = ((16, 1024), (64, 4096), (512, 4096), (512, 32768), (4096, 32768))  # pipelines, micro-batches
MODELLED = SIZES[:2]
TEMPLATES, INSTANCES = 5, 16
REPEATS = 15
CASES = 3000
TIME_LIMIT_S = 30.0
PAPER_S = 35.93


def timed(call: Callable[[], Distribution]) -> tuple[Distribution, float]:
    """The result of a call, and the seconds it takes."""
    start_s = time.perf_counter()
    found = call()
    return found, time.perf_counter() - start_s


def worth(paces: Sequence[Pace], found: Distribution) -> dict[str, float]:
    """Both objectives of a distribution: s, and s^2."""
    times = np.array([pace.time_s(n) for pace, n in zip(paces, found.microbatches, strict=True)])
    return {"slowest_s": found.slowest_s, "variance_s2": float(np.square(times - times.mean()).sum())}


def table() -> list[dict[str, Any]]:
    """The exact algorithms at growing sizes: the median time of several calls, after one that is not counted."""
    rows = []
    for pipelines, microbatches in SIZES:
        paces = drawn(pipelines)
        for objective in OBJECTIVES:
            took = [timed(partial(distribute, paces, microbatches, objective=objective)) for _ in range(REPEATS + 1)]
            row = {"pipelines": pipelines, "microbatches": microbatches, "objective": objective}
            rows.append({**row, "median_s": median(s for _, s in took[1:]), **worth(paces, took[0][0])})
    return rows


def drawn(pipelines: int) -> list[Pace]:
    """Paces of 1 to 2 s a micro-batch."""
    return [Pace(0.0, float(s)) for s in np.random.default_rng(pipelines).uniform(1.0, 2.0, pipelines)]


def modelled() -> list[dict[str, Any]]:
    """Pyomo's solvers, with a time limit, on the smaller sizes."""
    rows = []
    for pipelines, microbatches in MODELLED:
        for objective in OBJECTIVES:
            row = {"pipelines": pipelines, "microbatches": microbatches, "objective": objective}
            rows.append({**row, **solved_in_pyomo(drawn(pipelines), microbatches, objective)})
    return rows


def solved_in_pyomo(paces: Sequence[Pace], microbatches: int, objective: Objective) -> dict[str, Any]:
    """What Pyomo's solver finds and how long it takes; no more than its limit, if that ran out."""
    try:
        found, took_s = timed(
            partial(distribute, paces, microbatches, 1, objective, "pyomo", time_limit_s=TIME_LIMIT_S)
        )
    except LimitReachedError:
        return {"proven": False, "limit_s": TIME_LIMIT_S}
    return {"proven": True, "took_s": took_s, **worth(paces, found)}


def shared() -> dict[str, Any]:
    """The longest times of 100 cases of five templates of up to 16 instances, with about 8,192 micro-batches."""
    random = np.random.default_rng(0)
    longest_s = dict.fromkeys(OBJECTIVES, 0.0)
    for _ in range(100):
        counts = [int(count) for count in random.integers(1, INSTANCES + 1, TEMPLATES)]
        each = [Pace(float(pair[0]), float(pair[1])) for pair in random.uniform((0.0, 1.0), (5.0, 4.0), (TEMPLATES, 2))]
        paces = [pace for pace, count in zip(each, counts, strict=True) for _ in range(count)]
        microbatches = nearest([Range(count, 1, None) for count in counts], 1, 8192)[0]
        for objective in OBJECTIVES:
            _, took_s = timed(partial(distribute, paces, microbatches, objective=objective, shared=counts))
            longest_s[objective] = max(longest_s[objective], took_s)
    return {"templates": TEMPLATES, "most_instances": INSTANCES, "microbatches": 8192, "longest_s": longest_s}


def campaign() -> dict[str, Any]:
    """Random small cases against all splits: how many, how many wrong, and where least variance is not least time."""
    random = np.random.default_rng(0)
    counted = {"cases": 0, "of_them_shared": 0, "wrong": 0, "variance_costs_time": 0}
    most_lost = 0.0
    while counted["cases"] < CASES:
        case = drawn_case(random)
        try:
            wrong, lost = checked(*case)
        except InfeasibleError:
            continue  # numbers shared in groups that no total has
        counted["cases"] += 1
        counted["of_them_shared"] += max(case[1]) > 1
        counted["wrong"] += wrong
        counted["variance_costs_time"] += lost > 1e-9
        most_lost = max(most_lost, lost)
    return {**counted, "most_lost": most_lost}


def drawn_case(random: np.random.Generator) -> tuple[NDArray[np.float64], list[int], int, int]:
    """Paces of two to five groups, shape (groups, 2); pipelines of each; units; and micro-batches of a unit."""
    groups = int(random.integers(2, 6))
    slopes = [random.integers(1, 10, groups) / 1.0, random.uniform(1, 2, groups), 10 ** random.uniform(-1, 1, groups)]
    fixed = random.choice([0.0, 1.0]) * random.uniform(0, 8, groups)
    counts = [1] * groups if random.random() < 0.5 else [int(count) for count in random.integers(1, 6, groups)]
    units = int(random.integers(sum(counts), sum(counts) + 20))
    return np.stack([fixed, slopes[random.integers(3)]], 1), counts, units, int(random.integers(1, 4))


def checked(parts: NDArray[np.float64], counts: list[int], units: int, multiple_of: int) -> tuple[bool, float]:
    """Whether either objective misses the best of all splits, and the share of time that least variance costs."""
    rows = zip(parts, counts, strict=True)
    paces = [Pace(float(fixed_s), float(each_s)) for (fixed_s, each_s), count in rows for _ in range(count)]
    least, even = (
        worth(paces, distribute(paces, units * multiple_of, multiple_of, objective, shared=counts))
        for objective in OBJECTIVES
    )
    times = parts[:, 0] + splits(counts, units) * multiple_of * parts[:, 1]
    variances = np.square(times - (times @ counts / sum(counts))[:, None]) @ counts
    rounding = 1e-12 * float(np.square(times).max())
    wrong = least["slowest_s"] != times.max(1).min() or even["variance_s2"] > variances.min() + rounding
    evenest = float(times[variances <= variances.min() + rounding].max(1).min())
    return bool(wrong), evenest / least["slowest_s"] - 1


def splits(counts: Sequence[int], units: int) -> NDArray[np.int64]:
    """All ways to give units to groups, at least one each; shape (ways, groups)."""
    firsts = np.stack(np.meshgrid(*(np.arange(1, units // count + 1) for count in counts[:-1]), indexing="ij"), -1)
    firsts = firsts.reshape(-1, len(counts) - 1)
    left = units - firsts @ np.array(counts[:-1])
    fits = (left >= counts[-1]) & (left % counts[-1] == 0)
    return np.hstack([firsts[fits], (left[fits] // counts[-1])[:, None]])


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="-")
    arguments = parser.parse_args()
    result = {"exact": table(), "paper_512_s": PAPER_S, "shared": shared(), "campaign": campaign(), "pyomo": modelled()}
    write_result(result, arguments.output)


if __name__ == "__main__":
    main()
