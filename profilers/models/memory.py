"""Whether a model fits into this machine's free memory, asked before it is made."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...schemas.errors import InfeasibleError
from ...schemas.form import DataType

# The parameter, its gradient and AdamW's two moments.
TRAINING_BYTES_PER_PARAMETER: dict[DataType, int] = {"fp32": 16, "bf16": 8}
FORMATS: dict[DataType, str] = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Size:
    """What a model's memory depends on: its parameters, the width of its stream, its vocabulary."""

    parameters: int
    width: int
    vocabulary: int

    def needed_bytes(self, tokens: int, dtype: DataType = "fp32") -> int:
        """Bytes to train with `tokens` in a micro-batch while one layer holds its activations."""
        per_parameter = TRAINING_BYTES_PER_PARAMETER[dtype]
        # Twice a block's activations (16 widths per token), or logits with their softmax and gradient, which are
        # float32 in either case.
        activations = tokens * max(32 * self.width * per_parameter // 4, 3 * self.vocabulary * 4)
        return per_parameter * self.parameters + activations


def require_memory(name: str, size: Size, tokens: int, dtype: DataType, fitting: Sequence[str] = ()) -> None:
    """Raise InfeasibleError unless a model can be trained here, layer by layer; `fitting` would fit instead."""
    needed, free = size.needed_bytes(tokens, dtype), free_bytes()
    if needed <= free:
        return
    if size.needed_bytes(0, dtype) <= free / 2:
        fix = "take a smaller --microbatch-size or --sequence-length"
    elif fitting:
        fix = f"take a smaller preset ({', '.join(fitting)})"
    else:
        fix = "take a machine with more memory, or compute the profile: --analytic"
    raise InfeasibleError(
        f"{name} needs {needed / 1e9:.1f} GB of memory for {FORMATS[dtype]} parameters, gradients, AdamW's moments and "
        f"one layer's activations; {free / 1e9:.1f} GB are free",
        fix=fix,
    )


def free_bytes() -> int:
    """The memory that a new process could have."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
