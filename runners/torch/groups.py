"""Sums over groups of ranks, and the errors of peers, alike for all transports."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

from ...schemas.errors import RuntimeFailedError
from .c10d import PrefixStore, Store

# A peer that dies closes its connections, which shows at once; this only ends a wait for one that is silent.
SILENCE = timedelta(minutes=10)

GroupFactory = Callable[[Store, int, int], Any]  # (store, rank in the group, size) to a process group


class PeerGroups:
    """The groups of ranks that a rank sums over.

    Args:
        make_group: makes a process group.
        store: where the ranks meet.
        rank: this process.
        groups: the groups this rank is in; nothing is made for one that it is alone in.
        device: where the process groups take tensors.
    """

    def __init__(
        self,
        make_group: GroupFactory,
        store: Store,
        rank: int,
        groups: Iterable[tuple[int, ...]],
        device: torch.device,
    ) -> None:
        self._device = device
        self._groups = {
            group: make_group(PrefixStore(f"rtk/group/{group}", store), group.index(rank), len(group))
            for group in sorted(groups)
            if len(group) > 1
        }

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum in place, by way of the groups' device; nothing to do in a group of one."""
        if len(group) == 1:
            return
        data = tensor.to(self._device)
        with peer_errors():
            self._groups[group].allreduce([data]).wait()
        if data is not tensor:
            tensor.copy_(data)


@contextmanager
def peer_errors() -> Iterator[None]:
    """Turn errors about peers, which torch raises as RuntimeError, into ours."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeFailedError(
            f"the connection to another worker broke: {str(error).splitlines()[0]}",
            fix="look at that worker's own error; start the run again",
        ) from error
