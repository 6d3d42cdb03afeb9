"""What has happened in a run so far, gathered from its announcements, and the words for it.

Announcements are flat dictionaries with an `event`: those of the coordinator's rules (runners/resilience/rules.py), or
the few of a run without a coordinator. All of them may lack fields; what is not known is left out.
"""

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from ..schemas.text import counted, listed

if TYPE_CHECKING:
    from ..schemas.plan import Plan

LOSSES_KEPT = 60
HAPPENINGS_KEPT = 8


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run before it starts.

    Attributes:
        plan: the plan that it starts with.
        model: the model's name; None or empty where it is not known.
        tokens: tokens of one iteration, over all pipelines; None or 0 where that is not known.
        paced: every operation lasts what the plan says.
        iterations: how many there are to be; None where only the run's start tells.
    """

    plan: "Plan"
    model: str | None
    tokens: int | None
    paced: bool = False
    iterations: int | None = None


@dataclass
class Happening:
    """Something that is worth a line: when, what, what it cost (known later), and whether it is bad."""

    at_s: float
    words: str
    is_bad: bool = False
    cost: str = ""

    def __str__(self) -> str:
        """The line: the local time of day, what happened, and what came of it."""
        return f"{clock(self.at_s)}  {self.words}{self.cost}"


class RunStory:
    """The state of a run, as far as announcements tell.

    Args:
        facts: what is known beforehand.
    """

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        prediction = facts.plan.prediction
        self.predicted_s = prediction.iteration_time_s if prediction else None
        self.iterations = facts.iterations
        self.epoch = 0
        self.seats = {worker.name: worker.name for worker in facts.plan.live_workers()}
        self.dead: set[str] = set()
        self.live_workers = len(self.seats)
        self.iteration: int | None = None
        self.loss: float | None = None
        self.time_s: float | None = None
        self.losses: deque[float | None] = deque(maxlen=LOSSES_KEPT)
        self.happenings: deque[Happening] = deque(maxlen=HAPPENINGS_KEPT)
        self.failures = 0
        self.joins = 0
        self.slow: dict[str, str] = {}  # links and workers, as they are now: how slow, or that they are broken
        self.found = dict.fromkeys(("slow_link", "slow_worker", "broken_link"), 0)
        self.lost_s = 0.0
        self.end: dict[str, Any] | None = None
        self._times_s: list[float] = []
        self._predicted_s: list[float] = []
        # Comings and goings: those that the next epoch will answer, those that the last one did, and those after which
        # an iteration has been done.
        self._coming: list[Happening] = []
        self._answered: list[Happening] = []
        self._recovered: list[Happening] = []
        self._broken: dict[str, Happening] = {}  # by link, until somebody passes on its messages
        self._has_news = False  # of what is slow, since the last epoch
        self._saved_s: float | None = None  # when the job was saved to start again, until it has done an iteration

    def tell(self, announced: Mapping[str, Any], at_s: float) -> tuple[dict[str, Any], str | None]:
        """Take one more announcement.

        Args:
            announced: the fields, one of them `event`.
            at_s: when, in seconds since 1970.

        Returns:
            the fields for other programs, completed and valid as JSON; and a line for people where there is one.
        """
        fields = _finite({"epoch": self.epoch, **announced})
        event = fields["event"]
        self.epoch = fields["epoch"]
        listener = getattr(self, f"_on_{event}", None)
        words = listener(fields, at_s) if listener is not None else None
        return fields, words

    # Training

    def _on_start(self, fields: dict[str, Any], at_s: float) -> str:
        facts = self.facts
        self.live_workers = fields.setdefault("live_workers", self.live_workers)
        self.iterations = fields.get("iterations") or self.iterations
        fields.update(model=facts.model or None, paced=facts.paced, tokens=facts.tokens or None)
        begins = fields.get("iteration") or 0
        if begins:
            self.iteration = begins - 1
        parts = [
            counted(self.live_workers, "worker"),
            f"{facts.tokens} tokens an iteration" if facts.tokens else "",
            counted(self.iterations, "iteration") if self.iterations is not None else "",
            f"from iteration {begins}" if begins else "",
        ]
        return ", ".join(part for part in parts if part)

    def _on_iteration(self, fields: dict[str, Any], at_s: float) -> str:
        loss, time_s = fields.setdefault("loss", None), fields.setdefault("iteration_time_s", None)
        self.iteration, self.loss, self.time_s = fields["iteration"], loss, time_s
        self.live_workers = fields.setdefault("live_workers", self.live_workers)
        self.losses.append(loss)
        self._recovered, self._answered = self._answered, []
        if time_s is not None:
            self._times_s.append(time_s)
        if self._saved_s is not None:
            self.lost_s += max(0.0, at_s - self._saved_s - (time_s or 0.0))
            self._saved_s = None
        if self.predicted_s is not None:
            self._predicted_s.append(self.predicted_s)
        fields.update(tokens_per_s=self.tokens_per_s, paced=self.facts.paced)
        if fields.get("skipped"):
            self._note(f"iteration {self.iteration} skipped: a gradient is not finite", at_s, is_bad=True)
        return self._words_of_iteration(bool(fields.get("skipped")))

    def _words_of_iteration(self, was_skipped: bool) -> str:
        parts = [f"iteration {self.iteration:3d}", f"loss {print_loss(self.loss)}"]
        if self.time_s is not None:
            parts.append(f"{self.time_s:.4f} s")
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.0f} tokens/s")
        if was_skipped:
            parts.append("skipped: a gradient is not finite")
        return "  ".join(parts)

    # Who comes and goes

    def _on_epoch(self, fields: dict[str, Any], at_s: float) -> str:
        workers, before = fields.get("workers"), set(self.seats.values())
        if workers is not None:
            self.seats, self.dead = dict(workers), set()
        self.live_workers = fields.get("live_workers", len(self.seats))
        self.predicted_s = fields.get("predicted_iteration_time_s")
        # Where an epoch ends before anything is done in it, its changes are paid for together with those of the next.
        self._answered, self._coming = [*self._answered, *self._coming], []
        vacant = fields.get("failed") or []
        away = [f"{name} at {place}" for place, name in self.seats.items() if name != place]
        delegated, detours = fields.get("delegated") or [], fields.get("detours") or {}
        sidesteps = fields.get("sidesteps") or {}
        # Where nobody has come or gone, and no link has broken, the change is due to what is slow, or well again.
        is_adapted = self._has_news and before == set(self.seats.values()) and not self._broken
        self._has_news = False
        self._find_ways(detours, sidesteps)
        parts = [
            f"{'adapted: ' if is_adapted else ''}epoch {self.epoch}: {counted(self.live_workers, 'worker')}",
            f"{listed(vacant)} vacant" if vacant else "",
            listed(away),
            f"{listed(delegated)} by delegates" if delegated else "",
            listed(f"{link} over {via}" for link, via in detours.items()),
            listed(f"{link} by interface {number}" for link, number in sidesteps.items()),
            f"predicted {self.predicted_s:.4f} s" if self.predicted_s is not None else "",
        ]
        return " · ".join(part for part in parts if part)

    def _on_failure(self, fields: dict[str, Any], at_s: float) -> str:
        self.failures += 1
        worker, place = fields.get("worker"), fields.get("place")
        self._forget(worker)
        if place is not None:
            self.dead.add(place)
            self.live_workers = max(0, self.live_workers - 1)
        return self._change(f"worker {worker}{_at(worker, place)} failed: {fields.get('reason')}", at_s, is_bad=True)

    def _on_join(self, fields: dict[str, Any], at_s: float) -> str:
        worker, place, source = (fields.get(key) for key in ("worker", "place", "source"))
        self.joins += 1
        state = f", state from {source}" if source else ""
        return self._change(f"worker {worker} joined{_at(worker, place)}{state}", at_s)

    def _on_copy(self, fields: dict[str, Any], at_s: float) -> str:
        """Somebody who was there already takes over layers that it did not hold."""
        worker, place, source = (fields.get(key) for key in ("worker", "place", "source"))
        moved = "" if self.seats.get(str(place)) == worker else f" moved to {place} and"
        return self._change(f"worker {worker}{moved} took {fields.get('layers')} from {source}", at_s)

    def _on_wait(self, fields: dict[str, Any], at_s: float) -> str:
        return self._change(f"worker {fields.get('worker')} waits for a place", at_s)

    def _on_leave(self, fields: dict[str, Any], at_s: float) -> str:
        worker, place = fields.get("worker"), fields.get("place")
        self._forget(worker)
        return self._change(f"worker {worker}{_at(worker, place)} left as asked", at_s)

    # What is slow

    def _on_slow_link(self, fields: dict[str, Any], at_s: float) -> str:
        self._find(fields, f"{1000 * (fields.get('delay_s') or 0.0):.3g} ms")
        return self._said(_words_of_circumstance(fields), at_s, is_bad=True)

    def _on_slow_worker(self, fields: dict[str, Any], at_s: float) -> str:
        self._find(fields, f"x {fields.get('factor') or 1.0:.3g}")
        return self._said(_words_of_circumstance(fields), at_s, is_bad=True)

    def _on_relief(self, fields: dict[str, Any], at_s: float) -> str:
        self.slow.pop(_who(fields), None)
        self._has_news = True
        return self._said(_words_of_circumstance(fields), at_s)

    def _on_broken_link(self, fields: dict[str, Any], at_s: float) -> str:
        self._find(fields, "broken")
        words = self._change(_words_of_circumstance(fields), at_s, is_bad=True)
        self._broken[_who(fields)] = self.happenings[-1]
        return words

    def _on_examine(self, fields: dict[str, Any], at_s: float) -> str:
        return self._said(_words_of_examination(fields), at_s)

    def _on_examined(self, fields: dict[str, Any], at_s: float) -> str:
        return self._said(_words_of_examination(fields), at_s)

    def _on_kept(self, fields: dict[str, Any], at_s: float) -> str:
        return self._said(f"the plan is kept: {fields.get('reason')}", at_s)

    def _find(self, fields: dict[str, Any], how: str) -> None:
        """Something is slow or broken; it counts once, however often it gets worse or better meanwhile."""
        self.found[fields["event"]] += _who(fields) not in self.slow
        self.slow[_who(fields)] = how
        self._has_news = True

    def _find_ways(self, detours: Mapping[str, str], sidesteps: Mapping[str, int]) -> None:
        """It is known who passes on the messages of broken links, or on which interface they go."""
        ways = {link: f"{via} passes on its messages" for link, via in detours.items()}
        ways |= {link: f"its messages go by interface {number}" for link, number in sidesteps.items()}
        for link, way in ways.items():
            if link in self._broken:
                self._broken.pop(link).words += printable(f": {way}")

    def _forget(self, worker: Any) -> None:
        """Who comes in place of a worker that is gone may be on another machine."""
        self.slow = {who: how for who, how in self.slow.items() if worker not in who.split("-")}

    def _on_recovered(self, fields: dict[str, Any], at_s: float) -> str:
        """The iteration that this follows has ended the change: what it has cost."""
        lost_s = fields.get("lost_s") or 0.0
        self.lost_s += lost_s
        changes, self._recovered = self._recovered, []
        # A change that is due to comings and goings alone waits until an iteration is done.
        is_redone = not changes or any(change.is_bad for change in changes)
        redone = f"iteration {fields.get('iteration')} redone" if is_redone else ""
        cost = " · ".join(part for part in (redone, f"{lost_s:.2f} s lost") if part)
        if not changes:
            changes = [self._note(str(fields.get("reason") or "the group was formed anew"), at_s, is_bad=True)]
        costly = [change for change in changes if change.is_bad] or changes
        costly[-1].cost = f" · {cost}"
        seconds = fields.get("seconds")
        return f"recovered{f' in {seconds:.2f} s' if seconds is not None else ''}: {cost.replace(' · ', ', ')}"

    # The rest

    def _on_restart(self, fields: dict[str, Any], at_s: float) -> str:
        self._saved_s = at_s
        self.slow.clear()
        self._has_news = False
        return self._said(f"the job is saved and starts again: {fields.get('reason')}", at_s, is_bad=True)

    def _on_checkpoint(self, fields: dict[str, Any], at_s: float) -> str:
        after = f"checkpoint after {counted(fields.get('iteration') or 0, 'iteration')}"
        if fields.get("error"):
            return self._said(f"{after} failed: {fields['error']}", at_s, is_bad=True)
        seconds = fields.get("seconds")
        return self._said(f"{after}{f' in {seconds:.2f} s' if seconds is not None else ''}: {fields.get('path')}", at_s)

    def _on_refused(self, fields: dict[str, Any], at_s: float) -> str:
        return self._said(f"worker {fields.get('worker')} was refused: {fields.get('reason')}", at_s)

    def _on_restarted(self, fields: dict[str, Any], at_s: float) -> str:
        return self._said(f"the coordinator was restarted, before iteration {fields.get('iteration')}", at_s)

    def _on_returned(self, fields: dict[str, Any], at_s: float) -> str:
        return self._said(f"worker {fields.get('worker')} is back", at_s)

    def _on_end(self, fields: dict[str, Any], at_s: float) -> str:
        if fields.get("iterations") is None:
            fields["iterations"] = len(self._times_s)
        if fields.get("iteration_time_s") is None:
            fields["iteration_time_s"] = median(self._times_s) if self._times_s else None
        fields.setdefault("loss", self.loss)
        fields.update(
            predicted_iteration_time_s=median(self._predicted_s) if self._predicted_s else self.predicted_s,
            paced=self.facts.paced,
            failures=self.failures,
            joins=self.joins,
            **{f"{what}s": count for what, count in self.found.items()},
            lost_s=self.lost_s,
        )
        self.end = fields
        return "\n".join(self.summary())

    def summary(self) -> list[str]:
        """After the end: why it ended, where not because all is done; and the run in one line."""
        end = self.end or {}
        because = [f"ended with {end['exit_code']}: {end.get('reason')}"] if end.get("exit_code") else []
        epochs = end.get("epochs") or 0
        changes = [*self.changes(), *([counted(epochs, "epoch")] if epochs > 1 else [])]
        parts = [
            f"{counted(end.get('iterations') or 0, 'iteration')}, loss {print_loss(end.get('loss'))}",
            ", ".join(changes),
            self.lost_in_words() if changes else "",
            _speed(end.get("iteration_time_s"), end.get("predicted_iteration_time_s"), self.facts.paced),
        ]
        return [*because, " · ".join(part for part in parts if part)]

    # Figures

    @property
    def tokens_per_s(self) -> float | None:
        """Of the last iteration."""
        return self.facts.tokens / self.time_s if self.facts.tokens and self.time_s else None

    @property
    def remaining_s(self) -> float | None:
        """What is left to do at the pace of the last iterations."""
        if self.iterations is None or self.iteration is None or not self._times_s:
            return None
        return (self.iterations - self.iteration - 1) * median(self._times_s[-10:])

    def changes(self) -> list[str]:
        """How often workers came and went, or were slow: `2 failures`, `1 join`; nothing for what did not happen."""
        counts = {"failure": self.failures, "join": self.joins}
        counts |= {what.replace("_", " "): count for what, count in self.found.items()}
        return [counted(count, noun) for noun, count in counts.items() if count]

    def lost_in_words(self) -> str:
        """The time that changes have cost, and its share of all time since the first iteration began."""
        total_s = sum(self._times_s) + self.lost_s
        return f"{self.lost_s:.2f} s lost{f' ({self.lost_s / total_s:.1%})' if total_s else ''}"

    # Lines

    def _note(self, words: str, at_s: float, is_bad: bool = False) -> Happening:
        happening = Happening(at_s, printable(words), is_bad)
        self.happenings.append(happening)
        return happening

    def _said(self, words: str, at_s: float, is_bad: bool = False) -> str:
        return str(self._note(words, at_s, is_bad))

    def _change(self, words: str, at_s: float, is_bad: bool = False) -> str:
        happening = self._note(words, at_s, is_bad)
        self._coming.append(happening)
        return str(happening)


def clock(at_s: float) -> str:
    """The local time of day, `12:03:01`."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def print_loss(loss: float | None) -> str:
    """Four digits after the point; a dash where it is not known or not finite."""
    return "-" if loss is None else f"{loss:.4f}"


def printable(text: str) -> str:
    """Text without control characters: names and reasons come over the network, and a terminal would obey them."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _who(fields: Mapping[str, Any]) -> str:
    """The link, or the worker, that an announcement is about."""
    return str(fields.get("link") or fields.get("worker"))


def _words_of_circumstance(fields: Mapping[str, Any]) -> str:
    from ..runners.resilience.telling import words_of_circumstance

    return words_of_circumstance(fields)


def _words_of_examination(fields: Mapping[str, Any]) -> str:
    from ..runners.resilience.telling import words_of_examination

    return words_of_examination(fields)


def _at(worker: Any, place: Any) -> str:
    return f" at {place}" if place is not None and place != worker else ""


def _speed(measured_s: float | None, predicted_s: float | None, is_paced: bool) -> str:
    if measured_s is None:
        return ""
    mark = " (paced)" if is_paced else ""
    against = f", predicted {predicted_s:.4f} s ({measured_s / predicted_s - 1:+.1%})" if predicted_s else ""
    return f"median iteration {measured_s:.4f} s{mark}{against}"


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not know: NaN and the infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
