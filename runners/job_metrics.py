"""A job's state as numbers with names, folded from its events: what Prometheus and OpenTelemetry are given.

Names follow Prometheus's conventions (https://prometheus.io/docs/practices/naming/): the unit stands in the name,
counters end in `_total`. Times are in s.
"""

from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any, Literal, NamedTuple

from .. import __version__

PREFIX = "rtk_"


class JobMetric(NamedTuple):
    """One metric.

    Attributes:
        kind: a gauge goes up and down, a counter grows only.
        help: what it is, in a sentence.
        labels: names of its labels.
    """

    kind: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()


METRICS: dict[str, JobMetric] = {
    "info": JobMetric("gauge", "Always 1; its labels say which model is trained by which rtk.", ("model", "version")),
    "up": JobMetric("gauge", "1 while the job goes on, 0 when it is over."),
    "exit_code": JobMetric("gauge", "How the job has ended."),
    "iterations_planned": JobMetric("gauge", "How many iterations there are to be."),
    "iteration": JobMetric("gauge", "Number of the last iteration that counts."),
    "loss": JobMetric("gauge", "Loss of the last iteration."),
    "evaluation_loss": JobMetric("gauge", "Loss of the last evaluation."),
    "grad_norm": JobMetric("gauge", "Norm of the last iteration's gradients, before they are clipped."),
    "learning_rate": JobMetric("gauge", "Learning rate of the last step."),
    "tokens_per_second": JobMetric("gauge", "Throughput of the last iteration."),
    "iteration_time_seconds": JobMetric("gauge", "How long the last iteration took."),
    "predicted_iteration_time_seconds": JobMetric("gauge", "How long an iteration takes by the running plan."),
    "live_workers": JobMetric("gauge", "Workers that take part."),
    "place_up": JobMetric("gauge", "1 where a worker has this place of the plan, 0 where nobody has.", ("place",)),
    "epoch": JobMetric("gauge", "Number of the current membership."),
    "worker_slowdown": JobMetric("gauge", "How many times as long as planned a slow worker takes.", ("worker",)),
    "link_delay_seconds": JobMetric("gauge", "How long messages of a slow link take.", ("link",)),
    "checkpoint_iteration": JobMetric("gauge", "Iterations that the last checkpoint holds."),
    "checkpoint_seconds": JobMetric("gauge", "How long the last checkpoint took."),
    "recovery_seconds": JobMetric("gauge", "From the last change to the first iteration done after it."),
    "iterations_total": JobMetric("counter", "Iterations done by this process's job."),
    "iteration_seconds_total": JobMetric("counter", "Time in iterations that count."),
    "skipped_total": JobMetric("counter", "Iterations without a step, for a gradient was not finite."),
    "failures_total": JobMetric("counter", "Workers lost."),
    "leaves_total": JobMetric("counter", "Workers that left as asked."),
    "joins_total": JobMetric("counter", "Workers that took a place."),
    "recoveries_total": JobMetric("counter", "Changes after which an iteration was done."),
    "recovery_seconds_total": JobMetric("counter", "From changes to the first iterations done after them."),
    "lost_seconds_total": JobMetric("counter", "What changes have cost, beyond an iteration's usual time."),
    "kept_passes_total": JobMetric("counter", "Passes of interrupted iterations whose work stayed."),
    "repeated_passes_total": JobMetric("counter", "Passes of interrupted iterations that were run again."),
    "redone_iterations_total": JobMetric("counter", "Interrupted iterations that were done anew."),
    "broken_links_total": JobMetric("counter", "Links over which two live workers lost each other."),
    "checkpoints_total": JobMetric("counter", "Checkpoints written."),
    "checkpoint_failures_total": JobMetric("counter", "Checkpoints that could not be written."),
    "events_total": JobMetric("counter", "Events, by their names.", ("event",)),
}

# Which field of which event a gauge shows …
_SET: dict[str, dict[str, str]] = {
    "start": {"iterations_planned": "iterations", "live_workers": "live_workers"},
    "iteration": {
        "iteration": "iteration",
        "loss": "loss",
        "grad_norm": "grad_norm",
        "learning_rate": "learning_rate",
        "tokens_per_second": "tokens_per_s",
        "iteration_time_seconds": "iteration_time_s",
        "live_workers": "live_workers",
    },
    "evaluation": {"evaluation_loss": "loss"},
    "epoch": {
        "epoch": "epoch",
        "live_workers": "live_workers",
        "predicted_iteration_time_seconds": "predicted_iteration_time_s",
    },
    "recovered": {"recovery_seconds": "seconds"},
    "end": {"exit_code": "exit_code"},
}
# … and which is added to a counter; where there is no field, 1 is.
_ADD: dict[str, dict[str, str | None]] = {
    "iteration": {"iterations_total": None, "iteration_seconds_total": "iteration_time_s", "skipped_total": "skipped"},
    "failure": {"failures_total": None},
    "leave": {"leaves_total": None},
    "join": {"joins_total": None},
    "recovered": {
        "recoveries_total": None,
        "recovery_seconds_total": "seconds",
        "lost_seconds_total": "lost_s",
    },
    "resume": {"kept_passes_total": "kept", "repeated_passes_total": "again"},
    "redo": {"redone_iterations_total": None},
    "broken_link": {"broken_links_total": None},
}

Labels = tuple[str, ...]


class JobMetrics:
    """What is known of a job; events come from one thread, and others may read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in METRICS}
        for name, metric in METRICS.items():
            if metric.kind == "counter" and not metric.labels:
                self._values[name][()] = 0.0  # a rate is known from the first time on

    def note(self, said: Mapping[str, Any]) -> None:
        """Take one event.

        Args:
            said: its fields, with `event` (docs/events.md).
        """
        event = said["event"]
        with self._lock:
            self._add("events_total", 1.0, (event,))
            for name, field in _SET.get(event, {}).items():
                self._set(name, said.get(field))
            for name, counted in _ADD.get(event, {}).items():
                self._add(name, 1.0 if counted is None else float(said.get(counted) or 0.0))
            self._note_labelled(event, said)
            self._note_slowness(event, said)

    def _note_labelled(self, event: str, said: Mapping[str, Any]) -> None:
        """What is said of a place, and what depends on how something went."""
        match event:
            case "start":
                self._values["info"] = {(said.get("model") or "", __version__): 1.0}
                self._set("up", 1.0)
            case "epoch":
                self._values["place_up"] = dict.fromkeys(((place,) for place in said["workers"]), 1.0)
                self._values["place_up"] |= dict.fromkeys(((place,) for place in said.get("failed", ())), 0.0)
            case "failure" | "leave" if (said.get("place"),) in self._values["place_up"]:
                self._set("place_up", 0.0, (said["place"],))
            case "checkpoint" if said.get("error"):
                self._add("checkpoint_failures_total", 1.0)
            case "checkpoint":
                self._add("checkpoints_total", 1.0)
                self._set("checkpoint_iteration", said.get("iteration"))
                self._set("checkpoint_seconds", said["seconds"])
            case "end":
                self._set("up", 0.0)

    def _note_slowness(self, event: str, said: Mapping[str, Any]) -> None:
        """Which workers and links are slow."""
        match event:
            case "slow_worker":
                self._set("worker_slowdown", said["factor"], (said["worker"],))
            case "slow_link":
                self._set("link_delay_seconds", said["delay_s"], (said["link"],))
            case "relief":
                self._values["worker_slowdown"].pop((said.get("worker") or "",), None)
                self._values["link_delay_seconds"].pop((said.get("link") or "",), None)
            case "restart":
                self._values["worker_slowdown"].clear()
                self._values["link_delay_seconds"].clear()
            case "failure" | "leave" | "raised":
                self._forget(said["worker"])

    def _forget(self, worker: str) -> None:
        """Who comes in place of a worker that is gone may be on another machine."""
        for name in ("worker_slowdown", "link_delay_seconds"):
            kept = {who: value for who, value in self._values[name].items() if worker not in who[0].split("-")}
            self._values[name] = kept

    def values(self) -> Iterator[tuple[str, dict[Labels, float]]]:
        """All metrics that have a value: name without prefix, and values by labels, as they are now."""
        with self._lock:
            now = {name: dict(values) for name, values in self._values.items() if values}
        yield from now.items()

    def value(self, name: str) -> dict[Labels, float]:
        """One metric's values by labels, as they are now."""
        with self._lock:
            return dict(self._values[name])

    def _set(self, name: str, value: float | None, labels: Labels = ()) -> None:
        """What is not known has no value, rather than the last one."""
        if value is None:
            self._values[name].pop(labels, None)
        else:
            self._values[name][labels] = float(value)

    def _add(self, name: str, value: float, labels: Labels = ()) -> None:
        self._values[name][labels] = self._values[name].get(labels, 0.0) + value
