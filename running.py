"""Jobs of real processes: `rtk run` and `rtk coordinate`.

It stands at the root because it hands the runners' coordinator the planners' answers and the profilers' monitor, and
their workers the profilers' models.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from .planners.recovery.answers import PolicyName, answers_if_any, remedies_of
from .planners.recovery.escalation import escalating
from .runners.lifeline import hold_lifeline
from .runners.processes import die_with_launcher, keep_one_arena
from .runners.training import JobConfig, TrainingConfig, require_script, sizes_of, training_of
from .schemas.errors import InvalidInputError, remark, require_package
from .schemas.text import joined, known

if TYPE_CHECKING:
    from .runners.log_writers import LogWriter
    from .runners.resilience.announcements import Announcement
    from .runners.resilience.controller import JobController, LocalJob
    from .runners.resilience.server import Server
    from .runners.torch.task import Task
    from .schemas.pace import PaceReport
    from .schemas.plan import Plan
    from .schemas.protocols import Answers, DegreeFactors, Monitor, Resume
    from .schemas.timeline import Timeline

# What a worker loads before its first iteration; AdamW loads torch's compiler, whether anybody compiles or not.
OF_WORKERS = ("rtk.cli.main", "rtk.runners.torch.worker", "rtk.profilers.models.load", "torch._dynamo")


class PlannersAdvice:
    """What planners and profilers know of a job (a `JobAdvice`).

    Args:
        plan: valid.
        how: how the job is led.

    Raises:
        InvalidInputError: there is no such policy, the atlas is not for this plan, or remedies not for the policy.
    """

    def __init__(self, plan: "Plan", how: JobConfig) -> None:
        if how.policy is not None:
            known(how.policy, [*PolicyName], "--policy")
        self._plan, self._how = plan, how
        self._policy = None if how.policy is None else PolicyName(how.policy)
        self._remedies = remedies_of(how.mitigate, plan, self._policy)
        if self._remedies.restart_s is not None and how.checkpoint is None:
            raise InvalidInputError(
                "a job that is not saved cannot start again",
                where="--mitigate",
                fix="give --checkpoint, or leave S4 out",
            )
        self.lower = self._lower() if how.lower_degree else None
        if how.atlas is not None or how.policy is not None:
            _ = self.answers  # refused now or never

    @cached_property
    def answers(self) -> "Answers":
        """Made late: loading the planners takes longer than all that a restarted coordinator has to do at first."""
        how = self._how
        return answers_if_any(self._plan, self._policy, how.atlas, how.normalize_within, how.host_memory)

    @cached_property
    def resume(self) -> "Resume":
        """Late, as `answers`."""
        from .planners.resumption.plan import plan_rest

        return plan_rest

    def _lower(self) -> "DegreeFactors":
        """At which smaller degrees workers may go on; raises InvalidInputError where they cannot."""
        from .planners.recovery.lowering import degree_factors
        from .schemas.documents import read_document
        from .schemas.profile import Profile

        profile = None if self._how.profile is None else read_document(self._how.profile, Profile)
        found = degree_factors(self._plan, self._policy, profile, self._how.normalize_within)
        degrees = {degree for own in found.factors.values() for degree in own}
        lacking = sorted(degrees - found.profiled) if profile is not None else []
        if lacking:
            remark(
                f"the profile has no costs at {joined(map(str, lacking), last='or')} GPUs a worker: one that goes on "
                "so is taken to be as many times as slow as it has fewer GPUs"
            )
        return found

    def monitor(self, is_resumed: bool) -> "Monitor":
        """What finds out what is slow, and which costly remedies that has been worth."""
        from .profilers.failslow.monitor.ring import monitor_of

        return escalating(monitor_of(self._plan, is_resumed), self._plan, self._remedies, lambda: self.answers)

    def pace(self, plan: "Plan", timeline: "Timeline") -> "PaceReport":
        """How a run keeps up with its plan, and why not."""
        from .planners.explain.pace import pace_of

        return pace_of(plan, timeline)

    @property
    def mitigate_without_restart(self) -> str | None:
        """What `--mitigate` says of remedies, without that of starting again."""
        return self._remedies.without_restart()


def controller_of(plan: "Plan", how: JobConfig) -> "JobController":
    """What leads a job, with the planners' answers and the profilers' monitor.

    Raises:
        InvalidInputError: something does not fit the plan.
    """
    from .runners.resilience.controller import JobController

    return JobController(plan, how, PlannersAdvice)


def run(
    plan: "Plan",
    training: TrainingConfig,
    how: JobConfig,
    announce: "Callable[[Announcement], None]" = lambda what: None,
) -> "list[Announcement]":
    """Execute a plan on processes of this machine, one a live worker, and go on when some die: `rtk run`.

    Args:
        plan: valid.
        training: what is trained.
        how: how the job is led.
        announce: hears of everything that happens, as it happens.

    Returns:
        All that has happened.

    Raises:
        InvalidInputError: something does not fit the plan.
        RuntimeFailedError: training could not go on.
    """
    return local_job(plan, training_of(plan, training, how.iterations), how).run(announce)


def local_job(plan: "Plan", training: TrainingConfig, how: JobConfig, options: Sequence[str] = ()) -> "LocalJob":
    """A job that this process leads, with one process per live worker on this machine.

    What all workers would refuse is refused here, once, before any of them is started.

    Args:
        plan: valid.
        training: what all workers train.
        how: how it is led.
        options: of the workers' command lines, beside those of the training.

    Raises:
        InvalidInputError: something does not fit the plan.
    """
    from .profilers.models.names import require_model
    from .runners.nursery import Nursery
    from .runners.resilience.controller import LocalJob

    training = _fit_to_lower(training, plan, how)
    # Before torch is imported, which takes seconds.
    if training.script is None:
        require_model(training.model)
    else:
        require_script(training.script)
    require_package("torch")

    nursery = Nursery(OF_WORKERS)  # it loads torch while we do
    try:
        from .training import Training

        controller, trained = controller_of(plan, how), Training.of(training)
        model, feed = trained.load(plan)
        trained.held_out(model, plan)
        size, measured = trained.microbatch_size, sizes_of(plan)[0]
        if size is not None and measured is not None and size != measured:
            remark(f"micro-batches of {size}, and the profile behind the plan has {measured}: its times are other ones")
        return LocalJob(controller, feed.tokens_of(plan), [*training.arguments(), *options], nursery, trained.logs())
    except BaseException:
        nursery.close()
        raise


def _fit_to_lower(training: TrainingConfig, plan: "Plan", how: JobConfig) -> TrainingConfig:
    """The training, whose workers keep all of the optimizer's state where they are to go on at smaller degrees.

    Raises:
        InvalidInputError: they are to share it as well.
    """
    if how.lower_degree and training.shard_optimizer:
        raise InvalidInputError(
            "peers share the optimizer's state in blocks of what a rank has, which is other at a smaller degree",
            where="--lower-degree",
            fix="leave it out, or --shard-optimizer",
        )
    is_open = how.lower_degree and training.script is None and not plan.shards_optimizer
    return replace(training, shard_optimizer=False) if is_open else training


def coordinate(
    plan: "Plan",
    how: JobConfig,
    secret: bytes,
    announce: "Callable[[Announcement], None]" = lambda what: None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    log: str | None = None,
    standby: bool = False,
    is_ready: "Callable[[Server], None]" = lambda server: None,
) -> None:
    """Lead a run whose workers are started elsewhere, until its end: `rtk coordinate`.

    Args:
        plan: that the workers are started with, valid.
        how: how the job is led.
        secret: the job's, which its workers have too.
        announce: hears of everything that happens, as it happens.
        host, port: where to listen; port 0 is any free one.
        log: keep a log here, from which another coordinator can take over.
        standby: wait until the coordinator that has the log is gone.
        is_ready: is told the coordinator, with its `address`, once it listens.

    Raises:
        InvalidInputError: something does not fit the plan, or the log is of another job.
        RuntimeFailedError: training could not go on.
    """
    controller = controller_of(plan, how)
    controller.lead(announce, secret, controller.take_over(log, standby), host, port, is_ready)


def work(
    plan: "Plan",
    training: TrainingConfig,
    name: str,
    addresses: list[str],
    secret: bytes,
    patience_s: float,
    others: Sequence[str] = (),
) -> None:
    """Be worker `name` of a job until the coordinator says that the job, or this worker's part in it, is over.

    Args:
        plan: that the job begins with.
        training: what to train.
        name: `k/i`, or `k/i:r` where a worker is on several GPUs.
        addresses: of the coordinator, and of standbys.
        secret: the job's.
        patience_s: how long to look for a lost coordinator, in s.
        others: this machine's addresses on other networks than that of the coordinator.

    Raises:
        InvalidInputError: the model or the data do not fit the plan, an address is not this machine's, or the
            coordinator refuses this worker.
        RuntimeFailedError: no coordinator is found for `patience_s`.
        EndedError: the job failed.
    """
    keep_one_arena()
    hold_lifeline()
    die_with_launcher()
    import torch

    from .runners.torch.worker import be_worker, own_device
    from .training import Training, without_groups

    with without_groups():
        torch.set_num_threads(training.threads)
        trained = Training.of(training)

        def make_task(hostname: str) -> "Task":
            """What to train, by a worker whom others reach under this address or name."""
            return trained.task(
                plan,
                name,
                secret=secret,
                device=own_device(),
                hostname=hostname,
                others=others,
                paced=training.paced,
                transport=training.transport,
                log_memory_bytes=training.log_memory,
            )

        be_worker(make_task, addresses, patience_s, trained.explain)


def logs_of(script: str | None) -> "list[LogWriter]":
    """What a script wants to be told of its job; nothing where there is no script.

    Raises:
        InvalidInputError: as of `load_script`.
    """
    if script is None:
        return []
    require_script(script)
    require_package("torch")
    from .training import load_script

    return load_script(script).logs()


def supervise(
    plan: "Plan",
    training: TrainingConfig,
    how: JobConfig,
    name: str,
    addresses: Sequence[str] = (),
    secret: bytes | None = None,
    *,
    options: Sequence[str] = (),
    announce: "Callable[[Announcement], None]" = lambda what: None,
) -> int:
    """Be what keeps one worker of a torchrun job going, and on rank 0 what leads the job, unless somebody else does.

    Args:
        plan: valid.
        training: what is trained.
        how: how the job is led.
        name: of this rank's worker, or of its process, of several of a worker.
        addresses: of the job's coordinator; none: rank 0 is it.
        secret: the job's, where all ranks have been given it.
        options: of the worker's command line, beside those of the training.
        announce: hears of everything that happens, on rank 0 where that leads the job.

    Returns:
        The exit code of the job, or of the worker where the job could not begin.

    Raises:
        InvalidInputError: something does not fit the plan.
        RuntimeFailedError: training could not go on, or the ranks do not find each other.
    """
    from .runners.nursery import Nursery
    from .runners.resilience.torchrun import TorchrunRank

    training = _fit_to_lower(training, plan, how)
    require_package("torch")
    nursery = Nursery(OF_WORKERS)
    with closing(nursery):
        rank = TorchrunRank(plan, name, [*training.arguments(), *options], nursery, addresses, secret)
        leads = not addresses and os.environ["RANK"] == "0"
        return rank.lead(controller_of(plan, how), announce) if leads else rank.follow()
