"""1F1B: a warm-up of forwards, then a forward and a backward in turns.

D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, in the synchronous form
of DAPPLE (S. Fan et al., PPoPP 2021) and Megatron-LM. Stage i of S holds at most S - i micro-batches. We deviate where
a memory limit admits fewer: the warm-up is cut to what fits, and later stages never warm up deeper than earlier ones,
for they would wait for forwards that are never sent.
"""

from collections.abc import Sequence

from ...schemas.orders import Token
from ...schemas.plan import Link, Stage
from ..scheduling.limits import most_in_flight


def one_forward_one_backward(stages: Sequence[Stage], links: Sequence[Link], microbatches: int) -> list[list[Token]]:
    """The order of each stage; `links` do not matter.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    orders = []
    depth = microbatches
    for index, room in enumerate(most_in_flight(stages, microbatches)):
        depth = min(depth, len(stages) - index, room)
        orders.append(_order(depth, microbatches))
    return orders


def _order(depth: int, microbatches: int) -> list[Token]:
    """F0 … F(depth-1), then B0 F(depth) B1 …, so that at most `depth` micro-batches are held."""
    order: list[Token] = [("F", j) for j in range(depth)]
    for j in range(microbatches):
        order.append(("B", j))
        if j + depth < microbatches:
            order.append(("F", j + depth))
    return order
