"""What is left of interrupted iterations: as a simulation of the same loss has it, and never more than all."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.recovery.answers import PolicyName, answers_for
from rtk.planners.recovery.catalogue import policy
from rtk.planners.recovery.interruption import Resuming, Timetable
from rtk.planners.recovery.job import TrainingJob
from rtk.planners.resumption.plan import plan_rest
from rtk.planners.scheduling.assemble import with_prediction
from rtk.planners.shape import PlacementName, Shape
from rtk.runners.virtual.job import SwitchCosts, simulate_story
from rtk.schemas.check_rest import check_rest
from rtk.schemas.conditions import HEALTHY
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Place, Plan
from rtk.schemas.replay import Costs, Fleet, Moment, StateChange, TrainingState
from rtk.schemas.resumption import Standing
from rtk.schemas.trace import Trace, TraceEvent

from .stories import job, names, profile

COSTS = Costs(detection_s=0.5, planning_s=0.5, regrouping_s=2.0, restart_s=10.0, copy_bytes_per_s=1e6)


Chunks = tuple[PlacementName, int]
PLACEMENTS: list[Chunks] = [("plain", 1), ("v", 2), ("loop", 2)]


def chunked(pp: int, dp: int, microbatches: int, placement: Chunks, costs: Costs) -> TrainingJob:
    """Equal virtual stages of one layer each, by a placement; a node a worker."""
    name, chunks = placement
    shape = Shape(pp, dp, microbatches, placement=name, chunks=chunks)
    return TrainingJob(profile(*[1.0] * (pp * chunks)), shape, costs=costs)


def lost(asked: TrainingJob, done: float, node: int, name: str = "slipstream") -> tuple[TrainingState, StateChange]:
    """How the job stood, and the step when a node is lost with such a part of the iteration done."""
    found, everybody = policy(name, asked), names(asked.nodes)
    standing = found.begin(Fleet(everybody))
    left = tuple(one for one in everybody if one != f"n{node}")
    step, *_ = found.react(standing, Moment(100.0, Fleet(left), (f"n{node}",), failures=1, done=done))
    return standing, step


@settings(max_examples=24)
@given(
    st.integers(1, 3), st.integers(2, 4), st.integers(1, 5), st.integers(0, 63), st.data(),
    st.sampled_from(["slipstream", "rtk"]),
)  # fmt: skip
def test_what_is_left_is_a_part_and_costs_are_kept(
    pp: int, dp: int, microbatches: int, phase: int, data: st.DataObject, name: str
) -> None:
    """From nothing to all of the iteration; and all of it where that is asked for, or where nothing was done."""
    asked = job(pp, dp, microbatches, costs=COSTS)
    node = data.draw(st.integers(0, asked.nodes - 1))
    _, step = lost(asked, phase / 64, node, name)
    _, whole = lost(replace(asked, costs=replace(COSTS, redo_all=1)), phase / 64, node, name)
    assert 0 <= step.left <= 1
    assert whole.left == 1 and (step.left == 1 or phase)


def standings_of(plan: Plan, gone: Place, at: float, noticing: float) -> Mapping[Place, Standing]:
    """What the others have when one is lost."""
    timetable = Timetable(plan)
    at_s = at * timetable.makespan_s
    return timetable.reached({gone}, at_s, at_s + noticing * timetable.makespan_s)


@settings(max_examples=24)
@given(
    st.integers(1, 4), st.integers(2, 4), st.integers(1, 5), st.floats(0, 1), st.sampled_from([0.0, 0.2]), st.data(),
    st.sampled_from(["slipstream", "oobleck"]), st.sampled_from(PLACEMENTS),
)  # fmt: skip
def test_standings_can_be_gone_on_from(
    pp: int, dp: int, microbatches: int, at: float, noticing: float, data: st.DataObject, name: str, placement: Chunks
) -> None:
    """The independent checker accepts what is planned from what the others have by the plan in force."""
    asked = chunked(pp, dp, microbatches, placement, COSTS)
    found = policy(name, asked)
    standing = found.begin(Fleet(names(asked.nodes)))
    before = found.plan(standing)
    assert before is not None
    gone = data.draw(st.sampled_from(before.live_workers())).place
    standings = standings_of(before, gone, at, noticing)
    seats = found.seats(standing)
    node = seats[gone]
    fleet = Fleet(tuple(one for one in names(asked.nodes) if one != node))
    step, *_ = found.react(standing, Moment(100.0, fleet, (node,), failures=1))
    after = found.plan(step.standing)
    if after is None or step.rolls_back or asked.workers_per_node > 1:
        return
    place_of = {one: place for place, one in seats.items()}
    taken = {place: place_of[one] for place, one in found.seats(step.standing).items()}
    crew = tuple((standings[old].worker, place) for place, old in sorted(taken.items()))
    told = tuple(standings[old] for old in dict.fromkeys(taken.values()))
    try:
        rest = plan_rest(with_prediction(replace(after, prediction=None)), crew, 3, told, HEALTHY)
    except InfeasibleError:
        return  # all of it again is as quick
    assert check_rest(after, rest) == []


@settings(max_examples=25)
@given(
    st.integers(1, 3), st.integers(2, 4), st.integers(2, 5), st.integers(1, 63), st.data(), st.sampled_from(PLACEMENTS)
)
def test_a_replay_loses_what_a_simulation_says(
    pp: int, dp: int, microbatches: int, phase: int, data: st.DataObject, placement: Chunks
) -> None:
    """The same worker lost at the same moment: as much is left by the replay as by the story of the virtual clock."""
    asked = chunked(pp, dp, microbatches, placement, replace(COSTS, regrouping_s=0.0, planning_s=0.0))
    found = policy("slipstream", asked)
    assert isinstance(found, Resuming)
    standing = found.begin(Fleet(names(asked.nodes)))
    plan = found.plan(standing)
    assert plan is not None and plan.prediction is not None
    plan = with_prediction(replace(plan, optimizer="synchronous", prediction=None))
    assert plan.prediction is not None
    worker = data.draw(st.sampled_from(plan.live_workers()))
    at_s = plan.prediction.makespan_s * phase / 64
    costs = SwitchCosts(detection_s=COSTS.detection_s, heartbeat_limit_s=20.0, regroup_s=0.3)
    trace = Trace((TraceEvent("fail", time_s=at_s, worker=worker.name),))
    story = simulate_story(plan, trace, 2, answers_for(plan, PolicyName.SLIPSTREAM, None, 0), costs, resume=plan_rest)
    standings = standings_of(plan, worker.place, phase / 64, COSTS.detection_s / plan.prediction.makespan_s)
    if not story.resumptions:
        return
    told = {one.worker: one for one in story.resumptions[0].rest.standings}
    for place, own in standings.items():
        its = told[own.worker]
        assert (own.ledger, own.stashes, own.sealed) == (its.ledger, its.stashes, its.sealed), place
