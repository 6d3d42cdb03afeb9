"""nvidia-resiliency-ext: the events of its launcher's cycles (shared_utils/profiling.py, 0.5 and later).

`  - Cycle: 1 Event: rendezvous_completed Node: n1_30052_0 Rank: None Time: 2026-11-27 15:23:57.483 UTC`
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from ...failslow.readers.stamps import LineClock
from ..happenings import Happening
from .reader import HappeningReader, LineContext, passed_s, text_of, unreadable_line

_EVENT = re.compile(rb"Cycle: (?:\d{1,9}|Unknown) Event: (\w+) Node: (\S+) Rank: (\S+) Time: ([-0-9: .]+UTC)")
_NODE = re.compile(r"_\d+_\d+$")  # the process and a counter, behind the host's name


class CycleEvents(HappeningReader):
    """Events of nodes: a failure that was detected, workers ended, rendezvous and start of workers from end to end.

    They are read beside any program's lines, for the launcher writes into the same log. A rendezvous takes from its
    node's start of it to its completion; workers have started when their completion says so. `failure_detected` is
    told as `detected`: what has failed stands in other lines.
    """

    NAME: ClassVar[str] = "nvrx"
    MARKS: ClassVar[tuple[bytes, ...]] = (b" Event: ",)

    def __init__(self, clock: LineClock) -> None:
        super().__init__(clock)
        self._begun_s: dict[str, float] = {}  # the rendezvous of each node

    def read(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        """What a line tells."""
        match = _EVENT.search(line)
        if match is None:
            if b"Cycle: " in line:
                raise unreadable_line("an event of a cycle is cut off or written over")
            return
        name, time_s = text_of(match[1]).lower(), self.clock.of(match[4])
        node = _NODE.sub("", text_of(match[2]).strip("'\""))
        if name == "failure_detected":
            yield Happening("detected", time_s, around.place, ranks=(node,), cause="failure detected by the launcher")
        elif name == "rendezvous_started" and time_s is not None:
            self._begun_s[node] = time_s
        elif name == "rendezvous_completed":
            took_s = passed_s(self._begun_s.pop(node, None), time_s)
            yield Happening("rendezvous", time_s, around.place, took_s, ranks=(node,))
        elif name == "worker_start_started":
            yield Happening("start", time_s, around.place, ranks=(node,), cause="nvidia-resiliency-ext")
        elif name in ("worker_start_completed", "worker_terminated"):
            yield Happening("other", time_s, around.place, ranks=(node,), cause=name.replace("_", " "))
