"""How tensors travel between ranks: a Protocol. gloo.py and nccl.py have it, faults.py and delegates.py wrap it."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from ...schemas.errors import RuntimeFailedError
from ...schemas.orders import Operation
from ...schemas.plan import Plan
from ..program import Message, Program, sampled


class Transport(Protocol):
    """Messages between ranks, matched by (source, tag) in any order, and sums over groups of ranks."""

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """Announce that a message of the shape and type of `like` will be taken with `receive`."""
        ...

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """Wait for an announced message."""
        ...

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Send without waiting for the receiver; the tensor must not change until it has been taken."""
        ...

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Send and wait until the receiver has the message; for threads other than the computing one.

        `flush` knows nothing of it. Several threads may be in here, and in `receive`, at once.
        """
        ...

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum a tensor over a group of ranks that was announced at the start, in place."""
        ...

    def begin_sum(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Begin to sum as `all_reduce` does, without waiting; the tensor is nobody's until `end_sums`.

        All ranks of a group begin the same sums, in the same order, and end them before they sum otherwise.
        """
        ...

    def end_sums(self) -> None:
        """Wait until all sums are there that were begun."""
        ...

    def flush(self, but: int = 0) -> None:
        """Wait until every message sent so far has been taken, except for the last `but`."""
        ...

    def interrupt(self) -> None:
        """Wake every thread that is blocked in this transport; from any thread, any number of times.

        Blocked and later operations raise RuntimeFailedError. The other ranks lose their connections to this one.
        """
        ...

    def close(self) -> None:
        """Interrupt, and let go of all connections, threads and tensors, whatever is still under way."""
        ...


# The numbers of messages, by which both ends know them.


# Above the tags of all messages of a program; checkpoint.py has those above it.
EXAMINATION_TAG, PROBE_TAG = 0x6FFFFFFE, 0x6FFFFFFF


class Tags:
    """A number for every message of a plan, unlike in two neighbouring iterations.

    Args:
        plan: that is executed.
        is_rest: whether it is what is left of an iteration, whose messages have boundaries of layers for links.
    """

    def __init__(self, plan: Plan, is_rest: bool = False) -> None:
        self._links = max(len(template.links) for template in plan.templates)
        self._offsets = [plan.microbatch_offset(k) for k in range(len(plan.pipelines))]
        self._total = plan.total_microbatches()
        # Those of messages and of evaluation are below those of a rest.
        self._first = 8 * self._total * self._links if is_rest else 0
        self._places = plan.templates[0].stages[-1].layers[1] if is_rest else self._links

    def of(self, message: Message, iteration: int) -> int:
        """The tag of a message in an iteration."""
        parts = 2 * (self.microbatch(message) * self._places + message.link) + (message.kind == "gradient")
        return self._first + 2 * parts + iteration % 2

    def of_evaluation(self, message: Message, turn: int) -> int:
        """The tag of an activation of held-out data, unlike all others, and those of the turn before and after."""
        return 4 * self._total * self._links + self.of(message, turn)

    def microbatch(self, one: Operation | Message) -> int:
        """The global number of the micro-batch that an operation works on, or whose message it is."""
        return self._offsets[one.pipeline] + one.microbatch


# What a worker measures of its messages: when some of them were handed over, and when others had arrived.


# A receive that takes less may have found its message there already.
WAITED_S = 0.0005

Sample = tuple[str, int, float]  # (the other worker, the message's number, when)


class Transfers:
    """Samples of the messages of one rank, an iteration at a time; both ends choose the same messages.

    A message from a delegated rank is stamped by the delegate as it arrives. One that comes directly has a time only if
    the computing thread had to wait for it; else it may have come at any time before.

    Args:
        program: the lowered plan; of what is left of an iteration nothing is measured.
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
        if tag // 2 in self._chosen.get((source, self._rank), ()):  # none of what is left of an iteration is
            self.arrived.append((self._names[source], tag, self._now_s()))

    def received(self, message: Message, source: int, asked_s: float) -> None:
        """The computing thread has a message that it asked for at `asked_s`."""
        now_s = self._now_s()
        tag = self._tags.of(message, self._iteration)
        has_waited = source not in self._delegated and now_s - asked_s > WAITED_S
        if has_waited and tag // 2 in self._chosen[source, self._rank]:
            self.arrived.append((self._names[source], tag, now_s))


# The error of a worker that does not reach one of the others any more.


class LostTouchError(RuntimeFailedError):
    """Communication with one rank broke, or stands still; whether that rank is alive is for a coordinator to find out.

    Attributes:
        peer: the rank.
    """

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(
            f"lost touch with rank {peer}: {why}", fix="look at that worker's own error; start the run again"
        )
        self.peer = peer


class StalledError(LostTouchError):
    """Nothing has come from one rank for long, though nothing broke: it may wait for others itself."""


class _Reaching:
    """As of `reaching`; not made of a generator, for it is entered for every message."""

    __slots__ = ("_peer",)

    def __init__(self, peer: int) -> None:
        self._peer = peer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeFailedError) and not isinstance(error, LostTouchError):
            raise LostTouchError(self._peer, error.what) from error


def reaching(peer: int) -> AbstractContextManager[None]:
    """What fails inside failed with this rank, unless the error names one itself."""
    return _Reaching(peer)
