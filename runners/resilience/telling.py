"""What a coordinator announces, and how a Timeline tells it: for real runs and for simulated ones."""

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any

from ...schemas.checkpoint import print_layers
from ...schemas.plan import Plan
from ...schemas.timeline import Event
from .messages import Epoch


def epoch_fields(message: Epoch, plan: Plan, joining: Collection[str]) -> Iterator[dict[str, Any]]:
    """What is to be announced of an epoch: who joins, who copies which layers from whom, and the epoch itself.

    Args:
        message: that announces it to the workers.
        plan: its plan.
        joining: the names of those who were not there before.
    """
    seats = message.seats
    for target, own in groupby(message.copies, key=lambda copy: copy.target):
        received = list(own)
        yield {
            "event": "join" if seats[target].worker in joining else "copy",
            "worker": seats[target].worker,
            "place": seats[target].place,
            "source": ", ".join(dict.fromkeys(seats[copy.source].worker for copy in received)),
            "layers": print_layers(copy.layers for copy in received),
            "iteration": message.iteration,
        }
    yield {
        "event": "epoch",
        "iteration": message.iteration,
        "live_workers": len(seats),
        "workers": {seat.place: seat.worker for seat in seats},
        "failed": [worker.name for worker in plan.workers if worker.failed],
        "reason": message.reason,
        "delegated": ["-".join(seats[rank].worker for rank in pair) for pair in message.delegated],
        "detours": {f"{seats[a].worker}-{seats[b].worker}": seats[via].worker for a, b, via in message.detours},
        "predicted_iteration_time_s": plan.prediction.iteration_time_s if plan.prediction else None,
    }


def timeline_events(announced: Iterable[tuple[float, dict[str, Any]]]) -> tuple[Event, ...]:
    """What a coordinator has announced, as the events of a timeline: who failed, joined and left, and new epochs.

    Args:
        announced: times in s, in order, and fields.
    """
    events: list[Event] = []
    seats: dict[str, str] = {}
    for at_s, fields in announced:
        if _counts(fields):
            events.append(Event(at_s, fields["event"], fields.get("place"), _words(fields)))
        if fields["event"] == "epoch":
            former, seats = seats, fields["workers"]
            now_at = {worker: place for place, worker in seats.items()}
            events += [
                Event(at_s, "leave", place, f"worker {worker} moves to {now_at[worker]}")
                for place, worker in former.items()
                if place not in seats and worker in now_at
            ]
    return tuple(events)


def _counts(fields: dict[str, Any]) -> bool:
    """Whether it belongs in a picture: not the first epoch, and not an end as it should be."""
    match fields["event"]:
        case "epoch":
            return bool(fields["epoch"] > 1)
        case "end":
            return bool(fields["exit_code"])
    return fields["event"] in ("failure", "join", "copy", "wait", "leave", "refused")


def _words(fields: dict[str, Any]) -> str:
    match fields["event"]:
        case "epoch":
            return f"{fields['epoch']}, from iteration {fields['iteration']} on: {fields['live_workers']} workers"
        case "join" | "copy":
            moved = "" if fields["worker"] == fields["place"] else f"worker {fields['worker']}, "
            return f"{moved}{fields['layers']} from {fields['source']}"
        case "wait":
            return f"worker {fields['worker']} waits for a place"
    return str(fields.get("reason", ""))
