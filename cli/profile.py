"""`rtk profile`: what a model costs on this machine, layer by layer."""

from importlib.util import find_spec
from typing import Annotated

import typer

from ..profilers.fitting import DoesNotFitError
from ..profilers.models.form import AS_USUAL, DataType, ModelForm
from ..schemas.documents import STANDARD_STREAM, write_document
from ..schemas.errors import InvalidInputError
from .console import Debug, Json, Output, Quiet, Seed, emit
from .default_verb import group
from .measuring import measure
from .measuring_here import Measuring
from .profile_analytic import Analysis, analyse, explain_analysis, is_analytic
from .profile_compare import compare
from .profile_links import links
from .profile_refine import refine
from .profile_table import print_layers

app = group("What a model costs on a machine, measured or computed.")


@app.callback()
def profile() -> None:
    """What a model costs on a machine, measured or computed."""


@app.command("model")
def model(
    name: Annotated[
        str, typer.Argument(metavar="MODEL", help="A preset, file.py:factory, or a Hugging Face config.json.")
    ],
    output: Output = STANDARD_STREAM,
    microbatch_size: Annotated[
        int | None, typer.Option("--microbatch-size", min=1, help="Samples a micro-batch; the model's own by default.")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", min=1, help="Tokens a sample; the model's own by default.")
    ] = None,
    cut: Annotated[
        str | None, typer.Option("--cut", help="Names of the modules that are layers, such as model.layers.*")
    ] = None,
    dtype: Annotated[
        DataType | None,
        typer.Option(
            "--dtype",
            help="Of parameters, gradients and activations; fp32 if measured, else what suits the GPU.",
        ),
    ] = None,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Blocks keep their input only, and compute the rest again.")
    ] = False,
    tp: Annotated[str, typer.Option("--tp", help="Tensor-parallel degrees to measure, such as 1,2,4.")] = "1",
    at_once: Annotated[
        int | None, typer.Option("--at-once", min=1, help="Processes that measure together; by default one a GPU.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", min=1, help="Timed rounds; by default 8 s of them. The median counts.")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Torch threads on a CPU.")] = 1,
    analytic: Annotated[
        bool, typer.Option("--analytic", help="Compute instead of measuring, for a GPU that need not be here.")
    ] = False,
    gpu: Annotated[str | None, typer.Option("--gpu", help="With --analytic: its name, such as h100-sxm.")] = None,
    efficiency: Annotated[
        float | None,
        typer.Option(
            "--efficiency",
            metavar="SHARE",
            help="With --analytic: of the peak, what matrix products reach; what their sizes allow if not given.",
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate", metavar="PROFILE", help="With --analytic: a smaller model's profile, measured on that GPU."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="FILE|slurm|NxM",
            help="With --analytic: the machines, as for `rtk plan`; their GPUs, memory and network count.",
        ),
    ] = None,
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
        computed = analyse(
            Analysis(
                name=name,
                microbatch_size=microbatch_size,
                sequence_length=sequence_length,
                cut=cut,
                dtype=dtype,
                checkpointing=checkpointing,
                degrees=degrees,
                gpu=gpu,
                efficiency=efficiency,
                calibrate=calibrate,
                cluster=cluster,
            )
        )
        emit(computed, output, as_json)
        if not quiet:
            print_layers(computed)
            explain_analysis(computed)
        return
    if find_spec("torch") is None:
        raise InvalidInputError("measuring a model needs torch", fix="install it: pip install 'rtk[torch]'")
    asked = Measuring(
        name=name,
        microbatch_size=microbatch_size,
        sequence_length=sequence_length,
        form=ModelForm(cut, dtype or AS_USUAL.dtype, checkpointing),
        degrees=degrees,
        repeats=repeats,
        threads=threads,
        seed=seed,
        at_once=at_once,
    )
    try:
        profile = measure(asked)
    except DoesNotFitError as error:
        _keep_partial(error, output)
        raise
    emit(profile, output, as_json)
    if not quiet:
        print_layers(profile)


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
