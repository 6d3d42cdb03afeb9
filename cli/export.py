"""`rtk export`: a plan's orders in the form of another runtime."""

from enum import StrEnum
from typing import Annotated

import typer

from ..schemas.files import STANDARD_STREAM
from .console import Debug, Json, Output, Quiet, print_json, remark

NAME = "export"
SUMMARY = "Write a plan for another runtime."


class ForeignFormat(StrEnum):
    """What other runtimes read."""

    TORCH_CSV = "torch-csv"


def command(
    plan: Annotated[str, typer.Argument(help="The plan; `-` is standard input.")],
    to: Annotated[ForeignFormat, typer.Option("--to", help="The form to write.")],
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a plan's orders for another runtime: as the CSV of torch.distributed.pipelining.

    Pipelines with equal orders are written once. What a CSV cannot carry is refused; what is no part of an order is
    left out, and named.
    """
    from ..runners.torch_csv import not_carried, to_torch_csv
    from ..schemas.files import write_bytes
    from .options import read_valid_plan

    read = read_valid_plan(plan)
    text = to_torch_csv(read)
    answer = {"format": to.value, "ranks": len(read.template_of(0).stages)}
    if output != STANDARD_STREAM:
        write_bytes(output, text.encode())
        answer["written"] = output
    elif as_json:
        answer["csv"] = text
    else:
        write_bytes(STANDARD_STREAM, text.encode())
    if as_json:
        print_json(answer)
    remark(f"warning: left out, for a CSV holds orders only: {', '.join(not_carried(read))}")
