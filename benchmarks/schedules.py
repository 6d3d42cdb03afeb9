"""The classic schedules on the papers' shapes: makespan, bound, bubbles, and the time to plan, bound and check.

`python benchmarks/schedules.py [-o FILE]`
"""

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any, get_args

from rtk.benchmarks.common import write_result
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.schemas.documents import read_document
from rtk.schemas.orders import Schedule
from rtk.schemas.profile import Profile

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
SLOTS, ADAPTRA = "profile-slots4.json", "profile-adaptra4.json"
REPEATS = 5
CASES: tuple[tuple[str, Shape], ...] = (
    (SLOTS, Shape(4, 3, 6)),
    (SLOTS, Shape(4, 3, 6, memory_limit_bytes=[4])),
    (ADAPTRA, Shape(4, 1, 12)),
    (ADAPTRA, Shape(4, 1, 12, link_delay_s={(None, 0): 0.02})),
    (ADAPTRA, Shape(4, 1, 12, link_delay_s={(None, 0): 0.06})),
)


def row(name: str, shape: Shape, schedule: Schedule) -> dict[str, Any]:
    """One schedule on one shape, planned several times."""
    profile = read_document(str(GOLDEN / name), Profile)
    times_s = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        plan = plan_pipeline(profile, shape, schedule)
        times_s.append(time.perf_counter() - start_s)
    prediction = plan.prediction
    assert prediction is not None
    room_s = len(plan.workers) * prediction.makespan_s
    return {
        "profile": name,
        "schedule": schedule,
        "options": plan.planner.options,
        "makespan_s": prediction.makespan_s,
        "period_s": prediction.period_s,
        "lower_bound_s": prediction.lower_bound_s,
        "proof": prediction.proof,
        "idle_s_per_worker": prediction.bubble_ratio * room_s / len(plan.workers),
        "plan_s": median(times_s),
    }


def feasible(schedule: Schedule, shape: Shape) -> bool:
    """GPipe holds all micro-batches, which a memory limit here forbids."""
    return not (schedule == "gpipe" and shape.memory_limit_bytes)


def main() -> None:
    """Plan everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="-")
    output = parser.parse_args().output
    rows = [row(name, s, kind) for name, s in CASES for kind in get_args(Schedule) if feasible(kind, s)]
    write_result({"rows": rows}, output)


if __name__ == "__main__":
    main()
