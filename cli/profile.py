"""`rtk profile`: what a model costs on this machine, layer by layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, Any

import typer

from ..profilers.analytic.software import software_of
from ..schemas.documents import write_document
from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import STANDARD_STREAM
from ..schemas.profile import (
    ALL_PASSES,
    TIMES,
    DataType,
    DoesNotFitError,
    Layer,
    LayerCost,
    Profile,
    held_bytes,
)
from ..schemas.quantities import print_bytes, print_share
from ..schemas.site import ASSUMED_NETWORK, read_cluster, with_gpu
from .computing import ComputedOptions
from .console import Common, Output, Seed, Writes, counting, emit, grouped, print_table, wrote
from .job import gives
from .probe import links
from .profile_refine import compare, refine
from .verbs import VerbGroup

# A group of commands that is a command itself: what names none of them goes to the one that stands for all.


class DefaultVerb(VerbGroup):
    """A group whose first command gets all arguments that do not begin with the name of one.

    So `rtk profile MODEL` measures a model, and `rtk profile compare A B` does something else. Without arguments it
    shows its help, unless a job's file says which model.
    """

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The commands, and what may be the first argument of the first one."""
        first = next(iter(self.commands.values()))
        argument: Any = next(param for param in first.params if param.param_type_name == "argument")
        return [*super().shell_complete(ctx, incomplete), *argument.shell_complete(ctx, incomplete)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the first command's name before arguments that name none."""
        verbs = list(self.commands)
        if not args and gives(ctx.default_map, verbs[0], "name"):
            args = verbs[:1]
        if args and args[0] not in verbs and args[0] not in ctx.help_option_names:
            args = [verbs[0], *args]
        return super().parse_args(ctx, args)


def group(help_: str) -> typer.Typer:
    """A group with such a first command, still without commands."""
    return typer.Typer(cls=DefaultVerb, no_args_is_help=True, help=help_)


app = group("What a model costs on a machine, measured or computed.")


@app.callback()
def profile() -> None:
    """What a model costs on a machine, measured or computed."""


@dataclass(frozen=True)
class FormOptions:
    """What model is profiled, in which form."""

    microbatch_size: Annotated[
        int | None, typer.Option("--microbatch-size", min=1, help="Samples a micro-batch; the model's own by default.")
    ] = None
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", min=1, help="Tokens a sample; the model's own by default.")
    ] = None
    cut: Annotated[
        str | None, typer.Option("--cut", help="Names of the modules that are layers, such as model.layers.*")
    ] = None
    dtype: Annotated[
        DataType | None,
        typer.Option("--dtype", help="Of parameters and activations; fp32 if measured, else what suits the GPU."),
    ] = None
    checkpointing: Annotated[
        bool,
        typer.Option(
            "--checkpointing/--no-checkpointing", help="Blocks keep their input only, and compute the rest again."
        ),
    ] = False
    tp: Annotated[str, typer.Option("--tp", help="Tensor-parallel degrees to measure, such as 1,2,4.")] = "1"

    def given(self) -> dict[str, Any]:
        """What profilers are called with.

        Raises:
            InvalidInputError: a degree is none.
        """
        degrees = tuple(int(part) if part.strip().isdecimal() else 0 for part in self.tp.split(","))
        if min(degrees) < 1:
            raise InvalidInputError(f"{self.tp!r} are no tensor-parallel degrees", where="--tp", fix="write 1,2,4")
        return {**vars(self), "tp": degrees}


@dataclass(frozen=True)
class MeasureOptions:
    """How long, and by how many processes, a model is measured."""

    at_once: Annotated[
        int | None, typer.Option("--at-once", min=1, help="Processes that measure together; by default one a GPU.")
    ] = None
    repeats: Annotated[
        int | None, typer.Option("--repeats", min=1, help="Timed rounds; by default 8 s of them. The median counts.")
    ] = None
    threads: Annotated[int, typer.Option("--threads", min=1, help="Torch threads on a CPU.")] = 1
    overlap: Annotated[
        bool,
        typer.Option("--overlap/--no-overlap", help="Also measure F and B of two micro-batches side by side."),
    ] = False


@dataclass(frozen=True)
class AnalysisOptions(ComputedOptions):
    """Whether a model is computed instead of measured, and for which machines."""

    analytic: Annotated[
        bool,
        typer.Option("--analytic/--no-analytic", help="Compute instead of measuring, for a GPU that need not be here."),
    ] = False
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="FILE|slurm|NxM",
            help="Of a computed model: the machines, as for `rtk plan`; their GPUs, memory and network count.",
        ),
    ] = None


@app.command("model")
@grouped
def model(
    name: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A preset, file.py:factory, a config.json, or a script."),
    ],
    output: Annotated[Output, Writes("an rtk.profile")] = STANDARD_STREAM,
    *,
    form: FormOptions,
    how: MeasureOptions,
    analysis: AnalysisOptions,
    seed: Seed = 0,
    common: Common,
) -> None:
    """Measure F, I, W and the optimizer step of a model's layers on this machine, and the memory they hold.

    The presets are gpt-tiny, gpt-small, gpt3-medium, gpt3-2.7b, gpt3-3.35b and gpt3-6.7b. A file's factory returns the
    layers (an nn.Sequential or a list), or a module that --cut cuts; beside it the file may define
    example(microbatch_size, sequence_length), which returns (inputs, targets), and loss(output, target). A Hugging Face
    config.json is made into a model with random weights. A script that holds a Training (rtk.train) says itself what
    it does not leave open: model, sizes, precision, and the data of which micro-batches are examples.

    With --analytic nothing is measured, torch is not needed, and the model may be larger than any machine: the other
    presets, gpt3-13b and gpt3-175b, megatron-1.7b to megatron-1t (-145.6b, for one), llama3-8b, -70b and -405b, or a
    config.json of gpt2, gpt_neox, llama, mistral, opt, qwen2 or qwen3.
    """
    names = {"kernel_gap_s": "kernel-gap"}
    computing = {
        f"--{names.get(option, option.replace('_', '-'))}": value
        for option, value in vars(analysis).items()
        if option != "analytic"
    }
    measuring = {"--repeats": how.repeats, "--at-once": how.at_once, "--overlap": how.overlap or None}
    for option, value in (measuring if analysis.analytic else computing).items():
        if value is not None:
            raise InvalidInputError(
                f"{option} goes with{'out' if analysis.analytic else ''} --analytic",
                where=option,
                fix=f"leave {option} away" if analysis.analytic else f"add --analytic, or leave {option} away",
            )
    profile = _computed(name, form, analysis) if analysis.analytic else _measured(name, form, how, seed, output)
    emit(profile, output, common.as_json)
    if common.quiet:
        return
    print_layers(profile)
    for place, layer in enumerate(profile.layers):
        if layer.tied_to is not None:
            remark(
                f"layers {layer.tied_to} and {place} share a matrix (tied weights): in different stages each has a "
                "copy, and their gradients are summed"
            )
    wrote(output, f"rtk plan pipeline {output} --pp 2 --dp 2 --microbatches 8 -o plan.json")
    recomputed_bytes = profile.model.get("recomputed_bytes")
    if recomputed_bytes:
        remark(
            f"while a block is computed again it holds {print_bytes(recomputed_bytes)} more (with tensor parallelism, "
            "all its GPUs together): leave that free, with --memory-limit"
        )


def _computed(name: str, form: FormOptions, analysis: AnalysisOptions) -> Profile:
    """A computed profile, without torch."""
    from ..calibrating import read_calibration
    from ..profilers.analytic.estimate import Learned, profile_analytic

    cluster, gpu = None, analysis.gpu
    if analysis.cluster is not None:
        cluster = with_gpu(read_cluster(analysis.cluster), gpu, analysis.cluster)
        gpu = cluster.gpu
    if gpu is None:
        raise InvalidInputError(
            "--analytic needs a GPU to compute for", where="--gpu", fix="write --gpu h100-sxm, say, or any other's name"
        )
    if form.cut is not None:
        raise InvalidInputError(
            "an analytic profile has the layers of its model's shape",
            where="--cut",
            fix="leave --cut away: the layers are the embedding, the blocks and the head",
        )
    software = software_of(analysis.given())
    calibrate = None
    if analysis.calibrate is not None:
        calibrate = read_calibration(analysis.calibrate, gpu=gpu, cluster=cluster, software=software)
    if isinstance(calibrate, Learned):
        for words in calibrate.remarks:
            remark(words)
    given = {option: value for option, value in form.given().items() if option != "cut"}
    profile = profile_analytic(
        name,
        gpu=gpu,
        **given,
        efficiency=analysis.efficiency,
        calibrate=calibrate,
        cluster=cluster,
        software=software,
    )
    if cluster is None or not (cluster.network.inter_node or cluster.network.node or len(cluster.nodes) == 1):
        remark(ASSUMED_NETWORK)
    if isinstance(calibrate, Learned) and (carried := calibrate.carried(profile)):
        remark(carried)
    return profile


def _measured(name: str, form: FormOptions, how: MeasureOptions, seed: int, output: str) -> Profile:
    """The profile; what fits is written beside `output` where not all does."""
    from ..wiring import profile_measured

    given = form.given()
    try:
        with counting(f"measuring {name}") as tell:
            return profile_measured(name, **given, **vars(how), seed=seed, tell=tell)
    except DoesNotFitError as error:
        if error.partial is not None and output != STANDARD_STREAM:
            kept = partial_name(output)
            write_document(kept, error.partial)
            error.fix = f"{error.fix}; the {len(error.partial.layers)} layers that fit are in {kept}"
        raise


def partial_name(output: str) -> str:
    """Where a profile of some layers goes if `output` was for all: `p.partial.json` for `p.json`."""
    name = output.removesuffix(".gz").removesuffix(".json")
    return f"{name}.partial{output.removeprefix(name)}"


app.command("links")(links)
app.command("refine")(refine)
app.command("compare")(compare)


# A profile as a table on standard error: one row for layers that are alike, and their sum.


def print_layers(profile: "Profile") -> None:
    """Print what each layer costs, for people; ± is half the width of the middle half of the readings of F, I and W."""
    costs = [cost for layer in profile.layers for cost in layer.costs]
    degrees = sorted({cost.tensor_parallel for cost in costs})
    # A full backward pass is shown where any layer says what it takes.
    times = TIMES if all(cost.backward_s is None for cost in costs) else {**ALL_PASSES, "step": TIMES["step"]}
    columns = (*(f"{kind} ms" for kind in times), "±", "held MB", "stash", "weights")
    columns = ("layer", *(("TP",) if len(degrees) > 1 else ()), *columns)
    # Neighbours that differ in nothing but their number have one row.
    alike = groupby(enumerate(profile.layers), key=lambda one: replace(one[1], name=_title(one[0], one[1])))
    rows = [row for _, same in alike for row in _rows(list(same), [*times.values()], len(degrees) > 1)]
    print_table(columns, [*rows, *_totals(profile, [*times.values()], degrees)], to_stderr=True)
    if profile.boundary is not None:
        passes = ((kind, getattr(profile.boundary, name)) for kind, name in times.items() if kind != "step")
        remark(f"of each layer's times the boundary of a stage is {', '.join(f'{k} {_ms(t)}' for k, t in passes)} ms")
    if profile.overlap is not None:
        saved = f"{print_share(1 - profile.overlap)} less than" if profile.overlap < 1 else "as long as"
        remark(f"F and B of two micro-batches side by side take {saved} one after the other")
    sequences = f" of {profile.sequence_length} tokens" if profile.sequence_length else ""
    form = ["checkpointing"] if profile.model.get("checkpointing") else []
    said = ", ".join([str(profile.model.get("dtype", "fp32")), *form])
    origin = "computed for" if profile.origin == "analytic" else "measured on"
    remark(f"{origin} {profile.device.name}, {said}; micro-batches of {profile.microbatch_size}{sequences}")


def _title(place: int, layer: Layer) -> str:
    """A layer's name without the number that it begins with, if it is its own."""
    name = layer.name or ""
    return name.removeprefix(f"{place} ")


def _rows(same: Sequence[tuple[int, Layer]], shown: Sequence[str], with_degree: bool) -> Iterator[tuple[str, ...]]:
    (first, layer), (last, _) = same[0], same[-1]
    title = _title(first, layer)
    name = f"{first} {title}".rstrip() if first == last else f"{first}-{last} {title}".rstrip() + f" x{len(same)}"
    for number, cost in enumerate(layer.costs):
        sizes = (layer.activation_bytes, layer.weight_stash_bytes, layer.parameter_bytes)
        degree = (f"{cost.tensor_parallel}",) if with_degree else ()
        bytes_ = [*map(_mb, sizes)] if number == 0 else ["", "", ""]
        times = [_ms(_time_s(cost, one)) for one in shown]
        spread = "" if cost.spread is None or not cost.work_s else print_share(cost.spread.work_s / cost.work_s)
        yield (name if number == 0 else "", *degree, *times, spread, *bytes_)


def _time_s(cost: LayerCost, name: str) -> float:
    time_s: float = cost.full_s if name == "backward_s" else getattr(cost, name)
    return time_s


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.3f}" if time_s < 0.1 else f"{time_s * 1e3:.1f}"


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.2f}" if size_bytes < 1e8 else f"{size_bytes / 1e6:.0f}"


def _totals(profile: "Profile", shown: Sequence[str], degrees: Sequence[int]) -> Iterator[tuple[str, ...]]:
    parameter_bytes, _ = held_bytes(profile.layers, 0, len(profile.layers))
    sizes = (
        sum(layer.activation_bytes for layer in profile.layers),
        sum(layer.weight_stash_bytes for layer in profile.layers),
        parameter_bytes,
    )
    for degree in degrees:
        costs = [cost for layer in profile.layers for cost in layer.costs if cost.tensor_parallel == degree]
        times = (_ms(sum(_time_s(cost, name) for cost in costs)) for name in shown)
        bytes_ = [*map(_mb, sizes)] if degree == degrees[0] else ["", "", ""]
        yield ("all", *((f"{degree}",) if len(degrees) > 1 else ()), *times, "", *bytes_)
