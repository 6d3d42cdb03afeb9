"""The coordinator's input and output: connections, silence, timers and the log around rules that know none of them.

Everything happens in one asyncio loop, and one event after the other: it is written to the log, given to the rules, and
what they want is done, before the next is looked at. Nothing waits for anyone: not for a worker that does not read, not
for the planner, not for a stranger.
"""

import asyncio
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...schemas.errors import InvalidInputError, RtkError
from ...schemas.plan import worker_of
from ...schemas.protocols import Monitor, Replan, Replanned, Resume
from ...schemas.quantities import print_time
from ..addresses import format_address
from .announcements import Announcement, LogLost, WorkerGaveUp
from .events import (
    Announce,
    Arrived,
    Drop,
    Elapsed,
    Event,
    Finish,
    Instruction,
    Lost,
    MakePlan,
    Noticed,
    Planned,
    PlanRest,
    Restarted,
    RestPlanned,
    Said,
    StopAsked,
    Tell,
    Wake,
    planned,
)
from .journal import Journal
from .protocol import (
    MEMBER_BYTES,
    Beat,
    Bye,
    Dead,
    End,
    Epoch,
    Failed,
    FromCoordinator,
    FromWorker,
    Hello,
    Refused,
    Reshaped,
    Spans,
    Vote,
    Welcome,
    encode,
    from_worker,
)
from .regrouping import planned_rest
from .wire import HELLO_S, MOST, LineConnection, PeerRole, RationedLog, Strangers, listen

BEATS_PER_LIMIT = 8


class Brain(Protocol):
    """The rules: deterministic, without I/O and without a clock."""

    def handle(self, event: Event) -> Sequence[Instruction]:
        """What is to be done about an event, in this order."""


@dataclass(frozen=True)
class Surroundings:
    """What the server asks of the rest of the program; all but planning runs in its loop and is quick.

    Attributes:
        make_plan: plans anew. Runs in a thread of its own, one at a time, and may take long.
        resume: plans what is left of an iteration, in the same thread; None: nobody does, and it is done anew.
        welcome: the hello of a worker -> what it is to report and to play; heartbeat and clock are filled in.
        announce: takes what people and metrics are to know.
        on_spans: (process, place, spans) as it reports them; of a worker of several ranks the first one does.
        monitor: looks for what is slow; None: nobody does.
        log: takes a line about those who do not belong here.
        clock: the wall clock in seconds, comparable between coordinators.
        nonce: what a stranger has to sign; never the same twice.
    """

    make_plan: Replan
    resume: Resume | None = None
    welcome: Callable[[Hello], Welcome] = lambda hello: Welcome(1.0, 0.0, "")
    announce: Callable[[Announcement], None] = lambda what: None
    on_spans: Callable[[str, str, tuple[tuple[str, float, float, int], ...]], None] = lambda worker, place, spans: None
    monitor: Monitor | None = None
    log: Callable[[str], None] = lambda line: None
    clock: Callable[[], float] = time.time
    nonce: Callable[[], str] = lambda: secrets.token_hex(16)


@dataclass(frozen=True)
class Limits:
    """How long and how much is too long and too much.

    Attributes:
        heartbeat_s: a worker that has been silent for longer is lost; it beats eight times as often.
        hello_s: how long a stranger may take to show that it knows the secret.
        strangers: how many there may be at a time; the one that has been here longest makes room.
        unread_bytes: a worker that has so much left to read is lost.
        linger_s: how long a connection stays open for the last words to be read.
        finish_s: how long the workers may take to go when the job is over.
        log_lines: how many lines strangers can cause at once.
        log_every_s: how long it takes until they can cause another one.
    """

    heartbeat_s: float = 2.0
    hello_s: float = HELLO_S
    strangers: int = MOST
    unread_bytes: int = 256 * 1024 * 1024
    linger_s: float = 5.0
    finish_s: float = 5.0
    log_lines: int = 50
    log_every_s: float = 10.0


@dataclass(frozen=True)
class Finished:
    """How the job has ended."""

    exit_code: int
    reason: str


class Server:
    """A coordinator. It listens from its construction on; `serve` or `run` does the rest.

    Args:
        brain: the rules.
        journal: the log, or None for a job that no other coordinator can take over.
        secret: what workers must know.
        surroundings: planner, clock, metrics.
        host, port: where to listen; port 0 is any free one, see `address`.
        limits: times and sizes.

    Raises:
        InvalidInputError: nobody can listen there.
    """

    def __init__(
        self,
        brain: Brain,
        journal: Journal | None,
        secret: bytes,
        surroundings: Surroundings,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self._brain = brain
        self._journal = journal
        self._around = surroundings
        self._limits = limits or Limits()
        self._listener = listen(host, port)
        self.address = format_address(*self._listener.getsockname()[:2])
        self._log = RationedLog(surroundings.log, self._limits.log_lines, self._limits.log_every_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: set[LineConnection] = set()  # also those that we have parted with and that have not closed yet
        self._strangers = Strangers(
            secret,
            lambda stranger, reason: self.refuse(stranger, reason, retry=True),
            hello_s=self._limits.hello_s,
            most=self._limits.strangers,
            nonce=surroundings.nonce,
        )
        self._members: dict[int, LineConnection] = {}
        self._placed: set[int] = set()  # those who have had a place in an epoch
        self._next_number = 0
        self._now_s = 0.0
        self._events: deque[Event] = deque()
        self._is_handling = False
        self._planner: PlannerThread | None = None
        self._encoded: tuple[FromCoordinator | None, bytes] = (None, b"")
        self._asked_to_finish: Finished | None = None
        self._is_asked_to_stop = False
        self._finished: Finished | None = None
        self._broken: Exception | None = None

    def run(self) -> Finished:
        """`serve`, in an event loop of its own; in any thread."""
        return asyncio.run(self.serve())

    def finish(self, exit_code: int, reason: str) -> None:
        """From any thread: end the job and tell all workers, whatever the rules say."""
        self._asked_to_finish = Finished(exit_code, reason)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the job is over already
                self._loop.call_soon_threadsafe(self._heed)

    def stop(self) -> None:
        """From any thread, and from a signal's handler: let the rules end the job after the iteration under way."""
        self._is_asked_to_stop = True
        if self._loop is not None:
            with suppress(RuntimeError):  # as above
                self._loop.call_soon_threadsafe(self._heed)

    def mourn(self, worker: str, pid: int) -> None:
        """From any thread: a process (`Hello.process`) is dead, though its connection may not have ended yet."""
        if self._loop is not None:
            with suppress(RuntimeError):  # as above
                self._loop.call_soon_threadsafe(self._mourn, worker, pid)

    async def serve(self) -> Finished:
        """Bring the rules to where the log ends, and coordinate until the job is over.

        Raises:
            InvalidInputError: the log is damaged.
            Exception: whatever the rules raise; the log then leads there again.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._planner = PlannerThread(self._around.make_plan, self._around.resume, loop, self._planned)
        try:
            was_over = self._replay()
            server = await loop.create_server(lambda: LineConnection(self, loop), sock=self._listener, backlog=1024)
            try:
                self._watched_s = loop.time()
                self._watch()
                self._heed()
                await self._over.wait()
                await self._see_off(wait_for_unknown=was_over)
            finally:
                server.close()
        finally:
            self._listener.close()
            await self._close_all()
        if self._broken is not None:
            raise self._broken
        assert self._finished is not None
        return self._finished

    # What happens: one event after the other.

    def _replay(self) -> bool:
        # Whether the job was over already; the coordinator may have died before it could tell the workers.
        count = 0
        for event, instructions in self._journal.replayed(self._brain.handle) if self._journal else ():
            count += 1
            self._now_s = max(self._now_s, event.now_s)
            if isinstance(event, Arrived):
                self._next_number = max(self._next_number, event.connection + 1)
            for instruction in instructions:
                if isinstance(instruction, Finish):
                    self._end(Finished(instruction.exit_code, instruction.reason))
        if count and self._finished is None:
            self._happen(Restarted(self._now()))
            return False
        return count > 0

    def _now(self) -> float:
        # A wall clock may be set back; the rules' time does not go back, also not from one coordinator to the next.
        self._now_s = max(self._now_s, self._around.clock())
        return self._now_s

    def _happen(self, event: Event) -> None:
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events and self._finished is None:
                event = self._events.popleft()
                self._write_down(event)
                instructions = self._brain.handle(event)
                if isinstance(event, Arrived):
                    self._welcome(event, instructions)
                for instruction in instructions:
                    self._carry_out(instruction)
        except Exception as error:
            # Rules that fail are no rules to go on with; the error leaves `serve`.
            self._broken = error
            self._over.set()
        finally:
            self._is_handling = False

    def _write_down(self, event: Event) -> None:
        if self._journal is None:
            return
        try:
            self._journal.append(event)
        except OSError as error:
            # Training is worth more than the possibility of another coordinator.
            text = f"the coordinator's log is lost ({error.strerror}): training goes on, but not without this process"
            self._log.always(text)
            self._call(self._around.announce, LogLost(reason=text))
            with suppress(OSError):
                self._journal.abandon()
            self._journal = None

    # What is to be done.

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Tell():
                self._tell(instruction.connection, instruction.message)
            case Drop():
                self._drop(instruction.connection)
            case MakePlan() | PlanRest():
                assert self._planner is not None
                self._planner.ask(instruction)
            case Wake():
                assert self._loop is not None
                timer = instruction.timer
                self._loop.call_later(instruction.after_s, lambda: self._happen(Elapsed(self._now(), timer)))
            case Announce():
                self._call(self._around.announce, instruction.what)
            case Finish():
                self._end(Finished(instruction.exit_code, instruction.reason))

    def _tell(self, number: int, message: FromCoordinator) -> None:
        member = self._members.get(number)
        if member is None:
            return
        if isinstance(message, Epoch):
            self._placed.add(number)
        if self._encoded[0] is not message:  # the same is often told to all
            self._encoded = (message, encode(message))
        member.write(self._encoded[1])
        if member.unread_bytes > self._limits.unread_bytes:
            self.lose(member, "does not read its messages")

    def _drop(self, number: int) -> None:
        member = self._members.get(number)
        # The rules need not hear about the end of what they have ended.
        self._events = deque(e for e in self._events if not (isinstance(e, Lost) and e.connection == number))
        if member is not None:
            self._forget(member)
            member.part(self._limits.linger_s)

    def _planned(self, answer: Planned | RestPlanned) -> None:
        self._happen(replace(answer, now_s=self._now()))

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        # A full disk or a closed pipe behind the metrics is no reason to stop coordinating.
        try:
            function(*arguments)
        except Exception as error:
            self._log(f"could not be reported: {error!r}")

    # Strangers.

    def met(self, connection: LineConnection) -> None:
        """Somebody has connected."""
        self._open.add(connection)
        self._strangers.challenge(connection)

    def refuse(self, stranger: LineConnection, reason: str, *, retry: bool = False, shown: bytes = b"") -> None:
        """Do not let a stranger in."""
        detail = f": {ascii(shown[:40])[1:]}" if shown else ""
        self._log(f"refused {stranger.peer}: {reason}{detail}")
        stranger.write(encode(Refused(reason, retry)))
        stranger.part(self._limits.linger_s)

    def _meet(self, stranger: LineConnection, line: bytes) -> None:
        try:
            hello = from_worker(line)
        except InvalidInputError:
            return self.refuse(stranger, "what it said is no message of ours", shown=line)
        if not isinstance(hello, Hello | Dead):
            return self.refuse(stranger, f"it said {hello.kind} before it said hello")
        if not self._strangers.has_proven(stranger, hello.proof):
            return self.refuse(stranger, "it does not know the job's secret")
        if isinstance(hello, Hello):
            return self._admit(stranger, hello)
        self._mourn(hello.worker, hello.pid)
        return stranger.part(self._limits.linger_s)

    def _mourn(self, worker: str, pid: int) -> None:
        for member in self._members.values():
            if (member.worker, member.pid) == (worker, pid):
                member.take_for_ended()

    # Members.

    def _admit(self, member: LineConnection, hello: Hello) -> None:
        self._strangers.forget(member)
        member.admit(MEMBER_BYTES)
        member.number, member.worker, member.pid = self._next_number, hello.process, hello.pid
        member.is_first = hello.share == 0
        self._next_number += 1
        self._members[member.number] = member
        if hello.returning is not None:
            self._placed.add(member.number)
        arrived = Arrived(self._now(), member.number, hello)
        if self._finished is None:
            self._happen(arrived)
        else:
            self._welcome(arrived, ())
            member.write(encode(End(self._finished.exit_code, self._finished.reason)))

    def _welcome(self, arrived: Arrived, instructions: Sequence[Instruction]) -> None:
        # A worker is either welcomed or refused; so it knows from the first answer where it stands.
        number = arrived.connection
        if any(isinstance(i, Tell) and i.connection == number and isinstance(i.message, Refused) for i in instructions):
            return
        welcome = self._around.welcome(arrived.hello)
        heartbeat_s = self._limits.heartbeat_s / BEATS_PER_LIMIT
        # The clock that workers date their spans by.
        welcome = replace(welcome, heartbeat_s=heartbeat_s, now_s=time.perf_counter(), host=socket.gethostname())
        self._tell(number, welcome)

    def said(self, connection: LineConnection, line: bytes) -> None:
        """Somebody has said a line."""
        if connection.phase is PeerRole.STRANGER:
            return self._meet(connection, line)
        try:
            message = from_worker(line)
        except InvalidInputError:
            return self.lose(connection, "said something that is no message")
        return self._hear(connection, message)

    def _hear(self, member: LineConnection, message: FromWorker) -> None:
        match message:
            case Beat():
                pass
            case Spans():
                self._call(self._around.on_spans, member.worker, message.place, message.spans)
            case Failed():
                self._fail(member, message)
            case Bye():
                self._leave(member, "said bye")
                member.part(self._limits.linger_s)
            case Hello() | Dead():
                self.lose(member, "said hello twice")
            case _:
                if isinstance(message, Reshaped):
                    self._note_shape(member, message)
                if self._finished is None:
                    measured = message.measured if isinstance(message, Vote) and member.is_first else None
                    # The rules, and so the log, have no use for it.
                    spoken = replace(message, measured=None) if isinstance(message, Vote) else message
                    self._happen(Said(self._now(), member.number, spoken))
                    if self._around.monitor is not None and measured is not None:
                        found = self._around.monitor.note(replace(measured, worker=worker_of(member.worker)))
                        if found is not None and self._finished is None:
                            self._happen(Noticed(self._now(), found))

    def _note_shape(self, member: LineConnection, reshaped: Reshaped) -> None:
        """Its worker is another one from now on, of which maybe another rank is the first."""
        member.is_first = reshaped.rank == 0
        if self._around.monitor is not None:
            self._around.monitor.forget(worker_of(member.worker))

    def _fail(self, member: LineConnection, failed: Failed) -> None:
        gave_up = WorkerGaveUp(worker=member.worker, exit_code=failed.exit_code, message=failed.message)
        self._call(self._around.announce, gave_up)
        is_of_all = failed.exit_code == InvalidInputError.exit_code
        if is_of_all and (member.number in self._placed or not self._placed):
            # It is as wrong for all others, and no plan without this worker would help. Of one that comes to a job that
            # goes well it is wrong there only.
            self._forget(member)
            self._end_for_all(Finished(failed.exit_code, failed.message))
        else:
            self._leave(member, failed.message)
        member.part(self._limits.linger_s)

    def lose(self, connection: LineConnection, reason: str) -> None:
        """Part with somebody who is gone or might as well be."""
        connection.phase = PeerRole.GONE
        connection.abort()
        if connection in self._strangers:
            self._log(f"refused {connection.peer}: {reason}")
            self._strangers.forget(connection)
        else:
            self._leave(connection, reason)

    def hung_up(self, connection: LineConnection) -> None:
        """Somebody will say nothing more."""
        if not connection.is_gone:
            self.lose(connection, "connection closed")

    def closed(self, connection: LineConnection) -> None:
        """A connection is closed on both sides."""
        self.hung_up(connection)
        self._strangers.forget(connection)
        self._open.discard(connection)

    def _leave(self, member: LineConnection, reason: str) -> None:
        self._forget(member)
        if self._around.monitor is not None:
            self._around.monitor.forget(worker_of(member.worker))
        if self._finished is None:
            self._happen(Lost(self._now(), member.number, reason))

    def _forget(self, member: LineConnection) -> None:
        self._members.pop(member.number, None)

    def _watch(self) -> None:
        # Whatever kept this loop from running, such as a stop of the whole machine, may have kept the workers from
        # being heard, or from speaking: it is not counted as their silence.
        assert self._loop is not None
        interval_s = self._limits.heartbeat_s / BEATS_PER_LIMIT
        now_s = self._loop.time()
        stalled_s = max(0.0, now_s - self._watched_s - interval_s)
        self._watched_s = now_s
        for member in list(self._members.values()):
            member.heard_s = min(now_s, member.heard_s + stalled_s)
            if now_s - member.heard_s > self._limits.heartbeat_s:
                self.lose(member, f"silent for {print_time(now_s - member.heard_s)}")
        self._loop.call_later(interval_s, self._watch)

    # The end.

    def _heed(self) -> None:
        if self._asked_to_finish is not None:
            self._end_for_all(self._asked_to_finish)
        elif self._is_asked_to_stop and self._finished is None:
            self._happen(StopAsked(self._now()))

    def _end_for_all(self, finished: Finished) -> None:
        if self._finished is not None:
            return
        for number in list(self._members):
            self._tell(number, End(finished.exit_code, finished.reason))
        self._end(finished)

    def _end(self, finished: Finished) -> None:
        if self._finished is None:
            self._finished = finished
            self._over.set()

    async def _see_off(self, wait_for_unknown: bool) -> None:
        if self._broken is not None:
            return
        assert self._loop is not None
        # A coordinator that has died at the very end does not know who still waits to hear of it.
        if wait_for_unknown:
            await asyncio.sleep(self._limits.finish_s)
        deadline_s = self._loop.time() + self._limits.finish_s
        while self._loop.time() < deadline_s and any(connection.number >= 0 for connection in self._open):
            await asyncio.sleep(0.01)

    async def _close_all(self) -> None:
        for connection in list(self._open):
            connection.phase = PeerRole.GONE
            connection.abort()
        await asyncio.sleep(0)  # the loop closes the sockets in its next round
        await asyncio.sleep(0)


# Plans made beside the coordinator's loop: in a thread, one at a time, in the order in which they are asked for.


class PlannerThread:
    """The thread that plans, and those who wait for it.

    Args:
        make_plan, resume: as in Surroundings; what they raise becomes the reason why there is no plan.
        loop: the coordinator's, in which `ask` is called.
        answer: called in the loop with each answer; the time is to be filled in.
    """

    def __init__(
        self,
        make_plan: Replan,
        resume: Resume | None,
        loop: asyncio.AbstractEventLoop,
        answer: Callable[[Planned | RestPlanned], None],
    ) -> None:
        self._make_plan, self._resume, self._loop, self._answer = make_plan, resume, loop, answer
        self._requests: deque[MakePlan | PlanRest] = deque()
        self._is_planning = False

    def ask(self, request: MakePlan | PlanRest) -> None:
        """Have a plan made, or what is left planned, once those asked for before are there."""
        self._requests.append(request)
        self._go_on()

    def _go_on(self) -> None:
        if self._requests and not self._is_planning:
            self._is_planning = True
            # A daemon: a plan that takes minutes must not keep a coordinator that is done from ending.
            threading.Thread(target=self._plan, args=(self._requests.popleft(),), name="planner", daemon=True).start()

    def _plan(self, request: MakePlan | PlanRest) -> None:
        answer = self._made(request) if isinstance(request, MakePlan) else planned_rest(request, self._resume)
        with suppress(RuntimeError):  # the loop is closed: nobody wants the plan any more
            self._loop.call_soon_threadsafe(self._planned, answer)

    def _made(self, request: MakePlan) -> Planned:
        found: Replanned | None = None
        reason = ""
        try:
            found = self._make_plan(request.plan, request.crew, request.conditions)
        except RtkError as error:
            reason = error.what
        except Exception as error:
            reason = f"the planner failed: {error!r}"
        return planned(request.number, found, reason)

    def _planned(self, answer: Planned | RestPlanned) -> None:
        self._is_planning = False
        self._answer(answer)
        self._go_on()
