"""Adaptra: slackness, Algorithms 1 and 2, the published scheduler, and `plan_adaptra` for any profile and shape."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.benchmarks.papers.adaptra_pipelines import published_warmups, time_stepped
from rtk.planners.adaptra.plan import (
    Technique,
    adapted_warmups,
    cascading_links,
    initial_warmups,
    needed_slack,
    plan_adaptra,
    slackness,
    tolerated_delays_s,
    warmup_of,
)
from rtk.planners.scheduling.assemble import with_prediction
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.list_schedule import DispatchRules, Priority, list_schedule, most_in_flight
from rtk.planners.scheduling.problem import home_problem, with_orders
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.schemas.check import check_plan
from rtk.schemas.documents import canonical, parse_document, read_document
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Link, Pipeline, Plan, Stage, Template, Worker
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile

from ..strategies import BY_HAND, DELAYS, profiles, shapes, stages

GOLDEN = Path(__file__).parents[1] / "golden"
TECHNIQUES: list[Technique] = ["initial", "adapted", "best"]
any_technique = pytest.mark.parametrize("technique", TECHNIQUES)


@pytest.fixture(scope="module")
def adaptra4() -> Profile:
    """Four stages of 10 ms an operation, without a memory limit."""
    return read_document(str(GOLDEN / "profile-adaptra4.json"), Profile)


def equal_profile(layers: int) -> Profile:
    """Layers of 10 ms an operation and 1 byte a micro-batch, no weight stash."""
    return Profile(tuple(Layer((LayerCost(0.01, 0.01, 0.01),), activation_bytes=1) for _ in range(layers)))


def equal_stages(depth: int, limits: Sequence[float | None] = (None,)) -> list[Stage]:
    """Stages of 10 ms an operation and 1 byte a micro-batch, with one memory limit or one a stage."""
    found = [*limits] * (depth // len(limits))
    return [
        Stage((i, i + 1), 0.01, 0.01, 0.01, activation_bytes=1.0, memory_limit_bytes=limit)
        for i, limit in enumerate(found)
    ]


def slow_link(depth: int, link: int, delay_ms: float) -> list[Link]:
    return [Link(delay_ms / 1000 if i == link else 0.0) for i in range(depth - 1)]


def single_pipeline(shape: Sequence[Stage], between: Sequence[Link], microbatches: int) -> Plan:
    """A plan of one pipeline, its orders still empty."""
    return Plan(
        BY_HAND,
        (Template("t0", tuple(shape), tuple(between)),),
        (Pipeline("t0", microbatches),),
        "synchronous",
        tuple(Worker(0, i, "") for i in range(len(shape))),
    )


def makespan_ms(plan: Plan) -> float:
    return evaluate(plan).makespan_s * 1000


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[list[Stage], list[Link], int]:
    """Stages with limits that admit one micro-batch, links with delays up to huge, and micro-batches."""
    depth = draw(st.integers(1, 6))
    found = []
    for i in range(depth):
        stage = draw(stages((i, i + 1)))
        rooms = draw(st.sampled_from([None, 1.0, 1.5, 2.0, 3.0, 7.0]))
        limit = None if rooms is None else rooms * stage.activation_bytes
        found.append(replace(stage, memory_limit_bytes=limit))
    delays = st.one_of(DELAYS, st.sampled_from([1e3, 1e6]))
    return found, [Link(draw(delays)) for _ in range(depth - 1)], draw(st.integers(1, 10))


# Slackness and Equation 1


def in_turns(warmup: int, microbatches: int) -> list[int]:
    """`warmup` forwards, then I and F in turns, then the rest of the I, and all W, as operation codes."""
    order = [3 * j for j in range(warmup)]
    for j in range(microbatches):
        order += [3 * j + 1, 3 * (j + warmup)] if j + warmup < microbatches else [3 * j + 1]
    return order + [3 * j + 2 for j in range(microbatches)]


@pytest.mark.parametrize(
    ("warmup", "tolerated_ms"),
    [
        ([7, 5, 3, 1], [10, 10, 10]),
        ([8, 5, 3, 1], [20, 10, 10]),
        ([9, 6, 3, 1], [20, 20, 10]),
        ([4, 3, 2, 1], [0, 0, 0]),
        ([4, 4, 1, 1], [0, 20, 0]),
        ([12, 12, 5, 1], [None, None, 30]),
    ],
)
def test_equal_stages_tolerate_one_operation_less_than_their_slackness(
    warmup: list[int], tolerated_ms: list[float | None]
) -> None:
    """Theorem 1, t = 10 ms: (D - 1) t, nothing where that is negative, anything where all 12 forwards come first."""
    found = tolerated_delays_s(equal_stages(4), [in_turns(x, 12) for x in warmup])
    assert [c if c is None else pytest.approx(c * 1000, abs=1e-9) for c in found] == tolerated_ms
    assert slackness(warmup) == [a - b for a, b in pairwise(warmup)]


def test_unequal_stages_tolerate_what_equation_1_leaves() -> None:
    """tF + tI of 5, 2 and 10 s with D = 3, 1: (3 * 2 - 5) / 2 and (1 * 10 - 2) / 2 seconds; late W do not count."""
    shape = [Stage((0, 1), 2, 3, 9), Stage((1, 2), 1, 1, 9), Stage((2, 3), 4, 6, 9)]
    assert tolerated_delays_s(shape, [in_turns(x, 20) for x in (5, 2, 1)]) == [0.5, 4.0]


@given(pipelines(), st.data())
def test_tolerated_delays_are_the_largest_that_equation_1_admits(
    case: tuple[list[Stage], list[Link], int], data: st.DataObject
) -> None:
    """In orders that take turns, a link tolerates its delay just where its slackness is what Equation 1 asks for."""
    shape, between, _ = case
    warmup = sorted((data.draw(st.integers(1, 9)) for _ in shape), reverse=True)
    found = tolerated_delays_s(shape, [in_turns(x, 20) for x in warmup])
    for i, (slack, most_s) in enumerate(zip(slackness(warmup), found, strict=True)):
        assert most_s is not None
        needed = needed_slack(shape[i], shape[i + 1], between[i].delay_s)
        if between[i].delay_s < most_s * (1 - 1e-9):
            assert needed <= slack * (1 + 1e-9)
        if between[i].delay_s > most_s * (1 + 1e-9) and between[i].delay_s > 0:
            assert needed >= slack * (1 - 1e-9)


def test_slack_that_later_backwards_use_up_does_not_count() -> None:
    """A warm-up of 4 forwards that is followed by two I in a row has the slack of 3 from then on."""
    drained = [0, 3, 6, 9, 1, 4, 12, 7, 15, 10, 13, 16, 2, 5, 8, 11, 14, 17]
    assert warmup_of(drained) == 4
    assert tolerated_delays_s(equal_stages(2), [drained, in_turns(1, 6)]) == pytest.approx([0.01])
    assert tolerated_delays_s(equal_stages(2), [in_turns(4, 6), in_turns(1, 6)]) == pytest.approx([0.02])


@pytest.mark.parametrize(("codes", "expected"), [([0, 3, 1, 6, 2, 4], 2), ([0, 1, 2], 1), ([0, 3], 2), ([], 0)])
def test_the_warm_up_of_an_order_ends_at_its_first_backward(codes: list[int], expected: int) -> None:
    """Forwards before the first other operation count, later ones do not."""
    assert warmup_of(codes) == expected


@pytest.mark.parametrize(("room", "tolerated_ms"), [(7, 10), (10, 20), (13, 30)])
def test_a_delay_costs_a_round_trip_up_to_the_tolerance_and_cascades_beyond(room: int, tolerated_ms: int) -> None:
    """Theorem 1 on schedules of slackness 2, 3 and 4: up to the tolerance 1 ms costs 2 at most, beyond it over 10."""

    def frozen(delay_ms: float) -> Plan:
        shape = Shape(4, 1, 40, [room], {(None, 2): delay_ms / 1000})
        return plan_adaptra(equal_profile(4), shape, "initial", Effort())

    told = frozen(0).planner.options["pipelines"][0]
    assert told["tolerated_delay_s"] == pytest.approx([tolerated_ms / 1000] * 3)
    usual_ms, most_ms, beyond_ms = (makespan_ms(frozen(c)) for c in (0, tolerated_ms, tolerated_ms + 1))
    assert tolerated_ms - 1e-6 <= most_ms - usual_ms <= 2 * tolerated_ms
    assert beyond_ms - most_ms > 10


@pytest.mark.parametrize(("priority", "tolerated_s"), [(Priority.INPUT_FIRST, 0.01), (Priority.ALTERNATE, 0.03)])
def test_backwards_first_use_up_the_slack_that_turns_keep(priority: Priority, tolerated_s: float) -> None:
    """Warm-ups of slackness 4 keep what they absorb only where F and I go in turns after them; both take as long."""
    plan = single_pipeline(equal_stages(4), slow_link(4, 0, 0), 40)
    problem = home_problem(plan, split=True)
    rules = DispatchRules([13, 9, 5, 1], [40] * 4, [0.0] * 4, [40] * 4, [priority] * 4)
    orders = list_schedule(problem, rules)
    assert tolerated_delays_s(plan.templates[0].stages, orders) == pytest.approx([tolerated_s] * 3)
    assert makespan_ms(with_orders(plan, problem, orders)) == pytest.approx(1230)


# Algorithm 1


@pytest.mark.parametrize(
    ("depth", "limits", "microbatches", "expected"),
    [
        (4, [7], 12, [7, 5, 3, 1]),
        (4, [9], 12, [9, 6, 3, 1]),
        (4, [2], 12, [2, 1, 1, 1]),
        (4, [1], 12, [1, 1, 1, 1]),
        (4, [9, 3, 9, 9], 12, [9, 3, 2, 1]),
        (4, [9, 9, 2, 9], 12, [9, 6, 2, 1]),
        (4, [100], 12, [12, 8, 4, 1]),
        (4, [None], 12, [7, 5, 3, 1]),
        (4, [None], 3, [3, 2, 1, 1]),
        (4, [None, 3, None, None], 12, [7, 3, 2, 1]),
        (1, [None], 5, [1]),
        (1, [3], 5, [3]),
        (8, [None], 32, [15, 13, 11, 9, 7, 5, 3, 1]),
    ],
)
def test_algorithm_1_divides_memory_evenly(
    depth: int, limits: list[float | None], microbatches: int, expected: list[int]
) -> None:
    """x_0 is what fits (2S - 1 without a limit), the last stage has 1, larger steps come first, rooms are kept."""
    assert initial_warmups(equal_stages(depth, limits), microbatches) == expected


@given(st.integers(2, 9), st.integers(1, 40), st.integers(1, 40))
def test_equal_rooms_give_algorithm_1_to_the_letter(depth: int, room: int, microbatches: int) -> None:
    """With one limit for all stages the warm-ups are those of the printed algorithm."""
    most = min(room, microbatches)
    average, rest = divmod(most - 1, depth - 1)
    printed = [most]
    for i in range(1, depth):
        printed.append(printed[-1] - (average + 1 if i <= rest else average))
    assert initial_warmups(equal_stages(depth, [room]), microbatches) == printed


@given(st.lists(st.integers(1, 30), min_size=2, max_size=8))
def test_unequal_rooms_give_the_largest_least_slackness(rooms: list[int]) -> None:
    """No warm-ups within the rooms that end at 1 have a larger least slackness, and none is ever negative."""
    warmup = initial_warmups(equal_stages(len(rooms), rooms), 30)
    links_behind = range(len(rooms) - 1, 0, -1)
    assert min(slackness(warmup)) == min((room - 1) // count for room, count in zip(rooms, links_behind, strict=False))
    assert all(1 <= x <= room for x, room in zip(warmup, rooms, strict=True))
    assert warmup[-1] == 1


# Algorithm 2


@pytest.mark.parametrize(
    ("delay_ms", "expected"),
    [(0, [7, 5, 3, 1]), (10, [7, 5, 3, 1]), (20, [8, 5, 3, 1]), (30, [9, 5, 3, 1]), (60, [9, 5, 3, 1])],
)
def test_algorithm_2_gives_a_slow_link_the_slack_it_needs(delay_ms: float, expected: list[int]) -> None:
    """S=4, N=12, t=10 ms: link 0 gets (tF + tI + 2c) / (tF + tI) micro-batches of slack, at most N - 2S = 4."""
    assert adapted_warmups(equal_stages(4), slow_link(4, 0, delay_ms), 12) == expected


@pytest.mark.parametrize(
    ("depth", "limits", "microbatches", "expected"),
    [
        (8, [None], 16, [8, 7, 6, 5, 4, 3, 2, 1]),  # N - 2S = 0: a slackness of 1
        (4, [None], 3, [3, 3, 2, 1]),  # fewer micro-batches than stages
        (4, [None], 1, [1, 1, 1, 1]),
        (4, [5], 40, [5, 5, 3, 1]),
        (4, [9, 2, 9, 9], 40, [9, 2, 2, 1]),  # what follows a small room is no larger
        (1, [None], 7, [1]),
    ],
)
def test_algorithm_2_is_cut_to_what_can_be_run(
    depth: int, limits: list[float | None], microbatches: int, expected: list[int]
) -> None:
    """Warm-ups never exceed the micro-batches, a stage's memory, or the stage before."""
    assert adapted_warmups(equal_stages(depth, limits), slow_link(depth, 0, 300), microbatches) == expected


def test_a_stage_of_no_time_gets_all_the_slack_there_is() -> None:
    """Equation 1 divides by the next stage's time: without any, the slack is the largest, or 2 where none is needed."""
    idle = Stage((1, 2), 0.0, 0.0, 0.0)
    assert needed_slack(Stage((0, 1), 1, 1, 1), idle, 0.0) == inf
    assert needed_slack(idle, idle, 0.0) == 0.0
    assert adapted_warmups([Stage((0, 1), 1, 1, 1), idle], [Link(0.0)], 9) == [6, 1]
    assert adapted_warmups([idle, idle], [Link(0.0)], 9) == [3, 1]


@given(pipelines())
def test_all_warm_ups_can_be_run(case: tuple[list[Stage], list[Link], int]) -> None:
    """Whatever the stages, delays and limits: at least 1, non-increasing, within micro-batches and memory."""
    shape, between, microbatches = case
    rooms = most_in_flight(shape, microbatches)
    for warmup in (
        initial_warmups(shape, microbatches),
        adapted_warmups(shape, between, microbatches),
        published_warmups(shape, between, microbatches),
    ):
        assert all(1 <= x <= room for x, room in zip(warmup, rooms, strict=True))
        assert min(slackness(warmup), default=0) >= 0


# The published scheduler


def published_plan(shape: Sequence[Stage], between: Sequence[Link], microbatches: int) -> Plan:
    """The plan of the time-stepped orders, predicted and checked."""
    plan = single_pipeline(shape, between, microbatches)
    orders = time_stepped(shape, between, microbatches)
    return with_prediction(with_orders(plan, home_problem(plan, split=True), orders))


@given(pipelines())
def test_the_published_rule_always_ends_in_a_valid_plan(case: tuple[list[Stage], list[Link], int]) -> None:
    """Amended where it would never end, the time-stepped scheduler makes a plan in which the checker finds nothing."""
    assert check_plan(published_plan(*case)) == []


@pytest.mark.parametrize("delay_ms", [0, 10, 20, 30, 60])
@pytest.mark.parametrize("link", [0, 2])
def test_the_published_rule_adapts_to_a_slow_link(link: int, delay_ms: float) -> None:
    """S=4, N=12, 10 ms operations, whole steps: 390 + c ms, also at 60 ms, where the authors' own code never ends."""
    plan = published_plan(equal_stages(4), slow_link(4, link, delay_ms), 12)
    assert makespan_ms(plan) == pytest.approx(390 + delay_ms)


def test_steps_lose_what_they_round() -> None:
    """Operations are taken as whole steps, so an order may not be the one that exact times would give."""
    assert time_stepped([Stage((0, 1), 1.0, 0.01, 0.99)], [], 2) == [[0, 1, 3, 4, 2, 5]]


# The planner

FROZEN_AND_ADAPTED = [
    (4, 12, 0, {0: (390, 390), 10: (400, 400), 20: (440, 410), 30: (500, 420), 60: (680, 450)}),
    (4, 12, 2, {0: (390, 390), 10: (400, 400), 20: (480, 410), 30: (560, 420), 60: (800, 450)}),
    (8, 32, 0, {0: (1030, 1030), 10: (1040, 1040), 20: (1120, 1050), 60: (1680, 1090)}),
    (8, 32, 6, {0: (1030, 1030), 10: (1040, 1040), 20: (1260, 1050), 60: (2140, 1090)}),
]


@pytest.mark.parametrize(("depth", "microbatches", "link", "row"), FROZEN_AND_ADAPTED)
def test_the_papers_figure_frozen_and_adapted(
    depth: int, microbatches: int, link: int, row: dict[int, tuple[float, float]]
) -> None:
    """10 ms operations: orders made before the delay cascade, adapted ones pay it once, which is optimal."""
    for delay_ms, (frozen_ms, adapted_ms) in row.items():
        shape = Shape(depth, 1, microbatches, None, {(None, link): delay_ms / 1000})
        made = {technique: plan_adaptra(equal_profile(depth), shape, technique, Effort()) for technique in TECHNIQUES}
        assert makespan_ms(made["initial"]) == pytest.approx(frozen_ms)
        for technique in ("adapted", "best"):
            prediction = made[technique].prediction
            assert prediction is not None
            assert prediction.makespan_s * 1000 == pytest.approx(adapted_ms)
            assert prediction.proof == "optimal"


@pytest.mark.usefixtures("short_search")
@any_technique
@given(data=st.data())
def test_any_profile_and_shape_give_a_valid_plan(technique: Technique, data: st.DataObject) -> None:
    """Zero costs, few micro-batches, huge delays: the plan is valid and keeps its bytes when read back."""
    shape = data.draw(shapes())
    if shape.pp > 1 and data.draw(st.booleans()):
        shape = replace(shape, link_delay_s={(None, 0): 1e6})
    plan = plan_adaptra(data.draw(profiles(min_layers=shape.pp)), shape, technique, Effort())
    plan.validate()
    assert check_plan(plan) == []
    assert plan.prediction is not None
    assert plan.prediction.lower_bound_s <= plan.prediction.iteration_time_s
    assert parse_document(canonical(plan), Plan, "printed") == plan
    assert len(plan.planner.options["pipelines"]) == shape.dp
    for told in plan.planner.options["pipelines"]:
        assert len(told["warmup_forwards"]) == shape.pp
        assert [len(told[key]) for key in ("slackness", "tolerated_delay_s")] == [shape.pp - 1] * 2


@any_technique
@settings(max_examples=40)
@given(data=st.data())
def test_memory_limits_are_kept_or_the_plan_is_infeasible(technique: Technique, data: st.DataObject) -> None:
    """No worker ever holds more than its limit; infeasible is just where one micro-batch exceeds it."""
    pp, microbatches = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    held = [data.draw(st.sampled_from([0.0, 1.0, 2.5])) for _ in range(pp)]
    profile = Profile(
        tuple(
            Layer(
                (LayerCost(data.draw(st.sampled_from([0.0, 1.0, 1.7])), 1.0, 1.0),),
                activation_bytes=one,
                weight_stash_bytes=one * data.draw(st.sampled_from([0.0, 0.5, 1.0])),
            )
            for one in held
        )
    )
    limits = [data.draw(st.sampled_from([0.0, 0.9, 1.0, 2.5, 3.0, 7.5])) for _ in range(pp)]
    shape = Shape(pp, 2, microbatches, limits, {(0, 0): 2.5} if pp > 1 else None)
    try:
        plan = plan_adaptra(profile, shape, technique, Effort())
    except InfeasibleError as error:
        assert error.where == "--memory-limit"
        assert any(one > limit for one, limit in zip(held, limits, strict=True))
        return
    assert all(one <= limit for one, limit in zip(held, limits, strict=True))
    assert all(peak <= limit for peak, limit in zip(evaluate(plan).peak_memory_bytes, limits * 2, strict=True))


@settings(max_examples=15)
@given(data=st.data())
def test_best_is_never_worse_than_the_published_techniques(data: st.DataObject) -> None:
    """Their rules are tried first, so the best that is found is as good at least."""
    shape = data.draw(shapes(max_pp=4))
    profile = data.draw(profiles(min_layers=shape.pp))
    taken = [evaluate(plan_adaptra(profile, shape, technique, Effort())).makespan_s for technique in TECHNIQUES]
    assert taken[2] <= min(taken[:2]) * (1 + 1e-9)


def test_initial_orders_do_not_know_the_delay(adaptra4: Profile) -> None:
    """`initial` has the orders of the links as profiled, in a plan whose links and prediction have the delays."""
    before = plan_adaptra(adaptra4, Shape(4, 2, 12), "initial", Effort())
    after = plan_adaptra(adaptra4, Shape(4, 2, 12, None, {(None, 0): 0.02, (1, 2): 0.01}), "initial", Effort())
    assert after.workers == before.workers
    assert [link.delay_s for link in after.templates[0].links] == [0.02, 0.0, 0.0]
    assert after.prediction is not None
    assert after.prediction.makespan_s == evaluate(after).makespan_s > evaluate(before).makespan_s


def test_initial_starts_from_the_delays_of_the_profile() -> None:
    """A profile's own network is no straggler: its delays are in the initial schedule and in every tolerance."""
    slow = replace(equal_profile(4), network=Network(inter_node=Connection(latency_s=0.03)))
    plan = plan_adaptra(slow, Shape(4, 1, 12), "initial", Effort())
    assert [link.delay_s for link in plan.templates[0].links] == [0.03] * 3
    assert plan.workers == plan_adaptra(slow, Shape(4, 1, 12, None, {(None, 1): 0.5}), "initial", Effort()).workers


def test_the_options_say_what_the_orders_tolerate(adaptra4: Profile) -> None:
    """Warm-ups, slackness and tolerated delays are those of the orders, per pipeline, with null for any delay."""
    plan = plan_adaptra(adaptra4, Shape(4, 2, 12, None, {(1, 0): 0.02}), "initial", Effort(seed=3))
    assert plan.planner.options["technique"] == "initial"
    assert plan.planner.seed == 3
    for told in plan.planner.options["pipelines"]:
        assert told["warmup_forwards"] == [7, 5, 3, 1]
        assert told["slackness"] == [2, 2, 2]
        assert told["tolerated_delay_s"] == pytest.approx([0.01, 0.01, 0.01])
    few = plan_adaptra(adaptra4, Shape(4, 1, 2), "adapted", Effort())
    assert few.planner.options["pipelines"][0]["warmup_forwards"] == [2, 2, 2, 1]
    assert few.planner.options["pipelines"][0]["tolerated_delay_s"] == [None, None, None]


def test_links_beyond_their_tolerance_are_named(adaptra4: Profile) -> None:
    """Only delays beyond Equation 1 are named: by link where pipelines are alike, else by pipeline and link."""
    calm = plan_adaptra(adaptra4, Shape(4, 2, 12, None, {(None, 0): 0.01}), "initial", Effort())
    alike = plan_adaptra(adaptra4, Shape(4, 2, 12, None, {(None, 0): 0.02}), "initial", Effort())
    unlike = plan_adaptra(adaptra4, Shape(4, 2, 12, None, {(1, 2): 0.02}), "initial", Effort())
    adapted = plan_adaptra(adaptra4, Shape(4, 2, 12, None, {(None, 0): 0.02}), "adapted", Effort())
    assert cascading_links(calm) == cascading_links(adapted) == []
    assert cascading_links(alike) == ["link 0 takes 20 ms and tolerates 10 ms"]
    assert cascading_links(unlike) == ["link 1/2 takes 20 ms and tolerates 10 ms"]


@pytest.mark.parametrize("technique", ["adapted", "best"])
def test_links_of_one_pipeline_shape_that_pipeline_only(technique: Technique, adaptra4: Profile) -> None:
    """`1/0=0.02` slows link 0 of pipeline 1: its orders adapt, those of pipelines 0 and 2 do not change."""
    plain = plan_adaptra(adaptra4, Shape(4, 3, 12), technique, Effort())
    plan = plan_adaptra(adaptra4, Shape(4, 3, 12, None, {(1, 0): 0.02}), technique, Effort())
    assert plan.workers[:4] == plain.workers[:4]
    assert plan.workers[8:] == plain.workers[8:]
    assert plan.workers[4:8] != plain.workers[4:8]
    assert makespan_ms(plan) == pytest.approx(410)
    assert plan.prediction is not None
    assert plan.prediction.proof == "optimal"


@pytest.mark.usefixtures("short_search")
@any_technique
def test_same_inputs_give_the_same_bytes(technique: Technique, adaptra4: Profile) -> None:
    """A plan is a function of its profile, shape, technique and seed, down to its bytes."""
    shape = Shape(4, 2, 9, [5], {(None, 1): 0.013, (0, 2): 0.021})
    plans = [plan_adaptra(adaptra4, shape, technique, Effort(seed=7)) for _ in range(2)]
    assert canonical(plans[0]) == canonical(plans[1])


@any_technique
def test_one_activation_must_fit(technique: Technique, adaptra4: Profile) -> None:
    """A memory limit below one activation is infeasible, and the error names the stage and the way out."""
    with pytest.raises(InfeasibleError, match="stage 2 holds 1 B") as caught:
        plan_adaptra(adaptra4, Shape(4, 1, 12, [4, 4, 0.5, 4]), technique, Effort())
    assert "raise the limit" in str(caught.value.fix)


@any_technique
def test_unknown_links_are_refused(technique: Technique, adaptra4: Profile) -> None:
    """A delay for a link that the shape does not have is an error, with every technique."""
    with pytest.raises(InvalidInputError, match="there is no link 3"):
        plan_adaptra(adaptra4, Shape(4, 1, 12, None, {(None, 3): 0.1}), technique, Effort())
