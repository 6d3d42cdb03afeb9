"""What a timeline's spans say: where they ran, what kind they are, and whose micro-batch they work on."""

import re
from collections.abc import Iterable
from functools import cache

from ..schemas.errors import InvalidInputError
from ..schemas.orders import Operation, parse_operation
from ..schemas.timeline import Span, Timeline
from .looks import LOOKS

_WORKER = re.compile(r"([0-9]+)/([0-9]+)")


@cache
def worker_place(worker: str) -> tuple[int, int]:
    """Pipeline and stage of a worker `k/i`.

    Raises:
        InvalidInputError: the name is of another form.
    """
    match = _WORKER.fullmatch(worker)
    if match is None:
        raise InvalidInputError(f"{worker!r} is no worker", fix="name workers k/i: the pipeline and the stage")
    return int(match[1]), int(match[2])


@cache
def operation_of(worker: str, op: str) -> Operation | None:
    """The operation of a span by its worker and token; None for `allreduce`, `step` and whatever is no token."""
    if op in LOOKS:
        return None
    try:
        return parse_operation(op, worker_place(worker)[0])
    except InvalidInputError:
        return None


def kind_of(span: Span) -> str:
    """The span's key in LOOKS."""
    operation = operation_of(span.worker, span.op)
    if operation is not None:
        return operation.kind
    return span.op if span.op in ("allreduce", "step") else "other"


def is_rerouted(span: Span) -> bool:
    """Whether the span works on a micro-batch of another pipeline than its worker's."""
    operation = operation_of(span.worker, span.op)
    return operation is not None and operation.pipeline != worker_place(span.worker)[0]


def label_of(span: Span) -> str:
    """What stands in the bar: the micro-batch's number, with its pipeline where it was re-routed; else nothing."""
    return "" if operation_of(span.worker, span.op) is None else span.op[1:]


def workers_of(timelines: Iterable[Timeline]) -> list[str]:
    """All workers that the timelines name, in (pipeline, stage) order.

    A worker whose micro-batches were re-routed is named by them, even if it has failed and has no spans of its own.
    """
    found: set[str] = set()
    for timeline in timelines:
        found.update(memory.worker for memory in timeline.workers)
        found.update(event.worker for event in timeline.events if event.worker and _WORKER.fullmatch(event.worker))
        for worker, op in {(span.worker, span.op) for span in timeline.spans}:
            operation = operation_of(worker, op)
            owner = worker if operation is None else f"{operation.pipeline}/{worker_place(worker)[1]}"
            found.update((worker, owner))
    return sorted(found, key=worker_place)
