"""How messages of the systems without delegates pass a slow link: by NCCL, as the artifact's injector slows it.

The injector (failslow_injection.cu) puts a kernel that sleeps before each send over a slow link, into the stream that
sends. What then waits for it depends on how the framework sends:

* Megatron's 1F1B exchanges what goes forth and what comes back in one call, and waits for both: a send holds its
  sender. In these calls the injector knows receivers by their number among all stages, and takes numbers 0 and 1 for
  the neighbours before and after. So stage 2's sends to stage 1 are slowed when the link to stage 3 is slow, and not
  when the link to stage 1 is.
* Zero-bubble's runtime sends one message at a time: a pair of neighbours has one stream, which carries what goes forth
  and what comes back in the order in which the schedule, undelayed, has them. Messages that the schedule has at the
  same moment pass together, or one first; both are in the artifact's logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ...runners.program import Message, Program
    from ...schemas.plan import Plan

Delays = Mapping[int, float]  # seconds by link; link i lies between stages i and i + 1
Way = Literal["together", "forth first", "back first"]  # of messages that an undelayed schedule has at one moment
Turns = Mapping[int, list[tuple["Message", ...]]]  # by link, which messages pass at once, in their order


def exchanging_s(plan: Plan, delays_s: Delays, misdirects: bool = True) -> float:
    """An iteration of 1F1B where every send holds its sender for the delay, in s.

    Args:
        plan: of 1F1B.
        delays_s: of links.
        misdirects: whether the injector mistakes stage 2's sends to stage 1.
    """
    from ...runners.program import Send, lower, pairs_of
    from ...runners.simulator import execute

    program = lower(plan)
    delayed = replace(
        program,
        instructions=tuple(
            tuple(
                replace(one, delay_s=delays_s.get(_link(rank, one.to, misdirects), 0.0))
                if isinstance(one, Send)
                else one
                for one in instructions
            )
            for rank, instructions in enumerate(program.instructions)
        ),
    )
    return max(execute(delayed, direct=pairs_of(delayed)).done_s)


def _link(sender: int, receiver: int, misdirects: bool) -> int:
    """The link that the injector takes a send of Megatron's for."""
    return sender if misdirects and (sender, receiver) == (2, 1) else min(sender, receiver)


def passing_s(schedule: Plan, plan: Plan, delays_s: Delays, way: Way) -> float:
    """An iteration of zero-bubble's runtime, in s.

    Args:
        schedule: whose moments order the messages of a link.
        plan: the same orders with the times that operations take.
        delays_s: of links.
        way: how messages pass that the schedule has at the same moment.
    """
    from ...runners.program import lower

    return _Passing(lower(plan), _turns(lower(schedule), way), delays_s).run()


def _turns(schedule: Program, way: Way) -> Turns:
    from ...runners.simulator import execute

    first = "gradient" if way == "back first" else "activation"
    due_s = {message: round(at_s, 9) for message, at_s in execute(schedule).traffic.handed_s.items()}
    ordered = sorted(due_s, key=lambda one: (one.link, due_s[one], one.kind != first, one.microbatch))
    turns: dict[int, list[tuple[Message, ...]]] = {}
    for (link, _), group in groupby(ordered, key=lambda one: (one.link, due_s[one])):
        messages = tuple(group)
        turns.setdefault(link, []).extend([messages] if way == "together" else [(one,) for one in messages])
    return turns


@dataclass
class _Passing:
    """An iteration under way: how far each worker and each link has come, in s."""

    program: Program
    turns: Turns
    delays_s: Delays
    handed_s: dict[Message, float] = field(default_factory=dict)
    arrived_s: dict[Message, float] = field(default_factory=dict)

    def run(self) -> float:
        """Let workers and links go on in turn until all is done; orders are fixed, so only times are to be found."""
        workers = [0.0] * len(self.program.workers)
        places = [0] * len(workers)
        links = dict.fromkeys(self.turns, 0.0)
        passed = dict.fromkeys(self.turns, 0)
        goes_on = True
        while goes_on:
            goes_on = False
            for rank, place in enumerate(places):
                workers[rank], places[rank] = self._work(rank, place, workers[rank])
                goes_on |= places[rank] > place
            for link, turn in passed.items():
                links[link], passed[link] = self._pass(link, turn, links[link])
                goes_on |= passed[link] > turn
        assert places == [len(one) for one in self.program.instructions]
        return max(workers)

    def _work(self, rank: int, place: int, now_s: float) -> tuple[float, int]:
        """A worker's time and place once it waits for a message, or is done."""
        from ...runners.program import Compute, Receive, Send

        instructions = self.program.instructions[rank]
        stage = self.program.plan.stage_of(self.program.workers[rank])
        while place < len(instructions):
            match instructions[place]:
                case Compute(operation):
                    now_s += stage.duration_s(operation.kind)
                case Send(message):
                    self.handed_s[message] = now_s
                case Receive(message):
                    if message not in self.arrived_s:
                        break
                    now_s = max(now_s, self.arrived_s[message])
                case _:  # there are no peers to sum gradients with, and no step is timed
                    pass
            place += 1
        return now_s, place

    def _pass(self, link: int, turn: int, free_s: float) -> tuple[float, int]:
        """A link's time and turn once the messages of its turn are not all handed over."""
        while turn < len(self.turns[link]) and all(one in self.handed_s for one in self.turns[link][turn]):
            messages = self.turns[link][turn]
            free_s = max(free_s, *(self.handed_s[one] for one in messages)) + self.delays_s.get(link, 0.0)
            self.arrived_s.update(dict.fromkeys(messages, free_s))
            turn += 1
        return free_s, turn
