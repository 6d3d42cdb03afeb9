"""A YAML file with a job's settings and what was measured of it, to calibrate by: iterations, a log, or a trace."""

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from ...schemas.cluster_file import YamlValue, read_yaml
from ...schemas.errors import InvalidInputError
from ...schemas.gpus import gpu as known_gpu
from ...schemas.profile import DataType
from ...schemas.quantities import parse_time_s
from ...schemas.sweep_file import flag, items_of, placed, require_keys, word
from ...schemas.text import joined
from ..failslow.monitor.series import Series
from ..failslow.readers.reading import lines_of
from .configuration import known_model
from .costs import MicrobatchShape
from .estimate import BEST_TYPES
from .observed import ObservedRun
from .software import USUAL_SOFTWARE, Software
from .step_trace import StepTrace, read_step_trace

NEEDED = ("model", "pp", "global_batch")
MEASURED = ("iteration", "log", "trace")  # how long an iteration took: one of these
KEYS = (*NEEDED, *MEASURED, "gpu", "dtype", "microbatch_size", "sequence_length", "tensor_parallel", "dp",
        "checkpointing", "shard_optimizer")  # fmt: skip


def read_observed_run(path: str, software: Software = USUAL_SOFTWARE) -> tuple[ObservedRun, StepTrace | None]:
    """Read one.

    Args:
        path: of the file.
        software: how the program computed that ran.

    Returns:
        The settings, with what iterations took by the file or its log; and its trace.

    Raises:
        InvalidInputError: a setting is missing, not known, or at odds with another; says the line.
    """
    whole = read_yaml(path)
    entries = whole.entries(KEYS)
    require_keys(whole, entries, *NEEDED)
    if len(told := [key for key in MEASURED if key in entries]) != 1:
        raise whole.wrong(
            f"{joined(told)} cannot go together" if told else "'iteration' is missing, and so are 'log' and 'trace'",
            "say one of them: how long iterations took, the log that tells it, or a trace of torch's profiler",
        )
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
    if count("pp") > known.shape.blocks:
        raise entries["pp"].wrong(f"{count('pp')} stages are more than the {known.shape.blocks} blocks", "check pp")
    folder = Path(path).parent
    trace = read_step_trace(str(folder / entries["trace"].text())) if "trace" in entries else None
    gpu = _gpu(entries["gpu"]) if "gpu" in entries else None if trace is None else trace.gpu
    suits: DataType = "bf16" if gpu is None else next(one for one in BEST_TYPES if one in known_gpu(gpu).peaks)
    dtype: DataType = word(entries["dtype"], get_args(DataType)) if "dtype" in entries else suits
    run = ObservedRun(
        shape=known.shape,
        batch=MicrobatchShape(size, count("sequence_length", known.sequence_length), dtype, software),
        is_checkpointing="checkpointing" in entries and flag(entries["checkpointing"]),
        tensor_parallel=count("tensor_parallel"),
        pp=count("pp"),
        dp=dp,
        microbatches=microbatches,
        iterations_s=_iterations_s(entries, folder),
        shards_optimizer="shard_optimizer" in entries and flag(entries["shard_optimizer"]),
        gpu=gpu,
        source=path,
    )
    return run, trace


def _iterations_s(entries: Mapping[str, YamlValue], folder: Path) -> tuple[float, ...]:
    """As the file says them, or its log; the first of a log is that of a job that warms up."""
    if "iteration" in entries:
        return tuple(_time_s(value) for value in items_of(entries["iteration"]))
    if "log" not in entries:
        return ()
    log = str(folder / entries["log"].text())
    series = Series(log)
    samples = [sample for line in lines_of(log) for sample in series.read(line.data, line.is_cut)]
    samples += series.finish()
    if series.per != "iteration":
        raise InvalidInputError(
            f"the log tells what a {series.per} takes, and not how many an iteration has",
            where=log,
            fix="write how long an iteration took: iteration: 12.3s",
        )
    return tuple(sample.time_s for sample in samples[1:] or samples)


def _gpu(value: YamlValue) -> str:
    with placed(value):
        return known_gpu(value.text()).name


def _time_s(value: YamlValue) -> float:
    time_s = parse_time_s(value.text(), value.where)
    if not time_s:
        raise value.wrong("an iteration takes longer than no time", "write 12.3s, say")
    return time_s
