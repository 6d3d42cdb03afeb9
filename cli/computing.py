"""Options of a model that is computed for a GPU: the same of `rtk profile --analytic` and of `rtk plan best MODEL`."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..profilers.analytic.software import Attention
from ..schemas.profile import DataType
from ..schemas.quantities import DURATION, SHARE
from .console import quantity


@dataclass(frozen=True)
class ComputedOptions:
    """For which GPU, by what program, and corrected by what."""

    gpu: Annotated[str | None, typer.Option("--gpu", help="Of a computed model: the GPU's name, such as h100-sxm.")] = (
        None
    )
    efficiency: Annotated[
        float | None,
        quantity(
            SHARE,
            "--efficiency",
            "Of a computed model: of the peak, what matrix products reach; what their sizes allow if not given.",
        ),
    ] = None
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="FILE",
            help="Of a computed model: a smaller one's profile, measured on that GPU; a log of Megatron with its "
            "arguments; a trace of torch's profiler with shapes; or a job's settings with its iterations, log or trace "
            "(.yaml).",
        ),
    ] = None
    attention: Annotated[
        Attention | None,
        typer.Option(
            "--attention", help="Of a computed model: one kernel without scores, or scores in memory; flash by default."
        ),
    ] = None
    dropout: Annotated[
        bool | None,
        typer.Option("--dropout/--no-dropout", help="Of a computed model: it has dropout; not if not given."),
    ] = None
    sequence_parallel: Annotated[
        bool | None,
        typer.Option(
            "--sequence-parallel/--no-sequence-parallel",
            help="Of a computed model: ranks share norms and sums, too; they do if not given.",
        ),
    ] = None
    gradients: Annotated[
        DataType | None,
        typer.Option("--gradients", help="Of a computed model: what gradients are kept in; as the model by default."),
    ] = None
    sustained: Annotated[
        bool | None,
        typer.Option(
            "--sustained/--best-case",
            help="Of a computed model: the share of the peak of a long training, or the best seen, if not given.",
        ),
    ] = None
    kernel_gap_s: Annotated[
        float | None,
        quantity(
            DURATION,
            "--kernel-gap",
            "Of a computed model: between kernels that are waited for, such as 47us; the GPU's own if not given.",
        ),
    ] = None
    hidden_sums: Annotated[
        bool | None,
        typer.Option(
            "--hidden-sums/--no-hidden-sums",
            help="Of a computed model: ranks sum while weight gradients are computed; after one another if not given.",
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """What is given of it, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}
