"""How fast a device works: a roofline (Williams et al., 2009) whose parts do not overlap within a pass.

A pass takes FLOPs / rate + bytes / bandwidth + kernels x overhead, matrix products included: in F and I they pay for
what goes in and comes out, in W for their operands, while the gradient they add to is fetched meanwhile. So a product
of intensity f (FLOPs a byte) reaches a share of the best rate of f / (f + r), where r is the best rate over the
bandwidth: the kernel efficiency curve. Both ends are the classic roofline's; where its lines meet it is half as high.
Measurements on a CPU core have this form (docs/benchmarks.md); on an A100 it gives an eighth of the matrices of a 22B
model (8192 tokens, 6144 x 2304) 77 % of the peak.
"""

from dataclasses import dataclass

from ...schemas.errors import InvalidInputError
from ...schemas.form import DataType
from ...schemas.gpus import MEMORY_SHARE, Gpu
from .work import LayerWork, Work

# FlashAttention-2 on A100 reaches 50 to 73 % of the peak without a mask (Dao, 2023, figure 5), and less with one;
# torch's kernels on a CPU reach half of a matrix product's rate.
ATTENTION_SHARE = 0.5
# A causal attention's kernel leaves out the half of the products that the mask would throw away.
CAUSAL = 0.5


@dataclass(frozen=True, slots=True)
class Correction:
    """What a calibration found: measured over computed, of matrix products and of everything else."""

    matrix: float = 1.0
    rest: float = 1.0


@dataclass(frozen=True, slots=True)
class Corrections:
    """One for each pass of a layer; sums over the tensor-parallel group stay as they are."""

    forward: Correction = Correction()
    backward_input: Correction = Correction()
    backward_weight: Correction = Correction()
    optimizer: Correction = Correction()


AS_COMPUTED = Corrections()


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device does in a second.

    Args:
        matrix_flops_per_s: of large matrix products.
        matrix_bytes_per_s: of their operands; None where products take the time of their FLOPs only.
        attention_flops_per_s: of attention's products, counted as if it were not causal.
        bytes_per_s: of everything else.
        kernel_s: each kernel's overhead.
    """

    matrix_flops_per_s: float
    matrix_bytes_per_s: float | None
    attention_flops_per_s: float
    bytes_per_s: float
    kernel_s: float

    def matrix_s(self, work: Work) -> float:
        """Of a pass's matrix products."""
        computing_s = work.matrix_flops / self.matrix_flops_per_s
        if self.matrix_bytes_per_s is None:
            return computing_s
        return max(
            computing_s + work.streamed_bytes / self.matrix_bytes_per_s, work.matrix_bytes / self.matrix_bytes_per_s
        )

    def rest_s(self, work: Work) -> float:
        """Of everything else, sums over the group excepted."""
        attention_s = work.attention_flops / self.attention_flops_per_s
        return attention_s + work.moved_bytes / self.bytes_per_s + work.kernels * self.kernel_s

    def pass_s(self, work: Work, correction: Correction, reduction_s: float) -> float:
        """A pass, with its sums over the group of `reduction_s` each."""
        computing_s = correction.matrix * self.matrix_s(work) + correction.rest * self.rest_s(work)
        return computing_s + work.reductions * reduction_s

    def layer_s(
        self, work: LayerWork, corrections: Corrections = AS_COMPUTED, reduction_s: float = 0.0
    ) -> tuple[float, float, float]:
        """F, I and W of a layer."""
        return (
            self.pass_s(work.forward, corrections.forward, reduction_s),
            self.pass_s(work.backward_input, corrections.backward_input, reduction_s),
            self.pass_s(work.backward_weight, corrections.backward_weight, reduction_s),
        )


def rates_of(device: Gpu, dtype: DataType, efficiency: float | None = None) -> Rates:
    """A GPU's rates.

    Args:
        device: the GPU.
        dtype: the numbers that matrix products and attention compute in.
        efficiency: of the peak, that all matrix products are to reach; None for what their size allows.

    Raises:
        InvalidInputError: the GPU has no such numbers, or the efficiency is no share.
    """
    if dtype not in device.peaks:
        raise InvalidInputError(
            f"{device.name} does not compute in {dtype}", where="--dtype", fix=f"it has {', '.join(device.peaks)}"
        )
    if efficiency is not None and not 0 < efficiency <= 1:
        raise InvalidInputError(
            f"{efficiency:g} is no share of the peak", where="--efficiency", fix="give a number above 0, at most 1"
        )
    reachable = device.peaks[dtype] * device.matrix_share
    bytes_per_s = MEMORY_SHARE * device.memory_bytes_per_s
    return Rates(
        matrix_flops_per_s=reachable if efficiency is None else device.peaks[dtype] * efficiency,
        matrix_bytes_per_s=bytes_per_s if efficiency is None else None,
        attention_flops_per_s=ATTENTION_SHARE * reachable / CAUSAL,
        bytes_per_s=bytes_per_s,
        kernel_s=device.kernel_s,
    )
