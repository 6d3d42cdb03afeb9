"""What a worker measures of its messages: when some of them were handed over, and when others had arrived."""

from collections.abc import Callable, Collection, Sequence

from ..program import Message, Program
from ..sending import sampled
from .tags import Tags

# A receive that takes less may have found its message there already.
WAITED_S = 0.0005

Sample = tuple[str, int, float]  # (the other worker, the message's number, when)


class Transfers:
    """Samples of the messages of one rank, an iteration at a time; both ends choose the same messages.

    A message from a delegated rank is stamped by the delegate as it arrives. One that comes directly has a time only if
    the computing thread had to wait for it; else it may have come at any time before.

    Args:
        program: the lowered plan.
        rank: this one.
        names: of the workers, by rank.
        delegated: the ranks that are reached by delegates.
        now_s: a clock that all workers share, as well as may be, in seconds.
    """

    def __init__(
        self, program: Program, rank: int, names: Sequence[str], delegated: Collection[int], now_s: Callable[[], float]
    ) -> None:
        self._names, self._delegated, self._now_s = names, delegated, now_s
        self._tags = Tags(program.plan)
        # Half their tags, which are those of any iteration, by who sends them to whom.
        self._chosen = {
            way: frozenset(self._tags.of(message, 0) // 2 for message in messages)
            for way, messages in sampled(program, rank).items()
        }
        self._rank = rank
        self._iteration = 0
        self.begin(0)

    def begin(self, iteration: int) -> None:
        """Forget the samples of the iteration before."""
        self._iteration = iteration
        self.sent: list[Sample] = []
        self.arrived: list[Sample] = []

    def handed_over(self, message: Message, to: int) -> None:
        """A message is about to be sent."""
        tag = self._tags.of(message, self._iteration)
        if tag // 2 in self._chosen[self._rank, to]:
            self.sent.append((self._names[to], tag, self._now_s()))

    def fetched(self, source: int, tag: int) -> None:
        """In a delegate: a message has arrived."""
        if tag // 2 in self._chosen[source, self._rank]:
            self.arrived.append((self._names[source], tag, self._now_s()))

    def received(self, message: Message, source: int, asked_s: float) -> None:
        """The computing thread has a message that it asked for at `asked_s`."""
        now_s = self._now_s()
        tag = self._tags.of(message, self._iteration)
        has_waited = source not in self._delegated and now_s - asked_s > WAITED_S
        if has_waited and tag // 2 in self._chosen[source, self._rank]:
            self.arrived.append((self._names[source], tag, now_s))
