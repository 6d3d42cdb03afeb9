"""`rtk profile`: what a model costs on this machine, layer by layer."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..profilers.fitting import DoesNotFitError
from ..schemas.documents import write_document
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM
from ..schemas.form import AS_USUAL, ModelForm
from . import profile_options as options
from .console import Debug, Json, Output, Quiet, Seed, emit
from .default_verb import group
from .measuring import measure
from .measuring_here import Measuring
from .profile_analytic import Analysis, analyse, explain_analysis, is_analytic
from .profile_compare import compare
from .profile_links import links
from .profile_refine import refine
from .profile_table import print_layers

if TYPE_CHECKING:
    from ..schemas.profile import Profile

app = group("What a model costs on a machine, measured or computed.")


@app.callback()
def profile() -> None:
    """What a model costs on a machine, measured or computed."""


@app.command("model")
def model(
    name: options.ModelName,
    output: Output = STANDARD_STREAM,
    microbatch_size: options.MicrobatchSize = None,
    sequence_length: options.SequenceLength = None,
    cut: options.Cut = None,
    dtype: options.Dtype = None,
    checkpointing: options.Checkpointing = False,
    tp: options.Degrees = "1",
    at_once: options.AtOnce = None,
    repeats: options.Repeats = None,
    threads: options.Threads = 1,
    analytic: options.Analytic = False,
    gpu: options.GpuName = None,
    efficiency: options.Efficiency = None,
    calibrate: options.Calibrate = None,
    cluster: options.Machines = None,
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
