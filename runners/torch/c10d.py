"""The parts of torch.distributed that we build on, under names that the type checker knows."""

from typing import Any

from torch import distributed
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

# Torch's stubs leave out most of what process groups made directly, without global state, can do.
ProcessGroupGloo: Any = distributed.ProcessGroupGloo  # type: ignore[attr-defined,unused-ignore]
# A CPU build of torch has no NCCL.
ProcessGroupNCCL: Any = getattr(distributed, "ProcessGroupNCCL", None)

__all__ = ["PrefixStore", "ProcessGroupGloo", "ProcessGroupNCCL", "Store", "TCPStore"]
