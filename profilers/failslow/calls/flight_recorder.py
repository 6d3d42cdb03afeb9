"""Dumps of PyTorch's Flight Recorder: the last calls of one rank, as a pickle or as JSON, one file a rank.

Torch writes them as `<prefix><rank>` when a job hangs, or on demand by
`torch._C._distributed_c10d._dump_nccl_trace()` (NCCL) and `_dump_fr_trace()` (gloo); the `..._json()` forms have the
same keys. A call's time is that of its start on the CPU (`time_created_ns`); its duration is there with
TORCH_NCCL_ENABLE_TIMING=1 only. Dumps of gloo (torch 2.13) have no messages between two ranks, no groups' ranks and no
durations.

A pickle may run any program when it is loaded; ours may not (plain_pickle.py).
"""

import json
import re
from pathlib import Path
from typing import Any

from .call import LINK, Call, CallLog
from .plain_pickle import unpickled
from .sources import whole_of
from .words import bytes_of, damaged, finite, group_name, plain_op, ranks_of, text_of, whole

KIND = "flight recorder"
_RANK = re.compile(r"(\d+)(\.(json|pkl|pickle|txt|gz))*$")
_PEERS = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")


def read_flight_recorder(path: Path) -> CallLog:
    """The calls in a dump.

    Raises:
        InvalidInputError: the file is damaged, no dump, or a pickle that holds more than data.
    """
    where, data = str(path), whole_of(path)
    document = _parsed(data, where) if data.lstrip()[:1] == b"{" else unpickled(data, where)
    if not isinstance(document, dict):
        raise damaged("the dump is no dictionary", where)
    match = _RANK.search(path.name)
    rank = whole(match[1]) if match else -1
    groups = _groups(document.get("pg_config"))
    calls, members = [], {}
    for place, entry in enumerate(document.get("entries") or []):
        try:
            call, ranks = _call(entry, rank, groups)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise damaged(
                f"the entry lacks {error}, or has it in another form", f"{where}, /entries/{place}"
            ) from error
        calls.append(call)
        members[call.group] = ranks
    calls.sort(key=lambda call: call.t_s)
    return CallLog(where, KIND, rank, tuple(calls), {group: ranks for group, ranks in members.items() if ranks})


def _parsed(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(f"the JSON is damaged or cut short ({error})", where) from error


def _groups(config: Any) -> dict[str, tuple[int, ...]]:
    """The ranks of each group, by its name."""
    known = config.items() if isinstance(config, dict) else ()
    return {str(name): ranks_of(one.get("ranks")) for name, one in known if isinstance(one, dict)}


def _call(entry: dict[str, Any], rank: int, groups: dict[str, tuple[int, ...]]) -> tuple[Call, tuple[int, ...]]:
    name, title = text_of(entry["process_group"][0]), text_of(entry["profiling_name"])
    ranks = groups.get(name, ())
    sizes, dtypes = (entry["input_sizes"], entry.get("input_dtypes", ()))
    if not any(sizes):  # a receive puts nothing in
        sizes, dtypes = entry.get("output_sizes") or [], entry.get("output_dtypes", ())
    dtypes = [dtypes] if isinstance(dtypes, str) else list(dtypes)
    ends = _ends(title, ranks) if entry.get("is_p2p") else None
    took_ms = entry.get("duration_ms")
    call = Call(
        t_s=whole(entry["time_created_ns"]) / 1e9,
        rank=rank,
        op=plain_op(title),
        group=LINK.join(map(str, ends)) if ends else group_name(name, ranks),
        bytes=bytes_of(sizes, dtypes),
        dtype=dtypes[0] if dtypes else "",
        duration_s=finite(took_ms) / 1e3 if took_ms else None,
        number=whole(entry.get("p2p_seq_id" if ends else "collective_seq_id") or -1),
    )
    return call, ends or ranks


def _ends(title: str, ranks: tuple[int, ...]) -> tuple[int, int] | None:
    """The sender and the receiver, from a name such as `nccl:send 0->1` or `nccl:recv 1<-0`, of ranks in the group."""
    match = _PEERS.search(title)
    if match is None:
        return None
    one, other = (ranks[number] if number < len(ranks) else number for number in (whole(match[1]), whole(match[3])))
    return (one, other) if match[2] == LINK else (other, one)
