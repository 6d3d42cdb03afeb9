"""The three readings of a plan (evaluator, simulator, checker) agree to the last bit; the critical path explains."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.assemble import with_prediction
from rtk.planners.scheduling.evaluate import OrderEvaluation, TimedOperation, evaluate
from rtk.planners.scheduling.problem import codes_of, problem_of
from rtk.planners.scheduling.retime import value_s, windows_of
from rtk.runners.program import lower
from rtk.runners.simulator import execute, is_computed, simulate
from rtk.schemas.check import check_plan, check_timeline, deadlock_free_times
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Link, Optimizer, Pipeline, Plan, Stage, Template, Worker

from ..placed_plans import any_placed_plans
from ..strategies import BY_HAND, any_plans, hand_plan, plans, unlike_plans


@settings(max_examples=60)
@given(st.one_of(any_plans(), any_placed_plans()))
def test_three_readings_agree_to_the_last_bit(plan: Plan) -> None:
    """Starts, ends, makespan, period and memory of evaluator, simulator and checker are equal for any valid plan."""
    evaluation, simulation = evaluate(plan), simulate(plan)
    rows = [timed for row in evaluation.operations for timed in row]
    start, end = deadlock_free_times(plan)
    assert [timed.start_s for timed in rows] == start.tolist()
    assert [timed.end_s for timed in rows] == end.tolist()
    spans = {(s.worker, s.op): (s.start_s, s.end_s) for s in simulation.timeline.spans}
    for worker, row in zip(plan.workers, evaluation.operations, strict=True):
        tokens = (worker.order or "").split()
        assert [spans[worker.name, token] for token in tokens] == [(t.start_s, t.end_s) for t in row]
    assert simulation.makespan_s == evaluation.makespan_s
    assert simulation.period_s == evaluation.period_s
    assert simulation.iteration_time_s == evaluation.iteration_time_s
    assert simulation.peak_memory_bytes == evaluation.peak_memory_bytes
    assert simulation.bubble_ratio == pytest.approx(evaluation.bubble_ratio, abs=1e-9)
    assert check_plan(plan) == []
    assert check_timeline(plan, simulation.timeline) == []


@settings(max_examples=60)
@given(any_plans(), st.booleans())
def test_the_kernels_say_what_the_evaluator_says(plan: Plan, staggered: bool) -> None:
    """What searches minimize and replays time is what a plan predicts, to the last bit, also with unlike cuts."""
    problem = problem_of(plan).with_objective(staggered)
    orders, evaluation = codes_of(plan, problem), evaluate(plan)
    windows = windows_of(problem, orders)
    assert (windows.makespan_s, windows.period_s) == (evaluation.makespan_s, evaluation.period_s)
    assert value_s(problem, orders) == (evaluation.period_s if staggered else evaluation.makespan_s)


@given(plans())
def test_operations_start_as_soon_as_they_can(plan: Plan) -> None:
    """Every operation starts at 0, at the end of the one ahead of it on its worker, or when its message arrives."""
    for row in evaluate(plan).operations:
        for ahead, timed in zip((None, *row), row, strict=False):
            free_s = ahead.end_s if ahead else 0.0
            assert timed.start_s == free_s or (timed.waited_for_message and timed.start_s > free_s)


@given(any_plans())
def test_critical_path_spans_the_schedule_without_slack(plan: Plan) -> None:
    """The critical path starts at 0, ends as sums begin, and each step starts when the one before lets it."""
    evaluation = evaluate(plan)
    path = evaluation.critical_path()
    assert path[0].start_s == 0
    window = evaluation.decided_by(path)
    assert path[-1].end_s == pytest.approx(window.end_s, rel=1e-9)
    if plan.optimizer == "staggered":
        assert window.length_s == pytest.approx(evaluation.period_s, rel=1e-9)
    else:
        step_s = max(window.optimizer_s for window in evaluation.windows.values())
        assert window.end_s + window.allreduce_s + step_s == pytest.approx(evaluation.makespan_s, rel=1e-9)
    for earlier, later in pairwise(path):
        assert later.start_s == pytest.approx(earlier.end_s + _hop_s(evaluation, earlier, later), rel=1e-9)


def test_critical_path_ends_before_the_last_all_reduce_to_end() -> None:
    """A stage that ends earlier but sums its gradients for longer is the one that the iteration waits for."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1)
    first, second = plan.templates[0].stages
    slow = replace(plan.templates[0], stages=(first, replace(second, allreduce_s=5.0)))
    path = evaluate(replace(plan, templates=(slow,))).critical_path()
    assert [(timed.worker, timed.operation.kind) for timed in path] == [(0, "F"), (1, "F"), (1, "B")]


def test_critical_path_stays_on_its_worker_where_it_can() -> None:
    """Of ties the path takes the one that changes workers least: here the first stage is busy all the time."""
    plan = hand_plan({"0/0": "F0 F1 I0 W0 I1 W1", "0/1": "F0 I0 F1 I1 W0 W1"}, 2)
    short = replace(plan.templates[0].stages[1], forward_s=0.5, backward_input_s=0.5)
    light = replace(plan, templates=(replace(plan.templates[0], stages=(plan.templates[0].stages[0], short)),))
    assert {timed.worker for timed in evaluate(light).critical_path()} == {0}


def _hop_s(evaluation: OrderEvaluation, earlier: TimedOperation, later: TimedOperation) -> float:
    if earlier.worker == later.worker:
        return 0.0
    plan = evaluation.plan
    sender, receiver = plan.workers[earlier.worker], plan.workers[later.worker]
    assert earlier.operation[1:] == later.operation[1:]
    return plan.hop_delay_s(later.operation.pipeline, min(sender.stage, receiver.stage), sender, receiver)


@given(plans())
def test_memory_over_time_starts_and_ends_empty(plan: Plan) -> None:
    """Each worker's memory curve runs forward in time, never goes below zero and ends at zero."""
    evaluation = evaluate(plan)
    for number, row in enumerate(evaluation.operations):
        curve = evaluation.memory_over_time(number)
        assert len(curve) == len(row)
        held = [size for _, size in curve]
        assert all(size >= 0 for size in held)
        assert not curve or held[-1] == 0
        assert evaluation.peak_memory_bytes[number] == max(held, default=0.0)
        moments = [moment for moment, _ in curve]
        assert moments == sorted(moments)


@given(any_plans())
def test_period_is_at_most_the_makespan(plan: Plan) -> None:
    """A staggered optimizer never costs more than one that waits for everyone."""
    evaluation = evaluate(plan)
    assert evaluation.period_s <= evaluation.makespan_s * (1 + 1e-12)
    assert 0 <= evaluation.bubble_ratio <= 1


def test_message_between_pipelines_takes_the_templates_link() -> None:
    """A hop inside a pipeline takes that pipeline's own link, a hop to a peer's pipeline the template's."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0 F1.0 B1.0", "1/0": "F0 B0", "1/1": None}, 1, delay_s=0.25)
    slow = Pipeline("t0", 1, (Link(10.0),))
    ends = [row[-1].end_s for row in evaluate(replace(plan, pipelines=(slow, slow))).operations if row]
    # 0/0: F 0-1, delay 10, F 11-12, B 12-14, delay 10, B 24-26; 1/0: F 0-1 … F1.0 14-15, B1.0 15-17, delay 0.25.
    assert ends == [26.0, 17.0, 19.25]


def test_slowdown_stretches_every_operation_of_its_worker() -> None:
    """A worker's slow-down multiplies its F, I, W and B, and nobody else's."""
    plan = hand_plan({"0/0": "F0 I0 W0 F1 B1"}, 2)
    slow = replace(plan, workers=(replace(plan.workers[0], slowdown=2.5),))
    assert evaluate(slow).makespan_s == 2.5 * evaluate(plan).makespan_s == 15.0


def test_slowest_peer_decides_a_stages_allreduce_and_optimizer() -> None:
    """Where peers state unlike all-reduce and optimizer times, the slowest of them counts, in all three readings."""
    plan = hand_plan({"0/0": "F0 B0", "1/0": "F0 B0"}, 1)
    one, other = plan.templates[0], replace(plan.templates[0], name="t1")
    one = replace(one, stages=(replace(one.stages[0], allreduce_s=5.0, optimizer_s=1.0),))
    other = replace(other, stages=(replace(other.stages[0], allreduce_s=2.0, optimizer_s=3.0),))
    for pair in ((one, other), (other, one)):
        mixed = replace(plan, templates=pair, pipelines=(Pipeline("t0", 1), Pipeline("t1", 1)))
        assert evaluate(mixed).makespan_s == evaluate(mixed).period_s == 3 + 5 + 3
        assert simulate(mixed).makespan_s == simulate(mixed).period_s == 11
        assert check_plan(with_prediction(mixed)) == []


@pytest.mark.parametrize(
    ("second", "optimizer", "expected_s"),
    [
        # Layers 4-5 are summed from 5 to 15, for 10 s each of 0/2 and of half of 1/1; then 2-3 until 35; 0-1 at 9.
        ((0, 2, 6), "synchronous", 35 + 3),
        # The longest windows are those of 0/1 and 1/1, from 1 on.
        ((0, 2, 6), "staggered", 35 + 3 - 1),
        # Layers 4-5 from 5 to 15, layer 3 until 25, layer 2 until 35, half of 20 s each; then 0-1 in no time.
        ((0, 3, 6), "synchronous", 35 + 3),
        ((0, 3, 6), "staggered", 35 + 3),
    ],
)
def test_layers_are_summed_part_by_part(second: tuple[int, ...], optimizer: Optimizer, expected_s: float) -> None:
    """With unlike cuts each run of layers with the same holders is summed once these have ended and are through with
    the runs behind it, in its share of the longest all-reduce, in all readings."""

    def template(name: str, cuts: tuple[int, ...]) -> Template:
        held = list(pairwise(cuts))
        shape = tuple(Stage(h, 1, 1, 1, optimizer_s=3, allreduce_s=20 if h[0] == 2 else 10 * (h[0] > 2)) for h in held)
        return Template(name, shape, tuple(Link() for _ in held[1:]))

    shapes = (template("n3", (0, 2, 4, 6)), template("n2", second))
    workers = tuple(Worker(k, i, "F0 B0") for k, depth in enumerate((3, 2)) for i in range(depth))
    plan = Plan(BY_HAND, shapes, (Pipeline("n3", 1), Pipeline("n2", 1)), optimizer, workers)
    assert evaluate(plan).iteration_time_s == expected_s
    assert simulate(plan).iteration_time_s == expected_s
    assert check_plan(with_prediction(plan)) == []


@given(unlike_plans())
def test_the_period_is_the_smallest_time_after_which_iterations_repeat(plan: Plan) -> None:
    """On the virtual clock, begun again after every period, workers of the same layers begin when the slowest of them
    could have stepped, none sooner; some begin just then."""
    found = execute(lower(replace(plan, optimizer="staggered", prediction=None)))
    slack_s = []
    for layers in {plan.stage_of(worker).layers for worker in plan.live_workers()}:
        ranks = [n for n, worker in enumerate(plan.live_workers()) if plan.stage_of(worker).layers == layers]
        step_s = max(plan.stage_of(plan.live_workers()[rank]).optimizer_s for rank in ranks)
        stepped_s = max(found.reduced_s[rank] for rank in ranks) + step_s
        starts_s = [span.start_s for rank in ranks for span in found.spans[rank] if is_computed(span)]
        slack_s += [min(starts_s) + evaluate(plan).period_s - stepped_s] if starts_s else []
    assert min(slack_s) == pytest.approx(0, abs=1e-9 * max(1.0, evaluate(plan).period_s))


def test_deadlocking_orders_are_refused() -> None:
    """Orders that wait for each other raise an error instead of hanging."""
    with pytest.raises(InvalidInputError, match="deadlock"):
        evaluate(hand_plan({"0/0": "F0 B0 F1 B1", "0/1": "F1 F0 B0 B1"}, 2))
