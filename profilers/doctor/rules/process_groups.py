"""Rules about torch's process groups and NCCL: who notices that a call hangs, and what is left to look at."""

from collections.abc import Iterator

from ....schemas.quantities import print_time
from ..settings import JobSettings
from .rule import Broken, broken, rule

_HPP = "pytorch/pytorch torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp (2.13)"
_NCCL_PAGE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TORCH_PAGE = "https://pytorch.org/docs/stable/torch_nccl_environment_variables.html"
LONGEST_HANG_S = 1800.0  # what the thread pytorch#111646 complains of
RACE_S = 60.0
IB_UNIT_S, IB_ENDLESS, IB_MOST_RETRIES = 4.096e-6, 32, 7


@rule(
    "contradiction",
    "blocking_wait async_error_handling",
    "leave TORCH_NCCL_BLOCKING_WAIT out: by default (TORCH_NCCL_ASYNC_ERROR_HANDLING=3) the time-out ends the process",
    "pytorch/pytorch#47943",
    "pytorch/pytorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, constructor: “should not both be enabled”",
)
def blocking_and_async(job: JobSettings) -> Iterator[Broken]:
    """TORCH_NCCL_BLOCKING_WAIT and TORCH_NCCL_ASYNC_ERROR_HANDLING are both set and on."""
    if job.blocking_wait.value and job.async_error_handling.is_set and job.async_error_handling.value != 0:
        says = "both ways of noticing a hang are on; torch then uses the blocking wait only"
        yield broken(says, job.blocking_wait, job.async_error_handling)


@rule(
    "risk",
    "blocking_wait async_error_handling",
    "leave it out: asynchronous error handling notices the same time-out and costs nothing",
    "pytorch/pytorch#50820",
    "ray-project/ray#29562",
)
def blocking_wait(job: JobSettings) -> Iterator[Broken]:
    """TORCH_NCCL_BLOCKING_WAIT is on, and asynchronous error handling not set beside it."""
    if job.blocking_wait.value and not (job.async_error_handling.is_set and job.async_error_handling.value):
        says = "the main thread waits for each collective call: nothing overlaps, and training is slower for it"
        yield broken(says, job.blocking_wait)


@rule(
    "contradiction",
    "async_error_handling blocking_wait init_timeout_s train_timeout_s",
    "set TORCH_NCCL_ASYNC_ERROR_HANDLING to 3, or leave it out",
    _TORCH_PAGE,
    "pytorch/pytorch#46874",
)
def timeout_without_watchdog(job: JobSettings) -> Iterator[Broken]:
    """A time-out of collective calls is set while nothing acts on it: no error handling, no blocking wait."""
    timeout = job.collective_timeout_s
    if not job.watches_collectives and timeout.is_set:
        says = f"the time-out of {print_time(timeout.value)} never ends anything: error handling is off"
        yield broken(says, timeout, job.async_error_handling)


@rule(
    "risk",
    "async_error_handling blocking_wait init_timeout_s train_timeout_s",
    "set TORCH_NCCL_ASYNC_ERROR_HANDLING to 3, or leave it out",
    _TORCH_PAGE,
    "pytorch/pytorch#46874",
)
def watchdog_off(job: JobSettings) -> Iterator[Broken]:
    """Error handling and blocking wait are both off, and no time-out is set either."""
    if not job.watches_collectives and not job.collective_timeout_s.is_set:
        says = "a collective call that hangs hangs for ever: nothing ends the process, whatever time has passed"
        yield broken(says, job.async_error_handling)


@rule(
    "contradiction",
    "heartbeat_timeout_s monitoring",
    "leave TORCH_NCCL_ENABLE_MONITORING out; to wait longer, raise the time-out of the collective calls themselves",
    f"{_HPP}:95-107",
    "sgl-project/sglang#3783",
)
def heartbeat_without_monitor(job: JobSettings) -> Iterator[Broken]:
    """The heartbeat's time-out is set while the thread that would watch it is off."""
    if job.heartbeat_timeout_s.is_set and not job.monitoring.value:
        says = f"the heartbeat's time-out of {print_time(job.heartbeat_timeout_s.value)} is watched by nobody"
        yield broken(says, job.heartbeat_timeout_s, job.monitoring)


@rule(
    "risk",
    "monitoring heartbeat_timeout_s",
    "leave TORCH_NCCL_ENABLE_MONITORING out",
    f"{_HPP}:95-102",
)
def monitor_off(job: JobSettings) -> Iterator[Broken]:
    """The heartbeat monitor is off."""
    if not job.monitoring.value and not job.heartbeat_timeout_s.is_set:
        says = "when torch's watchdog itself hangs in a call of CUDA or NCCL, nothing ends the process"
        yield broken(says, job.monitoring)


@rule(
    "risk",
    "heartbeat_timeout_s monitoring init_timeout_s train_timeout_s",
    "keep the two a minute apart at least: torch's own defaults are 8 and 10 min",
    "pytorch/pytorch#133028",
    "pytorch/pytorch#128751",
)
def heartbeat_races_timeout(job: JobSettings) -> Iterator[Broken]:
    """The heartbeat's time-out is within a minute of the collective calls' one."""
    heartbeat, timeout = job.heartbeat_timeout_s, job.collective_timeout_s
    if job.monitoring.value and heartbeat.is_set and abs(heartbeat.value - timeout.value) < RACE_S:
        says = (
            f"the heartbeat ({print_time(heartbeat.value)}) and the collective calls ({print_time(timeout.value)}) "
            "time out together: whichever is first hides the other's report"
        )
        yield broken(says, heartbeat, timeout)


@rule(
    "contradiction",
    "dumps recorder_entries monitoring",
    "set TORCH_FR_BUFFER_SIZE above 0 (2000 by default) and leave TORCH_NCCL_ENABLE_MONITORING on",
    f"{_HPP}:71-75",
    _TORCH_PAGE,
)
def dump_without_recorder(job: JobSettings) -> Iterator[Broken]:
    """Dumps at a time-out are asked for, while nothing is recorded, or nobody is there to write them."""
    is_asked_for = job.dumps.is_set and job.dumps.value
    if is_asked_for and job.recorder_entries.value <= 0:
        yield broken("a dump at the time-out is asked for, and nothing is recorded", job.dumps, job.recorder_entries)
    if is_asked_for and not job.monitoring.value:
        yield broken(
            "a dump at the time-out is asked for, and the thread that writes it is off", job.dumps, job.monitoring
        )


@rule(
    "contradiction",
    "dumps async_error_handling is_torchtitan",
    "set TORCH_NCCL_ASYNC_ERROR_HANDLING to 3, or leave it out",
    "pytorch/pytorch#121055",
    "pytorch/torchtitan torchtitan/distributed/utils.py, init_distributed",
)
def dump_without_skipping_cleanup(job: JobSettings) -> Iterator[Broken]:
    """Dumps at a time-out are asked for with error handling that aborts communicators first (1 or 2)."""
    is_asked_for = job.dumps.is_set and job.dumps.value
    if is_asked_for and job.async_error_handling.value in (1, 2) and not job.is_torchtitan.value:
        says = "with this error handling the communicators are aborted first, and the dump says nothing of the hang"
        yield broken(says, job.dumps, job.async_error_handling)


@rule(
    "risk",
    "rethrows launcher",
    "leave it out, unless nvidia-resiliency-ext restarts within the process, which asks for it",
    f"{_HPP}:109-111",
)
def errors_swallowed(job: JobSettings) -> Iterator[Broken]:
    """TORCH_NCCL_RETHROW_CUDA_ERRORS is off under torchrun."""
    if not job.rethrows.value and job.launcher.value not in ("", "ft_launcher"):
        says = "errors of CUDA that the watchdog meets are logged, and do not end the process: torchrun sees no failure"
        yield broken(says, job.rethrows, job.launcher)


@rule(
    "risk",
    "init_timeout_s train_timeout_s async_error_handling blocking_wait rank_heartbeat_s step_section_s",
    "set a short time-out for training (torchtitan: comm.train_timeout_seconds; Megatron: "
    "--distributed-timeout-seconds-after-init; else set_timeout) and a long one for initialization only",
    "pytorch/pytorch#111646",
    "meta-pytorch/torchft#329",
)
def long_hang(job: JobSettings) -> Iterator[Broken]:
    """What ends a hang takes longer than half an hour."""
    ends = job.noticed_by
    if ends is not None and ends.value is not None and ends.is_set and ends.value > LONGEST_HANG_S:
        yield broken(f"a hang costs {print_time(ends.value)} of all GPUs before anything ends it", ends)


@rule(
    "contradiction",
    "init_timeout_s train_timeout_s",
    "make the time-out of training the shorter one",
    "pytorch/torchtitan torchtitan/config/job_config.py, class Comm",
    "NVIDIA/Megatron-LM megatron/training/training.py: “first successful iteration, which takes longer”",
)
def training_waits_longer(job: JobSettings) -> Iterator[Broken]:
    """The time-out of training is longer than that of initialization and the first iteration."""
    after = job.train_timeout_s
    if (
        after.value is not None
        and after.value > job.init_timeout_s.value
        and (after.is_set or job.init_timeout_s.is_set)
    ):
        says = (
            f"training waits {print_time(after.value)}, initialization with its first iteration only "
            f"{print_time(job.init_timeout_s.value)}, though that takes longer"
        )
        yield broken(says, after, job.init_timeout_s)


@rule(
    "contradiction",
    "init_timeout_s makes_groups group_timeout_s",
    "give new_group the same timeout, or call set_timeout for the group",
    "pytorch/pytorch torch/distributed/distributed_c10d.py:5662 (2.13)",
    "NVIDIA/Megatron-LM#564",
)
def groups_keep_the_default(job: JobSettings) -> Iterator[Broken]:
    """init_process_group is given a time-out, and new_group is called without one: it takes the default, 10 min."""
    if job.init_timeout_s.is_set and job.makes_groups.value and job.init_timeout_s.value != 600.0:
        says = (
            f"groups made by new_group wait 10 min, not the {print_time(job.init_timeout_s.value)} of the default group"
        )
        yield broken(says, job.init_timeout_s, job.makes_groups)


@rule(
    "risk",
    "ib_timeout",
    "set NCCL_IB_TIMEOUT to 22 or 23",
    _NCCL_PAGE,
    "open-thoughts/OpenThoughts-Agent#77",
)
def ib_never_times_out(job: JobSettings) -> Iterator[Broken]:
    """NCCL_IB_TIMEOUT is 0, or 32 and above: for ever."""
    if not 0 < job.ib_timeout.value < IB_ENDLESS:
        yield broken(
            f"{job.ib_timeout.value} means for ever: a link that is down is never reported as one", job.ib_timeout
        )


@rule(
    "contradiction",
    "ib_retries",
    "set NCCL_IB_RETRY_CNT to 7 or less; to wait longer, raise NCCL_IB_TIMEOUT",
    "InfiniBand specification, volume 1, 12.7.38 (named by the NCCL page): three bits",
    "NVIDIA/nccl#1814",
)
def ib_too_many_retries(job: JobSettings) -> Iterator[Broken]:
    """NCCL_IB_RETRY_CNT is above 7, which has no room in its three bits."""
    if not 0 <= job.ib_retries.value <= IB_MOST_RETRIES:
        says = f"an InfiniBand queue pair counts at most {IB_MOST_RETRIES} retries, not {job.ib_retries.value}"
        yield broken(says, job.ib_retries)


@rule(
    "contradiction",
    "ib_timeout ib_retries init_timeout_s train_timeout_s async_error_handling blocking_wait",
    "lower NCCL_IB_TIMEOUT (each step down halves it), or raise the collective calls' time-out",
    _NCCL_PAGE,
    "NVIDIA/nccl#1555",
)
def ib_outlasts_collective(job: JobSettings) -> Iterator[Broken]:
    """4.096 µs · 2^NCCL_IB_TIMEOUT · (retries + 1) is longer than the collective calls' time-out."""
    if not 0 < job.ib_timeout.value < IB_ENDLESS or not 0 <= job.ib_retries.value <= IB_MOST_RETRIES:
        return
    lasts_s = IB_UNIT_S * 2**job.ib_timeout.value * (job.ib_retries.value + 1)
    timeout = job.collective_timeout_s
    if (job.ib_timeout.is_set or job.ib_retries.is_set) and job.watches_collectives and lasts_s > timeout.value:
        says = (
            f"NCCL tries a dead link for {print_time(lasts_s)}, and torch ends the call after "
            f"{print_time(timeout.value)}: the link is never named"
        )
        yield broken(says, job.ib_timeout, job.ib_retries, timeout)


RULES = (
    blocking_and_async, blocking_wait, timeout_without_watchdog, watchdog_off, heartbeat_without_monitor, monitor_off,
    heartbeat_races_timeout, dump_without_recorder, dump_without_skipping_cleanup, errors_swallowed, long_hang,
    training_waits_longer, groups_keep_the_default, ib_never_times_out, ib_too_many_retries, ib_outlasts_collective,
)  # fmt: skip
