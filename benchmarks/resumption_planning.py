"""How good and how quick plans of what is left of an iteration are, on schedules that planners made; writes JSON.

Workers die at random moments of a planned iteration. What the others have by then is read off the plan's times: who is
in an operation ends it. The plan to follow re-routes; "lost" is the time of the death plus what is left, over an
iteration of that plan, less 1.

    python -m rtk.benchmarks.resumption_planning -o FILE [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Collection, Iterator
from random import Random
from typing import Any

import numpy as np

from rtk.benchmarks.common import write_result
from rtk.planners.resumption.plan import plan_rest
from rtk.planners.scheduling.evaluate import OrderEvaluation, evaluate
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.schemas.conditions import HEALTHY
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Place, Plan, name_of
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile
from rtk.schemas.resumption import MessageKind, Standing, held_messages, layer_runs, ledger_entries, stashes_of

TIMES_S = np.array((0.010, 0.010, 0.010))  # F, I, W of a layer


def planner_of(
    stages: int, pipelines: int, microbatches: int, technique: str, limit_bytes: float | None, uneven: bool
) -> Replanner:
    """What plans for failures: a stage of one layer each, of unit activations and stashes of a half."""
    layers = tuple(
        Layer(
            (LayerCost(*(TIMES_S * (1 + 0.3 * ((3 * n) % 4) / 4 if uneven else 1)).tolist()),),
            activation_bytes=1.0,
            weight_stash_bytes=0.5,
        )
        for n in range(stages)
    )
    profile = Profile(layers, network=Network(inter_node=Connection(0.0, None)))
    limits = None if limit_bytes is None else [limit_bytes] * stages
    shape = Shape(stages, pipelines, microbatches, limits)
    asked = AtlasRequest(shape, technique, effort=Effort("heuristic"))  # type: ignore[arg-type]
    return Replanner(opening(profile, asked), 8)


def standings_at(plan: Plan, times: OrderEvaluation, at_s: float, dead: Collection[Place]) -> tuple[Standing, ...]:
    """What the workers that live have at a time of a plan's iteration, each called by its place."""
    return tuple(
        _standing(plan, times, number, at_s)
        for number, worker in enumerate(plan.workers)
        if not worker.failed and worker.place not in dead
    )


def _standing(plan: Plan, times: OrderEvaluation, number: int, at_s: float) -> Standing:
    worker = plan.workers[number]
    layers, model_layers = plan.stage_of(worker).layers, plan.templates[0].stages[-1].layers[1]
    offsets = [plan.microbatch_offset(k) for k in range(len(plan.pipelines))]
    begun = [timed for timed in times.operations[number] if timed.start_s < at_s]
    done, under_way = set(), {}
    messages: list[tuple[MessageKind, int, int]] = []
    for timed in begun:
        kind, pipeline, own, _ = timed.operation
        microbatch = offsets[pipeline] + own
        if kind == "F":
            under_way[microbatch] = "F"
            messages += [("activation", layers[0], microbatch), ("activation", layers[1], microbatch)]
        elif kind in "IB":
            under_way[microbatch] = "I"
            messages += [("gradient", layers[0], microbatch), ("gradient", layers[1], microbatch)]
        if kind in "WB":
            del under_way[microbatch]
            done.add(microbatch)
    is_sealed = times.window_of(worker).reduced_s <= at_s
    return Standing(
        worker=worker.name,
        layers=layers,
        splits=" I" in f" {worker.order}",
        ledger=ledger_entries({} if is_sealed else dict.fromkeys(range(*layers), done)),
        sealed=layer_runs(range(*layers)) if is_sealed else (),
        stashes=stashes_of(under_way),  # type: ignore[arg-type]
        messages=held_messages(one for one in messages if 0 < one[1] < model_layers),
    )


def deaths(replanner: Replanner, stages: int, pipelines: int, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Random deaths, one of some workers at a time, and how good the answers are."""
    rng = Random(seed)
    healthy = replanner.in_place(frozenset(), compared=False)
    times = evaluate(healthy)
    after: dict[frozenset[Place], Plan] = {}
    for _ in range(count):
        dead = frozenset({(rng.randrange(pipelines), rng.randrange(stages))})
        plan = after.get(dead) or after.setdefault(dead, replanner.in_place(dead, compared=False))
        at_s = rng.uniform(0, times.makespan_s)
        standings = standings_at(healthy, times, at_s, dead)
        seats = tuple((name_of(worker.place), worker.place) for worker in plan.live_workers())
        assert plan.prediction is not None
        whole_s = plan.prediction.makespan_s
        began = time.perf_counter()
        try:
            found = plan_rest(plan, seats, 0, standings, HEALTHY).prediction
            assert found is not None
            rest_s, bound_s = found.makespan_s, found.lower_bound_s
        except InfeasibleError:
            rest_s = bound_s = whole_s
        yield {
            "at": at_s / times.makespan_s,
            "lost": (at_s + rest_s) / whole_s - 1,
            "least_lost": (at_s + bound_s) / whole_s - 1,
            "gap": rest_s / bound_s - 1 if bound_s else 0.0,
            "seconds": time.perf_counter() - began,
        }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and largest of each figure."""
    return {
        key: {"mean": statistics.fmean(row[key] for row in rows), "max": max(row[key] for row in rows)}
        for key in ("lost", "least_lost", "gap", "seconds")
    }


SMALL = ((3, 3, 8), (4, 4, 8), (4, 2, 8), (8, 4, 16), (2, 8, 4))  # stages, pipelines, micro-batches of each
LARGE = (16, 128, 16)


def large(repeats: int) -> Iterator[dict[str, Any]]:
    """2,048 workers, of whom one dies: how long the answer takes once the machine code is loaded."""
    stages, pipelines, microbatches = LARGE
    replanner = planner_of(stages, pipelines, microbatches, "decoupled", None, uneven=False)
    healthy, dead = replanner.in_place(frozenset(), compared=False), frozenset({(5, 7)})
    plan, times = replanner.in_place(dead, compared=False), evaluate(healthy)
    seats = tuple((name_of(worker.place), worker.place) for worker in plan.live_workers())
    assert plan.prediction is not None
    for share in (0.05, 0.2, 0.5, 0.8, 0.95):
        at_s = share * times.makespan_s
        standings, taken_s, processor_s = standings_at(healthy, times, at_s, dead), [], []
        for _ in range(repeats):
            began = time.perf_counter(), time.process_time()
            rest = plan_rest(plan, seats, 0, standings, HEALTHY)
            taken_s.append(time.perf_counter() - began[0])
            processor_s.append(time.process_time() - began[1])
        assert rest.prediction is not None
        yield {
            "at": share,
            "operations": sum(len(worker.order.split()) for worker in rest.workers),
            "messages_sent_again": len(rest.sends),
            "lost": (at_s + rest.prediction.makespan_s) / plan.prediction.makespan_s - 1,
            "gap": rest.prediction.gap,
            "seconds": min(taken_s[1:]),
            "processor_seconds": min(processor_s[1:]),
        }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--quick", action="store_true", help="fewer deaths")
    asked = parser.parse_args()
    small: dict[str, Any] = {}
    for technique in ("decoupled", "adaptive", "staggered"):
        for limit in (None, 4.5):
            for shape in SMALL:
                replanner = planner_of(*shape, technique, limit and max(limit, shape[0] + 0.5), uneven=shape[0] == 4)
                rows = list(deaths(replanner, shape[0], shape[1], 20 if asked.quick else 100, seed=1))
                name = f"{technique} {'x'.join(map(str, shape))}{' limited' if limit else ''}"
                small[name] = summary(rows)
                print(name, {key: tuple(round(one, 4) for one in row.values()) for key, row in small[name].items()})
    all_lost = [row["lost"] for row in small.values()]
    found = {
        "small": small,
        "lost": {"mean": statistics.fmean(row["mean"] for row in all_lost), "max": max(row["max"] for row in all_lost)},
        "workers_2048": list(large(3 if asked.quick else 8)),
    }
    for row in found["workers_2048"]:
        print(row)
    write_result(found, asked.output)


if __name__ == "__main__":
    main()
