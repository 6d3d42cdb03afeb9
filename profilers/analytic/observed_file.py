"""A YAML file with one measured iteration and its settings, to calibrate by."""

from typing import get_args

from ...schemas.cluster_file import YamlValue, read_yaml
from ...schemas.gpus import gpu as known_gpu
from ...schemas.profile import DataType
from ...schemas.quantities import parse_time_s
from ...schemas.sweep_file import flag, items_of, placed, require_keys, word
from .configuration import known_model
from .costs import MicrobatchShape
from .estimate import BEST_TYPES
from .observed import ObservedRun
from .software import USUAL_SOFTWARE, Software

NEEDED = ("model", "pp", "global_batch", "iteration")
KEYS = (*NEEDED, "gpu", "dtype", "microbatch_size", "sequence_length", "tensor_parallel", "dp", "checkpointing")


def read_observed_run(path: str, software: Software = USUAL_SOFTWARE) -> ObservedRun:
    """Read one.

    Args:
        path: of the file.
        software: how the program computed that ran.

    Raises:
        InvalidInputError: a setting is missing, not known, or at odds with another; says the line.
    """
    whole = read_yaml(path)
    entries = whole.entries(KEYS)
    require_keys(whole, entries, *NEEDED)
    with placed(entries["model"]):
        known = known_model(entries["model"].text())

    def count(key: str, default: int = 1) -> int:
        return entries[key].count() if key in entries else default

    size, dp = count("microbatch_size", known.microbatch_size), count("dp")
    microbatches, left = divmod(count("global_batch"), size * dp)
    if left or not microbatches:
        raise entries["global_batch"].wrong(
            f"{count('global_batch')} samples are no whole number of micro-batches of {size} for {dp} pipelines",
            "check global_batch, microbatch_size and dp",
        )
    gpu = _gpu(entries["gpu"]) if "gpu" in entries else None
    suits: DataType = "bf16" if gpu is None else next(one for one in BEST_TYPES if one in known_gpu(gpu).peaks)
    dtype: DataType = word(entries["dtype"], get_args(DataType)) if "dtype" in entries else suits
    return ObservedRun(
        shape=known.shape,
        batch=MicrobatchShape(size, count("sequence_length", known.sequence_length), dtype, software),
        is_checkpointing="checkpointing" in entries and flag(entries["checkpointing"]),
        tensor_parallel=count("tensor_parallel"),
        pp=count("pp"),
        dp=dp,
        microbatches=microbatches,
        iterations_s=tuple(_time_s(value) for value in items_of(entries["iteration"])),
        gpu=gpu,
        source=path,
    )


def _gpu(value: YamlValue) -> str:
    with placed(value):
        return known_gpu(value.text()).name


def _time_s(value: YamlValue) -> float:
    time_s = parse_time_s(value.text(), value.where)
    if not time_s:
        raise value.wrong("an iteration takes longer than no time", "write 12.3s, say")
    return time_s
