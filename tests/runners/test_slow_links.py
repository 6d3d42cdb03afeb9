"""Links that are slow or broken on purpose: whom they hold, and what is measured of them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.program import MOST_SAMPLES, Program, Send, lower
from rtk.runners.resilience.link import CoordinatorLink
from rtk.runners.resilience.protocol import FromWorker, Job, Suspect, Vote
from rtk.runners.torch.faults import BROKEN, DelayedTransport, Injection, slowest_links
from rtk.runners.torch.gloo import GlooTransport
from rtk.runners.torch.plane import Plane, delegated_peers, probed_peers
from rtk.runners.torch.transport import WAITED_S, LostTouchError, Tags, Transfers
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.protocols import Measured
from rtk.schemas.trace import TraceEvent

from .scripted import ThreadJob, plan_of, single_process
from .test_iteration import Alone
from .test_transport_epochs import in_ranks

PROFILE = Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * 4)


class Noting(Alone):
    """Notes what is sent; each wait in front of it is noted as well, and not waited."""

    def __init__(self) -> None:
        super().__init__()
        self.did: list[tuple[str, float]] = []

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        self.did.append(("send", to))

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        self.did.append(("deliver", to))

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        self.did.append(("sum", len(group)))


def noting(monkeypatch: pytest.MonkeyPatch) -> Noting:
    inner = Noting()

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        inner.did.append(("wait", timeout or 0.0))
        return event.is_set()

    monkeypatch.setattr(threading.Event, "wait", wait)
    return inner


def test_a_slow_link_holds_who_sends_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message waits for its own link's delay and then leaves; over a fast link it leaves at once."""
    inner = noting(monkeypatch)
    slow = DelayedTransport(inner, slowest_links([(1, 0.25), (2, 0.0), (1, 0.5)]))
    for to in (1, 2):
        slow.send(7, to, torch.zeros(1))
        slow.deliver(7, to, torch.zeros(1))
    wanted = [("wait", 0.5), ("send", 1), ("wait", 0.5), ("deliver", 1), ("send", 2), ("deliver", 2)]
    assert inner.did == wanted


def test_a_sum_waits_for_the_slowest_link_of_its_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring of n passes a link 2 (n - 1) times; the plan's own delays, and links to others, have no part in it."""
    inner = noting(monkeypatch)
    slow = DelayedTransport(inner, lambda rank: 9.0, slowest_links([(1, 0.25), (2, 0.5), (3, BROKEN)]))
    for group in ((0, 1, 2), (0, 1), (0, 4), (0,)):
        slow.all_reduce(group, torch.zeros(1))
    assert inner.did == [("wait", 2.0), ("sum", 3), ("wait", 0.5), ("sum", 2), ("sum", 2), ("sum", 1)]
    with pytest.raises(LostTouchError) as caught:
        slow.all_reduce((0, 2, 3), torch.zeros(1))
    assert caught.value.peer == 3


def test_nothing_passes_a_broken_link() -> None:
    """Who sends over it has lost touch with who is at its other end, at once; others are reached."""
    inner = Noting()
    slow = DelayedTransport(inner, slowest_links([(1, BROKEN)]))
    for operation in (slow.send, slow.deliver):
        with pytest.raises(LostTouchError) as caught:
            operation(1, 1, torch.zeros(1))
        assert caught.value.peer == 1
        operation(1, 2, torch.zeros(1))
    assert inner.did == [("send", 2), ("deliver", 2)]


def test_a_delay_lasts_what_it_says() -> None:
    """A real wait is never shorter than the delay."""
    slow = DelayedTransport(Noting(), lambda rank: 0.02)
    start_s = time.perf_counter()
    slow.send(1, 1, torch.zeros(1))
    assert time.perf_counter() - start_s >= 0.02


# What a trace says of links


def test_a_trace_slows_and_breaks_links_until_they_recover() -> None:
    """Events of this worker's links hold from their iteration on, whichever end is named first; others are ignored."""
    events = [
        TraceEvent("slow_link", iteration=2, link="0/1-0/0", factor=3.0, delay_s=0.5),
        TraceEvent("slow_link", iteration=2, link="0/1-0/2", delay_s=0.25),
        TraceEvent("slow_link", iteration=3, link="1/0-1/1", delay_s=9.0),
        TraceEvent("recover", iteration=4, link="0/0-0/1"),
        TraceEvent("fail", iteration=4, link="0/1-0/2"),
        TraceEvent("recover", iteration=6, link="0/1-0/2"),
    ]
    injection = Injection(events, "0/1")
    assert injection.has_links
    found = []
    for iteration in range(7):
        injection.begin(iteration, 4)
        injection.before(3)  # a link's failure kills nobody
        found.append([injection.link_delay_s(other, 0.125) for other in ("0/0", "0/2", "1/1")])
    slow, gone, well = 0.875, BROKEN, 0.125
    assert found == [[well] * 3] * 2 + [[slow, 0.375, well]] * 2 + [[well, gone, well]] * 2 + [[well] * 3]
    assert not Injection([TraceEvent("fail", iteration=1, worker="0/1")], "0/1").has_links


# Who is reached how


def pipeline(delay_s: float) -> Program:
    """Four stages, with a delay on the last link."""
    return lower(plan_pipeline(PROFILE, Shape(4, 1, 4, link_delay_s={(None, 2): delay_s}), "1f1b"))


def test_who_has_delegates() -> None:
    """By itself, links that the plan or the coordinator knows to be slow; else all or none; both ends agree."""
    slow, fast = pipeline(0.5), pipeline(0.0)
    ranks = range(4)
    assert [delegated_peers("auto", slow, rank) for rank in ranks] == [set(), set(), {3}, {2}]
    assert [delegated_peers("auto", fast, rank, [(0, 1), (0, 3)]) for rank in ranks] == [{1}, {0}, set(), set()]
    assert [delegated_peers("direct", slow, rank, [(0, 1)]) for rank in ranks] == [set()] * 4
    assert [delegated_peers("direct", slow, rank, [], [(0, 1)]) for rank in ranks] == [{1}, {0}, set(), set()]
    assert [delegated_peers("delegated", fast, rank) for rank in ranks] == [{1}, {0, 2}, {1, 3}, {2}]


def test_who_is_probed() -> None:
    """Slow links over which the plan sends nothing, if they are not broken and delegates are wanted at all."""
    fast = pipeline(0.0)
    slow = [(0, 1), (0, 3), (1, 3)]
    assert [probed_peers("auto", fast, rank, slow, [(1, 3)]) for rank in range(4)] == [{3}, set(), set(), {0}]
    assert probed_peers("direct", fast, 0, slow, []) == set()


# What is measured


@given(st.integers(1, 30), st.integers(0, 3))
def test_both_ends_choose_the_same_few_messages(microbatches: int, iteration: int) -> None:
    """Of each direction at most eight, evenly spread, by the same numbers at both ends; and when they were known."""
    program = lower(plan_pipeline(PROFILE, Shape(2, 1, microbatches), "1f1b"))
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    ends = [Transfers(program, rank, ["a", "b"], {1 - rank}, clock) for rank in range(2)]
    for end in ends:
        end.begin(iteration)
    tags = Tags(program.plan)
    for rank in range(2):
        for one in program.instructions[rank]:
            if isinstance(one, Send):
                ends[rank].handed_over(one.message, one.to)
                ends[one.to].fetched(rank, tags.of(one.message, iteration))
    for rank, end in enumerate(ends):
        sent, arrived = end.sent, ends[1 - rank].arrived
        assert [number for _, number, _ in sent] == [number for _, number, _ in arrived]
        assert len(sent) == min(microbatches, MOST_SAMPLES)
        assert all(handed_s < there_s for (_, _, handed_s), (_, _, there_s) in zip(sent, arrived, strict=True))
        sends = [tags.of(one.message, iteration) for one in program.instructions[rank] if isinstance(one, Send)]
        places = [sends.index(number) for _, number, _ in sent]
        gaps = [after - before for before, after in pairwise(places)]
        assert not gaps or max(gaps) - min(gaps) <= 1


def test_a_direct_message_that_nobody_waited_for_has_no_time() -> None:
    """Only a receive that took some time knows when its message came; what delegates fetch is theirs to stamp."""
    program = lower(plan_pipeline(PROFILE, Shape(2, 1, 2), "1f1b"))
    message = next(one.message for one in program.instructions[0] if isinstance(one, Send))
    for delegated, waited_s, known in ((set[int](), 0.0, 0), (set[int](), 2 * WAITED_S, 1), ({0}, 2 * WAITED_S, 0)):
        transfers = Transfers(program, 1, ["a", "b"], delegated, lambda: 10.0)
        transfers.received(message, 0, 10.0 - waited_s)
        assert len(transfers.arrived) == known


@contextmanager
def votes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Measured]]:
    """What workers that are threads tell the coordinator that they have measured."""
    found: list[Measured] = []
    send = CoordinatorLink.send

    def note(link: CoordinatorLink, message: FromWorker) -> None:
        if isinstance(message, Vote) and message.measured is not None:
            found.append(message.measured)
        send(link, message)

    monkeypatch.setattr(CoordinatorLink, "send", note)
    yield found


def run(plan: Plan, transport: str, iterations: int = 2, limit_s: float = 2.0) -> ThreadJob:
    job = ThreadJob(plan, Job(plan, iterations, heartbeat_limit_s=limit_s), changes={"transport": transport})
    assert job.run().exit_code == 0
    return job


def test_a_job_measures_its_links_and_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With delegates both ends know all samples, by workers' names; every worker has a pace, peers have a sum."""
    with votes(monkeypatch) as found:
        job = run(plan_of(2, 2, 3), "delegated")
    assert len(found) == 4 * 2
    of = {(one.worker, one.iteration): one for one in found}
    for (worker, iteration), one in of.items():
        (other,) = {name for name, _, _ in one.sent}
        assert other != worker
        arrived = {number: at_s for name, number, at_s in of[other, iteration].arrived if name == worker}
        assert {number for _, number, _ in one.sent} == arrived.keys()
        assert len(arrived) == 3
        assert all(handed_s < arrived[number] for _, number, handed_s in one.sent)
        assert one.pace is not None and one.pace > 0
        assert one.reduction_s is not None and one.reduction_s[0] < one.reduction_s[1]
        (peer,) = one.peers
        assert of[peer, iteration].peers == (worker,)
    assert job.losses() == run(plan_of(2, 2, 3), "direct").losses()


def test_links_without_messages_are_probed() -> None:
    """Each end of a watched link hears of the other's iterations, by numbers below all others, and close ends it."""
    program, store = lower(plan_pipeline(PROFILE, Shape(4, 1, 2), "1f1b")), HashStore()
    names = ["a", "b", "c", "d"]

    def make(rank: int) -> Plane:
        inner = GlooTransport(store, rank, 4, [], hostname="127.0.0.1")
        transport = DelayedTransport(inner, slowest_links([(3 - rank, 0.01)]))
        probed = {3 - rank} if rank in (0, 3) else set[int]()
        return Plane.over(transport, program, rank, names, frozenset(), time.perf_counter, probed=probed)

    planes = in_ranks(4, make)
    sent: dict[tuple[int, int], float] = {}
    arrived: dict[tuple[int, int], float] = {}

    def have_come(count: int) -> bool:
        for rank in (0, 3):
            out, back = planes[rank].samples()
            sent.update({(rank, number): at_s for _, number, at_s in out})
            arrived.update({(3 - rank, number): at_s for _, number, at_s in back})
        return len(arrived) == count

    for iteration in (5, 6):
        for plane in planes:
            plane.begin(iteration)
        wait_until(partial(have_come, 2 * (iteration - 4)))
    assert sent.keys() == arrived.keys() == {(rank, number) for rank in (0, 3) for number in (-6, -7)}
    assert all(arrived[one] - sent[one] >= 0.01 for one in sent)
    assert planes[1].samples() == ((), ())
    in_ranks(4, lambda rank: planes[rank].close())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("probing ")]


def wait_until(is_so: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it does not happen"
        time.sleep(0.005)


def test_a_paced_job_is_as_slow_as_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message takes at least its link's delay, whichever way; sent directly it holds its worker, by delegates not."""
    profile = Profile((Layer((LayerCost(0.001, 0.001, 0.001),)),) * 6)
    plan = plan_pipeline(profile, Shape(2, 1, 3, link_delay_s={(None, 0): 0.02}), "1f1b")
    for transport in ("direct", "auto"):
        with monkeypatch.context() as patch, votes(patch) as found:
            job = ThreadJob(plan, Job(plan, 2), changes={"transport": transport, "paced": True})
            assert job.run().exit_code == 0
        of = {(one.worker, one.iteration): one for one in found}
        for iteration in range(2):
            sent = [at_s for _, _, at_s in of["0/0", iteration].sent]
            there = {number: at_s for _, number, at_s in of["0/1", iteration].arrived}
            assert all(there[number] - at_s >= 0.02 for _, number, at_s in of["0/0", iteration].sent if number in there)
            assert there
            assert (sent[1] - sent[0] >= 0.02) or transport == "auto"


def test_a_delegate_that_dies_is_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker tells the coordinator with whom it lost touch, once, and goes on in the next epoch, another way."""
    told: list[Suspect] = []
    send, deliver = CoordinatorLink.send, GlooTransport.deliver
    failures = [ValueError("a broken delegate")]

    def note(link: CoordinatorLink, message: FromWorker) -> None:
        """Others see connections close: which of them says what first, of whom, is chance, so nobody hears them."""
        if isinstance(message, Suspect):
            if "a broken delegate" not in message.reason:
                return
            told.append(message)
        send(link, message)

    def fail_once(transport: GlooTransport, tag: int, to: int, tensor: torch.Tensor) -> None:
        if failures and to == 1:
            raise failures.pop()
        deliver(transport, tag, to, tensor)

    monkeypatch.setattr(CoordinatorLink, "send", note)
    monkeypatch.setattr(GlooTransport, "deliver", fail_once)
    job = run(plan_of(2, 2, 3), "delegated", 3, limit_s=0.2)
    assert [(one.epoch, one.peer) for one in told] == [(1, "0/1")]
    assert [one["link"] for one in job.events("broken_link")] == ["0/0-0/1"]
    assert job.losses() == pytest.approx(single_process(3, 6), abs=1e-6)
