"""Which shape of a job is the fastest: profiles of all forms of a model, searched, and replayed where nodes fail.

It stands at the root because it hands the profilers' costs to the planners' search, and what that finds to the replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, product
from typing import TYPE_CHECKING, Any, get_args

from .schemas.errors import InvalidInputError, RtkError, remark
from .schemas.orders import LeanSchedule
from .schemas.profile import SideBySide
from .schemas.text import joined, known

if TYPE_CHECKING:
    from .planners.best.answer import BestShapes, ExpectedShape
    from .planners.best.forms import CostedForm
    from .planners.best.search import BestQuestion, PricedShape, ShapeWay
    from .schemas.cluster import Cluster
    from .schemas.profile import Profile
    from .schemas.site import Site

MICROBATCH_SIZES = (1, 2, 4, 8, 16)  # of a computed profile, as far as they divide the batch
MOST_REPLAYED = 24  # shapes, of those that may be the best in expectation
SPANNED_FAILURES = 200  # of the cluster, that a replay spans, within these limits
SHORTEST_S, LONGEST_S = 7 * 86400.0, 180 * 86400.0


def plan_best(
    model: Profile | str,
    *,
    cluster: str | Cluster,
    batch: int,
    microbatch_size: Sequence[int] | None = None,
    recompute: bool | None = None,
    tensor_parallel: Sequence[int] | None = None,
    schedule: str = "best",
    placement: str = "plain",
    chunks: int | None = None,
    side_by_side: str | None = None,
    overlap: bool = False,
    shard_optimizer: bool = True,
    holders: int = 1,
    mtbf: float | None = None,
    repair: float = 3600.0,
    policy: str = "checkpoint-restart",
    seed: int = 0,
    first: int = 11,
    **computing: Any,
) -> BestShapes:
    """Find the fastest shape of a job on a cluster, and the next ones.

    Args:
        model: a profile, of which only its own micro-batch size and recomputation are searched; or a model's name or
            config.json, which is computed in all forms.
        cluster: the machines, as `read_cluster` gives or takes them.
        batch: samples of an iteration.
        microbatch_size: sizes that are tried; None: 1, 2, 4, 8 and 16, or the profile's.
        recompute: whether blocks are computed again; None: both are tried.
        tensor_parallel: degrees that are tried; None: all that divide a node's GPUs and the model's heads.
        schedule: "1f1b", "zero-bubble", or the "best" of both.
        placement, chunks: as for `plan_pipeline`; under "best" all placements of up to so many chunks are tried.
        side_by_side: whose GPUs sit in a node, the "stages" of a pipeline or the "peers" of a stage; None: both are
            tried, where anything says what a node's GPUs share; only peers where the cluster's file says so.
        overlap: whether schedules are tried as well in which workers run a forward and a full backward side by side;
            the profile must say what that takes.
        shard_optimizer: whether the optimizer's state is sharded over the pipelines.
        holders: of each part of it: 1, as in ZeRO, or 2, as in `rtk run`: then there is room for it once one is lost.
        mtbf: mean time between the failures of one node, in s: then the shape counts that is fastest in expectation.
        repair: how long a node is away, in the mean, in s.
        policy: what the job does when nodes fail, as for `replay`.
        seed: of failures.
        first: how many shapes are wanted.
        **computing: for a model's name, as for `profile_analytic`: `gpu`, `sequence_length`, `dtype`, `efficiency`,
            `calibrate` (or a file's path), `software` (or its fields).

    Raises:
        InvalidInputError: arguments do not go together, or no micro-batch size divides the batch.
        InfeasibleError: no shape fits; says which needs the least, by how much it is too large, and what would fit.
    """
    from .planners.best.answer import BestShapes
    from .planners.best.search import BestQuestion, ShapeSearch, nothing_fits
    from .schemas.blocks import HOLDERS
    from .schemas.site import site_of

    site = site_of(cluster, None)
    assert site.cluster is not None
    forms = _forms(model, site, batch, microbatch_size, recompute, computing)
    nodes, each = len(site.cluster.nodes), site.cluster.gpus_per_node
    if overlap and all(form.profile.overlap is None for form in forms):
        raise InvalidInputError(
            "nothing says what a forward and a backward side by side take",
            where="--overlap",
            fix="give a profile that does (rtk profile --overlap measures it), or leave it out",
        )
    if holders not in (1, HOLDERS) or (holders > 1 and not shard_optimizer):
        raise InvalidInputError(
            f"{holders} holders of each part of the optimizer's state",
            where="--holders",
            fix="take 1, or 2 with --shard-optimizer",
        )
    ways = _ways(schedule, placement, chunks, _orders(forms, side_by_side), (False, True) if overlap else (False,))
    question = BestQuestion(forms, nodes, each, batch, ways, tensor_parallel, shard_optimizer, holders)
    search = ShapeSearch(question)
    if not search.shapes:
        raise _no_shape(question)
    ranked = search.ranked()
    shapes = tuple(islice(ranked, first))
    if not shapes:
        raise nothing_fits(search)
    found = BestShapes(question, site, shapes, search.planned, search.ruled_out)
    if mtbf is None:
        return found
    expected, unreplayed, is_proven = _in_expectation(question, [*shapes], ranked, mtbf, repair, policy, seed)
    return BestShapes(question, site, shapes, search.planned, search.ruled_out, expected, unreplayed, is_proven)


def _forms(
    model: Profile | str,
    site: Site,
    batch: int,
    sizes: Sequence[int] | None,
    recompute: bool | None,
    computing: dict[str, Any],
) -> list[CostedForm]:
    """The profiles that are searched, on these machines."""
    from .planners.best.forms import CostedForm
    from .profilers.analytic.configuration import known_model
    from .profilers.analytic.estimate import profile_analytic

    if not isinstance(model, str):
        return [_given_form(model, site, batch, sizes, recompute, computing)]
    assert site.cluster is not None
    heads, each = known_model(model).shape.heads, site.cluster.gpus_per_node
    degrees = [degree for degree in range(1, each + 1) if each % degree == 0 and heads % degree == 0]
    tried = [size for size in sizes or MICROBATCH_SIZES if batch % size == 0]
    if not tried:
        raise _indivisible(batch, sizes or MICROBATCH_SIZES)
    told = _told(computing, site)
    found = []
    for size, again in product(tried, (False, True) if recompute is None else (recompute,)):
        profile = profile_analytic(
            model, microbatch_size=size, checkpointing=again, tp=tuple(degrees), cluster=site.cluster, **told
        )
        found.append(CostedForm(site.adapted(profile), profile, size, again))
    return found


def _told(computing: dict[str, Any], site: Site) -> dict[str, Any]:
    """What the profiler is told, with what the program is like as one argument, and a file's calibration read.

    Raises:
        InvalidInputError: a file cannot calibrate, or nobody says which GPU it is.
    """
    from .calibrating import read_calibration
    from .profilers.analytic.software import Software, software_of

    of_program = {name for name in computing if name in Software.__dataclass_fields__}
    told = {name: value for name, value in computing.items() if name not in of_program}
    if of_program:
        told["software"] = software_of(computing)
    assert site.cluster is not None
    gpu, path = computing.get("gpu") or site.cluster.gpu, computing.get("calibrate")
    if isinstance(path, str):
        if gpu is None:
            raise InvalidInputError("there is no GPU to compute for", where="--gpu", fix="write --gpu h100-sxm, say")
        learned = read_calibration(path, gpu=gpu, cluster=site.cluster, software=told.get("software"))
        for words in getattr(learned, "remarks", ()):
            remark(words)
        told["calibrate"] = learned
    return told


def _given_form(
    profile: Profile,
    site: Site,
    batch: int,
    sizes: Sequence[int] | None,
    recompute: bool | None,
    computing: dict[str, Any],
) -> CostedForm:
    """The one form that a profile is of.

    Raises:
        InvalidInputError: another one is asked for, or it does not divide the batch.
    """
    from .planners.best.forms import CostedForm
    from .schemas.profile import form_of

    own, again = profile.microbatch_size or 1, form_of(profile.model).checkpointing
    asked = [name for name, value in computing.items() if value is not None]
    if (sizes is not None and own not in sizes) or (recompute is not None and recompute != again) or asked:
        what = f"micro-batches of {own}, {'with' if again else 'without'} recomputation"
        raise InvalidInputError(
            f"the profile is of one form: {what}",
            where=joined([f"--{name.replace('_', '-')}" for name in asked]) or "--microbatch-size, --recompute",
            fix="leave these options out, or give a model's name in place of the profile",
        )
    if batch % own:
        raise _indivisible(batch, (own,))
    remark(f"of a profile only its own form is searched: micro-batches of {own}, {'with' if again else 'no'} "
           "recomputation; of a model's name all are")  # fmt: skip
    return CostedForm(site.adapted(profile), profile, own, again)


def _indivisible(batch: int, sizes: Sequence[int]) -> InvalidInputError:
    size = min(sizes)
    return InvalidInputError(
        f"{batch} samples are no whole number of micro-batches of {joined([str(one) for one in sizes], 'or')}",
        where="--batch",
        fix=f"take a multiple of {size}, such as {(batch // size + 1) * size}",
    )


def _orders(forms: Sequence[CostedForm], side_by_side: str | None) -> tuple[SideBySide, ...]:
    """In what orders GPUs are seated in nodes: where nothing says what these share, all orders are alike."""
    orders: tuple[SideBySide, ...] = get_args(SideBySide)
    if side_by_side is not None:
        known(side_by_side, orders, "--side-by-side")
        return tuple(one for one in orders if one == side_by_side)
    nodes = [form.profile.network.node for form in forms]
    if any(node is not None and node.side_by_side == "peers" for node in nodes):
        return ("peers",)
    return ("stages",) if all(node is None for node in nodes) else orders


def _ways(
    schedule: str,
    placement: str,
    chunks: int | None,
    orders: Sequence[SideBySide] = ("stages",),
    pairs: Sequence[bool] = (False,),
) -> list[ShapeWay]:
    """The schedules, placements and seats that are tried, plain 1F1B first, where it is asked for."""
    from .planners.best.search import ShapeWay
    from .planners.choosing import parse_placement
    from .planners.shape import Shape

    known(schedule, (*get_args(LeanSchedule), "best"), "--schedule")
    schedules: list[Any] = list(get_args(LeanSchedule)) if schedule == "best" else [schedule]
    shapes = parse_placement(placement, chunks).shapes(Shape(2, 1, 1))
    return [
        ShapeWay(one, shape.placement, shape.chunks, order, paired)
        for paired, shape, order, one in product(pairs, shapes, orders, schedules)
    ]


def _no_shape(question: BestQuestion) -> InvalidInputError:
    """Why there is not a single shape: a degree that nobody has costs for, or that no node can hold."""
    there = sorted({degree for form in question.forms for degree in form.profile.degrees})
    fitting = [degree for degree in there if question.gpus_per_node % degree == 0]
    return InvalidInputError(
        f"no tensor-parallel degree is left: there are costs at {joined([str(one) for one in there])}, "
        f"and a node has {question.gpus_per_node} GPUs",
        where="--tensor-parallel",
        fix=f"take {joined([str(one) for one in fitting], 'or')}" if fitting else "profile a degree that divides them",
    )


def _in_expectation(
    question: BestQuestion,
    shapes: list[PricedShape],
    others: Any,
    mtbf_s: float,
    repair_s: float,
    policy: str,
    seed: int,
) -> tuple[list[ExpectedShape], int, bool]:
    """Shapes replayed under failures, the best first; how many cannot be; and whether nothing else can be better.

    Failures only cost time, so a shape whose throughput without any lies below the best one's with them is ruled out.

    Raises:
        InvalidInputError: there is no such policy, or no shape can be replayed.
    """
    from .planners.best.answer import ExpectedShape

    found: list[ExpectedShape] = []
    unreplayed, batch = 0, question.batch
    queue = iter([*shapes])
    while True:
        one = next(queue, None) or next(others, None)
        best = max((other.samples_per_s for other in found), default=0.0)
        if one is None or one.samples_per_s(batch) <= best:
            is_proven = True
            break
        if len(found) == MOST_REPLAYED:
            is_proven = False
            break
        try:
            goodput, samples_per_s = _replayed(question, one, mtbf_s, repair_s, policy, seed)
        except _NotReplayedError:
            unreplayed += 1
            continue
        found.append(ExpectedShape(one, goodput, samples_per_s))
    if not found:
        raise InvalidInputError(
            f"none of {unreplayed} shapes can be replayed: their pipelines fill no whole nodes, or {policy} refuses",
            where="--mtbf",
            fix="take another --policy, or leave --mtbf out",
        )
    return sorted(found, key=lambda one: -one.samples_per_s), unreplayed, is_proven


class _NotReplayedError(RtkError):
    """A shape that the replay does not take."""


def _replayed(
    question: BestQuestion, one: PricedShape, mtbf_s: float, repair_s: float, policy: str, seed: int
) -> tuple[float, float]:
    """The goodput of a shape, and samples a second, while nodes fail.

    Raises:
        _NotReplayedError: the replay does not take such a shape, or the policy refuses it.
    """
    from .planners.choosing import PlacementChoice
    from .planners.recovery.job import TrainingJob
    from .planners.shape import template_of
    from .replaying import ReplayRequest, ask
    from .runners.traces.read import TraceOptions
    from .runners.traces.verbs import FaultScenario, Lasting, Renewal
    from .schemas.replay import Costs

    cluster_mtbf_s = mtbf_s / question.nodes
    lasts_s = min(max(SPANNED_FAILURES * cluster_mtbf_s, SHORTEST_S), LONGEST_S)
    scenario = FaultScenario(question.nodes, lasts_s, Renewal(Lasting(mtbf_s), Lasting(repair_s)), seed=seed)
    shape, way = one.shape, one.way
    # A policy's pipelines come and go, so its stages are cut as if each stepped a part of its own.
    profile = shape.form.trained(shape.stepped_shards, way.side_by_side)
    asked = replace(shape.asked(way), share=None)
    limits_bytes = shape.form.limits_bytes(template_of(profile, asked), shape.held_shards)
    placed = None if way.placement == "plain" else PlacementChoice(way.placement, way.chunks)
    try:
        job = TrainingJob(
            profile,
            replace(asked, memory_limit_bytes=limits_bytes),
            question.gpus_per_node,
            Costs(mean_time_between_failures_s=cluster_mtbf_s),
            way.schedule,
            seed,
        )
        report = ask(ReplayRequest(job, scenario, TraceOptions(nodes=question.nodes), (policy,), placement=placed))
    except RtkError as error:
        raise _NotReplayedError(error.what) from error
    (told,) = report.policies
    if told.refusal is not None:
        raise _NotReplayedError(told.refusal)
    usual = question.batch / report.fault_free["iteration_time_s"]
    return told.goodput, told.goodput * usual
