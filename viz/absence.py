"""When workers were not there: after they failed or left, and while the plan had no place for them."""

from dataclasses import dataclass
from itertools import pairwise

from ..schemas.timeline import Timeline
from .spans import workers_of

# The events after which a worker is not there, until it computes again, and what is said of it.
GONE = {"failure": "failed", "fail": "failed", "stop": "stopped", "leave": "left"}
NO_PLACE = "not in the plan"


@dataclass(frozen=True, slots=True)
class Absence:
    """A worker is not there: since when, until when, and why."""

    worker: str
    start_s: float
    end_s: float
    words: str


def absences(timeline: Timeline) -> tuple[Absence, ...]:
    """The absences of workers that compute at some time.

    From its failure a worker is not there until it computes again, or to the end. In an epoch in which it does nothing
    at all, the plan has no such worker: pipelines may have other numbers of stages then.
    """
    starts_s: dict[str, list[float]] = {}
    for span in timeline.spans:
        starts_s.setdefault(span.worker, []).append(span.start_s)
    begin_s = min((span.start_s for span in timeline.spans), default=0.0)
    end_s = max((span.end_s for span in timeline.spans), default=0.0)
    found = []
    for worker in (worker for worker in workers_of([timeline]) if worker in starts_s):
        own_s = sorted(starts_s[worker])
        gone = _after_events(timeline, worker, own_s, end_s)
        found += [*gone, *_without_place(timeline, worker, own_s, (begin_s, end_s), gone)]
    return tuple(found)


def _after_events(timeline: Timeline, worker: str, starts_s: list[float], end_s: float) -> list[Absence]:
    gone = []
    back_s = 0.0
    for event in sorted(timeline.events, key=lambda event: event.time_s):
        if event.worker != worker or event.kind not in GONE or event.time_s < back_s:
            continue
        back_s = next((start_s for start_s in starts_s if start_s >= event.time_s), end_s)
        if back_s > event.time_s:
            gone.append(Absence(worker, event.time_s, back_s, GONE[event.kind]))
    return gone


def _without_place(
    timeline: Timeline, worker: str, starts_s: list[float], extent_s: tuple[float, float], gone: list[Absence]
) -> list[Absence]:
    """The epochs in which a worker begins nothing, but for those that other absences tell of."""
    begin_s, end_s = extent_s
    epochs_s = sorted({event.time_s for event in timeline.events if event.kind == "epoch"})
    bounds_s = [begin_s, *(time_s for time_s in epochs_s if begin_s < time_s < end_s), end_s]
    missing: list[Absence] = []
    for first_s, last_s in pairwise(bounds_s):
        works = any(first_s <= start_s < last_s for start_s in starts_s)
        told = any(absence.start_s < last_s and first_s < absence.end_s for absence in gone)
        if works or told:
            continue
        if missing and missing[-1].end_s == first_s:
            first_s = missing.pop().start_s
        missing.append(Absence(worker, first_s, last_s, NO_PLACE))
    return missing
