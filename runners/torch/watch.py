"""How a worker's training thread, which waits in gloo most of the time, learns that its epoch is over; and its watch.

Nothing reaches a thread that is inside torch. So it notes what it is about to do (`Activity`), and a watch beside it
counts for how long it has been doing that, and speaks for it while it cannot. A wait for other workers, in an epoch
that is over, is woken within milliseconds (`Interruption`); who is still in it after seconds was not, and nothing else
will wake it (gloo loses a wake-up now and then, docs/developing.md): the watch ends the process.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial

from ..program import AllReduce, BeginSum, Compute, Instruction, Pair, Receive
from ..resilience.progress import HUNG, LET_GO_S
from ..resilience.protocol import Doing, End, Epoch, FromCoordinator, Inquiry, Regroup, Whereabouts
from ..resilience.worker_rules import Turn
from .plane import seat_of
from .rendezvous import in_thread
from .team import Team
from .transport import Transport


class Interruption:
    """Between the thread that hears the coordinator and the one that trains.

    Only groups of an older epoch are woken: a fresh transport must not be interrupted by the very message that it was
    made for. The sums of this worker's own ranks go on where all of them regroup, for they stop together (team.py).

    Args:
        worker: its name.

    Attributes:
        end: how the job, or this worker's part in it, has ended; None while it has not.
    """

    def __init__(self, worker: str = "") -> None:
        self._worker = worker
        self._team: Team | None = None
        self._spares_team = False
        self._lock = threading.Lock()
        self._epoch = 0
        self._newest: float = 0
        self.end: End | None = None
        self._superseded: Future[None] = Future()
        self._transport: Transport | None = None
        self._waking: list[Future[None]] = []

    def begin(self, epoch: int) -> "Future[None]":
        """Training enters an epoch; the future is done as soon as a newer one, or the end, has been announced."""
        with self._lock:
            self._epoch, self._superseded, self._transport = epoch, Future(), None
            self._team, self._spares_team = None, False
            if self._newest > epoch:
                self._superseded.set_result(None)
            return self._superseded

    def guard(self, transport: Transport, team: Team | None = None) -> None:
        """Interrupt these when their epoch is over, at once if it is already."""
        with self._lock:
            self._transport, self._team = transport, team
            is_over, ends_team = self._superseded.done(), not self._spares_team
        if is_over:
            transport.interrupt()
            if team is not None and ends_team:
                team.interrupt()

    @property
    def is_over(self) -> bool:
        """Whether the epoch that training is in has been superseded."""
        return self._superseded.done()

    @property
    def spares_team(self) -> bool:
        """Whether, though the epoch is over, this worker's ranks still come to a place where all of them stop."""
        return self._spares_team

    def announce(self, message: FromCoordinator) -> None:
        """In the hearing thread, before the message is handed on: wake whoever waits in an older epoch."""
        number = message.epoch if isinstance(message, Epoch | Regroup) else float("inf")
        assert isinstance(message, Turn)
        with self._lock:
            self.end = message if isinstance(message, End) else self.end
            self._newest = max(self._newest, number)
            if number <= self._epoch or (self._superseded.done() and not self._spares_team):
                return
            was_over = self._superseded.done()
            # Whether all of this worker's ranks are among those who go on.
            self._spares_team = isinstance(message, Regroup) and seat_of(self._worker, message.members) is not None
            if not was_over:
                self._superseded.set_result(None)
            transport = None if was_over else self._transport
            team = None if self._spares_team else self._team
        if transport is not None or team is not None:
            # It takes some milliseconds; who is woken early need not wait for that to go on.
            those = [one for one in (transport, team) if one is not None]
            self._waking = [one for one in self._waking if not one.done()]
            self._waking.append(in_thread(partial(_interrupt, those), "interrupting"))

    def wait(self, limit_s: float) -> None:
        """Wait until nobody is being woken any more: a thread inside torch must not outlive the interpreter."""
        wait(self._waking, limit_s)


def _interrupt(those: Sequence[Transport | Team]) -> None:
    for one in those:
        one.interrupt()


TICK_S = 0.25


@dataclass(frozen=True, eq=False)
class Stay:
    """A place that the training thread is in; another one each time that it moves.

    Attributes:
        epoch: as in Whereabouts.
        doing: as in Whereabouts.
        what: what it executes, or the words for it.
        peers: the ranks that it waits for.
        names: of the epoch's workers, by rank.
        team: of its own worker's other ranks, the processes, where it waits for them.
    """

    epoch: int
    doing: Doing
    what: Instruction | str
    peers: Collection[int] = ()
    names: Sequence[str] = ()
    team: tuple[str, ...] = ()


class Activity:
    """What the training thread notes; nothing that takes time, and no lock.

    Args:
        team: the other processes of its worker.
    """

    def __init__(self, team: tuple[str, ...] = ()) -> None:
        self._team = team
        self.stay = Stay(0, "preparing", "its stage")

    def enter(self, epoch: int, names: Sequence[str]) -> None:
        """The thread is in an epoch, whose workers are known by rank, and makes its stage ready."""
        self.stay = Stay(epoch, "preparing", "its stage", (), names)

    def be(self, doing: Doing, what: Instruction | str, peers: Collection[int] = ()) -> None:
        """The thread is about to do something, for which it may wait for the ranks `peers`."""
        last = self.stay
        self.stay = Stay(last.epoch, doing, what, peers, last.names)

    def wait_for_team(self) -> Stay:
        """The thread is about to wait for the other ranks of its worker; gives where it was."""
        last = self.stay
        self.stay = replace(last, doing="waiting", peers=(), team=self._team)
        return last

    def execute(self, instruction: Instruction) -> None:
        """The thread is about to execute an instruction of its program."""
        match instruction:
            case Receive(_, source):
                self.be("waiting", instruction, (source,))
            case AllReduce():
                self.be("waiting", instruction, sorted({rank for group in instruction.groups for rank in group}))
            case _:
                self.be("computing", instruction)


class ActivityTimer:
    """Counts for how long the training thread has been where it is; while this process is stopped no time passes.

    Args:
        activity: of the training thread.
        interruption: of its epochs.
        worker: its name.
        may_compute: whether it may go on with its own work at the job's end, as a loop that is not rtk's.

    Attributes:
        on_stuck: called once, with the exit code and the reason for which this process is to end: the thread does not
            let go of an epoch that is over, or the process has been told to end and it does not heed that.
    """

    def __init__(self, activity: Activity, interruption: Interruption, worker: str, may_compute: bool = False) -> None:
        self._activity, self._interruption, self._worker = activity, interruption, worker
        self._ends: tuple[Doing, ...] = ("waiting", "joining") if may_compute else ("computing", "waiting", "joining")
        self.on_stuck: Callable[[int, str], None] = lambda exit_code, reason: None
        self._seen = activity.stay
        self._idle_s = 0.0
        self._over_s = 0.0  # for how long it has been there since it was to let go
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to count."""
        self._thread.start()

    def answer(self, inquiry: Inquiry) -> Whereabouts:
        """For the link, in its thread: where the training thread is."""
        stay = self._activity.stay
        idle_s = self._idle_s if stay is self._seen else 0.0
        peers = stay.team or tuple(name for name in (stay.names[rank] for rank in stay.peers) if name != self._worker)
        return Whereabouts(inquiry.number, stay.epoch, stay.doing, words_of(stay.what), idle_s, peers)

    def close(self) -> None:
        """Watch no more."""
        self._is_closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closed.wait(TICK_S):
            stay = self._activity.stay
            is_same, self._seen = stay is self._seen, stay
            self._idle_s = self._idle_s + TICK_S if is_same else 0.0
            self._over_s = self._over_s + TICK_S if is_same and self._is_to_let_go(stay) else 0.0
            if self._over_s >= LET_GO_S:
                end = self._interruption.end
                over = "its part in the job" if end else f"epoch {stay.epoch}"
                self.on_stuck(end.exit_code if end else HUNG, f"its training thread does not let go of {over}")
                return

    def _is_to_let_go(self, stay: Stay) -> bool:
        """Whether the thread is where it cannot stay: in a wait of an epoch that is over, or at work at the end."""
        if self._interruption.end is not None:
            return stay.doing in self._ends
        if stay.team and self._interruption.spares_team:  # who may have something to compute before that
            return False
        return self._interruption.is_over and stay.doing in ("waiting", "joining")


def words_of(what: Instruction | str) -> str:
    """An instruction in a few words."""
    match what:
        case str():
            return what
        case Compute(operation):
            stage = "" if operation.stage is None else operation.stage
            return f"{stage}{operation.kind}{operation.pipeline}.{operation.microbatch}"
        case Pair(forward, backward):
            return f"{words_of(forward)} and {words_of(backward)}"
        case Receive(message):
            return f"{message.kind} {message.pipeline}.{message.microbatch}"
        case BeginSum() | AllReduce():
            return "all-reduce"
    return type(what).__name__.lower()
