"""What the plan commands share: the options that give a shape, and what is said of a plan."""

from collections.abc import Iterator
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

SCOPES = {None: "", "routing": " for the routing taken", "all-routings": " over all routings"}


def require_proof(made: "Plan") -> None:
    """Raise LimitReachedError unless a plan, already written, is proven optimal, by the solver if one is named."""
    from ..planners.scheduling.own_proof import OPTION

    demand_proof(made.prediction)
    own = made.planner.options.get(OPTION)
    if own is not None and own["proof"] != "optimal":
        raise LimitReachedError(
            f"{own['solver']} has not proven the plan optimal itself",
            where="--require-optimal",
            fix="the plan is written all the same; raise --time-limit, or leave --solver out: any proof will do then",
        )


def demand_proof(prediction: "Prediction | None", of: str = "") -> None:
    """Raise LimitReachedError unless a prediction is proven optimal; `of` says whose it is, for messages."""
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
    return (
        f"iteration {prediction.iteration_time_s:.6g} s ({quality(prediction)}), "
        f"bubbles {prediction.bubble_ratio:.1%}, {len(made.live_workers())} workers"
    )


def quality(prediction: "Prediction") -> str:
    """How good a plan is proven to be."""
    proven = "optimal" if prediction.proof == "optimal" else f"at most {prediction.gap:.2%} above the optimum"
    return proven + SCOPES[prediction.proof_scope]


def scope_section(made: "Plan") -> list[str]:
    """What the plan's bound is over, for `rtk explain`, after an empty line; nothing where there is no choice."""
    prediction = made.prediction
    if prediction is None or prediction.proof_scope is None:
        return []
    bound = f"The plan's own bound, {prediction.lower_bound_s:.6g} s,"
    if prediction.proof_scope == "routing":
        return ["", f"{bound} is for the routing taken: micro-batches on other workers might take less."]
    return ["", f"{bound} is over all routings: nor would micro-batches on other workers take less."]


def own_proof(made: "Plan") -> Iterator[str]:
    """What the solver that was asked for by name has proven itself, in a line; nothing where none was."""
    from ..planners.scheduling.own_proof import OPTION

    own = made.planner.options.get(OPTION)
    if own is None:
        return
    assert made.prediction is not None
    if not own["is_asked"]:
        why = "no time is left, or it takes no problem of so many"
        yield f"{own['solver']} was not asked for a proof of its own: {own['operations']} operations, {why}"
    elif own["proof"] == "optimal":
        yield f"{own['solver']} proves it itself: no orders of this routing take less"
    else:
        proven = f"no more than {own['lower_bound_s']:.6g} s" if own["proof"] == "bound" else "nothing"
        bound = f"the bound is the planner's, {made.prediction.lower_bound_s:.6g} s"
        yield f"{own['solver']} itself proves {proven}; {bound}"
