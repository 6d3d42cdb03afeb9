"""Files of communication calls: which they are, and what is slow in them. All files of one call are one job's ranks."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from ....schemas.detection import Episode, FailSlow, FileFindings, Scope
from ....schemas.errors import InvalidInputError
from ..tracker import SHORTEST, Mode, Tracker
from .call import CallLog
from .call_log import read_call_log
from .comparison import FEWEST_GROUPS, Degraded, Span, Verdict, cause_of, degraded_groups
from .flight_recorder import read_flight_recorder
from .iterations import MOST, Iteration, Periods
from .kineto import read_kineto
from .nccl_inspector import KIND as INSPECTOR
from .nccl_inspector import read_nccl_inspector
from .period import FEWEST_PERIODS
from .sources import beginning_of

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
    iterations: tuple[Iteration, ...]
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
    row = _first_object(text)
    if any(key in row for key in _INSPECTED):
        return read_nccl_inspector
    if "op" in row and "t" in row:
        return read_call_log
    if b'"collective_seq_id"' in text or b'"pg_status"' in text:
        return lambda path: (read_flight_recorder(path),)
    return None


def _first_object(text: bytes) -> dict[str, object]:
    """The first line's object; an empty one if the line is none."""
    try:
        row = json.loads(text.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


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
    return tuple(_findings(one, followed) for one in followed)


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
    if not iterations and not (log.kind == INSPECTOR and _is_without_times(log)):
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


def iterations_of(log: CallLog, mode: Mode = "robust") -> tuple[Iteration, ...]:
    """The iterations of a log: as it says itself, or else as its calls repeat themselves."""
    if len(log.iterations) >= FEWEST_PERIODS:
        return tuple(Iteration(0, begin_s, time_s) for begin_s, time_s in log.iterations if time_s > 0)
    periods = Periods(mode, min(len(log.calls), MOST))
    found = [one for call in log.calls for one in periods.note(call)]
    return (*found, *periods.finish())


def _is_without_times(log: CallLog) -> bool:
    return 2 * len({call.t_s for call in log.calls}) <= len(log.calls)


def _moved(episode: Episode, places: Sequence[int]) -> Episode:
    """An episode of a series whose samples stand at these places of another one."""

    def moved(place: int | None) -> int | None:
        return None if place is None else places[place] if place < len(places) else places[-1] + 1

    onset = places[episode.onset]
    return Episode(onset, moved(episode.provisional), moved(episode.confirmed), moved(episode.relief), episode.severity)


def _findings(one: Followed, job: Sequence[Followed]) -> FileFindings:
    events = tuple(_event(episode, one, job) for episode in one.episodes) or _always_slow(one, job)
    return FileFindings(one.name, one.log.kind, len(one.iterations), one.usual_s, events)


def _event(episode: Episode, one: Followed, job: Sequence[Followed]) -> FailSlow:
    slow, usual = [], []
    for other in job:
        slow.append(_span(other, one, episode.onset, episode.relief))
        usual.append(_span(other, one, *_before(episode, one)))
    verdict = cause_of([span for span in slow if span], [span for span in usual if span])
    return FailSlow.of(episode, verdict.cause, verdict.scope, verdict.evidence)


def _before(episode: Episode, one: Followed) -> tuple[int, int]:
    """The iterations between the episode and the one before it; those after it, where there are none before."""
    ends = [other.relief for other in one.episodes if other.relief is not None and other.relief <= episode.onset]
    begin = max(ends, default=0)
    if episode.onset > begin or episode.relief is None:
        return begin, episode.onset
    nexts = [other.onset for other in one.episodes if other.onset >= episode.relief]
    return episode.relief, min(nexts, default=len(one.iterations))


def _span(other: Followed, one: Followed, begin: int, end: int | None) -> Span | None:
    """The stretch of another rank's log that belongs to some iterations of one rank's; None: there is none."""
    iterations = one.iterations[begin:end]
    if not iterations or not other.log.calls:
        return None
    apart_s = _apart_s(other.log, one.log)
    begin_s = iterations[0].begin_s + apart_s
    end_s = iterations[-1].begin_s + iterations[-1].time_s + apart_s
    return Span(other.log, begin_s, end_s, median(iteration.time_s for iteration in iterations))


def _apart_s(other: CallLog, one: CallLog) -> float:
    """How far the clocks of two logs are apart: not at all if they overlap, else as if both began at the same time."""
    first_s, last_s = other.calls[0].t_s, other.calls[-1].t_s
    overlaps = first_s <= one.calls[-1].t_s and one.calls[0].t_s <= last_s
    return 0.0 if overlaps else first_s - one.calls[0].t_s


def _always_slow(one: Followed, job: Sequence[Followed]) -> tuple[FailSlow, ...]:
    """The group of a rank that is slower than comparable ones all the time, if nothing else is known to be slow."""
    if any(other.episodes for other in job):
        return ()
    spans = [Span(other.log, other.log.calls[0].t_s, float("inf"), 0.0) for other in job if other.log.calls]
    mine = {call.group for call in one.log.calls}
    found = [group for group in degraded_groups(spans, fewest=FEWEST_GROUPS) if group.group in mine]
    return tuple(_steady(group, max(len(one.iterations) - 1, 0)) for group in found[:1])


def _steady(group: Degraded, last: int) -> FailSlow:
    episode = Episode(0, None, last, None, group.ratio)
    kind: Literal["link", "group"] = "link" if len(group.ranks) == 2 else "group"
    name = "-".join(map(str, sorted(group.ranks))) if kind == "link" else group.group
    verdict = Verdict("communication", Scope(kind, (name,)), (group.sentence, "all the time"))
    return FailSlow.of(episode, verdict.cause, verdict.scope, verdict.evidence)
