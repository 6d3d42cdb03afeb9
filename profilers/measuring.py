"""A model measured on this machine: by this process, or by several at the same time, one a GPU or a few on a CPU."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median_low
from typing import TYPE_CHECKING, Any

from ..schemas.errors import RtkError, RuntimeFailedError, remark
from ..schemas.profile import AS_USUAL, Connection, ModelForm, Profile
from ..schemas.protocols import StageExecutor, StageFactory
from ..schemas.quantities import print_percent
from .models.load import load_model
from .models.model import Model

if TYPE_CHECKING:
    from multiprocessing.connection import Connection as Pipe

    import torch

SLOW = 1.1  # a device whose layers take this many times the median counts as slow


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
        overlap: whether to measure what F and B take side by side, too.
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
    overlap: bool = False


Load = Callable[[Measuring], Model]  # gives the model on the CPU; other processes import it by its name


def load(asked: Measuring) -> Model:
    """The model that its name means."""
    return load_model(asked.name, asked.microbatch_size, asked.sequence_length, asked.seed, asked.form)


def measure_here(
    asked: Measuring,
    model: Model,
    make_stage: StageFactory,
    intra_node: Connection | None,
    tell: Callable[[int, int], None],
    number: int = 0,
) -> Profile:
    """Measure a loaded model in this process, on the GPU of that number where there are any.

    On a CPU also what the boundary of a stage costs. A GPU's queue hides it in a rehearsal, where the host runs ahead:
    its layers' times do not contain it.
    """
    from .boundary import measure_boundary, with_boundary
    from .measure import measure_profile, working_threads
    from .overlap import measure_overlap

    where = device(number)
    if model.precision is not None:
        stages: Callable[..., StageExecutor] = make_stage
        make_stage = partial(stages, precision=model.precision)
    profile = measure_profile(
        model,
        make_stage,
        degrees=asked.degrees,
        device=where,
        repeats=asked.repeats,
        threads=asked.threads,
        seed=asked.seed,
        intra_node=intra_node,
        progress=tell,
    )
    if asked.overlap:
        with working_threads(asked.threads):
            worth = measure_overlap(model, make_stage, device=where, repeats=asked.repeats, seed=asked.seed)
        profile = replace(profile, overlap=worth)
    if where.type != "cpu":
        return profile
    with working_threads(asked.threads):
        return with_boundary(profile, measure_boundary(make_stage))


def device(number: int) -> "torch.device":
    """The GPU of that number, counted round and round, which becomes the process's own; else the CPU."""
    import torch

    gpus = torch.cuda.device_count()
    if not gpus:
        return torch.device("cpu")
    torch.cuda.set_device(number % gpus)
    return torch.device("cuda", number % gpus)


def measure(asked: Measuring, make_stage: StageFactory, tell: Callable[[int, int], None], load: Load = load) -> Profile:
    """Measure a model; with several processes, the profile of the one in the middle.

    Args:
        asked: what.
        make_stage: makes of one layer what a runner would execute; other processes import it by its name.
        tell: hears how many rounds are done, and of how many.
        load: gives the model.

    Raises:
        InvalidInputError: the model, its sizes or the degrees do not go together.
        InfeasibleError: the model, or a layer of it, does not fit into the memory.
        RuntimeFailedError: a process failed, or the loopback.
    """
    import torch

    from . import links

    count = asked.at_once or max(torch.cuda.device_count(), 1)
    if count == 1:
        model = load(asked)  # first: a model that cannot be loaded is refused at once
        return measure_here(asked, model, make_stage, links.measure_loopback(), tell)
    return in_the_middle(measure_at_once(asked, count, make_stage, links.measure_loopback(), tell, load))


def in_the_middle(profiles: list[Profile]) -> Profile:
    """The profile whose layers take the median time together; names the devices that take over 10 % more."""
    # What one micro-batch and one step take at degree 1.
    degree_one = [[layer.costs[0] for layer in profile.layers] for profile in profiles]
    totals_s = [sum(one.work_s + one.optimizer_s for one in costs) for costs in degree_one]
    median_s = median_low(totals_s)
    for number, found_s in enumerate(totals_s):
        if found_s > SLOW * median_s:
            longer = print_percent(found_s / median_s - 1)
            remark(f"device {number} is slow: its layers take {longer} longer than the median")
    return profiles[totals_s.index(median_s)]


def measure_at_once(
    asked: Measuring,
    count: int,
    make_stage: StageFactory,
    intra_node: Connection | None,
    tell: Callable[[int, int], None],
    load: Load = load,
) -> list[Profile]:
    """Start processes that load the model, let them measure together, and give the profile of each in order.

    Raises:
        RtkError: the first that a process met.
        RuntimeFailedError: a process ended without a profile.
    """
    from multiprocessing import get_context  # late: few measure with several processes
    from multiprocessing.connection import wait

    context = get_context("spawn")
    pipes, processes = [], []
    try:
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_measure_one, args=(asked, number, make_stage, intra_node, theirs, load), daemon=True
            )
            process.start()
            theirs.close()  # so that its end is heard
            pipes.append(ours)
            processes.append(process)
        for number, pipe in enumerate(pipes):
            _hear(pipe, number)
        for pipe in pipes:
            pipe.send("go")
        profiles: dict[int, Profile] = {}
        while len(profiles) < count:
            for ready in wait([pipe for number, pipe in enumerate(pipes) if number not in profiles]):
                number = pipes.index(ready)  # type: ignore[arg-type]
                kind, value = _hear(pipes[number], number)
                if kind == "profile":
                    profiles[number] = value
                elif number == 0:
                    tell(*value)
        return [profiles[number] for number in range(count)]
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _hear(pipe: "Pipe", number: int) -> tuple[str, Any]:
    try:
        kind, value = pipe.recv()
    except EOFError as error:
        raise RuntimeFailedError(
            f"measuring process {number} ended without a profile",
            where=f"--at-once, process {number}",
            fix="see what it said above; --at-once 1 measures in one process",
        ) from error
    if kind == "error":
        raise value
    return kind, value


def _measure_one(
    asked: Measuring,
    number: int,
    make_stage: StageFactory,
    intra_node: Connection | None,
    pipe: "Pipe",
    load: Load = load,
) -> None:
    """One of the processes: tells when it is ready, how far it is, and what it has found."""
    try:
        model = load(asked)
        pipe.send(("ready", None))
        pipe.recv()

        def tell(done: int, all_: int) -> None:
            pipe.send(("progress", (done, all_)))

        found = measure_here(asked, model, make_stage, intra_node, tell, number)
        pipe.send(("profile", found))
    except RtkError as error:
        pipe.send(("error", error))
