"""Follows a job from outside by the rings of its ranks: iteration times, what is slow, and who makes it so.

One rank's calls are looked at as they come, the lowest's: all ranks of a job take the same time for an iteration, as
they wait for each other. The other ranks' rings are read only once something is confirmed to be slow: a ring holds the
calls from before, so nothing has to be kept of them. That makes watching as cheap as one rank's calls are.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal, TypeVar

from ....schemas.conditions import Pair, pair_of
from ....schemas.detection import Episode, FailSlow, FileFindings, Scope
from ....schemas.profile import ring_steps
from ....schemas.protocols import Examined, Measured
from ....schemas.quantities import print_time
from ...shim.recorder import DONE, NOBODY, Entry, RingReader
from ..calls.comparison import LINK, CommunicationCall
from ..calls.iterations import LoggedIteration, Periods
from ..tracker import SHORTEST, EpisodeChange, Mode, Tracker

# Which workers and which links are slow, from what tests that are the same for all took on each: pure judgement.
#
# Greyhound, section 4.3: what takes over 10 % more than the median of its like is slow. Here it is compared with the
# lower third instead (of 6, the second fastest): where one of three or four workers has a slow network card, half of
# all links and more are slow.
#
# So that busy machines accuse nobody, its fastest reading must be too long as well, compared with the fastest ones of
# others, and that in most tests (data types, sizes of messages), for they are of the same part. Messages depend on two
# processes that may have to wait for a processor; they must be longer by more than readings of one link differ, too.


SLOW = 1.1
FEWEST_COMPARED = 2  # one alone has nothing to be compared with

T = TypeVar("T", bound=Hashable)
Readings = Mapping[T, Sequence[float]]  # some readings of the same test, in s, by whom they are of


@dataclass(frozen=True, slots=True)
class SlowParts:
    """What is slow.

    Attributes:
        workers: of those that are slow how many times as long as others they compute, in the test that shows it most.
        links: of those that are slow how many times as long as on others messages take, likewise.
        cards: workers all of whose links of a kind are slow, where these are two or more: the fault is at their end.
        alone: kinds of links of which there is one only, so that nobody knows whether it is slow.
    """

    workers: Mapping[str, float]
    links: Mapping[Pair, float]
    cards: tuple[str, ...]
    alone: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.workers or self.links)


def slow_parts(
    compute_s: Mapping[str, Readings[str]],
    exchange_s: Mapping[str, Readings[Pair]],
    node_of: Mapping[str, str] | None = None,
) -> SlowParts:
    """Judge workers and links.

    Args:
        compute_s: by test (a data type, say), then by worker: what the same computation took, in s.
        exchange_s: by test (a message size), then by link, whose ends have any order: what the same message took, in s.
        node_of: the machine of each worker; links within and between machines are compared apart. None: all on one.
    """
    pairs = [pair for test in exchange_s.values() for pair in test]
    is_within = {pair: node_of is None or node_of[pair[0]] == node_of[pair[1]] for pair in pairs}
    kinds = {pair: "within a machine" if is_within[pair] else "between machines" for pair in pairs}
    links: dict[Pair, float] = {}
    for kind in sorted(set(kinds.values())):
        of_kind = [{pair: one for pair, one in test.items() if kinds[pair] == kind} for test in exchange_s.values()]
        links |= _in_most(of_kind, are_messages=True)
    alone = tuple(kind for kind in sorted(set(kinds.values())) if list(kinds.values()).count(kind) < FEWEST_COMPARED)
    workers = _in_most(list(compute_s.values()), are_messages=False)
    links_of: dict[tuple[str, str], list[Pair]] = {}
    for pair, kind in kinds.items():
        for end in pair:
            links_of.setdefault((end, kind), []).append(pair)
    cards = {
        end for (end, _), own in links_of.items() if len(own) >= FEWEST_COMPARED and all(pair in links for pair in own)
    }
    return SlowParts(workers, links, tuple(sorted(cards)), alone)


def slow_among(readings: Readings[T], are_messages: bool = False, limit: float = SLOW) -> dict[T, float]:
    """Those of some that are slow, and by which factor.

    Args:
        readings: some of the same test, in s, by whom they are of; one or more of each.
        are_messages: whether they are of messages, else of computation.
        limit: how many times as long as usual is slow.
    """
    if len(readings) < FEWEST_COMPARED:
        return {}
    middle_s = {one: median(times_s) for one, times_s in readings.items()}
    usual_s = lower_third(middle_s.values())
    fastest_s = limit * lower_third(min(times_s) for times_s in readings.values())
    if are_messages:
        fastest_s = max(
            fastest_s,
            usual_s
            * (1 + median((max(times_s) - min(times_s)) / (median(times_s) or 1.0) for times_s in readings.values())),
        )
    slow = (one for one in readings if middle_s[one] > limit * usual_s and min(readings[one]) > fastest_s)
    return {one: middle_s[one] / usual_s for one in slow if usual_s > 0}


def lower_third(times_s: Iterable[float]) -> float:
    """What is usual among one or more times, in s: a third of them at most are shorter."""
    ordered = sorted(times_s)
    return ordered[(len(ordered) - 1) // 3]


def _in_most(tests: Sequence[Readings[T]], are_messages: bool) -> dict[T, float]:
    """Those that are slow in most tests, each with its largest factor."""
    factors: dict[T, list[float]] = {}
    for test in tests:
        for one, factor in slow_among(test, are_messages).items():
            factors.setdefault(one, []).append(factor)
    return {one: max(factors[one]) for one in sorted(factors, key=str) if 2 * len(factors[one]) > len(tests)}


# When a quantity that scatters counts as too large, and when as good again, without going to and fro.
#
# * Too large three times in a row (`BAD_IN_A_ROW`), by more than `least`: found, with the median of the three.
# * Good `GOOD` times, above its usual value by less than half of `least`, and never three others in a row in between:
#   relieved. A machine that is busy for a moment does not put it off.
# * While it is too large, another value is taken only where it has been further than `MOVED` of the old one and than
#   `least` from it three times in a row.
# * A quantity that is found again within `FLAPPING_WITHIN` iterations of its relief flaps: each time twice as many good
#   ones are needed for the next relief, up to `MOST_GOOD`. So one that comes and goes every few iterations is relieved
# a
#   few times (the logarithm of the period), and then stays found until it has been good for long. After `QUIET`
#   iterations without being found all of this is forgotten.
# * Iterations without a measurement say nothing and interrupt nothing. But what is not used any more cannot show that
#   it is good: after `UNSEEN` times as many iterations without one as good ones are needed, it is relieved on trial. If
#   it is still bad, it is found again after three, and the next trial comes later.


BAD_IN_A_ROW = 3
GOOD = 5
MOST_GOOD = 40
MOVED = 0.25
FLAPPING_WITHIN = 30
QUIET = 200
UNSEEN = 10


class Hysteresis:
    """One quantity over the iterations.

    Attributes:
        found: its value where it is too large, else None.
    """

    def __init__(self) -> None:
        self.found: float | None = None
        self._bad: deque[float] = deque(maxlen=BAD_IN_A_ROW)  # in a row: beyond the limit, or far from what was found
        self._good = self._not_good = 0
        self._needed = GOOD
        self._seen = 0
        self._relieved: int | None = None

    def note(self, iteration: int, value: float, usual: float, least: float) -> None:
        """A measurement.

        Args:
            iteration: its iteration, no earlier than any before.
            value: what was measured.
            usual: what is expected of it.
            least: how much more is too much.
        """
        self._seen = iteration
        if self.found is None:
            self._look_for(iteration, value, value > usual + least)
        elif value < usual + least / 2:
            self._bad.clear()
            self._good, self._not_good = self._good + 1, 0
            if self._good >= self._needed:
                self._relieve(iteration)
        else:
            self._not_good += 1
            self._good = 0 if self._not_good >= BAD_IN_A_ROW else self._good
            self._follow(value, least)

    def pass_by(self, iteration: int) -> None:
        """An iteration without a measurement; relieves on trial what has not been seen for long."""
        if self.found is not None and iteration - self._seen >= UNSEEN * self._needed:
            self._relieve(iteration)

    def settle(self, iteration: int, value: float | None) -> None:
        """It has been found out otherwise: how large it is, if it is too large, or None if it is good."""
        if value is None:
            if self.found is not None:
                self._relieve(iteration)
            return
        if self.found is None:
            self._needed = self._needed_after(iteration)
        self.found, self._seen = value, iteration
        self._good = self._not_good = 0
        self._bad.clear()

    def _look_for(self, iteration: int, value: float, is_bad: bool) -> None:
        if not is_bad:
            self._bad.clear()
            return
        self._bad.append(value)
        if len(self._bad) == BAD_IN_A_ROW:
            self._needed = self._needed_after(iteration)
            self.found = median(self._bad)
            self._good = self._not_good = 0
            self._bad.clear()

    def _needed_after(self, iteration: int) -> int:
        """How many good ones the next relief needs, if it is found now."""
        if self._relieved is None:
            return GOOD
        quiet = iteration - self._relieved
        if quiet <= FLAPPING_WITHIN:
            return min(2 * self._needed, MOST_GOOD)
        return self._needed if quiet <= QUIET else GOOD

    def _follow(self, value: float, least: float) -> None:
        assert self.found is not None
        if abs(value - self.found) <= max(MOVED * self.found, least):
            self._bad.clear()
            return
        self._bad.append(value)
        if len(self._bad) == BAD_IN_A_ROW:
            self.found = median(self._bad)
            self._bad.clear()

    def _relieve(self, iteration: int) -> None:
        self.found, self._relieved = None, iteration
        self._bad.clear()


# Why iterations became slow, from when the ranks of a job came to the calls that they make together.
#
# Calls of several ranks that belong to each other are a *meeting*: all ranks of a group at its n-th call, or sender and
# receiver of a message. All clocks are those of one host.
#
# * Who computes slowly comes late, and the others stand waiting: the time between the others' arrival (their median)
# and
#   the rank's own counts for it, or against it when it comes early. So a rank that is late only because it waited for
#   another one comes out even.
# * A slow link delays nobody's arrival, but the end: time from the last arrival to the end counts as the transfer's; of
# a
#   message no more of it than its receiver stood waiting.
#
# Both are summed over each iteration, no stretch of time twice, and the median of the slow iterations is compared with
# that of the usual ones. What explains half of an iteration's extra time is named: transfers first, for who has a slow
# link is late at other calls, while who computes slowly does not prolong transfers. The paper profiles the groups of a
# job with CUDA events and compares those that carry equal amounts (section 4.3); arrivals tell as much where
# everybody's clock is the same, and for a single group as well.


Span = tuple[float, float]
Sums = dict[int, float]  # by iteration
Cause = Literal["computation", "communication", "unknown"]
Key = TypeVar("Key", int, str)

EXPLAINS = 0.5  # of an iteration's extra time


@dataclass(slots=True)
class Meeting:
    """Calls of several ranks that belong together.

    Attributes:
        name: of the group; of a message, the link `a-b`, the lower rank first.
        ranks: who belongs to it.
        arrivals_s: when each rank called.
        ends_s: when each rank's call was done, as far as that is known.
        waited_s: how long the receiver of a message stood waiting for it.
        is_message: it is one.
    """

    name: str
    ranks: tuple[int, ...]
    is_message: bool = False
    arrivals_s: dict[int, float] = field(default_factory=dict)
    ends_s: dict[int, float] = field(default_factory=dict)
    waited_s: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blame:
    """What a slow-down comes from, where it is, what speaks for that, and how much time an iteration it costs."""

    cause: Cause
    scope: Scope
    evidence: tuple[str, ...]
    extra_s: float


def blame(meetings: Iterable[Meeting], usual: Sequence[Span], slow: Sequence[Span]) -> Blame:
    """What makes some iterations slower than others.

    Args:
        meetings: of the time in question, in the order of time.
        usual: beginnings and ends of usual iterations, in s; none, if all are slow: then nothing is usual.
        slow: those of slow ones.
    """
    usual_s = median(end_s - begin_s for begin_s, end_s in usual) if usual else 0.0
    slow_s = median(end_s - begin_s for begin_s, end_s in slow) if slow else 0.0
    extra_s = slow_s - usual_s if usual else slow_s / 10
    whole = [one for one in meetings if len(one.ranks) > 1 and set(one.arrivals_s) == set(one.ranks)]
    if not whole or extra_s <= 0:
        return Blame("unknown", Scope(), ("the ranks of this host have no calls together",) * (not whole), extra_s)
    spans = sorted([*usual, *slow])
    places = {span: place for place, span in enumerate(spans)}
    before, now = [places[span] for span in usual], [places[span] for span in slow]
    transfers_s = _growths(_transfers_s(whole, spans), before, now)
    late_s = _growths(_late_s(whole, spans), before, now)
    slowest = max(transfers_s, key=lambda name: transfers_s[name].extra_s, default=None)
    if slowest is not None and transfers_s[slowest].extra_s >= EXPLAINS * extra_s:
        ranks = next(one for one in whole if one.name == slowest).ranks
        told = f"transfers between ranks {', '.join(map(str, ranks))} take {transfers_s[slowest]}"
        is_link = len(ranks) <= 2
        name = "-".join(map(str, sorted(ranks))) if is_link else slowest
        return Blame("communication", Scope("link" if is_link else "group", (name,)), (told,), extra_s)
    latest_s = max((one.extra_s for one in late_s.values()), default=0.0)
    if latest_s >= EXPLAINS * extra_s:
        slow_ranks = {rank: growth for rank, growth in late_s.items() if growth.extra_s >= EXPLAINS * latest_s}
        waits = tuple(f"others wait for rank {rank} {growth}" for rank, growth in slow_ranks.items())
        return Blame("computation", Scope("worker", tuple(map(str, slow_ranks))), waits, extra_s)
    if transfers_s:
        everywhere = "no rank comes late and no transfer takes long: all are slow alike"
        return Blame("computation", Scope(), (everywhere,), extra_s)
    return Blame("unknown", Scope(), ("no rank comes late; how long transfers take is not known",), extra_s)


def _late_s(meetings: Iterable[Meeting], spans: Sequence[Span]) -> dict[int, Sums]:
    """For each rank and iteration, how long others waited for it, less how long it waited for them."""
    sums: dict[int, Sums] = defaultdict(lambda: defaultdict(float))
    before: dict[tuple[str, int], Span] = {}
    for meeting in meetings:
        place = _place(spans, max(meeting.arrivals_s.values()))
        for rank, own_s in meeting.arrivals_s.items():
            others_s = median(at_s for other, at_s in meeting.arrivals_s.items() if other != rank)
            own_before_s, others_before_s = before.get((meeting.name, rank), (own_s, others_s))
            before[meeting.name, rank] = (own_s, others_s)
            if place is not None:
                late_s = max(0.0, own_s - max(others_s, own_before_s))
                early_s = max(0.0, others_s - max(own_s, others_before_s))
                sums[rank][place] += late_s - early_s
    return sums


def _transfers_s(meetings: Iterable[Meeting], spans: Sequence[Span]) -> dict[str, Sums]:
    """For each group or link and iteration, how long its transfers took once everybody was there."""
    sums: dict[str, Sums] = defaultdict(lambda: defaultdict(float))
    before_s: dict[str, float] = {}
    for meeting in meetings:
        if not meeting.ends_s:
            continue
        begin_s, end_s = max(meeting.arrivals_s.values()), max(meeting.ends_s.values())
        for rank, waited_s in meeting.waited_s.items():
            begin_s = max(begin_s, meeting.ends_s[rank] - waited_s)
        place = _place(spans, begin_s)
        if place is not None:
            sums[meeting.name][place] += max(0.0, end_s - max(begin_s, before_s.get(meeting.name, begin_s)))
        before_s[meeting.name] = end_s
    return sums


def _place(spans: Sequence[Span], at_s: float) -> int | None:
    """The iteration in which something was."""
    place = bisect_right(spans, (at_s, float("inf"))) - 1
    return place if place >= 0 and at_s < spans[place][1] else None


@dataclass(frozen=True, slots=True)
class _Growth:
    """What something took in a usual iteration, and in a slow one."""

    usual_s: float
    now_s: float

    @property
    def extra_s(self) -> float:
        return self.now_s - self.usual_s

    def __str__(self) -> str:
        return f"{print_time(self.now_s)} an iteration, usually {print_time(max(0.0, self.usual_s))}"


def _growths(sums: Mapping[Key, Sums], before: Sequence[int], now: Sequence[int]) -> dict[Key, _Growth]:
    return {key: _Growth(_median(one, before), _median(one, now)) for key, one in sorted(sums.items())}


def _median(sums: Sums, places: Sequence[int]) -> float:
    return median(sums.get(place, 0.0) for place in places) if places else 0.0


REMEMBERED = 4096  # iterations whose place in time is known
MOST_USUAL, MOST_SLOW = 60, 10  # iterations that are compared
KIND = "calls"
MOST_PLACES = 32  # in memory that alike calls use in turn; more are no sign of anything
LEAST_BYTES = 1024  # smaller ones lie anywhere


@dataclass(frozen=True, slots=True)
class News:
    """What changed, and who is to blame, where that is known."""

    change: EpisodeChange
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


class WatchedJob:
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
        self._readers: dict[int, RingReader] = {}
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
        fresh = sorted(set(self._folder.glob("rank*.ring")) - self._paths, key=lambda path: path.stat().st_mtime_ns)
        for path in fresh:
            reader = RingReader(path)
            self._paths.add(path)
            self._readers[reader.rank] = reader
        heard: list[Heard] = []
        if self._leader is None and self._readers:
            self._leader = _Calls(self._readers[min(self._readers)])
        if self._leader is not None:
            heard += self._follow(self._leader)
            latest = self._readers[self._leader.reader.rank]
            if latest is not self._leader.reader:  # it was started again: its new calls follow the old ones
                self._leader, self._periods = _Calls(latest), Periods(self._mode)
                heard += self._follow(self._leader)
        return tuple(heard)

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

    def _follow(self, leader: "_Calls") -> Iterator[Heard]:
        for call in leader.new():
            self.calls += 1
            yield from self._hear(self._periods.note(call))

    def _hear(self, iterations: Sequence[LoggedIteration]) -> Iterator[Heard]:
        for one in iterations:
            series = self._series.get(one.phase)
            if series is None:
                # One that begins before others shows that these were no iterations.
                for phase in [phase for phase, other in self._series.items() if other.spans[0][0] >= one.begin_s]:
                    del self._series[phase]
                series = self._series[one.phase] = _Series(self._mode, self._shortest)
            series.spans.append((one.begin_s, one.begin_s + one.time_s))
            changes = series.tracker.note(one.time_s)
            news = self._judged(series, changes) if changes else ()
            yield Heard(one.phase, series.tracker.samples - 1, one.time_s, news)

    def _judged(self, series: "_Series", changes: Sequence[EpisodeChange]) -> tuple[News, ...]:
        news = []
        for change in changes:
            found = None
            if change.kind in ("confirmed", "level"):
                usual, slow = series.compared(change.episode)
                within = (min(span[0] for span in (*usual, *slow)), max(span[1] for span in (*usual, *slow)))
                found = blame(meetings_of(self._readers.values(), within), usual, slow)
                series.keep(change.episode.onset, found)
            news.append(News(change, found))
        return tuple(news)


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
        events = []
        for episode in self.tracker.episodes:
            found = self.blames.get(episode.onset)
            told = (found.cause, found.scope, found.evidence) if found else ()
            events.append(FailSlow.of(episode, *told))
        return FileFindings(name, KIND, self.tracker.samples, self.tracker.usual_s, tuple(events))


class _Calls:
    """The records of a rank's ring as calls.

    What an iteration reduces by itself may be several parts of the same size (the buckets of DDP), which nothing but
    their places in memory tells from each other; those belong to what a call is, as long as they are few.
    """

    def __init__(self, reader: RingReader) -> None:
        self.reader = reader
        self._places: dict[tuple[int, ...], dict[int, str]] = {}

    def new(self) -> Iterator[CommunicationCall]:
        """Those that were not read yet; what tells of a call's end is none."""
        for entry in self.reader.new():
            op = str(self.reader.name(entry.op)["op"])
            if op != DONE:
                dtype = str(self.reader.name(entry.dtype)["dtype"]) + self._place(entry)
                own, other = self.reader.rank, entry.peer
                if other == NOBODY:
                    group = str(self.reader.name(entry.group)["group"])
                else:
                    group = f"{own}{LINK}{other}" if op == "send" else f"{other}{LINK}{own}"
                yield CommunicationCall(entry.at_ns / 1e9, self.reader.rank, op, group, entry.bytes, dtype)

    def _place(self, entry: Entry) -> str:
        """Which one of some alike it is, as a suffix."""
        if not entry.tag or entry.peer != NOBODY or entry.bytes < LEAST_BYTES:
            return ""
        places = self._places.setdefault((entry.op, entry.group, entry.dtype, entry.bytes), {})
        if entry.tag not in places and len(places) <= MOST_PLACES:
            places[entry.tag] = f"@{len(places)}"
        return places[entry.tag] if len(places) <= MOST_PLACES else ""


# The calls of several ranks that belong together, out of their rings.


MeetingKey = tuple[object, ...]


def meetings_of(readers: Iterable[RingReader], within: Span) -> list[Meeting]:
    """What the ranks' calls were of some stretch of time, as far as the rings still hold them, in the order of time."""
    meetings: dict[MeetingKey, Meeting] = {}
    for reader in readers:
        _collect(reader, within, meetings)
    return sorted(meetings.values(), key=lambda meeting: max(meeting.arrivals_s.values()))


def _collect(reader: RingReader, within: Span, meetings: dict[MeetingKey, Meeting]) -> None:
    begin_ns, end_ns = (int(at_s * 1e9) for at_s in within)
    called: dict[int, Meeting] = {}
    for entry in reader.all():
        op = str(reader.name(entry.op)["op"])
        if op == DONE:
            if entry.order in called:
                called[entry.order].ends_s[reader.rank] = entry.at_ns / 1e9
                if called[entry.order].is_message:
                    called[entry.order].waited_s[reader.rank] = entry.bytes / 1e9
        elif begin_ns <= entry.at_ns < end_ns:
            described = reader.name(entry.group)
            key: MeetingKey
            group, own, other = str(described["group"]), reader.rank, entry.peer
            if other == NOBODY:
                key, fresh = (group, entry.order), Meeting(group, tuple(described["ranks"]))
            else:
                ends = (own, other) if op == "send" else (other, own)
                link = f"{min(ends)}-{max(ends)}"
                key, fresh = (group, *ends, entry.tag, entry.order), Meeting(link, ends, is_message=True)
            meeting = called[entry.number] = meetings.setdefault(key, fresh)
            meeting.arrivals_s[reader.rank] = entry.at_ns / 1e9


# What a running job is expected to be like, and how far from that is slow.


SLOW_PACE = 0.2  # a worker is slow whose operations take so much longer than those of the others
FEWEST = 3  # workers, links or groups that have a middle one worth comparing with


@dataclass(frozen=True)
class Expected:
    """What a job's first plan expects.

    Attributes:
        least_s: how much longer than usual a message takes that is slow.
        delay_s: of a message between two workers, in s.
        sum_s: of the sum of two peers' gradients, in s.
        slowdown: of workers that are known to be slow, by their names.
    """

    least_s: float
    delay_s: Callable[[str, str], float] = lambda one, other: 0.0
    sum_s: Callable[[str, str], float] = lambda one, other: 0.0
    slowdown: Mapping[str, float] = field(default_factory=dict)


# Groups of peers whose sum takes longer than usual, and when they are to be examined.
#
# A ring passes each link 2(n-1) times, so its sum takes that many delays of its slowest link longer; which link that is
# the sum does not tell. The group is a suspect from when the sum is too long (`Hysteresis`, per step of the ring) until
# it is examined, as long as no link of it is known to be slow. After that it is left alone for `FIRST_PAUSE`
# iterations, twice as long each time, up to `LONGEST_PAUSE`, whatever was found: so examinations cost little, however
# they end.


FIRST_PAUSE = 20
LONGEST_PAUSE = 320
GROUPS_KEPT = 4  # for each worker; a group that is not seen any more is forgotten when there are so many others

Group = tuple[str, ...]  # names of workers, ascending


class Pauses:
    """How long it takes until the next examination: longer after each, until there was no need of one for long."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._pause = 0

    def is_over(self, iteration: int) -> bool:
        """Whether there may be one."""
        return self._last is None or iteration - self._last >= self._pause

    def begin(self, iteration: int) -> None:
        """There was one."""
        is_old = self._last is None or iteration - self._last > self._pause + QUIET
        self._pause = FIRST_PAUSE if is_old else min(2 * self._pause, LONGEST_PAUSE)
        self._last = iteration


class GroupSums:
    """The sums of all groups of three peers and more.

    Args:
        expected: what is usual.
        most: how many groups are remembered.
    """

    def __init__(self, expected: Expected, most: int) -> None:
        self._expected, self._most = expected, most
        self._groups: dict[Group, _GroupSum] = {}

    def note(self, iteration: int, sums_s: Mapping[Group, float]) -> None:
        """What sums have taken in an iteration, from when the last of a group began it."""
        planned_s = {group: max(self._expected.sum_s(group[0], other) for other in group[1:]) for group in sums_s}
        more_s = {group: (one - planned_s[group]) / ring_steps(len(group)) for group, one in sums_s.items()}
        for group in more_s:
            own = self._groups.pop(group) if group in self._groups else _GroupSum()
            self._groups[group] = own  # the last one seen comes last
        for old in list(self._groups)[: -self._most]:
            del self._groups[old]
        for group, own in self._groups.items():
            own.note(iteration, more_s.get(group))
        bests_s = [self._groups[group].best_s for group in more_s if group in self._groups]
        middle_s = median(bests_s) if len(bests_s) >= FEWEST else None
        for group in more_s.keys() & self._groups.keys():
            self._groups[group].compare(iteration, more_s[group], middle_s, self._expected.least_s)

    def excess_s(self, pair: Pair, seen: Collection[Group]) -> float | None:
        """How much longer than usual a step takes of the sum that both ends take part in; None: there is none."""
        return next((self._groups[group].excess_s for group in seen if {*pair} <= {*group}), None)

    @property
    def slow(self) -> list[Group]:
        """The groups whose sums take longer than usual, for whatever reason."""
        return [group for group, own in self._groups.items() if own.hysteresis.found is not None]

    def suspects(self, iteration: int, slow: Collection[Pair], seen: Collection[Group]) -> Iterator[Group]:
        """The groups to be examined, of those seen in an iteration, where these links are known to be slow."""
        for group, own in ((group, self._groups[group]) for group in seen):
            is_explained = any({*pair} <= {*group} for pair in slow) and own.is_as_examined
            if own.hysteresis.found is not None and not is_explained and own.pauses.is_over(iteration):
                yield group

    def examined(self, iteration: int, group: Group) -> None:
        """All of a group have been examined."""
        if group in self._groups:
            self._groups[group].be_examined(iteration)

    def forget(self, worker: str) -> None:
        """Nothing of a worker's groups holds any longer."""
        self._groups = {group: own for group, own in self._groups.items() if worker not in group}


class _GroupSum:
    """One group's; all times are of a step of its ring, less what the plan expects."""

    def __init__(self) -> None:
        self.hysteresis, self.pauses = Hysteresis(), Pauses()
        self.best_s = float("inf")
        self.excess_s = 0.0
        self._at_examination: float | None = None

    @property
    def is_as_examined(self) -> bool:
        """Whether the sum takes as long as when the group was examined; one that nobody has examined does, too."""
        return self._at_examination in (None, self.hysteresis.found)

    def note(self, iteration: int, more_s: float | None) -> None:
        if more_s is None:
            self.hysteresis.pass_by(iteration)
        else:
            self.best_s = min(self.best_s, more_s)

    def compare(self, iteration: int, more_s: float, middle_s: float | None, least_s: float) -> None:
        """Compare with the best that was seen, of this group or, if that is less, of the middle one of all."""
        usual_s = max(0.0, self.best_s if middle_s is None else min(self.best_s, middle_s))
        self.excess_s = max(0.0, more_s - usual_s)
        self.hysteresis.note(iteration, self.excess_s, 0.0, least_s)
        if self.hysteresis.found is None:
            self._at_examination = None

    def be_examined(self, iteration: int) -> None:
        self._at_examination = self.hysteresis.found
        self.pauses.begin(iteration)


def group_sums_s(reports: Mapping[str, Measured]) -> dict[Group, float]:
    """How long the sums of groups took: from when the last one began until the first one had it."""
    found: dict[Group, float] = {}
    for name, one in reports.items():
        group = tuple(sorted({name, *one.peers}))
        if len(group) <= 2 or group in found or group[0] != name:
            continue
        own = [reports[member] for member in group if member in reports]
        spans = [report.reduction_s for report in own if {report.worker, *report.peers} == {*group}]
        known = [span for span in spans if span is not None]
        if len(known) == len(group):
            found[group] = max(0.0, min(ended for _, ended in known) - max(began for began, _ in known))
    return found


# What a group's examination shows: which of its links, and which of its workers, are slow.
#
# Greyhound, section 4.3: between two iterations the workers of a suspicious group multiply matrices of the same size
# and exchange messages of the same size. As in `rtk probe`, usual is the lower third and not the median (job.py says
# why). Otherwise slow is what it is everywhere in a running job: a worker by a fifth, and a link by `Expected.least_s`
# a message, for the paper's 10 % of a fast link's time are less than what a scheduler takes.


@dataclass(frozen=True)
class ProbeOutcome:
    """What was found.

    Attributes:
        tried: the pairs that have exchanged messages.
        links: of those that are slow what a message takes one way, in s.
        workers: of those that are slow how many times as long as the others they take.
    """

    tried: frozenset[Pair]
    links: Mapping[Pair, float]
    workers: Mapping[str, float]


def judged(examined: Mapping[str, Examined], expected: Expected) -> ProbeOutcome:
    """What a whole group's examination shows; the link of two workers has none to be compared with.

    Args:
        examined: what each of the group has measured, by names.
        expected: what is usual.
    """
    # What a message of each pair takes one way: half of an exchange; the shortest where there were several.
    delays_s: dict[Pair, float] = {}
    for name, one in examined.items():
        for other, both_ways_s in one.exchanges:
            if other in examined and other != name:
                pair = pair_of(name, other)
                delays_s[pair] = min(both_ways_s / 2, delays_s.get(pair, both_ways_s / 2))
    took_s = {name: [one.compute_s / expected.slowdown.get(name, 1.0)] for name, one in examined.items()}
    if len(delays_s) < FEWEST:
        slow_links = {}
    else:
        usual_s = lower_third(delay_s - expected.delay_s(*pair) for pair, delay_s in delays_s.items())
        without_s = {pair: delay_s - usual_s for pair, delay_s in delays_s.items()}
        slow_links = {pair: one for pair, one in without_s.items() if one >= expected.delay_s(*pair) + expected.least_s}
    return ProbeOutcome(frozenset(delays_s), slow_links, slow_among(took_s, limit=1 + SLOW_PACE))


# Iterations that take longer for no reason that is known: then everybody is a suspect.
#
# What an iteration takes is followed as `rtk detect` follows a log (tracker.py), from its beginning to the last sum of
# gradients, so that pauses between iterations do not count. Only what is confirmed counts, for to examine everybody
# holds everybody up, and only what is as much as a worker has to be slow by, for less would not be found. With other
# workers, other groups, or something else known to be slow, it is another series.


class WholeIterations:
    """The iteration times of a job."""

    def __init__(self) -> None:
        self._tracker = Tracker()
        self._series: Hashable = None
        self._everybody: Group = ()
        self._is_slow = False
        self._pauses = Pauses()

    def note(self, reports: Mapping[str, Measured], known: Hashable) -> None:
        """An iteration, as all workers tell of it, while this is known to be slow."""
        times_s = [one.iteration_s for one in reports.values() if one.iteration_s is not None]
        series = (frozenset((name, one.peers) for name, one in reports.items()), known)
        if series != self._series:
            self._series, self._tracker, self._is_slow = series, Tracker(), False
            self._everybody = tuple(sorted(reports))
        if len(times_s) < len(reports) or not max(times_s) > 0:
            return
        for change in self._tracker.note(max(times_s)):
            if change.kind in ("confirmed", "level"):
                self._is_slow = change.episode.severity >= 1 + SLOW_PACE
            elif change.kind == "relief":
                self._is_slow = False

    def suspects(self, iteration: int) -> tuple[Group, ...]:
        """Everybody, where iterations are slow and nobody knows why, and it is time to find out; else nobody."""
        is_due = self._is_slow and len(self._everybody) > 1 and self._pauses.is_over(iteration)
        return (self._everybody,) if is_due else ()

    def examined(self, iteration: int, group: Group) -> None:
        """All of a group have been examined."""
        if group == self._everybody and self._is_slow:
            self._pauses.begin(iteration)
