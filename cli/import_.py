"""`rtk import`: a plan out of orders in the form of another runtime."""

import hashlib
from dataclasses import replace
from typing import Annotated

import typer

from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM
from .console import Debug, Json, Output, Quiet, emit, remark
from .export import ForeignFormat

NAME = "import"
SUMMARY = "Make a plan of what another runtime wrote."


def command(
    schedule: Annotated[str, typer.Argument(help="The orders of one pipeline; `-` is standard input.")],
    form: Annotated[ForeignFormat, typer.Option("--from", help="The form they are in.")],
    profile: Annotated[str, typer.Option("--profile", help="The profile that gives costs and stages; `-` likewise.")],
    dp: Annotated[int, typer.Option("--dp", min=1, help="Pipelines, all with these orders.")] = 1,
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make a plan of orders that another runtime wrote: the CSV of torch.distributed.pipelining, compute only.

    The profile's layers are cut into as many stages as the file has ranks.
    """
    from ..planners.pipeline import plan_from_orders
    from ..planners.shape import Shape
    from ..runners.torch_csv import from_torch_csv
    from ..schemas.documents import read_document
    from ..schemas.files import read_bytes, source_of
    from ..schemas.profile import Profile
    from .options import summary

    if schedule == profile == STANDARD_STREAM:
        raise InvalidInputError(
            "standard input can be read only once", where="SCHEDULE and --profile", fix="give one `-`"
        )
    source = source_of(schedule)
    data = read_bytes(schedule)
    orders = from_torch_csv(_text(data, source), source)
    costs = read_document(profile, Profile)
    if len(orders) > len(costs.layers):
        raise InvalidInputError(
            f"{len(orders)} ranks need as many layers, the profile has {len(costs.layers)}",
            where=source,
            fix="give the profile of a model with more layers",
        )
    microbatches = len({microbatch for order in orders for _, microbatch in order})
    made = plan_from_orders(costs, orders, Shape(len(orders), dp, microbatches), "import", source)
    made = replace(made, inputs={**made.inputs, "schedule": hashlib.sha256(data).hexdigest()})
    emit(made, output, as_json)
    remark(summary(made))


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the file is not UTF-8 text (byte {error.start})", where=source) from error
