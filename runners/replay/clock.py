"""One job's time: what it spends on which standing, what it commits, and what it loses.

The clock knows no policy and no trace. It is told to go on to a time, or to let another standing take over, and keeps
the books: every second goes to one purpose, every micro-batch is committed at the end of its iteration and may be taken
back until the next checkpoint. Iterations are counted by arithmetic, not one by one, so that a year takes as long as an
hour.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...schemas.replay import Checkpointing, Pause, Standing, Step
from .spans import MOST_SPANS, Span, merged, neighbours

# Sums of iteration times and the times of events differ in their last bits: so much of an iteration is none.
ROUNDING = 1e-9


@dataclass(slots=True)
class _Uncertain:
    """What a roll-back would take: committed in a span after the last checkpoint."""

    span: Span
    microbatches: int
    work_s: float


@dataclass
class Clock:
    """A job under way.

    Attributes:
        standing: in force, or being taken over to.
        nodes: that are there.
        now_s: the time.
        spent_s: by purpose: `working`, `lost`, `waiting` and the kinds of pauses.
        microbatches: committed and not lost.
        spans: the past, of which neighbours are merged where there would be too many, and the present as the last one.
        present_s: nodes that were there times seconds; of nodes at work where they are more.
        worked_s: nodes at work times seconds.
    """

    standing: Standing
    nodes: int
    now_s: float = 0.0
    spent_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    microbatches: int = 0
    spans: list[Span] = field(default_factory=list)
    present_s: float = 0.0
    worked_s: float = 0.0
    _pauses: list[Pause] = field(default_factory=list)
    _part_s: float = 0.0  # of the iteration that is under way
    _since_checkpoint_s: float = 0.0  # of work that was committed
    _uncertain: list[_Uncertain] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._open_span()

    def go_to(self, time_s: float) -> None:
        """Let pauses pass, then iterations, until a time that is not before now."""
        while self._pauses and self.now_s < time_s:
            self._rest(time_s)
        if self.now_s < time_s:
            if self.standing.iteration_time_s is None:
                self._spend("waiting", time_s - self.now_s)
            else:
                self._train(time_s, self.standing.iteration_time_s)
        self.now_s = time_s

    @property
    def boundary_s(self) -> float:
        """When a standing could take over without loss: at the end of the pauses, or of the iteration under way."""
        iteration_s = self.standing.iteration_time_s
        if self._pauses or not iteration_s or self._part_s <= ROUNDING * iteration_s:
            return self.now_s + sum(pause.lasts_s for pause in self._pauses)
        return self.now_s + iteration_s - self._part_s

    def take_over(self, step: Step) -> None:
        """Now, let a step's standing take over.

        A step that interrupts loses the iteration under way, and with `rolls_back` all since the last checkpoint; of
        pauses that it interrupts, what they had left beyond its own is still to be waited for. Another one comes at a
        `boundary_s`.
        """
        if step.interrupts:
            self._lose_part()
            left = _beyond(self._pauses, sum(pause.lasts_s for pause in step.pauses))
            self._pauses = [*step.pauses, *left]
        else:
            self._pauses = list(step.pauses)
        if step.rolls_back:
            self._roll_back()
        self._part_s = 0.0
        self.standing = step.standing
        self._open_span()

    def count(self, nodes: int) -> None:
        """From now on so many nodes are there."""
        if nodes != self.nodes:
            self.nodes = nodes
            self._open_span()

    def close(self) -> None:
        """The trace has ended: the last iteration, unfinished, was work, though it commits nothing."""
        self._spend("working", self._part_s)
        self._part_s = 0.0
        self._close_span()

    def _rest(self, time_s: float) -> None:
        pause = self._pauses.pop(0)
        rest_s = min(pause.lasts_s, time_s - self.now_s)
        self._spend(pause.kind, rest_s)
        self.now_s += rest_s
        if rest_s < pause.lasts_s:
            self._pauses.insert(0, Pause(pause.kind, pause.lasts_s - rest_s))
        elif pause.kind == "checkpointing":
            self._saved()

    def _train(self, time_s: float, iteration_s: float) -> None:
        """Iterations, and checkpoints where there are some, until a time."""
        every = self.standing.checkpointing
        while self.now_s < time_s:
            most = math.inf if every is None else _iterations_until_due(every, self._since_checkpoint_s, iteration_s)
            room_s = time_s - self.now_s + self._part_s
            done = int(min(most, math.floor(room_s / iteration_s + ROUNDING)))
            self._commit(done, iteration_s)
            if every is None or done < most:
                self._part_s = max(0.0, room_s - done * iteration_s)
                self.now_s = time_s
                return
            self.now_s = min(time_s, self.now_s + done * iteration_s - self._part_s)
            self._part_s = 0.0
            self._save(every, iteration_s, time_s)

    def _save(self, every: Checkpointing, iteration_s: float, time_s: float) -> None:
        """A checkpoint, begun now; whole rounds of iterations and checkpoints that follow are taken at once."""
        self._pauses = [Pause("checkpointing", every.pause_s)]
        if self.now_s >= time_s:
            return
        self._rest(time_s)
        if self._pauses:
            return
        each = int(_iterations_until_due(every, 0.0, iteration_s))
        round_s = each * iteration_s + every.pause_s
        rounds = math.floor((time_s - self.now_s) / round_s)
        if rounds > 0:
            self._commit(rounds * each, iteration_s)
            self._spend("checkpointing", rounds * every.pause_s)
            self._saved()
            self.now_s = min(time_s, self.now_s + rounds * round_s)

    def _commit(self, iterations: int, iteration_s: float) -> None:
        if iterations:
            work_s, microbatches = iterations * iteration_s, iterations * self.standing.microbatches
            self._spend("working", work_s)
            self.microbatches += microbatches
            self.spans[-1].microbatches += microbatches
            self._since_checkpoint_s += work_s
            self._uncertain.append(_Uncertain(self.spans[-1], microbatches, work_s))
            if len(self._uncertain) > 2 * MOST_SPANS:
                self._uncertain = _by_span(self._uncertain)

    def _saved(self) -> None:
        self._since_checkpoint_s = 0.0
        self._uncertain.clear()

    def _lose_part(self) -> None:
        self._spend("lost", self._part_s)
        self._part_s = 0.0

    def _roll_back(self) -> None:
        for one in self._uncertain:
            self.microbatches -= one.microbatches
            one.span.microbatches -= one.microbatches
            self.spent_s["working"] -= one.work_s
            self._spend("lost", one.work_s)
        self._saved()

    def _spend(self, purpose: str, lasts_s: float) -> None:
        if lasts_s > 0:
            self.spent_s[purpose] += lasts_s

    def _open_span(self) -> None:
        """Begin a span now, in the place of one that has lasted no time."""
        working = 0 if self.standing.iteration_time_s is None else self.standing.nodes
        if self.spans:
            self._close_span()
            if self.spans[-1].start_s == self.now_s and not self.spans[-1].microbatches:
                self.spans.pop()
        if len(self.spans) > MOST_SPANS:
            self._merge_spans()
        self.spans.append(Span(self.now_s, self.nodes, working))

    def _close_span(self) -> None:
        """The present is past."""
        span = self.spans[-1]
        span.end_s = self.now_s
        # Only the cluster that never fails works with more nodes than the trace has.
        self.present_s += (span.end_s - span.start_s) * max(span.nodes, span.working_nodes)
        self.worked_s += (span.end_s - span.start_s) * span.working_nodes

    def _merge_spans(self) -> None:
        """Merge neighbours until half as many are left; what may be taken back is, from then on, theirs."""
        least_s = 2 * (self.now_s - self.spans[0].start_s) / MOST_SPANS
        heirs: dict[int, Span] = {}
        spans = []
        for group in neighbours(self.spans, least_s):
            spans.append(merged(group))
            heirs.update((id(span), spans[-1]) for span in group)
        for one in self._uncertain:
            one.span = heirs.get(id(one.span), one.span)  # one that lasted no time has no heir
        self.spans = spans


def _by_span(uncertain: Iterable[_Uncertain]) -> list[_Uncertain]:
    """One entry a span."""
    found: dict[int, _Uncertain] = {}
    for one in uncertain:
        whole = found.setdefault(id(one.span), _Uncertain(one.span, 0, 0.0))
        whole.microbatches += one.microbatches
        whole.work_s += one.work_s
    return list(found.values())


def _iterations_until_due(every: Checkpointing, since_s: float, iteration_s: float) -> float:
    """Iterations, at least one, until so much was trained that a checkpoint is due at an iteration's end."""
    return max(1.0, math.ceil((every.every_s - since_s) / iteration_s - ROUNDING))


def _beyond(pauses: Sequence[Pause], covered_s: float) -> list[Pause]:
    """What is left of pauses once so many seconds of them are over; a checkpoint that was cut short is void."""
    left = []
    for pause in pauses:
        if pause.kind != "checkpointing" and pause.lasts_s > covered_s:
            left.append(Pause(pause.kind, pause.lasts_s - covered_s))
        covered_s = max(0.0, covered_s - pause.lasts_s)
    return left
