"""`--tensor-parallel`: on how many GPUs each stage is; and `auto`: degrees compared by what their plans are worth.

A profile has costs for each degree that was measured or computed. A higher one makes every stage shorter and lighter
and takes more GPUs. With a cluster these are there anyway, so the shortest iteration wins; without one the degree that
makes most of each GPU does: the least GPU-seconds an iteration. As with placements, what each was worth stands in the
plan.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ..schemas.degrees import AUTO, AskedDegrees, Degrees, parse_degrees
from ..schemas.documents import typed
from ..schemas.errors import InfeasibleError, NoRoomError, remark
from ..schemas.fields import STRICT, Bytes, Count, Ratio, Seconds
from ..schemas.plan import Plan, Proof
from ..schemas.profile import Profile
from ..schemas.sharded import OptimizerShare
from ..schemas.text import counted, joined
from .choosing import best_compared, worth_of, worth_words
from .shape import Shape, template_of

if TYPE_CHECKING:
    from ..schemas.cluster import Cluster

OPTION = "degrees"  # of the planner: what `auto` has compared


@dataclass(frozen=True)
class DegreeChoice:
    """Degrees to plan at, one or several to compare.

    Attributes:
        profile: the model's costs.
        shape: all else that is asked for, but for delays that depend on who sits where; its own degree does not count.
        tried: the degrees, ascending.
        cluster: the machines; None: as many GPUs as it takes.
        is_auto: whether they are compared.
    """

    profile: Profile
    shape: Shape
    tried: tuple[Degrees, ...]
    cluster: "Cluster | None"
    is_auto: bool = False

    @property
    def fitting(self) -> list[int]:
        """The degrees of the profile, one for all stages, that the machines have room for: in GPUs and in memory."""
        return [one for one in degrees_within(self.profile, self.shape, self.cluster) if self.has_memory(one)]

    def has_memory(self, degrees: Degrees) -> bool:
        """Whether a GPU holds its share of a stage, and of one micro-batch, at these degrees."""
        try:
            template = template_of(self.profile, replace(self.shape, tensor_parallel=degrees))
        except InfeasibleError:
            return False
        needs = (sum(template.stages[stage].activation_bytes for stage in held) for held in template.columns)
        limits = map(template.limit_bytes, range(len(template.columns)))
        return all(limit is None or need <= limit for need, limit in zip(needs, limits, strict=True))


def choose_degrees(
    profile: Profile, shape: Shape, asked: AskedDegrees, cluster: "Cluster | None" = None
) -> DegreeChoice:
    """What `--tensor-parallel` asks for; where it says nothing, the profile's least degree, and that it has others.

    Args:
        profile, shape, cluster: as for `DegreeChoice`.
        asked: one degree, one a stage, "auto" or None; or as the option has it.

    Raises:
        InvalidInputError: that is no degree, or none for so many stages.
        InfeasibleError: under `auto`, the cluster has too few GPUs for any of the profile's degrees.
    """
    wanted = parse_degrees(asked)
    if wanted is None:
        return DegreeChoice(profile, shape, (usual_degree(profile),), cluster)
    if wanted != AUTO:
        return DegreeChoice(profile, replace(shape, tensor_parallel=wanted), (wanted,), cluster)
    within = degrees_within(profile, shape, cluster)
    if not within:
        raise no_degree(profile, shape, cluster)
    return DegreeChoice(profile, shape, within, cluster, is_auto=True)


def usual_degree(profile: Profile, *, silent: bool = False) -> int:
    """The degree of plans that ask for none: the least that all layers have; says so where the profile has others.

    Args:
        profile: the model's costs.
        silent: say nothing.
    """
    known = profile.degrees
    degree = known[0] if known else 1
    if len(known) > 1 and not silent:
        has = joined(map(str, known))
        remark(f"tensor parallelism {degree}, the least that the profile has ({has}): --tensor-parallel takes another")
    return degree


def degrees_within(profile: Profile, shape: Shape, cluster: "Cluster | None") -> tuple[int, ...]:
    """The profile's degrees that fill the nodes of a cluster and leave room for all workers; without one, all."""
    if cluster is None:
        return profile.degrees
    gpus, most = cluster.gpus_per_node, cluster.size // (shape.pp * shape.dp)
    return tuple(one for one in profile.degrees if gpus % one == 0 and one <= most)


def no_degree(profile: Profile, shape: Shape, cluster: "Cluster | None") -> InfeasibleError:
    """Why no degree of a profile is for a shape on these machines."""
    if cluster is None or not profile.degrees:
        return InfeasibleError(
            "no tensor-parallel degree has costs of all layers", where="the profile, /layers", fix="profile one: --tp"
        )
    has = joined(map(str, profile.degrees))
    return InfeasibleError(
        f"{counted(shape.pp * shape.dp, 'worker')} on {counted(cluster.size, 'GPU')}, {cluster.gpus_per_node} a node: "
        f"none of the profile's tensor-parallel degrees fits ({has})",
        where="--tensor-parallel auto",
        fix="take fewer stages or pipelines, or profile a degree that divides the GPUs of a node",
    )


def plan_at_degrees(choice: DegreeChoice, make: Callable[[Degrees], Plan]) -> Plan:
    """A plan at the degree that is asked for, or at the best of several.

    Args:
        choice: the degrees.
        make: plans at one of them.

    Returns:
        The plan. Under `auto` that of the least worth (`compared_by`), of equal ones that of the fewest GPUs;
        `planner.options["degrees"]` says what each was worth: the `tensor_parallel` degree, its `gpus`, and as for
        placements its times, proof and memory, or its `refusal`.

    Raises:
        InfeasibleError: no degree can be planned; says why the first cannot, and where memory is the reason, which
            degrees would fit.
        InvalidInputError: as `make` does.
    """
    if not choice.is_auto:
        with naming_what_fits(choice):
            return make(choice.tried[0])
    return best_compared(
        OPTION,
        choice.tried,
        make,
        lambda plan: _worth(plan, choice.cluster),
        lambda degree, plan, _: {
            "tensor_parallel": degree,
            "gpus": replace(choice.shape, tensor_parallel=degree).gpus,
            **worth_of(plan),
        },
    )


def _worth(plan: Plan, cluster: "Cluster | None") -> float:
    """What degrees are compared by: with a cluster the iteration, in s; without one its GPU-seconds."""
    gpus = 1 if cluster is not None else sum(map(plan.gpus_of, plan.workers))
    return plan.predicted.iteration_time_s * gpus


@contextmanager
def naming_what_fits(choice: DegreeChoice) -> Iterator[None]:
    """Where memory does not suffice at a degree, the error names the others of the profile that would fit."""
    try:
        yield
    except NoRoomError as error:
        fix = f"{error.fix}{_others(choice)}{_sharing(choice)}"
        raise NoRoomError(error.what, where=error.where, fix=fix) from None


def _others(choice: DegreeChoice) -> str:
    fits = [one for one in choice.fitting if one not in choice.tried]
    if fits:
        return f"; or take --tensor-parallel {joined(map(str, fits), last='or')}, where it fits"
    return "; none of the profile's other tensor-parallel degrees fits" if len(choice.profile.degrees) > 1 else ""


def _sharing(choice: DegreeChoice) -> str:
    """Whether it would fit if peers shared the optimizer's state."""
    if choice.shape.share or choice.shape.dp == 1:
        return ""
    sharing = replace(choice, shape=replace(choice.shape, share=OptimizerShare(choice.shape.dp)))
    if not any(sharing.has_memory(degrees) for degrees in choice.tried):
        return ""
    return "; or share the optimizer's state among the pipelines (--shard-optimizer), where it fits"


@dataclass(frozen=True, slots=True)
class ComparedDegree:
    """What `auto` has found of a degree, as it stands in the plan: its worth, or its refusal."""

    tensor_parallel: Count
    gpus: Count
    refusal: str | None = None
    iteration_time_s: Seconds = 0.0
    lower_bound_s: Seconds = 0.0
    proof: Proof = "none"
    bubble_ratio: Ratio = 0.0
    peak_memory_bytes: Bytes = 0.0
    chosen: bool = False

    __pydantic_config__: ClassVar[Any] = STRICT


def compared_degrees(plan: Plan) -> tuple[ComparedDegree, ...]:
    """What `auto` has found of each degree; empty where none were compared.

    Raises:
        InvalidInputError: what the plan says of them is nothing that `auto` writes.
    """
    told = plan.planner.options.get(OPTION, [])
    rows: tuple[ComparedDegree, ...] = typed(told, tuple[ComparedDegree, ...], f"/planner/options/{OPTION}")
    return rows


def degree_comparison(plan: Plan) -> Iterator[str]:
    """The same in words, a line each."""
    for row in compared_degrees(plan):
        yield f"tensor parallelism {row.tensor_parallel} ({counted(row.gpus, 'GPU')}): {worth_words(row)}"
