"""Cutting a profile's layers into stages of least bottleneck time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

from ..schemas.errors import InfeasibleError, InvalidInputError
from ..schemas.plan import Layers, Link, Stage, Template
from ..schemas.profile import Connection, Layer, LayerCost, Profile, held_bytes


def cut_stages(profile: Profile, stages: int, peers: int, tensor_parallel: int = 1) -> Template:
    """Cut a profile's layers into consecutive stages so that the slowest stage is as fast as can be.

    Among the cuts with the least bottleneck the one with the least sum of squared stage times is taken, and of several
    the one whose later stages start earliest, so the cut is unique.

    Args:
        profile: the model's costs.
        stages: how many stages, at most one a layer.
        peers: workers that hold each stage (data-parallel degree), for the all-reduce time.
        tensor_parallel: GPUs of a worker, which share every layer; bytes and limits are those of each.

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
    times = [_cost(layer, index, tensor_parallel).work_s for index, layer in enumerate(profile.layers)]
    ends = least_bottleneck_cut(times, stages)
    ranges = list(zip([0, *ends[:-1]], ends, strict=True))
    connection = profile.network.between_workers or Connection()
    return Template(
        "t0",
        tuple(_stage(profile, (first, stop), peers, tensor_parallel, connection) for first, stop in ranges),
        tuple(Link(connection.transfer_s(profile.layers[stop - 1].output_bytes)) for _, stop in ranges[:-1]),
    )


def least_bottleneck_cut(times: Sequence[float], parts: int) -> list[int]:
    """The ends of `parts` consecutive non-empty ranges of `times` with the least largest sum.

    Dynamic programme, O(parts · n²); exact. Secondary aim: the least sum of squares under that bottleneck.
    """
    return list(_least_bottleneck_cut(tuple(times), parts))


@lru_cache(maxsize=256)  # a job asks for the same cut with many numbers of pipelines
def _least_bottleneck_cut(times: tuple[float, ...], parts: int) -> tuple[int, ...]:
    count = len(times)
    sums = [0.0, *accumulate(times)]
    bottleneck = _cut(sums, count, parts, cost=lambda whole, part: max(whole, part), limit=float("inf"))[0]
    # Prefix sums of one stage differ in the last bits with its place: allow for that.
    ends = _cut(sums, count, parts, cost=lambda whole, part: whole + part * part, limit=bottleneck * (1 + 1e-12))[1]
    return tuple(ends)


def with_limits_and_delays(
    template: Template, memory_limit_bytes: Sequence[float] | None, delays_s: Mapping[int, float]
) -> Template:
    """A template with the given memory limits (one, or one a stage) and link delays instead of the profile's."""
    depth = len(template.stages)
    limits: list[float | None] = [stage.memory_limit_bytes for stage in template.stages]
    if memory_limit_bytes is not None:
        if len(memory_limit_bytes) not in (1, depth):
            raise InvalidInputError(
                f"{len(memory_limit_bytes)} memory limits for {depth} stages",
                where="--memory-limit",
                fix="give one number, or one per stage",
            )
        limits = [*memory_limit_bytes] * (depth // len(memory_limit_bytes))
    links = [Link(delays_s.get(i, link.delay_s)) for i, link in enumerate(template.links)]
    stages = (replace(stage, memory_limit_bytes=limit) for stage, limit in zip(template.stages, limits, strict=True))
    return Template(template.name, tuple(stages), tuple(links))


def _cut(
    sums: list[float], count: int, parts: int, cost: Callable[[float, float], float], limit: float
) -> tuple[float, list[int]]:
    """Best value and ends over all cuts of the first `count` items into `parts`, with no part above `limit`."""
    best: list[dict[int, tuple[float, list[int]]]] = [{0: (0.0, [])}]
    for part in range(1, parts + 1):
        row: dict[int, tuple[float, list[int]]] = {}
        for stop in range(part, count - (parts - part) + 1):
            options = (
                (cost(value, sums[stop] - sums[first]), [*ends, stop])
                for first, (value, ends) in best[-1].items()
                if first < stop and sums[stop] - sums[first] <= limit
            )
            found = min(options, default=None)
            if found is not None:
                row[stop] = found
        best.append(row)
    return best[-1][count]


def _stage(profile: Profile, span: Layers, peers: int, degree: int, connection: Connection) -> Stage:
    first, stop = span
    layers = profile.layers[first:stop]
    costs = [_cost(layer, first + index, degree) for index, layer in enumerate(layers)]
    parameter_bytes, state_bytes = (size / degree for size in held_bytes(profile.layers, first, stop))
    return Stage(
        layers=span,
        tensor_parallel=degree,
        forward_s=sum(cost.forward_s for cost in costs),
        backward_input_s=sum(cost.backward_input_s for cost in costs),
        backward_weight_s=sum(cost.backward_weight_s for cost in costs),
        optimizer_s=sum(cost.optimizer_s for cost in costs),
        allreduce_s=connection.ring_s(parameter_bytes, peers),
        activation_bytes=sum(layer.activation_bytes for layer in layers) / degree,
        weight_stash_bytes=sum(layer.weight_stash_bytes for layer in layers) / degree,
        memory_limit_bytes=_room_bytes(profile, parameter_bytes + state_bytes, first, stop),
    )


def _room_bytes(profile: Profile, static_bytes: float, first: int, stop: int) -> float | None:
    """What a device leaves for activations once parameters, gradients and optimizer state are in."""
    memory_bytes = profile.device.memory_bytes
    if memory_bytes is None:
        return None
    if static_bytes > memory_bytes:
        raise InfeasibleError(
            f"layers {first} to {stop - 1} hold {static_bytes:g} bytes of parameters and state, "
            f"the device has {memory_bytes:g}",
            where="--pp",
            fix="take more stages",
        )
    return memory_bytes - static_bytes


def _cost(layer: Layer, index: int, degree: int) -> LayerCost:
    for cost in layer.costs:
        if cost.tensor_parallel == degree:
            return cost
    raise InvalidInputError(
        f"there is no cost at tensor_parallel {degree}",
        where=f"the profile, /layers/{index}/costs",
        fix="profile that degree",
    )
