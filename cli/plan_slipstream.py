"""`rtk plan slipstream`: plans for dead workers, and atlases of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM
from ..schemas.text import counted, listed
from .cluster import ClusterOption, OverlayOption, Site, read_site
from .console import Debug, Json, Output, Quiet, Seed, emit, print_document, progress, remark
from .options import (
    LinkDelays,
    MemoryLimit,
    RequireOptimal,
    Slow,
    Solver,
    SolverOption,
    Technique,
    TechniqueOption,
    TimeLimit,
    demand_proof,
    own_proof,
    parse_block,
    parse_effort,
    parse_link_delays,
    parse_memory_limit,
    parse_places,
    parse_share,
    parse_slow_places,
    require_proof,
    summary,
)

if TYPE_CHECKING:
    from ..schemas.atlas import Atlas
    from ..schemas.plan import Place, Plan

# All that a plan from an atlas does not take from there.
BESIDE_FROM = {"profile", "from_atlas", "failed", "failures", "cluster", "overlay", "require_optimal", "jobs", "output",
               "as_json", "quiet", "debug"}  # fmt: skip


class Cost(StrEnum):
    """What normalization reckons a failure's cost by."""

    HEURISTIC = "heuristic"
    SCHEDULER = "scheduler"


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
        typer.Option("--failures", min=0, help="So many dead workers, moved to where they cost least (normalized)."),
    ] = None,
    max_failures: Annotated[
        str | None,
        typer.Option(
            "--max-failures",
            metavar="F[%]",
            help="An atlas: plans for 0 to F failures, or up to that share of all. DP - 1 if none is given.",
        ),
    ] = None,
    from_atlas: Annotated[
        str | None, typer.Option("--from", metavar="ATLAS", help="Take the plan from an atlas instead of making it.")
    ] = None,
    technique: TechniqueOption = Technique.STAGGERED,
    failure_unit: Annotated[
        str,
        typer.Option("--failure-unit", metavar="KxI", help="Workers that die together: K pipelines by I stages."),
    ] = "1x1",
    cost: Annotated[
        Cost, typer.Option("--cost", help="What normalization reckons with: ReCycle's heuristic, or real schedules.")
    ] = Cost.HEURISTIC,
    memory_limit: MemoryLimit = None,
    link_delay: LinkDelays = None,
    slow: Slow = None,
    cluster: ClusterOption = None,
    overlay: OverlayOption = None,
    solver: SolverOption = Solver.AUTO,
    time_limit: TimeLimit = None,
    require_optimal: RequireOptimal = False,
    seed: Seed = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes that make an atlas.")] = 1,
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan for dead workers: their micro-batches run on their peers, in the bubbles.

    With --failed the failures stay where they are; with --failures they are moved to where they cost least, and with
    both the plan says which workers swap. Otherwise an atlas is made, a folder of plans for every number of failures.
    Its plans are of the second kind: beside --from, --failed is enough to learn which workers swap.
    """
    from ..planners.plain.verbs import rerouted

    places, site = parse_places(failed, "--failed"), read_site(cluster, overlay)
    if from_atlas is not None:
        _refuse_beside_from(context)
        _emit_plan(_plan_from(from_atlas, profile, places, failures, site), output, as_json, require_optimal)
        return
    effort = parse_effort(solver, time_limit, seed, require_optimal)
    common, dead = _opening(
        {"PROFILE": profile, "--pp": pp, "--dp": dp, "--microbatches": microbatches},
        site,
        technique=technique.value,
        unit=parse_block(failure_unit, "--failure-unit"),
        effort=effort,
        cost=cost.value,
        slowdown=parse_slow_places(slow),
        limits=parse_memory_limit(memory_limit),
        delays=parse_link_delays(link_delay),
    )
    units = _units(common, places, dead)
    if not units and failures is None:
        _emit_atlas(common, max_failures, jobs, output, as_json, require_optimal)
    elif max_failures is not None:
        raise InvalidInputError(
            "an atlas is for any failures",
            where="--max-failures",
            fix="leave it out for one plan, or --failed and --failures for an atlas",
        )
    else:
        _emit_plan(rerouted(common, units, failures, effort), output, as_json, require_optimal)


def _refuse_beside_from(context: typer.Context) -> None:
    """Raise InvalidInputError if an option was given, if only with its default, that the atlas was made with."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name not in BESIDE_FROM and source is not None and source.name != "DEFAULT":
            raise InvalidInputError(
                "the atlas was made with a value of its own", where=option.opts[0], fix="leave it out beside --from"
            )


def _opening(
    needed: dict[str, Any], site: Site, limits: Any, delays: Any, slowdown: Any, **request: Any
) -> "tuple[Atlas, tuple[Place, ...]]":
    """What all plans have in common, and who is dead on the cluster."""
    from ..planners.shape import Shape
    from ..planners.slipstream.cluster import AtlasRequest, opening
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    for name, value in needed.items():
        if value is None:
            raise InvalidInputError("it must be given", where=name, fix="give it, or take a plan from an atlas: --from")
    path, pp, dp, microbatches = needed.values()
    read, there = read_document(path, Profile), site.troubles(pp, dp)
    shape = Shape(pp, dp, microbatches, limits, {**there.link_delay_s, **delays})
    made = opening(site.adapted(read), AtlasRequest(shape, slowdown={**there.slow, **slowdown}, **request))
    return site.signed(made, read), there.failed


def _units(common: "Atlas", places: "Sequence[Place]", dead: "Sequence[Place]") -> "frozenset[Place]":
    """What has failed: the units of the workers named, and those of the workers that are dead on the cluster."""
    from ..planners.slipstream.cluster import grid_of

    grid = grid_of(common)
    return grid.failed_units(places) | {grid.unit_of(place) for place in dead}


def _plan_from(path: str, profile: str | None, places: "Sequence[Place]", failures: int | None, site: Site) -> "Plan":
    """A plan out of an atlas, for a number of failures or for places."""
    from ..planners.slipstream.atlas_folder import of_atlas, read_atlas, stored_plan
    from ..planners.slipstream.replanner import Replanner

    atlas = read_atlas(path)
    if profile is not None:
        _require_profile(atlas, path, profile)
    replanner = Replanner(replace(atlas, plans=()), atlas.most_failures)
    units = _units(atlas, places, site.failed_alone(len(atlas.template.stages), atlas.dp))
    number = len(units) if failures is None else failures
    if not units and failures is None:
        raise InvalidInputError("which plan of the atlas?", where="--from", fix="add --failures F, or --failed k/i")
    if number > atlas.most_failures:
        raise InvalidInputError(
            f"the atlas has plans for up to {counted(atlas.most_failures, 'failure')}",
            where="--failures" if failures is not None else "--failed",
            fix="make it with a larger --max-failures",
        )
    entry = atlas.plans[number]
    if entry.recipe.stored is not None and not units:
        return stored_plan(path, entry)
    with of_atlas(path):
        return replanner.rebuilt(entry, units or None)


def _require_profile(atlas: "Atlas", path: str, profile: str) -> None:
    from ..schemas.documents import digest, read_document
    from ..schemas.profile import Profile

    if digest(read_document(profile, Profile)) != atlas.inputs.get("profile"):
        raise InvalidInputError(
            "the atlas was made from another profile", where=f"{path}, /inputs/profile", fix="make it anew"
        )


def _emit_plan(made: "Plan", output: str, as_json: bool, require_optimal: bool) -> None:
    emit(made, output, as_json)
    remark(summary(made))
    for line in (*own_proof(made), *_advice(made)):
        remark(line)
    if require_optimal:
        require_proof(made)


def _advice(made: "Plan") -> Iterator[str]:
    """What normalization would give, or has given, in a line; nothing where there is nothing to move."""
    said = made.planner.options["normalization"]
    if said is None:
        return
    if "copies" in said:
        yield _moves(said, is_moved=bool(said["copies"]) and said["copies"][0]["becomes"] not in _failed(made))
    elif said["most_copies"]:
        who = f"wherever the failures are, at most {counted(said['most_copies'], 'worker')} must move"
        size = f" and {_size(said['most_copied_bytes'])} be copied" if said["most_copied_bytes"] else ""
        yield f"{who}{size}; --failed k/i… beside --failures says which"


def _moves(said: dict[str, Any], is_moved: bool) -> str:
    """Which workers move, in this plan or in the normalized one, and whether that pays."""
    before_s, after_s = said["iteration_time_in_place_s"], said["iteration_time_normalized_s"]
    if not said["copies"]:
        return "the failures are where they cost least"
    if not is_moved and after_s >= before_s:
        return "no other places for the failures would be better"
    names = [f"{copy['worker']} becomes {copy['becomes']}" for copy in said["copies"]]
    other = f"normalized, not in place ({before_s:.6g} s)" if is_moved else f"in place; normalized {after_s:.6g} s"
    return f"{other}: {listed(names)}; {_worth(said, before_s > after_s)}"


def _worth(said: dict[str, Any], is_better: bool) -> str:
    """What is copied and when that has paid."""
    from ..viz.units import print_time

    pays, size = said["break_even_iterations"], _size(said["copied_bytes"])
    if not is_better:
        return f"{size} to copy, which never pays" if said["copied_bytes"] else "which gains nothing"
    if not said["copied_bytes"]:
        return "the profile does not say how many bytes that copies"
    if pays is None:
        return f"{size} to copy, and the profile gives no bandwidth to say when that pays"
    return f"{size} to copy in {print_time(said['copying_s'])}, which pays after {counted(pays, 'iteration')}"


def _failed(made: "Plan") -> list[str]:
    return [worker.name for worker in made.workers if worker.failed]


def _size(size_bytes: float) -> str:
    from ..viz.units import print_bytes

    return print_bytes(size_bytes)


def _emit_atlas(
    common: "Atlas", max_failures: str | None, jobs: int, output: str, as_json: bool, require_optimal: bool
) -> None:
    from ..planners.slipstream.atlas_folder import AtlasFolder
    from .atlas_folder import atlas_entries

    most = _most_failures(common, max_failures, output)
    folder = AtlasFolder(output)
    entries = folder.begin(common)
    while most + 1 in entries:  # a finished atlas keeps what it has
        most += 1
    missing = [number for number in range(most + 1) if number not in entries]
    if 0 < len(missing) <= most:
        remark(f"{most + 1 - len(missing)} of {most + 1} plans are there already")
    try:
        with progress() as bar, atlas_entries(common, most, missing, jobs) as made:
            task = bar.add_task("plans", total=most + 1, completed=most + 1 - len(missing))
            for entry, plan in made:
                folder.append(entry, plan)
                entries[entry.failed_units] = entry
                bar.advance(task)
    except KeyboardInterrupt:
        remark("what is finished is kept: the same command goes on from there")
        raise
    atlas = replace(common, plans=tuple(entries[number] for number in range(most + 1)))
    folder.finish(atlas)
    if as_json:
        print_document(atlas)
    remark(_atlas_summary(atlas))
    if atlas.planner.options["solver"] in (Solver.MILP, Solver.CP_SAT):
        remark(
            "no solver was asked for plans that reach the bound; for its own proof, plan for one number of --failures"
        )
    if require_optimal:
        for entry in atlas.plans:
            demand_proof(entry.prediction, f"{counted(entry.failed_units, 'failure')}: ")


def _most_failures(common: "Atlas", max_failures: str | None, output: str) -> int:
    """The largest number of failures of an atlas, once it is sure that it can be made: nothing is written before."""
    from ..planners.scheduling.list_schedule import most_in_flight
    from ..planners.slipstream.cluster import alike, grid_of

    if output == STANDARD_STREAM or output.endswith((".json", ".json.gz")):
        place = "standard output" if output == STANDARD_STREAM else f"a file such as {output}"
        raise InvalidInputError(
            f"without --failed and --failures an atlas is made: a folder, it cannot go to {place}",
            where="--output",
            fix="name a folder; or for a single plan, its failures",
        )
    if not alike(common):
        raise InvalidInputError(
            "an atlas moves failures between the workers of a stage, which must be equal for that",
            where="--slow or --link-delay",
            fix="plan for the failures where they are: --failed k/i",
        )
    grid = grid_of(common)
    units = grid.columns * grid.units
    most = common.dp - 1 if max_failures is None else parse_share(max_failures, units, "--max-failures")
    grid.require_feasible(most, "--max-failures")
    most_in_flight(common.template.stages, common.microbatches)
    return most


def _atlas_summary(atlas: "Atlas") -> str:
    first, last = atlas.plans[0].prediction, atlas.plans[-1].prediction
    if first is last:
        return f"a plan for 0 failures: iteration {first.iteration_time_s:.6g} s ({_proofs(atlas)})"
    return (
        f"plans for 0 to {atlas.most_failures} failures: iteration {first.iteration_time_s:.6g} s to "
        f"{last.iteration_time_s:.6g} s ({_proofs(atlas)})"
    )


def _proofs(atlas: "Atlas") -> str:
    """How good an atlas's plans are, in words."""
    largest = f"at most {max(entry.prediction.gap for entry in atlas.plans):.2%} above the optimum"
    proven = sum(entry.prediction.proof == "optimal" for entry in atlas.plans)
    others = len(atlas.plans) - proven
    if not others:
        return "all optimal" if proven > 1 else "optimal"
    return f"{proven} optimal, the {'others' if others > 1 else 'other'} {largest}" if proven else largest
