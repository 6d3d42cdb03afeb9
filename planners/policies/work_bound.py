"""What no policy can beat: the work of the micro-batches, by all the GPUs that there are."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from ...schemas.profile import Profile
from ...schemas.replay import Moment
from .job import TrainingJob


def least_gpu_s(profile: Profile) -> float:
    """GPU-seconds that a micro-batch takes at least: each layer's operations, at the degree that wastes least of them.

    Nobody waits, nothing is summed, no optimizer steps, and nothing is computed twice.
    """
    return sum(min(cost.work_s * cost.tensor_parallel for cost in layer.costs) for layer in profile.layers)


class WorkBound:
    """What GPUs can compute, slow ones at their pace, added up while moments pass.

    Args:
        job: of nodes beyond those that it asks for, which are spares, the fastest count.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._nodes_s = self._at_s = self._pace = 0.0

    def note(self, moment: Moment) -> None:
        """The next moment; the first one has the nodes that are there at the beginning."""
        self._nodes_s += self._pace * (moment.time_s - self._at_s)
        paces = sorted((1 / moment.fleet.slow.get(node, 1.0) for node in moment.fleet.nodes), reverse=True)
        self._at_s, self._pace = moment.time_s, sum(paces[: self._job.nodes])

    def most_microbatches(self, until_s: float) -> float:
        """Micro-batches by a time that is not before the last moment."""
        nodes_s = self._nodes_s + self._pace * (until_s - self._at_s)
        return nodes_s * self._job.gpus_per_node / least_gpu_s(self._job.profile)


def most_microbatches(job: TrainingJob, moments: Iterable[Moment], until_s: float) -> float:
    """Micro-batches that GPUs can compute between the first moment and a time.

    Args:
        job: as for `WorkBound`.
        moments: in time order; those from `until_s` on do not count.
        until_s: when it ends.
    """
    bound = WorkBound(job)
    for moment in takewhile(lambda one: one.time_s < until_s, moments):
        bound.note(moment)
    return bound.most_microbatches(until_s)
