"""gpt-tiny in double precision, in which a worker's training thread hangs while a file says so.

The file is `FOLDER/PID` for the process PID, in the folder that the environment variable RTK_HANGS names.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rtk.benchmarks.double_model import layers as double_layers

HANGS = "RTK_HANGS"


class Hanging(nn.Module):
    """A layer that does not come back while there is such a file; its process lives on."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *arguments: Any) -> torch.Tensor:
        """As the layer inside."""
        file = Path(os.environ.get(HANGS, "/nowhere")) / str(os.getpid())
        while file.exists():
            time.sleep(0.02)
        result: torch.Tensor = self.inner(*arguments)
        return result


def layers() -> list[nn.Module]:
    """The layers, each of which can hang."""
    return [Hanging(layer) for layer in double_layers()]
