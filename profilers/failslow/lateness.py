"""Why iterations became slow, from when the ranks of a job came to the calls that they make together.

Calls of several ranks that belong to each other are a *meeting*: all ranks of a group at its n-th call, or sender and
receiver of a message. All clocks are those of one host.

* Who computes slowly comes late, and the others stand waiting: the time between the others' arrival (their median) and
  the rank's own counts for it, or against it when it comes early. So a rank that is late only because it waited for
  another one comes out even.
* A slow link delays nobody's arrival, but the end: time from the last arrival to the end counts as the transfer's; of a
  message no more of it than its receiver stood waiting.

Both are summed over each iteration, no stretch of time twice, and the median of the slow iterations is compared with
that of the usual ones. What explains half of an iteration's extra time is named: transfers first, for who has a slow
link is late at other calls, while who computes slowly does not prolong transfers. The paper profiles the groups of a
job with CUDA events and compares those that carry equal amounts (section 4.3); arrivals tell as much where everybody's
clock is the same, and for a single group as well.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, TypeVar

from ...schemas.detection import Scope

Span = tuple[float, float]
Sums = dict[int, float]  # by iteration
Cause = Literal["computation", "communication", "unknown"]
Found = tuple[Cause, Scope, tuple[str, ...]]
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
    extra_s = _extra_s(usual, slow)
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
        found = _slow_transfers(next(one for one in whole if one.name == slowest), transfers_s[slowest])
    elif max((one.extra_s for one in late_s.values()), default=0.0) >= EXPLAINS * extra_s:
        found = _slow_ranks(late_s)
    else:
        found = _everywhere(bool(transfers_s))
    return Blame(*found, extra_s)


def _extra_s(usual: Sequence[Span], slow: Sequence[Span]) -> float:
    usual_s = median(end_s - begin_s for begin_s, end_s in usual) if usual else 0.0
    slow_s = median(end_s - begin_s for begin_s, end_s in slow) if slow else 0.0
    return slow_s - usual_s if usual else slow_s / 10


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
        return f"{self.now_s * 1000:.1f} ms an iteration, usually {max(0.0, self.usual_s) * 1000:.1f} ms"


def _growths(sums: Mapping[Key, Sums], before: Sequence[int], now: Sequence[int]) -> dict[Key, _Growth]:
    return {key: _Growth(_median(one, before), _median(one, now)) for key, one in sorted(sums.items())}


def _median(sums: Sums, places: Sequence[int]) -> float:
    return median(sums.get(place, 0.0) for place in places) if places else 0.0


def _slow_transfers(meeting: Meeting, growth: _Growth) -> Found:
    told = f"transfers between ranks {', '.join(map(str, meeting.ranks))} take {growth}"
    if len(meeting.ranks) > 2:
        return ("communication", Scope("group", (meeting.name,)), (told,))
    return ("communication", Scope("link", ("-".join(map(str, sorted(meeting.ranks))),)), (told,))


def _slow_ranks(late_s: Mapping[int, _Growth]) -> Found:
    least_s = EXPLAINS * max(one.extra_s for one in late_s.values())
    slow = {rank: growth for rank, growth in late_s.items() if growth.extra_s >= least_s}
    told = (f"others wait for rank {rank} {growth}" for rank, growth in slow.items())
    return ("computation", Scope("worker", tuple(map(str, slow))), tuple(told))


def _everywhere(are_transfers_known: bool) -> Found:
    if are_transfers_known:
        return ("computation", Scope(), ("no rank comes late and no transfer takes long: all are slow alike",))
    return ("unknown", Scope(), ("no rank comes late; how long transfers take is not known",))
