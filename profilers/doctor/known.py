"""Which settings are known: by the name that stands in an environment, on a command line, or in a file.

Each name says which field of `JobSettings` it sets and how its value is read. Names that programs read and no rule asks
for are known as well (`OTHER_VARIABLES`), so that a mistyped one can be told from them.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# torch's getCvarBool (torch/csrc/distributed/c10d/Utils.hpp) takes these and refuses all others.
_YES, _NO = frozenset({"y", "yes", "1", "t", "true"}), frozenset({"n", "no", "0", "f", "false"})
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


class KnownName(NamedTuple):
    """What a name sets, how its value is read (ValueError: it makes no sense), and how it ranks beside others of its
    meaning: of two, the program takes that of the higher rank."""

    field: str
    parse: Callable[[str], Any]
    rank: int = 0


def whole(text: str) -> int:
    """A whole number, as C's strtol and Python's int read it."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("it is not a whole number") from None


def some(text: str) -> int:
    """How many there are of something of which there is one at least, and no more than anybody has."""
    if not 1 <= (value := whole(text)) < 10**9:
        raise ValueError("it is no number of one or more")
    return value


def switch(text: str) -> bool:
    """What is on or off."""
    if text.lower() in _YES | _NO:
        return text.lower() in _YES
    raise ValueError("it is neither 1 nor 0")


def seconds(text: str, factor: float = 1.0) -> float:
    """A time as a bare number of some unit, in seconds."""
    try:
        value = float(text) * factor
    except ValueError:
        raise ValueError("it is not a number") from None
    if math.isnan(value):
        raise ValueError("it is not a number")
    if value < 0:
        raise ValueError("it is below zero")
    return value


def minutes(text: str) -> float:
    """A number of minutes, in seconds."""
    return seconds(text, 60.0)


def milliseconds(text: str) -> float:
    """A number of milliseconds, in seconds."""
    return seconds(text, 1e-3)


def seconds_or_never(text: str) -> float:
    """A time-out that may be off (`none`, `null`: nvidia-resiliency-ext)."""
    return math.inf if text.strip().lower() in ("none", "null", "") else seconds(text)


def processes(text: str) -> int | None:
    """How many processes a node has; None: as many as it has GPUs, or CPUs (`gpu`, `auto`, `cpu`)."""
    return None if text in ("gpu", "auto", "cpu", "xpu") else some(text)


def slurm_time(text: str) -> float | None:
    """A time limit of Slurm: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    if text.upper() in ("UNLIMITED", "INFINITE", "0"):
        return None
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError("it is no time of Slurm")
    days, *rest = found.groups()
    numbers = [int(one) for one in rest if one is not None]
    if days is not None:
        hours, mins, secs = [*numbers, 0, 0][:3]
        return 86_400.0 * int(days) + 3600.0 * hours + 60.0 * mins + secs
    if len(numbers) == 3:
        return 3600.0 * numbers[0] + 60.0 * numbers[1] + numbers[2]
    return 60.0 * numbers[0] + (numbers[1] if len(numbers) == 2 else 0)


def word(text: str) -> str:
    """A text."""
    return text


def is_given(text: str) -> bool:
    """Whether a folder or an address is given, whichever: Megatron prints None where it is not."""
    return text != "None"


def steps(text: str) -> int | None:
    """A number of steps; None: a share of all steps, as transformers' `save_steps` may be."""
    return some(text) if seconds(text) >= 1 else None


def runs_again(text: str) -> bool:
    """Whether jobs of an array (`1-10%1`), or of one name (`singleton`), run one after the other."""
    return text.endswith("%1") or text == "singleton"


def _yes(text: str) -> bool:
    """What is on by being there, unless it says no."""
    return text.lower() not in _NO | {"off"}


def first_number(text: str) -> int:
    """The first number of a range (`4-8`) or a list with a type before it (`h100:8`)."""
    found = re.search(r"\d+", text.rpartition(":")[2])
    if found is None:
        raise ValueError("there is no number in it")
    return some(found[0])


# Of two variables of one meaning torch takes the first of its list, which has the prefix.
ENVIRONMENT: Mapping[str, KnownName] = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": KnownName("async_error_handling", whole, 1),
    "NCCL_ASYNC_ERROR_HANDLING": KnownName("async_error_handling", whole),
    "TORCH_NCCL_BLOCKING_WAIT": KnownName("blocking_wait", switch, 1),
    "NCCL_BLOCKING_WAIT": KnownName("blocking_wait", switch),
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": KnownName("heartbeat_timeout_s", seconds),
    "TORCH_NCCL_ENABLE_MONITORING": KnownName("monitoring", switch),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": KnownName("dumps", switch),
    "TORCH_FR_BUFFER_SIZE": KnownName("recorder_entries", whole, 1),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": KnownName("recorder_entries", whole),
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": KnownName("rethrows", switch),
    "NCCL_IB_TIMEOUT": KnownName("ib_timeout", whole),
    "NCCL_IB_RETRY_CNT": KnownName("ib_retries", whole),
    "TORCHFT_TIMEOUT_SEC": KnownName("manager_timeout_s", seconds),
    "TORCHFT_QUORUM_TIMEOUT_SEC": KnownName("quorum_timeout_s", seconds),
    "SLURM_KILL_BAD_EXIT": KnownName("kill_on_bad_exit", _yes, -1),
    "SLURM_NO_KILL": KnownName("step_no_kill", _yes, -1),
    "SLURM_WAIT": KnownName("step_wait_s", seconds, -1),
    "SBATCH_REQUEUE": KnownName("requeue", _yes, 1),
    "DEEPSPEED_TIMEOUT": KnownName("init_timeout_s", minutes),
    "TORCHELASTIC_SIGNALS_TO_HANDLE": KnownName("signals_to_handle", word),
}

# torch 2.13 (ProcessGroupNCCL.hpp, FlightRecorder.hpp) and torchft (manager.py, process_group.py) read these, too.
OTHER_VARIABLES = frozenset(
    [
        "TORCH_NCCL_ABORT_IN_DESTROY_PG",
        "TORCH_NCCL_AVOID_RECORD_STREAMS",
        "TORCH_NCCL_BCAST_UNIQUEID",
        "TORCH_NCCL_COORD_CHECK_MILSEC",
        "TORCH_NCCL_CUDA_EVENT_CACHE",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_NCCL_DESYNC_DEBUG",
        "TORCH_NCCL_ENABLE_TIMING",
        "TORCH_NCCL_EXTRA_DUMP_ON_EXEC",
        "TORCH_NCCL_HIGH_PRIORITY",
        "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN",
        "TORCH_NCCL_NAN_CHECK",
        "TORCH_NCCL_NONBLOCKING_TIMEOUT",
        "TORCH_NCCL_PROPAGATE_ERROR",
        "TORCH_NCCL_RANKS_PER_ROOT",
        "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING",
        "TORCH_NCCL_TRACE_CPP_STACK",
        "TORCH_NCCL_USE_COMM_NONBLOCKING",
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
        "TORCH_FR_CPP_STACK",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCHFT_LIGHTHOUSE",
        "TORCHFT_MANAGER_PORT",
        "TORCHFT_CONNECT_TIMEOUT_SEC",
        "TORCHFT_QUORUM_RETRIES",
        "TORCHFT_PROACTIVE_RECOVERY",
        "TORCHFT_USE_OTEL",
        "TORCHFT_OTEL_RESOURCE_ATTRIBUTES_JSON",
        "TORCHFT_TRIGGER_FR_ON_ABORT",
    ]
)
# All of a prefix that are neither above nor here are told as unknown.
PREFIXES = ("TORCH_NCCL_", "TORCH_FR_", "TORCHFT_")
# All names with TIMEOUT or RETRY in them that libnccl.so of nvidia-nccl-cu12 2.32.3 holds. People set many others.
_NCCL_TIMES = frozenset(
    f"NCCL_{name}"
    for name in (
        *("DIAGNOSTICS_IB_BW_TIMEOUT", "IB_MQP_RETRY_ALL", "IB_MQP_RETRY_CNT", "IB_MQP_RETRY_SLEEP_MSEC"),
        *("IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT", "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT"),
        *("IB_RETRY_CNT", "IB_TIMEOUT", "RAS_TIMEOUT_FACTOR", "SOCKET_POLL_TIMEOUT_MSEC", "SOCKET_RETRY_CNT"),
        "SOCKET_RETRY_SLEEP_MSEC",
    )
)


def nobody_reads(name: str) -> bool:
    """Whether a variable looks like a time-out of NCCL, and neither NCCL 2.32 nor torch 2.13 reads it."""
    is_time = name.startswith("NCCL_") and ("TIMEOUT" in name or "RETRY" in name)
    return (is_time and name not in _NCCL_TIMES) or name in ("TORCH_NCCL_TIMEOUT", "TORCH_NCCL_CONNECT_TIMEOUT")


# Of torchrun and ft_launcher; each also as `PET_…` in the environment, which the command line overrules. Some are of
# accelerate (accelerate/commands/launch.py) or DeepSpeed's launcher (deepspeed/launcher/runner.py) alone.
LAUNCH_FLAGS: Mapping[str, KnownName] = {
    "--nproc-per-node": KnownName("processes", processes),
    "--num-gpus": KnownName("processes", processes),
    "--num-processes": KnownName("gpus", some),
    "--signals-to-handle": KnownName("signals_to_handle", word),
    "--rdzv-endpoint": KnownName("endpoint", is_given),
    "--master-addr": KnownName("master_address", is_given),
    "--rdzv-backend": KnownName("rendezvous", word),
    "--max-restarts": KnownName("max_restarts", whole),
    "--monitor-interval": KnownName("monitor_interval_s", seconds),
    "--ft-initial-rank-heartbeat-timeout": KnownName("first_heartbeat_s", seconds_or_never),
    "--ft-rank-heartbeat-timeout": KnownName("rank_heartbeat_s", seconds_or_never),
    "--ft-param-initial-rank-heartbeat-timeout": KnownName("first_heartbeat_s", seconds_or_never),
    "--ft-param-rank-heartbeat-timeout": KnownName("rank_heartbeat_s", seconds_or_never),
    "--ft-rank-out-of-section-timeout": KnownName("out_of_section_s", seconds_or_never),
}
RENDEZVOUS: Mapping[str, KnownName] = {
    "join_timeout": KnownName("join_timeout_s", seconds),
    "last_call_timeout": KnownName("last_call_s", seconds),
    "keep_alive_interval": KnownName("keep_alive_s", seconds),
    "keep_alive_max_attempt": KnownName("keep_alives", whole),
    "timeout": KnownName("plain_timeout_s", seconds),
}
OTHER_RENDEZVOUS = frozenset({"close_timeout", "heartbeat_timeout", "read_timeout", "is_host", "store_type", "rank"})
SECTIONS: Mapping[str, KnownName] = {
    "step": KnownName("step_section_s", seconds_or_never),
    "checkpointing": KnownName("checkpoint_section_s", seconds_or_never),
}

MEGATRON: Mapping[str, KnownName] = {
    "--distributed-timeout-minutes": KnownName("init_timeout_s", minutes),
    "--distributed-timeout-seconds-after-init": KnownName("train_timeout_s", seconds),
    "--save-interval": KnownName("checkpoint_every", whole),
    "--save": KnownName("checkpoints", is_given),
    "--world-size": KnownName("gpus", some),
    "--exit-duration-in-mins": KnownName("exit_after_s", minutes),
}
# Of transformers' TrainingArguments (training_args.py), and of what is made of them: LLaMA-Factory, axolotl.
TRANSFORMERS: Mapping[str, KnownName] = {
    "--ddp-timeout": KnownName("init_timeout_s", seconds),
    "--save-steps": KnownName("checkpoint_every", steps),
    "--save-strategy": KnownName("checkpoints", lambda text: text.lower() != "no", 1),
}

TORCHTITAN: Mapping[str, KnownName] = {
    "comm.init_timeout_seconds": KnownName("init_timeout_s", seconds),
    "comm.train_timeout_seconds": KnownName("train_timeout_s", seconds),
    "comm.trace_buf_size": KnownName("recorder_entries", whole, 2),
    "fault_tolerance.enable": KnownName("replicates", switch),
    "fault_tolerance.process_group_timeout_ms": KnownName("replica_timeout_s", milliseconds),
    "checkpoint.enable": KnownName("checkpoints", switch),
    "checkpoint.enable_checkpoint": KnownName("checkpoints", switch),
    "checkpoint.interval": KnownName("checkpoint_every", some),
}
# The other keys of the two sections that are read for time-outs (torchtitan/config/job_config.py).
OTHER_TORCHTITAN = frozenset(
    [
        "comm.save_traces_folder",
        "comm.save_traces_file_prefix",
        "comm.mode",
        "fault_tolerance.process_group",
        "fault_tolerance.replica_id",
        "fault_tolerance.group_size",
        "fault_tolerance.min_replica_size",
        "fault_tolerance.semi_sync_method",
        "fault_tolerance.sync_steps",
        "fault_tolerance.should_quantize",
        "fault_tolerance.fragment_sync_delay",
        "fault_tolerance.fragment_update_alpha",
        "fault_tolerance.num_fragments",
        "fault_tolerance.module_fqns_per_model_fragment",
    ]
)

SBATCH: Mapping[str, KnownName] = {
    "--nodes": KnownName("slurm_nodes", first_number),
    "-N": KnownName("slurm_nodes", first_number),
    "--ntasks": KnownName("slurm_tasks", some),
    "-n": KnownName("slurm_tasks", some),
    "--gpus-per-node": KnownName("slurm_gpus_per_node", first_number),
    "--gres": KnownName("slurm_gpus_per_node", first_number),
    "--ntasks-per-node": KnownName("slurm_tasks_per_node", some),
    "--tasks-per-node": KnownName("slurm_tasks_per_node", some),
    "--gpus-per-task": KnownName("slurm_gpus_per_task", first_number),
    "--gpus": KnownName("slurm_gpus", first_number),
    "-G": KnownName("slurm_gpus", first_number),
    "--array": KnownName("resubmits", runs_again),
    "-a": KnownName("resubmits", runs_again),
    "--dependency": KnownName("resubmits", runs_again),
    "-d": KnownName("resubmits", runs_again),
    "--time": KnownName("time_limit_s", slurm_time),
    "-t": KnownName("time_limit_s", slurm_time),
    "--requeue": KnownName("requeue", _yes),
    "--no-requeue": KnownName("requeue", lambda text: False),
    "--signal": KnownName("signal", word),
    "--open-mode": KnownName("open_mode", word),
    "--no-kill": KnownName("no_kill", _yes),
    "-k": KnownName("no_kill", _yes),
}
SRUN: Mapping[str, KnownName] = {
    "--nodes": KnownName("step_nodes", first_number),
    "-N": KnownName("step_nodes", first_number),
    "--ntasks": KnownName("step_tasks", some),
    "-n": KnownName("step_tasks", some),
    "--ntasks-per-node": KnownName("step_tasks_per_node", some),
    "--kill-on-bad-exit": KnownName("kill_on_bad_exit", _yes),
    "-K": KnownName("kill_on_bad_exit", _yes),
    "--no-kill": KnownName("step_no_kill", _yes),
    "-k": KnownName("step_no_kill", _yes),
    "--wait": KnownName("step_wait_s", seconds),
    "-W": KnownName("step_wait_s", seconds),
}
SWITCHES = frozenset({"--requeue", "--no-requeue", "--no-kill", "-k", "--kill-on-bad-exit", "-K"})  # value only after =
