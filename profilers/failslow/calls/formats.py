"""Files of communication calls: which they are, and what is slow in them. All files of one call are one job's ranks.

Files are read as a whole, with a limit, and traces of any size event by event.
"""

import json
import pickle
import pickletools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from ....schemas.detection import Episode, FailSlow, FileFindings, Scope
from ....schemas.errors import InvalidInputError
from ....schemas.files import JsonStream, opened
from ..tracker import SHORTEST, Mode, Tracker
from .comparison import (
    FEWEST_GROUPS,
    LINK,
    CallLog,
    CommunicationCall,
    LogInterval,
    bytes_of,
    cause_of,
    damaged,
    degraded_groups,
    finite,
    group_name,
    plain_op,
    ranks_of,
    ranks_up_to,
    read_call_log,
    rows_of,
    size_bytes,
    text_of,
    whole,
)
from .iterations import FEWEST_PERIODS, MOST, LoggedIteration, Periods

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


SNIFFED_BYTES = 256 << 10
_PICKLE = b"\x80"
_INSPECTED = ("coll_perf", "p2p_perf", "dump_stats")

Reader = Callable[[Path], tuple[CallLog, ...]]


@dataclass(frozen=True)
class Followed:
    """A rank's log, its iterations, and when it was slow.

    Attributes:
        log: the calls.
        name: of the file, and of the rank where there are several in it.
        iterations: of the job, as this rank's calls tell them.
        episodes: what is slow.
        usual_s: what an iteration takes when nothing is; None: too few were seen.
    """

    log: CallLog
    name: str
    iterations: tuple[LoggedIteration, ...]
    episodes: tuple[Episode, ...]
    usual_s: float | None


def is_call_file(path: Path) -> bool:
    """Whether a file is a call log, a Flight Recorder dump, a trace, or of NCCL Inspector; by its beginning."""
    try:
        return _reader_of(beginning_of(path, SNIFFED_BYTES)) is not None
    except InvalidInputError:
        return False


def _reader_of(head: bytes) -> Reader | None:
    """Who reads a file that begins so."""
    if head.startswith(_PICKLE):
        return lambda path: (read_flight_recorder(path),)
    text = head.lstrip()
    if not text.startswith((b"{", b"[")):
        return None
    if b'"traceEvents"' in text or (text[:1] == b"[" and b'"ph"' in text):
        return lambda path: (read_kineto(path),)
    try:
        row = json.loads(text.partition(b"\n")[0])
    except (ValueError, RecursionError):
        row = {}
    row = row if isinstance(row, dict) else {}
    if any(key in row for key in _INSPECTED):
        return read_nccl_inspector
    if "op" in row and "t" in row:
        return read_call_log
    if b'"collective_seq_id"' in text or b'"pg_status"' in text:
        return lambda path: (read_flight_recorder(path),)
    return None


def findings_of(paths: Sequence[Path], mode: Mode = "robust", shortest: int = SHORTEST) -> tuple[FileFindings, ...]:
    """What is slow in the logs of a job's ranks.

    Args:
        paths: one file a rank, or one with several ranks.
        mode: how periods are found, and series followed.
        shortest: how many slow iterations it takes to confirm.

    Returns:
        One a rank, in the order of the files.

    Raises:
        InvalidInputError: a file is damaged, of no known kind, a pickle with more in it than data, or has no calls
            that repeat themselves.
    """
    followed = [one for path in paths for one in _followed(path, mode, shortest)]
    findings = []
    for one in followed:
        events = tuple(_event(episode, one, followed) for episode in one.episodes) or _always_slow(one, followed)
        findings.append(FileFindings(one.name, one.log.kind, len(one.iterations), one.usual_s, events))
    return tuple(findings)


def _followed(path: Path, mode: Mode, shortest: int) -> list[Followed]:
    reader = _reader_of(beginning_of(path, SNIFFED_BYTES))
    if reader is None:
        raise InvalidInputError(
            "the file is none of communication calls",
            where=str(path),
            fix="give a call log, a Flight Recorder dump, a trace of torch's profiler, or what NCCL Inspector wrote",
        )
    logs = reader(path)
    if not any(log.calls for log in logs):
        raise InvalidInputError("there are no communication calls in the file", where=str(path), fix="record some")
    several = len(logs) > 1
    return [_follow(log, f"{path}, rank {log.rank}" if several else str(path), mode, shortest) for log in logs]


def _follow(log: CallLog, name: str, mode: Mode, shortest: int) -> Followed:
    """Find the iterations, and what is slow; a phase of other calls is a series of its own."""
    iterations = iterations_of(log, mode)
    if not iterations and not (
        log.kind == NCCL_INSPECTOR and (2 * len({call.t_s for call in log.calls}) <= len(log.calls))
    ):
        raise InvalidInputError(
            f"no period found in {len(log.calls)} calls",
            where=name,
            fix=f"give a log of at least {FEWEST_PERIODS} iterations that make the same calls (a larger "
            "TORCH_FR_BUFFER_SIZE), or iteration times",
        )
    series: dict[int, list[int]] = defaultdict(list)
    for place, one in enumerate(iterations):
        series[one.phase].append(place)
    episodes: list[Episode] = []
    usual_s: float | None = None
    for places in sorted(series.values(), key=len):
        tracker = Tracker(mode, shortest)
        for place in places:
            tracker.note(iterations[place].time_s)
        tracker.finish()
        usual_s = tracker.usual_s or usual_s
        episodes += [_moved(one, places) for one in tracker.episodes if one.confirmed is not None]
    return Followed(log, name, iterations, tuple(sorted(episodes, key=lambda one: one.onset)), usual_s)


def iterations_of(log: CallLog, mode: Mode = "robust") -> tuple[LoggedIteration, ...]:
    """The iterations of a log: as it says itself, or else as its calls repeat themselves."""
    if len(log.iterations) >= FEWEST_PERIODS:
        return tuple(LoggedIteration(0, begin_s, time_s) for begin_s, time_s in log.iterations if time_s > 0)
    periods = Periods(mode, min(len(log.calls), MOST))
    found = [one for call in log.calls for one in periods.note(call)]
    return (*found, *periods.finish())


def _moved(episode: Episode, places: Sequence[int]) -> Episode:
    """An episode of a series whose samples stand at these places of another one."""

    def moved(place: int | None) -> int | None:
        return None if place is None else places[place] if place < len(places) else places[-1] + 1

    onset = places[episode.onset]
    return Episode(onset, moved(episode.provisional), moved(episode.confirmed), moved(episode.relief), episode.severity)


def _event(episode: Episode, one: Followed, job: Sequence[Followed]) -> FailSlow:
    slow, usual = [], []
    for other in job:
        slow.append(_span(other, one, episode.onset, episode.relief))
        # The iterations between the episode and the one before it; those after it, where there are none before.
        ends = [other.relief for other in one.episodes if other.relief is not None and other.relief <= episode.onset]
        begin = max(ends, default=0)
        if episode.onset > begin or episode.relief is None:
            before = begin, episode.onset
        else:
            nexts = [other.onset for other in one.episodes if other.onset >= episode.relief]
            before = episode.relief, min(nexts, default=len(one.iterations))
        usual.append(_span(other, one, *before))
    verdict = cause_of([span for span in slow if span], [span for span in usual if span])
    return FailSlow.of(episode, verdict.cause, verdict.scope, verdict.evidence)


def _span(other: Followed, one: Followed, begin: int, end: int | None) -> LogInterval | None:
    """The stretch of another rank's log that belongs to some iterations of one rank's; None: there is none."""
    iterations = one.iterations[begin:end]
    if not iterations or not other.log.calls:
        return None
    first_s, last_s = other.log.calls[0].t_s, other.log.calls[-1].t_s
    overlaps = first_s <= one.log.calls[-1].t_s and one.log.calls[0].t_s <= last_s
    apart_s = 0.0 if overlaps else first_s - one.log.calls[0].t_s
    begin_s = iterations[0].begin_s + apart_s
    end_s = iterations[-1].begin_s + iterations[-1].time_s + apart_s
    return LogInterval(other.log, begin_s, end_s, median(iteration.time_s for iteration in iterations))


def _always_slow(one: Followed, job: Sequence[Followed]) -> tuple[FailSlow, ...]:
    """The group of a rank that is slower than comparable ones all the time, if nothing else is known to be slow."""
    if any(other.episodes for other in job):
        return ()
    spans = [LogInterval(other.log, other.log.calls[0].t_s, float("inf"), 0.0) for other in job if other.log.calls]
    mine = {call.group for call in one.log.calls}
    found = [group for group in degraded_groups(spans, fewest=FEWEST_GROUPS) if group.group in mine]
    if not found:
        return ()
    group = found[0]
    episode = Episode(0, None, max(len(one.iterations) - 1, 0), None, group.ratio)
    is_link = len(group.ranks) == 2
    name = "-".join(map(str, sorted(group.ranks))) if is_link else group.group
    scope = Scope("link" if is_link else "group", (name,))
    return (FailSlow.of(episode, "communication", scope, (group.sentence, "all the time")),)


# Dumps of PyTorch's Flight Recorder: the last calls of one rank, as a pickle or as JSON, one file a rank.
#
# Torch writes them as `<prefix><rank>` when a job hangs, or on demand by
# `torch._C._distributed_c10d._dump_nccl_trace()` (NCCL) and `_dump_fr_trace()` (gloo); the `..._json()` forms have the
# same keys. A call's time is that of its start on the CPU (`time_created_ns`); its duration is there with
# TORCH_NCCL_ENABLE_TIMING=1 only. Dumps of gloo (torch 2.13) have no messages between two ranks, no groups' ranks and
# no
# durations.
#
# A pickle may run any program when it is loaded; ours may not.


FLIGHT_RECORDER = "flight recorder"
_RANK = re.compile(r"(\d+)(\.(json|pkl|pickle|txt|gz))*$")
_PEERS = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")


def read_flight_recorder(path: Path) -> CallLog:
    """The calls in a dump.

    Raises:
        InvalidInputError: the file is damaged, no dump, or a pickle that holds more than data.
    """
    where, data = str(path), whole_of(path)
    try:
        document = json.loads(data) if data.lstrip()[:1] == b"{" else unpickled(data, where)
    except (ValueError, RecursionError) as error:
        raise damaged(f"the JSON is damaged or cut short ({error})", where) from error
    if not isinstance(document, dict):
        raise damaged("the dump is no dictionary", where)
    match = _RANK.search(path.name)
    rank = whole(match[1]) if match else -1
    config = document.get("pg_config")
    known = config.items() if isinstance(config, dict) else ()
    groups = {str(name): ranks_of(one.get("ranks")) for name, one in known if isinstance(one, dict)}
    calls, members = [], {}
    for place, entry in enumerate(document.get("entries") or []):
        try:
            call, ranks = _recorded_call(entry, rank, groups)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise damaged(
                f"the entry lacks {error}, or has it in another form", f"{where}, /entries/{place}"
            ) from error
        calls.append(call)
        members[call.group] = ranks
    calls.sort(key=lambda call: call.t_s)
    return CallLog(
        where, FLIGHT_RECORDER, rank, tuple(calls), {group: ranks for group, ranks in members.items() if ranks}
    )


def _recorded_call(
    entry: dict[str, Any], rank: int, groups: dict[str, tuple[int, ...]]
) -> tuple[CommunicationCall, tuple[int, ...]]:
    name, title = text_of(entry["process_group"][0]), text_of(entry["profiling_name"])
    ranks = groups.get(name, ())
    sizes, dtypes = (entry["input_sizes"], entry.get("input_dtypes", ()))
    if not any(sizes):  # a receive puts nothing in
        sizes, dtypes = entry.get("output_sizes") or [], entry.get("output_dtypes", ())
    dtypes = [dtypes] if isinstance(dtypes, str) else list(dtypes)
    ends, match = None, _PEERS.search(title) if entry.get("is_p2p") else None
    if match is not None:  # `nccl:send 0->1` or `nccl:recv 1<-0`, of ranks in the group
        one, other = (ranks[number] if number < len(ranks) else number for number in map(whole, (match[1], match[3])))
        ends = (one, other) if match[2] == LINK else (other, one)
    took_ms = entry.get("duration_ms")
    call = CommunicationCall(
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


# Traces of PyTorch's profiler (Kineto), which are Chrome traces: `.json`, `.json.gz`, one file a rank.
#
# Calls are, in this order, whatever there is: NCCL's kernels (their arguments say what they do), gloo's own annotations
# (`gloo:all_reduce`; what gloo is doing, in its thread), calls of `record_param_comms` or of `c10d::…` on the CPU.
# Where the training loop has said `profiler.step()` with a schedule, `ProfilerStep#N` are the iterations, and no period
# is needed.
#
# Of a file of any size only the calls are kept: the events are read one after the other.


KINETO = "kineto trace"
STEP = "ProfilerStep#"
COMMS = "record_param_comms"


@dataclass
class _CommunicationEvents:
    """The events of a trace that matter: those of NCCL's kernels, of gloo, of the CPU's calls, and iterations."""

    kernels: list[dict[str, Any]] = field(default_factory=list)
    gloo: list[dict[str, Any]] = field(default_factory=list)
    comms: list[dict[str, Any]] = field(default_factory=list)
    c10d: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)

    def note(self, event: dict[str, Any]) -> None:
        """An event of the trace."""
        if event.get("ph") != "X" or "ts" not in event:
            return
        name, category = str(event.get("name", "")), event.get("cat")
        if category == "kernel" and "nccl" in name.lower():
            self.kernels.append(event)
        elif category == "user_annotation" and name.startswith(STEP):
            self.steps[whole(name.removeprefix(STEP))] = (finite(event["ts"]) / 1e6, finite(event["dur"]) / 1e6)
        elif category == "user_annotation" and name.startswith("gloo:"):
            self.gloo.append(event)
        elif category == "cpu_op" and name == COMMS:
            self.comms.append(event)
        elif category == "cpu_op" and name.startswith("c10d::"):
            self.c10d.append(event)


def read_kineto(path: Path) -> CallLog:
    """The calls of a trace.

    Raises:
        InvalidInputError: the file is damaged or no trace, or an event lacks what its kind has.
    """
    seen = _CommunicationEvents()
    rest = read_trace(path, seen.note)
    job = rest["distributedInfo"]
    rank = job.get("rank")
    rank = rank if isinstance(rank, int) else -1
    known = (one for one in job.get("pg_config") or [] if isinstance(one, dict))
    groups = {str(one.get("pg_name")): ranks_of(one.get("ranks")) for one in known}
    try:
        base_s = finite(rest.get("baseTimeNanoseconds") or 0) / 1e9
        found = sorted(_calls(seen, rank, base_s, groups), key=lambda one: one[0].t_s)
    except ODD as error:
        raise odd(f"an event lacks {error}", str(path)) from error
    members = {call.group: ranks for call, ranks in found if ranks}
    steps = tuple((base_s + begin_s, time_s) for _, (begin_s, time_s) in sorted(seen.steps.items()))
    return CallLog(str(path), KINETO, rank, tuple(call for call, _ in found), members, steps)


Found: TypeAlias = tuple[CommunicationCall, tuple[int, ...]]  # a call, and its group's ranks


def _calls(seen: _CommunicationEvents, rank: int, base_s: float, groups: dict[str, tuple[int, ...]]) -> Iterator[Found]:
    for event in seen.kernels or seen.gloo or seen.comms or seen.c10d:
        arguments = event.get("args") or {}
        at_s = base_s + finite(event["ts"]) / 1e6
        if event.get("cat") == "kernel" or event["name"] == COMMS:
            took_s = finite(event["dur"]) / 1e6 if event.get("cat") == "kernel" else None
            yield _of_nccl(event["name"], arguments, rank, at_s, took_s, groups)
        else:
            took_s = finite(event["dur"]) / 1e6 if event.get("cat") == "user_annotation" else None
            # A call of which only the tensors are known.
            sizes: list[list[int]] = []
            dtypes: list[str] = []
            for size, dtype in zip(arguments.get("Input Dims") or [], arguments.get("Input type") or [], strict=False):
                tensors = size if size and isinstance(size[0], list) else [size] if size else []
                sizes += tensors
                dtypes += [dtype if dtype != "TensorList" else ""] * len(tensors)
            known = next((dtype for dtype in dtypes if dtype), "")
            yield (
                CommunicationCall(at_s, rank, plain_op(event["name"]), "", bytes_of(sizes, dtypes), known, took_s),
                (),
            )


def _of_nccl(
    name: str,
    arguments: dict[str, Any],
    rank: int,
    at_s: float,
    took_s: float | None,
    groups: dict[str, tuple[int, ...]],
) -> Found:
    """A call with the arguments that torch gives to NCCL's kernels; those of older versions have none."""
    # `ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)` is an AllReduce.
    kernel = name.removeprefix("ncclDevKernel_").removeprefix("ncclKernel_").partition("_")[0].partition("(")[0]
    op = plain_op(str(arguments.get("Collective name") or kernel))
    group, dtype = str(arguments.get("Process Group Name", "")), str(arguments.get("dtype", ""))
    ranks = groups.get(group) or ranks_of(arguments.get("Process Group Ranks"))
    ends = None
    if "Dst Rank" in arguments:
        ends = (rank, whole(arguments["Dst Rank"]))
    elif "Src Rank" in arguments:
        ends = (whole(arguments["Src Rank"]), rank)
    size = max(whole(arguments.get("In msg nelems") or 0), 0) * size_bytes(dtype)
    title = LINK.join(map(str, ends)) if ends else group_name(group, ranks)
    return CommunicationCall(at_s, rank, op, title, size, dtype, took_s, whole(arguments.get("Seq", -1))), ends or ranks


# What NCCL's Inspector plug-in writes: JSON lines, one an operation that is done, a file or more a process.
#
# `header` says the communicator, the rank in it and how many ranks it has, `coll_perf` (or `p2p_perf`) what was done,
# how
# large and how long; in newer versions a line with the header comes first and holds for those behind it. When an
# operation began is known with NCCL_INSPECTOR_DUMP_VERBOSE=1 (`event_trace_ts`); else there is only the time of the
# dump
# that many operations share, from which no iterations are told, but the durations can be compared. Ranks are those in
# the
# communicator: of the whole job's they are the ranks, of others not.


NCCL_INSPECTOR = "nccl inspector"


def read_nccl_inspector(path: Path) -> tuple[CallLog, ...]:
    """The operations of each rank in a file; `t_s` is when they began or, of those of one dump, all the dump's time.

    Raises:
        InvalidInputError: a line is no JSON object, or an operation lacks what every one has.
    """
    calls: dict[int, list[CommunicationCall]] = {}
    members: dict[str, tuple[int, ...]] = {}
    header: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    for number, row in rows_of(path):
        header, metadata = row.get("header") or header, row.get("metadata") or metadata
        kind = next((kind for kind in ("coll", "p2p") if f"{kind}_perf" in row), None)
        if kind is None:
            continue
        try:
            call = _inspected_call(kind, row[f"{kind}_perf"], header, metadata)
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
    return tuple(CallLog(str(path), NCCL_INSPECTOR, rank, tuple(calls[rank]), known) for rank in sorted(calls))


def _inspected_call(
    kind: str, done: dict[str, Any], header: dict[str, Any], metadata: dict[str, Any]
) -> CommunicationCall:
    rank, op = whole(header["rank"]), plain_op(str(done[kind]))
    group = str(header["id"])
    if kind == "p2p":
        peer = whole(done["p2p_peer"])
        group = f"{rank}{LINK}{peer}" if op == "send" else f"{peer}{LINK}{rank}"
    began_us = (done.get("event_trace_ts") or {}).get(f"{kind}_start_ts", metadata.get("dump_timestamp_us", 0))
    return CommunicationCall(
        t_s=finite(began_us) / 1e6,
        rank=rank,
        op=op,
        group=group,
        bytes=whole(done[f"{kind}_msg_size_bytes"]),
        duration_s=finite(done[f"{kind}_exec_time_us"]) / 1e6,
        number=whole(done.get(f"{kind}_sn", -1)),
    )
