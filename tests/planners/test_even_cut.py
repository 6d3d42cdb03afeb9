"""Layers cut into virtual stages so that workers' sums are even, and what each virtual stage gets from its layers."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.even_cut import Floats, even_cut, even_cut_of_columns, paired_cut, searched_cut
from rtk.planners.shape import Shape, cut_chunks, pipelines_of, plan_without_orders, template_of
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.placement import links_crossed, loop_placement, v_placement
from rtk.schemas.plan import Placement, Planner
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile, held_by, held_bytes

from ..strategies import profiles

MADE_BY = Planner("test", "1", {})
MakePlacement = Callable[[int, int], Placement]


@st.composite
def cuttable(draw: st.DrawFn, chunks: Sequence[int] = (2, 3)) -> tuple[list[float], Placement]:
    """Times of a few layers, and a loop, V or odd placement that they can give."""
    columns, count = draw(st.integers(1, 3)), draw(st.sampled_from(chunks))
    made = draw(st.sampled_from((loop_placement, v_placement)))(columns, count)
    times = st.one_of(st.integers(0, 9).map(float), st.floats(0.0, 10.0))
    stages = columns * count
    return draw(st.lists(times, min_size=stages, max_size=stages + 4)), made


def worth(times: Sequence[float], placement: Placement, ends: Sequence[int]) -> tuple[float, float]:
    """The largest worker's sum and the largest chunk."""
    chunks = [sum(times[first:stop]) for first, stop in pairwise([0, *ends])]
    return max(sum(chunks[stage] for stage in held) for held in placement), max(chunks)


def alike(times: Sequence[float], placement: Placement) -> Floats:
    """Sums of the first layers, the same for each column."""
    return np.tile([0.0, *accumulate(times)], (len(placement), 1))


@settings(max_examples=30)
@given(cuttable())
def test_cut_equals_brute_force(asked: tuple[list[float], Placement]) -> None:
    """The busiest worker has as little to do as can be, and under that the largest chunk is as small as can be."""
    times, placement = asked
    ends = even_cut(times, placement)
    assert ends[-1] == len(times)
    inner = combinations(range(1, len(times)), len(ends) - 1)
    least = min(
        (worth(times, placement, [*cut, len(times)]) for cut in inner), key=lambda one: np.round(one, 9).tolist()
    )
    assert worth(times, placement, ends) == pytest.approx(least, abs=1e-9)


@settings(max_examples=20)
@given(cuttable(), st.lists(st.sampled_from((0.25, 0.5, 1.0)), min_size=3, max_size=3))
def test_columns_may_take_unlike_times(asked: tuple[list[float], Placement], paces: list[float]) -> None:
    """With times of their own no cut has a shorter busiest worker, by looking at all and by the programme for pairs."""
    times, placement = asked
    own = [[pace * one for one in times] for pace in paces[: len(placement)]]
    inner = [[0, *cut, len(times)] for cut in combinations(range(1, len(times)), sum(map(len, placement)) - 1)]

    def busiest(ends: Sequence[int]) -> float:
        spans = list(pairwise(ends))
        return max(sum(sum(own[c][slice(*spans[v])]) for v in held) for c, held in enumerate(placement))

    least = min(map(busiest, inner))
    assert busiest([0, *even_cut_of_columns(own, placement)]) == pytest.approx(least, abs=1e-9)
    if len(placement[0]) == 2:
        found = paired_cut(np.array([[0.0, *accumulate(one)] for one in own]), placement)
        assert found is not None
        assert busiest([0, *found.tolist(), len(times)]) == pytest.approx(least, abs=1e-9)


@settings(max_examples=20)
@given(cuttable(chunks=(2,)))
def test_dynamic_programme_is_exact(asked: tuple[list[float], Placement]) -> None:
    """For two chunks a worker the programme over pairs of ranges finds what looking at all cuts finds."""
    times, placement = asked
    found = paired_cut(alike(times, placement), placement)
    assert found is not None
    exact = worth(times, placement, even_cut(times, placement))
    assert worth(times, placement, [*found.tolist(), len(times)]) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("made", [loop_placement, v_placement])
@pytest.mark.parametrize("columns", [4, 8])
def test_search_is_near_the_exact_cut(made: MakePlacement, columns: int) -> None:
    """On models of 34 layers with a heavy head and uneven blocks no worker has over 5 % more than exactly needed."""
    chance = random.Random(columns)
    for _ in range(3):
        times = [0.2, *(chance.choice((1.0, 1.0, 1.1)) for _ in range(32)), 2.4]
        placement = made(columns, 2)
        sums = alike(times, placement)
        searched, exact = searched_cut(sums, placement), paired_cut(sums, placement)
        assert exact is not None
        found, least = (worth(times, placement, [*cut.tolist(), 34])[0] for cut in (searched, exact))
        assert least - 1e-9 <= found <= 1.05 * least


def test_a_heavy_head_is_made_up_for_by_the_other_chunk() -> None:
    """In a V the first worker has the head as well, and so fewer layers in front: workers get 5 and 5."""
    times = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0]
    assert worth(times, v_placement(2), even_cut(times, v_placement(2))) == (5.0, 4.0)


@given(profiles(min_layers=4, max_layers=8), st.sampled_from((loop_placement, v_placement)))
def test_placed_templates_are_sums_of_their_layers(profile: Profile, made: MakePlacement) -> None:
    """Virtual stages hold every layer once; hops are free inside a column, and alike over the same two columns."""
    placement = made(2, 2)
    template = cut_chunks(profile, placement, peers=3)
    assert [stage.layers[0] for stage in template.stages] == [0, *(stage.layers[1] for stage in template.stages[:-1])]
    assert template.stages[-1].layers[1] == len(profile.layers)
    for stage in template.stages:
        assert stage.forward_s == sum(layer.costs[0].forward_s for layer in profile.layers[slice(*stage.layers)])
    for link, hop in zip(links_crossed(template), template.links, strict=True):
        assert link == -1 or hop == next(
            other for number, other in zip(links_crossed(template), template.links, strict=True) if number == link
        )
        assert link != -1 or hop.delay_s == 0
    plan_without_orders(profile, Shape(2, 2, 3, placement="loop", chunks=2), MADE_BY).validate()


def layer(parameter_bytes: float = 100.0, **of: Any) -> Layer:
    return Layer((LayerCost(1.0, 1.0, 1.0),), None, parameter_bytes, 3 * parameter_bytes, **of)


def test_a_tied_matrix_counts_once_where_both_ends_are_on_one_worker() -> None:
    """In a V the embedding and the head are on column 0, so it holds one copy and sums its gradients once."""
    tied = replace(layer(), tied_to=0, tied_bytes=80.0, tied_state_bytes=240.0)
    layers = (layer(), layer(), layer(), tied)
    assert held_by(layers, [(0, 1), (3, 4)]) == (120.0, 360.0)
    assert held_by(layers, [(0, 1), (2, 3)]) == (200.0, 600.0)
    assert held_by(layers, [(3, 4)]) == held_bytes(layers, 3, 4) == (100.0, 300.0)
    assert held_by(layers, [(3, 4)], beside=[(0, 1)]) == (20.0, 60.0)
    profile = Profile(layers, device=Device(memory_bytes=1000.0), network=Network(inter_node=Connection(0.0, 100.0)))
    v, loop = (cut_chunks(profile, made(2, 2), peers=2) for made in (v_placement, loop_placement))
    assert v.memory_limits_bytes == (1000.0 - 480.0, 1000.0 - 800.0)
    assert loop.memory_limits_bytes == (200.0, 200.0)
    assert [stage.allreduce_s for stage in v.stages] == pytest.approx([1.0, 1.0, 1.0, 0.2])


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3))
def test_one_range_holds_what_a_stage_holds(found: list[tuple[int, int]]) -> None:
    """Of a single range `held_by` says what `held_bytes` says, whatever is tied to what."""
    layers = tuple(
        replace(layer(), tied_to=max(0, number - back), tied_bytes=10.0 * share, tied_state_bytes=5.0)
        if number
        else layer()
        for number, (back, share) in enumerate(found)
    )
    for first, stop in combinations(range(len(layers) + 1), 2):
        assert held_by(layers, [(first, stop)]) == held_bytes(layers, first, stop)


def test_links_are_those_between_columns() -> None:
    """Link 0 is crossed by both legs of a V; link S - 1 is a loop's way back, which nothing else has."""
    profile = Profile((layer(),) * 8)
    v = template_of(profile, Shape(4, 1, 2, link_delay_s={(None, 0): 0.5}, placement="v", chunks=2))
    assert [link.delay_s for link in v.links] == [0.5, 0, 0, 0, 0, 0, 0.5]
    asked = Shape(4, 2, 2, link_delay_s={(None, 0): 0.5, (1, 3): 0.25}, placement="loop", chunks=2)
    loop = template_of(profile, asked)
    assert [link.delay_s for link in loop.links] == [0.5, 0, 0, 0, 0.5, 0, 0]
    first, second = pipelines_of(loop, asked)
    assert first.links is None
    assert second.links is not None
    assert [link.delay_s for link in second.links] == [0.5, 0, 0, 0.25, 0.5, 0, 0]
    for shape in (replace(asked, placement="v"), replace(asked, pp=2, link_delay_s={(None, 1): 1.0})):
        with pytest.raises(InvalidInputError, match="there is no link"):
            template_of(profile, shape)


def test_more_virtual_stages_than_layers_are_infeasible() -> None:
    """S * C stages need as many layers; one worker with several chunks is legal."""
    profile = Profile((layer(),) * 3)
    with pytest.raises(InfeasibleError, match="2 workers of 2 chunks need 4 layers, and there are 3"):
        template_of(profile, Shape(2, 1, 2, placement="v", chunks=2))
    assert template_of(profile, Shape(1, 1, 2, placement="v", chunks=3)).placement == ((0, 1, 2),)
    assert Shape(2, 1, 2, placement="v", chunks=1).columns is None
