"""What templates are compared with: all mappings, the recursion of "Oobleck" as published, and 1F1B itself."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import inf
from random import Random

from rtk.planners.oobleck.mapping import Mapper, MappingObjective, MappingRequest, fill_of, stages_of
from rtk.planners.oobleck.pace import PaceCosts, PaceState, one_iteration_s
from rtk.schemas.profile import Device, Layer, LayerCost, Profile

Stage = tuple[int, int, int]  # end of the layers, GPUs, first layer
Part = tuple[float, float, float, int, float]  # T1, T2, T3, k*, and the time of stage k*
DEGREES = ((1,), (1, 2), (1, 2, 4), (2,), (1, 2, 3), (1, 3), (2, 4))


def random_profile(chance: Random, limited: bool, whole: bool) -> Profile:
    """A few unlike layers; costs in whole numbers make ties, bytes always are whole."""
    degrees = chance.choice(DEGREES)
    layers = tuple(_tied(chance, n, _layer(chance, degrees, whole)) for n in range(chance.randint(1, 6)))
    memory = 12.0 * chance.randint(2, 16) if limited else None
    return Profile(layers, device=Device(memory_bytes=memory))


def _layer(chance: Random, degrees: tuple[int, ...], whole: bool) -> Layer:
    def time_s(degree: int) -> float:
        return float(chance.randint(0, 4)) if whole else chance.random() / degree

    costs = tuple(LayerCost(time_s(d), time_s(d), time_s(d), tensor_parallel=d) for d in degrees)
    return Layer(
        costs,
        parameter_bytes=12.0 * chance.randint(0, 2),
        state_bytes=12.0 * chance.randint(0, 2),
        activation_bytes=12.0 * chance.randint(0, 3),
    )


def _tied(chance: Random, index: int, layer: Layer) -> Layer:
    """A layer, now and then with half of its bytes in a matrix of an earlier one."""
    if index == 0 or chance.random() < 0.7:
        return layer
    parameter_bytes, state_bytes = layer.parameter_bytes / 2, layer.state_bytes / 2
    return replace(layer, tied_to=chance.randrange(index), tied_bytes=parameter_bytes, tied_state_bytes=state_bytes)


def all_mappings(profile: Profile, nodes: int, gpus_per_node: int) -> Iterator[tuple[Stage, ...]]:
    """Every way to cut the layers and to fill every node with stages, memory aside."""
    degrees = sorted(set.intersection(*({cost.tensor_parallel for cost in layer.costs} for layer in profile.layers)))
    count, gpus = len(profile.layers), nodes * gpus_per_node

    def rest(first: int, used: int) -> Iterator[tuple[Stage, ...]]:
        if first == count and used == gpus:
            yield ()
        for stop in range(first + 1, count + 1):
            for degree in degrees:
                if used % gpus_per_node + degree <= gpus_per_node and used + degree <= gpus:
                    for others in rest(stop, used + degree):
                        yield ((stop, degree, first), *others)

    return rest(0, 0)


def stage_time_s(profile: Profile, stage: Stage) -> float:
    """F + I + W of a stage."""
    stop, degree, first = stage
    costs = [cost for layer in profile.layers[first:stop] for cost in layer.costs if cost.tensor_parallel == degree]
    forward, inputs, weights = 0.0, 0.0, 0.0
    for cost in costs:
        forward += cost.forward_s
        inputs += cost.backward_input_s
        weights += cost.backward_weight_s
    return forward + inputs + weights


def in_memory(profile: Profile, mapping: tuple[Stage, ...], microbatches: int | None) -> bool:
    """Whether every GPU can hold its share of its stage, with the activations that 1F1B has in flight there."""
    limit = profile.device.memory_bytes
    for i, (stop, degree, first) in enumerate(mapping):
        layers = profile.layers[first:stop]
        in_flight = min(len(mapping) - i, 4 * len(mapping) if microbatches is None else microbatches)
        static = sum(layer.parameter_bytes + layer.state_bytes for layer in layers)
        static -= sum(
            (layer.tied_bytes or 0.0) + (layer.tied_state_bytes or 0.0)
            for layer in layers
            if layer.tied_to in range(first, stop)
        )
        held = static + in_flight * sum(layer.activation_bytes for layer in layers)
        if limit is not None and held > limit * degree:
            return False
    return True


def time_of(times_s: list[float], microbatches: int | None) -> float:
    """T = T1 + T2 + T3 of stage times; where micro-batches are given, that of a flow shop."""
    if microbatches is not None:
        done_s = [0.0] * len(times_s)
        for _ in range(microbatches):
            for i, time_s in enumerate(times_s):
                done_s[i] = max(done_s[i], done_s[i - 1] if i else 0.0) + time_s
        return done_s[-1]
    slowest = max(range(len(times_s)), key=lambda i: (times_s[i], i))
    return sum(times_s) + (3 * len(times_s) + slowest - 1) * times_s[slowest] + sum(times_s[slowest:])


def best_by_hand(
    profile: Profile, nodes: int, gpus_per_node: int, microbatches: int | None
) -> tuple[float, tuple[Stage, ...]] | None:
    """The least T and the first mapping, stage by stage, that has it; None where none fits."""
    found = [
        (time_of([stage_time_s(profile, stage) for stage in mapping], microbatches), mapping)
        for mapping in all_mappings(profile, nodes, gpus_per_node)
        if in_memory(profile, mapping, microbatches)
    ]
    return min(found, default=None)


def best_by_recursion(profile: Profile, nodes: int, gpus_per_node: int) -> float:
    """Least T by equations 1 to 4 with N_b = 4 S', the best mapping of each part remembered; memory aside.

    `first_gpu` says where in its node a part begins, so that a stage on two nodes can be refused.
    """
    degrees = set.intersection(*({cost.tensor_parallel for cost in layer.costs} for layer in profile.layers))
    nothing: Part = (inf, inf, inf, 0, 0.0)

    @cache
    def conquer(stages: int, u: int, v: int, gpus: int, first_gpu: int) -> Part:
        if stages == 1:
            if gpus not in degrees or first_gpu + gpus > gpus_per_node:
                return nothing
            time_s = stage_time_s(profile, (v, gpus, u))
            return time_s, 2 * time_s, time_s, 0, time_s
        best = nothing
        for s in range(1, stages):
            for k in range(u + s, v - (stages - s) + 1):
                for m in range(s, gpus - (stages - s) + 1):
                    left = conquer(s, u, k, m, first_gpu)
                    right = conquer(stages - s, k, v, gpus - m, (first_gpu + m) % gpus_per_node)
                    both = combine(stages, s, left, right)
                    if sum(both[:3]) < sum(best[:3]):
                        best = both
        return best

    def combine(stages: int, s: int, left: Part, right: Part) -> Part:
        if inf in (left[0], right[0]):
            return nothing
        in_left = left[4] > right[4]
        slowest, time_s = (left[3], left[4]) if in_left else (s + right[3], right[4])
        t3 = left[2] + right[0] if in_left else right[2]
        return left[0] + right[0], (3 * stages + slowest - 1) * time_s, t3, slowest, time_s

    layers, gpus = len(profile.layers), nodes * gpus_per_node
    return min((sum(conquer(stages, 0, layers, gpus, 0)[:3]) for stages in range(nodes, layers + 1)), default=inf)


def ours(profile: Profile, gpus_per_node: int, most: int, microbatches: int | None) -> dict[int, tuple[Stage, ...]]:
    """Our mappings of a profile onto 1 to `most` nodes, where there are any."""
    stages = stages_of(profile, gpus_per_node)
    nodes = min(most, int(stages.layers // fill_of(stages.degrees, gpus_per_node)))
    if nodes == 0:
        return {}
    mapper = Mapper(MappingRequest(stages, gpus_per_node, MappingObjective(microbatches), nodes))
    found = mapper.best(mapper.fitting) if mapper.fitting else []
    made = [tuple((stop, stages.degrees[degree], first) for degree, first, stop in mapping) for mapping in found]
    return dict(zip(mapper.fitting, made, strict=True))


def random_node(chance: Random, profile: Profile) -> int:
    """GPUs of a node, up to 4, that the profile's degrees fill."""
    degrees = [cost.tensor_parallel for cost in profile.layers[0].costs]
    return chance.choice([gpus for gpus in (1, 2, 3, 4) if fill_of(degrees, gpus) < inf])


def one_forward_one_backward_s(times_s: list[float], microbatches: int, forward: float = 1 / 3) -> float:
    """The makespan of 1F1B where F is that share of every stage's time; links and memory cost nothing."""
    depth = len(times_s)
    warm_up = [min(depth - i, microbatches) for i in range(depth)]
    costs = [forward * time_s for time_s in times_s], [(1 - forward) * time_s for time_s in times_s], [0.0] * depth
    zeros, in_flight = [0.0] * depth, [0.0] * (depth * warm_up[0])
    state = PaceState(zeros.copy(), zeros.copy(), in_flight, zeros, zeros, in_flight, [], [0] * depth)
    return one_iteration_s(PaceCosts(warm_up, *costs), state, microbatches)
