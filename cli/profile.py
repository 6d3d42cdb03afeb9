"""`rtk profile`: what a model costs on this machine, layer by layer."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.documents import STANDARD_STREAM
from ..schemas.errors import InvalidInputError
from .console import Debug, Json, Output, Quiet, Seed, emit, print_table, progress, remark
from .default_verb import group

if TYPE_CHECKING:
    from ..schemas.profile import Profile

app = group("What a model costs on a machine, measured or computed.")


@app.callback()
def profile() -> None:
    """What a model costs on a machine, measured or computed."""


@app.command("model")
def model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A preset, or file.py:factory.")],
    output: Output = STANDARD_STREAM,
    microbatch_size: Annotated[
        int | None, typer.Option("--microbatch-size", min=1, help="Samples a micro-batch; the model's own by default.")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", min=1, help="Tokens a sample; the model's own by default.")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed rounds; the median counts.")] = 20,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Torch threads on a CPU.")] = 1,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure F, I, W and the optimizer step of a model's layers on this machine, and the memory they hold.

    The presets are gpt-tiny, gpt-small, gpt3-medium, gpt3-2.7b, gpt3-3.35b and gpt3-6.7b. A file's factory returns the
    layers (an nn.Sequential or a list); beside it the file may define example(microbatch_size, sequence_length), which
    returns (inputs, targets), and loss(output, target).
    """
    if find_spec("torch") is None:
        raise InvalidInputError("measuring a model needs torch", fix="install it: pip install 'rtk[torch]'")
    profile = measure(name, microbatch_size, sequence_length, repeats, threads, seed)
    emit(profile, output, as_json)
    if not quiet:
        _print_layers(profile)


def measure(
    name: str, microbatch_size: int | None, sequence_length: int | None, repeats: int, threads: int, seed: int
) -> "Profile":
    """Measure a model by name, with a progress bar; the arguments are the command's options."""
    import torch

    from ..profilers.links import measure_loopback
    from ..profilers.measure import measure_profile
    from ..profilers.models.load import load_model
    from ..runners.torch.stage import Stage

    model = load_model(name, microbatch_size, sequence_length, seed)
    if torch.cuda.is_available():
        for layer in model.layers:
            layer.to("cuda")
    with progress() as bar:
        task = bar.add_task(f"measuring {name}", total=None)
        return measure_profile(
            model,
            Stage,
            repeats=repeats,
            threads=threads,
            seed=seed,
            intra_node=measure_loopback(),
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def _print_layers(profile: "Profile") -> None:
    columns = ("layer", "F ms", "I ms", "W ms", "step ms", "activation MB", "stash MB", "parameters MB")
    rows = []
    for layer in profile.layers:
        cost = layer.costs[0]
        times_s = (cost.forward_s, cost.backward_input_s, cost.backward_weight_s, cost.optimizer_s)
        sizes = (layer.activation_bytes, layer.weight_stash_bytes, layer.parameter_bytes)
        times = (f"{time_s * 1e3:.3f}" for time_s in times_s)
        rows.append((layer.name or "", *times, *(f"{size / 1e6:.2f}" for size in sizes)))
    print_table(columns, rows, to_stderr=True)
    remark(f"measured on {profile.device.name}, micro-batches of {profile.microbatch_size}")
