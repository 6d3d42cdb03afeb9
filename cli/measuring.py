"""A model measured on this machine: by this process, or by several at the same time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..profilers.models.form import AS_USUAL, ModelForm
from .console import progress, remark

if TYPE_CHECKING:
    import torch

    from ..profilers.models.model import Model
    from ..schemas.profile import Connection, Profile


@dataclass(frozen=True, slots=True)
class Measuring:
    """What to measure, and how long; None is the default of each.

    Attributes:
        name: of the model.
        microbatch_size, sequence_length: None: the model's own.
        form: which of its modules are layers, in which numbers, with or without checkpointing.
        degrees: of tensor parallelism.
        repeats: timed rounds; None: as many as take some seconds.
        threads: torch threads on a CPU.
        seed: of all randomness.
        at_once: processes that measure at the same time; None: one a GPU.
    """

    name: str
    microbatch_size: int | None = None
    sequence_length: int | None = None
    form: ModelForm = AS_USUAL
    degrees: tuple[int, ...] = (1,)
    repeats: int | None = None
    threads: int = 1
    seed: int = 0
    at_once: int | None = None


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


def load(asked: Measuring) -> "Model":
    """The model, on the CPU."""
    from ..profilers.models.load import load_model

    return load_model(asked.name, asked.microbatch_size, asked.sequence_length, asked.seed, asked.form)


def measure_here(
    asked: Measuring,
    model: "Model",
    intra_node: "Connection | None",
    tell: Callable[[int, int], None],
    number: int = 0,
) -> "Profile":
    """Measure a loaded model in this process, on the GPU of that number where there are any."""
    from ..profilers.measure import measure_profile
    from ..runners.torch.stage import Stage

    return measure_profile(
        model,
        Stage,
        degrees=asked.degrees,
        device=device(number),
        repeats=asked.repeats,
        threads=asked.threads,
        seed=asked.seed,
        intra_node=intra_node,
        progress=tell,
    )


def device(number: int) -> "torch.device":
    """The GPU of that number, counted round and round, which becomes the process's own; else the CPU."""
    import torch

    gpus = torch.cuda.device_count()
    if not gpus:
        return torch.device("cpu")
    torch.cuda.set_device(number % gpus)
    return torch.device("cuda", number % gpus)


def in_the_middle(profiles: "list[Profile]") -> "Profile":
    """The profile whose layers take the median time together; names the devices that take over 10 % more."""
    from statistics import median_low

    totals_s = [total_s(profile) for profile in profiles]
    median_s = median_low(totals_s)
    for number, found_s in enumerate(totals_s):
        if found_s > SLOW * median_s:
            remark(f"device {number} is slow: its layers take {found_s / median_s - 1:+.0%} against the median")
    return profiles[totals_s.index(median_s)]


# A device whose layers take this many times the median counts as slow.
SLOW = 1.1


def total_s(profile: "Profile") -> float:
    """What one micro-batch and one step take at degree 1, in s."""
    costs = [layer.costs[0] for layer in profile.layers]
    return sum(one.forward_s + one.backward_input_s + one.backward_weight_s + one.optimizer_s for one in costs)
