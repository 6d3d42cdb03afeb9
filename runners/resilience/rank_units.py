"""The processes of workers of several ranks, as the gate before a coordinator's rules (unit_gate.py) knows them."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from ...schemas.plan import Layers
from .events import Said
from .protocol import Hello, Saved, StandingTold, Suspect, Vote, Whereabouts
from .rank_merging import AT_WORK, worker_saved, worker_whereabouts

Identity = tuple[int, str]  # of a process: its number, and its meeting place
Shape = tuple[int, int]  # which rank of how many a process is of its worker


@dataclass(eq=False)
class RankProcess:
    """One process of a worker of several ranks.

    Attributes:
        connection: where it is reached.
        hello: what it said.
        unit: the whole worker that it is a rank of; None: it waits until there is one.
        was_seated: it is, or was, a rank of a worker with a seat, and has not heard of an epoch without that.
        holds: the layers whose state, its own part of it, it has; None: none.
        as_of: the last commit that its state knows of; None: the latest.
        entered: the last epoch that it was told of.
        dropped: what it held until this epoch is not reckoned with, for it had no place then.
        is_dismissed: it was told to end.
        is_leaving: it has said that it was asked to go.
        shape: what it is of its worker now; what it was started as is in its hello.
        becomes: what it was told to be, and has not said to be yet.
    """

    connection: int
    hello: Hello
    unit: "WorkerUnit | None" = None
    was_seated: bool = False
    holds: tuple[Layers, ...] | None = None
    as_of: int | None = None
    entered: int = 0
    dropped: int = 0
    is_dismissed: bool = False
    is_leaving: bool = False
    shape: Shape = field(init=False)
    becomes: Shape | None = None

    def __post_init__(self) -> None:
        self.shape = self.hello.shape or (self.hello.rank, self.hello.ranks)

    @property
    def rank(self) -> int:
        """Which of its worker's ranks it is now."""
        return self.shape[0]

    @property
    def identity(self) -> Identity:
        """By which it is known again on another connection."""
        return self.hello.pid, self.hello.store

    @property
    def machine(self) -> str | None:
        """Where it is, as far as it says."""
        return None if self.hello.cores is None else self.hello.cores.machine

    def has_state(self, committed: int) -> bool:
        """Whether it has the state of some layers as of a commit."""
        return bool(self.holds) and self.as_of in (None, committed)

    def has(self, layers: Layers, committed: int) -> bool:
        """Whether it has the state of these layers as of a commit."""
        holds = self.holds or ()
        return self.has_state(committed) and any(first <= layers[0] and layers[1] <= stop for first, stop in holds)


@dataclass(eq=False)
class WorkerUnit:
    """A worker all of whose ranks are there.

    Attributes:
        number: of its connection, to the rules: negative.
        processes: by rank.
        said: what some of its ranks have said, and not all, by what it is and by rank.
        inquiry: the number of the last one.
        answers: to that, by rank.
        present: by epoch, the ranks whose training threads have said something in it.
        complaints: by epoch, that which the rules have heard last.
    """

    number: int
    processes: tuple[RankProcess, ...]
    said: dict[tuple[type[Any], Any], dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))
    inquiry: int = 0
    answers: dict[int, Whereabouts] = field(default_factory=dict)
    present: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    complaints: dict[int, Suspect] = field(default_factory=dict)

    @property
    def worker(self) -> str:
        """Its name."""
        return self.processes[0].hello.worker

    @property
    def not_before(self) -> int:
        """The first iteration that it wants to take part in."""
        return max(one.hello.not_before for one in self.processes)

    def all_said(self, rank: int, what: Any, message: Any) -> list[Any] | None:
        """Note what a rank has said; what all have said, by rank, once they have."""
        told = self.said[type(message), what]
        told[rank] = message
        if len(told) < len(self.processes):
            return None
        del self.said[type(message), what]
        return [told[number] for number in sorted(told)]

    def begin_epoch(self, epoch: int) -> None:
        """What its ranks have said in epochs of before is of no use, but for what they hold, and have saved."""
        past = [key for key in self.said if key[0] is Vote and key[1][0] < epoch]
        past += [key for key in self.said if key[0] is StandingTold and key[1] < epoch]
        for key in past:
            del self.said[key]
        for told in (self.present, self.complaints):
            for number in [number for number in told if number < epoch]:
                del told[number]

    def culprits(self) -> list[RankProcess]:
        """Who hangs, when the worker does: the ranks that have not answered, or the one that holds up the others."""
        silent = [one for one in self.processes if one.rank not in self.answers]
        rank, answer = worker_whereabouts(self.worker, self.answers) if self.answers else (0, None)
        is_known = answer is not None and (answer.doing in AT_WORK or not silent)
        return [self.processes[rank]] if is_known else silent

    def saved(self, rank: int, message: Saved) -> list[Saved]:
        """What the rules are to hear of a part that a rank has saved: that all have, or that one could not."""
        if message.part is None:
            return [replace(message, error=f"rank {rank}: {message.error}")]
        told = self.all_said(rank, (message.iteration, message.part.layers), message)
        return [worker_saved(told)] if told else []

    def whereabouts(self, rank: int, answer: Whereabouts) -> list[Whereabouts]:
        """What the rules are to hear of where a rank is."""
        if answer.inquiry != self.inquiry:
            return []
        self.answers[rank] = answer
        found = worker_whereabouts(self.worker, self.answers)[1]
        # For a rank that is at work the others wait, whatever they have to say yet.
        return [found] if found.doing in AT_WORK or len(self.answers) == len(self.processes) else []

    def complaint(self, rank: int, epoch: int, suspect: Suspect | None = None) -> list[Suspect]:
        """What is news of a worker's complaint in an epoch: the first one, and that by now all its ranks are there.

        Those of its ranks that miss somebody later may only have noticed what has followed from the first.
        """
        self.present[epoch].add(rank)
        before = self.complaints.get(epoch)
        known = before or suspect
        if known is None:
            return []
        peer = None if known.peer == self.worker else known.peer  # partners that have lost each other
        of_some = len(self.present[epoch]) < len(self.processes)
        self.complaints[epoch] = replace(known, peer=peer, of_some=of_some)
        return [self.complaints[epoch]] if self.complaints[epoch] != before else []


@dataclass
class AwaitedUnit:
    """A worker with a seat that is expected back after a restart of the coordinator.

    Attributes:
        identities: of its processes, by rank.
        back: those that are back, by rank.
        heard: what these have said before the last of them was back.
    """

    identities: dict[int, Identity]
    back: dict[int, RankProcess] = field(default_factory=dict)
    heard: list[Said] = field(default_factory=list)
