"""What all plans for one job have in common: the opening of its atlas, and a plan's parts made from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal, cast, get_args

from ... import __version__
from ...schemas.atlas import Atlas
from ...schemas.documents import digest, to_tree
from ...schemas.errors import InvalidInputError
from ...schemas.placement import links_crossed
from ...schemas.plan import Layers, Optimizer, Pipeline, Place, Plan, Planner, Template, Worker, name_of
from ...schemas.profile import Connection, Profile, held_by
from ...schemas.sharded import OptimizerShare, TrainedBytes
from ..scheduling.problem import Problem, home_problem
from ..scheduling.solve import Effort
from ..shape import Shape, pipelines_of, shape_options, template_of
from .normalization import Cost, Grid

Technique = Literal["adaptive", "decoupled", "staggered"]


@dataclass(frozen=True)
class AtlasRequest:
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


def opening(profile: Profile, request: AtlasRequest) -> Atlas:
    """An atlas without plans: all that they have in common, whatever fails.

    Raises:
        InvalidInputError: a link, limit or worker that the shape does not have, or units that do not divide it.
        InfeasibleError: the profile cannot be cut into that many stages, or a device cannot hold one.
    """
    shape, effort = request.shape, request.effort
    grid = Grid(shape.dp, shape.pp, *request.unit, noun=shape.noun)
    grid.require_places([(k, i) for k, i in request.slowdown], "--slow")
    template = template_of(profile, shape)
    if template.placement is not None and request.cost != "heuristic":
        raise InvalidInputError(
            f"--cost {request.cost} is for one stage a worker",
            where="--cost",
            fix="leave it out: beside a placement all places that the heuristic names are planned",
        )
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
        state_bytes=tuple(
            _copied_bytes(profile, [template.stages[v].layers for v in held], shape.share) for held in template.columns
        ),
        plans=(),
    )


def _copied_bytes(profile: Profile, held: Sequence[Layers], share: OptimizerShare | None) -> float:
    """What a worker copies to take a column over: parameters, gradients and what it is to have of the optimizer."""
    if share is None:
        return sum(held_by(profile.layers, held))
    own = OptimizerShare(share.peers)  # what is kept aside for undoing a step is nobody else's
    return own.held_bytes(TrainedBytes.of(profile.layers, held))


def optimizer_of(technique: Technique) -> Optimizer:
    """The optimizer of a technique's plans."""
    return "staggered" if technique == "staggered" else "synchronous"


def alike(common: Atlas) -> bool:
    """Whether the workers of each stage and their links are equal."""
    slow = any(factor != 1 for factor in common.planner.options["slow"].values())
    return not slow and all(pipeline.links is None for pipeline in _pipelines(common))


def grid_of(common: Atlas) -> Grid:
    """The workers, and what dies as one."""
    template = common.template
    return Grid(common.dp, len(template.columns), *common.failure_unit, template.noun)


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
    columns = range(len(common.template.columns))
    workers = tuple(
        Worker(k, i, failed=True) if (k, i) in failed else Worker(k, i, "", slow.get(name_of((k, i))))
        for k in range(common.dp)
        for i in columns
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
    shape = Shape(len(common.template.columns), common.dp, common.microbatches, link_delay_s=delays_s)
    return tuple(pipelines_of(common.template, shape))


# What re-planning needs to know of a running plan, whoever made it: the opening of an atlas, read off the plan.


# What a run must repeat, whoever planned it.
KEPT_OPTIONS = ("memory_limit_bytes", "model", "microbatch_size", "sequence_length")


def opening_of(plan: Plan) -> Atlas:
    """An atlas without plans, to plan for other failures of a running plan's workers (`Replanner`).

    Slow workers and links of single pipelines are the plan's. Backwards may be split if the plan splits any, or was
    made by a technique that may. Nothing is searched for: workers wait for the answer, which shall be the same each
    time. `state_bytes` are zeros unless the plan's options say them: then nobody knows what moving a worker costs.

    Args:
        plan: valid, of pipelines that are alike but for slow workers and links; some of its workers may have failed.

    Raises:
        InvalidInputError: the pipelines have different templates or numbers of micro-batches.
    """
    template, microbatches = _shared(plan)
    options, optimizer = plan.planner.options, plan.optimizer
    split = _may_split(plan)
    technique: Technique = "staggered" if optimizer == "staggered" else "decoupled" if split else "adaptive"
    told: dict[str, Any] = {
        **{name: options.get(name) for name in KEPT_OPTIONS},
        "pp": len(template.columns),
        "dp": len(plan.pipelines),
        "microbatches": microbatches,
        "technique": technique,
        "solver": "rules",
        "time_limit_s": 0.0,
        "cost": options.get("cost") if options.get("cost") in get_args(Cost) else "heuristic",
        "failure_unit": [1, 1],
        "slow": {worker.name: worker.slowdown for worker in plan.workers if worker.slowdown is not None},
        "link_delay_s": {
            f"{k}/{i}": link.delay_s
            for k, pipeline in enumerate(plan.pipelines)
            for i, usual, link in zip(links_crossed(template), template.links, pipeline.links or (), strict=False)
            if link != usual
        },
        "network": _network(options.get("network")),
    }
    said: Any = options.get("state_bytes")
    columns = len(template.columns)
    known = isinstance(said, list) and len(said) == columns and all(map(_is_amount, said))
    return Atlas(
        planner=Planner("slipstream", __version__, told, plan.planner.seed),
        template=template,
        dp=len(plan.pipelines),
        microbatches=microbatches,
        optimizer=optimizer,
        split=split,
        failure_unit=(1, 1),
        state_bytes=cast("tuple[float, ...]", tuple(said)) if known else (0.0,) * columns,
        plans=(),
        inputs=plan.inputs,
    )


def _shared(plan: Plan) -> tuple[Template, int]:
    """The template and the number of micro-batches that all pipelines have."""
    for k, pipeline in enumerate(plan.pipelines):
        for what in ("template", "microbatches"):
            one, other = getattr(plan.pipelines[0], what), getattr(pipeline, what)
            if one != other:
                raise InvalidInputError(
                    f"pipelines 0 and {k} differ ({one} and {other}): only alike pipelines can be re-planned yet",
                    where=f"/pipelines/{k}/{what}",
                    fix="run a plan whose pipelines have one template and as many micro-batches each",
                )
    return plan.template_of(0), plan.pipelines[0].microbatches


def _may_split(plan: Plan) -> bool:
    """Whether backwards may be split; a technique that may need not have found any that gains by it.

    Older joint plans, all of which may, say there what has made them.
    """
    technique = plan.planner.options.get("technique")
    if plan.optimizer == "staggered" or technique == "decoupled":
        return True
    if plan.planner.name == "joint" and technique != "adaptive":
        return True
    return any("I" in (worker.order or "") for worker in plan.workers)


def _network(said: Any) -> dict[str, float | None] | None:
    """The connection that state is copied over, where a plan's options say one; options may hold anything."""
    if not isinstance(said, Mapping):
        return None
    latency_s, rate = said.get("latency_s", 0.0), said.get("bandwidth_bytes_per_s")
    if not _is_amount(latency_s) or not (rate is None or (_is_amount(rate) and rate)):
        return None
    return {"latency_s": latency_s, "bandwidth_bytes_per_s": rate}


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0
