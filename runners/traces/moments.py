"""Events become moments: what a policy is asked about."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby

from ...schemas.errors import InvalidInputError
from ...schemas.replay import Fleet, Moment
from ...schemas.trace import TraceEvent
from .ledger import Ledger
from .told import Told


def moments(found: Iterable[Told], usual_link_s: float = 0.0) -> Iterator[Moment]:
    """The moments of a trace, one for all events of a time.

    The first one, at the first event's time, has the fleet after all events of that time, and nobody as lost or come.
    A node that goes and comes back in the same instant is both lost and come (it lost what it held); one that comes and
    goes was never there. Events that change nothing for the nodes that are there are no moments; the end of the trace
    is one, with the fleet of the moment before and nobody lost or come.

    Args:
        found: events in time order.
        usual_link_s: what a message between two nodes takes where nothing is slow.

    Raises:
        InvalidInputError: an event cannot have happened; there are none, or no nodes are there at the beginning.
    """
    ledger, failures = Ledger(usual_link_s), 0
    before: Fleet | None = None
    for time_s, group in groupby(found, key=_time_s):
        lost, came, is_end, where = _pass(ledger, group)
        fleet = ledger.fleet()
        if before is None:
            yield _first(time_s, fleet, where)
        elif lost or came or fleet != before:
            failures += bool(lost)
            yield Moment(time_s, fleet, lost, came, failures)
        elif is_end:
            fleet = before
            yield Moment(time_s, before, failures=failures)
        before = fleet
    if before is None:
        raise InvalidInputError("the trace has no events", fix="give one that says which nodes there are")


def from_start(found: Iterable[Told], nodes: Iterable[str] = ()) -> Iterator[Told]:
    """A trace from time 0 on: nodes that are there at the start come then.

    Without nodes that are there at the start, the trace begins with its first event, and that is time 0: what passes
    until the first nodes come is no training. With them, times are as they are.
    """
    first = [Told(TraceEvent("join", time_s=0.0, node=node), "the nodes at the start") for node in nodes]
    if first:
        yield from chain(first, found)
        return
    start_s = None
    for one in found:
        start_s = _time_s(one) if start_s is None else start_s
        yield Told(replace(one.event, time_s=round(_time_s(one) - start_s, 6)), one.where) if start_s else one


def _pass(ledger: Ledger, group: Iterable[Told]) -> tuple[tuple[str, ...], tuple[str, ...], bool, str]:
    """Let an instant's events happen: who is lost, who has come, whether it is the end, and where the last stands."""
    lost: dict[str, None] = {}
    came: dict[str, None] = {}
    is_end, where = False, ""
    for one in group:
        is_there = one.event.node in ledger
        ledger.take(one)
        is_end, where = one.event.kind == "end", one.where
        node = one.event.node or ""
        if is_there and node not in ledger and node not in came:
            lost[node] = None
        elif is_there and node not in ledger:
            del came[node]
        elif not is_there and node in ledger:
            came[node] = None
    return tuple(lost), tuple(came), is_end, where


def _first(time_s: float, fleet: Fleet, where: str) -> Moment:
    if not fleet.nodes:
        raise InvalidInputError(
            "at the beginning no nodes are there",
            where=where,
            fix="say which there are at the start (--nodes or --cluster)",
        )
    return Moment(time_s, fleet)


def _time_s(one: Told) -> float:
    assert one.event.time_s is not None
    return one.event.time_s
