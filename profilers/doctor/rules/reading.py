"""Rules about settings that say nothing, or say two things."""

from collections.abc import Iterator

from ....schemas.diagnosis import ToldSetting
from ..settings import JobSettings
from .rule import Broken, rule


@rule(
    "contradiction",
    "unread",
    "take it out, and set what the finding names, or what is meant",
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    "names in libnccl.so of nvidia-nccl-cu12 2.32.3",
    "https://pytorch.org/docs/stable/torch_nccl_environment_variables.html",
    "https://slurm.schedmd.com/sbatch.html",
)
def nobody_reads_it(job: JobSettings) -> Iterator[Broken]:
    """A setting stands where no program reads it, or under a name that none reads."""
    alike: dict[str, list[ToldSetting]] = {}
    for one in job.unread:
        if one.kind == "ignored":
            alike.setdefault(f"{one.setting.name} says nothing: {one.why}", []).append(one.setting)
    for says, settings in alike.items():
        yield Broken(says, tuple(settings))


@rule(
    "contradiction",
    "unread",
    "correct the value",
    "pytorch/pytorch torch/csrc/distributed/c10d/Utils.hpp, getCvarInt and getCvarBool: “Invalid value”",
    "pytorch/pytorch torch/distributed/distributed_c10d.py:852 (2.13)",
    "pytorch/pytorch#135352",
)
def value_makes_no_sense(job: JobSettings) -> Iterator[Broken]:
    """A value cannot be read as what the program takes there."""
    for one in job.unread:
        if one.kind == "unreadable":
            yield Broken(f"{one.setting.name}={one.setting.text} cannot be read: {one.why}", (one.setting,))


@rule(
    "contradiction",
    "doubles",
    "keep one of them",
    "pytorch/pytorch torch/csrc/distributed/c10d/Utils.hpp, getCvarString; torch/distributed/argparse_util.py (2.13)",
)
def set_twice(job: JobSettings) -> Iterator[Broken]:
    """One thing is set to two values, in two places or under two names."""
    for counts, other in job.doubles:
        yield Broken(
            f"{counts.name} is set to {counts.text} and to {other.text}: {counts.text} counts", (counts, other)
        )


RULES = (nobody_reads_it, value_makes_no_sense, set_twice)
