"""A worker's connections over all epochs: what is made ahead, who agrees on it, and that nothing of one epoch is taken
for another's."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rtk.runners.torch.connections import Connections, Mesh  # noqa: E402
from rtk.runners.torch.gloo import GlooDevice, GlooTransport  # noqa: E402
from rtk.runners.torch.groups import HashStore  # noqa: E402
from rtk.runners.torch.rendezvous import MeetingPlace  # noqa: E402
from rtk.schemas.errors import RuntimeFailedError  # noqa: E402

from .test_transport_epochs import SOON_S, assert_back_to, held, in_background  # noqa: E402

SECRET = b"a secret for one test only"
LIMIT = timedelta(seconds=10)


class Worker:
    """One worker's part, in this process."""

    def __init__(self) -> None:
        self.place = MeetingPlace(SECRET)
        self.connections = Connections(SECRET, "127.0.0.1", LIMIT)
        self.transport: GlooTransport | None = None

    def leave_epoch(self) -> None:
        """Let go of what the epoch has."""
        if self.transport is not None:
            self.transport.close()
            self.transport = None

    def die(self) -> None:
        """Let go of everything."""
        self.leave_epoch()
        self.connections.close()
        self.place.close()


class Crew:
    """Workers, and what a coordinator tells them."""

    def __init__(self, size: int) -> None:
        self.workers = [Worker() for _ in range(size)]
        self.number = 0

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        """What comes of some work of all, each by its rank, at once."""
        with ThreadPoolExecutor(len(self.workers)) as pool:
            return list(pool.map(work, range(len(self.workers)), timeout=SOON_S))

    @property
    def places(self) -> list[str]:
        """Where each can be met, by rank."""
        return [worker.place.address for worker in self.workers]

    def regroup(self) -> None:
        """Tell all who will be in the next epoch."""
        self.number += 1
        for rank, worker in enumerate(self.workers):
            worker.connections.expect(self.number, self.places, rank)

    def enter(self) -> None:
        """The next epoch: all leave the present one, and meet."""
        for worker in self.workers:
            worker.leave_epoch()
        everybody = tuple(range(len(self.workers)))

        def meet(rank: int) -> None:
            one = self.workers[rank]
            one.transport = one.connections.transport(self.number, self.places, rank, {everybody})

        self.each(meet)

    def transport_of(self, rank: int) -> GlooTransport:
        """That of one who is in an epoch."""
        found = self.workers[rank].transport
        assert found is not None
        return found

    def talk(self, tag: int, what: float) -> list[list[float]]:
        """All send each other a number, with one tag, and sum another; gives what each has received."""
        size = len(self.workers)

        def one(rank: int) -> list[float]:
            mine = self.transport_of(rank)
            others = [other for other in range(size) if other != rank]
            for other in others:
                mine.post_receive(tag, other, torch.zeros(3))
            for other in others:
                mine.send(tag, other, torch.full((3,), float(what + rank)))
            heard = [float(mine.receive(tag, other)[0]) - other for other in others]
            total = torch.full((2,), float(what))
            mine.all_reduce(tuple(range(size)), total)
            mine.flush()
            return [*heard, float(total[0]) / size]

        return self.each(one)

    def leave_some(self, tag: int) -> None:
        """Messages of this epoch that nobody takes, and others that are announced and never sent."""
        for rank, other in combinations(range(len(self.workers)), 2):
            self.transport_of(rank).send(tag, other, torch.full((3,), -1.0))
            self.transport_of(rank).post_receive(tag, other, torch.zeros(3))

    def wait_for_next(self) -> None:
        """Until all have what is made for the epoch to come."""
        deadline_s = time.monotonic() + SOON_S
        while any(worker.connections._unused is None for worker in self.workers):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    def kill(self, rank: int) -> None:
        """One is there no more; the ranks of others behind it change."""
        self.workers.pop(rank).die()

    def end(self) -> None:
        """All are there no more."""
        for worker in self.workers:
            worker.die()


@pytest.fixture(scope="module", autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Nothing wakes gloo while it connects with one who has just gone; the interpreter must not end before."""
    before = held()
    yield
    assert_back_to(before)


@pytest.fixture
def crew() -> Iterator[Crew]:
    """Four workers in an epoch, who have what is made for the next one."""
    crew = Crew(4)
    crew.enter()
    crew.wait_for_next()
    yield crew
    crew.end()


def meshes(crew: Crew) -> list[Any]:
    """What each has for the next epoch."""
    return [worker.connections._unused and worker.connections._unused.group for worker in crew.workers]


def used(crew: Crew) -> list[Any]:
    """Over what each is connected in this epoch."""
    return [crew.transport_of(rank)._pairs.groups[0] for rank in range(len(crew.workers))]


@pytest.mark.parametrize("dead", [(0,), (3,), (1, 2)])
@pytest.mark.parametrize("is_told", [False, True])
def test_survivors_go_on_over_what_was_made_ahead(crew: Crew, dead: Sequence[int], is_told: bool) -> None:
    """Whoever dies, also two at once, and whether they are told before the epoch: no connection is made anew."""
    for rank in reversed(dead):
        crew.kill(rank)
    ahead = meshes(crew)
    (crew.regroup if is_told else lambda: None)()
    crew.workers.reverse()  # the plan seats them as it likes
    crew.enter()
    assert used(crew) == ahead[::-1]
    assert crew.talk(5, 7.0) == [[7.0] * len(crew.workers)] * len(crew.workers)


def test_a_death_while_survivors_meet_is_survived_over_the_same_connections(crew: Crew) -> None:
    """Told once more, with one less, before there was an epoch: what was made ahead serves still."""
    crew.kill(3)
    ahead = meshes(crew)[1:]
    crew.regroup()
    crew.kill(0)
    crew.regroup()
    crew.enter()
    assert used(crew) == ahead
    assert crew.talk(5, 7.0) == [[7.0] * 2] * 2


def test_who_lacks_what_was_made_ahead_makes_the_others_meet_anew(crew: Crew) -> None:
    """One has lost it: all agree to connect anew, nobody waits in vain, and the next epoch has one ahead again."""
    lacking = crew.workers[1].connections
    lacking._end(lacking._taken(None))
    crew.kill(3)
    before = meshes(crew)
    crew.regroup()
    crew.enter()
    assert not {id(group) for group in used(crew)} & {id(group) for group in before}
    assert crew.talk(5, 7.0) == [[7.0] * 3] * 3
    crew.wait_for_next()


def test_newcomers_are_met_in_the_epoch(crew: Crew) -> None:
    """Whoever comes after the others were told, and knows nothing of it, is connected with all."""
    crew.kill(2)
    crew.regroup()
    crew.workers.insert(1, Worker())
    crew.enter()
    assert crew.talk(5, 7.0) == [[7.0] * 4] * 4


def test_an_epoch_that_is_over_takes_no_connections_from_the_next(crew: Crew) -> None:
    """Once membership was told anew, the epoch before gets nothing, and the next one all that was made ahead."""
    ahead = meshes(crew)
    places = crew.places
    crew.number = 1
    crew.regroup()
    with pytest.raises(RuntimeFailedError, match="over"):
        crew.workers[0].connections.transport(1, places, 0, {(0, 1, 2, 3)})
    crew.enter()
    assert used(crew) == ahead


def test_a_regrouping_that_one_misses_costs_a_moment(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them has not heard of it, and meets in the epoch: the others give it up and meet there."""
    monkeypatch.setattr("rtk.runners.torch.connections.EXPECTED_S", 0.1)
    crew.kill(3)
    crew.number = 1
    for rank in (0, 2):
        crew.workers[rank].connections.expect(1, crew.places, rank)
    crew.enter()
    assert crew.talk(5, 7.0) == [[7.0] * 3] * 3


def test_close_wakes_what_waits_for_others() -> None:
    """Who is left alone while it connects ends at once, though nobody ever comes, and leaves nothing behind."""
    other = MeetingPlace(SECRET)
    before = held()
    worker = Worker()
    places = [worker.place.address, other.address]
    worker.connections.expect(1, places, 0)
    waiting = in_background(partial(worker.connections.transport, 1, places, 0, {(0, 1)}))
    time.sleep(0.1)
    begun_s = time.monotonic()
    worker.die()
    assert isinstance(waiting.exception(SOON_S), RuntimeFailedError)
    assert time.monotonic() - begun_s < LIMIT.total_seconds() / 2
    del worker, waiting
    assert_back_to(before)
    other.close()


def test_50_epochs_leave_nothing_behind_and_nothing_stale_arrives() -> None:
    """Each epoch, of changing members, leaves messages untaken with the tags of all: none of them comes in another."""
    crew = Crew(3)
    counts = []
    for epoch in range(50):
        crew.enter()
        assert crew.talk(5, epoch) == [[epoch] * len(crew.workers)] * len(crew.workers)
        crew.leave_some(5)
        if epoch % 10 == 9:
            crew.wait_for_next()
            counts.append(held())
        if epoch % 10 == 3:
            crew.kill(epoch % 3)
            crew.regroup()
        elif epoch % 10 == 6:
            crew.workers.append(Worker())
            crew.number += 1
        else:
            crew.number += 1
    assert_back_to(counts[1])
    crew.end()


def test_a_greeting_that_failed_is_in_nobodys_way() -> None:
    """Two of three greet all, one has gone meanwhile: over the same mesh the two hear each other all the same."""
    store, places = HashStore(), ("a", "b", "c")
    devices = [GlooDevice("127.0.0.1", turns=True) for _ in places]
    with ThreadPoolExecutor(3) as pool:
        made = pool.map(lambda number: devices[number].factory(LIMIT)(store, number, 3), range(3))
        first, gone, last = (Mesh(1, places, number, group) for number, group in enumerate(made))
        pool.submit(first.greet, 1, places)
        while len(first.under_way) < 4:  # its greeting of the last one is on its way then
            time.sleep(0.001)
        devices[1].end([gone.group])
        with pytest.raises(RuntimeFailedError):
            last.greet(1, places)
        both = [pool.submit(mesh.greet, 2, ("a", "c")) for mesh in (first, last)]
        try:
            for greeting in both:
                greeting.result(SOON_S)
        finally:
            for device, mesh in zip(devices, (first, gone, last), strict=True):
                device.end([mesh.group])


STEPS = st.lists(st.sampled_from(["kill first", "kill last", "regroup", "enter", "enter", "join", "ready"]), max_size=9)


@settings(max_examples=12, deadline=None)
@given(STEPS)
def test_whatever_happens_the_members_of_an_epoch_hear_each_other(steps: list[str]) -> None:
    """Deaths, newcomers and regroupings in any order, and at any state of what is made ahead: all messages are true."""
    crew = Crew(3)
    crew.enter()
    try:
        for step in [*steps, "enter"]:
            match step:
                case "kill first" | "kill last" if len(crew.workers) > 2:
                    crew.kill(0 if step == "kill first" else -1)
                    crew.regroup()
                case "regroup":
                    crew.regroup()
                case "join" if len(crew.workers) < 4:
                    crew.workers.append(Worker())
                    crew.number += 1
                case "ready" if all(worker.transport for worker in crew.workers):
                    with suppress(AssertionError):
                        crew.wait_for_next()
                case "enter":
                    crew.number += 1
                    crew.enter()
                    assert crew.talk(5, crew.number) == [[crew.number] * len(crew.workers)] * len(crew.workers)
                    crew.leave_some(5)
    finally:
        crew.end()


def test_nobody_turns_the_loop_of_a_closed_device() -> None:
    """Though somebody still closes connections: a thread that is inside torch at the process's end would abort it."""

    def turning() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name == "turning"}

    before = turning()
    device = GlooDevice("127.0.0.1", turns=True)
    assert device._turner is not None
    with device._turner:
        assert turning() - before
        device.close()
        with device._turner:
            assert not turning() - before
