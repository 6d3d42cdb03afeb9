"""`rtk plan templates`: pipeline templates for all numbers of nodes that pipelines may have."""

from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import InvalidInputError
from .cluster import ClusterOption, OverlayOption, read_site_or_count
from .console import SETTINGS, Debug, Json, Output, Quiet, emit, print_table, remark
from .parsing import parse_memory_limit
from .planning import ProfileFile

if TYPE_CHECKING:
    from ..schemas.templates import PipelineTemplate, Templates


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
            metavar="BYTES",
            help="Memory of a GPU, for parameters and state, too; the profile's device has it if not given.",
        ),
    ] = None,
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan pipeline templates: for each number of nodes a pipeline may have, the stages of least iteration time.

    From the fewest nodes that the model fits on to what f such pipelines leave. Standard error shows them, and says
    which numbers of nodes they are enough for.
    """
    from ..planners.oobleck.templates import plan_templates
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    limits = parse_memory_limit(memory_limit)
    if limits and len(limits) > 1:
        raise InvalidInputError(
            f"{len(limits)} memory limits for one kind of GPU", where="--memory-limit", fix="give one"
        )
    site, read = read_site_or_count(cluster, nodes, gpus_per_node, gpu, overlay), read_document(profile, Profile)
    made = plan_templates(
        site.adapted(read),
        *site.live_nodes(),
        fault_tolerance,
        microbatches,
        largest,
        limits[0] if limits else None,
    )
    made = site.signed(made, read)
    emit(made, output, as_json)
    if not SETTINGS.quiet:
        print_table(COLUMNS, [_row(template) for template in made.templates], to_stderr=True)
    remark(promise(made))


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
        f"{template.iteration_time_s:.6g} s",
        f"{slowest}: {times_s[slowest]:.6g} s",
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
