"""A model measured on this machine: by this process, or by several at the same time."""

from statistics import median_low
from typing import TYPE_CHECKING

from .console import progress, remark
from .measuring_here import Measuring, load, measure_here

if TYPE_CHECKING:
    from ..schemas.profile import Profile

# A device whose layers take this many times the median counts as slow.
SLOW = 1.1


def measure(asked: Measuring) -> "Profile":
    """Measure a model, with a progress bar; with several processes, the profile of the one in the middle.

    Raises:
        InvalidInputError: the model, its sizes or the degrees do not go together.
        InfeasibleError: the model, or a layer of it, does not fit into the memory.
        RuntimeFailedError: a process failed, or the loopback.
    """
    import torch

    from ..profilers.links import measure_loopback

    count = asked.at_once or max(torch.cuda.device_count(), 1)
    with progress() as bar:
        task = bar.add_task(f"measuring {asked.name}", total=None)

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        if count == 1:
            return measure_here(asked, load(asked), measure_loopback(), tell)
        from .at_once import measure_at_once

        return in_the_middle(measure_at_once(asked, count, measure_loopback(), tell))


def in_the_middle(profiles: "list[Profile]") -> "Profile":
    """The profile whose layers take the median time together; names the devices that take over 10 % more."""
    totals_s = [total_s(profile) for profile in profiles]
    median_s = median_low(totals_s)
    for number, found_s in enumerate(totals_s):
        if found_s > SLOW * median_s:
            remark(f"device {number} is slow: its layers take {found_s / median_s - 1:+.0%} against the median")
    return profiles[totals_s.index(median_s)]


def total_s(profile: "Profile") -> float:
    """What one micro-batch and one step take at degree 1, in s."""
    costs = [layer.costs[0] for layer in profile.layers]
    return sum(one.work_s + one.optimizer_s for one in costs)
