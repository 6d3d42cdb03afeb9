"""Memory of each worker over time, from a timeline's spans and the sizes of its workers."""

from collections.abc import Iterable, Sequence

from ..schemas.timeline import Span, Timeline, WorkerMemory
from .spans import operation_of

Points = tuple[tuple[float, float], ...]


def memory_curves(timeline: Timeline) -> dict[str, Points]:
    """The activation memory of each worker as steps.

    F adds activation_bytes when it starts; I leaves weight_stash_bytes when it ends; W or B frees the rest when it
    ends. A new epoch drops what was under way.

    Args:
        timeline: its `workers` say the sizes; a worker without sizes gets no curve.

    Returns:
        For each worker the points (time_s, bytes held from then on), in time order. Of several points at one time
        each was true for a moment, so the largest value of all is the worker's peak.
    """
    drops_s = [event.time_s for event in timeline.events if event.kind == "epoch"]
    spans: dict[str, list[Span]] = {memory.worker: [] for memory in timeline.workers if memory.activation_bytes > 0}
    for span in timeline.spans:
        if span.worker in spans:
            spans[span.worker].append(span)
    sizes = {memory.worker: memory for memory in timeline.workers}
    return {worker: _steps(own, sizes[worker], drops_s) for worker, own in spans.items()}


def peak_bytes(points: Points) -> float:
    """The largest value of a curve."""
    return max((size for _, size in points), default=0.0)


def _steps(spans: Iterable[Span], sizes: WorkerMemory, drops_s: Sequence[float]) -> Points:
    # Counting micro-batches instead of summing bytes keeps the curve exact: it ends at zero, not at a rounding error.
    whole: set[tuple[int, int, int]] = set()
    stashed: set[tuple[int, int, int]] = set()
    points = []
    for time_s, kind, microbatch in _changes(spans, drops_s):
        if kind == "drop":
            whole.clear()
            stashed.clear()
        was_whole = microbatch in whole
        whole.discard(microbatch)
        stashed.discard(microbatch)
        if kind == "F":
            whole.add(microbatch)
        elif kind == "I" and was_whole:
            stashed.add(microbatch)
        points.append((time_s, len(whole) * sizes.activation_bytes + len(stashed) * sizes.weight_stash_bytes))
    return tuple(points)


def _changes(spans: Iterable[Span], drops_s: Sequence[float]) -> list[tuple[float, str, tuple[int, int, int]]]:
    """When memory changes (F at its start, the others at their end), by which kind, for which micro-batch.

    A new epoch drops whatever was under way.
    """
    changes = [(time_s, "drop", (-1, -1, -1)) for time_s in drops_s]
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
        operation = operation_of(span.worker, span.op)
        if operation is not None:
            time_s = span.start_s if operation.kind == "F" else span.end_s
            microbatch = (span.iteration, operation.pipeline, operation.microbatch)
            changes.append((time_s, operation.kind, microbatch))
    # Stable: of an end and a start at one time the earlier span's end stays first.
    return sorted(changes, key=lambda change: change[0])
