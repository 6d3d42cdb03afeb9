"""In which types a stage computes, and in which its gradients are summed.

| precision | parameters | operations | optimizer's state |
|---|---|---|---|
| fp32 | as the layers are made | in their types | of the parameters' type |
| bf16 | bfloat16 | bfloat16 | bfloat16 |
| bf16-autocast | as made | torch.autocast in F, and in its recomputation | of the parameters' type |
| bf16-master | bfloat16 | bfloat16 | of float32 masters, which are a part of it |
| fp16-master | float16 | float16, of a multiple of the loss (loss_scale.py) | of float32 masters |

Gradients are summed in float32 at least, over micro-batches and over workers, whatever the parameters' type. Messages
between stages have the type of what is sent.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import get_args

import torch
from torch import nn

from ...schemas.errors import InvalidInputError
from ...schemas.text import joined
from ..training import Precision as Precision

_PARAMETERS: dict[Precision, torch.dtype] = {
    "bf16": torch.bfloat16,
    "bf16-master": torch.bfloat16,
    "fp16-master": torch.float16,
}


def require_precision(name: str) -> None:
    """Raise InvalidInputError unless it is a precision."""
    if name not in get_args(Precision):
        raise InvalidInputError(
            f"{name!r} is no precision", where="precision", fix=f"use {joined(get_args(Precision), 'or')}"
        )


def parameter_type(precision: Precision) -> torch.dtype | None:
    """The type of floating parameters; None for that with which layers are made."""
    return _PARAMETERS.get(precision)


def has_masters(precision: Precision) -> bool:
    """Whether the optimizer steps on float32 copies of the parameters."""
    return precision in ("bf16-master", "fp16-master")


def is_loss_scaled(precision: Precision) -> bool:
    """Whether gradients are those of a multiple of the loss."""
    return precision == "fp16-master"


def convert(layers: Iterable[nn.Module], precision: Precision) -> None:
    """Give layers, in place, the parameters' type; again it changes nothing.

    Persistent buffers go along, as in `Module.to`. Those that are not persistent are made by the layers themselves in
    the type that they want, such as the float32 frequencies of rotary embeddings, and keep it.
    """
    dtype = parameter_type(precision)
    if dtype is None:
        return
    for layer in layers:
        for module in layer.modules():
            for parameter in module.parameters(recurse=False):
                if parameter.is_floating_point():
                    parameter.data = parameter.data.to(dtype)
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point() and name not in module._non_persistent_buffers_set:
                    module._buffers[name] = buffer.to(dtype)


def autocasting(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context in which layers and the loss compute."""
    if precision != "bf16-autocast":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def gradient_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which the gradients of parameters of some type are summed."""
    return torch.promote_types(dtype, torch.float32)
