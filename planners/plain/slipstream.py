"""SlipStream with plain arguments: a plan for failures, an atlas of plans made ahead, and a plan out of one."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from ...schemas.atlas import Atlas, AtlasEntry
from ...schemas.degrees import AskedDegrees, Degrees
from ...schemas.documents import digest
from ...schemas.errors import InvalidInputError, remark
from ...schemas.files import STANDARD_STREAM
from ...schemas.plan import Place, Plan
from ...schemas.pools import process_pool
from ...schemas.profile import Profile
from ...schemas.site import Site, site_of
from ...schemas.text import counted, known
from ..choosing import PlacementChoice, parse_placement, plan_chosen
from ..degrees import DegreeChoice, choose_degrees, degree_comparison, naming_what_fits, plan_at_degrees
from ..placement.own_proof import ask_any_solver
from ..placement.problem import placed_problem
from ..placement.scheduler import reserves_bytes
from ..scheduling.list_schedule import most_in_flight
from ..scheduling.solve import Effort, SolverName, with_own_proof
from ..shape import Shape
from ..slipstream.atlas_folder import AtlasFolder, of_atlas, read_atlas, stored_plan
from ..slipstream.cluster import AtlasRequest, Technique, alike, grid_of, opening, plan_with_failures
from ..slipstream.normalization import Cost
from ..slipstream.placed_replanner import AnyReplanner, replanner_of
from .verbs import Delays, Factors, WorkerName, effort_of, factors, limits_of, link_delays, places, sharing

if TYPE_CHECKING:
    from ...schemas.cluster import Cluster


Opening = tuple[Atlas, tuple[Place, ...]]  # what plans have in common, and who is dead on the machines
SWAPPED = "workers of unlike stages may swap places"


def plan_slipstream(
    profile: Profile,
    *,
    pp: int,
    dp: int,
    microbatches: int,
    failed: Iterable[WorkerName] = (),
    failures: int | None = None,
    technique: Technique = "staggered",
    failure_unit: tuple[int, int] = (1, 1),
    cost: Cost = "heuristic",
    memory_limit: float | Sequence[float] | None = None,
    link_delay: Delays | None = None,
    slow: Factors | None = None,
    solver: SolverName = "auto",
    time_limit: float | None = None,
    seed: int = 0,
    cluster: "str | Cluster | None" = None,
    overlay: str | None = None,
    placement: str = "plain",
    chunks: int | None = None,
    tensor_parallel: AskedDegrees = None,
    shard_optimizer: bool = False,
) -> Plan:
    """Plan for dead workers: their micro-batches run on their peers, in the bubbles (SlipStream).

    Args:
        profile, pp, dp, microbatches, memory_limit, link_delay, cluster, overlay: as for `plan_pipeline`.
        failed: dead workers, planned for where they are; with `failures` the plan says which workers swap.
        failures: so many dead workers, moved to where they cost least (normalized).
        technique: re-routing ("adaptive"); with backwards split where it helps ("decoupled"); and with each stage's
            optimizer on its own ("staggered").
        failure_unit: pipelines and stages of a block of workers that die together.
        cost: what normalization reckons with: "heuristic" as in the paper, or real schedules ("scheduler").
        slow: how many times as long slow workers take.
        solver, time_limit, seed: as for `plan_adaptra`.
        placement, chunks, tensor_parallel, shard_optimizer: as for `plan_pipeline`.

    Returns:
        A checked plan; without failures, one for healthy workers.

    Raises:
        InvalidInputError: a worker, link or limit that the shape does not have.
        InfeasibleError: a stage has no live worker, a memory limit does not admit a single micro-batch, or there are
            fewer layers than stages.
    """
    effort, site = effort_of(solver, time_limit, seed), site_of(cluster, overlay)
    share = sharing(shard_optimizer, dp, technique, places(failed))
    shape = Shape(pp, dp, microbatches, limits_of(memory_limit), link_delays(link_delay), share=share)
    choice = parse_placement(placement, chunks)
    asked = first_asked(AtlasRequest(shape, technique, failure_unit, effort, cost, factors(slow)), choice)
    degrees = choose_degrees(site.adapted(profile), asked.shape, tensor_parallel, site.cluster)
    return planned_at(degrees, places(failed), failures, profile, asked, choice, site)


def planned_at(
    degrees: DegreeChoice,
    failed: Sequence[Place],
    failures: int | None,
    profile: Profile,
    asked: AtlasRequest,
    choice: PlacementChoice,
    site: Site,
    first: Opening | None = None,
) -> Plan:
    """SlipStream's plan at a tensor-parallel degree, or at the best of several.

    Args:
        degrees: which.
        failed: dead workers, beside those of the machines.
        failures, choice: as for `rerouted_chosen`.
        profile, asked, site: as for `opened`.
        first: what `opened_once` gives, if it was asked.
    """

    def made(each: Degrees) -> Plan:
        own = at_degrees(asked, each, len(degrees.tried))
        if failures is not None:
            own.shape.require_one_degree(SWAPPED)
        common, dead = opened(profile, own, site) if first is None else first
        return rerouted_chosen(common, units_of(common, failed, dead), failures, profile, own, choice, site)

    return plan_at_degrees(degrees, made)


def opened_once(degrees: DegreeChoice, profile: Profile, asked: AtlasRequest, site: Site) -> Opening | None:
    """What is opened at the one degree that is asked for; None under `auto`, where each degree has its own."""
    if degrees.is_auto:
        return None
    with naming_what_fits(degrees):
        return opened(profile, at_degrees(asked, degrees.tried[0]), site)


def at_degrees(asked: AtlasRequest, degrees: Degrees, of: int = 1) -> AtlasRequest:
    """The request at tensor-parallel degrees, with its share of the time if it is one `of` several."""
    share = replace(asked.effort, time_limit_s=asked.effort.time_limit_s / of)
    return replace(asked, shape=replace(asked.shape, tensor_parallel=degrees), effort=share)


def atlas_degrees(degrees: DegreeChoice, profile: Profile, asked: AtlasRequest, site: Site) -> Degrees:
    """The tensor-parallel degree of an atlas: under `auto` that of the best plan without failures."""
    at_degrees(asked, degrees.tried[0]).shape.require_one_degree(SWAPPED)
    if not degrees.is_auto:
        return degrees.tried[0]

    def healthy(each: Degrees) -> Plan:
        common, _ = opened(profile, at_degrees(asked, each), site)
        return rerouted(common, frozenset(), 0, asked.effort)

    plan = plan_at_degrees(degrees, healthy)
    for line in degree_comparison(plan):
        remark(line)
    return next(degree for degree in degrees.tried if degree == plan.gpus_of(plan.workers[0]))


def first_asked(asked: AtlasRequest, choice: PlacementChoice) -> AtlasRequest:
    """The request for the first placement of a choice, with its share of the time."""
    shapes = choice.shapes(asked.shape)
    share = replace(asked.effort, time_limit_s=asked.effort.time_limit_s / len(shapes))
    return replace(asked, shape=shapes[0], effort=share)


def rerouted_chosen(
    common: Atlas,
    units: frozenset[Place],
    failures: int | None,
    profile: Profile,
    asked: AtlasRequest,
    choice: PlacementChoice,
    site: Site,
) -> Plan:
    """SlipStream's plan by a placement, or by the best of several.

    Args:
        common: the opening of the request.
        units, failures: as for `rerouted`.
        profile, asked, site: what it was opened with.
        choice: of the placement.
    """

    def made(shape: Shape) -> Plan:
        is_first = shape == asked.shape
        opening_of_shape = common if is_first else opened(profile, replace(asked, shape=shape), site)[0]
        return rerouted(opening_of_shape, units, failures, asked.effort)

    return plan_chosen(asked.shape, choice, made)


def rerouted(common: Atlas, units: frozenset[Place], failures: int | None, effort: Effort) -> Plan:
    """SlipStream's plan for failures where they are, or for so many normalized ones.

    Args:
        common: the opening of `planners/slipstream/cluster.py`.
        units: blocks of workers that are dead.
        failures: how many dead blocks to move to where they cost least; None: they stay in place.
        effort: the one that the opening was made with.
    """
    replanner = replanner_of(common, len(units) if failures is None else failures)

    def made() -> Plan:
        if failures is None:
            return replanner.in_place(units)
        entry, plan = replanner.entry(failures)
        return plan if plan is not None and not units else replanner.rebuilt(entry, units or None)

    return with_own_proof(made, effort, ask_any_solver)


def opened(profile: Profile, asked: AtlasRequest, site: Site) -> Opening:
    """What all plans of a request have in common on these machines, signed by what it was made from; and who is dead.

    Raises:
        InvalidInputError: a word, link, limit or worker that there is not.
        InfeasibleError: the profile cannot be cut into that many stages, or the machines are too few.
    """
    known(asked.technique, get_args(Technique), "--technique")
    known(asked.cost, get_args(Cost), "--cost")
    asked.shape.require_plannable()
    shape, there = asked.shape, site.troubles(asked.shape.pp, asked.shape.dp, asked.shape.tensor_parallel)
    asked = replace(
        asked,
        shape=replace(shape, link_delay_s={**there.link_delay_s, **(shape.link_delay_s or {})}),
        slowdown={**there.slow, **asked.slowdown},
    )
    return site.signed(opening(site.adapted(profile), asked), profile), there.failed


def units_of(common: Atlas, failed: Iterable[Place], dead: Iterable[Place]) -> frozenset[Place]:
    """The blocks that have failed: those of the workers named, and of those that are dead on the machines."""
    grid = grid_of(common)
    return grid.failed_units(list(failed)) | {grid.unit_of(place) for place in dead}


def plan_atlas(
    profile: Profile,
    folder: str,
    *,
    pp: int,
    dp: int,
    microbatches: int,
    max_failures: int | str | None = None,
    technique: Technique = "staggered",
    failure_unit: tuple[int, int] = (1, 1),
    cost: Cost = "heuristic",
    memory_limit: float | Sequence[float] | None = None,
    link_delay: Delays | None = None,
    solver: SolverName = "auto",
    time_limit: float | None = None,
    seed: int = 0,
    cluster: "str | Cluster | None" = None,
    overlay: str | None = None,
    placement: str = "plain",
    chunks: int | None = None,
    tensor_parallel: AskedDegrees = None,
    shard_optimizer: bool = False,
    jobs: int = 1,
) -> Atlas:
    """Make an atlas: a folder of SlipStream's plans for every number of failures, wherever these are.

    Args:
        profile, pp, dp, microbatches, technique, failure_unit, cost, memory_limit: as for `plan_slipstream`.
        link_delay, solver, time_limit, seed, cluster, overlay: as for `plan_slipstream`.
        folder: where it is to stand; the same inputs go on where an interruption has left it.
        max_failures: plans for up to so many failures, or "25%" of all workers; None: dp - 1.
        placement, chunks: as for `plan_pipeline`, but one placement for all plans: not "best".
        tensor_parallel: as for `plan_pipeline`; "auto" compares plans without failures.
        shard_optimizer: as for `plan_pipeline`.
        jobs: processes that make it.

    Raises:
        InvalidInputError: arguments that make no sense, workers that are not alike, or the folder cannot be written.
        InfeasibleError: so many failures leave a stage without workers, or one does not fit.
    """
    effort, site = effort_of(solver, time_limit, seed), site_of(cluster, overlay)
    share = sharing(shard_optimizer, dp, technique)
    shape = Shape(pp, dp, microbatches, limits_of(memory_limit), link_delays(link_delay), share=share)
    choice = parse_placement(placement, chunks)
    require_one(choice)
    asked = first_asked(AtlasRequest(shape, technique, failure_unit, effort, cost, {}), choice)
    degrees = choose_degrees(site.adapted(profile), asked.shape, tensor_parallel, site.cluster)
    taken = atlas_degrees(degrees, profile, asked, site)
    common, _ = opened_once(degrees, profile, asked, site) or opened(profile, at_degrees(asked, taken), site)
    return atlas_of(common, folder, max_failures, jobs)


def require_one(choice: PlacementChoice) -> None:
    """Raise InvalidInputError for an atlas of the best placement: its plans must be able to follow each other."""
    if choice.name == "best":
        raise InvalidInputError(
            "an atlas has one placement for all its plans: nobody changes over when a worker dies",
            where="--placement best",
            fix="compare them for one number of --failures, and name the best here",
        )


def atlas_of(
    common: Atlas,
    output: str,
    max_failures: int | str | None,
    jobs: int,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> Atlas:
    """Make the plans of an opening, as `plan_atlas` does, or go on with them.

    Args:
        common: the opening.
        output, max_failures, jobs: as for `plan_atlas`.
        tell: hears how many plans there are, and how many there are to be.
    """
    most = _most_failures(common, max_failures, output)
    folder = AtlasFolder(output)
    entries = folder.begin(common)
    while most + 1 in entries:  # a finished atlas keeps what it has
        most += 1
    missing = [number for number in range(most + 1) if number not in entries]
    if 0 < len(missing) <= most:
        remark(f"{most + 1 - len(missing)} of {most + 1} plans are there already")
    there = most + 1 - len(missing)
    tell(there, most + 1)
    try:
        with _entries(common, most, missing, jobs) as made:
            for done, (entry, plan) in enumerate(made, start=there + 1):
                folder.append(entry, plan)
                entries[entry.failed_units] = entry
                tell(done, most + 1)
    except KeyboardInterrupt:
        remark("what is finished is kept: the same command goes on from there")
        raise
    atlas = replace(common, plans=tuple(entries[number] for number in range(most + 1)))
    folder.finish(atlas)
    return atlas


def _most_failures(common: Atlas, max_failures: int | str | None, output: str) -> int:
    """The largest number of failures of an atlas, once it is sure that it can be made: nothing is written before."""
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
    grid, most = grid_of(common), common.dp - 1 if max_failures is None else max_failures
    if isinstance(most, str):
        most = parse_share(most, grid.columns * grid.units, "--max-failures")
    grid.require_feasible(most, "--max-failures")
    if common.is_placed:
        reserves_bytes(placed_problem(plan_with_failures(common, ())))
    else:
        most_in_flight(common.template.stages, common.microbatches)
    return most


def parse_share(value: str, whole: int, option: str) -> int:
    """`12` is 12, `25%` a quarter of the whole, rounded down.

    Raises:
        InvalidInputError: it is neither a number nor a percentage.
    """
    match = re.fullmatch(r"(\d{1,9})|(\d{1,3}(?:\.\d{1,6})?)%", value)
    if match is None or (match[2] and float(match[2]) > 100):
        raise InvalidInputError(
            f"{value!r} cannot be read", where=option, fix="write a number, or a percentage up to 100%, such as 25%"
        )
    # In whole millionths: 0.07 * 100 is more than 7.
    return int(match[1]) if match[1] else round(float(match[2]) * 10**6) * whole // 10**8


_REPLANNER: AnyReplanner | None = None  # of a process that makes entries


@contextmanager
def _entries(
    common: Atlas, most: int, numbers: Sequence[int], jobs: int
) -> Iterator[Iterable[tuple[AtlasEntry, Plan | None]]]:
    """The entries for numbers of failures, as they are finished, in this process or in several."""
    if jobs == 1 or len(numbers) < 2:
        _make_ready(common, most)
        yield map(_entry, numbers)
        return
    from concurrent.futures import as_completed

    with process_pool(jobs, _make_ready, (common, most)) as pool:
        yield (made.result() for made in as_completed([pool.submit(_entry, number) for number in numbers]))


def _make_ready(common: Atlas, most: int) -> None:
    global _REPLANNER
    _REPLANNER = replanner_of(common, most)


def _entry(number: int) -> tuple[AtlasEntry, Plan | None]:
    assert _REPLANNER is not None
    return _REPLANNER.entry(number)


def plan_from_atlas(
    folder: str,
    *,
    failed: Iterable[WorkerName] = (),
    failures: int | None = None,
    profile: Profile | None = None,
    cluster: "str | Cluster | None" = None,
    overlay: str | None = None,
) -> Plan:
    """Take a plan out of an atlas.

    Args:
        folder: of the atlas.
        failed: dead workers; the plan says who takes their places.
        failures: so many dead workers, wherever they are.
        profile: what the atlas must have been made from; None: whatever it was.
        cluster, overlay: as for `plan_slipstream`; whoever has failed there is dead.

    Raises:
        InvalidInputError: there is no such atlas, or no such plan in it, it was made from another profile, or something
            is slow there.
    """
    site, atlas = site_of(cluster, overlay), read_atlas(folder)
    if profile is not None and digest(profile) != atlas.inputs.get("profile"):
        raise InvalidInputError(
            "the atlas was made from another profile",
            where=f"{folder}, /inputs/profile",
            fix="make it again",
        )
    replanner = replanner_of(replace(atlas, plans=()), atlas.most_failures)
    template = atlas.template
    degrees = tuple(template.stages[held[0]].tensor_parallel for held in template.columns)
    units = units_of(atlas, places(failed), site.failed_alone(len(template.columns), atlas.dp, degrees))
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
        return stored_plan(folder, entry)
    with of_atlas(folder):
        return replanner.rebuilt(entry, units or None)
