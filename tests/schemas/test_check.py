"""The checker: valid plans have no problem, and every kind of broken plan is found at its place."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.assemble import with_prediction
from rtk.planners.scheduling.evaluate import evaluate
from rtk.runners.simulator import simulate
from rtk.schemas.check import Violation, check_plan, check_timeline, deadlock_free_times, require_valid
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Link, Pipeline, Plan, Prediction, Stage, Template, Worker
from rtk.schemas.timeline import Span, Timeline

from ..strategies import BY_HAND, any_plans, hand_plan, limited_to_its_peaks, plans

SMALL = plans(max_pp=4, max_microbatches=4)


@settings(max_examples=30)
@given(any_plans())
def test_valid_plans_have_no_problem(plan: Plan) -> None:
    """Random valid plans, whatever their routing, split, delays and slow-downs, pass with and without prediction."""
    assert check_plan(plan) == []
    assert check_plan(replace(plan, prediction=None)) == []
    require_valid(plan, "p.json")


def _tokens(plan: Plan, number: int) -> list[str]:
    return (plan.workers[number].order or "").split()


def _with_order(plan: Plan, number: int, tokens: list[str]) -> Plan:
    """The plan with another order of one worker, and without its prediction."""
    workers = list(plan.workers)
    workers[number] = replace(workers[number], order=" ".join(tokens))
    return replace(plan, workers=tuple(workers), prediction=None)


def _pick(data: st.DataObject, plan: Plan) -> tuple[int, list[str], int]:
    """A worker that has operations, its tokens, and one of their places."""
    busy = [number for number in range(len(plan.workers)) if _tokens(plan, number)]
    number = data.draw(st.sampled_from(busy))
    tokens = _tokens(plan, number)
    return number, tokens, data.draw(st.integers(0, len(tokens) - 1))


def _path(number: int) -> str:
    return f"/workers/{number}/order"


@given(SMALL, st.data())
def test_dropped_operation_is_found(plan: Plan, data: st.DataObject) -> None:
    """An order with an operation missing is one problem, at that order, that names the micro-batch."""
    number, tokens, place = _pick(data, plan)
    problems = check_plan(_with_order(plan, number, tokens[:place] + tokens[place + 1 :]))
    assert [problem.path for problem in problems] == [_path(number)]
    assert re.search(r"micro-batch \d+\.\d+ at stage \d+ has", problems[0].message)


@given(SMALL, st.data())
def test_doubled_operation_is_found(plan: Plan, data: st.DataObject) -> None:
    """An order with an operation twice is one problem, at that order."""
    number, tokens, place = _pick(data, plan)
    problems = check_plan(_with_order(plan, number, [*tokens, tokens[place]]))
    assert [problem.path for problem in problems] == [_path(number)]
    assert f"2 {tokens[place][0]}" in problems[0].message


@given(SMALL, st.data())
def test_swapped_operations_of_a_micro_batch_are_found(plan: Plan, data: st.DataObject) -> None:
    """F after its own I or B, or W before its I, is a problem at that order, whatever else stands between."""
    number, tokens, place = _pick(data, plan)
    others = [n for n, token in enumerate(tokens) if token[1:] == tokens[place][1:] and n != place]
    other = data.draw(st.sampled_from(others))
    tokens[place], tokens[other] = tokens[other], tokens[place]
    problems = check_plan(_with_order(plan, number, tokens))
    assert {problem.path for problem in problems} == {_path(number)}
    assert "which it needs" in problems[0].message


@given(plans(max_pp=3, max_dp=3, max_microbatches=3), st.data())
def test_operation_moved_to_a_peer_is_found(plan: Plan, data: st.DataObject) -> None:
    """F, I and W of a micro-batch at a stage run on one worker: one that wandered off is found."""
    number, tokens, place = _pick(data, plan)
    worker = plan.workers[number]
    peers = [n for n, w in enumerate(plan.workers) if w.stage == worker.stage and n != number and not w.failed]
    assume(peers)
    other = data.draw(st.sampled_from(peers))
    kind, microbatch = tokens[place][0], tokens[place][1:]
    full = microbatch if "." in microbatch else f"{worker.pipeline}.{microbatch}"
    moved = _with_order(plan, number, tokens[:place] + tokens[place + 1 :])
    moved = _with_order(moved, other, [*_tokens(plan, other), f"{kind}{full}"])
    problems = check_plan(moved)
    assert {problem.path for problem in problems} <= {_path(number), _path(other)}
    assert "one worker must run both" in problems[0].message


@given(SMALL, st.data())
def test_operation_moved_to_another_stage_is_found(plan: Plan, data: st.DataObject) -> None:
    """An operation that a neighbour stage runs instead is missing here and too many there."""
    number, tokens, place = _pick(data, plan)
    worker = plan.workers[number]
    others = [n for n, w in enumerate(plan.workers) if w.stage != worker.stage and not w.failed]
    assume(others)
    other = data.draw(st.sampled_from(others))
    microbatch = tokens[place][1:] if "." in tokens[place] else f"{worker.pipeline}.{tokens[place][1:]}"
    moved = _with_order(plan, number, tokens[:place] + tokens[place + 1 :])
    moved = _with_order(moved, other, [*_tokens(plan, other), f"{tokens[place][0]}{microbatch}"])
    assert _path(number) in {problem.path for problem in check_plan(moved)}


@given(SMALL, st.data())
def test_foreign_micro_batch_is_found(plan: Plan, data: st.DataObject) -> None:
    """Operations on micro-batches or pipelines that do not exist are problems at that order."""
    number, tokens, place = _pick(data, plan)
    beyond = plan.pipelines[plan.workers[number].pipeline].microbatches
    token = data.draw(
        st.sampled_from([f"F{beyond}", f"B{len(plan.pipelines)}.0", "W999999999", "I999999999.999999999"])
    )
    problems = check_plan(_with_order(plan, number, [*tokens[:place], token, *tokens[place:]]))
    assert [problem.path for problem in problems] == [_path(number)]
    assert f"(operation {place}) is foreign" in problems[0].message


@given(SMALL, st.data())
def test_checker_and_evaluator_agree_on_shuffled_orders(plan: Plan, data: st.DataObject) -> None:
    """A shuffled order is valid for the checker only if the evaluator completes it, deadlocked only if it cannot."""
    number, tokens, _ = _pick(data, plan)
    shuffled = _with_order(plan, number, data.draw(st.permutations(tokens)))
    messages = [problem.message for problem in check_plan(shuffled)]
    if not messages or messages[0].startswith("worker"):  # nothing, or over a memory limit
        evaluate(shuffled)
    elif messages[0].startswith("deadlock"):
        with pytest.raises(InvalidInputError):
            evaluate(shuffled)


@given(SMALL, st.data())
def test_malformed_order_is_refused(plan: Plan, data: st.DataObject) -> None:
    """A plan built in memory with a token that is no operation is refused with the token and its place."""
    number, tokens, place = _pick(data, plan)
    tokens[place] = data.draw(st.sampled_from(["F01", "X0", "F", "F1.", "F1000000000", "f0"]))
    with pytest.raises(InvalidInputError, match=rf"'{re.escape(tokens[place])}' is not .* \(operation {place},"):
        check_plan(_with_order(plan, number, tokens))


def test_pipelines_of_unlike_depth_share_a_stage() -> None:
    """A micro-batch of a deeper pipeline passes a worker of a shallower one: hops inside, between, and inside again."""
    shallow, deep = (
        Template(name, tuple(Stage(held, 1.0, 1.0, 1.0, activation_bytes=8) for held in pairwise(cuts)), links)
        for name, cuts, links in (("t0", (0, 1, 3), (Link(),)), ("t1", (0, 1, 2, 3), (Link(10.0), Link(100.0))))
    )
    orders = (
        Worker(0, 0, "F0 F1.0 B0 B1.0"),
        Worker(0, 1, "F0 B0"),
        Worker(1, 0, "F1 B1"),
        Worker(1, 1, "F0 F1 B0 B1"),
    )
    plan = Plan(
        BY_HAND,
        (shallow, deep),
        (Pipeline("t0", 1), Pipeline("t1", 2, (Link(20.0), Link(200.0)))),
        "synchronous",
        (*orders, Worker(1, 2, "F0 B0 F1 B1")),
    )
    plan.validate()
    assert check_plan(plan) == []
    start, _ = deadlock_free_times(plan)
    starts = [start[first:stop].tolist() for first, stop in pairwise([0, 4, 6, 8, 12, 16])]
    assert starts == [
        [0, 1, 4, 428],  # F1.0 arrives at stage 1 after the template's 10 s
        [1, 2],
        [0, 447],
        [12, 21, 416, 425],  # F1.1 comes by the pipeline's own link of 20 s
        [213, 214, 222, 223],
    ]


def test_a_worker_of_other_layers_cannot_take_over() -> None:
    """A micro-batch re-routed to the same stage number is foreign there where the stage holds other layers."""
    few, many = (
        Template(name, tuple(Stage(held, 1.0, 1.0, 1.0) for held in pairwise(cuts)), (Link(),))
        for name, cuts in (("t0", (0, 1, 3)), ("t1", (0, 2, 3)))
    )
    workers = (
        Worker(0, 0, "F0 F1.0 B0 B1.0"),
        Worker(0, 1, "F0 B0"),
        Worker(1, 0, failed=True),
        Worker(1, 1, "F0 B0"),
    )
    plan = Plan(BY_HAND, (few, many), (Pipeline("t0", 1), Pipeline("t1", 1)), "synchronous", workers)
    problems = check_plan(plan)
    assert [problem.path for problem in problems] == ["/workers/0/order"] * 2
    assert all("no such micro-batch passes this stage" in problem.message for problem in problems)


def test_problem_names_the_operation_and_its_place() -> None:
    """A problem says which operation, on which worker, at which place of its order."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 W0 I0"}, 1)
    assert check_plan(plan) == [
        Violation(
            "/workers/1/order",
            "W of micro-batch 0.0 on worker 0/1 (operation 1) comes before "
            "I of micro-batch 0.0 on worker 0/1 (operation 2), which it needs",
        )
    ]


def test_lost_micro_batch_is_found() -> None:
    """A micro-batch that no worker of a stage runs at all is a problem of the plan."""
    problems = check_plan(hand_plan({"0/0": "F0 B0", "0/1": ""}, 1))
    assert problems == [
        Violation("/workers", "micro-batch 0.0 at stage 1 has nothing; it needs one F, and one B or one I and one W")
    ]


@pytest.mark.parametrize("tokens", ["F0", "F0 I0", "F0 W0", "F0 B0 W0", "F0 B0 I0 W0", "B0", ""])
def test_backward_is_whole_or_split(tokens: str) -> None:
    """A backward is one B, or one I and one W; nothing less and nothing more."""
    assert len(check_plan(hand_plan({"0/0": tokens}, 1))) == 1


def test_hopelessly_incomplete_plan_is_one_problem() -> None:
    """A billion micro-batches without operations are reported at once, not one by one."""
    plan = hand_plan({"0/0": "F0 B0"}, 1)
    problems = check_plan(replace(plan, pipelines=(Pipeline("t0", 999_999_999),)))
    assert [problem.path for problem in problems] == ["/pipelines"]


def _ring(plan: Plan) -> tuple[str, list[str]]:
    """The path of the only problem, and the workers that it says wait."""
    (problem,) = check_plan(plan)
    assert problem.message.startswith("deadlock: ")
    waits = problem.message.removeprefix("deadlock: ").split("; ")
    found = [re.findall(r"worker (\d+/\d+)", wait) for wait in waits]
    for (_, awaited), (waiting, _) in zip(found, found[1:] + found[:1], strict=True):
        assert awaited == waiting  # each waits for the next, the last for the first
    return problem.path, [waiting for waiting, _ in found]


def test_deadlock_names_the_two_workers_that_wait_for_each_other() -> None:
    """A deadlock's message is the ring of who waits for whom, with operations and places."""
    plan = hand_plan({"0/0": "F0 B0 F1 B1", "0/1": "F1 F0 B0 B1"}, 2)
    assert _ring(plan) == ("/workers/0/order", ["0/0", "0/1"])
    assert "B of micro-batch 0.0 on worker 0/0 (operation 1) waits for" in check_plan(plan)[0].message


def test_deadlock_leaves_bystanders_out() -> None:
    """A worker that only waits for the ring is not named."""
    plan = hand_plan({"0/0": "F0 B0 F1 B1", "0/1": "F0 B0 F1 B1", "0/2": "F1 F0 B0 B1"}, 2)
    assert _ring(plan) == ("/workers/1/order", ["0/1", "0/2"])


def test_deadlock_across_pipelines_names_the_whole_ring() -> None:
    """Re-routed micro-batches may close a ring of four workers: all four are named, in order."""
    orders: dict[str, str | None] = {
        "0/0": "F0 B0 F1 B1",
        "0/1": "F1 F1.0 B1.0 B1",
        "1/0": "F0 B0 F1 B1",
        "1/1": "F1 F0.0 B0.0 B1",
    }
    assert _ring(hand_plan(orders, 2)) == ("/workers/0/order", ["0/0", "1/1", "1/0", "0/1"])


@given(SMALL, st.data())
def test_memory_over_the_limit_is_found(plan: Plan, data: st.DataObject) -> None:
    """A limit one part in a million below a worker's peak is a problem at its order; the peak itself is none."""
    plan = replace(limited_to_its_peaks(plan), prediction=None)
    assert check_plan(plan) == []
    peaks = evaluate(plan).peak_memory_bytes
    high = [n for n, peak in enumerate(peaks) if peak and peak == plan.stage_of(plan.workers[n]).memory_limit_bytes]
    assume(high)
    number = data.draw(st.sampled_from(high))
    name, stage = plan.pipelines[plan.workers[number].pipeline].template, plan.workers[number].stage
    cut = []
    for template in plan.templates:
        stages = list(template.stages)
        if template.name == name:
            stages[stage] = replace(stages[stage], memory_limit_bytes=peaks[number] * (1 - 1e-6))
        cut.append(replace(template, stages=tuple(stages)))
    problems = check_plan(replace(plan, templates=tuple(cut)))
    assert _path(number) in [problem.path for problem in problems]
    assert all("its limit is" in problem.message for problem in problems)


def _predicted() -> tuple[Plan, Prediction]:
    orders: dict[str, str | None] = {"0/0": "F0 B0 F1 B1", "0/1": "F0 B0 F1 B1"}
    plan = with_prediction(hand_plan(orders, 2, times_s=(1.0, 1.0, 1.5), delay_s=2.0))
    assert plan.prediction is not None
    assert plan.prediction.gap > 0
    return plan, plan.prediction


@pytest.mark.parametrize("field", ["makespan_s", "period_s", "iteration_time_s", "bubble_ratio", "gap"])
@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_wrong_prediction_is_found(field: str, factor: float) -> None:
    """A prediction off by a thousandth is a problem at its field."""
    plan, prediction = _predicted()
    wrong = replace(plan, prediction=replace(prediction, **{field: getattr(prediction, field) * factor}))
    assert [problem.path for problem in check_plan(wrong)] == [f"/prediction/{field}"]


def test_wrong_peak_is_found() -> None:
    """A wrong peak of one worker is a problem at that worker's number."""
    plan, prediction = _predicted()
    wrong = replace(plan, prediction=replace(prediction, peak_memory_bytes=(1.0, 1.5)))
    assert [problem.path for problem in check_plan(wrong)] == ["/prediction/peak_memory_bytes/1"]


def test_bound_above_the_value_is_found() -> None:
    """A “lower bound” above what the orders reach is a problem: one of the two is wrong."""
    plan, prediction = _predicted()
    bound = prediction.iteration_time_s * 1.25
    wrong = replace(plan, prediction=replace(prediction, lower_bound_s=bound, gap=1 / 1.25 - 1))
    assert [problem.path for problem in check_plan(wrong)] == ["/prediction/lower_bound_s"]


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_optimal_with_a_gap_is_found(share: float) -> None:
    """“optimal” is refused unless the bound is reached, also where a bound of 0 hides the gap."""
    plan, prediction = _predicted()
    bound, gap = prediction.iteration_time_s * share, 1 / share - 1 if share else 0.0
    wrong = replace(plan, prediction=replace(prediction, lower_bound_s=bound, gap=gap, proof="optimal"))
    assert [problem.path for problem in check_plan(wrong)] == ["/prediction/proof"]
    assert check_plan(replace(wrong, prediction=replace(wrong.prediction, proof="bound"))) == []  # type: ignore[type-var]


def test_first_problem_is_the_error_of_a_command() -> None:
    """Commands that need a valid plan say the first problem, where, and how many more there are."""
    plan = hand_plan({"0/0": "F0 F1", "0/1": "F0 B0 F1 B1"}, 2)
    with pytest.raises(InvalidInputError, match="and 1 more") as caught:
        require_valid(plan, "p.json")
    assert caught.value.where == "p.json, /workers/0/order"
    assert "rtk verify" in (caught.value.fix or "")


# Timelines


@given(SMALL, st.data())
def test_span_that_starts_too_early_is_found(plan: Plan, data: st.DataObject) -> None:
    """Pulling the start of any operation of a simulated timeline ahead breaks a promise."""
    timeline = simulate(plan).timeline
    movable = [n for n, span in enumerate(timeline.spans) if span.start_s > 0 and span.op not in ("allreduce", "step")]
    assume(movable)
    place = data.draw(st.sampled_from(movable))
    spans = list(timeline.spans)
    spans[place] = replace(spans[place], start_s=spans[place].start_s * 0.5)
    problems = check_timeline(plan, replace(timeline, spans=tuple(spans)))
    assert problems
    assert {problem.path for problem in problems} == {"/spans"}


@given(SMALL, st.data())
def test_lost_doubled_and_renamed_spans_are_found(plan: Plan, data: st.DataObject) -> None:
    """A timeline must hold every operation of every order exactly once an iteration."""
    timeline = simulate(plan).timeline
    computed = [n for n, span in enumerate(timeline.spans) if span.op not in ("allreduce", "step")]
    place = data.draw(st.sampled_from(computed))
    span = timeline.spans[place]
    before, after = timeline.spans[:place], timeline.spans[place + 1 :]
    for changed in ((), (span, span), (replace(span, op=f"{span.op}9"),), (replace(span, iteration=1),)):
        problems = check_timeline(plan, replace(timeline, spans=(*before, *changed, *after)))
        assert problems
        assert problems[0].path == "/spans"
        assert f"worker {span.worker} ran" in problems[0].message


def test_timeline_of_another_plan_is_found() -> None:
    """A timeline that names another plan's digest, or that holds nothing, is a problem."""
    plan = hand_plan({"0/0": "F0 B0"}, 1)
    timeline = simulate(plan).timeline
    assert [p.path for p in check_timeline(plan, replace(timeline, plan="0" * 64))] == ["/plan"]
    assert check_timeline(plan, replace(timeline, plan=None)) == []
    assert [p.path for p in check_timeline(plan, replace(timeline, spans=()))] == ["/spans"]


def test_span_of_an_unknown_worker_is_found() -> None:
    """A span on a worker that the plan lacks is a problem at that span."""
    plan = hand_plan({"0/0": "F0 B0"}, 1)
    timeline = simulate(plan).timeline
    spans = (*timeline.spans, Span("3/0", "F0", 0.0, 1.0))
    assert [p.path for p in check_timeline(plan, replace(timeline, spans=spans))] == ["/spans/2/worker"]


def test_failed_workers_run_nothing() -> None:
    """A span on a failed worker is a problem."""
    plan = hand_plan({"0/0": "F0 B0 F1.0 B1.0", "1/0": None}, 1)
    timeline = simulate(plan).timeline
    assert check_timeline(plan, timeline) == []
    spans = (*timeline.spans, Span("1/0", "F0", 0.0, 1.0))
    assert "worker 1/0 ran 'F0'" in check_timeline(plan, replace(timeline, spans=spans))[0].message


def test_measured_messages_take_what_they_take() -> None:
    """A measured timeline need not keep the plan's delays, a simulated one must; both keep dependencies."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1, delay_s=5.0)
    fast = simulate(hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1)).timeline
    assert check_timeline(plan, Timeline("measured", fast.spans)) == []
    assert len(check_timeline(plan, Timeline("simulated", fast.spans))) == 2
    spans = tuple(
        replace(span, start_s=0.5) if (span.worker, span.op) == ("0/1", "F0") else span for span in fast.spans
    )
    (problem,) = check_timeline(plan, Timeline("measured", spans))
    assert "starts before F of micro-batch 0.0 on worker 0/0 (operation 0) is there" in problem.message


def test_every_iteration_of_a_timeline_is_checked() -> None:
    """A mistake in the second iteration is found and names it."""
    plan = hand_plan({"0/0": "F0 B0"}, 1)
    spans = simulate(plan).timeline.spans
    later = tuple(replace(span, start_s=span.start_s + 3, end_s=span.end_s + 3, iteration=1) for span in spans)
    assert check_timeline(plan, Timeline("measured", spans + later)) == []
    overlapping = (later[0], replace(later[1], start_s=3.5))
    (problem,) = check_timeline(plan, Timeline("measured", spans + overlapping))
    assert problem.message.startswith("iteration 1: B of micro-batch 0.0")


def test_order_of_a_live_worker_may_be_empty() -> None:
    """A live worker whose peers do all its work is part of a valid plan."""
    plan = hand_plan({"0/0": "F0 B0 F1.0 B1.0", "1/0": ""}, 1)
    assert plan.workers[1] == Worker(1, 0, "")
    assert check_plan(with_prediction(plan)) == []
    assert check_timeline(plan, simulate(plan).timeline) == []
