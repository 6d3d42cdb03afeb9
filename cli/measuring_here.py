"""A model measured on this machine by this process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..schemas.form import AS_USUAL, ModelForm

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
