"""GPipe: all forwards, then all backwards.

Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", NeurIPS 2019. Without
its re-materialization, which a profile may have in its costs; the backwards run in the order of the forwards, as in
torch's ScheduleGPipe, so that they stay FIFO between stages.
"""

from collections.abc import Sequence

from ...schemas.errors import InfeasibleError
from ...schemas.orders import Token
from ...schemas.plan import Link, Stage
from ..scheduling.limits import most_in_flight


def gpipe(stages: Sequence[Stage], links: Sequence[Link], microbatches: int) -> list[list[Token]]:
    """The order of each stage; `links` do not matter.

    Raises:
        InfeasibleError: a memory limit does not admit all micro-batches at once.
    """
    for index, room in enumerate(most_in_flight(stages, microbatches)):
        if room < microbatches:
            raise InfeasibleError(
                f"GPipe holds all {microbatches} micro-batches at once, the limit of stage {index} admits {room}",
                where="--memory-limit",
                fix="take fewer micro-batches, or --schedule 1f1b",
            )
    forwards: list[Token] = [("F", j) for j in range(microbatches)]
    backwards: list[Token] = [("B", j) for j in range(microbatches)]
    return [forwards + backwards for _ in stages]
