"""The windows of the components: from the first start to the last end of their workers, and what they add up to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .problem import Floats, Problem


@dataclass(frozen=True, eq=False)
class Windows:
    """Each component's first start and last end, slowest all-reduce and optimizer step; arrays of groups, in s."""

    begin_s: Floats
    end_s: Floats
    reduce_s: Floats
    step_s: Floats

    @property
    def makespan_s(self) -> float:
        """End of the iteration when every worker starts at 0, all-reduce and optimizer included."""
        return float((self.end_s + self.reduce_s).max() + self.step_s.max())

    @property
    def lengths_s(self) -> Floats:
        """From each component's first start to the end of its own optimizer step."""
        lengths: Floats = self.end_s - self.begin_s + self.reduce_s + self.step_s
        return lengths

    @property
    def period_s(self) -> float:
        """Smallest time after which the schedule repeats when each component steps its optimizer on its own."""
        return float(self.lengths_s.max())

    @property
    def deadlines_s(self) -> Floats:
        """When each component may end at the latest, with the makespan and the longest window kept."""
        whole_s = (self.end_s + self.reduce_s).max() - self.reduce_s
        window_s = self.begin_s + self.period_s - self.reduce_s - self.step_s
        kept: Floats = np.minimum(whole_s, window_s)
        return kept


def stage_windows(problem: Problem, first_s: Floats, last_s: Floats) -> Windows:
    """The windows of a problem's components.

    Args:
        problem: whose workers they are.
        first_s, last_s: first start and last end of each worker; what is said of workers without operations is ignored.
    """
    workers, busy = problem.workers, problem.job_counts > 0
    groups = int(workers.group.max()) + 1
    begin_s, end_s, reduce_s, step_s = np.full(groups, np.inf), np.zeros(groups), np.zeros(groups), np.zeros(groups)
    np.minimum.at(begin_s, workers.group[busy], first_s[busy])
    np.maximum.at(end_s, workers.group[busy], last_s[busy])
    np.maximum.at(reduce_s, workers.group[workers.live], workers.allreduce_s[workers.live])
    np.maximum.at(step_s, workers.group[workers.live], workers.optimizer_s[workers.live])
    return Windows(begin_s, end_s, reduce_s, step_s)
