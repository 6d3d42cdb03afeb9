"""Plans with placements, by a plain list scheduler: what the runner's tests execute, made by no planner of ours."""

import heapq
from collections.abc import Collection, Sequence
from itertools import pairwise

from rtk.schemas.orders import Operation, print_order
from rtk.schemas.plan import Link, Pipeline, Place, Placement, Plan, Planner, Stage, Template, Worker, plain_placement

Cell = tuple[int, int, int]  # pipeline, micro-batch, virtual stage


def placed_plan(
    placement: Placement,
    depth: int,
    microbatches: Sequence[int],
    kinds: str = "FIW",
    dead: Collection[Place] = (),
    seconds: float = 1.0,
    limit_bytes: float | None = None,
) -> Plan:
    """A plan of pipelines that are alike, each operation of which takes as long.

    Args:
        placement: of each.
        depth: layers of the model, cut evenly.
        microbatches: of each pipeline.
        kinds: FIW, or FB.
        dead: workers whose micro-batches go to peers, those of each virtual stage in turn.
        seconds: that F, I and W take.
        limit_bytes: what each worker may hold, which the orders do not keep; a micro-batch takes 2 in a virtual stage.
    """
    count = sum(map(len, placement))
    cuts = [depth * n // count for n in range(count + 1)]
    stages = tuple(
        Stage(layers, seconds, seconds, seconds, activation_bytes=2.0, weight_stash_bytes=1.0)
        for layers in pairwise(cuts)
    )
    limits = None if limit_bytes is None else (limit_bytes,) * len(placement)
    told = None if placement == plain_placement(count) else placement
    template = Template("v", stages, (Link(),) * (count - 1), told, limits)
    orders = _orders(placement, microbatches, kinds, dead)
    workers = tuple(
        Worker(k, c, failed=True) if (k, c) in dead else Worker(k, c, print_order(orders[k, c], k))
        for k in range(len(microbatches))
        for c in range(len(placement))
    )
    pipelines = tuple(Pipeline("v", number) for number in microbatches)
    plan = Plan(Planner("by hand", "1", {}), (template,), pipelines, "synchronous", workers)
    plan.validate()
    return plan


def _orders(
    placement: Placement, microbatches: Sequence[int], kinds: str, dead: Collection[Place]
) -> dict[Place, list[Operation]]:
    """Whoever is free runs what is ready: I or B first, later virtual stages first, W last."""
    columns = {stage: column for column, held in enumerate(placement) for stage in held}
    live = {c: [k for k in range(len(microbatches)) if (k, c) not in dead] for c in range(len(placement))}
    last, turns = len(columns) - 1, 0
    executor: dict[Cell, Place] = {}
    for k, number in enumerate(microbatches):
        for cell in ((k, j, v) for j in range(number) for v in range(last + 1)):
            column = columns[cell[2]]
            is_dead = (k, column) in dead
            executor[cell] = (live[column][turns % len(live[column])] if is_dead else k, column)
            turns += is_dead
    back, rank = kinds[1], {"I": 0, "B": 0, "F": 1, "W": 2}
    arrived: list[tuple[float, str, Cell]] = [(0.0, "F", cell) for cell in executor if cell[2] == 0]
    ready: dict[Place, list[tuple[int, int, Cell, str]]] = {place: [] for place in executor.values()}
    orders: dict[Place, list[Operation]] = {place: [] for place in ready}
    free_s = dict.fromkeys(ready, 0.0)
    heapq.heapify(arrived)
    while arrived or any(ready.values()):
        now_s = min([s for s, *_ in arrived[:1]] + [max(free_s[place], 0.0) for place, some in ready.items() if some])
        while arrived and arrived[0][0] <= now_s:
            _, kind, cell = heapq.heappop(arrived)
            heapq.heappush(ready[executor[cell]], (rank[kind], -cell[2] if kind == "F" else cell[2], cell, kind))
        for place, some in ready.items():
            if not some or free_s[place] > now_s:
                continue
            *_, cell, kind = heapq.heappop(some)
            k, j, v = cell
            orders[place].append(Operation(kind, k, j, v if len(placement[place[1]]) > 1 else None))  # type: ignore[arg-type]
            end_s = free_s[place] = now_s + (2.0 if kind == "B" else 1.0)
            if kind == "F":
                heapq.heappush(arrived, (end_s, "F", (k, j, v + 1)) if v < last else (end_s, back, cell))
            elif kind != "W":
                follow = [(back, (k, j, v - 1))] if v > 0 else []
                for also, there in [*follow, *([("W", cell)] if kind == "I" else [])]:
                    heapq.heappush(arrived, (end_s, also, there))
    return orders
