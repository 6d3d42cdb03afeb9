"""What a trace is like, in numbers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...schemas.replay import Moment
from .moments import moments
from .told import Told


@dataclass(frozen=True)
class Summary:
    """A trace in numbers; times without a loss are between two moments at which nodes were lost.

    Attributes:
        lasts_s: from the first nodes to the end.
        nodes_at_start: how many are there at 0.
        nodes_min: the fewest.
        nodes_max: the most.
        nodes_mean: over time.
        events: by kind; the nodes that are there at the start have a `join` each.
        failures: moments at which nodes were lost.
        nodes_lost: all in all; one that is lost twice counts twice.
        distinct_nodes_lost: one that is lost twice counts once.
        most_lost_at_once: in one moment.
        most_slow_at_once: nodes.
        mean_time_between_failures_s: lasts_s by failures; None where there are none.
        longest_without_loss_s: the longest time between losses, the start and the end.
    """

    lasts_s: float
    nodes_at_start: int
    nodes_min: int
    nodes_max: int
    nodes_mean: float
    events: dict[str, int]
    failures: int
    nodes_lost: int
    distinct_nodes_lost: int
    most_lost_at_once: int
    most_slow_at_once: int
    mean_time_between_failures_s: float | None
    longest_without_loss_s: float


def summary_of(found: Iterable[Told], usual_link_s: float = 0.0) -> Summary:
    """The numbers of a trace, read once and not held.

    Args:
        found: events from 0 on, in time order.
        usual_link_s: what a message between two nodes takes where nothing is slow.

    Raises:
        InvalidInputError: an event cannot have happened.
    """
    kinds: Counter[str] = Counter()
    passing = moments(_counted(found, kinds), usual_link_s)
    tally = Tally(next(passing))
    for moment in passing:
        tally.note(moment)
    return tally.summary(kinds=kinds)


class Tally:
    """What is counted while a trace passes.

    Args:
        first: the moment at 0.
    """

    def __init__(self, first: Moment) -> None:
        nodes = len(first.fleet.nodes)
        self._last = first
        self._at_start = self._min = self._max = nodes
        self._most_slow = len(first.fleet.slow)
        self._lost: Counter[str] = Counter()
        self._most_lost = 0
        self._node_s = self._loss_s = self._longest_s = 0.0

    def note(self, moment: Moment) -> None:
        """The next moment."""
        self._node_s += len(self._last.fleet.nodes) * (moment.time_s - self._last.time_s)
        self._last = moment
        self._min = min(self._min, len(moment.fleet.nodes))
        self._max = max(self._max, len(moment.fleet.nodes))
        self._most_slow = max(self._most_slow, len(moment.fleet.slow))
        self._longest_s = max(self._longest_s, moment.time_s - self._loss_s)
        if moment.lost:
            self._loss_s = moment.time_s
            self._lost.update(moment.lost)
            self._most_lost = max(self._most_lost, len(moment.lost))

    def summary(self, lasts_s: float | None = None, kinds: Mapping[str, int] | None = None) -> Summary:
        """All of it.

        Args:
            lasts_s: when the trace ends, not before the last moment; None: with it.
            kinds: of events, where they were counted.
        """
        last, failures = self._last, self._last.failures
        lasts_s = last.time_s if lasts_s is None else lasts_s
        node_s = self._node_s + len(last.fleet.nodes) * (lasts_s - last.time_s)
        return Summary(
            lasts_s=lasts_s,
            nodes_at_start=self._at_start,
            nodes_min=self._min,
            nodes_max=self._max,
            nodes_mean=node_s / lasts_s if lasts_s else float(self._at_start),
            events=dict(sorted((kinds or {}).items())),
            failures=failures,
            nodes_lost=self._lost.total(),
            distinct_nodes_lost=len(self._lost),
            most_lost_at_once=self._most_lost,
            most_slow_at_once=self._most_slow,
            mean_time_between_failures_s=lasts_s / failures if failures else None,
            longest_without_loss_s=self._longest_s,
        )


def _counted(found: Iterable[Told], kinds: Counter[str]) -> Iterator[Told]:
    for one in found:
        kinds[one.event.kind] += 1
        yield one
