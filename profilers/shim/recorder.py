"""Notes every communication call that torch makes in this process, whoever makes it.

We listen in the C++ dispatcher, at the key `BackendSelect` of the `c10d::` operators. All calls come by: those of the
functions of `torch.distributed`, of DDP's reducer (which is C++, so wrapped Python functions miss it), of FSDP 1 and 2
and of pipelining, and functional collectives, also out of compiled graphs, for they call the same operators in the end.
The key is in the set of every call, with and without gradients, in inference mode, on every device; torch has no
kernel of its own there for these operators; and it lies below autograd, fake tensors, modes and subclasses of tensors,
so what is only traced is not taken for real. Our kernel notes the call and passes the arguments on to the same one as
before (`redispatch`). Measured: 7 us a call for the way through Python, and as much for the note.

When a call is done is known on CPU tensors: of a collective by the future of its `Work` (12 us more, in gloo's thread);
of a received message, whose work has none, by `Work.wait` in Python. On a GPU calls do not wait for their transfers,
these times would mean nothing, and they are left out; so are CUDA events, the paper's way: nobody could test them.

This file runs in other people's programs: it needs torch and the standard library only. An error in it switches it off
for good, with one line on standard error; the call that it watched goes on.

A rank tells of its calls through a ring in shared memory (`Writer`, `RingReader`): bounded, and its writer waits for
nobody. A ring is a file `rank<RANK>.<PID>.ring`, mapped by both sides, of a head and of records of one size; record n
lies in place n modulo their number, so what is older than that is overwritten. Each record begins and ends with its
number plus 1: a reader that finds another number there came too late (or too early), and knows. Names of operations,
groups and kinds of numbers are written once, as JSON lines, to a file beside it, and records hold their places.
"""

import atexit
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
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


DONE = "done"  # the operation of a record that tells of a call's end
MOST_AWAITED = 64  # received messages whose wait we look out for; those before are forgotten
UNSIGNED = 0xFFFFFFFF  # what fits into a tag
PATIENCE_S = 1.0  # how long the interpreter's end waits for calls that are not done
REST_S = 0.1  # for what gloo's threads still have to do once a call is done


class _What(NamedTuple):
    """An operator: what it is called, where its group and what a rank puts in are among its arguments, and its peer."""

    op: str
    group_at: int
    tensors_at: int
    peer_at: int = NOBODY


WHATS = {
    "allreduce_": _What("all_reduce", 1, 0),
    "allreduce_coalesced_": _What("all_reduce", 1, 0),
    "reduce_": _What("reduce", 1, 0),
    "broadcast_": _What("broadcast", 1, 0),
    "allgather_": _What("all_gather", 2, 1),
    "allgather_coalesced_": _What("all_gather", 2, 1),
    "allgather_into_tensor_coalesced_": _What("all_gather", 2, 1),
    "_allgather_base_": _What("all_gather", 2, 1),
    "reduce_scatter_": _What("reduce_scatter", 2, 1),
    "reduce_scatter_tensor_coalesced_": _What("reduce_scatter", 2, 1),
    "_reduce_scatter_base_": _What("reduce_scatter", 2, 1),
    "gather_": _What("gather", 2, 1),
    "scatter_": _What("scatter", 2, 0),
    "alltoall_": _What("all_to_all", 2, 1),
    "alltoall_base_": _What("all_to_all", 2, 1),
    "barrier": _What("barrier", 1, 0),
    "send": _What("send", 1, 0, 2),
    "recv_": _What("recv", 1, 0, 2),
    "recv_any_source_": _What("recv_any", 1, 0),
}

_running: list[Any] = []  # the recorder and the library that holds its kernels, for as long as the process lives


def start(folder: str, rank: int) -> None:
    """Note this process's calls into a ring in a folder; nothing, if that is done already."""
    if _running:
        return
    recorder = Recorder(Writer(folder, rank))
    _running.extend((recorder, listen(recorder)))
    os.register_at_fork(after_in_child=recorder.stop)
    atexit.register(recorder.settle)


def listen(recorder: "Recorder") -> Any:
    """Let a recorder hear of every call, for as long as what is returned lives."""
    import torch
    from torch.library import Library

    library = Library("c10d", "IMPL", "BackendSelect")  # type: ignore[no-untyped-call]
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    _keep_uncompiled(Recorder._done)
    for name, what in WHATS.items():
        overload = getattr(torch.ops.c10d, name).default
        kernel = _kernel(what, overload._handle.redispatch_boxed, below, recorder)
        _keep_uncompiled(kernel)
        library.impl(name, kernel, with_keyset=True)  # type: ignore[no-untyped-call]
    return library


def _keep_uncompiled(function: Any) -> None:
    """Let torch.compile pass by a function and what it calls: it looks at all Python that runs amid compiled code."""
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    skip = _FrameAction.SKIP
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(skip, skip))


def _kernel(what: _What, redispatch: Callable[..., Any], below: Any, recorder: "Recorder") -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any) -> Any:
        number = recorder.note(what, args)
        result = redispatch(keyset & below, *args)
        if number is not None:
            recorder.follow(number, what, result)
        return result

    return kernel


class Recorder:
    """Writes what is called, and when it is done, into a ring.

    Args:
        writer: the ring.
    """

    def __init__(self, writer: Writer) -> None:
        from torch.distributed import ProcessGroup, Work

        self._writer: Writer | None = writer
        self._group_of, self._work_of = ProcessGroup.unbox, Work.unbox
        self._work_class: Any = Work
        self._ops = {op: writer.place_of(("op", op), op=op) for op in (DONE, *{what.op for what in WHATS.values()})}
        self._groups: dict[str, tuple[int, list[int]]] = {}
        self._dtypes: dict[Any, int] = {}
        self._orders: dict[Any, count[int]] = {}
        self._awaited: dict[int, tuple[Any, int]] = {}
        self._waits_are_seen = False
        self._under_way: set[int] = set()
        self._endless = {"send"}  # operations whose end is not known

    def stop(self) -> None:
        """Note nothing more."""
        self._writer = None

    def settle(self) -> None:
        """Note no more calls, and let those under way be done: nobody may want the interpreter while it goes down."""
        self.stop()
        ends_s = time.monotonic() + PATIENCE_S
        while self._under_way and time.monotonic() < ends_s:
            time.sleep(0.001)
        # Gloo's threads let go of a call's tensors after it is done, for which they take the interpreter's lock; the
        # interpreter kills a thread that wants it while it goes down, and C++ then aborts the process.
        time.sleep(REST_S)

    def note(self, what: _What, args: tuple[Any, ...]) -> int | None:
        """Write a call down.

        Returns:
            Its record's number, if it is worth following to its end.
        """
        writer = self._writer
        if writer is None:
            return None
        try:
            at_ns = time.monotonic_ns()
            first, size = _size_of(args[what.tensors_at])
            if first is None or first.is_meta:
                return None
            group, ranks = self._group(self._group_of(args[what.group_at]))
            op, dtype = self._ops[what.op], self._dtype(first.dtype)
            if what.peer_at == NOBODY:
                is_one_of_some = what.op == "all_reduce" and not first.is_sparse
                place = first.data_ptr() >> 6 & UNSIGNED if is_one_of_some else 0
                number = writer.write(at_ns, size, self._order(group), place, NOBODY, op, group, dtype)
            else:
                peer, tag = ranks[args[what.peer_at]], args[what.peer_at + 1] & UNSIGNED
                number = writer.write(at_ns, size, self._order((group, op, peer, tag)), tag, peer, op, group, dtype)
            return number if first.is_cpu and what.op not in self._endless else None
        except Exception as error:
            self.stop()
            print(f"rtk monitor: it watches no more here: {error!r}", file=sys.stderr)
            return None

    def follow(self, number: int, what: _What, result: Any) -> None:
        """See to it that the end of a call is written down."""
        try:
            work = self._work_of(result[-1] if isinstance(result, tuple) else result)
            if what.op in ("recv", "recv_any"):
                # Look out for the wait for a message. The caller gets the same object as long as we hold it.
                if not self._waits_are_seen:
                    self._waits_are_seen = True
                    self._see_waits()
                self._awaited[id(work)] = (work, number)
                if len(self._awaited) > MOST_AWAITED:
                    del self._awaited[next(iter(self._awaited))]
            else:
                future = work.get_future()
                self._under_way.add(number)
                future.add_done_callback(partial(self._done, number, 0))
        except Exception:
            self._endless.add(what.op)  # not every work has a future (gloo's scattered sums have none)

    def _done(self, number: int, waited_ns: int, _: Any = None) -> None:
        writer = self._writer
        if writer is not None:
            writer.write(time.monotonic_ns(), waited_ns, number, 0, NOBODY, self._ops[DONE])
        self._under_way.discard(number)

    def _see_waits(self) -> None:
        original, awaited = self._work_class.wait, self._awaited

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            _, number = awaited.pop(id(work), (None, None))
            since_ns = time.monotonic_ns()
            result = original(work, *args, **kwargs)
            if number is not None:
                self._done(number, time.monotonic_ns() - since_ns)
            return result

        _keep_uncompiled(wait)
        self._work_class.wait = wait

    def _group(self, group: Any) -> tuple[int, list[int]]:
        name = group.group_name
        known = self._groups.get(name)
        if known is None:
            from torch.distributed import get_process_group_ranks

            ranks = get_process_group_ranks(group)
            place = self._writer.place_of(("group", name), group=name, ranks=ranks) if self._writer else 0
            known = self._groups[name] = (place, ranks)
        return known

    def _dtype(self, dtype: Any) -> int:
        place = self._dtypes.get(dtype)
        if place is None and self._writer is not None:
            name = str(dtype).rpartition(".")[2]
            place = self._dtypes[dtype] = self._writer.place_of(("dtype", name), dtype=name)
        return place or 0

    def _order(self, key: Any) -> int:
        orders = self._orders.get(key)
        if orders is None:
            orders = self._orders.setdefault(key, count())
        return next(orders)


def _size_of(tensors: Any) -> tuple[Any, int]:
    """The first of a tensor, a list of them or a list of such lists, and the bytes of all."""
    if not isinstance(tensors, list):
        return tensors, tensors.numel() * tensors.itemsize
    first, size = None, 0
    for part in tensors:
        one, bytes_ = _size_of(part)
        first, size = one if first is None else first, size + bytes_
    return first, size
