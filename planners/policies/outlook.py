"""What a policy expects of the future, from what it has seen: until when a change must have paid."""

from __future__ import annotations

from ...schemas.replay import Costs, Moment


def until_next_failure_s(costs: Costs, moment: Moment) -> float:
    """The mean time between failures so far, in s; what the costs say counts as the first one seen.

    Failures are taken to have no memory, so that this is how long it takes from any moment to the next one.
    """
    return (costs.mean_time_between_failures_s + moment.time_s) / (1 + moment.failures)


def pays(left_s: float, pause_s: float, before_per_s: float, after_per_s: float) -> bool:
    """Whether a change commits more in the time that is left than none, for all that it pauses training.

    Args:
        left_s: until the next failure, in s.
        pause_s: what the change takes, in s.
        before_per_s, after_per_s: micro-batches a second without and with it.
    """
    return max(0.0, left_s - pause_s) * after_per_s > left_s * before_per_s
