"""What a worker measures of its messages: when some of them were handed over, and when others had arrived."""

from collections.abc import Callable, Collection, Sequence

from ..program import Message, Program, Send
from .tags import Tags

# Of each direction of a link and iteration.
MOST_SAMPLES = 8
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
        ranks = range(len(names))
        self._to = {other: _chosen(program, self._tags, rank, other) for other in ranks}
        self._from = {other: _chosen(program, self._tags, other, rank) for other in ranks}
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
        if tag // 2 in self._to[to]:
            self.sent.append((self._names[to], tag, self._now_s()))

    def fetched(self, source: int, tag: int) -> None:
        """In a delegate: a message has arrived."""
        if tag // 2 in self._from[source]:
            self.arrived.append((self._names[source], tag, self._now_s()))

    def received(self, message: Message, source: int, asked_s: float) -> None:
        """The computing thread has a message that it asked for at `asked_s`."""
        now_s = self._now_s()
        tag = self._tags.of(message, self._iteration)
        if source not in self._delegated and now_s - asked_s > WAITED_S and tag // 2 in self._from[source]:
            self.arrived.append((self._names[source], tag, now_s))


def _chosen(program: Program, tags: Tags, source: int, to: int) -> frozenset[int]:
    """Half the tags of the messages to sample, which are evenly spread over those that a rank sends to another."""
    sent = [one.message for one in program.instructions[source] if isinstance(one, Send) and one.to == to]
    count = min(len(sent), MOST_SAMPLES)
    return frozenset(tags.of(sent[place * len(sent) // count], 0) // 2 for place in range(count))
