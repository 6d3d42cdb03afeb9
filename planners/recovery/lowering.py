"""How slow the workers of a running job are at smaller tensor-parallel degrees, and at which their GPUs have room."""

from collections.abc import Iterator, Sequence
from functools import cache

from ...schemas.errors import InvalidInputError
from ...schemas.plan import Plan
from ...schemas.profile import Profile
from ...schemas.protocols import DegreeFactors
from ..scheduling.evaluate import evaluate
from .answers import PolicyName, policy_of
from .gpu_faults import LowerDegrees


def degree_factors(
    plan: Plan, policy: PolicyName | None, profile: Profile | None = None, within: int = 0
) -> DegreeFactors:
    """At which smaller degrees the workers of a plan may go on that have lost a GPU, and how slow they are then.

    Args:
        plan: valid, that the job begins with.
        policy: by which the job recovers; None: that which is usual for the plan.
        profile: that the plan was made from; None: operations take as many times as long as there are fewer GPUs, and
            whether these have room, and what copies take, is not known.
        within: iterations within which copies must have paid.

    Raises:
        InvalidInputError: nobody has a smaller degree; or the policy does not heed what is slow; or the plan counts on
            peers that share the optimizer's state; or the profile is of another model, or lacks the plan's degree.
    """
    if all(plan.gpus_of(worker) == 1 for worker in plan.workers):
        raise InvalidInputError(
            "every worker of the plan is on one GPU, and has no smaller degree to go on at",
            where="--lower-degree",
            fix="leave it out, or plan with --tensor-parallel 2 or more",
        )
    if policy_of(plan, policy) is not PolicyName.JOINT:
        raise InvalidInputError(
            "only the policy joint takes account of what is slow, as a worker at a smaller degree is",
            where="--lower-degree",
            fix="leave it out, or --policy joint",
        )
    if plan.shards_optimizer:
        raise InvalidInputError(
            "peers share the optimizer's state in blocks of what a rank has, which is other at a smaller degree",
            where="--lower-degree",
            fix="leave it out, or plan without --shard-optimizer",
        )
    if profile is None:
        ratios = {one.name: plan.gpus_of(one) for one in plan.workers}
        return DegreeFactors({name: {d: most / d for d in range(1, most)} for name, most in ratios.items()})

    _require_costs(plan, profile)

    @cache
    def lower(template: str, degree: int, microbatches: int) -> LowerDegrees:
        stages = plan.template_by_name[template].stages
        limits = [one.memory_limit_bytes for one in stages if one.memory_limit_bytes is not None]
        known = limits if len(limits) == len(stages) else None
        return LowerDegrees(profile, stages, len(plan.pipelines), degree, microbatches, known)

    found, costs_s = {}, {}
    connection = profile.network.between_workers
    peaks = (plan.prediction or evaluate(plan)).peak_memory_bytes
    for worker, peak_bytes in zip(plan.workers, peaks, strict=True):
        pipeline = plan.pipelines[worker.pipeline]
        known = lower(pipeline.template, plan.gpus_of(worker), pipeline.microbatches)
        stages = plan.template_of(worker.pipeline).columns[worker.stage]
        own = found[worker.name] = dict(_factors(known, stages, plan.gpus_of(worker), peak_bytes))
        if connection is not None:
            back_s = connection.transfer_s(known.gpu_bytes(stages, plan.gpus_of(worker)))
            costs_s[worker.name] = {d: connection.transfer_s(known.gpu_bytes(stages, d)) + back_s for d in own}
    return DegreeFactors(found, frozenset(profile.degrees), costs_s, within)


def _require_costs(plan: Plan, profile: Profile) -> None:
    """Raise InvalidInputError unless a profile has the costs that a plan was made of."""
    lacking = sorted({plan.gpus_of(worker) for worker in plan.workers}.difference(profile.degrees))
    if len(profile.layers) != plan.total_layers():
        what = f"the profile has {len(profile.layers)} layers, and the plan {plan.total_layers()}"
    elif lacking:
        what = f"the profile has no costs at {lacking[0]} GPUs a worker, as the plan has them"
    else:
        return
    raise InvalidInputError(what, where="--profile", fix="give the profile that the plan was made from")


def _factors(known: LowerDegrees, stages: Sequence[int], most: int, peak_bytes: float) -> Iterator[tuple[int, float]]:
    """By the degrees at which a worker's GPUs have room for its stages: how slow it is there."""
    for degree in range(1, most):
        if known.has_room(stages, degree, peak_bytes):
            yield degree, known.factor_at(stages, degree) if degree in known.degrees else most / degree
