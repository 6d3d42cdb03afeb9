"""Instantiation: the pace of a pipeline, and pipelines as fast as the best of all sets (a few seconds in all)."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.batch.distribute import distribute
from rtk.planners.batch.exact import Pace
from rtk.planners.oobleck.instantiation import (
    Knapsack,
    fastest_sizes,
    fewest_pipelines,
    instantiate,
    microbatches_of,
    require_covered,
)
from rtk.planners.oobleck.pace import Ending, ending_of, paces_of, stage_ends_s, warm_ups_of
from rtk.planners.oobleck.plan import plan_of
from rtk.planners.pipeline import one_forward_one_backward
from rtk.planners.scheduling.evaluate import evaluate
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.network import Rings
from rtk.schemas.plan import Link, Pipeline, Plan, Planner, Stage, Template, Worker
from rtk.schemas.profile import Connection, Network
from rtk.schemas.templates import PipelineTemplate, Templates

from .oobleck_examples import even_templates, random_templates


def _stages(times_s: list[float]) -> tuple[Stage, ...]:
    return tuple(Stage((i, i + 1), time_s, time_s, time_s) for i, time_s in enumerate(times_s))


def _makespan_s(stages: Sequence[Stage], links: Sequence[Link], microbatches: int) -> float:
    """What the evaluator says of one pipeline."""
    rows = one_forward_one_backward(stages, links, microbatches)
    plan = Plan(
        planner=Planner("test", "1", {}),
        templates=(Template("only", tuple(replace(stage, optimizer_s=0.0) for stage in stages), tuple(links)),),
        pipelines=(Pipeline("only", microbatches),),
        optimizer="synchronous",
        workers=tuple(Worker(0, i, " ".join(f"{kind}{j}" for kind, j in row)) for i, row in enumerate(rows)),
    )
    return evaluate(plan).makespan_s


@st.composite
def _pipelines(draw: st.DrawFn) -> tuple[list[Stage], list[Link]]:
    """Stages alike, nearly alike or not, whose links and memory may hold them back."""
    depth = draw(st.integers(1, 6))
    times_s = st.one_of(st.just(1.0), st.floats(1.0, 1.02), st.floats(0.1, 3.0))
    limit_bytes = draw(st.sampled_from([None, None, 2.0, 3.0]))
    stages = [
        Stage(
            (i, i + 1),
            draw(times_s),
            draw(times_s),
            draw(times_s),
            activation_bytes=1.0,
            memory_limit_bytes=limit_bytes,
        )
        for i in range(depth)
    ]
    links = [Link(draw(st.sampled_from([0.0, 0.0, 0.1, 1.0, 20.0]))) for _ in range(depth - 1)]
    return stages, links


NO_BOUND = 10**9  # nodes with which an iteration might end at once


@settings(max_examples=30, deadline=None)
@given(_pipelines(), st.integers(1, 60))
def test_pace_is_what_the_evaluator_says(pipeline: tuple[list[Stage], list[Link]], most: int) -> None:
    """With any number of micro-batches up to those that are there, whatever links and memory do."""
    stages, links = pipeline
    (pace,) = paces_of([PipelineTemplate(len(stages), 1.0, 4, tuple(stages), tuple(links))], most, NO_BOUND)
    for microbatches in {1, 2, len(stages), most // 2 or 1, most}:
        assert pace.time_s(microbatches) == pytest.approx(_makespan_s(stages, links, microbatches), rel=1e-9)
    assert pace.per_microbatch_s >= max(stage.work_s for stage in stages) * (1 - 1e-12)


@settings(max_examples=30, deadline=None)
@given(_pipelines())
def test_a_long_pipeline_goes_on_as_it_did(pipeline: tuple[list[Stage], list[Link]]) -> None:
    """Beyond the numbers that are timed the line misses no more than what a burst through the links is."""
    stages, links = pipeline
    (pace,) = paces_of([PipelineTemplate(len(stages), 1.0, 4, tuple(stages), tuple(links))], 1, NO_BOUND)
    missed_s = pace.time_s(2000) - max(stage_ends_s(stages, links, 2000))
    round_trip_s = sum(stage.work_s for stage in stages) + 2 * sum(link.delay_s for link in links)
    assert abs(missed_s) <= round_trip_s + 1e-9


@given(st.lists(st.sampled_from([None, 1.0, 2.0, 3.0, 9.0]), min_size=1, max_size=6))
def test_warm_ups_are_those_of_the_orders(limits: list[float | None]) -> None:
    """The pace is timed with the warm-ups that 1F1B has, memory limits included."""
    sizes = enumerate(limits)
    stages = [Stage((i, i + 1), 1.0, 1.0, 1.0, activation_bytes=1.0, memory_limit_bytes=limit) for i, limit in sizes]
    orders = one_forward_one_backward(stages, [], 2 * len(stages))
    assert warm_ups_of(stages) == [order.index(("B", 0)) for order in orders]


def test_pace_is_the_same_compiled() -> None:
    """Machine code and plain Python give the same bits."""
    chance = random.Random(1)
    deep = [
        PipelineTemplate(
            48, 1.0, 192,
            _stages([chance.random() for _ in range(48)]), tuple(Link(chance.random() / 50) for _ in range(47)),
        )
        for _ in range(30)
    ]  # fmt: skip
    # First: once machine code is loaded, it is used for all.
    interpreted = [paces_of([one], 300, NO_BOUND) for one in deep[:2]]
    assert interpreted == [[one] for one in paces_of(deep, 300, NO_BOUND)[:2]]


def _sets(nodes: int, sizes: range, largest: int) -> Iterator[tuple[int, ...]]:
    """All multisets of sizes up to `largest` that fill the nodes, descending."""
    if nodes == 0:
        yield ()
    for size in sizes:
        if size <= min(nodes, largest):
            for rest in _sets(nodes - size, sizes, size):
                yield (size, *rest)


def _shares(microbatches: int, pipelines: int) -> Iterator[tuple[int, ...]]:
    """All ways to share micro-batches, one at least each."""
    if pipelines == 1:
        yield (microbatches,)
        return
    for first in range(1, microbatches - pipelines + 2):
        for rest in _shares(microbatches - first, pipelines - 1):
            yield (first, *rest)


@settings(max_examples=40, deadline=None)
@given(_pipelines(), st.integers(0, 1), st.integers(2, 7), st.integers(0, 9))
def test_no_pipelines_and_no_shares_are_faster(
    pipeline: tuple[list[Stage], list[Link]], fault_tolerance: int, nodes: int, more: int
) -> None:
    """The slowest pipeline is as fast as that of the best set of templates with the best shares, by the evaluator."""
    stages, links = pipeline
    times_s, delay_s = [stage.work_s for stage in stages], max((link.delay_s for link in links), default=0.0)
    largest = min(len(stages), max(1, nodes - fault_tolerance))
    templates = even_templates(len(stages), 1, largest, fault_tolerance, times_s=times_s, delay_s=delay_s)
    microbatches = fewest_pipelines(templates, nodes) + more
    if nodes <= fault_tolerance:
        return
    known: dict[tuple[int, int], float] = {}

    def lasts_s(size: int, count: int) -> float:
        if (size, count) not in known:
            template = templates.templates[size - 1]
            known[size, count] = _makespan_s(template.stages, template.links, count)
        return known[size, count]

    least_s = min(
        max(map(lasts_s, sizes, counts))
        for sizes in _sets(nodes, range(1, largest + 1), largest)
        if fault_tolerance < len(sizes) <= microbatches
        for counts in _shares(microbatches, len(sizes))
    )
    found = instantiate(templates, nodes, microbatches)
    assert found.slowest_s == pytest.approx(least_s, rel=1e-9)
    assert max(map(lasts_s, found.sizes, found.microbatches)) == pytest.approx(least_s, rel=1e-9)


NO_ENDING = Ending(1, Rings(Network(), 1), (0.0,) * 3, (0.0,) * 3)


@st.composite
def _endings(draw: st.DrawFn, templates: Templates) -> Ending:
    """No ending, or any: in small numbers, many of them equal."""
    count = len(templates.templates)
    burdens = st.one_of(st.just(0.0), st.integers(0, 4).map(float), st.floats(0, 4))
    lists = st.lists(burdens, min_size=count, max_size=count).map(tuple)
    connection = st.builds(Connection, st.sampled_from([0.0, 0.1]), st.sampled_from([None, 0.3, 3.0]))
    rings = Rings(Network(inter_node=draw(connection)), 1)
    return Ending(templates.smallest, rings, draw(lists), draw(lists))


@st.composite
def _paced(draw: st.DrawFn) -> tuple[Templates, list[Pace], Ending, int]:
    """Templates, unlikely paces and endings of them, and nodes that they cover."""
    smallest, fault_tolerance = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    largest = smallest + draw(st.integers(0, 6))
    templates = even_templates(12, smallest, largest, fault_tolerance)
    whole = st.builds(Pace, st.integers(0, 6).map(float), st.integers(1, 5).map(float))
    paces = draw(
        st.lists(
            st.one_of(whole, st.builds(Pace, st.floats(0, 2), st.floats(0.01, 2))),
            min_size=largest - smallest + 1,
            max_size=largest - smallest + 1,
        )
    )
    pipelines = draw(st.integers(fault_tolerance + 1, fault_tolerance + 3))
    fewest = pipelines * smallest
    nodes = draw(st.integers(fewest, max(fewest, min(pipelines * largest, 18 + smallest))))
    return templates, paces, draw(_endings(templates)), nodes


@settings(max_examples=30, deadline=None)
@given(_paced(), st.integers(0, 30), st.integers(1, 3))
def test_the_fastest_of_all_sets(paced: tuple[Templates, list[Pace], Ending, int], more: int, multiple_of: int) -> None:
    """The chosen pipelines, all-reduce and optimizer included, end as early as the best of all sets.

    Each with its best distribution; equal to the last bit.
    """
    templates, paces, ending, nodes = paced
    least = templates.fault_tolerance + 1
    if nodes // templates.smallest * templates.largest < nodes or nodes < least * templates.smallest:
        return
    microbatches = (fewest_pipelines(templates, nodes) + more) * multiple_of

    def lasts_s(sizes: tuple[int, ...]) -> float:
        chosen = [paces[size - templates.smallest] for size in sizes]
        return distribute(chosen, microbatches, multiple_of).slowest_s + ending.lasts_s(sizes)

    every = _sets(nodes, range(templates.smallest, templates.largest + 1), templates.largest)
    times_s = [lasts_s(one) for one in every if least <= len(one) <= microbatches // multiple_of]
    found = fastest_sizes(templates, paces, ending, nodes, microbatches, multiple_of)
    assert sum(found) == nodes
    assert lasts_s(found) == min(times_s)
    for likely in (1, len(found), nodes):
        assert fastest_sizes(templates, paces, ending, nodes, microbatches, multiple_of, likely) == found


def test_fewer_pipelines_where_the_all_reduce_is_slow() -> None:
    """Small pipelines waste least in filling; but with a slow network two large ones end an iteration first."""
    fast, slow = (
        even_templates(12, 1, 6, network=Network(inter_node=Connection(0.0, bandwidth)), delay_s=0.1)
        for bandwidth in (1e6, 1.0)
    )
    assert instantiate(fast, 12, 48).sizes == (1,) * 12
    found = instantiate(slow, 12, 48)
    assert found.sizes == (6, 6)
    promised = plan_of(slow, found.sizes, found.microbatches).prediction
    assert promised is not None
    assert promised.iteration_time_s == pytest.approx(found.slowest_s + ending_of(slow).lasts_s(found.sizes))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(0, 12), min_size=1, max_size=7), st.integers(1, 7), st.integers(0, 40))
def test_no_pipelines_have_more_room(smallest: int, room: list[int], pipelines: int, more: int) -> None:
    """Of so many pipelines that fill the nodes, those found have the most room; or none has enough."""
    sizes = range(smallest, smallest + len(room))
    nodes = pipelines * smallest + more % (pipelines * (len(room) - 1) + 1)
    rooms = {
        one: sum(room[size - smallest] for size in one)
        for one in _sets(nodes, sizes, sizes[-1])
        if len(one) == pipelines and all(room[size - smallest] for size in one)
    }
    for units in (1, max(rooms.values(), default=1), max(rooms.values(), default=0) + 1):
        knapsack = Knapsack(np.array(sizes), nodes, pipelines, units)
        assert knapsack.holds(np.array(room)) == (max(rooms.values(), default=0) >= units)
        if knapsack.holds(np.array(room)):
            found = knapsack.best(np.array(room))
            assert rooms[found.sizes] == found.room == max(rooms.values())


def test_ties_go_to_room_then_to_few_pipelines() -> None:
    """Of sets equally fast the one with the most room below the deadline is taken, then the one of fewest pipelines."""
    templates = even_templates(4, 1, 3, 0)
    equal = [Pace(0.0, 1.0)] * 3
    assert fastest_sizes(templates, equal, NO_ENDING, 3, 3) == (1, 1, 1)
    assert fastest_sizes(templates, [Pace(0.0, 6.0), Pace(0.0, 3.0), Pace(0.0, 2.0)], NO_ENDING, 3, 6) == (3,)
    # By 12 s, three pipelines have room for 2 each, or 2 and 5.
    assert fastest_sizes(templates, [Pace(0.0, 6.0), Pace(0.0, 2.4), Pace(0.0, 2.0)], NO_ENDING, 3, 6) == (2, 1)


@settings(max_examples=30, deadline=None)
@given(random_templates(), st.integers(1, 256))
def test_every_covered_number_of_nodes_is_used(templates: Templates, nodes: int) -> None:
    """All nodes are in pipelines, f + 1 of them or more, which share all micro-batches; or the error says what will."""
    try:
        require_covered(templates, nodes)
    except InfeasibleError as error:
        other = int((error.fix or "").replace("take at least ", "take ").split()[1])
        require_covered(templates, other)
        return
    found = instantiate(templates, nodes, 4 * nodes)
    assert sum(found.sizes) == nodes
    assert len(found.sizes) > templates.fault_tolerance
    assert sum(found.microbatches) == 4 * nodes
    assert all(one >= other for one, other in pairwise(found.sizes))


def test_fewer_microbatches_than_small_pipelines() -> None:
    """With two micro-batches for ten nodes there are two pipelines, though one-node pipelines would be as fast."""
    found = instantiate(even_templates(10, 1, 9), 10, 2)
    assert found.microbatches == (1, 1)
    assert len(found.sizes) == 2


def test_too_few_nodes_names_how_many_are_needed() -> None:
    """Below (f + 1) n_0 nodes there is an error that says that number."""
    with pytest.raises(InfeasibleError) as found:
        instantiate(even_templates(12, 3, 6, 2), 8, 40)
    assert found.value.fix == "take at least 9 nodes, or templates of --fault-tolerance 1"


def test_gaps_between_sizes_name_their_ends() -> None:
    """Templates of 4 and 5 nodes cannot use 11: the error names 10 and 12."""
    with pytest.raises(InfeasibleError) as found:
        instantiate(even_templates(12, 4, 5), 11, 40)
    assert found.value.fix == "take 10 or 12 nodes, or plan larger templates"


@pytest.mark.parametrize(
    ("global_batch", "multiple_of", "fix"),
    [(30, 1, "take 28 or 32"), (4, 1, "take 8"), (36, 2, "take 32 or 40")],
)
def test_a_batch_that_cannot_be_split_names_the_nearest(global_batch: int, multiple_of: int, fix: str) -> None:
    """The error names the global batches next to one that is not whole micro-batches, or too small for f + 1."""
    with pytest.raises(InfeasibleError) as found:
        microbatches_of(even_templates(8, 2, 6), 8, global_batch, 4, multiple_of)
    assert found.value.fix == fix


def test_equal_shares_name_the_nearest_global_batch() -> None:
    """Two equal pipelines cannot share 7 micro-batches of 4 evenly, as equation 6 wants: 24 or 32 would do."""
    templates = even_templates(4, 2, 2)
    with pytest.raises(InfeasibleError) as found:
        instantiate(templates, 4, 7, objective="variance", microbatch_size=4)
    assert (found.value.fix or "").startswith("take 24, take 32, or take --objective min-max")
    assert instantiate(templates, 4, 8, objective="variance").microbatches == (4, 4)
