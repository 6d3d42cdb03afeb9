"""Atlas: printed and read back, and where its parts contradict each other."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.atlas import Atlas, AtlasEntry, Recipe, SlotRules, Targets
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Planner, Prediction

from ..strategies import BYTES, SECONDS, templates


@st.composite
def atlases(draw: st.DrawFn) -> Atlas:
    """A random atlas of 1-4 stages, for blocks of 1 or 2 pipelines by 1 stage or all, up to any feasible failures."""
    stages, blocks = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    width, depth = draw(st.integers(1, 2)), draw(st.sampled_from([1, stages]))
    groups = stages // depth
    dp, most = blocks * width, draw(st.integers(0, (blocks - 1) * groups))
    return Atlas(
        planner=Planner("slipstream", "1", draw(st.dictionaries(st.text(max_size=5), st.integers(), max_size=2))),
        template=draw(templates(stages)),
        dp=dp,
        microbatches=draw(st.integers(1, 64)),
        optimizer=draw(st.sampled_from(["synchronous", "staggered"])),
        split=draw(st.booleans()),
        failure_unit=(width, depth),
        state_bytes=_column(draw, BYTES, stages),
        plans=tuple(draw(_entries(f, _even(f, groups, width, depth), dp)) for f in range(most + 1)),
        inputs=draw(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)),
    )


def _even(failed_units: int, groups: int, width: int, depth: int) -> tuple[int, ...]:
    """The failures of each stage, blocks of `width` x `depth` going round the groups of stages."""
    blocks = [failed_units // groups + (group < failed_units % groups) for group in range(groups)]
    return tuple(blocks[stage // depth] * width for stage in range(groups * depth))


@st.composite
def _entries(draw: st.DrawFn, failed_units: int, failures: tuple[int, ...], dp: int) -> AtlasEntry:
    stages = len(failures)
    prediction = Prediction(
        iteration_time_s=draw(SECONDS),
        makespan_s=draw(SECONDS),
        period_s=draw(SECONDS),
        lower_bound_s=draw(SECONDS),
        gap=draw(st.floats(0, 1)),
        proof=draw(st.sampled_from(["optimal", "bound", "none"])),
        bubble_ratio=draw(st.floats(0, 1)),
        peak_memory_bytes=_column(draw, BYTES, stages),
    )
    if draw(st.booleans()):
        return AtlasEntry(failed_units, failures, prediction, Recipe(stored=f"{draw(st.integers(0, 9))}" * 64))
    counts = st.integers(1, 9)
    sizes = tuple(draw(st.integers(1, dp - dead)) for dead in failures)
    if draw(st.booleans()):
        recipe = Recipe(sizes, scheduled="rotation", targets=draw(_targets(stages)))
        return AtlasEntry(failed_units, failures, prediction, recipe)
    rules = SlotRules(
        warmup=_column(draw, counts, stages),
        in_flight=draw(st.sampled_from([(7,), _column(draw, counts, stages)])),
        weight_wait=draw(st.sampled_from([(0.5,), _column(draw, st.sampled_from([0.0, 0.5, 1.0]), stages)])),
        backlog=_column(draw, counts, stages),
        priority=_column(draw, st.integers(0, 3), stages),
        held_back=draw(st.sampled_from([(0,), (2,), _column(draw, st.integers(0, 3), stages)])),
    )
    return AtlasEntry(
        failed_units, failures, prediction, Recipe(sizes, rules, draw(st.sampled_from(["slots", "workers"])))
    )


@st.composite
def _targets(draw: st.DrawFn, stages: int) -> Targets:
    points = st.tuples(*[st.integers(2, 30).map(lambda number: number / 2)] * 4)
    return Targets(
        _column(draw, points, stages),
        _column(draw, points, stages),
        _column(draw, st.booleans(), stages),
        _column(draw, st.sampled_from([0.0, 0.75]), stages),
    )


def _column(draw: st.DrawFn, of: st.SearchStrategy[Any], stages: int) -> tuple[Any, ...]:
    return tuple(draw(of) for _ in range(stages))


@given(atlases())
def test_atlases_round_trip(atlas: Atlas) -> None:
    """A printed atlas agrees with itself, reads back equal, and prints again as the same bytes."""
    data = canonical(atlas)
    again = parse_document(data, Atlas, "printed")
    assert again == atlas
    assert canonical(again) == data
    assert again.most_failures == len(atlas.plans) - 1


def _tree(failure_unit: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    """Two pipelines of two stages; a plan for no failure by rules, one for a failed unit stored."""
    stages = [{"layers": [i, i + 1], "forward_s": 1, "backward_input_s": 1, "backward_weight_s": 1} for i in range(2)]
    rules = {"warmup": [2, 1], "in_flight": [2, 1], "weight_wait": [0, 0.5], "backlog": [1, 1], "priority": [0, 3]}
    recipes: list[dict[str, Any]] = [
        {"group_sizes": [2, 2], "rules": rules, "scheduled": "slots"},
        {"stored": "0123456789abcdef" * 4},
    ]
    failures = [[0, 0], [1, 0]] if failure_unit == (1, 1) else [[0, 0], [1, 1]]
    return {
        "format": "rtk.atlas",
        "format_version": "1.0",
        "planner": {"name": "slipstream", "version": "1", "options": {}},
        "template": {"name": "t0", "stages": stages, "links": [{"delay_s": 0}]},
        "dp": 2,
        "microbatches": 4,
        "optimizer": "staggered",
        "split": True,
        "failure_unit": failure_unit,
        "state_bytes": [8, 8],
        "plans": [_entry_tree(*entry) for entry in zip(range(2), failures, recipes, strict=True)],
    }


def _entry_tree(failed_units: int, failures: list[int], recipe: dict[str, Any]) -> dict[str, Any]:
    times = dict.fromkeys(("iteration_time_s", "makespan_s", "period_s", "lower_bound_s"), 30)
    prediction = {**times, "gap": 0, "proof": "optimal", "bubble_ratio": 0, "peak_memory_bytes": [2, 1]}
    return {"failed_units": failed_units, "failures": failures, "prediction": prediction, "recipe": recipe}


RECIPE, RULES, STORED = "/plans/0/recipe", "/plans/0/recipe/rules", "/plans/1/recipe/stored"


def _rotation(**changed: Any) -> dict[str, Any]:
    """A recipe for workers in rotation, with some of its targets changed."""
    points = [[2, 2, 2, 1], [1, 1, 1, 1]]
    targets = {"in_flight": points, "backlog": points, "weights_first": [True, False], "fill": [0.75, 1]}
    return {"group_sizes": [2, 2], "targets": targets | changed, "scheduled": "rotation"}


# Where a value stands, the value that makes it wrong, what the error says, and the pointer where it is not the same.
BAD: list[tuple[str, Any, str, str]] = [
    ("/template/links", [], "0 links for 2 stages", ""),
    ("/state_bytes", [1], "1 sizes for 2 stages", ""),
    ("/failure_unit", [0, 1], "greater than or equal to 1", "/failure_unit/0"),
    ("/failure_unit", [2, 2], "failures of stage 0 are not made of blocks of 2 x 2", "/plans/1/failures/0"),
    ("/failure_unit", [3, 1], "no whole number of blocks", ""),
    ("/failure_unit", [1, 3], "no whole number of blocks", ""),
    ("/failure_unit", [1, 2], "0 failures of stage 1 are not made of blocks of 1 x 2", "/plans/1/failures/1"),
    ("/plans", [], "at least 1 item", ""),
    ("/plans/1/failed_units", 2, "the plan for 1 failures must stand here", ""),
    ("/plans/1/failures", [], "failures must name 2 stages", ""),
    ("/plans/1/failures", [1], "failures must name 2 stages", ""),
    ("/plans/1/failures", [2, 0], "each with a live worker of 2", ""),
    ("/plans/1/failures", [1, 1], "2 workers are dead, where 1 blocks hold 1", ""),
    ("/plans/0/failures", [-1, 1], "greater than or equal to 0", "/plans/0/failures/0"),
    ("/plans/0/prediction/peak_memory_bytes", [], "one peak for each of 2 stages", ""),
    (RECIPE, {}, "either `stored` or `group_sizes` with `rules`", ""),
    (RECIPE, {"group_sizes": [2, 2], "rules": _tree()["plans"][0]["recipe"]["rules"]}, "with `rules` and `sch", ""),
    (f"{RULES}/held_back", [1, 1, 1], "3 rules for 2 stages", ""),
    (RECIPE, {"group_sizes": [2, 2]}, "either `stored` or `group_sizes` with `rules`", ""),
    ("/plans/1/recipe/group_sizes", [1, 2], "either `stored` or `group_sizes` with `rules`", "/plans/1/recipe"),
    ("/plans/1/recipe/rules", _tree()["plans"][0]["recipe"]["rules"], "either `stored` or", "/plans/1/recipe"),
    (RECIPE, _rotation() | {"scheduled": "slots"}, "in rotation with `targets`", ""),
    (RECIPE, _rotation() | {"rules": _tree()["plans"][0]["recipe"]["rules"]}, "in rotation with `targets`", ""),
    (RECIPE, {"group_sizes": [2, 2], "scheduled": "rotation"}, "in rotation with `targets`", ""),
    (RECIPE, _rotation(fill=[0.75]), "1 targets for 2 stages", f"{RECIPE}/targets/fill"),
    (RECIPE, _rotation(fill=[0.75, -1]), "0 or more", f"{RECIPE}/targets/fill"),
    (RECIPE, _rotation(in_flight=[[1] * 4, [1, 1, 0, 1]]), "1 to 1000000000", f"{RECIPE}/targets/in_flight/1"),
    (RECIPE, _rotation(backlog=[[1e10] * 4, [1] * 4]), "0 to 1000000000", f"{RECIPE}/targets/backlog/0"),
    (STORED, "0" * 63, "is no sha256", ""),
    (STORED, "G" * 64, "is no sha256", ""),
    (f"{RULES}/warmup", [], "0 rules for 2 stages", ""),
    (f"{RULES}/backlog", [1, 1, 1], "3 rules for 2 stages", ""),
    (f"{RULES}/in_flight", [2, 0], "greater than or equal to 1", f"{RULES}/in_flight/1"),
    (f"{RULES}/weight_wait", [0, -0.5], "0 or more", ""),
    (f"{RULES}/priority", [0, 4], "a priority is 0 to 3", ""),
    (f"{RECIPE}/group_sizes", [2], "1 group sizes for 2 stages", ""),
    (f"{RECIPE}/group_sizes", [2, 3], "a group of 3 micro-batches has only 2 live workers", f"{RECIPE}/group_sizes/1"),
]


@pytest.mark.parametrize(("place", "value", "what", "where"), BAD, ids=lambda part: str(part)[:40])
def test_contradiction_is_refused_at_its_place(place: str, value: Any, what: str, where: str) -> None:
    """Parts that contradict each other are one error with the JSON pointer of the place."""
    tree = _tree()
    *path, last = place.split("/")[1:]
    inner: Any = tree
    for part in path:
        inner = inner[int(part) if isinstance(inner, list) else part]
    inner[last] = value
    with pytest.raises(InvalidInputError) as caught:
        parse_document(json.dumps(tree).encode(), Atlas, "a.json")
    assert what in caught.value.what
    assert caught.value.where == f"a.json, {where or place}"


@pytest.mark.parametrize("failure_unit", [(1, 1), (1, 2)])
def test_what_is_made_wrong_above_is_right(failure_unit: tuple[int, int]) -> None:
    """The small atlas that the bad ones are made from is read, and so is one whose workers die in pairs."""
    atlas = parse_document(json.dumps(_tree(failure_unit)).encode(), Atlas, "a.json")
    assert atlas.most_failures == 1


def test_a_recipe_for_workers_in_rotation_is_read() -> None:
    """What the wrong ones above are made from."""
    tree = _tree()
    tree["plans"][0]["recipe"] = _rotation()
    recipe = parse_document(json.dumps(tree).encode(), Atlas, "a.json").plans[0].recipe
    assert recipe.targets is not None
    assert recipe.targets.in_flight == ((2, 2, 2, 1), (1, 1, 1, 1))
