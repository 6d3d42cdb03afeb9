"""Zero bubble: the backward split in I and W, the W in what would be bubbles.

P. Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024. As in its section 3.1 a constructive rule is tried in
several variants and the best is kept: the warm-ups of its ZB-H1 (S - i forwards at stage i, the memory of 1F1B) and
ZB-H2 (2(S - i) - 1, no bubble on equal stages), with and without waiting for a message that is about to arrive. We
deviate: times are exact and per stage, delays are per link, limits are in bytes, and the best is the one of least
makespan; its authors take the longest stage time, which suits a staggered optimizer.

Without a memory limit, warm-ups are only preferences: forwards go on while nothing better is there. That holds more
micro-batches than ZB-H1, and buys slack: the same orders lose less when a link turns slow (tests hold the figures).
"""

from collections.abc import Iterator

from ..scheduling.limits import rooms
from ..scheduling.list_schedule import ListScheduler
from ..scheduling.problem import Orders, Problem
from ..scheduling.rules import Priority, Rules


def zero_bubble(problem: Problem, bound_s: float) -> Orders:
    """The order of each stage.

    Args:
        problem: one pipeline, its backwards split, and its makespan as objective.
        bound_s: a makespan that no orders beat; the search ends when one reaches it.

    Returns:
        Operation codes of each stage.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    variants = list(_variants(problem))
    scheduler = ListScheduler(problem, runs=len(variants))
    best: Orders = []
    best_s = float("inf")
    for rules in variants:
        length_s = scheduler.run(rules)
        if length_s < best_s:
            best, best_s = scheduler.orders(), length_s
        if best_s <= bound_s:
            break
    return best


def _variants(problem: Problem) -> Iterator[Rules]:
    room = rooms(problem)
    depth = len(room)
    unlimited = [problem.jobs] * depth
    h1 = [depth - i for i in range(depth)]
    h2 = [2 * (depth - i) - 1 for i in range(depth)]
    for wait in (0.0, 0.5, 1.0):
        for warmup in (h2, h1, [1] * depth):
            capped = [min(x, most) for x, most in zip(warmup, room, strict=True)]
            for in_flight, priority in (
                (unlimited, Priority.INPUT_FIRST),
                (capped, Priority.INPUT_FIRST),
                (unlimited, Priority.ALTERNATE),
            ):
                yield Rules(capped, in_flight, [wait] * depth, unlimited, [priority] * depth)
