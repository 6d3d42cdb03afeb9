"""Kubernetes' events: what `kubectl get events -o json` prints, as starts, ends and failures of a job's pods.

Source: k8s.io/api core/v1 Event (and events.k8s.io/v1, whose times are named otherwise); reasons are those of kubelet,
scheduler, node controller and job controller (pkg/kubelet/events/event.go, pkg/controller/...).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ....schemas.errors import InvalidInputError
from ....schemas.files import JsonStream, opened, source_of
from ..happenings import Happening, HappeningKind, LogPlace
from ..log_count import LogCount
from .reader import MOST_CAUSE
from .scheduler import stamp_s

_KINDS: dict[str, HappeningKind] = {
    "Started": "start",
    "Completed": "end",
    "OOMKilling": "failure",
    "SystemOOM": "failure",
    "Evicted": "failure",
    "Preempted": "failure",
    "Preempting": "failure",
    "NodeNotReady": "failure",
    "TaintManagerEviction": "failure",
    "DeletingNode": "failure",
    "Failed": "failure",
    "FailedMount": "failure",
    "BackoffLimitExceeded": "failure",
    "DeadlineExceeded": "failure",
    "BackOff": "detected",
    "Unhealthy": "detected",
    "FailedScheduling": "other",
    "Killing": "other",
}
_MOST_BYTES = 4 << 20  # of one event


def read_kubernetes_events(path: str, count: LogCount) -> list[Happening]:
    """What events tell, in order; those of other reasons are passed over.

    The text that kubectl prints by default says only how long ago things were, so it is not read.

    Args:
        path: of the file.
        count: hears of events without a time.

    Raises:
        InvalidInputError: it is no list of events.
    """
    source = source_of(path)
    with opened(path) as stream:
        if (start := stream.peek(64).lstrip()[:1]) != b"{":
            raise InvalidInputError(
                "these events are no JSON: as a table they say only how long ago they were"
                if start
                else "the file is empty",
                where=source,
                fix="kubectl get events -o json",
            )
        chunks = iter(lambda: stream.read1(1 << 16), b"")
        items = JsonStream(chunks, source, most_bytes=_MOST_BYTES, fix="print it again: kubectl get events -o json")
        told = [
            one
            for number, event in enumerate(items.items("items"), start=1)
            for one in _happenings(event, LogPlace(source, number), count)
        ]
    count.files += 1
    count.formats[source] = "kubernetes"
    return sorted(told, key=lambda one: one.time_s or 0.0)


def _happenings(event: Any, place: LogPlace, count: LogCount) -> Iterator[Happening]:
    count.lines += 1
    kind = _KINDS.get(str(event.get("reason"))) if isinstance(event, dict) else None
    if kind is None:
        return
    time_s = _time_s(event)
    if time_s is None:
        count.garbled += 1
        count.remark("not understood: an event of Kubernetes has no time", str(place))
        return
    count.telling += 1
    about = event.get("involvedObject") or event.get("regarding") or {}
    name = str(about.get("name", "")) if isinstance(about, dict) else ""
    message = " ".join(str(event.get("message") or event.get("note") or "").split())
    cause = f"{event['reason']}: {message}" if message else str(event["reason"])
    ranks = (name,) if name else ()
    said = {"start": "Kubernetes", "end": None}.get(kind, cause[:MOST_CAUSE])
    yield Happening(kind, time_s, place, ranks=ranks, cause=said)


def _time_s(event: Mapping[str, Any]) -> float | None:
    """When it was last seen, for it may stand for many."""
    series, metadata = event.get("series"), event.get("metadata")
    stamps = [
        series.get("lastObservedTime") if isinstance(series, dict) else None,
        *(event.get(name) for name in ("lastTimestamp", "eventTime", "deprecatedLastTimestamp", "firstTimestamp")),
        metadata.get("creationTimestamp") if isinstance(metadata, dict) else None,
    ]
    return next((time_s for stamp in stamps if stamp and (time_s := stamp_s(str(stamp))) is not None), None)
