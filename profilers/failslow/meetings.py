"""The calls of several ranks that belong together, out of their rings."""

from collections.abc import Iterable

from ..shim.recorder import DONE
from ..shim.ring import NOBODY, Entry, Reader
from .lateness import Meeting, Span

Key = tuple[object, ...]


def meetings_of(readers: Iterable[Reader], within: Span) -> list[Meeting]:
    """What the ranks' calls were of some stretch of time, as far as the rings still hold them, in the order of time."""
    meetings: dict[Key, Meeting] = {}
    for reader in readers:
        _collect(reader, within, meetings)
    return sorted(meetings.values(), key=lambda meeting: max(meeting.arrivals_s.values()))


def _collect(reader: Reader, within: Span, meetings: dict[Key, Meeting]) -> None:
    begin_ns, end_ns = (int(at_s * 1e9) for at_s in within)
    called: dict[int, Meeting] = {}
    for entry in reader.all():
        op = str(reader.name(entry.op)["op"])
        if op == DONE:
            if entry.order in called:
                _note_end(called[entry.order], reader.rank, entry)
        elif begin_ns <= entry.at_ns < end_ns:
            key, fresh = _meeting(reader, entry, op)
            meeting = called[entry.number] = meetings.setdefault(key, fresh)
            meeting.arrivals_s[reader.rank] = entry.at_ns / 1e9


def _note_end(meeting: Meeting, rank: int, entry: Entry) -> None:
    meeting.ends_s[rank] = entry.at_ns / 1e9
    if meeting.is_message:
        meeting.waited_s[rank] = entry.bytes / 1e9


def _meeting(reader: Reader, entry: Entry, op: str) -> tuple[Key, Meeting]:
    """What tells it from others, and an empty one."""
    described = reader.name(entry.group)
    group, own, other = str(described["group"]), reader.rank, entry.peer
    if other == NOBODY:
        return (group, entry.order), Meeting(group, tuple(described["ranks"]))
    ends = (own, other) if op == "send" else (other, own)
    link = f"{min(ends)}-{max(ends)}"
    return (group, *ends, entry.tag, entry.order), Meeting(link, ends, is_message=True)
