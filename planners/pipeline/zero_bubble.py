"""Zero bubble: the backward split in I and W, the W in what would be bubbles.

P. Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024. As in its section 3.1 a constructive rule is tried in
several variants and the best is kept: the warm-ups of its ZB-H1 (S - i forwards at stage i, the memory of 1F1B) and
ZB-H2 (2(S - i) - 1, no bubble on equal stages), with and without waiting for a message that is about to arrive. We
deviate: times are exact and per stage, delays are per link, limits are in bytes, and the best is the one of least
makespan; its authors take the longest stage time, which suits a staggered optimizer.

Without a memory limit, warm-ups are only preferences: forwards go on while nothing better is there. That holds more
micro-batches than ZB-H1, and buys slack: the same orders lose less when a link turns slow (tests hold the figures).
"""

import math
from collections.abc import Callable, Iterator, Sequence

from ...schemas.plan import Link, Stage
from ..scheduling.list_schedule import Rules, Token, list_schedule
from .limits import most_in_flight


def zero_bubble(
    stages: Sequence[Stage],
    links: Sequence[Link],
    microbatches: int,
    makespan_s: Callable[[list[list[Token]]], float],
    bound_s: float,
) -> list[list[Token]]:
    """The order of each stage.

    Args:
        stages: the stages, with their memory limits.
        links: the links between them.
        microbatches: how many pass.
        makespan_s: evaluates orders.
        bound_s: a makespan that no orders beat; the search ends when one reaches it.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    best: list[list[Token]] = []
    best_s = math.inf
    for rules in _variants(stages, microbatches):
        orders = list_schedule(stages, links, microbatches, rules)
        length_s = makespan_s(orders)
        if length_s < best_s:
            best, best_s = orders, length_s
        if best_s <= bound_s:
            break
    return best


def _variants(stages: Sequence[Stage], microbatches: int) -> Iterator[Rules]:
    depth = len(stages)
    rooms = most_in_flight(stages, microbatches)
    unlimited = [math.inf] * depth
    h1 = [depth - i for i in range(depth)]
    h2 = [2 * (depth - i) - 1 for i in range(depth)]
    for wait in (0.0, 0.5, 1.0):
        for warmup in (h2, h1, [1] * depth):
            capped = [min(x, room) for x, room in zip(warmup, rooms, strict=True)]
            yield Rules(capped, unlimited, weight_wait=wait)
            yield Rules(capped, capped, weight_wait=wait)
            yield Rules(capped, unlimited, steady="alternate", weight_wait=wait)
