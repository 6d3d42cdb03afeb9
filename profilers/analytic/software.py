"""How a training program computes, beside what its model is: what differs between programs, and from year to year.

The defaults are those of rtk's own runner, and of today's programs: FlashAttention, sequence parallelism, launches that
run ahead. Megatron-LM of 2021 and 2022, as BigScience trained with it, is `Software(attention="unfused", dropout=True,
sequence_parallel=False, gradients="fp16", sustained=True)`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Literal, get_args

from ...schemas.errors import InvalidInputError
from ...schemas.profile import DataType
from ...schemas.quantities import print_time

Attention = Literal["flash", "unfused"]


@dataclass(frozen=True, slots=True)
class Software:
    """What of a program its times depend on.

    Attributes:
        attention: "flash" is one kernel that keeps no scores (Dao, 2022); "unfused" writes them to memory between its
            products, the mask saves nothing, and heads of a size that 8 does not divide use no tensor cores.
        dropout: of attention's scores where they are in memory, and of the stream.
        sequence_parallel: with tensor parallelism each rank has 1/t of norms, dropouts and sums too (Korthikanti et
            al., 2022); else each computes and keeps them whole.
        gradients: the numbers in which they are kept; they are made in the model's, and then added by a kernel of their
            own. None: the model's, and products add to them at once.
        sustained: products reach what they were seen to reach in a long training, not the most that was ever seen.
        kernel_gap_s: between kernels where the program waits for each (`CUDA_LAUNCH_BLOCKING=1`: some 47 us); None:
            launches run ahead, and the GPU's own gap counts.
        hidden_sums: a full backward pass sums what a product gives to the layer before while it computes the same
            product's weight gradient, as Megatron-LM since 2022 (`megatron/core/tensor_parallel`,
            `LinearWithGradAccumulationAndAsyncCommunication`) and NeMo; else one comes after the other.

    Raises:
        InvalidInputError: there is no such attention, or the gap is no time.
    """

    attention: Attention = "flash"
    dropout: bool = False
    sequence_parallel: bool = True
    gradients: DataType | None = None
    sustained: bool = False
    kernel_gap_s: float | None = None
    hidden_sums: bool = False

    def __post_init__(self) -> None:
        if self.attention not in get_args(Attention):
            known = " or ".join(get_args(Attention))
            raise InvalidInputError(f"{self.attention!r} is no attention", where="--attention", fix=f"take {known}")
        if self.kernel_gap_s is not None and not 0 <= self.kernel_gap_s < inf:
            raise InvalidInputError(
                f"{print_time(self.kernel_gap_s)} is no gap between kernels",
                where="--kernel-gap",
                fix="write 47us, say",
            )

    @property
    def hidden_share(self) -> float:
        """Of a sum in I, what can run beside weight gradients.

        With sequence parallelism it is the reduce-scatter behind the product. The all-gather, the other half, is of
        the gradient that comes in, and nothing can begin before it.
        """
        if not self.hidden_sums:
            return 0.0
        return 0.5 if self.sequence_parallel else 1.0

    def options(self) -> dict[str, Any]:
        """What is not as by default, by name: for a profile's `model`."""
        return {name: value for name, value in asdict(self).items() if value != getattr(USUAL_SOFTWARE, name)}


USUAL_SOFTWARE = Software()


def software_of(options: Mapping[str, Any]) -> Software:
    """The software that a profile's `model` says; what it does not say is as by default."""
    return Software(**{name: value for name, value in options.items() if name in Software.__dataclass_fields__})
