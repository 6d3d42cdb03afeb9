"""Hypothesis strategies: stages, profiles, and random valid plans.

A random plan takes any cut, costs (zeros among them), delays, slow-downs and failed workers; its micro-batches go where
chance sends them, with B or with I and W; its orders are the projections of one random topological order of all
operations, and so are valid whatever chance does. Those with placements are in placed_plans.py.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from rtk.planners.scheduling.assemble import with_prediction
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.shape import Shape
from rtk.runners.program import Message
from rtk.schemas.orders import Kind, Operation, print_order
from rtk.schemas.plan import Layers, Link, Pipeline, Place, Placement, Plan, Planner, Stage, Template, Worker, place_of
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile

Cell = tuple[int, int, int]  # pipeline, micro-batch, stage

# Whole numbers make ties, zeros degenerate intervals, fractions rounding.
SECONDS = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 3.0]), st.floats(0.001, 10.0))
DELAYS = st.one_of(st.sampled_from([0.0, 1.0, 5.0]), st.floats(0.001, 10.0))
BYTES = st.one_of(st.sampled_from([0.0, 1.0, 8.0]), st.floats(0.001, 1e12))
BY_HAND = Planner("by hand", "1", {})


@st.composite
def stages(draw: st.DrawFn, layers: Layers, with_overheads: bool = True) -> Stage:
    """A stage of given layers, with random costs."""
    activation_bytes = draw(BYTES)
    return Stage(
        layers,
        draw(SECONDS),
        draw(SECONDS),
        draw(SECONDS),
        optimizer_s=draw(SECONDS) if with_overheads else 0.0,
        allreduce_s=draw(SECONDS) if with_overheads else 0.0,
        activation_bytes=activation_bytes,
        weight_stash_bytes=activation_bytes * draw(st.sampled_from([0.0, 0.3, 0.5, 1.0])),
        backward_s=draw(st.none() | SECONDS),
    )


@st.composite
def links(draw: st.DrawFn, columns: Sequence[int]) -> tuple[Link, ...]:
    """The links of a pipeline whose stages are at these columns: none inside of one, and like ones between two."""
    delays_s = {(column, column): 0.0 for column in columns}
    pairs = [(min(pair), max(pair)) for pair in pairwise(columns)]
    for pair in pairs:
        if pair not in delays_s:
            delays_s[pair] = draw(DELAYS)
    return tuple(Link(delays_s[pair]) for pair in pairs)


@st.composite
def templates(draw: st.DrawFn, depth: int, name: str = "t0") -> Template:
    """A template of `depth` stages of one layer each."""
    return draw(cut_templates(tuple(range(depth + 1)), name))


@st.composite
def cut_templates(draw: st.DrawFn, cuts: tuple[int, ...], name: str, placement: Placement | None = None) -> Template:
    """A template whose stages begin and end at the given layers."""
    held = tuple(draw(stages(layers)) for layers in pairwise(cuts))
    template = Template(name, held, (), placement)
    return replace(template, links=draw(links(template.column_of)))


@st.composite
def profiles(draw: st.DrawFn, min_layers: int = 1, max_layers: int = 6) -> Profile:
    """A profile of a few layers with random costs and sizes."""
    count = draw(st.integers(min_layers, max_layers))
    connection = Connection(draw(DELAYS), draw(st.one_of(st.none(), st.floats(1.0, 1e12))))
    return Profile(
        layers=tuple(draw(_layers()) for _ in range(count)),
        model=draw(st.dictionaries(st.text(max_size=5), st.one_of(st.text(max_size=5), st.integers(), st.booleans()))),
        origin=draw(st.sampled_from(["measured", "analytic", "given"])),
        device=Device(draw(st.one_of(st.none(), st.text(max_size=5)))),
        microbatch_size=draw(st.one_of(st.none(), st.integers(1, 64))),
        network=Network(intra_node=draw(st.sampled_from([None, connection]))),
    )


def _costs() -> st.SearchStrategy[LayerCost]:
    return st.builds(LayerCost, SECONDS, SECONDS, SECONDS, SECONDS, backward_s=st.none() | SECONDS)


@st.composite
def _layers(draw: st.DrawFn) -> Layer:
    activation_bytes = draw(BYTES)
    return Layer(
        costs=(draw(_costs()),),
        name=draw(st.one_of(st.none(), st.text(max_size=5))),
        parameter_bytes=draw(BYTES),
        activation_bytes=activation_bytes,
        weight_stash_bytes=activation_bytes * draw(st.sampled_from([0.0, 0.5, 1.0])),
        output_bytes=draw(BYTES),
    )


@st.composite
def shapes(draw: st.DrawFn, max_pp: int = 5) -> Shape:
    """What to plan: PP 1-5, DP 1-3, N 1-8, some links slowed for all pipelines or for one."""
    pp, dp = draw(st.integers(1, max_pp)), draw(st.integers(1, 3))
    places = st.tuples(st.one_of(st.none(), st.integers(0, dp - 1)), st.integers(0, max(0, pp - 2)))
    delays = draw(st.dictionaries(places, DELAYS, max_size=3)) if pp > 1 else {}
    return Shape(pp, dp, draw(st.integers(1, 8)), link_delay_s=delays)


@st.composite
def plans(draw: st.DrawFn, max_pp: int = 5, max_dp: int = 3, max_microbatches: int = 8) -> Plan:
    """A random valid plan with its prediction; its pipelines cut the layers at the same places."""
    depth, dp = draw(st.integers(1, max_pp)), draw(st.integers(1, max_dp))
    chance = random.Random(draw(st.integers(0, 2**32)))
    shared = draw(templates(depth))
    several = draw(st.booleans()) and dp > 1
    shapes_ = (shared, draw(templates(depth, "t1"))) if several else (shared,)
    return draw(plans_of(shapes_, dp, max_microbatches, chance))


@st.composite
def unlike_plans(draw: st.DrawFn, max_layers: int = 6, max_dp: int = 4, max_microbatches: int = 5) -> Plan:
    """A random valid plan of two or three templates that cut the layers anywhere, so also at unlike places."""
    layers, dp = draw(st.integers(2, max_layers)), draw(st.integers(2, max_dp))
    cuts = draw(st.lists(st.sets(st.integers(1, layers - 1)), min_size=2, max_size=3, unique_by=frozenset))
    chance = random.Random(draw(st.integers(0, 2**32)))
    shapes_ = tuple(draw(cut_templates((0, *sorted(cut), layers), f"n{n}")) for n, cut in enumerate(cuts))
    return draw(plans_of(shapes_, dp, max_microbatches, chance))


def any_plans() -> st.SearchStrategy[Plan]:
    """A random valid plan, of pipelines that cut the layers at the same or at unlike places."""
    return st.one_of(plans(), unlike_plans())


@st.composite
def plans_of(
    draw: st.DrawFn, shapes_: tuple[Template, ...], dp: int, max_microbatches: int, chance: random.Random
) -> Plan:
    """A random valid plan of some of these templates."""
    cuts = [chance.choice(shapes_) for _ in range(dp)]
    pipelines = tuple(
        Pipeline(
            template.name,
            draw(st.integers(1, max_microbatches)),
            draw(links(template.column_of)) if draw(st.booleans()) else None,
        )
        for template in cuts
    )
    workers = [(k, i) for k, template in enumerate(cuts) for i in range(len(template.columns))]
    dead = draw(st.sets(st.sampled_from(workers), max_size=2)) if dp > 1 else set()
    dead = {place for place in dead if not dead.issuperset(holders(cuts, place))}
    plan = Plan(
        planner=BY_HAND,
        templates=shapes_,
        pipelines=pipelines,
        optimizer=draw(st.sampled_from(["synchronous", "staggered"])),
        workers=tuple(random_workers(pipelines, cuts, dead, chance)),
    )
    if draw(st.booleans()):
        plan = limited_to_its_peaks(plan)
    return with_prediction(plan)


def holders(cuts: Sequence[Template], place: Place) -> list[Place]:
    """Who may execute what a worker may: its column's, if they hold the same; of placements, if they are alike."""
    k, i = place
    held = _held(cuts[k], i)
    return [(n, i) for n, cut in enumerate(cuts) if i < len(cut.columns) and _held(cut, i) == held]


def _held(cut: Template, column: int) -> object:
    """What makes workers of a column peers."""
    if cut.placement is None:
        return cut.stages[column].layers
    return cut.placement, tuple(stage.layers for stage in cut.stages)


def random_workers(
    pipelines: tuple[Pipeline, ...], cuts: Sequence[Template], dead: set[Place], chance: random.Random
) -> Iterator[Worker]:
    """Workers with random orders; failed ones have none, and others that hold the same take over, chunk by chunk."""
    executor: dict[Cell, Place] = {}
    followers: dict[tuple[str, Cell], list[tuple[str, Cell]]] = {}
    wanted: dict[tuple[str, Cell], int] = {}
    split_share = chance.choice([0.0, 0.5, 1.0])
    for k, pipeline in enumerate(pipelines):
        depth = len(cuts[k].stages)
        for j in range(pipeline.microbatches):
            split = [chance.random() < split_share for _ in range(depth)]
            _wire((k, j), split, followers, wanted)
            for i, column in enumerate(cuts[k].column_of):
                alive = [place for place in holders(cuts, (k, column)) if place not in dead]
                executor[k, j, i] = (k, column) if (k, column) in alive else chance.choice(alive)
    orders: dict[Place, list[Operation]] = {}
    ready = [node for node, count in wanted.items() if count == 0]
    while ready:
        kind, cell = ready.pop(chance.randrange(len(ready)))
        number, column = executor[cell]
        stage = cell[2] if len(cuts[number].columns[column]) > 1 else None
        orders.setdefault((number, column), []).append(Operation(_kind(kind), cell[0], cell[1], stage))
        for follower in followers.get((kind, cell), ()):
            wanted[follower] -= 1
            if wanted[follower] == 0:
                ready.append(follower)
    for k, cut in enumerate(cuts):
        for i in range(len(cut.columns)):
            slowdown = chance.choice([None, None, 1.0, 1.5, 3.7])
            if (k, i) in dead:
                yield Worker(k, i, failed=True)
            else:
                yield Worker(k, i, print_order(orders.get((k, i), []), k), slowdown)


def _wire(
    microbatch: tuple[int, int],
    split: list[bool],
    followers: dict[tuple[str, Cell], list[tuple[str, Cell]]],
    wanted: dict[tuple[str, Cell], int],
) -> None:
    """The dependencies of one micro-batch: down by F, up by I or B, and W where the backward is split."""
    depth = len(split)
    backward = ["I" if apart else "B" for apart in split]
    edges: list[tuple[tuple[str, Cell], tuple[str, Cell]]] = []
    for i in range(depth):
        here = (*microbatch, i)
        edges.append((("F", here), (backward[i], here)))
        if split[i]:
            edges.append((("I", here), ("W", here)))
        if i + 1 < depth:
            above = (*microbatch, i + 1)
            edges.append((("F", here), ("F", above)))
            edges.append(((backward[i + 1], above), (backward[i], here)))
    wanted.setdefault(("F", (*microbatch, 0)), 0)
    for earlier, later in edges:
        followers.setdefault(earlier, []).append(later)
        wanted[later] = wanted.get(later, 0) + 1


def _kind(letter: str) -> Kind:
    kinds: dict[str, Kind] = {"F": "F", "I": "I", "W": "W", "B": "B"}
    return kinds[letter]


def number_of(plan: Plan, one: Operation | Message) -> int:
    """The global number of the micro-batch of an operation, or of a message."""
    return plan.microbatch_offset(one.pipeline) + one.microbatch


def limited_to_its_peaks(plan: Plan) -> Plan:
    """The plan with memory limits that its workers just keep."""
    return limited(plan, peaks_by_stage(plan, plan.workers, evaluate(plan).peak_memory_bytes))


def peaks_by_stage(plan: Plan, workers: Sequence[Worker], peaks_bytes: Sequence[float]) -> dict[tuple[str, int], float]:
    """By template and stage the largest peak of the workers that hold it; `peaks_bytes` are those of `workers`."""
    found: dict[tuple[str, int], float] = {}
    for worker, peak_bytes in zip(workers, peaks_bytes, strict=True):
        place = plan.pipelines[worker.pipeline].template, worker.stage
        found[place] = max(peak_bytes, found.get(place, 0.0))
    return found


def limited(plan: Plan, limits_bytes: Mapping[tuple[str, int], float]) -> Plan:
    """The plan with these memory limits, by template and stage, and no others."""
    return replace(
        plan,
        templates=tuple(
            _limited(template, [limits_bytes.get((template.name, i)) for i in range(len(template.columns))])
            for template in plan.templates
        ),
    )


def _limited(template: Template, limits_bytes: Sequence[float | None]) -> Template:
    """The template with a limit for each column, where it has a placement for all or none."""
    if template.placement is None:
        pairs = zip(template.stages, limits_bytes, strict=True)
        return replace(template, stages=tuple(replace(stage, memory_limit_bytes=limit) for stage, limit in pairs))
    known = tuple(limit for limit in limits_bytes if limit is not None)
    return replace(template, memory_limits_bytes=known if len(known) == len(limits_bytes) else None)


def hand_plan(
    orders: dict[str, str | None],
    microbatches: int,
    times_s: tuple[float, float, float] = (1.0, 1.0, 1.0),
    delay_s: float = 0.0,
    limit_bytes: float | None = None,
    placement: Placement | None = None,
) -> Plan:
    """A plan by hand: order by worker `k/i` (None: failed), equal stages of 1 byte a micro-batch, half of it stash.

    Each column has the limit, and all hops between two of them take the delay.
    """
    places = [place_of(name) for name in orders]
    depth, dp = max(i for _, i in places) + 1, max(k for k, _ in places) + 1
    count = depth if placement is None else sum(map(len, placement))
    shape = tuple(Stage((i, i + 1), *times_s, activation_bytes=1.0, weight_stash_bytes=0.5) for i in range(count))
    template = Template("t0", shape, (), placement)
    hops = tuple(Link(0.0 if one == other else delay_s) for one, other in pairwise(template.column_of))
    return Plan(
        planner=BY_HAND,
        templates=(_limited(replace(template, links=hops), [limit_bytes] * depth),),
        pipelines=tuple(Pipeline("t0", microbatches) for _ in range(dp)),
        optimizer="synchronous",
        workers=tuple(
            Worker(k, i, order, failed=True if order is None else None)
            for (k, i), order in zip(places, orders.values(), strict=True)
        ),
    )
