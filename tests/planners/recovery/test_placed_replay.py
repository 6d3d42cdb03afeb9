"""Replays of jobs whose workers hold several virtual stages: policies, the choice at the start, what reports say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.choosing import PlacementChoice
from rtk.planners.recovery.catalogue import NAMES, knows_placements, policy
from rtk.planners.recovery.job import TrainingJob, state_bytes
from rtk.planners.recovery.layout import alike, pipelines_by
from rtk.planners.recovery.placing import placed_job
from rtk.planners.shape import Shape, template_of
from rtk.replaying import ReplayRequest, ask, digest_of
from rtk.runners.simulator import simulate
from rtk.runners.traces.read import TraceOptions
from rtk.runners.traces.verbs import FaultScenario, Lasting, Renewal
from rtk.schemas.conditions import PlanConditions
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.orders import LeanSchedule
from rtk.schemas.profile import Connection, Network, Profile
from rtk.schemas.replay import Costs, Fleet, Moment, ReplayReport, StateChange

from ...cli.shell import rtk
from .slow_stories import slow_stories
from .stories import NETWORK, layer, names, profile, require_true, stories, told

ABLE = [name for name in NAMES if knows_placements(name) and name not in ("rtk", "fault-free")]
COSTS = Costs(detection_s=1.0, planning_s=0.1, regrouping_s=2.0, restart_s=50.0, mean_time_between_failures_s=1e4)
PROFILE = Path(__file__).parents[2] / "golden" / "profile-slots4.json"


@st.composite
def placed_jobs(draw: st.DrawFn) -> TrainingJob:
    """A small job of loops or V's, of equal or unlike layers, whose nodes hold a worker or a whole pipeline."""
    pp, chunks = draw(st.integers(1, 3)), draw(st.sampled_from([2, 2, 3]))
    count = pp * chunks
    works = draw(st.one_of(st.just([1.0] * count), st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=count,
                                                            max_size=count + 2)))  # fmt: skip
    limits = draw(st.sampled_from([None, [20.0 * len(works)]]))
    shape = Shape(pp, draw(st.integers(1, 3)), draw(st.integers(1, 4)), limits,
                  placement=draw(st.sampled_from(["loop", "v"])), chunks=chunks)  # fmt: skip
    schedule = draw(st.sampled_from(get_args(LeanSchedule)))
    layers = Profile(tuple(map(layer, works)), network=NETWORK)
    return TrainingJob(layers, shape, draw(st.sampled_from([1, pp])), COSTS, schedule)


@pytest.mark.parametrize("name", ABLE)
@settings(max_examples=6)
@given(st.data())
def test_a_standing_is_what_the_simulator_says_of_its_placed_plan(name: str, data: st.DataObject) -> None:
    """Times, micro-batches, memory, seats, with slow nodes and links: as in a plan of the job's placement."""
    job = data.draw(placed_jobs())
    found = policy(name, job)
    story = data.draw(st.one_of(stories(job, 4), slow_stories(job)))
    for fleet, standing in told(found, story):
        require_true(found, job, fleet, standing)
        plan = found.plan(standing)
        assert plan is None or plan.templates[0].placement == job.shape.columns


@pytest.mark.parametrize("name", [*ABLE, "rtk"])
def test_the_way_back_of_a_loop_counts_where_it_is_slow(name: str) -> None:
    """Between the first and the last worker of a pipeline, as the link that it is; in a V the two exchange nothing."""
    fleet = Fleet(names(6), slow_links={("n0", "n2"): 5.0})
    for placement, counts in (("loop", True), ("v", False)):
        shape = Shape(3, 2, 3, placement=placement, chunks=2)  # type: ignore[arg-type]
        found = policy(name, TrainingJob(profile(*[1.0] * 6), shape, costs=COSTS))
        well = found.begin(Fleet(names(6)))
        plan, seats = found.plan(well), found.seats(well)
        assert plan is not None and plan.templates[0].placement == shape.columns
        (paced, *_) = found.react(well, Moment(1e4, fleet)) or (StateChange(well, ""),)
        expected = simulate(fleet.at(seats).under(plan)).iteration_time_s
        assert paced.standing.iteration_time_s == pytest.approx(expected)
        assert (expected > 1.2 * simulate(plan).iteration_time_s) is counts


@settings(max_examples=8)
@given(st.data())
def test_what_rtk_says_is_true_whichever_placement_it_is_in(data: st.DataObject) -> None:
    """Its ways are the grids with the job's placement and those without; it is no slower than SlipStream to begin."""
    job = data.draw(placed_jobs())
    try:
        found = policy("rtk", job)
    except InfeasibleError:
        return
    for fleet, standing in told(found, data.draw(slow_stories(job)), 1):
        require_true(found, job, fleet, standing)
    everybody = Fleet(names(job.nodes))
    mine, its = (one.begin(everybody).iteration_time_s for one in (found, policy("slipstream", job)))
    assert mine is not None and its is not None and mine <= its * (1 + 2e-3)


def test_rtk_begins_in_a_v_where_that_is_fastest_and_goes_on_after_failures() -> None:
    """At half of 1F1B's memory no plain order keeps up: it starts in the V, re-routes there, and keeps what is done."""
    shape = Shape(4, 2, 8, [80.0], placement="v", chunks=2)
    job = TrainingJob(profile(*[1.0] * 8, network=Network(None, Connection(1e-4, 1e6))), shape, costs=COSTS)
    found, plain = policy("rtk", job), policy("rtk", job.plain)
    began, other = (one.begin(Fleet(names(8))) for one in (found, plain))
    plan = found.plan(began)
    assert plan is not None and plan.templates[0].placement == shape.columns
    assert began.microbatches_per_s > 1.1 * other.microbatches_per_s
    first, *_ = found.react(began, Moment(1e4, Fleet(names(7)), ("n7",), failures=1, done=0.5))
    assert first.answer in ("re-route", "normalize") and first.left < 1
    after = found.plan(first.standing)
    assert after is not None and after.templates == plan.templates


def test_pipelines_of_a_placement_are_near_the_bound_and_say_what_slow_workers_cost() -> None:
    """With their own micro-batches, by rules alone, a V of zero bubbles is hardly above what is proven the least."""
    job = TrainingJob(profile(*[1.0] * 8), Shape(4, 2, 8, placement="v", chunks=2), schedule="zero-bubble")
    pipelines, layout = pipelines_by(job), alike([8, 8])
    least, outcome = pipelines.plan(layout).prediction, pipelines.outcome(layout)
    assert least is not None and least.lower_bound_s <= outcome.iteration_time_s <= 1.03 * least.lower_bound_s
    slow = PlanConditions(factors=(((1, 2), 1.5),))
    slower_s = pipelines.seconds(layout, slow)
    assert slower_s == pipelines.ordered(layout).iteration_time_s(slow) > outcome.iteration_time_s


def test_state_of_a_column_is_of_all_its_stages_and_tied_weights_count_once() -> None:
    """Embedding and head of a V lie on its first worker, which holds one matrix for both."""
    tied = [
        layer(),
        *[layer() for _ in range(6)],
        replace(layer(), tied_to=0, tied_bytes=100.0, tied_state_bytes=300.0),
    ]
    job = TrainingJob(Profile(tuple(tied), network=NETWORK), Shape(4, 2, 2, placement="v", chunks=2))
    first, *others = state_bytes(job, template_of(job.profile, job.shape))
    assert (first, *others) == (400.0, 800.0, 800.0, 800.0)


@pytest.mark.parametrize(("bytes_per_s", "is_plain"), [(1e9, False), (0.4, True)])
def test_best_depends_on_the_network(bytes_per_s: float, is_plain: bool) -> None:
    """Where messages take no time several chunks fill sooner; where they take long, crossing links once is best."""
    network = Network(None, Connection(0.0, bytes_per_s))
    job = TrainingJob(profile(*[1.0] * 8, network=network), Shape(4, 2, 4), costs=COSTS)
    found, told_of = placed_job(job, PlacementChoice("best", 2))
    times_s = {row["placement"]: row["iteration_time_s"] for row in told_of}
    assert found.shape.placement == min(times_s, key=lambda one: times_s[one])
    assert (found.shape.placement == "plain") is is_plain is (found.plain is found)
    assert sorted(one.shape.placement for one in found.placed) == ["loop", "plain", "v"]
    mine = policy("rtk", found).begin(Fleet(names(8))).iteration_time_s
    assert mine is not None and mine <= min(times_s.values()) * (1 + 2e-3)


def test_a_report_says_who_trains_in_which_placement() -> None:
    """Each policy's own, that it knows none, and what each placement was worth; a plain one has no such words."""
    job = TrainingJob(profile(*[1.0] * 4), Shape(2, 2, 3), costs=COSTS, schedule="zero-bubble")
    scenario = FaultScenario(5, 1000.0, Renewal(Lasting(9000.0), Lasting(600.0)), seed=3)
    plain = ReplayRequest(job, scenario, TraceOptions(), NAMES)
    asked = replace(plain, placement=PlacementChoice("v", 2))
    report, usual = ask(asked), ask(replace(plain, policies=("bamboo",)))
    words = {one.policy: one.placement for one in report.policies}
    assert {name for name, one in words.items() if one is not None} == {n for n in NAMES if knows_placements(n)}
    assert words["slipstream"] == report.job["placement"] == "V, 2 chunks a worker"
    assert any("know no placements: oobleck" in line for line in report.remarks)
    assert parse_document(canonical(report), ReplayReport, "the report") == report
    assert b"placement" not in canonical(usual) and digest_of(plain) != digest_of(asked)
    mine, its = (next(one for one in each.policies if one.policy == "bamboo") for each in (report, usual))
    assert mine.healthy_iteration_time_s == its.healthy_iteration_time_s


def cli(*arguments: str) -> dict[str, Any]:
    """The report of a replay of three layers a worker."""
    done = rtk("replay", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_command_chooses_and_says_so(tmp_path: Path) -> None:
    """`--placement best` compares under the profile's network and says what it has found; sweeps do so, too."""
    profile_path, trace_path = tmp_path / "p.json", tmp_path / "t.jsonl"
    tree = json.loads(PROFILE.read_text())
    tree["layers"] = [{**one, "name": f"l{n}"} for n, one in enumerate(tree["layers"] * 2)]
    profile_path.write_text(json.dumps(tree))
    trace_path.write_text("".join(f"0,add,n{n}\n" for n in range(8)) + "900000,remove,n3\n3600000,remove,n5\n")
    files = ("--profile", str(profile_path), "--trace", str(trace_path), "--cost", "copy_bytes_per_s=1e9")
    shape = (*files, "--pp", "4", "--dp", "2", "--microbatches", "4", "--policies", "slipstream,varuna")
    done = rtk("replay", *shape, "--placement", "best")
    assert "v, 2 chunks" in done.stderr and ", taken" in done.stderr
    best = cli(*shape, "--placement", "best")
    rows = best["job"]["placements"]
    least_s = min(row["iteration_time_s"] for row in rows)
    assert next(row for row in rows if row.get("chosen"))["iteration_time_s"] == least_s
    slipstream, varuna = best["policies"]
    assert slipstream["healthy_iteration_time_s"] == least_s and "placement" not in varuna
    sweep = tmp_path / "s.yaml"
    sweep.write_text(
        f"profiles: [{profile_path}]\njobs: [{{pp: 4, dp: 2, microbatches: 4, placement: [plain, 'best:2', v]}}]\n"
        f"traces: [{trace_path}]\npolicies: [slipstream]\ncosts: {{copy_bytes_per_s: 1e9}}\n"
    )
    swept = rtk("sweep", str(sweep), "-o", str(tmp_path / "out"))
    assert swept.returncode == 0, swept.stderr
    reports = [json.loads(path.read_text()) for path in sorted((tmp_path / "out").glob("*.json"))]
    words = {one["job"].get("placement") for one in reports if one.get("format") == "rtk.replay"}
    assert words == {None, best["job"]["placement"], "V, 2 chunks a worker"}
    wrong = rtk("sweep", "-", "-o", str(tmp_path / "other"), stdin=sweep.read_text().replace("best:2", "w"))
    assert wrong.returncode == 2 and "'w' is no placement" in wrong.stderr
