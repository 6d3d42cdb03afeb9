"""`rtk import`: a plan out of orders in the form of another runtime."""

from typing import Annotated

import typer

from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import STANDARD_STREAM
from .console import Common, emit, grouped
from .export import ForeignFormat
from .options import PlanOutput, summary


@grouped
def command(
    schedule: Annotated[str, typer.Argument(help="The orders of one pipeline; `-` is standard input.")],
    form: Annotated[ForeignFormat, typer.Option("--from", help="The form they are in.")],
    profile: Annotated[str, typer.Option("--profile", help="The profile that gives costs and stages; `-` likewise.")],
    dp: Annotated[int, typer.Option("--dp", min=1, help="Pipelines, all with these orders.")] = 1,
    output: PlanOutput = "-",
    *,
    common: Common,
) -> None:
    """Make a plan of orders that another runtime wrote: the CSV of torch.distributed.pipelining, compute only.

    The profile's layers are cut into as many stages as the file has. Where a rank has several stages, the plan has a
    placement: the file says which stage is on which rank. Pairs that torch may overlap stand one after the other.
    """
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile
    from ..wiring import import_plan

    if schedule == profile == STANDARD_STREAM:
        raise InvalidInputError(
            "standard input can be read only once", where="SCHEDULE and --profile", fix="give one `-`"
        )
    made = import_plan(schedule, read_document(profile, Profile), dp=dp)
    emit(made, output, common.as_json)
    remark(summary(made))
