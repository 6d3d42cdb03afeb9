"""`rtk export`: a plan in the form of another program."""

from typing import Annotated, Any

import typer

from ..runners.foreign import ForeignFormat
from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import STANDARD_STREAM
from .console import Common, Output, grouped, print_json


@grouped
def command(
    plan: Annotated[str, typer.Argument(help="The plan; `-` is standard input.")],
    to: Annotated[ForeignFormat, typer.Option("--to", help="The form to write.")],
    ahead: Annotated[
        int | None,
        typer.Option(
            "--ahead",
            min=0,
            help="torch-comms, torchtitan: let a RECV stand so many operations before the one that needs it (0: just "
            "in time; for gloo). Without it, when the message is sent, by the plan's times.",
        ),
    ] = None,
    microbatch_size: Annotated[
        int | None,
        typer.Option(
            "--microbatch-size", min=1, help="torchtitan, megatron: rows of a micro-batch, if not the profile's."
        ),
    ] = None,
    yes_unsharded: Annotated[
        bool,
        typer.Option(
            "--yes-unsharded",
            help="torchtitan: write orders that split the backward pass; your stages are not under fully_shard.",
        ),
    ] = False,
    output: Output = "-",
    *,
    common: Common,
) -> None:
    """Write a plan for another program.

    torch-csv: a CSV for torch.distributed.pipelining, operations only; torch-comms: with every SEND and RECV.
    torchtitan: a folder with the orders, the settings with the plan's cut, and receives where the plan has them.
    megatron: the flags of Megatron-LM, with the cut as a layout; its orders are its own.

    Pipelines with equal orders are written once. What a form cannot carry is refused; what is left out is named.
    """
    from ..runners.foreign import export_plan
    from ..schemas.files import write_bytes
    from .options import read_valid_plan

    if to == "torchtitan" and output == STANDARD_STREAM:
        raise InvalidInputError(
            "torchtitan takes several files", where="--output", fix="give a folder for them: -o FOLDER"
        )
    if ahead is not None and to not in ("torch-comms", "torchtitan"):
        raise InvalidInputError(f"{to} has no receives", where="--ahead", fix="leave it out, or say --to torch-comms")
    read = read_valid_plan(plan)
    made = export_plan(
        read, to, folder=output, microbatch_size=microbatch_size, ahead=ahead, yes_unsharded=yes_unsharded
    )
    answer: dict[str, Any] = {"format": to, "ranks": len(read.template_of(0).columns), "lost": made.lost}
    if output != STANDARD_STREAM:
        paths = made.write(output)
        answer["written"] = paths if len(made.files) > 1 else output
    elif common.as_json:
        answer["flags" if to == "megatron" else "csv"] = made.text
    else:
        write_bytes(STANDARD_STREAM, made.text.encode())
    if common.as_json:
        print_json(answer)
    remark(f"warning: left out, for {_HOLDS[to]} only: {', '.join(made.lost)}")
    for warning in made.warnings:
        remark(f"warning: {warning}")


_HOLDS: dict[ForeignFormat, str] = {
    "torch-csv": "a CSV holds orders",
    "torch-comms": "a CSV holds orders",
    "torchtitan": "its settings hold orders, cut and degrees",
    "megatron": "its flags hold cut, degrees and batch",
}
