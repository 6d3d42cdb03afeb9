"""The settings of a job, typed, each with the place where it stands.

What is not set has the default of the program that would read it, so that a rule compares two values, set or not, and
can name where both stand. Defaults are those of torch 2.13, torchtitan, torchft and Slurm, where `of` says so.
"""

# ruff: noqa: RUF009 (the calls make frozen values)

import math
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from ...schemas.diagnosis import ToldSetting, UnreadSetting

T = TypeVar("T")
_NO_SETTINGS = ("doubles", "unread", "unknown")


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A value, where it stands, and whether somebody has set it."""

    value: T
    told: ToldSetting
    is_set: bool = True


def default(value: T, name: str, text: str, of: str) -> Setting[T]:
    """The value that counts where nobody has set one.

    Args:
        value: typed.
        name: of the setting, as one would set it.
        text: the value as a person writes it.
        of: the program whose default it is; none where what is not set has no value.
    """
    return Setting(value, ToldSetting(name, text, f"default of {of}" if of else "not set"), is_set=False)


def _absent(name: str) -> Any:
    """A setting that has no value unless it is set."""
    return field(default=default(None, name, "", ""))


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What is known of a job. Times are in seconds.

    Attributes:
        doubles: pairs of settings of one meaning and two values, from different places: the one that counts first.
        unread: settings that say nothing.
        unknown: fields that are set to what only the job itself knows: their values are None, and no rule asks for it.
    """

    # torch's process groups (torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, 2.13)
    async_error_handling: Setting[int] = default(3, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", "torch")
    blocking_wait: Setting[bool] = default(False, "TORCH_NCCL_BLOCKING_WAIT", "0", "torch")
    heartbeat_timeout_s: Setting[float] = default(480.0, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "480", "torch")
    monitoring: Setting[bool] = default(True, "TORCH_NCCL_ENABLE_MONITORING", "1", "torch")
    dumps: Setting[bool] = default(True, "TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "torch")
    recorder_entries: Setting[int] = default(2000, "TORCH_FR_BUFFER_SIZE", "2000", "torch")
    rethrows: Setting[bool] = default(True, "TORCH_NCCL_RETHROW_CUDA_ERRORS", "1", "torch")
    # NCCL itself (src/transport/net_ib)
    ib_timeout: Setting[int] = default(20, "NCCL_IB_TIMEOUT", "20", "NCCL 2.23 and later")
    ib_retries: Setting[int] = default(7, "NCCL_IB_RETRY_CNT", "7", "NCCL")
    # Time-outs of collective calls
    init_timeout_s: Setting[float] = default(600.0, "init_process_group(timeout)", "10 min", "torch")
    train_timeout_s: Setting[float | None] = _absent("time-out after initialization")
    group_timeout_s: Setting[float | None] = _absent("timeout of new_group")
    makes_groups: Setting[bool] = default(False, "new_group", "", "")
    # torchft
    replicates: Setting[bool] = default(False, "fault_tolerance.enable", "false", "torchtitan")
    replica_timeout_s: Setting[float] = default(10.0, "fault_tolerance.process_group_timeout_ms", "10000", "torchtitan")
    manager_timeout_s: Setting[float] = default(60.0, "TORCHFT_TIMEOUT_SEC", "60", "torchft")
    quorum_timeout_s: Setting[float] = default(60.0, "TORCHFT_QUORUM_TIMEOUT_SEC", "60", "torchft")
    # torchrun (torch/distributed/run.py, elastic/rendezvous/dynamic_rendezvous.py)
    launcher: Setting[str] = default("", "launcher", "", "")
    launched_by_step: Setting[bool] = default(False, "launcher", "", "")
    node_rank: Setting[str | None] = _absent("--node-rank")
    signals_to_handle: Setting[str] = default(
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "torchrun"
    )
    min_nodes: Setting[int | None] = default(1, "--nnodes", "1:1", "torchrun")
    max_nodes: Setting[int | None] = default(1, "--nnodes", "1:1", "torchrun")
    processes: Setting[int | None] = default(1, "--nproc-per-node", "1", "torchrun")
    rendezvous: Setting[str] = default("static", "--rdzv-backend", "static", "torchrun")
    standalone: Setting[bool] = default(False, "--standalone", "", "")
    endpoint: Setting[bool | None] = _absent("--rdzv-endpoint")
    master_address: Setting[bool | None] = _absent("--master-addr")
    max_restarts: Setting[int] = default(0, "--max-restarts", "0", "torchrun")
    monitor_interval_s: Setting[float] = default(0.1, "--monitor-interval", "0.1", "torchrun")
    join_timeout_s: Setting[float] = default(600.0, "--rdzv-conf join_timeout", "600", "torchrun")
    last_call_s: Setting[float] = default(30.0, "--rdzv-conf last_call_timeout", "30", "torchrun")
    keep_alive_s: Setting[float] = default(5.0, "--rdzv-conf keep_alive_interval", "5", "torchrun")
    keep_alives: Setting[int] = default(3, "--rdzv-conf keep_alive_max_attempt", "3", "torchrun")
    plain_timeout_s: Setting[float | None] = _absent("--rdzv-conf timeout")
    # NVRx's ft_launcher
    first_heartbeat_s: Setting[float | None] = _absent("--ft-initial-rank-heartbeat-timeout")
    rank_heartbeat_s: Setting[float | None] = _absent("--ft-rank-heartbeat-timeout")
    step_section_s: Setting[float | None] = _absent("--ft-rank-section-timeouts step")
    checkpoint_section_s: Setting[float | None] = _absent("--ft-rank-section-timeouts checkpointing")
    out_of_section_s: Setting[float | None] = _absent("--ft-rank-out-of-section-timeout")
    # Slurm
    is_batch: Setting[bool] = default(False, "#SBATCH", "", "")
    slurm_nodes: Setting[int | None] = _absent("#SBATCH --nodes")
    slurm_tasks: Setting[int | None] = _absent("#SBATCH --ntasks")
    slurm_tasks_per_node: Setting[int | None] = _absent("#SBATCH --ntasks-per-node")
    slurm_gpus_per_node: Setting[int | None] = _absent("#SBATCH --gpus-per-node")
    slurm_gpus_per_task: Setting[int | None] = _absent("#SBATCH --gpus-per-task")
    slurm_gpus: Setting[int | None] = _absent("#SBATCH --gpus")
    time_limit_s: Setting[float | None] = _absent("#SBATCH --time")
    requeue: Setting[bool | None] = _absent("#SBATCH --requeue")
    signal: Setting[str | None] = _absent("#SBATCH --signal")
    open_mode: Setting[str] = default("truncate", "#SBATCH --open-mode", "truncate", "Slurm")
    no_kill: Setting[bool] = default(False, "#SBATCH --no-kill", "", "Slurm")
    step: Setting[bool] = default(False, "srun", "", "")
    spread: Setting[bool] = default(False, "srun", "", "")
    step_nodes: Setting[int | None] = _absent("srun --nodes")
    step_tasks: Setting[int | None] = _absent("srun --ntasks")
    step_tasks_per_node: Setting[int | None] = _absent("srun --ntasks-per-node")
    kill_on_bad_exit: Setting[bool | None] = _absent("srun --kill-on-bad-exit")
    step_no_kill: Setting[bool] = default(False, "srun --no-kill", "", "Slurm")
    step_wait_s: Setting[float] = default(0.0, "srun --wait", "0", "Slurm")
    trap: Setting[bool] = default(False, "trap", "", "")
    resubmits: Setting[bool] = default(False, "scontrol requeue", "", "")
    # Checkpoints
    checkpoints: Setting[bool | None] = _absent("checkpoints")
    checkpoint_every: Setting[int | None] = _absent("checkpoint interval")
    exit_after_s: Setting[float | None] = _absent("--exit-duration-in-mins")
    # What only a person knows: options of rtk doctor
    is_torchtitan: Setting[bool] = default(False, "torchtitan", "", "")
    gpus: Setting[int | None] = _absent("--gpus")
    iteration_s: Setting[float | None] = _absent("--iteration-time")
    save_s: Setting[float | None] = _absent("--save-time")
    restart_s: Setting[float | None] = _absent("--restart-time")
    mtbf_s: Setting[float | None] = _absent("--mtbf")

    doubles: tuple[tuple[ToldSetting, ToldSetting], ...] = ()
    unread: tuple[UnreadSetting, ...] = ()
    unknown: frozenset[str] = frozenset()

    @property
    def set_ones(self) -> tuple[ToldSetting, ...]:
        """All settings that somebody has set, in the order of this class; one place and name once."""
        told = (getattr(self, one.name) for one in fields(self) if one.name not in _NO_SETTINGS)
        return tuple(dict.fromkeys(setting.told for setting in told if setting.is_set))

    @property
    def collective_timeout_s(self) -> Setting[float]:
        """The time-out of a collective call while training: what is set after initialization, else the first one."""
        after = self.train_timeout_s
        return self.init_timeout_s if after.value is None else Setting(after.value, after.told, after.is_set)

    @property
    def watches_collectives(self) -> bool:
        """Whether the time-out of collective calls ends anything (torch's watchdog, or a wait that blocks)."""
        return self.async_error_handling.value != 0 or self.blocking_wait.value

    @property
    def nodes(self) -> int | None:
        """How many nodes the job has at most; None: not known."""
        if self.max_nodes.value is not None and self.max_nodes.is_set:
            return self.max_nodes.value
        if self.slurm_nodes.is_set or self.max_nodes.is_set:
            return self.slurm_nodes.value
        return 1 if self.launcher.is_set else None

    @property
    def is_elastic(self) -> bool:
        """Whether torchrun may go on with fewer nodes than it has."""
        least, most = self.min_nodes.value, self.max_nodes.value
        return least is not None and most is not None and least < most

    @property
    def gpu_count(self) -> int | None:
        """GPUs of the job: as given, or nodes times GPUs (the launcher's processes, or Slurm's); None: not known."""
        each = self.processes.value if self.processes.is_set else None
        each = each or self.slurm_gpus_per_node.value
        if self.gpus.value is None and each is not None and self.nodes is not None:
            return each * self.nodes
        per_task, tasks = self.slurm_gpus_per_task.value, self.slurm_tasks.value
        if self.nodes is not None and tasks is None:
            tasks = self.nodes * (self.slurm_tasks_per_node.value or 1)
        by_tasks = None if per_task is None or tasks is None else per_task * tasks
        return self.gpus.value or self.slurm_gpus.value or by_tasks

    @property
    def noticed_by(self) -> Setting[float] | Setting[None] | None:
        """What ends a hang first; None: nothing does. Where only the job itself knows when, its value is None.

        A hang is a rank that stops calling, or a call that never ends, while its process lives. torch's heartbeat
        monitor is not among these: it watches the watchdog, not the training.
        """
        collective = "init_timeout_s" if self.train_timeout_s.value is None else "train_timeout_s"
        for name in ("rank_heartbeat_s", "step_section_s", "train_timeout_s", collective):
            if name in self.unknown:
                return getattr(self, name)  # type: ignore[no-any-return]
        watchers = [self.rank_heartbeat_s, self.step_section_s]
        ends = [Setting(one.value, one.told, one.is_set) for one in watchers if one.value is not None]
        ends += [self.collective_timeout_s] if self.watches_collectives else []
        return min((one for one in ends if one.value < math.inf), key=lambda one: one.value, default=None)
