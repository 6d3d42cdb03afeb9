"""Which schedule an order of operations is: compared with those that were published.

Plain orders are GPipe's, 1F1B's, and with a backward pass in two, ZB-H1's and ZB-H2's (P. Qi et al., "Zero bubble
pipeline parallelism", ICLR 2024, section 2: F and I as in 1F1B, with S - i or 2(S - i) - 1 forwards before the first
backward at stage i; its W fill what would be idle, so their places are not compared). Those of several virtual stages
a worker are in `planners/placement/published.py`.
"""

from collections.abc import Sequence
from itertools import takewhile

from ...schemas.orders import Operation
from ...schemas.placement import placement_words
from ...schemas.plan import Link, Placement, Stage
from ..pipeline import gpipe, one_forward_one_backward
from ..placement.published import PUBLISHED, column_of_loop, column_of_v, interleaved
from ..scheduling.problem import BACKWARD, FORWARD, WEIGHT

UNKNOWN = "an order of its own"
KIND_OF = {FORWARD: "F", BACKWARD: "I", WEIGHT: "W"}


def schedule_of(orders: Sequence[Sequence[Operation]], placement: Placement, microbatches: int) -> str:
    """The name of the schedule that columns run, or that it is none that is known.

    Args:
        orders: of each column of one pipeline.
        placement: the virtual stages of each column.
        microbatches: of the pipeline.
    """
    if len(placement) == sum(map(len, placement)):
        return _plain(orders, microbatches)
    columns, chunks = len(placement), len(placement[0])
    column_of = {stage: column for column, held in enumerate(placement) for stage in held}
    laid_out = tuple(column_of[stage] for stage in range(len(column_of)))
    ran = [_spelled(order) for order in orders]
    places = [_without_weights(row) for row in ran]
    for form in PUBLISHED:
        fits = column_of_loop(columns, chunks) if form.placement == "loop" else column_of_v(columns, 2)
        is_split = any(kind == "W" for row in ran for kind, _, _ in row)
        if laid_out != fits or form.split != is_split:
            continue
        theirs = [
            [(KIND_OF[one.kind], one.stage, one.microbatch) for one in row if form.split or one.kind != WEIGHT]
            for row in form.orders(columns, chunks, microbatches)
        ]
        if theirs == ran:
            return form.name
        if form.split and [_without_weights(row) for row in theirs] == places:
            return f"{form.name}, with W at places of its own"
    return f"{UNKNOWN} ({placement_words(placement)})"


def megatron_orders(columns: int, chunks: int, microbatches: int) -> list[list[Operation]]:
    """What Megatron-LM runs (pipeline_parallel/schedules.py): 1F1B, interleaved where ranks have virtual stages.

    Args:
        columns: pipeline-parallel ranks.
        chunks: virtual stages of each.
        microbatches: of a pipeline.
    """
    if chunks == 1:
        stages = [Stage((i, i + 1), 1.0, 1.0, 1.0) for i in range(columns)]
        rows = one_forward_one_backward(stages, [Link(0.0)] * (columns - 1), microbatches)
        return [[Operation(kind, 0, number) for kind, number in row] for row in rows]
    return [
        [
            Operation("F" if one.kind == FORWARD else "B", 0, one.microbatch, one.stage)
            for one in row
            if one.kind != WEIGHT
        ]
        for row in interleaved(columns, chunks, microbatches)
    ]


Spelled = list[tuple[str, int, int]]  # kind, virtual stage and micro-batch of each operation


def _spelled(order: Sequence[Operation]) -> Spelled:
    """An order with I for B."""
    return [("I" if one.kind == "B" else one.kind, one.stage or 0, one.microbatch) for one in order]


def _without_weights(order: Spelled) -> Spelled:
    return [one for one in order if one[0] != "W"]


def _plain(orders: Sequence[Sequence[Operation]], microbatches: int) -> str:
    stages = [Stage((i, i + 1), 1.0, 1.0, 1.0) for i in range(len(orders))]
    links = [Link(0.0)] * (len(orders) - 1)
    is_split = any(one.kind == "W" for order in orders for one in order)
    ran = [[(kind, number) for kind, _, number in _without_weights(_spelled(order))] for order in orders]
    known = {"GPipe": gpipe, "1F1B": one_forward_one_backward}
    for name, rule in known.items():
        theirs = rule(stages, links, microbatches)
        if ran == [[("I" if kind == "B" else kind, number) for kind, number in row] for row in theirs]:
            return ("zero bubble (ZB-H1)" if name == "1F1B" else f"{name}, its backward in two") if is_split else name
    ahead = [len(list(takewhile(lambda one: one[0] == "F", row))) for row in ran]
    if is_split and ahead == [min(2 * (len(orders) - i) - 1, microbatches) for i in range(len(orders))]:
        return "zero bubble (ZB-H2)"
    return f"{UNKNOWN}, of zero-bubble's kind" if is_split else UNKNOWN
