"""Delegates: threads send and fetch messages, so that who computes never waits for a link."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig
from rtk.runners.program import Sending
from rtk.runners.torch import delegates
from rtk.runners.torch.delegates import MOST_DELEGATES, Delegates
from rtk.runners.torch.runner import PlanRunner
from rtk.runners.torch.transport import LostTouchError
from rtk.schemas.errors import RuntimeFailedError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

from .ranks import run_ranks

SOON_S = 60.0
Parcel = tuple[int, int, int]  # (source, to, tag)


class Wire:
    """What all ranks of a test send over: a delivery ends when the message has been asked for, as in gloo.

    Attributes:
        gate: messages leave while it is open.
        delivered: how often each was.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.changed = threading.Condition()
        self.asked: set[Parcel] = set()
        self.there: dict[Parcel, torch.Tensor] = {}
        self.delivered: Counter[Parcel] = Counter()
        self.leaving = 0


class OnWire:
    """One rank's transport; a direct send waits at the gate as one over a slow link does."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self.wire, self.rank, self.is_over = wire, rank, False

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        with self.wire.changed:
            self.wire.asked.add((source, self.rank, tag))
            self.wire.changed.notify_all()

    def receive(self, tag: int, source: int) -> torch.Tensor:
        parcel = (source, self.rank, tag)
        self._wait(lambda: parcel in self.wire.there)
        with self.wire.changed:
            self.wire.asked.remove(parcel)
            return self.wire.there.pop(parcel)

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        self._leave()
        self._put((self.rank, to, tag), tensor)

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        self._leave()
        self._wait(lambda: (self.rank, to, tag) in self.wire.asked)
        self._put((self.rank, to, tag), tensor)

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        self._wait(lambda: False)

    def begin_sum(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        pass

    def end_sums(self) -> None:
        self._wait(lambda: False)

    def flush(self, but: int = 0) -> None:
        pass

    def interrupt(self) -> None:
        with self.wire.changed:
            self.is_over = True
            self.wire.changed.notify_all()
        self.wire.gate.set()

    def close(self) -> None:
        self.interrupt()

    def _leave(self) -> None:
        with self.wire.changed:
            self.wire.leaving += 1
            self.wire.changed.notify_all()
        self.wire.gate.wait(SOON_S)

    def _put(self, parcel: Parcel, tensor: torch.Tensor) -> None:
        with self.wire.changed:
            self.wire.there[parcel] = tensor
            self.wire.delivered[parcel] += 1
            self.wire.changed.notify_all()

    def _wait(self, is_so: Callable[[], bool]) -> None:
        with self.wire.changed:
            assert self.wire.changed.wait_for(lambda: self.is_over or is_so(), SOON_S), "it waits for ever"
            if not is_so():
                raise RuntimeFailedError("interrupted")


@contextmanager
def pair(wire: Wire, **options: Any) -> Iterator[list[Delegates]]:
    """Two ranks that are delegated to each other; closed at the end, with no thread left."""
    inner = [OnWire(wire, rank) for rank in range(2)]
    both = [Delegates(one, one, {1 - rank}, **options) for rank, one in enumerate(inner)]
    try:
        yield both
    finally:
        for one in both:
            one.close()
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if name.startswith(("sending to", "receiving from"))]


def in_background(work: Callable[[], Any]) -> "Future[Any]":
    executor = ThreadPoolExecutor(1)
    try:
        return executor.submit(work)
    finally:
        executor.shutdown(wait=False)


def message(number: int) -> torch.Tensor:
    return torch.full((2,), float(number))


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[int, str, int]]:
    """Sends and receives of two ranks in an order that can happen: (rank, what, number of the message)."""
    story: list[tuple[int, str, int]] = []
    under_way: list[list[int]] = [[], []]  # to each rank
    for number in range(draw(st.integers(1, 14))):
        rank = draw(st.integers(0, 1))
        story.append((rank, "send", number))
        under_way[1 - rank].append(number)
        taker = draw(st.integers(0, 1))
        for _ in range(draw(st.integers(0, len(under_way[taker])))):
            place = draw(st.integers(0, len(under_way[taker]) - 1))
            story.append((taker, "receive", under_way[taker].pop(place)))
    rest = draw(st.permutations([(rank, number) for rank, those in enumerate(under_way) for number in those]))
    return story + [(rank, "receive", number) for rank, number in rest]


@settings(max_examples=60)
@given(stories(), st.integers(1, 3), st.integers(1, 3))
def test_every_message_comes_once_in_any_order_of_need(story: list[Any], senders: int, ahead: int) -> None:
    """However two ranks send and need, with the tightest bounds: each message is there, right, and delivered once."""
    wire, got = Wire(), dict[int, float]()
    with pytest.MonkeyPatch.context() as patch, pair(wire) as both:
        patch.setattr(delegates, "MOST_DELEGATES", senders)
        patch.setattr(delegates, "AHEAD_MESSAGES", ahead)
        patch.setattr(delegates, "AHEAD_AT_LEAST", 1)

        def work(rank: int) -> None:
            for sender, what, number in story:
                if what == "send" and sender != rank:
                    both[rank].post_receive(number, 1 - rank, message(0))
            for actor, what, number in story:
                if actor == rank and what == "send":
                    both[rank].send(number, 1 - rank, message(number))
                elif actor == rank:
                    got[number] = both[rank].receive(number, 1 - rank)[1].item()
            both[rank].flush()

        for done in [in_background(lambda rank=rank: work(rank)) for rank in range(2)]:  # type: ignore[misc]
            done.result(SOON_S)
    assert got == {number: float(number) for _, what, number in story if what == "send"}
    assert set(wire.delivered.values()) == {1}
    assert not wire.there


def test_a_slow_link_does_not_hold_who_sends_by_delegates() -> None:
    """While nothing leaves, ten messages are sent by delegates; the first that is sent directly waits."""
    wire = Wire()
    wire.gate.clear()
    with pair(wire) as (sender, receiver):
        for number in range(10):
            receiver.post_receive(number, 0, message(0))
            sender.send(number, 1, message(number))
        directly = in_background(lambda: OnWire(wire, 0).send(10, 1, message(10)))
        with wire.changed:
            assert wire.changed.wait_for(lambda: wire.leaving == 11, SOON_S)
        assert not directly.done()
        assert not wire.delivered
        assert sender.delegates_to(1) == 10
        wire.gate.set()
        assert [receiver.receive(number, 0)[0].item() for number in (9, *range(9))] == [9, *range(9)]
        directly.result(SOON_S)


def test_as_many_delegates_as_keep_pace() -> None:
    """Messages that leave before the next is sent need one delegate; a queue that fills has MOST_DELEGATES."""
    wire, count = Wire(), 2 * MOST_DELEGATES
    with pair(wire) as (sender, receiver):
        for number in range(2 * count):
            receiver.post_receive(number, 0, message(0))
        for number in range(count):
            sender.send(number, 1, message(number))
            sender.flush()
            receiver.receive(number, 0)
        assert sender.delegates_to(1) == 1
        wire.gate.clear()
        for number in range(count, 2 * count):
            sender.send(number, 1, message(number))
        assert sender.delegates_to(1) == MOST_DELEGATES
        wire.gate.set()
        assert [receiver.receive(number, 0)[0].item() for number in range(count, 2 * count)] == [
            *range(count, 2 * count)
        ]
        sender.flush()


def test_what_is_fetched_ahead_is_bounded() -> None:
    """So many messages are asked for ahead of need, fewer where they are large, and one more as each is taken."""
    wire, like = Wire(), torch.empty(1)
    large = torch.empty(delegates.AHEAD_BYTES // 2, dtype=torch.uint8, device="meta")
    for tensor, most in ((like, delegates.AHEAD_MESSAGES), (large, delegates.AHEAD_AT_LEAST)):
        wire.asked.clear()
        with pair(wire) as (sender, receiver):
            for number in range(most + 5):
                receiver.post_receive(number, 0, tensor)
            assert len(wire.asked) == most
            sender.send(0, 1, like)
            receiver.receive(0, 0)
            assert sorted(tag for _, _, tag in wire.asked) == [*range(1, most + 1)]


def test_flush_leaves_the_last_ones_alone() -> None:
    """`flush(but)` waits for all but the last messages, whether delegates have them or not."""
    wire = Wire()
    inner = OnWire(wire, 0)
    flushed: list[int] = []
    inner.flush = flushed.append  # type: ignore[method-assign, assignment]
    sender = Delegates(inner, inner, {1})
    for tag, to in enumerate((1, 2, 1, 2, 2)):
        if tag < 2:
            wire.asked.add((0, to, tag))
        sender.send(tag, to, message(tag))
    sender.flush(but=3)
    assert flushed == [2]
    assert wire.delivered[0, 1, 0] == 1
    assert not in_background(sender.flush).done()
    sender.close()


def test_a_delegate_that_dies_is_told_at_once() -> None:
    """Who waits for another rank, or for all, hears of a delegate's failure, and with whom it lost touch."""

    class Failing(OnWire):
        def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
            raise ValueError("a broken delegate")

    for blocked in (lambda one: one.all_reduce((0, 1, 2), message(0)), lambda one: one.receive(9, 2)):
        inner = Failing(Wire(), 0)
        sender = Delegates(inner, inner, {1})
        sender.post_receive(9, 2, message(0))
        waiting = in_background(lambda blocked=blocked, sender=sender: blocked(sender))  # type: ignore[misc]
        sender.send(1, 1, message(0))
        error = waiting.exception(SOON_S)
        assert isinstance(error, LostTouchError)
        assert (error.peer, "a broken delegate" in error.what) == (1, True)
        for operation in (sender.flush, lambda sender=sender: sender.send(2, 1, message(0))):
            with pytest.raises(LostTouchError, match="rank 1"):
                operation()
        sender.close()


def test_an_interrupt_wakes_everybody() -> None:
    """A receive and a flush that wait for delegates end, and later operations are refused."""
    wire = Wire()
    wire.gate.clear()
    with pair(wire) as (sender, _):
        sender.post_receive(1, 1, message(0))
        sender.send(2, 1, message(0))
        waiting = [in_background(lambda: sender.receive(1, 1)), in_background(sender.flush)]
        sender.interrupt()
        for one in waiting:
            error = one.exception(SOON_S)
            assert isinstance(error, RuntimeFailedError)
            assert not isinstance(error, LostTouchError)
        with pytest.raises(RuntimeFailedError, match="interrupted"):
            sender.send(3, 1, message(0))


def test_a_delay_that_never_ends_is_a_lost_peer() -> None:
    """A needed message that does not come within the limit is a failure, with the rank it should have come from."""
    with pair(Wire(), stall_s=0.05) as (_, receiver):
        receiver.post_receive(1, 0, message(0))
        with pytest.raises(LostTouchError, match="has not come") as caught:
            receiver.receive(1, 0)
        assert caught.value.peer == 0


def test_dismissed_delegates_leave_the_connections_alone() -> None:
    """At the end of a job delegates go, while other ranks may still need the connections."""
    inner = OnWire(Wire(), 0)
    sender = Delegates(inner, inner, {1})
    sender.dismiss()
    assert not inner.is_over
    assert not [thread for thread in threading.enumerate() if thread.name.endswith(" 1")]


# On real ranks


def losses(plan: Plan, transport: Sending) -> list[float | None]:
    """The losses of a small model on real sockets."""
    torch.manual_seed(1)
    layers = list(gpt_layers(GptConfig(blocks=2, width=16, heads=2, vocabulary=64, positions=16)))
    tokens = torch.randint(0, 64, (3, plan.total_microbatches(), 2, 17))

    def train(runner: PlanRunner) -> list[float | None]:
        return [runner.step([(rows[:, :-1], rows[:, 1:]) for rows in batch]).loss for batch in tokens]

    ranks = run_ranks(
        plan,
        layers,
        language_model_loss,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        train,
        transport=transport,
    )
    return ranks[-1]


@pytest.mark.parametrize("dp", [1, 2])
def test_delegates_train_the_same_bits(dp: int) -> None:
    """Losses with delegates on all links, and on one, equal those of direct sends bit for bit."""
    profile = Profile(tuple(Layer((LayerCost(1.0, 1.0, 1.0),)) for _ in range(4)))
    plan = plan_pipeline(profile, Shape(4 // dp, dp, 5, link_delay_s={(0, 0): 0.5}), "zero-bubble")
    direct, by_delegates, mixed = (losses(plan, way) for way in ("direct", "delegated", "auto"))
    assert direct == by_delegates == mixed
    assert len(set(direct)) == 3
