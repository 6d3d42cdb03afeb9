"""`rtk plan oobleck`: a plan of unlike pipelines, made from pipeline templates."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..schemas.checkpoint import print_layers
from ..schemas.errors import InvalidInputError, remark
from ..schemas.fields import MOST_NODES
from ..schemas.quantities import parse_memory_limit, print_bytes, print_time
from ..schemas.text import counted, listed
from .console import Common, Output, emit, grouped, print_table, working, wrote
from .options import ClusterOption, OverlayOption, PlanOutput, ProfileFile, parse_places, present, read_valid_plan

if TYPE_CHECKING:
    from ..planners.oobleck.reconfiguration import Reconfiguration
    from ..schemas.plan import Plan
    from ..schemas.templates import PipelineTemplate, Templates


MOST_NAMED = 16  # pipelines in a remark


@grouped
def oobleck(
    templates: Annotated[str, typer.Argument(help="The templates, of `rtk plan templates`; `-` is standard input.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes that are there now, all of them to be used.")],
    global_batch: Annotated[int, typer.Option("--global-batch", min=1, help="Samples of an iteration.")],
    microbatch_size: Annotated[int, typer.Option("--microbatch-size", min=1, help="Samples of a micro-batch.")],
    multiple_of: Annotated[
        int, typer.Option("--multiple-of", min=1, help="Each pipeline gets a multiple of so many micro-batches.")
    ] = 1,
    objective: Annotated[
        Literal["min-max", "variance"],
        typer.Option("--objective", help="Least time of the slowest, or Oobleck's least variance with equal shares."),
    ] = "min-max",
    solver: Annotated[
        Literal["exact", "pyomo"], typer.Option("--solver", help="Of the micro-batches' distribution.")
    ] = "exact",
    output: PlanOutput = "-",
    *,
    common: Common,
) -> None:
    """Plan pipelines of unlike sizes that use all nodes: those that end an iteration first.

    There are always f + 1 of them or more. The plan carries all templates, so that it can be reconfigured.
    """
    from ..planners.oobleck.plan import plan_oobleck
    from ..schemas.documents import read_document
    from ..schemas.templates import Templates

    read = read_document(templates, Templates)
    with working(f"planning {counted(nodes, 'node')}"):
        made = plan_oobleck(
            read,
            nodes,
            global_batch,
            microbatch_size,
            multiple_of,
            objective,
            solver,
        )
    present(made, output, common, [pipelines_of(made)])


def pipelines_of(made: "Plan") -> str:
    """The pipelines' nodes and micro-batches, in a line."""
    nodes = [pipeline.template.removeprefix("n") for pipeline in made.pipelines]
    counts = [str(pipeline.microbatches) for pipeline in made.pipelines]
    more = ", …" if len(nodes) > MOST_NAMED else ""
    return (
        f"{counted(len(nodes), 'pipeline')} of {', '.join(nodes[:MOST_NAMED])}{more} nodes "
        f"with {', '.join(counts[:MOST_NAMED])}{more} micro-batches"
    )


# `rtk plan templates`: pipeline templates for all numbers of nodes that pipelines may have.


@grouped
def templates(
    profile: ProfileFile,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Nodes at the start, N; --cluster may say it instead.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", min=1, help="GPUs of a node, M; 1 if nothing says it.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="Their kind, such as h100-sxm: its memory counts where the profile has none."),
    ] = None,
    cluster: ClusterOption = None,
    overlay: OverlayOption = None,
    fault_tolerance: Annotated[
        int, typer.Option("--fault-tolerance", min=0, help="f: there are f + 1 pipelines or more at all times.")
    ] = 1,
    microbatches: Annotated[
        int | None,
        typer.Option("--microbatches", min=1, help="Micro-batches of each pipeline; four a stage if none are given."),
    ] = None,
    largest: Annotated[
        int | None,
        typer.Option(
            "--largest", min=1, help="Nodes of the largest pipeline; what f of the smallest leave if not given."
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Memory of a GPU, for parameters and state, too; the profile's device has it if not given.",
        ),
    ] = None,
    output: Output = "-",
    *,
    common: Common,
) -> None:
    """Plan pipeline templates: for each number of nodes a pipeline may have, the stages of least iteration time.

    From the fewest nodes that the model fits on to what f such pipelines leave. Standard error shows them, and says
    which numbers of nodes they are enough for.
    """
    from ..planners.plain.verbs import plan_templates
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    limits = parse_memory_limit(memory_limit)
    if limits and len(limits) > 1:
        raise InvalidInputError(
            f"{len(limits)} memory limits for one kind of GPU", where="--memory-limit", fix="give one"
        )
    with working("planning templates"):
        made = plan_templates(
            read_document(profile, Profile),
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            fault_tolerance=fault_tolerance,
            microbatches=microbatches,
            largest=largest,
            memory_limit=limits[0] if limits else None,
            gpu=gpu,
            cluster=cluster,
            overlay=overlay,
        )
    emit(made, output, common.as_json)
    if not common.quiet:
        print_table(COLUMNS, [_row(template) for template in made.templates], to_stderr=True)
    remark(promise(made))
    wrote(output, f"rtk viz {output} -o templates.html")


COLUMNS = ("nodes", "stages", "GPUs of a stage", "micro-batches", "iteration", "slowest stage")


def _row(template: "PipelineTemplate") -> tuple[str, ...]:
    times_s = [sum(map(stage.duration_s, "FB")) for stage in template.stages]
    slowest = max(range(len(times_s)), key=lambda i: (times_s[i], i))  # the last of equally slow ones, as the objective
    degrees = [stage.tensor_parallel for stage in template.stages]
    low, high = min(degrees), max(degrees)
    return (
        str(template.nodes),
        str(len(degrees)),
        str(low) if low == high else f"{low} to {high}",
        str(template.microbatches),
        print_time(template.iteration_time_s),
        f"{slowest}: {print_time(times_s[slowest])}",
    )


def promise(made: "Templates") -> str:
    """Which numbers of nodes the templates use up, in a line."""
    said = made.planner.options["guarantee"]
    sizes, condition = len(made.templates), made.smallest - 1
    larger = (
        f"as well as more (number of sizes p = {sizes} > n_0 - 1 = {condition})"
        if said["beyond"]
        else f"though not all larger numbers (number of sizes p = {sizes} <= n_0 - 1 = {condition})"
    )
    return (
        f"{said['pipelines']} or more pipelines use up any {said['from_nodes']} to {said['to_nodes']} nodes, {larger}"
    )


# `rtk plan reconfigure`: the next plan when nodes are lost or join.


@grouped
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
    output: PlanOutput = "-",
    *,
    common: Common,
) -> None:
    """Plan for the nodes that are left or join: pipelines shrink, borrow nodes or merge, and least is copied.

    A node is named by its first worker in the running plan, one that joins new0, new1 and so on. The plan's options say
    who copies which layers from whom; standard error names the first of them.
    """
    from ..planners.plain.verbs import plan_reconfigure

    places, running = parse_places(failed, "--failed"), read_valid_plan(plan)
    found = plan_reconfigure(running, failed=places, join=join, pays_within=pays_within)
    present(found.plan, output, common, [_change(running, found), _copying(found)])


def _change(running: "Plan", found: "Reconfiguration") -> str:
    """What was done to the pipelines, and to the time of an iteration."""
    before = "a time that the running plan does not say"
    if running.prediction is not None:
        before = print_time(running.prediction.iteration_time_s)
    return (
        f"{', '.join(found.steps) or 'nothing'}: {_pipelines(running)} become {_pipelines(found.plan)}; "
        f"iteration {before} before, {print_time(found.plan.predicted.iteration_time_s)} after"
    )


def _pipelines(plan: "Plan") -> str:
    """How many pipelines of which templates there are."""
    names = [pipeline.template for pipeline in plan.pipelines]
    by_number = sorted(set(names), key=lambda name: (len(name), name))  # they are called n2 to n10
    return ", ".join(f"{names.count(name)} of {name}" for name in by_number)


def _copying(found: "Reconfiguration") -> str:
    """Who copies what from whom, the first of them, and how much that is."""
    if not found.copies:
        return "nothing to copy"
    names = [f"{print_layers([copy.layers])} from {copy.source} to {copy.target}" for copy in found.copies]
    lasts = "the network gives no bandwidth to say how long that takes"
    if found.copying_s is not None:
        lasts = f"which takes {print_time(found.copying_s)}"
    return f"copies: {listed(names)}; {print_bytes(found.moved_bytes)}, {lasts}"
