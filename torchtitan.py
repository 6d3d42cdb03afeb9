"""rtk under torchtitan's trainer: the face of `runners/torch/titan.py`."""

from .runners.torch.titan import pipelining_fn as pipelining_fn
