"""Throughput over time: spans as they come, in memory that does not grow with the trace.

Of a long trace nobody looks at every span: a report shows stretches, neighbours that were merged until none is shorter
than a share of the whole. What the whole will be is known at the end only; until then, whenever there are too many
spans, neighbours are merged by the same rule with a smaller share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

# 25 times a report's stretches (`report.py`): of those merging moves the beginning by a twelfth of one at most.
MOST_SPANS = 50_000


@dataclass(slots=True)
class Span:
    """A standing's time in force, until the fleet or the standing changes; micro-batches are those that stayed.

    Of merged spans, nodes are averages over their time.
    """

    start_s: float
    nodes: float
    working_nodes: float
    end_s: float = 0.0
    microbatches: int = 0


def merged(group: Sequence[Span]) -> Span:
    """Neighbours as one."""
    first, last = group[0], group[-1]
    lasts_s, microbatches = last.end_s - first.start_s, sum(span.microbatches for span in group)
    if len(group) == 1 or lasts_s <= 0:
        return Span(first.start_s, last.nodes, last.working_nodes, last.end_s, microbatches)
    nodes = sum((span.end_s - span.start_s) * span.nodes for span in group) / lasts_s
    working = sum((span.end_s - span.start_s) * span.working_nodes for span in group) / lasts_s
    return Span(first.start_s, nodes, working, last.end_s, microbatches)


def neighbours(spans: Iterable[Span], least_s: float) -> Iterator[list[Span]]:
    """Spans in groups, of which each lasts so long, but for the last one."""
    group: list[Span] = []
    for span in spans:
        if group and group[-1].end_s - group[0].start_s >= least_s:
            yield group
            group = []
        group.append(span)
    if group:
        yield group
