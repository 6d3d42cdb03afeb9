"""A profile corrected by what runs measured."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.refine import GivenTimeline, MeasuredRun, WorkerHolding, contradictions, refine
from rtk.profilers.refine import run_of as read_run
from rtk.runners.simulator import simulate
from rtk.schemas.documents import canonical, digest, parse_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import (
    PASSES,
    TIMES,
    BoundaryCost,
    Layer,
    LayerCost,
    Profile,
    Spread,
    half_width,
    joined_cost,
)
from rtk.schemas.timeline import Span, Timeline, WorkerMemory

SECONDS = st.floats(1e-4, 1.0)
FACTORS = st.floats(0.1, 10.0)


def profile_of(*times: tuple[float, float, float, float], **rest: Any) -> Profile:
    """A profile of layers with these F, I, W and step times."""
    layers = tuple(Layer((LayerCost(*own),), name=f"{n} Block", parameter_bytes=8) for n, own in enumerate(times))
    return Profile(layers, **{"origin": "analytic", **rest})


def sums(profile: Profile, layers: tuple[int, int]) -> dict[str, float]:
    """What the layers [first, stop) take, by operation."""
    costs = [layer.costs[0] for layer in profile.layers[slice(*layers)]]
    return {kind: sum(getattr(cost, name) for cost in costs) for kind, name in TIMES.items()}


def timeline_of(
    truth: Profile, cut: Sequence[int], *, fused: bool = False, iterations: int = 3, pipelines: int = 1
) -> Timeline:
    """What a run of the truth, cut before these layers, takes; its first iteration is ten times as slow."""
    spans = []
    for k in range(pipelines):
        for stage, layers in enumerate(ranges(cut, truth)):
            for iteration in range(iterations):
                spans += list(spans_of(f"{k}/{stage}", sums(truth, layers), iteration, 1 if iteration else 10, fused))
    return Timeline("measured", tuple(spans))


def spans_of(worker: str, took_s: dict[str, float], iteration: int, slow: float, fused: bool) -> Iterator[Span]:
    """One iteration of two micro-batches on one worker."""
    passes = {"F": took_s["F"], "B": took_s["I"] + took_s["W"]} if fused else {k: took_s[k] for k in "FIW"}
    for kind, time_s in passes.items():
        yield from (Span(worker, f"{kind}{j}", 1.0, 1.0 + slow * time_s, iteration) for j in range(2))
    yield Span(worker, "step", 1.0, 1.0 + slow * took_s["step"], iteration)
    yield Span(worker, "allreduce", 1.0, 5.0, iteration)


def ranges(cut: Sequence[int], profile: Profile) -> list[tuple[int, int]]:
    """The stages between the cuts."""
    places = [0, *cut, len(profile.layers)]
    return list(pairwise(places))


def run_of(timeline: Timeline, cut: Sequence[int], profile: Profile, pipelines: int = 1) -> MeasuredRun:
    """A timeline with the seats of a cut."""
    seats = {f"{k}/{i}": WorkerHolding(own) for i, own in enumerate(ranges(cut, profile)) for k in range(pipelines)}
    return MeasuredRun("t.json", timeline, seats)


def scaled(profile: Profile, cut: Sequence[int], factors: Sequence[Sequence[float]]) -> Profile:
    """A profile whose stages' operations are multiplied by factors, an array of stages by 4."""
    layers = []
    for index, layer in enumerate(profile.layers):
        stage = sum(index >= place for place in cut)
        names = zip(TIMES.values(), factors[stage], strict=True)
        times = {name: getattr(layer.costs[0], name) * factor for name, factor in names}
        layers.append(replace(layer, costs=(replace(layer.costs[0], **times),)))
    return replace(profile, layers=tuple(layers))


def times_of(profile: Profile) -> list[float]:
    """All times of a profile."""
    return [getattr(layer.costs[0], name) for layer in profile.layers for name in TIMES.values()]


@st.composite
def wrong_profiles(draw: st.DrawFn) -> tuple[Profile, Profile, list[int]]:
    """A profile, what is true instead (a factor for each stage and operation), and the cut into stages."""
    count = draw(st.integers(1, 6))
    given_ = profile_of(*draw(st.lists(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), min_size=count, max_size=count)))
    cut = sorted(draw(st.sets(st.integers(1, count - 1), max_size=3))) if count > 1 else []
    factors = draw(st.lists(st.tuples(*[FACTORS] * 4), min_size=len(cut) + 1, max_size=len(cut) + 1))
    return given_, scaled(given_, cut, factors), cut


@settings(max_examples=30)
@given(wrong_profiles())
def test_factors_of_stages_are_found_exactly(case: tuple[Profile, Profile, list[int]]) -> None:
    """Where each stage is wrong by a factor for each operation, the truth comes out, whoever else is slow at first."""
    wrong, truth, cut = case
    found = refine(wrong, [run_of(timeline_of(truth, cut), cut, wrong)]).profile
    assert times_of(found) == pytest.approx(times_of(truth), rel=1e-9)


@settings(max_examples=20)
@given(wrong_profiles())
def test_full_backward_passes_scale_both_parts(case: tuple[Profile, Profile, list[int]]) -> None:
    """A B corrects the sum of I and W, whose shares stay."""
    wrong, truth, cut = case
    found = refine(wrong, [run_of(timeline_of(truth, cut, fused=True), cut, wrong)]).profile
    for layers in ranges(cut, wrong):
        old, new, true = (sums(one, layers) for one in (wrong, found, truth))
        assert new["I"] + new["W"] == pytest.approx(true["I"] + true["W"])
        assert new["I"] / new["W"] == pytest.approx(old["I"] / old["W"])


def test_full_backward_passes_with_a_time_of_their_own_keep_their_share() -> None:
    """A measured B corrects `backward_s` to itself; measured I and W scale it with their sum."""
    said = profile_of((1, 2, 2, 1))
    said = replace(said, layers=(replace(said.layers[0], costs=(replace(said.layers[0].costs[0], backward_s=3.0),)),))
    run = run_of(timeline_of(said, [], fused=True), [], said)
    (found,) = refine(said, [run]).profile.layers[0].costs
    measured_s = 4.0  # the timeline's B: I and W one after the other
    assert found.backward_s == pytest.approx(measured_s)
    assert found.backward_input_s == found.backward_weight_s == pytest.approx(2 * measured_s / 3)
    slower = scaled(said, [], [(1, 2, 2, 1)])
    (found,) = refine(said, [run_of(timeline_of(slower, []), [], said)]).profile.layers[0].costs
    assert found.backward_input_s == pytest.approx(4)
    assert found.backward_s == pytest.approx(6)


def test_several_cuts_give_finer_factors() -> None:
    """The stages of all timelines agree afterwards; a truth made of one factor for each stage of each cut comes out."""
    randomness = random.Random(0)
    wrong = profile_of(*([randomness.uniform(1, 3) for _ in range(4)] for _ in range(12)))  # type: ignore[arg-type]
    cuts = [[3, 6, 9], [2, 5, 7, 10]]
    truth = wrong
    for cut in cuts:
        factors = [[randomness.uniform(0.5, 2) for _ in range(4)] for _ in range(len(cut) + 1)]
        truth = scaled(truth, cut, factors)
    done = refine(wrong, [run_of(timeline_of(truth, cut), cut, wrong) for cut in cuts])
    assert times_of(done.profile) == pytest.approx(times_of(truth), rel=1e-6)
    assert not contradictions(done)


def test_timelines_that_contradict_each_other_meet_half_way() -> None:
    """Of two runs of the same stages the sums lie between what both say, and both are named."""
    wrong = profile_of((1, 1, 1, 1), (2, 2, 2, 2))
    slow = scaled(wrong, [1], [[4] * 4] * 2)
    runs = [run_of(timeline_of(one, [1]), [1], wrong) for one in (wrong, slow)]
    done = refine(wrong, runs)
    assert times_of(done.profile) == pytest.approx([2.0] * 4 + [4.0] * 4)
    assert set(contradictions(done)) == {0, 1}


@settings(max_examples=20)
@given(st.lists(st.floats(0.5, 2.0), min_size=4, max_size=15), st.integers(0, 2**16))
def test_sums_are_the_medians_of_noisy_readings(noise: list[float], seed: int) -> None:
    """A stage takes what the median of its readings says; the spread is theirs, shared by its layers."""
    wrong = profile_of((1, 1, 1, 0), (3, 1, 1, 0))
    random.Random(seed).shuffle(noise)
    spans = [Span("0/0", f"{kind}{j}", 0.0, time_s, 1) for kind in "FIW" for j, time_s in enumerate(noise)]
    found = refine(wrong, [run_of(Timeline("measured", tuple(spans)), [], wrong)]).profile
    middle = sorted(noise)[len(noise) // 2] if len(noise) % 2 else sum(sorted(noise)[len(noise) // 2 - 1 :][:2]) / 2
    assert sums(found, (0, 2))["F"] == pytest.approx(middle)
    costs = [layer.costs[0] for layer in found.layers]
    spreads = [cost.spread for cost in costs if cost.spread]
    assert spreads[1].forward_s == pytest.approx(3 * spreads[0].forward_s)
    assert sum(spread.forward_s for spread in spreads) == pytest.approx(half_width(noise))


def test_few_readings_have_no_spread() -> None:
    """Of three readings nobody can tell how far they lie apart: a profile without spreads gets none."""
    wrong = profile_of((1, 1, 1, 0))
    spans = [Span("0/0", f"{kind}{j}", 0.0, 1.0 + j, 1) for kind in "FIW" for j in range(3)]
    found = refine(wrong, [run_of(Timeline("measured", tuple(spans)), [], wrong)]).profile
    assert found.layers[0].costs[0].spread is None


def test_prediction_becomes_better() -> None:
    """A plan made from the refined profile promises what the run took, where the first one's promise was far off."""
    randomness = random.Random(3)
    truth = profile_of(*([randomness.uniform(0.01, 0.03) for _ in range(4)] for _ in range(8)))  # type: ignore[arg-type]
    wrong = scaled(truth, range(1, 8), [[randomness.uniform(0.2, 0.6) for _ in range(4)] for _ in range(8)])
    shape = Shape(pp=4, dp=2, microbatches=6)
    plan = plan_pipeline(wrong, shape, "zero-bubble")
    real = simulate(with_costs_of(plan, truth), jitter=0.05, seed=1)
    timeline = replace(real.timeline, source="measured", plan=digest(plan))
    seats = {worker.name: WorkerHolding(plan.stage_of(worker).layers) for worker in plan.workers}
    better = simulate(with_costs_of(plan, refine(wrong, [MeasuredRun("t", timeline, seats)]).profile)).makespan_s
    before = simulate(plan).makespan_s
    assert abs(better / real.makespan_s - 1) < 0.05 < 0.4 < abs(before / real.makespan_s - 1)


@settings(max_examples=10)
@given(
    st.sampled_from(["v", "loop"]),
    st.integers(2, 3),
    st.lists(st.tuples(*[FACTORS] * 4), min_size=9, max_size=9),
    st.sampled_from([None, BoundaryCost(1e-5, 2e-5, 1e-5, 3e-5)]),
)
def test_chunks_are_corrected_each_by_its_own_times(
    placement: Any, chunks: int, factors: list[tuple[float, ...]], boundary: BoundaryCost | None
) -> None:
    """A run of a V or a loop in which each virtual stage is wrong by factors of its own: what the profile then says of
    it is what the run took, and a worker's step is shared among its chunks as the profile has it."""
    given_ = replace(profile_of(*[(0.01, 0.02, 0.015, 0.001 * n) for n in range(9)]), boundary=boundary)
    shape = Shape(pp=3, dp=1, microbatches=4, placement=placement, chunks=chunks)
    plan = plan_pipeline(given_, shape, "zero-bubble")
    real = [
        replace(
            stage,
            forward_s=stage.forward_s * f,
            backward_input_s=stage.backward_input_s * i,
            backward_weight_s=stage.backward_weight_s * w,
            backward_s=None,
            optimizer_s=stage.optimizer_s * step,
        )
        for stage, (f, i, w, step) in zip(plan.templates[0].stages, factors, strict=False)
    ]
    ran = simulate(replace(plan, templates=(replace(plan.templates[0], stages=tuple(real)),)))
    timeline = replace(ran.timeline, source="measured", plan=digest(plan))
    done = refine(given_, [read_run(GivenTimeline("t", timeline), given_, [plan], lambda of, count: [])])
    done.profile.validate()
    costs = [layer.costs[0] for layer in done.profile.layers]
    after = [joined_cost(costs[slice(*stage.layers)], done.profile.inner) for stage in real]
    for name in PASSES.values():
        assert [getattr(one, name) for one in after] == pytest.approx([getattr(one, name) for one in real], rel=1e-6)
    for held in plan.templates[0].columns:
        took_s, told_s = (sum(cut[v].optimizer_s for v in held) for cut in (real, after))
        assert told_s == pytest.approx(took_s, rel=1e-6)


def test_a_timeline_of_chunks_needs_its_plan() -> None:
    """Only a plan says which layers the virtual stages are, and a worker that is slow at one of them is named so."""
    told = profile_of(*[(0.01, 0.01, 0.01, 0.01)] * 4)
    plan = plan_pipeline(told, Shape(2, 2, 2, placement="v", chunks=2), "zero-bubble")
    spans = [
        replace(span, end_s=2 * span.end_s - span.start_s) if (span.worker, span.op[:1]) == ("1/0", "3") else span
        for span in simulate(plan).timeline.spans
    ]
    timeline = Timeline("measured", tuple(spans))
    with pytest.raises(InvalidInputError, match="only their plan says which layers"):
        read_run(GivenTimeline("t", timeline), told, [], lambda of, count: [])
    named = GivenTimeline("t", replace(timeline, plan=digest(plan)))
    done = refine(told, [read_run(named, told, [plan], lambda of, count: [])])
    assert {slow.worker: slow.ratio for slow in done.slow} == pytest.approx({"1/0:3": 2.0})
    assert times_of(done.profile) == pytest.approx(times_of(told))


def with_costs_of(plan: Plan, profile: Profile) -> Plan:
    """A plan whose stages take what a profile says."""
    stages = []
    for stage in plan.templates[0].stages:
        times: dict[str, Any] = {TIMES[kind]: time_s for kind, time_s in sums(profile, stage.layers).items()}
        stages.append(replace(stage, **times))
    return replace(plan, templates=(replace(plan.templates[0], stages=tuple(stages)),))


def test_a_slow_worker_is_named_and_does_not_count() -> None:
    """Of two peers the one that takes twice as long; the stage takes what the other one takes."""
    truth = profile_of((1, 1, 1, 1), (1, 1, 1, 1))
    timeline = timeline_of(truth, [1], pipelines=2)
    spans = [replace(s, end_s=2 * s.end_s - s.start_s) if s.worker == "1/0" else s for s in timeline.spans]
    done = refine(truth, [run_of(replace(timeline, spans=tuple(spans)), [1], truth, pipelines=2)])
    assert [(slow.worker, slow.ratio) for slow in done.slow] == [("1/0", 2.0)]
    assert times_of(done.profile) == pytest.approx(times_of(truth))


def test_slowdowns_that_the_plan_knows_are_taken_out() -> None:
    """A worker that the plan says takes twice as long measures twice the layers' time."""
    truth = profile_of((1, 1, 1, 0))
    run = run_of(timeline_of(scaled(truth, [], [[2] * 4]), []), [], truth)
    known = replace(run, seats={"0/0": WorkerHolding((0, 1), slowdown=2.0)})
    assert times_of(refine(truth, [known]).profile) == pytest.approx(times_of(truth))


def test_degrees_are_scaled_alike() -> None:
    """A stage that ran at degree 2 says by how much to correct that degree, and the others with it."""
    costs = (LayerCost(4, 4, 4, 4), LayerCost(2, 2, 2, 2, tensor_parallel=2))
    wrong = Profile((Layer(costs),))
    timeline = timeline_of(profile_of((3, 3, 3, 3)), [])
    (layer,) = refine(wrong, [MeasuredRun("t", timeline, {"0/0": WorkerHolding((0, 1), 2)})]).profile.layers
    assert [cost.forward_s for cost in layer.costs] == pytest.approx([6.0, 3.0])
    with pytest.raises(InvalidInputError, match="no cost at tensor_parallel 4"):
        refine(wrong, [MeasuredRun("t", timeline, {"0/0": WorkerHolding((0, 1), 4)})])


def test_origin_becomes_measured_once_all_is_corrected() -> None:
    """Only where no time is left as it was; the profile says by what, and what there was before."""
    wrong = profile_of((1, 1, 1, 1), (1, 1, 1, 1), model={"name": "m"})
    timeline = timeline_of(wrong, [1])
    whole = refine(wrong, [run_of(timeline, [1], wrong)]).profile
    assert whole.origin == "measured"
    history = {"profile": digest(wrong), "origin": "analytic", "timelines": [digest(timeline)]}
    assert whole.model == {"name": "m", "refined": history}
    assert parse_document(canonical(whole), Profile, "whole") == whole
    for part in (
        [span for span in timeline.spans if span.op != "step"],
        [span for span in timeline.spans if span.worker != "0/1"],
    ):
        some = replace(timeline, spans=tuple(part))
        assert refine(wrong, [run_of(some, [1], wrong)]).profile.origin == "analytic"


def test_what_was_not_measured_stays() -> None:
    """Times and spreads of a stage that no timeline tells, and operations that take no time in the profile."""
    spread = Spread(0.1, 0.1, 0.1, 0.1)
    wrong = profile_of((1, 1, 0, 1), (1, 1, 1, 1))
    wrong = replace(wrong, layers=tuple(replace(x, costs=(replace(x.costs[0], spread=spread),)) for x in wrong.layers))
    slow = scaled(profile_of((1, 1, 1, 1), (1, 1, 1, 1)), [1], [[2] * 4] * 2)
    timeline = timeline_of(slow, [1])
    part = replace(timeline, spans=tuple(span for span in timeline.spans if span.worker == "0/0"))
    done = refine(wrong, [run_of(part, [1], wrong)])
    assert done.profile.layers[1] == wrong.layers[1]
    # Of F, I and W there are four readings, all alike; of steps too few to say.
    assert done.profile.layers[0].costs[0] == LayerCost(2, 2, 0, 2, spread=Spread(0, 0, 0, 0.2))
    (unscaled,) = [reading for reading in done.readings if reading.operation == "W"]
    assert (unscaled.before_s, unscaled.measured_s, unscaled.after_s) == (0, 2, 0)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "simulated": ({"source": "simulated"}, "/source"),
    "paced": ({"paced": True}, "/paced"),
    "no spans": ({"spans": ()}, "/spans"),
    "no compute": ({"spans": (Span("0/0", "allreduce", 0, 1), Span("0/0", "step", 0, 1))}, "/spans"),
    "a stranger": ({"spans": (Span("0/7", "F0", 0, 1),)}, "/spans/0/worker"),
    "a stage that changed": ({"workers": (WorkerMemory("0/1"),)}, "/spans/0/worker"),
}


@pytest.mark.parametrize("case", BAD)
def test_timelines_that_say_nothing_are_refused(case: str) -> None:
    """With what is wrong and where."""
    changes, place = BAD[case]
    wrong = profile_of((1, 1, 1, 1), (1, 1, 1, 1))
    with pytest.raises(InvalidInputError) as caught:
        refine(wrong, [run_of(replace(timeline_of(wrong, [1]), **changes), [1], wrong)])
    assert caught.value.where == f"t.json, {place}"
    assert caught.value.fix


def test_layers_must_be_the_profiles() -> None:
    """A plan of another model is refused."""
    wrong = profile_of((1, 1, 1, 1))
    with pytest.raises(InvalidInputError, match="hold 2 layers, the profile has 1"):
        refine(wrong, [MeasuredRun("t", timeline_of(wrong, []), {"0/0": WorkerHolding((0, 2))})])
