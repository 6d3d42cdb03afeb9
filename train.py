"""What a script of one's own needs: `from rtk.train import Training`; docs/library.md has it in use."""

from .profilers.models.huggingface import HuggingFace as HuggingFace
from .runners.torch.data.tokens import Tokens as Tokens
from .runners.torch.schedules import constant as constant
from .runners.torch.schedules import cosine as cosine
from .runners.torch.schedules import linear as linear
from .runners.torch.schedules import wsd as wsd
from .runners.torch.stage import add_loss as add_loss
from .training import DataFiles as DataFiles
from .training import Evaluation as Evaluation
from .training import Training as Training
