"""The cluster that never fails: what goodput is measured against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial

from ...schemas.errors import InfeasibleError
from ...schemas.orders import Schedule
from ...schemas.plan import Place, Plan
from ...schemas.replay import Fleet, Moment, TrainingState, Transition
from .job import TrainingJob, seated, seating_of, seats
from .layout import TimeAndMemory, alike, pipelines_by
from .rerouting import ReroutedPipelines
from .slipstream import GridJob

Way = tuple[Callable[[], TimeAndMemory], Callable[[], Plan]]


class FaultFree:
    """Trains at full speed whatever happens: the fastest of the job's schedule, zero-bubble, and SlipStream's plan.

    It does not even need nodes: those that a trace does not have at its beginning it imagines. It saves no checkpoints.

    For replays only: `rtk run` cannot obey it.

    Args:
        job: what it trains.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job = job

    def begin(self, fleet: Fleet) -> TrainingState:
        """All seats taken, by the first nodes as far as there are some."""
        job, (outcome, _) = self._job, self._fastest
        seating = seated(fleet.nodes, job.nodes)
        return outcome.standing(seating, job.microbatches, job.nodes)

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """Nothing changes."""
        return ()

    def plan(self, standing: TrainingState) -> Plan:
        """The fastest plan."""
        _, planned = self._fastest
        return planned()

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Who sat there at the beginning."""
        return seats(seating_of(standing), self._job.grid)

    @cached_property
    def _fastest(self) -> tuple[TimeAndMemory, Callable[[], Plan]]:
        """Of the ways that fit the GPUs: what it takes and holds, and what makes its plan.

        Raises:
            InfeasibleError: none fits.
        """
        found, refusals = [], []
        for outcome, planned in self._ways():
            try:
                found.append((outcome(), planned))
            except InfeasibleError as error:
                refusals.append(error)
        if not found:
            raise refusals[0]
        return min(found, key=lambda way: way[0].iteration_time_s)

    def _ways(self) -> Iterator[Way]:
        job = self._job
        schedules: dict[Schedule, None] = dict.fromkeys((job.schedule, "zero-bubble"))
        for schedule in schedules:
            pipelines, layout = pipelines_by(job, schedule), alike([job.shape.microbatches] * job.shape.dp)
            yield partial(pipelines.outcome, layout), partial(pipelines.plan, layout)
        yield lambda: self._rerouted.outcome(frozenset()), lambda: self._rerouted.plan(frozenset())

    @cached_property
    def _rerouted(self) -> ReroutedPipelines:
        return GridJob.replayed(self._job).pipelines
