"""Slackness: how many more forwards a stage warms up with than the next one, and the link delay that this absorbs.

Adaptra, section 4.1. Stage i runs x_i forwards before its first backward; link i has the slackness D_i = x_i - x_{i+1}.
By Theorem 1 a delay of link i costs about itself, once, as long as the slack absorbs it; beyond that it opens a bubble
every D_i + 1 micro-batches, and these cascade: about N c_i / (D_i + 1). Equation 1 says where the one turns into the
other, for stages of unlike times:

    tF_i + tB_i + 2 c_i <= D_i (tF_{i+1} + tB_{i+1})        (the paper's B is I here)

The theorem's costs are orders of growth, so they are not computed here: a plan's prediction has the exact ones.
"""

from collections.abc import Sequence
from itertools import pairwise

from ...schemas.plan import Stage
from ..scheduling.problem import BACKWARD, FORWARD, KINDS

Counts = tuple[int, int, int]  # operations of each kind, in the order of their codes


def warmup_of(order: Sequence[int]) -> int:
    """The forwards that an order of operation codes has before its first backward."""
    return next((place for place, code in enumerate(order) if code % KINDS != FORWARD), len(order))


def slackness(warmup: Sequence[int]) -> list[int]:
    """D_i = x_i - x_{i+1} of each link, for the warm-up forwards x_i of each stage."""
    return [here - above for here, above in pairwise(warmup)]


def tolerated_delays_s(stages: Sequence[Stage], orders: Sequence[Sequence[int]]) -> list[float | None]:
    """The largest delay of each link that Equation 1 admits, read off the orders of one pipeline.

    The equation compares two stretches of work: stage i + 1, having ended I of micro-batch a, works on until F of
    micro-batch b (the right side), and meanwhile I of a must come to stage i, run there with the F of b that is next,
    and F of b come back (the left side). The paper takes the right side from the warm-ups. We deviate and count what
    the orders hold there, for every I and the next F of stage i, and keep the least: the slack of a warm-up does not
    last where, by Algorithm 3, backwards that had to wait for the end of the warm-up then go before forwards. In orders
    that run I and F in turns after the warm-up the two are equal.

    Args:
        stages: the pipeline's stages.
        orders: operation codes of each stage, the backward split.

    Returns:
        Seconds for each link: 0 where the next stage waits even without a delay, so that any adds to it; None where no
        F comes after an I, so that nothing cascades whatever the delay.
    """
    pipeline = list(zip(stages, orders, strict=True))
    return [_tolerated_s(here, above) for here, above in pairwise(pipeline)]


def needed_slack(here: Stage, above: Stage, delay_s: float) -> float:
    """The least D_i that keeps Equation 1, as a real number; infinite where the next stage takes no time.

    Args:
        here: stage i.
        above: stage i + 1.
        delay_s: the delay c_i of the link between them, in s.
    """
    wanted_s = here.forward_s + here.backward_input_s + 2 * delay_s
    offered_s = above.forward_s + above.backward_input_s
    if wanted_s == 0.0:
        return 0.0
    return wanted_s / offered_s if offered_s else float("inf")


def _tolerated_s(here: tuple[Stage, Sequence[int]], above: tuple[Stage, Sequence[int]]) -> float | None:
    """Half of what the upper stage's stretch is longer than the lower one's, at least, over all pairs of I and F."""
    before_here, before_above = _done_before(here[1]), _done_before(above[1])
    spare_s = []
    for backward, forward in _turns(here[1]):
        own_s = _work_s(here[0], before_here[backward], before_here[forward]) + here[0].forward_s
        other_s = _work_s(above[0], before_above[backward], before_above[forward]) - above[0].backward_input_s
        spare_s.append(other_s - own_s)
    return max(0.0, min(spare_s) / 2) if spare_s else None


def _turns(order: Sequence[int]) -> list[tuple[int, int]]:
    """Every F that follows an I, with the last I before it; both as codes."""
    turns = []
    backward = None
    for code in order:
        if code % KINDS == BACKWARD:
            backward = code
        elif code % KINDS == FORWARD and backward is not None:
            turns.append((backward, code))
    return turns


def _done_before(order: Sequence[int]) -> dict[int, Counts]:
    """For each operation of an order, how many of each kind come before it."""
    counts = [0] * KINDS
    before: dict[int, Counts] = {}
    for code in order:
        before[code] = (counts[0], counts[1], counts[2])
        counts[code % KINDS] += 1
    return before


def _work_s(stage: Stage, since: Counts, until: Counts) -> float:
    """How long a stage works between two places of its order, in s; counts times durations, so without rounding up."""
    return sum((b - a) * stage.duration_s(kind) for a, b, kind in zip(since, until, "FIW", strict=True))
