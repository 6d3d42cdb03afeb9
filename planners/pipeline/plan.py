"""`rtk plan pipeline`: the classic schedules, for any shape, costs, delays and limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ... import __version__
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
    delays = dict(shape.link_delay_s or {})
    _check_links(delays, shape)
    common = {link: delay for (k, link), delay in delays.items() if k is None}
    template = with_limits_and_delays(cut_stages(profile, shape.pp, shape.dp), shape.memory_limit_bytes, common)
    orders: dict[tuple[Link, ...], list[list[Token]]] = {}
    pipelines, workers = [], []
    for k in range(shape.dp):
        links = tuple(Link(delays.get((k, i), link.delay_s)) for i, link in enumerate(template.links))
        if links not in orders:
            orders[links] = _orders(template, links, shape.microbatches, schedule)
        pipelines.append(Pipeline(template.name, shape.microbatches, links if links != template.links else None))
        workers += _workers(orders[links], k)
    return with_prediction(
        Plan(
            planner=Planner("pipeline", __version__, _options(profile, schedule, shape)),
            inputs={"profile": digest(profile)},
            templates=(template,),
            pipelines=tuple(pipelines),
            optimizer="synchronous",
            workers=tuple(workers),
        )
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


def _workers(orders: list[list[Token]], pipeline: int) -> list[Worker]:
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


def _options(profile: Profile, schedule: Schedule, shape: Shape) -> dict[str, object]:
    """What the planner was told, and the sizes of the profile that a run must repeat."""
    return {
        "schedule": schedule,
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
