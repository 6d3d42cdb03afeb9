"""Our own traces (`rtk.trace`), as JSON lines or CSV, turned into events of nodes by time."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ...schemas.errors import InvalidInputError
from ...schemas.trace import TraceEvent, events_of_csv, events_of_json
from .lines import Source
from .told import Told


def own_json(source: Source) -> Iterator[Told]:
    """JSON lines, an event each."""
    return (Told(event, where) for where, event in events_of_json(source.lines(), source.name))


def own_csv(source: Source) -> Iterator[Told]:
    """CSV whose first line names the columns."""
    return (
        Told(event, where) for where, event in events_of_csv((line + "\n" for _, line in source.lines()), source.name)
    )


def of_nodes(
    found: Iterable[Told], iteration_time_s: float | None = None, worker_nodes: Mapping[str, str] | None = None
) -> Iterator[Told]:
    """Events by time and of nodes.

    What happens to a worker happens to its node: it is down while any of its workers is, and of several slow workers
    the slowest counts.

    Args:
        found: events by time or iteration, of nodes, workers or links.
        iteration_time_s: how long an iteration takes: one by iteration n happens at n times that.
        worker_nodes: the node of each worker k/i.

    Raises:
        InvalidInputError: an event needs one of the two, which is not there.
    """
    troubles: defaultdict[str, _Troubles] = defaultdict(_Troubles)
    for one in found:
        event = _timed(one, iteration_time_s)
        if event.worker is not None:
            node = _node(event.worker, worker_nodes, one.where)
            to_node = troubles[node].of_node(replace(event, worker=None, node=node), event.worker)
            if to_node is None:
                continue
            event = to_node
        elif event.link is not None:
            ends = (_node(worker, worker_nodes, one.where) for worker in event.link.split("-"))
            event = replace(event, link=None, node=next(ends), peer=next(ends))
        elif event.peer is None and event.kind != "slow_compute":
            troubles.pop(event.node or "", None)
        yield Told(event, one.where)


def _timed(one: Told, iteration_time_s: float | None) -> TraceEvent:
    event = one.event
    if event.iteration is None:
        return event
    if iteration_time_s is None:
        raise InvalidInputError(
            "the event happens in an iteration, and nobody says how long those take",
            where=one.where,
            fix="write time_s, or give the time of an iteration",
        )
    return replace(event, iteration=None, time_s=round(event.iteration * iteration_time_s, 6))


def _node(worker: str, worker_nodes: Mapping[str, str] | None, where: str) -> str:
    if worker_nodes is None:
        raise InvalidInputError(
            f"nobody says on which node the worker {worker} runs",
            where=where,
            fix="name nodes instead of workers, or give the nodes of all workers",
        )
    if worker not in worker_nodes:
        raise InvalidInputError(
            f"no node that is there at the start has a worker {worker}",
            where=where,
            fix="name another one, or take a larger job or more nodes",
        )
    return worker_nodes[worker]


@dataclass
class _Troubles:
    """What is wrong with a node's workers: who is down, and by which factors who is slow."""

    down: set[str] = field(default_factory=set)
    slow: dict[str, float] = field(default_factory=dict)

    def of_node(self, event: TraceEvent, worker: str) -> TraceEvent | None:
        """What an event of a worker is to its node; None: nothing."""
        if self.down and worker not in self.down and event.kind in ("slow_compute", "recover"):
            return None
        if event.kind == "slow_compute":
            self.slow[worker] = event.factor or 1.0
            return replace(event, factor=max(self.slow.values()))
        if event.kind in ("fail", "stop"):
            self.slow.clear()
            self.down.add(worker)
            return event if len(self.down) == 1 else None
        if worker in self.down:
            self.down.remove(worker)
            return None if self.down else event
        if event.kind == "recover" and self.slow.pop(worker, None) is not None and self.slow:
            return replace(event, kind="slow_compute", factor=max(self.slow.values()))
        return event
