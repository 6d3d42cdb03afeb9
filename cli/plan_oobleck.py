"""`rtk plan oobleck`: a plan of unlike pipelines, made from pipeline templates."""

from typing import TYPE_CHECKING, Annotated

import typer

from .console import Debug, Json, Output, Quiet, emit, remark
from .plan_batch import Objective, Solver
from .planning import summary

if TYPE_CHECKING:
    from ..schemas.plan import Plan

MOST_NAMED = 16  # pipelines in a remark


def oobleck(
    templates: Annotated[str, typer.Argument(help="The templates, of `rtk plan templates`; `-` is standard input.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes that are there now, all of them to be used.")],
    global_batch: Annotated[int, typer.Option("--global-batch", min=1, help="Samples of an iteration.")],
    microbatch_size: Annotated[int, typer.Option("--microbatch-size", min=1, help="Samples of a micro-batch.")],
    multiple_of: Annotated[
        int, typer.Option("--multiple-of", min=1, help="Each pipeline gets a multiple of so many micro-batches.")
    ] = 1,
    objective: Annotated[
        Objective,
        typer.Option("--objective", help="Least time of the slowest, or Oobleck's least variance with equal shares."),
    ] = Objective.MIN_MAX,
    solver: Annotated[Solver, typer.Option("--solver", help="Of the micro-batches' distribution.")] = Solver.EXACT,
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan pipelines of unlike sizes that use all nodes: those that end an iteration first.

    There are always f + 1 of them or more. The plan carries all templates, so that it can be reconfigured.
    """
    from ..planners.oobleck.plan import plan_oobleck
    from ..schemas.documents import read_document
    from ..schemas.templates import Templates

    made = plan_oobleck(
        read_document(templates, Templates),
        nodes,
        global_batch,
        microbatch_size,
        multiple_of,
        objective.value,
        solver.value,
    )
    emit(made, output, as_json)
    remark(summary(made))
    remark(pipelines_of(made))


def pipelines_of(made: "Plan") -> str:
    """The pipelines' nodes and micro-batches, in a line."""
    nodes = [pipeline.template.removeprefix("n") for pipeline in made.pipelines]
    counts = [str(pipeline.microbatches) for pipeline in made.pipelines]
    more = ", …" if len(nodes) > MOST_NAMED else ""
    return (
        f"{len(nodes)} {'pipelines' if len(nodes) > 1 else 'pipeline'} of {', '.join(nodes[:MOST_NAMED])}{more} nodes "
        f"with {', '.join(counts[:MOST_NAMED])}{more} micro-batches"
    )
