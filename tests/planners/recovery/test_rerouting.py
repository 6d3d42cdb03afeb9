"""Re-planning for a running job: in place or normalized, on the spot or out of an atlas, and back again."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.recovery.answers import PolicyName, answers_for
from rtk.planners.recovery.rerouting import rerouted_from
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.planners.slipstream.atlas_folder import AtlasFolder, plan_path
from rtk.planners.slipstream.cluster import AtlasRequest, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.schemas.atlas import Atlas, Recipe
from rtk.schemas.check import check_plan
from rtk.schemas.conditions import HEALTHY
from rtk.schemas.documents import digest
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Pipeline, Place, Plan, place_of
from rtk.schemas.protocols import Answers, Hand

from ..running_plans import Times, bearable, dead_places, made_by, profile, running_plans, short_search

UNIFORM = (1.0, 1.0, 1.0)
NOBODY: frozenset[Place] = frozenset()
# Of two stages with three workers each, the first loses two: 54 s in place; if one moves there, which takes 2 s, 27 s;
# and 4/3 s for the all-reduce.
TWO_OF_A_STAGE = frozenset({(0, 0), (1, 0)})


@pytest.fixture(scope="module", autouse=True)
def _short() -> Iterator[None]:
    with short_search():
        yield


def _common(
    times: list[Times], shape: Shape, unit: tuple[int, int] = (1, 1), bandwidth_bytes_per_s: float | None = 1.0
) -> Atlas:
    """The opening of an atlas: staggered, 2 bytes of state a stage."""
    request = AtlasRequest(shape, unit=unit, effort=Effort("heuristic"))
    return opening(profile(times, bandwidth_bytes_per_s), request)


def _atlas(path: Path, common: Atlas, most: int) -> str:
    """An atlas for up to so many failures, written to a folder."""
    replanner, folder = Replanner(common, most), AtlasFolder(str(path))
    folder.begin(common)
    entries = []
    for failures in range(most + 1):
        entry, plan = replanner.entry(failures)
        folder.append(entry, plan)
        entries.append(entry)
    folder.finish(replace(common, plans=tuple(entries)))
    return str(path)


def _whole(common: Atlas) -> Plan:
    """The plan with all workers alive."""
    return Replanner(common, 0).in_place(NOBODY)


def _iteration_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_time_s


THREE_PAIRS = Shape(2, 3, 6)
Moves = tuple[tuple[Place, Place], ...]


@dataclass(frozen=True)
class Found:
    """An answer: the plan, and who moves, as (his place, the dead one's that he takes over)."""

    plan: Plan
    moves: Moves


class Rerouting:
    """What `rtk run --policy slipstream` answers while a plan runs."""

    def __init__(self, plan: Plan, atlas: str | None, within: int) -> None:
        self._plan = plan
        self.answers: Answers = answers_for(plan, PolicyName.SLIPSTREAM, atlas, within)

    def without(self, failed: frozenset[Place]) -> Found:
        """When all of these places, and no others, are without a worker."""
        crew = tuple(
            Hand(worker.name, None, None)
            if worker.failed
            else Hand(worker.name, worker.place, self._plan.layers_of(worker))
            for worker in self._plan.workers
            if worker.place not in failed
        )
        found = self.answers(self._plan, crew, HEALTHY)
        moved = ((place_of(name), place) for name, place in found.seats)
        return Found(found.plan, tuple((old, new) for old, new in moved if old != new))


def replan_from(plan: Plan, atlas: str | None, within: int) -> Rerouting:
    """For a job that runs a plan."""
    return Rerouting(plan, atlas, within)


@given(running_plans(), st.lists(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=4), max_size=3))
def test_whoever_dies_and_comes_back(plan: Plan, story: list[set[Place]]) -> None:
    """Each question has a valid plan of the same job that leaves just the dead workers' places empty, and no plan only
    where a stage has nobody left; in between, the job's own failures give its own plan bit for bit; whatever was asked
    before, answers are the same."""
    dp, pp = len(plan.pipelines), len(plan.templates[0].stages)
    replan = replan_from(plan, None, 9)
    for asked in story:
        failed = frozenset((k, i) for k, i in asked if k < dp and i < pp)
        assert replan.without(dead_places(plan)).plan is plan
        if not bearable(failed, pp, dp):
            with pytest.raises(InfeasibleError, match="has lost all its workers"):
                replan.without(failed)
            continue
        found = replan.without(failed)
        assert check_plan(found.plan) == []
        assert (found.moves, dead_places(found.plan)) == ((), failed)
        assert found.plan.templates == plan.templates
        assert found.plan.optimizer == plan.optimizer
        assert [one.microbatches for one in found.plan.pipelines] == [one.microbatches for one in plan.pipelines]
        assert digest(found.plan) == digest(replan_from(plan, None, 0).without(failed).plan)


@pytest.mark.parametrize(("within", "moved"), [(0, False), (1, True)])
def test_workers_move_only_where_that_pays_soon(within: int, moved: bool, tmp_path: Path) -> None:
    """Copies of 2 s that save 27 s an iteration pay after one; without an atlas nobody knows what they take."""
    common = _common([UNIFORM] * 2, THREE_PAIRS)
    plan, atlas = _whole(common), _atlas(tmp_path / "a", common, 2)
    found = replan_from(plan, atlas, within).without(TWO_OF_A_STAGE)
    assert found.moves == ((((2, 1), (0, 0)),) if moved else ())
    assert dead_places(found.plan) == (frozenset({(1, 0), (2, 1)}) if moved else TWO_OF_A_STAGE)
    assert _iteration_s(found.plan) == pytest.approx((27 if moved else 54) + 4 / 3)
    assert replan_from(plan, None, within).without(TWO_OF_A_STAGE).moves == ()


@pytest.mark.parametrize("bandwidth_bytes_per_s", [None, 0.01])
def test_copies_that_never_or_late_pay_are_not_made(bandwidth_bytes_per_s: float | None, tmp_path: Path) -> None:
    """200 s to copy pay after 8 iterations, not after 7; over an unknown network nobody knows."""
    common = _common([UNIFORM] * 2, THREE_PAIRS, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    plan, atlas = _whole(common), _atlas(tmp_path / "a", common, 2)
    assert replan_from(plan, atlas, 7).without(TWO_OF_A_STAGE).moves == ()
    assert bool(replan_from(plan, atlas, 8).without(TWO_OF_A_STAGE).moves) == (bandwidth_bytes_per_s is not None)


@given(st.data())
def test_moved_workers_leave_their_places_empty(data: st.DataObject) -> None:
    """Where state bytes are known, in whatever unlike stages: what stays empty is the dead workers' places without
    those taken over, and with the movers'; moving never makes iterations longer than in place."""
    pp, dp = data.draw(st.integers(2, 3)), data.draw(st.integers(2, 3))
    times = data.draw(st.lists(st.tuples(*[st.sampled_from([1.0, 2.0, 3.0])] * 3), min_size=pp, max_size=pp))
    failed = frozenset(data.draw(st.sets(st.tuples(st.integers(0, dp - 1), st.integers(0, pp - 1)), max_size=3)))
    common = _common(times, Shape(pp, dp, data.draw(st.integers(1, 4))))
    path = Path(tempfile.mkdtemp())
    replan, still = (replan_from(_whole(common), _atlas(path / f"{n}", common, 0), n) for n in (3, 0))
    if not bearable(failed, pp, dp):
        with pytest.raises(InfeasibleError, match="has lost all its workers"):
            replan.without(failed)
        return
    found, in_place = replan.without(failed), still.without(failed)
    movers, taken = {mover for mover, _ in found.moves}, {place for _, place in found.moves}
    assert check_plan(found.plan) == []
    assert dead_places(found.plan) == failed - taken | movers
    assert taken <= failed and not movers & failed
    assert (in_place.moves, dead_places(in_place.plan)) == ((), failed)
    assert _iteration_s(found.plan) <= _iteration_s(in_place.plan)


def test_beyond_its_entries_an_atlas_is_no_limit(tmp_path: Path) -> None:
    """An atlas for no failure, and one for two: the same plans and moves for two."""
    common = _common([UNIFORM] * 2, THREE_PAIRS)
    plan = _whole(common)
    short, long = (replan_from(plan, _atlas(tmp_path / f"{most}", common, most), 1) for most in (0, 2))
    for failed in (TWO_OF_A_STAGE, frozenset({(0, 0), (1, 1)}), frozenset({(2, 1)})):
        assert short.without(failed) == long.without(failed)


def _stored(path: Path, common: Atlas, plan: Plan) -> str:
    """An atlas whose plan for the most failures is stored."""
    most = len(dead_places(plan))
    *entries, last = (Replanner(common, most).entry(failures)[0] for failures in range(most + 1))
    entries.append(replace(last, recipe=Recipe(stored=digest(plan))))
    folder = AtlasFolder(str(path))
    folder.begin(common)
    folder.write_plan(most, plan)
    folder.finish(replace(common, plans=tuple(entries)))
    return str(path)


def test_stored_plans_are_taken_for_their_places(tmp_path: Path) -> None:
    """A plan that a search has found is used where it leaves the right place empty; a broken one is refused."""
    common = _common([UNIFORM], Shape(1, 3, 2))
    last = Replanner(common, 1).in_place(frozenset({(2, 0)}))
    searched = replace(last, inputs={"by": "search"})
    replan = replan_from(_whole(common), _stored(tmp_path / "a", common, searched), 0)
    assert replan.without(frozenset({(2, 0)})).plan == searched
    elsewhere = replan.without(frozenset({(0, 0)})).plan
    assert dead_places(elsewhere) == {(0, 0)}
    assert elsewhere.inputs == common.inputs
    broken = replace(last, workers=(replace(last.workers[0], order="F0 B0"), *last.workers[1:]))
    folder = _stored(tmp_path / "b", common, broken)
    with pytest.raises(InvalidInputError) as caught:
        replan_from(_whole(common), folder, 0).without(frozenset({(2, 0)}))
    assert (caught.value.where or "").startswith(str(plan_path(Path(folder), 1)))


def test_workers_move_to_where_a_stored_plan_wants_them(tmp_path: Path) -> None:
    """Once they have moved, the empty places may be the stored plan's: then it is taken."""
    common = _common([UNIFORM] * 2, THREE_PAIRS)
    searched = replace(Replanner(common, 2).in_place(frozenset({(2, 0), (2, 1)})), inputs={"by": "search"})
    replan = replan_from(_whole(common), _stored(tmp_path / "a", common, searched), 1)
    found = replan.without(frozenset({(0, 0), (2, 0)}))
    assert found.moves == (((2, 1), (0, 0)),)
    assert found.plan == searched


@pytest.mark.parametrize(
    ("failed", "moves"),
    [
        ({(0, 0)}, 0),
        ({(0, 0), (1, 1)}, 0),
        ({(0, 0), (0, 1), (1, 0)}, 0),
        ({(0, 0), (0, 1)}, 0),
        ({(0, 0), (0, 1), (1, 0), (1, 1)}, 2),
    ],
)
def test_the_living_of_a_block_go_on(failed: set[Place], moves: int, tmp_path: Path) -> None:
    """Of workers that usually die two by two, single ones may die too: only they stay out. Whole blocks may move."""
    common = _common([UNIFORM] * 4, Shape(4, 3, 6), unit=(1, 2))
    found = replan_from(_whole(common), _atlas(tmp_path / "a", common, 2), 9).without(frozenset(failed))
    assert check_plan(found.plan) == []
    assert len(found.moves) == moves
    assert len(dead_places(found.plan)) == len(failed)
    assert moves or dead_places(found.plan) == failed


@pytest.mark.parametrize(
    ("times", "shape", "maker", "differences"),
    [
        ([UNIFORM] * 2, Shape(2, 2, 6), "staggered", "pipelines (2 and 3)"),
        ([UNIFORM] * 2, Shape(2, 3, 5), "staggered", "micro-batches (5 and 6)"),
        ([UNIFORM] * 2, THREE_PAIRS, "1f1b", "optimizer (synchronous and staggered)"),
        ([UNIFORM] * 3, Shape(3, 3, 6), "staggered", "stages (3 and 2)"),
        ([UNIFORM, (1.0, 2.0, 1.0)], THREE_PAIRS, "staggered", "stage 1"),
        ([UNIFORM] * 2, Shape(2, 3, 6, link_delay_s={(None, 0): 1.0}), "staggered", "link 0"),
        ([UNIFORM] * 2, Shape(2, 3, 6, link_delay_s={(1, 0): 1.0}), "staggered", "slow workers or links of single "),
        ([UNIFORM] * 2, Shape(2, 3, 4), "zero-bubble", "micro-batches (4 and 6), optimizer (synchronous and "),
    ],
)
def test_an_atlas_of_another_job_is_refused(
    times: list[Times], shape: Shape, maker: str, differences: str, tmp_path: Path
) -> None:
    """The error says in what they differ."""
    atlas = _atlas(tmp_path / "a", _common([UNIFORM] * 2, THREE_PAIRS), 0)
    with pytest.raises(InvalidInputError) as caught:
        replan_from(made_by(maker, profile(times), shape), atlas, 0)
    assert caught.value.what.startswith(f"the atlas is of another job than the plan: they differ in {differences}")
    assert caught.value.where == atlas


def test_an_atlas_serves_plans_of_other_planners(tmp_path: Path) -> None:
    """One for a synchronous optimizer goes with a zero-bubble plan, which comes back when everybody does."""
    request = AtlasRequest(THREE_PAIRS, "decoupled", effort=Effort("heuristic"))
    atlas = _atlas(tmp_path / "a", opening(profile([UNIFORM] * 2), request), 2)
    plan = made_by("zero-bubble", profile([UNIFORM] * 2), THREE_PAIRS)
    replan = replan_from(plan, atlas, 5)
    assert len(replan.without(TWO_OF_A_STAGE).moves) == 1
    assert replan.without(NOBODY).plan is plan


def test_a_running_job_waits_for_no_exact_solver(tmp_path: Path) -> None:
    """An atlas made with one plans without: solvers have a clock, and would answer differently each time."""
    common = _common([(1.0, 2.0, 3.0)] * 2, THREE_PAIRS)
    options = common.planner.options | {"solver": "cp-sat", "time_limit_s": 1e6}
    slow = replace(common, planner=replace(common.planner, options=options))
    atlas = AtlasFolder(str(tmp_path / "a"))
    atlas.begin(slow)
    atlas.finish(replace(slow, plans=(Replanner(common, 0).entry(0)[0],)))
    plan = replan_from(_whole(common), str(tmp_path / "a"), 9).without(frozenset({(0, 1)})).plan
    assert (plan.planner.options["solver"], plan.planner.options["time_limit_s"]) == ("rules", 0.0)


@pytest.mark.parametrize(("dp", "failed"), [(1, NOBODY), (2, NOBODY), (2, frozenset({(0, 0)})), (2, TWO_OF_A_STAGE)])
def test_warming_up_changes_no_answer(dp: int, failed: frozenset[Place]) -> None:
    """Nor does it fail where nobody may die any more."""
    failed = failed if bearable(failed, 2, dp) else frozenset({(0, 0), (0, 1)})
    plan = made_by("staggered", profile([UNIFORM] * 2), Shape(2, dp, 3), failed)
    warm, cold = replan_from(plan, None, 0), replan_from(plan, None, 0)
    warm.answers.warm_up()
    assert warm.without(failed).plan is plan
    for other in (NOBODY, frozenset({(dp - 1, 1)})):
        if bearable(other | failed, 2, dp):
            assert digest(warm.without(other).plan) == digest(cold.without(other).plan)


def test_places_that_are_not_there_are_refused() -> None:
    """A worker beyond the grid is an error, not a plan for somebody else."""
    pipelines = rerouted_from(made_by("1f1b", profile([UNIFORM] * 2), Shape(2, 2, 2)))
    with pytest.raises(InvalidInputError, match="there is no worker 2/0"):
        pipelines.plan(frozenset({(2, 0)}))


def test_unlike_pipelines_are_refused() -> None:
    """Only alike pipelines can be re-planned yet."""
    plan = made_by("1f1b", profile([UNIFORM] * 2), Shape(2, 2, 2))
    with pytest.raises(InvalidInputError, match="only alike pipelines can be re-planned yet"):
        replan_from(replace(plan, pipelines=(plan.pipelines[0], Pipeline("t0", 3))), None, 0)
