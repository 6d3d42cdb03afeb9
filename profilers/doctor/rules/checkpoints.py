"""Rules about checkpoints: whether there are any, and how often."""

from collections.abc import Iterator

from ....schemas.quantities import print_percent, print_time
from ..settings import JobSettings
from ..young_daly import best_interval_s, lost_share
from .rule import Broken, broken, rule

WORTH_SAYING = 0.01  # of all GPU time


@rule(
    "contradiction",
    "checkpoints checkpoint_every is_torchtitan",
    "torchtitan: checkpoint.enable = true; Megatron: give --save",
    "pytorch/torchtitan torchtitan/config/job_config.py, class Checkpoint: “enable: bool = False”",
    "NVIDIA/Megatron-LM megatron/training/training.py: “args.save and args.save_interval”",
)
def interval_without_checkpoints(job: JobSettings) -> Iterator[Broken]:
    """An interval between checkpoints is set, and none are saved: a failure costs all there was."""
    if job.checkpoint_every.is_set and not job.checkpoints.value:
        yield broken("an interval is set, and no checkpoint is saved", job.checkpoint_every, job.checkpoints)


@rule(
    "contradiction",
    "time_limit_s checkpoint_every iteration_s signal",
    "save more often, or at a signal before the time is up (#SBATCH --signal)",
    "https://slurm.schedmd.com/sbatch.html#OPT_time",
)
def ends_before_checkpoint(job: JobSettings) -> Iterator[Broken]:
    """The time limit is over before the first checkpoint, and no signal asks for one."""
    limit, every, each = job.time_limit_s.value, job.checkpoint_every.value, job.iteration_s.value
    if limit is not None and every and each is not None and job.signal.value is None and every * each > limit:
        says = (
            f"the first checkpoint comes after {print_time(every * each)}, and the job ends after {print_time(limit)}"
        )
        yield broken(says, job.time_limit_s, job.checkpoint_every)


@rule(
    "contradiction",
    "exit_after_s time_limit_s save_s",
    "make --exit-duration-in-mins shorter than the time limit, by start-up, an iteration and a save at least",
    "NVIDIA/Megatron-LM megatron/training/arguments.py: “Exit the program after this many minutes.”",
    "bigscience-workshop/metadata#40",
)
def exits_after_limit(job: JobSettings) -> Iterator[Broken]:
    """Megatron is to save and end by itself after the time at which Slurm ends the job, or less than a save before."""
    ends, limit, save = job.exit_after_s.value, job.time_limit_s.value, job.save_s.value or 0.0
    if ends is not None and limit is not None and ends + save >= limit:
        says = f"training is to save and end after {print_time(ends)}, and Slurm ends it after {print_time(limit)}"
        yield broken(says, job.exit_after_s, job.time_limit_s)


@rule(
    "risk",
    "checkpoint_every iteration_s save_s mtbf_s",
    "save at the interval that the finding names",
    "J. W. Young, CACM 17(9), 1974; J. T. Daly, FGCS 22(3), 2006",
)
def interval_far_from_best(job: JobSettings) -> Iterator[Broken]:
    """Saves and redone work take at least one per cent of all time more than at Young's interval."""
    every, each, save, mtbf = job.checkpoint_every, job.iteration_s.value, job.save_s.value, job.mtbf_s.value
    if not (every.value and each and save and mtbf):
        return
    best_s = best_interval_s(save, mtbf)
    now, least = lost_share(every.value * each, save, mtbf), lost_share(best_s, save, mtbf)
    if now - least >= WORTH_SAYING:
        says = (
            f"every {every.value} iterations ({print_time(every.value * each)}) loses {print_percent(now)} of all "
            f"time; every {max(1, round(best_s / each))} ({print_time(best_s)}) would lose {print_percent(least)}"
        )
        yield broken(says, every, job.save_s, job.mtbf_s)


RULES = (interval_without_checkpoints, ends_before_checkpoint, exits_after_limit, interval_far_from_best)
