"""What the plan commands share: the options that give a shape, and what is said of a plan."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import LimitReachedError

if TYPE_CHECKING:
    from ..schemas.plan import Plan, Prediction

ProfileFile = Annotated[str, typer.Argument(help="The profile; `-` is standard input.")]
Stages = Annotated[int, typer.Option("--pp", min=1, help="Stages of a pipeline.")]
Microbatches = Annotated[int, typer.Option("--microbatches", min=1, help="Micro-batches of each pipeline.")]
Pipelines = Annotated[int, typer.Option("--dp", min=1, help="Pipelines (data-parallel degree).")]


class Technique(StrEnum):
    """SlipStream's three, each with those before it."""

    ADAPTIVE = "adaptive"
    DECOUPLED = "decoupled"
    STAGGERED = "staggered"


TechniqueOption = Annotated[
    Technique,
    typer.Option("--technique", help="Re-routing; with backwards split where it helps; and staggered optimizers."),
]


def demand_proof(prediction: "Prediction | None", of: str = "") -> None:
    """Raise LimitReachedError unless a plan, already written, is proven optimal; `of` says which, for messages."""
    assert prediction is not None
    if prediction.proof != "optimal":
        raise LimitReachedError(
            f"{of}{prediction.iteration_time_s:.6g} s is not proven optimal: "
            f"the bound is {prediction.lower_bound_s:.6g} s",
            where="--require-optimal",
            fix="the plan is written all the same; for a proof raise --time-limit, or name another --solver",
        )


def summary(made: "Plan") -> str:
    """A plan's promise, in a line."""
    prediction = made.prediction
    assert prediction is not None
    quality = "optimal" if prediction.proof == "optimal" else f"at most {prediction.gap:.2%} above the optimum"
    return (
        f"iteration {prediction.iteration_time_s:.6g} s ({quality}), "
        f"bubbles {prediction.bubble_ratio:.1%}, {len(made.live_workers())} workers"
    )
