"""The ranks of one worker stop at the same instruction, whichever of them has to stop, and wherever."""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.program import AllReduce, Compute, Instruction, Message, Receive
from rtk.runners.resilience.protocol import End, Epoch, RankAssignment, Regroup
from rtk.runners.torch.team import Team, TeamLostError, takes_all
from rtk.runners.torch.watch import Interruption
from rtk.schemas.errors import RuntimeFailedError
from rtk.schemas.orders import Kind, Operation
from rtk.schemas.resumption import HeldMessages, LedgerEntry, Standing, common_standing

Done = list[Instruction]


class SumInMemory:
    """Sums over ranks that are threads; one that nobody else comes to breaks."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=20)
        self._parts: list[torch.Tensor] = []

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """As of a transport."""
        try:
            if self._barrier.wait() == 0:
                self._parts.clear()
            self._barrier.wait()
            self._parts.append(tensor.clone())
            self._barrier.wait()
            tensor.copy_(torch.stack(self._parts).sum(0))
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise RuntimeFailedError("nobody else is there") from None

    def interrupt(self) -> None:
        """As of a transport."""
        self._barrier.abort()

    close = interrupt


def programs() -> st.SearchStrategy[list[Instruction]]:
    """Messages, W that nobody waits for, operations with sums, and at last the gradients' sum."""
    kinds: list[Kind] = ["F", "I", "W", "B"]
    computed: list[Instruction] = [Compute(Operation(kind, 0, 0)) for kind in kinds]
    own = st.sampled_from([Receive(Message("activation", 0, 0, 0), 1), *computed])
    return st.lists(own, max_size=10).map(lambda found: [*found, AllReduce(())])


def run(team: Team, program: Sequence[Instruction], fails_at: int | None, over_at: int | None) -> Done:
    """Execute as a resilient worker does: a message at `fails_at` fails, from `over_at` on the epoch is over."""
    done: Done = []
    for place, instruction in enumerate(program):
        try:
            team.begin(instruction, goes_on=over_at is None or place < over_at)
            if place == fails_at and isinstance(instruction, Receive):
                raise RuntimeFailedError("the other worker is gone")
        except RuntimeFailedError:

            def go_on_alone(after: int = place + 1) -> None:
                for one in program[after:]:
                    if takes_all(one):
                        return
                    done.extend([one] if isinstance(one, Compute) else [])

            assert team.stop(go_on_alone)
            return done
        done.extend([] if isinstance(instruction, Receive) else [instruction])
    return done


@given(st.integers(2, 4), programs(), st.data())
def test_all_ranks_have_done_the_same(size: int, program: list[Instruction], data: st.DataObject) -> None:
    """Wherever some ranks lose a message, or hear that the epoch is over, all end after the same computations."""
    place = st.none() | st.integers(0, len(program) - 1)
    ways = [(data.draw(place), data.draw(place)) for _ in range(size)]
    transport: Any = SumInMemory(size)
    found: dict[int, Done] = {}

    def work(rank: int) -> None:
        found[rank] = run(Team(transport, size), program, *ways[rank])

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[rank] for rank in range(size)] == [found[0]] * size


def test_an_operation_that_broke_in_its_midst_is_worth_nothing() -> None:
    """Where a rank is lost inside an operation the others know that gradients hold a part of it."""
    transport: Any = SumInMemory(1)
    team = Team(transport, 2)
    team.begin(Compute(Operation("B", 0, 0)), goes_on=True)
    transport.interrupt()
    try:
        team.sum(torch.zeros(1))
        raise AssertionError
    except TeamLostError:
        assert not team.stop()
    team.begin(Compute(Operation("W", 0, 0)), goes_on=True)
    assert team.stop()  # though nobody is there to be told


def test_partners_are_woken_unless_all_of_them_regroup() -> None:
    """Ranks of a worker that is left come to one place; those of a lost one, and all at an epoch, are woken at once."""
    member, other = (RankAssignment(name, name, "") for name in ("0/0", "1/0"))

    def woken_by(*heard: Any) -> bool:
        interruption, team, transport = Interruption("0/0"), Woken(), Woken()
        interruption.begin(1)
        interruption.guard(transport, team)  # type: ignore[arg-type]
        for message in heard:
            interruption.announce(message)
            interruption.wait(10)
        assert transport.is_woken
        return team.is_woken

    left, lost = Regroup(2, 0, False, (member, other)), Regroup(3, 0, False, (other,))
    assert not woken_by(left)
    assert woken_by(lost)
    assert woken_by(left, lost)
    assert woken_by(left, Epoch(2, 0, False, 9, "", (member,)))
    assert woken_by(End(0, "done"))


def test_all_who_are_being_woken_are_waited_for() -> None:
    """A transport whose waking takes long is not forgotten over the ranks that a later message wakes."""
    member, may_end = RankAssignment("0/0", "0/0", ""), threading.Event()
    interruption, team, transport = Interruption("0/0"), Woken(), Woken(may_end)
    interruption.begin(1)
    interruption.guard(transport, team)  # type: ignore[arg-type]
    interruption.announce(Regroup(2, 0, False, (member,)))
    interruption.announce(Epoch(2, 0, False, 9, "", (member,)))
    interruption.wait(0.0)
    assert not transport.is_woken
    may_end.set()
    interruption.wait(10)
    assert transport.is_woken and team.is_woken


class Woken:
    """Knows whether it was interrupted, which ends once it may."""

    def __init__(self, may_end: threading.Event | None = None) -> None:
        self._may_end = may_end
        self.is_woken = False

    def interrupt(self) -> None:
        """As of a transport."""
        if self._may_end is not None:
            self._may_end.wait(10)
        self.is_woken = True


def test_a_standing_of_ranks_is_what_all_have() -> None:
    """Messages that one rank lacks are left out, for which the others' standings still count; else it is nothing."""
    held = HeldMessages("activation", 3, (0, 1)), HeldMessages("gradient", 3, (0,))
    ledger = (LedgerEntry((0, 3), (0,)),)
    more, fewer = (Standing("0/0", (0, 3), ledger=ledger, messages=kept) for kept in (held, held[:1]))
    found = common_standing([more, fewer])
    assert found == fewer
    assert more.covers(found) and fewer.covers(found) and not fewer.covers(more)
    assert common_standing([more, Standing("0/0", (0, 3))]).is_empty
