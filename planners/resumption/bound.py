"""What no order and no routing of what is left could undercut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .costs import CrewCosts
    from .operations import OperationTable
    from .remaining import Remaining


def bound_s(costs: CrewCosts, operations: OperationTable, left: Remaining) -> float:
    """A lower bound in s."""
    work_s = np.zeros(len(costs.held))
    fixed = (operations.units.forward == -1)[operations.unit]
    np.add.at(work_s, operations.worker[fixed], operations.duration_s[fixed])
    return float(np.where(work_s > 0, work_s + costs.following_s, 0.0).max(initial=costs.step_s))
