"""The part of the coordinator's rules that settles who holds a job up; standstill.py says by what.

Nobody is lost for what others say of it: where nothing is committed any more, or somebody has lost touch, all are
asked where they are.
"""

from abc import ABC, abstractmethod
from typing import Literal

from ...schemas.checkpoint import missing_layers
from .announcements import Announcement, LinkBroken
from .chronicle import Chronicle
from .circumstances import Circumstances
from .events import Instruction, Wake
from .job import Job
from .messages import FromCoordinator, Suspect, Whereabouts
from .questions import Crew, held_by
from .routes import unreachable
from .saving import Saving
from .seating import Member, Seats
from .standstill import FUTILE_EPOCHS, HUNG, SPLIT, UNEXPLAINED, Judgement, Standstill

FAILED = 5  # the exit code of a job that cannot go on


class Settling(ABC):
    """What rules do when workers have lost touch, or nothing is committed; `Rules` is the rest of it."""

    job: Job
    phase: Literal["gathering", "running", "halting", "ended"]
    epoch: int
    committed: int
    members: dict[str, Member]
    _seats: Seats
    _layers: int
    _standstill: Standstill
    _circumstances: Circumstances
    _chronicle: Chronicle
    _saving: Saving | None
    _must_reform: bool
    _is_suspected: bool
    _awaited: set[str]
    _watches: int = 0  # how often the watch for a standstill has begun
    _now_s: float
    _out: list[Instruction]

    @property
    @abstractmethod
    def _must_change(self) -> bool: ...

    @abstractmethod
    def _crew(self) -> Crew: ...

    @abstractmethod
    def _expel(self, member: Member, reason: str, exit_code: int = FAILED) -> None: ...

    @abstractmethod
    def _halt(self, reason: str) -> None: ...

    @abstractmethod
    def _tell_all(self, message: FromCoordinator) -> None: ...

    @abstractmethod
    def _announce(self, what: Announcement, iteration: int | None = None) -> None: ...

    def _suspect(self, member: Member, suspect: Suspect) -> None:
        """Usually the reason is a death that is known, or will be in a moment."""
        self._circumstances.suspect(member.name, suspect.peer)
        self._standstill.complain(member.name)
        if not self._is_suspected and self.phase == "running":
            self._is_suspected = True
            self._ask_all()
            self._out.append(Wake(self.job.heartbeat_limit_s, f"suspect/{self.epoch}"))

    def _begin_watch(self) -> None:
        """From now on somebody looks whether anything is committed; timers of before count no more."""
        self._watches += 1
        self._out.append(Wake(self._limit_s, f"stall/{self._watches}"))

    def _watch(self) -> None:
        """Nothing may have been committed for too long: then all are asked, and asked again while it lasts."""
        if self.phase != "running":
            return
        if self._stands_still and not self._awaited:
            self._settle()  # though somebody has not answered
            self._ask_all()
        left_s = self._standstill.left_s(self._now_s, self._limit_s)
        self._out.append(Wake(max(left_s, self.job.heartbeat_limit_s), f"stall/{self._watches}"))

    @property
    def _stands_still(self) -> bool:
        """Whether nothing has been committed for too long, and nobody has said why."""
        return not self._is_suspected and self._standstill.left_s(self._now_s, self._limit_s) == 0.0

    @property
    def _limit_s(self) -> float:
        return self._standstill.limit_s(self._chronicle.iteration_time_s())

    @property
    def _present(self) -> list[str]:
        """Members that can answer: all, but after a restart of the coordinator."""
        return [name for name, member in self.members.items() if member.connection is not None]

    def _ask_all(self) -> None:
        self._tell_all(self._standstill.ask())

    def _note_whereabouts(self, member: Member, answer: Whereabouts) -> None:
        self._standstill.note(member.name, answer)
        if self._standstill.is_complete(self._present) and self._stands_still:
            self._settle()

    def _settle(self) -> None:
        """From what all say together: give up who hangs; else go other ways, or begin anew."""
        if self._must_change:
            return
        found = self._standstill.judge(self._present, self.epoch, self._limit_s, is_suspected=self._is_suspected)
        hung = [
            one
            for one in found.hung
            if self._can_spare(found.hung) or self._standstill.has_hung_long(one[0], self._limit_s)
        ]
        if hung:
            self._circumstances.acquit()
            for name, reason in hung:
                self._expel(self.members[name], reason, HUNG)
        elif found.is_busy or found.hung:  # an epoch that somebody cannot enter yet would come to nothing
            if self._is_suspected:
                self._ask_all()
                self._out.append(Wake(self.job.heartbeat_limit_s, f"suspect/{self.epoch}"))
        elif self.committed < self.job.iterations - 1:
            if self._is_suspected or found.is_still:
                self._begin_anew(found)
        elif found.is_still and self._saving is not None:
            self._saving.give_up("who saves it stands still")

    def _can_spare(self, hung: tuple[tuple[str, str], ...]) -> bool:
        """Whether the others hold all layers."""
        names = {name for name, _ in hung}
        return not missing_layers(self._layers, held_by(hand for hand in self._crew() if hand.worker not in names))

    def _begin_anew(self, found: Judgement) -> None:
        """Nobody hangs, and the epoch comes to nothing: its messages go other ways, or the same ones once more."""
        self._must_reform = True
        was_lost = "lost touch with each other" if self._is_suspected else "wait for each other"
        self._chronicle.change.note(f"workers {was_lost}", self._now_s)
        if self._break_links() or found.is_anybody_absent:
            return
        futile = self._standstill.count_futile()
        if futile == UNEXPLAINED:
            for pair in self._standstill.lost_between():
                self._circumstances.suspect(*pair)
            self._break_links()
        elif futile == SPLIT:
            for name in self._standstill.outsiders(self._present):
                self._expel(self.members[name], f"it is not where the others are, for {futile} epochs", HUNG)
        elif futile == FUTILE_EPOCHS:
            self._halt(f"{futile} epochs before iteration {self.committed + 1} came to nothing, and nobody says why")

    def _break_links(self) -> bool:
        """All live, and miss each other: they go other ways from now on; where none is left, a worker is given up."""
        broken = self._circumstances.break_links({name: len(one.others) for name, one in self.members.items()})
        for ends in broken:
            self._announce(LinkBroken(link="-".join(ends)), self.committed + 1)
        for _, other in unreachable(self._circumstances.now, list(self._seats.values())):
            if other in self.members:
                self._expel(self.members[other], "no way leads to it from a worker that it works with")
        return bool(broken)
