"""The kernels of the GPU-stage mapping: shortest paths over layers and GPUs, from the last layer to the first.

A place is (u, r, j): layers u to L - 1 are mapped onto j full nodes, counted from the end of the pipeline, and r GPUs
of the node before them. It stands at `(u * M + r) * (nodes + 1) + j` of a flat array. A stage of layers u to v - 1 on
the degree with index i has its time and its room at `(i * L + u) * (L + 1) + v`.

The time tau of the slowest stage is given, exactly or as an interval [low, high], and T is a sum over stages
(`objective.Weights`). `after` has the least cost of places all of whose stages are shorter than tau, `done` of those
that have their last slowest stage. With an interval every cost is the least that any tau in it allows; with low = high
it is exact.
"""

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel

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


@kernel
def put_before(
    source: int,
    target: int,
    stop: int,
    fits: float,
    before_s: float,
    slowest_s: float,
    after_s: float,
    fewest: Floats,
    after: MutableFloats,
    done: MutableFloats,
) -> None:
    """Put a stage before the places from `source` up to `stop`; those from `target` on have the result."""
    ahead = target - source
    for at in range(source, stop):
        closed = 0.0 if fewest[at] < fits else INFINITY
        whole_s = min(done[at] + before_s, after[at] + slowest_s) + closed
        after[at + ahead] = min(after[at + ahead], after[at] + after_s + closed)
        done[at + ahead] = min(done[at + ahead], whole_s)


@kernel
def put_before_counted(
    source: int,
    target: int,
    stop: int,
    fits: float,
    before_s: float,
    slowest_s: float,
    after_s: float,
    fewest: Floats,
    most: int,
    largest: Ints,
    after: MutableFloats,
    done: MutableFloats,
) -> None:
    """Put a stage before the places from `source` up to `stop`, for each count of stages that its memory admits."""
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
def drop_dominated(place: int, most: int, largest: MutableInts, after: MutableFloats, done: MutableFloats) -> None:
    """Forget, at a place, counts of stages that cost more than a smaller count; note the largest that is left."""
    least_after, least_done = INFINITY, INFINITY
    largest[place] = -1
    for count in range(most + 1):
        at = place * (most + 1) + count
        if after[at] > least_after:
            after[at] = INFINITY
        if done[at] > least_done:
            done[at] = INFINITY
        least_after, least_done = min(least_after, after[at]), min(least_done, done[at])
        if min(after[at], done[at]) < INFINITY:
            largest[place] = count


@kernel
def least_costs(
    degrees: Ints,
    times_s: Floats,
    room: Floats,
    fewest: Floats,
    layers: int,
    gpus: int,
    nodes: int,
    smallest: int,
    fill: int,
    low_s: float,
    high_s: float,
    weights: Ints,
    after: MutableFloats,
    done: MutableFloats,
) -> None:
    """The least cost of each place, in s; memory is taken as if the fewest possible stages followed each stage.

    Args:
        degrees: GPUs of a stage, ascending.
        times_s: t of each stage.
        room: micro-batches that fit each stage's memory.
        fewest: stages from each place to the end.
        layers, gpus, nodes: L, M, and nodes of the largest pipeline.
        smallest: nodes of the smallest pipeline asked for.
        fill: stages of a node, at least.
        low_s, high_s: where tau lies.
        weights: of the objective.
        after, done: results, by place.
    """
    width = nodes + 1
    for place in range((layers + 1) * gpus * width):
        after[place] = INFINITY
        done[place] = INFINITY
    after[layers * gpus * width] = 0.0
    for u in range(layers - 1, -1, -1):
        first = max(0, smallest - 1 - u // fill)  # with fewer nodes, the layers ahead do not suffice for the others
        for v in range(u + 1, layers + 1):
            stop = min(nodes, (layers - v) // fill + 1)
            short = False
            for i in range(len(degrees)):
                stage = (i * layers + u) * (layers + 1) + v
                time_s, fits = times_s[stage], room[stage]
                short = short or time_s <= high_s
                if time_s > high_s or fits < 1.0:
                    continue
                before_s = cost_before(time_s, low_s, weights)
                slowest_s = cost_slowest(time_s, low_s, weights)
                after_s = cost_after(time_s, low_s, high_s, weights)
                for r in range(gpus - degrees[i] + 1):
                    source = (v * gpus + r) * width + first
                    target = row_of(u, r + degrees[i], gpus, width) + first
                    end = source - first + stop
                    put_before(source, target, end, fits, before_s, slowest_s, after_s, fewest, after, done)
            if not short:
                break


@kernel
def least_costs_by_count(
    degrees: Ints,
    times_s: Floats,
    room: Floats,
    fewest: Floats,
    layers: int,
    gpus: int,
    nodes: int,
    smallest: int,
    fill: int,
    low_s: float,
    high_s: float,
    weights: Ints,
    most: int,
    largest: MutableInts,
    after: MutableFloats,
    done: MutableFloats,
) -> None:
    """The least cost of each place for each number of stages from there to the end, in s: memory is exact.

    Args:
        degrees, times_s, room, fewest, layers, gpus, nodes, smallest, fill, low_s, high_s, weights: as above.
        most: the largest count that matters; it stands for all larger ones.
        largest: work space, by place: the largest count there is, -1 where there is none.
        after, done: results, at `place * (most + 1) + count`.
    """
    width = nodes + 1
    for at in range((layers + 1) * gpus * width * (most + 1)):
        after[at] = INFINITY
        done[at] = INFINITY
    after[layers * gpus * width * (most + 1)] = 0.0
    for place in range(layers * gpus * width, (layers + 1) * gpus * width):
        drop_dominated(place, most, largest, after, done)
    for u in range(layers - 1, -1, -1):
        first = max(0, smallest - 1 - u // fill)
        for v in range(u + 1, layers + 1):
            stop = min(nodes, (layers - v) // fill + 1)
            short = False
            for i in range(len(degrees)):
                stage = (i * layers + u) * (layers + 1) + v
                time_s, fits = times_s[stage], room[stage]
                short = short or time_s <= high_s
                if time_s > high_s or fits < 1.0:
                    continue
                before_s = cost_before(time_s, low_s, weights)
                slowest_s = cost_slowest(time_s, low_s, weights)
                after_s = cost_after(time_s, low_s, high_s, weights)
                for r in range(gpus - degrees[i] + 1):
                    source = (v * gpus + r) * width + first
                    target = row_of(u, r + degrees[i], gpus, width) + first
                    put_before_counted(
                        source, target, source - first + stop, fits, before_s, slowest_s, after_s,
                        fewest, most, largest, after, done,
                    )  # fmt: skip
            if not short:
                break
        for place in range(u * gpus * width, (u + 1) * gpus * width):
            drop_dominated(place, most, largest, after, done)
