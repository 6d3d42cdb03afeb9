"""`rtk profile`: what a model costs on this machine, layer by layer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import groupby
from statistics import median_low
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ..profilers.fitting import DoesNotFitError
from ..schemas.documents import read_document, write_document
from ..schemas.errors import InvalidInputError, RtkError, RuntimeFailedError
from ..schemas.files import STANDARD_STREAM
from ..schemas.form import AS_USUAL, DataType, ModelForm, form_of
from ..schemas.profile import TIMES, Layer, LayerCost, Profile, held_bytes
from .cluster import read_cluster, with_gpu
from .console import Debug, Json, Output, Quiet, Seed, emit, print_table, progress, remark
from .probe import links
from .profile_refine import compare, refine

if TYPE_CHECKING:
    from multiprocessing.connection import Connection as Pipe

    import torch

    from ..profilers.models.model import Model
    from ..schemas.profile import Connection


# A group of commands that is a command itself: what names none of them goes to the one that stands for all.


class DefaultVerb(TyperGroup):
    """A group whose first command gets all arguments that do not begin with the name of one.

    So `rtk profile MODEL` measures a model, and `rtk profile compare A B` does something else.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the first command's name before arguments that name none."""
        verbs = list(self.commands)
        if args and args[0] not in verbs and args[0] not in ctx.help_option_names:
            args = [verbs[0], *args]
        return super().parse_args(ctx, args)


def group(help_: str) -> typer.Typer:
    """A group with such a first command, still without commands."""
    return typer.Typer(cls=DefaultVerb, no_args_is_help=True, help=help_)


# The options of `rtk profile MODEL`.


ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A preset, file.py:factory, or a Hugging Face config.json.")
]
MicrobatchSize = Annotated[
    int | None, typer.Option("--microbatch-size", min=1, help="Samples a micro-batch; the model's own by default.")
]
SequenceLength = Annotated[
    int | None, typer.Option("--sequence-length", min=1, help="Tokens a sample; the model's own by default.")
]
Cut = Annotated[str | None, typer.Option("--cut", help="Names of the modules that are layers, such as model.layers.*")]
Dtype = Annotated[
    DataType | None,
    typer.Option(
        "--dtype", help="Of parameters, gradients and activations; fp32 if measured, else what suits the GPU."
    ),
]
Checkpointing = Annotated[
    bool, typer.Option("--checkpointing", help="Blocks keep their input only, and compute the rest again.")
]
Degrees = Annotated[str, typer.Option("--tp", help="Tensor-parallel degrees to measure, such as 1,2,4.")]
AtOnce = Annotated[
    int | None, typer.Option("--at-once", min=1, help="Processes that measure together; by default one a GPU.")
]
Repeats = Annotated[
    int | None, typer.Option("--repeats", min=1, help="Timed rounds; by default 8 s of them. The median counts.")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Torch threads on a CPU.")]
Analytic = Annotated[
    bool, typer.Option("--analytic", help="Compute instead of measuring, for a GPU that need not be here.")
]
GpuName = Annotated[str | None, typer.Option("--gpu", help="With --analytic: its name, such as h100-sxm.")]
Efficiency = Annotated[
    float | None,
    typer.Option(
        "--efficiency",
        metavar="SHARE",
        help="With --analytic: of the peak, what matrix products reach; what their sizes allow if not given.",
    ),
]
Calibrate = Annotated[
    str | None,
    typer.Option(
        "--calibrate", metavar="PROFILE", help="With --analytic: a smaller model's profile, measured on that GPU."
    ),
]
Machines = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="FILE|slurm|NxM",
        help="With --analytic: the machines, as for `rtk plan`; their GPUs, memory and network count.",
    ),
]


# `rtk profile MODEL --analytic`: what a model would cost on a GPU that is not here.


@dataclass(frozen=True, slots=True)
class Analysis:
    """What to compute.

    Attributes:
        name: of the model, or its config.json.
        microbatch_size, sequence_length: None: the model's own.
        cut: must be None.
        dtype: bf16 is mixed precision; None: that of the calibration, else bf16 where the GPU has it.
        checkpointing: blocks keep their inputs only.
        degrees: of tensor parallelism.
        gpu: its name.
        efficiency: share of the peak that matrix products reach; None: what their sizes allow.
        calibrate: a measured profile's file.
        cluster: the machines, which may say the GPU; what they say of memory and network counts.
    """

    name: str
    microbatch_size: int | None
    sequence_length: int | None
    cut: str | None
    dtype: DataType | None
    checkpointing: bool
    degrees: tuple[int, ...]
    gpu: str | None
    efficiency: float | None = None
    calibrate: str | None = None
    cluster: str | None = None


def is_analytic(analytic: bool, computing: Mapping[str, object], measuring: Mapping[str, object]) -> bool:
    """Whether a profile is to be computed.

    Args:
        analytic: what `--analytic` says.
        computing: the options that go with it, with their values; None: not given.
        measuring: those that go without it.

    Raises:
        InvalidInputError: one is given that does not go with what is asked for.
    """
    misplaced = [option for option, value in (measuring if analytic else computing).items() if value is not None]
    if misplaced:
        first = misplaced[0]
        raise InvalidInputError(
            f"{first} goes with{'out' if analytic else ''} --analytic",
            where=first,
            fix=f"leave {first} away" if analytic else f"add --analytic, or leave {first} away",
        )
    return analytic


def analyse(asked: Analysis) -> Profile:
    """Compute a profile, without torch.

    Raises:
        InvalidInputError: the model, the GPU or the calibration is not known, or they do not go together.
    """
    from ..profilers.analytic.analysis import profile_analytic

    cluster = None if asked.cluster is None else with_gpu(read_cluster(asked.cluster), asked.gpu, asked.cluster)
    asked = asked if cluster is None else replace(asked, gpu=cluster.gpu)
    _check(asked)
    return profile_analytic(
        asked.name,
        gpu=asked.gpu,
        microbatch_size=asked.microbatch_size,
        sequence_length=asked.sequence_length,
        dtype=asked.dtype,
        checkpointing=asked.checkpointing,
        tp=asked.degrees,
        efficiency=asked.efficiency,
        calibrate=None if asked.calibrate is None else _measured(asked.calibrate, asked.dtype),
        cluster=cluster,
    )


def explain_analysis(profile: Profile) -> None:
    """Say on standard error what a computed profile leaves to its reader."""
    recomputed_bytes = profile.model.get("recomputed_bytes")
    if recomputed_bytes:
        remark(
            f"while a block is computed again it holds {recomputed_bytes / 1e9:.2f} GB more (with tensor parallelism, "
            "all its GPUs together): leave that free, with --memory-limit"
        )


def _check(asked: Analysis) -> None:
    if asked.gpu is None:
        raise InvalidInputError(
            "--analytic needs a GPU to compute for", where="--gpu", fix="write --gpu h100-sxm, say, or any other's name"
        )
    if asked.cut is not None:
        raise InvalidInputError(
            "an analytic profile has the layers of its model's shape",
            where="--cut",
            fix="leave --cut away: the layers are the embedding, the blocks and the head",
        )
    if asked.efficiency is not None and asked.calibrate is not None:
        raise InvalidInputError(
            "an efficiency and a calibration contradict each other", where="--efficiency, --calibrate", fix="give one"
        )


def _measured(path: str, dtype: DataType | None) -> Profile:
    measured = read_document(path, Profile)
    own = form_of(measured.model).dtype
    if dtype not in (None, own):
        raise InvalidInputError(
            f"the profile was measured in {own}, and says nothing of {dtype}",
            where=f"--calibrate {path}",
            fix=f"measure it with --dtype {dtype}",
        )
    return measured


# A model measured on this machine by this process.


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
    from ..runners.torch.stage import TorchStage

    return measure_profile(
        model,
        TorchStage,
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


app = group("What a model costs on a machine, measured or computed.")


@app.callback()
def profile() -> None:
    """What a model costs on a machine, measured or computed."""


@app.command("model")
def model(
    name: ModelName,
    output: Output = STANDARD_STREAM,
    microbatch_size: MicrobatchSize = None,
    sequence_length: SequenceLength = None,
    cut: Cut = None,
    dtype: Dtype = None,
    checkpointing: Checkpointing = False,
    tp: Degrees = "1",
    at_once: AtOnce = None,
    repeats: Repeats = None,
    threads: Threads = 1,
    analytic: Analytic = False,
    gpu: GpuName = None,
    efficiency: Efficiency = None,
    calibrate: Calibrate = None,
    cluster: Machines = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure F, I, W and the optimizer step of a model's layers on this machine, and the memory they hold.

    The presets are gpt-tiny, gpt-small, gpt3-medium, gpt3-2.7b, gpt3-3.35b and gpt3-6.7b. A file's factory returns the
    layers (an nn.Sequential or a list), or a module that --cut cuts; beside it the file may define
    example(microbatch_size, sequence_length), which returns (inputs, targets), and loss(output, target). A Hugging Face
    config.json is made into a model with random weights.

    With --analytic nothing is measured, torch is not needed, and the model may be larger than any machine: the other
    presets, gpt3-13b and gpt3-175b, megatron-1.7b to megatron-1t (-145.6b, for one), llama3-8b, -70b and -405b, or a
    config.json of gpt2, gpt_neox, llama, mistral, opt, qwen2 or qwen3.
    """
    degrees = _degrees(tp)
    computing = {"--gpu": gpu, "--efficiency": efficiency, "--calibrate": calibrate, "--cluster": cluster}
    if is_analytic(analytic, computing, {"--repeats": repeats, "--at-once": at_once}):
        sizes = microbatch_size, sequence_length
        asked = Analysis(name, *sizes, cut, dtype, checkpointing, degrees, gpu, efficiency, calibrate, cluster)
        profile = analyse(asked)
    else:
        form = ModelForm(cut, dtype or AS_USUAL.dtype, checkpointing)
        profile = _measure(
            Measuring(name, microbatch_size, sequence_length, form, degrees, repeats, threads, seed, at_once), output
        )
    emit(profile, output, as_json)
    if not quiet:
        print_layers(profile)
        explain_analysis(profile)


def _measure(asked: Measuring, output: str) -> "Profile":
    """The profile; what fits is written beside `output` where not all does."""
    if find_spec("torch") is None:
        raise InvalidInputError("measuring a model needs torch", fix="install it: pip install 'rtk[torch]'")
    try:
        return measure(asked)
    except DoesNotFitError as error:
        _keep_partial(error, output)
        raise


def _degrees(text: str) -> tuple[int, ...]:
    degrees = tuple(int(part) if part.strip().isdecimal() else 0 for part in text.split(","))
    if min(degrees) < 1:
        raise InvalidInputError(f"{text!r} are no tensor-parallel degrees", where="--tp", fix="write 1,2,4")
    return degrees


def _keep_partial(error: DoesNotFitError, output: str) -> None:
    """Write the layers that fit beside where all were to go, and say so."""
    if error.partial is None or output == STANDARD_STREAM:
        return
    kept = partial_name(output)
    write_document(kept, error.partial)
    error.fix = f"{error.fix}; the {len(error.partial.layers)} layers that fit are in {kept}"


def partial_name(output: str) -> str:
    """Where a profile of some layers goes if `output` was for all: `p.partial.json` for `p.json`."""
    name = output.removesuffix(".gz").removesuffix(".json")
    return f"{name}.partial{output.removeprefix(name)}"


app.command("links")(links)
app.command("refine")(refine)
app.command("compare")(compare)


# A model measured on this machine: by this process, or by several at the same time.


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


# The same model measured by several processes at the same time: one a GPU, or on a CPU, to keep its cores busy.


def measure_at_once(
    asked: Measuring, count: int, intra_node: "Connection | None", tell: Callable[[int, int], None]
) -> "list[Profile]":
    """Start processes that load the model, let them measure together, and give the profile of each in order.

    Raises:
        RtkError: the first that a process met.
        RuntimeFailedError: a process ended without a profile.
    """
    from multiprocessing import get_context  # late: few measure with several processes

    context = get_context("spawn")
    pipes, processes = [], []
    try:
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_measure_one, args=(asked, number, intra_node, theirs), daemon=True)
            process.start()
            theirs.close()  # so that its end is heard
            pipes.append(ours)
            processes.append(process)
        for number, pipe in enumerate(pipes):
            _hear(pipe, number)
        for pipe in pipes:
            pipe.send("go")
        return _collect(pipes, tell)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _collect(pipes: "list[Pipe]", tell: Callable[[int, int], None]) -> "list[Profile]":
    from multiprocessing.connection import wait

    profiles: dict[int, Profile] = {}
    while len(profiles) < len(pipes):
        open_ = [pipe for number, pipe in enumerate(pipes) if number not in profiles]
        for pipe in wait(open_):
            number = pipes.index(pipe)  # type: ignore[arg-type]
            kind, value = _hear(pipes[number], number)
            if kind == "profile":
                profiles[number] = value
            elif number == 0:
                tell(*value)
    return [profiles[number] for number in range(len(pipes))]


def _hear(pipe: "Pipe", number: int) -> "tuple[str, Any]":
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


def _measure_one(asked: Measuring, number: int, intra_node: "Connection | None", pipe: "Pipe") -> None:
    """One of the processes: tells when it is ready, how far it is, and what it has found."""
    try:
        model = load(asked)
        pipe.send(("ready", None))
        pipe.recv()
        found = measure_here(asked, model, intra_node, lambda done, all_: pipe.send(("progress", (done, all_))), number)
        pipe.send(("profile", found))
    except RtkError as error:
        pipe.send(("error", error))


# A profile as a table on standard error: one row for layers that are alike, and their sum.


def print_layers(profile: "Profile") -> None:
    """Print what each layer costs, for people; ± is half the width of the middle half of the readings of F, I and W."""
    degrees = sorted({cost.tensor_parallel for layer in profile.layers for cost in layer.costs})
    columns = ("F ms", "I ms", "W ms", "step ms", "±", "held MB", "stash", "weights")
    columns = ("layer", *(("TP",) if len(degrees) > 1 else ()), *columns)
    rows = [row for same in _groups(profile.layers) for row in _rows(same, len(degrees) > 1)]
    print_table(columns, [*rows, *_totals(profile, degrees)], to_stderr=True)
    remark(_circumstances(profile))


def _groups(layers: Sequence[Layer]) -> Iterator[list[tuple[int, Layer]]]:
    """Neighbours that differ in nothing but their number."""
    numbered = list(enumerate(layers))
    for _, same in groupby(numbered, key=lambda one: replace(one[1], name=_title(one[0], one[1]))):
        yield list(same)


def _title(place: int, layer: Layer) -> str:
    """A layer's name without the number that it begins with, if it is its own."""
    name = layer.name or ""
    return name.removeprefix(f"{place} ")


def _rows(same: Sequence[tuple[int, Layer]], with_degree: bool) -> Iterator[tuple[str, ...]]:
    (first, layer), (last, _) = same[0], same[-1]
    title = _title(first, layer)
    name = f"{first} {title}".rstrip() if first == last else f"{first}-{last} {title}".rstrip() + f" x{len(same)}"
    for number, cost in enumerate(layer.costs):
        sizes = (layer.activation_bytes, layer.weight_stash_bytes, layer.parameter_bytes)
        degree = (f"{cost.tensor_parallel}",) if with_degree else ()
        bytes_ = [*map(_mb, sizes)] if number == 0 else ["", "", ""]
        yield (name if number == 0 else "", *degree, *_times(cost), *bytes_)


def _times(cost: LayerCost) -> Iterator[str]:
    """The four times, and the spread of F, I and W together."""
    yield from (_ms(getattr(cost, name)) for name in TIMES.values())
    yield "" if cost.spread is None or not cost.work_s else f"{cost.spread.work_s / cost.work_s:.1%}"


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.3f}" if time_s < 0.1 else f"{time_s * 1e3:.1f}"


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.2f}" if size_bytes < 1e8 else f"{size_bytes / 1e6:.0f}"


def _totals(profile: "Profile", degrees: Sequence[int]) -> Iterator[tuple[str, ...]]:
    parameter_bytes, _ = held_bytes(profile.layers, 0, len(profile.layers))
    sizes = (
        sum(layer.activation_bytes for layer in profile.layers),
        sum(layer.weight_stash_bytes for layer in profile.layers),
        parameter_bytes,
    )
    for degree in degrees:
        costs = [cost for layer in profile.layers for cost in layer.costs if cost.tensor_parallel == degree]
        times = (_ms(sum(getattr(cost, name) for cost in costs)) for name in TIMES.values())
        bytes_ = [*map(_mb, sizes)] if degree == degrees[0] else ["", "", ""]
        yield ("all", *((f"{degree}",) if len(degrees) > 1 else ()), *times, "", *bytes_)


def _circumstances(profile: "Profile") -> str:
    sequences = f" of {profile.sequence_length} tokens" if profile.sequence_length else ""
    form = ["checkpointing"] if profile.model.get("checkpointing") else []
    said = ", ".join([str(profile.model.get("dtype", "fp32")), *form])
    origin = "computed for" if profile.origin == "analytic" else "measured on"
    return f"{origin} {profile.device.name}, {said}; micro-batches of {profile.microbatch_size}{sequences}"
