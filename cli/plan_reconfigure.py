"""`rtk plan reconfigure`: the next plan when nodes are lost or join."""

from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.checkpoint import print_layers
from ..schemas.errors import InvalidInputError
from ..schemas.fields import MOST_NODES
from ..schemas.text import listed
from .console import Debug, Json, Output, Quiet, emit, remark
from .parsing import parse_places
from .planning import summary

if TYPE_CHECKING:
    from ..planners.oobleck.reconfiguration import Reconfiguration
    from ..schemas.plan import Plan


def reconfigure(
    plan: Annotated[str, typer.Argument(help="The running plan, made by rtk plan oobleck; `-` is standard input.")],
    failed: Annotated[
        list[str] | None,
        typer.Option("--failed", metavar="k/i", help="A dead worker; its whole node is gone. Repeatable."),
    ] = None,
    join: Annotated[
        int, typer.Option("--join", min=0, max=MOST_NODES, metavar="COUNT", help="So many nodes come.")
    ] = 0,
    pays_within: Annotated[
        int,
        typer.Option(
            "--pays-within",
            min=0,
            help="Take new pipelines if their copies pay within so many iterations; 0: change no more than must be.",
        ),
    ] = 100,
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan for the nodes that are left or join: pipelines shrink, borrow nodes or merge, and least is copied.

    A node is named by its first worker in the running plan, one that joins new0, new1 and so on. The plan's options say
    who copies which layers from whom; standard error names the first of them.
    """
    from ..planners.oobleck.reconfiguration import Reconfigurer, crew_after
    from .plans import read_valid_plan

    places = parse_places(failed, "--failed")
    if not places and not join:
        raise InvalidInputError("nothing has changed", where="--failed or --join", fix="name who is lost, or who comes")
    running = read_valid_plan(plan)
    reconfigurer, crew = Reconfigurer(running), crew_after(running, places, join)
    reconfigurer.require_joining(len(crew), join)
    found = reconfigurer.next_of(running, crew, pays_within)
    emit(found.plan, output, as_json)
    remark(summary(found.plan))
    remark(_change(running, found))
    remark(_copying(found))


def _change(running: "Plan", found: "Reconfiguration") -> str:
    """What was done to the pipelines, and to the time of an iteration."""
    assert found.plan.prediction is not None
    before = "a time that the running plan does not say"
    if running.prediction is not None:
        before = f"{running.prediction.iteration_time_s:.6g} s"
    return (
        f"{', '.join(found.steps) or 'nothing'}: {_pipelines(running)} become {_pipelines(found.plan)}; "
        f"iteration {before} before, {found.plan.prediction.iteration_time_s:.6g} s after"
    )


def _pipelines(plan: "Plan") -> str:
    """How many pipelines of which templates there are."""
    names = [pipeline.template for pipeline in plan.pipelines]
    return ", ".join(f"{names.count(name)} of {name}" for name in dict.fromkeys(sorted(names, key=_by_size)))


def _by_size(name: str) -> tuple[int, str]:
    """Templates are named n2 to n10: by their numbers."""
    return len(name), name


def _copying(found: "Reconfiguration") -> str:
    """Who copies what from whom, the first of them, and how much that is."""
    from ..viz.units import print_bytes, print_time

    if not found.copies:
        return "nothing to copy"
    names = [f"{print_layers([copy.layers])} from {copy.source} to {copy.target}" for copy in found.copies]
    lasts = "the network gives no bandwidth to say how long that takes"
    if found.copying_s is not None:
        lasts = f"which takes {print_time(found.copying_s)}"
    return f"copies: {listed(names)}; {print_bytes(found.moved_bytes)}, {lasts}"
