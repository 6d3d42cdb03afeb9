"""Rules about torchft's time-outs, and torchtitan's beside them: a short one has to act before a long one kills."""

from collections.abc import Iterator

from ....schemas.quantities import print_time
from ..settings import JobSettings
from .rule import Broken, broken, rule

_THREAD = "pytorch/torchtitan#2899"
_MANAGER = "meta-pytorch/torchft torchft/manager.py, Manager.__init__"


@rule(
    "contradiction",
    "replicates replica_timeout_s train_timeout_s",
    "make fault_tolerance.process_group_timeout_ms the shorter one: 120 s below 200 s, say",
    _THREAD,
)
def replicas_after_training(job: JobSettings) -> Iterator[Broken]:
    """Replicas wait for each other as long as the groups within a replica, or longer."""
    within = job.collective_timeout_s
    if job.replicates.value and job.replica_timeout_s.value >= within.value:
        says = (
            f"replicas wait {print_time(job.replica_timeout_s.value)} for each other, but the groups within one end "
            f"the process after {print_time(within.value)}: torchft never comes to handle the loss of a replica"
        )
        yield broken(says, job.replica_timeout_s, within)


@rule(
    "contradiction",
    "replicates init_timeout_s train_timeout_s",
    "make comm.init_timeout_seconds the longer one: 300 s above 200 s, say",
    _THREAD,
)
def replicas_start_as_they_train(job: JobSettings) -> Iterator[Broken]:
    """With torchft, initialization has no more time than a training step."""
    after = job.train_timeout_s
    if job.replicates.value and after.value is not None and after.value == job.init_timeout_s.value:
        says = f"initialization and healing have {print_time(after.value)}, no more than a training step"
        yield broken(says, job.init_timeout_s, after)


@rule(
    "contradiction",
    "replicates quorum_timeout_s replica_timeout_s",
    "set TORCHFT_QUORUM_TIMEOUT_SEC above the longest step: above fault_tolerance.process_group_timeout_ms at least",
    f"{_MANAGER}: “should be longer than the training step time”",
    "https://docs.pytorch.org/torchft/assumptions_and_recommendations.html: “If a call to quorum times out, the "
    "replica crashes”",
)
def quorum_before_step(job: JobSettings) -> Iterator[Broken]:
    """The quorum's time-out is not above the time that a step may take when a replica is lost."""
    if job.replicates.value and job.quorum_timeout_s.value <= job.replica_timeout_s.value:
        says = (
            f"a step may take {print_time(job.replica_timeout_s.value)} when a replica is lost, and who asks for the "
            f"next quorum crashes after {print_time(job.quorum_timeout_s.value)}"
        )
        yield broken(says, job.quorum_timeout_s, job.replica_timeout_s)


@rule(
    "contradiction",
    "replicates manager_timeout_s replica_timeout_s",
    "set TORCHFT_TIMEOUT_SEC to fault_tolerance.process_group_timeout_ms or above",
    f"{_MANAGER}: “timeout: the default timeout for all operations … collectives such as allreduce”",
)
def manager_before_group(job: JobSettings) -> Iterator[Broken]:
    """torchft's manager gives a collective call up before its process group does."""
    if job.replicates.value and job.manager_timeout_s.value < job.replica_timeout_s.value:
        says = (
            f"the manager gives up after {print_time(job.manager_timeout_s.value)}: the process group's "
            f"{print_time(job.replica_timeout_s.value)} are never reached"
        )
        yield broken(says, job.manager_timeout_s, job.replica_timeout_s)


@rule(
    "contradiction",
    "is_torchtitan async_error_handling dumps recorder_entries",
    "take the variable out; the buffer's size is comm.trace_buf_size",
    "pytorch/torchtitan torchtitan/distributed/utils.py, init_distributed: “will be overridden”",
)
def torchtitan_overrides(job: JobSettings) -> Iterator[Broken]:
    """A variable is set to something else than what torchtitan sets it to at its start."""
    if not job.is_torchtitan.value:
        return
    handling = job.async_error_handling
    if handling.is_set and handling.value != 3:
        yield broken("torchtitan sets TORCH_NCCL_ASYNC_ERROR_HANDLING to 3, whatever it was", handling)
    if job.dumps.is_set and not job.dumps.value and job.recorder_entries.value > 0:
        says = "torchtitan sets TORCH_NCCL_DUMP_ON_TIMEOUT to 1 while it records"
        yield broken(says, job.dumps, job.recorder_entries)


RULES = (
    replicas_after_training, replicas_start_as_they_train, quorum_before_step, manager_before_group,
    torchtitan_overrides,
)  # fmt: skip
