"""Who is there: members, who have a place in the present epoch, and newcomers, who wait for one.

A part of the coordinator's rules (rules.py), pure as they are.
"""

from collections.abc import Collection, Iterator
from typing import Any

from ...schemas.plan import Layers, name_of
from ...schemas.protocols import Hand
from .membership import Crew, Member, Newcomer, Seats, coming, excused, leavers, savers
from .protocol import Hello, Saver


class Roster:
    """Members and newcomers of one job.

    Attributes:
        members: by name.
        newcomers: by connection.
        by_connection: the members that are connected.
        seats: the names of those who had a place as the present epoch began; who is no member any more is lost.
        spare: newcomers for all of whom together there is no use as things are.
        awaited: members that are expected back after a restart of the coordinator.
        settings: of the workers, which are the same for all.
    """

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.newcomers: dict[int, Newcomer] = {}
        self.by_connection: dict[int, Member] = {}
        self.seats: Seats = {}
        self.spare: set[str] = set()
        self.awaited: set[str] = set()
        self.settings: dict[str, Any] | None = None

    @property
    def is_sharded(self) -> bool:
        """Whether peers share the optimizer's state, as all workers say or none."""
        return bool(self.settings and self.settings.get("shard_optimizer"))

    @property
    def staying(self) -> list[Member]:
        """Who is left of those who had a place, in the order of places."""
        return [self.members[name] for _, name in sorted(self.seats.items()) if name in self.members]

    @property
    def is_short(self) -> bool:
        """Whether somebody who had a place is lost."""
        return any(name not in self.members for name in self.seats.values())

    @property
    def present(self) -> list[str]:
        """Members that can answer: all, but after a restart of the coordinator."""
        return [name for name, member in self.members.items() if member.connection is not None]

    def connections(self) -> Iterator[int]:
        """Where members are reached."""
        return (member.connection for member in self.members.values() if member.connection is not None)

    def take_back(self, member: Member, connection: int, hello: Hello) -> None:
        """A member is back after a restart of the coordinator."""
        member.connection = connection
        member.store, member.others, member.further = hello.store, hello.others, hello.further
        self.by_connection[connection] = member
        self.awaited.discard(member.name)

    def forget(self, member: Member) -> None:
        """Somebody is no member any more."""
        del self.members[member.name]
        self.awaited.discard(member.name)
        self.spare.clear()
        if member.connection is not None:
            del self.by_connection[member.connection]

    def restart(self, keeps_members: bool) -> None:
        """Connections are gone; members that are alive will be back."""
        self.newcomers.clear()
        self.by_connection.clear()
        if not keeps_members:
            self.members.clear()
        for member in self.members.values():
            member.connection = None
        self.awaited = set(self.members)

    def excuse(self) -> None:
        """Nobody needs anything of those who have lost their seats."""
        self.newcomers = excused(self.newcomers)

    def crew(self, iteration: int, anything: tuple[Layers, ...] | None, going: Collection[str]) -> Crew:
        """Who will be there before an iteration: those who stay, and newcomers whose time has come.

        Args:
            iteration: the next one.
            anything: what everybody has, as long as all can make it; None: what they hold.
            going: the names of those who leave before it.
        """
        arrivals = coming(self.newcomers, iteration)
        return (
            *(Hand(one.name, one.place, anything or one.holds) for one in self.staying if one.name not in going),
            *(Hand(name, None, anything) for name in arrivals if not arrivals.keys() <= self.spare),
        )

    def leavers(self, nothing_committed: bool) -> tuple[str, ...]:
        """Members that go at the next change."""
        return leavers(self.members, self.seats.values(), self.is_sharded and not nothing_committed)

    def savers(self, layers: int) -> tuple[Saver, ...]:
        """Who saves which layers, as far as anybody holds them: rather those who stay, in the order of places."""
        seated = sorted(self.staying, key=lambda one: one.is_leaving)
        return savers(layers, ((member.name, member.holds) for member in seated), together=self.is_sharded)

    def unseat(self, now_s: float, gives: bool) -> dict[str, tuple[int, str]]:
        """Members without a seat wait for one, like newcomers; gives their connections, and the places that they had.

        Args:
            now_s: from when on they wait.
            gives: whether others may need what they hold.
        """
        waiting: dict[str, tuple[int, str]] = {}
        for member in [member for name, member in self.members.items() if name not in self.seats.values()]:
            assert member.connection is not None, "an epoch begins once it is known who is there"
            waiting[member.name] = member.connection, name_of(member.place)
            self.forget(member)
            self.newcomers[member.connection] = member.unseated(now_s, gives)
        return waiting

    def seat(self, arrived: dict[str, int]) -> list[Newcomer]:
        """Make newcomers members, and note everybody's place; gives those who join.

        Args:
            arrived: connections of newcomers, by name.
        """
        joining = [self.newcomers.pop(arrived[name]) for name in self.seats.values() if name not in self.members]
        for one in joining:
            number = arrived[one.name]
            self.members[one.name] = self.by_connection[number] = one.seated(number)
        for place, name in self.seats.items():
            self.members[name].place = place
        return joining
