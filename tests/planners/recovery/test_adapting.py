"""Answers to slow links and slow workers: the running plan while it has slack for them, a joint one, workers in other
places, a restart; and back again."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.joint import plan as joint
from rtk.planners.joint.plan import plan_joint
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.recovery.adapting import UNKNOWN_COPYING, WORTH_IT
from rtk.planners.recovery.answers import PolicyName, answers_for
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, Technique, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.schemas.check import check_plan
from rtk.schemas.conditions import HEALTHY, Conditions, LinkPlace, SlowLink, SlowWorker, pair_of, under_conditions
from rtk.schemas.documents import digest
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.orders import Operation
from rtk.schemas.plan import Place, Plan, Worker, name_of
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile
from rtk.schemas.protocols import Answers, Hand, Replanned

from ..running_plans import made_by, profile, running_plans, short_search

COSTS = profile([(0.01, 0.01, 0.01)] * 4)
WHOLE = plan_pipeline(COSTS, Shape(4, 1, 12), "zero-bubble")
WIDE = plan_pipeline(COSTS, Shape(4, 3, 8), "zero-bubble")
TOLERATED_S, BEYOND_S = 0.01, 0.03


@pytest.fixture(scope="module", autouse=True)
def _short() -> Iterator[None]:
    with short_search():
        yield


def crew_of(plan: Plan, *dead: str) -> tuple[Hand, ...]:
    """All workers of a plan but some, each at home."""
    return tuple(
        Hand(one.name, (one.pipeline, one.stage), plan.layers_of(one))
        for one in plan.live_workers()
        if one.name not in dead
    )


def at_home(plan: Plan) -> tuple[tuple[str, Place], ...]:
    """Everybody at the place he is named after."""
    return tuple((one.name, (one.pipeline, one.stage)) for one in plan.live_workers())


def crew_after(answer: Replanned) -> tuple[Hand, ...]:
    """Who is there once an answer is followed."""
    plan = answer.plan
    return tuple(Hand(name, (k, i), plan.layers_of(Worker(k, i))) for name, (k, i) in answer.seats)


def slow_link(one: str, other: str, delay_s: float, level: int = 0) -> Conditions:
    """One slow link."""
    return Conditions((SlowLink(pair_of(one, other), delay_s),), level=level)


def slow_worker(worker: str, factor: float, level: int = 0) -> Conditions:
    """One slow worker."""
    return Conditions(slow_workers=(SlowWorker(worker, factor),), level=level)


def adapting(plan: Plan, within: int = 100, host_memory_bytes: float = 0.0) -> Answers:
    """What plans for a job that begins with this plan."""
    return answers_for(plan, None, None, within, host_memory_bytes)


def rerouting(plan: Plan) -> Answers:
    """What plans for its failures alone."""
    return answers_for(plan, PolicyName.SLIPSTREAM, None, 100)


def lasts_s(plan: Plan, links: dict[LinkPlace, float], slow: dict[str, float] | None = None) -> float:
    """What a plan's iteration takes under delays and slow workers."""
    return evaluate(under_conditions(plan, slow or {}, links)).iteration_time_s


def test_a_delay_that_the_plan_tolerates_changes_nothing() -> None:
    """Everybody goes on with the very same plan."""
    found = adapting(WHOLE)(WHOLE, crew_of(WHOLE), slow_link("0/1", "0/2", TOLERATED_S))
    assert found.plan is WHOLE
    assert found.seats == at_home(WHOLE)


def test_a_delay_beyond_is_adapted_to_and_relief_brings_the_first_plan_back() -> None:
    """The new plan is valid and faster under the delay; a little change of the delay does not change it again; once all
    is well, the plan is the one that the job began with, byte for byte."""
    replan, crew = adapting(WHOLE), crew_of(WHOLE)
    adapted = replan(WHOLE, crew, slow_link("0/1", "0/2", BEYOND_S))
    assert check_plan(adapted.plan) == []
    place = (0, 1)
    assert lasts_s(adapted.plan, {place: BEYOND_S}) < lasts_s(WHOLE, {place: BEYOND_S}) * (1 - WORTH_IT)
    again = replan(adapted.plan, crew_after(adapted), slow_link("0/1", "0/2", BEYOND_S * 1.1))
    assert again == adapted
    back = replan(adapted.plan, crew_after(adapted), HEALTHY)
    assert digest(back.plan) == digest(WHOLE)
    assert back.seats == adapted.seats == tuple((hand.worker, hand.place) for hand in crew)


@pytest.mark.parametrize(
    "conditions",
    [
        HEALTHY,
        slow_link("0/1", "0/3", 1.0),  # they have nothing to send to each other
        slow_link("0/1", "2/2", 1.0),  # nor have these
        slow_link("0/1", "9/9", 1.0),
        Conditions(slow_workers=(SlowWorker("9/9", 2.0),)),
        Conditions(broken_links=(("0/1", "0/2"),)),  # a detour twice as long as nothing
    ],
)
def test_what_does_not_matter_changes_nothing(conditions: Conditions) -> None:
    """The plan is the one for the failures alone."""
    usual = rerouting(WIDE)
    for dead in ((), ("1/1",)):
        crew = crew_of(WIDE, *dead)
        assert adapting(WIDE)(WIDE, crew, conditions) == usual(WIDE, crew, HEALTHY)


@pytest.mark.parametrize("technique", ["adaptive", "decoupled", "staggered"])
def test_a_job_keeps_its_optimizer_and_whether_it_splits_backwards(technique: Technique) -> None:
    """What is adapted to a slow worker counts what the running plan counts, its period or its makespan: by a joint plan
    that is better at that; so does what then follows on a death."""
    plan = plan_joint(COSTS, Shape(4, 3, 8), [(2, 0)], {}, Effort("rules"), technique)
    replan, crew = adapting(plan), crew_of(plan)
    found = replan(plan, crew, slow_worker("1/3", 2.0))
    assert found.plan.planner.name == "joint"
    assert found.plan.planner.options["technique"] == technique
    promised = found.plan.prediction
    assert promised is not None
    assert promised.iteration_time_s == pytest.approx(evaluate(found.plan).iteration_time_s)
    assert promised.iteration_time_s < lasts_s(plan, {}, {"1/3": 2.0}) * (1 - WORTH_IT)
    later = replan(found.plan, tuple(hand for hand in crew_after(found) if hand.worker != "0/0"), HEALTHY)
    for one in (found, later):
        assert one.plan.optimizer == plan.optimizer
        kinds = {token[0] for worker in one.plan.live_workers() for token in (worker.order or "").split()}
        assert ("I" in kinds) == (technique != "adaptive")


def test_all_at_once() -> None:
    """A dead worker, a slow one and a slow link: one valid plan without the dead, which is better than re-routing."""
    replan, dead = adapting(WIDE), "2/0"
    conditions = Conditions((SlowLink(("0/1", "0/2"), 0.06),), (SlowWorker("1/3", 2.0),))
    found = replan(WIDE, crew_of(WIDE, dead), conditions)
    assert check_plan(found.plan) == []
    assert [one.name for one in found.plan.workers if one.failed] == [dead]
    rerouted = rerouting(WIDE)(WIDE, crew_of(WIDE, dead), HEALTHY).plan
    links: dict[LinkPlace, float] = {(0, 1): 0.06}
    known = found.plan.prediction
    assert known is not None
    assert known.iteration_time_s == pytest.approx(evaluate(found.plan).iteration_time_s)
    assert known.iteration_time_s < lasts_s(rerouted, links, {"1/3": 2.0}) * (1 - WORTH_IT)
    healed = replan(found.plan, crew_after(found), HEALTHY)
    assert digest(healed.plan) == digest(rerouted)


def test_a_broken_link_of_long_delay_is_taken_for_one_twice_as_long() -> None:
    """That is what a detour takes, unless it was measured to take more."""
    plan = plan_pipeline(COSTS, Shape(4, 1, 12, link_delay_s={(None, 1): 0.04}), "1f1b")
    ends = ("0/1", "0/2")
    found = adapting(plan)(plan, crew_of(plan), Conditions(broken_links=(ends,)))
    assert found.plan.links_of(0)[1].delay_s == 0.08
    measured = Conditions((SlowLink(ends, 0.2),), broken_links=(ends,))
    assert adapting(plan)(plan, crew_of(plan), measured).plan.links_of(0)[1].delay_s == 0.2


def test_slow_links_between_pipelines_are_avoided() -> None:
    """A plan that re-routes over such a link is left for one that does not, though a plan cannot say its delay."""
    crew = crew_of(WIDE, "0/1")
    rerouted = rerouting(WIDE)(WIDE, crew, HEALTHY).plan
    senders = {one.name for one in rerouted.live_workers() if one.stage == 1 and " F0." in f" {one.order}"}
    assert senders, "somebody executes micro-batches of pipeline 0 in place of the dead worker"
    one = min(senders)
    found = adapting(WIDE)(WIDE, crew, slow_link("0/2", one, 0.5))
    assert found.plan != rerouted
    k = int(one[0])
    sent = {op.microbatch for op in _worker(found.plan, (k, 1)) if op.kind == "F" and op.pipeline == 0}
    taken = {op.microbatch for op in _worker(found.plan, (0, 2)) if op.kind == "F" and op.pipeline == 0}
    assert not sent & taken


def _worker(plan: Plan, place: Place) -> tuple[Operation, ...]:
    return next(one.operations() for one in plan.workers if (one.pipeline, one.stage) == place)


@pytest.mark.parametrize("dp", [2, 3])
def test_a_slow_link_between_peers_is_moved_away_and_all_go_back_after_relief(dp: int) -> None:
    """From level 1 on: one of its ends changes places with a worker of another stage, so that the two have nothing to
    send to each other; the plan stays, and nobody moves again until it is well; then everybody is where he was."""
    plan = plan_pipeline(COSTS, Shape(3, dp, 6), "1f1b")
    replan = adapting(plan)
    assert replan(plan, crew_of(plan), slow_link("0/1", "1/1", 0.2)) == Replanned(plan, at_home(plan))
    conditions = slow_link("0/1", "1/1", 0.2, level=1)
    found = replan(plan, crew_of(plan), conditions)
    assert digest(found.plan) == digest(plan)
    seats = dict(found.seats)
    assert sorted(seats.values()) == [(one.pipeline, one.stage) for one in plan.workers]
    assert sum(name != name_of(place) for name, place in found.seats) == 2
    (k, i), (other, j) = seats["0/1"], seats["1/1"]
    assert i != j
    assert k != other
    for then in (conditions, replace(conditions, level=2), replace(conditions, level=0)):
        assert replan(found.plan, crew_after(found), then) == found
    back = replan(found.plan, crew_after(found), HEALTHY)
    assert digest(back.plan) == digest(plan)
    assert back.seats == at_home(plan)


@pytest.mark.parametrize(("within", "delay_s", "moves"), [(0, 0.2, False), (100, 0.2, True), (100, 1e-4, False)])
def test_workers_change_places_only_where_it_pays(within: int, delay_s: float, moves: bool) -> None:
    """Copies that nobody knows the size of last as long as ten iterations."""
    plan = plan_pipeline(COSTS, Shape(3, 2, 6), "1f1b")
    found = adapting(plan, within)(plan, crew_of(plan), slow_link("0/1", "1/1", delay_s, level=1))
    assert (found.seats != at_home(plan)) == moves


def test_nobody_moves_while_somebody_waits_for_his_state() -> None:
    """A newcomer takes its place first; and who was elsewhere then, stays there."""
    plan = plan_pipeline(COSTS, Shape(3, 2, 6), "1f1b")
    crew = (*crew_of(plan, "1/2"), Hand("1/2", None, None))
    found = adapting(plan)(plan, crew, slow_link("0/1", "1/1", 0.2, level=1))
    assert all(name == name_of(place) for name, place in found.seats)
    moved = adapting(plan)(plan, crew_of(plan), slow_link("0/1", "1/1", 0.2, level=1))
    there = crew_after(moved)
    waiting = (*there[:-1], Hand(there[-1].worker, None, None))
    assert adapting(plan)(plan, waiting, HEALTHY).seats == moved.seats


def test_a_slow_link_of_a_pipeline_is_given_to_two_who_have_nothing_to_send_to_each_other() -> None:
    """One of its ends changes places within the pipeline, and the plan is the first one; where another pipeline's
    workers can go round the link without a loss, nobody moves."""
    replan, conditions = adapting(WHOLE), slow_link("0/1", "0/2", 0.5, level=1)
    found = replan(WHOLE, crew_of(WHOLE), conditions)
    seats = dict(found.seats)
    assert abs(seats["0/1"][1] - seats["0/2"][1]) > 1
    assert digest(found.plan) == digest(WHOLE)
    back = replan(found.plan, crew_after(found), HEALTHY)
    assert back == Replanned(WHOLE, at_home(WHOLE))
    wide = plan_pipeline(COSTS, Shape(4, 2, 8), "zero-bubble")
    around = adapting(wide)(wide, crew_of(wide), conditions)
    assert around.seats == at_home(wide)


def test_stragglers_of_one_pipeline_are_consolidated_where_nothing_else_helps() -> None:
    """Two slow workers of one pipeline each cost it; where its stages are unlike, a slow worker gives the long one up;
    and if a swap gains next to nothing, everybody stays."""
    unlike = profile([(0.02, 0.02, 0.02), (0.01, 0.01, 0.01), (0.01, 0.01, 0.01)])
    plan = plan_pipeline(unlike, Shape(3, 1, 8), "1f1b")
    found = adapting(plan)(plan, crew_of(plan), slow_worker("0/0", 1.8, level=1))
    assert dict(found.seats)["0/0"] != (0, 0)
    even = plan_pipeline(COSTS, Shape(4, 1, 12), "1f1b")
    assert adapting(even)(even, crew_of(even), slow_worker("0/1", 1.8, level=1)).seats == at_home(even)


@pytest.mark.parametrize(
    ("conditions", "restarts"),
    [
        (slow_worker("0/1", 2.0, level=2), True),
        (slow_worker("0/1", 2.0, level=1), False),
        (slow_worker("0/1", 1.01, level=2), False),
        (slow_link("0/1", "0/2", 1.0, level=2), False),  # they change places
        (slow_link("0/1", "0/3", 1.0, level=2), False),
        (HEALTHY, False),
    ],
)
def test_a_restart_is_for_what_nothing_else_helps_against(conditions: Conditions, restarts: bool) -> None:
    """At level 2, where the job is slower than it could be; the reason says because of whom."""
    found = adapting(WHOLE)(WHOLE, crew_of(WHOLE), conditions)
    assert bool(found.restart) == restarts
    if restarts:
        assert "0/1" in found.restart


def test_a_restart_is_weighed_against_the_job_with_nothing_slow_whatever_orders_are_in_force() -> None:
    """Under joint orders the loss is still what they take beyond the plan that the job began with."""
    answers = adapting(WIDE)
    bent = answers(WIDE, crew_of(WIDE), slow_worker("0/1", 8.0))
    assert bent.plan != WIDE
    assert answers(bent.plan, crew_after(bent), slow_worker("0/1", 8.0, level=2)).restart


def test_what_changing_places_costs() -> None:
    """There and back: by the sizes and the network, where they are known; else some iterations."""
    assert adapting(WIDE).moving_s(0.5) == 2 * UNKNOWN_COPYING * 0.5
    layers = tuple(Layer((LayerCost(0.01, 0.01, 0.01),), state_bytes=size) for size in (100.0, 300.0))
    known = Profile(layers, network=Network(inter_node=Connection(0.0, 1000.0)))
    plan = Replanner(opening(known, AtlasRequest(Shape(2, 2, 4))), 0).in_place(frozenset())
    told = {"state_bytes": [100.0, 300.0]}
    sized = replace(plan, planner=replace(plan.planner, options=plan.planner.options | told))
    assert adapting(sized).moving_s(0.5) == pytest.approx(2 * 0.3)


def test_two_slow_links_between_peers() -> None:
    """Both are moved away."""
    plan = plan_pipeline(COSTS, Shape(4, 2, 6), "1f1b")
    conditions = Conditions((SlowLink(("0/1", "1/1"), 0.2), SlowLink(("0/2", "1/2"), 0.1)), level=1)
    seats = dict(adapting(plan)(plan, crew_of(plan), conditions).seats)
    for one, other in (("0/1", "1/1"), ("0/2", "1/2")):
        assert seats[one][1] != seats[other][1]
        assert seats[one][0] != seats[other][0] or abs(seats[one][1] - seats[other][1]) > 1


def test_host_memory_is_for_adapted_plans() -> None:
    """With it warm-ups may hold more than the device; without it they keep the limit; the first plan always does."""
    limits = [4.0, 3.0, 2.0, 1.0]
    plan = plan_pipeline(COSTS, Shape(4, 1, 12, limits), "1f1b")
    conditions = slow_link("0/1", "0/2", 0.04)
    plain, lifted = (adapting(plan, 100, more)(plan, crew_of(plan), conditions).plan for more in (0.0, 8.0))
    assert plain.prediction is not None
    assert lifted.prediction is not None
    for peak, limit in zip(plain.prediction.peak_memory_bytes, limits, strict=True):
        assert peak <= limit
    assert any(peak > limit for peak, limit in zip(lifted.prediction.peak_memory_bytes, limits, strict=True))
    assert lifted.prediction.iteration_time_s < plain.prediction.iteration_time_s
    assert [stage.memory_limit_bytes for stage in lifted.templates[0].stages] == [limit + 8.0 for limit in limits]
    back = adapting(plan, 100, 8.0)(lifted, crew_of(plan), HEALTHY).plan
    assert digest(back) == digest(plan)


def test_without_a_joint_plan_training_goes_on_with_the_best_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody is gone that is the re-routed plan; where nobody is, the running one, and the reason is said."""

    def infeasible(plan: Plan, avoid: object, situation: object) -> Plan:
        raise InfeasibleError("stage 1 cannot hold one")

    monkeypatch.setattr(joint, "replan_joint", infeasible)
    replan, conditions = adapting(WIDE), slow_link("0/1", "0/2", 1.0)
    with pytest.raises(InfeasibleError, match="none for what is slow now: stage 1 cannot hold one"):
        replan(WIDE, crew_of(WIDE), conditions)
    crew = crew_of(WIDE, "2/0")
    assert replan(WIDE, crew, conditions) == rerouting(WIDE)(WIDE, crew, HEALTHY)


def test_a_stage_that_is_lost_ends_it_whatever_is_slow() -> None:
    """One pipeline bears no failure, though it can be adapted."""
    with pytest.raises(InfeasibleError, match="has lost all its workers"):
        adapting(WHOLE)(WHOLE, crew_of(WHOLE, "0/1"), slow_link("0/2", "0/3", 1.0))


def test_policy_slipstream_heeds_failures_only() -> None:
    """Whatever is slow, its plan is the re-routed one."""
    replan = answers_for(WHOLE, PolicyName.SLIPSTREAM, None, 100)
    assert replan(WHOLE, crew_of(WHOLE), slow_link("0/1", "0/2", 1.0)).plan is WHOLE


def test_warming_up_changes_no_answer() -> None:
    """It only takes ahead what the first question would have to wait for; also where a pipeline has a single stage."""
    warm, cold = adapting(WIDE), adapting(WIDE)
    warm.warm_up()
    question = (WIDE, crew_of(WIDE, "0/0"), slow_link("0/1", "0/2", 0.1))
    assert warm(*question) == cold(*question)
    single = plan_pipeline(Profile((Layer((LayerCost(0.01, 0.01, 0.01),)),)), Shape(1, 1, 2), "gpipe")
    adapting(single).warm_up()


CONDITIONS_S = st.sampled_from([0.0, 0.5, 3.0, 20.0])


@st.composite
def conditions_of(draw: st.DrawFn, plan: Plan) -> Conditions:
    """Some slow links, slow workers and broken links."""
    names = [one.name for one in plan.workers]
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names)).filter(lambda pair: pair[0] < pair[1])
    links = draw(st.dictionaries(pairs, CONDITIONS_S, max_size=3))
    workers = draw(st.dictionaries(st.sampled_from(names), st.sampled_from([1.5, 4.0]), max_size=2))
    return Conditions(
        tuple(SlowLink(pair, delay_s) for pair, delay_s in sorted(links.items())),
        tuple(SlowWorker(name, factor) for name, factor in sorted(workers.items())),
        tuple(sorted(draw(st.sets(pairs, max_size=1)))),
        level=draw(st.integers(0, 1)),
    )


@settings(max_examples=10)
@given(st.data())
def test_whatever_becomes_slow_one_after_the_other(data: st.DataObject) -> None:
    """Answers are valid plans that leave just the dead workers' places empty; the same question has the same answer,
    whatever was asked before; and in the end, when all is well, the first plan is there again, and everybody where he
    was."""
    plan = data.draw(running_plans())
    replan, running, crew = adapting(plan), plan, crew_of(plan)
    for _ in range(data.draw(st.integers(1, 3))):
        conditions = data.draw(conditions_of(plan))
        found = replan(running, crew, conditions)
        assert check_plan(found.plan) == []
        assert [one.failed for one in found.plan.workers] == [one.failed for one in plan.workers]
        assert [place for _, place in found.seats] == [hand.place for hand in crew]
        assert sorted(name for name, _ in found.seats) == sorted(hand.worker for hand in crew)
        assert adapting(plan)(running, crew, conditions) == found
        running, crew = found.plan, crew_after(found)
    back = replan(running, crew, HEALTHY)
    assert digest(back.plan) == digest(plan)
    assert back.seats == at_home(plan)


@given(st.integers(0, 2), st.sampled_from(["1f1b", "zero-bubble", "gpipe"]), st.floats(0.001, 0.2))
def test_an_answer_is_nearly_as_fast_as_the_joint_plan_and_never_slower_than_going_on(
    link: int, maker: str, delay_s: float
) -> None:
    """Under the delay, within what is not worth a change."""
    plan = made_by(maker, COSTS, Shape(4, 1, 6))
    found = adapting(plan)(plan, crew_of(plan), slow_link(f"0/{link}", f"0/{link + 1}", delay_s)).plan
    best_s = lasts_s(joint.replan_joint(under_conditions(plan, {}, {(0, link): delay_s})), {})
    place: LinkPlace = (0, link)
    assert lasts_s(found, {place: delay_s}) <= min(best_s * (1 + WORTH_IT), lasts_s(plan, {place: delay_s})) + 1e-9
