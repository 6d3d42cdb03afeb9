"""The policies by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from ...schemas.errors import InvalidInputError
from ...schemas.protocols import Policy
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
# Those that know what is slow, or imagine that nothing is; the others do what they do, at the pace that is left.
_HEEDING = ("adaptra", "greyhound", "rtk", "fault-free")


def policy(name: str, job: TrainingJob) -> Policy:
    """The policy of a name, for a job.

    Raises:
        InvalidInputError: there is no such policy, or it cannot be asked about this job.
    """
    require_name(name)
    file, made = _CLASSES[name]
    found = getattr(import_module(f".{file}", __package__), made)(job)
    return cast("Policy", found) if name in _HEEDING else _unheeding(found)


def _unheeding(found: Ordering) -> Policy:
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
