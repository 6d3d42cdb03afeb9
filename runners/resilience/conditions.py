"""What is known to be slow or broken while everybody lives, and what the running epoch reckons with."""

import os
import socket
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import starmap
from pathlib import Path
from statistics import median
from typing import Any, Literal

from ...schemas.conditions import HEALTHY, Conditions, Pair, SlowWorker, pair_of
from ...schemas.protocols import Measured, Monitor
from ...schemas.timeline import IterationTime, iteration_time_s
from ..program import RankPair, rank_pair
from .announcements import Announcement, GroupExamined, LinkSlowed, Recovered, Relieved, WorkerSlowed
from .protocol import Cores, Hello

# What a job has been through, in numbers: iteration times, and the time that every change has cost.


# How far a change has come: all were told to regroup; have told their standings; the plan is there; what is left is
# planned; the epoch is announced; its last worker is ready.
RecoveryStep = Literal["told", "standings", "plan", "rest", "epoch", "ready"]

# Of so many iterations the median is what one usually takes.
RECENT = 5


@dataclass
class MembershipChange:
    """Why membership changes, and since when."""

    reasons: list[str] = field(default_factory=list)
    since_s: float | None = None

    def note(self, reason: str, since_s: float) -> None:
        """One more reason."""
        self.reasons.append(reason)
        self.since_s = since_s if self.since_s is None else min(self.since_s, since_s)

    @property
    def reason(self) -> str:
        """All reasons in a line."""
        return "; ".join(self.reasons)


@dataclass
class Chronicle:
    """The times of one job's commits and changes; all in s, on the coordinator's clock.

    Attributes:
        change: what has happened since the last epoch began.
    """

    change: MembershipChange = field(default_factory=MembershipChange)
    _reached_s: dict[str, float] = field(default_factory=dict)  # since the last commit, when it came how far
    _recovering: MembershipChange | None = None
    _committed_s: float | None = None
    _formed_s: float | None = None
    _times: list[IterationTime] = field(default_factory=list)

    def reach(self, what: RecoveryStep, now_s: float) -> None:
        """A change has come so far; where it comes there again, that counts."""
        self._reached_s[what] = now_s

    def begin_epoch(self) -> str:
        """A new epoch begins; gives the reason."""
        reason, change = self.change.reason, self.change
        if self._recovering is not None and self._recovering.since_s is not None:
            # The epoch before has not committed anything: its cause still waits to be made good.
            change.reasons[:0] = self._recovering.reasons
            change.since_s = self._recovering.since_s
        self._recovering, self.change = change, MembershipChange()
        self._formed_s = None
        return reason

    def note_ready(self, now_s: float) -> None:
        """A worker has joined the epoch; with the last one it is formed."""
        self._formed_s = now_s
        self.reach("ready", now_s)

    def note_commit(self, now_s: float, evaluation_s: float = 0.0) -> tuple[float, Recovered | None]:
        """An iteration is committed.

        Args:
            now_s: the time.
            evaluation_s: what was evaluated before it took so long, and is no part of it.

        Returns:
            What it took, counted from the commit before or from when the epoch was formed; and, if it is the first of
            an epoch, what the change before it has cost.
        """
        begun_s = max((s for s in (self._committed_s, self._formed_s) if s is not None), default=now_s)
        recovery = self._recovery(now_s - evaluation_s)
        took_s = max(0.0, now_s - evaluation_s - begun_s)
        self._times.append(IterationTime(len(self._times), took_s, is_first=self._recovering is not None))
        self._recovering = None
        self._reached_s.clear()
        self._committed_s = now_s
        return took_s, recovery

    def iteration_time_s(self) -> float | None:
        """The job's iteration time so far; None where nothing is committed."""
        return iteration_time_s(self._times)

    def _recovery(self, now_s: float) -> Recovered | None:
        change = self._recovering
        if change is None or change.since_s is None or self._committed_s is None:
            return None
        usual_s = median(one.seconds for one in self._times[-RECENT:])
        return Recovered(
            reason=change.reason,
            seconds=now_s - change.since_s,
            lost_s=max(0.0, now_s - self._committed_s - usual_s),
            after_s={what: max(0.0, at_s - change.since_s) for what, at_s in self._reached_s.items()},
        )


# Which pairs of workers exchange their messages by delegates, on another network, or over a third worker.


Detour = tuple[int, int, int]  # two ranks, ascending, and the one that passes on what they have for each other
Sidestep = tuple[int, int, int]  # two ranks, ascending, and the number of the network on which they meet, from 1


@dataclass(frozen=True)
class Ways:
    """How workers send to each other, where not simply by themselves.

    Attributes:
        delegated: the pairs at both ends of slow links, who do it by delegates.
        detours: for those who do not reach each other, whoever reaches both and has least to do so, as far as there is
            anybody; `unreachable` has the others.
        sidesteps: those who have lost each other, and meet on another network; a pair without a detour.
    """

    delegated: tuple[RankPair, ...]
    detours: tuple[Detour, ...]
    sidesteps: tuple[Sidestep, ...] = ()

    @classmethod
    def under(cls, conditions: Conditions, names: Sequence[str], networks: Mapping[Pair, int] | None = None) -> "Ways":
        """What conditions ask for.

        Args:
            conditions: what is slow and what is broken, on all networks.
            names: of the workers, by rank.
            networks: by pairs that meet on another network, its number.
        """
        slow = tuple(_seated((link.ends for link in conditions.slow_links), names))
        aside = ((ends, number) for pair, number in sorted((networks or {}).items()) for ends in _seated([pair], names))
        return cls(slow, tuple(_detours(conditions, names)), tuple((*ends, number) for ends, number in aside))


def unreachable(conditions: Conditions, names: Sequence[str]) -> tuple[Pair, ...]:
    """Pairs of workers that neither reach each other nor have anybody between them."""
    return tuple(
        pair_of(names[one], names[other])
        for one, other in _seated(conditions.broken_links, names)
        if not _between(conditions, names, one, other)
    )


def _detours(conditions: Conditions, names: Sequence[str]) -> Iterator[Detour]:
    load = dict.fromkeys(range(len(names)), 0)
    for one, other in _seated(conditions.broken_links, names):
        between = _between(conditions, names, one, other)
        if between:
            via = min(between, key=lambda rank: (load[rank], rank))
            load[via] += 1
            yield one, other, via


def _seated(pairs: Iterable[Pair], names: Sequence[str]) -> Iterator[RankPair]:
    rank = {name: number for number, name in enumerate(names)}
    for one, other in pairs:
        if one in rank and other in rank:
            yield rank_pair(rank[one], rank[other])


def _between(conditions: Conditions, names: Sequence[str], one: int, other: int) -> list[int]:
    broken = set(conditions.broken_links)
    return [
        rank
        for rank in range(len(names))
        if rank not in (one, other) and not any(pair_of(names[rank], names[end]) in broken for end in (one, other))
    ]


def slowed(conditions: Conditions, worker: str, slowdown: float) -> Conditions:
    """Conditions in which a worker's operations take so many times as long as planned; 1: as planned."""
    others = [one for one in conditions.slow_workers if one.worker != worker]
    found = [*others, SlowWorker(worker, slowdown)] if slowdown != 1.0 else others
    return replace(conditions, slow_workers=tuple(sorted(found, key=lambda one: one.worker)))


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
        self._known: dict[str, float] = {}  # by worker, how slow it is, for as long as no monitor has found it so
        self._networks: dict[Pair, int] = {}  # on how many two have lost each other, and so the number of the next
        self._ways = Ways((), ())
        self._news: list[str] = []

    @property
    def have_changed(self) -> bool:
        """Whether nobody has asked yet what to make of things as they are."""
        return self.now != self.reckoned

    def note(self, found: Conditions) -> Iterator[Announcement]:
        """What a monitor has found; gives what is new, for people."""
        for one in found.slow_workers:
            self._known.pop(one.worker, None)
        workers = sorted((*found.slow_workers, *starmap(SlowWorker, self._known.items())), key=lambda one: one.worker)
        before, broken = self.now, self.now.broken_links
        self.now = replace(found, slow_workers=tuple(workers), broken_links=broken, suspects=())
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

    def expect(self, worker: str, slowdown: float) -> None:
        """A worker comes of which it is known how slow it is; a monitor corrects that once it finds it slow."""
        self.now = slowed(self.now, worker, slowdown)
        self._known.pop(worker, None)
        if slowdown != 1.0:
            self._known[worker] = slowdown

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
        self._known.pop(worker, None)
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


# Workers that share cores are slow by turns, whatever is well or not; nobody is to be accused of it.


# Containers of one machine have names of their own, and this in common.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def cores_here() -> Cores:
    """The cores that this process may use, and which machine's they are."""
    machine = socket.gethostname()
    with suppress(OSError):
        machine = BOOT_ID.read_text().strip()
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return Cores(machine, tuple(sorted(usable)))


def are_crowded(workers: Collection[frozenset[int]]) -> bool:
    """Whether some workers of a machine have fewer cores than they are.

    Args:
        workers: the cores that each may use. Of two that share some, one may use all that the other may.
    """
    wholes = {*workers, frozenset[int]().union(*workers)}
    return any(sum(cores <= whole for cores in workers) > len(whole) for whole in wholes)


class Crowding:
    """A monitor that sees nothing as long as workers without a pace share cores.

    Args:
        monitor: looks otherwise.
        tell: hears of it in words, once.
    """

    def __init__(self, monitor: Monitor, tell: Callable[[str], None]) -> None:
        self._monitor = monitor
        self._tell = tell
        self._cores: dict[str, Cores] = {}
        self._is_crowded = self._is_told = False

    def arrive(self, hello: Hello) -> None:
        """A worker is there; one that keeps a pace, or does not say which cores it has, crowds nobody."""
        if hello.cores is not None and not hello.job.get("paced"):
            self._cores[hello.process] = hello.cores
        self._look()

    def note(self, measured: Measured) -> Conditions | None:
        """As the monitor says, where workers have cores of their own."""
        return None if self._is_crowded else self._monitor.note(measured)

    def forget(self, worker: str) -> None:
        """As the monitor does; the ranks of a worker of several stay, and wait on their cores."""
        self._cores.pop(worker, None)
        self._look()
        self._monitor.forget(worker)

    def _look(self) -> None:
        machines = defaultdict[str, list[frozenset[int]]](list)
        for cores in self._cores.values():
            machines[cores.machine].append(frozenset(cores.usable))
        self._is_crowded = any(are_crowded(workers) for workers in machines.values())
        if self._is_crowded and not self._is_told:
            self._is_told = True
            self._tell(
                "there are more workers than cores, and they take turns: expect longer than predicted, and nobody to "
                "look for what is slow"
            )


# Which groups of workers are under suspicion, and which of them have been examined since.
#
# An epoch takes groups along that its members examine before its first iteration. Once that is committed, they have
# been examined; if it is not, the next epoch takes along who is still there. A group that has been examined is not
# examined again before a monitor has dropped its suspicion, so whatever a monitor says, there is one pause for each
# time that a group comes under suspicion.


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
