"""The policies by name."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple, cast

from ...schemas.errors import InvalidInputError
from ...schemas.protocols import RecoveryPolicy
from ...schemas.text import did_you_mean
from .job import TrainingJob


class _Entry(NamedTuple):
    """Where a policy stands, and how it is made.

    Attributes:
        file: in this folder.
        made: its class.
        heeds: it knows what is slow, or imagines that nothing is; others do what they do, at the pace that is left.
        job: the class in its file of what it is told of a job, where it can also run; empty: the job itself.
        places: its workers hold the virtual stages of the job's placement; those of others hold one stage each.
        knows_gpus: it is told of single GPUs; others lose a node with one of its GPUs. It has to be asked for by name.
    """

    file: str
    made: str
    heeds: bool = False
    job: str = ""
    places: bool = False
    knows_gpus: bool = False


# Those of the papers and ours, then what they are compared with.
_POLICIES = {
    "slipstream": _Entry("slipstream", "SlipStream", job="GridJob", places=True),
    "oobleck": _Entry("oobleck", "Oobleck", job="TemplateJob"),
    "adaptra": _Entry("adaptra", "Adaptra", heeds=True),
    "greyhound": _Entry("greyhound", "Greyhound", heeds=True),
    "rtk": _Entry("rtk", "Rtk", heeds=True, places=True),
    "bamboo": _Entry("bamboo", "Bamboo"),
    "varuna": _Entry("varuna", "Varuna"),
    "elastic-batching": _Entry("elastic_batching", "ElasticBatching", places=True),
    "checkpoint-restart": _Entry("checkpoint_restart", "CheckpointRestart", places=True),
    "spares": _Entry("spares", "Spares", places=True),
    "fault-free": _Entry("fault_free", "FaultFree", heeds=True, places=True),
    "worker-lost": _Entry("gpu_faults", "worker_lost", heeds=True, knows_gpus=True),
    "degree-lowered": _Entry("gpu_faults", "degree_lowered", heeds=True, knows_gpus=True),
    "ntp": _Entry("ntp", "NonuniformDegrees", knows_gpus=True),
}
BY_GPU = tuple(name for name, entry in _POLICIES.items() if entry.knows_gpus)
NAMES = tuple(name for name in _POLICIES if name not in BY_GPU)  # all, where nobody asks for those of single GPUs


def policy(name: str, job: TrainingJob) -> RecoveryPolicy:
    """The policy of a name, for a job; one that knows no placements is given the job with one stage a worker.

    Raises:
        InvalidInputError: there is no such policy, or it cannot be asked about this job.
    """
    require_name(name)
    entry = _POLICIES[name]
    job = job if entry.places else job.plain
    module = import_module(f".{entry.file}", __package__)
    made = getattr(module, entry.made)
    if name == "rtk":
        from .detecting import Watched

        return Watched(made.replayed(job), job.costs)
    found = made(getattr(module, entry.job).replayed(job) if entry.job else job)
    if entry.heeds:
        return cast("RecoveryPolicy", found)
    from .detecting import Unheeding

    unheeding = Unheeding(found, job.shape.columns)
    if not entry.job:
        return unheeding
    from .interruption import Resuming

    return Resuming(unheeding, job.costs)


def gpu_policy(name: str, job: TrainingJob) -> RecoveryPolicy:
    """The policy of a name, for a trace in which single GPUs may fail; the rest as for `policy`."""
    found = policy(name, job)
    if name in BY_GPU:
        return found
    from .gpu_faults import WholeNodes

    return WholeNodes(found)


def knows_placements(name: str) -> bool:
    """Whether the policy of a name trains in the job's placement; others have one stage a worker."""
    return _POLICIES[name].places


def require_name(name: str) -> None:
    """Raise InvalidInputError, with the nearest name, if there is no such policy."""
    if name in _POLICIES:
        return
    raise InvalidInputError(
        f"there is no policy {name!r}",
        where="--policies",
        fix=did_you_mean(name, _POLICIES, f"take some of {', '.join(_POLICIES)}"),
    )


def parse_policies(text: str | None) -> tuple[str, ...]:
    """The value of `--policies`: names with commas between them; None: all but those of single GPUs.

    Raises:
        InvalidInputError: a name is unknown, or stands there twice.
    """
    if text is None:
        return NAMES
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        require_name(name)
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None or not names:
        what = f"{doubled} stands there twice" if doubled else "there are no policies"
        raise InvalidInputError(what, where="--policies", fix=f"take some of {', '.join(_POLICIES)}")
    return names
