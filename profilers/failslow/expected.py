"""What a running job is expected to be like, and how far from that is slow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

SLOW_PACE = 0.2  # a worker is slow whose operations take so much longer than those of the others
FEWEST = 3  # workers, links or groups that have a middle one worth comparing with


@dataclass(frozen=True)
class Expected:
    """What a job's first plan expects.

    Attributes:
        least_s: how much longer than usual a message takes that is slow.
        delay_s: of a message between two workers, in s.
        sum_s: of the sum of two peers' gradients, in s.
        slowdown: of workers that are known to be slow, by their names.
    """

    least_s: float
    delay_s: Callable[[str, str], float] = lambda one, other: 0.0
    sum_s: Callable[[str, str], float] = lambda one, other: 0.0
    slowdown: Mapping[str, float] = field(default_factory=dict)
