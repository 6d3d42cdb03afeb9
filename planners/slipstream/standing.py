"""What re-planning needs to know of a running plan, whoever made it: the opening of an atlas, read off the plan."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, cast, get_args

from ... import __version__
from ...schemas.atlas import Atlas
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Plan, Planner, Template
from .cluster import Technique
from .placement import Cost

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
        "pp": len(template.stages),
        "dp": len(plan.pipelines),
        "microbatches": microbatches,
        "technique": technique,
        "solver": "rules",
        "time_limit_s": 0.0,
        "cost": options.get("cost") if options.get("cost") in get_args(Cost) else "heuristic",
        "failure_unit": [1, 1],
        "slow": {worker.name: worker.slowdown for worker in plan.workers if worker.slowdown is not None},
        "link_delay_s": _own_delays_s(plan, template),
        "network": _network(options.get("network")),
    }
    return Atlas(
        planner=Planner("slipstream", __version__, told, plan.planner.seed),
        template=template,
        dp=len(plan.pipelines),
        microbatches=microbatches,
        optimizer=optimizer,
        split=split,
        failure_unit=(1, 1),
        state_bytes=_state_bytes(options.get("state_bytes"), len(template.stages)),
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


def _own_delays_s(plan: Plan, template: Template) -> dict[str, float]:
    """The delays of links that single pipelines have on their own, in the words of `--link-delay`."""
    return {
        f"{k}/{i}": link.delay_s
        for k, pipeline in enumerate(plan.pipelines)
        for i, link in enumerate(pipeline.links or ())
        if link != template.links[i]
    }


def _network(said: Any) -> dict[str, float | None] | None:
    """The connection that state is copied over, where a plan's options say one; options may hold anything."""
    if not isinstance(said, Mapping):
        return None
    latency_s, rate = said.get("latency_s", 0.0), said.get("bandwidth_bytes_per_s")
    if not _is_amount(latency_s) or not (rate is None or (_is_amount(rate) and rate)):
        return None
    return {"latency_s": latency_s, "bandwidth_bytes_per_s": rate}


def _state_bytes(said: Any, stages: int) -> tuple[float, ...]:
    """Bytes of parameters and optimizer state of each stage, zeros where a plan's options do not say them."""
    if isinstance(said, list) and len(said) == stages and all(map(_is_amount, said)):
        return cast("tuple[float, ...]", tuple(said))
    return (0.0,) * stages


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0
