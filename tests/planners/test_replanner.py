"""SlipStream as a whole: plans in place and normalized, the entries of an atlas, and the plans that they rebuild."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling import solve as scheduling_solve
from rtk.planners.scheduling.problem import home_problem, problem_of
from rtk.planners.scheduling.solve import Effort, solve
from rtk.planners.shape import Shape
from rtk.planners.slipstream import slot_search
from rtk.planners.slipstream.cluster import AtlasRequest, Technique, opening, plan_with_failures
from rtk.planners.slipstream.normalization import Cost
from rtk.planners.slipstream.replanner import Replanner
from rtk.planners.slipstream.rerouting import round_robin
from rtk.schemas.atlas import Atlas
from rtk.schemas.check import check_plan
from rtk.schemas.documents import digest
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Place, Plan, place_of
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile

from .equal_pipelines import WHOLE_S

HEURISTIC = Effort("heuristic")
UNIFORM = (1.0, 1.0, 1.0)
TECHNIQUES: st.SearchStrategy[Technique] = st.sampled_from(["adaptive", "decoupled", "staggered"])
COSTS: st.SearchStrategy[Cost] = st.sampled_from(["heuristic", "scheduler"])
Times = tuple[float, float, float]


def _profile(times: list[Times], bandwidth_bytes_per_s: float | None = 1.0) -> Profile:
    """Layers of 1 byte a micro-batch, half of it stash; layer i has i + 1 bytes of parameters, and as much state."""
    layers = tuple(
        Layer(
            costs=(LayerCost(*row),),
            parameter_bytes=i + 1.0,
            state_bytes=i + 1.0,
            activation_bytes=1.0,
            weight_stash_bytes=0.5,
        )
        for i, row in enumerate(times)
    )
    network = Network(inter_node=Connection(0.0, bandwidth_bytes_per_s))
    return Profile(layers=layers, model={}, origin="given", network=network)


def _common(
    times: list[Times],
    dp: int,
    microbatches: int,
    technique: Technique = "staggered",
    *,
    limits: list[float] | None = None,
    delays: dict[tuple[int | None, int], float] | None = None,
    unit: tuple[int, int] = (1, 1),
    cost: Cost = "heuristic",
    slowdown: dict[Place, float] | None = None,
) -> Atlas:
    """What all plans of some pipelines have in common; no all-reduce, as its time would not be a whole number."""
    shape = Shape(len(times), dp, microbatches, limits, delays)
    request = AtlasRequest(shape, technique, unit, HEURISTIC, cost, slowdown or {})
    common = opening(_profile(times), request)
    stages = tuple(replace(stage, allreduce_s=0.0) for stage in common.template.stages)
    return replace(common, template=replace(common.template, stages=stages))


def _running_example(technique: Technique, limits: list[float] | None = None) -> Replanner:
    """SlipStream's: PP 4, DP 3, 6 micro-batches, F = I = W = 1."""
    return Replanner(_common([UNIFORM] * 4, 3, 6, technique, limits=limits), 4)


def _prediction(plan: Plan) -> tuple[float, float, str]:
    assert plan.prediction is not None
    return plan.prediction.iteration_time_s, plan.prediction.lower_bound_s, plan.prediction.proof


def _dead(plan: Plan) -> set[Place]:
    return {(worker.pipeline, worker.stage) for worker in plan.workers if worker.failed}


@pytest.fixture(scope="module")
def short_search() -> Iterator[None]:
    """What is searched where slots leave a gap ends soon: for what must hold whether it is found or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduling_solve, "BUDGET_OPERATIONS", 1_000)
        patch.setattr(slot_search, "BUDGET_OPERATIONS", 1_000)
        yield


@st.composite
def _clusters(draw: st.DrawFn, *, uniform: bool = False, units: bool = True) -> Replanner:
    """Equal pipelines with whole times, few micro-batches, sometimes limits, and units that die together."""
    tall, wide = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)])) if units else (1, 1)
    pp, dp = wide * draw(st.integers(1, 3 // wide)), tall * draw(st.integers(2, 4 // tall))
    row = st.tuples(WHOLE_S, WHOLE_S, WHOLE_S)
    times = [draw(row)] * pp if uniform else draw(st.lists(row, min_size=pp, max_size=pp))
    limits = draw(st.sampled_from([None, None, [2.0], [4.0]]))
    common = _common(
        times, dp, draw(st.integers(1, 3)), draw(TECHNIQUES), limits=limits, unit=(tall, wide), cost=draw(COSTS)
    )
    replanner = Replanner(common, 0)
    most = replanner.grid.columns * (replanner.grid.units - 1)
    return Replanner(common, draw(st.integers(0, min(most, 3))))


def _somewhere(replanner: Replanner, chance: Random) -> frozenset[Place]:
    """As many failed units as the replanner is ready for, each column with a live one left."""
    grid = replanner.grid
    free = [(row, c) for c in range(grid.columns) for row in chance.sample(range(grid.units), grid.units - 1)]
    return frozenset(chance.sample(free, replanner.most))


CHANCE = st.randoms(use_true_random=False)


@pytest.mark.parametrize(
    ("technique", "limits", "failed_s", "whole_s"),
    [
        ("adaptive", None, 33, 27),
        ("decoupled", None, 29, 21),
        ("staggered", None, 27, 19),
        ("staggered", [4.0], 27, 21),
    ],
)
def test_the_running_example_is_planned_optimally(
    technique: Technique, limits: list[float] | None, failed_s: float, whole_s: float
) -> None:
    """Worker 1/2 dead: 33, 29 and 27, the last with 4 activations of memory as well; without a failure 27, 21, 19 (21
    with that memory); all proven, in place and out of an atlas."""
    replanner = _running_example(technique, limits)
    plan = replanner.in_place(frozenset({(1, 2)}))
    assert _prediction(plan) == (failed_s, failed_s, "optimal")
    assert _dead(plan) == {(1, 2)}
    entry, searched = replanner.entry(1)
    rebuilt = searched or replanner.rebuilt(entry)
    assert _prediction(rebuilt)[2] == "optimal"
    assert _prediction(rebuilt)[0] <= failed_s
    entry, searched = replanner.entry(0)
    assert _prediction(searched or replanner.rebuilt(entry)) == (whole_s, whole_s, "optimal")


@pytest.mark.usefixtures("short_search")
@settings(max_examples=30)
@given(_clusters())
def test_entries_promise_what_their_plans_keep(replanner: Replanner) -> None:
    """Makespan, period, bound and proof of an entry are those of the plan that it rebuilds, and the checker accepts it;
    no worker of a stage holds more than it says."""
    entry, searched = replanner.entry(replanner.most)
    plan = searched or replanner.rebuilt(entry)
    assert check_plan(plan) == []
    promised, kept = entry.prediction, plan.prediction
    assert kept is not None
    assert (kept.iteration_time_s, kept.makespan_s, kept.period_s, kept.lower_bound_s, kept.gap, kept.proof) == (
        promised.iteration_time_s, promised.makespan_s, promised.period_s, promised.lower_bound_s, promised.gap,
        promised.proof,
    )  # fmt: skip
    assert kept.bubble_ratio == pytest.approx(promised.bubble_ratio, rel=1e-12, abs=1e-12)
    stages = len(entry.failures)
    for i, most in enumerate(promised.peak_memory_bytes):
        assert max(kept.peak_memory_bytes[i::stages]) <= most
    assert entry.failures == tuple(sum(place[1] == i for place in _dead(plan)) for i in range(stages))


@pytest.mark.usefixtures("short_search")
@settings(max_examples=15)
@given(_clusters())
def test_entries_rebuild_the_same_bytes(replanner: Replanner) -> None:
    """A second replanner, which has made nothing else, rebuilds the same plan from an entry; and so does planning for
    these places without the atlas."""
    entry, searched = replanner.entry(replanner.most)
    units = replanner.grid.last_units(replanner.grid.column_failures(_units_of(entry.failures, replanner)))
    other = Replanner(replanner.common, 0)
    if entry.recipe.stored is None:
        assert digest(replanner.rebuilt(entry)) == digest(other.rebuilt(entry))
    else:
        assert searched is not None
        assert entry.recipe.stored == digest(searched)
    assert digest(other.rebuilt(entry, units)) == digest(Replanner(replanner.common, replanner.most).in_place(units))


def _units_of(failures: tuple[int, ...], replanner: Replanner) -> frozenset[Place]:
    """Units of which each stage has so many dead workers."""
    grid = replanner.grid
    counts = [number // grid.unit_pipelines for number in failures[:: grid.unit_stages]]
    return frozenset((row, c) for c, count in enumerate(counts) for row in range(count))


@pytest.mark.usefixtures("short_search")
@settings(max_examples=25)
@given(_clusters(), CHANCE)
def test_copies_put_the_failures_where_the_entry_wants_them(replanner: Replanner, chance: Random) -> None:
    """In place the dead workers are the named units'; rebuilt from the entry they are where its copies leave them: as
    many in each stage as it says, unless copies would gain nothing."""
    units, grid = _somewhere(replanner, chance), replanner.grid
    named = {place for unit in units for place in grid.places(unit)}
    plan = replanner.in_place(units)
    assert check_plan(plan) == []
    assert _dead(plan) == named
    assert {place_of(name) for name in plan.planner.options["failed"]} == named
    entry, _ = replanner.entry(replanner.most)
    moved = replanner.rebuilt(entry, units)
    copies = moved.planner.options["normalization"]["copies"]
    swapped = {place_of(copy["becomes"]): place_of(copy["worker"]) for copy in copies}
    assert _dead(moved) == named - set(swapped) | set(swapped.values())
    assert not copies or entry.failures == tuple(sum(i == at for _, i in _dead(moved)) for at in range(grid.stages))
    for copy in copies:
        stage = place_of(copy["becomes"])[1]
        assert place_of(copy["from"])[1] == stage
        assert copy["size_bytes"] == replanner.common.state_bytes[stage] == 2 * (stage + 1)


@pytest.mark.usefixtures("short_search")
@settings(max_examples=15)
@given(_clusters(), CHANCE)
def test_both_ways_say_the_same_of_whether_to_normalize(replanner: Replanner, chance: Random) -> None:
    """In place and rebuilt, plans give both iteration times, which are their own; bytes and break-even follow."""
    units = _somewhere(replanner, chance)
    in_place = replanner.in_place(units)
    said = in_place.planner.options["normalization"]
    entry, _ = replanner.entry(replanner.most)
    moved = replanner.rebuilt(entry, units)
    assert moved.planner.options["normalization"] == said
    assert said["iteration_time_in_place_s"] == pytest.approx(_prediction(in_place)[0], rel=1e-12)
    least_s = min(entry.prediction.iteration_time_s, said["iteration_time_in_place_s"])
    assert said["iteration_time_normalized_s"] == pytest.approx(least_s, rel=1e-8)
    assert _prediction(moved)[0] == pytest.approx(least_s, rel=1e-8)
    assert bool(said["copies"]) == (said["iteration_time_normalized_s"] < said["iteration_time_in_place_s"])
    gain_s = said["iteration_time_in_place_s"] - said["iteration_time_normalized_s"]
    assert said["copied_bytes"] == sum(copy["size_bytes"] for copy in said["copies"])
    if gain_s > 0:
        assert said["break_even_iterations"] == -(-said["copying_s"] // gain_s)
    else:
        assert said["break_even_iterations"] is None


@pytest.mark.usefixtures("short_search")
@settings(max_examples=20)
@given(_clusters(uniform=True), CHANCE)
def test_normalized_takes_no_longer_than_in_place_where_stages_are_alike(replanner: Replanner, chance: Random) -> None:
    """Where both are proven optimal, moving the failures never costs time."""
    units = _somewhere(replanner, chance)
    in_place = replanner.in_place(units)
    entry, _ = replanner.entry(replanner.most)
    assume(_prediction(in_place)[2] == entry.prediction.proof == "optimal")
    assert entry.prediction.iteration_time_s <= _prediction(in_place)[0]


@pytest.mark.usefixtures("short_search")
@settings(max_examples=12)
@given(_clusters(uniform=True, units=False), CHANCE)
def test_each_technique_is_at_least_as_good_as_those_before_it(replanner: Replanner, chance: Random) -> None:
    """Where all three are proven optimal: split backwards cost no time, nor do staggered optimizers. Adaptive plans
    split nothing."""
    units = _somewhere(replanner, chance)
    plans = []
    for technique in ("adaptive", "decoupled", "staggered"):
        options = replanner.common.planner.options | {"technique": technique}
        common = replace(
            replanner.common,
            planner=replace(replanner.common.planner, options=options),
            optimizer="staggered" if technique == "staggered" else "synchronous",
            split=technique != "adaptive",
        )
        plans.append(Replanner(common, replanner.most).in_place(units))
    assume(all(_prediction(plan)[2] == "optimal" for plan in plans))
    adaptive_s, decoupled_s, staggered_s = (_prediction(plan)[0] for plan in plans)
    assert adaptive_s >= decoupled_s >= staggered_s
    assert not problem_of(plans[0]).split.any()
    assert [plan.optimizer for plan in plans] == ["synchronous", "synchronous", "staggered"]


@pytest.mark.usefixtures("short_search")
@settings(max_examples=15)
@given(_clusters(), CHANCE)
def test_units_die_as_a_whole(replanner: Replanner, chance: Random) -> None:
    """Dead workers are whole units, in place, normalized, and where places are not known."""
    grid = replanner.grid
    units = _somewhere(replanner, chance)
    entry, searched = replanner.entry(replanner.most)
    for plan in (searched or replanner.rebuilt(entry), replanner.rebuilt(entry, units)):
        blocks = {grid.unit_of(place) for place in _dead(plan)}
        assert _dead(plan) == {place for block in blocks for place in grid.places(block)}
        assert len(blocks) == replanner.most


@pytest.mark.usefixtures("short_search")
@settings(max_examples=12)
@given(st.integers(1, 3), st.integers(2, 3), st.integers(1, 4), TECHNIQUES, st.data())
def test_unlike_workers_are_planned_no_slower_than_in_turns(
    pp: int, dp: int, microbatches: int, technique: Technique, data: st.DataObject
) -> None:
    """Slow workers and links of single pipelines: valid plans for the failures in place, at least as good as round
    robin under the same search; what normalization would give is not said."""
    row = st.tuples(WHOLE_S, WHOLE_S, WHOLE_S)
    place = st.tuples(st.integers(0, dp - 1), st.integers(0, pp - 1))
    link = st.tuples(st.integers(0, dp - 1), st.integers(0, max(pp - 2, 0)))
    slowdown = data.draw(st.dictionaries(place, st.sampled_from([1.5, 2.0, 3.0]), max_size=2))
    delays = data.draw(st.dictionaries(link, WHOLE_S, max_size=2)) if pp > 1 else {}
    assume(slowdown or any(delays.values()))
    common = _common(
        data.draw(st.lists(row, min_size=pp, max_size=pp)),
        dp,
        microbatches,
        technique,
        delays={(k, i): delay_s for (k, i), delay_s in delays.items()},
        slowdown=slowdown,
    )
    failed = frozenset({data.draw(place)})
    plan = Replanner(common, 1).in_place(failed)
    assert check_plan(plan) == []
    assert _dead(plan) == failed
    assert plan.planner.options["normalization"] is None
    home = home_problem(plan_with_failures(common, failed), split=common.split)
    taken_s, bound_s, _ = _prediction(plan)
    assert bound_s <= taken_s <= solve(round_robin(home), HEURISTIC).value_s


def test_a_slow_peer_takes_fewer_micro_batches() -> None:
    """Of three workers 0/0 is dead and 2/0 takes twice as long: 4 of its own 6 stay, and 12 go to 1/0."""
    plan = Replanner(_common([UNIFORM], 3, 6, slowdown={(2, 0): 2.0}), 1).in_place(frozenset({(0, 0)}))
    assert problem_of(plan).job_counts.tolist() == [0, 12, 6]
    assert _prediction(plan) == (36, 36, "optimal")


@pytest.mark.parametrize("unlike", [{"slowdown": {(0, 1): 2.0}}, {"delays": {(1, 0): 3.0}}])
def test_workers_that_differ_are_not_normalized(unlike: dict[str, dict[Place, float]]) -> None:
    """Failures cannot be moved between them: the error says what to do instead."""
    replanner = Replanner(_common([UNIFORM] * 2, 3, 2, **unlike), 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="workers that differ") as caught:
        replanner.entry(1)
    assert caught.value.fix is not None
    assert "--failed" in caught.value.fix


def test_workers_that_are_not_slow_after_all_are_alike() -> None:
    """A factor of 1, or a delay of all pipelines, leaves them equal."""
    delays: dict[tuple[int | None, int], float] = {(None, 0): 3.0}
    replanner = Replanner(_common([UNIFORM] * 2, 3, 2, slowdown={(0, 1): 1.0}, delays=delays), 1)
    assert replanner.entry(1)[0].prediction.proof == "optimal"


@pytest.mark.parametrize("slowdown", [{}, {(0, 0): 2.0}])
def test_a_stage_without_live_workers_is_infeasible(slowdown: dict[Place, float]) -> None:
    """All workers of stage 1 dead, peers alike or not: the error names the stage."""
    replanner = Replanner(_common([UNIFORM] * 3, 2, 4, slowdown=slowdown), 2)
    with pytest.raises(InfeasibleError, match="stage 1 has lost all its workers"):
        replanner.in_place(frozenset({(0, 1), (1, 1)}))


def test_more_failures_than_can_be_borne_are_infeasible() -> None:
    """Three stages of two workers bear three failures, not four."""
    common = _common([UNIFORM] * 3, 2, 4)
    assert Replanner(common, 3).entry(3)[0].failures == (1, 1, 1)
    with pytest.raises(InfeasibleError, match="4 failures") as caught:
        Replanner(common, 4).entry(4)
    assert caught.value.fix == "at most 3 failures leave every stage a live worker"


@pytest.mark.parametrize("failed", [frozenset(), frozenset({(0, 0)})])
def test_a_limit_below_one_activation_is_infeasible(failed: frozenset[Place]) -> None:
    """Where not even one micro-batch fits, failures or not, the error names the stage."""
    replanner = Replanner(_common([UNIFORM] * 2, 2, 2, limits=[1.0, 0.5]), 1)
    with pytest.raises(InfeasibleError, match="stage 1 holds 1 B a micro-batch"):
        replanner.in_place(failed)
    with pytest.raises(InfeasibleError, match="stage 1 holds 1 B a micro-batch"):
        replanner.entry(len(failed))


def test_an_entry_is_for_as_many_failures_as_it_says() -> None:
    """Places of two failures do not go with the entry for one."""
    replanner = Replanner(_common([UNIFORM] * 2, 3, 2), 2)
    entry, _ = replanner.entry(1)
    with pytest.raises(InvalidInputError, match="2 dead units are named, --failures says 1"):
        replanner.rebuilt(entry, frozenset({(0, 0), (0, 1)}))


def test_failures_without_places_say_the_most_that_moves() -> None:
    """Two units of 1 x 2 workers, the last column's with 6 + 8 bytes of state: four workers, 28 bytes at most."""
    replanner = Replanner(_common([UNIFORM] * 4, 3, 3, unit=(1, 2)), 2)
    plan = replanner.rebuilt(replanner.entry(2)[0])
    assert plan.planner.options["normalization"] == {"most_copies": 4, "most_copied_bytes": 28.0}


def test_normalizing_pays_after_what_the_copies_take() -> None:
    """Two of three workers of stage 0 dead: 18 micro-batches of 3 s on one worker; moved, nine on each of two."""
    replanner = Replanner(_common([UNIFORM] * 2, 3, 6), 2)
    said = replanner.in_place(frozenset({(0, 0), (1, 0)})).planner.options["normalization"]
    assert said["iteration_time_in_place_s"] == 54
    assert said["iteration_time_normalized_s"] == 27
    assert [(copy["worker"], copy["becomes"], copy["from"]) for copy in said["copies"]] == [("2/1", "0/0", "2/0")]
    assert (said["copied_bytes"], said["copying_s"], said["break_even_iterations"]) == (2, 2, 1)


@pytest.mark.parametrize("technique", ["decoupled", "staggered"])
def test_unlike_stages_within_limits_are_planned_in_rotation_and_rebuilt(technique: Technique) -> None:
    """The entry's plan is valid, within the limits, keeps the promise, and is the same bytes from another replanner."""
    times = [(8.0, 11.0, 10.0), (12.0, 9.0, 8.0), (10.0, 10.0, 11.0), (9.0, 8.0, 12.0)]
    common = _common(times, 8, 24, technique, limits=[4.0])
    made = [Replanner(common, 6) for _ in range(2)]
    entries = [replanner.entry(6)[0] for replanner in made]
    plan, again = (replanner.rebuilt(entries[0]) for replanner in made)
    assert entries[0].recipe.scheduled == "rotation"
    assert entries[0] == entries[1]
    assert digest(plan) == digest(again)
    assert check_plan(plan) == []
    assert plan.prediction is not None
    promised = entries[0].prediction
    assert plan.prediction.iteration_time_s == promised.iteration_time_s >= promised.lower_bound_s
    assert plan.prediction.iteration_time_s <= 1.04 * promised.lower_bound_s
    assert max(plan.prediction.peak_memory_bytes) <= max(promised.peak_memory_bytes) <= 4


def test_an_entry_in_rotation_is_a_plan_for_failures_in_place() -> None:
    """Where the failures are as the entry has them, nothing moves, and the plan in place takes no longer."""
    times = [(8.0, 11.0, 10.0), (12.0, 9.0, 8.0), (10.0, 10.0, 11.0), (9.0, 8.0, 12.0)]
    replanner = Replanner(_common(times, 8, 24, limits=[4.0]), 6)
    entry, _ = replanner.entry(6)
    units = replanner.grid.last_units(entry.failures)
    plan = replanner.rebuilt(entry, units)
    assert plan.prediction is not None
    assert plan.prediction.iteration_time_s == entry.prediction.iteration_time_s
    assert plan.planner.options["normalization"]["copies"] == []
