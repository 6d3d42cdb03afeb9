"""What has happened in a run so far, gathered from its announcements, and the words for it.

Announcements (runners/resilience/announcements.py) are those of the coordinator's rules, or the few of a run without a
coordinator; what is not known of a run is left out.
"""

import math
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import typer

from ..runners.log_writers import JsonLinesLog, LogWriter, json_line, log_writers
from ..schemas.errors import remark
from ..schemas.pace import beyond_in_words
from ..schemas.quantities import print_change, print_percent, print_time
from ..schemas.text import counted, listed
from ..schemas.timeline import IterationTime, iteration_time_s
from .console import SETTINGS
from .learning_curve import LearningCurve

if TYPE_CHECKING:
    from ..runners.live_page import LivePage
    from ..runners.resilience.announcements import (
        Announcement,
        EpochBegun,
        IterationCommitted,
        JobEnded,
        JobStarted,
        ModelEvaluated,
        Recovered,
    )
    from ..schemas.plan import Plan
    from .live_view import LiveView


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
class StoryLine:
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
        self.curve = LearningCurve()
        self._first_rate: float | None = None
        self._has_schedule = False  # the learning rate has changed
        self.happenings: deque[StoryLine] = deque(maxlen=HAPPENINGS_KEPT)
        self.failures = 0
        self.joins = 0
        self.pace = ""  # why iterations take longer than planned
        self.slow: dict[str, str] = {}  # links and workers, as they are now: how slow, or that they are broken
        self.found = dict.fromkeys(("slow_link", "slow_worker", "broken_link"), 0)
        self.lost_s = 0.0
        self.end: JobEnded | None = None
        self._times: list[IterationTime] = []
        self._predicted: list[IterationTime] = []  # of the same iterations
        self._is_first = True  # the next iteration, of the run or of an epoch
        # Comings and goings: those that the next epoch will answer, those that the last one did, and those after which
        # an iteration has been done.
        self._coming: list[StoryLine] = []
        self._answered: list[StoryLine] = []
        self._recovered: list[StoryLine] = []
        self._resumed: int | None = None  # the iteration that went on where it was when this epoch began
        self._broken: dict[str, StoryLine] = {}  # by link, until somebody passes on its messages
        self._has_news = False  # of what is slow, since the last epoch
        self._saved_s: float | None = None  # when the job was saved to start again, until it has done an iteration

    def tell(self, told: "Announcement", at_s: float) -> tuple[dict[str, Any], str | None]:
        """Take one more announcement.

        Args:
            told: what has happened.
            at_s: when, in seconds since 1970.

        Returns:
            its fields for other programs, completed and valid as JSON; and a line for people where there is one.
        """
        from ..runners.resilience import announcements as said  # late: `--help` needs none of it

        dated = replace(told, epoch=self.epoch) if told.epoch is None else told
        self.epoch = dated.epoch or 0
        more: dict[str, Any] = {}
        words: str | None = None
        match dated:
            case said.JobStarted():
                words, more = self._start(dated)
            case said.IterationCommitted():
                words, more = self._commit(dated, at_s)
            case said.ModelEvaluated():
                words = self._evaluate(dated)
            case said.EpochBegun():
                words = self._begin_epoch(dated)
            case said.Recovered():
                words = self._recover(dated, at_s)
            case said.JobEnded():
                words, more = self._finish(dated)
            case said.PaceExplained():
                self.pace = dated.why  # said at the end, and in the live view
            case _:
                words = self._happen(dated, at_s)
        return _finite(dated.as_json() | more), words

    # Training

    def _start(self, start: "JobStarted") -> tuple[str, dict[str, Any]]:
        facts, begins = self.facts, start.iteration or 0
        self.live_workers, self.iterations = start.live_workers, start.iterations
        if begins:
            self.iteration = begins - 1
        parts = [
            counted(self.live_workers, "worker"),
            f"{facts.tokens} tokens an iteration" if facts.tokens else "",
            counted(self.iterations, "iteration"),
            f"from iteration {begins}" if begins else "",
        ]
        more = {"model": facts.model or None, "paced": facts.paced, "tokens": facts.tokens or None}
        return ", ".join(part for part in parts if part), more

    def _commit(self, done: "IterationCommitted", at_s: float) -> tuple[str, dict[str, Any]]:
        self.iteration, self.loss, self.time_s = done.iteration, _finite(done.loss), done.iteration_time_s
        self.live_workers = done.live_workers
        self.losses.append(self.loss)
        if self.loss is not None:
            self.curve.add(done.iteration or 0, self.loss)
        self._recovered, self._answered = self._answered, []
        if self.time_s is not None:
            self._times.append(IterationTime(done.iteration or 0, self.time_s, self._is_first))
        if self._saved_s is not None:
            self.lost_s += max(0.0, at_s - self._saved_s - (self.time_s or 0.0))
            self._saved_s = None
        if self.predicted_s is not None:
            self._predicted.append(IterationTime(done.iteration or 0, self.predicted_s, self._is_first))
        self._is_first = False
        if done.skipped:
            self._note(f"iteration {self.iteration} skipped: a gradient is not finite", at_s, is_bad=True)
        rate = done.learning_rate
        if self._first_rate is None:
            self._first_rate = rate
        self._has_schedule |= rate != self._first_rate
        parts = [
            f"iteration {self.iteration:3d}",
            f"loss {print_loss(self.loss)}",
            f"grad norm {done.grad_norm:.4g}" if done.grad_norm is not None else "",
            f"lr {rate:.3g}" if self._has_schedule and rate is not None else "",
            print_time(self.time_s) if self.time_s is not None else "",
            f"{self.tokens_per_s:.0f} tokens/s" if self.tokens_per_s is not None else "",
            "skipped: a gradient is not finite" if done.skipped else "",
        ]
        words = "  ".join(part for part in parts if part)
        return words, {"tokens_per_s": self.tokens_per_s, "paced": self.facts.paced}

    def _evaluate(self, done: "ModelEvaluated") -> str:
        loss = _finite(done.loss)
        if loss is not None:
            self.curve.add_evaluation(done.iteration or 0, loss)
        return f"evaluation after {counted(done.iteration or 0, 'iteration')}  loss {print_loss(loss)}"

    # Who comes and goes

    def _begin_epoch(self, epoch: "EpochBegun") -> str:
        before = set(self.seats.values())
        self.seats, self.dead = dict(epoch.workers), set()
        self.live_workers, self.predicted_s = epoch.live_workers, epoch.predicted_iteration_time_s
        # Where an epoch ends before anything is done in it, its changes are paid for together with those of the next.
        self._answered, self._coming = [*self._answered, *self._coming], []
        away = [f"{name} at {place}" for place, name in self.seats.items() if name != place]
        # Where nobody has come or gone, and no link has broken, the change is due to what is slow, or well again.
        is_adapted = self._has_news and before == set(self.seats.values()) and not self._broken
        self._has_news = False
        self._resumed = None
        self._is_first = True
        self.pace = ""
        self._find_ways(epoch.detours, epoch.sidesteps)
        parts = [
            f"{'adapted: ' if is_adapted else ''}epoch {self.epoch}: {counted(self.live_workers, 'worker')}",
            f"{listed(epoch.failed)} vacant" if epoch.failed else "",
            listed(away),
            f"{listed(epoch.delegated)} by delegates" if epoch.delegated else "",
            listed(f"{link} over {via}" for link, via in epoch.detours.items()),
            listed(f"{link} by interface {number}" for link, number in epoch.sidesteps.items()),
            f"predicted {print_time(self.predicted_s)}" if self.predicted_s is not None else "",
        ]
        return " · ".join(part for part in parts if part)

    def _happen(self, told: "Announcement", at_s: float) -> str | None:
        """What is worth a line, if it has one, and is kept for the view."""
        from ..runners.resilience.announcements import LinkBroken

        words = self._take(told, at_s)
        if not words:
            return None
        happening = self._note(words, at_s, told.is_bad)
        if told.is_change:
            self._coming.append(happening)
        if isinstance(told, LinkBroken):
            self._broken[told.who] = happening
        return str(happening)

    def _take(self, told: "Announcement", at_s: float) -> str:
        """Keep what a view shows of it; gives its sentence."""
        from ..runners.resilience import announcements as said

        match told:
            case said.WorkerFailed():
                self.failures += 1
                self.curve.mark(0 if told.iteration is None else told.iteration)
                self._forget(told.worker)
                if told.place is not None:
                    self.dead.add(told.place)
                    self.live_workers = max(0, self.live_workers - 1)
            case said.WorkerJoined():
                self.joins += 1
            case said.LayersCopied() if self.seats.get(str(told.place)) != told.worker:
                return f"worker {told.worker} moved to {told.place} and took {told.layers} from {told.source}"
            case said.WorkerLeft() | said.DegreeRaised():
                self._forget(told.worker)
            case said.IterationResumed():
                self._resumed = told.iteration
            case said.Degraded():
                # It counts once, however often it gets worse or better meanwhile.
                self.found[told.event] += told.who not in self.slow
                self.slow[told.who] = told.degree
                self._has_news = True
            case said.Relieved():
                self.slow.pop(told.who, None)
                self._has_news = True
            case said.JobRestarting():
                self._saved_s = at_s
                self.slow.clear()
                self._has_news = False
        return told.sentence

    # What is slow

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

    def _recover(self, recovered: "Recovered", at_s: float) -> str:
        """The iteration that this follows has ended the change: what it has cost."""
        self.lost_s += recovered.lost_s
        changes, self._recovered = self._recovered, []
        # A change that is due to comings and goings alone waits until an iteration is done.
        is_redone = not changes or any(change.is_bad for change in changes)
        how = "resumed" if recovered.iteration == self._resumed else "redone"
        redone = f"iteration {recovered.iteration} {how}" if is_redone else ""
        cost = " · ".join(part for part in (redone, f"{print_time(recovered.lost_s)} lost") if part)
        if not changes:
            changes = [self._note(recovered.reason or "the workers formed a new group", at_s, is_bad=True)]
        costly = [change for change in changes if change.is_bad] or changes
        costly[-1].cost = f" · {cost}"
        return f"recovered in {print_time(recovered.seconds)}: {cost.replace(' · ', ', ')}"

    # The end

    def _finish(self, end: "JobEnded") -> tuple[str, dict[str, Any]]:
        self.end = end
        usual_s, usually_s = iteration_time_s(self._times), iteration_time_s(self._predicted)
        more: dict[str, Any] = {
            "iteration_time_s": usual_s if end.iteration_time_s is None else end.iteration_time_s,
            "loss": self.loss,
            "predicted_iteration_time_s": self.predicted_s if usually_s is None else usually_s,
            "paced": self.facts.paced,
            "failures": self.failures,
            "joins": self.joins,
            **{f"{what}s": count for what, count in self.found.items()},
            "lost_s": self.lost_s,
            **({"evaluation_loss": self.curve.evaluations[-1][1]} if self.curve.evaluations else {}),
            **({"why": self.pace} if self.pace else {}),
        }
        because = [f"ended with {end.exit_code}: {end.reason}"] if end.exit_code else []
        changes = [*self.changes(), *([counted(end.epochs, "epoch")] if end.epochs > 1 else [])]
        parts = [
            f"{counted(end.iterations, 'iteration')}, loss {print_loss(self.loss)}",
            self.evaluated_in_words(),
            ", ".join(changes),
            self.lost_in_words() if changes else "",
            _speed(more["iteration_time_s"], more["predicted_iteration_time_s"], self.facts.paced),
        ]
        lines = [*because, " · ".join(part for part in parts if part)]
        took_s, planned_s = more["iteration_time_s"], more["predicted_iteration_time_s"]
        if self.pace and took_s and planned_s:
            lines.append(beyond_in_words(took_s / planned_s - 1, self.pace))
        return "\n".join(lines), more

    # Figures

    @property
    def tokens_per_s(self) -> float | None:
        """Of the last iteration."""
        return self.facts.tokens / self.time_s if self.facts.tokens and self.time_s else None

    @property
    def remaining_s(self) -> float | None:
        """What is left to do at the pace of the last iterations."""
        if self.iterations is None or self.iteration is None or not self._times:
            return None
        return (self.iterations - self.iteration - 1) * median(one.seconds for one in self._times[-10:])

    def evaluated_in_words(self) -> str:
        """The last evaluation's loss, and the least of all where that was another; empty where there was none."""
        if not self.curve.evaluations:
            return ""
        last, best = self.curve.evaluations[-1], min(self.curve.evaluations, key=lambda one: (one[1], -one[0]))
        least = "" if best == last else f", at best {print_loss(best[1])} after {counted(best[0], 'iteration')}"
        return f"evaluation {print_loss(last[1])}{least}"

    def changes(self) -> list[str]:
        """How often workers came and went, or were slow: `2 failures`, `1 join`; nothing for what did not happen."""
        counts = {"failure": self.failures, "join": self.joins}
        counts |= {what.replace("_", " "): count for what, count in self.found.items()}
        return [counted(count, noun) for noun, count in counts.items() if count]

    def lost_in_words(self) -> str:
        """The time that changes have cost, and its share of all time since the first iteration began."""
        total_s = sum(one.seconds for one in self._times) + self.lost_s
        return f"{print_time(self.lost_s)} lost{f' ({print_percent(self.lost_s / total_s)})' if total_s else ''}"

    # Lines

    def _note(self, words: str, at_s: float, is_bad: bool = False) -> StoryLine:
        happening = StoryLine(at_s, printable(words), is_bad)
        self.happenings.append(happening)
        return happening


def clock(at_s: float) -> str:
    """The local time of day, `12:03:01`."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def print_loss(loss: float | None) -> str:
    """Four digits after the point; a dash where it is not known or not finite."""
    return "-" if loss is None else f"{loss:.4f}"


def printable(text: str) -> str:
    """Text without control characters: names and reasons come over the network, and a terminal would obey them."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _speed(measured_s: float | None, predicted_s: float | None, is_paced: bool) -> str:
    if measured_s is None:
        return ""
    mark = " (paced)" if is_paced else ""
    beyond = print_change(measured_s / predicted_s - 1) if predicted_s else ""
    against = f", predicted {print_time(predicted_s)} ({beyond})" if predicted_s else ""
    return f"iteration time {print_time(measured_s)}{mark}{against}"


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not know: NaN and the infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


# What a run says while it goes on: JSON lines, lines for people, or a live view; and JSON lines into a file.


class RunReport:
    """Takes announcements one by one, and says them; use it as a context, so that the terminal is left in order.

    All calls are to come from one thread at a time. Only logs forgive an error of writing; a closed standard
    output raises BrokenPipeError, as everywhere in rtk.

    Args:
        facts: what is known of the run beforehand.
        as_json: JSON lines on standard output, else text.
        quiet: no text.
        metrics: append the JSON lines to this file too, each as soon as it is said.
        log_to: other logs, such as `tensorboard:FOLDER`.
        logs: further ones.
        page: serve a live page here, `PORT` or `HOST:PORT`, and say where it is.
        live: whether text is a live view; by default on a terminal, and not in CI.
        now: seconds since 1970.

    Raises:
        InvalidInputError: a log cannot be opened.
    """

    def __init__(
        self,
        facts: RunFacts,
        *,
        as_json: bool = False,
        quiet: bool = False,
        metrics: str | Path | None = None,
        log_to: Iterable[str] | None = None,
        logs: Iterable[LogWriter] = (),
        page: str | None = None,
        live: bool | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._story = RunStory(facts)
        self._as_json, self._quiet = as_json, quiet
        self._logs: list[LogWriter] = [] if metrics is None else [JsonLinesLog(Path(metrics))]
        self._logs += [*log_writers(log_to), *logs]
        self._page = None if page is None else _live_page(page, facts)
        self._logs += [] if self._page is None else [self._page]
        self._now = now
        self._lines, self._elsewhere = sys.stdout, ExitStack()
        is_live = (wants_live_view() if live is None else live) and not as_json and not quiet
        self._view = self._live_view() if is_live else None

    def report(self, what: "Announcement") -> None:
        """Say one announcement; at the run's end the live view stays, with its last state."""
        from ..runners.resilience.announcements import OperationsTimed  # late: `--help` needs none of it

        if isinstance(what, OperationsTimed):
            if self._page is not None:
                self._page.take(what.place, what.spans)
            return
        now_s = self._now()
        said, words = self._story.tell(what, now_s)
        if said["event"] == "pace":  # the view shows it, and the end says it
            if self._view is not None:
                self._view.update(is_urgent=False)
            return
        said["unix_time_s"] = now_s
        for log in self._logs:
            log.write(said, words)
        if self._as_json:
            print(json_line(said), file=self._lines, flush=True)
            SETTINGS.has_answered |= said["event"] == "end"
        elif self._view is not None and said["event"] != "end":
            self._view.update(is_urgent=said["event"] != "iteration")
        elif words is not None and not self._quiet:
            self._stop_view()
            encoding = sys.stdout.encoding or "utf-8"
            for one in words.split("\n"):
                # A terminal that cannot show a character is no reason to end a training.
                print(printable(one).encode(encoding, "replace").decode(encoding), flush=True)

    def _live_view(self) -> "LiveView":
        from .live_view import LiveView  # late: it loads rich

        return LiveView(self._story)

    def close(self) -> None:
        """Give the terminal back and close the file; again does nothing."""
        self._stop_view()
        for log in self._logs:
            log.close()

    def _stop_view(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.stop()

    def __enter__(self) -> Self:
        if self._as_json:  # what a script's listeners print must not come between our lines
            self._elsewhere.enter_context(redirect_stdout(sys.stderr))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._elsewhere.close()


def _live_page(target: str, facts: RunFacts) -> "LivePage":
    from ..runners.live_page import LivePage  # late: it loads a server
    from ..viz.live import live_html

    page = LivePage(target, live_html(facts.plan, facts.model or None, facts.tokens or None))
    remark(f"live page: {page.url}")
    return page


@contextmanager
def saying_how_to_go_on(folder: str | None) -> Iterator[None]:
    """A job that was stopped as asked ends with 130, and says by which command it goes on.

    Args:
        folder: for checkpoints; None: there are none.
    """
    from ..runners.resilience.controller import JobStoppedError  # late: `--help` needs none of it

    try:
        yield
    except JobStoppedError as stopped:
        is_saved = folder is not None and stopped.checkpoint is not None
        remark(f"resume with: {_again(str(folder))}" if is_saved else f"nothing was saved: {stopped.fix}")
        raise typer.Exit(stopped.exit_code) from None


def _again(folder: str) -> str:
    """The command line that goes on from the newest checkpoint in a folder."""
    given = list(SETTINGS.arguments)
    if "--resume" in given:
        at = given.index("--resume")
        del given[at : at + 2]
    kept = [one for one in given if not one.startswith("--resume=")]
    return shlex.join(["rtk", *kept, "--resume", folder])


def wants_live_view() -> bool:
    """Whether somebody is there to look at one: a terminal that can move its cursor and draw bars, and not in CI."""
    is_able = os.environ.get("TERM") != "dumb" and (sys.stdout.encoding or "").lower().startswith("utf")
    return sys.stdout.isatty() and is_able and not os.environ.get("CI")
