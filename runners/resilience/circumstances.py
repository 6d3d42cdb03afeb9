"""What is known to be slow or broken while everybody lives, and what the running epoch reckons with."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...schemas.conditions import HEALTHY, Conditions, Pair, pair_of
from .announcements import Announcement, LinkSlowed, Relieved, WorkerSlowed
from .examinations import Examinations
from .routes import Ways


class Circumstances:
    """A monitor's findings, and the links that workers themselves have found broken.

    A pair that loses touch meets on the next network on which both have an address, and is then as good as ever, also
    for who plans. Its link is broken when no network is left.

    Attributes:
        now: as things are; without suspects, for which nobody plans.
        reckoned: what the running plan was made for, or was found to serve as well.
        settings: those of the job's workers; with `transport` direct nothing is a reason for delegates.
        examinations: of groups in which somebody is slow, and nobody knows who.
    """

    def __init__(self) -> None:
        self.now = HEALTHY
        self.reckoned = HEALTHY
        self.settings: dict[str, Any] = {}
        self.examinations = Examinations()
        self._suspicions: dict[str, str | None] = {}
        self._networks: dict[Pair, int] = {}  # on how many two have lost each other, and so the number of the next
        self._ways = Ways((), ())
        self._news: list[str] = []

    @property
    def have_changed(self) -> bool:
        """Whether nobody has asked yet what to make of things as they are."""
        return self.now != self.reckoned

    def note(self, found: Conditions) -> Iterator[Announcement]:
        """What a monitor has found; gives what is new, for people."""
        before, self.now = self.now, replace(found, broken_links=self.now.broken_links, suspects=())
        if before.level < self.now.level:
            self._news.append("what is slow has been so for long enough")
        had, has = ({link.ends: link.delay_s for link in one.slow_links} for one in (before, self.now))
        for ends in sorted({*had, *has}):
            if had.get(ends) != has.get(ends):
                link = "-".join(ends)
                self._news.append(f"link {link} is {'slow' if ends in has else 'well again'}")
                yield LinkSlowed(link=link, delay_s=has[ends]) if ends in has else Relieved(link=link)
        was, now = ({one.worker: one.factor for one in c.slow_workers} for c in (before, self.now))
        for worker in sorted({*was, *now}):
            if was.get(worker) != now.get(worker):
                self._news.append(f"worker {worker} is {'slow' if worker in now else 'well again'}")
                yield WorkerSlowed(worker=worker, factor=now[worker]) if worker in now else Relieved(worker=worker)
        yield from self.examinations.note(found.suspects, sorted(has), sorted(now))

    def suspect(self, worker: str, peer: str | None) -> None:
        """A worker has lost touch, with that peer if it knows with whom."""
        self._suspicions[worker] = peer

    def acquit(self) -> None:
        """Whoever was accused since the epoch began: somebody else was to blame."""
        self._suspicions.clear()

    def break_links(self, members: Mapping[str, int]) -> tuple[Pair, ...]:
        """Have those who live and miss each other, or one the other, who misses nobody, go over to another network.

        Who has lost touch leaves its groups, which closes its connections: whoever complains of somebody who complains
        of others, or does not know of whom, may only have noticed that.

        Args:
            members: who lives, and on how many other networks each has an address; those with the same number meet.

        Returns:
            Who has lost each other, whether there was another network left or not.
        """
        found = {
            pair_of(worker, peer)
            for worker, peer in self._suspicions.items()
            if peer is not None and {worker, peer} <= members.keys() and self._suspicions.get(peer, worker) == worker
        }
        self._suspicions.clear()  # each counts once
        new = tuple(sorted(found - {*self.now.broken_links}))
        self._networks |= {pair: self._networks.get(pair, 0) + 1 for pair in new}
        cut_off = {pair for pair in new if self._networks[pair] > min(members[end] for end in pair)}
        self.now = replace(self.now, broken_links=tuple(sorted(cut_off | {*self.now.broken_links})))
        return new

    def forget(self, worker: str) -> None:
        """The worker is gone; another process of its name may be on another machine."""
        self.now = self.now.without(worker)
        self._networks = {pair: number for pair, number in self._networks.items() if worker not in pair}
        self.examinations.forget(worker)

    def change_ways(self, names: Sequence[str]) -> bool:
        """Whether workers, by rank, would send to each other otherwise than since the epoch began."""
        return self._ways_between(names) != self._ways

    @property
    def news(self) -> str:
        """What has become slow, or well again, since the epoch began."""
        examined = (f"{', '.join(group)} are to be examined" for group in self.examinations.under_way)
        return "; ".join([*self._news, *examined])

    def begin_epoch(self, names: Sequence[str]) -> "Ways":
        """The plan that runs from now on, on workers by rank, was made for things as they are."""
        self.reckoned = self.now
        self._news.clear()
        self._suspicions.clear()
        self._ways = self._ways_between(names)
        return self._ways

    def _ways_between(self, names: Sequence[str]) -> Ways:
        broken = {*self.now.broken_links}
        ways = Ways.under(self.now, names, {pair: at for pair, at in self._networks.items() if pair not in broken})
        return replace(ways, delegated=()) if self.settings.get("transport") == "direct" else ways
