"""Logs of one job as one sequence of happenings: files put in order, ranks that say the same heard once."""

import heapq
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, tzinfo
from itertools import count as counting
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import NamedTuple

from ....schemas.errors import InvalidInputError
from ....schemas.files import STANDARD_STREAM, source_of
from ....schemas.text import joined
from ...failslow.readers.stamps import LineClock
from ..happenings import Happening
from ..log_count import LogCount
from .blocks import blocks_of
from .echoes import heard_once
from .kubernetes import read_kubernetes_events
from .scheduler import kind_of_document
from .slurm import read_sacct
from .stream import READERS, LogStream

_ROTATED = re.compile(r"(.+?)[.-](\d{1,3}|\d{8}|\d{4}-\d\d-\d\d(?:[-_T.]?\d{2,6})?)")
_AT_ONCE_S = 60.0  # files that begin so close to each other are those of several processes
_MOST_OPEN = 200  # files at a time
_MOST_LEADING = 1024  # happenings without a time behind a start, to which a later one gives theirs


def read_happenings(
    paths: Sequence[str],
    count: LogCount | None = None,
    *,
    format_name: str | None = None,
    patterns: Sequence[str] = (),
    sacct: str | None = None,
    kubernetes: str | None = None,
    zone: tzinfo = UTC,
) -> Iterator[Happening]:
    """What the logs of a job tell, in the order of their clocks; in memory that does not grow with them.

    * Files whose names differ only in a number or a date at the end (`.1`, `.2.gz`, `-20250601`) are one log in pieces:
      by the clocks at their beginnings, or the highest number first where they have none. Where they begin at once,
      they are logs of several processes.
    * Other files are merged by their clocks. What has no clock stays where it is in its log; a log without any clock
      comes whole, in the order of `paths`. A clock that was put back is left as it is.
    * What several ranks say of one iteration, checkpoint or start is heard once, from the first of them.

    Args:
        paths: logs, and what sacct and kubectl print, which is recognised. "-" is standard input.
        count: hears of lines, formats, and what was odd.
        format_name: of the logs, one of `READERS`; None: it is recognised, log by log.
        patterns: a user's own expressions (`readers/patterns.py`).
        sacct: a file with what `sacct --json` or `sacct -P` has printed.
        kubernetes: a file with what `kubectl get events -o json` has printed.
        zone: of stamps that name none.

    Raises:
        InvalidInputError: a file cannot be read, or is no text; no file tells of a single iteration.
    """
    count = count if count is not None else LogCount()
    if format_name is not None and format_name not in READERS:
        raise InvalidInputError(f"no format is named {format_name}", fix=f"known are {', '.join(READERS)}")
    logs = []
    sources: list[_LogSource] = []
    for path in paths:
        if (kind := kind_of_document(path)) is not None:
            sources.append(_LogSource(path, [path], kind, -inf))
        else:
            logs.append(path)
    sources += [
        _LogSource(path, [path], kind, -inf) for kind, path in (("sacct", sacct), ("kubernetes", kubernetes)) if path
    ]
    sources += _logs_of(logs, count, zone)
    has_iterations = False
    for told in heard_once(_merged(sources, count, zone, format_name, patterns)):
        has_iterations = has_iterations or told.kind == "iteration"
        yield told
    if not has_iterations:
        raise _nothing_told([source_of(path) for path in paths], count)


def _nothing_told(sources: Sequence[str], count: LogCount) -> InvalidInputError:
    were = "line was" if count.lines == 1 else "lines were"
    words = f"{count.lines:,} {were} read, {count.telling:,} told of something else"
    if count.garbled:
        words += f", {count.garbled:,} begin to tell and cannot be read ({'; '.join(count.words()[:3])})"
    return InvalidInputError(
        f"no line tells of an iteration: {words}",
        where=joined(sources),
        fix=f"known are {', '.join(READERS)}; --format NAME says which one it is, and --pattern how its lines look",
    )


class _LogSource(NamedTuple):
    """What is read from its beginning to its end: a log, in one or several files, or a document."""

    name: str
    files: list[str]
    kind: str  # "log", "sacct" or "kubernetes"
    begin_s: float  # by the first stamp in it; -inf where there is none


def _logs_of(paths: Sequence[str], count: LogCount, zone: tzinfo) -> list[_LogSource]:
    """The logs among files, of which some may be pieces of one."""
    begin_s = {path: _beginning_s(path, count, zone) for path in paths}
    groups: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        name = path.removesuffix(".gz")
        rotated = _ROTATED.fullmatch(name)
        groups.setdefault(rotated[1] if rotated else name, []).append(path)
    sources = []
    for stem, files in groups.items():
        times = sorted(begin_s[file] for file in files)
        is_at_once = any(later - before < _AT_ONCE_S for before, later in pairwise(times) if before > -inf)
        if len(files) > 1 and not is_at_once:
            ordered = sorted(files, key=lambda file: begin_s[file]) if times[0] > -inf else _by_number(files)
            _note_missing(stem, files, count)
            sources.append(_LogSource(stem, ordered, "log", times[0]))
        else:
            sources += [_LogSource(file, [file], "log", begin_s[file]) for file in files]
    return sources


def _note_missing(stem: str, files: Sequence[str], count: LogCount) -> None:
    """Say which pieces of a log that was rotated lie between those that are given, and are not."""
    matches = [_ROTATED.fullmatch(file.removesuffix(".gz")) for file in files]
    numbers = {0 if match is None else int(match[2]) for match in matches if match is None or len(match[2]) <= 3}
    for number in sorted(set(range(min(numbers, default=0), max(numbers, default=0))) - numbers):
        count.remark("a piece of a log that was rotated is not given", f"{stem}.{number}")


def _by_number(files: Sequence[str]) -> list[str]:
    """The oldest first: the highest number, the earliest date, and last the one that has none."""

    def place(file: str) -> tuple[int, float, str]:
        match = _ROTATED.fullmatch(file.removesuffix(".gz"))
        if match is None:
            return 2, 0, ""
        return (0, -int(match[2]), "") if len(match[2]) <= 3 else (1, 0, match[2])

    return sorted(files, key=place)


def _beginning_s(path: str, count: LogCount, zone: tzinfo) -> float:
    """The first stamp at the beginning of a file; -inf where there is none, or where it can be read only once."""
    if path == STANDARD_STREAM or (Path(path).exists() and not Path(path).is_file()):
        return -inf
    block = next(iter(blocks_of(path, LogCount())), None)
    found_s = LineClock(zone).look_ahead(block.data) if block is not None else None
    return found_s if found_s is not None else -inf


def _merged(
    sources: Sequence[_LogSource], count: LogCount, zone: tzinfo, name: str | None, patterns: Sequence[str]
) -> Iterator[Happening]:
    """All that is told, by the clocks; a log is opened when its time has come."""
    if len(sources) == 1:
        yield from _told_by(sources[0], count, zone, name, patterns)
        return
    waiting = sorted(sources, key=lambda source: source.begin_s)
    order = counting()
    heap: list[tuple[float, int, Happening, Iterator[tuple[float, Happening]]]] = []

    def push(place: int, told: Iterator[tuple[float, Happening]], before_s: float) -> None:
        for key_s, happening in told:
            heapq.heappush(heap, (max(before_s, key_s), place, happening, told))
            return

    while waiting or heap:
        while waiting and (not heap or waiting[0].begin_s <= heap[0][0]):
            if len(heap) >= _MOST_OPEN:
                raise InvalidInputError(
                    f"more than {_MOST_OPEN} logs tell of the same time",
                    where=waiting[0].name,
                    fix="give the logs of one rank, or of a node's first rank, for all tell the same",
                )
            source = waiting.pop(0)
            told = _told_by(source, count, zone, name, patterns)
            push(next(order), _with_times(told, source.begin_s), source.begin_s)
        if heap:
            key_s, place, happening, rest = heapq.heappop(heap)
            yield happening
            push(place, rest, key_s)


def _with_times(told: Iterator[Happening], begin_s: float) -> Iterator[tuple[float, Happening]]:
    """Each with the time of the one before it where it has none; from a start on with that of the next that has one.

    A start belongs to what follows: what another log, or sacct, tells of the time until then comes before it.
    """
    time_s, held, waits = begin_s, list[Happening](), True
    for happening in told:
        if happening.time_s is not None:
            time_s, waits = happening.time_s, False
        elif happening.kind == "start":
            waits = True
        held.append(happening)
        if not waits or len(held) >= _MOST_LEADING:
            yield from ((time_s, one) for one in held)
            held, waits = [], False
    yield from ((time_s, one) for one in held)


def _told_by(
    source: _LogSource, count: LogCount, zone: tzinfo, name: str | None, patterns: Sequence[str]
) -> Iterator[Happening]:
    if source.kind == "sacct":
        return iter(read_sacct(source.files[0], count, zone))
    if source.kind == "kubernetes":
        return iter(read_kubernetes_events(source.files[0], count))
    return iter(LogStream(source.files, count, zone, name, patterns))
