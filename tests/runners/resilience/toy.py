"""A toy coordinator around the real input and output: commits when all have voted; also as a process of its own."""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rtk.runners.resilience.announcements import Announcement, IterationRedone, LogLost, PlanKept
from rtk.runners.resilience.events import (
    Announce,
    Arrived,
    Drop,
    Elapsed,
    Event,
    Finish,
    Instruction,
    Lost,
    MakePlan,
    Planned,
    PlanRest,
    Restarted,
    RestPlanned,
    Said,
    Tell,
    Wake,
)
from rtk.runners.resilience.journal import take
from rtk.runners.resilience.protocol import (
    Commit,
    End,
    Epoch,
    Hello,
    Leaving,
    Refused,
    Reshape,
    Returning,
    Suspect,
    Vote,
)
from rtk.runners.resilience.server import Finished, Limits, Server, Surroundings
from rtk.schemas.conditions import HEALTHY
from rtk.schemas.plan import Pipeline, Plan, Planner, Stage, Template, Worker
from rtk.schemas.protocols import Hand, Replanned

SECRET = b"open sesame, open sesame"
PLAN = "0" * 64
JOB = {"seed": 1}
ALONE = Plan(
    planner=Planner("toy", "1", {}),
    templates=(Template("t", (Stage((0, 1), 1.0, 1.0, 1.0),), ()),),
    pipelines=(Pipeline("t", 1),),
    optimizer="synchronous",
    workers=(Worker(0, 0, "F0 B0"),),
)


class Toy:
    """Commits an iteration when `size` workers have voted for it; obeys the reasons of Suspect.

    Attributes:
        heard: all events, in order.
        committed: the last iteration that all have voted for.
    """

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.heard: list[Event] = []
        self.live: dict[int, str] = {}
        self.votes: dict[int, set[str]] = {}
        self.committed = -1

    def handle(self, event: Event) -> Sequence[Instruction]:
        self.heard.append(event)
        match event:
            case Arrived(hello=Hello(worker="refused")):
                return [Tell(event.connection, Refused("no such place")), Drop(event.connection)]
            case Arrived(hello=Hello(worker="later")) if len(self.arrivals()) == 1:
                return [Tell(event.connection, Refused("not yet", retry=True)), Drop(event.connection)]
            case Arrived():
                self.live[event.connection] = event.hello.worker
            case Lost():
                self.live.pop(event.connection, None)
            case Said():
                return self._hear(event)
            case Planned():
                return [Announce(PlanKept(reason=event.reason if event.plan is None else "another one"))]
            case RestPlanned():
                return [Announce(IterationRedone(reason=event.reason))]
            case Elapsed():
                return [Announce(LogLost(reason=event.timer))]
            case Restarted():
                self.live.clear()
        return []

    def arrivals(self) -> list[Arrived]:
        return [event for event in self.heard if isinstance(event, Arrived)]

    def losses(self) -> list[str]:
        return [event.reason for event in self.heard if isinstance(event, Lost)]

    def _hear(self, said: Said) -> Sequence[Instruction]:
        match said.message:
            case Vote() as vote:
                return self._count(said.connection, vote)
            case Suspect() as wish:
                return self._obey(said.connection, wish.reason)
            case Leaving():
                return [Finish(0, "done"), *(Tell(number, End(0, "done")) for number in self.live)]
            case _:
                return []

    def _count(self, number: int, vote: Vote) -> Sequence[Instruction]:
        if vote.iteration <= self.committed:
            return [Tell(number, Commit(vote.epoch, vote.iteration))]
        voters = self.votes.setdefault(vote.iteration, set())
        voters.add(self.live[number])
        if len(voters) < self.size:
            return []
        self.committed = vote.iteration
        commit = Commit(vote.epoch, vote.iteration)
        return [Tell(number, commit) for number in self.live]

    def _obey(self, number: int, wish: str) -> Sequence[Instruction]:
        match wish:
            case "plan":
                return [MakePlan(7, ALONE, (Hand("0/0", None, None),), HEALTHY)]
            case "rest":
                return [PlanRest(8, ALONE, (("0/0", "0/0"),), 4, (), HEALTHY)]
            case "wake":
                return [Wake(0.01, "snooze")]
            case "place":
                return [Tell(number, Epoch(0, 0, False, 0, "", ()))]
            case "reshape":
                return [Tell(number, Reshape(0, 1))]
            case "drop":
                return [Tell(number, Commit(0, 7)), Drop(number)]
            case "fail":
                raise ZeroDivisionError
            case "big":
                return [Tell(number, End(0, "x" * 1_000_000))] * 20
            case _:
                return [Announce(LogLost(reason=wish))]


class Running:
    """A server in a thread, and what it has reported."""

    def __init__(self, toy: Toy, **options: Any) -> None:
        self.toy = toy
        self.announced: list[Announcement] = []
        self.spans: list[tuple[Any, ...]] = []
        self.lines: list[str] = []
        surroundings = {
            "make_plan": lambda plan, crew, conditions: Replanned(plan, (("0/0", (0, 0)),)),
            "announce": self.announced.append,
            "on_spans": lambda *arguments: self.spans.append(arguments),
            "log": self.lines.append,
            **options.pop("surroundings", {}),
        }
        limits = Limits(**{"heartbeat_s": 30.0, "linger_s": 1.0, "finish_s": 0.5, **options.pop("limits", {})})
        journal = options.pop("journal", None)
        self.server = Server(toy, journal, SECRET, Surroundings(**surroundings), limits=limits, **options)
        self.address = self.server.address
        self.result: Finished | Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self.server.run()
        except Exception as error:
            self.result = error

    def join(self) -> Finished | Exception | None:
        self.thread.join(100)
        assert not self.thread.is_alive()
        return self.result


@contextmanager
def running(toy: Toy | None = None, **options: Any) -> Iterator[Running]:
    """A server in a thread."""
    server = Running(toy or Toy(), **options)
    try:
        yield server
    finally:
        server.server.finish(0, "the test is over")
        server.join()


def hello(proof: str, worker: str = "0/0", returning: Returning | None = None) -> Hello:
    return Hello(proof, worker, "127.0.0.1:1", PLAN, JOB, returning=returning)


def main(log: str, port: str, size: str, heartbeat_s: str) -> None:
    """A coordinator as a process: waits for the log, says what it has replayed and where it listens."""
    assert "torch" not in sys.modules
    print("waiting", flush=True)
    journal = take(Path(log), plan=PLAN, job=JOB, wait=True)
    server = Server(
        Toy(int(size)),
        journal,
        SECRET,
        Surroundings(lambda plan, crew, conditions: Replanned(plan, ())),
        port=int(port),
        limits=Limits(heartbeat_s=float(heartbeat_s), finish_s=1.0),
    )
    print(server.address, flush=True)
    sys.exit(server.run().exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
