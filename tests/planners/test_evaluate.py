"""The three readings of a plan (evaluator, simulator, checker) agree to the last bit; the critical path explains."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings

from rtk.planners.scheduling.assemble import with_prediction
from rtk.planners.scheduling.evaluate import Evaluation, Timed, evaluate
from rtk.runners.simulator import simulate
from rtk.schemas.check import check_plan, check_timeline, deadlock_free_times
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Link, Optimizer, Pipeline, Plan, Stage, Template, Worker

from ..strategies import BY_HAND, any_plans, hand_plan, plans


@settings(max_examples=60)
@given(any_plans())
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


@given(plans())
def test_operations_start_as_soon_as_they_can(plan: Plan) -> None:
    """Every operation starts at 0, at the end of the one ahead of it on its worker, or when its message arrives."""
    for row in evaluate(plan).operations:
        for ahead, timed in zip((None, *row), row, strict=False):
            free_s = ahead.end_s if ahead else 0.0
            assert timed.start_s == free_s or (timed.waited_for_message and timed.start_s > free_s)


@given(any_plans())
def test_critical_path_spans_the_schedule_without_slack(plan: Plan) -> None:
    """The critical path starts at 0, ends as its component does, and each step starts when the one before lets it."""
    evaluation = evaluate(plan)
    path = evaluation.critical_path()
    assert path[0].start_s == 0
    window = evaluation.windows[evaluation.component_of(plan.workers[path[-1].worker])]
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


def _hop_s(evaluation: Evaluation, earlier: Timed, later: Timed) -> float:
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
        # Layers 0-1 and 2-5 are components: the first runs from 0 to 9, the other from 1 to 7 and reduces for 20 s.
        ((0, 2, 6), "synchronous", 7 + 20 + 3),
        ((0, 2, 6), "staggered", 6 + 20 + 3),
        # All stages hang together by 0-2 and 3-5: one component from 0 to 9, with the longest all-reduce.
        ((0, 3, 6), "synchronous", 9 + 20 + 3),
        ((0, 3, 6), "staggered", 9 + 20 + 3),
    ],
)
def test_stages_that_share_layers_end_together(
    second: tuple[int, ...], optimizer: Optimizer, expected_s: float
) -> None:
    """With unlike cuts the all-reduce waits for all stages that hang together by common layers, in all readings."""

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


def test_deadlocking_orders_are_refused() -> None:
    """Orders that wait for each other raise an error instead of hanging."""
    with pytest.raises(InvalidInputError, match="deadlock"):
        evaluate(hand_plan({"0/0": "F0 B0 F1 B1", "0/1": "F1 F0 B0 B1"}, 2))
