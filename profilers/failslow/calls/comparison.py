"""Where a slow-down comes from, by the durations of calls: ranks and groups compared with each other (section 4.3).

* A rank that computes longer comes late to a call, in which all others wait: *their* calls take longer, its own do not.
  So what a rank spends in calls in an iteration, less what it spent there when all was well, is compared with what
  the iteration takes longer. Where a rank's calls explain less than half of that, the rank itself does:
  computation, that worker. Where all ranks' calls do, it is the communication.
* Which communication: a transfer's time is that of the rank that waits least. Groups with the same operation, bytes
  and number of ranks are comparable; one whose transfers take over 10 % longer than the median of the others is
  degraded. A group without comparable ones is compared with itself before. Of a group of two ranks, and of a send and
  its receive, we know the link.

The paper compares execution times with the waiting in them, so a late rank degrades its group, and asks in a second
step which rank of the group it is; the median is taken over all groups of a cluster there, over the others here, so
that two groups can be compared as well.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

from ....schemas.detection import Scope
from ....schemas.errors import InvalidInputError
from ....schemas.fields import MOST_WORKERS
from ....schemas.quantities import print_bytes, print_time
from ....schemas.text import with_article
from ..readers.reading import lines_of

# One communication call of one rank: what every reader of call logs gives and what a shim notes of a live job.


Token: TypeAlias = tuple[str, str, int, str]
LINK = "->"  # between the sender's and the receiver's rank, as the group of a point-to-point call


@dataclass(frozen=True, slots=True)
class CommunicationCall:
    """A communication call.

    Attributes:
        t_s: when it was made, in s; by any clock, but always the same one.
        rank: whose call it is; -1: the log does not say.
        op: what it does, in plain small letters: `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `send`, ….
        group: among whom, by a name that means the same on all ranks; `0->1` for a message from rank 0 to rank 1.
        bytes: what one rank puts in.
        dtype: of what it puts in; may be empty.
        duration_s: how long it took on the rank, waiting for others included; None: not measured.
        number: its place among the calls of its group, the same on all ranks of the group; -1: the log does not say.
    """

    t_s: float
    rank: int
    op: str
    group: str
    bytes: int
    dtype: str = ""
    duration_s: float | None = None
    number: int = -1

    @property
    def token(self) -> Token:
        """What makes it the same call again in the next iteration."""
        return (self.op, self.group, self.bytes, self.dtype)


@dataclass(frozen=True, slots=True)
class CallLog:
    """The calls of one rank, out of one file, in the order of time.

    Attributes:
        file: its name as it was given.
        kind: what it was read as.
        rank: whose calls they are; -1: the file does not say.
        calls: as they were made.
        members: the ranks of a group, by its name, as far as the file tells.
        iterations: begin and time of each, in s, where the file says that itself; else empty.
    """

    file: str
    kind: str
    rank: int
    calls: tuple[CommunicationCall, ...]
    members: Mapping[str, tuple[int, ...]]
    iterations: tuple[tuple[float, float], ...] = ()


def link_of(group: str) -> tuple[int, int] | None:
    """The sender and the receiver, if it is the group of a point-to-point call."""
    sender, arrow, receiver = group.partition(LINK)
    return (int(sender), int(receiver)) if arrow and sender.isdigit() and receiver.isdigit() else None


# A call log of one's own: JSON lines `{"t": …, "rank": 0, "op": "all_reduce", "group": "0", "bytes": 4096}`.
#
# `t` is in s or ns, whatever clock it is by; which of them, its size says: beyond `MOST_S` it is ns. Optional are
# `dtype`, `dur_us` (how long the call took, in µs), `seq` (its place among the group's calls) and, of a `send` or
# `recv`,
# `peer`: the other rank, if the group is not `sender->receiver` by itself. One file may hold several ranks.


KIND = "call log"
MOST_S = 1e10  # the year 2286, or 10 s after a host's start in ns
MOST_LINES = 10_000_000  # each of them takes some 200 bytes of memory


def read_call_log(path: Path) -> tuple[CallLog, ...]:
    """The calls of each rank in a file, in the order of ranks.

    Raises:
        InvalidInputError: a line is no call, or has its time in another unit than those before.
    """
    calls: dict[int, list[CommunicationCall]] = {}
    is_ns: bool | None = None
    for number, row in rows_of(path):
        where = f"{path}, line {number}"
        time = _number(row, "t", where)
        if is_ns is not None and is_ns != (time > MOST_S):
            raise InvalidInputError(
                "the time is in another unit than in the lines before: one is in s, the other in ns",
                where=where,
                fix="write all times in s, or all in ns",
            )
        is_ns = time > MOST_S
        call = _call(row, time / 1e9 if is_ns else time, where)
        calls.setdefault(call.rank, []).append(call)
    for one in calls.values():
        one.sort(key=lambda call: call.t_s)
    return tuple(CallLog(str(path), KIND, rank, tuple(calls[rank]), {}) for rank in sorted(calls))


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, with the numbers of their lines; a last line that is cut off is left out.

    Raises:
        InvalidInputError: a line is no object, or there are more than `MOST_LINES`.
    """
    for number, line in enumerate(lines_of(str(path)), start=1):
        if not line.data.strip():
            continue
        if number > MOST_LINES:
            raise InvalidInputError(
                f"the file has more than {MOST_LINES:,} lines", where=str(path), fix="split it, or give a part of it"
            )
        try:
            row = json.loads(line.data)
        except (ValueError, RecursionError) as error:
            if line.is_cut:
                return
            raise _no_object(f"{path}, line {number}") from error
        if not isinstance(row, dict):
            raise _no_object(f"{path}, line {number}")
        yield number, row


def _call(row: dict[str, Any], t_s: float, where: str) -> CommunicationCall:
    rank, size = int(_number(row, "rank", where, -1)), int(_number(row, "bytes", where, 0))
    op, group = row.get("op"), row.get("group", "")
    if not isinstance(op, str) or not isinstance(group, str | int):
        raise InvalidInputError(
            "the call has no operation, or a group that is no name", where=where, fix='write "op" and "group" as texts'
        )
    op = plain_op(op)
    took_us, peer, link = _number(row, "dur_us", where, -1.0), row.get("peer"), None
    if isinstance(peer, int) and op in ("send", "recv"):
        link = f"{rank}{LINK}{peer}" if op == "send" else f"{peer}{LINK}{rank}"
    return CommunicationCall(
        t_s=t_s,
        rank=rank,
        op=op,
        group=link or str(group),
        bytes=size,
        dtype=str(row.get("dtype") or ""),
        duration_s=took_us / 1e6 if took_us >= 0 else None,
        number=int(_number(row, "seq", where, -1)),
    )


def _number(row: dict[str, Any], key: str, where: str, missing: float | None = None) -> float:
    value = row.get(key, missing)
    if value is None and key in row:
        value = missing
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        raise InvalidInputError(
            f"{key!r} is {repr(value)[:40]} instead of a number", where=where, fix=f"write {key} as a number"
        )
    return value


def _no_object(where: str) -> InvalidInputError:
    return InvalidInputError("the line is no JSON object", where=where, fix="write one object a line")


# The words of torch, NCCL and gloo for operations and types of numbers, and those of rtk.


_ENDINGS = re.compile(r"(_base|_into_tensor|_tensor|_coalesced|_single|_v|_)+$")
_SPLIT = re.compile(r"(all|reduce)_?(reduce|gather|scatter|to_?all)")
_SIZES_BYTES = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "uint64": 8, "complexfloat": 8,
    "float": 4, "float32": 4, "int": 4, "int32": 4, "uint32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2, "uint16": 2,
    "complexdouble": 16,
}  # fmt: skip
_RANKS = re.compile(r"\d+")
LARGEST = 2.0**63
MOST_NAMED = 8  # ranks in a group's name


def plain_op(name: str) -> str:
    """`nccl:_all_gather_base`, `AllGather`, `allgather_`: all are `all_gather`."""
    word = name.rpartition(":")[2].strip().partition(" ")[0]
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower().strip("_")
    stem = _ENDINGS.sub("", snake)
    match = _SPLIT.fullmatch(stem)
    return f"{match[1]}_{match[2].replace('toall', 'to_all')}" if match else stem


def size_bytes(dtype: str) -> int:
    """Of one number of that type; 1 where the type is not known."""
    return _SIZES_BYTES.get(dtype.lower().removeprefix("torch."), 1)


def bytes_of(sizes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> int:
    """Of tensors of these sizes; the last type holds for all that have none of their own."""
    known = list(dtypes) or [""]
    pairs = zip(sizes, [*known, *[known[-1]] * len(sizes)], strict=False)
    return whole(sum(prod(map(whole, size)) * size_bytes(dtype) for size, dtype in pairs))


def finite(value: Any) -> float:
    """A number that a file says, such as a time in µs.

    Raises:
        ValueError: it is none, or larger than 64 bits.
        TypeError: it is no number at all.
    """
    if not abs(value if isinstance(value, int) else float(value)) < LARGEST:
        raise ValueError("a number of 64 bits")
    return float(value)


def whole(value: Any) -> int:
    """A whole number that a file says, such as a rank; errors as for `finite`."""
    finite(value)
    return int(value)


def text_of(value: Any) -> str:
    """A name that a file says; a list or a mapping in its place is a TypeError."""
    if not isinstance(value, str | int):
        raise TypeError(f"a text where it has {with_article(type(value).__name__)}")
    return str(value)


def ranks_of(value: object) -> tuple[int, ...]:
    """The ranks in a list, or in its text `[0, 1]`; none where the text leaves some out."""
    if isinstance(value, list | tuple):
        return tuple(rank for rank in value if isinstance(rank, int))
    if not isinstance(value, str) or "..." in value:
        return ()
    return tuple(whole(number) for number in _RANKS.findall(value))


def ranks_up_to(count: Any) -> tuple[int, ...]:
    """So many ranks, from 0 on; errors as for `whole`, also for more than any job has."""
    if whole(count) > MOST_WORKERS:
        raise ValueError(f"{count}, more ranks than {MOST_WORKERS}")
    return tuple(range(whole(count)))


def group_name(name: str, ranks: Sequence[int]) -> str:
    """A name that is the same on all ranks of a group, and another one on those of other groups."""
    if not ranks:
        return name
    shown = ",".join(map(str, ranks[:MOST_NAMED]))
    return f"{name}[{shown}]" if len(ranks) <= MOST_NAMED else f"{name}[{shown},… {len(ranks)} ranks]"


def damaged(what: str, where: str) -> InvalidInputError:
    """The error for a file that is not whole."""
    return InvalidInputError(what, where=where, fix="write the file again; it was cut short, or changed")


APART = 1.1
HALF = 0.5
FEWEST_CALLS = 7
FEWEST_GROUPS = 3

JOB = Scope()
Cluster: TypeAlias = tuple[str, int, str, int]  # operation, bytes, type, ranks


@dataclass(frozen=True, slots=True)
class LogInterval:
    """A stretch of a rank's log.

    Attributes:
        log: of the rank.
        begin_s, end_s: by its clock.
        iteration_s: what an iteration takes in it.
    """

    log: CallLog
    begin_s: float
    end_s: float
    iteration_s: float

    def calls(self) -> Iterator[CommunicationCall]:
        """The calls in it whose duration is known."""
        return (
            call for call in self.log.calls if self.begin_s <= call.t_s < self.end_s and call.duration_s is not None
        )

    def in_calls_s(self) -> float | None:
        """What an iteration spends in calls; None: no durations are known."""
        times_s = [call.duration_s for call in self.calls() if call.duration_s is not None]
        length_s = self.end_s - self.begin_s
        return sum(times_s) / length_s * self.iteration_s if times_s and length_s > 0 else None


@dataclass(frozen=True, slots=True)
class SlowGroup:
    """A group whose transfers take longer than those of comparable ones.

    Attributes:
        group: its name.
        ranks: its members.
        op: the operation.
        bytes: of each rank.
        transfer_s: the median of its transfers.
        usual_s: the median of the comparable ones, or its own before.
        comparable: how many groups it was compared with; 0: with itself before.
    """

    group: str
    ranks: tuple[int, ...]
    op: str
    bytes: int
    transfer_s: float
    usual_s: float
    comparable: int

    @property
    def ratio(self) -> float:
        """How many times as long."""
        return self.transfer_s / self.usual_s

    @property
    def sentence(self) -> str:
        """What was seen."""
        other = f"the median of {self.comparable} comparable" if self.comparable else "its own before"
        return (
            f"{self.op} of {print_bytes(self.bytes)} in {self.group} takes {print_time(self.transfer_s)}, "
            f"{self.ratio:.2f} x {other}"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause, where it is, and what speaks for it."""

    cause: Literal["computation", "communication", "unknown"] = "unknown"
    scope: Scope = JOB
    evidence: tuple[str, ...] = ()


def degraded_groups(
    slow: Sequence[LogInterval], usual: Sequence[LogInterval] = (), fewest: int = 2
) -> tuple[SlowGroup, ...]:
    """The groups that are slower than comparable ones, the slowest first.

    Args:
        slow: the ranks' logs, the stretch in question.
        usual: those of a time when all was well; a group that nobody else is like is compared with itself then.
        fewest: how many comparable groups there must be, itself included, to be compared with others.
    """
    now, before = _transfers(slow), _transfers(usual)
    clusters: dict[Cluster, list[tuple[str, tuple[int, ...], float, Token]]] = defaultdict(list)
    for token, (ranks, transfer_s) in now.items():
        op, group, size, dtype = token
        clusters[op, size, dtype, len(ranks)].append((group, ranks, transfer_s, token))
    found = []
    for (op, size, _, _), groups in clusters.items():
        for group, ranks, transfer_s, token in groups:
            others = [other_s for name, _, other_s, _ in groups if name != group]
            usual_s = median(others) if len(others) >= fewest - 1 and others else before.get(token, ((), 0.0))[1]
            if usual_s > 0 and transfer_s > APART * usual_s:
                count = len(others) if len(others) >= fewest - 1 else 0
                found.append(SlowGroup(group, ranks, op, size, transfer_s, usual_s, count))
    return tuple(sorted(found, key=lambda one: (-one.ratio, one.group)))


def _transfers(spans: Sequence[LogInterval]) -> dict[Token, tuple[tuple[int, ...], float]]:
    """The ranks and the transfer time of each kind of call: the median of the rank that waits least."""
    times_s: dict[Token, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    members: dict[str, tuple[int, ...]] = {}
    for span in spans:
        members.update(span.log.members)
        for call in span.calls():
            op, group, size, dtype = call.token
            op = "send" if op == "recv" and link_of(group) else op  # a message's send and its receive are one
            times_s[op, group, size, dtype][span.log.rank].append(call.duration_s or 0.0)
    transfers = {}
    for token, ranks in times_s.items():
        known = {rank: one for rank, one in ranks.items() if len(one) >= FEWEST_CALLS}
        if known:
            of_group = members.get(token[1]) or link_of(token[1]) or tuple(sorted(ranks))
            transfers[token] = (of_group, min(median(one) for one in known.values()))
    return transfers


def cause_of(slow: Sequence[LogInterval], usual: Sequence[LogInterval]) -> Verdict:
    """Where a slow-down comes from.

    Args:
        slow: the slow stretch of each rank's log, as many logs as there are.
        usual: that of the same ranks when all was well; empty: they were always slow.
    """
    later = _later(slow, usual)
    if not later:
        return Verdict(evidence=("no durations of calls are known, so the cause is not either",))
    to_blame = [rank for rank, (in_calls_s, extra_s) in later.items() if in_calls_s < HALF * extra_s]
    words = tuple(
        f"rank {rank}: {_signed(extra_s)} an iteration, {_signed(in_calls_s)} of it in calls"
        for rank, (in_calls_s, extra_s) in sorted(later.items())[:MOST_NAMED]
    )
    if len(to_blame) == len(later) and len(later) > 1:
        return Verdict("computation", Scope(), ("all ranks spend the time outside of calls", *words))
    if to_blame:
        waits_s = [in_calls_s for rank, (in_calls_s, _) in later.items() if rank not in to_blame]
        if waits_s:
            words = (f"{len(waits_s)} other ranks wait {print_time(median(waits_s))} longer in calls", *words)
        return Verdict("computation", Scope("worker", tuple(f"rank {rank}" for rank in sorted(to_blame))), words)
    degraded = degraded_groups(slow, usual)
    if len(later) == 1 and not degraded:
        return Verdict(evidence=(*words, "one rank's log does not tell slow transfers from others that are late"))
    return Verdict("communication", _scope_of(degraded), (*(one.sentence for one in degraded[:MOST_NAMED]), *words))


def _signed(time_s: float) -> str:
    return f"{'+' if time_s >= 0 else ''}{print_time(time_s)}"


def _later(slow: Sequence[LogInterval], usual: Sequence[LogInterval]) -> dict[int, tuple[float, float]]:
    """By how much an iteration's calls, and the iteration as a whole, take longer than usual, in s, on each rank."""
    before = {span.log.rank: span for span in usual}
    found = {}
    for span in slow:
        now_s = span.in_calls_s()
        one = before.get(span.log.rank)
        before_s = one.in_calls_s() if one else None
        if now_s is not None and one is not None and before_s is not None:
            found[span.log.rank] = (now_s - before_s, span.iteration_s - one.iteration_s)
    return found


def _scope_of(degraded: Sequence[SlowGroup]) -> Scope:
    """The link, if the slowest of all belongs to two ranks; else the groups."""
    if not degraded:
        return Scope()
    worst = degraded[0]
    alike = [one for one in degraded if len(one.ranks) == len(worst.ranks)]
    if len(worst.ranks) == 2:
        return Scope("link", _unique(alike, lambda one: "-".join(map(str, sorted(one.ranks)))))
    return Scope("group", _unique(alike, lambda one: one.group))


def _unique(degraded: Sequence[SlowGroup], name: Callable[[SlowGroup], str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name(one) for one in degraded))[:MOST_NAMED]
