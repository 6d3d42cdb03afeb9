"""The replay of a trace under a policy: changes in, steps out, on a clock that jumps from one to the next.

`runners/story.py` tells a trace operation by operation, with the coordinator's own rules; it is right to the
millisecond and takes minutes for a day. A replay knows iterations only as a number of seconds, the policy's, which is
that of `rtk simulate`, and takes a second for a year. What it does not know: how the iteration in which something
happens would have gone on, and traffic that training and copies share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...schemas.errors import InvalidInputError
from ...schemas.protocols import Policy
from ...schemas.replay import Moment, Standing, Step
from .clock import Clock
from .spans import Span


@dataclass(frozen=True)
class Record:
    """What came of a trace.

    Attributes:
        began: the standing that it began with.
        spans: throughput over time; of very long traces neighbours are merged.
        present_s: nodes that were there times seconds; of nodes at work where they are more.
        worked_s: nodes at work times seconds.
        spent_s: the trace's duration by purpose: `working`, `lost`, `waiting`, and the kinds of pauses.
        microbatches: committed, and not lost later.
        answers: how often what was done.
        peak_memory_bytes: the most of any standing in force.
        lasts_s: the trace's duration.
    """

    began: Standing
    spans: tuple[Span, ...]
    present_s: float
    worked_s: float
    spent_s: Mapping[str, float]
    microbatches: int
    answers: Mapping[str, int]
    peak_memory_bytes: float
    lasts_s: float


def replay(policy: Policy, moments: Iterable[Moment], until_s: float | None = None) -> Record:
    """Replay a trace under a policy.

    Args:
        policy: what answers changes.
        moments: in time order, read as they come; the first one, at 0, has the nodes that are there at the beginning.
        until_s: when the trace ends; None: with its last moment.

    Raises:
        InfeasibleError: the policy cannot train this job on such GPUs.
        InvalidInputError: there are no moments, or they are not in order.
    """
    stream = iter(moments)
    first = next(stream, None)
    if first is None:
        raise InvalidInputError(
            "the trace has no events", where="--trace", fix="give one that says which nodes there are"
        )
    return _Replay(policy, first).run(stream, until_s)


class _Replay:
    """One replay under way."""

    def __init__(self, policy: Policy, first: Moment) -> None:
        self._policy, self._fleet = policy, first.fleet
        self._began = policy.begin(first.fleet)
        self._clock = Clock(self._began, len(first.fleet.nodes), first.time_s)
        self._began_s = first.time_s
        self._answers: Counter[str] = Counter()
        self._peak_bytes = self._began.peak_memory_bytes

    def run(self, moments: Iterator[Moment], until_s: float | None) -> Record:
        """Ask the policy at every moment, and carry out what it said up to the next one; as `replay` says."""
        steps: tuple[Step, ...] = ()
        asked_s = closes_s = self._clock.now_s
        fleet = self._fleet
        for moment in moments:
            if moment.time_s < asked_s:
                raise InvalidInputError(
                    f"a moment at {moment.time_s:g} s comes after one at {asked_s:g} s", where="--trace"
                )
            if until_s is not None and moment.time_s >= until_s:
                break
            if not moment.lost and not moment.came and moment.fleet == fleet:
                closes_s = moment.time_s  # nothing changes: the trace says how long it lasts
                continue
            self._carry_out(steps, asked_s, moment.time_s)
            steps, asked_s, fleet = self._policy.answer(self._clock.standing, moment), moment.time_s, moment.fleet
            self._clock.count(len(fleet.nodes))
        end_s = max(asked_s, closes_s) if until_s is None else until_s
        self._carry_out(steps, asked_s, end_s)
        self._clock.close()
        clock = self._clock
        return Record(
            self._began, tuple(clock.spans), clock.present_s, clock.worked_s, clock.spent_s, clock.microbatches,
            self._answers, self._peak_bytes, end_s - self._began_s,
        )  # fmt: skip

    def _carry_out(self, steps: tuple[Step, ...], asked_s: float, until_s: float) -> None:
        """Take the steps that come to it, one after the other, and go on to a time."""
        clock = self._clock
        for step in steps:
            due_s = max(clock.now_s, asked_s + step.after_s)
            if due_s > until_s or due_s == until_s > asked_s:
                break
            clock.go_to(due_s)
            if not step.interrupts and not self._reaches_boundary(until_s):
                break
            self._take(step)
        clock.go_to(until_s)

    def _reaches_boundary(self, until_s: float) -> bool:
        """Go on to where another standing can take over without loss, if that is not too late.

        A checkpoint that begins with the end of the iteration under way is waited for, too.
        """
        clock = self._clock
        while clock.now_s < (boundary_s := clock.boundary_s) <= until_s:
            clock.go_to(boundary_s)
        return boundary_s <= until_s

    def _take(self, step: Step) -> None:
        self._clock.take_over(step)
        if step.answer:
            self._answers[step.answer] += 1
        self._peak_bytes = max(self._peak_bytes, step.standing.peak_memory_bytes)
