"""`rtk import`: a plan out of what another program wrote, or is told."""

from typing import Annotated

import typer

from ..runners.foreign import ForeignFormat
from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import STANDARD_STREAM
from .console import Common, emit, grouped
from .options import PlanOutput, summary


@grouped
def command(
    schedule: Annotated[
        str, typer.Argument(help="The orders of one pipeline, torchtitan's folder, or flags; `-` is standard input.")
    ],
    form: Annotated[ForeignFormat, typer.Option("--from", help="The form they are in.")],
    profile: Annotated[str, typer.Option("--profile", help="The profile that gives costs and stages; `-` likewise.")],
    dp: Annotated[
        int | None, typer.Option("--dp", min=1, help="Pipelines, all with these orders; 1, if the files do not say it.")
    ] = None,
    output: PlanOutput = "-",
    *,
    common: Common,
) -> None:
    """Make a plan of what another program wrote, or is told.

    torch-csv, torch-comms: the CSV of torch.distributed.pipelining, without or with the messages, which are checked.
    torchtitan: the folder that `rtk export --to torchtitan` writes, or its schedule.csv with one of the settings.
    megatron: a file of Megatron-LM's flags, such as its part of a job's script; --dp shares out the global batch.

    Where no cut is given, the profile's layers are cut into as many stages as the file has. Where a rank has several
    stages, the plan has a placement. Pairs that torch may overlap stand one after the other.
    """
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile
    from ..wiring import import_plan

    if schedule == profile == STANDARD_STREAM:
        raise InvalidInputError(
            "standard input can be read only once", where="SCHEDULE and --profile", fix="give one `-`"
        )
    made = import_plan(schedule, read_document(profile, Profile), form=form, dp=dp)
    emit(made, output, common.as_json)
    remark(summary(made))
