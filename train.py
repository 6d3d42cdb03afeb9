"""What a script of one's own needs: `from rtk.train import Training`; docs/library.md has it in use."""

from .profilers.models.huggingface import HuggingFace as HuggingFace
from .runners.torch.data.tokens import Tokens as Tokens
from .training import DataFiles as DataFiles
from .training import Training as Training
