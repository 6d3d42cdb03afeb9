"""What a coordinator has announced, told as a Timeline tells it: for real runs and for simulated ones."""

from collections.abc import Iterable
from typing import Any

from ...schemas.timeline import Event


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
