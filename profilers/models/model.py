"""What a model is to the profiler and to a run: layers, a loss, and examples."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from ...schemas.form import AS_USUAL, DataType, ModelForm
from ..sharding import TensorParallelPlan
from .factory import describe
from .titles import title_of

DEFAULT_MICROBATCH_SIZE = 4
DEFAULT_SEQUENCE_LENGTH = 128
TORCH_TYPES: dict[DataType, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}

Example = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model ready to be cut into stages.

    Args:
        name: as it was asked for.
        layers: in order; each maps one tensor to one tensor.
        loss: maps (the last layer's output, targets) to a scalar, a mean over the micro-batch.
        microbatch_size: samples in one micro-batch, the first dimension of inputs and targets.
        sequence_length: tokens of one sample; None for models that read no sequences.
        vocabulary: number of distinct tokens; None for models that read none.
        example: makes one random micro-batch (inputs, targets) of these sizes, the same for the same seed.
        form: in which the layers are.
        tensor_parallel: how matrices of the layers are shared out by tensor parallelism; None where nobody has said.
    """

    name: str
    layers: list[nn.Module]
    loss: Loss
    microbatch_size: int
    sequence_length: int | None
    vocabulary: int | None
    example: Example
    form: ModelForm = AS_USUAL
    tensor_parallel: TensorParallelPlan | None = None


def token_example(microbatch_size: int, sequence_length: int, vocabulary: int) -> Example:
    """Random tokens (microbatch_size, sequence_length); the targets are the next tokens."""

    def example(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(vocabulary, (microbatch_size, sequence_length + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return example


def loss_in_float32(loss: Loss) -> Loss:
    """A loss that is computed in float32 where the last layer's output is of a shorter type."""
    return lambda output, target: loss(output.to(torch.promote_types(output.dtype, torch.float32)), target)


def in_type(modules: Iterable[nn.Module], dtype: DataType) -> None:
    """Bring parameters and buffers into a form's type, in place; by default they stay as they were made."""
    if dtype != AS_USUAL.dtype:
        for module in modules:
            module.to(TORCH_TYPES[dtype])


def apply(layers: Iterable[nn.Module], value: torch.Tensor) -> torch.Tensor:
    """The layers one after another.

    Raises:
        RuntimeError: one does not take what the one before gives; says which, and the shape.
        TypeError: one returns something else than a tensor.
    """
    for place, layer in enumerate(layers):
        try:
            given = layer(value)
        except Exception as error:
            taken = f"layer {place}, {title_of(layer)}, does not take {tuple(value.shape)}"
            raise RuntimeError(f"{taken}: {describe(error)}") from error
        if not isinstance(given, torch.Tensor):
            raise TypeError(f"{title_of(layer)} returns a {type(given).__name__}, and must return one tensor")
        value = given
    return value


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's global generator starts from the seed in here, and goes on afterwards as if nothing had been."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
