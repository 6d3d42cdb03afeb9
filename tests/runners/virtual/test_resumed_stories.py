"""Stories in which the iteration that loses workers goes on where it was: nothing is lost, and nothing done twice."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import mean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.recovery.answers import PolicyName, answers_for
from rtk.planners.resumption.plan import plan_rest
from rtk.planners.scheduling.assemble import with_prediction
from rtk.runners.program import lower, lower_rest
from rtk.runners.resilience.announcements import IterationRedone, IterationResumed
from rtk.runners.simulator import execute, is_computed
from rtk.runners.virtual.job import SimulatedRun, SwitchCosts, simulate_story
from rtk.runners.virtual.partial_work import NOTHING, worked
from rtk.schemas.conditions import HEALTHY, Conditions
from rtk.schemas.documents import canonical
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.orders import parse_order
from rtk.schemas.plan import Link, Pipeline, Plan, Planner, Stage, Template, Worker
from rtk.schemas.protocols import Answers, Hand, Replanned, Resume
from rtk.schemas.resumption import Rest
from rtk.schemas.timeline import Span
from rtk.schemas.trace import EventKind, Trace, TraceEvent

from ...strategies import hand_plan
from ..test_unlike_runs import unlike
from .test_job import Small, small_plan
from .test_links import LATE, staying

COSTS = SwitchCosts(detection_s=0.1, heartbeat_limit_s=20.0, regroup_s=0.3)
ITERATIONS = 3


def grid(chance: random.Random) -> Plan:
    """A plan of alike pipelines with any costs, delays and slow workers; GPipe's orders or 1F1B's, split or not."""
    depth, dp, microbatches = chance.randint(1, 4), chance.randint(2, 4), chance.randint(1, 5)

    def seconds() -> float:
        return chance.choice([0.5, 1.0, 2.0, chance.uniform(0.1, 3.0)])

    stages = tuple(
        Stage(
            (2 * i, 2 * i + 2),
            seconds(),
            seconds(),
            seconds(),
            optimizer_s=chance.choice([0.0, 0.25, 1.0]),
            allreduce_s=chance.choice([0.0, 1.0, 3.0]),
            activation_bytes=1.0,
            weight_stash_bytes=0.5,
        )
        for i in range(depth)
    )
    split = chance.choice([[False] * depth, [True] * depth, [chance.random() < 0.5 for _ in range(depth)]])
    is_lean = chance.random() < 0.7
    orders = [order(i, depth, microbatches, split[i], is_lean) for i in range(depth)]
    links = tuple(Link(chance.choice([0.0, 0.0, 0.3, 1.0])) for _ in range(depth - 1))
    slowdowns = [chance.choice([None, None, None, 1.5]) for _ in range(dp * depth)]
    plan = Plan(
        planner=Planner("by hand", "1", {}),
        templates=(Template("t", stages, links),),
        pipelines=tuple(Pipeline("t", microbatches) for _ in range(dp)),
        optimizer=chance.choice(["synchronous", "staggered"]),
        workers=tuple(Worker(k, i, orders[i], slowdowns[k * depth + i]) for k in range(dp) for i in range(depth)),
    )
    return with_prediction(plan)


def order(stage: int, depth: int, microbatches: int, is_split: bool, is_lean: bool) -> str:
    """That of a stage's workers: 1F1B if lean, else GPipe."""
    ahead = min(microbatches, depth - stage) if is_lean else microbatches
    tokens = [f"F{j}" for j in range(ahead)]
    for j in range(microbatches):
        tokens += [f"I{j}", f"W{j}"] if is_split else [f"B{j}"]
        tokens += [f"F{ahead + j}"] if ahead + j < microbatches else []
    return " ".join(tokens)


@dataclass(frozen=True)
class Told:
    """A trace told twice, each once it is asked for: with what is left planned, and with iterations done anew."""

    plan: Plan
    trace: Trace
    policy: PolicyName
    resume: Resume = plan_rest

    @cached_property
    def resumed(self) -> SimulatedRun:
        """Told with what is left planned."""
        return self._told(self.resume)

    @cached_property
    def redone(self) -> SimulatedRun:
        """Told with iterations done anew."""
        return self._told(None)

    def _told(self, resume: Resume | None) -> SimulatedRun:
        return simulate_story(self.plan, self.trace, ITERATIONS, self._answers, COSTS, resume=resume)

    @cached_property
    def _answers(self) -> Answers:
        return answers_for(self.plan, self.policy, None, 100)

    @property
    def earlier(self) -> float:
        """By how many iterations the resumed one ends earlier."""
        assert self.plan.prediction is not None
        return (self.redone.total_s - self.resumed.total_s) / self.plan.prediction.iteration_time_s

    @property
    def longest_s(self) -> float:
        """The longest operation or sum of both."""
        return max(span.end_s - span.start_s for one in (self.resumed, self.redone) for span in one.timeline.spans)


def death(plan: Plan, chance: random.Random) -> Trace:
    """Any worker dies at any moment of the job."""
    assert plan.prediction is not None
    worker = chance.choice(plan.live_workers()).name
    time_s = chance.uniform(0, ITERATIONS * plan.prediction.makespan_s)
    return Trace((TraceEvent("fail", time_s=time_s, worker=worker),))


def troubles(plan: Plan, chance: random.Random) -> Trace:
    """Workers die, hang, come back and slow down, and links slow down, at any moment."""
    assert plan.prediction is not None
    names = [worker.name for worker in plan.live_workers()]
    events, gone, now_s = [], set(), 0.0
    for _ in range(chance.randint(1, 5)):
        now_s += chance.uniform(0, plan.prediction.makespan_s)
        name = chance.choice(names)
        kinds: list[EventKind] = ["fail", "fail", "stop", "slow_compute", "slow_link"]
        kind: EventKind = "join" if name in gone else chance.choice(kinds)
        if kind in ("fail", "stop"):
            gone.add(name)
        gone.discard(name if kind == "join" else "")
        pipeline, stage = name.split("/")
        link = f"{name}-{pipeline}/{int(stage) + 1}"
        if kind == "slow_link" and link.split("-")[1] in names:
            events.append(TraceEvent(kind, time_s=now_s, link=link, delay_s=1.5))
        elif kind != "slow_link":
            events.append(TraceEvent(kind, time_s=now_s, worker=name, factor=2.0 if kind == "slow_compute" else None))
    return Trace(tuple(events))


def went_on(story: SimulatedRun) -> list[IterationResumed]:
    """The iterations that went on where they were."""
    return [one for _, one in story.announced if isinstance(one, IterationResumed)]


def is_whole(story: SimulatedRun) -> bool:
    """Whether it came to its end, or lost the last holder of some layers; the rules have counted every micro-batch."""
    if story.exit_code == 0:
        return len(story.committed_s) == ITERATIONS
    return "is left who holds" in story.reason or "there is no plan without" in story.reason


def assert_one_thing_at_a_time(story: SimulatedRun) -> None:
    """No worker has two spans at once."""
    story.timeline.validate()
    for worker in {span.worker for span in story.timeline.spans}:
        own = sorted((s for s in story.timeline.spans if s.worker == worker), key=lambda s: (s.start_s, s.end_s))
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(own))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([PolicyName.JOINT, PolicyName.SLIPSTREAM]))
def test_whoever_dies_and_whenever_it_is_no_later_than_done_anew(seed: int, policy: PolicyName) -> None:
    """One death at any moment: all is committed, later than done anew by no more than the operation under way."""
    chance = random.Random(seed)
    plan = grid(chance)
    both = Told(plan, death(plan, chance), policy)
    assert (both.resumed.exit_code, len(both.resumed.committed_s)) == (0, ITERATIONS)
    assert both.resumed.total_s <= both.redone.total_s + both.longest_s + 1e-9
    assert_one_thing_at_a_time(both.resumed)


def test_on_average_it_is_much_earlier() -> None:
    """Over forty deaths it is earlier by a third of an iteration or more; few are worth doing anew."""
    found = []
    for seed in range(40):
        chance = random.Random(seed)
        plan = grid(chance)
        found.append(Told(plan, death(plan, chance), PolicyName.SLIPSTREAM))
    assert mean(one.earlier for one in found) > 0.3
    resumed = sum(bool(went_on(one.resumed)) for one in found)
    anew = sum(isinstance(what, IterationRedone) for one in found for _, what in one.resumed.announced)
    assert resumed > 30 > 5 > anew


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_many_troubles_lose_nothing(seed: int) -> None:
    """Deaths, hangs, newcomers, slow workers and links at any moments: every layer sees every micro-batch once."""
    chance = random.Random(seed)
    plan = grid(chance)
    story = Told(plan, troubles(plan, chance), PolicyName.JOINT).resumed
    assert is_whole(story), story.reason
    assert_one_thing_at_a_time(story)


@pytest.mark.parametrize("optimizer", ["synchronous", "staggered"])
def test_pipelines_of_unlike_cuts_go_on(optimizer: str) -> None:
    """Nodes die at any moment, pipelines are formed anew, layers change hands: nothing is lost, and much is kept."""
    gains = []
    for seed in range(12):
        chance = random.Random(seed)
        nodes = chance.choice([5, 6, 7, 8])
        plan = unlike(nodes, 1, 2, chance.randint(6, 9))
        plan = with_prediction(replace(plan, optimizer=optimizer, prediction=None))  # type: ignore[arg-type]
        both = Told(plan, death(plan, chance), PolicyName.OOBLECK)
        assert is_whole(both.resumed), both.resumed.reason
        gains.append(both.earlier)
    assert mean(gains) > 0.2


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_what_is_left_takes_as_long_as_its_planner_says(seed: int, is_unlike: bool) -> None:
    """Sums and steps included, where nothing else happens."""
    chance = random.Random(seed)
    plan = unlike(chance.choice([5, 7]), 1, 2, 7) if is_unlike else grid(chance)
    plan = with_prediction(replace(plan, prediction=None))
    kept: list[tuple[Plan, Rest]] = []
    policy = PolicyName.OOBLECK if is_unlike else PolicyName.JOINT
    assert is_whole(Told(plan, death(plan, chance), policy, recording(kept)).resumed)
    for following, rest in kept:
        execution = execute(lower_rest(following, rest))
        steps_s = max(following.stage_of(worker).optimizer_s for worker in following.live_workers())
        assert rest.prediction is not None
        assert max(execution.reduced_s) + steps_s == pytest.approx(rest.prediction.makespan_s)


def recording(kept: list[tuple[Plan, Rest]]) -> Resume:
    """Plans what is left, and keeps it."""

    def resume(plan: Plan, seats: Any, iteration: int, standings: Any, conditions: Any) -> Rest:
        found = plan_rest(plan, seats, iteration, standings, conditions)
        kept.append((plan, found))
        return found

    return resume


def test_the_same_story_is_the_same_to_the_last_byte() -> None:
    """Equal seeds give equal stories, with jitter too."""
    plan = small_plan(3, 3)
    trace = Trace((TraceEvent("fail", time_s=20.4, worker="1/1"), TraceEvent("fail", time_s=24.0, worker="2/2")))
    one, other = (simulate_story(plan, trace, 4, Small(plan), COSTS, 0.2, 7, resume=plan_rest) for _ in range(2))
    assert canonical(one.timeline) == canonical(other.timeline)
    assert went_on(one)


# One after the other, by hand


def story_of(
    plan: Plan, *events: TraceEvent, costs: SwitchCosts = COSTS, resume: Resume | None = plan_rest
) -> SimulatedRun:
    """A job in which workers stay where they are; `resume` None: iterations are done anew."""
    return simulate_story(plan, Trace(events), ITERATIONS, SameStages(plan), costs, resume=resume)


class SameStages(Small):
    """Plans small_plan anew, with the stages that the job's plan has."""

    def __call__(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions = HEALTHY) -> Replanned:
        found = super().__call__(plan, crew, conditions)
        return replace(found, plan=replace(found.plan, templates=self.plan.templates))


def fails(worker: str, time_s: float) -> TraceEvent:
    """A worker dies."""
    return TraceEvent("fail", time_s=time_s, worker=worker)


def of_iteration(story: SimulatedRun, iteration: int, keep: Callable[[Span], bool] = lambda span: True) -> list[Span]:
    """The spans of an iteration that are to be kept."""
    return [span for span in story.timeline.spans if span.iteration == iteration and keep(span)]


def test_who_is_left_finishes_the_operation_that_it_is_in() -> None:
    """A death between the others' operations: these end as they would have, count, and are not run again."""
    story = story_of(small_plan(), fails("1/1", 2.5))
    (resumed,) = went_on(story)
    assert [(span.op, span.start_s, span.end_s) for span in of_iteration(story, 0) if 2.0 <= span.start_s < 3.0] == [
        ("F1", 2.0, 3.0),  # of 0/1; 1/1 dies in its own one
        ("F1", 2.0, 2.5),
    ]
    done = [(span.worker, span.op) for span in of_iteration(story, 0, is_computed) if span.worker != "1/1"]
    assert len(done) == len(set(done)) == resumed.kept + resumed.left
    assert story.committed_s[0] < story_of(small_plan(), fails("1/1", 2.5), resume=None).committed_s[0]


def test_a_death_in_the_sums_loses_nothing_that_was_summed() -> None:
    """The last layer's sum has ended when a worker of it dies: only the others' layers are summed then."""
    plan = with_sums(small_plan(2, 2), 3.0, 3.0)
    whole = simulate_story(plan, Trace(()), 1, Small(plan), COSTS)
    sums = sorted((span.start_s, span.end_s, span.worker) for span in whole.timeline.spans if span.op == "allreduce")
    assert [worker[-1] for _, _, worker in sums] == ["1", "1", "0", "0"]
    (_, end_s, _), (start_s, _, _) = sums[0], sums[2]
    assert end_s > start_s  # both under way
    story = story_of(plan, fails("1/1", end_s + 0.01))
    (resumed,) = went_on(story)
    assert (resumed.sealed, resumed.left, resumed.kept) == ("layer 1", 0, 16)
    assert [span.worker for span in of_iteration(story, 0, lambda s: s.op == "allreduce") if span.start_s > end_s] == [
        "0/0",
        "1/0",
    ]


def with_sums(plan: Plan, *seconds: float) -> Plan:
    """The plan with sums of so many seconds, by stage."""
    (template,) = plan.templates
    stages = tuple(replace(stage, allreduce_s=s) for stage, s in zip(template.stages, seconds, strict=True))
    return replace(plan, templates=(replace(template, stages=stages),))


def test_a_second_death_amid_what_is_left() -> None:
    """Standings are taken anew, of what was kept and of what was done since."""
    story = story_of(small_plan(3, 3), fails("1/1", 5.5), fails("2/0", 7.7))
    first, second = went_on(story)
    assert (first.iteration, second.iteration) == (0, 0)
    assert second.kept > first.kept
    assert (story.exit_code, len(story.committed_s)) == (0, ITERATIONS)


def test_a_second_death_before_what_is_left_has_begun() -> None:
    """What was told is told again, though nobody has done anything since."""
    costs = replace(COSTS, regroup_s=5.0)
    story = story_of(small_plan(3, 3), fails("1/1", 5.5), fails("2/0", 7.7), costs=costs)
    assert len(went_on(story)) == 2
    alone = story_of(small_plan(3, 3), fails("1/1", 5.5), costs=costs)
    assert went_on(story)[1].kept <= went_on(alone)[0].kept
    assert len(story.committed_s) == ITERATIONS


def test_a_newcomer_takes_a_part_of_what_is_left() -> None:
    """It comes at the moment of the death, and runs some of it."""
    join = TraceEvent("join", time_s=5.5, worker="1/1")
    story = story_of(small_plan(3, 2), fails("1/1", 5.5), join)
    (resumed,) = went_on(story)
    assert resumed.left
    newcomer = [span for span in of_iteration(story, 0) if span.worker == "1/1" and span.start_s > 5.6]
    assert newcomer
    assert story.committed_s[0] <= story_of(small_plan(3, 2), fails("1/1", 5.5)).committed_s[0]


def test_what_a_staggered_stage_has_begun_of_the_next_iteration_is_done_again() -> None:
    """The rest is of the iteration that is not committed; the one after it begins anew."""
    plan = with_sums(small_plan(3, 2, "staggered"), 0.0, 0.0, 10.0)
    whole = simulate_story(plan, Trace(()), ITERATIONS, Small(plan), COSTS)
    ahead_s = min(span.start_s for span in of_iteration(whole, 1))
    assert ahead_s < whole.committed_s[0]
    story = story_of(plan, fails("1/0", (ahead_s + whole.committed_s[0]) / 2))
    (resumed,) = went_on(story)
    assert resumed.iteration == 0
    again = [(span.worker, span.op) for span in of_iteration(story, 1)]
    assert len(again) > len(set(again))
    assert len(story.committed_s) == ITERATIONS


def test_who_plans_too_long_holds_it_up() -> None:
    """Planning what is left takes its time, and connecting goes on meanwhile."""
    told_s, left_s = 2.6, 3.0
    slow, quick = (story_of(small_plan(), fails("1/1", 2.5), costs=replace(COSTS, plan_s=s)) for s in (1.0, 0.0))
    # The plan is made from when all are told, then what is left of it; connecting begins when all have left.
    assert slow.total_s - quick.total_s == pytest.approx((told_s + 2.0) - (left_s + COSTS.regroup_s))


def test_sums_that_are_copied_take_their_time() -> None:
    """A newcomer is sent the sum that it lacks."""
    plan = with_sums(small_plan(2, 2), 3.0, 3.0)
    events = (fails("1/1", 10.1), TraceEvent("join", time_s=10.3, worker="1/1"))
    costs = replace(COSTS, plan_s=0.5, state_bytes=(0.0, 0.0), bandwidth_bytes_per_s=1.0)
    plain = story_of(plan, *events, costs=replace(costs, gradient_bytes=(0.0, 0.0)))
    assert [one.copied for one in went_on(plain)] == [1]
    copied = story_of(plan, *events, costs=replace(costs, gradient_bytes=(0.0, 4.0)))
    assert copied.total_s == pytest.approx(plain.total_s + 4.0)


def test_a_smaller_log_leaves_more_to_do() -> None:
    """Messages that were not kept are computed again; without any log it is as done anew, or not much better."""
    plan = small_plan(4, 2)
    trace = Trace((fails("0/1", 6.2), fails("0/2", 6.2)))
    costs = replace(COSTS, output_bytes=(1.0,) * 4)
    left = []
    for limit_bytes in (None, 4.0, 2.0, 1.0):
        story = simulate_story(plan, trace, 2, Small(plan), costs, resume=plan_rest, log_memory_bytes=limit_bytes)
        assert len(story.committed_s) == 2
        left.append(sum(one.left for one in went_on(story)) or math.inf)
    assert left == sorted(left)
    assert left[0] < left[-1]
    with pytest.raises(InvalidInputError, match="how large the messages are"):
        simulate_story(plan, trace, 2, Small(plan), COSTS, resume=plan_rest, log_memory_bytes=4.0)


# What a worker has


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.0, 1.0))
def test_at_any_moment_what_workers_have_fits_together(seed: int, part: float) -> None:
    """No layer has a micro-batch twice, what is under way is not in a ledger, and at the end all sums have ended."""
    plan = grid(random.Random(seed))
    program = lower(plan)
    execution = execute(program)
    now_s = part * max(execution.reduced_s)
    found = [
        worked(NOTHING, program, execution, rank, 0.0, now_s, now_s).standing(worker.name, ((0, 1),), True)
        for rank, worker in enumerate(program.workers)
    ]
    for layer in range(plan.templates[0].stages[-1].layers[1]):
        numbers = [
            number
            for standing in found
            for entry in standing.ledger
            for number in entry.microbatches
            if entry.layers[0] <= layer < entry.layers[1]
        ]
        assert len(numbers) == len(set(numbers))
    for rank, worker in enumerate(program.workers):
        own = worked(NOTHING, program, execution, rank, 0.0, now_s, now_s)
        done = sum(span.end_s <= now_s for span in execution.spans[rank] if span.op not in ("allreduce", "step"))
        kinds = [one.kind for one in parse_order(worker.order or "", worker.pipeline)[:done]]
        whole = kinds.count("W") + kinds.count("B")
        assert len(own.stashes) == kinds.count("F") - whole
        assert all(len(numbers) == whole for numbers in own.ledger.values())
        end = worked(NOTHING, program, execution, rank)
        assert end.sealed == frozenset(range(*plan.stage_of(worker).layers))
        assert not end.standing(worker.name, None, True).ledger


@pytest.mark.parametrize("optimizer", ["synchronous", "staggered"])
def test_an_iteration_goes_on_over_a_detour(optimizer: str) -> None:
    """A link breaks: all live, and what they have done stays; only what was lost between the two is sent again."""
    plan = replace(hand_plan(LATE, 6), optimizer=optimizer)  # type: ignore[arg-type]
    trace = Trace((TraceEvent("fail", iteration=2, link="0/1-0/2"),))
    anew = simulate_story(plan, trace, 5, staying, COSTS)
    story = simulate_story(plan, trace, 5, staying, COSTS, resume=plan_rest)
    assert (story.exit_code, len(story.committed_s)) == (0, 5)
    (resumed,) = went_on(story)
    assert resumed.resent
    assert resumed.kept > 0
    assert story.total_s < anew.total_s
    assert_one_thing_at_a_time(story)
