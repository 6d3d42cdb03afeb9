"""What shape a plan is asked for: stages, pipelines, micro-batches, limits and delays; a plan of it without orders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..schemas.conditions import LinkPlace
from ..schemas.documents import digest
from ..schemas.errors import InvalidInputError
from ..schemas.fields import MOST_CELLS, MOST_MICROBATCHES, MOST_WORKERS
from ..schemas.plan import Link, Pipeline, Plan, Planner, Template, Worker
from ..schemas.profile import Profile
from .partition import cut_stages, with_limits_and_delays

# What a profile's `model` may say of the form in which the model is trained.
FORM = ("cut", "dtype", "checkpointing")


@dataclass(frozen=True)
class Shape:
    """What to plan: pp stages, dp pipelines, micro-batches per pipeline, limits (bytes) and delays (s) to plan for.

    A worker is `tensor_parallel` GPUs.

    Raises:
        InvalidInputError: it is larger than any job.
    """

    pp: int
    dp: int
    microbatches: int
    memory_limit_bytes: Sequence[float] | None = None
    link_delay_s: Mapping[LinkPlace, float] | None = None
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        for what, size, most in (
            ("workers", self.pp * self.dp, MOST_WORKERS),
            ("micro-batches", self.dp * self.microbatches, MOST_MICROBATCHES),
            ("micro-batches times stages", self.pp * self.dp * self.microbatches, MOST_CELLS),
        ):
            if size > most:
                raise InvalidInputError(
                    f"{size:,} {what} are more than {most:,}",
                    where="pp, dp and microbatches",
                    fix="give fewer stages, pipelines or micro-batches",
                )


def template_of(profile: Profile, shape: Shape) -> Template:
    """The stages that a shape cuts from a profile, with its limits and the delays it gives to links of all pipelines.

    Raises:
        InvalidInputError: a link or limit that the shape does not have.
        InfeasibleError: the profile cannot be cut into that many stages, or a device cannot hold one.
    """
    delays = dict(shape.link_delay_s or {})
    _check_links(delays, shape)
    common = {link: delay for (k, link), delay in delays.items() if k is None}
    template = cut_stages(profile, shape.pp, shape.dp, shape.tensor_parallel)
    return with_limits_and_delays(template, shape.memory_limit_bytes, common)


def pipelines_of(template: Template, shape: Shape) -> list[Pipeline]:
    """The pipelines of a shape, with links of their own where the shape gives such delays."""
    delays = dict(shape.link_delay_s or {})
    own = [tuple(Link(delays.get((k, i), x.delay_s)) for i, x in enumerate(template.links)) for k in range(shape.dp)]
    return [Pipeline(template.name, shape.microbatches, x if x != template.links else None) for x in own]


def plan_without_orders(profile: Profile, shape: Shape, planner: Planner) -> Plan:
    """The synchronous plan of a shape, all workers alive, their orders still empty.

    Raises:
        InvalidInputError: a link or limit that the shape does not have.
        InfeasibleError: the profile cannot be cut into that many stages, or a device cannot hold one.
    """
    template = template_of(profile, shape)
    return Plan(
        planner=planner,
        inputs={"profile": digest(profile)},
        templates=(template,),
        pipelines=tuple(pipelines_of(template, shape)),
        optimizer="synchronous",
        workers=tuple(Worker(k, i, "") for k in range(shape.dp) for i in range(shape.pp)),
    )


def shape_options(profile: Profile, shape: Shape) -> dict[str, object]:
    """What the planner was told, and what of the profile a run must repeat; that it was computed, where it was."""
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
        **{name: profile.model[name] for name in FORM if name in profile.model},
        **({"origin": profile.origin} if profile.origin == "analytic" else {}),
    }


def _check_links(delays: Mapping[LinkPlace, float], shape: Shape) -> None:
    for pipeline, link in delays:
        if not 0 <= link < shape.pp - 1 or (pipeline is not None and not 0 <= pipeline < shape.dp):
            place = f"{link}" if pipeline is None else f"{pipeline}/{link}"
            raise InvalidInputError(
                f"there is no link {place}",
                where="--link-delay",
                fix=f"{shape.pp} stages have the links 0 to {shape.pp - 2}, in pipelines 0 to {shape.dp - 1}",
            )
