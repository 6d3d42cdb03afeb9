"""Plans for failures of workers with several virtual stages: in place, normalized, and out of an atlas."""

import json
from pathlib import Path
from typing import Any

import pytest

from rtk.planners.placement import search
from rtk.planners.plain.slipstream import plan_atlas, plan_from_atlas, plan_slipstream
from rtk.schemas.check import check_plan
from rtk.schemas.documents import canonical
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile

SHAPE: dict[str, Any] = {"pp": 3, "dp": 3, "microbatches": 4, "memory_limit": 6.0, "placement": "v"}


def profile(*weights: float) -> Profile:
    """Layers of so many seconds an operation, of 1 byte a micro-batch, and of 2 bytes of state and 1 of parameters."""
    layers = (
        Layer((LayerCost(one, one, one),), parameter_bytes=1.0, state_bytes=2.0, activation_bytes=1.0)
        for one in weights
    )
    return Profile(tuple(layers), network=Network(inter_node=Connection(0.0, 1000.0)))


ALIKE = profile(*(1.0,) * 6)
HEAVY = profile(1.0, 1.0, 1.0, 1.0, 1.0, 4.0)  # column 0 of the V holds the heavy head


def failed(plan: Plan) -> list[str]:
    return [worker.name for worker in plan.workers if worker.failed]


def test_failures_stay_where_they_are_or_move_to_where_they_cost_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place a dead worker of the heavy column costs more, and the plan says who would move; normalized, he has."""
    monkeypatch.setattr(search, "ANNEALED_OPERATIONS", 1_000)
    here = plan_slipstream(HEAVY, **SHAPE, failed=["1/0"])
    moved = plan_slipstream(HEAVY, **SHAPE, failed=["1/0"], failures=1)
    assert failed(here) == ["1/0"] and len(failed(moved)) == 1 and not failed(moved)[0].endswith("/0")
    assert check_plan(here) == check_plan(moved) == []
    told, copied = here.planner.options["normalization"], moved.planner.options["normalization"]
    assert told == copied and [copy["becomes"] for copy in told["copies"]] == ["1/0"]
    assert told["copied_bytes"] == 6.0  # of both layers of the column
    assert here.prediction is not None and moved.prediction is not None
    assert told["iteration_time_in_place_s"] == here.prediction.iteration_time_s
    assert told["iteration_time_normalized_s"] == moved.prediction.iteration_time_s < here.prediction.iteration_time_s


def test_an_atlas_holds_the_very_plans(tmp_path: Path) -> None:
    """It is a document of format 2.0 whose plans stand beside it, and are those that are made without it."""
    folder = str(tmp_path / "atlas")
    made = plan_atlas(ALIKE, folder, **SHAPE, max_failures=2)
    assert json.loads((tmp_path / "atlas" / "atlas.json").read_text())["format_version"] == "2.0"
    assert [len(entry.failures) for entry in made.plans] == [3, 3, 3]
    for failures in (1, 2):
        alone = plan_slipstream(ALIKE, **SHAPE, failures=failures)
        assert canonical(plan_from_atlas(folder, failures=failures)) == canonical(alone)
    named = plan_from_atlas(folder, failed=["2/1"])
    assert len(failed(named)) == 1 and check_plan(named) == []
    assert plan_atlas(ALIKE, folder, **SHAPE, max_failures=2) == made


def test_the_best_placement_is_that_of_the_shortest_iteration() -> None:
    """For the same failures, under the same limits; what the others came to is told."""
    best = plan_slipstream(ALIKE, **SHAPE | {"placement": "best"}, failed=["1/2"])
    rows = best.planner.options["placements"]
    assert best.prediction is not None and [row["placement"] for row in rows] == ["plain", "v", "loop"]
    assert best.prediction.iteration_time_s == min(row["iteration_time_s"] for row in rows)


def test_what_is_not_for_placements_is_refused_by_name(tmp_path: Path) -> None:
    """An atlas of whatever is best, ReCycle's costs by real schedules, and a column that has lost all its workers."""
    with pytest.raises(InvalidInputError, match="one placement"):
        plan_atlas(ALIKE, str(tmp_path / "atlas"), **SHAPE | {"placement": "best"})
    with pytest.raises(InvalidInputError, match="--cost"):
        plan_slipstream(ALIKE, **SHAPE, failures=1, cost="scheduler")
    with pytest.raises(InfeasibleError, match="column 1 has lost all its workers"):
        plan_slipstream(ALIKE, **SHAPE, failed=["0/1", "1/1", "2/1"])
    with pytest.raises(InfeasibleError, match="leave a column without a live worker"):
        plan_slipstream(ALIKE, **SHAPE, failures=99)
