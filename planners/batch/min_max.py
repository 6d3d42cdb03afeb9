"""Micro-batches such that the slowest pipeline is as fast as can be, each pipeline with a number of its own.

Minimize max_i time_i(m_i), where sum m_i = M and every m_i is a positive multiple of q: what Greyhound's equation 1
(section 5.2, S2) is after, and states as a variance instead; the two are not equivalent (`variance.py`).
"""

from .filling import cheapest_steps
from .groups import Groups
from .times import Times


def min_max(groups: Groups, units: int) -> list[int]:
    """The units of each pipeline, so that the slowest is as fast as can be.

    Exact: every unit goes to the pipeline that is fastest with it. The certificate is that if all pipelines had the
    most units with which they are faster than the answer's slowest, it were fewer than there are. Of equally fast
    pipelines the lower index takes the unit.

    Args:
        groups: of one pipeline each.
        units: at least one a pipeline.
    """
    return [int(n) for n in cheapest_steps(Times.of(groups.paces), groups.multiple_of, units)]
