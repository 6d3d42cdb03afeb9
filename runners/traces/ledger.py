"""Who is there, and what is slow, after each event; what cannot have happened is refused."""

import math
from collections.abc import Iterable, Iterator

from ...schemas.errors import InvalidInputError
from ...schemas.replay import Fleet, NodePair
from ...schemas.text import did_you_mean
from ...schemas.trace import TraceEvent
from .told import Told


class Ledger:
    """The state of a cluster while its trace is read.

    It grows with the nodes that were ever there, not with the events. A link is slow whoever is at its ends; a node
    that comes back is well.

    Args:
        usual_link_s: what a message between two nodes takes where nothing is slow, for slow links by a factor.
    """

    def __init__(self, usual_link_s: float = 0.0) -> None:
        self._usual_link_s = usual_link_s
        self._nodes: dict[str, None] = {}
        self._gone: set[str] = set()
        self._slow: dict[str, float] = {}
        self._slow_links: dict[NodePair, float] = {}
        self._now_s = -math.inf
        self._is_over = False

    def __contains__(self, node: object) -> bool:
        """Whether a node is there."""
        return node in self._nodes

    def fleet(self) -> Fleet:
        """As it is now."""
        links = {pair: takes_s for pair, takes_s in self._slow_links.items() if self._nodes.keys() >= set(pair)}
        return Fleet(tuple(self._nodes), dict(self._slow), links)

    def take(self, one: Told) -> None:
        """Let the next event happen.

        Raises:
            InvalidInputError: it cannot: it lies in the past, or does not fit what there is.
        """
        event = one.event
        assert event.time_s is not None
        if event.time_s < self._now_s:
            raise InvalidInputError(
                "the event lies before the one ahead of it", where=one.where, fix="sort the trace by time"
            )
        if self._is_over:
            raise InvalidInputError("the trace goes on after its end", where=one.where, fix="move the end to the end")
        self._now_s = event.time_s
        self._is_over = event.kind == "end"
        if self._is_over:
            return
        assert event.node is not None
        if event.peer is not None:
            self._change_link(event, (event.node, event.peer), one.where)
        else:
            self._change_node(event, event.node, one.where)

    def _change_node(self, event: TraceEvent, node: str, where: str) -> None:
        is_back = event.kind == "recover" and node in self._gone
        if event.kind == "join" or is_back:
            self._add(node, where)
        elif event.kind in ("fail", "stop"):
            self._require(node, "removed", where)
            del self._nodes[node]
            self._gone.add(node)
            self._slow.pop(node, None)
        elif event.kind == "slow_compute":
            self._require(node, "slow", where)
            self._slow[node] = _above_one(event.factor, where)
        elif event.kind == "slow_link":
            raise InvalidInputError("a slow link has two ends", where=where, fix="name the other one as `peer`")
        else:
            self._require(node, "well again", where)
            if self._slow.pop(node, None) is None:
                raise InvalidInputError(f"{node} recovers, but is well", where=where, fix="remove the event")

    def _add(self, node: str, where: str) -> None:
        if node in self._nodes:
            raise InvalidInputError(
                f"{node} is added, but is there already", where=where, fix="remove the event, or remove the node before"
            )
        self._nodes[node] = None
        self._gone.discard(node)

    def _require(self, node: str, becomes: str, where: str) -> None:
        if node in self._nodes:
            return
        if node in self._gone:
            what, fix = f"{node} is {becomes}, but has gone already", "remove the event, or add the node again before"
        else:
            meant = did_you_mean(node, self._nodes)
            what = f"{node} is {becomes}, but never came" + (f" ({meant})" if meant else "")
            fix = "add it before, or say which nodes there are at the start (--nodes or --cluster)"
        raise InvalidInputError(what, where=where, fix=fix)

    def _change_link(self, event: TraceEvent, ends: NodePair, where: str) -> None:
        for node in ends:
            if node not in self._gone:
                self._require(node, "at an end of a slow link", where)
        pair = (min(ends), max(ends))
        if event.kind == "slow_link":
            self._slow_links[pair] = self._takes_s(event, where)
        elif self._slow_links.pop(pair, None) is None:
            raise InvalidInputError(
                f"the link {'-'.join(pair)} recovers, but is well", where=where, fix="remove the event"
            )

    def _takes_s(self, event: TraceEvent, where: str) -> float:
        """What a message takes in all: the usual time, times the factor, and the delay."""
        if event.factor is not None and not self._usual_link_s:
            raise InvalidInputError(
                "a link is slow by a factor, and nobody says what a message usually takes",
                where=f"{where}, factor",
                fix="write delay_s instead",
            )
        return self._usual_link_s * (event.factor or 1.0) + (event.delay_s or 0.0)


def checked(found: Iterable[Told], usual_link_s: float = 0.0) -> Iterator[Told]:
    """Events as they come, each of which can have happened."""
    ledger = Ledger(usual_link_s)
    for one in found:
        ledger.take(one)
        yield one


def _above_one(factor: float | None, where: str) -> float:
    if factor is None or factor <= 1:
        raise InvalidInputError(
            f"a slow node with the factor {factor} is not slow",
            where=f"{where}, factor",
            fix="give a factor above 1; what is well again recovers",
        )
    return factor
