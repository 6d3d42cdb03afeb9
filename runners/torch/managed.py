"""What torchft's loops use beside the `Manager`: a DDP module, an optimizer, a sampler, and a process group's name.

Their names and arguments are torchft's (2026.10: ddp.py, optim.py, data.py), so that one import is all that changes.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn import parallel
from torch.optim import Optimizer
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler as TorchSampler

from .groups import HashStore
from .groups import ProcessGroupGloo as TorchGloo
from .manager import Manager


class ProcessGroupGloo:
    """What torchft's loop makes for its Manager; rtk makes groups for each membership, and needs none.

    So it is whatever backend the loop names: gradients are summed over gloo.

    Args:
        timeout: of its operations; a dead peer is seen at once, and a silent one by its missing heartbeat.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        self.timeout = timeout


class PGTransport:
    """What torchft's loop makes to copy state by; rtk copies it itself, over connections that replicas have anyway.

    Args:
        given: as torchft's transports take it.
        named: so, too.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        del given, named


class DistributedDataParallel(parallel.DistributedDataParallel):
    """DDP whose gradients a Manager averages, bucket by bucket, while the backward pass goes on.

    Args:
        manager: of this replica.
        module: the whole model.
        kwargs: as of torch's DDP, but for the process group.
    """

    def __init__(self, manager: Manager, module: nn.Module, **kwargs: Any) -> None:
        # A group of one takes what DDP sends when it is made. Buckets stay as they are, for those who come later have
        # the same: torch rebuilds them after the first step, unless parameters may be unused.
        super().__init__(module, process_group=_group_of_one(), find_unused_parameters=True, **kwargs)
        self.register_comm_hook(manager, _averaged)


def _group_of_one() -> distributed.ProcessGroup:
    store = HashStore()
    group, backend = distributed.ProcessGroup(store, 0, 1), TorchGloo(store, 0, 1, timedelta(seconds=60))
    for device in ("cpu", "cuda"):
        group._register_backend(torch.device(device), distributed.ProcessGroup.BackendType.GLOO, backend)
    return group


def _averaged(manager: Manager, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A bucket's average; where that fails the bucket as it is: the step will not count."""
    found: torch.futures.Future[torch.Tensor] = manager.allreduce(bucket.buffer()).get_future()
    return found


class OptimizerWrapper(Optimizer):
    """An optimizer that begins a step with `zero_grad`, and steps where the step counts.

    Args:
        manager: of this replica.
        optim: the optimizer.
    """

    def __init__(self, manager: Manager, optim: Optimizer) -> None:
        self.manager, self.optim = manager, optim

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Have this step's replicas, and no gradients."""
        self.manager.start_quorum()
        self.optim.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Vote, and step where the step counts."""
        if closure is not None:
            raise TypeError("optimizers that need a closure are not supported")
        if self.manager.should_commit():
            self.optim.step()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own."""
        self.optim.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """As the optimizer's own."""
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimizer's own."""
        self.optim.load_state_dict(state_dict)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """As the optimizer's own."""
        return self.optim.param_groups

    @property
    def state(self) -> Mapping[torch.Tensor, Any]:  # type: ignore[override]
        """As the optimizer's own."""
        return self.optim.state


class DistributedSampler(TorchSampler[Any]):
    """A share of the rows for each replica that there may be; those of a dead one are read by nobody.

    Args:
        dataset: of all rows.
        replica_rank: this replica, from 0.
        num_replica_groups: the most replicas that there will be.
        group_rank, num_replicas: of a replica's processes, as of torchft.
        kwargs: as of torch's sampler.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        replica_rank: int,
        num_replica_groups: int,
        group_rank: int = 0,
        num_replicas: int = 1,
        **kwargs: Any,
    ) -> None:
        rank, count = group_rank + num_replicas * replica_rank, num_replicas * num_replica_groups
        super().__init__(dataset, rank=rank, num_replicas=count, **kwargs)
