"""Adaptra's Algorithm 1: the warm-ups of a pipeline that does not know yet which link will turn slow.

Section 4.2: any link may be the slow one, so the least slackness is made as large as memory admits. The first stage
warms up with all the micro-batches it can hold, the last one with 1, and the steps between are as even as can be, the
larger ones first.

We deviate:
* The paper has one memory limit M and one activation size M_F; ours are per stage. So a stage is cut to its own room,
  and what is left from there on is again divided evenly over the links that follow. With equal rooms this is
  Algorithm 1 to the letter, and with unequal ones the least slackness is still the largest possible: if each room
  admits a step of d for every link behind it, induction along the stages keeps that true of what this hands on.
* More than N forwards cannot be warmed up.
* Without a memory limit the paper's x_max is unbounded. We start at 2S - 1, which is slackness 2 on every link: the
  least that leaves equal stages without bubbles, and what the paper's Figures 4 and 5 show.
"""

from collections.abc import Sequence
from math import ceil

from ...schemas.plan import Stage
from ..scheduling.limits import most_in_flight


def initial_warmups(stages: Sequence[Stage], microbatches: int) -> list[int]:
    """Warm-up forwards of each stage, by Algorithm 1: non-increasing, at least 1, within each stage's memory.

    Args:
        stages: the pipeline's stages, with their memory limits.
        microbatches: how many pass.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    rooms = most_in_flight(stages, microbatches)
    limited = stages[0].memory_limit_bytes is not None and stages[0].activation_bytes > 0
    warmup = [rooms[0] if limited else min(microbatches, 2 * len(stages) - 1)]
    for links_left, room in zip(range(len(stages) - 1, 0, -1), rooms[1:], strict=True):
        step = ceil((warmup[-1] - 1) / links_left)
        warmup.append(min(warmup[-1] - step, room))
    return warmup
