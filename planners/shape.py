"""What shape a plan is asked for: stages, pipelines, micro-batches, limits and delays; a plan of it without orders."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import ClassVar, Literal

import numpy as np

from ..schemas.conditions import LinkPlace
from ..schemas.degrees import OPTION as DEGREES
from ..schemas.degrees import Degrees, by_column, print_degrees
from ..schemas.documents import digest
from ..schemas.errors import InfeasibleError, InvalidInputError, NoRoomError
from ..schemas.fields import MOST_CELLS, MOST_MICROBATCHES, MOST_OF_A_PIPELINE, MOST_OPERATIONS, MOST_WORKERS
from ..schemas.network import PipelineSeats, Rings
from ..schemas.placement import links_crossed, loop_placement, v_placement
from ..schemas.plan import Layers, Link, Pipeline, Placement, Plan, Planner, Stage, Template, Worker
from ..schemas.profile import Layer, LayerCost, Profile, activations_held, held_by, joined_cost, summed_bytes
from ..schemas.quantities import print_bytes
from ..schemas.sharded import OptimizerShare, TrainedBytes
from ..schemas.text import joined
from .even_cut import Floats, even_cut_of_columns

PlacementName = Literal["plain", "loop", "v"]

SPELLED = {"pp": "stages", "dp": "pipelines", "microbatches": "micro-batches"}

# What a profile's `model` may say of the form in which the model is trained.
FORM = ("cut", "dtype", "checkpointing")


@dataclass(frozen=True)
class SizeLimit:
    """The most that a product of a shape's numbers may be.

    Attributes:
        what: it counts.
        most: of that.
        names: of the numbers.
        each: how many of that for each.
        by_chunk: whether it counts virtual stages, of which a worker may have several.
    """

    what: str
    most: int
    names: tuple[str, ...]
    each: int = 1
    by_chunk: bool = False

    def of_chunks(self, chunks: int) -> "SizeLimit":
        """The same where a worker holds so many virtual stages."""
        return replace(self, each=self.each * chunks) if self.by_chunk else self


LARGEST_JOB = (
    SizeLimit("workers", MOST_WORKERS, ("pp", "dp")),
    SizeLimit("micro-batches", MOST_MICROBATCHES, ("dp", "microbatches")),
    SizeLimit("micro-batches times stages", MOST_CELLS, ("pp", "dp", "microbatches"), by_chunk=True),
)
PLANNED = (
    SizeLimit("micro-batches of a pipeline", MOST_OF_A_PIPELINE, ("microbatches",)),
    SizeLimit(
        "operations (F, I and W of each micro-batch)", MOST_OPERATIONS, ("pp", "dp", "microbatches"), 3, by_chunk=True
    ),
)


@dataclass(frozen=True)
class Shape:
    """What to plan: pp stages, dp pipelines, micro-batches per pipeline, limits (bytes) and delays (s) to plan for.

    A worker is `tensor_parallel` GPUs, where that is a number; else it has one entry a stage. With several `chunks` it
    holds so many virtual stages, by the placement: `pp` is the number of columns then, limits are those of columns, and
    link i lies between columns i and i + 1, whichever virtual stages send over it. A loop has one link more, from the
    last column back to the first: number `pp - 1`. With `overlap` workers may run a forward and a full backward side by
    side, as fast as the profile says. With a `share` peers share the optimizer's state.

    Raises:
        InvalidInputError: it is larger than any job, has degrees for another number of stages, or nobody to share with.
    """

    pp: int
    dp: int
    microbatches: int
    memory_limit_bytes: Sequence[float] | None = None
    link_delay_s: Mapping[LinkPlace, float] | None = None
    tensor_parallel: Degrees = 1
    placement: PlacementName = "plain"
    chunks: int = 1
    overlap: bool | None = None
    share: OptimizerShare | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"overlap", "share"})  # digests without them stay as they were

    def __post_init__(self) -> None:
        self._require(LARGEST_JOB)
        if self.share and self.dp == 1:
            raise InvalidInputError(
                "of one pipeline nobody has peers to share the optimizer's state with",
                where="--shard-optimizer",
                fix="leave it out, or take --dp 4 or more: from there on workers hold less, even when a peer dies",
            )
        if isinstance(self.tensor_parallel, int):
            return
        if len(self.tensor_parallel) != self.pp:
            raise InvalidInputError(
                f"{len(self.tensor_parallel)} tensor-parallel degrees for {self.pp} {self.noun}s",
                where=f"--tensor-parallel {print_degrees(self.tensor_parallel)}",
                fix=f"give one degree for all, or one a {self.noun}",
            )

    @property
    def columns(self) -> Placement | None:
        """The virtual stages of each column; None for a plain shape."""
        if self.placement == "plain" or self.chunks == 1:
            return None
        return (loop_placement if self.placement == "loop" else v_placement)(self.pp, self.chunks)

    @property
    def noun(self) -> Literal["stage", "column"]:
        """What a place in a pipeline is called in messages: a stage, or a column of several."""
        return "stage" if self.columns is None else "column"

    @property
    def degrees(self) -> tuple[int, ...]:
        """The GPUs of a worker, of each column."""
        return by_column(self.tensor_parallel, self.pp)

    @property
    def degree(self) -> int:
        """The GPUs of a worker, where all have equally many.

        Raises:
            InvalidInputError: they have not.
        """
        self.require_one_degree("it is asked for the one degree of all workers")
        return self.degrees[0]

    @property
    def gpus(self) -> int:
        """How many GPUs all workers have."""
        return self.dp * sum(self.degrees)

    @property
    def links(self) -> int:
        """How many links there are between columns."""
        comes_back = self.placement == "loop" and self.chunks > 1 and self.pp > 2
        return self.pp if comes_back else self.pp - 1

    def require_one_degree(self, why: str) -> None:
        """Raise InvalidInputError where stages have unlike tensor-parallel degrees; says why that is no good here."""
        if len(set(self.degrees)) > 1:
            raise InvalidInputError(
                f"{why}, and the stages are on unlike numbers of GPUs",
                where=f"--tensor-parallel {print_degrees(self.tensor_parallel)}",
                fix="give one degree for all stages",
            )

    def require_plannable(self) -> None:
        """Refuse at once what would be planned for hours; says what fits.

        Raises:
            InvalidInputError: there are more operations, or micro-batches in a pipeline, than are planned.
        """
        self._require(PLANNED)

    def _require(self, bounds: Sequence[SizeLimit]) -> None:
        sizes = {name: int(getattr(self, name)) for name in SPELLED}
        for bound in (one.of_chunks(self.chunks) for one in bounds):
            size = bound.each * prod(sizes[name] for name in bound.names)
            if size > bound.most:
                what = f"that is {size:,} {bound.what}; up to {bound.most:,} are planned"
                raise InvalidInputError(what, **_way_out(sizes, bound, self.chunks))


def _way_out(sizes: Mapping[str, int], broken: SizeLimit, chunks: int) -> dict[str, str]:
    """Which number to make smaller, and the largest that all bounds admit beside the others."""
    fits = {
        name: min(
            bound.most // (bound.each * prod(sizes[other] for other in bound.names if other != name))
            for bound in (one.of_chunks(chunks) for one in (*LARGEST_JOB, *PLANNED))
            if name in bound.names
        )
        for name in broken.names
    }
    name = max(broken.names, key=lambda one: (fits[one] > 0, sizes[one]))
    others = [f"{sizes[one]:,} {words}" for one, words in SPELLED.items() if one != name and fits[name]]
    beside = f"with {joined(others)} " if others else ""
    return {
        "where": f"--{name} {sizes[name]}",
        "fix": f"{beside}take at most {max(fits[name], 1):,} {SPELLED[name]}",
    }


def template_of(profile: Profile, shape: Shape) -> Template:
    """The stages that a shape cuts from a profile, with its limits and the delays it gives to links of all pipelines.

    Raises:
        InvalidInputError: a link or limit that the shape does not have.
        InfeasibleError: the profile cannot be cut into that many stages, or a device cannot hold one.
    """
    delays = dict(shape.link_delay_s or {})
    for pipeline, link in delays:
        if not 0 <= link < shape.links or (pipeline is not None and not 0 <= pipeline < shape.dp):
            place = f"{link}" if pipeline is None else f"{pipeline}/{link}"
            raise InvalidInputError(
                f"there is no link {place}",
                where="--link-delay",
                fix=f"{shape.pp} stages have the links 0 to {shape.links - 1}, in pipelines 0 to {shape.dp - 1}",
            )
    common = {link: delay for (k, link), delay in delays.items() if k is None}
    if shape.columns is None:
        template = cut_stages(profile, shape.pp, shape.dp, shape.tensor_parallel, shape.share)
    else:
        template = cut_chunks(profile, shape.columns, shape.dp, shape.tensor_parallel, shape.share)
    made = with_limits_and_delays(template, shape.memory_limit_bytes, common)
    return with_overlap(made, profile, shape)


def with_overlap(template: Template, profile: Profile, shape: Shape) -> Template:
    """A template with what pairs of passes take, if a shape has them.

    Raises:
        InvalidInputError: the profile does not say it.
    """
    if not shape.overlap:
        return template
    if profile.overlap is None:
        raise InvalidInputError(
            "the profile does not say what a forward and a backward side by side take",
            where="--overlap",
            fix="measure it (rtk profile --overlap), or write overlap, such as 0.8, into the profile",
        )
    return replace(template, overlap=profile.overlap)


def pipelines_of(template: Template, shape: Shape) -> list[Pipeline]:
    """The pipelines of a shape, with links of their own where the shape gives such delays."""
    delays = dict(shape.link_delay_s or {})
    crossed = list(zip(links_crossed(template), template.links, strict=True))
    own = [tuple(Link(delays.get((k, i), x.delay_s)) for i, x in crossed) for k in range(shape.dp)]
    return [Pipeline(template.name, shape.microbatches, x if x != template.links else None) for x in own]


def plan_without_orders(
    profile: Profile,
    shape: Shape,
    planner: Planner,
    placement: Placement | None = None,
    cut: Sequence[Layers] | None = None,
) -> Plan:
    """The synchronous plan of a shape, all workers alive, their orders still empty.

    Args:
        profile: the model's costs.
        shape: what was asked for.
        planner: who makes it.
        placement: the virtual stages of each column, where it is none that a shape has a name for.
        cut: the layers of each virtual stage, where somebody else has cut them, and all of the profile.

    Raises:
        InvalidInputError: a link or limit that the shape does not have, or the cut is of another number of layers.
        InfeasibleError: the profile cannot be cut into that many stages, or a device cannot hold one.
    """
    shape.require_plannable()
    if cut and cut[-1][1] != len(profile.layers):
        raise InvalidInputError(
            f"the stages have {cut[-1][1]} layers, the profile {len(profile.layers)}",
            where="--profile",
            fix="give the profile of the model that was cut: an embedding, its blocks, and a head",
        )
    if placement is None and cut is None:
        template = template_of(profile, shape)
    elif placement is None:
        cut_as = cut_stages(profile, shape.pp, shape.dp, shape.tensor_parallel, shape.share, cut)
        template = with_overlap(cut_as, profile, shape)
    else:
        chunks = cut_chunks(profile, placement, shape.dp, shape.tensor_parallel, shape.share, cut)
        template = with_overlap(chunks, profile, shape)
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
        **({} if shape.columns is None else {"placement": shape.placement, "chunks": shape.chunks}),
        **degree_options(shape),
        **({"overlap": True} if shape.overlap else {}),
        **({"shard_optimizer": True} if shape.share else {}),
        "model": profile.model.get("name"),
        "microbatch_size": profile.microbatch_size,
        "sequence_length": profile.sequence_length,
        **{name: profile.model[name] for name in FORM if name in profile.model},
        **({"origin": profile.origin} if profile.origin == "analytic" else {}),
    }


def degree_options(shape: Shape) -> dict[str, object]:
    """What of the options says on how many GPUs the stages are; nothing where each is on one."""
    degrees = shape.tensor_parallel
    if max(shape.degrees) == 1:
        return {}
    return {DEGREES: degrees if isinstance(degrees, int) else list(degrees)}


# Cutting a profile's layers into stages of least bottleneck time.


def cut_stages(
    profile: Profile,
    stages: int,
    peers: int,
    tensor_parallel: Degrees = 1,
    share: OptimizerShare | None = None,
    given: Sequence[Layers] | None = None,
) -> Template:
    """Cut a profile's layers into consecutive stages so that the slowest stage is as fast as can be.

    Among the cuts with the least bottleneck the one with the least sum of squared stage times is taken, and of several
    the one whose later stages start earliest, so the cut is unique.

    Args:
        profile: the model's costs.
        stages: how many stages, at most one a layer.
        peers: workers that hold each stage (data-parallel degree), for the all-reduce time.
        tensor_parallel: GPUs of a worker, which share every layer, of all stages or of each; bytes and limits are those
            of each GPU.
        share: what a worker has of its stage's optimizer; None: all of it.
        given: the layers of each stage, where somebody else has cut them.

    Returns:
        A template `t0`, with the links' delays from the profile's network and with memory limits from its device.

    Raises:
        InfeasibleError: there are more stages than layers, or the device cannot hold a stage's parameters and state.
        InvalidInputError: a layer has no cost at this degree.
    """
    count = len(profile.layers)
    if stages > count:
        raise InfeasibleError(
            f"{stages} stages cannot be cut from {count} layers", where="--pp", fix=f"take at most {count}"
        )
    degrees = by_column(tensor_parallel, stages)
    work_s = {degree: tuple(_work_s(profile, degree)) for degree in sorted(set(degrees))}
    ranges = list(given or _ranges(_least_bottleneck_cut(tuple(work_s[degree] for degree in degrees))))
    seating = PipelineSeats(stages, peers, tensor_parallel)
    sent_bytes = (profile.layers[stop - 1].output_bytes for _, stop in ranges[:-1])
    return Template(
        "t0",
        tuple(
            replace(
                _stage(profile, span, (seating.rings(profile.network, i), peers), degree, share=share),
                memory_limit_bytes=_room_bytes(profile, (span,), degree, share),
            )
            for i, (span, degree) in enumerate(zip(ranges, degrees, strict=True))
        ),
        tuple(Link(seating.hop_s(profile.network, size, i, i + 1)) for i, size in enumerate(sent_bytes)),
        shard_optimizer=None if share is None else True,
    )


def cut_chunks(
    profile: Profile,
    placement: Placement,
    peers: int,
    tensor_parallel: Degrees = 1,
    share: OptimizerShare | None = None,
    given: Sequence[Layers] | None = None,
) -> Template:
    """Cut a profile's layers into virtual stages so that the busiest worker has as little to do as can be.

    Args:
        profile: the model's costs.
        placement: the virtual stages of each column.
        peers: workers that hold each column (data-parallel degree), for the all-reduce time.
        tensor_parallel: GPUs of a worker, which share every layer, of all columns or of each; bytes and limits are
            those of each GPU.
        share: what a worker has of its chunks' optimizer; None: all of it.
        given: the layers of each virtual stage, where somebody else has cut them.

    Returns:
        A template `t0` with that placement. A limit is what the profile's device leaves beside all chunks of a worker,
        on which tied weights count once. Hops between the same two columns take what the largest message takes.

    Raises:
        InfeasibleError: there are more virtual stages than layers, or the device cannot hold a worker's chunks.
        InvalidInputError: a layer has no cost at this degree.
    """
    count, stages = len(profile.layers), sum(map(len, placement))
    if stages > count:
        raise InfeasibleError(
            f"{len(placement)} workers of {len(placement[0])} chunks need {stages} layers, and there are {count}",
            where="--chunks",
            fix="take fewer chunks, or fewer stages (--pp)",
        )
    columns = len(placement)
    degrees = by_column(tensor_parallel, columns)
    work_s = {degree: _work_s(profile, degree) for degree in sorted(set(degrees))}
    ranges = list(given or _ranges(even_cut_of_columns([work_s[degree] for degree in degrees], placement)))
    earlier = {v: [ranges[u] for u in held[:place]] for held in placement for place, v in enumerate(held)}
    seating = PipelineSeats(columns, peers, tensor_parallel)
    column_of = {v: column for column, held in enumerate(placement) for v in held}
    columns_of = [column_of[v] for v in range(stages)]
    cut = [
        _stage(profile, span, (seating.rings(profile.network, i), peers), degrees[i], beside=earlier[v], share=share)
        for v, (span, i) in enumerate(zip(ranges, columns_of, strict=True))
    ]
    held_by_columns = zip(placement, degrees, strict=True)
    rooms = [_room_bytes(profile, [ranges[v] for v in held], degree, share) for held, degree in held_by_columns]
    known = tuple(room for room in rooms if room is not None)
    links = (Link(),) * (stages - 1)
    shares: Literal[True] | None = None if share is None else True
    unlinked = Template("t0", tuple(cut), links, placement, known or None, shard_optimizer=shares)
    crossed = links_crossed(unlinked)
    sent_bytes: defaultdict[int, float] = defaultdict(float)
    for link, (_, stop) in zip(crossed, ranges[:-1], strict=True):
        sent_bytes[link] = max(sent_bytes[link], profile.layers[stop - 1].output_bytes)
    hops_s = {
        link: 0.0 if link < 0 else seating.hop_s(profile.network, sent_bytes[link], link, (link + 1) % columns)
        for link in crossed
    }
    return replace(unlinked, links=tuple(Link(hops_s[link]) for link in crossed))


def least_bottleneck_cut(times: Sequence[float], parts: int) -> list[int]:
    """The ends of `parts` consecutive non-empty ranges of `times` with the least largest sum.

    Dynamic programme, O(parts · n²); exact. Secondary aim: the least sum of squares under that bottleneck.
    """
    return list(_least_bottleneck_cut((tuple(times),) * parts))


@lru_cache(maxsize=256)  # a job asks for the same cut with many numbers of pipelines
def _least_bottleneck_cut(times: tuple[tuple[float, ...], ...]) -> tuple[int, ...]:
    """The same where each range has times of its own; `times[part]` are what all items take in that range."""
    of_times = {own: np.array([0.0, *accumulate(own)]) for own in set(times)}
    sums = [of_times[own] for own in times]
    bottleneck = _cut(sums, squares=False, limit=float("inf"))[0]
    # Prefix sums of one stage differ in the last bits with its place: allow for that.
    ends = _cut(sums, squares=True, limit=bottleneck * (1 + 1e-12))[1]
    return tuple(ends)


def with_limits_and_delays(
    template: Template, memory_limit_bytes: Sequence[float] | None, delays_s: Mapping[int, float]
) -> Template:
    """A template with the given memory limits (one, or one a column) and link delays instead of the profile's."""
    depth = len(template.columns)
    limits: list[float | None] = [template.limit_bytes(column) for column in range(depth)]
    if memory_limit_bytes is not None:
        if len(memory_limit_bytes) not in (1, depth):
            raise InvalidInputError(
                f"{len(memory_limit_bytes)} memory limits for {depth} stages",
                where="--memory-limit",
                fix="give one number, or one per stage",
            )
        limits = [*memory_limit_bytes] * (depth // len(memory_limit_bytes))
    crossed = zip(links_crossed(template), template.links, strict=True)
    links = tuple(Link(delays_s.get(number, link.delay_s)) for number, link in crossed)
    if template.placement is not None:
        known = tuple(limit for limit in limits if limit is not None)
        return replace(template, links=links, memory_limits_bytes=known or None)
    stages = (replace(stage, memory_limit_bytes=limit) for stage, limit in zip(template.stages, limits, strict=True))
    return replace(template, stages=tuple(stages), links=links)


def _cut(sums_of_parts: Sequence[Floats], *, squares: bool, limit: float) -> tuple[float, list[int]]:
    """The least value and the ends over all cuts of all items into parts, with no part above `limit`.

    Of cuts with equal values the one is taken whose ends come first in the order of lists: ends of as many parts are
    compared by their ranks.

    Args:
        sums_of_parts: for each part the prefix sums of what items take in it, from none to all.
        squares: whether the value is the sum of the parts' squares, or else the largest of them.
        limit: of a part.
    """
    parts, count = len(sums_of_parts), len(sums_of_parts[0]) - 1
    places = np.arange(count + 1)
    values, ranks, came = np.where(places == 0, 0.0, np.inf), places, []
    added: dict[int, Floats] = {}  # by prefix sums, from the row's place to the column's
    for part, sums in enumerate(sums_of_parts, start=1):
        if id(sums) not in added:
            widths = sums - sums[:, None]
            widths[(places <= places[:, None]) | (widths > limit)] = np.inf
            added[id(sums)] = widths * widths if squares else widths
        own = added[id(sums)]
        costs = values[:, None] + own if squares else np.maximum(values[:, None], own)
        values = costs.min(axis=0)
        firsts = np.where(costs == values, ranks[:, None], count + 1).argmin(axis=0)
        values[count - (parts - part) + 1 :] = np.inf
        came.append(firsts)
        order = np.lexsort((places, ranks[firsts]))
        ranks = np.empty_like(order)
        ranks[order] = places
    ends = [count]
    for firsts in reversed(came[1:]):
        ends.append(int(firsts[ends[-1]]))
    return float(values[count]), ends[::-1]


def _stage(
    profile: Profile,
    span: Layers,
    reducing: tuple[Rings, int],
    degree: int,
    *,
    beside: Sequence[Layers] = (),
    share: OptimizerShare | None = None,
) -> Stage:
    """A stage of layers [first, stop), without a limit.

    Args:
        profile: the model's costs.
        span: the layers.
        reducing: the rings in which all its GPUs together sum its gradients, and of how many peers they are.
        degree: its GPUs.
        beside: layers that its worker holds anyway; what is tied to them is not summed again.
        share: what its worker has of the optimizer. The gradients are summed as ever, and after the step each takes the
            parameters that others have stepped, by an all-gather: half of what a sum of them sends.
    """
    first, stop = span
    layers = profile.layers[first:stop]
    cost = joined_cost([_cost(layer, first + index, degree) for index, layer in enumerate(layers)], profile.inner)
    own, peers = reducing
    sum_s, step_s = own.ring_s(summed_bytes(profile.layers, [span], beside) / degree, peers), cost.optimizer_s
    if share is not None:
        sizes = TrainedBytes.of(profile.layers, [span], degree, beside)
        gathered_bytes = sizes.parameter_bytes - sizes.tied_parameter_bytes
        sum_s = own.ring_s(sizes.gradient_bytes, peers)
        step_s = step_s * share.stepped(sizes) + own.ring_s(gathered_bytes, peers) / 2
    return Stage(
        layers=span,
        tensor_parallel=degree,
        forward_s=cost.forward_s,
        backward_input_s=cost.backward_input_s,
        backward_weight_s=cost.backward_weight_s,
        optimizer_s=step_s,
        allreduce_s=sum_s,
        activation_bytes=activations_held(layers, degree),
        weight_stash_bytes=sum(layer.weight_stash_bytes for layer in layers) / degree,
        backward_s=cost.backward_s,
    )


def stages_at(profile: Profile, stages: Sequence[Stage], peers: int, degree: int) -> tuple[Stage, ...]:
    """The stages of alike pipelines, cut as they are, with another degree of tensor parallelism; without limits.

    Raises:
        InvalidInputError: a layer has no cost at this degree.
    """
    seating = PipelineSeats(len(stages), peers, tuple(stage.tensor_parallel for stage in stages))
    rings = (seating.rings(profile.network, i) for i in range(len(stages)))
    return tuple(_stage(profile, stage.layers, (own, peers), degree) for stage, own in zip(stages, rings, strict=True))


def _ranges(ends: Sequence[int]) -> list[Layers]:
    """The layers of each part, by where each ends."""
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _work_s(profile: Profile, degree: int) -> list[float]:
    """What each layer adds to its stage, in s: stages are compared by these sums, for each has one boundary beside."""
    return [profile.own_work_s(_cost(layer, index, degree)) for index, layer in enumerate(profile.layers)]


def _room_bytes(
    profile: Profile, held: Sequence[Layers], degree: int, share: OptimizerShare | None = None
) -> float | None:
    """What a device leaves for activations once a worker's parameters, gradients and optimizer state are in.

    Who shares the optimizer's state has more of it once peers are lost, and must have room for that.

    Returns:
        None where the device sets no limit.
    """
    memory_bytes = profile.device.memory_bytes
    if memory_bytes is None:
        return None
    if share is not None:
        sizes = TrainedBytes.of(profile.layers, held, degree)
        static_bytes = share.after_losses.held_bytes(sizes)
        if static_bytes > memory_bytes:
            raise _no_room_for_share(held, share, sizes, memory_bytes)
        return memory_bytes - static_bytes
    parameter_bytes, state_bytes = (size / degree for size in held_by(profile.layers, held))
    static_bytes = parameter_bytes + state_bytes
    if static_bytes > memory_bytes:
        named = joined([f"{first} to {stop - 1}" for first, stop in held])
        raise NoRoomError(
            f"layers {named} hold {print_bytes(static_bytes)} of parameters and state, "
            f"the device has {print_bytes(memory_bytes)}",
            where="--pp",
            fix="take more stages",
        )
    return memory_bytes - static_bytes


def _no_room_for_share(
    held: Sequence[Layers], share: OptimizerShare, sizes: TrainedBytes, memory_bytes: float
) -> NoRoomError:
    """Why a device cannot hold a worker that shares its optimizer's state, by how much, and what it could hold."""
    named = joined([f"{first} to {stop - 1}" for first, stop in held])
    static_bytes, whole_bytes = share.after_losses.held_bytes(sizes), sizes.whole_bytes
    kept = ", the copy by which a step is undone included" if share.is_kept else ""
    part = f"{print_bytes(static_bytes - whole_bytes)} of the optimizer's state{kept}"
    lost = "one is" if share.lost == 1 else f"{share.lost} are"
    enough = share.fewest_peers(sizes, memory_bytes)
    fix = "take more stages" if enough is None else f"take more stages, or --dp {enough}"
    return NoRoomError(
        f"layers {named} hold {print_bytes(whole_bytes)} of parameters and gradients, and {part}, which {share.peers} "
        f"pipelines share, once {lost} lost: {print_bytes(static_bytes - memory_bytes)} more than the device's "
        f"{print_bytes(memory_bytes)}",
        where="--pp" if enough is None else "--pp, --dp",
        fix=fix,
    )


def _cost(layer: Layer, index: int, degree: int) -> LayerCost:
    for cost in layer.costs:
        if cost.tensor_parallel == degree:
            return cost
    known = joined([str(cost.tensor_parallel) for cost in sorted(layer.costs, key=lambda one: one.tensor_parallel)])
    raise InvalidInputError(
        f"there is no cost at tensor_parallel {degree}, only at {known}",
        where=f"the profile, /layers/{index}/costs",
        fix=f"take a --tensor-parallel of these, or profile the model with --tp {degree}, if that divides its heads",
    )
