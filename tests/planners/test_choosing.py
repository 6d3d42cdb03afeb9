"""`--placement`: what texts mean, the best of several placements, and plans of each."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.planners.choosing import (
    OPTION,
    PlacementChoice,
    comparison,
    direct_time_s,
    parse_placement,
    plan_chosen,
)
from rtk.planners.plain.verbs import plan_adaptra, plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.simulator import simulate
from rtk.schemas.check import check_plan
from rtk.schemas.documents import canonical_json, to_tree
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

# A layer of 5 ms an operation: with 8 of them on 4 workers a chunk of two takes 5 ms, as in the note's section 9.
EVEN = Profile((Layer((LayerCost(0.005, 0.005, 0.005),), activation_bytes=1.0),) * 8)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Layers of unlike times."""
    seconds = st.sampled_from((0.0, 1.0, 1.0, 1.5, 3.0))
    sizes = st.sampled_from((0.0, 1.0, 2.0))
    count = draw(st.integers(4, 6))
    return Profile(
        tuple(
            Layer((LayerCost(draw(seconds), draw(seconds), draw(seconds)),), activation_bytes=draw(sizes))
            for _ in range(count)
        )
    )


def planned(profile: Profile, placement: str, limit: float | None, delay_s: float) -> Plan:
    """Two workers, four micro-batches, a few rules."""
    return plan_adaptra(
        profile, pp=2, microbatches=4, memory_limit=limit, link_delay={0: delay_s}, solver="rules", placement=placement
    )


@settings(max_examples=15)
@given(profiles(), st.sampled_from((None, 12.0, 24.0)), st.sampled_from((0.0, 1.0, 8.0)))
def test_best_is_never_worse_than_any(profile: Profile, limit: float | None, delay_s: float) -> None:
    """No placement's iteration is shorter than that of the best; each plan is valid, and no shorter than its bound."""
    found = {}
    for name in ("plain", "v", "loop"):
        try:
            found[name] = planned(profile, name, limit, delay_s)
        except InfeasibleError:
            continue
    assume(found)
    best = planned(profile, "best", limit, delay_s)
    rows = {row["placement"]: row for row in best.planner.options[OPTION]}
    assert list(rows) == ["plain", "v", "loop"]
    assert [row for row in rows.values() if row.get("chosen")] == [rows[best.planner.options.get("placement", "plain")]]
    assert best.prediction is not None
    for name, row in rows.items():
        if name not in found:
            assert row["refusal"]
            continue
        prediction = found[name].prediction
        assert prediction is not None
        assert not check_plan(found[name])
        assert row["iteration_time_s"] == prediction.iteration_time_s
        assert best.prediction.iteration_time_s <= prediction.iteration_time_s * (1 + 1e-9)
        assert prediction.lower_bound_s <= prediction.iteration_time_s * (1 + 1e-9)


def test_ties_go_to_plain() -> None:
    """Where no time is shorter the plan is the plain one, its orders as without `best`."""
    alone = plan_pipeline(EVEN, pp=1, microbatches=3, placement="plain")
    best = plan_pipeline(EVEN, pp=1, microbatches=3, placement="best:4")
    assert [row["placement"] for row in best.planner.options[OPTION]] == ["plain"]
    assert best.workers == alone.workers
    made = {
        name: plan_pipeline(EVEN, pp=2, microbatches=4, schedule="zero-bubble", placement=name)
        for name in ("plain", "v")
    }
    chosen = plan_chosen(
        Shape(2, 1, 2), PlacementChoice("best", 2), lambda one: made["plain" if one.placement == "plain" else "v"]
    )
    assert chosen.planner.options[OPTION][1]["chosen"]  # a V fills faster
    same = replace(made["v"], prediction=made["plain"].prediction)
    tied = plan_chosen(
        Shape(2, 1, 2), PlacementChoice("best", 2), lambda one: made["plain"] if one.placement == "plain" else same
    )
    assert tied.planner.options[OPTION][0]["chosen"]
    assert not tied.is_placed


def test_the_best_of_none_is_refused_as_plain_is() -> None:
    """If a limit admits no placement the error says so; if it admits one, the others' refusals stand in the table."""

    def refuse(shape: Shape) -> Plan:
        raise InfeasibleError(f"no room for {shape.placement}", where="--memory-limit")

    with pytest.raises(InfeasibleError, match="no room for plain"):
        plan_chosen(Shape(2, 1, 2), PlacementChoice("best", 2), refuse)
    best = plan_pipeline(EVEN, pp=4, microbatches=4, placement="best:3")
    rows = {(row["placement"], row["chunks"]): row for row in best.planner.options[OPTION]}
    assert "4 workers of 3 chunks need 12 layers, and there are 8" in rows["v", 3]["refusal"]
    assert "loop, 3 chunks: 4 workers of 3 chunks need 12 layers, and there are 8" in list(comparison(best))


@pytest.mark.parametrize(
    ("delay_ms", "plain_ms", "placed_ms"), [(0, 390, 375), (20, 410, 395), (40, 430, 415), (60, 450, 475)]
)
def test_slow_links_without_limits(delay_ms: int, plain_ms: int, placed_ms: int) -> None:
    """V and loop win until the delay is about four stage forwards, plain beyond, all proven: the note's first table."""
    best = plan_adaptra(EVEN, pp=4, microbatches=12, link_delay={1: delay_ms / 1000}, placement="best")
    rows = best.planner.options[OPTION]
    assert [round(row["iteration_time_s"] * 1000, 6) for row in rows] == [plain_ms, placed_ms, placed_ms]
    assert {row["proof"] for row in rows} == {"optimal"}
    assert best.is_placed == (placed_ms < plain_ms)


@settings(max_examples=15)
@given(profiles(), st.sampled_from(("plain", "v", "loop")), st.sampled_from((0.0, 1.0, 8.0)))
def test_direct_sends_take_what_the_simulator_says(profile: Profile, placement: str, delay_s: float) -> None:
    """What `best` reckons with for direct sends is the simulated iteration, and never shorter than with delegates."""
    made = planned(profile, placement, None, delay_s)
    timed_s = direct_time_s(made)
    timeline = simulate(made, transport="direct")
    assert timed_s == pytest.approx(timeline.makespan_s)
    assert made.prediction is not None
    assert timed_s >= made.prediction.iteration_time_s * (1 - 1e-9)


def test_direct_sends_make_plain_win_sooner() -> None:
    """At 30 ms a V wins by 15 ms if sends hold nobody, and loses if they do; the table says both times."""
    told = [
        plan_adaptra(
            EVEN, pp=4, microbatches=12, link_delay={1: 0.03}, placement="best", solver="rules", transport=transport
        ).planner.options[OPTION]
        for transport in ("delegated", "direct")
    ]
    assert [next(row["placement"] for row in rows if row.get("chosen")) for rows in told] == ["v", "plain"]
    assert all(row["direct_s"] > row["iteration_time_s"] for row in told[1])
    assert not any("direct_s" in row for row in told[0])


def test_a_way_back_is_only_a_loops() -> None:
    """Under `best` the delay of a loop's way back counts for loops and for nothing else."""
    delays = {3: 0.02}
    best = plan_adaptra(EVEN, pp=4, microbatches=6, link_delay=delays, placement="best")
    plain, v, loop = (row["iteration_time_s"] for row in best.planner.options[OPTION])
    without = plan_adaptra(EVEN, pp=4, microbatches=6, placement="best").planner.options[OPTION]
    assert [plain, v] == [row["iteration_time_s"] for row in without[:2]]
    assert loop > without[2]["iteration_time_s"]
    with pytest.raises(InvalidInputError, match="there is no link 3"):
        plan_adaptra(EVEN, pp=4, microbatches=6, link_delay=delays, placement="v")


def test_a_solver_that_is_named_proves_by_itself() -> None:
    """CP-SAT gets a placed plan's orders and no bound; the MILP is for one stage a worker, and is refused by name."""
    made = plan_adaptra(EVEN, pp=2, microbatches=2, placement="v", solver="cp-sat", time_limit=20.0)
    assert made.planner.options["solver_proof"]["proof"] == "optimal"
    with pytest.raises(InvalidInputError, match="milp is for one stage a worker"):
        plan_adaptra(EVEN, pp=2, microbatches=2, placement="v", solver="milp", time_limit=5.0)


@pytest.mark.parametrize("placement", ["v", "loop", "best"])
def test_same_input_same_bytes(placement: str) -> None:
    """Planning twice gives the same bytes."""
    first, second = (
        canonical_json(to_tree(plan_pipeline(EVEN, pp=2, dp=2, microbatches=4, placement=placement))) for _ in range(2)
    )
    assert first == second


def test_interleaved_1f1b_is_equalled_in_its_memory() -> None:
    """On a loop 1F1B takes 3M + 1.5 (S - 1) stage units, holding S + (S - 1) / 2 activations, as published."""
    made = plan_pipeline(EVEN, pp=4, microbatches=8, placement="loop")
    assert made.prediction is not None
    assert made.prediction.iteration_time_s <= 0.01 * (3 * 8 + 1.5 * 3) * (1 + 1e-9)
    assert max(made.prediction.peak_memory_bytes) <= 2 * (4 + 3 / 2)
    assert all("B" in (worker.order or "") and "W" not in (worker.order or "") for worker in made.workers)


def test_zero_bubble_on_a_v_is_optimal_in_the_memory_of_1f1b() -> None:
    """6M + S - 1 chunks, proven, with S activations a worker."""
    made = plan_pipeline(EVEN, pp=4, microbatches=8, schedule="zero-bubble", placement="v")
    assert made.prediction is not None
    assert made.prediction.proof == "optimal"
    assert made.prediction.iteration_time_s == pytest.approx(0.005 * (6 * 8 + 3))
    assert max(made.prediction.peak_memory_bytes) <= 2 * 4


def test_pipelines_with_links_of_their_own() -> None:
    """Each pipeline is ordered for its own delays, and the bound is that of the slowest."""
    slow: dict[int | str | tuple[int | None, int], float] = {(1, 0): 0.01}
    made = plan_adaptra(EVEN, pp=2, dp=2, microbatches=4, link_delay=slow, placement="v", solver="rules")
    assert made.pipelines[0].links is None
    assert [link.delay_s for link in made.pipelines[1].links or ()] == [0.01, 0, 0.01]
    assert not check_plan(made)


@pytest.mark.parametrize(
    ("text", "chunks", "name", "count"),
    [("plain", None, "plain", 1), ("plain", 1, "plain", 1), ("v", None, "v", 2), ("loop", 4, "loop", 4),
     ("v:3", None, "v", 3), ("best", None, "best", 2), ("best:4", 4, "best", 4), ("v", 1, "plain", 1),
     ("best:1", None, "plain", 1)],
)  # fmt: skip
def test_placements_are_read(text: str, chunks: int | None, name: str, count: int) -> None:
    """Chunks are said once, behind the name or beside it; one chunk a worker is plain."""
    assert parse_placement(text, chunks) == PlacementChoice(name, count)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "chunks", "says"),
    [("zigzag", None, "'zigzag' is no placement"), ("v:", None, "'v:' is no placement"),
     ("V", None, "'V' is no placement"), ("best:0", None, "'best:0' is no placement"),
     ("plain", 2, "a plain placement has one stage a worker"), ("plain:2", None, "has one stage a worker"),
     ("best:4", 3, "best:4 and 3 chunks contradict each other"), ("v", 0, "0 chunks are none")],
)  # fmt: skip
def test_bad_placements_are_named(text: str, chunks: int | None, says: str) -> None:
    """What cannot be read, or contradicts itself, is refused."""
    with pytest.raises(InvalidInputError, match=says):
        parse_placement(text, chunks)


def test_what_no_placement_can_be_given_to_is_refused() -> None:
    """GPipe and Adaptra's published warm-ups are for one stage a worker."""
    with pytest.raises(InvalidInputError, match="GPipe has one stage a worker"):
        plan_pipeline(EVEN, pp=2, microbatches=2, schedule="gpipe", placement="loop")
    for technique in ("initial", "adapted"):
        with pytest.raises(InvalidInputError, match=f"warm-ups of {technique} are for one stage a worker"):
            plan_adaptra(EVEN, pp=2, microbatches=2, technique=technique, placement="best")
