"""Stories: a failure trace under the coordinator's own rules, with simulated workers."""

import math
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.lower_bound import lower_bound
from rtk.planners.scheduling.problem import problem_of
from rtk.runners.program import lower
from rtk.runners.simulator import execute, simulate
from rtk.runners.virtual.cluster import cast_of
from rtk.runners.virtual.job import SimulatedRun, SwitchCosts, simulate_story
from rtk.schemas.conditions import HEALTHY, Conditions
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Link, Pipeline, Place, Plan, Planner, Stage, Template, Worker, name_of, place_of
from rtk.schemas.protocols import Hand, Replanned
from rtk.schemas.timeline import Span
from rtk.schemas.trace import Trace, TraceEvent, check_trace

from ...strategies import hand_plan, plans
from ..newcomers import with_newcomers

COSTS = SwitchCosts(detection_s=0.0, heartbeat_limit_s=2.0, regroup_s=0.5)


def small_plan(
    stages: int = 2, dp: int = 2, optimizer: str = "synchronous", dead: frozenset[Place] = frozenset()
) -> Plan:
    """GPipe orders of two micro-batches a pipeline, dead workers' spread over their peers; all operations take 1 s."""
    cut = tuple(Stage((i, i + 1), 1.0, 1.0, 1.0, optimizer_s=0.25, activation_bytes=1.0) for i in range(stages))
    workers = []
    for k in range(dp):
        for i in range(stages):
            alive = [other for other in range(dp) if (other, i) not in dead]
            mine = [k] + [
                other for n, other in enumerate(range(dp)) if (other, i) in dead and alive[n % len(alive)] == k
            ]
            numbers = [str(j) if pipeline == k else f"{pipeline}.{j}" for pipeline in mine for j in range(2)]
            order = " ".join(f"{kind}{number}" for kind in "FB" for number in numbers)
            is_dead = (k, i) in dead
            workers.append(Worker(k, i, None if is_dead else order, failed=True if is_dead else None))
    return Plan(
        planner=Planner("by hand", "1", {}),
        templates=(Template("t", cut, tuple(Link() for _ in range(stages - 1))),),
        pipelines=tuple(Pipeline("t", 2) for _ in range(dp)),
        optimizer=optimizer,  # type: ignore[arg-type]
        workers=tuple(workers),
    )


class Small:
    """Plans small_plan anew, without moving anybody."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __call__(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions = HEALTHY) -> Replanned:
        depth, dp = len(self.plan.templates[0].stages), len(self.plan.pipelines)
        seats = with_newcomers(crew, [(worker.pipeline, worker.stage) for worker in self.plan.workers])
        failed = frozenset((k, i) for k in range(dp) for i in range(depth)).difference(seats)
        for i in range(depth):
            if all((k, i) in failed for k in range(dp)):
                raise InfeasibleError(f"stage {i} has no live worker left")
        found = small_plan(depth, dp, self.plan.optimizer, failed)
        return Replanned(found, tuple((name, place) for place, name in seats.items()))


def nobody(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
    raise AssertionError("nothing is to be planned")


def story_of(plan: Plan, *events: TraceEvent, iterations: int = 5, costs: SwitchCosts = COSTS) -> SimulatedRun:
    return simulate_story(plan, Trace(events), iterations, Small(plan), costs)


def at(iteration: int, kind: str, worker: str | None = None, **more: object) -> TraceEvent:
    return TraceEvent(kind, iteration=iteration, worker=worker, **more)  # type: ignore[arg-type]


def said(story: SimulatedRun, event: str) -> list[tuple[float, int]]:
    """When something was announced, and with which iteration."""
    found = [(at_s, one.iteration) for at_s, one in story.announced if one.event == event]
    return [(at_s, -1 if iteration is None else iteration) for at_s, iteration in found]


def counted_once(story: SimulatedRun) -> bool:
    """Whether every committed iteration has every micro-batch exactly once at every stage, in its last try."""
    restarts_s = [at_s for at_s, _ in said(story, "epoch")]
    for iteration, committed_s in enumerate(story.committed_s):
        since_s = max(at_s for at_s in restarts_s if at_s < committed_s)
        done: Counter[tuple[int, str]] = Counter()
        for span in story.timeline.spans:
            if span.iteration == iteration and since_s <= span.start_s and span.op[0] in "FB":
                pipeline, stage = place_of(span.worker)
                number = span.op[1:] if "." in span.op else f"{pipeline}.{span.op[1:]}"
                done[stage, span.op[0] + number] += 1
        plan = story.plans[0]
        wanted = len(plan.templates[0].stages) * plan.total_microbatches() * 2
        if len(done) != wanted or set(done.values()) != {1}:
            return False
    return True


@settings(max_examples=30, deadline=None)
@given(plans(max_pp=3, max_microbatches=3), st.integers(1, 4))
def test_without_events_a_story_is_the_simulation_repeated(plan: Plan, iterations: int) -> None:
    """Nothing happens: the spans are those of Simulation.repeated, whatever the optimizer."""
    story = simulate_story(plan, Trace(()), iterations, nobody)

    def key(span: Span) -> tuple[object, ...]:
        return (span.iteration, span.worker, round(span.start_s, 6), span.op)

    repeated = sorted(simulate(plan).repeated(iterations).spans, key=key)
    for ours, theirs in zip(sorted(story.timeline.spans, key=key), repeated, strict=True):
        assert (ours.worker, ours.op, ours.iteration) == (theirs.worker, theirs.op, theirs.iteration)
        assert ours.start_s == pytest.approx(theirs.start_s, rel=1e-9, abs=1e-9)
        assert ours.end_s == pytest.approx(theirs.end_s, rel=1e-9, abs=1e-9)
    assert (story.exit_code, len(story.committed_s), story.lost_s, story.timeline.events) == (0, iterations, 0, ())


@pytest.mark.parametrize("optimizer", ["synchronous", "staggered"])
def test_a_failure_cuts_the_iteration_and_redoes_it(optimizer: str) -> None:
    """A worker dies in the middle of its order; nobody works from then until the new epoch has formed."""
    plan = small_plan(optimizer=optimizer)
    story = story_of(plan, at(1, "fail", "1/0"))
    (failed_s, iteration), *more = said(story, "failure")
    assert (iteration, more, story.exit_code, len(story.committed_s)) == (1, [], 0, 5)
    dead = [span for span in story.timeline.spans if span.worker == "1/0"]
    assert [span.op for span in dead if span.iteration == 1] == ["F0", "F1"]  # half of its four operations
    assert all(span.end_s <= failed_s for span in dead)
    assert not [s for s in story.timeline.spans if failed_s < s.end_s and s.start_s < failed_s + COSTS.regroup_s]
    redone = [span for span in story.timeline.spans if span.iteration == 1 and span.start_s >= failed_s]
    assert min(span.start_s for span in redone) == failed_s + COSTS.regroup_s
    assert counted_once(story)
    assert [event.kind for event in story.timeline.events] == ["failure", "epoch"]
    assert story.lost_s > COSTS.regroup_s


def test_a_death_is_at_the_operation_in_the_middle() -> None:
    """The worker has sent what it had done, and waits for the message of its next operation before it dies."""
    plan = small_plan()
    story = story_of(plan, at(0, "fail", "0/0"), iterations=1)
    whole = [span for span in simulate(plan).timeline.spans if span.worker == "0/0"]
    assert said(story, "failure")[0][0] == whole[2].start_s


def test_a_stopped_worker_is_noticed_after_the_heartbeat_limit() -> None:
    """A stop leaves the others to what they can do without it, until the limit has passed."""
    story = story_of(small_plan(), at(1, "stop", "1/1"))
    kinds = {event.kind: event for event in story.timeline.events}
    assert kinds["failure"].time_s - kinds["stop"].time_s == pytest.approx(2.0)
    assert kinds["stop"].worker == kinds["failure"].worker == "1/1"
    late = [s for s in story.timeline.spans if kinds["stop"].time_s < s.end_s <= kinds["failure"].time_s]
    assert {span.worker for span in late} == {"0/1"}
    assert counted_once(story)


def test_a_stopped_worker_comes_back_as_a_newcomer() -> None:
    """With the iteration that `recover` names it says hello, and has a place from the next one on."""
    story = story_of(small_plan(), at(1, "stop", "1/1"), at(3, "recover", "1/1"), iterations=6)
    assert said(story, "join") == [(said(story, "epoch")[-1][0], 4)]
    assert {span.iteration for span in story.timeline.spans if span.worker == "1/1"} == {0, 1, 4, 5}


@pytest.mark.parametrize("optimizer", ["synchronous", "staggered"])
def test_a_replacement_takes_part_from_its_iteration_on(optimizer: str) -> None:
    """The epoch before ends with the commit of the iteration before; nothing is redone for a newcomer."""
    story = story_of(small_plan(optimizer=optimizer), at(1, "fail", "0/1"), at(4, "join", "0/1"), iterations=6)
    assert [iteration for _, iteration in said(story, "epoch")] == [0, 1, 4]
    assert {span.iteration for span in story.timeline.spans if span.worker == "0/1"} == {0, 1, 4, 5}
    assert counted_once(story)


def test_copies_take_their_time() -> None:
    """A newcomer's state is sent before training goes on, at the network's bandwidth."""
    events = (at(1, "fail", "0/1"), at(4, "join", "0/1"))
    costs = replace(COSTS, state_bytes=(10.0, 30.0), bandwidth_bytes_per_s=10.0)
    quick = story_of(small_plan(), *events)
    assert story_of(small_plan(), *events, costs=costs).total_s == pytest.approx(quick.total_s + 3.0)


def test_a_slow_worker_is_slow_until_it_recovers() -> None:
    """Operations of a slowed worker take longer from its iteration on, and no longer."""
    story = story_of(small_plan(), at(1, "slow_compute", "0/1", factor=2.0), at(3, "recover", "0/1"))
    took_s = {
        s.iteration: round(s.end_s - s.start_s, 9) for s in story.timeline.spans if (s.worker, s.op) == ("0/1", "F0")
    }
    assert took_s == {0: 1.0, 1: 2.0, 2: 2.0, 3: 1.0, 4: 1.0}
    assert [(event.kind, event.worker) for event in story.timeline.events] == [
        ("slow_compute", "0/1"),
        ("recover", "0/1"),
    ]


def test_a_slow_link_delays_its_hops_both_ways() -> None:
    """The messages between two workers take longer, those of the other pipeline do not."""
    slow = TraceEvent("slow_link", iteration=1, link="0/0-0/1", delay_s=5.0)
    story = story_of(small_plan(), slow, iterations=2)
    start_s = {(s.worker, s.op): s.start_s - story.committed_s[0] - 0.25 for s in story.timeline.spans if s.iteration}
    assert start_s["1/1", "F0"] == pytest.approx(1.0)
    assert start_s["0/1", "F0"] == pytest.approx(6.0)
    assert start_s["0/0", "B0"] == pytest.approx(start_s["0/1", "B0"] + 2.0 + 5.0)


def test_two_deaths_at_once() -> None:
    """Alike workers of unlike stages die in one iteration: each is redone for, and nothing is lost."""
    story = story_of(small_plan(3), at(2, "fail", "0/0"), at(2, "fail", "1/1"))
    assert len(said(story, "failure")) == 2
    assert (story.exit_code, len(story.committed_s)) == (0, 5)
    assert counted_once(story)


def test_the_last_peer_ends_the_story() -> None:
    """Without the last worker of a stage the job ends with exit code 5, with what was committed till then."""
    story = story_of(small_plan(), at(1, "fail", "0/1"), at(3, "fail", "1/1"))
    assert (story.exit_code, len(story.committed_s)) == (5, 3)
    assert story.reason == "nobody is left who holds layer 1"
    assert story.timeline.events[-1].kind == "end"
    assert story.total_s == max(span.end_s for span in story.timeline.spans) == story.timeline.events[-1].time_s


def test_times_instead_of_iterations() -> None:
    """A death, a nap too short to be missed, and a replacement, at times after the start."""
    plan = small_plan()
    nap = story_of(plan, TraceEvent("stop", time_s=1.5, worker="0/0"), TraceEvent("recover", time_s=3.0, worker="0/0"))
    assert said(nap, "failure") == []
    assert nap.total_s == pytest.approx(story_of(plan).total_s + 1.5)
    second = next(span for span in nap.timeline.spans if (span.worker, span.op) == ("0/0", "F1"))
    assert (second.start_s, second.end_s) == (1.0, 3.5)
    story = story_of(
        plan, TraceEvent("fail", time_s=1.5, worker="0/0"), TraceEvent("join", time_s=1.5, worker="0/0"), iterations=3
    )
    assert said(story, "failure") == [(1.5, 0)]
    assert len(story.committed_s) == 3
    assert counted_once(story)


def test_jitter_is_the_same_for_the_same_seed() -> None:
    """Equal seeds give equal stories; the first iteration has the jitter that `simulate` gives."""
    plan, trace = small_plan(), Trace((at(1, "fail", "0/1"),))
    one, other = (simulate_story(plan, trace, 4, Small(plan), COSTS, 0.2, 7) for _ in range(2))
    assert one.timeline == other.timeline
    first = [span for span in one.timeline.spans if span.iteration == 0]
    assert first == list(simulate(plan, 0.2, 7).timeline.spans)


@st.composite
def traces(draw: st.DrawFn, stages: int, dp: int, iterations: int) -> Trace:
    """A random trace that can happen: who is gone joins again, who is there fails, stops or slows down."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    names = [name_of((k, i)) for k in range(dp) for i in range(stages)]
    gone: dict[str, TraceEvent] = {}
    events = []
    for number in sorted(chance.choices(range(iterations), k=chance.randrange(6))):
        name = chance.choice(names)
        if name not in gone:
            kind = chance.choice(["fail", "stop", "slow_compute"])
            event = at(number, kind, name, factor=2.0 if kind == "slow_compute" else None)
            if kind != "slow_compute":
                gone[name] = event
        elif gone[name].iteration == number:
            continue
        else:
            event = at(number, "recover" if gone.pop(name).kind == "stop" and chance.random() < 0.5 else "join", name)
        events.append(event)
    return Trace(tuple(events))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(["synchronous", "staggered"]), st.integers(1, 3), st.integers(2, 3))
def test_random_stories_end_and_lose_nothing(data: st.DataObject, optimizer: str, stages: int, dp: int) -> None:
    """No trace lets a story wait forever; each committed iteration is whole, and none beats the plan's bound."""
    plan = small_plan(stages, dp, optimizer)
    trace = data.draw(traces(stages, dp, 6))
    story = simulate_story(plan, trace, 6, Small(plan), COSTS)
    assert story.exit_code in (0, 5)
    assert (len(story.committed_s) == 6) == (story.exit_code == 0)
    assert counted_once(story)
    bound_s = lower_bound(problem_of(plan)).value_s
    assert story.total_s >= bound_s * len(story.committed_s) * (1 - 1e-9)
    for worker in {span.worker for span in story.timeline.spans}:
        own = sorted((s for s in story.timeline.spans if s.worker == worker), key=lambda s: (s.start_s, s.end_s))
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(own))
    story.timeline.validate()
    assert story.report(bound_s).lower_bound_s <= story.iteration_time_s


BAD = [
    (at(0, "fail", "2/0"), "/events/0/worker", "the plan has no worker 2/0"),
    (TraceEvent("fail", iteration=0, node="a"), "/events/0/node", "a plan does not say which workers run on a node"),
    (TraceEvent("stop", iteration=0, link="0/0-0/1"), "/events/0/link", "stop does not happen to a link"),
    (TraceEvent("slow_link", iteration=0, link="0/0-0/0", delay_s=1.0), "/events/0/link", "there is no link 0/0-0/0"),
    (at(0, "join", "0/0"), "/events/0", "worker 0/0 lives, nobody can join in its place"),
]


@pytest.mark.parametrize(("event", "where", "what"), BAD, ids=[what for _, _, what in BAD])
def test_traces_that_cannot_happen_are_refused(event: TraceEvent, where: str, what: str) -> None:
    """The error names the event, and says what to do."""
    with pytest.raises(InvalidInputError) as refused:
        check_trace(small_plan(), Trace((event,)))
    assert (refused.value.where, refused.value.what) == (where, what)
    assert refused.value.fix


def test_the_dead_do_nothing() -> None:
    """Of a dead worker nothing but a join is heard, and not in the iteration that it dies in."""
    dies = at(1, "fail", "0/0")
    for later, where in ((at(2, "fail", "0/0"), "/events/1"), (at(1, "join", "0/0"), "/events/1/iteration")):
        with pytest.raises(InvalidInputError) as refused:
            check_trace(small_plan(), Trace((dies, later)))
        assert refused.value.where == where
    check_trace(small_plan(), Trace((dies, at(2, "join", "0/0"), at(2, "fail", "0/0"))))
    with pytest.raises(InvalidInputError, match="is gone by then"):
        check_trace(small_plan(), Trace((dies, at(2, "recover", "0/0"))))
    check_trace(small_plan(dead=frozenset({(0, 0)})), Trace((at(2, "join", "0/0"),)))


def test_processes_of_a_trace() -> None:
    """Each join and each return is a process of its own, with what happens to it."""
    events = (at(0, "slow_compute", "0/0", factor=2.0), at(1, "stop", "0/0"), at(3, "recover", "0/0"))
    cast = cast_of(small_plan(1, 2), Trace((*events, at(4, "fail", "0/0"), at(6, "join", "0/0"))), 2.0)
    first, _, back, replacement = cast
    assert [one.name for one in cast] == ["0/0", "1/0", "0/0", "0/0"]
    assert (first.slowdown(0, 0.0), back.slowdown(4, 0.0)) == (2.0, 1.0)
    assert back.returns == (first, 3)
    assert math.isinf(back.arrives_s)
    assert (replacement.not_before, replacement.arrives_s) == (6, 0.0)


def test_a_dead_worker_blocks_those_who_wait_for_it() -> None:
    """On the simulator's clock a death leaves the others without their messages, but is no error."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1)
    found = execute(lower(plan), {1: (1.5, math.inf)})
    assert [span.op for span in found.spans[0]] == ["F0"]
    assert found.spans[1][-1].end_s == found.reduced_s[0] == found.done_s[1] == math.inf
    assert execute(lower(plan)).done_s[0] == evaluate(plan).makespan_s
    paused = execute(lower(plan), {1: (1.5, 4.0)})
    assert paused.done_s[0] == evaluate(plan).makespan_s + 2.5
