"""`rtk plan joint`: dead workers, slow workers and slow links in one schedule."""

from typing import Annotated

import typer

from ..schemas.text import listed
from .cluster import ClusterOption, OverlayOption, read_site
from .console import Debug, Json, Output, Quiet, Seed, emit, remark
from .parsing import (
    LinkDelays,
    MemoryLimit,
    RequireOptimal,
    Slow,
    Solver,
    SolverOption,
    TimeLimit,
    parse_effort,
    parse_link_delays,
    parse_memory_limit,
    parse_places,
    parse_slow_places,
)
from .planning import (
    Microbatches,
    Pipelines,
    ProfileFile,
    Stages,
    Technique,
    TechniqueOption,
    own_proof,
    require_proof,
    summary,
)


def joint(
    profile: ProfileFile,
    pp: Stages,
    microbatches: Microbatches,
    dp: Pipelines = 1,
    failed: Annotated[
        list[str] | None, typer.Option("--failed", metavar="k/i", help="A dead worker. Repeatable.")
    ] = None,
    technique: TechniqueOption = Technique.STAGGERED,
    slow: Slow = None,
    link_delay: LinkDelays = None,
    memory_limit: MemoryLimit = None,
    cluster: ClusterOption = None,
    overlay: OverlayOption = None,
    solver: SolverOption = Solver.AUTO,
    time_limit: TimeLimit = None,
    require_optimal: RequireOptimal = False,
    seed: Seed = 0,
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan for dead workers, slow workers and slow links at once.

    Every stage's micro-batches go to who ends first with them, slow links inside single pipelines are bypassed where
    that helps, and warm-ups absorb the delays that are left. The bound holds for every routing.
    """
    from ..planners.joint.plan import plan_joint
    from ..planners.scheduling.own_proof import with_own_proof
    from ..planners.shape import Shape
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    site, read = read_site(cluster, overlay), read_document(profile, Profile)
    there = site.troubles(pp, dp)
    delays = {**there.link_delay_s, **parse_link_delays(link_delay)}
    shape = Shape(pp, dp, microbatches, parse_memory_limit(memory_limit), delays)
    dead, effort = parse_places(failed, "--failed"), parse_effort(solver, time_limit, seed, require_optimal)
    dead += [place for place in there.failed if place not in dead]
    slowdown = {**there.slow, **parse_slow_places(slow)}
    planned = with_own_proof(
        lambda: plan_joint(site.adapted(read), shape, dead, slowdown, effort, technique.value), effort
    )
    made = site.signed(planned, read)
    emit(made, output, as_json)
    remark(summary(made))
    for line in own_proof(made):
        remark(line)
    bypassed = made.planner.options["bypassed_links"]
    if bypassed:
        remark(f"slow links that carry nothing: {listed(bypassed)}")
    if require_optimal:
        require_proof(made)
