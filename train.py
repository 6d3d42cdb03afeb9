"""What a script of one's own needs: `from rtk.train import Training`; docs/library.md has it in use."""

from .profilers.models.huggingface import HuggingFace as HuggingFace
from .training import TextFiles as TextFiles
from .training import Training as Training
