"""`rtk checkpoint export`: what a run has saved, as a model for others."""

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from ..exporting import SHARD_BYTES, ExportedType, export_checkpoint
from ..schemas.errors import remark
from ..schemas.quantities import SIZE
from .console import Common, grouped, print_json, quantity

app = typer.Typer(no_args_is_help=True, help="What a run has saved: export it for others.")


@app.callback()
def checkpoint() -> None:
    """What a run has saved: export it for others."""


@app.command("export")
@grouped
def export(
    checkpoint: Annotated[str, typer.Argument(help="Its folder, or that of several, of which the newest is taken.")],
    to: Annotated[Literal["hf"], typer.Option("--to", help="The form to write: that of Hugging Face.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write, which is not there yet.")
    ],
    dtype: Annotated[
        ExportedType | None,
        typer.Option("--dtype", help="The type of the weights; else as trained: the float32 masters, if any."),
    ] = None,
    shard_size: Annotated[
        float, quantity(SIZE, "--shard-size", "Most bytes of a file of weights.", least=1.0)
    ] = SHARD_BYTES,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="FOLDER", help="Where the tokenizer is; else where --model read the config."),
    ] = None,
    *,
    common: Common,
) -> None:
    """Write a checkpoint's model as a folder for `from_pretrained`: config, weights, and the tokenizer that is there.

    No other process is needed, and no more memory than for one layer. The folder appears whole or not at all.
    """
    done = export_checkpoint(checkpoint, output, dtype=dtype, shard_bytes=shard_size, source=source)
    if common.as_json:
        print_json(asdict(done))
    count = f"{len(done.files)} files" if len(done.files) > 1 else done.files[0]
    remark(f"wrote {output}: {done.parameters} parameters in {done.dtype}, {count}; iteration {done.iteration}")
