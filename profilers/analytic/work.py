"""What an operation does, in quantities that times are linear in."""

from dataclasses import dataclass, fields

from .elementwise import Pointwise


@dataclass(frozen=True, slots=True)
class Work:
    """What one rank does in one pass of one layer.

    Args:
        matrix_flops: of matrix products, two a multiply-add.
        streamed_bytes: of what a matrix product cannot begin without: in F and I rows, weights and results.
        matrix_bytes: of all operands and results of matrix products, once each.
        attention_flops: of attention's two products in F, five in I, as if it were not causal.
        moved_bytes: read and written by everything else.
        kernels: how many.
        reductions: of the residual stream over the tensor-parallel group.
    """

    matrix_flops: float = 0.0
    streamed_bytes: float = 0.0
    matrix_bytes: float = 0.0
    attention_flops: float = 0.0
    moved_bytes: float = 0.0
    kernels: int = 0
    reductions: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @property
    def flops(self) -> float:
        """Of matrix products and attention, as papers count them in F."""
        return self.matrix_flops + self.attention_flops


def product(rows: int, inputs: float, outputs: float, element_bytes: int) -> Work:
    """F of a matrix: (rows, inputs) times (inputs, outputs); or its I, which is as much the other way."""
    moved_bytes = (rows * (inputs + outputs) + inputs * outputs) * element_bytes
    return Work(2 * rows * inputs * outputs, moved_bytes, moved_bytes, kernels=1)


def weight_gradient(rows: int, inputs: float, outputs: float, element_bytes: int) -> Work:
    """W of a matrix: (inputs, rows) times (rows, outputs), added to the gradient, which is fetched meanwhile."""
    row_bytes = rows * (inputs + outputs) * element_bytes
    return Work(2 * rows * inputs * outputs, row_bytes, row_bytes + 2 * inputs * outputs * element_bytes)


def forward_of(operation: Pointwise, size_bytes: float, times: int = 1) -> Work:
    """The forward pass of an operation on tensors of a size, so many times."""
    return Work(moved_bytes=times * operation.forward_passes * size_bytes, kernels=times * operation.kernels)


def backward_of(operation: Pointwise, size_bytes: float, times: int = 1) -> Work:
    """The backward pass of an operation on tensors of a size, so many times."""
    return Work(moved_bytes=times * operation.backward_passes * size_bytes, kernels=times * operation.kernels)


@dataclass(frozen=True, slots=True)
class LayerWork:
    """What one rank does for a layer and one micro-batch; `parameters` are the rank's, for the optimizer step."""

    forward: Work
    backward_input: Work
    backward_weight: Work
    parameters: float
