"""What came of failures, told event by event: what was under way, what was kept, and when the iteration was done."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from ..schemas.columns import TimelineColumns, columns_of
from ..schemas.orders import KINDS
from ..schemas.quantities import print_number, print_time, time_unit
from ..schemas.text import counted, joined, listed
from ..schemas.timeline import times_between
from .facts import (
    GONE_AFTER,
    Drawable,
    epochs_of,
    iterations_of,
    lost_of,
    order_of,
    resumed_at_s,
    words_of_event,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]

WIDTH = 98
MOST_WORKERS = 12


@dataclass(frozen=True)
class RecoveryEvent:
    """Something that happened, in words, and when: in s from the first operation of the timeline."""

    time_s: float
    words: tuple[str, ...]


@dataclass(frozen=True)
class IterationRecovery:
    """An iteration that was broken off by an epoch, and what came of it.

    Attributes:
        iteration: its number.
        resumed: whether it was gone on with, and not done anew, by the last epoch in it.
        broken_s, done_s: when the first worker was lost, or the first epoch began, and when the iteration was done.
        iterations: the time between both in iterations of the time that the next ones take; None: nobody knows.
        kept, in_vain: forward and backward passes, each of a micro-batch at a worker, that had been run and count, and
            that had been run and were run again.
        again: operations that were run again for their messages alone.
        in_vain_s: the time that workers had spent with what was in vain.
        events: what happened, in order.
    """

    iteration: int
    resumed: bool
    broken_s: float
    done_s: float
    iterations: float | None
    kept: int
    in_vain: int
    again: int
    in_vain_s: float
    events: tuple[RecoveryEvent, ...]


def recoveries_of(timeline: Drawable) -> tuple[IterationRecovery, ...]:
    """The iterations of a timeline that epochs broke off, in order."""
    columns = columns_of(timeline).aligned()
    computed_s, iterations = columns.start_s[columns.is_computed], columns.iteration[columns.is_computed]
    broken: dict[int, list[float]] = {}
    for epoch_s, iteration in epochs_of(columns):
        if computed_s[iterations == iteration].min() < epoch_s:
            broken.setdefault(iteration, []).append(epoch_s)
    lost = lost_of(columns)
    return tuple(_Broken(columns, lost, *one).told() for one in sorted(broken.items()))


class _Broken:
    """An iteration that epochs broke off.

    Args:
        columns: of the timeline, aligned.
        lost: whether each span was done in vain.
        iteration: its number.
        epochs_s: when the epochs began that broke it off, ascending.
    """

    def __init__(self, columns: TimelineColumns, lost: "Flags", iteration: int, epochs_s: list[float]) -> None:
        self.columns, self.lost, self.iteration, self.epochs_s = columns, lost, iteration, epochs_s
        self.resumed_s = resumed_at_s(columns)
        self.own = (columns.iteration == iteration) & columns.is_computed
        self.passes = self.own & (columns.kind != KINDS.index("W"))  # W is the rest of a backward pass
        self.start_s = float(columns.start_s[self.own].min())
        self.done_s = float(columns.end_s[columns.iteration == iteration].max())
        gone_s = [
            event.time_s for event in columns.events
            if event.kind in GONE_AFTER and self.start_s <= event.time_s <= self.epochs_s[-1]
        ]  # fmt: skip
        self.broken_s = min([*gone_s, self.epochs_s[0]])
        self.iterations = self._iterations()

    def told(self) -> IterationRecovery:
        """What came of it."""
        columns, before = self.columns, self.passes & (self.columns.start_s < self.epochs_s[-1])
        in_vain = self.own & self.lost
        return IterationRecovery(
            iteration=self.iteration,
            resumed=self.epochs_s[-1] in self.resumed_s,
            broken_s=self.broken_s,
            done_s=self.done_s,
            iterations=self.iterations,
            kept=int((before & ~self.lost).sum()),
            in_vain=int((self.passes & self.lost).sum()),
            again=int((self.own & columns.is_again).sum()),
            in_vain_s=float((columns.end_s - columns.start_s)[in_vain].sum()),
            events=tuple(self._events()),
        )

    def _iterations(self) -> float | None:
        """From the loss to the end, in iterations of those after it: of one, from the end of that before to its own."""
        extents = [one for one in zip(*iterations_of(self.columns), strict=True) if one[0] >= self.iteration]
        changes_s = [event.time_s for event in self.columns.events if event.kind == "epoch"]
        later_s = [one.seconds for one in times_between(extents, changes_s) if not one.is_first]
        usual_s = median(later_s) if later_s else 0.0
        return (self.done_s - self.broken_s) / usual_s if usual_s > 0 else None

    def _events(self) -> Iterator[RecoveryEvent]:
        happened = sorted(
            (event for event in self.columns.events if self.start_s <= event.time_s <= self.done_s),
            key=lambda event: (event.time_s, order_of(event)),
        )
        for time_s, group in groupby(happened, key=lambda event: event.time_s):
            words, gone = [], []
            for event in group:
                words.append(words_of_event(event))
                gone += [event.worker] if event.kind in GONE_AFTER and event.worker else []
            if gone:
                words.append(self._under_way(gone, time_s))
            if time_s in self.epochs_s:
                words += self._after(time_s)
            yield RecoveryEvent(time_s, tuple(words))
        since = f"{print_time(self.done_s - self.broken_s)} after the first loss"
        usual = ""
        if self.iterations:
            usual = f", which is {print_number(round(self.iterations, 2))} of the iterations that follow"
        yield RecoveryEvent(self.done_s, (f"iteration {self.iteration} is done, {since}{usual}",))

    def _under_way(self, workers: list[str], time_s: float) -> str:
        """How far the iteration was when workers were lost."""
        columns = self.columns
        # The last epoch before it that did the iteration anew; the iteration's beginning where there is none.
        anew_s = (one for one in self.epochs_s if one < time_s and one not in self.resumed_s)
        since_s = max(anew_s, default=self.start_s)
        begun = self.own & (columns.start_s < time_s) & (columns.start_s >= since_s)
        run = Counter(columns.names[number] for number in columns.worker[begun].tolist())
        return (
            f"iteration {self.iteration} had begun {print_time(time_s - self.start_s)} before; of its operations "
            f"{int(begun.sum())} had been begun, {joined(f'{run[worker]} by {worker}' for worker in workers)}"
        )

    def _after(self, epoch_s: float) -> Iterator[str]:
        """What was kept at an epoch, what was in vain, and what each worker ran after it."""
        columns = self.columns
        later_s = min((one for one in self.epochs_s if one > epoch_s), default=np.inf)
        before = self.passes & (columns.start_s < epoch_s)
        since_s = max((s for s in self.epochs_s if s < epoch_s), default=-np.inf)
        stays = int((before & ~self.lost).sum())
        work = self.own & self.lost & (since_s <= columns.start_s) & (columns.start_s < epoch_s)
        new = work & self.passes
        spent_s = float((columns.end_s - columns.start_s)[work].sum())
        by = Counter(columns.names[number] for number in columns.worker[new].tolist())
        whose = ", ".join(f"{count} of {name}" for name, count in sorted(by.items())[:MOST_WORKERS])
        vain = f"{int(new.sum())} ({whose}), {print_time(spent_s)} of work" if whose else "nothing"
        yield f"kept: {counted(stays, 'forward and backward pass', 'es')}; in vain: {vain}"
        ahead = (columns.start_s < epoch_s) & (columns.iteration > self.iteration) & columns.is_computed & self.lost
        if ahead.any():
            yield f"of the iterations after it {counted(int(ahead.sum()), 'operation')} had been run ahead, in vain"
        after = self.own & (columns.start_s >= epoch_s) & (columns.start_s < later_s)
        if not after.any():
            return
        first = int(np.flatnonzero(after)[columns.start_s[after].argmin()])
        yield (
            f"{print_time(float(columns.start_s[first]) - epoch_s)} later the first operation begins: "
            f"{columns.op(first)} of {columns.names[int(columns.worker[first])]}"
        )
        yield f"run from here on: {listed(self._by_worker(after), MOST_WORKERS)}"

    def _by_worker(self, after: "Flags") -> Iterator[str]:
        columns = self.columns
        for number in sorted(set(columns.worker[after].tolist()), key=lambda one: tuple(columns.places[one])):
            own = after & (columns.worker == number)
            rerouted, again = int((own & columns.is_rerouted).sum()), int((own & columns.is_again).sum())
            notes = [f"{rerouted} re-routed"] * bool(rerouted) + [f"{again} again for messages alone"] * bool(again)
            yield f"{columns.names[number]} {int(own.sum())}{f' ({joined(notes)})' if notes else ''}"


def words_of_recoveries(recoveries: tuple[IterationRecovery, ...]) -> str:
    """All of it for people."""
    if not recoveries:
        return "No iteration of this timeline was broken off."
    lines: list[str] = []
    for one in recoveries:
        how = "was gone on with" if one.resumed else "was done anew"
        lines.append(f"Iteration {one.iteration} was broken off and {how}")
        unit = time_unit(one.done_s)
        for event in one.events:
            time = f"{print_time(event.time_s, unit):>11}"
            for number, words in enumerate(event.words):
                own = wrap(words, WIDTH - 15)
                lines += [f"{time if number == 0 and at == 0 else ' ' * 11}  {line}" for at, line in enumerate(own)]
        lines.append("")
    return "\n".join(lines[:-1])
