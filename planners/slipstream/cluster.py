"""What all plans for one job have in common: the opening of its atlas, and a plan's parts made from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ... import __version__
from ...schemas.atlas import Atlas
from ...schemas.documents import digest, to_tree
from ...schemas.plan import Optimizer, Pipeline, Place, Plan, Planner, Worker, name_of
from ...schemas.profile import Connection, Profile, held_bytes
from ..scheduling.problem import Problem, home_problem
from ..scheduling.solve import Effort
from ..shape import Shape, pipelines_of, shape_options, template_of
from .failures import Grid
from .placement import Cost

Technique = Literal["adaptive", "decoupled", "staggered"]


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        shape: stages, pipelines, micro-batches, limits and delays.
        technique: `adaptive` re-routes with full backwards; `decoupled` also splits them where that helps;
            `staggered` also lets each stage step its optimizer on its own, so that the period counts.
        unit: pipelines x stages of a block of workers that die together.
        effort: how hard to try.
        cost: what normalization reckons with.
        slowdown: factors of slow workers, by their places.
    """

    shape: Shape
    technique: Technique = "staggered"
    unit: tuple[int, int] = (1, 1)
    effort: Effort = field(default_factory=Effort)
    cost: Cost = "heuristic"
    slowdown: Mapping[Place, float] = field(default_factory=dict)


def opening(profile: Profile, request: Request) -> Atlas:
    """An atlas without plans: all that they have in common, whatever fails.

    Raises:
        InvalidInputError: a link, limit or worker that the shape does not have, or units that do not divide it.
        InfeasibleError: the profile cannot be cut into that many stages, or a device cannot hold one.
    """
    shape, effort = request.shape, request.effort
    grid = Grid(shape.dp, shape.pp, *request.unit)
    grid.require_places([(k, i) for k, i in request.slowdown], "--slow")
    template = template_of(profile, shape)
    options: dict[str, Any] = {
        "technique": request.technique,
        "solver": effort.solver,
        "time_limit_s": effort.time_limit_s,
        "cost": request.cost,
        "failure_unit": list(request.unit),
        "slow": {name_of(place): factor for place, factor in sorted(request.slowdown.items())},
        "network": to_tree(profile.network.between_workers),
        **shape_options(profile, shape),
    }
    return Atlas(
        planner=Planner("slipstream", __version__, options, effort.seed),
        inputs={"profile": digest(profile)},
        template=template,
        dp=shape.dp,
        microbatches=shape.microbatches,
        optimizer=optimizer_of(request.technique),
        split=request.technique != "adaptive",
        failure_unit=request.unit,
        state_bytes=tuple(sum(held_bytes(profile.layers, *stage.layers)) for stage in template.stages),
        plans=(),
    )


def optimizer_of(technique: Technique) -> Optimizer:
    """The optimizer of a technique's plans."""
    return "staggered" if technique == "staggered" else "synchronous"


def alike(common: Atlas) -> bool:
    """Whether the workers of each stage and their links are equal."""
    slow = any(factor != 1 for factor in common.planner.options["slow"].values())
    return not slow and all(pipeline.links is None for pipeline in _pipelines(common))


def grid_of(common: Atlas) -> Grid:
    """The workers, and what dies as one."""
    return Grid(common.dp, len(common.template.stages), *common.failure_unit)


def connection_of(common: Atlas) -> Connection:
    """What state is copied over; where nothing is known of it, a path without a bandwidth."""
    return Connection(**(common.planner.options["network"] or {}))


def effort_of(common: Atlas) -> Effort:
    """How hard to try."""
    options = common.planner.options
    return Effort(options["solver"], options["time_limit_s"], common.planner.seed)


def single_pipeline(common: Atlas) -> Problem:
    """One pipeline alone, all its workers alive."""
    workers = tuple(Worker(0, i, "") for i in range(len(common.template.stages)))
    pipelines = (Pipeline(common.template.name, common.microbatches),)
    return home_problem(replace(_plan(common), pipelines=pipelines, workers=workers), split=common.split)


def plan_with_failures(common: Atlas, failed: Collection[Place]) -> Plan:
    """All pipelines, with some workers failed; the orders of the others still empty."""
    slow = common.planner.options["slow"]
    stages = range(len(common.template.stages))
    workers = tuple(
        Worker(k, i, failed=True) if (k, i) in failed else Worker(k, i, "", slow.get(name_of((k, i))))
        for k in range(common.dp)
        for i in stages
    )
    return replace(_plan(common), workers=workers)


def _plan(common: Atlas) -> Plan:
    return Plan(
        planner=common.planner,
        inputs=common.inputs,
        templates=(common.template,),
        pipelines=_pipelines(common),
        optimizer=common.optimizer,
        workers=(),
    )


def _pipelines(common: Atlas) -> tuple[Pipeline, ...]:
    """The pipelines, with links of their own where their delays were given."""
    places = ((place.rpartition("/"), delay_s) for place, delay_s in common.planner.options["link_delay_s"].items())
    delays_s = {(int(k) if k else None, int(i)): delay_s for (k, _, i), delay_s in places}
    shape = Shape(len(common.template.stages), common.dp, common.microbatches, link_delay_s=delays_s)
    return tuple(pipelines_of(common.template, shape))
