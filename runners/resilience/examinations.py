"""Which groups of workers are under suspicion, and which of them have been examined since.

An epoch takes groups along that its members examine before its first iteration. Once that is committed, they have been
examined; if it is not, the next epoch takes along who is still there. A group that has been examined is not examined
again before a monitor has dropped its suspicion, so whatever a monitor says, there is one pause for each time that a
group comes under suspicion.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from ...schemas.conditions import Pair
from .announcements import Announcement, GroupExamined

Group = tuple[str, ...]


class Examinations:
    """The suspicions of a monitor, and what has become of them.

    Attributes:
        under_way: the groups that are examined before the next iteration to be committed.
    """

    def __init__(self) -> None:
        self.under_way: tuple[Group, ...] = ()
        self._wanted: tuple[Group, ...] = ()
        self._done: tuple[Group, ...] = ()

    def note(
        self, suspects: tuple[Group, ...], links: Iterable[Pair], workers: Sequence[str]
    ) -> Iterator[Announcement]:
        """What a monitor suspects now, and what it has found slow with that; gives what is new, for people."""
        for group in self._done:
            if group not in suspects:
                slow = ["-".join(ends) for ends in links if {*ends} <= {*group}]
                slow += [worker for worker in workers if worker in group]
                yield GroupExamined(workers=group, found=tuple(slow))
        self._done = tuple(group for group in self._done if group in suspects)
        self._wanted = tuple(group for group in suspects if group not in self._done)

    def wanted(self, names: Collection[str]) -> tuple[Group, ...]:
        """The groups that have not been examined, of which all are among these workers."""
        return tuple(group for group in self._wanted if all(name in names for name in group))

    def begin_epoch(self, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """An epoch begins with workers by rank: gives the groups that it examines, in ranks."""
        ranks = {name: rank for rank, name in enumerate(names)}
        self.under_way = self.wanted(ranks.keys())
        return tuple(tuple(sorted(ranks[name] for name in group)) for group in self.under_way)

    def commit(self) -> None:
        """An iteration is committed: before it, all groups of its epoch have been examined."""
        self._done += tuple(group for group in self.under_way if group in self._wanted)
        self._wanted = tuple(group for group in self._wanted if group not in self.under_way)
        self.under_way = ()

    def forget(self, worker: str) -> None:
        """The worker is gone, and with it what was suspected of its groups."""
        self._wanted = tuple(group for group in self._wanted if worker not in group)
        self._done = tuple(group for group in self._done if worker not in group)
