"""What is left of an iteration as a timeline: behind what was kept of it, the rest, simulated."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..schemas.columns import TimelineColumns, columns_of
from ..schemas.documents import digest
from ..schemas.orders import Kind, Operation
from ..schemas.plan import Plan
from ..schemas.quantities import print_time
from ..schemas.resumption import Rest, Resumption, print_rest_operation, seat_at, seats_in
from ..schemas.text import counted
from ..schemas.timeline import Event, Span, Timeline, memory_of_workers
from .program import Compute, lower_rest
from .simulator import execute, name_of_operation, seconds_of

# What has been done of a micro-batch under way, and of one whose gradients are summed, split or not.
_UNDER_WAY: dict[str, tuple[Kind, ...]] = {"F": ("F",), "I": ("F", "I")}
_SPLIT: tuple[Kind, ...] = ("F", "I", "W")
_WHOLE: tuple[Kind, ...] = ("F", "B")


def columns_of_resumption(resumption: Resumption) -> TimelineColumns:
    """A valid resumption as a picture shows it: one timeline of what was kept and what is left."""
    plan, rest = resumption.plan, resumption.rest
    timeline = timeline_of_resumption(resumption)
    begin_s = timeline.events[0].time_s
    fed = set(_fed(plan, rest))
    said = rest.prediction
    left = "some is left"
    if said is not None:
        least, anew = print_time(said.lower_bound_s), print_time(said.redo_s)
        left = f"{print_time(said.makespan_s)} left, at least {least}, anew {anew}"
    return replace(
        columns_of(timeline),
        is_fed=np.array([(one.worker, one.op) in fed and one.start_s >= begin_s for one in timeline.spans], dtype=bool),
        layers={worker.name: tuple(one.layers for one in plan.stages_of(worker)) for worker in plan.workers},
        fact=f"iteration {rest.iteration}: {left} · before the line what was kept, drawn close together",
        schedule=f"the rest of iteration {rest.iteration}",
    )


def _fed(plan: Plan, rest: Rest) -> Iterator[tuple[str, str]]:
    """The operations, by worker and token, that begin with a message which is sent again."""
    sent = {(send.target, send.kind, send.microbatch, send.boundary) for send in rest.sends}
    for number, worker in enumerate(plan.live_workers()):
        seats = seats_in(plan, worker)
        for one in rest.operations(number, plan):
            microbatch = plan.microbatch_offset(one.operation.pipeline) + one.operation.microbatch
            kind, boundary = ("activation", one.layers[0]) if one.kind == "F" else ("gradient", one.layers[1])
            if one.kind != "W" and (worker.name, kind, microbatch, boundary) in sent:
                yield worker.name, print_rest_operation(one, worker.pipeline, seats[one.operation.stage])


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
    worker, standing = plan.live_workers()[number], rest.standing_of(number)
    seats = seats_in(plan, worker)
    done = _SPLIT if standing.splits else _WHOLE
    pieces = [(m, layers, kind) for m, runs in rest.kept(number, plan).items() for layers in runs for kind in done]
    under_way = rest.taken_up(number, plan).items()
    pieces += [(m, layers, kind) for (m, layers), after in sorted(under_way) for kind in _UNDER_WAY[after]]
    for microbatch, layers, kind in pieces:
        one = Compute(Operation(kind, *plan.microbatch_at(microbatch), seat_at(seats, layers)), layers)
        stage = plan.stage_at(worker, one.operation)
        yield name_of_operation(one, worker.pipeline, stage), seconds_of(one, stage, worker)


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
        microbatch = ".".join(map(str, plan.microbatch_at(send.microbatch)))
        what = f"{send.kind} {send.boundary} of micro-batch {microbatch} from {send.source}"
        yield Event(begin_s, "resend", send.target, what)
