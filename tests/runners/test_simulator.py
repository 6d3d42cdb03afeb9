"""The simulator: frozen orders under slow links and workers, jitter that repeats, and what conditions it refuses."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.lower_bound import lower_bound
from rtk.planners.scheduling.problem import problem_of
from rtk.planners.shape import Shape
from rtk.runners.program import Send, Sending, lower, lower_rest, pairs_of, rank_pair, step_s
from rtk.runners.simulator import execute, simulate
from rtk.schemas.check import makespan_of
from rtk.schemas.check_rest import check_rest
from rtk.schemas.conditions import under_conditions
from rtk.schemas.documents import canonical, digest, read_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Link, Pipeline, Plan
from rtk.schemas.profile import Profile
from rtk.schemas.resumption import Rest, RestPrediction
from rtk.schemas.timeline import Span, memory_of_workers

from ..placed_plans import any_placed_plans
from ..rests import rests
from ..strategies import hand_plan, limited, peaks_by_stage, plans, unlike_plans

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def frozen() -> Plan:
    """Zero-bubble orders of S=4, N=12, 10 ms operations, made for links without delay."""
    profile = read_document(str(GOLDEN / "profile-adaptra4.json"), Profile)
    return plan_pipeline(profile, Shape(4, 1, 12), "zero-bubble")


@pytest.mark.parametrize(
    ("link", "expected_ms"),
    [(0, [390, 400, 440, 500, 560, 620, 680]), (2, [390, 400, 480, 560, 640, 720, 800])],
)
def test_frozen_orders_suffer_from_a_slow_link(frozen: Plan, link: int, expected_ms: list[int]) -> None:
    """Orders made for fast links cost several times a link's delay of 0, 10, … 60 ms: the figure of Adaptra."""
    found = [simulate(under_conditions(frozen, {}, {(None, link): ms / 1000})).makespan_s for ms in range(0, 70, 10)]
    assert found == pytest.approx([ms / 1000 for ms in expected_ms], rel=1e-9)


@pytest.mark.parametrize(
    ("transport", "expected_ms"), [("direct", [390, 520, 650, 780]), ("delegated", [390, 400, 480, 560])]
)
def test_direct_sends_hold_up_their_senders(frozen: Plan, transport: Sending, expected_ms: list[int]) -> None:
    """A slow last link of 0, 10, 20, 30 ms costs its workers that for every message, if they send directly."""
    under = [under_conditions(frozen, {}, {(None, 2): ms / 1000}) for ms in range(0, 40, 10)]
    found = [simulate(plan, transport=transport).makespan_s for plan in under]
    assert found == pytest.approx([ms / 1000 for ms in expected_ms], rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.one_of(plans(max_microbatches=4), unlike_plans(), any_placed_plans()))
def test_nothing_is_sooner_by_direct_sends(plan: Plan) -> None:
    """Sent directly, no operation ends sooner than by delegates; without delays all is the same, but for nothing."""
    delegated, direct = simulate(plan), simulate(plan, transport="direct")
    ends_s = {(span.worker, span.op): span.end_s for span in direct.timeline.spans}
    assert all(span.end_s <= ends_s[span.worker, span.op] * (1 + 1e-9) for span in delegated.timeline.spans)
    quick = replace(plan, pipelines=tuple(replace(one, links=None) for one in plan.pipelines))
    quick = replace(quick, templates=tuple(replace(t, links=(Link(),) * len(t.links)) for t in quick.templates))
    assert simulate(quick, transport="direct") == simulate(quick, transport="delegated") == simulate(quick)


@settings(max_examples=60, deadline=None)
@given(st.one_of(plans(max_microbatches=4), any_placed_plans()), st.data())
def test_pairs_send_directly_each_for_themselves(plan: Plan, data: st.DataObject) -> None:
    """Some pairs direct lie between none and all; a held worker does nothing, and its message comes when it is free."""
    program = lower(plan)
    chosen = data.draw(st.sets(st.sampled_from(sorted(pairs_of(program)))) if pairs_of(program) else st.just(set()))
    some = execute(program, direct=chosen)
    for less, more in zip((execute(program), some), (some, execute(program, direct=pairs_of(program))), strict=True):
        assert all(a <= b * (1 + 1e-9) for a, b in zip(less.ready_s, more.ready_s, strict=True))
    for rank, own in enumerate(program.instructions):
        for one in own:
            if isinstance(one, Send):
                under_way_s = some.traffic.arrived_s[one.message] - some.traffic.handed_s[one.message]
                assert under_way_s == pytest.approx(one.delay_s, abs=1e-9)
                held_s = (some.traffic.handed_s[one.message], some.traffic.arrived_s[one.message])
                if rank_pair(rank, one.to) in chosen:
                    spans = (s for s in some.spans[rank] if s.op not in ("allreduce", "step"))
                    assert not [s for s in spans if s.start_s < held_s[1] - 1e-9 and s.end_s > held_s[0] + 1e-9]


def test_a_direct_message_dies_with_its_sender() -> None:
    """Who stops while it is held has not sent; who stops after it handed a message to a delegate has."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1, delay_s=2.0)
    stops = {0: (2.0, math.inf)}
    assert execute(lower(plan), stops, direct={(0, 1)}).spans[1] == ()
    assert [span.op for span in execute(lower(plan), stops).spans[1]] == ["F0", "B0"]


def test_nothing_passes_a_cut_link() -> None:
    """What is handed over after the cut, or under way then, is lost, and so is a sum over its two ends."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1, delay_s=2.0)
    for cut_s, lost_s, ops in ((0.0, 1.0, []), (2.0, 2.0, []), (3.0, 6.0, ["F0", "B0"])):
        found = execute(lower(plan), cuts={(0, 1): cut_s})
        assert found.traffic.lost_s == {(0, 1): lost_s}
        assert [span.op for span in found.spans[1] if span.op in ("F0", "B0")] == ops
        assert math.isinf(found.done_s[0])
    peers = hand_plan({"0/0": "F0 B0", "1/0": "F0 B0"}, 1)
    found = execute(lower(peers), cuts={(0, 1): 0.0})
    assert (found.traffic.lost_s, found.reduced_s) == ({(0, 1): 3.0}, (math.inf, math.inf))


@given(st.one_of(plans(max_microbatches=4), unlike_plans(), any_placed_plans()))
def test_timeline_is_in_order_and_of_its_plan(plan: Plan) -> None:
    """Spans stand in time order, name live workers, and the timeline carries the plan's digest and memory sizes."""
    simulation = simulate(plan)
    timeline = simulation.timeline
    starts = [span.start_s for span in timeline.spans]
    assert starts == sorted(starts)
    assert {span.worker for span in timeline.spans} <= {worker.name for worker in plan.live_workers()}
    assert timeline.plan == digest(plan)
    assert timeline.workers == memory_of_workers(plan)
    assert list(dict.fromkeys(row.worker for row in timeline.workers)) == [one.name for one in plan.live_workers()]
    if plan.optimizer == "synchronous":
        assert max(span.end_s for span in timeline.spans) == simulation.makespan_s
    report = simulation.report(plan, 0.0 if plan.is_placed else lower_bound(problem_of(plan)).value_s)
    assert report.iteration_time_s == simulation.iteration_time_s
    assert report.plan == digest(plan)


@given(plans(max_microbatches=4), st.integers(0, 9))
def test_jitter_repeats_with_its_seed(plan: Plan, seed: int) -> None:
    """The same seed gives the same bytes; a plan under jitter still keeps its orders and dependencies."""
    first, second = simulate(plan, 0.2, seed), simulate(plan, 0.2, seed)
    assert canonical(first.timeline) == canonical(second.timeline)
    assert first == second
    for worker in plan.live_workers():
        spans = [s for s in first.timeline.spans if s.worker == worker.name and s.op not in ("allreduce", "step")]
        assert all(a.end_s <= b.start_s for a, b in pairwise(spans))


def test_another_seed_is_another_run() -> None:
    """Seeds matter, and without jitter they do not."""
    plan = hand_plan({"0/0": "F0 F1 B0 B1"}, 2)
    assert simulate(plan, 0.2, 1).makespan_s != simulate(plan, 0.2, 2).makespan_s
    assert simulate(plan, 0.0, 1).makespan_s == simulate(plan, 0.0, 2).makespan_s == 6.0


def _durations(plan: Plan, worker: str) -> list[float]:
    return [span.end_s - span.start_s for span in simulate(plan, 0.3, 7).timeline.spans if span.worker == worker]


def test_workers_jitter_independently() -> None:
    """Another order on one worker leaves the other workers' jittered durations as they are."""
    one = hand_plan({"0/0": "F0 F1 B0 B1", "0/1": "F0 B0 F1 B1"}, 2)
    other = hand_plan({"0/0": "F0 F1 B0 B1", "0/1": "F0 F1 B0 B1"}, 2)
    assert _durations(one, "0/0") == pytest.approx(_durations(other, "0/0"), rel=1e-9)
    assert _durations(other, "0/0") != pytest.approx(_durations(other, "0/1"), rel=1e-3)


def test_jitter_is_log_normal_around_the_plans_times() -> None:
    """The logarithms of many jittered durations have mean 0 and the given sigma."""
    count = 2000
    plan = hand_plan({"0/0": " ".join([*(f"F{j}" for j in range(count)), *(f"B{j}" for j in range(count))])}, count)
    forwards = [s for s in simulate(plan, 0.25, 1).timeline.spans if s.op.startswith("F")]
    logs = [math.log(span.end_s - span.start_s) for span in forwards]
    mean = sum(logs) / count
    assert mean == pytest.approx(0, abs=0.02)
    assert math.sqrt(sum((x - mean) ** 2 for x in logs) / count) == pytest.approx(0.25, rel=0.05)


def test_slow_worker_slows_the_schedule(frozen: Plan) -> None:
    """A worker that is three times as slow takes three times as long for each of its operations, others do not."""
    slow = simulate(under_conditions(frozen, {"0/2": 3.0}, {})).timeline
    durations = _by_worker(slow.spans)
    assert durations["0/2"] == pytest.approx([0.03] * 36)
    assert durations["0/1"] == pytest.approx([0.01] * 36)
    assert max(span.end_s for span in slow.spans) >= 36 * 0.03


def _by_worker(spans: tuple[Span, ...]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for span in spans:
        found.setdefault(span.worker, []).append(span.end_s - span.start_s)
    return found


@given(plans())
def test_iterations_repeat_after_the_iteration_time(plan: Plan) -> None:
    """Repeated, each stage's second iteration begins no earlier than its own step ends, and nothing else changes."""
    simulation = simulate(plan)
    twice = simulation.repeated(2)
    first, second = ([span for span in twice.spans if span.iteration == n] for n in range(2))
    assert first == list(simulation.timeline.spans)
    assert [(span.worker, span.op) for span in second] == [(span.worker, span.op) for span in first]
    for stage in {worker.stage for worker in plan.workers}:
        ends_s = [span.end_s for span in first if span.worker.endswith(f"/{stage}")]
        starts_s = [span.start_s for span in second if span.worker.endswith(f"/{stage}") and span.op[0] in "FIWB"]
        if plan.optimizer == "staggered" and len(plan.templates) == 1 and starts_s:
            assert min(starts_s) >= max(ends_s) * (1 - 1e-9)


def test_allreduce_and_step_are_spans() -> None:
    """All-reduces begin when the last peer is there, a synchronous step when every stage is reduced."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0", "1/0": "F0 B0", "1/1": "F0 B0"}, 1)
    stages = tuple(replace(stage, allreduce_s=1.0, optimizer_s=0.5) for stage in plan.templates[0].stages)
    plan = replace(plan, templates=(replace(plan.templates[0], stages=stages),))
    slow = under_conditions(plan, {"1/0": 2.0}, {})
    spans = {(s.worker, s.op): (s.start_s, s.end_s) for s in simulate(slow).timeline.spans}
    assert spans["0/0", "allreduce"] == spans["1/0", "allreduce"] == (9.0, 10.0)
    assert spans["0/1", "allreduce"] == spans["1/1", "allreduce"] == (5.0, 6.0)
    assert {spans[f"{k}/{i}", "step"] for k in range(2) for i in range(2)} == {(10.0, 10.5)}
    staggered = simulate(replace(slow, optimizer="staggered"))
    steps = {s.worker: s.start_s for s in staggered.timeline.spans if s.op == "step"}
    assert steps == {"0/0": 10.0, "1/0": 10.0, "0/1": 6.0, "1/1": 6.0}
    assert staggered.iteration_time_s == staggered.period_s == 10.5


def test_deadlocked_plan_is_refused() -> None:
    """Programs that block each other raise an error that says where to look, and do not hang."""
    with pytest.raises(InvalidInputError, match="worker 0/0 waits forever") as caught:
        simulate(hand_plan({"0/0": "F0 B0 F1 B1", "0/1": "F1 F0 B0 B1"}, 2))
    assert "rtk verify" in (caught.value.fix or "")


def test_memory_peaks_are_zero_for_the_dead() -> None:
    """A simulation gives every worker's peak, in the plan's order; who has failed holds nothing."""
    plan = hand_plan({"0/0": "F0 B0 F1.0 B1.0", "1/0": None}, 1, limit_bytes=3.0)
    assert simulate(plan).peak_memory_bytes == (1.0, 0.0)


# Conditions


def _two_by_two() -> Plan:
    return hand_plan({"0/0": "F0 B0", "0/1": "F0 B0", "1/0": "F0 B0", "1/1": "F0 B0"}, 1, delay_s=0.25)


def test_no_conditions_leave_the_plan_as_it_is() -> None:
    """Without slow workers and links the plan, its prediction included, is the same object."""
    plan = _two_by_two()
    assert under_conditions(plan, {}, {}) is plan


def test_conditions_keep_the_orders_and_drop_the_prediction(frozen: Plan) -> None:
    """Orders are frozen; the prediction no longer holds and is not carried along."""
    changed = under_conditions(frozen, {"0/1": 2.0}, {(None, 0): 0.5})
    assert [worker.order for worker in changed.workers] == [worker.order for worker in frozen.workers]
    assert frozen.prediction is not None
    assert changed.prediction is None


def test_delay_of_one_pipeline_wins_over_that_of_all() -> None:
    """`I=` is link I of every pipeline and of hops between them, `K/I=` that of pipeline K alone."""
    plan = under_conditions(_two_by_two(), {}, {(None, 0): 1.0, (1, 0): 5.0})
    w00, w01, w10, w11 = plan.workers
    assert plan.hop_delay_s(0, 0, w00, w01) == 1.0
    assert plan.hop_delay_s(1, 0, w10, w11) == 5.0
    assert plan.hop_delay_s(1, 0, w10, w01) == 1.0
    only = under_conditions(_two_by_two(), {}, {(1, 0): 5.0})
    assert only.hop_delay_s(0, 0, w00, w01) == 0.25
    assert only.pipelines[0].links is None


def test_delay_for_all_reaches_pipelines_with_links_of_their_own() -> None:
    """`I=` also replaces that link of a pipeline that states its own, and leaves its other links."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0", "0/2": "F0 B0"}, 1)
    plan = replace(plan, pipelines=(Pipeline("t0", 1, (Link(1.0), Link(2.0))),))
    assert under_conditions(plan, {}, {(None, 0): 9.0}).pipelines[0].links == (Link(9.0), Link(2.0))


def test_slowdown_replaces_the_plans_own() -> None:
    """A worker that the plan knows to be slow takes the new factor, not the product."""
    plan = under_conditions(_two_by_two(), {"0/0": 4.0}, {})
    again = under_conditions(plan, {"0/0": 2.0, "1/1": 3.0}, {})
    assert [worker.slowdown for worker in again.workers] == [2.0, None, None, 3.0]
    assert evaluate(again).makespan_s == simulate(again).makespan_s


@pytest.mark.parametrize("name", ["2/0", "0/2", "00/0", "x"])
def test_unknown_slow_worker_is_refused(name: str) -> None:
    """A slow worker that the plan lacks is one error."""
    with pytest.raises(InvalidInputError, match=f"there is no live worker {name}") as caught:
        under_conditions(_two_by_two(), {name: 2.0}, {})
    assert caught.value.where == "--slow"


def test_failed_worker_cannot_be_slow() -> None:
    """A failed worker is not live, so it cannot be slow."""
    plan = hand_plan({"0/0": "F0 B0 F1.0 B1.0", "1/0": None}, 1)
    with pytest.raises(InvalidInputError, match="no live worker 1/0"):
        under_conditions(plan, {"1/0": 2.0}, {})


def test_error_names_the_last_worker_by_number() -> None:
    """Of twelve pipelines the last is 11, though `9` sorts behind it as text."""
    plan = hand_plan({f"{k}/0": "F0 B0" for k in range(12)}, 1)
    with pytest.raises(InvalidInputError) as caught:
        under_conditions(plan, {"12/0": 2.0}, {})
    assert caught.value.fix == "workers run from 0/0 to 11/0"


@pytest.mark.parametrize("place", [(None, 1), (0, 1), (2, 0), (None, -1), (-1, 0)])
def test_unknown_slow_link_is_refused(place: tuple[int | None, int]) -> None:
    """A delay for a link or pipeline that the plan lacks is one error."""
    with pytest.raises(InvalidInputError, match="there is no link") as caught:
        under_conditions(_two_by_two(), {}, {place: 1.0})
    assert caught.value.where == "--link-delay"


# What is left of an iteration


@settings(max_examples=30, deadline=None)
@given(rests())
def test_what_is_left_takes_the_time_and_the_room_that_the_checker_finds(drawn: tuple[Plan, Rest]) -> None:
    """Simulated makespans are right by the checker, peaks are limits that are just kept, and less is too little."""
    plan, rest = drawn
    execution = execute(lower_rest(plan, rest))
    live = plan.live_workers()
    steps_s = max(step_s(plan, worker) for worker in live)
    redo_s = plan.prediction.makespan_s if plan.prediction is not None else makespan_of(plan)
    said = replace(rest, prediction=RestPrediction(max(execution.reduced_s) + steps_s, 0.0, 0.0, redo_s))
    assert check_rest(plan, said) == []
    peaks, plan = peaks_by_stage(plan, live, execution.peak_bytes), replace(plan, prediction=None)
    # Sums of numbers far apart, in another order, are another number.
    rounded = max(peaks.values(), default=0.0) * 1e-9
    assert check_rest(limited(plan, {place: peak + rounded for place, peak in peaks.items()}), rest) == []
    if any(peaks.values()):
        less = {place: max(0.0, 0.9 * peak - rounded) for place, peak in peaks.items()}
        assert check_rest(limited(plan, less), rest)


@settings(max_examples=20, deadline=None)
@given(rests())
def test_what_has_been_summed_is_not_summed_again(drawn: tuple[Plan, Rest]) -> None:
    """What an execution sums and what is sealed are all layers, each once; its tokens are those of the orders."""
    plan, rest = drawn
    program = lower_rest(plan, rest)
    execution = execute(program)
    sealed = [layer for run in rest.sealed for layer in range(*run)]
    for rank, worker in enumerate(program.workers):
        own = sorted(layer for run in plan.layers_of(worker) for layer in range(*run))
        summed = [layer for layers, _ in execution.sums_s[rank] for layer in range(*layers)]
        assert sorted(summed + [layer for layer in sealed if layer in own]) == own
        tokens = [span.op for span in execution.spans[rank] if span.op not in ("allreduce", "step")]
        assert tokens == rest.workers[rank].order.split()
