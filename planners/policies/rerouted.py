"""A job with empty seats, re-routed by SlipStream: what an iteration takes, what a GPU holds, and the plan.

Workers of a stage are alike, so only the numbers of empty seats in each column count; the plan is that of the last
seats of each column being empty.
"""

from __future__ import annotations

from functools import cached_property

from ...schemas.plan import Plan, Template
from ..scheduling.solve import Effort
from ..slipstream.cluster import AtlasRequest, opening
from ..slipstream.normalization import Vector
from ..slipstream.replanner import Replanner
from .job import TrainingJob
from .memory import peak_memory_bytes
from .pipelines import TimeAndMemory, require_alike
from .retimed import Retimed


class ReroutedPipelines:
    """A job's pipelines with failures, their number by column; every answer is remembered.

    Schedules are made by rules, without a search: workers wait for them, and a replay asks for hundreds.

    Args:
        job: the shape is kept, whatever fails.

    Raises:
        InvalidInputError: the shape has delays of single pipelines.
    """

    def __init__(self, job: TrainingJob) -> None:
        require_alike(job)
        self._job = job
        self._outcomes: dict[Vector, TimeAndMemory] = {}
        self._best: dict[int, Vector] = {}

    @property
    def template(self) -> Template:
        """The stages of every pipeline.

        Raises:
            InfeasibleError: the profile cannot be cut into that many stages, or a device cannot hold one.
        """
        return self._replanner.common.template

    def outcome(self, empty: Vector) -> TimeAndMemory:
        """What the pipelines take, and hold at most, with so many empty seats in each column.

        Memory is that of all backwards split, as in an atlas; the plan, which splits fewer, may hold less.

        Raises:
            InfeasibleError: as `template`; or a memory limit admits nothing.
        """
        if empty not in self._outcomes:
            self._outcomes[empty] = self._outcome(*self._replanner.outcome(empty))
        return self._outcomes[empty]

    def bound_s(self, empty: Vector) -> float:
        """What an iteration takes at least, in s, whatever the plan."""
        return self._replanner.search.bound_s(self._job.grid.stage_failures(empty))

    def plan(self, empty: Vector) -> Plan:
        """Their plan; the rest as for `outcome`."""
        return self._replanner.in_place(self._job.grid.last_units(empty), compared=False)

    def ordered(self, empty: Vector) -> Retimed:
        """The orders of their plan; the rest as for `outcome`."""
        return Retimed(*self._replanner.orders(empty))

    def best(self, empty_seats: int) -> Vector:
        """In which columns so many empty seats cost least; for these there is a plan made ahead."""
        if empty_seats not in self._best:
            entry, _ = self._replanner.entry(empty_seats)
            grid = self._job.grid
            found = tuple(dead // grid.unit_pipelines for dead in entry.failures[:: grid.unit_stages])
            self._best[empty_seats] = found
            self._outcomes[found] = self._outcome(entry.prediction.iteration_time_s, entry.prediction.peak_memory_bytes)
        return self._best[empty_seats]

    def _outcome(self, iteration_s: float, activation_bytes: tuple[float, ...]) -> TimeAndMemory:
        return TimeAndMemory(iteration_s, peak_memory_bytes(self._job, self.template, activation_bytes))

    @cached_property
    def _replanner(self) -> Replanner:
        grid = self._job.grid
        unit = grid.unit_pipelines, grid.unit_stages
        effort = Effort("rules", seed=self._job.seed)
        request = AtlasRequest(self._job.shape, "staggered", unit, effort)
        return Replanner(opening(self._job.profile, request), grid.columns * (grid.units - 1))
