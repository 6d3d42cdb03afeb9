"""What F and B are worth side by side: measured, written into a profile, compared."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from rtk.profilers.comparing import compare
from rtk.profilers.measuring import Measuring, load, measure_here
from rtk.profilers.models.load import Model
from rtk.profilers.overlap import NOISE, measure_overlap
from rtk.profilers.refine import GivenTimeline, refine, run_of
from rtk.runners.simulator import simulate
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.documents import canonical, digest, parse_document
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.profile import Layer, LayerCost, Profile

from ..placed_plans import folded
from ..runners.paired import paired
from ..runners.placed import placed_plan
from ..strategies import profiles

CPU = torch.device("cpu")


class DuoStage:
    """A stage on a device with a clock of its own, on which a pair takes `ratio` of its passes, or as long as one.

    Args:
        forward_s, backward_s: what the passes take.
        ratio: of a pair.
        room: how many layers fit.
    """

    def __init__(self, forward_s: float, backward_s: float, ratio: float, room: int = 99) -> None:
        self.times_s, self.ratio, self.room = (forward_s, backward_s), ratio, room
        self.now_s, self.under_way, self.made_of = 0.0, set[Hashable](), 0
        self._factor = 1.0

    def clock(self) -> float:
        """The device's time."""
        return self.now_s

    def make(self, layers: Any, loss: Any = None) -> Any:
        """The StageFactory."""
        if len(layers) > self.room:
            raise MemoryError
        self.made_of = len(layers)
        return self

    def forward(self, key: Hashable, inputs: torch.Tensor, target: Any = None) -> torch.Tensor:
        """F."""
        assert key not in self.under_way
        self.under_way.add(key)
        self.now_s += self.times_s[0] * self._factor
        return inputs.float()

    def backward(self, key: Hashable, gradient: Any = None) -> None:
        """B."""
        self.under_way.remove(key)
        self.now_s += self.times_s[1] * self._factor

    def side_by_side(self, forward: Callable[[], Any], backward: Callable[[], Any], key: Hashable) -> Any:
        """Both, in the time of a pair."""
        assert key in self.under_way
        apart_s = sum(self.times_s)
        self._factor = max(*self.times_s, self.ratio * apart_s) / apart_s
        made = forward(), backward()
        self._factor = 1.0
        return made


def linear() -> Model:
    """Four layers that need no memory to speak of."""
    layers: list[nn.Module] = [nn.Linear(2, 2) for _ in range(4)]
    return Model("linear", layers, nn.functional.mse_loss, 1, None, None, lambda seed: (torch.ones(1, 2),) * 2)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.5, 1))
def test_a_pair_is_timed_against_its_passes(forward_s: float, backward_s: float, ratio: float) -> None:
    """What is measured is the pair's time over that of its passes, within what a profile may say, and 1 where nothing
    is gained to speak of; no micro-batch is left under way."""
    duo = DuoStage(forward_s, backward_s, ratio)
    found = measure_overlap(linear(), duo.make, device=CPU, repeats=3, clock=duo.clock)
    told = max(forward_s, backward_s, ratio * (forward_s + backward_s)) / (forward_s + backward_s)
    assume(abs(told - (1 - NOISE)) > 1e-9)  # on the edge itself rounding decides
    assert found == (1.0 if told > 1 - NOISE else pytest.approx(max(told, 0.501), rel=1e-3))
    assert 0.5 < found <= 1
    assert not duo.under_way


@pytest.mark.parametrize("room", [1, 2, 3])
def test_half_a_model_speaks_for_all_where_that_does_not_fit(room: int) -> None:
    """Where memory is too small the first half of the layers is measured, or the half of that."""
    duo = DuoStage(1.0, 2.0, 0.8, room)
    assert measure_overlap(linear(), duo.make, device=CPU, repeats=1, clock=duo.clock) == pytest.approx(0.8)
    assert duo.made_of == min(room, 2)


def test_too_little_memory_for_any_layer_is_said() -> None:
    """Where not even one layer fits, the error says how to give the number by hand."""
    duo = DuoStage(1.0, 2.0, 0.8, 0)
    with pytest.raises(InfeasibleError, match="no layer fits"):
        measure_overlap(linear(), duo.make, device=CPU, clock=duo.clock)


def test_a_stage_runs_both_passes() -> None:
    """On a CPU a stage runs a pair's passes one after the other, and the parameters keep their values and have no
    gradients afterwards. The clock goes by one at each reading, so F and B take two, and a pair takes one."""
    model = linear()
    before = [parameter.detach().clone() for layer in model.layers for parameter in layer.parameters()]
    ticks = iter(range(10**6))
    assert measure_overlap(model, TorchStage, device=CPU, repeats=2, clock=lambda: float(next(ticks))) == 0.501
    after = [parameter for layer in model.layers for parameter in layer.parameters()]
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, after, strict=True))


def test_the_profile_says_it_where_it_was_asked_for() -> None:
    """`overlap` is in a measured profile exactly where it was to be measured."""
    found = []
    for overlap in (False, True):
        asked = Measuring("gpt-tiny", 1, 8, repeats=1, overlap=overlap)
        found.append(measure_here(asked, load(asked), TorchStage, None, lambda done, total: None).overlap)
    assert found[0] is None
    assert found[1] is not None
    assert 0.5 < found[1] <= 1


@settings(max_examples=20)
@given(profiles(max_layers=3), st.floats(0.5, 1, exclude_min=True))
def test_files_carry_it(profile: Profile, overlap: float) -> None:
    """A profile with the number is read as it was written; one without it keeps its bytes."""
    told = replace(profile, overlap=overlap)
    assert parse_document(canonical(told), Profile, "p.json") == told
    assert b"overlap" not in canonical(profile)


@pytest.mark.parametrize("overlap", [0.5, 1.01, 0.0, -1.0])
def test_what_cannot_be_is_refused(overlap: float) -> None:
    """A pair takes no less than half of what its passes take, and no more than all."""
    text = canonical(replace(load_profile(), overlap=0.75)).replace(b"0.75", str(overlap).encode())
    with pytest.raises(InvalidInputError, match="overlap"):
        parse_document(text, Profile, "p.json")


def load_profile() -> Profile:
    """Any profile without a number of 0.75."""
    return Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),))


def test_comparing_names_what_differs_beyond_noise() -> None:
    """Two profiles differ in what pairs are worth where they do by more than 2 %, or only one says it."""
    base = replace(load_profile(), overlap=0.8)
    assert not compare(base, replace(base, overlap=0.81)).facts
    (fact,) = compare(base, replace(base, overlap=0.9)).facts
    assert (fact.path, fact.before, fact.after) == ("/overlap", 0.8, 0.9)
    (fact,) = compare(base, replace(base, overlap=None)).facts
    assert (fact.before, fact.after) == (0.8, None)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.67, 1), st.floats(0.5, 2))
def test_a_run_with_pairs_corrects_what_they_are_worth(overlap: float, factor: float) -> None:
    """Of a run of a plan with pairs, whose passes all take `factor` times as long, the passes that ran alone correct
    the layers' times, and pairs what they are worth: the profile then says what the run did."""
    plan = paired(placed_plan(folded(2, 2), 4, (5,), "FB"), overlap)
    assert plan.has_pairs
    stretched = replace(
        plan.templates[0],
        stages=tuple(
            replace(
                one,
                forward_s=factor * one.forward_s,
                backward_input_s=factor * one.backward_input_s,
                backward_weight_s=factor * one.backward_weight_s,
            )
            for one in plan.templates[0].stages
        ),
    )
    ran = simulate(replace(plan, templates=(stretched,))).repeated(2)
    measured = replace(ran, source="measured", plan=digest(plan))
    profile = Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * 4)
    run = run_of(GivenTimeline("t.json", measured), profile, [plan], lambda profile, count: [])
    refined = refine(profile, [run]).profile
    assert refined.overlap == pytest.approx(overlap, rel=1e-6)
    for layer in refined.layers:
        assert layer.costs[0].forward_s == pytest.approx(factor, rel=1e-6)
        assert layer.costs[0].full_s == pytest.approx(2 * factor, rel=1e-6)
