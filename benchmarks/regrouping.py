"""What passes from a worker's death until the others send each other messages again, part by part.

`python benchmarks/regrouping.py [--kills 20] [--ways anew,kept] [-o FILE]`, on quiet cores.

Six processes of 240 MB stand as in a job of three stages and two pipelines, each in a wait for another one: most in a
receive, one in a sum. One of them is killed (SIGKILL), each time another one. What coordinates is this process: it
hears of the death, plans for 7 ms (what a warm planner takes for such a job) and tells the others, who meet, send each
other a message around, and sum over the stages that have two workers left.

* `anew`: as until rtk 1.4. The coordinator sees the connection's end; the plan comes before the others are told, who
  then make all their connections anew.
* `kept`: a lifeline tells of the death; membership is told before the plan; the others go on over connections that they
  have made ahead.

All figures are seconds since the kill, of the slowest survivor: `seen` by the coordinator, `told` to the others,
`woken` from their waits, `connected` in the next epoch, the `message` that came first, and the `sum`.
"""

import argparse
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

import torch

from rtk.benchmarks.common import write_result
from rtk.runners.lifeline import LIFELINE, Lifeline, hold_lifeline
from rtk.runners.torch.connections import Connections
from rtk.runners.torch.gloo import GlooTransport
from rtk.runners.torch.rendezvous import MeetingPlace, connect, in_thread, meet
from rtk.runners.torch.transport import Transport
from rtk.schemas.errors import RuntimeFailedError

SIZE, STAGES = 6, 3
PLAN_S = 0.007
HELD_MB = 200  # beside what a process has anyway
SETTLED_S = 1.0
SECRET = b"a secret for one benchmark only"
PARTS = ("seen", "told", "woken", "connected", "message", "sum")


class Member:
    """A worker's process, as far as its connections go."""

    def __init__(self, me: int, way: str, port: int) -> None:
        self.me, self.way = me, way
        self.wire = socket.create_connection(("127.0.0.1", port))
        self.wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines = self.wire.makefile("r")
        self.place = MeetingPlace(SECRET)
        self.connections = Connections(SECRET, "127.0.0.1")
        self.transport: Transport | None = None
        self.superseded: Future[None] = Future()
        self.heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.at_s: dict[str, float] = {}

    def run(self) -> None:
        """Until this process is killed, or nobody coordinates any more."""
        held = bytearray(HELD_MB << 20)
        for page in range(0, len(held), 4096):
            held[page] = 1
        self.say(me=self.me, place=self.place.address)
        threading.Thread(target=self.hear, daemon=True).start()
        while True:
            self.live_through(self.heard.get())

    def say(self, **what: Any) -> None:
        """Tell whoever coordinates."""
        self.wire.sendall(json.dumps(what).encode() + b"\n")

    def hear(self) -> None:
        """Take orders, in a thread of their own, until nobody coordinates any more; then the process ends."""
        for line in self.lines:
            order = json.loads(line)
            if order["is_first"]:
                self.at_s["told"] = time.monotonic()
                self.superseded.set_result(None)
                self.superseded = Future()
                if self.transport is not None:
                    in_thread(self.transport.interrupt, "waking")
            if order["what"] == "epoch":
                self.heard.put(order)
            else:
                self.connections.expect(order["epoch"], order["places"], order["members"].index(self.me))
        os._exit(0)

    def live_through(self, order: dict[str, Any]) -> None:
        """An epoch: connect, send a message around, sum, say when each was done, and wait until it is over."""
        members = order["members"]
        rank = members.index(self.me)
        groups = [group for group in sums_of(members) if rank in group]
        if self.transport is not None:
            in_thread(self.transport.close, "closing")
        self.transport = connect(partial(self.reach, order, rank, groups), self.superseded)
        self.at_s["connected"] = time.monotonic()
        following, before = (rank + 1) % len(members), (rank - 1) % len(members)
        self.transport.post_receive(1, before, torch.zeros(1000))
        self.transport.send(1, following, torch.ones(1000))
        self.transport.receive(1, before)
        self.at_s["message"] = time.monotonic()
        own = groups[0] if groups else None
        if own is not None:
            self.transport.all_reduce(own, torch.ones(1000))
        self.at_s["sum"] = time.monotonic()
        self.say(**self.at_s)
        with suppress(RuntimeFailedError):
            if rank == 0 and own is not None:
                self.transport.all_reduce(own, torch.ones(1000))
            self.transport.post_receive(2, before, torch.zeros(1000))
            self.transport.receive(2, before)
        self.at_s["woken"] = time.monotonic()

    def reach(self, order: dict[str, Any], rank: int, groups: list[tuple[int, ...]]) -> Transport:
        """Connect with all members, in the way that is measured.

        Raises:
            RuntimeFailedError: the epoch is over, or somebody does not come.
        """
        places, number = order["places"], order["epoch"]
        if self.way == "kept":
            return self.connections.transport(number, places, rank, groups)
        return GlooTransport(meet(places[0], SECRET, number), rank, len(places), groups, hostname="127.0.0.1")


def sums_of(members: list[int]) -> list[tuple[int, ...]]:
    """Ranks by stage, where there are two."""
    stages = [tuple(rank for rank, one in enumerate(members) if one % STAGES == stage) for stage in range(STAGES)]
    return [stage for stage in stages if len(stage) > 1]


class Job:
    """The coordinator's side of one job."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.pids: list[int] = []
        self.dead: queue.SimpleQueue[int] = queue.SimpleQueue()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            for me in range(SIZE):
                line = Lifeline()
                if (pid := os.fork()) == 0:
                    port = listener.getsockname()[1]
                    listener.close()
                    try:
                        os.environ[LIFELINE] = str(line.file)
                        hold_lifeline()
                        torch.set_num_threads(1)
                        Member(me, way, port).run()
                    finally:
                        os._exit(1)
                os.close(line.file)
                line.watch(lambda: False, partial(self.dead.put, me))
                self.pids.append(pid)
            wires = [listener.accept()[0] for _ in range(SIZE)]
        for wire in wires:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first = {one["me"]: (one["place"], wire, lines) for one, wire, lines in map(_introduced, wires)}
        self.places = [first[me][0] for me in range(SIZE)]
        self.wires = [first[me][1] for me in range(SIZE)]
        self.lines = [first[me][2] for me in range(SIZE)]

    def tell(self, members: list[int], **order: Any) -> None:
        """Give these members an order, which says who they are and where to meet them."""
        line = json.dumps({**order, "members": members, "places": [self.places[one] for one in members]}) + "\n"
        for member in members:
            self.wires[member].sendall(line.encode())

    def reports(self, members: list[int]) -> list[dict[str, float]]:
        """What each says of its epoch: by part the time, in s of `time.monotonic`."""
        return [json.loads(self.lines[member].readline()) for member in members]

    def kill(self, victim: int) -> dict[str, float]:
        """The parts, in s since the kill."""
        everybody = [*range(SIZE)]
        self.tell(everybody, epoch=1, what="epoch", is_first=True)
        self.reports(everybody)
        time.sleep(SETTLED_S)
        left = [one for one in everybody if one != victim]
        killed_s = time.monotonic()
        os.kill(self.pids[victim], signal.SIGKILL)
        if self.way == "kept":
            self.dead.get()
        else:
            self.lines[victim].read()
        at_s = {"seen": time.monotonic()}
        if self.way == "kept":
            self.tell(left, epoch=2, what="regroup", is_first=True)
        time.sleep(PLAN_S)
        self.tell(left, epoch=2, what="epoch", is_first=self.way == "anew")
        reports = self.reports(left)
        at_s.update((part, max(one[part] for one in reports)) for part in PARTS[1:])
        return {part: at_s[part] - killed_s for part in PARTS}

    def close(self) -> None:
        """Kill all processes, and wait for their ends."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for wire in self.wires:
            wire.close()


def _introduced(wire: socket.socket) -> tuple[dict[str, Any], socket.socket, Any]:
    lines = wire.makefile("r")
    return json.loads(lines.readline()), wire, lines


def measured(way: str, kills: int) -> dict[str, Any]:
    """The parts of so many kills."""
    found: list[dict[str, float]] = []
    for number in range(kills):
        job = Job(way)
        try:
            found.append(job.kill(number % SIZE))
        finally:
            job.close()
        print(way, {part: round(1e3 * value, 1) for part, value in found[-1].items()}, file=sys.stderr, flush=True)
    return {
        "kills": found,
        "median_s": {part: median(one[part] for one in found) for part in PARTS},
        "most_s": {part: max(one[part] for one in found) for part in PARTS},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ways", default="anew,kept")
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args()
    result = {way: measured(way, options.kills) for way in options.ways.split(",")}
    write_result(result, options.output)
