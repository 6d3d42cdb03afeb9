"""What changed from one plan to another, in words: for people, pull requests and scripts.

First what a plan promises and who made it, then its shape, then who works on what, and in which order.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..schemas.documents import pointer
from ..schemas.orders import Operation, print_operation
from ..schemas.placement import placement_words
from ..schemas.plan import Layers, Link, Pipeline, Plan, Template, Worker
from ..schemas.quantities import print_bytes, print_change, print_number, print_percent, print_rate, print_time
from ..schemas.text import counted, joined, listed

Microbatch = tuple[int, int]
Cell = tuple[int, int, int | None]  # a micro-batch, at a virtual stage where operations name theirs

NO_DIFFERENCE = "no difference"
MOST_LISTED = 8  # entries of an option that is a list, and options that only one plan has

_PREDICTION_WORDS = {
    "iteration_time_s": "iteration time",
    "makespan_s": "makespan",
    "period_s": "period",
    "lower_bound_s": "lower bound of the iteration time",
}
_RATIO_WORDS = {"gap": "gap to the lower bound", "bubble_ratio": "bubbles"}
_STAGE_WORDS = {
    "tensor_parallel": "tensor-parallel degree",
    "forward_s": "forward time",
    "backward_input_s": "backward time for inputs",
    "backward_weight_s": "backward time for weights",
    "backward_s": "full backward time",
    "optimizer_s": "optimizer time",
    "allreduce_s": "all-reduce time",
    "activation_bytes": "activations of a micro-batch",
    "weight_stash_bytes": "stash of a micro-batch for W",
    "memory_limit_bytes": "memory limit",
}
MOST_TEMPLATES = 4  # templates that no pipeline uses
MOST_MOVED = 8  # micro-batches that went from one worker to one other
_PRINTERS: dict[str, Callable[[float], str]] = {
    "s": print_time,
    "bytes": print_bytes,
    "bytes_per_s": print_rate,
    "ratio": print_percent,
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference.

    Args:
        path: a JSON pointer to the place, in the second plan where it has the place, else in the first.
        kind: the part of the plan: placement, prediction, planner, inputs, optimizer, template, pipeline, worker,
            re-routing or order.
        before: the first plan's value, as JSON; None where it has none.
        after: the second plan's.
        words: the difference as a sentence.
    """

    path: str
    kind: str
    before: Any
    after: Any
    words: str


def changed(path: str, kind: str, name: str, before: Any, after: Any) -> Iterator[Difference]:
    """A change of a named value, if it is one; how its numbers are printed follows from the path's unit."""
    if before != after:
        yield Difference(path, kind, before, after, f"{name}: {becomes(before, after, unit_of(path))}")


def becomes(before: Any, after: Any, unit: str = "") -> str:
    """`10 ms → 12 ms (+2 ms, +20 %)`: both values and, of numbers, the difference.

    Args:
        before: a number, text or None.
        after: the same.
        unit: of numbers: `s`, `bytes`, `bytes_per_s`, `ratio` or `count`; of numbers without one no difference is said.
    """
    show = _PRINTERS.get(unit, print_number)
    shown = [
        ("none" if value is None else show(value) if _are_numbers(value) else str(value)) for value in (before, after)
    ]
    if shown[0] == shown[1]:  # they differ behind the fourth digit
        return f"{before!r} → {after!r}"
    return f"{shown[0]} → {shown[1]}" + (
        _difference(before, after, unit) if unit and _are_numbers(before, after) else ""
    )


def unit_of(path: str) -> str:
    """The unit that a JSON pointer's last name carries."""
    name = path.rstrip("/0123456789")
    if name.endswith("_per_s") and not name.endswith("_bytes_per_s"):
        return ""
    return next((unit for unit in ("bytes_per_s", "bytes", "s") if name.endswith(f"_{unit}")), "")


def _difference(before: float, after: float, unit: str) -> str:
    sign = "+" if after > before else "-"
    if unit == "ratio":
        return f" ({print_points(after - before)})"
    parts = [sign + _PRINTERS.get(unit, print_number)(abs(after - before))]
    if before and unit != "count":
        parts.append(print_change((after - before) / before))
    return f" ({', '.join(parts)})"


def print_points(change: float) -> str:
    """What a ratio has gained or lost, in percentage points: `+2.5 points`, `-5 points`."""
    return f"{print_change(change).removesuffix(' %')} points"


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The differences of two plans: another placement first, then what they promise."""

    changes: tuple[Difference, ...]

    def __bool__(self) -> bool:
        """Whether there is a difference."""
        return bool(self.changes)


def diff_plans(a: Plan, b: Plan) -> PlanDiff:
    """Compare two plans by their meaning.

    A slowdown of 1 and none, links that repeat their template's and none, and another order of the templates are no
    differences.

    Args:
        a: the plan before.
        b: the plan after.
    """
    return PlanDiff(
        (
            *placement_changes(a, b),
            *prediction_changes(a, b),
            *planner_changes(a, b),
            *changed("/optimizer", "optimizer", "optimizer", a.optimizer, b.optimizer),
            *template_changes(a, b),
            *pipeline_changes(a, b),
            *worker_changes(a, b),
            *reroutings(a, b),
            *order_changes(a, b),
        )
    )


def as_words(diff: PlanDiff) -> str:
    """The differences as indented lines under the parts of the plans that they belong to."""
    if not diff:
        return NO_DIFFERENCE
    lines: list[str] = []
    part = ""
    for change in diff.changes:
        if change.kind != part:
            lines.append(change.kind)
            part = change.kind
        lines.append(f"  {change.words}")
    return "\n".join(lines)


def as_markdown(diff: PlanDiff) -> str:
    """The differences as a table for a pull request; what a reviewer seldom asks for is folded under it."""
    if not diff:
        return NO_DIFFERENCE
    first = [change for change in diff.changes if not _is_detail(change)]
    more = [change for change in diff.changes if _is_detail(change)]
    if not first:
        return _table(more)
    folded = ("", f"<details><summary>{len(more)} more</summary>", "", _table(more), "", "</details>") if more else ()
    return "\n".join([_table(first), *folded])


def _is_detail(change: Difference) -> bool:
    """How a plan was made, each worker's own memory, and where orders differ."""
    return change.kind in ("planner", "inputs", "order") or change.path.startswith("/prediction/peak_memory_bytes/")


def _table(changes: Sequence[Difference]) -> str:
    rows = [f"| {change.kind} | {_cell(change.words)} |" for change in changes]
    return "\n".join(["| part | change |", "| --- | --- |", *rows])


def as_tree(diff: PlanDiff) -> dict[str, Any]:
    """The differences as JSON values: `equal`, and `changes` with path, kind, before, after and words."""
    names = ("path", "kind", "before", "after", "words")
    changes = [{name: getattr(change, name) for name in names} for change in diff.changes]
    return {"equal": not diff, "changes": changes}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def planner_changes(a: Plan, b: Plan) -> Iterator[Difference]:
    """Who made the plan, with which options, from what."""
    for name in ("name", "version", "seed"):
        words = "planner" if name == "name" else f"planner's {name}"
        yield from changed(f"/planner/{name}", "planner", words, getattr(a.planner, name), getattr(b.planner, name))
    yield from _options((), a.planner.options, b.planner.options)
    yield from _options_of_one(a.planner.options, b.planner.options)
    for name in sorted({**a.inputs, **b.inputs}):
        before, after = a.inputs.get(name), b.inputs.get(name)
        if before != after:
            words = f"made from another {name}: {becomes(_short(before), _short(after))}"
            yield Difference(pointer(("inputs", name)), "inputs", before, after, words)


def _options(place: tuple[str, ...], a: dict[str, Any], b: dict[str, Any]) -> Iterator[Difference]:
    """What differs in the options that both planners have, and in options within options."""
    for name in sorted(a.keys() & b.keys() if not place else {**a, **b}):
        before, after, inner = a.get(name), b.get(name), (*place, name)
        if all(isinstance(option, dict | None) for option in (before, after)) and (before or after):
            yield from _options(inner, before or {}, after or {})
            continue
        if before != after:
            path = pointer(("planner", "options", *inner))
            old, new = _brief(before), _brief(after)
            becoming = f"{new}, but others" if old == new else becomes(old, new, unit_of(path))
            yield Difference(path, "planner", before, after, f"option {' '.join(inner)}: {becoming}")


def _options_of_one(a: dict[str, Any], b: dict[str, Any]) -> Iterator[Difference]:
    """The options that only one planner has, in one line each; those that say nothing are not named."""
    for options, others, words in ((a, b, "options that are gone"), (b, a, "new options")):
        own = {name: options[name] for name in sorted(options) if name not in others}
        named = [name if isinstance(value, dict) else f"{name} {_brief(value)}" for name, value in own.items() if value]
        if own:
            told = listed(named, MOST_LISTED, "; ") if named else f"{len(own)}, none of them set"
            before, after = (own, None) if options is a else (None, own)
            yield Difference("/planner/options", "planner", before, after, f"{words}: {told}")


def _brief(option: Any) -> Any:
    """An option as a value that a line can hold."""
    if not isinstance(option, list):
        return option
    if len(option) > MOST_LISTED or any(isinstance(item, dict | list) for item in option):
        return "1 entry" if len(option) == 1 else f"{len(option)} entries"
    return ", ".join(map(str, option)) or "nothing"


def _short(digest: str | None) -> str | None:
    return digest and (digest if len(digest) <= 12 else digest[:12] + "…")


def placement_changes(a: Plan, b: Plan) -> Iterator[Difference]:
    """Other placements of pipelines, those that change alike together, and which virtual stages moved."""
    if not (a.is_placed or b.is_placed):
        return
    pairs: dict[tuple[str, str], list[int]] = defaultdict(list)
    for k in range(min(len(a.pipelines), len(b.pipelines))):
        if _is_placed_anew(a, b, k):
            pairs[a.pipelines[k].template, b.pipelines[k].template].append(k)
    for pipelines in pairs.values():
        old, new = (plan.template_of(pipelines[0]) for plan in (a, b))
        where = "" if len(pipelines) == len(b.pipelines) else f" of pipeline {listed(map(str, pipelines))}"
        words = f"placement{where}: {placement_words(old.columns)} → {placement_words(new.columns)}"
        path = f"/templates/{b.templates.index(new)}/placement"
        yield Difference(path, "placement", _columns(old), _columns(new), words)
        moved = [stage for stage in range(len(new.stages)) if len(old.stages) == len(new.stages)]
        moved = [stage for stage in moved if old.column_of[stage] != new.column_of[stage]]
        for stage in moved if len(moved) <= MOST_MOVED else ():
            columns = old.column_of[stage], new.column_of[stage]
            words = f"virtual stage {stage}{where} moved from column {columns[0]} to column {columns[1]}"
            yield Difference(f"{path}/{columns[1]}", "placement", *columns, words)


def _is_placed_anew(a: Plan, b: Plan, pipeline: int) -> bool:
    """Whether a pipeline of both plans has another placement in the second one."""
    old, new = a.template_of(pipeline), b.template_of(pipeline)
    return (old.placement is not None or new.placement is not None) and old.columns != new.columns


def _columns(template: Template) -> list[list[int]]:
    return [list(held) for held in template.columns]


def prediction_changes(a: Plan, b: Plan) -> Iterator[Difference]:
    """What the plans promise."""
    if a.prediction is None or b.prediction is None:
        if a.prediction is not b.prediction:
            words = "the prediction is gone" if b.prediction is None else "a prediction came"
            before, after = (plan.prediction and plan.prediction.iteration_time_s for plan in (a, b))
            yield Difference("/prediction", "prediction", before, after, words)
        return
    for name, words in _PREDICTION_WORDS.items():
        before, after = getattr(a.prediction, name), getattr(b.prediction, name)
        yield from changed(f"/prediction/{name}", "prediction", words, before, after)
    for name, words in _RATIO_WORDS.items():
        before, after = getattr(a.prediction, name), getattr(b.prediction, name)
        if before != after:
            change = f"{words}: {becomes(before, after, 'ratio')}"
            yield Difference(f"/prediction/{name}", "prediction", before, after, change)
    yield from changed("/prediction/proof", "prediction", "proof", a.prediction.proof, b.prediction.proof)
    scopes = a.prediction.proof_scope, b.prediction.proof_scope
    yield from changed("/prediction/proof_scope", "prediction", "scope of the proof", *scopes)
    path = "/prediction/peak_memory_bytes"
    peaks = [dict(zip((worker.name for worker in plan.workers), promised.peak_memory_bytes, strict=True))
             for plan, promised in ((a, a.prediction), (b, b.prediction))]  # fmt: skip
    largest = [max(of_worker.values(), default=0.0) for of_worker in peaks]
    yield from changed(path, "prediction", "largest peak memory of a worker", *largest)
    for index, worker in enumerate(b.workers):
        if worker.name in peaks[0] and not worker.failed:
            words = f"peak memory of worker {worker.name}"
            yield from changed(f"{path}/{index}", "prediction", words, *(of_worker[worker.name] for of_worker in peaks))


def template_changes(a: Plan, b: Plan) -> Iterator[Difference]:
    """Templates that came, went or changed, by name; of those that no pipeline uses, how many did."""
    before = {template.name: index for index, template in enumerate(a.templates)}
    after = {template.name: index for index, template in enumerate(b.templates)}
    used = {pipeline.template for plan in (a, b) for pipeline in plan.pipelines}
    for name, index in before.items():
        if name not in after and name in used:
            stages = len(a.templates[index].stages)
            words = f"template {name} ({stages} stages) is gone"
            yield Difference(f"/templates/{index}", "template", name, None, words)
    for name, index in after.items():
        template = b.templates[index]
        if name not in used:
            continue
        if name in before:
            yield from _template(a.templates[before[name]], template, f"/templates/{index}")
        else:
            words = f"template {name} ({len(template.stages)} stages) is new"
            yield Difference(f"/templates/{index}", "template", None, name, words)
    spare_before, spare_after = ({t.name: t for t in plan.templates if t.name not in used} for plan in (a, b))
    counts = (
        ([name for name in spare_before if name not in spare_after], "gone"),
        ([name for name in spare_after if name not in spare_before], "new"),
        ([name for name, spare in spare_after.items() if spare != spare_before.get(name, spare)], "changed"),
    )
    words = ", ".join(
        f"{', '.join(names) if len(names) <= MOST_TEMPLATES else f'{len(names)} ({names[0]} to {names[-1]})'} {what}"
        for names, what in counts
        if names
    )
    if words:
        words = f"templates that no pipeline uses: {words}"
        yield Difference("/templates", "template", list(spare_before), list(spare_after), words)


def _template(a: Template, b: Template, path: str) -> Iterator[Difference]:
    placed = a.placement is not None or b.placement is not None
    for column in range(min(len(a.columns), len(b.columns)) if placed else 0):
        words = f"memory limit of column {column} of template {b.name}"
        place = f"{path}/memory_limits_bytes/{column}"
        yield from changed(place, "template", words, a.limit_bytes(column), b.limit_bytes(column))
    if len(a.stages) != len(b.stages):
        words = f"template {b.name} has {len(b.stages)} stages instead of {len(a.stages)}"
        yield Difference(f"{path}/stages", "template", len(a.stages), len(b.stages), words)
        return  # stage i of the one is no stage i of the other
    for index, (before, after) in enumerate(zip(a.stages, b.stages, strict=True)):
        place, name = f"{path}/stages/{index}", f"stage {index} of template {b.name}"
        yield from _layers((before.layers,), (after.layers,), f"{place}/layers", "template", name)
        for field, what in _STAGE_WORDS.items():
            values = getattr(before, field), getattr(after, field)
            if field != "memory_limit_bytes" or not placed:
                yield from changed(f"{place}/{field}", "template", f"{what} of {name}", *values)
    yield from _links(a.links, b.links, f"{path}/links", "template", f"template {b.name}")


def _layers(a: Sequence[Layers], b: Sequence[Layers], path: str, kind: str, name: str) -> Iterator[Difference]:
    if tuple(a) != tuple(b):
        words = f"{name} holds {print_layers(*b)} instead of {print_layers(*a)}"
        before, after = (list(held[0]) if len(held) == 1 else [list(one) for one in held] for held in (a, b))
        yield Difference(path, kind, before, after, words)


def print_layers(*ranges: Layers) -> str:
    """Layers, [first, stop) of each range, in words."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1] - 1:
        return f"layer {ranges[0][0]}"
    named = [f"{first}" if first == stop - 1 else f"{first}–{stop - 1}" for first, stop in ranges]  # noqa: RUF001
    return f"layers {joined(named)}"


def _links(a: Sequence[Link], b: Sequence[Link], path: str, kind: str, name: str) -> Iterator[Difference]:
    for index, (before, after) in enumerate(zip(a, b, strict=False)):
        words = f"delay of link {index} of {name}"
        yield from changed(f"{path}/{index}/delay_s", kind, words, before.delay_s, after.delay_s)


def pipeline_changes(a: Plan, b: Plan) -> Iterator[Difference]:
    """Pipelines that came, went, or got another template, other micro-batches or other links."""
    common = min(len(a.pipelines), len(b.pipelines))
    for k in range(common):
        path, name = f"/pipelines/{k}", f"pipeline {k}"
        before, after = a.pipelines[k], b.pipelines[k]
        if before.template != after.template:
            stages = [len(plan.template_of(k).stages) for plan in (a, b)]
            words = f"template of {name}: {becomes(before.template, after.template)}"
            words += f" ({stages[1]} stages instead of {stages[0]})" if stages[0] != stages[1] else ""
            yield Difference(f"{path}/template", "pipeline", before.template, after.template, words)
        if before.microbatches != after.microbatches:
            words = f"micro-batches of {name}: {becomes(before.microbatches, after.microbatches, 'count')}"
            yield Difference(f"{path}/microbatches", "pipeline", before.microbatches, after.microbatches, words)
        if _has_own_links(a, k) or _has_own_links(b, k):
            yield from _links(a.links_of(k), b.links_of(k), f"{path}/links", "pipeline", name)
    for k, gone in enumerate(a.pipelines[common:], start=common):
        yield Difference(f"/pipelines/{k}", "pipeline", gone.template, None, f"pipeline {k} is gone: {_describe(gone)}")
    for k, new in enumerate(b.pipelines[common:], start=common):
        yield Difference(f"/pipelines/{k}", "pipeline", None, new.template, f"pipeline {k} is new: {_describe(new)}")


def _describe(pipeline: Pipeline) -> str:
    return f"template {pipeline.template}, {pipeline.microbatches} micro-batches"


def _has_own_links(plan: Plan, pipeline: int) -> bool:
    return plan.links_of(pipeline) != plan.template_of(pipeline).links


def worker_changes(a: Plan, b: Plan) -> Iterator[Difference]:
    """Workers of both plans that failed, came back, got slower or faster, or hold other layers than before."""
    for index, before, after in _workers_of_both(a, b):
        path, name = f"/workers/{index}", f"worker {after.name}"
        if bool(before.failed) != bool(after.failed):
            words = f"{name} failed" if after.failed else f"{name} is back"
            yield Difference(f"{path}/failed", "worker", bool(before.failed), bool(after.failed), words)
        slow = (before.slowdown or 1.0, after.slowdown or 1.0)
        yield from changed(f"{path}/slowdown", "worker", f"slowdown of {name}", *slow)
        # Of one template with other stages the template's own changes tell.
        if a.pipelines[before.pipeline].template != b.pipelines[after.pipeline].template:
            yield from _layers(a.layers_of(before), b.layers_of(after), path, "worker", name)


def reroutings(a: Plan, b: Plan) -> Iterator[Difference]:
    """Micro-batches that another worker executes, grouped by the stage and the worker they moved from.

    Of pipelines with another placement than before nothing is said: there stages are elsewhere.
    """
    before, after = _executors(a), _executors(b)
    index_of = {worker.name: index for index, worker in enumerate(b.workers)}
    moved: dict[tuple[int, str, int], dict[Microbatch, str]] = defaultdict(dict)
    common = range(min(len(a.pipelines), len(b.pipelines)))
    anew = {k for k in common if _is_placed_anew(a, b, k)}
    for (stage, *place), executor in sorted(after.items()):
        microbatch = (place[0], place[1])
        if place[0] in anew:
            continue
        origin = before.get((stage, *microbatch), executor)
        if origin != executor:
            moved[stage, origin, microbatch[0]][microbatch] = executor
    for (stage, origin, _), targets in moved.items():
        shares: dict[str, list[Microbatch]] = defaultdict(list)
        for microbatch, executor in targets.items():
            shares[executor].append(microbatch)
        parts = list(shares)
        if len(shares) > 1:
            told = (print_ranges(share) if len(share) <= MOST_MOVED else len(share) for share in shares.values())
            parts = [f"{executor} ({share})" for executor, share in zip(shares, told, strict=True)]
        noun = "micro-batch" if len(targets) == 1 else "micro-batches"
        words = f"{noun} {print_ranges(list(targets))} of stage {stage} moved from worker {origin} to {joined(parts)}"
        named = {executor: [f"{k}.{j}" for k, j in share] for executor, share in shares.items()}
        place_index = index_of.get(origin)
        path = "/workers" if place_index is None else f"/workers/{place_index}"
        yield Difference(path, "re-routing", origin, named, words)


def order_changes(a: Plan, b: Plan) -> Iterator[Difference]:
    """Orders that differ, of workers alive in both plans that hold the same layers; others do not compare."""
    for index, before, after in _workers_of_both(a, b):
        held = ([stage.layers for stage in plan.stages_of(worker)] for plan, worker in ((a, before), (b, after)))
        if before.failed or after.failed or next(held) != next(held):
            continue
        old, new = before.operations(), after.operations()
        if old == new and before.pairs() != after.pairs():
            there, here = (counted(len(worker.pairs()), "pair") for worker in (before, after))
            words = f"worker {after.name} runs {here} of passes side by side, not {there}"
            yield Difference(f"/workers/{index}/order", "order", before.order, after.order, words)
        if old != new:
            pairs = enumerate(zip(old, new, strict=False))
            place = next((place for place, (was, now) in pairs if was != now), min(len(old), len(new)))
            there, here = (
                print_operation(order[place], after.pipeline) if place < len(order) else "its end"
                for order in (old, new)
            )
            differs = f"differs from operation {place} on ({here} instead of {there})"
            words = f"worker {after.name} {differs}: {_extent(old, new)}"
            yield Difference(f"/workers/{index}/order", "order", before.order, after.order, words)


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
        (plan.virtual_stage(worker, operation), operation.pipeline, operation.microbatch): worker.name
        for worker in plan.workers
        for operation in worker.operations()
    }


def _extent(old: Sequence[Operation], new: Sequence[Operation]) -> str:
    """How much changed: operations that moved, came and went, and backward passes that were split or fused."""
    split, fused = _splits(old, new), _splits(new, old)
    old, new = _as_inputs(old, split, fused), _as_inputs(new, fused, split)
    place_of = {operation: place for place, operation in enumerate(old)}
    places = [place_of[operation] for operation in new if operation in place_of]
    ends: list[int] = []
    for place in places:
        at = bisect_left(ends, place)
        ends[at : at + 1] = [place]
    counts = (
        (len(places) - len(ends), "moved"),
        (len(set(new) - set(old)), "came"),
        (len(set(old) - set(new)), "left"),
        (len(split), "B split into I and W"),
        (len(fused), "I and W fused into B"),
    )
    return ", ".join(f"{count} {words}" for count, words in counts if count) or "operations are repeated"


def _splits(old: Sequence[Operation], new: Sequence[Operation]) -> set[Cell]:
    """Micro-batches at virtual stages whose backward pass is a B in the first order, and an I and a W in the second."""

    def of(order: Sequence[Operation], kind: str) -> set[Cell]:
        return {operation[1:] for operation in order if operation.kind == kind}

    return of(old, "B") & of(new, "I") & of(new, "W")


def _as_inputs(order: Sequence[Operation], whole: set[Cell], parts: set[Cell]) -> tuple[Operation, ...]:
    """The order with each B of `whole` read as an I, and without the W's of `parts`: so that both forms compare."""
    read = []
    for operation in order:
        cell = operation[1:]
        if operation.kind == "W" and cell in parts:
            continue
        is_whole = operation.kind == "B" and cell in whole
        read.append(operation._replace(kind="I") if is_whole else operation)
    return tuple(read)
