"""GPU-stage mapping, "Oobleck" section 4.1.2: the layers and tensor-parallel degrees of each stage, at least time.

The paper divides layers and GPUs in two, again and again, and keeps the best mapping of each part. What is best for a
part is not always best for the whole: which stage is the slowest, and how many stages there are, is known only in the
end. We are exact. Once tau, the time of the slowest stage, is fixed, T is a sum over stages, and a shortest path over
(layers, GPUs) gives the least T (`mapping_kernels`). Over intervals of tau the same recursion gives a lower bound, so
we split the interval with the least bound until it is a single tau: branch and bound. (With one micro-batch T is the
sum of all t_i, whatever tau is, and nothing is split.) One recursion serves pipelines of all sizes, which share all
that they look at.

Stages lie within nodes and take the nodes' GPUs one after the other, each any number of them for which all layers have
a cost, in any order (the original halves nodes only).

Memory limits depend on how many stages follow. The recursion takes for each stage the fewest that may follow; where the
mapping it finds does not fit, a recursion that counts the stages does the same work again, and is exact.

T is the least up to rounding. Of several mappings with the same T, that is taken whose stages end first, one stage
after the other, and then that with the lowest degrees.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...schemas.errors import InvalidInputError
from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel, pays
from ...schemas.plan import Stage
from ...schemas.profile import NO_BOUNDARY, Profile, added_bytes
from ...schemas.templates import Objective as ObjectiveName
from ..scheduling.forms import Form

# Every stage that a pipeline may have: consecutive layers on so many GPUs of a node, with its times and bytes.
#
# At tensor-parallel degree d the times are the profile's at that degree, and each GPU holds one d-th of the parameters,
# state and activations of its layers. All sums run over the layers in order, so that equal layers make equal stages to
# the last bit, wherever they stand, and a stage's time is one number for whoever asks.


FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stages:
    """Tables over (degree index i, first layer u, end v); what does not depend on the degree has no i.

    Attributes:
        degrees: tensor-parallel degrees up to M that all layers have, ascending.
        forward_s, backward_input_s, backward_weight_s, optimizer_s: sums over the layers.
        backward_s: the same of full backward passes; None where neither a layer nor a boundary says what one takes.
        static_bytes, activation_bytes, weight_stash_bytes: of all GPUs of the stage together.
        replicated_bytes: what of the activations each of them holds whole.
        memory_bytes: of a GPU; infinite where there is no limit.
    """

    degrees: tuple[int, ...]
    forward_s: FloatArray
    backward_input_s: FloatArray
    backward_weight_s: FloatArray
    optimizer_s: FloatArray
    static_bytes: FloatArray
    activation_bytes: FloatArray
    weight_stash_bytes: FloatArray
    replicated_bytes: FloatArray
    memory_bytes: float
    backward_s: FloatArray | None = None

    @property
    def layers(self) -> int:
        """L."""
        return len(self.static_bytes)

    def times_s(self) -> FloatArray:
        """t = F + I + W of each stage; infinite where u >= v."""
        some_layers = np.tri(self.layers, self.layers + 1, dtype=bool)
        return np.where(some_layers, inf, self.forward_s + self.backward_input_s + self.backward_weight_s)

    def time_s(self, stage: tuple[int, int, int]) -> float:
        """t of the stage with that index of its degree, first layer and end, as in the table."""
        return float(self.forward_s[stage] + self.backward_input_s[stage] + self.backward_weight_s[stage])

    def activation_shares(self, degrees: FloatArray | int) -> FloatArray:
        """What each GPU of a stage holds of a micro-batch, at these degrees, in bytes."""
        return self.replicated_bytes + (self.activation_bytes - self.replicated_bytes) / degrees

    def room(self) -> FloatArray:
        """Micro-batches whose activations fit each stage's GPUs at once, whole numbers; below 1 where it cannot be."""
        degrees = np.array(self.degrees)[:, None, None]
        limit, activation = self.memory_bytes - self.static_bytes / degrees, self.activation_shares(degrees)
        with np.errstate(all="ignore"):
            room = np.floor(limit / activation)
            room += (room + 1) * activation <= limit
            room -= room * activation > limit
        room[np.isnan(room) | (activation == 0)] = inf
        return np.where(limit >= 0, room, 0.0)

    def stage(self, degree: int, first: int, stop: int) -> Stage:
        """A stage as plans have it, seen from one of its GPUs.

        Args:
            degree: its index.
            first, stop: its layers.
        """
        gpus, at = self.degrees[degree], (degree, first, stop)
        limit = self.memory_bytes - float(self.static_bytes[first, stop]) / gpus
        return Stage(
            layers=(first, stop),
            tensor_parallel=gpus,
            forward_s=float(self.forward_s[at]),
            backward_input_s=float(self.backward_input_s[at]),
            backward_weight_s=float(self.backward_weight_s[at]),
            optimizer_s=float(self.optimizer_s[at]),
            activation_bytes=float(self.activation_shares(gpus)[first, stop]),
            weight_stash_bytes=float(self.weight_stash_bytes[first, stop]) / gpus,
            memory_limit_bytes=None if limit == inf else limit,
            backward_s=None if self.backward_s is None else float(self.backward_s[at]),
        )


def stages_of(profile: Profile, gpus_per_node: int, memory_limit_bytes: float | None = None) -> Stages:
    """Tabulate the stages that a profile allows on nodes of so many GPUs.

    Args:
        profile: the model's costs.
        gpus_per_node: M; larger degrees are left out.
        memory_limit_bytes: of a GPU, parameters and state included, instead of the device's.

    Raises:
        InvalidInputError: with the degrees that all layers have, a node's GPUs cannot all be used.
    """
    layers = profile.layers
    degrees = [degree for degree in profile.degrees if degree <= gpus_per_node]
    if fill_of(degrees, gpus_per_node) == inf:
        raise InvalidInputError(
            f"stages of {' or '.join(map(str, degrees))} GPUs, the tensor-parallel degrees that all layers have, do "
            f"not fill a node of {gpus_per_node}"
            if degrees
            else f"there is no tensor-parallel degree up to {gpus_per_node}, the GPUs of a node, that all layers have",
            where="the profile, /layers",
            fix=missing_degree(profile, gpus_per_node, gpus_per_node),
        )
    costs = [
        [next(cost for cost in layer.costs if cost.tensor_parallel == degree) for layer in layers] for degree in degrees
    ]
    inner = profile.inner
    has_full = inner != NO_BOUNDARY or any(cost.backward_s is not None for row in costs for cost in row)
    memory_bytes = profile.device.memory_bytes if memory_limit_bytes is None else memory_limit_bytes
    # Parameters and state of layers u to v - 1 at [u, v], a matrix that two of them share once; zero where u >= v.
    count = len(layers)
    sums = np.zeros((count, count + 1))
    for first in range(count):
        sums[first, first + 1 :] = np.add.accumulate([sum(added_bytes(layer, first)) for layer in layers[first:]])
    return Stages(
        degrees=tuple(degrees),
        forward_s=_sums([[cost.forward_s for cost in row] for row in costs], inner.forward_s),
        backward_input_s=_sums([[cost.backward_input_s for cost in row] for row in costs], inner.backward_input_s),
        backward_weight_s=_sums([[cost.backward_weight_s for cost in row] for row in costs], inner.backward_weight_s),
        optimizer_s=_sums([[cost.optimizer_s for cost in row] for row in costs]),
        static_bytes=sums,
        activation_bytes=_sums([layer.activation_bytes for layer in layers]),
        weight_stash_bytes=_sums([layer.weight_stash_bytes for layer in layers]),
        replicated_bytes=_sums([layer.replicated_bytes or 0.0 for layer in layers]),
        memory_bytes=inf if memory_bytes is None else memory_bytes,
        backward_s=_sums([[cost.full_s for cost in row] for row in costs], inner.backward_s) if has_full else None,
    )


def fill_of(degrees: Iterable[int], gpus_per_node: int) -> float:
    """The fewest stages that use up a node of M GPUs; infinite where none do."""
    degrees = tuple(degrees)
    fewest = [0.0]
    for used in range(1, gpus_per_node + 1):
        fewest.append(1 + min((fewest[used - degree] for degree in degrees if degree <= used), default=inf))
    return fewest[gpus_per_node]


def missing_degree(profile: Profile, gpus_per_node: int, most: int) -> str:
    """What to profile so that at most `most` stages fill a node: the degree that the fewest layers lack."""
    layers, common = profile.layers, profile.degrees
    useful = (
        d for d in range(1, gpus_per_node + 1) if d not in common and fill_of([*common, d], gpus_per_node) <= most
    )
    lacking = {
        d: [i for i, layer in enumerate(layers) if d not in {cost.tensor_parallel for cost in layer.costs}]
        for d in useful
    }
    degree = min(lacking, key=lambda d: (len(lacking[d]), d))
    first, others = lacking[degree][0], len(lacking[degree]) - 1
    lack = f"and {others} more lack" if others else "lacks"
    return f"profile tensor_parallel {degree} for every layer: layer {first} {lack} it"


def _sums(values: Any, inner: float = 0.0) -> FloatArray:
    """Sums of values u to v - 1 at [..., u, v], each added up from u on; zero where u >= v.

    Args:
        values: of layers, the last axis.
        inner: what each pair of neighbours takes less.
    """
    row = np.array(values, dtype=np.float64)
    count = row.shape[-1]
    sums = np.zeros((*row.shape[:-1], count, count + 1))
    for first in range(count):
        sums[..., first, first + 1 :] = np.add.accumulate(row[..., first:], axis=-1)
        sums[..., first, first + 1 :] -= np.arange(count - first) * inner
    return sums


# The kernels of the GPU-stage mapping: shortest paths over layers and GPUs, from the last layer to the first.
#
# A place is (u, r, j): layers u to L - 1 are mapped onto j full nodes, counted from the end of the pipeline, and r GPUs
# of the node before them. It stands at `(u * M + r) * (nodes + 1) + j` of a flat array. A stage of layers u to v - 1 on
# the degree with index i has its time and its room at `(i * L + u) * (L + 1) + v`.
#
# The time tau of the slowest stage is given, exactly or as an interval [low, high], and T is a sum over stages
# (`objective.Weights`). `after` has the least cost of places all of whose stages are shorter than tau, `done` of those
# that have their last slowest stage. With an interval every cost is the least that any tau in it allows; with low =
# high it is exact.


INFINITY = float("inf")


BEFORE, TIMES, AFTER, SLOWEST = 0, 1, 2, 3  # fields of Weights, which numba does not know


@kernel
def cost_before(time_s: float, low_s: float, weights: Ints) -> float:
    """What a stage before the last slowest one costs at least, in s."""
    return time_s + weights[BEFORE] * max(time_s, low_s)


@kernel
def cost_after(time_s: float, low_s: float, high_s: float, weights: Ints) -> float:
    """What a stage after the last slowest one costs at least, in s; infinite where it is no shorter than that."""
    if time_s >= high_s:
        return INFINITY
    return weights[TIMES] * time_s + weights[AFTER] * max(time_s, low_s)


@kernel
def cost_slowest(time_s: float, low_s: float, weights: Ints) -> float:
    """What the last slowest stage costs, in s; infinite where it is too short."""
    return weights[SLOWEST] * time_s if time_s >= low_s else INFINITY


@kernel
def row_of(u: int, used: int, gpus: int, width: int) -> int:
    """Where the places of layer u begin that have `used` GPUs of a node, which with all of them is a full one more."""
    return (u * gpus + used) * width if used < gpus else u * gpus * width + 1


@kernel
def fewest_stages(degrees: Ints, room: Floats, layers: int, gpus: int, nodes: int, fewest: MutableFloats) -> None:
    """The fewest stages from each place to the end that memory admits; infinite where there are none.

    Memory knows of a stage's position only how many stages follow, and fewer are better: no other count is needed.

    Args:
        degrees: GPUs of a stage, ascending.
        room: micro-batches that fit each stage's memory: below 1 where it cannot be, infinite where any number fits.
        layers, gpus, nodes: L, M, and nodes of the largest pipeline.
        fewest: result, by place.
    """
    width = nodes + 1
    for place in range((layers + 1) * gpus * width):
        fewest[place] = INFINITY
    fewest[layers * gpus * width] = 0.0
    for u in range(layers - 1, -1, -1):
        for v in range(u + 1, layers + 1):
            for i in range(len(degrees)):
                fits = room[(i * layers + u) * (layers + 1) + v]
                for r in range(gpus - degrees[i] + 1):
                    source, target = (v * gpus + r) * width, row_of(u, r + degrees[i], gpus, width)
                    for j in range(min(nodes, layers - v + 1)):
                        count = fewest[source + j] + 1.0
                        if count <= fits and count < fewest[target + j]:
                            fewest[target + j] = count


class RecursionCosts(NamedTuple):
    """What least costs follow from.

    Attributes:
        degrees: GPUs of a stage, ascending.
        times_s: t of each stage.
        room: micro-batches that fit each stage's memory.
        fewest: stages from each place to the end.
        layers, gpus, nodes: L, M, and nodes of the largest pipeline.
        smallest: nodes of the smallest pipeline asked for.
        fill: stages of a node, at least.
        low_s, high_s: where tau lies.
        weights: of the objective.
        most: the largest count of stages that matters, which stands for all larger ones; 0 where they are not counted.
    """

    degrees: Ints
    times_s: Floats
    room: Floats
    fewest: Floats
    layers: int
    gpus: int
    nodes: int
    smallest: int
    fill: int
    low_s: float
    high_s: float
    weights: Ints
    most: int


class LeastCosts(NamedTuple):
    """The least costs so far, in s, before the slowest stage and with it, at `place * (most + 1) + count`.

    `largest` is the largest count that there is at each place, -1 where there is none.
    """

    after: MutableFloats
    done: MutableFloats
    largest: MutableInts


class OneStage(NamedTuple):
    """What a stage admits, and costs before the slowest one, as the slowest one, and after it."""

    fits: float
    before_s: float
    slowest_s: float
    after_s: float


@kernel
def put_before(costs: RecursionCosts, least: LeastCosts, stage: OneStage, source: int, target: int, stop: int) -> None:
    """Put a stage before the places from `source` up to `stop`; those from `target` on have the result."""
    fewest, after, done = costs.fewest, least.after, least.done
    fits, before_s, slowest_s, after_s = stage
    ahead = target - source
    for at in range(source, stop):
        closed = 0.0 if fewest[at] < fits else INFINITY
        whole_s = min(done[at] + before_s, after[at] + slowest_s) + closed
        after[at + ahead] = min(after[at + ahead], after[at] + after_s + closed)
        done[at + ahead] = min(done[at + ahead], whole_s)


@kernel
def put_before_counted(
    costs: RecursionCosts, least: LeastCosts, stage: OneStage, source: int, target: int, stop: int
) -> None:
    """Put a stage before the places from `source` up to `stop`, for each count of stages that its memory admits."""
    most, fewest, after, done, largest = costs.most, costs.fewest, least.after, least.done, least.largest
    fits, before_s, slowest_s, after_s = stage
    for at in range(source, stop):
        if largest[at] < 0 or not fewest[at] < fits:
            continue
        last = largest[at] if fits == INFINITY else min(largest[at], int(fits) - 1)
        row, to_row = at * (most + 1), (at + target - source) * (most + 1)
        for count in range(min(int(fewest[at]), most), last + 1):
            to = to_row + min(count + 1, most)
            after[to] = min(after[to], after[row + count] + after_s)
            done[to] = min(done[to], min(done[row + count] + before_s, after[row + count] + slowest_s))


@kernel
def drop_dominated(least: LeastCosts, most: int, first: int, stop: int) -> None:
    """Forget, at places, counts of stages that cost more than a smaller count; note the largest that is left."""
    after, done = least.after, least.done
    for place in range(first, stop if most > 0 else first):
        least_after, least_done = INFINITY, INFINITY
        least.largest[place] = -1
        for count in range(most + 1):
            at = place * (most + 1) + count
            if after[at] > least_after:
                after[at] = INFINITY
            if done[at] > least_done:
                done[at] = INFINITY
            least_after, least_done = min(least_after, after[at]), min(least_done, done[at])
            if min(after[at], done[at]) < INFINITY:
                least.largest[place] = count


@kernel
def least_costs(costs: RecursionCosts, least: LeastCosts) -> None:
    """The least cost of each place, in s.

    Where stages are counted, for each number of them from there to the end: memory is exact. Else it is taken as if the
    fewest possible stages followed each stage.
    """
    layers, gpus, nodes, most, weights = costs.layers, costs.gpus, costs.nodes, costs.most, costs.weights
    low_s, high_s, degrees, fill = costs.low_s, costs.high_s, costs.degrees, costs.fill
    width = nodes + 1
    for at in range((layers + 1) * gpus * width * (most + 1)):
        least.after[at] = INFINITY
        least.done[at] = INFINITY
    least.after[layers * gpus * width * (most + 1)] = 0.0
    drop_dominated(least, most, layers * gpus * width, (layers + 1) * gpus * width)
    for u in range(layers - 1, -1, -1):
        first = max(
            0, costs.smallest - 1 - u // fill
        )  # with fewer nodes, the layers ahead do not suffice for the others
        for v in range(u + 1, layers + 1):
            stop = min(nodes, (layers - v) // fill + 1)
            short = False
            for i in range(len(degrees)):
                number = (i * layers + u) * (layers + 1) + v
                time_s, fits = costs.times_s[number], costs.room[number]
                short = short or time_s <= high_s
                if time_s > high_s or fits < 1.0:
                    continue
                slowest_s = cost_slowest(time_s, low_s, weights)
                after_s = cost_after(time_s, low_s, high_s, weights)
                stage = OneStage(fits, cost_before(time_s, low_s, weights), slowest_s, after_s)
                for r in range(gpus - degrees[i] + 1):
                    source = (v * gpus + r) * width + first
                    target = row_of(u, r + degrees[i], gpus, width) + first
                    if most > 0:
                        put_before_counted(costs, least, stage, source, target, source - first + stop)
                    else:
                        put_before(costs, least, stage, source, target, source - first + stop)
            if not short:
                break
        drop_dominated(least, most, u * gpus * width, (u + 1) * gpus * width)


# What a template is judged by: the time of one iteration of a 1F1B pipeline, "Oobleck" section 4.1.2.
#
# A pipeline of S stages has stage times t_i = F + I + W, and k is the last of its slowest stages. Equations 1 to 4 add
# up the critical path of Figure 5 as T = T1 + T2 + T3:
#
#     T1 = sum of all t_i                  every stage once, forward and backward
#     T2 = (N_b - S + k - 1) t_k           the slowest stage in its steady phase
#     T3 = sum of t_i from stage k on      what follows it
#
# The paper does not know N_b, the micro-batches of the pipeline, when it plans, and takes N_b = 4 S (`four-per-stage`).
# Templates of unlike depth are then compared at unlike amounts of work, which favours few stages. Where n micro-batches
# are given (`microbatches`), we deviate from the paper:
#
#     T = sum of all t_i + (n - 1) t_k     the first micro-batch in every stage, the others behind it in the slowest
#
# This is the time of n jobs, in order, through a flow shop. Where F is the same share of every stage's t, and links and
# memory cost nothing, 1F1B takes no longer, and less by no more than the sum of t_i after k (tests, benchmark).
#
# The paper's T with N_b = n is no such estimate. Where the stages after k are light, it is less than stage k works,
# plus what that waits for: n t_k + sum of t_i before k; with n near or below S it may be negative. Its templates pay
# for that. What the template for 24 nodes of 8 GPUs and 96 unlike layers takes under 1F1B, in s, chosen by
#
#     n                                          24      96     192
#     four-per-stage                          149.1   394.5   721.9
#     the paper's T, N_b = n, kept above that 199.1   356.8   546.7
#     microbatches                            150.0   325.4   542.5
#
# (`benchmarks/oobleck_templates.py` makes the first and last line.)


PER_STAGE = 4  # N_b / S in the paper


class Weights(NamedTuple):
    """T as a sum over stages, given tau = t_k: what a stage of time t adds, by its place.

    Before the last slowest stage t + `before` tau; after it `times` t + `after` tau; that stage itself `slowest` tau.
    """

    before: int
    times: int
    after: int
    slowest: int


FLAT = Weights(before=0, times=1, after=0, slowest=1)  # the sum of all t_i, which knows no tau


@dataclass(frozen=True)
class MappingObjective:
    """T, with so many micro-batches in each pipeline; with None, four a stage."""

    given: int | None

    @property
    def name(self) -> ObjectiveName:
        """As templates call it."""
        return "four-per-stage" if self.given is None else "microbatches"

    @property
    def weights(self) -> Weights:
        """T as a sum."""
        if self.given is None:
            return Weights(before=PER_STAGE, times=2, after=PER_STAGE - 1, slowest=PER_STAGE)
        return Weights(before=0, times=1, after=0, slowest=self.given)

    def microbatches(self, stages: int) -> int:
        """N_b of a pipeline of so many stages."""
        return PER_STAGE * stages if self.given is None else self.given

    def in_flight(self, stages: int, stage: int) -> int:
        """Micro-batches whose activations a stage of a 1F1B pipeline holds at once, at most."""
        return min(stages - stage, self.microbatches(stages))

    def iteration_time_s(self, times_s: Sequence[float]) -> float:
        """T of a pipeline, in s.

        Args:
            times_s: t of each stage, in order.
        """
        stages, slowest_s = len(times_s), max(times_s)
        if self.given is not None:
            return sum(times_s) + (self.given - 1) * slowest_s
        last = max(i for i, time_s in enumerate(times_s) if time_s == slowest_s)
        steady_s = (self.microbatches(stages) - stages + last - 1) * slowest_s
        return sum(times_s) + steady_s + sum(times_s[last:])


# The recursions of `mapping_kernels`, ready to be asked: bounds for intervals of tau, and the mappings behind them.


INTERPRETED_STEPS = 3000  # of one recursion; to load machine code takes half a second
StageKey = tuple[int, int, int]  # index of the degree, first layer, end of the layers
Mapping = tuple[StageKey, ...]
State = tuple[bool, int]  # of a place: whether the last slowest stage is in it; how many stages, where they are counted


@dataclass(frozen=True)
class MappingRequest:
    """What to map.

    Attributes:
        stages: those there may be.
        gpus_per_node: M.
        objective: what mappings are judged by.
        nodes: of the largest pipeline; one for which there are layers enough.
    """

    stages: Stages
    gpus_per_node: int
    objective: MappingObjective
    nodes: int


class MappingTables:
    """A request as the kernels take it.

    A stage needs room for as many micro-batches as there are stages from it on; `room` is infinite where a pipeline
    never has more in flight than fit. `fewest` is the fewest stages from each place to the end. `knows_tau` says
    whether T depends on tau.
    """

    def __init__(self, request: MappingRequest) -> None:
        self.degrees, self.layers = request.stages.degrees, request.stages.layers
        self.gpus, self.nodes = request.gpus_per_node, request.nodes
        self.places = (self.layers + 1) * self.gpus * (self.nodes + 1)
        self.fill = int(fill_of(self.degrees, self.gpus))
        times_s, room = request.stages.times_s(), request.stages.room()
        room[room >= request.objective.in_flight(self.layers, 0)] = inf
        self.most = int(min(self.layers, room[times_s < inf].max()))
        self.taus = np.unique(times_s[(room >= 1) & (times_s < inf)])
        steps = self.layers**2 * len(self.degrees) * self.gpus * self.nodes // 2
        self.form = Form(pays(least_costs, steps, INTERPRETED_STEPS))
        weights = request.objective.weights
        self.knows_tau = weights != FLAT
        self.degree_list, self.weights = self.form.ints(self.degrees), self.form.ints(weights)
        self.times_s, self.room = self.form.floats(times_s.ravel()), self.form.floats(room.ravel())
        self.fewest = self.form.float_space(self.places)
        shape = (self.layers, self.gpus, self.nodes)
        self.form.kernel(fewest_stages)(self.degree_list, self.room, *shape, self.fewest)

    def index(self, stage: StageKey) -> int:
        """Where a stage stands."""
        degree, first, stop = stage
        return (degree * self.layers + first) * (self.layers + 1) + stop

    def place(self, first: int, gpus_left: int) -> int:
        """Where a place stands, by its first layer and all the GPUs it has."""
        return (first * self.gpus + gpus_left % self.gpus) * (self.nodes + 1) + gpus_left // self.gpus

    def next_stages(self, first: int, gpus_left: int) -> Iterator[StageKey]:
        """The stages that a place may begin with: those that end first first, of them the lowest degree."""
        for stop in range(first + 1, self.layers + 1):
            for degree, gpus in enumerate(self.degrees):
                if (gpus_left - 1) // self.gpus == (gpus_left - gpus) // self.gpus:
                    yield degree, first, stop


class Recursion:
    """Least costs of all places, tau in an interval: with a count of stages, or as if the fewest always followed."""

    def __init__(self, tables: MappingTables, smallest: int, counting: bool) -> None:
        self._tables, self._smallest = tables, smallest
        self._most = tables.most if counting else 0
        self._counts = self._most + 1
        self._low_s, self._high_s = 0.0, 0.0
        self._bounds_s: dict[tuple[int, int], list[float]] = {}

    def bound_s(self, nodes: int, first: int, stop: int) -> float:
        """What T is at least if tau is one of the times with indices first to stop - 1; what it is, if there is one."""
        if (first, stop) not in self._bounds_s:
            self._run(first, stop)
            done_s = np.asarray(self._done_s[: (self._tables.nodes + 1) * self._counts])
            self._bounds_s[first, stop] = done_s.reshape(-1, self._counts).min(axis=1).tolist()
        return self._bounds_s[first, stop][nodes]

    def mapping(self, nodes: int, first: int, stop: int) -> Mapping:
        """The first of the mappings that cost no more than the bound for these times: one time, or T knows no tau.

        All states that such a mapping may be in are followed at once, so that the first stage on any way is seen.
        """
        self._run(first, stop)
        tables, layer, gpus_left = self._tables, 0, nodes * self._tables.gpus
        place = tables.place(0, gpus_left)
        costs_s = [self._done_s[place * self._counts + count] for count in range(self._counts)]
        states, chosen = {(True, count) for count, cost_s in enumerate(costs_s) if cost_s == min(costs_s)}, []
        while layer < tables.layers:
            stage, states = next(self._ways(layer, gpus_left, states))
            chosen.append(stage)
            layer, gpus_left = stage[2], gpus_left - tables.degrees[stage[0]]
        return tuple(chosen)

    def _ways(self, first: int, gpus_left: int, states: set[State]) -> Iterator[tuple[StageKey, set[State]]]:
        """The stages that some of these states of a place owe their cost to, and the states behind them."""
        for stage in self._tables.next_stages(first, gpus_left):
            place = self._tables.place(first, gpus_left)
            source = self._tables.place(stage[2], gpus_left - self._tables.degrees[stage[0]])
            if self._tables.times_s[self._tables.index(stage)] <= self._high_s:
                behind = {found for state in states for found in self._behind(place, source, state, stage)}
                if behind:
                    yield stage, behind

    def _behind(self, place: int, source: int, state: State, stage: StageKey) -> Iterator[State]:
        """The states of `source` that, with this stage before them, cost what this state of `place` does."""
        done, count = state
        cost_s = (self._done_s if done else self._after_s)[place * self._counts + count]
        # What a stage costs before the slowest one, as the slowest one, and after it.
        time_s, weights = self._tables.times_s[self._tables.index(stage)], self._tables.weights
        before_s, slowest_s, after_s = (
            cost_before(time_s, self._low_s, weights),
            cost_slowest(time_s, self._low_s, weights),
            cost_after(time_s, self._low_s, self._high_s, weights),
        )
        room, fewest = self._tables.room[self._tables.index(stage)], self._tables.fewest[source]
        behind = {count, count - 1} if count == self._most else {count - 1}
        for at_end in sorted(behind):
            if at_end < 0 or max(at_end, fewest) >= room:
                continue
            at = source * self._counts + at_end
            if done and self._done_s[at] + before_s == cost_s:
                yield True, at_end
            if self._after_s[at] + (slowest_s if done else after_s) == cost_s:
                yield False, at_end

    @cached_property
    def _after_s(self) -> Any:
        return self._tables.form.float_space(self._tables.places * self._counts)

    @cached_property
    def _done_s(self) -> Any:
        return self._tables.form.float_space(self._tables.places * self._counts)

    @cached_property
    def _largest(self) -> Any:
        return self._tables.form.int_space(self._tables.places)

    def _run(self, first: int, stop: int) -> None:
        """Work out the least costs for the times with indices first to stop - 1."""
        tables = self._tables
        self._low_s, self._high_s = float(tables.taus[first]), float(tables.taus[stop - 1])
        costs = RecursionCosts(
            tables.degree_list, tables.times_s, tables.room, tables.fewest, tables.layers, tables.gpus, tables.nodes,
            self._smallest, tables.fill, self._low_s, self._high_s, tables.weights, self._most,
        )  # fmt: skip
        tables.form.kernel(least_costs)(costs, LeastCosts(self._after_s, self._done_s, self._largest))


class Mapper:
    """Finds the best mapping for each number of nodes; the numbers share all recursions.

    Attributes:
        fitting: the numbers of nodes that there is a mapping for.
    """

    def __init__(self, request: MappingRequest) -> None:
        self._tables = MappingTables(request)
        self.fitting = [nodes for nodes in range(1, request.nodes + 1) if self._tables.fewest[nodes] < inf]

    def best(self, sizes: Sequence[int]) -> list[Mapping]:
        """The mappings of least T onto so many nodes each, all of them `fitting`."""
        search = _MappingSearch(self._tables, min(sizes))
        return [search.best(nodes) for nodes in sizes]


class _MappingSearch:
    """Branch and bound over tau."""

    def __init__(self, tables: MappingTables, smallest: int) -> None:
        self._tables = tables
        self._rough = Recursion(tables, smallest, counting=False)
        self._exact = Recursion(tables, smallest, counting=True)

    def best(self, nodes: int) -> Mapping:
        """The mapping of least T: that of the rough recursion if it has room for its stages, else the exact one's."""
        found = self._search(nodes, [self._rough])
        room = [self._tables.room[self._tables.index(stage)] for stage in found]
        fits = all(len(found) - i <= most for i, most in enumerate(room))
        return found if fits else self._search(nodes, [self._rough, self._exact])

    def _search(self, nodes: int, recursions: Sequence[Recursion]) -> Mapping:
        """Split intervals, the least bound first; an interval is bounded by one recursion after the other."""
        least_s, best = inf, list[Mapping]()
        waiting = [(-inf, 0, 0, len(self._tables.taus))]
        while waiting and waiting[0][0] <= least_s:
            bound_s, bounded, first, stop = heappop(waiting)
            if bounded < len(recursions):
                bound_s = recursions[bounded].bound_s(nodes, first, stop)
                if bound_s < inf:
                    heappush(waiting, (bound_s, bounded + 1, first, stop))
            elif stop - first > 1 and self._tables.knows_tau:
                middle = (first + stop) // 2
                heappush(waiting, (bound_s, 0, first, middle))
                heappush(waiting, (bound_s, 0, middle, stop))
            else:
                best = [*(best if bound_s == least_s else ()), recursions[-1].mapping(nodes, first, stop)]
                least_s = bound_s
        return min(best, key=lambda mapping: [(stop, degree) for degree, _, stop in mapping])
