"""`rtk plan slipstream`: plans for dead workers, and atlases of them."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from multiprocessing import get_context
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.errors import InvalidInputError
from .console import Debug, Json, Output, Quiet, Seed, emit, print_document, progress, remark
from .parsing import (
    LinkDelays,
    MemoryLimit,
    RequireOptimal,
    Slow,
    Solver,
    SolverOption,
    TimeLimit,
    parse_block,
    parse_effort,
    parse_link_delays,
    parse_memory_limit,
    parse_places,
    parse_share,
    parse_slow,
)
from .planning import demand_proof, summary

if TYPE_CHECKING:
    from ..planners.slipstream.replanner import Replanner
    from ..schemas.atlas import Atlas, AtlasEntry
    from ..schemas.plan import Plan

MOST_NAMED = 4  # copies in a remark


class Technique(StrEnum):
    """SlipStream's three, each with those before it."""

    ADAPTIVE = "adaptive"
    DECOUPLED = "decoupled"
    STAGGERED = "staggered"


class Cost(StrEnum):
    """What normalization reckons a failure's cost by."""

    HEURISTIC = "heuristic"
    SCHEDULER = "scheduler"


def slipstream(
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
            "--max-failures", metavar="F[%]", help="An atlas: plans for 0 to F failures. DP - 1 if none is given."
        ),
    ] = None,
    from_atlas: Annotated[
        str | None, typer.Option("--from", metavar="ATLAS", help="Take the plan from an atlas instead of making it.")
    ] = None,
    technique: Annotated[
        Technique,
        typer.Option("--technique", help="Re-routing; with backwards split where it helps; and staggered optimizers."),
    ] = Technique.STAGGERED,
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
    """
    places = parse_places(failed, "--failed")
    if from_atlas is not None:
        _refuse_beside_from({"--pp": pp, "--dp": dp, "--microbatches": microbatches, "--max-failures": max_failures})
        _emit_plan(_plan_from(from_atlas, profile, places, failures), output, as_json, require_optimal)
        return
    common = _opening(
        {"PROFILE": profile, "--pp": pp, "--dp": dp, "--microbatches": microbatches},
        technique=technique.value,
        unit=parse_block(failure_unit, "--failure-unit"),
        effort=parse_effort(solver, time_limit, seed, require_optimal),
        cost=cost.value,
        slowdown={parse_places([name], "--slow")[0]: factor for name, factor in parse_slow(slow).items()},
        limits=parse_memory_limit(memory_limit),
        delays=parse_link_delays(link_delay),
    )
    if not places and failures is None:
        _emit_atlas(common, max_failures, jobs, output, as_json, require_optimal)
    elif max_failures is not None:
        raise InvalidInputError("an atlas is for any failures", where="--max-failures", fix="leave out the others")
    else:
        _emit_plan(_plan_for(common, places, failures), output, as_json, require_optimal)


def _refuse_beside_from(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidInputError("the atlas says that already", where=name, fix="leave it out beside --from")


def _opening(needed: dict[str, Any], limits: Any, delays: Any, **request: Any) -> "Atlas":
    """What all plans have in common."""
    from ..planners.shape import Shape
    from ..planners.slipstream.cluster import Request, opening
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    for name, value in needed.items():
        if value is None:
            raise InvalidInputError("it must be given", where=name, fix="or take a plan from an atlas, with --from")
    path, pp, dp, microbatches = needed.values()
    return opening(read_document(path, Profile), Request(Shape(pp, dp, microbatches, limits, delays), **request))


def _plan_for(common: "Atlas", places: Sequence[tuple[int, int]], failures: int | None) -> "Plan":
    """A plan for failures in place, or normalized ones."""
    from ..planners.slipstream.replanner import Replanner

    replanner = Replanner(common, len(places) if failures is None else failures)
    units = replanner.grid.failed_units(places)
    if failures is None:
        return replanner.in_place(units)
    entry, plan = replanner.entry(failures)
    return plan if plan is not None and not units else replanner.rebuilt(entry, units or None)


def _plan_from(path: str, profile: str | None, places: Sequence[tuple[int, int]], failures: int | None) -> "Plan":
    """A plan out of an atlas, for a number of failures or for places."""
    from ..planners.slipstream.replanner import Replanner
    from .atlas_folder import read_atlas, stored_plan

    atlas = read_atlas(path)
    if profile is not None:
        _require_profile(atlas, path, profile)
    replanner = Replanner(replace(atlas, plans=()), atlas.most_failures)
    units = replanner.grid.failed_units(places)
    number = len(units) if failures is None else failures
    if not places and failures is None:
        raise InvalidInputError("which plan of the atlas?", where="--from", fix="add --failures F, or --failed k/i")
    if number > atlas.most_failures:
        raise InvalidInputError(
            f"the atlas has plans for up to {atlas.most_failures} failures",
            where="--failures" if failures is not None else "--failed",
            fix="make it with a larger --max-failures",
        )
    entry = atlas.plans[number]
    if entry.recipe.stored is not None and not units:
        return stored_plan(path, entry)
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
    said = made.planner.options["normalization"]
    if said is not None:
        remark(_advice(said))
    if require_optimal:
        demand_proof(made.prediction)


def _advice(said: dict[str, Any]) -> str:
    """What normalization would give, or has given, in a line."""
    if "copies" not in said:
        return (
            f"wherever they are, at most {said['most_copies']} workers swap and copy {said['most_copied_bytes']:.6g} "
            "bytes; --failed k/i… beside --failures says which"
        )
    before_s, after_s = said["iteration_time_in_place_s"], said["iteration_time_normalized_s"]
    if not said["copies"]:
        return f"the failures are where they cost least: {after_s:.6g} s"
    copies = [f"{copy['worker']} becomes {copy['becomes']}" for copy in said["copies"]]
    more = f" and {len(copies) - MOST_NAMED} more" if len(copies) > MOST_NAMED else ""
    moved = f"{', '.join(copies[:MOST_NAMED])}{more}; {said['copied_bytes']:.6g} bytes move"
    pays = said["break_even_iterations"]
    if pays is not None:
        when = f"that pays after {pays} iterations ({said['copying_s']:.3g} s)"
    elif after_s < before_s:
        when = "the profile gives no bandwidth to say when that pays"
    else:
        when = "that never pays"
    return f"in place {before_s:.6g} s, normalized {after_s:.6g} s: {moved}; {when}"


def _emit_atlas(
    common: "Atlas", max_failures: str | None, jobs: int, output: str, as_json: bool, require_optimal: bool
) -> None:
    from ..planners.slipstream.cluster import grid_of
    from .atlas_folder import AtlasFolder

    grid = grid_of(common)
    most = (
        common.dp - 1
        if max_failures is None
        else parse_share(max_failures, grid.columns * grid.units, "--max-failures")
    )
    grid.require_feasible(most, "--max-failures")
    folder = AtlasFolder(output)
    entries = folder.begin(common)
    missing = [number for number in range(most + 1) if number not in entries]
    with progress() as bar, _entries(common, most, missing, jobs) as made:
        task = bar.add_task("plans", total=most + 1, completed=most + 1 - len(missing))
        for entry, plan in made:
            folder.append(entry, plan)
            entries[entry.failed_units] = entry
            bar.advance(task)
    atlas = replace(common, plans=tuple(entries[number] for number in range(most + 1)))
    folder.finish(atlas)
    if as_json:
        print_document(atlas)
    remark(_atlas_summary(atlas))
    if require_optimal:
        for entry in atlas.plans:
            demand_proof(entry.prediction, f"{entry.failed_units} failures: ")


def _atlas_summary(atlas: "Atlas") -> str:
    first, last = atlas.plans[0].prediction, atlas.plans[-1].prediction
    proven = sum(entry.prediction.proof == "optimal" for entry in atlas.plans)
    largest = max(entry.prediction.gap for entry in atlas.plans)
    rest = "all optimal" if proven == len(atlas.plans) else f"{proven} optimal, the others at most {largest:.2%} above"
    return (
        f"plans for 0 to {atlas.most_failures} failures: iteration {first.iteration_time_s:.6g} s to "
        f"{last.iteration_time_s:.6g} s ({rest})"
    )


_REPLANNER: "Replanner | None" = None  # of a process that makes entries


@contextmanager
def _entries(
    common: "Atlas", most: int, numbers: Sequence[int], jobs: int
) -> Iterator[Iterable[tuple["AtlasEntry", "Plan | None"]]]:
    """The entries for numbers of failures, as they are finished, in this process or in several."""
    if jobs == 1 or len(numbers) < 2:
        _make_ready(common, most)
        yield map(_entry, numbers)
        return
    pool: Executor
    with ProcessPoolExecutor(jobs, get_context("spawn"), _make_ready, (common, most)) as pool:
        yield pool.map(_entry, numbers, chunksize=max(1, len(numbers) // (8 * jobs)))


def _make_ready(common: "Atlas", most: int) -> None:
    from ..planners.slipstream.replanner import Replanner

    global _REPLANNER
    _REPLANNER = Replanner(common, most)


def _entry(number: int) -> tuple["AtlasEntry", "Plan | None"]:
    assert _REPLANNER is not None
    return _REPLANNER.entry(number)
