"""The formats that `rtk detect` can be told."""

from enum import StrEnum


class Format(StrEnum):
    """What a file may be read as."""

    CSV = "csv"
    JSONL = "jsonl"
    NUMBERS = "numbers"
    MEGATRON = "megatron"
    TORCHTITAN = "torchtitan"
    NANOGPT = "nanogpt"
    MLPERF = "mlperf"
    DLLOGGER = "dllogger"
    CALLS = "calls"
    OPERATIONS = "operations"

    @property
    def is_series(self) -> bool:
        """Whether such a file tells iteration times line by line."""
        return self not in (Format.CALLS, Format.OPERATIONS)
