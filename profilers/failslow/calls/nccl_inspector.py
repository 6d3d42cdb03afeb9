"""What NCCL's Inspector plug-in writes: JSON lines, one an operation that is done, a file or more a process.

`header` says the communicator, the rank in it and how many ranks it has, `coll_perf` (or `p2p_perf`) what was done, how
large and how long; in newer versions a line with the header comes first and holds for those behind it. When an
operation began is known with NCCL_INSPECTOR_DUMP_VERBOSE=1 (`event_trace_ts`); else there is only the time of the dump
that many operations share, from which no iterations are told, but the durations can be compared. Ranks are those in the
communicator: of the whole job's they are the ranks, of others not.
"""

from pathlib import Path
from typing import Any

from ....schemas.errors import InvalidInputError
from .call import LINK, Call, CallLog
from .call_log import rows_of
from .words import finite, plain_op, ranks_up_to, whole

KIND = "nccl inspector"


def read_nccl_inspector(path: Path) -> tuple[CallLog, ...]:
    """The operations of each rank in a file; `t_s` is when they began or, of those of one dump, all the dump's time.

    Raises:
        InvalidInputError: a line is no JSON object, or an operation lacks what every one has.
    """
    calls: dict[int, list[Call]] = {}
    members: dict[str, tuple[int, ...]] = {}
    header: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    for number, row in rows_of(path):
        header, metadata = row.get("header") or header, row.get("metadata") or metadata
        kind = next((kind for kind in ("coll", "p2p") if f"{kind}_perf" in row), None)
        if kind is None:
            continue
        try:
            call = _call(kind, row[f"{kind}_perf"], header, metadata)
            ranks = ranks_up_to(header["n_ranks"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(
                f"the operation lacks {error}, or has it in another form",
                where=f"{path}, line {number}",
                fix="give what NCCL Inspector wrote, from the beginning of the file",
            ) from error
        calls.setdefault(call.rank, []).append(call)
        members[call.group] = ranks if kind == "coll" else ()
    for one in calls.values():
        one.sort(key=lambda call: (call.t_s, call.number))
    known = {group: ranks for group, ranks in members.items() if ranks}
    return tuple(CallLog(str(path), KIND, rank, tuple(calls[rank]), known) for rank in sorted(calls))


def _call(kind: str, done: dict[str, Any], header: dict[str, Any], metadata: dict[str, Any]) -> Call:
    rank, op = whole(header["rank"]), plain_op(str(done[kind]))
    group = str(header["id"])
    if kind == "p2p":
        peer = whole(done["p2p_peer"])
        group = f"{rank}{LINK}{peer}" if op == "send" else f"{peer}{LINK}{rank}"
    began_us = (done.get("event_trace_ts") or {}).get(f"{kind}_start_ts", metadata.get("dump_timestamp_us", 0))
    return Call(
        t_s=finite(began_us) / 1e6,
        rank=rank,
        op=op,
        group=group,
        bytes=whole(done[f"{kind}_msg_size_bytes"]),
        duration_s=finite(done[f"{kind}_exec_time_us"]) / 1e6,
        number=whole(done.get(f"{kind}_sn", -1)),
    )
