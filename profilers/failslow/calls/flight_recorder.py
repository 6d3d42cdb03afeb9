"""Dumps of PyTorch's Flight Recorder: the last calls of one rank, as a pickle or as JSON, one file a rank.

Torch writes them as `<prefix><rank>` when a job hangs, or on demand by
`torch._C._distributed_c10d._dump_nccl_trace()` (NCCL) and `_dump_fr_trace()` (gloo); the `..._json()` forms have the
same keys. A call's time is that of its start on the CPU (`time_created_ns`); its duration is there with
TORCH_NCCL_ENABLE_TIMING=1 only. Dumps of gloo (torch 2.13) have no messages between two ranks, no groups' ranks and no
durations.

A pickle may run any program when it is loaded. Ours may not: only the pickle's instructions for numbers, text, lists,
tuples and dictionaries are carried out (`_PLAIN`), which is checked before anything is, and no name is ever looked up.
"""

import io
import json
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any, NoReturn

from ....schemas.errors import InvalidInputError
from .call import LINK, Call, CallLog
from .sources import whole_of
from .words import bytes_of, damaged, group_name, plain_op, ranks_of

KIND = "flight recorder"
_PLAIN_WORDS = """
    PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT
    BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES
    BINBYTES8 EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS
    MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET
"""
_PLAIN = frozenset(_PLAIN_WORDS.split())
_RANK = re.compile(r"(\d+)(\.(json|pkl|pickle|txt|gz))*$")
_PEERS = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")


class _Plain(pickle.Unpickler):
    """Knows no names."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def unpickled(data: bytes, where: str) -> Any:
    """What a pickle of plain data holds.

    Args:
        data: the pickle.
        where: it comes from, for messages.

    Raises:
        InvalidInputError: it holds anything else than plain data, or is damaged; then nothing of it was executed.
    """
    try:
        for opcode, argument, _ in pickletools.genops(data):
            is_vast = opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(data)
            if opcode.name not in _PLAIN or is_vast:
                raise InvalidInputError(
                    f"the pickle asks for {opcode.name}, which plain data do not need; nothing of it was executed",
                    where=where,
                    fix="a dump holds only numbers, text, lists and dictionaries: do not trust this file",
                )
        return _Plain(io.BytesIO(data)).load()
    except InvalidInputError:
        raise
    except (ValueError, TypeError, LookupError, EOFError, OverflowError, MemoryError, pickle.UnpicklingError) as error:
        raise damaged(f"the pickle is damaged or cut short ({error})", where) from error


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
    rank = int(match[1]) if match else -1
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
    name, title = str(entry["process_group"][0]), str(entry["profiling_name"])
    ranks = groups.get(name, ())
    sizes, dtypes = (entry["input_sizes"], entry.get("input_dtypes", ()))
    if not any(sizes):  # a receive puts nothing in
        sizes, dtypes = entry.get("output_sizes") or [], entry.get("output_dtypes", ())
    dtypes = [dtypes] if isinstance(dtypes, str) else list(dtypes)
    ends = _ends(title, ranks) if entry.get("is_p2p") else None
    took_ms = entry.get("duration_ms")
    call = Call(
        t_s=int(entry["time_created_ns"]) / 1e9,
        rank=rank,
        op=plain_op(title),
        group=LINK.join(map(str, ends)) if ends else group_name(name, ranks),
        bytes=bytes_of(sizes, dtypes),
        dtype=dtypes[0] if dtypes else "",
        duration_s=float(took_ms) / 1e3 if took_ms else None,
        number=int(entry.get("p2p_seq_id" if ends else "collective_seq_id") or -1),
    )
    return call, ends or ranks


def _ends(title: str, ranks: tuple[int, ...]) -> tuple[int, int] | None:
    """The sender and the receiver, from a name such as `nccl:send 0->1` or `nccl:recv 1<-0`, of ranks in the group."""
    match = _PEERS.search(title)
    if match is None:
        return None
    one, other = (ranks[number] if number < len(ranks) else number for number in (int(match[1]), int(match[3])))
    return (one, other) if match[2] == LINK else (other, one)
