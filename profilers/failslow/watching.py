"""Follows a job from outside by the rings of its ranks: iteration times, what is slow, and who makes it so.

One rank's calls are looked at as they come, the lowest's: all ranks of a job take the same time for an iteration, as
they wait for each other. The other ranks' rings are read only once something is confirmed to be slow: a ring holds the
calls from before, so nothing has to be kept of them. That makes watching as cheap as one rank's calls are.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...schemas.detection import Episode, FailSlow, FileFindings
from ..shim.recorder import DONE
from ..shim.ring import NOBODY, Entry, Reader
from .calls.call import LINK, Call
from .calls.iterations import Iteration, Periods
from .lateness import Blame, Span, blame
from .meetings import meetings_of
from .tracker import SHORTEST, Change, Mode, Tracker

REMEMBERED = 4096  # iterations whose place in time is known
MOST_USUAL, MOST_SLOW = 60, 10  # iterations that are compared
KIND = "calls"
MOST_PLACES = 32  # in memory that alike calls use in turn; more are no sign of anything
LEAST_BYTES = 1024  # smaller ones lie anywhere


@dataclass(frozen=True, slots=True)
class News:
    """What changed, and who is to blame, where that is known."""

    change: Change
    blame: Blame | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """An iteration that was heard of.

    Attributes:
        phase: the sequence of calls it is an iteration of; each has a series of its own.
        place: its number in that series, from 0.
        time_s: how long it took.
        news: what changed with it.
    """

    phase: int
    place: int
    time_s: float
    news: tuple[News, ...]


class Watch:
    """A job that is watched.

    Args:
        folder: where its ranks' rings are.
        mode: of the period finder and of the trackers.
        shortest: how many slow iterations it takes to confirm.

    Attributes:
        calls: how many the followed rank made, as far as they were read.
    """

    def __init__(self, folder: Path, mode: Mode = "robust", shortest: int = SHORTEST) -> None:
        self._folder, self._mode, self._shortest = folder, mode, shortest
        self._readers: dict[int, Reader] = {}
        self._paths: set[Path] = set()
        self._leader: _Calls | None = None
        self._periods = Periods(mode)
        self._series: dict[int, _Series] = {}
        self.calls = 0

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were heard of."""
        return tuple(sorted(self._readers))

    @property
    def period(self) -> int | None:
        """How many calls an iteration has; None: it is not known."""
        return self._periods.period

    def poll(self) -> tuple[Heard, ...]:
        """Read what is new."""
        self._look_for_rings()
        return tuple(self._read())

    def finish(self) -> tuple[Heard, ...]:
        """There will be no more calls: read the rest, and what is not decided is decided; nothing may follow."""
        heard = [*self.poll(), *self._hear(self._periods.finish())]
        for phase, series in self._series.items():
            news = self._judged(series, series.tracker.finish())
            if news and series.spans:
                begin_s, end_s = series.spans[-1]
                heard.append(Heard(phase, series.tracker.samples - 1, end_s - begin_s, news))
        return tuple(heard)

    def findings(self, name: str) -> dict[int, FileFindings]:
        """What was found so far in each phase of the job, under the job's name."""
        return {phase: series.findings(name) for phase, series in self._series.items()}

    def _look_for_rings(self) -> None:
        fresh = sorted(set(self._folder.glob("rank*.ring")) - self._paths, key=lambda path: path.stat().st_mtime_ns)
        for path in fresh:
            reader = Reader(path)
            self._paths.add(path)
            self._readers[reader.rank] = reader

    def _read(self) -> Iterator[Heard]:
        """One rank's calls; if it is started again, its new calls follow the old ones."""
        if self._leader is None and self._readers:
            self._leader = _Calls(self._readers[min(self._readers)])
        if self._leader is not None:
            yield from self._follow(self._leader)
            latest = self._readers[self._leader.reader.rank]
            if latest is not self._leader.reader:
                self._leader, self._periods = _Calls(latest), Periods(self._mode)
                yield from self._follow(self._leader)

    def _follow(self, leader: "_Calls") -> Iterator[Heard]:
        for call in leader.new():
            self.calls += 1
            yield from self._hear(self._periods.note(call))

    def _hear(self, iterations: Sequence[Iteration]) -> Iterator[Heard]:
        for one in iterations:
            series = self._series_of(one)
            series.spans.append((one.begin_s, one.begin_s + one.time_s))
            changes = series.tracker.note(one.time_s)
            news = self._judged(series, changes) if changes else ()
            yield Heard(one.phase, series.tracker.samples - 1, one.time_s, news)

    def _series_of(self, iteration: Iteration) -> "_Series":
        """That of its phase; one that begins before others shows that these were no iterations."""
        series = self._series.get(iteration.phase)
        if series is None:
            for phase in [phase for phase, one in self._series.items() if one.spans[0][0] >= iteration.begin_s]:
                del self._series[phase]
            series = self._series[iteration.phase] = _Series(self._mode, self._shortest)
        return series

    def _judged(self, series: "_Series", changes: Sequence[Change]) -> tuple[News, ...]:
        return tuple(News(change, self._blame(series, change)) for change in changes)

    def _blame(self, series: "_Series", change: Change) -> Blame | None:
        if change.kind in ("confirmed", "level"):
            usual, slow = series.compared(change.episode)
            within = (min(span[0] for span in (*usual, *slow)), max(span[1] for span in (*usual, *slow)))
            found = blame(meetings_of(self._readers.values(), within), usual, slow)
            series.keep(change.episode.onset, found)
            return found
        return None


class _Series:
    """The iterations of a phase."""

    def __init__(self, mode: Mode, shortest: int) -> None:
        self.tracker = Tracker(mode, shortest)
        self.spans: deque[Span] = deque(maxlen=REMEMBERED)
        self.blames: dict[int, Blame] = {}

    def compared(self, episode: Episode) -> tuple[list[Span], list[Span]]:
        """Usual and slow iterations, of each the last ones that are remembered."""
        first = self.tracker.samples - len(self.spans)
        slow_ones = [range(one.onset, one.relief or self.tracker.samples) for one in self.tracker.episodes]
        usual, slow = [], []
        for place, span in enumerate(self.spans, first):
            if episode.onset <= place < (episode.relief or self.tracker.samples):
                slow.append(span)
            elif not any(place in those for those in slow_ones):
                usual.append(span)
        return usual[-MOST_USUAL:], slow[-MOST_SLOW:]

    def keep(self, onset: int, found: Blame) -> None:
        """Keep what says where an episode comes from; of several, what was found when it cost most."""
        known = self.blames.get(onset)
        if known is None or (bool(found.scope.names), found.extra_s) > (bool(known.scope.names), known.extra_s):
            self.blames[onset] = found

    def findings(self, name: str) -> FileFindings:
        """What was found, in the words of a document."""
        events = tuple(self._event(episode) for episode in self.tracker.episodes)
        return FileFindings(name, KIND, self.tracker.samples, self.tracker.usual_s, events)

    def _event(self, episode: Episode) -> FailSlow:
        found = self.blames.get(episode.onset)
        return FailSlow.of(episode, found.cause, found.scope, found.evidence) if found else FailSlow.of(episode)


class _Calls:
    """The records of a rank's ring as calls.

    What an iteration reduces by itself may be several parts of the same size (the buckets of DDP), which nothing but
    their places in memory tells from each other; those belong to what a call is, as long as they are few.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._places: dict[tuple[int, ...], dict[int, str]] = {}

    def new(self) -> Iterator[Call]:
        """Those that were not read yet; what tells of a call's end is none."""
        for entry in self.reader.new():
            op = str(self.reader.name(entry.op)["op"])
            if op != DONE:
                dtype = str(self.reader.name(entry.dtype)["dtype"]) + self._place(entry)
                yield Call(entry.at_ns / 1e9, self.reader.rank, op, self._group(entry, op), entry.bytes, dtype)

    def _group(self, entry: Entry, op: str) -> str:
        own, other = self.reader.rank, entry.peer
        if other == NOBODY:
            return str(self.reader.name(entry.group)["group"])
        return f"{own}{LINK}{other}" if op == "send" else f"{other}{LINK}{own}"

    def _place(self, entry: Entry) -> str:
        """Which one of some alike it is, as a suffix."""
        if not entry.tag or entry.peer != NOBODY or entry.bytes < LEAST_BYTES:
            return ""
        places = self._places.setdefault((entry.op, entry.group, entry.dtype, entry.bytes), {})
        if entry.tag not in places and len(places) <= MOST_PLACES:
            places[entry.tag] = f"@{len(places)}"
        return places[entry.tag] if len(places) <= MOST_PLACES else ""
