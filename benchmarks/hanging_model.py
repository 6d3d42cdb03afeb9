"""gpt-tiny in double precision, in which a worker's training thread hangs while a file says so."""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rtk.benchmarks.double_model import layers

# A model's file for `--model FILE:layers`: whoever finds a file with the number of its process beside this one hangs.
SOURCE = """from pathlib import Path
from rtk.benchmarks.hanging_model import hanging_layers

def layers():
    return hanging_layers(Path(__file__).parent)
"""


class Hanging(nn.Module):
    """A layer that does not come back while there is a file `folder`/PID, of its process PID, which lives on."""

    def __init__(self, inner: nn.Module, folder: Path) -> None:
        super().__init__()
        self.inner = inner
        self.folder = folder

    def forward(self, *arguments: Any) -> torch.Tensor:
        """As the layer inside."""
        while (self.folder / str(os.getpid())).exists():
            time.sleep(0.02)
        result: torch.Tensor = self.inner(*arguments)
        return result


def hanging_layers(folder: Path) -> list[nn.Module]:
    """The layers, each of which can hang."""
    return [Hanging(layer, folder) for layer in layers()]
