"""`rtk export`: a plan's orders in the form of another runtime."""

from typing import Annotated, Literal

import typer

from ..schemas.errors import remark
from ..schemas.files import STANDARD_STREAM
from .console import Common, Output, grouped, print_json

ForeignFormat = Literal["torch-csv"]  # what other runtimes read


@grouped
def command(
    plan: Annotated[str, typer.Argument(help="The plan; `-` is standard input.")],
    to: Annotated[ForeignFormat, typer.Option("--to", help="The form to write.")],
    output: Output = "-",
    *,
    common: Common,
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
    answer = {"format": to, "ranks": len(read.template_of(0).stages)}
    if output != STANDARD_STREAM:
        write_bytes(output, text.encode())
        answer["written"] = output
    elif common.as_json:
        answer["csv"] = text
    else:
        write_bytes(STANDARD_STREAM, text.encode())
    if common.as_json:
        print_json(answer)
    remark(f"warning: left out, for a CSV holds orders only: {', '.join(not_carried(read))}")
