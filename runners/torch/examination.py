"""A worker's part in the examination of suspicious groups, between two iterations (virtual/cluster.py has all)."""

import time
from collections.abc import Sequence
from statistics import median

import torch

from ...schemas.protocols import Examined
from ..virtual.cluster import COMPUTE_S, ROUNDS, Ranks, exchanges_of
from .rank import Rank
from .transport import EXAMINATION_TAG, Transport

SIZE, PRODUCTS = 256, 5  # of matrices so large, so many: some 10 ms on a slow core
MESSAGE = 16384  # numbers of 4 bytes


def examine(rank: Rank, groups: Sequence[Ranks], names: Sequence[str], transport: Transport) -> Examined | None:
    """Multiply matrices, and exchange messages with the others of this rank's groups.

    Args:
        rank: who does it, as slow as it is.
        groups: all groups that are examined, in ranks, in the same order for all.
        names: of the workers, by rank.
        transport: reaches the others, with nothing but this under way.

    Returns:
        What was measured; None for a rank in none of the groups.

    Raises:
        RuntimeFailedError: a connection broke, or was interrupted.
    """
    own = [pair for group in groups if rank.number in group for pair in exchanges_of(group) if rank.number in pair]
    if not own:
        return None
    compute_s = _compute_s(rank)
    exchanges: list[tuple[str, float]] = []
    for first, second in own:
        if rank.number == second:
            _answer(transport, first)
        else:
            exchanges.append((names[second], _exchange(rank, transport, second)))
    return Examined(compute_s, tuple(exchanges))


def _compute_s(rank: Rank) -> float:
    """What the products take, slowed down as operations are; in a paced run what they are to take."""
    begun_s = time.perf_counter()
    factor = torch.rand(SIZE, SIZE, device=rank.held.device)
    took_s = PRODUCTS * median(_product_s(factor) for _ in range(PRODUCTS))
    if rank.paced:
        took_s = max(took_s, COMPUTE_S * rank.own_slowdown)
    took_s *= rank.slowdown
    time.sleep(max(0.0, begun_s + took_s - time.perf_counter()))
    return took_s


def _product_s(factor: torch.Tensor) -> float:
    begun_s = time.perf_counter()
    torch.mm(factor, factor)
    if factor.is_cuda:
        torch.cuda.synchronize(factor.device)
    return time.perf_counter() - begun_s


def _exchange(rank: Rank, transport: Transport, second: int) -> float:
    """Seconds from a message to its answer, at best."""
    message = torch.zeros(MESSAGE)
    transport.post_receive(EXAMINATION_TAG, second, message)
    transport.receive(EXAMINATION_TAG, second)  # it is there
    took_s = []
    for _ in range(ROUNDS):
        transport.post_receive(EXAMINATION_TAG, second, message)
        begun_s = rank.now_s()
        transport.deliver(EXAMINATION_TAG, second, message)
        transport.receive(EXAMINATION_TAG, second)
        took_s.append(rank.now_s() - begun_s)
    return min(took_s)


def _answer(transport: Transport, first: int) -> None:
    message = torch.zeros(MESSAGE)
    for _ in range(ROUNDS):
        transport.post_receive(EXAMINATION_TAG, first, message)
        transport.deliver(EXAMINATION_TAG, first, message)  # at first: that it is there
        transport.receive(EXAMINATION_TAG, first)
    transport.deliver(EXAMINATION_TAG, first, message)
