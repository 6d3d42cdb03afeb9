"""`rtk plan pipeline`: the classic schedules, or given orders, for any shape, costs, delays and limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ... import __version__
from ...schemas.check import check_plan, in_brief
from ...schemas.conditions import LinkPlace
from ...schemas.documents import digest
from ...schemas.errors import InvalidInputError
from ...schemas.orders import Operation, print_order
from ...schemas.plan import Link, Pipeline, Plan, Planner, Template, Worker
from ...schemas.profile import Profile
from ..partition import cut_stages, with_limits_and_delays
from ..scheduling.assemble import with_prediction
from ..scheduling.bounds import makespan_bound_s
from ..scheduling.evaluate import evaluate
from ..scheduling.list_schedule import Token
from .gpipe import gpipe
from .one_forward_one_backward import one_forward_one_backward
from .zero_bubble import zero_bubble

Schedule = Literal["gpipe", "1f1b", "zero-bubble"]


@dataclass(frozen=True)
class Shape:
    """What to plan: pp stages, dp pipelines, micro-batches per pipeline, limits (bytes) and delays (s) to plan for."""

    pp: int
    dp: int
    microbatches: int
    memory_limit_bytes: Sequence[float] | None = None
    link_delay_s: Mapping[LinkPlace, float] | None = None


def plan_pipeline(profile: Profile, schedule: Schedule, shape: Shape) -> Plan:
    """Plan fault-free pipelines of one shape.

    Args:
        profile: the model's costs.
        schedule: GPipe, 1F1B or zero-bubble.
        shape: stages, pipelines, micro-batches, limits and delays.

    Returns:
        A checked plan with its prediction.

    Raises:
        InfeasibleError: a memory limit admits no schedule of this kind.
        InvalidInputError: a link or limit that the shape does not have.
    """
    template = _template(profile, shape)
    pipelines = _pipelines(template, shape)
    links = [template.links if pipeline.links is None else pipeline.links for pipeline in pipelines]
    orders = {one: _orders(template, one, shape.microbatches, schedule) for one in dict.fromkeys(links)}
    planner = Planner("pipeline", __version__, {"schedule": schedule, **_options(profile, shape)})
    return with_prediction(_plan(profile, planner, template, pipelines, [orders[one] for one in links]))


def plan_from_orders(
    profile: Profile, orders: Sequence[Sequence[Token]], shape: Shape, planner: str, source: str
) -> Plan:
    """Make a plan of orders that come from elsewhere, the same in every pipeline.

    Args:
        profile: the model's costs.
        orders: the order of each stage.
        shape: stages (as many as orders), pipelines, micro-batches, limits and delays.
        planner: who made the orders, for the plan to name.
        source: where they came from, for errors.

    Returns:
        A checked plan with its prediction.

    Raises:
        InvalidInputError: the orders are incomplete, deadlock, or hold more than a memory limit.
        InfeasibleError: the profile cannot be cut into that many stages.
    """
    template = _template(profile, shape)
    made_by = Planner(planner, __version__, _options(profile, shape))
    plan = _plan(profile, made_by, template, _pipelines(template, shape), [orders] * shape.dp)
    problems = check_plan(plan)
    if problems:
        fix = "correct the orders; worker k/i runs that of stage i, and operations are counted from 0"
        raise InvalidInputError(in_brief(problems), where=source, fix=fix)
    return with_prediction(plan)


def _template(profile: Profile, shape: Shape) -> Template:
    delays = dict(shape.link_delay_s or {})
    _check_links(delays, shape)
    common = {link: delay for (k, link), delay in delays.items() if k is None}
    return with_limits_and_delays(cut_stages(profile, shape.pp, shape.dp), shape.memory_limit_bytes, common)


def _pipelines(template: Template, shape: Shape) -> list[Pipeline]:
    delays = dict(shape.link_delay_s or {})
    own = [tuple(Link(delays.get((k, i), x.delay_s)) for i, x in enumerate(template.links)) for k in range(shape.dp)]
    return [Pipeline(template.name, shape.microbatches, x if x != template.links else None) for x in own]


def _plan(
    profile: Profile,
    planner: Planner,
    template: Template,
    pipelines: Sequence[Pipeline],
    orders: Sequence[Sequence[Sequence[Token]]],
) -> Plan:
    """A plan without a prediction; `orders[k][i]` is that of stage i in pipeline k."""
    return Plan(
        planner=planner,
        inputs={"profile": digest(profile)},
        templates=(template,),
        pipelines=tuple(pipelines),
        optimizer="synchronous",
        workers=tuple(worker for k, found in enumerate(orders) for worker in _workers(found, k)),
    )


def _orders(template: Template, links: tuple[Link, ...], microbatches: int, schedule: Schedule) -> list[list[Token]]:
    if schedule == "gpipe":
        return gpipe(template.stages, links, microbatches)
    if schedule == "1f1b":
        return one_forward_one_backward(template.stages, links, microbatches)

    def makespan_s(orders: list[list[Token]]) -> float:
        return evaluate(_single(template, links, microbatches, orders)).makespan_s

    any_order: list[list[Token]] = [
        [(kind, j) for kind in ("F", "I", "W") for j in range(microbatches)] for _ in template.stages
    ]
    bound_s = makespan_bound_s(_single(template, links, microbatches, any_order))
    return zero_bubble(template.stages, links, microbatches, makespan_s, bound_s)


def _single(template: Template, links: tuple[Link, ...], microbatches: int, orders: list[list[Token]]) -> Plan:
    """One pipeline as a plan, to evaluate and bound it."""
    return Plan(
        planner=Planner("pipeline", __version__, {}),
        templates=(template,),
        pipelines=(Pipeline(template.name, microbatches, links),),
        optimizer="synchronous",
        workers=tuple(_workers(orders, 0)),
    )


def _workers(orders: Sequence[Sequence[Token]], pipeline: int) -> list[Worker]:
    return [
        Worker(pipeline, stage, print_order((Operation(kind, pipeline, j) for kind, j in order), pipeline))
        for stage, order in enumerate(orders)
    ]


def _check_links(delays: Mapping[LinkPlace, float], shape: Shape) -> None:
    for pipeline, link in delays:
        if not 0 <= link < shape.pp - 1 or (pipeline is not None and not 0 <= pipeline < shape.dp):
            place = f"{link}" if pipeline is None else f"{pipeline}/{link}"
            raise InvalidInputError(
                f"there is no link {place}",
                where="--link-delay",
                fix=f"{shape.pp} stages have the links 0 to {shape.pp - 2}, in pipelines 0 to {shape.dp - 1}",
            )


def _options(profile: Profile, shape: Shape) -> dict[str, object]:
    """What the planner was told, and the sizes of the profile that a run must repeat."""
    return {
        "pp": shape.pp,
        "dp": shape.dp,
        "microbatches": shape.microbatches,
        "memory_limit_bytes": None if shape.memory_limit_bytes is None else list(shape.memory_limit_bytes),
        "link_delay_s": {
            f"{link}" if k is None else f"{k}/{link}": delay for (k, link), delay in (shape.link_delay_s or {}).items()
        },
        "model": profile.model.get("name"),
        "microbatch_size": profile.microbatch_size,
        "sequence_length": profile.sequence_length,
    }
