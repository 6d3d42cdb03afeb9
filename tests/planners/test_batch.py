"""Batch distribution: the exact algorithms against all splits one by one, Pyomo's against both, and what is refused."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rtk.planners.batch.distribute import Distribution, Objective, distribute
from rtk.planners.batch.exact import Pace, Range, nearest
from rtk.schemas.errors import InfeasibleError, InvalidInputError, LimitReachedError

from ..cli.shell import rtk

COUNTEREXAMPLE = [Pace(0.0, time_s) for time_s in (7.0, 3.0, 2.0, 4.0)]
OBJECTIVES: tuple[Objective, ...] = ("min-max", "variance")

either_objective = pytest.mark.parametrize("objective", OBJECTIVES)
# Round numbers make ties, tenths rounding errors.
seconds = st.one_of(
    st.integers(1, 9).map(float),
    st.integers(1, 30).map(lambda n: n / 10),
    st.floats(0.01, 100.0, allow_subnormal=False),
)
fixed = st.one_of(st.just(0.0), st.floats(-3.0, 20.0, allow_subnormal=False))
paces = st.builds(Pace, fixed, seconds)


@st.composite
def cases(draw: st.DrawFn, most_count: int = 1) -> tuple[list[Pace], list[int], int, int]:
    """One to four groups, how many pipelines each has, micro-batches of a unit, and units."""
    groups = draw(st.lists(paces, min_size=1, max_size=4))
    counts = [draw(st.integers(1, most_count)) for _ in groups]
    return groups, counts, draw(st.integers(1, 3)), draw(st.integers(sum(counts), sum(counts) + 18))


def splits(counts: Sequence[int], units: int) -> NDArray[np.int64]:
    """All ways to give units to groups, at least one each; shape (ways, groups)."""
    axes = [np.arange(1, units // count + 1) for count in counts[:-1]]
    firsts = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes)) if axes else np.zeros((1, 0), int)
    left = units - firsts @ np.array(counts[:-1], dtype=int)
    fits = (left >= counts[-1]) & (left % counts[-1] == 0)
    return np.hstack([firsts[fits], (left[fits] // counts[-1])[:, None]])


def times_s(groups: Sequence[Pace], microbatches: NDArray[np.int64]) -> NDArray[np.float64]:
    """What `time_s` says of each way, in the same floats; shape (ways, groups)."""
    found: NDArray[np.float64] = microbatches * np.array([p.per_microbatch_s for p in groups])
    return np.array([p.fixed_s for p in groups]) + found


def variance(times: NDArray[np.float64], counts: Sequence[int]) -> NDArray[np.float64]:
    """The sums of squares around the mean; shape (ways,)."""
    means = (times @ counts) / sum(counts)
    found: NDArray[np.float64] = np.square(times - means[:, None]) @ np.array(counts)
    return found


def spread_out(groups: Sequence[Pace], counts: Sequence[int]) -> list[Pace]:
    return [pace for pace, count in zip(groups, counts, strict=True) for _ in range(count)]


def is_split(found: Distribution, microbatches: int, multiple_of: int) -> bool:
    alike = all(n >= 1 and n % multiple_of == 0 for n in found.microbatches)
    return alike and sum(found.microbatches) == microbatches


def assert_best(case: tuple[list[Pace], list[int], int, int], objective: Objective) -> None:
    """The distribution is among the best of all splits; if there is no split, that is said."""
    groups, counts, multiple_of, units = case
    pipelines, shared = spread_out(groups, counts), None if max(counts) == 1 else counts
    ways = splits(counts, units)
    if not len(ways):
        with pytest.raises(InfeasibleError):
            distribute(pipelines, units * multiple_of, multiple_of, objective, shared=shared)
        return
    found = distribute(pipelines, units * multiple_of, multiple_of, objective, shared=shared)
    assert is_split(found, units * multiple_of, multiple_of)
    times = times_s(groups, ways * multiple_of)
    chosen = np.array([[p.time_s(n) for p, n in zip(pipelines, found.microbatches, strict=True)]])
    assert found.slowest_s == chosen.max()
    if objective == "min-max":
        assert found.slowest_s == times.max(axis=1).min()
    else:
        rounding = 1e-12 * float(np.square(times).max())
        assert variance(chosen, [1] * len(pipelines))[0] <= variance(times, counts).min() + rounding


@either_objective
@settings(max_examples=60)
@given(case=cases())
def test_no_split_is_better(objective: Objective, case: tuple[list[Pace], list[int], int, int]) -> None:
    """Each pipeline with a number of its own: the best of all splits, min-max to the last bit of a float."""
    assert_best(case, objective)


@either_objective
@settings(max_examples=60)
@given(case=cases(most_count=4))
def test_no_split_with_shared_numbers_is_better(
    objective: Objective, case: tuple[list[Pace], list[int], int, int]
) -> None:
    """Oobleck's equation 6, and the same unknowns for the slowest: the best of all splits, or none where none is."""
    assert_best(case, objective)


@settings(max_examples=60)
@given(
    lines=st.lists(paces, min_size=1, max_size=4),
    steps=st.lists(st.lists(seconds, max_size=12), min_size=4, max_size=4),
    multiple_of=st.integers(1, 3),
    more=st.integers(0, 18),
)
def test_no_split_is_better_where_times_are_on_no_line(
    lines: list[Pace], steps: list[list[float]], multiple_of: int, more: int
) -> None:
    """Few micro-batches may take any rising times up to where the line begins."""
    pipelines = []
    for line, rises in zip(lines, steps, strict=False):
        top_s = line.fixed_s + (len(rises) + 1) * line.per_microbatch_s
        first_s = tuple(top_s - sum(rises[n:]) for n in range(len(rises)))
        pipelines.append(Pace(line.fixed_s, line.per_microbatch_s, first_s))
    units = len(pipelines) + more
    found = distribute(pipelines, units * multiple_of, multiple_of)
    assert is_split(found, units * multiple_of, multiple_of)
    ways = splits([1] * len(pipelines), units) * multiple_of
    slowest_s = [max(pace.time_s(int(n)) for pace, n in zip(pipelines, way, strict=True)) for way in ways]
    assert found.slowest_s == min(slowest_s)


@settings(max_examples=60)
@given(pipelines=st.lists(paces, min_size=1, max_size=60), multiple_of=st.integers(1, 4), more=st.integers(0, 5000))
def test_the_slowest_pipeline_has_its_certificate(pipelines: list[Pace], multiple_of: int, more: int) -> None:
    """If all pipelines had what they manage in less time than the slowest takes, micro-batches would be left over."""
    units = len(pipelines) + more
    found = distribute(pipelines, units * multiple_of, multiple_of)
    assert is_split(found, units * multiple_of, multiple_of)
    every = times_s(pipelines, np.arange(1, units + 1)[:, None] * multiple_of)
    assert found.slowest_s == every[0].max() or (every < found.slowest_s).sum() < units


@given(case=cases(), objective=st.sampled_from(OBJECTIVES))
def test_groups_of_one_are_no_groups(case: tuple[list[Pace], list[int], int, int], objective: Objective) -> None:
    """`shared` of all ones changes nothing."""
    pipelines, ones, multiple_of, units = case
    free = distribute(pipelines, units * multiple_of, multiple_of, objective)
    assert distribute(pipelines, units * multiple_of, multiple_of, objective, shared=ones) == free


@given(case=cases(), by=st.integers(-20, 20))
def test_seconds_are_only_a_unit(case: tuple[list[Pace], list[int], int, int], by: int) -> None:
    """Times of double the length, or of a half, and so on, are split in the same way."""
    pipelines, _, multiple_of, units = case
    others = [Pace(pace.fixed_s * 2.0**by, pace.per_microbatch_s * 2.0**by) for pace in pipelines]
    for objective in OBJECTIVES:
        found = distribute(others, units * multiple_of, multiple_of, objective)
        assert found.microbatches == distribute(pipelines, units * multiple_of, multiple_of, objective).microbatches


@pytest.mark.parametrize(("multiple_of", "slowest_s", "least_variance_s"), [(1, 33.0, 35.0), (3, 36.0, 42.0)])
def test_least_variance_is_not_least_time(multiple_of: int, slowest_s: float, least_variance_s: float) -> None:
    """Greyhound's equation 1 takes the two for equivalent; at 7, 3, 2 and 4 s and 39 micro-batches they are not."""
    assert distribute(COUNTEREXAMPLE, 39, multiple_of).slowest_s == slowest_s
    assert distribute(COUNTEREXAMPLE, 39, multiple_of, "variance").slowest_s == least_variance_s


def test_ties_go_to_lower_indices() -> None:
    """Of equally fast pipelines the first ones have one micro-batch more."""
    assert distribute([Pace(1.0, 0.1)] * 4, 10).microbatches == (3, 3, 2, 2)


def test_oobleck_sized_groups_are_split_at_once() -> None:
    """Five templates of up to 16 instances, 8,192 micro-batches: both objectives, and neither beats the other's own."""
    shared = [16, 11, 13, 7, 9]
    pipelines = spread_out([Pace(2.0 * n, 9.0 / n) for n in (2, 3, 4, 5, 7)], shared)
    found = {objective: distribute(pipelines, 8192, objective=objective, shared=shared) for objective in OBJECTIVES}
    values = {
        objective: np.array([[p.time_s(n) for p, n in zip(pipelines, each.microbatches, strict=True)]])
        for objective, each in found.items()
    }
    assert found["min-max"].slowest_s <= found["variance"].slowest_s
    assert variance(values["variance"], [1] * 56)[0] <= variance(values["min-max"], [1] * 56)[0]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 4), st.integers(0, 3) | st.none()), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(1, 130),
)
def test_the_nearest_number_is_named(
    parts: list[tuple[int, int, int | None]], multiple_of: int, microbatches: int
) -> None:
    """What is recommended is what can be split and lies nearest, both numbers where two are equally near."""
    ranges = [Range(count, least, None if more is None else least + more) for count, least, more in parts]
    sums = {0}
    for part in ranges:
        most = 200 if part.most is None else part.most
        sums = {total + part.count * n for total in sums for n in range(part.least, most + 1) if total < 300}
    totals = {total * multiple_of for total in sums}
    distance = min(abs(total - microbatches) for total in totals)
    expected = sorted(total for total in totals if abs(total - microbatches) == distance)
    assert nearest(ranges, multiple_of, microbatches) == expected


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ({"microbatches": 3}, "take 4"),
        ({"microbatches": 38, "multiple_of": 4}, "take 36 or 40"),
        ({"microbatches": 39, "solver": "pyomo", "at_most": [9, 9, 9, 9]}, "take 36"),
        ({"microbatches": 9, "solver": "pyomo", "at_least": [1, 2, 3, 5]}, "take 11"),
        ({"microbatches": 9, "solver": "pyomo", "at_least": [4] * 4, "at_most": [3] * 4}, "raise it to 4"),
    ],
)
def test_what_cannot_be_split_names_what_can(arguments: dict[str, Any], fix: str) -> None:
    """An InfeasibleError whose fix holds the nearest number of micro-batches."""
    with pytest.raises(InfeasibleError) as caught:
        distribute(COUNTEREXAMPLE, **arguments)
    assert caught.value.fix == fix


def test_shared_numbers_that_no_total_has() -> None:
    """Three and five instances of two templates cannot share 12 micro-batches; 11 or 13 they can."""
    with pytest.raises(InfeasibleError, match=r"12 micro-batches .* equal numbers in 3, 5 of them") as caught:
        distribute([Pace(0.0, 1.0)] * 8, 12, shared=[3, 5])
    assert caught.value.fix == "take 11 or 13"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"paces": []}, "no pipelines"),
        ({"paces": [Pace(0.0, 0.0)]}, "pipeline 0 takes 0 s"),
        ({"paces": [Pace(0.0, float("nan"))]}, "pipeline 0 takes nan s"),
        ({"paces": [Pace(float("inf"), 1.0)]}, "inf s beside"),
        ({"microbatches": 0}, "0 is out of range"),
        ({"multiple_of": 0}, "0 is out of range"),
        ({"at_most": [20] * 4}, "take no bounds"),
        ({"at_least": [2] * 3, "solver": "pyomo"}, "3 bounds for 4 pipelines"),
        ({"at_most": [0] * 4, "solver": "pyomo"}, "0 is out of range"),
        ({"shared": [2, 3]}, "are not 4 pipelines"),
        ({"shared": [2, 2]}, "pipelines 0 to 1 share a number"),
        ({"solver": "pyomo", "time_limit_s": float("nan")}, "no limit"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], what: str) -> None:
    """An InvalidInputError that says what is wrong, where, and what to do."""
    with pytest.raises(InvalidInputError, match=what) as caught:
        distribute(**{"paces": COUNTEREXAMPLE, "microbatches": 39, **arguments})
    assert caught.value.where
    assert caught.value.fix


@either_objective
@pytest.mark.parametrize(
    ("pipelines", "microbatches", "multiple_of", "shared"),
    [
        (COUNTEREXAMPLE, 39, 3, None),
        ([Pace(2.0 * n, 1e-6 / n) for n in range(1, 7)], 60, 1, None),
        (spread_out([Pace(4.0, 3.5), Pace(3.0, 2.2), Pace(0.0, 1.7)], [2, 3, 4]), 61, 1, [2, 3, 4]),
    ],
)
def test_pyomo_agrees_with_the_exact_algorithms(
    objective: Objective, pipelines: list[Pace], microbatches: int, multiple_of: int, shared: list[int] | None
) -> None:
    """The same problem stated in Pyomo has the same least value, within the solvers' tolerance."""
    if objective == "variance":
        pytest.importorskip("pyscipopt")
    both = [distribute(pipelines, microbatches, multiple_of, objective, s, shared=shared) for s in ("exact", "pyomo")]
    times = np.array([[p.time_s(n) for p, n in zip(pipelines, found.microbatches, strict=True)] for found in both])
    values = times.max(axis=1) if objective == "min-max" else variance(times, [1] * len(pipelines))
    assert is_split(both[1], microbatches, multiple_of)
    assert values[1] == pytest.approx(values[0], rel=1e-5)


@either_objective
def test_pyomo_keeps_bounds(objective: Objective) -> None:
    """With bounds for each pipeline Pyomo's answer is the best of all splits that keep them."""
    if objective == "variance":
        pytest.importorskip("pyscipopt")
    low, high = [1, 12, 1, 3], [4, 20, 13, 12]
    found = distribute(COUNTEREXAMPLE, 39, 1, objective, "pyomo", low, high)
    ways = splits([1] * 4, 39)
    times = times_s(COUNTEREXAMPLE, ways[((ways >= low) & (ways <= high)).all(axis=1)])
    values = times.max(axis=1) if objective == "min-max" else variance(times, [1] * 4)
    chosen = times_s(COUNTEREXAMPLE, np.array([found.microbatches]))
    value = chosen.max() if objective == "min-max" else variance(chosen, [1] * 4)[0]
    assert all(a <= n <= b for a, n, b in zip(low, found.microbatches, high, strict=True))
    assert value == pytest.approx(values.min(), rel=1e-5)


def test_no_proof_in_time_is_an_error() -> None:
    """A solver whose time is over gives no answer, rather than one that may be wrong."""
    with pytest.raises(LimitReachedError, match="not proven"):
        distribute(COUNTEREXAMPLE, 39, solver="pyomo", time_limit_s=0.0)


def test_without_scip_the_variance_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """SCIP is an extra."""
    monkeypatch.setitem(sys.modules, "pyscipopt", None)
    with pytest.raises(InvalidInputError, match="pyscipopt is not installed") as caught:
        distribute(COUNTEREXAMPLE, 39, objective="variance", solver="pyomo")
    assert caught.value.fix == "pip install 'rtk-train[scip]'"


def test_the_command_says_who_gets_what(tmp_path: Path) -> None:
    """A line for people, or JSON; a file has JSON, and the line is a remark."""
    arguments = ("plan", "batch", "--times", "7,3,2,4", "--microbatches", "39")
    tree = {"microbatches": [4, 11, 16, 8], "slowest_s": 33.0, "objective": "min-max"}
    assert rtk(*arguments).stdout == "4 11 16 8: slowest 33 s (min-max)\n"
    assert json.loads(rtk(*arguments, "--json").stdout) == tree
    done = rtk(*arguments, "-o", "found.json", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "slowest 33 s (min-max)\n")
    assert json.loads((tmp_path / "found.json").read_text()) == tree
    bounded = rtk(*arguments, "--solver", "pyomo", "--at-most", "12", "--json")
    assert json.loads(bounded.stdout)["slowest_s"] == 40.0


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--times", "7,x"), 2, "'x' cannot be read\nat: --times, pipeline 1"),
        (("--times", "7,-1"), 2, "'-1' is too little\nat: --times, pipeline 1"),
        (("--times", "nan"), 2, "'nan' cannot be read\nat: --times, pipeline 0"),
        (("--times", ""), 2, "'' cannot be read\nat: --times, pipeline 0"),
        (("--at-most", "8;9"), 2, "'8;9' cannot be read"),
        (("--at-most", "12"), 2, "use --solver pyomo"),
        (("--multiple-of", "4"), 3, "take 40"),
    ],
)
@pytest.mark.wheel("plan batch")
def test_the_command_refuses_in_one_error(options: tuple[str, ...], code: int, said: str) -> None:
    """What, where and what to do on standard error; with --json also as the one document on standard output."""
    done = rtk("plan", "batch", "--times", "7,3,2,4", "--microbatches", "39", *options, "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]["exit_code"]) == (code, code)
    assert said in done.stderr
    assert "\nat: --" in done.stderr
    assert "\ndo: " in done.stderr
