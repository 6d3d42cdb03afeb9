"""The policies by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from ...schemas.errors import InvalidInputError
from ...schemas.protocols import RecoveryPolicy
from ...schemas.text import did_you_mean
from .job import TrainingJob

if TYPE_CHECKING:
    from .unheeding import Ordering

# Name, file and class: those of the papers and ours, then what they are compared with.
_CLASSES = {
    "slipstream": ("slipstream", "SlipStream"),
    "oobleck": ("oobleck", "Oobleck"),
    "adaptra": ("adaptra", "Adaptra"),
    "greyhound": ("greyhound", "Greyhound"),
    "rtk": ("rtk", "Rtk"),
    "bamboo": ("bamboo", "Bamboo"),
    "varuna": ("varuna", "Varuna"),
    "elastic-batching": ("elastic_batching", "ElasticBatching"),
    "checkpoint-restart": ("checkpoint_restart", "CheckpointRestart"),
    "spares": ("spares", "Spares"),
    "fault-free": ("fault_free", "FaultFree"),
}
NAMES = tuple(_CLASSES)
# What the policies that can also run are told of a job, instead of the job.
_JOBS = {"slipstream": "GridJob", "oobleck": "TemplateJob"}
# Those that know what is slow, or imagine that nothing is; the others do what they do, at the pace that is left.
_HEEDING = ("adaptra", "greyhound", "rtk", "fault-free")


def policy(name: str, job: TrainingJob) -> RecoveryPolicy:
    """The policy of a name, for a job.

    Raises:
        InvalidInputError: there is no such policy, or it cannot be asked about this job.
    """
    require_name(name)
    file, made = _CLASSES[name]
    module = import_module(f".{file}", __package__)
    if name == "rtk":
        from .detecting import Watched

        return Watched(getattr(module, made).replayed(job), job.costs)
    found = getattr(module, made)(getattr(module, _JOBS[name]).replayed(job) if name in _JOBS else job)
    return cast("RecoveryPolicy", found) if name in _HEEDING else _unheeding(found)


def _unheeding(found: Ordering) -> RecoveryPolicy:
    from .unheeding import Unheeding

    return Unheeding(found)


def require_name(name: str) -> None:
    """Raise InvalidInputError, with the nearest name, if there is no such policy."""
    if name in _CLASSES:
        return
    raise InvalidInputError(
        f"there is no policy {name!r}",
        where="--policies",
        fix=did_you_mean(name, NAMES, f"take some of {', '.join(NAMES)}"),
    )


def parse_policies(text: str | None) -> tuple[str, ...]:
    """The value of `--policies`: names with commas between them; None: all.

    Raises:
        InvalidInputError: a name is unknown, or stands there twice.
    """
    if text is None:
        return tuple(NAMES)
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        require_name(name)
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None or not names:
        what = f"{doubled} stands there twice" if doubled else "there are no policies"
        raise InvalidInputError(what, where="--policies", fix=f"take some of {', '.join(NAMES)}")
    return names
