"""Stories of plans whose workers hold several virtual stages, in which a broken iteration goes on where it was."""

import random
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import mean

from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.explain.resumed import explain_resumption
from rtk.planners.resumption.plan import plan_rest
from rtk.planners.scheduling.evaluate import evaluate
from rtk.runners.resumed import columns_of_resumption, timeline_of_resumption
from rtk.runners.simulator import is_computed
from rtk.runners.virtual.job import SimulatedRun, simulate_story
from rtk.schemas.check_rest import check_resumption
from rtk.schemas.conditions import HEALTHY, Conditions
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.plan import Layers, Link, Optimizer, Place, Plan, Stage, Template
from rtk.schemas.protocols import Hand, Replanned, Resume
from rtk.schemas.resumption import Resumption
from rtk.schemas.trace import Trace, TraceEvent

from ...placed_plans import folded, looped
from ..newcomers import with_newcomers
from ..placed import placed_plan
from .test_resumed_stories import COSTS, ITERATIONS, assert_one_thing_at_a_time, is_whole, went_on

PLACEMENTS = [folded(2, 2), looped(2, 2), folded(3, 2), looped(2, 3), ((0, 4), (1, 3), (2,)), ((0, 1), (2, 3))]


@dataclass(frozen=True)
class PlacedJob:
    """A job of pipelines with a random placement, any costs and delays, whose dead workers' chunks go to peers in turn,
    told with what is left planned, and with iterations done anew."""

    seed: int

    @cached_property
    def plan(self) -> Plan:
        """With all workers."""
        return self.without(frozenset())

    @cached_property
    def template(self) -> Template:
        """Of each pipeline."""
        chance = random.Random(self.seed)
        placement = chance.choice(PLACEMENTS)
        columns = {v: c for c, held in enumerate(placement) for v in held}
        depth = len(columns) + chance.randint(0, 3)
        cuts = [0, *sorted(chance.sample(range(1, depth), len(columns) - 1)), depth]

        def stage(layers: Layers) -> Stage:
            times_s = [chance.choice([0.5, 1.0, chance.uniform(0.1, 2.0)]) for _ in range(3)]
            return Stage(
                layers,
                *times_s,
                optimizer_s=chance.choice([0.0, 0.25]),
                allreduce_s=chance.choice([0.0, 1.0]),
                activation_bytes=1.0,
                weight_stash_bytes=0.5,
            )

        delay_s = chance.choice([0.0, 0.3, 1.0])
        links = tuple(Link(0.0 if columns[v] == columns[v + 1] else delay_s) for v in range(len(columns) - 1))
        return Template("v", tuple(map(stage, pairwise(cuts))), links, placement)

    def without(self, dead: frozenset[Place]) -> Plan:
        """The plan of those who live."""
        chance = random.Random(self.seed + 1)
        shares = (chance.randint(1, 4),) * chance.randint(2, 3)
        optimizers: list[Optimizer] = ["synchronous", "staggered"]
        kinds, optimizer = chance.choice(["FIW", "FB"]), chance.choice(optimizers)
        plan = placed_plan(self.template.columns, self.template.stages[-1].layers[1], shares, kinds, dead)
        return replace(plan, templates=(self.template,), optimizer=optimizer)

    def replan(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions = HEALTHY) -> Replanned:
        """Nobody moves; newcomers take the places of the dead."""
        seats = with_newcomers(crew, [worker.place for worker in plan.workers])
        dead = frozenset(worker.place for worker in plan.workers).difference(seats)
        return Replanned(self.without(dead), tuple((name, place) for place, name in seats.items()))

    def told(self, trace: Trace, resume: Resume | None = plan_rest) -> SimulatedRun:
        """What becomes of it."""
        return simulate_story(self.plan, trace, ITERATIONS, self.replan, COSTS, resume=resume)

    def death(self) -> Trace:
        """Any worker dies at any moment."""
        chance = random.Random(self.seed + 2)
        time_s = chance.uniform(0, ITERATIONS * evaluate(self.plan).makespan_s)
        return Trace((TraceEvent("fail", time_s=time_s, worker=chance.choice(self.plan.workers).name),))

    def troubles(self) -> Trace:
        """Workers die, hang, come back and slow down."""
        chance, now_s, gone = random.Random(self.seed + 3), 0.0, set[str]()
        events = []
        for _ in range(chance.randint(2, 5)):
            now_s += chance.uniform(0, evaluate(self.plan).makespan_s)
            name = chance.choice(self.plan.workers).name
            if name in gone:
                events.append(TraceEvent("join", time_s=now_s, worker=name))
                gone.discard(name)
            elif chance.random() < 0.3:
                events.append(TraceEvent("slow_compute", time_s=now_s, worker=name, factor=2.0))
            else:
                events.append(TraceEvent(chance.choice(["fail", "stop"]), time_s=now_s, worker=name))  # type: ignore[arg-type]
                gone.add(name)
        return Trace(tuple(events))


def longest_s(*stories: SimulatedRun) -> float:
    """The longest operation or sum."""
    return max(span.end_s - span.start_s for story in stories for span in story.timeline.spans)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_a_death_at_any_moment_costs_no_more_than_done_anew(seed: int) -> None:
    """All is committed, later than done anew by no more than what was under way; what was left is a document that
    passes the checker, and is shown."""
    job = PlacedJob(seed)
    trace = job.death()
    story, anew = job.told(trace), job.told(trace, None)
    assert (story.exit_code, len(story.committed_s)) == (anew.exit_code, len(anew.committed_s)) == (0, ITERATIONS)
    assert story.total_s <= anew.total_s + longest_s(story, anew) + 1e-9
    assert_one_thing_at_a_time(story)
    for one in story.resumptions:
        assert check_resumption(one) == []
        assert parse_document(canonical(one), Resumption, "r.json") == one
        assert b'"format_version": "2.0"' in canonical(one)
        spans = timeline_of_resumption(one).spans
        left = sum(len(one.rest.operations(n, one.plan)) for n in range(len(one.rest.workers)))
        assert sum(map(is_computed, spans)) >= left
        assert len(columns_of_resumption(one).is_fed) == len(spans)
        assert explain_resumption(one).left == left


def test_on_average_it_is_much_earlier_with_several_stages() -> None:
    """Over forty deaths it is earlier by a quarter of an iteration or more."""
    gains, resumed = [], 0
    for seed in range(40):
        job = PlacedJob(seed)
        trace = job.death()
        story, anew = job.told(trace), job.told(trace, None)
        gains.append((anew.total_s - story.total_s) / evaluate(job.plan).iteration_time_s)
        resumed += bool(went_on(story))
    assert mean(gains) > 0.25
    assert resumed > 30


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_many_troubles_lose_nothing_of_several_stages(seed: int) -> None:
    """Deaths, hangs, newcomers and slow workers at any moments: every layer sees every micro-batch once."""
    job = PlacedJob(seed)
    story = job.told(job.troubles())
    assert is_whole(story), story.reason
    assert_one_thing_at_a_time(story)
