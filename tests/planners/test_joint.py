"""Joint plans: valid, never worse than a single technique, bounded for every routing, and the same each time."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.joint.plan import ENOUGH, plan_joint, replan_joint, warm_up
from rtk.planners.joint.search import single_techniques
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.scheduling.problem import problem_of
from rtk.planners.scheduling.retime import value_s
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.runners.simulator import simulate
from rtk.schemas.check import check_plan
from rtk.schemas.conditions import LinkPlace
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.orders import Schedule
from rtk.schemas.plan import Place, Plan, Prediction

from .running_plans import profile, short_search
from .troubled import alike, situation, troubled, troubled_plans

ROUNDING = 1e-9
RULES = Effort("rules")
UNIFORM = (1.0, 1.0, 1.0)


@pytest.fixture(scope="module", autouse=True)
def _short() -> Iterator[None]:
    with short_search():
        yield


def _promise(plan: Plan) -> Prediction:
    assert plan.prediction is not None
    return plan.prediction


def _hops(plan: Plan) -> set[tuple[Place, Place]]:
    """The pairs of places that exchange a message."""
    problem = problem_of(plan)
    places = [(worker.pipeline, worker.stage) for worker in plan.workers]
    routes = problem.executor.tolist()
    return {(places[a], places[b]) for route in routes for a, b in pairwise(route)}


@settings(max_examples=16)
@given(troubled_plans())
def test_any_troubles_give_a_valid_plan_that_lasts_as_long_as_it_promises(plan: Plan) -> None:
    """The checker finds nothing, the simulator agrees, and no plan is quicker than its bound."""
    made = replan_joint(plan)
    promise = _promise(made)
    made.validate()
    assert check_plan(made) == []
    assert made.optimizer == plan.optimizer
    simulated = simulate(made)
    assert simulated.iteration_time_s == pytest.approx(promise.iteration_time_s, rel=ROUNDING)
    assert promise.lower_bound_s <= promise.iteration_time_s
    assert parse_document(canonical(made), Plan, "here") == made


@settings(max_examples=20)
@given(troubled_plans())
def test_a_joint_plan_is_no_worse_than_any_single_technique(plan: Plan) -> None:
    """Nor than all of them one after the other, by more than what a running plan leaves."""
    promise, found = _promise(replan_joint(plan)), situation(plan)
    for single in single_techniques(found):
        single_s = value_s(*single.made())
        assert promise.iteration_time_s <= single_s * (1 + ENOUGH), single.name


@settings(max_examples=15)
@given(troubled_plans(trouble=False))
def test_without_troubles_it_is_no_worse_than_zero_bubble(plan: Plan) -> None:
    """Every pipeline by `rtk plan pipeline --schedule zero-bubble` takes as long or longer."""
    (stages, pipeline) = plan.templates[0].stages, plan.pipelines[0]
    times = [(stage.forward_s, stage.backward_input_s, stage.backward_weight_s) for stage in stages]
    limits = None if stages[0].memory_limit_bytes is None else [stages[0].memory_limit_bytes]
    shape = Shape(len(stages), len(plan.pipelines), pipeline.microbatches, limits)
    usual = plan_pipeline(profile(times), shape, "zero-bubble")
    made = plan_joint(profile(times), shape, effort=RULES)
    assert _promise(made).iteration_time_s <= _promise(usual).iteration_time_s * (1 + ROUNDING)


@settings(max_examples=15)
@given(troubled_plans(max_pp=3))
def test_only_what_is_wrong_decides(plan: Plan) -> None:
    """Asked twice, or about the plan that it has made itself, the answer is the same, to the byte."""
    made = replan_joint(plan)
    assert canonical(replan_joint(plan)) == canonical(made)
    again = replan_joint(made)
    assert again.workers == made.workers
    assert again.prediction == made.prediction


@settings(max_examples=6)
@given(troubled_plans(max_pp=3, max_dp=2, max_microbatches=2), st.integers(0, 3))
def test_a_search_is_no_worse_than_the_rules(plan: Plan, seed: int) -> None:
    """`plan_joint` plans for the same as `replan_joint`, which loses at most `ENOUGH`, and its search nothing."""
    stages = plan.templates[0].stages
    times = [(stage.forward_s, stage.backward_input_s, stage.backward_weight_s) for stage in stages]
    delays: dict[LinkPlace, float] = {
        (k, i): link.delay_s for k in range(len(plan.pipelines)) for i, link in enumerate(plan.links_of(k))
    }
    shape = Shape(len(stages), len(plan.pipelines), plan.pipelines[0].microbatches, None, delays)
    failed = [(worker.pipeline, worker.stage) for worker in plan.workers if worker.failed]
    slow = {(w.pipeline, w.stage): w.slowdown for w in plan.workers if w.slowdown}
    found = plan_joint(profile(times), shape, failed, slow, Effort("heuristic", seed=seed))
    rules = plan_joint(profile(times), shape, failed, slow, RULES)
    assert _promise(found).iteration_time_s <= _promise(rules).iteration_time_s * (1 + ROUNDING)
    again = _promise(replan_joint(found))
    assert again.lower_bound_s == pytest.approx(_promise(rules).lower_bound_s, rel=ROUNDING)
    assert _promise(rules).iteration_time_s <= again.iteration_time_s * (1 + ROUNDING)
    assert again.iteration_time_s <= _promise(rules).iteration_time_s * (1 + ENOUGH)
    assert {worker.name for worker in found.workers if worker.failed} == set(found.planner.options["failed"])


@settings(max_examples=16)
@given(troubled_plans(max_pp=3), st.data())
def test_whatever_is_to_be_avoided_the_plan_is_valid_and_says_what_crosses(plan: Plan, data: st.DataObject) -> None:
    """Any pairs of neighbouring stages, inside a pipeline too."""
    dp, links = len(plan.pipelines), len(plan.templates[0].links)
    place = st.tuples(st.integers(0, dp - 1), st.integers(0, dp - 1), st.integers(0, max(links - 1, 0)))
    named = data.draw(st.lists(place, max_size=3, unique=True)) if links else []
    avoid = [((k, i), (other, i + 1)) for k, other, i in named]
    made = replan_joint(plan, avoid)
    problem, depth = problem_of(made), links + 1
    crossed = sum(
        int((problem.executor[:, [i, i + 1]] == (k * depth + i, other * depth + i + 1)).all(axis=1).sum())
        for k, other, i in named
    )
    assert made.planner.options["avoided_jobs"] == crossed
    assert simulate(made).iteration_time_s == pytest.approx(_promise(made).iteration_time_s, rel=ROUNDING)


def test_options_say_what_was_decided() -> None:
    """Who executes how much, which links carry nothing, and what the schedule is; the orders agree."""
    plan = replan_joint(troubled(alike(4, 4, 16), frozenset({(1, 2)}), {(3, 1): 1.5}, {(2, 0): 0.06}))
    said, problem = plan.planner.options, problem_of(plan)
    assert (plan.planner.name, said["made_by"], said["avoided_jobs"]) == ("joint", "joint", 0)
    assert (said["failed"], said["slow"], said["bypassed_links"]) == (["1/2"], {"3/1": 1.5}, ["2/0"])
    assert ((2, 0), (2, 1)) not in _hops(plan)
    assert list(said["loads"].values()) == problem.job_counts.tolist()
    assert (said["loads"]["1/2"], said["loads"]["3/1"]) == (0, 12)
    assert [sum(said["loads"][f"{k}/{i}"] for k in range(4)) for i in range(4)] == [64] * 4
    assert said["warmup_forwards"][1][2] == 0
    assert _promise(plan).proof == "optimal"


@pytest.mark.parametrize("limit_bytes", [None, 4.0])
def test_nothing_crosses_what_is_to_be_avoided(limit_bytes: float | None) -> None:
    """Pairs of different pipelines, given either way round; where they cannot be avoided, the plan says how often."""
    plan = troubled(alike(4, 4, 8, limit_bytes=limit_bytes), frozenset({(1, 2)}), {(3, 1): 1.5})
    pair = next(hop for hop in sorted(_hops(replan_joint(plan))) if hop[0][0] != hop[1][0])
    for avoid in ([pair], [pair[::-1]]):
        made = replan_joint(plan, avoid)
        assert pair not in _hops(made)
        assert made.planner.options["avoided_jobs"] == 0
        assert _promise(made).iteration_time_s <= _promise(replan_joint(plan)).iteration_time_s * 1.05
    alone = troubled(alike(2, 2, 3), frozenset({(0, 0), (1, 1)}))
    assert replan_joint(alone, [((1, 0), (0, 1))]).planner.options["avoided_jobs"] == 6


@pytest.mark.parametrize(("schedule", "kinds"), [("1f1b", "FB"), ("zero-bubble", "FIW")])
def test_backwards_are_split_only_where_the_running_plan_may(schedule: Schedule, kinds: str) -> None:
    """A plan with B keeps B, one with I and W keeps those, whoever dies."""
    plan = plan_pipeline(profile([UNIFORM] * 3), Shape(3, 2, 4), schedule)
    workers = (replace(w, order=None, failed=True) if w.name == "0/1" else w for w in plan.workers)
    made = replan_joint(replace(plan, workers=tuple(workers)))
    found = {token[0] for worker in made.workers for token in (worker.order or "").split()}
    assert found == set(kinds)
    assert made.planner.options["model"] == plan.planner.options["model"]


def test_warming_up_changes_nothing() -> None:
    """Machine code and plain Python agree to the byte."""
    plan = troubled(alike(3, 3, 5, limit_bytes=3.0), frozenset({(1, 2)}), {(0, 1): 1.5}, {(2, 0): 0.06})
    before = replan_joint(plan)
    warm_up(plan)
    assert canonical(replan_joint(plan)) == canonical(before)


@pytest.mark.parametrize(
    ("failed", "slow", "delays", "what", "where"),
    [
        ([(0, 2)], {}, {}, "there is no worker 0/2", "--failed"),
        ([(0, 1), (0, 1)], {}, {}, "named twice", "--failed"),
        ([], {(2, 0): 1.5}, {}, "there is no worker 2/0", "--slow"),
        ([], {}, {(0, 1): 1.0}, "there is no link 0/1", "--link-delay"),
    ],
)
def test_what_is_not_there_is_refused(
    failed: list[Place], slow: dict[Place, float], delays: dict[LinkPlace, float], what: str, where: str
) -> None:
    """Workers and links that the shape does not have, and a worker that died twice."""
    with pytest.raises(InvalidInputError, match=what) as caught:
        plan_joint(profile([UNIFORM] * 2), Shape(2, 2, 2, None, delays), failed, slow)
    assert caught.value.where == where


def test_a_stage_without_live_workers_is_infeasible() -> None:
    """And so is a memory limit that admits nothing."""
    with pytest.raises(InfeasibleError, match="stage 1 has lost all its workers"):
        replan_joint(troubled(alike(2, 2, 2), frozenset({(0, 1), (1, 1)})))
    with pytest.raises(InfeasibleError, match=r"its memory limit is 0\.5"):
        replan_joint(alike(2, 2, 2, limit_bytes=0.5))


def test_only_alike_pipelines_and_neighbours() -> None:
    """Unlike numbers of micro-batches, and pairs that exchange no messages."""
    plan = alike(3, 2, 2)
    unlike = replace(plan, pipelines=(plan.pipelines[0], replace(plan.pipelines[1], microbatches=3)))
    with pytest.raises(InvalidInputError, match="only alike pipelines"):
        replan_joint(unlike)
    for pair, what in product([((0, 0), (1, 2)), ((0, 0), (1, 0))], ["exchange no messages"]):
        with pytest.raises(InvalidInputError, match=what):
            replan_joint(plan, [pair])
    with pytest.raises(InvalidInputError, match="there is no worker 4/1"):
        replan_joint(plan, [((0, 0), (4, 1))])
