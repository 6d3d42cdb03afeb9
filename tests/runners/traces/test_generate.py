"""Traces made up."""

import math
from collections.abc import Callable
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng

from rtk.runners.traces.files import told
from rtk.runners.traces.read import moments
from rtk.runners.traces.verbs import (
    Distribution,
    FaultScenario,
    Lasting,
    Racks,
    Renewal,
    SlowLinkEpisodes,
    SlowNodes,
    generate,
)
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.trace import TraceEvent, print_event

SEEDS = st.integers(0, 2**32)
DOWN, UP = "fail", "join"


def _renewals() -> st.SearchStrategy[Renewal]:
    times = st.builds(
        Lasting,
        st.floats(1, 300),
        st.sampled_from(["exponential", "weibull", "lognormal", "fixed"]),
        st.floats(0.5, 2),
    )
    return st.builds(Renewal, times, times)


def _recipes() -> st.SearchStrategy[FaultScenario]:
    return st.builds(
        FaultScenario,
        nodes=st.integers(1, 6),
        lasts_s=st.floats(1, 1000),
        failing=st.none() | _renewals(),
        racks=st.none() | st.builds(Racks, st.integers(1, 4), _renewals()),
        slow_nodes=st.none() | st.builds(SlowNodes, _renewals(), st.floats(1.1, 3)),
        slow_links=st.none() | st.builds(SlowLinkEpisodes, _renewals(), st.floats(0.001, 1)),
        seed=SEEDS,
    )


def _of(events: list[TraceEvent], nodes: set[str]) -> list[TraceEvent]:
    """What happens to these nodes, and to links among them."""
    return [event for event in events if event.node in nodes and (event.peer is None or event.peer in nodes)]


@settings(max_examples=60)
@given(_recipes())
def test_what_is_made_up_can_happen(recipe: FaultScenario) -> None:
    """In time order, from all nodes at 0 to the end; nobody is down twice, slow while down, or comes back unasked."""
    found = list(generate(recipe))
    assert all(event.time_s is not None and event.time_s < recipe.lasts_s for event in found[:-1])
    assert found[-1] == TraceEvent("end", time_s=recipe.lasts_s)
    first, *others = moments(told(found))  # which checks each event
    assert len(first.fleet.nodes) == recipe.nodes
    assert not others or others[-1].time_s == recipe.lasts_s


@settings(max_examples=30)
@given(_recipes())
def test_the_same_seed_gives_the_same_bytes(recipe: FaultScenario) -> None:
    """Nothing but the recipe is in a trace."""
    one, again = (b"".join(map(print_event, generate(recipe))) for _ in range(2))
    assert one == again


@settings(max_examples=30)
@given(_recipes())
def test_more_nodes_leave_the_others_as_they_were(recipe: FaultScenario) -> None:
    """Nodes and links of a smaller cluster have the same trace in a larger one."""
    fewer = max(1, recipe.nodes // 2)
    small = FaultScenario(
        fewer, recipe.lasts_s, recipe.failing, recipe.racks, recipe.slow_nodes, recipe.slow_links, recipe.seed
    )
    names = {f"node{number}" for number in range(1, fewer + 1)}
    assert _of(list(generate(recipe)), names) == list(generate(small))[:-1]


@given(_renewals(), SEEDS)
def test_slow_episodes_leave_failures_as_they_were(failing: Renewal, seed: int) -> None:
    """Failures have random numbers of their own."""
    slow = SlowNodes(Renewal(Lasting(50), Lasting(50)), 2.0)
    plain = generate(FaultScenario(3, 500, failing, seed=seed))
    both = generate(FaultScenario(3, 500, failing, slow_nodes=slow, seed=seed))
    assert [event for event in both if event.kind in (DOWN, UP)] == [e for e in plain if e.kind in (DOWN, UP)]


@settings(max_examples=20)
@given(SEEDS, st.sampled_from(["exponential", "weibull", "lognormal", "fixed"]), st.floats(0.8, 1.5))
def test_means_are_those_that_were_asked_for(seed: int, distribution: Distribution, shape: float) -> None:
    """The mean of 2,000 times is the mean, within six standard errors; all are 0 or more."""
    lasting, generator = Lasting(100.0, distribution, shape), default_rng(seed)
    drawn = [lasting.draw_s(generator) for _ in range(2000)]
    mean = sum(drawn) / len(drawn)
    variance = {
        "exponential": 1.0,
        "fixed": 0.0,
        "lognormal": math.exp(shape**2) - 1,
        "weibull": math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2 - 1,
    }[distribution]
    tails = 2.0 if distribution == "lognormal" else 1.0  # a few long times are most of its mean
    assert min(drawn) >= 0
    assert abs(mean / 100 - 1) <= 6 * tails * math.sqrt(variance / len(drawn)) + 1e-9


@settings(max_examples=10)
@given(SEEDS)
def test_failures_come_as_often_as_asked_for(seed: int) -> None:
    """Of 20 nodes that live 90 s and take 10 s to repair there are 2,000 failures in 10,000 s, give or take 270."""
    found = generate(FaultScenario(20, 10_000, Renewal(Lasting(90), Lasting(10)), seed=seed))
    failures = sum(event.kind == DOWN for event in found)
    assert abs(failures - 2000) < 270  # six times the root of 2,000


@given(SEEDS)
def test_nodes_of_a_rack_fail_and_return_together(seed: int) -> None:
    """Where only racks fail, all of a rack's nodes are lost in one moment, and come in one."""
    racks = Racks(3, Renewal(Lasting(100), Lasting(10)))
    for moment in list(moments(told(generate(FaultScenario(7, 1000, racks=racks, seed=seed)))))[1:]:
        for nodes in (moment.lost, moment.came):
            numbers = {int(node.removeprefix("node")) - 1 for node in nodes}
            for rack in {number // 3 for number in numbers}:
                assert numbers >= set(range(rack * 3, min(7, rack * 3 + 3)))


def test_a_trace_comes_as_it_is_asked_for() -> None:
    """Of a trace of 300 years the first events are there at once."""
    long = FaultScenario(4, 1e10, Renewal(Lasting(10), Lasting(1)))
    assert len(list(islice(generate(long), 1000))) == 1000


@pytest.mark.parametrize(
    ("recipe", "what"),
    [
        (lambda: FaultScenario(0, 1), "0 nodes"),
        (lambda: FaultScenario(1, 0), "cannot last 0 s"),
        (lambda: FaultScenario(1, math.inf), "cannot last inf s"),
        (lambda: FaultScenario(1, 1, racks=Racks(0, Renewal(Lasting(1), Lasting(1)))), "a rack of 0 nodes"),
        (lambda: FaultScenario(1, 1, slow_nodes=SlowNodes(Renewal(Lasting(1), Lasting(1)), 1.0)), "factor cannot be 1"),
        (
            lambda: FaultScenario(1, 1, slow_links=SlowLinkEpisodes(Renewal(Lasting(1), Lasting(1)), 0.0)),
            "delay cannot be 0 s",
        ),
        (lambda: Lasting(0), "the mean 0"),
        (lambda: Lasting(math.nan), "the mean nan"),
        (lambda: Lasting(1e-9), "not a millisecond or more"),
        (lambda: Lasting(1, "weibull", -1), "cannot have the shape -1"),
    ],
)
def test_a_recipe_for_nothing_is_refused(recipe: Callable[[], object], what: str) -> None:
    """Each number that cannot be is an error with what to do."""
    with pytest.raises(InvalidInputError, match=what) as caught:
        recipe()
    assert caught.value.fix
