"""Stories of plans whose workers hold several virtual stages, in which broken iterations are done anew."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.resumption.plan import plan_rest
from rtk.runners.simulator import simulate
from rtk.runners.virtual.job import SimulatedRun, SwitchCosts, simulate_story
from rtk.schemas.check import check_timeline, require_valid
from rtk.schemas.conditions import HEALTHY, Conditions, LinkPlace, under_conditions
from rtk.schemas.orders import Operation, print_order
from rtk.schemas.placement import v_placement
from rtk.schemas.plan import Link, Optimizer, Pipeline, Place, Plan, Stage, Template, Worker, delay_at_home_s, name_of
from rtk.schemas.protocols import Hand, Replanned
from rtk.schemas.trace import Trace, TraceEvent

from ...placed_plans import any_placed_plans, placed_plans
from ...strategies import BY_HAND
from ..newcomers import with_newcomers

COSTS = SwitchCosts(heartbeat_limit_s=2.0, regroup_s=0.5)
V = v_placement(2)
DP, MICROBATCHES = 3, 2


def v_plan(optimizer: Optimizer = "synchronous", dead: frozenset[Place] = frozenset()) -> Plan:
    """A V on two columns, three pipelines; micro-batches run one after the other, and what a dead worker would have
    done at one of its stages another peer does than what it would have done at the other."""
    stages = tuple(
        Stage((v, v + 1), 1.0, 1.0, 1.0, optimizer_s=0.25, allreduce_s=0.125, activation_bytes=1.0) for v in range(4)
    )
    links = tuple(Link(delay_s) for delay_s in (0.5, 0.0, 0.5))
    runs: dict[Place, list[Operation]] = {(k, c): [] for k in range(DP) for c in range(2)}
    for j in range(MICROBATCHES):
        for k in range(DP):
            for kind, way in (("F", range(4)), ("B", range(4)[::-1])):
                for v in way:
                    column = next(c for c, held in enumerate(V) if v in held)
                    alive = [other for other in range(DP) if (other, column) not in dead]
                    by = k if k in alive else alive[v % len(alive)]
                    runs[by, column].append(Operation(kind, k, j, v))  # type: ignore[arg-type]
    workers = tuple(
        Worker(*place, None, failed=True) if place in dead else Worker(*place, print_order(order, place[0]))
        for place, order in runs.items()
    )
    plan = Plan(BY_HAND, (Template("v", stages, links, V),), (Pipeline("v", MICROBATCHES),) * DP, optimizer, workers)
    require_valid(plan, "the test's plan")
    return plan


def replan(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions = HEALTHY) -> Replanned:
    """Nobody moves, and peers do what the dead would have done."""
    seats = with_newcomers(crew, [worker.place for worker in plan.workers])
    found = v_plan(plan.optimizer, frozenset(worker.place for worker in plan.workers).difference(seats))
    return Replanned(found, tuple((name, place) for place, name in seats.items()))


def story_of(plan: Plan, *events: TraceEvent, iterations: int) -> SimulatedRun:
    return simulate_story(plan, Trace(events), iterations, replan, COSTS)


def committed_runs(story: SimulatedRun) -> Counter[tuple[int, str]]:
    """How often each operation was run in the try of each iteration that was committed, by (iteration, token)."""
    begun_s = [at_s for at_s, one in story.announced if one.event == "epoch"]
    found: Counter[tuple[int, str]] = Counter()
    for span in story.timeline.spans:
        since_s = max(at_s for at_s in begun_s if at_s < story.committed_s[span.iteration])
        if span.start_s >= since_s and span.op not in ("allreduce", "step"):
            stage, rest = span.op[0], span.op[1:]
            number = rest[1:] if "." in rest else f"{span.worker[0]}.{rest[1:]}"
            found[span.iteration, f"{stage}{rest[0]}{number}"] += 1
    return found


@settings(max_examples=40, deadline=None)
@given(any_placed_plans(), st.integers(1, 3))
def test_without_events_a_story_is_the_simulation_repeated(plan: Plan, iterations: int) -> None:
    """Nothing happens: each iteration is that of the simulator, one iteration time after the last."""
    story = simulate_story(plan, Trace(()), iterations, replan)
    found = sorted((one.iteration, one.worker, one.start_s, one.op) for one in story.timeline.spans)
    wanted = sorted((s.iteration, s.worker, s.start_s, s.op) for s in simulate(plan).repeated(iterations).spans)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (*ours[:2], ours[3]) == (*theirs[:2], theirs[3])
        assert ours[2] == pytest.approx(theirs[2], rel=1e-9, abs=1e-9)
    assert (story.exit_code, len(story.committed_s), story.lost_s) == (0, iterations, 0)


@settings(max_examples=40, deadline=None)
@given(placed_plans(), st.data())
def test_slow_workers_and_links_are_as_conditions_have_them(plan: Plan, data: st.DataObject) -> None:
    """A worker that is slow, and a slow link between two columns, make an iteration last as the simulator says of the
    plan under these conditions; its timeline keeps the plan's dependencies."""
    plan = replace(plan, optimizer="synchronous", prediction=None)
    live = [worker.name for worker in plan.live_workers()]
    name, factor = data.draw(st.sampled_from(live)), data.draw(st.sampled_from([0.5, 2.0, 3.0]))
    slow = {name: factor * ({worker.name: worker.slowdown or 1.0 for worker in plan.workers}[name])}
    events = [TraceEvent("slow_compute", iteration=1, worker=name, factor=factor)]
    template = plan.template_of(0)
    delays_s: dict[LinkPlace, float] = {}
    linked = len(plan.pipelines) == 1 and {"0/0", "0/1"} <= {*live} and template.link_between(0, 1) is not None
    if linked:
        more_s = data.draw(st.sampled_from([0.0, 0.25, 4.0]))
        events.append(TraceEvent("slow_link", iteration=1, link="0/0-0/1", delay_s=more_s))
        delays_s = {(0, 0): delay_at_home_s(plan, "0/0", "0/1") + more_s}
    story = simulate_story(plan, Trace(tuple(events)), 2, replan, transport="delegated")
    slowed = under_conditions(plan, slow, delays_s)
    last_s = story.committed_s[1] - story.committed_s[0]
    assert last_s == pytest.approx(simulate(slowed).makespan_s, rel=1e-9, abs=1e-9)
    second = tuple(replace(s, iteration=0) for s in story.timeline.spans if s.iteration == 1)
    begun_s = min((span.start_s for span in second), default=0.0)
    shifted = tuple(replace(s, start_s=max(0.0, s.start_s - begun_s), end_s=s.end_s - begun_s) for s in second)
    assert check_timeline(slowed, replace(story.timeline, spans=shifted, plan=None)) == []


@pytest.mark.parametrize("optimizer", ["synchronous", "staggered"])
@pytest.mark.parametrize("victim", ["0/0", "2/1"])
def test_a_death_in_the_midst_has_the_iteration_done_anew(optimizer: Optimizer, victim: str) -> None:
    """Who dies is replaced by peers, one for each of its stages, and later by a newcomer; every micro-batch has seen
    every virtual stage once in each committed iteration, and nothing of the broken one was gone on with."""
    events = TraceEvent("fail", iteration=1, worker=victim), TraceEvent("join", iteration=3, worker=victim)
    story = story_of(v_plan(optimizer), *events, iterations=5)
    assert (story.exit_code, len(story.committed_s), story.resumptions) == (0, 5, ())
    assert [one.event for _, one in story.announced if one.event in ("failure", "join")] == ["failure", "join"]
    runs = committed_runs(story)
    assert set(runs.values()) == {1}
    assert len(runs) == 5 * 4 * 2 * DP * MICROBATCHES
    assert all(a.start_s <= b.start_s for a, b in pairwise(story.timeline.spans))
    without = simulate_story(story.plans[0], Trace(events), 5, replan, COSTS, resume=plan_rest, log_memory_bytes=0)
    assert (without.timeline.spans, without.committed_s) == (story.timeline.spans, story.committed_s)
    assert len(story.plans) == 3
    report = story.report(0.0)
    assert len(report.peak_memory_bytes) == len(story.plans[0].workers)
    assert not math.isinf(report.iteration_time_s)


def test_all_of_a_column_dead_ends_the_job() -> None:
    """Nobody is left who holds its layers, both of its ranges."""
    events = [TraceEvent("fail", iteration=1, worker=name_of((k, 1))) for k in range(DP)]
    story = story_of(v_plan(), *events, iterations=3)
    assert (story.exit_code, len(story.committed_s)) == (5, 1)
    assert "1" in story.reason
    assert "2" in story.reason
