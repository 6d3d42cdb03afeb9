"""The windows of stages: from the first start of their workers to the last sum of gradients, and what they add up to.

Workers of the same layers share all their sums, and so one window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .problem import Flags, Floats, Problem


@dataclass(frozen=True, eq=False)
class Windows:
    """Each group's first start, its last sum of gradients, and its slowest optimizer step; arrays of groups, in s.

    Attributes:
        begin_s: its first start.
        end_s: when its last sum begins, that of its first layers: where all cut alike, its last end.
        reduce_s: what this sum takes.
        step_s: what its optimizer step takes.
        meets_s: when its first sum begins, that of its last layers: no sum begins later if its workers end by then.
        alone: whether it shares no layers with other groups, so that it sums once and for itself.
    """

    begin_s: Floats
    end_s: Floats
    reduce_s: Floats
    step_s: Floats
    meets_s: Floats
    alone: Flags

    @property
    def makespan_s(self) -> float:
        """End of the iteration when every worker starts at 0, all-reduce and optimizer included."""
        return float((self.end_s + self.reduce_s).max() + self.step_s.max())

    @property
    def lengths_s(self) -> Floats:
        """From each group's first start to the end of its own optimizer step."""
        lengths: Floats = self.end_s - self.begin_s + self.reduce_s + self.step_s
        return lengths

    @property
    def period_s(self) -> float:
        """Smallest time after which the schedule repeats when each worker steps its optimizer on its own."""
        return float(self.lengths_s.max())

    @property
    def deadlines_s(self) -> Floats:
        """When each group may end, with the makespan and the longest window kept: at the latest, where it is alone."""
        whole_s = (self.end_s + self.reduce_s).max() - self.reduce_s
        window_s = self.begin_s + self.period_s - self.reduce_s - self.step_s
        kept: Floats = np.where(self.alone, np.minimum(whole_s, window_s), self.meets_s)
        return kept


def stage_windows(problem: Problem, first_s: Floats, last_s: Floats) -> Windows:
    """The windows of a problem's groups.

    Args:
        problem: whose workers they are.
        first_s, last_s: first start and last end of each worker; what is said of workers without operations is ignored.
    """
    workers, busy, parts = problem.workers, problem.job_counts > 0, problem.workers.parts
    groups = len(parts.held)
    begin_s, ends_s = np.full(groups, np.inf), np.zeros(groups)
    np.minimum.at(begin_s, workers.group[busy], first_s[busy])
    np.maximum.at(ends_s, workers.group[busy], last_s[busy])
    lasts_s = workers.sums_s
    begun_s = parts.begun_s(lasts_s, ends_s.tolist())
    return Windows(
        begin_s,
        np.array([begun_s[part] for part in parts.foremost]),
        np.array([lasts_s[part] for part in parts.foremost]),
        np.array(workers.steps_s),
        np.array([begun_s[part] for part in parts.hindmost]),
        np.array(parts.alone),
    )
