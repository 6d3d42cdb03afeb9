"""Adaptra's Algorithm 2: the warm-ups that absorb the delays that links have now.

Section 4.2: the last stage warms up with 1 forward, and from there back to the first each stage with as many more as
Equation 1 asks for, at least 2 and at most N - 2S:

    D_i = min(N - 2S, max(ceil((tF_i + tB_i + 2 c_i) / (tF_{i+1} + tB_{i+1})), 2)),   x_i = x_{i+1} + D_i

Taken literally that may ask for more forwards than there are micro-batches, or, where N <= 2S, for fewer and fewer
towards the first stage; memory is left out, for the paper offloads activations. A schedule by such warm-ups never ends.
So here D_i is at least 1, and the result is cut to N and to each stage's memory and made non-increasing (Lemma 1).
"""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

from ...schemas.plan import Link, Stage
from ..scheduling.limits import most_in_flight
from .slackness import needed_slack

# A quotient this close above a whole number, relatively, is that number but for rounding.
ROUNDING = 1e-9


def adapted_warmups(stages: Sequence[Stage], links: Sequence[Link], microbatches: int) -> list[int]:
    """Warm-up forwards of each stage, by Algorithm 2: non-increasing, at least 1, within each stage's memory.

    Args:
        stages: the pipeline's stages, with their memory limits.
        links: the links between them, with the delays to absorb.
        microbatches: how many pass.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    wanted = algorithm_2(stages, links, max(microbatches - 2 * len(stages), 1))
    cut = [min(x, room) for x, room in zip(wanted, most_in_flight(stages, microbatches), strict=True)]
    return list(accumulate(cut, min))


def algorithm_2(stages: Sequence[Stage], links: Sequence[Link], most: int) -> list[int]:
    """Warm-up forwards of each stage as printed, neither cut to the micro-batches nor to memory.

    Args:
        stages: the pipeline's stages.
        links: the links between them, with the delays to absorb.
        most: the largest slackness of a link, N - 2S in the paper.
    """
    warmup = [1]
    for i in reversed(range(len(links))):
        wanted = needed_slack(stages[i], stages[i + 1], links[i].delay_s) * (1 - ROUNDING)
        warmup.insert(0, warmup[0] + ceil(min(most, max(wanted, 2))))
    return warmup
