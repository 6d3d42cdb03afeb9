"""`rtk plan …`: Plans out of Profiles, one verb a method."""

from enum import StrEnum
from typing import Annotated

import typer

from ..schemas.errors import InvalidInputError
from ..schemas.text import listed
from .cluster import ClusterOption, OverlayOption, read_site
from .console import Debug, Json, Output, Quiet, Seed, emit, remark
from .parsing import (
    LinkDelays,
    MemoryLimit,
    RequireOptimal,
    Solver,
    SolverOption,
    TimeLimit,
    parse_effort,
    parse_link_delays,
    parse_memory_limit,
)
from .plan_batch import batch
from .plan_joint import joint
from .plan_mitigate import mitigate
from .plan_oobleck import oobleck
from .plan_reconfigure import reconfigure
from .plan_slipstream import slipstream
from .plan_templates import templates
from .plan_topology import topology
from .planning import Microbatches, Pipelines, ProfileFile, Stages, own_proof, require_proof, summary

app = typer.Typer(no_args_is_help=True, help="Make a plan from a profile.")


@app.callback()
def plan() -> None:
    """Make a plan from a profile."""


class Schedule(StrEnum):
    """The classic schedules."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    ZERO_BUBBLE = "zero-bubble"


@app.command("pipeline")
def pipeline(
    profile: ProfileFile,
    pp: Stages,
    microbatches: Microbatches,
    schedule: Annotated[Schedule, typer.Option("--schedule", help="The order of operations.")] = Schedule.ONE_F_ONE_B,
    dp: Pipelines = 1,
    memory_limit: MemoryLimit = None,
    link_delay: LinkDelays = None,
    cluster: ClusterOption = None,
    overlay: OverlayOption = None,
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan a classic schedule: GPipe, 1F1B, or zero-bubble with the backward split in I and W."""
    from ..planners.pipeline.plan import plan_pipeline
    from ..planners.shape import Shape
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    site, read = read_site(cluster, overlay), read_document(profile, Profile)
    delays = {**site.delays_alone(pp, dp).link_delay_s, **parse_link_delays(link_delay)}
    shape = Shape(pp, dp, microbatches, parse_memory_limit(memory_limit), delays)
    made = site.signed(plan_pipeline(site.adapted(read), shape, schedule.value), read)
    emit(made, output, as_json)
    remark(summary(made))


class AdaptraTechnique(StrEnum):
    """Whose warm-ups: Adaptra's before it knows the delays, Adaptra's for them, or the best that is found."""

    INITIAL = "initial"
    ADAPTED = "adapted"
    BEST = "best"


@app.command("adaptra")
def adaptra(
    profile: ProfileFile,
    pp: Stages,
    microbatches: Microbatches,
    technique: Annotated[
        AdaptraTechnique,
        typer.Option("--technique", help="Orders made before the delays, adapted to them, or the best found for them."),
    ] = AdaptraTechnique.BEST,
    dp: Pipelines = 1,
    memory_limit: MemoryLimit = None,
    link_delay: LinkDelays = None,
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
    """Plan warm-ups that absorb slow links.

    The plan's options say which delay each link tolerates before its bubbles cascade; standard error names the links
    that are beyond that.
    """
    from ..planners.adaptra.plan import cascading_links, plan_adaptra
    from ..planners.scheduling.own_proof import with_own_proof
    from ..planners.shape import Shape
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    if technique != AdaptraTechnique.BEST and solver in (Solver.MILP, Solver.CP_SAT):
        raise InvalidInputError(f"--technique {technique.value} takes no solver", where="--solver", fix="take best")
    effort = parse_effort(solver, time_limit, seed, require_optimal)
    site, read = read_site(cluster, overlay), read_document(profile, Profile)
    delays = {**site.delays_alone(pp, dp).link_delay_s, **parse_link_delays(link_delay)}
    shape = Shape(pp, dp, microbatches, parse_memory_limit(memory_limit), delays)
    planned = with_own_proof(lambda: plan_adaptra(site.adapted(read), shape, technique.value, effort), effort)
    made = site.signed(planned, read)
    emit(made, output, as_json)
    remark(summary(made))
    for line in own_proof(made):
        remark(line)
    cascading = cascading_links(made)
    if cascading:
        remark(f"delays beyond what the warm-ups absorb: {listed(cascading, between='; ')}")
    if require_optimal:
        require_proof(made)


app.command("slipstream")(slipstream)
app.command("joint")(joint)
app.command("batch")(batch)
app.command("templates")(templates)
app.command("oobleck")(oobleck)
app.command("reconfigure")(reconfigure)
app.command("topology")(topology)
app.command("mitigate")(mitigate)
