"""What a coordinator announces, and how a Timeline tells it: for real runs and for simulated ones."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from ...schemas.checkpoint import print_layers
from ...schemas.plan import Plan
from ...schemas.timeline import Event
from .messages import Epoch

NAMES_TOLD = 4  # of a list of workers, and the last one


def epoch_fields(message: Epoch, plan: Plan, joining: Collection[str]) -> Iterator[dict[str, Any]]:
    """What is to be announced of an epoch: who joins, who copies which layers from whom, itself, and who is examined.

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
        "sidesteps": {f"{seats[a].worker}-{seats[b].worker}": number for a, b, number in message.sidesteps},
        "predicted_iteration_time_s": plan.prediction.iteration_time_s if plan.prediction else None,
    }
    for group in message.examine:
        workers = [seats[rank].worker for rank in group]
        yield {"event": "examine", "workers": workers, "iteration": message.iteration}


def timeline_events(announced: Iterable[tuple[float, dict[str, Any]]]) -> tuple[Event, ...]:
    """What a coordinator has announced, as the events of a timeline: who failed, joined and left, and new epochs.

    Args:
        announced: times in s, in order, and fields.
    """
    events: list[Event] = []
    seats: dict[str, str] = {}
    for at_s, fields in announced:
        if _counts(fields):
            events.append(Event(at_s, fields["event"], _place(fields, seats), _words(fields)))
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
    comings = ("failure", "join", "copy", "wait", "leave", "refused", "restart")
    found = ("slow_link", "slow_worker", "relief", "broken_link", "kept", "examine", "examined")
    return fields["event"] in (*comings, *found)


def _place(fields: dict[str, Any], seats: dict[str, str]) -> str | None:
    """Whose event it is; a worker that is found slow, or well again, is named and not its place."""
    if fields["event"] in ("slow_worker", "relief"):
        return next((place for place, worker in seats.items() if worker == fields.get("worker")), None)
    return fields.get("place")


def _words(fields: dict[str, Any]) -> str:
    match fields["event"]:
        case "epoch":
            return _words_of_epoch(fields)
        case "join" | "copy":
            moved = "" if fields["worker"] == fields["place"] else f"worker {fields['worker']}, "
            return f"{moved}{fields['layers']} from {fields['source']}"
        case "wait":
            return f"worker {fields['worker']} waits for a place"
        case "slow_link" | "slow_worker" | "relief" | "broken_link":
            return words_of_circumstance(fields)
        case "examine" | "examined":
            return words_of_examination(fields)
    return str(fields.get("reason", ""))


def _words_of_epoch(fields: dict[str, Any]) -> str:
    parts = [
        f"{fields['epoch']}, from iteration {fields['iteration']} on: {fields['live_workers']} workers",
        f"by delegates {', '.join(fields['delegated'])}" if fields.get("delegated") else "",
        *(f"{via} passes on what {link} have for each other" for link, via in fields.get("detours", {}).items()),
        *(f"{link} goes by interface {number}" for link, number in fields.get("sidesteps", {}).items()),
    ]
    return "; ".join(part for part in parts if part)


def words_of_circumstance(fields: Mapping[str, Any]) -> str:
    """What is said of a link or a worker that is slow, broken, or well again.

    Args:
        fields: of an announcement `slow_link`, `slow_worker`, `relief` or `broken_link`.
    """
    who = f"link {fields['link']}" if fields.get("link") else f"worker {fields.get('worker')}"
    match fields["event"]:
        case "slow_link":
            return f"{who} is slow: {1000 * fields['delay_s']:.3g} ms"
        case "slow_worker":
            return f"{who} is slow: {fields['factor']:.3g} times as long as planned"
        case "broken_link":
            return f"{who} is broken"
    return f"{who} is well again"


def words_of_examination(fields: Mapping[str, Any]) -> str:
    """What is said of a group that is to be examined, or has been.

    Args:
        fields: of an announcement `examine` or `examined`.
    """
    workers = fields["workers"]
    who = ", ".join(workers[:NAMES_TOLD]) + (f", … {workers[-1]}" if len(workers) > NAMES_TOLD else "")
    if fields["event"] == "examine":
        return f"one of {who}, or a link between them, is slow: they are examined"
    slow = ", ".join(f"{'link' if '-' in one else 'worker'} {one}" for one in fields["found"])
    return f"{who} were examined: {f'{slow} is slow' if slow else 'nothing is slow'}"
