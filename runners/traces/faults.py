"""Lists of hardware faults, as StepFun publishes one: which node, from when to when, and what was wrong."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ...schemas.errors import InvalidInputError
from ...schemas.trace import TraceEvent
from .lines import Source
from .told import Told, checked_time_s

DAY_S = 86_400.0
# What a node can live with, and how many times as long its operations take meanwhile: assumptions. The list says
# neither how slow such nodes were nor whether they were used meanwhile.
SLOW_FAULTS = {
    "GPU Temperature High": 1.3,
    "GPU PCI link width low": 1.3,
    "GPU P2P Bandwidth Low": 1.5,
    "NIC PCI link Width low": 1.5,
    "NIC Link Speed low": 2.0,
}


@dataclass
class _Node:
    """A node's faults that are not over: so many take it down, and descriptions of those that slow it down."""

    open: Counter[str] = field(default_factory=Counter)

    def factor(self, slow: Mapping[str, float]) -> float | None:
        """How slow it is, 1 where it is well, None where it is down."""
        current = [description for description, number in self.open.items() if number]
        if any(description not in slow for description in current):
            return None
        return max((slow[description] for description in current), default=1.0)


def faults(source: Source, slow: Mapping[str, float]) -> Iterator[Told]:
    """The list's events; of faults of one node that overlap, the worst counts.

    A fault takes its node down from its start to its end, when the node comes back.

    Args:
        source: one JSON array of `node_id`, `event_time` in days, `event_type` (`fault_start`, `fault_end`) and
            `fault_type` with `Desc`.
        slow: descriptions of faults that slow a node down instead, by factors above 1.

    Raises:
        InvalidInputError: an item is none, or an end has no beginning.
    """
    nodes: dict[str, _Node] = {}
    for where, item in source.items():
        name, time_s, begins, description = _fault(item, where)
        node = nodes.setdefault(name, _Node())
        before = node.factor(slow)
        if not begins and not node.open[description]:
            raise InvalidInputError(
                f"{description!r} ends at {name}, but never began", where=where, fix="add its fault_start"
            )
        node.open[description] += 1 if begins else -1
        for event in _changes(name, time_s, before, node.factor(slow)):
            yield Told(event, where)


def struck_nodes(source: Source) -> tuple[str, ...]:
    """The nodes that a list names, as they appear."""
    return tuple(dict.fromkeys(_fault(item, where)[0] for where, item in source.items()))


def whole_cluster(struck: tuple[str, ...], size: int | None, seed: int, name: str) -> tuple[str, ...]:
    """All nodes of a cluster in which some have faults and nobody names the others: these are called node1, node2, ….

    Which of them sits where nobody says, so they are shuffled: the healthy ones would else be all together.

    Args:
        struck: the nodes with faults.
        size: of the cluster.
        seed: of the shuffling.
        name: the file's.

    Raises:
        InvalidInputError: nobody says how large the cluster is, or it is too small.
    """
    if size is None or size < len(struck):
        said = f"names {len(struck)} nodes" + (", and not how many there are" if size is None else f", not {size}")
        fix = "say how many nodes the cluster has: --nodes 400, or a --cluster"
        raise InvalidInputError(f"the list of faults {said}", where=name, fix=fix)
    fresh = (f"node{number}" for number in count(1))
    taken = set(struck)
    healthy = [next(one for one in fresh if one not in taken) for _ in range(size - len(struck))]
    draw = random.Random(seed)
    return tuple(sorted((*struck, *healthy), key=lambda _: draw.random()))


def _changes(node: str, time_s: float, before: float | None, after: float | None) -> Iterator[TraceEvent]:
    """What happens to a node that was so slow (None: down) and now is so slow."""
    if before == after:
        return
    if after is None:
        yield TraceEvent("fail", time_s=time_s, node=node)
        return
    if before is None:
        yield TraceEvent("join", time_s=time_s, node=node)
    if after > 1:
        yield TraceEvent("slow_compute", time_s=time_s, node=node, factor=after)
    elif before is not None:
        yield TraceEvent("recover", time_s=time_s, node=node)


def _fault(item: Any, where: str) -> tuple[str, float, bool, str]:
    """Node, time in s, whether it begins, and what it is."""
    match item:
        case {
            "node_id": str() as node,
            "event_time": int() | float() as days,
            "event_type": "fault_start" | "fault_end" as kind,
            "fault_type": {"Desc": str() as description},
        } if node:
            return node, checked_time_s(days, DAY_S, where), kind == "fault_start", description
    raise InvalidInputError(
        "this is no fault",
        where=where,
        fix="give node_id, event_time in days, event_type (fault_start or fault_end), and fault_type with Desc",
    )
