"""`rtk plan slipstream`: plans for dead workers, and atlases of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..schemas.errors import InvalidInputError, remark
from ..schemas.quantities import parse_memory_limit, print_bytes, print_percent, print_time
from ..schemas.text import counted, listed
from .console import Common, counting, grouped, print_document
from .options import (
    ChunksOption,
    ClusterOption,
    EffortOptions,
    LinkDelays,
    MemoryLimit,
    OverlayOption,
    PlacementOption,
    PlanOutput,
    ShardOptimizerOption,
    Slow,
    TechniqueOption,
    TensorParallelOption,
    demand_proof,
    parse_block,
    parse_link_delays,
    parse_places,
    parse_slow_places,
    planning,
    present,
)

if TYPE_CHECKING:
    from ..schemas.atlas import Atlas
    from ..schemas.plan import Plan

# All that a plan from an atlas does not take from there.
BESIDE_FROM = {"profile", "from_atlas", "failed", "failures", "cluster", "overlay", "require_optimal", "jobs", "output",
               "as_json", "quiet", "debug", "force"}  # fmt: skip


@grouped
def slipstream(
    context: typer.Context,
    profile: Annotated[str | None, typer.Argument(help="The profile; not needed with --from.")] = None,
    pp: Annotated[int | None, typer.Option("--pp", min=1, help="Stages of a pipeline.")] = None,
    dp: Annotated[int | None, typer.Option("--dp", min=1, help="Pipelines (data-parallel degree).")] = None,
    microbatches: Annotated[
        int | None, typer.Option("--microbatches", min=1, help="Micro-batches of each pipeline.")
    ] = None,
    failed: Annotated[
        list[str] | None,
        typer.Option("--failed", metavar="k/i", help="A dead worker: plan for it where it is. Repeatable."),
    ] = None,
    failures: Annotated[
        int | None,
        typer.Option("--failures", min=0, help="Plan for N dead workers, moved to where they cost least."),
    ] = None,
    max_failures: Annotated[
        str | None,
        typer.Option(
            "--max-failures",
            metavar="COUNT|SHARE",
            help="An atlas: plans for 0 to so many failures, or up to that share of all (25%). DP - 1 if not given.",
        ),
    ] = None,
    from_atlas: Annotated[
        str | None, typer.Option("--from", metavar="ATLAS", help="Take the plan from an atlas instead of making it.")
    ] = None,
    technique: TechniqueOption = "staggered",
    failure_unit: Annotated[
        str,
        typer.Option("--failure-unit", metavar="KxI", help="Workers that die together: K pipelines by I stages."),
    ] = "1x1",
    cost: Annotated[
        Literal["heuristic", "scheduler"],
        typer.Option(
            "--cost", help="How places for failures are compared: by ReCycle's heuristic, or by real schedules."
        ),
    ] = "heuristic",
    memory_limit: MemoryLimit = None,
    link_delay: LinkDelays = None,
    slow: Slow = None,
    placement: PlacementOption = "plain",
    chunks: ChunksOption = None,
    tensor_parallel: TensorParallelOption = None,
    shard_optimizer: ShardOptimizerOption = False,
    cluster: ClusterOption = None,
    overlay: OverlayOption = None,
    *,
    effort: EffortOptions,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that make an atlas.")] = 1,
    output: PlanOutput = "-",
    common: Common,
) -> None:
    """Plan for dead workers: their micro-batches run on their peers, in the bubbles.

    With --failed the failures stay where they are; with --failures they are moved to where they cost least, and with
    both the plan says which workers swap. Otherwise an atlas is made, a folder of plans for every number of failures.
    Its plans are of the second kind: beside --from, --failed is enough to learn which workers swap.
    """
    from ..planners.choosing import comparison, parse_placement
    from ..planners.degrees import choose_degrees
    from ..planners.plain.slipstream import (
        at_degrees,
        atlas_degrees,
        first_asked,
        opened,
        opened_once,
        plan_from_atlas,
        planned_at,
        require_one,
        units_of,
    )
    from ..planners.plain.verbs import sharing
    from ..planners.shape import Shape
    from ..planners.slipstream.cluster import AtlasRequest
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile
    from ..schemas.site import site_of

    places = parse_places(failed, "--failed")
    if from_atlas is not None:
        _refuse_beside_from(context)
        of = None if profile is None else read_document(profile, Profile)
        made = plan_from_atlas(
            from_atlas, failed=places, failures=failures, profile=of, cluster=cluster, overlay=overlay
        )
        present(made, output, common, _advice(made), effort.require_optimal)
        return
    if profile is None or pp is None or dp is None or microbatches is None:
        needed = {"PROFILE": profile, "--pp": pp, "--dp": dp, "--microbatches": microbatches}
        missing = next(name for name, value in needed.items() if value is None)
        raise InvalidInputError("it must be given", where=missing, fix="give it, or take a plan from an atlas: --from")
    site, unit = site_of(cluster, overlay), parse_block(failure_unit, "--failure-unit")
    limits_bytes, delays_s = parse_memory_limit(memory_limit), parse_link_delays(link_delay)
    share = sharing(shard_optimizer, dp, technique, places)
    shape = Shape(pp, dp, microbatches, limits_bytes, delays_s, share=share)
    choice = parse_placement(placement, chunks)
    request = AtlasRequest(shape, technique, unit, effort.effort(), cost, parse_slow_places(slow))
    read, asked = read_document(profile, Profile), first_asked(request, choice)
    degrees = choose_degrees(site.adapted(read), asked.shape, tensor_parallel, site.cluster)
    first = opened_once(degrees, read, asked, site)
    if first is not None:
        are_dead = bool(units_of(first[0], places, first[1]))
    else:  # who is dead on the machines depends on the degree
        are_dead = bool(places or (site.overlay is not None and site.overlay.failed))
    if are_dead or failures is not None:
        if max_failures is not None:
            raise InvalidInputError(
                "an atlas is for any failures",
                where="--max-failures",
                fix="leave it out for one plan, or --failed and --failures for an atlas",
            )
        with planning(pp, dp, microbatches):
            made = planned_at(degrees, places, failures, read, asked, choice, site, first)
        present(made, output, common, [*comparison(made), *_advice(made)], effort.require_optimal)
        return
    require_one(choice)
    taken = atlas_degrees(degrees, read, asked, site)
    atlas, _ = first or opened(read, at_degrees(asked, taken), site)
    _write_atlas(atlas, output, max_failures, jobs, as_json=common.as_json, require_optimal=effort.require_optimal)


def _write_atlas(
    opening: "Atlas", output: str, max_failures: str | None, jobs: int, *, as_json: bool, require_optimal: bool
) -> None:
    """Make an atlas's plans, write them, and say what they are."""
    from ..planners.plain.slipstream import atlas_of

    with counting("plans") as tell:
        made = atlas_of(opening, output, max_failures, jobs, tell)
    if as_json:
        print_document(made)
    remark(_atlas_summary(made))
    if made.planner.options["solver"] in ("milp", "cp-sat"):
        remark(
            "no solver was asked for plans that reach the bound; for its own proof, plan for one number of --failures"
        )
    if require_optimal:
        for entry in made.plans:
            demand_proof(entry.prediction, f"{counted(entry.failed_units, 'failure')}: ")


def _refuse_beside_from(context: typer.Context) -> None:
    """Raise InvalidInputError if an option was given, if only with its default, that the atlas was made with."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name not in BESIDE_FROM and source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT"):
            raise InvalidInputError(
                "the atlas was made with a value of its own", where=option.opts[0], fix="leave it out beside --from"
            )


def _advice(made: "Plan") -> Iterator[str]:
    """What normalization would give, or has given, in a line; nothing where there is nothing to move."""
    said = made.planner.options["normalization"]
    if said is None:
        return
    if "copies" in said:
        failed = [worker.name for worker in made.workers if worker.failed]
        yield _moves(said, is_moved=bool(said["copies"]) and said["copies"][0]["becomes"] not in failed)
    elif said["most_copies"]:
        who = f"wherever the failures are, at most {counted(said['most_copies'], 'worker')} must move"
        size = f" and {print_bytes(said['most_copied_bytes'])} be copied" if said["most_copied_bytes"] else ""
        yield f"{who}{size}; --failed k/i… beside --failures says which"


def _moves(said: dict[str, Any], is_moved: bool) -> str:
    """Which workers move, in this plan or in the normalized one, and whether that pays."""
    before_s, after_s = said["iteration_time_in_place_s"], said["iteration_time_normalized_s"]
    if not said["copies"] or (not is_moved and after_s >= before_s):
        return "no other places for the failures would be better"
    names = [f"{copy['worker']} becomes {copy['becomes']}" for copy in said["copies"]]
    other = (
        f"normalized, not in place ({print_time(before_s)})"
        if is_moved
        else f"in place; normalized {print_time(after_s)}"
    )
    return f"{other}: {listed(names)}; {_worth(said, before_s > after_s)}"


def _worth(said: dict[str, Any], is_better: bool) -> str:
    """What is copied and when that has paid."""
    pays, size = said["break_even_iterations"], print_bytes(said["copied_bytes"])
    if not is_better:
        return f"{size} to copy, which never pays" if said["copied_bytes"] else "which gains nothing"
    if not said["copied_bytes"]:
        return "the profile does not say how many bytes that copies"
    if pays is None:
        return f"{size} to copy, and the profile gives no bandwidth to say when that pays"
    return f"{size} to copy in {print_time(said['copying_s'])}, which pays after {counted(pays, 'iteration')}"


def _atlas_summary(atlas: "Atlas") -> str:
    first, last = atlas.plans[0].prediction, atlas.plans[-1].prediction
    if first is last:
        return f"a plan for 0 failures: iteration {print_time(first.iteration_time_s)} ({_proofs(atlas)})"
    return (
        f"plans for 0 to {atlas.most_failures} failures: iteration {print_time(first.iteration_time_s)} to "
        f"{print_time(last.iteration_time_s)} ({_proofs(atlas)})"
    )


def _proofs(atlas: "Atlas") -> str:
    """How good an atlas's plans are, in words."""
    largest = f"at most {print_percent(max(entry.prediction.gap for entry in atlas.plans))} above the optimum"
    proven = sum(entry.prediction.proof == "optimal" for entry in atlas.plans)
    others = len(atlas.plans) - proven
    if not others:
        return "all optimal" if proven > 1 else "optimal"
    return f"{proven} optimal, the {'others' if others > 1 else 'other'} {largest}" if proven else largest
