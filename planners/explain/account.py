"""Where a worker's iteration goes: an account in seconds that adds up to all of it.

A plan says how long passes take, and how long a worker waits, sums gradients and steps. What passes are made of, matrix
products, attention and so on, only the program knows that computed the profile; it comes in as a function.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isclose
from typing import Protocol

from ...schemas.plan import Layers, Plan, Stage, Worker
from ...schemas.profile import Profile, joined_cost
from .explain import Busiest, Share

ROUNDING = 1e-6  # of a pass: a plan's times are sums of its profile's, written and read again


class MadeOf(Protocol):
    """What a pass of a micro-batch through a stage is made of."""

    @property
    def again_s(self) -> float:
        """What of it is computed again, in s."""
        ...

    def by_name(self) -> Mapping[str, float]:
        """Its parts, in s, by what people call them."""
        ...


PartsOfStage = Callable[[Layers, int, str], MadeOf]  # of layers, at a tensor-parallel degree, of F, I, W or B


@dataclass(frozen=True, slots=True)
class IterationAccount:
    """Where the iteration of the worker goes that decides how long it is.

    Attributes:
        worker: the busiest one, `k/i`.
        tensor_parallel: on how many GPUs it is.
        shares: what takes time, with its share of the iteration; they add up to all of it.
        again_s: what of it is computed again, for it was not kept; 0 where nobody knows.
        remark: why it is not said what passes are made of; None where it is.
    """

    worker: str
    tensor_parallel: int
    shares: tuple[Share, ...]
    again_s: float = 0.0
    remark: str | None = None


def account_of(
    plan: Plan, busiest: Busiest, parts_of_stage: PartsOfStage | None, remark: str | None = None
) -> IterationAccount:
    """Account for the iteration of the worker that decides.

    Args:
        plan: a valid plan.
        busiest: what its explanation says of that worker.
        parts_of_stage: what passes are made of; None: they are told as passes.
        remark: why nobody knows, for the account.
    """
    worker = next(one for one in plan.live_workers() if one.name == busiest.worker)
    times_s: defaultdict[str, float] = defaultdict(float)
    again_s = 0.0
    for stage, kind, lasts_s in _passes(plan, worker):
        found = parts_of_stage(stage.layers, stage.tensor_parallel, kind) if parts_of_stage else None
        whole_s = sum(found.by_name().values()) if found else 0.0
        if found is None or not whole_s:
            times_s[kind] += lasts_s
            continue
        for what, part_s in found.by_name().items():
            times_s[what] += lasts_s * part_s / whole_s
        again_s += lasts_s * found.again_s / whole_s
    slowdown = worker.slowdown or 1.0
    waiting_s = busiest.before_s + busiest.waiting_s + busiest.after_s
    beside = {
        "slowdown": (slowdown - 1) * sum(times_s.values()),
        "hops": busiest.travelling_s,
        "waiting": waiting_s,
        "gradients' sums": busiest.allreduce_s,
        "optimizer step": busiest.optimizer_s,
    }
    rows = {**times_s, **beside}
    iteration_s = sum(rows.values())
    shares = tuple(Share(what, time_s, time_s / iteration_s) for what, time_s in rows.items() if time_s)
    return IterationAccount(worker.name, plan.gpus_of(worker), shares, again_s, remark)


def is_made_from(plan: Plan, name: str, profile: Profile) -> bool:
    """Whether the passes of a worker's stages take what the profile's layers take together."""
    worker = next(one for one in plan.live_workers() if one.name == name)
    return all(_lasts_as_long(stage, profile) for stage in plan.stages_of(worker))


def _lasts_as_long(stage: Stage, profile: Profile) -> bool:
    first, stop = stage.layers
    layers, degree = profile.layers[first:stop], stage.tensor_parallel
    costs = [cost for layer in layers for cost in layer.costs if cost.tensor_parallel == degree]
    if len(costs) < stop - first:
        return False
    cost = joined_cost(costs, profile.inner)
    ours_s = (stage.forward_s, stage.backward_input_s, stage.backward_weight_s, stage.duration_s("B"))
    theirs_s = (cost.forward_s, cost.backward_input_s, cost.backward_weight_s, cost.full_s)
    return all(isclose(ours, theirs, rel_tol=ROUNDING) for ours, theirs in zip(ours_s, theirs_s, strict=True))


def _passes(plan: Plan, worker: Worker) -> Iterator[tuple[Stage, str, float]]:
    """The passes of a worker by stage and kind, and how long those of each take together, were the worker not slow.

    What a pair takes is shared between its two as they would take one after the other.
    """
    template = plan.template_of(worker.pipeline)
    order, pairs = worker.operations(), worker.pairs()
    seats: dict[int | None, int] = {None: plan.seats_of(worker)[0], **{seat: seat for seat in plan.seats_of(worker)}}
    counts: Counter[tuple[int, str, int | None]] = Counter()  # stage, kind, and that of the other of a pair
    for place, operation in enumerate(order):
        other = order[place + 1] if place in pairs else order[place - 1] if place - 1 in pairs else None
        counts[seats[operation.stage], operation.kind, None if other is None else seats[other.stage]] += 1
    for (seat, kind, beside), times in counts.items():
        lasts_s = template.stages[seat].duration_s(kind)
        if beside is not None and lasts_s:
            forward, backward = (seat, beside) if kind == "F" else (beside, seat)
            alone_s = template.stages[forward].duration_s("F") + template.stages[backward].duration_s("B")
            lasts_s *= template.pair_s(forward, backward) / alone_s
        yield template.stages[seat], kind, times * lasts_s
