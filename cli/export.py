"""`rtk export`: a plan's orders in the form of another runtime."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import STANDARD_STREAM
from .console import Common, Output, grouped, print_json

if TYPE_CHECKING:
    from ..schemas.plan import Plan

ForeignFormat = Literal["torch-csv", "torchtitan"]  # what other runtimes read
IN_PARALLELISM = ("the cut into layers", "the number of pipelines")  # what parallelism.json says beside the orders


@grouped
def command(
    plan: Annotated[str, typer.Argument(help="The plan; `-` is standard input.")],
    to: Annotated[ForeignFormat, typer.Option("--to", help="The form to write.")],
    comms: Annotated[
        bool, typer.Option("--comms", help="torch-csv: with every SEND and RECV (compute_comms), not operations only.")
    ] = False,
    output: Output = "-",
    *,
    common: Common,
) -> None:
    """Write a plan's orders for another runtime: as the CSV of torch.distributed.pipelining, or torchtitan's settings.

    Pipelines with equal orders are written once. What a CSV cannot carry is refused; what is no part of an order is
    left out, and named. `--to torchtitan` writes a folder: the CSV, and parallelism.json, the keyword arguments of
    torchtitan's `ParallelismConfig` with the plan's cut.
    """
    from ..runners.torch_csv import FULLY_SHARD, not_carried, splits_backward, to_torch_comms_csv, to_torch_csv
    from ..schemas.files import write_bytes
    from .options import read_valid_plan

    if to == "torchtitan" and (comms or output == STANDARD_STREAM):
        raise InvalidInputError(
            "torchtitan adds the communication itself" if comms else "torchtitan takes two files",
            where="--comms" if comms else "--output",
            fix="leave --comms out" if comms else "give a folder for them: -o FOLDER",
        )
    read = read_valid_plan(plan)
    text = to_torch_comms_csv(read) if comms else to_torch_csv(read)
    answer: dict[str, Any] = {"format": to, "ranks": len(read.template_of(0).columns)}
    if to == "torchtitan":
        answer["written"] = _write_for_torchtitan(read, text, Path(output))
    elif output != STANDARD_STREAM:
        write_bytes(output, text.encode())
        answer["written"] = output
    elif common.as_json:
        answer["csv"] = text
    else:
        write_bytes(STANDARD_STREAM, text.encode())
    if common.as_json:
        print_json(answer)
    left_out = not_carried(read)
    if to == "torchtitan":
        left_out = [one for one in left_out if one not in IN_PARALLELISM]
    remark(f"warning: left out, for a CSV holds orders only: {', '.join(left_out)}")
    if splits_backward(read):
        remark(f"warning: {FULLY_SHARD}")


def _write_for_torchtitan(plan: "Plan", csv: str, folder: Path) -> list[str]:
    from ..runners.torch_csv import torchtitan_parallelism
    from ..schemas.files import unreadable, write_bytes

    orders = folder / "schedule.csv"
    settings = torchtitan_parallelism(plan, str(orders))
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise unreadable(str(folder), error) from error
    write_bytes(str(orders), csv.encode())
    write_bytes(str(folder / "parallelism.json"), (json.dumps(settings, indent=2) + "\n").encode())
    return [str(orders), str(folder / "parallelism.json")]
