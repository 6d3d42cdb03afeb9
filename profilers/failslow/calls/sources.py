"""Files that are read as a whole, with a limit, and traces of any size, event by event."""

import pickle
import pickletools
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from ....schemas.errors import InvalidInputError
from ....schemas.files import JsonStream, opened
from .comparison import damaged

MOST_BYTES = 256 << 20  # of a file that is read as a whole, and of one part of a document
CHUNK_BYTES = 1 << 20
PEEKED_BYTES = 4096
ODD = (LookupError, TypeError, ValueError, AttributeError)  # what a value of another form than expected raises


def beginning_of(path: Path, most: int) -> bytes:
    """The first bytes of a file; fewer where it is shorter or damaged."""
    data = b""
    with opened(str(path)) as stream, suppress(InvalidInputError):
        while len(data) < most and (part := stream.read1(PEEKED_BYTES)):
            data += part
    return data


def whole_of(path: Path, most: int = MOST_BYTES) -> bytes:
    """All of a file.

    Raises:
        InvalidInputError: it is damaged, or larger than `most`.
    """
    with opened(str(path)) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise InvalidInputError(
            f"the file is larger than {most >> 20} MiB",
            where=str(path),
            fix="record fewer calls (TORCH_FR_BUFFER_SIZE)",
        )
    return data


def read_trace(path: Path, note: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Read a Chrome trace of any size.

    Args:
        path: of the file.
        note: is given every event, one after the other; what it raises about one becomes an error with its place.

    Returns:
        What the trace says beside its events; `distributedInfo` is a mapping in any case.

    Raises:
        InvalidInputError: the file is damaged or no trace, or an event lacks what its kind has.
    """
    with opened(str(path)) as stream:
        chunks = iter(lambda: stream.read(CHUNK_BYTES), b"")
        fix = "record the file again; it is cut short, or no JSON"
        trace = JsonStream(chunks, str(path), most_bytes=MOST_BYTES, fix=fix)
        for place, event in enumerate(trace.items("traceEvents")):
            try:
                note(event)
            except ODD as error:
                raise odd(f"an event lacks {error}", f"{path}, /traceEvents/{place}") from error
    job = trace.rest.get("distributedInfo")
    return trace.rest | {"distributedInfo": job if isinstance(job, dict) else {}}


def odd(what: str, where: str) -> InvalidInputError:
    """The error for a trace that says something in another form than torch's profiler."""
    fix = "give a trace as torch's profiler wrote it"
    return InvalidInputError(f"{what}, or has it in another form", where=where, fix=fix)


# Pickles of plain data: numbers, text, lists, tuples and dictionaries, read without Python's unpickler.
#
# A pickle is a program, and Python's unpickler executes any. Here only the instructions for plain data are known, and
# no name is ever looked up. What comes of them is bounded, too: a pickle may put one list into many places, and that
# one into many others, so that 300 bytes fill any memory once somebody goes through what they say.


MOST_VALUES = 100_000_000  # each place in which a value stands counts
DEEPEST = 100  # as pydantic and JSON's readers have it
_ATOMS = """INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8
    STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8""".split()  # noqa: SIM905 (too many for a list)
_MARK = object()
_NEW: dict[str, Callable[[], Any]] = {
    "MARK": lambda: _MARK,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None}  # of how many values; None: of those behind the mark
_EXTENSIONS = {"APPEND": 1, "SETITEM": 2, "APPENDS": None, "SETITEMS": None}


def unpickled(data: bytes, where: str) -> Any:
    """What a pickle of plain data holds.

    Args:
        data: the pickle.
        where: it comes from, for messages.

    Raises:
        InvalidInputError: it asks for anything else than plain data, is damaged, or unfolds to more than `MOST_VALUES`.
    """
    machine = _PickleMachine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if not machine.does(opcode.name, argument):
                raise InvalidInputError(
                    f"the pickle asks for {opcode.name}, which plain data do not need; nothing of it was executed",
                    where=where,
                    fix="a dump holds only numbers, text, lists and dictionaries: do not trust this file",
                )
        found = machine.top
    except (ValueError, TypeError, LookupError, OverflowError, pickle.UnpicklingError) as error:
        raise damaged(f"the pickle is damaged or cut short ({error})", where) from error
    # Data that unfold to too much, are too deep, or hold themselves are refused.
    known: dict[int, tuple[int, int]] = {}  # how many values each holds, and how deep, by its id
    under_way: set[int] = set()
    stack = [found]
    while stack:
        one = stack[-1]
        if id(one) in known:
            stack.pop()
            continue
        inner = [part for part in _parts(one) if isinstance(part, list | tuple | dict)]
        missing = [part for part in inner if id(part) not in known]
        if missing and id(one) not in under_way:
            under_way.add(id(one))
            stack += missing
            if any(id(part) in under_way for part in missing):
                raise damaged("the pickle has a list or a dictionary that holds itself", where)
            continue
        stack.pop()
        under_way.discard(id(one))
        counts, depths = zip((0, 0), *(known[id(part)] for part in inner), strict=True)
        known[id(one)] = len(_parts(one)) + sum(counts), 1 + max(depths)
        if sum(counts) > MOST_VALUES or max(depths) > DEEPEST:
            what = f"holds more than {MOST_VALUES:,} values, or is deeper than {DEEPEST}"
            raise damaged(f"the pickle {what}, once it is unfolded", where)
    return found


class _PickleMachine:
    """The stack and the memory that a pickle's instructions work on."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memory: dict[int, Any] = {}

    @property
    def top(self) -> Any:
        """The value that was made last."""
        return self._stack[-1]

    def does(self, name: str, argument: Any) -> bool:
        """Carry out an instruction, if it is one of those that plain data need.

        Raises:
            LookupError, TypeError, ValueError: the values that it works on are not there, or are of another kind.
        """
        stack = self._stack
        if name in _ATOMS:
            stack.append(argument)
        elif name in _NEW:
            stack.append(_NEW[name]())
        elif name in _TUPLES:
            stack.append(tuple(self._taken(_TUPLES[name])))
        elif name == "LIST":
            stack.append(self._taken(None))
        elif name == "DICT":
            stack.append(_paired(self._taken(None)))
        elif name in _EXTENSIONS:
            self._extend(self._taken(_EXTENSIONS[name]), is_dict=name.startswith("SET"))
        elif name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            self._memory[len(self._memory) if argument is None else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memory[argument])
        else:
            return name in ("PROTO", "FRAME", "STOP")
        return True

    def _taken(self, count: int | None) -> list[Any]:
        """The last values, or those behind the last mark, taken off the stack."""
        place = len(self._stack) - 1 if count is None else len(self._stack) - count
        while count is None and self._stack[place] is not _MARK:
            place -= 1
        if place < 0:
            raise LookupError("too few values")
        found = self._stack[place + (count is None) :]
        del self._stack[place:]
        return found

    def _extend(self, values: list[Any], is_dict: bool) -> None:
        """Put values into the list or the dictionary that is the last value now."""
        into = self._stack[-1]
        if is_dict and isinstance(into, dict):
            into.update(_paired(values))
        elif not is_dict and isinstance(into, list):
            into.extend(values)
        else:
            raise TypeError("nothing to put values into")


def _paired(values: list[Any]) -> dict[Any, Any]:
    """Keys and values in turn; a key that is no plain number or text would have to be gone through to be found."""
    keys = values[::2]
    if any(isinstance(key, list | tuple | dict) for key in keys):
        raise TypeError("a key is a list, a tuple or a dictionary")
    return dict(zip(keys, values[1::2], strict=True))


def _parts(value: Any) -> Collection[Any]:
    """What a list, a tuple or a dictionary holds; nothing where it is none of them."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
