"""The options of `rtk profile MODEL`."""

from typing import Annotated

import typer

from ..schemas.form import DataType

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
