"""The ring in shared memory through which a rank tells of its calls: bounded, and its writer waits for nobody.

A ring is a file `rank<RANK>.<PID>.ring`, mapped by both sides, of a head and of records of one size; record n lies in
place n modulo their number, so what is older than that is overwritten. Each record begins and ends with its number plus
1: a reader that finds another number there came too late (or too early), and knows. Names of operations, groups and
kinds of numbers are written once, as JSON lines, to a file beside it, and records hold their places.

This file needs the standard library only, and no other file of the package: it also runs in other people's programs.
"""

import json
import mmap
import os
import struct
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = b"rtkring1"
HEAD = struct.Struct("<8sQQ")  # magic, how many records there is room for, how many were written
WRITTEN = struct.Struct("<Q")
WRITTEN_AT = 16
FIRST_AT = 64
RECORD = struct.Struct("<QQQQIiHHHxxQ")
RECORDS = 65_536  # 3.7 MB a rank
NOBODY = -1


class Entry(NamedTuple):
    """A record: a call, or that a call is done.

    Attributes:
        at_ns: when it was called, or done; nanoseconds of the host's monotonic clock, the same for all its ranks.
        bytes: of the tensors that the call is given first; of a call that is done, the nanoseconds that the
            rank stood waiting for it, as far as that is known.
        order: the number of the call among those of its group (and, from one rank to another, of its two ends and its
            tag), which tells which calls of several ranks belong together; of a call that is done, its `number`.
        tag: of a message between two ranks; of an all-reduce, where in memory its first tensor is, roughly.
        peer: the other rank of a message; or `NOBODY`.
        op, group, dtype: places among the names.
        number: its own, from 0.
    """

    at_ns: int
    bytes: int
    order: int
    tag: int
    peer: int
    op: int
    group: int
    dtype: int
    number: int


class Writer:
    """A rank's end of a ring.

    Args:
        folder: where it is made; it appears there when it is complete.
        rank: the rank that it tells of.
        records: how many it holds.
    """

    def __init__(self, folder: str, rank: int, records: int = RECORDS) -> None:
        name = os.path.join(folder, f"rank{rank}.{os.getpid()}.ring")  # noqa: PTH118  (pathlib is slow to import)
        self._names = open(name + ".names", "a", encoding="utf-8", buffering=1)  # noqa: PTH123, SIM115
        self._places: dict[Any, int] = {}
        with open(name + ".new", "w+b") as file:  # noqa: PTH123
            # Room that is taken now cannot be missing later, when it would end the program (SIGBUS).
            os.posix_fallocate(file.fileno(), 0, FIRST_AT + records * RECORD.size)
            self._memory = mmap.mmap(file.fileno(), 0)
        HEAD.pack_into(self._memory, 0, MAGIC, records, 0)
        os.rename(name + ".new", name)  # noqa: PTH104
        self._records = records
        self._numbers = count()

    def place_of(self, key: Any, **described: Any) -> int:
        """The place of a name; one that is new is written down with what describes it."""
        place = self._places.get(key)
        if place is None:
            place = len(self._places)
            self._names.write(json.dumps({"place": place, **described}) + "\n")
            self._places[key] = place
        return place

    def write(
        self, at_ns: int, size: int, order: int, tag: int, peer: int, op: int, group: int = 0, dtype: int = 0
    ) -> int:
        """Append a record; nothing in it may be wider than its field.

        Returns:
            Its number.
        """
        number = next(self._numbers)  # at once, whatever thread we are in
        place = FIRST_AT + number % self._records * RECORD.size
        RECORD.pack_into(self._memory, place, number + 1, at_ns, size, order, tag, peer, op, group, dtype, number + 1)
        WRITTEN.pack_into(self._memory, WRITTEN_AT, number + 1)
        return number


class RingReader:
    """A reader's end of a ring.

    Args:
        path: the ring's file.

    Attributes:
        rank: whose it is.
        lost: how many records were overwritten before they were read.

    Raises:
        ValueError: the file is no ring.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, self._records, _ = HEAD.unpack_from(self._memory, 0)
        if magic != MAGIC:
            raise ValueError(f"{path} is no ring")
        self.rank = int(path.name.partition(".")[0].removeprefix("rank"))
        self.lost = 0
        self._next = 0
        self._names_path = path.with_name(path.name + ".names")
        self._names: list[dict[str, Any]] = []

    def new(self) -> list[Entry]:
        """The records that were not read yet, in order; none twice."""
        entries = list(self._from(self._next))
        if entries:
            read_to = entries[-1].number + 1
            self.lost += read_to - self._next - len(entries)
            self._next = read_to
        return entries

    def all(self) -> list[Entry]:
        """All records that the ring still holds, whether they were read or not."""
        return list(self._from(0))

    def name(self, place: int) -> dict[str, Any]:
        """What was written down about a name."""
        if place >= len(self._names):
            lines = self._names_path.read_text().splitlines()
            self._names = [json.loads(line) for line in lines]
        return self._names[place]

    def _from(self, first: int) -> Iterator[Entry]:
        (written,) = WRITTEN.unpack_from(self._memory, WRITTEN_AT)
        first = max(first, written - self._records)
        while first < written:
            place = first % self._records
            run = min(self._records - place, written - first)
            data = self._memory[FIRST_AT + place * RECORD.size : FIRST_AT + (place + run) * RECORD.size]
            for number, record in enumerate(RECORD.iter_unpack(data), first):
                if record[0] == record[-1] == number + 1:  # else it is overwritten already
                    yield Entry._make((*record[1:-1], number))
            first += run
