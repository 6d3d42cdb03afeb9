"""`rtk plan …`: Plans out of Profiles, one verb a method."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from .console import Debug, Json, Output, Quiet, emit, remark
from .parsing import LinkDelays, MemoryLimit, parse_link_delays, parse_memory_limit

if TYPE_CHECKING:
    from ..schemas.plan import Plan

app = typer.Typer(no_args_is_help=True, help="Make a plan from a profile.")


@app.callback()
def plan() -> None:
    """Make a plan from a profile."""


class Schedule(StrEnum):
    """The classic schedules."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    ZERO_BUBBLE = "zero-bubble"


@app.command("pipeline")
def pipeline(
    profile: Annotated[str, typer.Argument(help="The profile; `-` is standard input.")],
    pp: Annotated[int, typer.Option("--pp", min=1, help="Stages of a pipeline.")],
    microbatches: Annotated[int, typer.Option("--microbatches", min=1, help="Micro-batches of each pipeline.")],
    schedule: Annotated[Schedule, typer.Option("--schedule", help="The order of operations.")] = Schedule.ONE_F_ONE_B,
    dp: Annotated[int, typer.Option("--dp", min=1, help="Pipelines (data-parallel degree).")] = 1,
    memory_limit: MemoryLimit = None,
    link_delay: LinkDelays = None,
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan a classic schedule: GPipe, 1F1B, or zero-bubble with the backward split in I and W."""
    from ..planners.pipeline.plan import Shape, plan_pipeline
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    limits, delays = parse_memory_limit(memory_limit), parse_link_delays(link_delay)
    shape = Shape(pp, dp, microbatches, limits, delays)
    made = plan_pipeline(read_document(profile, Profile), schedule.value, shape)
    emit(made, output, as_json)
    remark(summary(made))


def summary(made: "Plan") -> str:
    """A plan's promise, in a line."""
    prediction = made.prediction
    assert prediction is not None
    quality = "optimal" if prediction.proof == "optimal" else f"at most {prediction.gap:.2%} above the optimum"
    return (
        f"iteration {prediction.iteration_time_s:.6g} s ({quality}), "
        f"bubbles {prediction.bubble_ratio:.1%}, {len(made.live_workers())} workers"
    )
