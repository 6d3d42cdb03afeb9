"""How the work of two plans differs: who failed, whose micro-batches moved where, and the orders of the workers."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ..schemas.orders import Operation, print_operation
from ..schemas.plan import Plan, Stage, Worker
from .change import Change, changed
from .diff_shape import print_layers

Microbatch = tuple[int, int]

MOST_NAMED = 8  # micro-batches that went from one worker to one other


def worker_changes(a: Plan, b: Plan) -> Iterator[Change]:
    """Workers of both plans that failed, came back, got slower or faster, or hold other layers than before."""
    for index, before, after in _workers_of_both(a, b):
        path, name = f"/workers/{index}", f"worker {after.name}"
        if bool(before.failed) != bool(after.failed):
            words = f"{name} failed" if after.failed else f"{name} is back"
            yield Change(f"{path}/failed", "worker", bool(before.failed), bool(after.failed), words)
        slow = (before.slowdown or 1.0, after.slowdown or 1.0)
        yield from changed(f"{path}/slowdown", "worker", f"slowdown of {name}", *slow)
        # Of one template with other stages the template's own changes tell.
        if a.pipelines[before.pipeline].template != b.pipelines[after.pipeline].template:
            yield from _other_layers(a.stage_of(before), b.stage_of(after), path, name)


def _other_layers(a: Stage, b: Stage, path: str, name: str) -> Iterator[Change]:
    if a.layers != b.layers:
        words = f"{name} holds {print_layers(b)} instead of {print_layers(a)}"
        yield Change(path, "worker", list(a.layers), list(b.layers), words)


def reroutings(a: Plan, b: Plan) -> Iterator[Change]:
    """Micro-batches that another worker executes, grouped by the stage and the worker they moved from."""
    before, after = _executors(a), _executors(b)
    index_of = {worker.name: index for index, worker in enumerate(b.workers)}
    moved: dict[tuple[int, str, int], dict[Microbatch, str]] = defaultdict(dict)
    for (stage, *place), executor in sorted(after.items()):
        microbatch = (place[0], place[1])
        origin = before.get((stage, *microbatch), executor)
        if origin != executor:
            moved[stage, origin, microbatch[0]][microbatch] = executor
    for (stage, origin, _), targets in moved.items():
        shares: dict[str, list[Microbatch]] = defaultdict(list)
        for microbatch, executor in targets.items():
            shares[executor].append(microbatch)
        to = _listed(
            [f"{executor} ({_share(share)})" if len(shares) > 1 else executor for executor, share in shares.items()]
        )
        noun = "micro-batch" if len(targets) == 1 else "micro-batches"
        words = f"{noun} {print_ranges(list(targets))} of stage {stage} moved from worker {origin} to {to}"
        named = {executor: [f"{k}.{j}" for k, j in share] for executor, share in shares.items()}
        place_index = index_of.get(origin)
        path = "/workers" if place_index is None else f"/workers/{place_index}"
        yield Change(path, "re-routing", origin, named, words)


def order_changes(a: Plan, b: Plan) -> Iterator[Change]:
    """Orders that differ, of workers alive in both plans that hold the same layers; others do not compare."""
    for index, before, after in _workers_of_both(a, b):
        if before.failed or after.failed or a.stage_of(before).layers != b.stage_of(after).layers:
            continue
        old, new = before.operations(), after.operations()
        if old != new:
            words = f"worker {after.name} {_first_difference(old, new, after.pipeline)}: {_extent(old, new)}"
            yield Change(f"/workers/{index}/order", "order", before.order, after.order, words)


def _share(microbatches: Sequence[Microbatch]) -> str:
    """Which micro-batches of several went to one worker; only how many where that would be a long list."""
    return print_ranges(microbatches) if len(microbatches) <= MOST_NAMED else str(len(microbatches))


def print_ranges(microbatches: Sequence[Microbatch]) -> str:
    """Micro-batches (pipeline, number) of one pipeline in short: `1.0–1.3, 1.5`."""  # noqa: RUF002
    runs: list[tuple[Microbatch, Microbatch]] = []
    for k, j in sorted(microbatches):
        if runs and runs[-1][1] == (k, j - 1):
            runs[-1] = (runs[-1][0], (k, j))
        else:
            runs.append(((k, j), (k, j)))
    dash = "–"  # noqa: RUF001
    return ", ".join(f"{a[0]}.{a[1]}" if a == b else f"{a[0]}.{a[1]}{dash}{b[0]}.{b[1]}" for a, b in runs)


def _workers_of_both(a: Plan, b: Plan) -> Iterator[tuple[int, Worker, Worker]]:
    """Workers that both plans have: the second's index, the first's worker, the second's."""
    before = {worker.name: worker for worker in a.workers}
    for index, worker in enumerate(b.workers):
        if worker.name in before:
            yield index, before[worker.name], worker


def _executors(plan: Plan) -> dict[tuple[int, int, int], str]:
    """Who executes micro-batch k.j at a stage: (stage, k, j) to the worker's name."""
    return {
        (worker.stage, operation.pipeline, operation.microbatch): worker.name
        for worker in plan.workers
        for operation in worker.operations()
    }


def _first_difference(old: Sequence[Operation], new: Sequence[Operation], pipeline: int) -> str:
    pairs = enumerate(zip(old, new, strict=False))
    place = next((place for place, (before, after) in pairs if before != after), min(len(old), len(new)))
    here, there = (print_operation(order[place], pipeline) if place < len(order) else "its end" for order in (new, old))
    return f"differs from operation {place} on ({here} instead of {there})"


def _extent(old: Sequence[Operation], new: Sequence[Operation]) -> str:
    """How much changed: operations that moved, came and went, and backward passes that were split or fused."""
    split, fused = _splits(old, new), _splits(new, old)
    old, new = _as_inputs(old, split, fused), _as_inputs(new, fused, split)
    place_of = {operation: place for place, operation in enumerate(old)}
    places = [place_of[operation] for operation in new if operation in place_of]
    counts = (
        (len(places) - _longest_rise(places), "moved"),
        (len(set(new) - set(old)), "came"),
        (len(set(old) - set(new)), "left"),
        (len(split), "B split into I and W"),
        (len(fused), "I and W fused into B"),
    )
    return ", ".join(f"{count} {words}" for count, words in counts if count) or "operations are repeated"


def _splits(old: Sequence[Operation], new: Sequence[Operation]) -> set[Microbatch]:
    """Micro-batches whose backward pass is a B in the first order, and an I and a W in the second."""

    def of(order: Sequence[Operation], kind: str) -> set[Microbatch]:
        return {(operation.pipeline, operation.microbatch) for operation in order if operation.kind == kind}

    return of(old, "B") & of(new, "I") & of(new, "W")


def _as_inputs(order: Sequence[Operation], whole: set[Microbatch], parts: set[Microbatch]) -> tuple[Operation, ...]:
    """The order with each B of `whole` read as an I, and without the W's of `parts`: so that both forms compare."""
    read = []
    for operation in order:
        microbatch = (operation.pipeline, operation.microbatch)
        if operation.kind == "W" and microbatch in parts:
            continue
        is_whole = operation.kind == "B" and microbatch in whole
        read.append(operation._replace(kind="I") if is_whole else operation)
    return tuple(read)


def _longest_rise(places: Sequence[int]) -> int:
    """The length of the longest rising subsequence: the operations that kept their relative order."""
    ends: list[int] = []
    for place in places:
        at = bisect_left(ends, place)
        ends[at : at + 1] = [place]
    return len(ends)


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
