"""What changed between two profiles, beyond the noise."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.profilers.comparing import WHOLE, compare
from rtk.schemas.profile import (
    PASSES,
    TIMES,
    Connection,
    Device,
    Layer,
    LayerCost,
    Network,
    Profile,
    Spread,
    half_width,
)

Times = Sequence[Sequence[float]]  # of layers and operations
TRUE = [[3e-3, 4e-3, 2e-3, 1e-3]] * 12


def cost_of(own: Sequence[float], spread: Spread | None) -> LayerCost:
    """A cost of F, I, W and step."""
    return LayerCost(own[0], own[1], own[2], own[3], spread=spread)


def profile_of(times: Times, spread: float | None = None) -> Profile:
    """A profile of these times, all with one relative spread."""
    layers = []
    for number, own in enumerate(times):
        widths = None if spread is None else Spread(*(spread * time_s for time_s in own))
        layers.append(Layer((cost_of(own, widths),), name=f"{number} Block", parameter_bytes=8.0))
    return Profile(tuple(layers), model={"name": "m"}, origin="measured", microbatch_size=4)


def measured(true: Times, seed: int, spread: float, readings: int = 20, machine: float = 1.0) -> Profile:
    """A profile as it is measured: medians and spreads of noisy readings, their middle half `spread` to either side."""
    noise = np.random.default_rng(seed).normal(0, spread / 0.6745, (readings, len(true), len(TIMES)))
    seen = np.array(true) * machine * np.exp(noise)
    layers = []
    for number in range(len(true)):
        rows = [seen[:, number, kind].tolist() for kind in range(len(TIMES))]
        widths = Spread(*(half_width(row) for row in rows))
        layers.append(Layer((cost_of([median(row) for row in rows], widths),)))
    return Profile(tuple(layers))


def changed(times: Times, layer: int, factor: float, operations: str = "FIW") -> Times:
    """Times of which some operations of one layer take another time."""
    return [
        [t * (factor if number == layer and kind in operations else 1) for t, kind in zip(own, TIMES, strict=True)]
        for number, own in enumerate(times)
    ]


def test_two_profiles_of_the_same_thing_do_not_differ() -> None:
    """Of 99 pairs with spreads of 0.5, 2 and 10 % none has a time that differs, nor do they as a whole."""
    for spread in (0.005, 0.02, 0.1):
        pairs = [[measured(TRUE, 2 * n + turn, spread) for turn in (0, 1)] for n in range(33)]
        assert not any(compare(*pair) for pair in pairs)


def test_a_tenth_in_one_layer_is_found() -> None:
    """At a spread of 2 % in (nearly) all of 60 pairs, and nothing but that layer; also where the machine is slower."""
    slow = changed(TRUE, 5, 1.1)
    found = [
        compare(measured(TRUE, n, 0.02), measured(slow, 1000 + n, 0.02, machine=machine))
        for n in range(30)
        for machine in (1.0, 1.5)
    ]
    assert sum({one.layers for one in each.differing} == {(5, 5)} for each in found) >= 59
    assert all({one.layers for one in each.differing} <= {(5, 5)} for each in found)
    for each, machine in zip(found, [1.0, 1.5] * 30, strict=True):
        assert each.overall is not None
        assert each.overall.ratio == pytest.approx(machine, rel=0.02)
        assert each.overall.differs == (machine > 1)


def test_an_operation_is_named() -> None:
    """A W that takes longer shows as W and not as F, I or step, with its times."""
    found = compare(profile_of(TRUE, 0.01), profile_of(changed(TRUE, 2, 1.5, "W"), 0.01))
    assert [(one.operation, one.layers) for one in found.differing] == [("W", (2, 2)), (WHOLE, (2, 2))]
    assert found.differing[0].relative == pytest.approx(1.5)
    assert found.differing[0].noise == pytest.approx(2.5 * 2**0.5 * 0.01)


@settings(max_examples=30)
@given(st.floats(0.1, 10.0), st.lists(st.tuples(*[st.floats(1e-4, 1.0)] * 4), min_size=1, max_size=8))
def test_a_machine_is_not_taken_for_layers(factor: float, times: Times) -> None:
    """Where all times change alike that is said once."""
    found = compare(profile_of(times, 0.001), profile_of([[factor * t for t in own] for own in times], 0.001))
    assert not found.differing
    assert found.overall is not None
    assert found.overall.ratio == pytest.approx(factor)


def test_without_spreads_five_per_cent_count() -> None:
    """4 % in one layer is no difference, 6 % is one; a spread in one profile only is none."""
    for factor, differs in ((1.04, False), (1.06, True)):
        found = compare(profile_of(TRUE, 0.001), profile_of(changed(TRUE, 2, factor)))
        assert bool(found) == differs


def test_a_lucky_spread_does_not_accuse() -> None:
    """A layer whose few readings happened to agree has at least the usual spread."""
    lucky = profile_of(changed(TRUE, 2, 1.05), 0.02)
    layers = list(lucky.layers)
    cost = layers[2].costs[0]
    layers[2] = replace(layers[2], costs=(replace(cost, spread=Spread(0, 0, 0, 0)),))
    assert not compare(profile_of(TRUE, 0.02), replace(lucky, layers=tuple(layers)))


def test_what_came_and_went_differs_and_nothing_does_not() -> None:
    """A time that is no longer 0 differs; one below a clock's resolution does not, nor do two zeros."""
    none = [[1e-3, 1e-3, 0.0, 0.0]]
    assert not compare(profile_of(none, 0.01), profile_of([[1e-3, 1e-3, 5e-7, 0.0]], 0.01))
    (found,) = compare(profile_of(none, 0.01), profile_of([[1e-3, 1e-3, 1e-5, 0.0]], 0.01)).differing
    assert (found.operation, found.before_s, found.after_s) == ("W", 0.0, 1e-5)
    assert compare(profile_of([[0.0] * 4]), profile_of([[0.0] * 4])).overall is None


def test_settings_and_sizes_are_compared_exactly() -> None:
    """Each by its place; of layers all that changed alike are one fact."""
    a = profile_of(TRUE[:4])
    layers = [replace(x, activation_bytes=9.0, name="x" if n else x.name) for n, x in enumerate(a.layers)]
    layers[3] = replace(layers[3], tied_to=0)
    extra = LayerCost(1.0, 1.0, 1.0, tensor_parallel=2)
    layers[2] = replace(layers[2], costs=(*layers[2].costs, extra))
    b = replace(a, layers=tuple(layers), model={"name": "n", "dtype": "bf16"}, device=Device("gpu"), microbatch_size=8)
    found = {fact.path: (fact.layers, fact.before, fact.after) for fact in compare(a, b).facts}
    assert found == {
        "/model/dtype": ((), None, "bf16"),
        "/model/name": ((), "m", "n"),
        "/device/name": ((), None, "gpu"),
        "/microbatch_size": ((), 4, 8),
        "/layers/0/activation_bytes": ((0, 1, 2, 3), 0.0, 9.0),
        "/layers/3/tied_to": ((3,), None, 0),
        "/layers/2/costs": ((2,), [1], [1, 2]),
        "/layers/1/name": ((1,), "1 Block", "x"),
        "/layers/2/name": ((2,), "2 Block", "x"),
        "/layers/3/name": ((3,), "3 Block", "x"),
    }


def test_layers_that_came_are_found_by_name() -> None:
    """Two more of a kind, and one of another kind ahead; the others are compared with what they were."""
    a = profile_of(TRUE[:3], 0.01)
    old = [replace(a.layers[0], name="0 Embedding"), *a.layers[1:]]
    new = [replace(old[0], name="0 Norm"), replace(old[0], name="1 Embedding"), *a.layers[1:], *a.layers[1:]]
    found = compare(replace(a, layers=tuple(old)), replace(a, layers=tuple(new)))
    assert [(fact.path, fact.before, fact.after) for fact in found.facts] == [
        ("/layers/0", None, "0 Norm"),
        ("/layers/4", None, "1 Block"),
        ("/layers/5", None, "2 Block"),
    ]
    assert {one.layers for one in found.times} == {(0, 1), (1, 2), (2, 3)}
    (gone, *_) = compare(replace(a, layers=tuple(new)), replace(a, layers=tuple(old))).facts
    assert (gone.path, gone.before, gone.after) == ("/layers/0", "0 Norm", None)


def test_networks_differ_from_a_quarter_on() -> None:
    """Their numbers are measured anew each time, and have no spread."""

    def with_latency(latency_s: float) -> Profile:
        return replace(profile_of(TRUE), network=Network(intra_node=Connection(latency_s, 1e9)))

    assert not compare(with_latency(1e-5), with_latency(1.2e-5))
    (fact,) = compare(with_latency(1e-5), with_latency(1.3e-5)).facts
    assert fact.path == "/network/intra_node/latency_s"
    (fact,) = compare(profile_of(TRUE), with_latency(1.3e-5)).facts
    assert fact.path == "/network/intra_node"


def test_all_passes_are_looked_at() -> None:
    """The overall ratio is of F, I and W; the optimizer's step differs by itself."""
    assert set(PASSES) == set("FIW")
    found = compare(profile_of(TRUE, 0.01), profile_of([[*own[:3], 2 * own[3]] for own in TRUE], 0.01))
    assert {one.operation for one in found.differing} == {"step"}
    assert found.overall is not None
    assert not found.overall.differs


def test_full_backward_passes_are_compared_where_both_profiles_say_theirs() -> None:
    """One that takes a fifth longer than before is named, though I and W are as they were."""
    before = with_full(profile_of(TRUE, 0.01), 1.0)
    found = compare(before, with_full(profile_of(TRUE, 0.01), 1.2, layer=3))
    assert [(one.layers, one.operation) for one in found.differing] == [((3, 3), "B")]
    assert not compare(before, profile_of(TRUE, 0.01)).differing
    assert not any(one.operation == "B" for one in compare(before, profile_of(TRUE, 0.01)).times)


def with_full(profile: Profile, factor: float, layer: int | None = None) -> Profile:
    """A profile whose layers say that a full backward takes nine tenths of its halves, one of them times a factor."""
    layers = []
    for number, one in enumerate(profile.layers):
        cost = one.costs[0]
        full_s = 0.9 * (cost.backward_input_s + cost.backward_weight_s) * (factor if number == layer else 1.0)
        layers.append(replace(one, costs=(replace(cost, backward_s=full_s),)))
    return replace(profile, layers=tuple(layers))


def test_a_machine_in_doubt_accuses_nobody() -> None:
    """Where times are 4 % longer, within their noise, one that is the same and has no noise does not differ."""
    a, b = (profile_of([[*(t * factor for t in own[:3]), own[3]] for own in TRUE], 0.02) for factor in (1.0, 1.04))
    exact = [
        replace(x, layers=tuple(replace(y, costs=(_with_exact_step(y.costs[0]),)) for y in x.layers)) for x in (a, b)
    ]
    assert not compare(*exact)


def _with_exact_step(cost: LayerCost) -> LayerCost:
    assert cost.spread is not None
    return replace(cost, spread=replace(cost.spread, optimizer_s=0.0))
