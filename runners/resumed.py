"""What is left of an iteration as a timeline: behind what was kept of it, the rest, simulated."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..schemas.columns import TimelineColumns, columns_of
from ..schemas.documents import digest
from ..schemas.orders import Kind, Operation
from ..schemas.plan import Plan
from ..schemas.quantities import print_time
from ..schemas.resumption import Rest, RestOperation, Resumption, Standing, layer_runs, print_rest_operation
from ..schemas.text import counted
from ..schemas.timeline import Event, Span, Timeline, memory_of_workers
from .program import lower_rest
from .simulator import execute

# What has been done of a micro-batch under way, and of one whose gradients are summed, split or not.
_DONE: dict[str, tuple[Kind, ...]] = {"F": ("F",), "I": ("F", "I")}
_SPLIT: tuple[Kind, ...] = ("F", "I", "W")
_WHOLE: tuple[Kind, ...] = ("F", "B")


def columns_of_resumption(resumption: Resumption) -> TimelineColumns:
    """A valid resumption as a picture shows it: one timeline of what was kept and what is left."""
    plan, rest = resumption.plan, resumption.rest
    timeline = timeline_of_resumption(resumption)
    begin_s = timeline.events[0].time_s
    fed = set(_fed(plan, rest))
    said = rest.prediction
    left = (
        "some is left"
        if said is None
        else (
            f"{print_time(said.makespan_s)} left, at least {print_time(said.lower_bound_s)}, anew {print_time(said.redo_s)}"
        )
    )
    return replace(
        columns_of(timeline),
        is_fed=np.array([(one.worker, one.op) in fed and one.start_s >= begin_s for one in timeline.spans], dtype=bool),
        layers={worker.name: plan.stage_of(worker).layers for worker in plan.workers},
        fact=f"iteration {rest.iteration}: {left} · before the line what was kept, drawn close together",
        schedule=f"the rest of iteration {rest.iteration}",
    )


def _fed(plan: Plan, rest: Rest) -> Iterator[tuple[str, str]]:
    """The operations, by worker and token, that begin with a message which is sent again."""
    sent = {(send.target, send.kind, send.microbatch, send.boundary) for send in rest.sends}
    for number, worker in enumerate(plan.live_workers()):
        for one in rest.operations(number, plan):
            microbatch = plan.microbatch_offset(one.operation.pipeline) + one.operation.microbatch
            kind, boundary = ("activation", one.layers[0]) if one.kind == "F" else ("gradient", one.layers[1])
            if one.kind != "W" and (worker.name, kind, microbatch, boundary) in sent:
                yield worker.name, print_rest_operation(one, worker.pipeline, plan.stage_of(worker).layers)


def timeline_of_resumption(resumption: Resumption) -> Timeline:
    """A valid resumption on the virtual clock, as if what was kept had been done without a pause just before.

    When it was done nobody knows from a resumption; how long it took, as far as the plan says, and by whom, it tells.
    Of sums that have ended it does not tell who computed what is in them.
    """
    plan, rest = resumption.plan, resumption.rest
    kept = [list(_kept(plan, rest, number)) for number in range(len(rest.workers))]
    begin_s = max((sum(lasts_s for _, lasts_s in own) for own in kept), default=0.0)
    spans = []
    for worker, own in zip(plan.live_workers(), kept, strict=True):
        now_s = begin_s - sum(lasts_s for _, lasts_s in own)
        for op, lasts_s in own:
            spans.append(Span(worker.name, op, now_s, now_s + lasts_s, rest.iteration))
            now_s += lasts_s
    for run in execute(lower_rest(plan, rest)).spans:
        moved = (replace(one, start_s=one.start_s + begin_s, end_s=one.end_s + begin_s) for one in run)
        spans += [replace(one, iteration=rest.iteration) for one in moved]
    return Timeline(
        "simulated",
        tuple(sorted(spans, key=lambda span: span.start_s)),
        memory_of_workers(plan),
        tuple(_events(rest, plan, begin_s)),
        digest(plan),
    )


def _kept(plan: Plan, rest: Rest, number: int) -> Iterator[tuple[str, float]]:
    """The operations of a live worker whose work is kept, as tokens, and how long each takes in s."""
    worker = plan.live_workers()[number]
    stage, own = plan.stage_of(worker), rest.workers[number]
    standing = next(one for one in rest.standings if one.worker == own.worker)
    held = set(range(*stage.layers)) & set(range(*standing.layers or (0, 0)))
    dropped = {layer for first, stop in (*own.given_up, *rest.sealed) for layer in range(first, stop)}
    layers_of: dict[int, set[int]] = defaultdict(set)
    for entry in standing.ledger:
        for microbatch in entry.microbatches:
            layers_of[microbatch] |= held & set(range(*entry.layers)) - dropped
    pieces = [
        (microbatch, layers, kind)
        for microbatch in sorted(layers_of)
        for layers in layer_runs(layers_of[microbatch])
        for kind in (_SPLIT if standing.splits else _WHOLE)
    ]
    pieces += [
        (m, stage.layers, kind) for m, kinds in sorted(_under_way(plan, rest, number, standing)) for kind in kinds
    ]
    for microbatch, layers, kind in pieces:
        pipeline = next(k for k in reversed(range(len(plan.pipelines))) if plan.microbatch_offset(k) <= microbatch)
        operation = Operation(kind, pipeline, microbatch - plan.microbatch_offset(pipeline))
        share = (layers[1] - layers[0]) / (stage.layers[1] - stage.layers[0])
        token = print_rest_operation(RestOperation(operation, layers), worker.pipeline, stage.layers)
        yield token, stage.duration_s(kind) * share * (worker.slowdown or 1.0)


def _under_way(plan: Plan, rest: Rest, number: int, standing: Standing) -> Iterator[tuple[int, tuple[Kind, ...]]]:
    """The stashes that a worker goes on with: those whose F, or I, is not among its operations."""
    stage = plan.stage_of(plan.live_workers()[number])
    begun: set[int] = set()
    gone_on: set[int] = set()
    for one in rest.operations(number, plan):
        microbatch = plan.microbatch_offset(one.operation.pipeline) + one.operation.microbatch
        if one.accumulates and one.layers == stage.layers:
            (begun if one.kind == "F" else gone_on).add(microbatch)
    for stash in standing.stashes:
        yield from ((m, _DONE[stash.after]) for m in stash.microbatches if m in gone_on - begun)


def _events(rest: Rest, plan: Plan, begin_s: float) -> Iterator[Event]:
    left = sum(len(rest.operations(number, plan)) for number in range(len(rest.workers)))
    resent = f", {counted(len(rest.sends), 'kept message')} sent again" if rest.sends else ""
    yield Event(
        begin_s, "resume", None, f"iteration {rest.iteration} goes on: {counted(left, 'operation')} left{resent}"
    )
    for copy in rest.copies:
        yield Event(
            begin_s, "copy", copy.target, f"the sums of layers {copy.layers[0]}-{copy.layers[1]} from {copy.source}"
        )
    for send in rest.sends:
        microbatch = _printed(plan, send.microbatch)
        what = f"{send.kind} {send.boundary} of micro-batch {microbatch} from {send.source}"
        yield Event(begin_s, "resend", send.target, what)


def _printed(plan: Plan, microbatch: int) -> str:
    pipeline = next(k for k in reversed(range(len(plan.pipelines))) if plan.microbatch_offset(k) <= microbatch)
    return f"{pipeline}.{microbatch - plan.microbatch_offset(pipeline)}"
