"""torchft's names over rtk's coordinator: `from rtk.manager import …` in place of `from torchft import …`."""

from .runners.torch.managed import DistributedDataParallel as DistributedDataParallel
from .runners.torch.managed import DistributedSampler as DistributedSampler
from .runners.torch.managed import OptimizerWrapper as OptimizerWrapper
from .runners.torch.managed import PGTransport as PGTransport
from .runners.torch.managed import ProcessGroupGloo as ProcessGroupGloo
from .runners.torch.manager import Manager as Manager
from .runners.torch.manager import WorldSizeMode as WorldSizeMode
from .runners.torch.manager import plan_of_replicas as plan_of_replicas

Optimizer = OptimizerWrapper  # torchft has both names
HTTPTransport = PGTransport
ProcessGroupNCCL = ProcessGroupXCCL = ProcessGroupAccelerator = ProcessGroupGloo
ProcessGroupBabyNCCL = ProcessGroupBabyXCCL = ProcessGroupBabyAccelerator = ProcessGroupGloo
